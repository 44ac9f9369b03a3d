//! Changing directories. What only reads them is the same for every checkpoint (`tree/names.rs`).
//!
//! Where the names are, and where there is room for more, is noted in memory when a name is first
//! asked for. A name is then added or removed with one block read, whatever the size of the directory. One
//! whose index would take more memory than there is for all is searched from its first block to its last.
//!
//! A change of a name is prepared, which may fail, and then applied ([`blocks`](super::blocks)). What was
//! prepared last comes last, if several changes are of one directory.
//!
//! The index knows the blocks that could not be read. Names in others are removed and replaced as ever,
//! but none is added: the name may be there already.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use nilfs_ondisk::dirent::{self, Room};
use nilfs_ondisk::inode::FileType;
use nilfs_ondisk::{FileBlock, Ino};

use super::blocks::Ready;
use super::inode::{Context, State};
use crate::block::bytes_mut;
use crate::error::{Error, Result};
use crate::tree::View;
use crate::tree::names::{self, Position, Positions, compact, damaged};

/// What is known of the names of a directory.
#[derive(Debug, Default)]
pub(super) enum Names {
    /// Nobody has asked for one yet.
    #[default]
    Unread,
    /// Where they are.
    Indexed(Box<Index>),
    /// There are too many for an index.
    TooMany,
}

/// Where the names of a directory are, and where there is room.
#[derive(Debug, Default)]
pub(super) struct Index {
    positions: Positions,
    /// The greatest slack of each block, by block.
    slack: Vec<u32>,
    /// The same, by slack.
    by_slack: BTreeSet<(u32, u32)>,
}

impl Names {
    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Indexed(index) => index.bytes(),
            Self::Unread | Self::TooMany => 0,
        }
    }

    fn positions(&self) -> Option<&Positions> {
        match self {
            Self::Indexed(index) => Some(&index.positions),
            Self::Unread | Self::TooMany => None,
        }
    }
}

impl Index {
    fn bytes(&self) -> usize {
        let slack = self.slack.capacity() * size_of::<u32>();
        // A node of the set is two thirds full.
        let by_slack = self.by_slack.len() * size_of::<(u32, u32)>() * 3 / 2;
        size_of::<Self>() + self.positions.bytes() + slack + by_slack
    }

    fn set_slack(&mut self, block: u32, slack: usize) {
        let (nth, slack) = (block as usize, slack as u32);
        match self.slack.get_mut(nth) {
            Some(known) => _ = self.by_slack.remove(&(std::mem::replace(known, slack), block)),
            None => {
                self.slack.resize(nth + 1, 0);
                self.slack[nth] = slack;
            }
        }
        self.by_slack.insert((slack, block));
    }

    /// A block with room for a record.
    fn room(&self, need: usize) -> Option<FileBlock> {
        let found = self.by_slack.range((need as u32, 0)..).next();
        found.map(|(_, block)| FileBlock((*block).into()))
    }
}

/// Fails unless `name` can be the name of a file that is to be made or removed.
pub(super) fn check_new_name(name: &[u8]) -> Result<()> {
    names::check(name)?;
    if name == b"." || name == b".." {
        return Err(Error::Invalid("\".\" and \"..\" cannot be made or removed"));
    }
    Ok(())
}

/// The index of a directory, unless that takes more than `limit` bytes.
fn build(state: &State, view: &View, limit: usize) -> Result<Names> {
    let mut index = Some(Box::<Index>::default());
    let block_size = view.store.block_size();
    let (mut current, mut slack) = (FileBlock(0), 0);
    let keys = names::blocks(state, view, FileBlock(0))?;
    let _ = names::walk(state, view, keys, &mut |key, record| {
        let Some(known) = &mut index else { return ControlFlow::Break(()) };
        let Ok(record) = record else {
            known.positions.insert_unread(key);
            return ControlFlow::Continue(());
        };
        if std::mem::replace(&mut current, key) != key {
            slack = 0;
        }
        slack = slack.max(record.slack());
        match compact(block_size, key, record.offset) {
            Some(at) if record.is_used() => known.positions.insert(record.name, at),
            Some(_) => {}
            None => index = None,
        }
        if let Some(known) = &mut index
            && record.offset + record.len == block_size.bytes()
        {
            // Positions are numbers of 32 bits, so blocks are as well.
            known.set_slack(key.0 as u32, slack);
        }
        index.take_if(|known| known.bytes() > limit);
        if index.is_none() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(index.map_or(Names::TooMany, Names::Indexed))
}

fn find(state: &State, view: &View, name: &[u8]) -> Result<Option<Position>> {
    names::find(state, view, state.names.positions(), name)
}

/// Makes the names known as far as there is memory for that.
fn read_names(state: &mut State, context: &Context<'_>) -> Result<()> {
    if matches!(state.names, Names::Unread) {
        state.names = build(state, &context.view, context.index_limit)?;
    }
    Ok(())
}

/// What a name leads to, if the names are known already.
pub(super) fn lookup_known(state: &State, view: &View, name: &[u8]) -> Option<Result<Option<Ino>>> {
    let known = !matches!(state.names, Names::Unread);
    let found = known.then(|| find(state, view, name));
    found.map(|found| found.map(|found| found.map(|position| position.ino)))
}

/// Where a name is.
pub(super) fn lookup(
    state: &mut State,
    context: &Context<'_>,
    name: &[u8],
) -> Result<Option<Position>> {
    read_names(state, context)?;
    find(state, &context.view, name)
}

/// A block with room for a record of `need` bytes, of those that can be read.
fn room(state: &State, view: &View, need: usize) -> Result<Option<FileBlock>> {
    if let Names::Indexed(index) = &state.names {
        return Ok(index.room(need));
    }
    let mut found = None;
    let keys = names::blocks(state, view, FileBlock(0))?;
    let _ = names::walk(state, view, keys, &mut |key, record| {
        found = record.is_ok_and(|record| record.slack() >= need).then_some(key);
        if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(found)
}

/// A name that can be added: the block with room for it is in memory.
#[derive(Debug)]
pub(super) struct Addition<'a> {
    pub(super) name: &'a [u8],
    page: Ready,
    room: Room,
    /// The block is a new one.
    extends: bool,
}

impl<'a> Addition<'a> {
    /// The addition of a name that is not there yet.
    pub(super) fn prepare(
        state: &mut State,
        context: &Context<'_>,
        name: &'a [u8],
    ) -> Result<Self> {
        let ino = state.file.ino();
        read_names(state, context)?;
        let found = room(state, &context.view, dirent::needed(name.len()).max(16))?;
        let extends = found.is_none();
        let page = match found {
            Some(key) => state.prepare_part(context, key)?,
            None => new_block(state, context)?,
        };
        let room = Room::find(&page.block, name.len()).map_err(damaged(ino, page.key))?;
        let room = room.ok_or_else(|| {
            Error::Inconsistent(format!("the index of directory {ino} does not fit its blocks"))
        })?;
        Ok(Self { name, page, room, extends })
    }

    /// Lets the name lead to a file.
    pub(super) fn apply(
        self,
        state: &mut State,
        context: &Context<'_>,
        (ino, file_type): (Ino, FileType),
    ) {
        let Self { name, mut page, room, extends } = self;
        let (key, block) = (page.key, 0..page.block.len());
        let inserted = if extends {
            let inserted = room.fill(bytes_mut(&mut page.block), ino, name, file_type);
            state.apply_whole(context, page);
            state.set_size((key.0 + 1) * context.view.store.block_size().bytes64());
            inserted
        } else {
            room.fill(state.apply_part(context, page, block), ino, name, file_type)
        };
        let dirent::Inserted { offset, slack } = inserted;
        changed(state, context, (key, offset), slack, |index, at| {
            index.positions.insert(name, at);
        });
    }
}

/// A block without names at the end of a directory.
fn new_block(state: &State, context: &Context<'_>) -> Result<Ready> {
    let key = FileBlock(context.view.store.block_size().blocks_for(state.size()));
    let mut block = context.pool.zeroed();
    dirent::format_empty(bytes_mut(&mut block));
    state.prepare_whole(&context.view, key, block)
}

/// A name that can be removed: its block is in memory.
#[derive(Debug)]
pub(super) struct Removal<'a> {
    pub(super) name: &'a [u8],
    page: Ready,
    offset: usize,
    record: dirent::Removal,
}

impl<'a> Removal<'a> {
    /// The removal of a name, which is where [`lookup`] has just found it, perhaps after another one has
    /// been `added` to the directory.
    pub(super) fn prepare(
        state: &State,
        context: &Context<'_>,
        name: &'a [u8],
        at: Position,
        added: Option<&Addition<'_>>,
    ) -> Result<Self> {
        let Position { block, offset, .. } = at;
        let mut page = state.prepare_part(context, block)?;
        if let Some(Addition { name, room, .. }) = added.filter(|it| it.page.key == block) {
            // Which file it leads to makes no difference to where the records are.
            room.fill(bytes_mut(&mut page.block), Ino::ROOT, name, FileType::Regular);
        }
        let record = dirent::Removal::of(&page.block, offset);
        let record = record.map_err(damaged(state.file.ino(), block))?;
        Ok(Self { name, page, offset, record })
    }

    pub(super) fn apply(self, state: &mut State, context: &Context<'_>) {
        let Self { name, page, offset, record } = self;
        let (key, block) = (page.key, 0..page.block.len());
        let slack = record.apply(state.apply_part(context, page, block));
        changed(state, context, (key, offset), slack, |index, at| {
            index.positions.remove(name, at);
        });
    }
}

/// A name that can be led to another file: its block is in memory.
#[derive(Debug)]
pub(super) struct Redirection<'a> {
    pub(super) name: &'a [u8],
    page: Ready,
    offset: usize,
}

impl<'a> Redirection<'a> {
    /// The redirection of a name that is there.
    pub(super) fn prepare(
        state: &mut State,
        context: &Context<'_>,
        name: &'a [u8],
    ) -> Result<Self> {
        let at = lookup(state, context, name)?.ok_or(Error::NotFound)?;
        Self::at(state, context, name, at)
    }

    /// The redirection of "..", which is in the first block: nothing else of the directory is read.
    pub(super) fn prepare_parent(state: &State, context: &Context<'_>) -> Result<Self> {
        let at = find_parent(state, &context.view)?;
        Self::at(state, context, b"..", at)
    }

    fn at(state: &State, context: &Context<'_>, name: &'a [u8], at: Position) -> Result<Self> {
        Ok(Self { name, page: state.prepare_part(context, at.block)?, offset: at.offset })
    }

    pub(super) fn apply(
        self,
        state: &mut State,
        context: &Context<'_>,
        (ino, file_type): (Ino, FileType),
    ) {
        let block = 0..self.page.block.len();
        let page = state.apply_part(context, self.page, block);
        dirent::set_target(page, self.offset, ino, file_type);
    }
}

/// The directory that has a directory.
pub(super) fn parent(state: &State, view: &View) -> Result<Ino> {
    find_parent(state, view).map(|at| at.ino)
}

/// Where ".." is.
fn find_parent(state: &State, view: &View) -> Result<Position> {
    let found = names::search(state, view, std::iter::once(FileBlock(0)), b"..")?;
    found.ok_or_else(|| Error::missing("a \"..\" entry"))
}

/// Takes over what has become of a block in which a record was changed, and does something with the
/// index, if there is one. It is given up if it has become too large.
fn changed(
    state: &mut State,
    context: &Context<'_>,
    (key, offset): (FileBlock, usize),
    slack: usize,
    change: impl FnOnce(&mut Index, u32),
) {
    let Names::Indexed(index) = &mut state.names else { return };
    let position = compact(context.view.store.block_size(), key, offset);
    if let Some(at) = position {
        index.set_slack(key.0 as u32, slack);
        change(index, at);
    }
    if position.is_none() || index.bytes() > context.index_limit {
        state.names = Names::TooMany;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nilfs_device::MemoryDevice;

    use super::*;
    use crate::fs::{Filesystem, MountOptions};
    use crate::mkfs::{Parameters, format};

    /// Every block of it could be the same on the device, so a hostile image can have such a size.
    #[test]
    fn a_directory_larger_than_the_volume_is_not_searched_to_its_end() {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        let parameters = Parameters::new([7; 16], 1, 1_700_000_000);
        format(&*device, &Parameters { blocks_per_segment: 256, ..parameters }).unwrap();
        let fs = Filesystem::mount(device, MountOptions::default()).unwrap();
        let root = fs.root().unwrap().inode;
        root.state.write().set_size(1 << 60);
        let says = |error: Error| assert!(error.to_string().contains("more than the volume"));
        says(fs.lookup(&root, b"name").unwrap_err());
        says(fs.read_dir(&root, 0, &mut |_| true).unwrap_err());
    }
}

//! The names of a directory: linear blocks on disk, an index in memory.
//!
//! The index is built when a name is first asked for. It knows where a name is, if it is there at
//! all, but not the name itself: eight bytes of memory for each, so that it is smaller than the
//! directory. Lookup, insert and remove then read one block, whatever the size of the directory. One
//! whose index would take more memory than there is for all is searched from its first block to its
//! last.
//!
//! Positions are byte offsets in the file, and a record never moves while it lives. So reading a
//! directory needs no index.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use nilfs_ondisk::dirent::{self, NAME_MAX, Record};
use nilfs_ondisk::inode::FileType;
use nilfs_ondisk::{FileBlock, Ino};

use super::inode::{Context, Inode, State};
use super::types::DirEntry;
use crate::block::{Block, bytes_mut, zeroed};
use crate::error::{Error, Result};
use crate::tree::View;

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

/// Where the names of a directory are.
#[derive(Debug, Default)]
pub(super) struct Index {
    names: HashTable<Slot>,
    hasher: RandomState,
    /// The greatest slack of each block, by block.
    slack: Vec<u32>,
    /// The same, by slack.
    by_slack: BTreeSet<(u32, u32)>,
}

/// A name with this hash has its record here, in units of [`STEP`] bytes from the start of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slot {
    hash: u32,
    at: u32,
}

/// Records begin at multiples of this.
const STEP: u64 = 4;

impl Slot {
    /// The hash as the table wants it, with all of its bits in use.
    fn spread(&self) -> u64 {
        u64::from(self.hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// Where a name is.
#[derive(Debug, Clone, Copy)]
struct Position {
    ino: Ino,
    block: FileBlock,
    offset: usize,
}

impl Names {
    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Indexed(index) => index.bytes(),
            Self::Unread | Self::TooMany => 0,
        }
    }
}

impl Index {
    fn bytes(&self) -> usize {
        let slack = self.slack.capacity() * size_of::<u32>();
        // A node of the set is two thirds full.
        let by_slack = self.by_slack.len() * size_of::<(u32, u32)>() * 3 / 2;
        size_of::<Self>() + self.names.allocation_size() + slack + by_slack
    }

    fn slot(&self, name: &[u8], at: u32) -> Slot {
        Slot { hash: self.hasher.hash_one(name) as u32, at }
    }

    fn insert(&mut self, name: &[u8], at: u32) {
        let slot = self.slot(name, at);
        self.names.insert_unique(slot.spread(), slot, Slot::spread);
    }

    fn remove(&mut self, name: &[u8], at: u32) {
        let slot = self.slot(name, at);
        if let Ok(found) = self.names.find_entry(slot.spread(), |other| *other == slot) {
            found.remove();
        }
    }

    /// Where a name may be.
    fn candidates(&self, name: &[u8]) -> impl Iterator<Item = u32> {
        let slot = self.slot(name, 0);
        let same = self.names.iter_hash(slot.spread()).filter(move |it| it.hash == slot.hash);
        same.map(|other| other.at)
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

/// Fails unless `name` can be a name of a file.
pub(super) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Error::NameTooLong);
    }
    if name.is_empty() || name.iter().any(|&byte| byte == 0 || byte == b'/') {
        return Err(Error::Invalid("a name must not be empty or contain a slash or a NUL"));
    }
    Ok(())
}

/// As [`check_name`], for a name that is to be made or removed.
pub(super) fn check_new_name(name: &[u8]) -> Result<()> {
    check_name(name)?;
    if name == b"." || name == b".." {
        return Err(Error::Invalid("\".\" and \"..\" cannot be made or removed"));
    }
    Ok(())
}

/// The blocks of a directory from one on. Each has a place of its own on the device, so more than the device has
/// is damage, which nobody should look through.
fn blocks(
    inode: &Inode,
    state: &State,
    view: &View,
    from: FileBlock,
) -> Result<impl Iterator<Item = FileBlock>> {
    let geometry = view.store.geometry();
    let count = geometry.block_size.blocks_for(state.size());
    if count > geometry.nsegments.saturating_mul(geometry.blocks_per_segment.into()) {
        return Err(Error::Inconsistent(format!(
            "directory {} has {count} blocks, more than the volume",
            inode.ino()
        )));
    }
    Ok((from.0..count).map(FileBlock))
}

/// A block of a directory, which has no holes.
fn block_of(inode: &Inode, state: &State, view: &View, key: FileBlock) -> Result<Block> {
    inode
        .block(state, view, key, true)?
        .ok_or_else(|| Error::missing(format_args!("block {key} of directory {}", inode.ino())))
}

fn damaged(inode: &Inode, key: FileBlock) -> impl Fn(nilfs_ondisk::FormatError) -> Error {
    let what = format!("block {key} of directory {}", inode.ino());
    move |source| Error::Corrupt { what: what.clone(), block: None, source }
}

/// The index of a directory, unless that takes more than `limit` bytes.
fn build(inode: &Inode, state: &State, view: &View, limit: usize) -> Result<Names> {
    let mut index = Box::<Index>::default();
    for key in blocks(inode, state, view, FileBlock(0))? {
        let block = block_of(inode, state, view, key)?;
        let mut slack = 0;
        for record in dirent::records(&block) {
            let record = record.map_err(damaged(inode, key))?;
            slack = slack.max(record.slack());
            if record.is_used() {
                let Some(at) = position_of(view, key, record.offset) else {
                    return Ok(Names::TooMany);
                };
                index.insert(record.name, at);
            }
        }
        // Positions are numbers of 32 bits, so blocks are as well.
        index.set_slack(key.0 as u32, slack);
        if index.bytes() > limit {
            return Ok(Names::TooMany);
        }
    }
    Ok(Names::Indexed(index))
}

/// Looks for a name in one block.
fn find_in(
    inode: &Inode,
    state: &State,
    view: &View,
    key: FileBlock,
    name: &[u8],
) -> Result<Option<Position>> {
    let block = block_of(inode, state, view, key)?;
    for record in dirent::records(&block) {
        let record = record.map_err(damaged(inode, key))?;
        if record.is_used() && record.name == name {
            return Ok(Some(Position { ino: record.ino, block: key, offset: record.offset }));
        }
    }
    Ok(None)
}

/// The position of a record as the index has it, if it can have it.
fn position_of(view: &View, key: FileBlock, offset: usize) -> Option<u32> {
    let start = key.0.checked_mul(view.store.block_size().bytes64())?;
    u32::try_from((start + offset as u64) / STEP).ok()
}

/// Looks for a name where the index says that it may be.
fn find_at(
    inode: &Inode,
    state: &State,
    view: &View,
    at: u32,
    name: &[u8],
) -> Result<Option<Position>> {
    let block_size = view.store.block_size();
    let at = u64::from(at) * STEP;
    let (key, offset) = (block_size.block_of(at), (at % block_size.bytes64()) as usize);
    let block = block_of(inode, state, view, key)?;
    let record = dirent::record_at(&block, offset).map_err(damaged(inode, key))?;
    let found = record.is_used() && record.name == name;
    Ok(found.then_some(Position { ino: record.ino, block: key, offset }))
}

fn find(inode: &Inode, state: &State, view: &View, name: &[u8]) -> Result<Option<Position>> {
    if let Names::Indexed(index) = &state.names {
        let found = |at| find_at(inode, state, view, at, name).transpose();
        return index.candidates(name).find_map(found).transpose();
    }
    let found = |key| find_in(inode, state, view, key, name).transpose();
    blocks(inode, state, view, FileBlock(0))?.find_map(found).transpose()
}

/// Makes the names known as far as there is memory for that.
fn read_names(inode: &Inode, state: &mut State, context: &Context<'_>) -> Result<()> {
    if matches!(state.names, Names::Unread) {
        state.names = build(inode, state, &context.view, context.index_limit)?;
    }
    Ok(())
}

/// What a name leads to, if the names are known already.
pub(super) fn lookup_known(
    inode: &Inode,
    state: &State,
    view: &View,
    name: &[u8],
) -> Option<Result<Option<Ino>>> {
    let known = !matches!(state.names, Names::Unread);
    let found = known.then(|| find(inode, state, view, name));
    found.map(|found| found.map(|found| found.map(|position| position.ino)))
}

/// What a name leads to.
pub(super) fn lookup(
    inode: &Inode,
    state: &mut State,
    context: &Context<'_>,
    name: &[u8],
) -> Result<Option<Ino>> {
    read_names(inode, state, context)?;
    Ok(find(inode, state, &context.view, name)?.map(|position| position.ino))
}

/// Whether there is nothing in the directory but "." and "..".
pub(super) fn is_empty(inode: &Inode, state: &State, view: &View) -> Result<bool> {
    for key in blocks(inode, state, view, FileBlock(0))? {
        for record in dirent::records(&block_of(inode, state, view, key)?) {
            let record = record.map_err(damaged(inode, key))?;
            if record.is_used() && !matches!(record.name, b"." | b"..") {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// A block with room for a record of `need` bytes.
fn room(inode: &Inode, state: &State, view: &View, need: usize) -> Result<Option<FileBlock>> {
    if let Names::Indexed(index) = &state.names {
        return Ok(index.room(need));
    }
    for key in blocks(inode, state, view, FileBlock(0))? {
        let slack = slack_of(&block_of(inode, state, view, key)?).map_err(damaged(inode, key))?;
        if slack >= need {
            return Ok(Some(key));
        }
    }
    Ok(None)
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
    let position = position_of(&context.view, key, offset);
    if let Some(at) = position {
        index.set_slack(key.0 as u32, slack);
        change(index, at);
    }
    if position.is_none() || index.bytes() > context.index_limit {
        state.names = Names::TooMany;
    }
}

/// Adds a name that is not there yet.
pub(super) fn insert(
    inode: &Inode,
    state: &mut State,
    context: &Context<'_>,
    name: &[u8],
    ino: Ino,
    file_type: FileType,
) -> Result<()> {
    let block_size = context.view.store.block_size();
    let need = dirent::needed(name.len()).max(16);
    read_names(inode, state, context)?;
    let key = match room(inode, state, &context.view, need)? {
        Some(key) => key,
        None => {
            let key = FileBlock(block_size.blocks_for(state.size()));
            let mut block = zeroed(block_size);
            dirent::format_empty(bytes_mut(&mut block));
            inode.set_block(state, context, key, block)?;
            state.set_size((key.0 + 1) * block_size.bytes64());
            key
        }
    };
    let page = inode.page_mut(state, context, key)?;
    let offset =
        dirent::insert(page, ino, name, file_type).map_err(damaged(inode, key))?.ok_or_else(
            || Error::Inconsistent(format!("directory {} lies about its room", inode.ino())),
        )?;
    let slack = slack_of(page).map_err(damaged(inode, key))?;
    changed(state, context, (key, offset), slack, |index, at| index.insert(name, at));
    Ok(())
}

/// Removes a name.
pub(super) fn remove(
    inode: &Inode,
    state: &mut State,
    context: &Context<'_>,
    name: &[u8],
) -> Result<()> {
    read_names(inode, state, context)?;
    let found = find(inode, state, &context.view, name)?.ok_or(Error::NotFound)?;
    let Position { block: key, offset, .. } = found;
    let page = inode.page_mut(state, context, key)?;
    dirent::remove(page, offset).map_err(damaged(inode, key))?;
    let slack = slack_of(page).map_err(damaged(inode, key))?;
    changed(state, context, (key, offset), slack, |index, at| index.remove(name, at));
    Ok(())
}

/// Lets a name that is there lead to another file.
pub(super) fn replace(
    inode: &Inode,
    state: &mut State,
    context: &Context<'_>,
    name: &[u8],
    ino: Ino,
    file_type: FileType,
) -> Result<()> {
    read_names(inode, state, context)?;
    let position = find(inode, state, &context.view, name)?.ok_or(Error::NotFound)?;
    let page = inode.page_mut(state, context, position.block)?;
    dirent::set_target(page, position.offset, ino, file_type);
    Ok(())
}

fn slack_of(block: &[u8]) -> Result<usize, nilfs_ondisk::FormatError> {
    dirent::records(block).try_fold(0, |most, record| Ok(most.max(record?.slack())))
}

/// Calls `emit` with the entries from byte offset `cookie` on, until it says that it is full.
pub(super) fn read(
    inode: &Inode,
    state: &State,
    view: &View,
    cookie: u64,
    emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
) -> Result<()> {
    let block_size = view.store.block_size();
    let first = block_size.block_of(cookie);
    for key in blocks(inode, state, view, first)? {
        let block = block_of(inode, state, view, key)?;
        let start = key.0 * block_size.bytes64();
        for record in dirent::records(&block) {
            let record: Record<'_> = record.map_err(damaged(inode, key))?;
            let at = start + record.offset as u64;
            if at < cookie || !record.is_used() {
                continue;
            }
            let entry = DirEntry {
                ino: record.ino,
                name: record.name,
                file_type: record.file_type(),
                next: at + 1,
            };
            if !emit(entry) {
                return Ok(());
            }
        }
    }
    Ok(())
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
        let options = MountOptions { read_only: true, ..MountOptions::default() };
        let fs = Filesystem::mount(device, options).unwrap();
        let root = fs.root().unwrap().inode;
        root.state.write().set_size(1 << 60);
        let says = |error: Error| assert!(error.to_string().contains("more than the volume"));
        says(fs.lookup(&root, b"name").unwrap_err());
        says(fs.read_dir(&root, 0, &mut |_| true).unwrap_err());
    }

    #[test]
    fn names_with_the_same_hash_are_told_apart_by_their_place() {
        let mut index = Index::default();
        for at in [4, 8] {
            index.insert(b"name", at);
        }
        let mut found: Vec<u32> = index.candidates(b"name").collect();
        found.sort_unstable();
        assert_eq!(found, [4, 8]);
        index.remove(b"name", 4);
        assert_eq!(index.candidates(b"name").collect::<Vec<_>>(), [8]);
    }
}

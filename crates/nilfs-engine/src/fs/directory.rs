//! The names of a directory: linear blocks on disk, an index in memory.
//!
//! The index is built when a name is first asked for. From then on lookup, insert and remove cost
//! the same whatever the size of the directory. Reading a directory needs no index: its positions
//! are byte offsets in the file, and a record never moves while it lives.

use std::collections::{BTreeSet, HashMap};

use nilfs_ondisk::dirent::{self, NAME_MAX, Record};
use nilfs_ondisk::inode::FileType;
use nilfs_ondisk::{FileBlock, Ino};

use super::inode::{Context, Inode, State};
use super::types::DirEntry;
use crate::block::{Block, bytes_mut, zeroed};
use crate::error::{Error, Result};
use crate::tree::View;

/// The names of a directory in memory.
#[derive(Debug, Default)]
pub(super) struct Index {
    names: HashMap<Box<[u8]>, Position>,
    /// The greatest slack of each block, by block.
    slack: Vec<usize>,
    /// The same, by slack.
    by_slack: BTreeSet<(usize, u64)>,
}

/// Where a name is.
#[derive(Debug, Clone, Copy)]
struct Position {
    ino: Ino,
    block: FileBlock,
    offset: usize,
}

impl Index {
    fn set_slack(&mut self, block: FileBlock, slack: usize) {
        let nth = block.0 as usize;
        if let Some(old) = self.slack.get(nth) {
            self.by_slack.remove(&(*old, block.0));
            self.slack[nth] = slack;
        } else {
            self.slack.resize(nth + 1, 0);
            self.slack[nth] = slack;
        }
        self.by_slack.insert((slack, block.0));
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

fn block_count(state: &State, view: &View) -> u64 {
    view.store.block_size().blocks_for(state.size())
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

fn build(inode: &Inode, state: &State, view: &View) -> Result<Index> {
    let mut index = Index::default();
    for key in (0..block_count(state, view)).map(FileBlock) {
        let block = block_of(inode, state, view, key)?;
        let mut slack = 0;
        for record in dirent::records(&block) {
            let record = record.map_err(damaged(inode, key))?;
            slack = slack.max(record.slack());
            if record.is_used() {
                let position = Position { ino: record.ino, block: key, offset: record.offset };
                index.names.insert(record.name.into(), position);
            }
        }
        index.set_slack(key, slack);
    }
    Ok(index)
}

fn index<'a>(inode: &Inode, state: &'a mut State, view: &View) -> Result<&'a mut Index> {
    if state.index.is_none() {
        state.index = Some(build(inode, state, view)?);
    }
    state.index.as_mut().ok_or(Error::Stale)
}

/// What a name leads to, if the index says: `None` if there is no index yet.
pub(super) fn lookup_indexed(state: &State, name: &[u8]) -> Option<Option<Ino>> {
    state.index.as_ref().map(|index| index.names.get(name).map(|position| position.ino))
}

/// What a name leads to.
pub(super) fn lookup(
    inode: &Inode,
    state: &mut State,
    view: &View,
    name: &[u8],
) -> Result<Option<Ino>> {
    Ok(index(inode, state, view)?.names.get(name).map(|position| position.ino))
}

/// Whether there is nothing in the directory but "." and "..".
pub(super) fn is_empty(inode: &Inode, state: &mut State, view: &View) -> Result<bool> {
    let index = index(inode, state, view)?;
    let own = [&b"."[..], b".."].iter().filter(|name| index.names.contains_key(**name)).count();
    Ok(index.names.len() == own)
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
    let index = index(inode, state, &context.view)?;
    let room = index.by_slack.range((need, 0)..).next().map(|(_, block)| FileBlock(*block));
    let key = match room {
        Some(key) => key,
        None => {
            let key = FileBlock(block_count(state, &context.view));
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
    if let Some(index) = &mut state.index {
        index.set_slack(key, slack);
        index.names.insert(name.into(), Position { ino, block: key, offset });
    }
    Ok(())
}

/// Removes a name.
pub(super) fn remove(
    inode: &Inode,
    state: &mut State,
    context: &Context<'_>,
    name: &[u8],
) -> Result<()> {
    let index = index(inode, state, &context.view)?;
    let position = *index.names.get(name).ok_or(Error::NotFound)?;
    let key = position.block;
    let page = inode.page_mut(state, context, key)?;
    dirent::remove(page, position.offset).map_err(damaged(inode, key))?;
    let slack = slack_of(page).map_err(damaged(inode, key))?;
    if let Some(index) = &mut state.index {
        index.set_slack(key, slack);
        index.names.remove(name);
    }
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
    let index = index(inode, state, &context.view)?;
    let position = index.names.get_mut(name).ok_or(Error::NotFound)?;
    position.ino = ino;
    let Position { block, offset, .. } = *position;
    let page = inode.page_mut(state, context, block)?;
    dirent::set_target(page, offset, ino, file_type);
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
    for key in (block_size.block_of(cookie).0..block_count(state, view)).map(FileBlock) {
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

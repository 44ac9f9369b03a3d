//! Reading directories: linear blocks on disk (docs/format.md §13), positions of names in memory.
//!
//! [`Positions`] say where a name is, if it is there at all, but not the name itself: eight bytes of
//! memory for each, so that they are smaller than the directory. A lookup then reads one block,
//! whatever the size of the directory. Without them it is searched from its first block to its last.
//!
//! A position is a byte offset in the file, and a record never moves while it lives. So listing a
//! directory needs no positions.
//!
//! A block that cannot be read costs the names in it and no others. A name that is nowhere else may be
//! there, so looking for it is an error; and a listing of the rest ends with one.

use std::hash::BuildHasher;
use std::io;
use std::ops::ControlFlow;

use hashbrown::HashTable;
use nilfs_ondisk::dirent::{self, NAME_MAX, Record};
use nilfs_ondisk::{BlockSize, FileBlock, FormatError, Ino};

use super::content::Content;
use super::{File, View};
use crate::block::Block;
use crate::error::{Error, Result};
use crate::host::RandomState;
use crate::types::DirEntry;

/// Where the names of a directory are.
#[derive(Debug, Default)]
pub(crate) struct Positions {
    slots: HashTable<Slot>,
    hasher: RandomState,
    /// Blocks that could not be read, in which any other name may be.
    unread: Vec<FileBlock>,
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

/// Where the record of a name is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Position {
    /// The file that the name leads to.
    pub(crate) ino: Ino,
    pub(crate) block: FileBlock,
    /// Bytes from the start of the block.
    pub(crate) offset: usize,
}

/// A record's place as [`Positions`] have it, if they can have it.
pub(crate) fn compact(block_size: BlockSize, key: FileBlock, offset: usize) -> Option<u32> {
    let start = key.0.checked_mul(block_size.bytes64())?;
    u32::try_from((start + offset as u64) / STEP).ok()
}

impl Positions {
    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        let unread = self.unread.capacity() * size_of::<FileBlock>();
        size_of::<Self>() + self.slots.allocation_size() + unread
    }

    fn slot(&self, name: &[u8], at: u32) -> Slot {
        Slot { hash: self.hasher.hash_one(name) as u32, at }
    }

    /// Notes that the record of a name is at a [`compact`] place.
    pub(crate) fn insert(&mut self, name: &[u8], at: u32) {
        let slot = self.slot(name, at);
        self.slots.insert_unique(slot.spread(), slot, Slot::spread);
    }

    /// Notes that a block cannot be read.
    pub(crate) fn insert_unread(&mut self, key: FileBlock) {
        self.unread.push(key);
    }

    /// Notes that it is there no more.
    pub(crate) fn remove(&mut self, name: &[u8], at: u32) {
        let slot = self.slot(name, at);
        if let Ok(found) = self.slots.find_entry(slot.spread(), |other| *other == slot) {
            found.remove();
        }
    }

    /// The places where a name may be.
    fn candidates(&self, name: &[u8]) -> impl Iterator<Item = u32> {
        let slot = self.slot(name, 0);
        let same = self.slots.iter_hash(slot.spread()).filter(move |it| it.hash == slot.hash);
        same.map(|other| other.at)
    }
}

/// Fails unless `name` can be a name of a file.
pub(crate) fn check(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Error::NameTooLong);
    }
    if name.is_empty() || name.iter().any(|&byte| byte == 0 || byte == b'/') {
        return Err(Error::Invalid("a name must not be empty or contain a slash or a NUL"));
    }
    Ok(())
}

/// The blocks of a directory from one on. Each has a place of its own on the device, so more than the
/// device has is damage, which nobody should look through.
pub(crate) fn blocks(
    dir: &impl Content,
    view: &View,
    from: FileBlock,
) -> Result<impl Iterator<Item = FileBlock>> {
    let geometry = view.store.geometry();
    let count = geometry.block_size.blocks_for(dir.file().size());
    if count > geometry.nsegments.saturating_mul(geometry.blocks_per_segment.into()) {
        return Err(Error::Inconsistent(format!(
            "directory {} has {count} blocks, more than the volume",
            dir.file().ino()
        )));
    }
    Ok((from.0..count).map(FileBlock))
}

/// A block of a directory, which has no holes.
fn block_of(dir: &impl Content, view: &View, key: FileBlock) -> Result<Block> {
    dir.block(view, key)?.ok_or_else(|| {
        Error::missing(format_args!("block {key} of directory {}", dir.file().ino()))
    })
}

/// The error for a block of a directory that is no sequence of records.
pub(crate) fn damaged(dir: Ino, key: FileBlock) -> impl Fn(FormatError) -> Error {
    move |source| {
        let what = format!("block {key} of directory {dir}");
        Error::Corrupt { what, block: None, source }
    }
}

/// Calls `visit` with every record, used or not, of some blocks, and with the damage of each block that
/// cannot be read, until it breaks.
pub(crate) fn walk(
    dir: &impl Content,
    view: &View,
    keys: impl Iterator<Item = FileBlock>,
    visit: &mut dyn FnMut(FileBlock, Result<Record<'_>>) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    for key in keys {
        let flow = match records_of(dir, view, key, &mut |record| visit(key, Ok(record))) {
            Err(error) if error.is_fault() && view.around_damage => {
                tracing::debug!("passed over: {error}");
                ControlFlow::Continue(())
            }
            Err(error) if error.is_fault() => visit(key, Err(error)),
            flow => flow?,
        };
        if flow.is_break() {
            return Ok(flow);
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Calls `visit` with every record, used or not, of some blocks, until it breaks.
///
/// # Errors
/// A block cannot be read, and `visit` did not break at what the others have.
pub(crate) fn records(
    dir: &impl Content,
    view: &View,
    keys: impl Iterator<Item = FileBlock>,
    visit: &mut dyn FnMut(FileBlock, Record<'_>) -> ControlFlow<()>,
) -> Result<()> {
    let mut damage = None;
    let flow = walk(dir, view, keys, &mut |key, record| match record {
        Ok(record) => visit(key, record),
        Err(error) => {
            damage.get_or_insert(error);
            ControlFlow::Continue(())
        }
    })?;
    match damage.filter(|_| flow.is_continue()) {
        Some(damage) => Err(damage),
        None => Ok(()),
    }
}

/// Calls `visit` with every record of one block, until it breaks.
fn records_of(
    dir: &impl Content,
    view: &View,
    key: FileBlock,
    visit: &mut dyn FnMut(Record<'_>) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    let block = block_of(dir, view, key)?;
    for record in dirent::records(&block) {
        let record = record.map_err(damaged(dir.file().ino(), key))?;
        if visit(record).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Whether a directory has a block.
pub(crate) fn has_block(dir: &File, view: &View, key: FileBlock) -> bool {
    key.0 < view.store.block_size().blocks_for(dir.size())
}

/// Calls `visit` with every name in a block that a directory has, and with the inode it leads to.
pub(crate) fn names_of_block(
    dir: &File,
    view: &View,
    key: FileBlock,
    visit: &mut dyn FnMut(&[u8], Ino),
) -> Result<()> {
    let block = block_of(dir, view, key)?;
    for record in dirent::records(&block) {
        let record = record.map_err(damaged(dir.ino(), key))?;
        if record.is_used() {
            visit(record.name, record.ino);
        }
    }
    Ok(())
}

/// The positions of all names, unless they take more than `limit` bytes.
pub(crate) fn positions(
    dir: &impl Content,
    view: &View,
    limit: usize,
) -> Result<Option<Positions>> {
    let mut positions = Some(Positions::default());
    let block_size = view.store.block_size();
    let _ = walk(dir, view, blocks(dir, view, FileBlock(0))?, &mut |key, record| {
        let Some(known) = &mut positions else { return ControlFlow::Break(()) };
        match record {
            Err(_) => known.insert_unread(key),
            Ok(record) if !record.is_used() => {}
            Ok(record) => match compact(block_size, key, record.offset) {
                Some(at) => known.insert(record.name, at),
                None => positions = None,
            },
        }
        positions.take_if(|known| known.bytes() > limit);
        if positions.is_none() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(positions)
}

/// Looks for a name where `positions` say that it may be, or everywhere without them.
///
/// # Errors
/// It is not found, and a block cannot be read in which it may be.
pub(crate) fn find(
    dir: &impl Content,
    view: &View,
    positions: Option<&Positions>,
    name: &[u8],
) -> Result<Option<Position>> {
    let Some(positions) = positions else {
        return search(dir, view, blocks(dir, view, FileBlock(0))?, name);
    };
    let found = |at| find_at(dir, view, at, name).transpose();
    match positions.candidates(name).find_map(found) {
        Some(found) => found.map(Some),
        None => search(dir, view, positions.unread.iter().copied(), name),
    }
}

/// Looks for a name in some blocks.
pub(crate) fn search(
    dir: &impl Content,
    view: &View,
    keys: impl Iterator<Item = FileBlock>,
    name: &[u8],
) -> Result<Option<Position>> {
    let mut found = None;
    records(dir, view, keys, &mut |block, record| {
        if record.is_used() && record.name == name {
            found = Some(Position { ino: record.ino, block, offset: record.offset });
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// Looks for a name at one place.
fn find_at(dir: &impl Content, view: &View, at: u32, name: &[u8]) -> Result<Option<Position>> {
    let block_size = view.store.block_size();
    let at = u64::from(at) * STEP;
    let (key, offset) = (block_size.block_of(at), (at % block_size.bytes64()) as usize);
    let block = block_of(dir, view, key)?;
    let record = dirent::record_at(&block, offset).map_err(damaged(dir.file().ino(), key))?;
    let found = record.is_used() && record.name == name;
    Ok(found.then_some(Position { ino: record.ino, block: key, offset }))
}

/// Whether there is nothing in the directory but "." and "..".
pub(crate) fn is_empty(dir: &impl Content, view: &View) -> Result<bool> {
    let mut empty = true;
    records(dir, view, blocks(dir, view, FileBlock(0))?, &mut |_, record| {
        empty = !record.is_used() || matches!(record.name, b"." | b"..");
        if empty { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok(empty)
}

/// Bit of a cookie that says that a block before it could not be read. No directory is that long.
const INCOMPLETE: u64 = 1 << 62;

/// Calls `emit` with the entries from byte offset `cookie` on, until it says that it is full.
///
/// # Errors
/// It was not full, and a block could not be read, of those from the first on.
pub(crate) fn read(
    dir: &impl Content,
    view: &View,
    cookie: u64,
    emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
) -> Result<()> {
    let block_size = view.store.block_size();
    let (start, mut incomplete) = (cookie & !INCOMPLETE, cookie & INCOMPLETE);
    let mut damage = None;
    let keys = blocks(dir, view, block_size.block_of(start))?;
    let flow = walk(dir, view, keys, &mut |key, record| {
        let record = match record {
            Ok(record) => record,
            Err(error) => {
                incomplete = INCOMPLETE;
                damage.get_or_insert(error);
                return ControlFlow::Continue(());
            }
        };
        let at = key.0 * block_size.bytes64() + record.offset as u64;
        if at < start || !record.is_used() {
            return ControlFlow::Continue(());
        }
        let (ino, name, file_type) = (record.ino, record.name, record.file_type());
        match emit(DirEntry { ino, name, file_type, next: (at + 1) | incomplete }) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    })?;
    match flow.is_break() || incomplete == 0 {
        true => Ok(()),
        false => Err(damage.unwrap_or_else(|| what_was_missing(dir, view))),
    }
}

/// The error for names that were not listed, because a block could not be read then.
fn what_was_missing(dir: &impl Content, view: &View) -> Error {
    let again = blocks(dir, view, FileBlock(0))
        .and_then(|keys| records(dir, view, keys, &mut |_, _| ControlFlow::Continue(())));
    again.err().unwrap_or_else(|| Error::Device {
        what: format!("read all of directory {} when it was listed", dir.file().ino()),
        source: io::Error::other("it can be read now"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_the_same_hash_are_told_apart_by_their_place() {
        let mut positions = Positions::default();
        for at in [4, 8] {
            positions.insert(b"name", at);
        }
        let mut found: Vec<u32> = positions.candidates(b"name").collect();
        found.sort_unstable();
        assert_eq!(found, [4, 8]);
        positions.remove(b"name", 4);
        assert_eq!(positions.candidates(b"name").collect::<Vec<_>>(), [8]);
    }
}

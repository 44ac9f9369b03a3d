//! Changing persistent object files: allocating, freeing and editing entries (docs/format.md §9).
//!
//! The counts of free entries follow from the bitmaps. So where a block of them cannot be read, it is made anew
//! when it has to change.

use std::ops::Range;

use nilfs_ondisk::palloc::{Palloc, clear_bit, next_clear_bit, set_bit, test_bit};

use crate::block::{Block, bytes_mut, zeroed};
use crate::bmap::Source;
use crate::error::{Error, Result};
use crate::metafile::FileEdit;

/// Number of free entries of a group; `None` if there never was one in any group that is counted with it.
pub(crate) fn free_entries(
    file: &FileEdit,
    source: Source<'_>,
    layout: &Palloc,
    group: u64,
) -> Result<Option<u64>> {
    let slot = layout.descriptor(group);
    match file.get(source, slot.block) {
        Ok(block) => Ok(block.map(|block| read_u32(&block, slot.offset).into())),
        Err(error) if error.is_of_block() => count_free(file, source, layout, group).map(Some),
        Err(error) => Err(error),
    }
}

/// Number of free entries of a group as its bitmap says.
fn count_free(file: &FileEdit, source: Source<'_>, layout: &Palloc, group: u64) -> Result<u64> {
    let zeros = |bitmap: Block| bitmap.iter().map(|byte| u64::from(byte.count_zeros())).sum();
    let bitmap = file.get(source, layout.bitmap(group))?;
    Ok(bitmap.map_or(layout.entries_per_group, zeros))
}

/// The first free one of some entries, all of which are described by one bitmap.
pub(crate) fn first_free(
    file: &FileEdit,
    source: Source<'_>,
    layout: &Palloc,
    among: Range<u64>,
) -> Result<Option<u64>> {
    let first = layout.bit(among.start);
    let found = match file.get(source, first.block)? {
        Some(bitmap) => next_clear_bit(&bitmap, first.bit)
            .map(|bit| among.start.saturating_add((bit - first.bit) as u64)),
        None => Some(among.start),
    };
    Ok(found.filter(|entry| among.contains(entry)))
}

/// The first free entry of the nth block of entries, if at least this many of them are free.
pub(crate) fn free_in_block(
    file: &FileEdit,
    source: Source<'_>,
    layout: &Palloc,
    nth: u64,
    at_least: u64,
) -> Result<Option<u64>> {
    let entries = layout.entries_of_block(nth);
    let first = layout.bit(entries.start);
    let Some(bitmap) = file.get(source, first.block)? else {
        return Ok(Some(entries.start));
    };
    let bits = first.bit..first.bit + (entries.end - entries.start) as usize;
    let mut free = bits.filter(|&bit| !test_bit(&bitmap, bit));
    let Some(found) = free.next() else { return Ok(None) };
    let enough = 1 + free.count() as u64 >= at_least.min(entries.end - entries.start);
    Ok(enough.then(|| entries.start + (found - first.bit) as u64))
}

/// Makes holes of the blocks that describe an entry, as far as they say of all entries that they
/// are free.
pub(crate) fn remove_if_free(
    file: &mut FileEdit,
    source: Source<'_>,
    layout: &Palloc,
    entry: u64,
) -> Result<()> {
    let slot = layout.entry(entry);
    let group = layout.group_of(entry);
    let free = free_entries(file, source, layout, group)?;
    if free.is_none_or(|free| free == layout.entries_per_group) {
        file.remove(source, layout.bitmap(group))?;
        return file.remove(source, slot.block);
    }
    let entries = layout.entries_of_block(layout.nth_entry_block(entry));
    let first = layout.bit(entries.start);
    let Some(bitmap) = file.get(source, first.block)? else { return Ok(()) };
    let mut bits = first.bit..first.bit + (entries.end - entries.start) as usize;
    if bits.any(|bit| test_bit(&bitmap, bit)) {
        return Ok(());
    }
    file.remove(source, slot.block)
}

/// Marks an entry as used or free. `what` names the entry in the error that says it was already.
pub(crate) fn mark(
    file: &mut FileEdit,
    source: Source<'_>,
    layout: &Palloc,
    entry: u64,
    used: bool,
    what: &str,
) -> Result<()> {
    let position = layout.bit(entry);
    make_countable(file, source, layout, entry)?;
    let bitmap = file.get_mut(source, position.block, |_| {})?;
    let changed =
        if used { set_bit(bitmap, position.bit) } else { clear_bit(bitmap, position.bit) };
    if !changed {
        let state = if used { "in use" } else { "free" };
        return Err(Error::Inconsistent(format!("{what} {entry} is {state} already")));
    }
    let (free, per_group) = free_count(file, source, layout, entry)?;
    let now = u32::from_le_bytes(*free);
    let now = if used { now.checked_sub(1) } else { now.checked_add(1) }
        .filter(|now| *now <= per_group)
        .ok_or_else(|| Error::Inconsistent(format!("the count of free {what}s is wrong")))?;
    *free = now.to_le_bytes();
    Ok(())
}

/// Marks an entry as free that nothing needs, also if its bit, against everything else, says so already.
/// The count of its group follows from the bits then.
pub(crate) fn free(
    file: &mut FileEdit,
    source: Source<'_>,
    layout: &Palloc,
    entry: u64,
    what: &str,
) -> Result<()> {
    let position = layout.bit(entry);
    make_countable(file, source, layout, entry)?;
    let bitmap = file.get_mut(source, position.block, |_| {})?;
    if test_bit(bitmap, position.bit) {
        return mark(file, source, layout, entry, false, what);
    }
    let zeros = bitmap.iter().map(|byte| byte.count_zeros()).sum::<u32>();
    let (free, per_group) = free_count(file, source, layout, entry)?;
    *free = zeros.min(per_group).to_le_bytes();
    Ok(())
}

/// The count of free entries of the group that has an entry, for changing, and the most that it can be.
fn free_count<'a>(
    file: &'a mut FileEdit,
    source: Source<'_>,
    layout: &Palloc,
    entry: u64,
) -> Result<(&'a mut [u8; 4], u32)> {
    let slot = layout.descriptor(layout.group_of(entry));
    let per_group = layout.entries_per_group as u32;
    let descriptor = file.get_mut(source, slot.block, |block| {
        // A new descriptor block says of all its groups that they are free.
        block.chunks_exact_mut(4).for_each(|count| count.copy_from_slice(&per_group.to_le_bytes()));
    })?;
    let count = descriptor[slot.offset..].first_chunk_mut();
    Ok((count.ok_or_else(|| Error::missing("a count of free entries"))?, per_group))
}

/// Makes the block anew that has the count of the group of an entry, if it cannot be read. Nothing counts as free
/// where a bitmap cannot be read, either.
fn make_countable(
    file: &mut FileEdit,
    source: Source<'_>,
    layout: &Palloc,
    entry: u64,
) -> Result<()> {
    let group = layout.group_of(entry);
    let key = layout.descriptor(group).block;
    match file.get(source, key) {
        Err(error) if error.is_of_block() => {}
        known => return known.map(drop),
    }
    let first = group - group % layout.groups_per_descriptor;
    let mut block = zeroed(source.store.block_size());
    for (group, count) in (first..).zip(bytes_mut(&mut block).chunks_exact_mut(4)) {
        let free = match count_free(file, source, layout, group) {
            Err(error) if error.is_of_block() => 0,
            free => free? as u32,
        };
        count.copy_from_slice(&free.to_le_bytes());
    }
    file.replace(key, block);
    Ok(())
}

/// The bytes of an entry, to the end of its block, for changing.
pub(crate) fn entry_mut<'a>(
    file: &'a mut FileEdit,
    source: Source<'_>,
    layout: &Palloc,
    entry: u64,
) -> Result<&'a mut [u8]> {
    let slot = layout.entry(entry);
    Ok(&mut file.get_mut(source, slot.block, |_| {})?[slot.offset..])
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

//! The superblocks of a draft: which copy counts, where they belong, and writing both anew.

use std::io;

use nilfs_device::{Device, IoSlice};
use nilfs_engine::scan::SuperRootLog;
use nilfs_ondisk::geometry::{PRIMARY_SUPERBLOCK, secondary_superblock};
use nilfs_ondisk::superblock::{LogCursor, STATE_ERROR, STATE_VALID, SUPERBLOCK_SIZE, Superblock};
use nilfs_ondisk::{BlockNr, FormatError, Seq, summary};
use zerocopy::little_endian::{U16, U64};

use crate::draft::Draft;

/// Where the copies are on a device.
pub(crate) fn offsets(device: &dyn Device) -> impl Iterator<Item = u64> {
    std::iter::once(PRIMARY_SUPERBLOCK).chain(secondary_superblock(device.size()))
}

/// Where the copies of a volume belong on a device: not into a segment.
pub(crate) fn places(device: &dyn Device, volume: &Superblock) -> Vec<u64> {
    let geometry = volume.geometry();
    let block = |offset: u64| BlockNr(offset / geometry.block_size.bytes64());
    let is_free = |offset: &u64| !geometry.has_segment(geometry.segment_of(block(*offset)));
    let secondary = secondary_superblock(device.size()).filter(is_free);
    std::iter::once(PRIMARY_SUPERBLOCK).chain(secondary).collect()
}

/// The copy that a mount takes.
pub(crate) fn best(device: &dyn Device) -> Result<Superblock, FormatError> {
    let copies: Vec<_> = offsets(device).map(|offset| read(device, offset)).collect();
    let mut best: Option<Superblock> = None;
    let mut fault = None;
    for copy in copies {
        match copy {
            Ok(copy) if best.is_none_or(|best| copy.last_log().cno > best.last_log().cno) => {
                best = Some(copy);
            }
            Ok(_) => {}
            Err(error) => fault = fault.or(Some(error)),
        }
    }
    let none = || FormatError::Short { structure: "superblock", have: 0, need: 1024 };
    best.ok_or_else(|| fault.unwrap_or_else(none))
}

/// The logs that the copies name.
pub(crate) fn cursors(device: &dyn Device) -> Vec<LogCursor> {
    offsets(device).filter_map(|at| read(device, at).ok()).map(|it| it.last_log()).collect()
}

/// Whether the primary copy is there.
pub(crate) fn has_primary(device: &dyn Device) -> bool {
    read(device, PRIMARY_SUPERBLOCK).is_ok()
}

fn read(device: &dyn Device, offset: u64) -> Result<Superblock, FormatError> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    let short = |_| FormatError::Short { structure: "superblock", have: 0, need: 1024 };
    device.read_at(offset, &mut bytes).map_err(short)?;
    Superblock::parse(&bytes, device.size())
}

/// Writes both copies of a draft.
pub(crate) fn write(draft: &mut Draft, superblock: &Superblock) -> io::Result<()> {
    for offset in places(&*draft.device, superblock) {
        draft.device.write_at(offset, &[IoSlice::new(&superblock.encode())])?;
    }
    Ok(())
}

/// Sets or clears a bit of `s_feature_compat_ro` in both copies of a draft. `false` if it is so
/// already.
pub(crate) fn set_feature(draft: &mut Draft, bit: u64, set: bool) -> io::Result<bool> {
    let mut superblock = best(&*draft.device).map_err(io::Error::other)?;
    let features = superblock.raw().s_feature_compat_ro.get();
    let wanted = if set { features | bit } else { features & !bit };
    superblock.raw_mut().s_feature_compat_ro = U64::new(wanted);
    if wanted != features {
        write(draft, &superblock)?;
    }
    Ok(wanted != features)
}

/// Lets a log of a draft, and a superblock that names it, have this sequence number, and this segment as the
/// next. `false` if it is so already.
pub(crate) fn set_succession(
    draft: &mut Draft,
    log: BlockNr,
    (seq, next): (Seq, BlockNr),
) -> io::Result<bool> {
    let mut superblock = best(&*draft.device).map_err(io::Error::other)?;
    let header = draft.header(&superblock.geometry(), log);
    if header.is_none_or(|header| (header.seq, header.next) == (seq, next)) {
        return Ok(false);
    }
    let start = log.0 * superblock.geometry().block_size.bytes64();
    for (at, number) in [(summary::SEQ, seq.0), (summary::NEXT, next.0)] {
        draft.device.write_at(start + at as u64, &[IoSlice::new(&number.to_le_bytes())])?;
    }
    let named = superblock.last_log();
    if named.block == log {
        superblock.set_last_log(LogCursor { seq, ..named });
        write(draft, &superblock)?;
    }
    Ok(true)
}

/// Lets both copies of a draft name a later log than they do.
pub(crate) fn go_on_from(draft: &mut Draft, newest: LogCursor) -> io::Result<()> {
    let mut superblock = best(&*draft.device).map_err(io::Error::other)?;
    superblock.set_last_log(newest);
    draft.moved_cursor = true;
    write(draft, &superblock)
}

/// Writes both copies of a draft anew, with the newest log, and without the mark of an error if the
/// volume is `sound`. `false` if both are like that already.
pub(crate) fn renew(draft: &mut Draft, newest: LogCursor, sound: bool) -> io::Result<bool> {
    let mut superblock = best(&*draft.device).map_err(io::Error::other)?;
    let state = superblock.raw().s_state.get();
    let mut cleared = if sound { STATE_ERROR } else { 0 };
    let named = superblock.last_log();
    let found = SuperRootLog::named_by(&*draft.device, &superblock);
    // The checkpoint's number may be wrong, too.
    if named != newest && found.is_none_or(|found| found.header.cno != named.cno) {
        superblock.set_last_log(newest);
        draft.moved_cursor = true;
        // There may be logs to be rolled forward after it.
        cleared |= STATE_VALID;
    }
    // A copy that stands alone may be one that was not written since the volume was mounted.
    let copies = offsets(&*draft.device).filter(|offset| read(&*draft.device, *offset).is_ok());
    if copies.count() == 1 {
        cleared |= STATE_VALID;
    }
    superblock.raw_mut().s_state = U16::new(state & !cleared);
    let same = places(&*draft.device, &superblock).into_iter().all(|offset| {
        read(&*draft.device, offset).is_ok_and(|it| it.encode() == superblock.encode())
    });
    if !same {
        write(draft, &superblock)?;
    }
    Ok(!same)
}

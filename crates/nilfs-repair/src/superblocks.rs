//! The superblocks of a draft: writing both anew, from what one of them or the logs say.

use std::io;

use nilfs_device::{Device, IoSlice};
use nilfs_ondisk::geometry::{PRIMARY_SUPERBLOCK, secondary_superblock};
use nilfs_ondisk::superblock::{
    CHECKED_BYTES, FEATURE_ROLL_FORWARD, LogCursor, MAGIC, RawSuperblock, STATE_ERROR, STATE_VALID,
    SUPERBLOCK_SIZE, Superblock,
};
use nilfs_ondisk::{BlockNr, FormatError, Geometry, Ino};
use zerocopy::FromZeros;
use zerocopy::little_endian::{U16, U32, U64};

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

/// Writes both copies of a draft anew, with the newest log, and without the mark of an error if the
/// volume is `sound`. `false` if both are like that already.
pub(crate) fn renew(draft: &mut Draft, newest: LogCursor, sound: bool) -> io::Result<bool> {
    let mut superblock = best(&*draft.device).map_err(io::Error::other)?;
    let state = superblock.raw().s_state.get();
    let mut cleared = if sound { STATE_ERROR } else { 0 };
    let named = superblock.last_log();
    if named != newest && !is_super_root(draft, &superblock) {
        superblock.set_last_log(newest);
        draft.moved_cursor = true;
        // There may be logs to be rolled forward after it.
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

/// Whether the log that a superblock names can be used.
fn is_super_root(draft: &Draft, superblock: &Superblock) -> bool {
    crate::logs::super_root_at(&*draft.device, superblock, superblock.last_log()).is_some()
}

/// A superblock of which nothing is left but what the logs tell.
pub(crate) fn from_scratch(
    geometry: &Geometry,
    seed: u32,
    newest: LogCursor,
    uuid: [u8; 16],
    device_size: u64,
) -> Result<Superblock, FormatError> {
    let raw = RawSuperblock {
        s_rev_level: U32::new(2),
        s_magic: U16::new(MAGIC),
        s_bytes: U16::new(CHECKED_BYTES),
        s_crc_seed: U32::new(seed),
        s_log_block_size: U32::new(geometry.block_size.exponent()),
        s_nsegments: U64::new(geometry.nsegments),
        s_dev_size: U64::new(device_size),
        s_first_data_block: U64::new(geometry.first_data_block.0),
        s_blocks_per_segment: U32::new(geometry.blocks_per_segment),
        s_r_segments_percentage: U32::new(geometry.reserved_percent),
        s_last_cno: U64::new(newest.cno.0),
        s_last_pseg: U64::new(newest.block.0),
        s_last_seq: U64::new(newest.seq.0),
        s_max_mnt_count: U16::new(50),
        s_errors: U16::new(1),
        s_first_ino: U32::new(Ino::FIRST_USER.0 as u32),
        s_inode_size: U16::new(geometry.inode_size as u16),
        s_dat_entry_size: U16::new(geometry.dat_entry_size as u16),
        s_checkpoint_size: U16::new(geometry.checkpoint_size as u16),
        s_segment_usage_size: U16::new(geometry.segment_usage_size as u16),
        s_uuid: uuid,
        // Whether there are records of fsyncs is not known; the next mount finds out.
        s_feature_compat_ro: U64::new(FEATURE_ROLL_FORWARD),
        ..RawSuperblock::new_zeroed()
    };
    Superblock::from_raw(raw, device_size)
}

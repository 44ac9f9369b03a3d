//! The log that a superblock names, if its summary is lost and its super root is not. How far it reaches follows from
//! where the super root is, and whose its blocks are from what that leads to.

use std::io;
use std::sync::Arc;

use nilfs_device::{Device, IoSlice};
use nilfs_engine::{Verify, Volume};
use nilfs_ondisk::summary::{LOGBGN, LOGEND, NewLog, SR};
use nilfs_ondisk::super_root::SuperRoot;
use nilfs_ondisk::superblock::Superblock;
use nilfs_ondisk::{BlockNr, SegNum};

use crate::draft::{Draft, is_whole};
use crate::{Concerned, Repair, Risk, dat, superblocks};

/// Gives that log a summary without blocks, which the checker then finds to be wrong. Returns whether there is such a
/// log.
///
/// # Errors
/// The corrected block cannot be kept.
pub(crate) fn begin_anew(draft: &mut Draft) -> io::Result<bool> {
    let Ok(superblock) = superblocks::best(&*draft.device) else { return Ok(false) };
    let named = superblock.last_log();
    let Some(super_root) = super_root_after(draft, &superblock) else { return Ok(false) };
    let header = NewLog {
        flags: LOGBGN | LOGEND | SR,
        seq: named.seq,
        create: superblock.raw().s_wtime.get(),
        next: BlockNr(u64::MAX),
        cno: named.cno,
        summary_blocks: 1,
        block_sums: false,
    };
    let described = super_root.0 - named.block.0;
    if !write(draft, named.block, &header, described)? {
        return Ok(false);
    }
    if let Some(next) = set_aside(draft, superblock.geometry().segment_of(named.block)) {
        let next = superblock.geometry().segment_start(next);
        write(draft, named.block, &NewLog { next, ..header }, described)?;
    }
    draft.segments.insert(superblock.geometry().segment_of(named.block));
    draft.repairs.push(Repair {
        fault: format!(
            "the log in block {}, of checkpoint {}, has no summary",
            named.block, named.cno
        ),
        action: "make it anew: the super root of the log is there".to_owned(),
        risk: Risk::Safe,
        concerned: Concerned::none(),
    });
    Ok(true)
}

/// Writes a summary that says nothing of the blocks after it. Returns whether it has room.
fn write(draft: &Draft, at: BlockNr, header: &NewLog, blocks: u64) -> io::Result<bool> {
    let Some(summary) = draft.summary(at, header, &[], blocks)? else { return Ok(false) };
    draft.device.write_at(at.0 * draft.block_size()?, &[IoSlice::new(&summary)])?;
    Ok(true)
}

/// Returns the segment in which the log goes on after this one, which the summary has named: it is in use, and has no
/// blocks.
fn set_aside(draft: &Draft, current: SegNum) -> Option<SegNum> {
    let device: Arc<dyn Device> = Arc::clone(&draft.device) as Arc<dyn Device>;
    let volume = Volume::open_with(device, Verify::Rescue).ok()?;
    let all = volume.segments(SegNum(0)).ok()?;
    let mut waiting = all.iter().filter(|it| it.dirty && it.blocks == 0 && it.segment != current);
    waiting.next().map(|it| it.segment)
}

/// Returns the first super root after the block that a superblock names, before any other log, unless the log is there,
/// or another one around the block: then it is the superblock that is wrong.
fn super_root_after(draft: &Draft, superblock: &Superblock) -> Option<BlockNr> {
    let (geometry, seed, named) =
        (superblock.geometry(), superblock.crc_seed(), superblock.last_log());
    let is_log = |at: BlockNr| draft.has_summary(&geometry, seed, at);
    if !geometry.has_block(named.block)
        || has_log(draft, superblock)
        || is_within_log(draft, superblock)
    {
        return None;
    }
    let end = geometry.segment_end(geometry.segment_of(named.block));
    let blocks = (named.block.0 + 1..end.0).map(BlockNr).take_while(|at| !is_log(*at));
    let mut blocks = blocks.map(|at| (at, dat::read(&*draft.device, &geometry, at)));
    let is_root = |bytes: &[u8]| SuperRoot::parse(bytes, &geometry, seed).is_ok();
    blocks.find(|(_, bytes)| bytes.as_deref().is_some_and(is_root)).map(|(at, _)| at)
}

/// Whether the log is there that a superblock names, or a whole one of another checkpoint.
fn has_log(draft: &Draft, superblock: &Superblock) -> bool {
    let (geometry, seed, named) =
        (superblock.geometry(), superblock.crc_seed(), superblock.last_log());
    let header = draft.header(&geometry, named.block);
    let header = header.filter(|_| draft.has_summary(&geometry, seed, named.block));
    header.is_some_and(|header| {
        let size = geometry.block_size;
        let mut log = vec![0; header.described_blocks(size) as usize * size.bytes()];
        header.has(SR) && header.cno == named.cno
            || draft.device.read_at(named.block.0 * size.bytes64(), &mut log).is_ok()
                && is_whole(&log, &header, size, seed)
    })
}

/// Whether a log that begins before the block that a superblock names reaches beyond its start.
fn is_within_log(draft: &Draft, superblock: &Superblock) -> bool {
    let (geometry, seed, named) =
        (superblock.geometry(), superblock.crc_seed(), superblock.last_log().block);
    let mut at = geometry.segment_start(geometry.segment_of(named));
    while at < named {
        let header = draft.header(&geometry, at);
        let header = header.filter(|_| draft.has_summary(&geometry, seed, at));
        at = at.plus(header.map_or(1, |header| header.nblocks.into()));
    }
    at > named
}

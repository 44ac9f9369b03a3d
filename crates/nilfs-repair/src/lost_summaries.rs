//! The log that a superblock names, if its summary is lost and its super root is not. How far it reaches follows from
//! where the super root is, and whose its blocks are from what that leads to.

use std::io;
use std::sync::Arc;

use nilfs_device::{Device, IoSlice};
use nilfs_engine::{Verify, Volume};
use nilfs_ondisk::summary::{LOGBGN, LOGEND, LogHeader, NewLog, SR};
use nilfs_ondisk::super_root::SuperRoot;
use nilfs_ondisk::superblock::{LogCursor, Superblock};
use nilfs_ondisk::{BlockNr, Geometry, SegNum};

use crate::draft::{Draft, is_whole};
use crate::{Concerned, Repair, Risk, dat, superblocks};

/// Writes a summary without blocks for the log that a superblock names, which the checker then finds to be wrong.
/// Returns whether there is such a log, and it has lost its own.
///
/// # Errors
/// The corrected block cannot be kept.
pub(crate) fn begin_anew(draft: &mut Draft) -> io::Result<bool> {
    let Ok(superblock) = superblocks::best(&*draft.device) else { return Ok(false) };
    let named = superblock.last_log();
    let Some(super_root) = NamedLog::of(draft, &superblock).super_root() else {
        return Ok(false);
    };
    let header = NewLog {
        flags: LOGBGN | LOGEND | SR,
        seq: named.seq,
        create: superblock.raw().s_wtime.get(),
        // No block: the checker takes that of the logs before in the segment, where there are any.
        next: BlockNr(u64::MAX),
        cno: named.cno,
        summary_blocks: 1,
        block_sums: false,
    };
    let described = super_root.0 - named.block.0;
    if !write(draft, named.block, &header, described)? {
        return Ok(false);
    }
    let geometry = superblock.geometry();
    let segment = geometry.segment_of(named.block);
    if let Some(next) = set_aside(draft, segment) {
        let next = geometry.segment_start(next);
        write(draft, named.block, &NewLog { next, ..header }, described)?;
    }
    draft.segments.insert(segment);
    draft.repairs.push(Repair {
        fault: format!(
            "the log in block {}, of checkpoint {}, has lost its summary",
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
    let Some(summary) = draft.summary(at, header, (&[], &[]), blocks)? else { return Ok(false) };
    draft.device.write_at(at.0 * draft.block_size()?, &[IoSlice::new(&summary)])?;
    Ok(true)
}

/// Returns the segment that was set aside for the log after the one in `current`: it is in use, and has no blocks.
fn set_aside(draft: &Draft, current: SegNum) -> Option<SegNum> {
    let device: Arc<dyn Device> = Arc::clone(&draft.device) as Arc<dyn Device>;
    let volume = Volume::open_with(device, Verify::Rescue).ok()?;
    let all = volume.segments(SegNum(0)).ok()?;
    let mut waiting = all.iter().filter(|it| it.dirty && it.blocks == 0 && it.segment != current);
    waiting.next().map(|it| it.segment)
}

/// A log that a superblock names, and that may be there.
struct NamedLog<'a> {
    draft: &'a Draft,
    geometry: Geometry,
    seed: u32,
    cursor: LogCursor,
}

impl<'a> NamedLog<'a> {
    fn of(draft: &'a Draft, superblock: &Superblock) -> Self {
        let (geometry, seed) = (superblock.geometry(), superblock.crc_seed());
        Self { draft, geometry, seed, cursor: superblock.last_log() }
    }

    /// Returns the block of its super root, before any other log, if that is all that tells of the log. Where there
    /// is a log, or one around the block, it is the superblock that is wrong.
    fn super_root(&self) -> Option<BlockNr> {
        let start = self.cursor.block;
        if !self.geometry.has_block(start) || self.is_there() || self.is_within_another() {
            return None;
        }
        let end = self.geometry.segment_end(self.geometry.segment_of(start));
        let blocks = (start.0 + 1..end.0).map(BlockNr);
        let mut blocks = blocks.take_while(|at| self.header(*at).is_none());
        blocks.find(|at| self.is_super_root(*at))
    }

    fn is_super_root(&self, at: BlockNr) -> bool {
        let block = dat::read(&*self.draft.device, &self.geometry, at);
        block.is_some_and(|it| SuperRoot::parse(&it, &self.geometry, self.seed).is_ok())
    }

    /// The header of the log in a block, if its summary is whole.
    fn header(&self, at: BlockNr) -> Option<LogHeader> {
        let header = self.draft.header(&self.geometry, at)?;
        self.draft.has_summary(&self.geometry, self.seed, at).then_some(header)
    }

    /// Whether it is there, or a whole log of another checkpoint.
    fn is_there(&self) -> bool {
        let (start, size) = (self.cursor.block, self.geometry.block_size);
        self.header(start).is_some_and(|header| {
            let mut log = vec![0; header.described_blocks(size) as usize * size.bytes()];
            header.has(SR) && header.cno == self.cursor.cno
                || self.draft.device.read_at(start.0 * size.bytes64(), &mut log).is_ok()
                    && is_whole(&log, &header, size, self.seed)
        })
    }

    /// Whether a log that begins before it in the segment reaches beyond its start.
    fn is_within_another(&self) -> bool {
        let start = self.cursor.block;
        let mut at = self.geometry.segment_start(self.geometry.segment_of(start));
        while at < start {
            at = at.plus(self.header(at).map_or(1, |header| header.nblocks.into()));
        }
        at > start
    }
}

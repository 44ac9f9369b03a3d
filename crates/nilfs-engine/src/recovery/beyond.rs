//! What lies beyond a log that is missing. After a power cut that may be anything that was not durable.
//! But a log that says that the missing one had been durable shows that this was damaged.

use nilfs_ondisk::summary::{self, SR};
use nilfs_ondisk::{BlockNr, Cno, Seq};

use super::{Beyond, LogScan};
use crate::error::Result;
use crate::log::chain::{Chain, ChainedLog, Gap};
use crate::log::reader::{self, LogKind};
use crate::store::Store;

/// Bytes after a gap that are all read to see whether anything was written there: 64 KiB that a device may lose
/// together, and a log of an fsync.
const NEAR: u64 = 80 << 10;

/// Bytes that are read at a time of the rest of the segment.
const PIECE: u64 = 1 << 20;

/// Bytes of a log at the end of the chain that are read to see whether it was torn. Longer logs are not
/// those of an fsync.
const LONGEST_TORN: u64 = 1 << 20;

/// The first checkpoint among logs beyond one that is damaged, if there is one after `newest`.
pub(super) fn later_checkpoint(
    store: &Store,
    run: &[ChainedLog],
    newest: Cno,
) -> Result<Option<ChainedLog>> {
    for (nth, log) in run.iter().enumerate() {
        let is_newer = log.is_checkpoint() && log.header.cno > newest;
        if is_newer && stands(store, run, nth)? {
            return Ok(Some(*log));
        }
    }
    Ok(None)
}

/// Whether a log of a run was durable: it is whole, or a later one says so.
fn stands(store: &Store, run: &[ChainedLog], nth: usize) -> Result<bool> {
    let log = &run[nth];
    let mut later = run.iter().enumerate().skip(nth + 1);
    let is_vouched_for = later.any(|(at, log)| match log.kind {
        LogKind::Sync { unflushed: Some(unflushed) } => nth + usize::from(unflushed) < at,
        LogKind::Checkpoint { durable_before } => durable_before,
        _ => false,
    });
    Ok(log.checked || is_vouched_for || reader::is_whole(store, log.start, &log.header)?)
}

/// The logs beyond a gap in the chain, from the first that is found on, if one of them says that a log in
/// the gap was durable: it is not the oldest of those that may not have been. Only summaries are read.
///
/// What is older than the newest checkpoint, `cno`, says nothing: who wrote that knew of the gap. And
/// what cannot be read is no log.
pub(super) fn witnesses(store: &Store, gap: &Gap, cno: Cno) -> Option<Beyond> {
    let run_from = |first: BlockNr, seq: Seq| -> Vec<ChainedLog> {
        let mut chain = Chain::from(store, first, seq).skimming();
        std::iter::from_fn(|| chain.next().ok().flatten()).collect()
    };
    let vouch = |run: &[ChainedLog]| {
        let mut numbered = run.iter().enumerate();
        numbered.any(|(nth, log)| vouches_for_all_before(store, log, nth, cno))
    };
    let mut search = Search::after(store, gap);
    while let Some(first) = search.next() {
        let run = run_from(first, gap.seq);
        if vouch(&run) {
            return Some(Beyond { gap: *gap, logs: run });
        }
        let segment = store.geometry().segment_of(gap.at);
        let last = run.iter().rfind(|log| log.segment == segment);
        search.at = last.map_or(first.plus(1), ChainedLog::end);
    }
    let run = run_from(next_segment(store, gap)?, gap.seq.plus(1));
    vouch(&run).then_some(Beyond { gap: *gap, logs: run })
}

/// The first block of the segment in which the chain goes on after the one of a gap, if the log in the gap has
/// a summary that tells.
fn next_segment(store: &Store, gap: &Gap) -> Option<BlockNr> {
    let header = reader::log_at(store, gap.at).filter(|header| header.seq == gap.seq)?;
    let log = ChainedLog::new(store.geometry(), gap.at, header, LogKind::Part, false);
    Some(store.geometry().segment_start(log.next?))
}

/// Whether a log, the `nth` of a run, says that everything before the run was durable.
fn vouches_for_all_before(store: &Store, log: &ChainedLog, nth: usize, cno: Cno) -> bool {
    match log.kind {
        LogKind::Sync { unflushed: Some(unflushed) } if usize::from(unflushed) <= nth => {
            let records = reader::read(store, log.start, log.header).and_then(|log| log.records());
            records.ok().flatten().is_some_and(|records| records.base >= cno)
        }
        LogKind::Checkpoint { durable_before } => durable_before && log.header.cno > cno,
        _ => false,
    }
}

/// Whether the log in a gap is as it was written but for one bit, so that no power cut has torn it.
pub(super) fn lacks_a_bit(store: &Store, gap: &Gap) -> bool {
    let geometry = store.geometry();
    let left = geometry.segment_end(geometry.segment_of(gap.at)).0 - gap.at.0;
    let mut log = vec![0; geometry.block_size.bytes()];
    if store.read_run(gap.at, &mut log).is_err() || !summary::resembles(&log, gap.seq) {
        return false;
    }
    log.resize(left.saturating_mul(geometry.block_size.bytes64()).min(LONGEST_TORN) as usize, 0);
    store.read_run(gap.at, &mut log).is_ok()
        && summary::lacks_a_bit(
            &log,
            geometry.block_size,
            geometry.blocks_per_segment,
            store.seed(),
        )
}

/// A search for logs of one use of a segment.
struct Search<'a> {
    store: &'a Store,
    seq: Seq,
    /// The block that is looked at next, and the end of the segment.
    at: BlockNr,
    end: BlockNr,
    /// Blocks that have been read ahead, and the first of them.
    read: (BlockNr, Vec<u8>),
}

impl<'a> Search<'a> {
    /// A search after a gap, through all of the segment unless nothing was written there.
    fn after(store: &'a Store, gap: &Gap) -> Self {
        let geometry = store.geometry();
        let end = geometry.segment_end(geometry.segment_of(gap.at));
        let mut search = Self { store, seq: gap.seq, at: gap.at, end, read: (gap.at, Vec::new()) };
        search.at = if search.is_unwritten() { end } else { gap.at.plus(1) };
        search
    }

    /// Whether nothing lies where the search begins, nor anywhere after that where it looks: further and
    /// further away, because a mount after a crash should not have to read all of a segment that is empty.
    fn is_unwritten(&mut self) -> bool {
        let is_zero = |block: &[u8]| block.iter().all(|byte| *byte == 0);
        let (gap, end) = (self.at, self.end);
        let size = self.store.block_size().bytes64();
        let near = gap.0..gap.plus(NEAR / size).min(end).0;
        let further = (0..u64::BITS).map_while(|nth| (NEAR / size).checked_shl(nth));
        let further = further.map(|distance| gap.0.saturating_add(distance));
        let mut blocks = near.chain(further).map(BlockNr).take_while(|at| *at < end);
        blocks.all(|at| {
            let ahead = if at.0 < gap.0 + NEAR / size { NEAR } else { size };
            self.block(at, ahead).is_some_and(is_zero)
        })
    }

    /// The content of a block, if the device can read it, which is asked for so many bytes from there on.
    fn block(&mut self, at: BlockNr, ahead: u64) -> Option<&[u8]> {
        let size = self.store.block_size().bytes();
        let place = |first: BlockNr| (at.0 - first.0) as usize * size;
        let is_read = at >= self.read.0 && place(self.read.0) < self.read.1.len();
        if !is_read {
            let left = (self.end.0 - at.0).saturating_mul(size as u64);
            let mut piece = vec![0; left.min(ahead) as usize];
            if self.store.read_run(at, &mut piece).is_err() {
                piece.truncate(size);
                self.store.read_run(at, &mut piece).ok()?;
            }
            self.read = (at, piece);
        }
        self.read.1.get(place(self.read.0)..)?.get(..size)
    }

    /// The next log.
    fn next(&mut self) -> Option<BlockNr> {
        while self.at < self.end {
            let at = self.at;
            self.at = at.plus(1);
            let (store, seq) = (self.store, self.seq);
            let header =
                self.block(at, PIECE).and_then(|block| reader::parse_header(store, at, block));
            if header.is_some_and(|header| header.seq == seq)
                && matches!(reader::skimmed(store, at, seq), Ok(Some(_)))
            {
                return Some(at);
            }
        }
        None
    }
}

/// Where the logs of a volume that was not closed cleanly seem to end, although the segment has another
/// checkpoint after that; and the newest such checkpoint. A log before it is damaged, or was lost in a
/// power cut by a device that does not write in the order it was told.
///
/// # Errors
/// A device error.
pub(crate) fn beyond(store: &Store, found: &LogScan) -> Result<Option<(BlockNr, Cno)>> {
    let last = &found.last_valid;
    let rest = last.end().0..store.geometry().segment_end(last.segment).0;
    let mut newest = None;
    for at in rest.filter(|_| !found.clean).map(BlockNr) {
        // What cannot be read is no log.
        let log = reader::verified(store, at, last.header.seq).ok().flatten();
        newest = newest.max(log.filter(|header| header.has(SR)).map(|header| header.cno));
    }
    Ok(newest.map(|newest| (last.end(), newest)))
}

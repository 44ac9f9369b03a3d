//! What lies beyond a log that is missing. After a power cut that may be anything that was not durable.
//! But a log that says that the missing one had been durable shows that this was damaged.

use nilfs_ondisk::summary::SR;
use nilfs_ondisk::{BlockNr, Cno, Seq};

use super::{LogScan, is_all_durable_before};
use crate::error::Result;
use crate::log::chain::{Chain, ChainedLog, Gap};
use crate::log::reader::{self, LogKind};
use crate::store::Store;

/// Bytes without a log after which no more is looked for in a segment: a mount after a crash has to read
/// them. Most logs of an fsync are shorter.
const SEARCHED: u64 = 64 << 10;

/// The logs beyond a gap in the chain, from the first that is found on, if one of them says that a log in
/// the gap was durable: it is not the oldest of those that may not have been. Only summaries are read.
///
/// What is older than the newest checkpoint, `cno`, says nothing: who wrote that knew of the gap. And
/// what cannot be read is no log.
pub(super) fn witnesses(store: &Store, gap: &Gap, cno: Cno) -> Option<Vec<ChainedLog>> {
    let mut at = gap.at;
    while let Some(first) = next_log(store, at, gap.seq) {
        let mut chain = Chain::from(store, first, gap.seq).skimming();
        let run: Vec<ChainedLog> = std::iter::from_fn(|| chain.next().ok().flatten()).collect();
        let mut numbered = run.iter().enumerate();
        if numbered.any(|(nth, log)| vouches_for_all_before(store, log, nth, cno)) {
            return Some(run);
        }
        let segment = store.geometry().segment_of(gap.at);
        at = run.iter().rfind(|log| log.segment == segment).map_or(first, ChainedLog::end);
    }
    None
}

/// Whether a log, the `nth` of a run, says that everything before the run was durable.
fn vouches_for_all_before(store: &Store, log: &ChainedLog, nth: usize, cno: Cno) -> bool {
    match log.kind {
        LogKind::Sync { unflushed: Some(unflushed) } if usize::from(unflushed) <= nth => {
            let records = reader::read(store, log.start, log.header).and_then(|log| log.records());
            records.ok().flatten().is_some_and(|records| records.base >= cno)
        }
        LogKind::Checkpoint => log.header.cno > cno && is_all_durable_before(store, log),
        _ => false,
    }
}

/// The next log of a use of a segment after a block that none begins with, if it is not far.
fn next_log(store: &Store, gap: BlockNr, seq: Seq) -> Option<BlockNr> {
    let geometry = store.geometry();
    let end = geometry.segment_end(geometry.segment_of(gap));
    let far = gap.plus(SEARCHED / geometry.block_size.bytes64()).min(end);
    let mut blocks = (gap.0 + 1..far.0).map(BlockNr);
    blocks.find(|&at| matches!(reader::skimmed(store, at, seq), Ok(Some(_))))
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

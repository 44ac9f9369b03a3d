//! What lies beyond a log that is missing. After a power cut that may be anything that was not durable.
//! But a log that says that the missing one had been durable shows that this was damaged.

use std::ops::Range;

use nilfs_ondisk::crc::{BlockSum, Verdict};
use nilfs_ondisk::roll_forward::Records;
use nilfs_ondisk::summary::{self, SR};
use nilfs_ondisk::{BlockNr, Cno, SegNum, Seq};

use super::{Beyond, LogScan};
use crate::error::Result;
use crate::log::chain::{ChainedLog, Gap};
use crate::log::reader::{self, DescribedBlock, LogKind, Skimmed};
use crate::store::Store;

/// Bytes after a gap that are all read to see whether anything was written there: 64 KiB that a device may lose
/// together, and a log of an fsync.
const NEAR: u64 = 80 << 10;

/// Bytes that a device loses together at most, as far as later logs are looked for.
const LONGEST_LOST: u64 = 512 << 10;

/// Bytes from one block to the next that is looked at in as many: the logs of some fsyncs are not missed.
const APART: u64 = 96 << 10;

/// Bytes that are read at a time of the rest of the segment.
const PIECE: u64 = 1 << 20;

/// Bytes of a log at the end of the chain that are read to see whether it was torn. Longer logs are not
/// those of an fsync.
const LONGEST_TORN: u64 = 1 << 20;

/// The first checkpoint among logs beyond one that is damaged, if there is one after `newest`.
pub(super) fn later_checkpoint(logs: &[ChainedLog], newest: Cno) -> Option<ChainedLog> {
    logs.iter().find(|log| log.is_checkpoint() && log.header.cno > newest).copied()
}

/// Blocks up to the end of a segment to which nothing was written.
#[derive(Default)]
struct Blank {
    /// The sequence number of that segment.
    seq: Seq,
    bytes: u64,
}

impl Blank {
    /// Bytes of it that lie before a gap in the order of the log: the gap is at the start of the next segment.
    fn before(&self, gap: &Gap) -> u64 {
        let is_next = gap.after.is_none() && gap.seq == self.seq.plus(1);
        if is_next { self.bytes } else { 0 }
    }
}

/// The logs beyond each gap in the chain where one of them says that a log in the gap was durable. The gaps are in
/// the order of the chain.
pub(super) fn witnesses<'a>(
    store: &'a Store,
    gaps: &'a [Gap],
    cno: Cno,
) -> impl Iterator<Item = Beyond> {
    let mut blank = Blank::default();
    gaps.iter().filter_map(move |gap| witnesses_at(store, gap, cno, &mut blank))
}

/// The logs beyond a gap in the chain, if one of them says that a log in the gap was durable: it is not the
/// oldest of those that may not have been. Only summaries are read.
///
/// A log that is older than the newest checkpoint, `cno`, says nothing: its writer knew of the gap.
fn witnesses_at(store: &Store, gap: &Gap, cno: Cno, blank: &mut Blank) -> Option<Beyond> {
    let mut logs = logs_beyond(store, gap, blank);
    let mut numbered = logs.iter().enumerate();
    let (_, vouching) =
        numbered.find(|(nth, log)| vouches_for_all_before(store, log, *nth, cno))?;
    let vouching = *vouching;
    let torn = (0..logs.len()).find(|nth| !stands(store, &logs, *nth));
    logs.truncate(torn.unwrap_or(logs.len()));
    Some(Beyond { gap: *gap, vouching, logs })
}

/// Whether a log of those that follow each other was durable: it is whole, or a later one says so.
fn stands(store: &Store, logs: &[ChainedLog], nth: usize) -> bool {
    let log = &logs[nth];
    let mut later = logs.iter().enumerate().skip(nth + 1);
    let is_vouched_for = later.any(|(at, log)| match log.kind {
        LogKind::Sync { unflushed: Some(unflushed) } => nth + usize::from(unflushed) < at,
        LogKind::Checkpoint { durable_before } => durable_before,
        _ => false,
    });
    let is_whole = || reader::is_whole(store, log.start, &log.header).is_ok_and(|is| is);
    log.checked || is_vouched_for || is_whole()
}

/// The logs beyond a gap that can be found: in its segment, in the segment that the last of these names as the
/// next, and so on. `blank` is what was found at the end of a segment before, and is now.
fn logs_beyond(store: &Store, gap: &Gap, blank: &mut Blank) -> Vec<ChainedLog> {
    let begun = Search::from(store, gap.at, gap.seq);
    let mut search = Search { before: gap.after, blank: blank.before(gap), ..begun };
    let ahead = gap.after.filter(|log| log.kind == LogKind::Part);
    let mut around = ahead.into_iter().chain(search.here());
    let strange = around.find(|log| is_strange(store, log));
    if let Some(log) = &strange {
        search = Search { passes: true, ..Search::from(store, log.start, gap.seq) };
    }
    let mut found = search.logs(blank);
    let segment = store.geometry().segment_of(gap.at);
    if found.is_empty() && store.geometry().segment_start(segment) == gap.at {
        found = logs_after_lost(store, segment, gap.seq, blank);
    }
    if found.is_empty() {
        found.extend(strange);
    }
    let mut logs = Vec::new();
    while let Some(last) = found.last().copied() {
        logs.append(&mut found);
        if let Some(next) = last.next {
            let seq = last.header.seq.plus(1);
            let search = Search { blank: blank.bytes, ..Search::of(store, next, seq) };
            found = search.logs(blank);
            if found.is_empty() {
                found = logs_after_lost(store, next, seq, blank);
            }
        }
    }
    logs.retain(|log| log.start != gap.at && strange.is_none_or(|it| it.start != log.start));
    logs
}

/// Whether the first block that a log describes is not as it was written. In a log that a power cut has torn, it is
/// the last one. So the summary may be that of another log, and tells nothing of how far this one reaches.
fn is_strange(store: &Store, log: &ChainedLog) -> bool {
    described(store, log).first().is_some_and(|first| is_damaged(store, first))
}

/// Returns the logs of the first segment that has any after some that a device can lose together, each as a whole,
/// from `lost` on: they are shorter than what that may be. Most often, the log goes on in the order of the device.
fn logs_after_lost(store: &Store, lost: SegNum, seq: Seq, blank: &mut Blank) -> Vec<ChainedLog> {
    let geometry = store.geometry();
    let bytes = u64::from(geometry.blocks_per_segment) * geometry.block_size.bytes64();
    if bytes > LONGEST_LOST {
        return Vec::new();
    }
    let later = (1..=LONGEST_LOST / bytes).map(|nth| (SegNum(lost.0 + nth), seq.plus(nth)));
    let later = later.filter(|(segment, _)| geometry.has_segment(*segment));
    let mut logs = later.map(|(segment, seq)| {
        let search = Search { blank: blank.bytes, ..Search::of(store, segment, seq) };
        search.logs(blank)
    });
    logs.find(|logs| !logs.is_empty()).unwrap_or_default()
}

/// The log of a use of a segment in a block, if its summary is right, whatever the rest is. What cannot be read
/// is no log.
fn log_at(store: &Store, at: BlockNr, seq: Seq) -> Option<ChainedLog> {
    let new = |header, kind, is_whole| {
        Some(ChainedLog::new(store.geometry(), at, header, kind, is_whole))
    };
    match reader::skimmed(store, at, seq) {
        Ok(Some(Skimmed { header, kind, is_whole })) => new(header, kind, is_whole),
        _ => {
            let header = reader::log_at(store, at).filter(|header| header.seq == seq)?;
            new(header, LogKind::Part, false)
        }
    }
}

/// Whether a log, the `nth` of a run, says that everything before the run was durable.
fn vouches_for_all_before(store: &Store, log: &ChainedLog, nth: usize, cno: Cno) -> bool {
    match log.kind {
        LogKind::Sync { unflushed: Some(unflushed) } if usize::from(unflushed) <= nth => {
            records_of(store, log).is_some_and(|records| records.base >= cno)
        }
        LogKind::Checkpoint { durable_before } => durable_before && log.header.cno > cno,
        _ => false,
    }
}

/// The records of a log, if it has any that can be read.
pub(super) fn records_of(store: &Store, log: &ChainedLog) -> Option<Records> {
    reader::read(store, log.start, log.header).and_then(|log| log.records()).ok()?
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
    /// The log that ends here.
    before: Option<ChainedLog>,
    /// Bytes before here, at the end of the segment before, to which nothing was written.
    blank: u64,
    /// Whether the log here is passed over, as far as it seems to reach.
    passes: bool,
    /// Blocks that have been read ahead, and the first of them.
    read: (BlockNr, Vec<u8>),
}

impl<'a> Search<'a> {
    /// A search in all of a segment.
    fn of(store: &'a Store, segment: SegNum, seq: Seq) -> Self {
        Self::from(store, store.geometry().segment_start(segment), seq)
    }

    fn from(store: &'a Store, at: BlockNr, seq: Seq) -> Self {
        let geometry = store.geometry();
        let end = geometry.segment_end(geometry.segment_of(at));
        let read = (at, Vec::new());
        Self { store, seq, at, end, before: None, blank: 0, passes: false, read }
    }

    /// Returns all logs from here to the end of the segment, and says how much is blank after them.
    fn logs(mut self, blank: &mut Blank) -> Vec<ChainedLog> {
        let logs = std::iter::from_fn(|| self.next()).collect();
        *blank = Blank { seq: self.seq, bytes: self.blank };
        logs
    }

    /// The next log: here or, unless nothing was written there, anywhere after this.
    fn next(&mut self) -> Option<ChainedLog> {
        if self.at >= self.end {
            return None;
        }
        let is_passed = std::mem::take(&mut self.passes);
        let log = self.here().filter(|_| !is_passed);
        let log = log.or_else(|| if self.is_unwritten() { None } else { self.find() })?;
        let log = self.in_its_place(log);
        (self.at, self.before, self.blank) = (log.end(), Some(log), 0);
        Some(log)
    }

    /// The log here.
    fn here(&mut self) -> Option<ChainedLog> {
        self.log(self.at, NEAR.saturating_sub(self.blank))
    }

    /// The first log after the block here.
    fn find(&mut self) -> Option<ChainedLog> {
        self.first_in(self.at.plus(1)..self.end)
    }

    fn first_in(&mut self, blocks: Range<BlockNr>) -> Option<ChainedLog> {
        (blocks.start.0..blocks.end.0).find_map(|at| self.log(BlockNr(at), PIECE))
    }

    /// Returns a log, or the first one that begins inside it if its summary was written for another place.
    fn in_its_place(&mut self, mut log: ChainedLog) -> ChainedLog {
        while is_strange(self.store, &log)
            && let Some(inside) = self.first_in(log.start.plus(1)..log.end().min(self.end))
        {
            log = inside;
        }
        log
    }

    /// The log in a block, for which the device is asked for so many bytes.
    fn log(&mut self, at: BlockNr, ahead: u64) -> Option<ChainedLog> {
        let (store, seq) = (self.store, self.seq);
        let header = reader::parse_header(store, at, self.block(at, ahead)?)?;
        (header.seq == seq).then(|| log_at(store, at, seq))?
    }

    /// Whether nothing lies here, nor after that where it looks, as far as a device may lose: not in all blocks,
    /// because a mount after a crash should not have to read so much of a segment that is empty. What a device
    /// has lost may begin in the segment before.
    fn is_unwritten(&mut self) -> bool {
        let size = self.store.block_size().bytes64();
        let (at, end, blank, near) = (self.at, self.end, self.blank, self.near());
        let distant = (NEAR..LONGEST_LOST + NEAR).step_by(APART as usize);
        let distant = distant.skip_while(|bytes| *bytes < near);
        let lost = (0..near).step_by(size as usize).chain(distant);
        let lost = lost
            .filter(|bytes| *bytes > blank)
            .map(|bytes| (at.plus((bytes - blank) / size), bytes));
        let looked_at = std::iter::once((at, blank)).chain(lost);
        let is_unwritten = looked_at.take_while(|(at, _)| *at < end).all(|(at, bytes)| {
            let ahead = near.saturating_sub(bytes).min(NEAR);
            self.block(at, ahead).is_some_and(is_zero)
        });
        self.blank = if is_unwritten { blank + (end.0 - at.0) * size } else { 0 };
        is_unwritten
    }

    /// Bytes from here on that are all read to see whether anything was written there. Where the log before ends
    /// in damage, that may go on here.
    fn near(&self) -> u64 {
        let ends_in_damage = self.before.is_some_and(|log| ends_in_damage(self.store, &log));
        if ends_in_damage { LONGEST_LOST + NEAR } else { NEAR }
    }

    /// The content of a block, if the device can read it, which is asked for so many bytes from there on.
    fn block(&mut self, at: BlockNr, ahead: u64) -> Option<&[u8]> {
        let size = self.store.block_size().bytes();
        let place = |first: BlockNr| (at.0 - first.0) as usize * size;
        let is_read = at >= self.read.0 && place(self.read.0) < self.read.1.len();
        if !is_read {
            let left = (self.end.0 - at.0).saturating_mul(size as u64);
            let mut piece = vec![0; left.min(ahead.max(size as u64)) as usize];
            if self.store.read_run(at, &mut piece).is_err() {
                piece.truncate(size);
                self.store.read_run(at, &mut piece).ok()?;
            }
            self.read = (at, piece);
        }
        self.read.1.get(place(self.read.0)..)?.get(..size)
    }
}

/// Whether the last block of a log that was written ahead is not as it was written: others are read to their
/// end, if anything depends on them.
fn ends_in_damage(store: &Store, log: &ChainedLog) -> bool {
    log.kind == LogKind::Part
        && described(store, log).last().is_some_and(|last| is_damaged(store, last))
}

/// The blocks of files in a log, as far as that can be read.
fn described(store: &Store, log: &ChainedLog) -> Vec<DescribedBlock> {
    let read = reader::read(store, log.start, log.header);
    read.map_or_else(|_| Vec::new(), |log| log.blocks(store.block_size()).collect())
}

/// Whether a block of a log is not as it was written, as far as its checksum tells.
fn is_damaged(store: &Store, described: &DescribedBlock) -> bool {
    let mut block = vec![0; store.block_size().bytes()];
    let can_be_read = store.read_run(described.block, &mut block).is_ok();
    let is_right = |sum: BlockSum| can_be_read && sum.judge(&block) == Verdict::Right;
    described.sum.is_some_and(|sum| !is_right(sum))
}

fn is_zero(block: &[u8]) -> bool {
    block.iter().all(|byte| *byte == 0)
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

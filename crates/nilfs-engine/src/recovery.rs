//! Finding the newest checkpoint of a volume, and the sync logs that fsync has written after it
//! (docs/format.md §16). Nothing is written here, and what they mean for files is said elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nilfs_device::Device;
use nilfs_ondisk::roll_forward::{ExtentRecord, Record, Records};
use nilfs_ondisk::summary::{BlockInfo, LOGBGN, LOGEND, SR, SYNDT};
use nilfs_ondisk::super_root::SuperRoot;
use nilfs_ondisk::superblock::{LogCursor, Superblock};
use nilfs_ondisk::{BlockNr, Cno, FileBlock, Ino, SegNum, Seq};

use crate::error::{Error, Result};
use crate::log::chain::{Chain, ChainedLog, Gap};
use crate::log::reader::{self, Log, LogKind};
use crate::overlay::Placed;
use crate::scan::SuperRootLog;
use crate::store::{Store, Verify};
use crate::superblocks::Superblocks;

mod beyond;

pub(crate) use beyond::beyond;

/// What the scan of the log chain found.
#[derive(Debug)]
pub(crate) struct LogScan {
    /// The newest log with a super root.
    pub(crate) newest: ChainedLog,
    /// Its checkpoint.
    pub(crate) cno: Cno,
    /// The newest valid log of all; after `newest` if the volume was not closed cleanly.
    pub(crate) last_valid: ChainedLog,
    /// Whether the volume was closed cleanly.
    pub(crate) clean: bool,
    /// The segments with logs from the one that the superblock names to `newest`.
    pub(crate) chain: BTreeSet<SegNum>,
    /// The logs after `newest`; when all are known, up to the last that could complete something to be rolled
    /// forward.
    replay: Vec<ChainedLog>,
    /// Where the chain had no whole log after `newest`.
    gaps: Vec<Gap>,
    /// The last of these that could not be read.
    unreadable: Option<(Gap, Error)>,
    /// Logs beyond the first of these that was damaged, although no checkpoint is among them.
    beyond: Option<Beyond>,
}

/// Logs beyond one that is missing, although they say that it was durable.
#[derive(Debug)]
struct Beyond {
    gap: Gap,
    /// The first of the logs that says so.
    vouching: ChainedLog,
    /// Logs beyond the gap, up to the first that may be torn.
    logs: Vec<ChainedLog>,
}

impl LogScan {
    /// Logs beyond the first gap that is damage, unless the last sync log there has been found all the same, and no
    /// checkpoint is among them: the chain may have passed over that, from the gap to the next segment.
    fn witnesses(&self, store: &Store) -> Option<Beyond> {
        let in_chain = |log: &ChainedLog| self.replay.iter().any(|it| it.start == log.start);
        let is_missed = |beyond: &Beyond| {
            let last = beyond.logs.iter().rfind(|log| log.kind != LogKind::Part);
            beyond::later_checkpoint(&beyond.logs, self.cno).is_some()
                || !last.is_some_and(in_chain)
        };
        beyond::witnesses(store, &self.gaps, self.cno).find(is_missed)
    }

    /// Goes on with logs beyond a gap, if no sync log is missing there, but only what was written ahead: their
    /// numbers follow each other.
    fn goes_on(&mut self, store: &Store, logs: &[ChainedLog]) -> bool {
        let number = |log| {
            let records = beyond::records_of(store, log).filter(|it| it.base == self.cno)?;
            Some(records.number)
        };
        let before = self.replay.iter().rfind(|log| log.kind != LogKind::Part);
        let before = before.map_or(Some(0), number);
        let first = logs.iter().find(|log| log.kind != LogKind::Part).and_then(number);
        let is_next = first.zip(before).is_some_and(|(first, before)| first == before + 1);
        if is_next && let Some(last) = logs.last() {
            self.replay.extend(logs);
            self.last_valid = *last;
        }
        is_next
    }

    /// The last log that a recovery needs: the newest checkpoint, or the last sync log after it, if
    /// there is something in these.
    pub(crate) fn last_needed(&self, salvaged: bool) -> ChainedLog {
        self.replay.last().filter(|_| salvaged).copied().unwrap_or(self.newest)
    }
}

/// Opens the store of the volume and finds its newest checkpoint, from one superblock or, if that
/// leads nowhere, from the other.
pub(crate) fn find(
    device: &Arc<dyn Device>,
    superblocks: &Superblocks,
    verify: Verify,
) -> Result<(Superblock, Store, LogScan)> {
    // A copy that stands alone may be one that was not written since the volume was mounted.
    let clean = superblocks.best.is_clean() && superblocks.other.is_some();
    let first = scan_from(device, &superblocks.best, clean, verify);
    match (first, &superblocks.other) {
        (Ok((store, found)), _) => Ok((superblocks.best, store, found)),
        (Err(error @ Error::Device { .. }), _) | (Err(error), None) => Err(error),
        (Err(_), Some(other)) => {
            tracing::warn!("the newest log is damaged; trying from an earlier position");
            let (store, found) = scan_from(device, other, false, verify)?;
            let named = superblocks.best.last_log();
            if found.cno < named.cno {
                return Err(Error::Inconsistent(format!(
                    "a superblock names the log in block {} as that of checkpoint {}, but it is \
                     damaged, and the other superblock leads to checkpoint {} only",
                    named.block, named.cno, found.cno
                )));
            }
            Ok((*other, store, found))
        }
    }
}

fn scan_from(
    device: &Arc<dyn Device>,
    superblock: &Superblock,
    clean: bool,
    verify: Verify,
) -> Result<(Store, LogScan)> {
    let (geometry, seed) = (superblock.geometry(), superblock.crc_seed());
    let store = Store::new(Arc::clone(device), geometry, seed, verify);
    let found = scan(&store, superblock.last_log(), clean)?;
    Ok((store, found))
}

/// What there is from a log with a super root on. If the log itself is not whole, it is all there is.
pub(crate) fn at(store: &Store, log: &SuperRootLog) -> LogScan {
    let start = log.cursor.block;
    let kind = LogKind::Checkpoint { durable_before: log.super_root.durable_before };
    let newest = ChainedLog::new(store.geometry(), start, log.header, kind, true);
    let alone = Seen::new(newest).found(log.cursor.cno, false, Vec::new());
    scan(store, log.cursor, false).ok().filter(|found| found.newest.start == start).unwrap_or(alone)
}

/// Finds the newest log from `start` on, which must have a super root.
fn scan(store: &Store, start: LogCursor, clean: bool) -> Result<LogScan> {
    let found = match clean {
        true => closed(store, start),
        false => follow(store, start),
    };
    found?.ok_or_else(|| {
        Error::Inconsistent(format!(
            "the superblock names block {} as the newest checkpoint, but no whole log with a super \
             root is there",
            start.block
        ))
    })
}

/// The newest log of a volume that was closed cleanly. It was durable before the superblock that says so
/// was written, and nothing was written after it: as all other logs, it need not be read to the end
/// each time. Its super root has a checksum of its own, and a scrub checks the rest.
fn closed(store: &Store, start: LogCursor) -> Result<Option<LogScan>> {
    let found = reader::header(store, start.block)?.filter(|it| it.seq == start.seq && it.has(SR));
    let Some(header) = found else { return Ok(None) };
    reader::hold_end(store, start.block, &header)?;
    let SuperRoot { durable_before, .. } = reader::super_root(store, start.block, &header)?;
    let kind = LogKind::Checkpoint { durable_before };
    let newest = ChainedLog::new(store.geometry(), start.block, header, kind, false);
    // Its header may be damaged, too.
    Ok(Some(Seen::new(newest).found(start.cno, true, Vec::new())))
}

/// Finds the newest checkpoint by the chain of logs, and beyond logs that are damaged or cannot be read. A later
/// checkpoint has everything that such a log before it was needed for.
fn follow(store: &Store, start: LogCursor) -> Result<Option<LogScan>> {
    let Some(mut found) = follow_chain(store, start.block, start.seq)? else { return Ok(None) };
    while let Some(witnesses) = found.witnesses(store) {
        let Some(later) = beyond::later_checkpoint(&witnesses.logs, found.cno) else {
            if found.goes_on(store, &witnesses.logs) {
                continue;
            }
            found.beyond = Some(witnesses);
            break;
        };
        let Some(from_there) = follow_chain(store, later.start, later.header.seq)? else {
            found.beyond = Some(witnesses);
            break;
        };
        tracing::warn!(
            "a log before block {} is damaged; checkpoint {} after it is not",
            later.start,
            later.header.cno
        );
        let before = std::mem::replace(&mut found, from_there);
        found.chain.extend(before.chain);
    }
    // What could not be read once need not be lost.
    if let Some((_, error)) = found.unreadable {
        return Err(error);
    }
    for gap in &found.gaps {
        if beyond::lacks_a_bit(store, gap) {
            return Err(Error::Inconsistent(format!(
                "the log in block {} is as it was written but for one bit",
                gap.at
            )));
        }
    }
    let completes = |log: &ChainedLog| log.kind != LogKind::Part && log.header.has(LOGEND);
    let needed = found.replay.iter().rposition(completes).map_or(0, |last| last + 1);
    found.replay.truncate(needed);
    Ok(Some(found))
}

/// Follows the chain of logs, from one that was durable on.
///
/// The content of files makes up most of the logs. It is not read where a later log says that everything
/// was durable before it, nor where nothing depends on it.
fn follow_chain(store: &Store, start: BlockNr, seq: Seq) -> Result<Option<LogScan>> {
    let mut chain = Chain::from(store, start, seq).skimming();
    let Some(first) = chain.next()?.filter(ChainedLog::is_checkpoint) else {
        let (_, unreadable) = chain.gaps();
        return unreadable.map_or(Ok(None), |(_, error)| Err(error));
    };
    let mut seen = Seen::new(first);
    while let Some(log) = chain.next()? {
        seen.push(log);
    }
    let (mut gaps, unreadable) = chain.gaps();
    gaps.extend(seen.check(store)?);
    let cno = seen.newest().header.cno;
    let found = seen.found(cno, false, gaps);
    let unreadable = unreadable.filter(|(gap, _)| gap.is_after(&found.newest));
    Ok(Some(LogScan { unreadable, ..found }))
}

/// Logs of the chain, of which the first has a super root.
struct Seen {
    logs: Vec<ChainedLog>,
    /// How many of them are known to be whole, the first at least.
    whole: usize,
    /// The segments of these, and of logs before them.
    segments: Vec<SegNum>,
}

impl Seen {
    fn new(log: ChainedLog) -> Self {
        Self { logs: vec![log], whole: 1, segments: vec![log.segment] }
    }

    fn push(&mut self, log: ChainedLog) {
        let before = self.logs.len();
        match log.kind {
            LogKind::Sync { unflushed: Some(unflushed) } => {
                self.whole = self.whole.max(before.saturating_sub(unflushed.into()));
            }
            LogKind::Checkpoint { durable_before: true } => self.whole = before,
            _ => {}
        }
        self.whole += usize::from(log.checked && self.whole == before);
        self.logs.push(log);
        if log.is_checkpoint() && self.whole == self.logs.len() {
            let segments = std::mem::take(&mut self.segments);
            *self = Self::new(log);
            self.segments.extend(segments);
        }
    }

    /// The log of the newest checkpoint.
    fn newest(&self) -> &ChainedLog {
        self.logs.iter().rfind(|log| log.is_checkpoint()).unwrap_or(&self.logs[0])
    }

    /// Checks every byte of the logs on which something depends and that are not known to be whole. Returns
    /// where it has found none.
    fn check(&mut self, store: &Store) -> Result<Vec<Gap>> {
        let last = self.logs.iter().rposition(|log| log.kind != LogKind::Part);
        let Some(last) = last.filter(|last| *last >= self.whole) else { return Ok(Vec::new()) };
        let rest = self.logs.split_off(last + 1);
        let last = self.logs[last].start;
        self.logs.truncate(self.whole);
        let mut chain = Chain::after(store, &self.logs[self.whole - 1]);
        while let Some(log) = chain.next()? {
            self.push(log);
            if log.start == last {
                self.logs.extend(rest);
                break;
            }
        }
        let (gaps, _) = chain.gaps();
        Ok(gaps)
    }

    /// Returns what these logs come to, if the newest checkpoint among them is this one.
    fn found(self, cno: Cno, clean: bool, gaps: Vec<Gap>) -> LogScan {
        let newest = *self.newest();
        let last_valid = self.logs[self.logs.len() - 1];
        let before = self.logs.iter().take_while(|log| log.start != newest.start);
        let chain = before.map(|log| log.segment).chain(self.segments).chain([newest.segment]);
        let chain = chain.collect();
        let later = self.logs.into_iter().skip_while(|log| log.start != newest.start).skip(1);
        let replay = later.collect();
        let mut gaps: Vec<Gap> = gaps.into_iter().filter(|gap| gap.is_after(&newest)).collect();
        gaps.sort_unstable_by_key(|gap| (gap.seq, gap.at));
        gaps.dedup_by_key(|gap| (gap.seq, gap.at));
        LogScan {
            newest,
            cno,
            last_valid,
            clean,
            chain,
            replay,
            gaps,
            unreadable: None,
            beyond: None,
        }
    }
}

/// What fsyncs have made durable after the newest checkpoint, as far as it can be rolled forward.
#[derive(Debug, Default)]
pub(crate) struct RollForward {
    /// In the order in which they were written.
    pub(crate) logs: Vec<SyncLog>,
    /// Why those after them cannot be, if there are any.
    pub(crate) fault: Option<Error>,
    /// Where the first of those should be that cannot, as far as the logs themselves say that.
    pub(crate) stops_at: Option<BlockNr>,
    /// How far segments are filled with them, and with what they refer to: the block after the last log,
    /// and when that was written (s).
    pub(crate) filled: BTreeMap<SegNum, (BlockNr, u64)>,
    /// Logs after one that is missing, although they say that it was durable.
    cut_off: Vec<ChainedLog>,
}

/// One log of ours, or one of those into which Linux divides what is too much for a segment.
#[derive(Debug)]
pub(crate) struct SyncLog {
    /// Its first block.
    pub(crate) start: BlockNr,
    /// When it was written (s).
    written: u64,
    /// What has changed besides blocks. Linux writes none.
    pub(crate) records: Option<Records>,
    /// The blocks of files.
    pub(crate) blocks: Vec<LoggedBlock>,
}

/// A block of a file in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoggedBlock {
    pub(crate) ino: Ino,
    pub(crate) key: FileBlock,
    pub(crate) placed: Placed,
}

impl RollForward {
    /// All of it.
    ///
    /// # Errors
    /// [`Error::RollForward`] if there is something that cannot be rolled forward.
    pub(crate) fn whole(self) -> Result<Self> {
        match self.fault {
            None => Ok(self),
            Some(fault) => Err(Error::RollForward(Box::new(fault))),
        }
    }

    /// The first `count` logs of it, as if there were no others.
    pub(crate) fn first(mut self, count: usize) -> Self {
        self.logs.truncate(count);
        Self { logs: self.logs, filled: self.filled, ..Self::default() }.tidied()
    }

    /// When the last of the logs was written (s), if there is one.
    pub(crate) fn as_of(&self) -> Option<u64> {
        self.logs.last().map(|log| log.written)
    }

    /// Without the logs from one on that contradicts the checkpoint or those before it.
    ///
    /// # Errors
    /// The device failed, which says nothing about the log.
    pub(crate) fn before_contradiction(self, nth: usize, why: Error) -> Result<Self> {
        let stops_at = self.logs.get(nth).map(|log| log.start);
        Ok(Self { stops_at, ..self.before(nth, why)? })
    }

    /// Without the logs from one on.
    ///
    /// # Errors
    /// As [`RollForward::before_contradiction`].
    pub(crate) fn before(mut self, nth: usize, why: Error) -> Result<Self> {
        self.logs.truncate(nth);
        self.fault = Some(of_content(why)?);
        Ok(self.tidied())
    }

    /// Counts a segment as filled with what records refer to beyond a gap there: the chain has passed over the
    /// logs of that, and no checkpoint may call their blocks free.
    fn fill_beyond(&mut self, store: &Store, gap: &Gap) {
        let geometry = store.geometry();
        let segment = geometry.segment_of(gap.at);
        let beyond = gap.at..geometry.segment_end(segment);
        let needed = self.extents().filter(|(extent, _)| beyond.contains(&extent.block));
        let ends = needed.map(|(it, written)| (it.block.plus(it.count.into()), written));
        if let Some((needed, written)) = ends.max() {
            let end = end_of_logs(store, gap, needed.min(beyond.end));
            let filled = self.filled.entry(segment).or_default();
            *filled = (*filled).max((end, written));
        }
    }

    /// Blocks to which records refer, and when the log of these was written (s).
    fn extents(&self) -> impl Iterator<Item = (&ExtentRecord, u64)> {
        self.logs.iter().flat_map(|log| {
            let records = log.records.iter().flat_map(|records| &records.records);
            records.filter_map(move |record| match record {
                Record::Extent(extent) => Some((extent, log.written)),
                _ => None,
            })
        })
    }

    /// Where nothing is rolled forward, nothing has been filled.
    fn tidied(mut self) -> Self {
        if self.logs.is_empty() {
            self.filled.clear();
        }
        self
    }
}

/// An error of what was read, not of the device.
fn of_content(error: Error) -> Result<Error> {
    match error {
        Error::Device { .. } => Err(error),
        fault => Ok(fault),
    }
}

/// Finds the complete sync logs after the newest checkpoint, as far as they belong together
/// (docs/format.md §16): none is missing in between or after them, and all are based on this checkpoint.
///
/// # Errors
/// A device error.
pub(crate) fn roll_forward(store: &Store, found: &LogScan) -> Result<RollForward> {
    let mut complete = complete(store, found)?;
    for gap in &found.gaps {
        complete.fill_beyond(store, gap);
    }
    Ok(complete.tidied())
}

/// Gathers these logs.
fn complete(store: &Store, found: &LogScan) -> Result<RollForward> {
    let mut gathering = Gathering::new(store, found.cno);
    for log in &found.replay {
        if let Err(error) = gathering.add(log) {
            let before = found.gaps.iter().find(|gap| gap.seq < log.header.seq);
            gathering.complete.stops_at = Some(before.map_or(log.start, |gap| gap.at));
            gathering.complete.fault = Some(of_content(error)?);
            return Ok(gathering.complete);
        }
    }
    let mut complete = gathering.complete;
    if let Some(Beyond { gap, vouching, logs }) = &found.beyond {
        complete.fault = Some(Error::Inconsistent(format!(
            "the log in block {} is damaged; it was durable when the log in block {} was written",
            gap.at, vouching.start
        )));
        complete.stops_at = Some(gap.at);
        complete.cut_off.clone_from(logs);
        if logs.iter().all(|log| log.start != vouching.start) {
            complete.cut_off.push(*vouching);
        }
    }
    Ok(complete)
}

/// Returns the end of the log beyond a gap that has the block before `needed`, or `needed` if that log is not
/// whole.
fn end_of_logs(store: &Store, gap: &Gap, needed: BlockNr) -> BlockNr {
    let mut at = gap.at;
    while at < needed {
        let log = reader::log_at(store, at).filter(|header| header.seq == gap.seq);
        at = at.plus(log.map_or(1, |header| header.nblocks.into()));
    }
    at
}

/// What a recovery would do with the logs of fsyncs after the newest checkpoint.
#[derive(Debug)]
pub struct RecoveryPlan {
    /// Those that are rolled forward.
    pub applied: Vec<Log>,
    /// Logs that cannot be rolled forward. Content of them may be lost, too.
    pub lost: Vec<Log>,
    /// Why they cannot.
    pub why: Option<Error>,
    /// Where the first of those is or should be that cannot, unless no checkpoint can be made with it.
    pub stops_at: Option<BlockNr>,
}

/// Reads the logs once more, to be shown.
pub(crate) fn plan(store: &Store, found: &LogScan, recovered: RollForward) -> Result<RecoveryPlan> {
    let RollForward { logs, fault: why, cut_off, stops_at, .. } = recovered;
    let end = logs.last().map(|log| log.start);
    let (mut applied, mut lost) = (Vec::new(), Vec::new());
    let mut is_lost = end.is_none();
    for log in found.replay.iter().chain(&cut_off) {
        let to = if is_lost { &mut lost } else { &mut applied };
        match reader::read(store, log.start, log.header) {
            // The others have blocks for records of later logs, or are parts of a checkpoint.
            Ok(read) if log.header.has(SYNDT) || !matches!(read.records(), Ok(None)) => {
                to.push(read);
            }
            Ok(_) => {}
            Err(error) => drop(of_content(error)?),
        }
        is_lost |= Some(log.start) == end;
    }
    if why.is_none() {
        lost.clear();
    }
    Ok(RecoveryPlan { applied, lost, why, stops_at })
}

/// Sync logs, as far as they have been gone through.
struct Gathering<'a> {
    store: &'a Store,
    base: Cno,
    complete: RollForward,
    begun: Option<Begun>,
    /// Logs with records so far.
    number: u64,
}

impl<'a> Gathering<'a> {
    fn new(store: &'a Store, base: Cno) -> Self {
        Self { store, base, complete: RollForward::default(), begun: None, number: 0 }
    }

    fn add(&mut self, log: &ChainedLog) -> Result<()> {
        let header = log.header;
        let in_data_sync = self.begun.as_ref().is_some_and(|begun| begun.data_sync);
        if header.has(SR) {
            return Err(Error::Inconsistent(format!(
                "the log in block {} completes checkpoint {}, but its super root is damaged",
                log.start, header.cno
            )));
        }
        if in_data_sync && !header.has(SYNDT) {
            return Err(Error::Inconsistent(format!(
                "the log in block {} interrupts a data-sync log",
                log.start
            )));
        }
        self.complete.filled.insert(log.segment, (log.end(), header.create));
        if header.has(LOGBGN) {
            self.begun = Some(Begun { data_sync: header.has(SYNDT), logs: Vec::new() });
        }
        if let Some(begun) = &mut self.begun {
            let read = read(self.store, log)?;
            if let Some(records) = &read.records {
                self.number += 1;
                check_order(log, records, self.base, self.number)?;
            }
            begun.logs.push(read);
        }
        if header.has(LOGEND)
            && let Some(begun) = self.begun.take()
        {
            // A log of neither kind is a part of a checkpoint whose end is missing.
            let synced = begun.data_sync || begun.logs.iter().any(|log| log.records.is_some());
            self.complete.logs.extend(begun.logs.into_iter().filter(|_| synced));
        }
        Ok(())
    }
}

/// Logs of which the last is still to come.
struct Begun {
    data_sync: bool,
    logs: Vec<SyncLog>,
}

fn read(store: &Store, log: &ChainedLog) -> Result<SyncLog> {
    let content = reader::read(store, log.start, log.header)?;
    let mut at = log.start.plus(log.header.summary_blocks(store.block_size()));
    let mut blocks = Vec::new();
    for file in &content.files {
        for info in &file.blocks {
            if let BlockInfo::Data { offset, vblocknr } = *info {
                let placed = Placed { vblocknr, block: at };
                blocks.push(LoggedBlock { ino: file.ino, key: offset, placed });
            }
            at = at.plus(1);
        }
    }
    Ok(SyncLog {
        start: log.start,
        written: log.header.create,
        records: content.records()?,
        blocks,
    })
}

/// Fails unless nothing is missing between the checkpoint and these records. What was lost in a crash
/// is at the end: each sync log is durable before the next is written.
fn check_order(log: &ChainedLog, records: &Records, base: Cno, number: u64) -> Result<()> {
    if records.base == base && records.number == number {
        return Ok(());
    }
    Err(Error::Inconsistent(format!(
        "the log in block {} is number {} of those after checkpoint {}, but number {number} of those \
         after checkpoint {base} should be there",
        log.start, records.number, records.base
    )))
}

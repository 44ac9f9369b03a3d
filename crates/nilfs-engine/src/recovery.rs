//! Finding the newest checkpoint of a volume, and the sync logs that fsync has written after it
//! (docs/format.md §16). Nothing is written here, and what they mean for files is said elsewhere.

use std::collections::BTreeMap;
use std::sync::Arc;

use nilfs_device::Device;
use nilfs_ondisk::roll_forward::Records;
use nilfs_ondisk::summary::{BlockInfo, LOGBGN, LOGEND, SR, SYNDT};
use nilfs_ondisk::superblock::{LogCursor, Superblock};
use nilfs_ondisk::{BlockNr, Cno, FileBlock, Ino, SegNum};

use crate::error::{Error, Result};
use crate::log::chain::{Chain, ChainedLog, Gap};
use crate::log::reader::{self, Log, LogKind};
use crate::overlay::Placed;
use crate::scan::SuperRootLog;
use crate::store::Store;
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
    /// The logs after `newest`, up to the last that could complete something to be rolled forward.
    replay: Vec<ChainedLog>,
    /// Where the chain had no whole log after `newest`.
    gaps: Vec<Gap>,
}

impl LogScan {
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
) -> Result<(Superblock, Store, LogScan)> {
    let first = scan_from(device, &superblocks.best, superblocks.best.is_clean());
    match (first, &superblocks.other) {
        (Ok((store, found)), _) => Ok((superblocks.best, store, found)),
        (Err(error @ Error::Device { .. }), _) | (Err(error), None) => Err(error),
        (Err(_), Some(other)) => {
            tracing::warn!("the newest log is damaged; trying from an earlier position");
            let (store, found) = scan_from(device, other, false)?;
            Ok((*other, store, found))
        }
    }
}

fn scan_from(
    device: &Arc<dyn Device>,
    superblock: &Superblock,
    clean: bool,
) -> Result<(Store, LogScan)> {
    let store = Store::new(Arc::clone(device), superblock.geometry(), superblock.crc_seed());
    let found = scan(&store, superblock.last_log(), clean)?;
    // A super root is loaded with its own checksum; a log without a good one is no checkpoint.
    crate::volume::super_root(&store, &found.newest)?;
    Ok((store, found))
}

/// What there is from a log with a super root on. If the log itself is not whole, it is all there is.
pub(crate) fn at(store: &Store, log: &SuperRootLog) -> LogScan {
    let (start, kind) = (log.cursor.block, LogKind::Checkpoint);
    let newest = ChainedLog::new(store.geometry(), start, log.header, kind, true);
    let alone = Seen::new(log.cursor.cno, newest).found(false, Vec::new());
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
/// each time. Whoever loads its super root checks that, and a scrub checks the rest.
fn closed(store: &Store, start: LogCursor) -> Result<Option<LogScan>> {
    let found = reader::skimmed(store, start.block, start.seq)?;
    let Some((header, kind @ LogKind::Checkpoint)) = found else { return Ok(None) };
    reader::hold_end(store, start.block, &header)?;
    let newest = ChainedLog::new(store.geometry(), start.block, header, kind, false);
    Ok(Some(Seen::new(start.cno, newest).found(true, Vec::new())))
}

/// Follows the chain of logs.
///
/// The content of files makes up most of the logs. It is not read where a later log says that everything
/// was durable before it, nor where nothing depends on it.
fn follow(store: &Store, start: LogCursor) -> Result<Option<LogScan>> {
    let mut chain = Chain::from(store, start.block, start.seq).skimming();
    let first = chain.next()?.filter(|log| log.kind == LogKind::Checkpoint);
    let Some(first) = first else { return Ok(None) };
    let mut seen = Seen::new(start.cno, first);
    while let Some(log) = chain.next()? {
        seen.push(store, log);
    }
    seen.check(store)?;
    Ok(Some(seen.found(false, chain.gaps())))
}

/// Logs of the chain.
struct Seen {
    /// The first has a super root, and is that of this checkpoint.
    cno: Cno,
    logs: Vec<ChainedLog>,
    /// How many of them are known to be whole, the first at least.
    whole: usize,
}

impl Seen {
    fn new(cno: Cno, log: ChainedLog) -> Self {
        Self { cno, logs: vec![log], whole: 1 }
    }

    fn push(&mut self, store: &Store, log: ChainedLog) {
        let before = self.logs.len();
        match log.kind {
            LogKind::Sync { unflushed: Some(unflushed) } => {
                self.whole = self.whole.max(before.saturating_sub(unflushed.into()));
            }
            LogKind::Checkpoint if is_all_durable_before(store, &log) => self.whole = before,
            _ => {}
        }
        self.whole += usize::from(log.checked && self.whole == before);
        self.logs.push(log);
        if log.kind == LogKind::Checkpoint && self.whole == self.logs.len() {
            *self = Self::new(self.cno_at(before), log);
        }
    }

    /// The newest checkpoint when one of these logs was the last.
    fn cno_at(&self, nth: usize) -> Cno {
        let later = self.logs[1..=nth].iter().filter(|log| log.kind == LogKind::Checkpoint);
        self.cno.plus(later.count() as u64)
    }

    /// Checks every byte of the logs on which something depends and that are not known to be whole.
    fn check(&mut self, store: &Store) -> Result<()> {
        let last = self.logs.iter().rposition(|log| log.kind != LogKind::Part);
        let Some(last) = last.filter(|last| *last >= self.whole) else { return Ok(()) };
        let rest = self.logs.split_off(last + 1);
        let last = self.logs[last].start;
        self.logs.truncate(self.whole);
        let mut chain = Chain::after(store, &self.logs[self.whole - 1]);
        while let Some(log) = chain.next()? {
            self.push(store, log);
            if log.start == last {
                self.logs.extend(rest);
                break;
            }
        }
        Ok(())
    }

    fn found(mut self, clean: bool, gaps: Vec<Gap>) -> LogScan {
        let last_valid = self.logs[self.logs.len() - 1];
        let newest = self.logs.iter().rposition(|log| log.kind == LogKind::Checkpoint).unwrap_or(0);
        let cno = self.cno_at(newest);
        let mut replay = self.logs.split_off(newest + 1);
        let completes = |log: &ChainedLog| log.kind != LogKind::Part && log.header.has(LOGEND);
        replay.truncate(replay.iter().rposition(completes).map_or(0, |last| last + 1));
        LogScan { newest: self.logs[newest], cno, last_valid, clean, replay, gaps }
    }
}

/// Whether its super root says that the logs before this one were durable before it was written.
fn is_all_durable_before(store: &Store, log: &ChainedLog) -> bool {
    crate::volume::super_root(store, log).is_ok_and(|super_root| super_root.durable_before)
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
    start: BlockNr,
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
    pub(crate) fn before(mut self, nth: usize, why: Error) -> Result<Self> {
        self.logs.truncate(nth);
        self.fault = Some(of_content(why)?);
        Ok(self.tidied())
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
    let mut gathering = Gathering::new(store, found.cno);
    for log in &found.replay {
        if let Err(error) = gathering.add(log) {
            let before = found.gaps.iter().find(|gap| gap.seq < log.header.seq);
            gathering.complete.stops_at = Some(before.map_or(log.start, |gap| gap.at));
            gathering.complete.fault = Some(of_content(error)?);
            return Ok(gathering.complete.tidied());
        }
    }
    let mut complete = gathering.complete;
    for gap in &found.gaps {
        let Some(logs) = beyond::witnesses(store, gap, found.cno) else { continue };
        complete.fault = Some(Error::Inconsistent(format!(
            "the log in block {} is damaged; it was durable when the log in block {} was written",
            gap.at, logs[0].start
        )));
        complete.stops_at = Some(gap.at);
        complete.cut_off = logs;
        break;
    }
    Ok(complete.tidied())
}

/// What a recovery would do with the logs of fsyncs after the newest checkpoint.
#[derive(Debug)]
pub struct RecoveryPlan {
    /// Those that are rolled forward.
    pub applied: Vec<Log>,
    /// Whole ones that cannot be.
    pub lost: Vec<Log>,
    /// Why they cannot.
    pub why: Option<Error>,
}

/// Reads the logs once more, to be shown.
pub(crate) fn plan(store: &Store, found: &LogScan, recovered: RollForward) -> Result<RecoveryPlan> {
    let RollForward { logs, fault: why, cut_off, .. } = recovered;
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
    Ok(RecoveryPlan { applied, lost, why })
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
        if header.has(SR) || in_data_sync && !header.has(SYNDT) {
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

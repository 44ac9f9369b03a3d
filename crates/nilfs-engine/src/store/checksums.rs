//! Whether blocks are what was written there: a read is checked against the checksum that the log of
//! the block has of it (docs/format.md §4.3).
//!
//! Checksums are kept by segment, of as many segments as there is memory for. Those of a log that this
//! process writes are put in by its writer. Others are found by going from log to log, from the beginning
//! of the segment to the block in question, and no further.
//!
//! That is much to read for a block of metadata, which lies near the end of a segment of small logs as often
//! as not. So the summary of its log is looked for right before it, and read together with it: a card takes
//! little longer for a few blocks than for one. It may be a part of a file that looks like one: what agrees
//! with it is believed, and what contradicts it is not damaged unless the way from the beginning of the
//! segment says so as well.
//!
//! # A reader never judges by checksums of another use of the segment
//!
//! It is the rule by which blocks can be cached by their addresses. A reader holds a view in which the
//! block is alive; as long as that view is held, the segment is not given to the log again
//! (`log/withheld.rs`). So all logs up to the block are complete and stay as they are, and what the
//! reader finds out about them is right, whenever it is put in. The log that goes on behind them in the
//! same segment is no matter: a reader does not look there, and the writer puts in other places. The first
//! log of the next use begins with the segment, and drops all that was known of it.
//!
//! # What cannot be known is no error
//!
//! Logs of Linux and of older versions have no checksums. A summary that is damaged, or to which no way
//! leads from the beginning of the segment, says nothing, nor does a log of which the checksum is right
//! although that of a block is not ([`Log::proof`](reader::Log::proof)).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use nilfs_ondisk::crc::{BlockSum, Verdict};
use nilfs_ondisk::summary::{BlockInfo, LogHeader};
use nilfs_ondisk::{BlockNr, BlockSize, Ino, SegNum, Seq};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::{BESIDE_BLOCK, Kind, Store};
use crate::cache::{self, Room, cache};
use crate::error::{Error, Result};
use crate::host::atomic::{AtomicUsize, Ordering};
use crate::host::{Mutex, NumberState, Rank};
use crate::log::reader::{self, DescribedBlock, Log, Proof};

/// Memory for checksums at least, in bytes: that of a few segments in each part of the cache.
const LEAST_BYTES: u64 = cache::SHARDS as u64 * 4 * ONE_SEGMENT;

/// Bytes that the checksums of a segment take where logs are long.
const ONE_SEGMENT: u64 = 8 << 10;

/// Bytes that are read at once on the way through a segment. A card takes about as long for them as for
/// one block.
const WINDOW: usize = 16 << 10;

/// As many where logs are shorter than that: several are read together.
const LONG_WINDOW: usize = 64 << 10;

/// Which blocks are checked against their checksums when they are read (mount option `verify`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Verify {
    /// None.
    None,
    /// For a broken volume, of which as much as possible is to be had: metadata is taken as it is, and a bit of
    /// content that is wrong is set right. Blocks of files that are read to be changed in part are checked: they
    /// are written anew, with a checksum that makes damage right.
    Rescue,
    /// Blocks of metadata, and those of files that are read to be changed in part.
    #[default]
    Metadata,
    /// Those, and the content of files.
    All,
}

/// Checksums of blocks, as far as they are known.
pub(super) struct Checksums {
    /// Bytes before a block of metadata that are read with it, because the summary of the last one's log
    /// was found among them.
    before: AtomicUsize,
    segments: Cache<SegNum, CachedSegment, Bytes, NumberState>,
}

/// The logs of a segment, as far as they are known.
type Segment = Arc<Mutex<Logs>>;

/// Logs by their first blocks.
type Logs = BTreeMap<BlockNr, KnownLog>;

/// A segment, with the bytes of memory that its logs took when they were counted last.
#[derive(Clone)]
struct CachedSegment {
    logs: Segment,
    bytes: u64,
}

/// Counts the memory of a segment.
#[derive(Clone)]
struct Bytes;

impl Weighter<SegNum, CachedSegment> for Bytes {
    fn weight(&self, _: &SegNum, kept: &CachedSegment) -> u64 {
        BESIDE_BLOCK as u64 + kept.bytes
    }
}

/// A log, or a part of a segment of which nothing can be known.
#[derive(Debug)]
struct KnownLog {
    /// The block after the last one.
    end: BlockNr,
    /// The use of the segment.
    seq: Seq,
    /// Whether it is known that this is a log, and not a part of a file that looks like one.
    proven: bool,
    sums: Sums,
}

#[derive(Debug)]
enum Sums {
    /// Nobody has asked for them yet.
    Unread(Box<LogHeader>),
    /// There are none.
    Absent,
    /// Those of the blocks from one on.
    Of(BlockNr, Box<[BlockSum]>),
}

fn unknown() -> Segment {
    Arc::new(Mutex::new(Rank::Checksums, Logs::new()))
}

impl Checksums {
    /// Keeps checksums in about as many bytes.
    pub(super) fn new(bytes: u64) -> Self {
        let bytes = bytes.max(LEAST_BYTES);
        let values = (bytes / ONE_SEGMENT) as usize;
        let segments = cache(&Room { values, weight: bytes, hot: None }, Bytes);
        Self { before: AtomicUsize::new(WINDOW), segments }
    }

    /// Keeps checksums in about as many bytes from now on.
    pub(super) fn set_limit(&self, bytes: u64) {
        self.segments.set_capacity(bytes.max(LEAST_BYTES));
    }

    fn segment(&self, number: SegNum) -> Segment {
        if let Some(kept) = self.segments.get(&number) {
            return kept.logs;
        }
        let logs = unknown();
        self.segments.insert(number, CachedSegment { logs: Arc::clone(&logs), bytes: 0 });
        logs
    }

    /// Keeps a segment of which more is known now.
    fn keep(&self, number: SegNum, logs: Segment) {
        let bytes = logs.lock().values().map(KnownLog::bytes).sum();
        self.segments.insert(number, CachedSegment { logs, bytes });
    }

    /// Takes note of a log that is about to be written. What was known of its place, and of what comes
    /// after it in the segment, is no longer so.
    pub(super) fn note_written(
        &self,
        number: SegNum,
        log: Range<BlockNr>,
        seq: Seq,
        (first, sums): (BlockNr, &[BlockSum]),
    ) {
        let segment = self.segment(number);
        let mut logs = segment.lock();
        drop(logs.split_off(&log.start));
        if let Some((_, before)) = logs.last_key_value()
            && before.end > log.start
            && let Some(mut before) = logs.last_entry()
        {
            before.get_mut().end = log.start;
        }
        logs.insert(
            log.start,
            KnownLog { end: log.end, seq, proven: true, sums: Sums::Of(first, sums.into()) },
        );
        drop(logs);
        self.keep(number, segment);
    }

    /// Takes note of a log that was found on the way to the newest checkpoint.
    pub(super) fn note_found(&self, segment: SegNum, start: BlockNr, header: LogHeader) {
        let log = KnownLog::unread(start, header, true);
        self.segment(segment).lock().insert(start, log);
    }

    /// Reads a block of metadata, and checks it as [`Checksums::check`] does. If its log is not known, what
    /// lies right before it is read with it.
    ///
    /// # Errors
    /// As [`Checksums::check`], and the block cannot be read.
    pub(super) fn read_metadata(
        &self,
        store: &Store,
        block: BlockNr,
        content: &mut [u8],
    ) -> Result<()> {
        let first = match self.is_known(store, block)? {
            true => block,
            false => before(store, block, self.before.load(Ordering::Relaxed)),
        };
        let mut run = vec![0; (block.0 - first.0) as usize * content.len() + content.len()];
        match store.fetch_all(first, &mut run, Kind::Metadata) {
            // It may be another one of them that cannot be read.
            Err(error) if error.is_of_block() && first < block => {
                store.fetch_all(block, content, Kind::Metadata)?;
                return self.check(store, block, content);
            }
            read => read?,
        }
        let (above, own) = run.split_at(run.len() - content.len());
        content.copy_from_slice(own);
        if first < block && !self.note_among(store, first, above, block)? {
            self.look_before(store, first, block)?;
        }
        self.check(store, block, content)
    }

    /// Checks a block of metadata that was read, as [`Checksums::check`] does.
    pub(super) fn check_metadata(
        &self,
        store: &Store,
        block: BlockNr,
        content: &[u8],
    ) -> Result<()> {
        if !self.is_known(store, block)? {
            self.look_before(store, block, block)?;
        }
        self.check(store, block, content)
    }

    /// Whether the log of a block is known. Often it is the first of its segment, which is looked for.
    fn is_known(&self, store: &Store, block: BlockNr) -> Result<bool> {
        let geometry = store.geometry();
        let number = geometry.segment_of(block);
        let segment = self.segment(number);
        let is_known = || log_of(&segment.lock(), block).is_some();
        if is_known() {
            return Ok(true);
        }
        find_logs(store, &segment, geometry.segment_start(number))?;
        Ok(is_known())
    }

    /// Looks for the summary of a block's log before a block to which it was looked for already.
    fn look_before(&self, store: &Store, end: BlockNr, block: BlockNr) -> Result<()> {
        let first = before(store, block, LONG_WINDOW);
        if first < end {
            let mut blocks = vec![0; (end.0 - first.0) as usize * store.block_size().bytes()];
            if or_nothing(store.read_run(first, &mut blocks))?.is_some() {
                self.note_among(store, first, &blocks, block)?;
            }
        }
        Ok(())
    }

    /// Takes note of the log that seems to have a block, if its summary is among blocks that lie before it.
    /// Returns whether it is.
    fn note_among(
        &self,
        store: &Store,
        first: BlockNr,
        blocks: &[u8],
        block: BlockNr,
    ) -> Result<bool> {
        let Some(log) = log_among(store, first, blocks, block) else { return Ok(false) };
        let start = log.start;
        let bytes = (block.0 - start.0) as usize * store.block_size().bytes();
        self.before.store(bytes.next_multiple_of(WINDOW).min(LONG_WINDOW), Ordering::Relaxed);
        if let Some(log) = or_nothing(KnownLog::seen(store, log))? {
            let number = store.geometry().segment_of(block);
            let segment = self.segment(number);
            segment.lock().entry(start).or_insert(log);
            self.keep(number, segment);
        }
        Ok(true)
    }

    /// Checks blocks that lie one after the other.
    ///
    /// # Errors
    /// [`Error::Damaged`] for the first that is not what was written there, [`Error::WouldWait`].
    pub(super) fn check(&self, store: &Store, first: BlockNr, content: &[u8]) -> Result<()> {
        let blocks = content.chunks_exact(store.block_size().bytes());
        let end = first.plus(blocks.len() as u64);
        for (nth, (block, sum)) in blocks.zip(self.of(store, first..end)?).enumerate() {
            if is_wrong(sum, block) {
                self.confirm(store, first.plus(nth as u64), block)?;
            }
        }
        Ok(())
    }

    /// Sets the bit right that is wrong in a block, where it is only one, in blocks that lie one after the other.
    ///
    /// # Errors
    /// [`Error::WouldWait`].
    pub(super) fn set_right(
        &self,
        store: &Store,
        first: BlockNr,
        content: &mut [u8],
    ) -> Result<()> {
        let blocks = content.chunks_exact_mut(store.block_size().bytes());
        let end = first.plus(blocks.len() as u64);
        for (block, sum) in blocks.zip(self.of(store, first..end)?) {
            let wrong = sum.filter(|_| is_wrong(sum, block)).and_then(|sum| sum.wrong_bit(block));
            wrong.into_iter().for_each(|bit| bit.flip(block));
        }
        Ok(())
    }

    /// Fails if a block that has another checksum than it should have is damaged: by what the device says
    /// on the way from the beginning of the segment, or by what is certain if that way is barred now.
    fn confirm(&self, store: &Store, block: BlockNr, content: &[u8]) -> Result<()> {
        let segment = store.geometry().segment_of(block);
        let is_certain = log_of(&self.segment(segment).lock(), block).is_some_and(|it| it.1.proven);
        let afresh = unknown();
        read_sums(store, &afresh, block)?;
        let log = log_of(&afresh.lock(), block).map(|(start, log)| (start, log.sum(block)));
        let is_damaged = match log {
            Some((_, sum @ Some(_))) => is_wrong(sum, content),
            Some((_, None)) | None => is_certain,
        };
        if !is_damaged {
            self.keep(segment, afresh);
            return Ok(());
        }
        let part = log.and_then(|(start, _)| part(store, start, block));
        Err(Error::Damaged { block, part: part.map_or_else(String::new, |it| format!(", {it}")) })
    }

    /// Returns the checksums of blocks that lie one after the other, as far as they can be known.
    fn of(&self, store: &Store, blocks: Range<BlockNr>) -> Result<Vec<Option<BlockSum>>> {
        let geometry = store.geometry();
        let mut sums = Vec::with_capacity((blocks.end.0 - blocks.start.0) as usize);
        let mut at = blocks.start;
        while at < blocks.end {
            let segment = geometry.segment_of(at);
            let end = blocks.end.min(geometry.segment_end(segment));
            let known = self.segment(segment);
            let has_read = read_sums(store, &known, at)?;
            let logs = known.lock();
            let log = log_of(&logs, at).map(|(_, log)| log);
            let part = at..log.map_or(at.plus(1), |log| log.end.min(end));
            let sum = |block| log.and_then(|log| log.sum(BlockNr(block)));
            sums.extend((part.start.0..part.end.0).map(sum));
            at = part.end;
            drop(logs);
            if has_read {
                self.keep(segment, known);
            }
        }
        Ok(sums)
    }
}

/// Whether content is not what was written, by a checksum that is recorded of it. Content that a repair could
/// not vouch for is none of that: nothing says what was written there.
fn is_wrong(sum: Option<BlockSum>, content: &[u8]) -> bool {
    sum.is_some_and(|sum| sum.judge(content) == Verdict::Wrong)
}

/// Returns the block so many bytes before another one, in its segment.
fn before(store: &Store, block: BlockNr, bytes: usize) -> BlockNr {
    let (size, geometry) = (store.block_size(), store.geometry());
    let first = block.0.saturating_sub((bytes / size.bytes()) as u64);
    BlockNr(first).max(geometry.segment_start(geometry.segment_of(block)))
}

/// Returns the log of a block, if that is known.
fn log_of(logs: &Logs, block: BlockNr) -> Option<(BlockNr, &KnownLog)> {
    let log = logs.range(..=block).next_back().filter(|(_, log)| log.end > block);
    log.map(|(start, log)| (*start, log))
}

/// Finds the log of a block, and reads its checksums, if that was not done before. Returns whether it has
/// read them.
fn read_sums(store: &Store, logs: &Segment, block: BlockNr) -> Result<bool> {
    let unread = || {
        log_of(&logs.lock(), block).map(|(start, log)| match &log.sums {
            Sums::Unread(header) => Some((start, header.clone())),
            Sums::Absent | Sums::Of(..) => None,
        })
    };
    let unread = match unread() {
        Some(unread) => unread,
        None => {
            find_logs(store, logs, block)?;
            unread().flatten()
        }
    };
    let Some((start, header)) = unread else { return Ok(false) };
    let sums = or_nothing(reader::read(store, start, *header).and_then(|log| sums_of(store, log)))?;
    if let Some(log) = logs.lock().get_mut(&start).filter(|log| log.is_unread(&header)) {
        log.sums = sums.unwrap_or(Sums::Absent);
    }
    Ok(true)
}

impl KnownLog {
    fn unread(start: BlockNr, header: LogHeader, proven: bool) -> Self {
        let end = start.plus(header.nblocks.into());
        Self { end, seq: header.seq, proven, sums: Sums::Unread(Box::new(header)) }
    }

    /// A log that seems to be there, with its checksums.
    fn seen(store: &Store, log: Log) -> Result<Self> {
        let unread = Self::unread(log.start, log.header, false);
        Ok(Self { sums: sums_of(store, log)?, ..unread })
    }

    /// Returns the bytes of memory that it takes, with the place where it is kept.
    fn bytes(&self) -> u64 {
        let more = match &self.sums {
            Sums::Unread(_) => size_of::<LogHeader>(),
            Sums::Absent => 0,
            Sums::Of(_, sums) => size_of_val(&**sums),
        };
        (2 * size_of::<Self>() + more) as u64
    }

    /// Returns the checksum of one of its blocks, if it is there.
    fn sum(&self, block: BlockNr) -> Option<BlockSum> {
        let Sums::Of(first, sums) = &self.sums else { return None };
        let nth = usize::try_from(block.0.checked_sub(first.0)?).ok()?;
        sums.get(nth).copied()
    }

    fn is_unread(&self, header: &LogHeader) -> bool {
        matches!(&self.sums, Sums::Unread(unread) if **unread == *header)
    }
}

/// Returns the checksums of the blocks of a log, if it says which content is right.
fn sums_of(store: &Store, mut log: Log) -> Result<Sums> {
    let first = log.start.plus(log.header.summary_blocks(store.block_size()));
    let is_right = log.sums.is_some() && log.proof(store)? == Proof::OfBlocks;
    let sums = log.sums.take().filter(|_| is_right);
    Ok(sums.map_or(Sums::Absent, |sums| Sums::Of(first, sums.into_boxed_slice())))
}

/// Goes through the logs of a segment until the one of a block is known.
fn find_logs(store: &Store, logs: &Segment, block: BlockNr) -> Result<()> {
    let geometry = store.geometry();
    let segment = geometry.segment_of(block);
    let mut window = Window::default();
    let (mut at, mut seq) = (geometry.segment_start(segment), None);
    loop {
        {
            let mut known = logs.lock();
            while let Some(log) = known.get_mut(&at) {
                log.proven = true;
                (at, seq) = (log.end, Some(log.seq));
            }
        }
        if at > block {
            return Ok(());
        }
        let header = or_nothing(window.header(store, at))?.flatten();
        let header = header.filter(|header| seq.is_none_or(|seq| seq == header.seq));
        let mut known = logs.lock();
        let (end, sums) = match header {
            Some(header) => (at.plus(header.nblocks.into()), Sums::Unread(Box::new(header))),
            None => {
                let next = known.range(at.plus(1)..).next().map(|(start, _)| *start);
                (next.unwrap_or(geometry.segment_end(segment)), Sums::Absent)
            }
        };
        let seq = header.map(|header| header.seq).or(seq).unwrap_or_default();
        known.entry(at).or_insert(KnownLog { end, seq, proven: true, sums });
    }
}

/// Returns the log that seems to have a block, if its summary is among blocks that lie before it.
fn log_among(store: &Store, first: BlockNr, blocks: &[u8], block: BlockNr) -> Option<Log> {
    let size = store.block_size().bytes();
    blocks.chunks_exact(size).enumerate().rev().find_map(|(nth, bytes)| {
        let at = first.plus(nth as u64);
        let header = reader::parse_header(store, at, bytes)?;
        if at.plus(header.nblocks.into()) <= block {
            return None;
        }
        let summary = header.summary_blocks(store.block_size()) as usize * size;
        match blocks.get(nth * size..nth * size + summary) {
            Some(summary) => reader::parse(store, at, header, summary).ok(),
            None => reader::read(store, at, header).ok(),
        }
    })
}

/// Blocks of a segment that were read together.
#[derive(Default)]
struct Window {
    first: BlockNr,
    bytes: Vec<u8>,
    /// Bytes of the log that was asked for last.
    last_log: u64,
}

impl Window {
    /// Returns the header of the log that begins at a block, if there is one.
    fn header(&mut self, store: &Store, at: BlockNr) -> Result<Option<LogHeader>> {
        let size = store.block_size();
        if self.block(at, size).is_none() {
            self.read(store, at)?;
        }
        let header = self.block(at, size).and_then(|it| reader::parse_header(store, at, it));
        self.last_log = header.map_or(0, |header| u64::from(header.nblocks) * size.bytes64());
        Ok(header)
    }

    fn block(&self, at: BlockNr, size: BlockSize) -> Option<&[u8]> {
        let nth = usize::try_from(at.0.checked_sub(self.first.0)?).ok()?;
        self.bytes.chunks_exact(size.bytes()).nth(nth)
    }

    fn read(&mut self, store: &Store, at: BlockNr) -> Result<()> {
        let (size, geometry) = (store.block_size(), store.geometry());
        let left = geometry.segment_end(geometry.segment_of(at)).0 - at.0;
        let bytes = match self.last_log {
            // The first of a segment may be all that there is in it.
            0 => size.bytes(),
            log if log < LONG_WINDOW as u64 => LONG_WINDOW,
            _ => WINDOW,
        };
        let blocks = (bytes / size.bytes()).max(1).min(left as usize);
        self.first = at;
        self.bytes.resize(blocks * size.bytes(), 0);
        match store.read_run(at, &mut self.bytes) {
            // It may be another one of them that cannot be read.
            Err(Error::Device { .. }) if blocks > 1 => {
                self.bytes.truncate(size.bytes());
                store.read_run(at, &mut self.bytes)
            }
            read => read,
        }
        .inspect_err(|_| self.bytes.clear())
    }
}

/// Returns nothing for what cannot be read or is damaged.
///
/// # Errors
/// [`Error::WouldWait`]: it may be read by another thread.
fn or_nothing<T>(found: Result<T>) -> Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(Error::WouldWait) => Err(Error::WouldWait),
        Err(error) => {
            tracing::debug!("blocks are not checked: {error}");
            Ok(None)
        }
    }
}

/// Names what a block is a part of, as the summary of its log says.
fn part(store: &Store, log: BlockNr, block: BlockNr) -> Option<String> {
    let header = reader::header(store, log).ok().flatten()?;
    let log = reader::read(store, log, header).ok()?;
    let size = store.block_size();
    log.blocks(size).find(|it| it.block == block).map(|it| described(&it, size))
}

fn described(block: &DescribedBlock, size: BlockSize) -> String {
    let file = match block.ino {
        Ino::DAT => "the DAT".to_owned(),
        Ino::CPFILE => "the cpfile".to_owned(),
        Ino::SUFILE => "the sufile".to_owned(),
        Ino::IFILE => "the ifile".to_owned(),
        Ino::XATTR => "the notes of snapshots".to_owned(),
        ino => format!("inode {ino}"),
    };
    match block.info {
        BlockInfo::Data { offset, .. } | BlockInfo::DatData { offset } => {
            let start = offset.0.saturating_mul(size.bytes64());
            format!("bytes {start} to {} of {file}", start.saturating_add(size.bytes64() - 1))
        }
        BlockInfo::Node { .. } | BlockInfo::DatNode { .. } => format!("a B-tree node of {file}"),
    }
}

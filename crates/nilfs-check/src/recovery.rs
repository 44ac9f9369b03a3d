//! The search for the newest super root (docs/format.md §16) and what a mount would roll forward
//! after it (§1.3), without writing anything.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

use nilfs_ondisk::crc::BlockSum;
use nilfs_ondisk::roll_forward::Records;
use nilfs_ondisk::summary::{BlockInfo, FileInfo, LOGBGN, LOGEND, LogHeader, SR, SYNDT};
use nilfs_ondisk::super_root::SuperRoot;
use nilfs_ondisk::superblock::{FEATURE_ROLL_FORWARD, LogCursor};
use nilfs_ondisk::{BlockNr, Cno, FileBlock, Ino, SegNum, Seq};

use crate::CheckError;
use crate::beyond::{self, Blank};
use crate::correction::Correction;
use crate::log::{LogFault, LogReader};
use crate::report::{Findings, Location, Rule, counted};
use crate::roll_forward::{PassedOver, SyncLog, Synced};
use crate::superblocks::Superblocks;
use crate::volume::{ReadBlock, Volume};

/// The words for a log that no power cut has taken.
const DAMAGED: &str = "the log here is damaged, which was durable when later ones were written";

/// The log that completes the newest checkpoint.
pub(crate) struct Newest {
    /// First block of the log.
    pub(crate) log: BlockNr,
    pub(crate) header: LogHeader,
    pub(crate) cno: Cno,
    pub(crate) super_root: SuperRoot,
    /// What a mount would roll forward.
    pub(crate) synced: Synced,
}

impl Newest {
    /// As a superblock names it.
    pub(crate) fn cursor(&self) -> LogCursor {
        LogCursor { block: self.log, seq: self.header.seq, cno: self.cno }
    }
}

/// Finds the newest super root as a mount would, and checks the ways that lead to it.
pub(crate) fn find_newest(
    volume: &Volume<'_>,
    superblocks: &Superblocks,
    findings: &mut Findings,
) -> Result<Newest, CheckError> {
    let mut reader = LogReader::new(volume, false);
    let winner = &superblocks.winner;
    let first = Scan::run(volume, &mut reader, winner.last_log(), superblocks.are_clean())
        .and_then(|scan| scan.with_super_root(volume, &mut reader));
    let mut fallen_back = false;
    let (scan, super_root) = match (first, &superblocks.other) {
        (Ok(found), _) => found,
        (Err(fault), None) => {
            return Err(CheckError::NoSuperRoot { fault: fault.to_string() });
        }
        (Err(fault), Some(other)) => {
            let place = Location::VOLUME.log(winner.last_log().block);
            findings
                .error(Rule::SuperRoot, place, || {
                    format!(
                        "the log that the superblock names, of checkpoint {}, cannot be used: {fault}",
                        winner.last_log().cno
                    )
                })
                .corrected_by([Correction::Superblocks]);
            fallen_back = true;
            Scan::run(volume, &mut reader, other.last_log(), false)
                .and_then(|scan| scan.with_super_root(volume, &mut reader))
                .map_err(|fault| CheckError::NoSuperRoot { fault: fault.to_string() })?
        }
    };
    let best = scan.best;
    for Passed { gap, later } in &scan.passed {
        let Gap { block, fault, .. } = gap;
        findings.warning(Rule::LogChain, Location::VOLUME.log(*block), || {
            format!(
                "{DAMAGED}: {fault}. The checkpoint in block {} after it is not, so a mount goes on \
                 there",
                later.block
            )
        });
    }
    if let Some(named) = scan.misnamed {
        findings
            .error(Rule::SuperRoot, Location::VOLUME.log(named.block), || {
                format!(
                    "a superblock names it as that of checkpoint {}, which it is not",
                    named.cno
                )
            })
            .corrected_by([Correction::Superblocks]);
    }
    if let Some(astray) = scan.astray {
        let segment = volume.geometry.segment_of(astray);
        findings
            .error(Rule::LogChain, Location::VOLUME.log(astray), || {
                "the chain of logs runs into a log of moved blocks, which must not be part of it"
                    .into()
            })
            .corrected_by([Correction::Segment { segment }]);
    }
    if !fallen_back {
        check_superblocks(volume, &mut reader, superblocks, best.log, findings);
    }
    let synced = if superblocks.are_clean() && !fallen_back {
        Synced::default()
    } else {
        let mut replay = Replay::after(volume, &mut reader, &scan);
        let is_refused = check_gaps(volume, &mut reader, &scan, &mut replay, findings);
        let synced = roll_forward(volume, &mut reader, &scan, replay, findings);
        if !is_refused {
            check_passed_over(&synced, findings);
        }
        synced
    };
    match winner.raw().s_feature_compat_ro.get() & FEATURE_ROLL_FORWARD != 0 {
        false => check_unannounced(&synced, best.log, findings),
        true if superblocks.are_clean() && !fallen_back => {
            check_announced(volume, &mut reader, winner.last_log(), findings);
        }
        true => {}
    }
    Ok(Newest { log: best.log, header: best.header, cno: best.header.cno, super_root, synced })
}

/// The newest super root where somebody knows its log. What was written after it counts for nothing.
pub(crate) fn newest_at(volume: &Volume<'_>, cursor: LogCursor) -> Result<Newest, CheckError> {
    let mut reader = LogReader::new(volume, false);
    let mut read = || {
        let header = header_of(&mut reader, cursor.block, cursor.seq)?;
        let super_root = super_root_of(volume, &mut reader, cursor.block, &header)?;
        Ok((header, super_root))
    };
    let (header, super_root) = read().map_err(|fault: LogFault| CheckError::NewestLog {
        block: cursor.block,
        fault: fault.to_string(),
    })?;
    let (log, cno, synced) = (cursor.block, cursor.cno, Synced::default());
    Ok(Newest { log, header, cno, super_root, synced })
}

/// Without the bit, a program that knows no records mounts the volume, and loses what they say.
fn check_unannounced(synced: &Synced, newest: BlockNr, findings: &mut Findings) {
    if synced.only_by_records {
        findings
            .error(Rule::RollForward, Location::VOLUME.log(newest), || {
                "sync logs with roll-forward records follow it, but the superblock lacks the bit \
                 that keeps Linux from losing them"
                    .into()
            })
            .corrected_by([Correction::Feature { bit: FEATURE_ROLL_FORWARD, set: true }]);
    }
}

/// The bit of a volume that was closed cleanly says nothing, and keeps Linux from writing the volume;
/// unless it is the mark of a clean volume that is wrong.
fn check_announced<'v, 'd>(
    volume: &'v Volume<'d>,
    reader: &mut LogReader<'v, 'd>,
    newest: LogCursor,
    findings: &mut Findings,
) {
    let place = Location::VOLUME.log(newest.block);
    let follow = Scan::run(volume, reader, newest, false).is_ok_and(|scan| {
        let replay = Replay::after(volume, reader, &scan);
        roll_forward(volume, reader, &scan, replay, &mut Findings::new(1)).only_by_records
    });
    match follow {
        true => drop(findings.warning(Rule::RollForward, place, || {
            "the volume is marked clean, so no mount looks for the sync logs that follow it".into()
        })),
        false => findings
            .warning(Rule::RollForward, place, || {
                "the volume was closed cleanly, but the superblock has the bit for roll-forward \
                 records still, so Linux does not write the volume"
                    .into()
            })
            .corrected_by([Correction::Feature { bit: FEATURE_ROLL_FORWARD, set: false }]),
    }
}

/// Whether both copies lead to the log that was found.
fn check_superblocks<'v, 'd>(
    volume: &'v Volume<'d>,
    reader: &mut LogReader<'v, 'd>,
    superblocks: &Superblocks,
    newest: BlockNr,
    findings: &mut Findings,
) {
    let winner = &superblocks.winner;
    if winner.is_clean()
        && let Ok(scan) = Scan::run(volume, reader, winner.last_log(), false)
        && scan.best.log != newest
    {
        findings.warning(Rule::Superblock, Location::VOLUME.log(scan.best.log), || {
            "the volume is marked clean, but a newer super root follows the log that the \
             superblock names"
                .into()
        });
    }
    let Some(other) = superblocks.other.as_ref().filter(|o| o.last_log() != winner.last_log())
    else {
        return;
    };
    let found = Scan::run(volume, reader, other.last_log(), false);
    let place = Location::VOLUME.log(other.last_log().block);
    // An older superblock is written again by the next mount.
    match found {
        Ok(scan) if scan.best.log == newest => return,
        Ok(scan) => findings.warning(Rule::Superblock, place, || {
            format!(
                "the log that the older superblock names leads to block {}, not to the newest \
                 log at block {newest}",
                scan.best.log
            )
        }),
        Err(fault) => findings.warning(Rule::Superblock, place, || {
            format!("the log that the older superblock names cannot be used: {fault}")
        }),
    };
}

/// A log with a super root, as the scan finds it.
#[derive(Debug, Clone, Copy)]
struct SuperRootLog {
    log: BlockNr,
    header: LogHeader,
}

/// A log that is damaged, and the checkpoint after it that shows that.
struct Passed {
    gap: Gap,
    later: LogCursor,
}

/// What the forward scan found.
struct Scan {
    best: SuperRootLog,
    /// The position from which it began, if the log there is that of another checkpoint.
    misnamed: Option<LogCursor>,
    /// First log after the best one, and its sequence number.
    first_after: Option<(BlockNr, Seq)>,
    /// A log that should not be part of the chain.
    astray: Option<BlockNr>,
    /// Where there is no whole log after the best one.
    gaps: Vec<Gap>,
    /// Damaged logs before the best one.
    passed: Vec<Passed>,
    /// Logs that need not be read to the end to be believed.
    durable: HashSet<BlockNr>,
}

impl Scan {
    /// Finds the newest super root by the logs from `start` on. Of a volume that was closed cleanly, the
    /// log there is the newest, and was durable before the superblock said so.
    fn run<'v, 'd>(
        volume: &'v Volume<'d>,
        reader: &mut LogReader<'v, 'd>,
        start: LogCursor,
        clean: bool,
    ) -> Result<Self, LogFault> {
        if clean {
            let header = header_of(reader, start.block, start.seq)?;
            return Ok(Self::at(Link { block: start.block, header }, start));
        }
        let mut scan = Self::follow(volume, reader, start)?;
        while let Some((nth, later)) = scan.later_checkpoint(volume, reader) {
            let Ok(mut from_there) = Self::follow(volume, reader, later) else { break };
            (from_there.passed, from_there.misnamed) = (scan.passed, scan.misnamed);
            from_there.passed.push(Passed { gap: scan.gaps.swap_remove(nth), later });
            scan = from_there;
        }
        Ok(scan)
    }

    /// Returns what is known of a log, in a search that began from a position.
    fn at(link: Link, from: LogCursor) -> Self {
        Self {
            misnamed: Some(from).filter(|it| it.block == link.block && it.cno != link.header.cno),
            best: SuperRootLog { log: link.block, header: link.header },
            first_after: None,
            astray: None,
            gaps: Vec::new(),
            passed: Vec::new(),
            durable: HashSet::new(),
        }
    }

    /// A checkpoint beyond a gap, of those after the best one, if logs there show that the gap is damage.
    fn later_checkpoint<'v, 'd>(
        &self,
        volume: &'v Volume<'d>,
        reader: &mut LogReader<'v, 'd>,
    ) -> Option<(usize, LogCursor)> {
        let mut blank = Blank::default();
        self.gaps.iter().enumerate().find_map(|(nth, gap)| {
            let newest = self.best.header.cno;
            let logs = beyond::witnesses(volume, reader, gap, newest, &mut blank)?;
            let later = logs.iter().find(|link| {
                link.header.cno > self.best.header.cno
                    && super_root_of(volume, reader, link.block, &link.header).is_ok()
            })?;
            let LogHeader { seq, cno, .. } = later.header;
            Some((nth, LogCursor { block: later.block, seq, cno }))
        })
    }

    /// Follows the logs from one on that was durable.
    fn follow<'v, 'd>(
        volume: &'v Volume<'d>,
        reader: &mut LogReader<'v, 'd>,
        start: LogCursor,
    ) -> Result<Self, LogFault> {
        let mut chain = Chain::new(volume, reader, start.block, start.seq, SegNum(0));
        let skimmed: Vec<Link> = std::iter::from_fn(|| chain.next()).collect();
        let mut durable = beyond::durable_ones(volume, reader, &skimmed);
        durable.insert(start.block);
        let mut chain = Chain::new(volume, reader, start.block, start.seq, SegNum(0));
        chain.believed = Believed::Whole(durable);
        let first = chain.here()?;
        super_root_of(volume, chain.reader, first.block, &first.header)?;
        let mut scan = Self::at(first, start);
        while let Some(link) = chain.next() {
            if super_root_of(volume, chain.reader, link.block, &link.header).is_ok() {
                scan = Self { misnamed: scan.misnamed, ..Self::at(link, start) };
                chain.gaps.clear();
                continue;
            }
            if link.header.is_off_chain() {
                scan.astray = Some(link.block);
                break;
            }
            scan.first_after.get_or_insert((link.block, link.header.seq));
        }
        scan.gaps = chain.gaps;
        if let Believed::Whole(durable) = chain.believed {
            scan.durable = durable;
        }
        Ok(scan)
    }

    fn with_super_root(
        self,
        volume: &Volume<'_>,
        reader: &mut LogReader<'_, '_>,
    ) -> Result<(Self, SuperRoot), LogFault> {
        let super_root = super_root_of(volume, reader, self.best.log, &self.best.header)?;
        Ok((self, super_root))
    }
}

/// The super root at the end of a log.
pub(crate) fn super_root_of(
    volume: &Volume<'_>,
    reader: &mut LogReader<'_, '_>,
    log: BlockNr,
    header: &LogHeader,
) -> Result<SuperRoot, LogFault> {
    if !header.has(SR) {
        return Err(LogFault::NoSuperRoot);
    }
    let block = log.plus(u64::from(header.nblocks) - 1);
    let bytes = reader.block(block)?;
    let super_root = SuperRoot::parse(bytes, &volume.geometry, volume.seed)?;
    let found = [ReadBlock { block, sum: BlockSum::of(bytes), target: None }];
    // Another one may have been written to the wrong place. An older version of fsck knows of no checksum but
    // that of the log.
    let is_other = |reader: &mut LogReader<'_, '_>| -> Result<bool, LogFault> {
        let changed = reader.changed_among(log, header, &found)?;
        Ok(!changed.is_empty() && reader.sums_agree(log, header)?)
    };
    match is_other(reader) {
        Ok(true) => Err(LogFault::OtherSuperRoot { block }),
        Ok(false) | Err(_) => Ok(super_root),
    }
}

/// A log of the chain.
#[derive(Clone, Copy)]
pub(crate) struct Link {
    pub(crate) block: BlockNr,
    pub(crate) header: LogHeader,
}

impl Link {
    /// The block after the log.
    pub(crate) fn end(&self) -> BlockNr {
        self.block.plus(self.header.nblocks.into())
    }
}

/// A place where a log of the chain could be, and why none is.
pub(crate) struct Gap {
    pub(crate) block: BlockNr,
    pub(crate) seq: Seq,
    fault: LogFault,
}

/// Logs that are taken for what they seem to be.
enum Believed {
    /// Logs with a whole summary.
    Summarized,
    /// Of these, the ones that are whole or known to have been durable.
    Whole(HashSet<BlockNr>),
}

/// The valid logs from a position on, in the order in which they were written. Each step takes a
/// further log or, after at most one miss, a further sequence number, so the chain ends on any
/// image.
pub(crate) struct Chain<'c, 'v, 'd> {
    volume: &'v Volume<'d>,
    reader: &'c mut LogReader<'v, 'd>,
    block: BlockNr,
    seq: Seq,
    /// The segment that follows, as the last valid log names it.
    next: SegNum,
    /// Whether the position is the start of a segment that need not hold a log.
    missed: bool,
    believed: Believed,
    /// Where it has found no log.
    gaps: Vec<Gap>,
}

impl<'c, 'v, 'd> Chain<'c, 'v, 'd> {
    pub(crate) fn new(
        volume: &'v Volume<'d>,
        reader: &'c mut LogReader<'v, 'd>,
        block: BlockNr,
        seq: Seq,
        next: SegNum,
    ) -> Self {
        let (believed, gaps) = (Believed::Summarized, Vec::new());
        Self { volume, reader, block, seq, next, missed: false, believed, gaps }
    }

    /// Reads the header of the log at the position.
    fn take(&mut self) -> Result<LogHeader, LogFault> {
        let header = beyond::summarized(self.reader, self.block, self.seq)?;
        if let Believed::Whole(durable) = &self.believed
            && !durable.contains(&self.block)
        {
            self.reader.verify(self.block, &header)?;
        }
        Ok(header)
    }

    /// Takes the log at the position, which is then after it.
    fn here(&mut self) -> Result<Link, LogFault> {
        let header = self.take()?;
        let link = Link { block: self.block, header };
        let geometry = &self.volume.geometry;
        let end = geometry.segment_end(geometry.segment_of(self.block));
        self.next = geometry.segment_of(header.next);
        self.block = link.end();
        self.missed = false;
        // A log has two blocks at least.
        if self.block.0 + 1 >= end.0 {
            self.skip();
        }
        Ok(link)
    }

    /// Goes to the start of the next segment.
    fn skip(&mut self) {
        self.seq = self.seq.plus(1);
        self.block = self.volume.geometry.segment_start(self.next);
        self.missed = true;
    }

    /// The next log. A miss within a segment is passed over once: a writer may have given the
    /// segment up.
    pub(crate) fn next(&mut self) -> Option<Link> {
        while self.volume.geometry.has_block(self.block) {
            let (block, seq) = (self.block, self.seq);
            match self.here() {
                Ok(link) => return Some(link),
                Err(fault) => self.gaps.push(Gap { block, seq, fault }),
            }
            if self.missed {
                break;
            }
            self.skip();
        }
        None
    }
}

/// The header of a log of the given sequence number.
pub(crate) fn header_of(
    reader: &mut LogReader<'_, '_>,
    at: BlockNr,
    seq: Seq,
) -> Result<LogHeader, LogFault> {
    let header = reader.header(at)?;
    match header.seq == seq {
        true => Ok(header),
        false => Err(LogFault::Sequence { found: header.seq, expected: seq }),
    }
}

/// The logs after the newest checkpoint that a mount reads.
struct Replay {
    links: Vec<Link>,
    /// Between and after them.
    passed_over: Vec<PassedOver>,
}

impl Replay {
    /// Finds those that the chain has.
    fn after<'v, 'd>(volume: &'v Volume<'d>, reader: &mut LogReader<'v, 'd>, scan: &Scan) -> Self {
        let Some((first, seq)) = scan.first_after else {
            return Self { links: Vec::new(), passed_over: Vec::new() };
        };
        let next = volume.geometry.segment_of(scan.best.header.next);
        let mut chain = Chain::new(volume, reader, first, seq, next);
        chain.believed = Believed::Whole(scan.durable.clone());
        let links = std::iter::from_fn(|| chain.next());
        let links = links.take_while(|link| !link.header.is_off_chain()).collect();
        let passed_over = |Gap { block, fault, .. }| {
            let end = volume.geometry.segment_end(volume.geometry.segment_of(block));
            PassedOver { blocks: block..end, fault: fault.to_string() }
        };
        Self { links, passed_over: chain.gaps.into_iter().map(passed_over).collect() }
    }

    /// Whether it has the last log of some that is no part of anything else.
    fn comes_by(&self, reader: &mut LogReader<'_, '_>, logs: &[Link]) -> bool {
        let mut is_synced = |log: &&Link| {
            log.header.has(SYNDT)
                || log.header.has(SR)
                || reader.content(log.block, &log.header).is_ok_and(|(_, it)| it.is_some())
        };
        let last = logs.iter().rfind(|log| is_synced(log)).map(|log| log.block);
        last.is_some_and(|last| self.links.iter().any(|link| link.block == last))
    }

    /// Goes on with the logs beyond a gap, if no sync log is missing in it: their numbers follow each other.
    fn goes_on<'v, 'd>(
        &mut self,
        volume: &'v Volume<'d>,
        reader: &mut LogReader<'v, 'd>,
        scan: &Scan,
        gap: &Gap,
        later: &[Link],
    ) -> bool {
        let base = scan.best.header.cno;
        let mut number = |log: &Link| {
            let records = reader.content(log.block, &log.header).ok()?.1?;
            (records.base == base).then_some(records.number)
        };
        let before = self.links.iter().rev().find_map(&mut number).unwrap_or(0);
        let goes_on = later.iter().find_map(&mut number).is_some_and(|it| it == before + 1);
        if goes_on {
            self.passed_over.retain(|it| it.blocks.start != gap.block);
            self.passed_over.extend(holes(volume, reader, gap, later));
            self.links.extend(later);
        }
        goes_on
    }
}

/// Blocks from a gap on that are of none of the logs found beyond that.
fn holes<'v, 'd>(
    volume: &'v Volume<'d>,
    reader: &mut LogReader<'v, 'd>,
    gap: &Gap,
    logs: &[Link],
) -> Vec<PassedOver> {
    let geometry = &volume.geometry;
    let mut segment = geometry.segment_of(gap.block);
    let (mut at, mut seq) = (gap.block, gap.seq);
    let mut holes = Vec::new();
    let mut add = |blocks: Range<BlockNr>, seq| {
        if blocks.start.plus(1) < blocks.end
            && let Err(fault) = beyond::summarized(reader, blocks.start, seq)
        {
            holes.push(PassedOver { blocks, fault: fault.to_string() });
        }
    };
    for log in logs {
        if log.header.seq != seq {
            add(at..geometry.segment_end(segment), seq);
            segment = geometry.segment_of(log.block);
            (at, seq) = (geometry.segment_start(segment), log.header.seq);
        }
        add(at..log.block, seq);
        at = log.end();
    }
    holes
}

/// Logs of which the last is still to come.
struct Begun {
    data_sync: bool,
    logs: Vec<SyncLog>,
}

/// The last block of a file that a log has, as a place in the file.
fn last_of(file: &FileInfo) -> FileBlock {
    let data = file.blocks.iter().filter_map(|block| match block {
        BlockInfo::Data { offset, .. } => Some(*offset),
        _ => None,
    });
    data.max().unwrap_or_default()
}

/// What to do about a log that a mount refuses to roll forward.
pub(crate) fn given_up(place: Location) -> Option<Correction> {
    place.log.map(|log| Correction::SyncLogs { log })
}

/// Records must follow each other from the checkpoint on: a mount refuses a gap.
fn check_order(
    records: &Records,
    base: Cno,
    number: u64,
    place: Location,
    findings: &mut Findings,
) {
    if records.base != base || records.number != number {
        let error = findings.error(Rule::RollForward, place, || {
            format!(
                "its records are number {} after checkpoint {}, expected number {number} after {base}",
                records.number, records.base
            )
        });
        error.corrected_by(given_up(place));
    }
}

/// Says where a log after the newest super root is damaged that was durable: that is no power cut. Returns
/// whether a mount would fail for that.
fn check_gaps<'v, 'd>(
    volume: &'v Volume<'d>,
    reader: &mut LogReader<'v, 'd>,
    scan: &Scan,
    replay: &mut Replay,
    findings: &mut Findings,
) -> bool {
    let mut blank = Blank::default();
    for gap in &scan.gaps {
        if beyond::lacks_a_bit(volume, reader, gap) {
            findings.error(Rule::RollForward, Location::VOLUME.log(gap.block), || {
                "the log here is as it was written but for one bit, so a mount would fail".into()
            });
            return true;
        }
        let (place, fault) = (Location::VOLUME.log(gap.block), &gap.fault);
        let later = beyond::witnesses(volume, reader, gap, scan.best.header.cno, &mut blank);
        let can_be_read = !matches!(fault, LogFault::Io(_));
        let is_passed = later.as_ref().is_some_and(|later| {
            replay.comes_by(reader, later)
                || can_be_read && replay.goes_on(volume, reader, scan, gap, later)
        });
        let Some(later) = later.filter(|_| !is_passed) else {
            // The chain goes on elsewhere, but a mount would read it.
            if !can_be_read {
                let error = findings.error(Rule::RollForward, place, || {
                    format!("the log here {fault}, so a mount would fail")
                });
                error.corrected_by(given_up(place));
            }
            continue;
        };
        let after = later.first().map(|first| {
            let count = counted(later.len() as u64, "log");
            format!(", and {count} after it, from block {} on", first.block)
        });
        let error = findings.error(Rule::RollForward, place, || {
            format!(
                "{DAMAGED}: {fault}. A mount would fail; without a repair this log is lost{}",
                after.unwrap_or_default()
            )
        });
        // No fsync has written a checkpoint that is cut off.
        let only_synced = later.iter().all(|log| !log.header.has(SR));
        error.corrected_by(given_up(place).filter(|_| only_synced));
        return true;
    }
    false
}

/// Says where a log is damaged to whose blocks records of later ones refer. These are not written before it is
/// durable, so a mount goes on after it, and takes its blocks as they are.
fn check_passed_over(synced: &Synced, findings: &mut Findings) {
    let starts: BTreeSet<BlockNr> = synced.extents().map(|extent| extent.block).collect();
    for PassedOver { blocks, fault } in &synced.passed_over {
        if starts.range(blocks.clone()).next().is_some() {
            let log = blocks.start;
            findings
                .error(Rule::RollForward, Location::VOLUME.log(log), || {
                    format!(
                        "{DAMAGED}: {fault}. A mount goes on after it, with its blocks as they are"
                    )
                })
                .corrected_by([Correction::SyncLogs { log }]);
        }
    }
}

/// Finds what a mount would roll forward, and says what of the logs themselves would keep it from
/// doing so.
fn roll_forward<'v, 'd>(
    volume: &'v Volume<'d>,
    reader: &mut LogReader<'v, 'd>,
    scan: &Scan,
    replay: Replay,
    findings: &mut Findings,
) -> Synced {
    let mut synced = Synced::default();
    let Some(place) = replay.links.first().map(|link| Location::VOLUME.log(link.block)) else {
        return synced;
    };
    let Some(last) = replay.links.iter().rposition(|link| link.header.has(LOGEND)) else {
        findings.note(Rule::RollForward, place, || {
            "an unfinished logical segment follows the newest super root; a mount drops it".into()
        });
        return synced;
    };
    let mut open: Option<Begun> = None;
    let mut number = 0;
    for &Link { block, header } in &replay.links[..=last] {
        let place = Location::VOLUME.log(block);
        if header.has(LOGBGN) {
            open = Some(Begun { data_sync: header.has(SYNDT), logs: Vec::new() });
        }
        let in_data_sync = open.as_ref().is_some_and(|open| open.data_sync);
        if header.has(SR) {
            let error = findings.error(Rule::RollForward, place, || {
                format!(
                    "it completes checkpoint {}, but its super root is damaged, so a mount would fail",
                    header.cno
                )
            });
            error.corrected_by(given_up(place));
            break;
        }
        if in_data_sync && !header.has(SYNDT) {
            let error = findings.error(Rule::RollForward, place, || {
                "this log stands between logs of fsyncs, so a mount would fail".into()
            });
            error.corrected_by(given_up(place));
            break;
        }
        if let Err(fault) = reader.verify(block, &header) {
            let error = findings.error(Rule::RollForward, place, || {
                format!("{DAMAGED}: {fault}. A mount rolls it forward as it is")
            });
            error.corrected_by(given_up(place));
        }
        let (items, records) = match reader.content(block, &header) {
            Ok(content) => content,
            Err(fault) => {
                let error = findings.error(Rule::RollForward, place, || fault.to_string());
                error.corrected_by(given_up(place));
                break;
            }
        };
        let first = block.plus(header.summary_blocks(volume.block_size()));
        synced.note_blocks(first, &items);
        if let Some(open) = &mut open {
            if let Some(records) = &records {
                number += 1;
                check_order(records, scan.best.header.cno, number, place, findings);
            }
            let files = items.iter().map(|file| (file.ino, last_of(file))).collect();
            let records = records.map(|records| records.records);
            open.logs.push(SyncLog { place, records, files });
        }
        if header.has(LOGEND)
            && let Some(begun) = open.take()
        {
            let has_records = begun.logs.iter().any(|log| log.records.is_some());
            synced.only_by_records |= has_records && !begun.data_sync;
            if begun.data_sync || has_records {
                synced.logs.extend(begun.logs);
            }
        }
    }
    synced.passed_over = replay.passed_over;
    if !synced.logs.is_empty() {
        findings.note(Rule::RollForward, place, || {
            let files: BTreeSet<Ino> = synced.logs.iter().flat_map(SyncLog::inodes).collect();
            let files = counted(files.len() as u64, "file");
            format!("sync logs for {files} follow the newest super root")
        });
    }
    synced
}

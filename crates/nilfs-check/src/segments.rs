//! Reading all logs of the segments in use (docs/format.md §4, §15.2): each log by itself, then how
//! they follow each other. What the logs say about their blocks becomes the map of owners.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use nilfs_ondisk::segment_usage::RawSegmentUsage;
use nilfs_ondisk::summary::{FileInfo, GC, LOGBGN, LOGEND, LogHeader, SR, SYNDT};
use nilfs_ondisk::{BlockNr, Cno, SegNum, Seq};

use crate::checker::Checker;
use crate::checkpoints::CheckpointTable;
use crate::correction::Correction;
use crate::log::{Changed, LogFault, LogReader};
use crate::owners::{Owners, SegmentOwners};
use crate::progress::Step;
use crate::report::{Location, Rule, Severity};
use crate::segment_usage::UsageTable;
use crate::summaries::Undescribed;
use crate::volume::ReadBlock;

/// What the logs of a segment have in common.
struct SegmentHead {
    segment: SegNum,
    next: BlockNr,
}

/// Why a summary is not believed that is whole.
pub(crate) const FOREIGN: &str =
    "the summary is that of a log elsewhere: nothing after it is what it says";

/// A log that a segment has.
pub(crate) struct FoundLog {
    pub(crate) at: BlockNr,
    pub(crate) header: LogHeader,
    pub(crate) files: Vec<FileInfo>,
    /// The fault that its checksum shows, if that was asked.
    pub(crate) fault: Option<LogFault>,
}

/// A part of a segment.
enum Piece {
    Log(FoundLog),
    /// Blocks from one on where a log should begin, up to the next log.
    Gap {
        blocks: Range<BlockNr>,
        fault: String,
    },
}

impl Piece {
    fn header(&self) -> Option<&LogHeader> {
        match self {
            Self::Log(log) => Some(&log.header),
            Self::Gap { .. } => None,
        }
    }
}

/// Returns the logs among what a segment has, up to a block, that may have been written elsewhere: their
/// summaries are whole, but do not fit to what is around them, or stand there twice.
fn suspects_among<'p>(pieces: &'p [Piece], end: BlockNr) -> Vec<&'p FoundLog> {
    let mut suspects = BTreeMap::new();
    let mut suspect = |log: &'p FoundLog| _ = suspects.insert(log.at, log);
    let mut seen: HashMap<(u32, u32), &FoundLog> = HashMap::new();
    let nexts = pieces.iter().skip(1).map(Some).chain([None]);
    for (piece, next) in pieces.iter().zip(nexts) {
        let Piece::Log(log) = piece else { continue };
        match next {
            Some(Piece::Log(next)) if !contradictions_of(&log.header, &next.header).is_empty() => {
                suspect(log);
                suspect(next);
            }
            Some(Piece::Log(_)) => {}
            // It may have ended elsewhere.
            Some(Piece::Gap { .. }) => suspect(log),
            None if log.at.plus(log.header.nblocks.into()) != end => suspect(log),
            None => {}
        }
        if let Some(twin) = seen.insert((log.header.sumsum, log.header.datasum), log) {
            suspect(twin);
            suspect(log);
        }
    }
    suspects.into_values().collect()
}

/// A log of which the checksum over the content is wrong.
pub(crate) struct Unproved {
    segment: SegNum,
    pub(crate) log: BlockNr,
    /// Its blocks that are not what was written, or of which that is not known.
    blocks: Vec<Range<BlockNr>>,
    severity: Severity,
    fault: String,
}

impl Unproved {
    /// Looks for the blocks of a log that are damaged.
    fn find(
        reader: &mut LogReader<'_, '_>,
        log: BlockNr,
        header: &LogHeader,
        fault: LogFault,
    ) -> Self {
        let segment = reader.segment_of(log);
        let Ok(Some(changed)) = reader.changed(log, header) else {
            let blocks = vec![log..log.plus(header.nblocks.into())];
            let (severity, fault) = (Severity::Error, fault.to_string());
            return Self { segment, log, blocks, severity, fault };
        };
        let Changed { wrong, unverified } = changed;
        let named =
            |blocks: &[Range<BlockNr>]| blocks.iter().map(named).collect::<Vec<_>>().join(", ");
        let (severity, fault) = match (&wrong[..], &unverified[..]) {
            ([], []) => {
                let what = "though every block of it is what was written";
                (Severity::Error, format!("{fault}, {what}"))
            }
            // Nothing says that something is wrong with them.
            ([], blocks) => {
                let what = "it is not known whether this is what was written";
                (Severity::Warning, format!("{what}: {}", named(blocks)))
            }
            (blocks, _) => {
                let what = "because this is not what was written";
                (Severity::Error, format!("{fault}, {what}: {}", named(blocks)))
            }
        };
        let blocks = [wrong, unverified].concat();
        Self { segment, log, blocks, severity, fault }
    }
}

/// Blocks, in words.
fn named(blocks: &Range<BlockNr>) -> String {
    match blocks.end.0 - blocks.start.0 {
        1 => format!("block {}", blocks.start),
        count => format!("{count} blocks from block {} on", blocks.start),
    }
}

impl Checker<'_, '_> {
    /// Reports the logs whose content is not what was written. Where no checkpoint needs any of that, it
    /// goes with its segment. `all_walked`: whether all checkpoints were.
    pub(crate) fn report_unproved(&mut self, checkpoints: &CheckpointTable, all_walked: bool) {
        let logs = std::mem::take(&mut self.unproved);
        let all_is_known = all_walked && !self.findings.has_errors();
        let mut needed: BTreeSet<BlockNr> = BTreeSet::new();
        if !logs.is_empty() && all_is_known {
            let blocks = logs.iter().flat_map(|log| &log.blocks);
            let ends: BTreeMap<BlockNr, BlockNr> = blocks.map(|it| (it.start, it.end)).collect();
            let is_in_one = |block: &BlockNr| {
                ends.range(..=*block).next_back().is_some_and(|(_, end)| block < end)
            };
            needed.extend(self.dat.blocks.iter().filter(|block| is_in_one(block)));
            self.for_all_entries(|_, _, (entry, _)| {
                let lives = entry.end == Cno::MAX || checkpoints.any_in(entry.start, entry.end);
                needed.extend(Some(entry.block).filter(|block| lives && is_in_one(block)));
            });
        }
        for Unproved { segment, log, blocks, severity, fault } in logs {
            let mut needed = blocks.into_iter().flat_map(|blocks| needed.range(blocks));
            let is_needed = !all_is_known || log == self.newest.log || needed.next().is_some();
            let place = Location::segment(segment).log(log);
            let correction = match is_needed {
                true => Correction::Accept { log },
                false => Correction::Segment { segment },
            };
            self.findings.add(severity, Rule::Log, place, || fault).corrected_by([correction]);
        }
    }

    /// Judges the blocks of metadata, read for the sake of what they say, by the checksums that their logs have
    /// of them. It costs the summaries of these logs once more. A log with such a block that is not what was
    /// written is reported, unless that is known because all content was read.
    pub(crate) fn find_changed_metadata(&mut self) {
        let mut found: Vec<_> = self.volume.found.lock().drain().map(|(_, it)| it).collect();
        found.sort_unstable_by_key(|it| it.block);
        let mut logs = std::mem::take(&mut self.logs);
        logs.sort_unstable_by_key(|log| log.start);
        let mut reader = LogReader::new(self.volume, false);
        let mut rest = &found[..];
        while let Some(ReadBlock { block, .. }) = rest.first() {
            let known = logs[..logs.partition_point(|log| log.start <= *block)].last();
            let known = known.filter(|log| *block < log.end).cloned();
            // What says which segments are in use may be wrong itself.
            let log = known.or_else(|| self.log_of(&mut reader, *block));
            let end = log.as_ref().map_or(block.plus(1), |log| log.end);
            let (these, others) = rest.split_at(rest.partition_point(|it| it.block < end));
            rest = others;
            if let Some(log) = log {
                // What cannot be read any more says nothing.
                _ = self.judge_metadata(&mut reader, log.start, these);
            }
        }
    }

    /// Judges blocks of a log by the checksums that it has of them. The target of a link is content, which stays
    /// known as damaged: that breaks no rule.
    fn judge_metadata(
        &mut self,
        reader: &mut LogReader<'_, '_>,
        log: BlockNr,
        found: &[ReadBlock],
    ) -> Result<(), LogFault> {
        let (header, _) = read_log(reader, log)?;
        let changed = reader.changed_among(log, &header, found)?;
        if changed.is_empty() {
            return Ok(());
        }
        // Older versions of fsck correct blocks and the checksum of the log, and leave those of the blocks.
        if reader.sums_agree(log, &header)? {
            self.changed_metadata.extend(changed.iter().map(|(it, sum)| (it.block, *sum)));
        }
        if self.options.read_content {
            return Ok(());
        }
        for place in changed.iter().filter_map(|(it, _)| it.target) {
            self.warning(Rule::Symlink, place, || "the target is not what was written".into());
        }
        if changed.iter().any(|(it, _)| it.target.is_none())
            && let Err(fault) = reader.verify(log, &header)
        {
            self.unproved.push(Unproved::find(reader, log, &header, fault));
        }
        Ok(())
    }

    /// The log of a block, found from the beginning of its segment on.
    fn log_of(&self, reader: &mut LogReader<'_, '_>, block: BlockNr) -> Option<Range<BlockNr>> {
        let geometry = &self.volume.geometry;
        let (mut at, mut seq) = (geometry.segment_start(geometry.segment_of(block)), None);
        while at <= block && !self.foreign.contains(&at) {
            let (header, _) = read_log(reader, at).ok()?;
            let end = at.plus(header.nblocks.into());
            if *seq.get_or_insert(header.seq) != header.seq {
                return None;
            }
            if block < end {
                return Some(at..end);
            }
            at = end;
        }
        None
    }

    /// Reads the logs of every segment in use up to its `su_nblocks`.
    pub(crate) fn read_logs(&mut self, usage: &UsageTable) {
        let mut reader = LogReader::new(self.volume, self.options.read_content);
        let mut owners = Owners::new(self.volume.geometry);
        let (mut done, all) = (0, self.blocks_in_use(usage));
        let mut heads: BTreeMap<Seq, SegmentHead> = BTreeMap::new();
        for (segment, entry) in usage.in_use() {
            self.counts.segments += 1;
            let in_use =
                u64::from(entry.su_nblocks.get()).min(self.volume.geometry.segment_blocks(segment));
            let (described, head) = self.read_segment(&mut reader, segment, in_use, usage);
            done += in_use;
            self.options.observer.observe(Step::Logs, done, all);
            owners.insert(segment, described);
            let Some((seq, next)) = head else {
                continue;
            };
            if let Some(other) = heads.insert(seq, SegmentHead { segment, next }) {
                self.error(Rule::LogChain, Location::segment(segment), || {
                    format!("sequence number {seq} is also that of segment {}", other.segment)
                })
                // What is written then has greater numbers.
                .corrected_by(
                    [segment, other.segment].map(|segment| Correction::Segment { segment }),
                );
            }
        }
        self.owners = Some(Arc::new(owners));
        self.dat_mut().used = None;
        self.check_chain(&heads);
    }

    /// Blocks in all segments in use.
    fn blocks_in_use(&self, usage: &UsageTable) -> u64 {
        let blocks = |(segment, entry): (SegNum, RawSegmentUsage)| {
            u64::from(entry.su_nblocks.get()).min(self.volume.geometry.segment_blocks(segment))
        };
        usage.in_use().map(blocks).sum()
    }

    /// Reads the logs of one segment; returns the sequence number and the next segment they name.
    fn read_segment(
        &mut self,
        reader: &mut LogReader<'_, '_>,
        segment: SegNum,
        in_use: u64,
        usage: &UsageTable,
    ) -> (SegmentOwners, Option<(Seq, BlockNr)>) {
        let mut owners = SegmentOwners::new(in_use);
        let last = self.read_on(reader, segment, &mut owners, None, usage);
        let chained = last.filter(|log| !log.is_off_chain());
        (owners, chained.map(|log| (log.seq, log.next)))
    }

    /// Reads the logs of a segment in use that are not described yet, given the last one that is; returns the
    /// last one of all.
    pub(crate) fn read_on(
        &mut self,
        reader: &mut LogReader<'_, '_>,
        segment: SegNum,
        owners: &mut SegmentOwners,
        mut previous: Option<LogHeader>,
        usage: &UsageTable,
    ) -> Option<LogHeader> {
        let blocks = owners.undescribed(self.volume.geometry.segment_start(segment));
        let (in_use, end) = (owners.in_use(), blocks.end);
        let mut pieces =
            self.pieces_at_home(reader, blocks, previous.as_ref()).into_iter().peekable();
        while let Some(piece) = pieces.next() {
            let FoundLog { at, header, files, fault } = match piece {
                Piece::Log(log) => log,
                Piece::Gap { blocks, fault } => {
                    let neighbour = previous.or(pieces.peek().and_then(Piece::header).copied());
                    owners.pass_over((blocks.end.0 - blocks.start.0) as u32);
                    let faults = vec![(Rule::Log, fault)];
                    self.undescribed.push(Undescribed { segment, blocks, faults, neighbour });
                    continue;
                }
            };
            let place = Location::segment(segment).log(at);
            let blocks = at..at.plus(header.nblocks.into());
            if blocks.end > end {
                let filled = self.filled(segment);
                let corrections = usage.in_use_with(segment, filled as u32);
                self.error(Rule::Log, place, || {
                    format!(
                        "the log of {} blocks ends beyond the {in_use} blocks in use (su_nblocks)",
                        header.nblocks
                    )
                })
                .corrected_by(corrections);
                break;
            }
            if let Some(fault) = fault {
                self.unproved.push(Unproved::find(reader, at, &header, fault));
            }
            self.counts.logs += 1;
            self.logs.push(blocks.clone());
            let mut faults = self.contradictions_in(&header, &files);
            if let Some(previous) = &previous {
                faults.extend(contradictions_of(previous, &header));
                self.check_succession(previous, &header, place);
            }
            if !faults.is_empty() && at == self.newest.log {
                // It is needed as it is until there is a newer one.
                let known = previous.and_then(|previous| self.succession(&previous, usage));
                let right = known.unwrap_or(Correction::Segment { segment });
                for (rule, fault) in faults {
                    self.error(rule, place, || fault).corrected_by([right.clone()]);
                }
            } else if !faults.is_empty() {
                // The items of a log that contradicts itself say nothing either.
                owners.pass_over(header.nblocks);
                let neighbour = previous.or(pieces.peek().and_then(Piece::header).copied());
                self.undescribed.push(Undescribed { segment, blocks, faults, neighbour });
                continue;
            }
            owners.add(&header, &files);
            previous = Some(header);
        }
        previous
    }

    /// Returns the logs and gaps of a part of a segment, given the log before it, without logs that were written
    /// elsewhere.
    fn pieces_at_home(
        &mut self,
        reader: &mut LogReader<'_, '_>,
        blocks: Range<BlockNr>,
        previous: Option<&LogHeader>,
    ) -> Vec<Piece> {
        loop {
            let pieces = self.pieces(reader, blocks.clone(), previous);
            let newest = self.newest.log;
            let suspects = suspects_among(&pieces, blocks.end).into_iter();
            let foreign: Vec<BlockNr> = suspects
                .filter(|log| log.at != newest && !self.is_at_home(reader, log))
                .map(|log| log.at)
                .collect();
            if foreign.is_empty() {
                return pieces;
            }
            self.foreign.extend(foreign);
        }
    }

    /// Whether a log is where it was written: all of it is what its summary says, or the DAT has one of its blocks
    /// there. Where the DAT has none of them, one that is what was written will do.
    pub(crate) fn is_at_home(&mut self, reader: &mut LogReader<'_, '_>, log: &FoundLog) -> bool {
        let FoundLog { at, header, files, .. } = log;
        if reader.verify(*at, header).is_ok() {
            return true;
        }
        self.load_dat_entries();
        let first = at.plus(header.summary_blocks(self.volume.block_size()));
        let blocks = (first.0..).map(BlockNr).zip(files.iter().flat_map(|file| &file.blocks));
        let mut is_elsewhere = false;
        for (block, info) in blocks {
            let entry = info.vblock().and_then(|vblock| self.dat.entry(vblock));
            match entry.filter(|entry| entry.start < entry.end) {
                Some(entry) if entry.block == block => return true,
                entry => is_elsewhere |= entry.is_some(),
            }
        }
        !is_elsewhere && reader.has_own_block(*at, header)
    }

    /// Returns the logs and gaps of a part of a segment, up to a log that ends beyond it.
    fn pieces(
        &mut self,
        reader: &mut LogReader<'_, '_>,
        Range { start: mut at, end }: Range<BlockNr>,
        previous: Option<&LogHeader>,
    ) -> Vec<Piece> {
        let (mut pieces, mut previous) = (Vec::new(), previous.copied());
        while at < end {
            let fault = match read_log(reader, at) {
                _ if self.foreign.contains(&at) => FOREIGN.to_owned(),
                Err(fault) => fault.to_string(),
                Ok((header, files)) => {
                    let start = at;
                    at = at.plus(header.nblocks.into());
                    let reads = self.options.read_content && at <= end;
                    let fault = if reads { reader.verify(start, &header).err() } else { None };
                    pieces.push(Piece::Log(FoundLog { at: start, header, files, fault }));
                    previous.get_or_insert(header);
                    continue;
                }
            };
            let newest = self.newest.log;
            let next = match at == newest {
                true => None,
                false => self.next_log(reader, at..end, previous.as_ref()),
            };
            // The newest log is there, even if its summary is lost.
            let newest = Some(newest).filter(|newest| at < *newest && *newest < end);
            let next = next.into_iter().chain(newest).min();
            let blocks = at..next.unwrap_or(end);
            at = blocks.end;
            pieces.push(Piece::Gap { blocks, fault });
        }
        pieces
    }

    /// What makes a segment one that is in use as far as its logs reach, if the block is in one of
    /// them.
    pub(crate) fn in_use_up_to(&mut self, block: BlockNr) -> Vec<Correction> {
        if !self.volume.geometry.has_block(block) {
            return Vec::new();
        }
        let segment = self.volume.geometry.segment_of(block);
        let filled = self.filled(segment);
        let end = self.volume.geometry.segment_start(segment).plus(filled);
        match block < end {
            true => self.usage.in_use_with(segment, filled as u32).collect(),
            false => Vec::new(),
        }
    }

    /// The next log of the same use of a segment after the start of one that is damaged. A copy of a
    /// log in the content of a file is none.
    fn next_log(
        &mut self,
        reader: &mut LogReader<'_, '_>,
        blocks: Range<BlockNr>,
        previous: Option<&LogHeader>,
    ) -> Option<BlockNr> {
        let used = self.used_blocks(blocks.clone()).to_vec();
        let free = (blocks.start.0 + 1..blocks.end.0).map(BlockNr);
        let mut free = free.filter(|block| used.binary_search(block).is_err());
        free.find(|block| {
            let Ok((header, _)) = read_log(reader, *block) else { return false };
            let is_same_use = previous.is_none_or(|log| log.seq == header.seq);
            let fits = block.0 + u64::from(header.nblocks) <= blocks.end.0;
            let is_candidate = is_same_use && fits && !self.foreign.contains(block);
            is_candidate && !reader.is_in_hole(*block, &header)
        })
    }

    /// Blocks from the start of a segment on that are in use: filled with logs, or up to where an entry
    /// of the DAT leads.
    pub(crate) fn used_up_to(&mut self, segment: SegNum) -> u64 {
        let geometry = self.volume.geometry;
        let start = geometry.segment_start(segment);
        let last = self.used_blocks(start..geometry.segment_end(segment)).last();
        let used = last.map_or(0, |last| last.0 + 1 - start.0);
        self.filled(segment).max(used)
    }

    /// Blocks from the start of a segment on that are filled with logs of the same use of it, as far as these
    /// count for the newest checkpoint.
    pub(crate) fn filled(&mut self, segment: SegNum) -> u64 {
        if let Some(known) = self.filled.get(&segment) {
            return *known;
        }
        let mut reader = LogReader::new(self.volume, false);
        let start = self.volume.geometry.segment_start(segment);
        let end = self.volume.geometry.segment_end(segment);
        let newest = (self.newest.header.seq, self.newest.log);
        let (mut at, mut seq) = (start, None);
        while at < end
            && let Ok((header, _)) = read_log(&mut reader, at)
            && *seq.get_or_insert(header.seq) == header.seq
            && (header.seq, at) <= newest
        {
            at = at.plus(header.nblocks.into());
        }
        self.filled.insert(segment, at.0 - start.0);
        at.0 - start.0
    }

    /// What contradicts itself in what a log says, beyond what its parser demands.
    fn contradictions_in(&self, header: &LogHeader, files: &[FileInfo]) -> Vec<(Rule, String)> {
        let mut faults = Vec::new();
        let block_size = self.volume.block_size();
        let mut of_log = |fault: String| faults.push((Rule::Log, fault));
        if header.summary_blocks(block_size) >= header.nblocks.into() {
            let nblocks = header.nblocks;
            of_log(format!("ss_nblocks is {nblocks}, but the summary takes all of these"));
        }
        // Only logs of moved blocks, which are not part of the chain, have both flags.
        let moved = header.has(GC) && header.has(LOGBGN);
        if moved && (header.has(SR) || header.has(SYNDT) || !header.has(LOGEND)) {
            of_log("a log of moved blocks must end its logical segment and be nothing else".into());
        }
        if header.has(SR) && !header.has(LOGEND) {
            of_log("a log with a super root must end its logical segment".into());
        }
        let newest = self.newest.cno;
        if header.cno > newest {
            of_log(format!("ss_cno is {}, but the newest is {newest}", header.cno));
        }
        let last = self.newest.header.seq;
        if header.seq > last && !header.is_off_chain() {
            of_log(format!("ss_seq is {}, but the newest log has {last}", header.seq));
        }
        for file in files {
            let (ino, cno) = (file.ino, file.cno);
            if cno > header.cno {
                of_log(format!("fi_cno of inode {ino} is {cno}, more than ss_cno {}", header.cno));
            }
            if file.blocks.is_empty() {
                of_log(format!("the finfo of inode {ino} has no blocks"));
            }
        }
        // An old log may name a segment that a later resize has cut off; the newest may not.
        let geometry = &self.volume.geometry;
        let next = geometry.segment_of(header.next);
        let cut_off = !geometry.has_segment(next) && header.cno == newest;
        if cut_off || geometry.segment_start(next) != header.next {
            let fault = format!("ss_next is {}, which is no start of a segment", header.next);
            faults.push((Rule::LogChain, fault));
        }
        faults
    }

    /// Returns the correction of the segment's numbers in the newest log, given the log before it there, if
    /// one of the two numbers is the same in both, and of the other only one can be right.
    fn succession(&mut self, previous: &LogHeader, usage: &UsageTable) -> Option<Correction> {
        let header = &self.newest.header;
        let geometry = &self.volume.geometry;
        let is_start = |block: BlockNr| {
            let segment = geometry.segment_of(block);
            geometry.has_segment(segment) && geometry.segment_start(segment) == block
        };
        let is_known = match (header.seq == previous.seq, header.next == previous.next) {
            (false, true) => true,
            (true, false) => {
                let waits = usage.is_waiting(geometry.segment_of(previous.next));
                is_start(previous.next) && (waits || !is_start(header.next))
            }
            _ => false,
        };
        let (log, LogHeader { seq, next, .. }) = (self.newest.log, *previous);
        self.next = is_known.then_some(next);
        is_known.then_some(Correction::Succession { log, seq, next })
    }

    /// Checks a log against the one before it in the segment.
    fn check_succession(&mut self, previous: &LogHeader, header: &LogHeader, place: Location) {
        // An I/O error can make a writer give up a logical segment.
        if header.has(LOGBGN) != previous.has(LOGEND) {
            let what = if header.has(LOGBGN) { "begins" } else { "goes on" };
            self.warning(Rule::LogChain, place, || {
                format!("a logical segment {what}, which does not fit the log before")
            });
        }
    }

    /// Whether the segment that a segment names as the next has the next sequence number, where
    /// that segment still exists.
    fn check_chain(&mut self, heads: &BTreeMap<Seq, SegmentHead>) {
        for (seq, head) in heads {
            let Some(follower) = heads.get(&seq.plus(1)) else {
                continue;
            };
            let expected = self.volume.geometry.segment_start(follower.segment);
            if head.next != expected {
                self.warning(Rule::LogChain, Location::segment(head.segment), || {
                    format!(
                        "ss_next is {}, but sequence number {} is that of segment {} at {expected}",
                        head.next,
                        seq.plus(1),
                        follower.segment
                    )
                });
            }
        }
    }
}

/// What contradicts the log before in the segment.
fn contradictions_of(previous: &LogHeader, header: &LogHeader) -> Vec<(Rule, String)> {
    let mut faults = Vec::new();
    let mut of_chain = |fault: String| faults.push((Rule::LogChain, fault));
    if (header.seq, header.next) != (previous.seq, previous.next) {
        of_chain(format!(
            "ss_seq is {} and ss_next {}, but the log before has {} and {}",
            header.seq, header.next, previous.seq, previous.next
        ));
    }
    if header.is_off_chain() != previous.is_off_chain() {
        of_chain(
            "a log of the chain and one that is not part of it are in the same segment".into(),
        );
    }
    if header.cno < previous.cno {
        of_chain(format!("ss_cno is {}, less than {} before", header.cno, previous.cno));
    }
    faults
}

pub(crate) fn read_log(
    reader: &mut LogReader<'_, '_>,
    at: BlockNr,
) -> Result<(LogHeader, Vec<FileInfo>), LogFault> {
    let header = reader.header(at)?;
    let files = reader.items(at, &header)?;
    Ok((header, files))
}

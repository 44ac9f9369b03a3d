//! Summaries that cannot be used, of logs in which something lives: what they should say. The block
//! maps and the DAT tell whose the blocks are, once all of them have been walked.
//!
//! A summary precedes the blocks that it describes, and these cannot move. So the only room for
//! summaries is where nothing lies that an entry of the DAT or a map leads to: that of the summary that
//! is damaged, at least. Where several logs in a row are damaged, there are several such places, and it
//! is searched for a way to describe everything from some of them.

use std::collections::BTreeMap;
use std::ops::Range;

use nilfs_ondisk::dat::DatEntry;
use nilfs_ondisk::summary::FINFO_SIZE;
use nilfs_ondisk::summary::{
    BlockInfo, FileInfo, GC, LOGBGN, LOGEND, LogHeader, NewLog, Placement,
};
use nilfs_ondisk::{BlockNr, BlockSize, Cno, Ino, SegNum, VBlockNr};

use crate::checker::Checker;
use crate::checkpoints::CheckpointTable;
use crate::correction::Correction;
use crate::owners::Owner;
use crate::report::{Location, Rule, Unclaimed, counted};

/// Whose blocks are of which it is only known that the DAT has them: the format reserves the number, and
/// nothing uses it.
const NOBODY: Ino = Ino(7);

/// Blocks of a segment in use that no usable summary describes.
pub(crate) struct Undescribed {
    pub(crate) segment: SegNum,
    pub(crate) blocks: Range<BlockNr>,
    /// What is wrong with the log that begins there.
    pub(crate) faults: Vec<(Rule, String)>,
    /// A log of the same use of the segment, if there is any: the one before, or else the one after.
    pub(crate) neighbour: Option<LogHeader>,
}

/// What is known of a block that a summary has to describe.
#[derive(Debug, Clone, Copy)]
enum Known {
    /// A file has it.
    Owned { owner: Owner, since: Cno },
    /// The DAT has it, and no file that was reached.
    InDat { vblock: VBlockNr, since: Cno },
}

/// A log as it should be.
struct Described {
    at: BlockNr,
    summary_blocks: u64,
    files: Vec<FileInfo>,
    /// Blocks after the summary.
    payload: u64,
}

impl Checker<'_, '_> {
    /// Reports the blocks that no summary describes, and says what should describe them. Returns those among them
    /// that are needed, and that no file has. `all_walked`: whether all checkpoints were.
    pub(crate) fn report_undescribed(
        &mut self,
        checkpoints: &CheckpointTable,
        all_walked: bool,
    ) -> BTreeMap<BlockNr, Unclaimed> {
        let mut unclaimed = BTreeMap::new();
        let gaps = std::mem::take(&mut self.undescribed);
        let known = self.known_in(&gaps);
        let is_reached = all_walked && !self.findings.has_errors();
        for gap in gaps {
            let place = Location::segment(gap.segment).log(gap.blocks.start);
            let here = known.range(gap.blocks.clone()).map(|(block, known)| (*block, *known));
            let here: BTreeMap<BlockNr, Known> = here.collect();
            let needed = |(block, known): (&BlockNr, &Known)| {
                let Known::InDat { vblock, .. } = *known else { return None };
                let DatEntry { start, end, .. } = self.dat.entry(vblock)?;
                let is_needed = end == Cno::MAX || checkpoints.any_in(start, end);
                is_needed.then_some((*block, Unclaimed { vblock, life: start..end }))
            };
            let before = unclaimed.len();
            unclaimed.extend(here.iter().filter_map(needed));
            let nobodys = (unclaimed.len() - before) as u64;
            let is_complete = nobodys == 0 || is_reached;
            let corrections = self.describing(&gap, &here, is_complete);
            let blocks = counted(nobodys, "block");
            for (rule, fault) in gap.faults {
                let message = || match is_complete {
                    true => fault,
                    false => format!("{fault}; whose {blocks} of it are cannot be told so far"),
                };
                self.error(rule, place, message).corrected_by(corrections.clone());
            }
        }
        unclaimed
    }

    /// What is known of the blocks in these places.
    fn known_in(&mut self, gaps: &[Undescribed]) -> BTreeMap<BlockNr, Known> {
        let mut known = BTreeMap::new();
        if gaps.is_empty() {
            return known;
        }
        for (block, owner) in std::mem::take(&mut self.undescribed_owners) {
            let has_history = !matches!(owner.ino, Ino::DAT | Ino::CPFILE | Ino::SUFILE);
            let entry = owner.info.vblock().and_then(|vblock| self.dat.entry(vblock));
            let since = entry.filter(|_| has_history).map_or(Cno(0), |entry| entry.start);
            known.insert(block, Known::Owned { owner, since });
        }
        let ends: BTreeMap<_, _> =
            gaps.iter().map(|gap| (gap.blocks.start, gap.blocks.end)).collect();
        self.for_all_entries(|_, vblock, (entry, _)| {
            let gap = ends.range(..=entry.block).next_back();
            if gap.is_some_and(|(_, end)| entry.block < *end) {
                let in_dat = Known::InDat { vblock, since: entry.start };
                known.entry(entry.block).or_insert(in_dat);
            }
        });
        known
    }

    fn describing(
        &self,
        gap: &Undescribed,
        known: &BTreeMap<BlockNr, Known>,
        is_complete: bool,
    ) -> Vec<Correction> {
        let geometry = &self.volume.geometry;
        let start = geometry.segment_start(gap.segment);
        let in_use = self.usage.in_use().find(|(segment, _)| *segment == gap.segment);
        let is_last = in_use
            .is_some_and(|(_, it)| gap.blocks.end.0 >= start.0 + u64::from(it.su_nblocks.get()));
        let is_idle = |known: &Known| match known {
            Known::Owned { .. } => false,
            Known::InDat { vblock, .. } => {
                self.dat.entry(*vblock).is_none_or(|entry| entry.start >= entry.end)
            }
        };
        if known.values().all(is_idle) && is_last && gap.blocks.start > start {
            // It is in use up to there.
            let blocks = gap.blocks.start.0 - start.0;
            return self.usage.in_use_with(gap.segment, blocks as u32).collect();
        }
        if gap.blocks.start == self.newest.log {
            return self.describing_newest(known, is_complete).into_iter().collect();
        }
        let Some(logs) = logs_for(gap.blocks.clone(), known, geometry.block_size) else {
            return Vec::new();
        };
        let like = gap.neighbour.as_ref().unwrap_or(&self.newest.header);
        // Alone in its segment, it need not be part of the chain: that does not lead there any more.
        let is_off_chain = gap.neighbour.is_none_or(|log| log.is_off_chain());
        let flags = LOGBGN | LOGEND | if is_off_chain { GC } else { 0 };
        let correction = |log: Described| {
            let newest = log.files.iter().map(|file| file.cno).max().unwrap_or(Cno(0));
            let cno = gap.neighbour.as_ref().map_or(newest, |log| log.cno.max(newest));
            let header = NewLog {
                flags,
                seq: like.seq,
                create: like.create,
                next: like.next,
                cno,
                summary_blocks: log.summary_blocks,
                // There is no proof of what lies there.
                block_sums: false,
            };
            let Described { at, files, payload, .. } = log;
            Correction::Summary { at, header, files, payload, is_complete }
        };
        logs.into_iter().map(correction).collect()
    }
}

impl Checker<'_, '_> {
    /// The summary of the newest log, whose header led to its super root: only its items are damaged.
    fn describing_newest(
        &self,
        known: &BTreeMap<BlockNr, Known>,
        is_complete: bool,
    ) -> Option<Correction> {
        let (at, header) = (self.newest.log, &self.newest.header);
        let super_root = at.plus(u64::from(header.nblocks) - 1);
        let block_size = self.volume.geometry.block_size;
        let [log] = &logs_for(at..super_root, known, block_size)?[..] else { return None };
        let LogHeader { flags, seq, create, next, cno, .. } = *header;
        let summary_blocks = log.summary_blocks;
        let block_sums = false;
        let header = NewLog { flags, seq, create, next, cno, summary_blocks, block_sums };
        let payload = log.payload + 1;
        let files = log.files.clone();
        Some(Correction::Summary { at, header, files, payload, is_complete })
    }
}

/// Logs that follow each other and describe all that is known of these blocks, if there are any.
fn logs_for(
    blocks: Range<BlockNr>,
    known: &BTreeMap<BlockNr, Known>,
    block_size: BlockSize,
) -> Option<Vec<Described>> {
    let is_known = |block: u64| known.contains_key(&BlockNr(block));
    let is_place =
        |block: &u64| !is_known(*block) && (*block == blocks.start.0 || is_known(*block - 1));
    let places: Vec<u64> = (blocks.start.0..blocks.end.0).filter(is_place).collect();
    // From the last place on: the end of the longest log from there after which all others fit.
    let mut ends: BTreeMap<u64, u64> = BTreeMap::new();
    for place in places.into_iter().rev() {
        let fits = |end: &u64| *end == blocks.end.0 || ends.contains_key(end);
        if let Some(end) = longest(place, blocks.end.0, known, block_size, &fits) {
            ends.insert(place, end);
        }
    }
    let mut logs = Vec::new();
    let mut at = blocks.start.0;
    while at < blocks.end.0 {
        let end = *ends.get(&at)?;
        logs.push(described(at..end, known, block_size));
        at = end;
    }
    Some(logs)
}

/// The last block before which a log can end that begins at a place.
fn longest(
    place: u64,
    end: u64,
    known: &BTreeMap<BlockNr, Known>,
    block_size: BlockSize,
    fits: &dyn Fn(&u64) -> bool,
) -> Option<u64> {
    let Some((first, _)) = known.range(BlockNr(place)..BlockNr(end)).next() else {
        // A log has two blocks at least.
        return (end - place >= 2).then_some(end);
    };
    let room = first.0 - place;
    let (mut items, mut longest) = (Items::new(block_size), None);
    for block in first.0..end {
        if block > first.0 && fits(&block) {
            longest = Some(block);
        }
        items.add(block, known);
        if items.place.blocks_with(0) > room {
            return longest;
        }
    }
    Some(end)
}

/// The log that begins and ends there.
fn described(
    blocks: Range<u64>,
    known: &BTreeMap<BlockNr, Known>,
    block_size: BlockSize,
) -> Described {
    let at = BlockNr(blocks.start);
    let first = known.range(at..BlockNr(blocks.end)).next().map(|(block, _)| block.0);
    let payload_at = first.unwrap_or(blocks.start + 1);
    let mut items = Items::new(block_size);
    if first.is_some() {
        (payload_at..blocks.end).for_each(|block| items.add(block, known));
    }
    Described {
        at,
        summary_blocks: payload_at - blocks.start,
        files: items.files,
        payload: blocks.end - payload_at,
    }
}

/// The items of a summary as they are put together, and the room that they take.
struct Items {
    place: Placement,
    files: Vec<FileInfo>,
}

impl Items {
    fn new(block_size: BlockSize) -> Self {
        Self { place: Placement::new(block_size), files: Vec::new() }
    }

    /// Adds the next block. The first one is known.
    fn add(&mut self, block: u64, known: &BTreeMap<BlockNr, Known>) {
        let (ino, cno, info) = match known.get(&BlockNr(block)) {
            Some(Known::Owned { owner, since }) => (owner.ino, *since, owner.info),
            Some(Known::InDat { vblock, since }) => match self.files.last() {
                Some(file) if file.cno == *since && file.ino != Ino::DAT => {
                    (file.ino, file.cno, self.dead(*vblock, block, known))
                }
                _ => (NOBODY, *since, BlockInfo::Node { vblocknr: *vblock }),
            },
            // What nothing leads to counts as more of the same, which takes no finfo.
            None => match self.files.last() {
                Some(file) => (file.ino, file.cno, self.dead(VBlockNr(0), block, known)),
                None => (NOBODY, Cno(0), BlockInfo::Node { vblocknr: VBlockNr(0) }),
            },
        };
        let goes_on = self.files.last().is_some_and(|file| {
            let ends_data = file.blocks.last().is_some_and(BlockInfo::is_node) && !info.is_node();
            (file.ino, file.cno) == (ino, cno) && !ends_data
        });
        if !goes_on {
            self.place.place(FINFO_SIZE);
            self.files.push(FileInfo { ino, cno, blocks: Vec::new() });
        }
        self.place.place(info.size());
        if let Some(file) = self.files.last_mut() {
            file.blocks.push(info);
        }
    }

    /// What fits after the last block and is no file's: its place in the map has another block.
    fn dead(&self, vblocknr: VBlockNr, block: u64, known: &BTreeMap<BlockNr, Known>) -> BlockInfo {
        let node = BlockInfo::Node { vblocknr };
        let Some((file, last)) = self.files.last().and_then(|it| Some((it, *it.blocks.last()?)))
        else {
            return node;
        };
        let next = known.range(BlockNr(block + 1)..).find_map(|(_, known)| match known {
            Known::Owned { owner, since } => Some((*owner, *since)),
            Known::InDat { .. } => None,
        });
        let data_follow = next.is_some_and(|(owner, since)| {
            (owner.ino, since) == (file.ino, file.cno) && !owner.info.is_node()
        });
        match last {
            BlockInfo::Data { offset, .. } if data_follow => BlockInfo::Data { vblocknr, offset },
            BlockInfo::Data { .. } | BlockInfo::Node { .. } => node,
            of_the_dat => of_the_dat,
        }
    }
}

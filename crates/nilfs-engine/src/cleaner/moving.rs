//! Moving live blocks: out of their segments into segments next to the chain of logs.

use std::collections::{BTreeSet, HashMap, HashSet};

use nilfs_ondisk::{BlockNr, FileBlock, Geometry, SegNum};

use super::Cleaning;
use super::step::{Age, Ages, StepState, VictimBlocks};
use crate::block::{Block, bytes_mut, copy_of, zeroed};
use crate::commit::{
    self, FilledSegment, MetadataChanges, MovedBlock, MovedLogs, OffChain, SegmentHead,
};
use crate::dat::Moved;
use crate::error::{Error, Result};
use crate::host::{Instant, sleep};
use crate::log::reader::{self, Proof};
use crate::log::sealed::SealedLog;
use crate::log::segment_reader::LiveBlock;

/// Blocks that are moved in one step, if nothing but their places is to change.
const RELOCATED_AT_ONCE: u64 = 8192;

/// Blocks of the shortest log: a log of one block says nothing.
pub(crate) const LEAST_LOG: u64 = 2;

/// Blocks that are read together at most.
const READ_BLOCKS: usize = 256;

/// Blocks that are written together at most while somebody waits for the device.
const PIECE_BLOCKS: usize = 16;

/// The segment that moved blocks go to, as far as it is filled.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenSegment {
    pub(super) segment: SegNum,
    /// First free block.
    block: BlockNr,
    /// Of the logs that are there.
    head: SegmentHead,
    /// When its first content was last modified (s).
    modified: u64,
}

impl OpenSegment {
    /// The segment that its logs name as the next.
    pub(super) fn names(&self) -> SegNum {
        self.head.next
    }

    /// Free blocks.
    pub(super) fn room(&self, geometry: &Geometry) -> u64 {
        geometry.segment_end(self.segment).0.saturating_sub(self.block.0)
    }
}

/// What moving has changed, to be kept if the commit succeeds.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// Segments that were taken.
    pub(super) claimed: Vec<SegNum>,
    pub(super) open: Option<OpenSegment>,
    /// How long ago the blocks in these were modified on the average, in blocks written since.
    pub(super) ages: Vec<(SegNum, u64)>,
    /// Blocks written.
    pub(super) written: u64,
}

impl Cleaning<'_> {
    /// Moves blocks into segments next to the chain of logs, in this order, and touches nothing
    /// else. Each of these segments is filled to its end before the next; the first may have other blocks
    /// already, unless `from_start` of a segment. Blocks of logs that may be damaged stay. Returns how many
    /// were moved.
    pub(crate) fn relocate(&self, blocks: &[LiveBlock], from_start: bool) -> Result<u64> {
        let mut work = self.cleaner.work.lock();
        if from_start {
            work.open = None;
        }
        let blocks = self.with_sums(blocks)?;
        let (mut relocated, mut rest) = (0, &blocks[..]);
        while !rest.is_empty() {
            let (part, others) = rest.split_at(self.filling_segments(work.open, rest));
            rest = others;
            let mut found = VictimBlocks { live: part.to_vec(), ..self.no_victims() };
            let contents = self.read_live(&mut found)?;
            let moves = self.move_blocks(&mut work, &mut found, &contents)?;
            let moved = found.changes.moved.len() as u64;
            self.finish_step(&mut work, found.changes, moves)?.ok_or(Error::NoSpace)?;
            relocated += moved;
        }
        Ok(relocated)
    }

    /// How many of these blocks, from the first on, fill segments to their ends, beginning with the open
    /// one: about as many as are moved in one step, or as there is room for, but at least a segment.
    fn filling_segments(&self, open: Option<OpenSegment>, blocks: &[LiveBlock]) -> usize {
        let geometry = self.store.geometry();
        let whole = u64::from(geometry.blocks_per_segment);
        let most = |rest, room| commit::most_in_log(geometry.block_size, rest, room);
        let mut left = self.writing.space.room_for_moving().min(RELOCATED_AT_ONCE);
        let mut count = open.map_or(0, |open| most(blocks, open.room(&geometry)));
        loop {
            let more = most(&blocks[count..], whole);
            if more == 0 || count > 0 && left < whole {
                return count;
            }
            count += more;
            left = left.saturating_sub(whole);
        }
    }

    /// Returns blocks with the checksums that their logs have of them, without those that may be damaged.
    fn with_sums(&self, blocks: &[LiveBlock]) -> Result<Vec<LiveBlock>> {
        let geometry = self.store.geometry();
        let wanted: HashSet<BlockNr> = blocks.iter().map(|it| it.block).collect();
        let segments: BTreeSet<SegNum> =
            blocks.iter().map(|it| geometry.segment_of(it.block)).collect();
        let mut sums = HashMap::with_capacity(blocks.len());
        for segment in segments {
            // Where the summaries cannot be read, nothing is known, and everything stays.
            for log in reader::logs_of(self.store, segment).unwrap_or_default() {
                let here = log.blocks(geometry.block_size).filter(|it| wanted.contains(&it.block));
                let here: Vec<_> = here.map(|it| (it.block, it.sum)).collect();
                if here.is_empty() {
                    continue;
                }
                match log.proof(self.store)? {
                    Proof::OfBlocks => sums.extend(here),
                    Proof::OfLog => sums.extend(here.into_iter().map(|(block, _)| (block, None))),
                    Proof::Missing => {}
                }
            }
        }
        let known =
            |it: &LiveBlock| sums.get(&it.block).map(|sum| LiveBlock { sum: (*sum).into(), ..*it });
        Ok(blocks.iter().filter_map(known).collect())
    }

    /// Writes blocks, of which the content is known, anew next to the chain of logs, and blocks of the
    /// DAT by the commit that follows.
    pub(crate) fn rewrite(&self, blocks: &[MovedBlock], dat_keys: Vec<FileBlock>) -> Result<()> {
        let mut work = self.cleaner.work.lock();
        let mut found = self.no_victims();
        found.changes.dat_keys = dat_keys;
        let moves = self.move_blocks(&mut work, &mut found, blocks)?;
        if !found.changes.is_empty() {
            self.finish_step(&mut work, found.changes, moves)?.ok_or(Error::NoSpace)?;
        }
        Ok(())
    }

    /// What moves without being cleaned.
    fn no_victims(&self) -> VictimBlocks {
        let now = Age { modified: self.writing.seconds(), blocks: 0 };
        let ages = Ages { of_others: now, ..Ages::default() };
        VictimBlocks { ages, ..VictimBlocks::default() }
    }

    /// Reads the blocks that must be moved. A segment with a block that cannot be read is given up;
    /// what can be read of it is moved all the same.
    pub(super) fn read_live(&self, found: &mut VictimBlocks) -> Result<Vec<MovedBlock>> {
        let mut by_address = found.live.clone();
        by_address.sort_unstable_by_key(|found| found.block);
        let mut contents = HashMap::with_capacity(by_address.len());
        let mut rest = &by_address[..];
        while let Some(first) = rest.first() {
            let follows = |(nth, found): &(usize, &LiveBlock)| {
                *nth < READ_BLOCKS && found.block == first.block.plus(*nth as u64)
            };
            let count = rest.iter().enumerate().take_while(follows).count();
            let (run, others) = rest.split_at(count);
            match self.read_blocks(first.block, count) {
                Ok(blocks) => contents.extend(run.iter().map(|found| found.block).zip(blocks)),
                Err(Error::Device { .. }) => {
                    self.read_one_by_one(run, &mut contents, &mut found.changes);
                }
                Err(error) => return Err(error),
            }
            rest = others;
        }
        let with_content = |found: &LiveBlock| {
            contents.remove(&found.block).map(|content| MovedBlock { found: *found, content })
        };
        Ok(found.live.iter().filter_map(with_content).collect())
    }

    fn read_blocks(&self, first: BlockNr, count: usize) -> Result<Vec<Block>> {
        let size = self.store.block_size().bytes();
        let mut bytes = vec![0; count * size];
        self.store.read_run(first, &mut bytes)?;
        Ok(bytes.chunks_exact(size).map(copy_of).collect())
    }

    fn read_one_by_one(
        &self,
        run: &[LiveBlock],
        contents: &mut HashMap<BlockNr, Block>,
        changes: &mut MetadataChanges,
    ) {
        for found in run {
            let mut block = zeroed(self.store.block_size());
            match self.store.read_run(found.block, bytes_mut(&mut block)) {
                Ok(()) => _ = contents.insert(found.block, block),
                Err(error) => {
                    let segment = self.store.geometry().segment_of(found.block);
                    changes.cleaned.retain(|cleaned| *cleaned != segment);
                    if !changes.bad.contains(&segment) {
                        tracing::error!("segment {segment} is given up: {error}");
                        changes.bad.push(segment);
                    }
                }
            }
        }
    }

    /// Writes the blocks next to the chain of logs, and makes them durable.
    pub(super) fn move_blocks(
        &self,
        work: &mut StepState,
        found: &mut VictimBlocks,
        blocks: &[MovedBlock],
    ) -> Result<Moves> {
        if blocks.is_empty() {
            return Ok(Moves { open: work.open, ..Moves::default() });
        }
        let mut claimed = Vec::new();
        let written = self.write_moved(work.open, &mut claimed, blocks);
        let MovedLogs { logs, moved, end } = match written {
            Ok(written) => written,
            Err(error) => {
                // What lies after its last log now is not known.
                work.open = None;
                self.give_back(&claimed);
                return Err(error);
            }
        };
        let geometry = self.store.geometry();
        let averages = average_ages(|block| geometry.segment_of(block), &found.ages, &moved);
        let modified_in = |segment| match work.open {
            Some(open) if open.segment == segment => open.modified,
            _ => averages.get(&segment).map_or(0, |age| age.modified),
        };
        found.changes.moved = moved;
        found.changes.moved.sort_unstable_by_key(|moved| moved.vblocknr);
        found.changes.filled = self.filled(&logs, modified_in);
        let last = &logs[logs.len() - 1];
        assert_eq!(last.segment, end.segment, "the last log is where the next one would begin");
        let head = SegmentHead { seq: last.seq, next: last.next };
        let (segment, block) = (end.segment, end.block);
        let open = OpenSegment { segment, block, head, modified: modified_in(segment) };
        let ages = claimed.iter().filter_map(|it| Some((*it, averages.get(it)?.blocks))).collect();
        Ok(Moves {
            claimed,
            open: Some(open).filter(|open| open.room(&geometry) >= LEAST_LOG),
            ages,
            written: logs.iter().map(SealedLog::len).sum(),
        })
    }

    /// Takes segments until the blocks fit, and writes them there.
    fn write_moved(
        &self,
        open: Option<OpenSegment>,
        claimed: &mut Vec<SegNum>,
        blocks: &[MovedBlock],
    ) -> Result<MovedLogs> {
        let written = loop {
            let segments: Vec<SegNum> =
                open.map(|open| open.segment).into_iter().chain(claimed.iter().copied()).collect();
            let place = self.off_chain(open, segments.first().copied());
            let built =
                place.and_then(|place| commit::build_moved(self.store, &place, &segments, blocks));
            match built {
                Some(built) => break built,
                None => claimed.push(self.claim_segment()?),
            }
        };
        for log in &written.logs {
            if let Err(error) = self.write_off_chain(log) {
                self.give_up(log.segment, &error);
                return Err(error);
            }
        }
        self.flush_moved()?;
        Ok(written)
    }

    /// Writes a log in small pieces. While programs are waiting for their fsyncs, each piece is
    /// made durable by itself and followed by a pause: the next fsync has to wait for one of them
    /// at most.
    fn write_off_chain(&self, log: &SealedLog) -> Result<()> {
        self.store.make_way_for(log);
        let content = log.content();
        let mut at = log.start;
        let mut syncs = self.writing.syncs();
        for piece in content.chunks(PIECE_BLOCKS) {
            let started = Instant::now();
            self.store.write_blocks(at, piece)?;
            let bytes: usize = piece.iter().map(|block| block.len()).sum();
            at = at.plus((bytes / self.store.block_size().bytes()) as u64);
            let now = self.writing.syncs();
            if now != std::mem::replace(&mut syncs, now) {
                self.flush_moved()?;
                sleep(started.elapsed());
            }
        }
        Ok(())
    }

    pub(super) fn flush_moved(&self) -> Result<()> {
        if self.writing.barrier() { self.store.flush() } else { Ok(()) }
    }

    /// Where, and under which numbers, logs are written, from the first segment on.
    fn off_chain(&self, open: Option<OpenSegment>, first: Option<SegNum>) -> Option<OffChain> {
        let log = self.writing.look();
        let start = self.store.geometry().segment_start(first?);
        Some(OffChain {
            start: open.map_or(start, |open| open.block),
            first: open.map(|open| open.head),
            seq: log.base().position.seq,
            next: log.base().position.next,
            cno: log.cno().plus(1),
            now: self.writing.seconds(),
        })
    }

    /// Takes a clean segment for moved blocks.
    fn claim_segment(&self) -> Result<SegNum> {
        let mut session = self.writing.session()?;
        if self.writing.space.room_for_moving()
            < u64::from(self.store.geometry().blocks_per_segment)
        {
            return Err(Error::NoSpace);
        }
        session.claim_segment()
    }

    /// Marks a segment that the device cannot write, so that nobody takes it again. What is in it
    /// can still be read.
    fn give_up(&self, segment: SegNum, error: &Error) {
        tracing::error!("segment {segment} is given up: {error}");
        let changes = MetadataChanges { bad: vec![segment], ..MetadataChanges::default() };
        let marked = self
            .writing
            .write_ahead_of_metadata()
            .and_then(|mut session| session.commit_metadata(&changes).map(drop));
        if let Err(error) = marked {
            tracing::error!("segment {segment} cannot be marked as bad: {error}");
        }
    }

    fn give_back(&self, claimed: &[SegNum]) {
        self.writing.lock().unclaim(claimed);
    }

    /// How far each segment is filled after its last log.
    fn filled(
        &self,
        logs: &[SealedLog],
        modified_in: impl Fn(SegNum) -> u64,
    ) -> Vec<FilledSegment> {
        let geometry = self.store.geometry();
        let mut filled: Vec<FilledSegment> = Vec::new();
        for log in logs {
            let segment = log.segment;
            let blocks = log.start.0 + log.len() - geometry.segment_start(segment).0;
            filled.retain(|filled| filled.segment != segment);
            filled.push(FilledSegment { segment, blocks, modified: modified_in(segment) });
        }
        filled
    }
}

/// How old the blocks are on the average that each segment has got.
fn average_ages(
    segment_of: impl Fn(BlockNr) -> SegNum,
    ages: &Ages,
    moved: &[Moved],
) -> HashMap<SegNum, Age> {
    let mut sums: HashMap<SegNum, (u128, u128, u128)> = HashMap::new();
    for moved in moved {
        let age = ages.of(segment_of(moved.from));
        let (modified, blocks, count) = sums.entry(segment_of(moved.to)).or_default();
        *modified += u128::from(age.modified);
        *blocks += u128::from(age.blocks);
        *count += 1;
    }
    let average = |sum: u128, count| u64::try_from(sum / count).unwrap_or(u64::MAX);
    let averages = sums.into_iter().map(|(segment, (modified, blocks, count))| {
        (segment, Age { modified: average(modified, count), blocks: average(blocks, count) })
    });
    averages.collect()
}

#[cfg(test)]
mod tests {
    use nilfs_ondisk::VBlockNr;

    use super::*;

    #[test]
    fn hot_content_is_not_taken_for_older_because_cold_content_was_moved_with_it() {
        let (hot, cold) = (Age { modified: 90, blocks: 10 }, Age { modified: 10, blocks: 900 });
        let of_victims = HashMap::from([(SegNum(1), hot), (SegNum(2), cold)]);
        let ages = Ages { of_victims, of_others: Age::default() };
        let moved =
            |from, to| Moved { vblocknr: VBlockNr(1), from: BlockNr(from), to: BlockNr(to) };
        // The first of these has blocks of hot content only, the second one of each.
        let averages = average_ages(
            |block| SegNum(block.0 / 16),
            &ages,
            &[moved(16, 65), moved(17, 66), moved(18, 67), moved(33, 81), moved(20, 80)],
        );
        let blocks = |segment| averages.get(&SegNum(segment)).map(|age| (age.modified, age.blocks));
        assert_eq!([blocks(4), blocks(5), blocks(6)], [Some((90, 10)), Some((50, 455)), None]);
    }
}

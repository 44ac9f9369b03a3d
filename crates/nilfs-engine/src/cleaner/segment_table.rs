//! How many blocks of each segment are needed, kept up to date by every commit, so that victims
//! are chosen without reading a summary. It can be made anew from the DAT at any time.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use nilfs_ondisk::dat::DatEntry;
use nilfs_ondisk::{BlockNr, Cno, Geometry, SegNum};

use super::policy::Candidate;
use super::protection::Protection;
use crate::dat::LifeEvent;

/// Live blocks by segment. A clone shares the segments until they change: counting at leisure needs
/// no lock.
#[derive(Debug, Clone)]
pub(crate) struct SegmentTable {
    geometry: Geometry,
    segments: Vec<Arc<SegmentUse>>,
    /// Blocks written so far: the clock by which content ages. Seconds would not do, because a
    /// segment does not get any emptier while nobody writes.
    clock: u64,
    /// Blocks of the newest checkpoint, in all segments.
    current: u64,
    /// Blocks of the past that `counted` keeps, in all segments.
    kept: u64,
    counted: Protection,
}

/// The blocks of one segment, by life.
#[derive(Debug, Clone, Default)]
struct SegmentUse {
    /// Blocks of the newest checkpoint.
    current: u32,
    /// Blocks of the past that something may still need: how many have lived from when to when.
    past: HashMap<(Cno, Cno), u32>,
    /// When its content was last modified, by the clock of the table.
    modified: u64,
}

/// What keeps the blocks of a volume, in blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Census {
    pub(crate) current: u64,
    /// Kept by a young checkpoint, and perhaps by snapshots too.
    pub(crate) protected: u64,
    /// The last checkpoint that needs one of these.
    pub(crate) protected_until: Option<Cno>,
    /// Kept by snapshots only.
    pub(crate) kept: u64,
    /// Kept by this one snapshot only.
    pub(crate) exclusive: HashMap<Cno, u64>,
}

impl SegmentTable {
    pub(crate) fn new(geometry: &Geometry) -> Self {
        let count = usize::try_from(geometry.nsegments).unwrap_or(usize::MAX);
        Self {
            geometry: *geometry,
            segments: vec![Arc::default(); count],
            clock: 0,
            current: 0,
            kept: 0,
            counted: Protection::of_everything(),
        }
    }

    /// Blocks that must be kept, in all segments, as of the last [`SegmentTable::count`] and every
    /// event since.
    pub(crate) fn needed(&self) -> u64 {
        self.current + self.kept
    }

    /// Lets [`SegmentTable::needed`] count what `protection` keeps.
    pub(crate) fn count(&mut self, protection: Protection) {
        let lives = self.segments.iter().flat_map(|segment| &segment.past);
        let kept = lives.filter(|((start, end), _)| protection.keeps(*start, *end));
        self.kept = kept.map(|(_, count)| u64::from(*count)).sum();
        self.counted = protection;
    }

    /// The same, but with these single checkpoints.
    pub(crate) fn count_with(&mut self, kept: &BTreeSet<Cno>) {
        self.count(Protection { from: self.counted.from, kept: kept.clone() });
    }

    /// Blocks of a segment.
    pub(crate) fn segment_blocks(&self) -> u64 {
        self.geometry.blocks_per_segment.into()
    }

    /// Starts the clock. `segments` are those in use, in the order in which they were written.
    pub(crate) fn start_clock(&mut self, segments: impl Iterator<Item = SegNum>) {
        for segment in segments {
            self.wrote(segment, self.geometry.segment_blocks(segment));
        }
    }

    /// Takes note of fresh content.
    pub(crate) fn wrote(&mut self, segment: SegNum, blocks: u64) {
        self.clock += blocks;
        self.set_modified(segment, self.clock);
    }

    /// Says when the content of a segment was last modified.
    pub(crate) fn set_modified(&mut self, segment: SegNum, clock: u64) {
        if let Some(segment) = self.segments.get_mut(segment.0 as usize) {
            Arc::make_mut(segment).modified = clock;
        }
    }

    /// When the content of a segment was last modified.
    pub(crate) fn modified(&self, segment: SegNum) -> u64 {
        self.segments.get(segment.0 as usize).map_or(0, |segment| segment.modified)
    }

    /// What the clock shows.
    pub(crate) fn clock(&self) -> u64 {
        self.clock
    }

    /// Blocks written since the content of a segment was last modified.
    pub(crate) fn age(&self, segment: SegNum) -> u64 {
        self.clock.saturating_sub(self.modified(segment))
    }

    /// Follows what has become of blocks.
    pub(crate) fn apply(&mut self, events: &[LifeEvent]) {
        for event in events {
            match event {
                LifeEvent::Add(entry) => self.add(entry),
                LifeEvent::Remove(entry) => self.remove(entry),
            }
        }
    }

    /// Counts a block with a life.
    pub(crate) fn add(&mut self, entry: &DatEntry) {
        let kept = self.counted.keeps(entry.start, entry.end);
        let Some(segment) = self.segment_mut(entry.block) else { return };
        if entry.end == Cno::MAX {
            segment.current += 1;
            self.current += 1;
        } else if entry.start < entry.end {
            *segment.past.entry((entry.start, entry.end)).or_default() += 1;
            self.kept += u64::from(kept);
        }
    }

    fn remove(&mut self, entry: &DatEntry) {
        let kept = self.counted.keeps(entry.start, entry.end);
        let Some(segment) = self.segment_mut(entry.block) else { return };
        if entry.end == Cno::MAX {
            let known = u32::from(segment.current > 0);
            segment.current -= known;
            self.current -= u64::from(known);
        } else if let Some(count) = segment.past.get_mut(&(entry.start, entry.end)) {
            *count -= 1;
            if *count == 0 {
                segment.past.remove(&(entry.start, entry.end));
            }
            self.kept -= u64::from(kept);
        }
    }

    /// A segment was cleaned.
    pub(crate) fn clear(&mut self, segment: SegNum) {
        let Some(cleared) = self.segments.get_mut(segment.0 as usize) else { return };
        let cleared = std::mem::take(cleared);
        self.uncount(&cleared);
    }

    fn uncount(&mut self, segment: &SegmentUse) {
        let kept = segment.past.iter().filter(|((start, end), _)| self.counted.keeps(*start, *end));
        let kept: u64 = kept.map(|(_, count)| u64::from(*count)).sum();
        self.kept -= kept;
        self.current -= u64::from(segment.current);
    }

    /// The number of segments has changed; none beyond the new end has a live block.
    pub(crate) fn resize(&mut self, geometry: &Geometry) {
        let count = usize::try_from(geometry.nsegments).unwrap_or(usize::MAX);
        let cut_off = self.segments.split_off(count.min(self.segments.len()));
        cut_off.iter().for_each(|segment| self.uncount(segment));
        self.segments.resize_with(count, Arc::default);
        self.geometry = *geometry;
    }

    /// Blocks of a segment that must be kept.
    pub(crate) fn live(&self, segment: SegNum, protection: &Protection) -> u64 {
        let Some(segment) = self.segments.get(segment.0 as usize) else { return 0 };
        let past = segment.past.iter().filter(|((start, end), _)| protection.keeps(*start, *end));
        u64::from(segment.current) + past.map(|(_, count)| u64::from(*count)).sum::<u64>()
    }

    /// From which checkpoint on the past can be kept so that cleaning `candidates` gives `wanted`
    /// blocks back: the lowest number for that, from `protection.from` on. What is given up first
    /// may lie here and there in segments full of what is kept. So more is given up if moving that
    /// would cost more than twice what it would if nothing but snapshots were kept, and more than a
    /// quarter of what is gained. But not where a third of all blocks is dead: the emptiest
    /// segments are at least as empty, so no more than two blocks are moved for each that is
    /// gained.
    pub(crate) fn give_up(
        &self,
        protection: &Protection,
        candidates: &[Candidate],
        wanted: u64,
    ) -> Cno {
        let per_segment = u64::from(self.geometry.blocks_per_segment);
        let mut young: Vec<(Cno, usize, u64)> = Vec::new();
        for (nth, candidate) in candidates.iter().enumerate() {
            let Some(segment) = self.segments.get(candidate.segment.0 as usize) else { continue };
            let only_young = segment.past.iter().filter(|((start, end), _)| {
                protection.keeps(*start, *end) && !protection.has_single(*start, *end)
            });
            young.extend(only_young.map(|((_, end), count)| (*end, nth, u64::from(*count))));
        }
        young.sort_unstable();
        let lives: Vec<u64> = candidates.iter().map(|candidate| candidate.live).collect();
        // What must be moved to gain what is wanted, if this many of the lives are given up.
        let cost = |count: usize| {
            let mut lives = lives.clone();
            young[..count].iter().for_each(|&(_, nth, blocks)| lives[nth] -= blocks);
            lives.sort_unstable();
            let (mut moved, mut gained) = (0, 0);
            for live in lives {
                if gained >= wanted {
                    break;
                }
                moved += live;
                gained += per_segment.saturating_sub(live);
            }
            (gained >= wanted).then_some(moved)
        };
        let Some(least) = cost(young.len()) else { return Cno::MAX };
        let acceptable = (wanted / 4).max(2 * least);
        let dead: u64 = candidates.iter().map(|candidate| candidate.gain(per_segment)).sum();
        let a_third_is_dead = |count: usize| {
            let given_up: u64 = young[..count].iter().map(|(.., blocks)| blocks).sum();
            3 * (dead + given_up) >= per_segment * candidates.len() as u64
        };
        let (mut low, mut high) = (0, young.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match cost(middle) {
                Some(moved) if moved <= acceptable || a_third_is_dead(middle) => high = middle,
                _ => low = middle + 1,
            }
        }
        let last = high.checked_sub(1).and_then(|nth| young.get(nth));
        last.map_or(protection.from, |(end, ..)| protection.from.max(*end))
    }

    /// What keeps the blocks of the whole volume. `protection.kept` are taken for snapshots.
    pub(crate) fn census(&self, protection: &Protection) -> Census {
        let mut census = Census::default();
        for segment in &self.segments {
            census.current += u64::from(segment.current);
            for (&(start, end), &count) in &segment.past {
                let count = u64::from(count);
                let mut snapshots = protection.kept.range(start..end);
                if end > protection.from {
                    census.protected += count;
                    let last = Cno(end.0 - 1);
                    census.protected_until = census.protected_until.max(Some(last));
                } else if let Some(&first) = snapshots.next() {
                    census.kept += count;
                    if snapshots.next().is_none() {
                        *census.exclusive.entry(first).or_default() += count;
                    }
                }
            }
        }
        census
    }

    /// Forgets lives that nothing needs. Only a rollback can postpone the end of one, and that of a
    /// checkpoint that is kept.
    pub(crate) fn forget_dead(&mut self, protection: &Protection) {
        for segment in &mut self.segments {
            let keeps = |(start, end): &(Cno, Cno)| protection.keeps(*start, *end);
            if !segment.past.keys().all(keeps) {
                Arc::make_mut(segment).past.retain(|life, _| keeps(life));
            }
        }
        self.count(self.counted.clone());
    }

    fn segment_mut(&mut self, block: BlockNr) -> Option<&mut SegmentUse> {
        if block.0 == 0 {
            return None;
        }
        let segment = self.geometry.segment_of(block);
        self.segments.get_mut(usize::try_from(segment.0).ok()?).map(Arc::make_mut)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use nilfs_ondisk::BlockSize;

    use super::*;

    const PER_SEGMENT: u64 = 100;

    /// A table in which each segment has these blocks: how many, and the checkpoints in which they
    /// were born and from which on they were dead.
    fn table(segments: &[&[(u64, u64, u64)]]) -> (SegmentTable, Vec<Candidate>) {
        let geometry = Geometry {
            block_size: BlockSize::DEFAULT,
            blocks_per_segment: PER_SEGMENT as u32,
            nsegments: segments.len() as u64,
            first_data_block: BlockNr(1),
            reserved_percent: 5,
            inode_size: 128,
            dat_entry_size: 32,
            checkpoint_size: 192,
            segment_usage_size: 16,
        };
        let mut table = SegmentTable::new(&geometry);
        for (nth, lives) in segments.iter().enumerate() {
            let mut block = geometry.segment_start(SegNum(nth as u64));
            for &(count, start, end) in *lives {
                for _ in 0..count {
                    table.add(&DatEntry { block, start: Cno(start), end: Cno(end) });
                    block = block.plus(1);
                }
            }
        }
        let candidate = |segment| Candidate {
            segment: SegNum(segment),
            filled: PER_SEGMENT,
            live: table.live(SegNum(segment), &young()),
            modified: 0,
            age: 0,
        };
        let candidates = (0..segments.len() as u64).map(candidate).collect();
        (table, candidates)
    }

    /// Everything from checkpoint 10 on, and a snapshot before.
    fn young() -> Protection {
        Protection { from: Cno(10), kept: BTreeSet::from([Cno(5)]) }
    }

    const NEVER: u64 = u64::MAX;

    #[test]
    fn no_more_is_given_up_than_is_wanted_and_the_oldest_first() {
        let (table, candidates) = table(&[
            &[(90, 6, 9), (9, 1, NEVER)],
            &[(100, 8, 20)],
            &[(100, 8, 30)],
            &[(100, 8, 40)],
        ]);
        let from = |wanted| table.give_up(&young(), &candidates, wanted).0;
        assert_eq!(from(50), 10, "dead blocks are enough");
        assert_eq!(from(150), 20);
        assert_eq!(from(250), 30);
        assert_eq!(from(391), 40);
        assert_eq!(from(500), NEVER, "there is not so much");
    }

    #[test]
    fn what_only_a_snapshot_keeps_is_not_given_up() {
        let (table, candidates) = table(&[&[(100, 1, 20)], &[(100, 8, 30)]]);
        assert_eq!(table.give_up(&young(), &candidates, 100), Cno(30), "a snapshot has the other");
    }

    /// The oldest dead blocks lie in segments full of live ones.
    #[test]
    fn more_is_given_up_where_moving_would_be_dear() {
        let full: &[_] = &[(10, 8, 20), (90, 8, NEVER)];
        let mut segments = vec![full; 10];
        segments.push(&[(100, 8, 30)]);
        let (table, candidates) = self::table(&segments);
        assert_eq!(table.give_up(&young(), &candidates, 80), Cno(30));
    }

    #[test]
    fn no_more_is_given_up_where_a_third_is_dead_anyway() {
        let dead_here_and_there: &[_] = &[(40, 6, 9), (60, 8, NEVER)];
        let mut segments = vec![dead_here_and_there; 9];
        segments.push(&[(100, 8, 30)]);
        let (table, candidates) = self::table(&segments);
        assert_eq!(table.give_up(&young(), &candidates, 80), Cno(10));
    }

    #[test]
    fn what_is_needed_is_counted_along() {
        let (mut table, _) = table(&[&[(50, 1, NEVER), (20, 1, 9)], &[(30, 8, 20)]]);
        table.count(young());
        assert_eq!(table.needed(), 100, "a snapshot has the twenty");
        table.count_with(&BTreeSet::new());
        assert_eq!(table.needed(), 80);
        let entry = DatEntry { block: BlockNr(100), start: Cno(8), end: Cno(20) };
        table.apply(&[LifeEvent::Remove(entry)]);
        assert_eq!(table.needed(), 79);
        table.clear(SegNum(0));
        assert_eq!(table.needed(), 29);
    }
}

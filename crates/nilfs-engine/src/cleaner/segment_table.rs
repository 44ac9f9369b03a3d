//! How many blocks of each segment are needed, kept up to date by every commit, so that victims
//! are chosen without reading a summary. It can be made anew from the DAT at any time.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use nilfs_ondisk::dat::DatEntry;
use nilfs_ondisk::{BlockNr, Cno, Geometry, SegNum};

use crate::dat::LifeEvent;
use crate::protection::Protection;

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
    /// Kept by snapshots, and perhaps by young checkpoints too.
    pub(crate) kept: u64,
    /// Kept by young checkpoints only.
    pub(crate) young: u64,
    /// The last checkpoint that needs one of these.
    pub(crate) young_until: Option<Cno>,
    /// Kept by this one snapshot and by no young checkpoint.
    pub(crate) exclusive: HashMap<Cno, u64>,
    /// Kept by this one snapshot, and by young checkpoints too.
    pub(crate) exclusive_young: HashMap<Cno, u64>,
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

    /// Protection by which [`SegmentTable::needed`] counts.
    pub(crate) fn counted(&self) -> &Protection {
        &self.counted
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

    /// Blocks of a segment that only protected checkpoints need which are no single ones: how many,
    /// and the checkpoint from which on they were dead.
    pub(super) fn only_young(
        &self,
        segment: SegNum,
        protection: &Protection,
    ) -> impl Iterator<Item = (Cno, u64)> {
        let segment = self.segments.get(segment.0 as usize);
        let past = segment.into_iter().flat_map(|segment| &segment.past);
        past.filter(|((start, end), _)| {
            protection.keeps(*start, *end) && !protection.has_single(*start, *end)
        })
        .map(|((_, end), count)| (*end, u64::from(*count)))
    }

    /// What keeps the blocks of the whole volume. `protection.kept` are taken for snapshots.
    pub(crate) fn census(&self, protection: &Protection) -> Census {
        let mut census = Census::default();
        for segment in &self.segments {
            census.current += u64::from(segment.current);
            for (&(start, end), &count) in &segment.past {
                let count = u64::from(count);
                let is_young = end > protection.from;
                let mut snapshots = protection.kept.range(start..end);
                match (snapshots.next(), snapshots.next()) {
                    (Some(&only), None) => {
                        census.kept += count;
                        let alone = match is_young {
                            true => &mut census.exclusive_young,
                            false => &mut census.exclusive,
                        };
                        *alone.entry(only).or_default() += count;
                    }
                    (Some(_), _) => census.kept += count,
                    (None, _) if is_young => {
                        census.young += count;
                        census.young_until = census.young_until.max(Some(Cno(end.0 - 1)));
                    }
                    (None, _) => {}
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
pub(super) mod tests {
    use std::collections::BTreeSet;

    use nilfs_ondisk::BlockSize;

    use super::*;

    pub(in crate::cleaner) const PER_SEGMENT: u64 = 100;
    /// When a block of the newest checkpoint dies.
    pub(in crate::cleaner) const NEVER: u64 = u64::MAX;

    /// A table in which each segment has these blocks: how many, and the checkpoints in which they
    /// were born and from which on they were dead.
    pub(in crate::cleaner) fn table(segments: &[&[(u64, u64, u64)]]) -> SegmentTable {
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
        table
    }

    /// Everything from checkpoint 10 on, and a snapshot before.
    pub(in crate::cleaner) fn young() -> Protection {
        Protection { from: Cno(10), kept: BTreeSet::from([Cno(5)]) }
    }

    #[test]
    fn what_is_needed_is_counted_along() {
        let mut table = table(&[&[(50, 1, NEVER), (20, 1, 9)], &[(30, 8, 20)]]);
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

    /// Blocks that a snapshot keeps were counted as protected while they were young, and so as blocks
    /// that a writer could take.
    #[test]
    fn what_a_snapshot_keeps_is_the_snapshots_also_while_it_is_young() {
        let table = table(&[
            &[(10, 1, NEVER), (11, 1, 9), (12, 3, 9), (13, 4, 20)],
            &[(14, 6, 20), (15, 6, 9), (16, 1, 40), (17, 20, 30)],
        ]);
        let protection = Protection { from: Cno(10), kept: [Cno(2), Cno(5), Cno(25)].into() };
        let census = table.census(&protection);
        assert_eq!(census.current, 10);
        assert_eq!(census.kept, 11 + 12 + 13 + 16 + 17);
        assert_eq!((census.young, census.young_until), (14, Some(Cno(19))));
        assert_eq!(census.exclusive, [(Cno(5), 12)].into(), "of the eleven there are two");
        assert_eq!(census.exclusive_young, [(Cno(5), 13), (Cno(25), 17)].into());
    }
}

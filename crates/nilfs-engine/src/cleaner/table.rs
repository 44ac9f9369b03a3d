//! How many blocks of each segment are needed, kept up to date by every commit, so that victims
//! are chosen without reading a summary. It can be made anew from the DAT at any time.

use std::collections::HashMap;
use std::sync::Arc;

use nilfs_ondisk::dat::DatEntry;
use nilfs_ondisk::{BlockNr, Cno, Geometry, SegNum};

use super::liveness::Protection;
use crate::dat::LifeEvent;

/// Live blocks by segment. A clone shares the segments until they change, so that who wants to count
/// at leisure can take one.
#[derive(Debug, Clone)]
pub(crate) struct SegmentTable {
    geometry: Geometry,
    segments: Vec<Arc<SegmentUse>>,
    /// Blocks written so far: the clock by which content ages. Seconds would not do, because a
    /// segment does not get any emptier while nobody writes.
    clock: u64,
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
        Self { geometry: *geometry, segments: vec![Arc::default(); count], clock: 0 }
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
        let Some(segment) = self.segment_mut(entry.block) else { return };
        if entry.end == Cno::MAX {
            segment.current += 1;
        } else if entry.start < entry.end {
            *segment.past.entry((entry.start, entry.end)).or_default() += 1;
        }
    }

    fn remove(&mut self, entry: &DatEntry) {
        let Some(segment) = self.segment_mut(entry.block) else { return };
        if entry.end == Cno::MAX {
            segment.current = segment.current.saturating_sub(1);
        } else if let Some(count) = segment.past.get_mut(&(entry.start, entry.end)) {
            *count -= 1;
            if *count == 0 {
                segment.past.remove(&(entry.start, entry.end));
            }
        }
    }

    /// A segment was cleaned.
    pub(crate) fn clear(&mut self, segment: SegNum) {
        if let Some(segment) = self.segments.get_mut(segment.0 as usize) {
            *segment = Arc::default();
        }
    }

    /// The number of segments has changed; none beyond the new end has a live block.
    pub(crate) fn resize(&mut self, geometry: &Geometry) {
        let count = usize::try_from(geometry.nsegments).unwrap_or(usize::MAX);
        self.segments.resize_with(count, Arc::default);
        self.geometry = *geometry;
    }

    /// Blocks of a segment that must be kept.
    pub(crate) fn live(&self, segment: SegNum, protection: &Protection) -> u64 {
        let Some(segment) = self.segments.get(segment.0 as usize) else { return 0 };
        let past = segment.past.iter().filter(|((start, end), _)| protection.keeps(*start, *end));
        u64::from(segment.current) + past.map(|(_, count)| u64::from(*count)).sum::<u64>()
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

    /// Forgets lives that nothing needs, and whose end nothing can postpone.
    pub(crate) fn forget_dead(&mut self, protection: &Protection) {
        for segment in &mut self.segments {
            let keeps = |(start, end): &(Cno, Cno)| protection.keeps(*start, *end);
            if !segment.past.keys().all(keeps) {
                Arc::make_mut(segment).past.retain(|life, _| keeps(life));
            }
        }
    }

    fn segment_mut(&mut self, block: BlockNr) -> Option<&mut SegmentUse> {
        if block.0 == 0 {
            return None;
        }
        let segment = self.geometry.segment_of(block);
        self.segments.get_mut(usize::try_from(segment.0).ok()?).map(Arc::make_mut)
    }
}

//! Where the space of a volume is, counted from the lives of its blocks.

use std::collections::BTreeSet;
use std::time::Duration;

use nilfs_ondisk::{Geometry, SegNum};

use super::live_blocks::LiveBlocks;
use super::options::{CleanerOptions, SnapshotUsage, Usage};
use super::segment_table::SegmentTable;
use crate::protection::Protection;
use crate::times::EffectiveTimes;
use crate::writer::space;

/// What is counted, of one moment.
pub(crate) struct SpaceUsage {
    geometry: Geometry,
    table: SegmentTable,
    /// Segments that cannot be written, by their usage entries.
    bad: BTreeSet<SegNum>,
    times: EffectiveTimes,
    protection: Protection,
    /// The protection period.
    period: Duration,
    hard_protection: bool,
    room: FreeSpace,
    /// The time (s since 1970).
    now: u64,
}

/// What is clean. All in blocks.
#[derive(Debug, Clone)]
pub(crate) struct FreeSpace {
    pub(crate) free: u64,
    /// What programs cannot fill.
    pub(crate) reserved: u64,
    /// Blocks that a mount for writing takes for unused, with those that can be reclaimed; `None`: there
    /// is no such mount.
    pub(crate) unused: Option<u64>,
    /// Segments that are clean and cannot be written, because something in them is needed.
    pub(crate) refused: Vec<SegNum>,
}

impl SpaceUsage {
    /// Takes the known lives of blocks as they are now (s since 1970).
    pub(crate) fn new(
        geometry: Geometry,
        known: &LiveBlocks,
        options: &CleanerOptions,
        room: FreeSpace,
        now: u64,
    ) -> Self {
        let period = options.protection;
        Self {
            geometry,
            table: known.table.clone(),
            bad: known.bad.clone(),
            times: known.times.clone(),
            protection: known.protection(period, now),
            period,
            hard_protection: options.keeps_hard(),
            room,
            now,
        }
    }

    /// Counts.
    pub(crate) fn count(&self) -> Usage {
        let FreeSpace { free, reserved, unused, .. } = self.room;
        let block_size = self.geometry.block_size.bytes64();
        let census = self.table.census(&self.protection);
        let until = census.young_until.and_then(|cno| self.times.of(cno, self.now));
        let total = space::total(&self.geometry);
        let needed = census.current + census.kept + census.young;
        let refused = self.unneeded_blocks(&self.room.refused);
        let bad = self.unneeded_blocks(&self.bad);
        let reclaimable = total.saturating_sub(free).saturating_sub(needed + refused + bad);
        // Where protection is soft, a writer can take what only the young keep.
        let given_up = if self.hard_protection { 0 } else { census.young };
        let unused = unused.unwrap_or(free + reclaimable + given_up);
        let alone = |cno| {
            let blocks = census.exclusive.get(cno).copied().unwrap_or(0);
            let young = census.exclusive_young.get(cno).copied().unwrap_or(0);
            let blocks = if self.hard_protection { blocks } else { blocks + young };
            SnapshotUsage { cno: *cno, blocks }
        };
        Usage {
            block_size,
            total,
            live: census.current,
            snapshots: census.kept,
            protected: census.young,
            hard_protection: self.hard_protection,
            protected_until: until.map(|time| time.saturating_add(self.period.as_secs())),
            reclaimable,
            refused,
            refused_segments: self.room.refused.len() as u64,
            bad,
            free,
            reserved: reserved.min(unused),
            available: space::available(unused, reserved, block_size),
            // Ascending, as the snapshots are.
            exclusive: self.protection.kept.iter().map(alone).collect(),
        }
    }

    /// Returns how many blocks in segments that cannot be written no checkpoint needs.
    fn unneeded_blocks<'a>(&self, segments: impl IntoIterator<Item = &'a SegNum>) -> u64 {
        let unneeded = |segment: &SegNum| {
            let needed = self.table.live(*segment, &self.protection);
            self.geometry.segment_blocks(*segment).saturating_sub(needed)
        };
        segments.into_iter().map(unneeded).sum()
    }
}

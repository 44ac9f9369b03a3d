//! Where the space of a volume is, counted from the lives of its blocks.

use std::time::Duration;

use nilfs_ondisk::{Cno, Geometry};

use super::live_blocks::LiveBlocks;
use super::options::{CleanerOptions, SnapshotUsage, Usage};
use super::protection::Protection;
use super::segment_table::SegmentTable;
use crate::fs::space;

/// What is counted, of one moment.
pub(crate) struct SpaceUsage {
    geometry: Geometry,
    table: SegmentTable,
    protection: Protection,
    /// The protection period.
    period: Duration,
    hard_protection: bool,
    room: FreeSpace,
}

/// What is clean. All in blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FreeSpace {
    pub(crate) free: u64,
    /// What programs cannot fill.
    pub(crate) reserved: u64,
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
            protection: known.protection(period, now),
            period,
            hard_protection: options.keeps_hard(),
            room,
        }
    }

    /// Counts. `time_of` says when a checkpoint was made (s).
    pub(crate) fn count(&self, time_of: impl FnOnce(Cno) -> Option<u64>) -> Usage {
        let FreeSpace { free, reserved } = self.room;
        let block_size = self.geometry.block_size.bytes64();
        let census = self.table.census(&self.protection);
        let until = census.protected_until.and_then(time_of);
        let total = space::total(&self.geometry);
        let kept = census.current + census.protected + census.kept;
        let reclaimable = total.saturating_sub(free).saturating_sub(kept);
        let given_up = if self.hard_protection { 0 } else { census.protected };
        let unused = free + reclaimable + given_up;
        // Ascending, as the snapshots are.
        let snapshots = self.protection.kept.iter();
        let alone = |cno: &Cno| SnapshotUsage {
            cno: *cno,
            blocks: census.exclusive.get(cno).copied().unwrap_or(0),
        };
        Usage {
            block_size,
            total,
            live: census.current,
            snapshots: census.kept,
            protected: census.protected,
            hard_protection: self.hard_protection,
            protected_until: until.map(|time| time.saturating_add(self.period.as_secs())),
            reclaimable,
            free,
            reserved: reserved.min(unused),
            available: space::available(unused, reserved, block_size),
            exclusive: snapshots.map(alone).collect(),
        }
    }
}

//! What follows from two statuses of a volume, or from one and the mount.

use std::time::Duration;

use nilfs_engine::Status;

/// Blocks written to the device for each block of a file that a program has written, since the
/// mount; `None` before anything was written.
pub fn amplification(status: &Status) -> Option<f64> {
    let written = status.user_blocks_written;
    (written > 0).then(|| status.blocks_written as f64 / written as f64)
}

/// The same over the life of the volume, bytes by bytes.
pub fn lifetime_amplification(status: &Status) -> Option<f64> {
    let written = status.lifetime_user_bytes;
    (written > 0).then(|| status.lifetime_written_bytes as f64 / written as f64)
}

/// When only what is kept back will be left, if the volume goes on to fill as it did from `earlier`
/// (or the mount) until `now`; `None` if it does not fill.
pub fn until_full(earlier: Option<&Status>, now: &Status) -> Option<Duration> {
    let since =
        |count: fn(&Status) -> u64| count(now).saturating_sub(earlier.map_or(0, count)) as f64;
    let taken = since(|status| status.blocks_written) / f64::from(now.geometry.blocks_per_segment);
    let filled = taken - since(|status| status.cleaner.segments_freed);
    let seconds = since(|status| status.uptime);
    if filled <= 0.0 || seconds <= 0.0 {
        return None;
    }
    let left = now.clean_segments.saturating_sub(now.kept_segments) as f64;
    Duration::try_from_secs_f64(left * seconds / filled).ok()
}

/// Bytes per second that `count`, a number of blocks, has grown by between two samples.
pub fn speed(earlier: &Status, now: &Status, seconds: f64, count: fn(&Status) -> u64) -> u64 {
    let blocks = count(now).saturating_sub(count(earlier));
    let bytes = blocks.saturating_mul(now.geometry.block_size.bytes64()) as f64;
    if seconds > 0.0 { (bytes / seconds) as u64 } else { 0 }
}

#[cfg(test)]
pub mod tests {
    use nilfs_engine::{
        BlockNr, BlockSize, CleanerOptions, CleanerState, CleanerTotals, Cno, RunProgress,
    };
    use nilfs_ondisk::Geometry;

    use super::*;

    /// A volume of 1000 segments of 100 blocks, mounted for 1000 s.
    pub fn status() -> Status {
        Status {
            state: CleanerState::Idle,
            options: CleanerOptions::default(),
            geometry: Geometry {
                block_size: BlockSize::DEFAULT,
                blocks_per_segment: 100,
                nsegments: 1000,
                first_data_block: BlockNr(1),
                reserved_percent: 5,
                inode_size: 128,
                dat_entry_size: 32,
                checkpoint_size: 192,
                segment_usage_size: 16,
            },
            cno: Cno(17),
            clean_segments: 550,
            kept_segments: 50,
            refused_segments: 0,
            cleaner: CleanerTotals { segments_freed: 40, ..CleanerTotals::default() },
            run: RunProgress::default(),
            last_step: None,
            blocks_written: 14_000,
            user_blocks_written: 7_000,
            data_blocks: 6_000,
            metadata_blocks: 4_000,
            data_sync_blocks: 2_000,
            cache_hits: 90,
            cache_misses: 10,
            lifetime_user_bytes: 100_000_000,
            lifetime_written_bytes: 150_000_000,
            lifetime_segments_freed: 50,
            uptime: 1000,
            dirty_bytes: 0,
            stopped: None,
            of_the_past: false,
        }
    }

    #[test]
    fn a_volume_is_full_when_all_but_the_reserve_is_taken() {
        // 140 segments taken, 40 given back in 1000 s; 500 are left.
        assert_eq!(until_full(None, &status()), Some(Duration::from_secs(5000)));
    }

    #[test]
    fn a_volume_that_is_cleaned_as_fast_as_it_is_written_does_not_fill() {
        let mut cleaned = status();
        cleaned.cleaner.segments_freed = 140;
        assert_eq!(until_full(None, &cleaned), None);
        let mut resting = status();
        resting.uptime += 60;
        assert_eq!(until_full(Some(&status()), &resting), None);
    }

    #[test]
    fn amplification_needs_something_written() {
        assert_eq!(amplification(&status()), Some(2.0));
        assert_eq!(amplification(&Status { user_blocks_written: 0, ..status() }), None);
        assert_eq!(lifetime_amplification(&status()), Some(1.5));
        assert_eq!(lifetime_amplification(&Status { lifetime_user_bytes: 0, ..status() }), None);
    }
}

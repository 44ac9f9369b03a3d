//! How the cleaner is to behave, and what it says of itself. No mechanism here.

use std::time::Duration;

use nilfs_ondisk::{Cno, Geometry};
use serde::{Deserialize, Serialize};

/// Which segments are cleaned first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// The one that was written longest ago, as nilfs_cleanerd does.
    Timestamp,
    /// The one with the fewest live blocks.
    Greedy,
    /// The one with the best ratio of what is gained, times its age, to what must be moved.
    #[default]
    CostBenefit,
}

/// A number of segments, or a share of all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Amount {
    /// A number of segments, or of blocks of a segment.
    Count(u64),
    /// Hundredths of all.
    Percent(u8),
    /// As many as have this many bytes.
    Bytes(u64),
}

impl Amount {
    /// The number that this is of `all`, rounded up, if each has `size` bytes.
    #[must_use]
    pub fn of(self, all: u64, size: u64) -> u64 {
        match self {
            Self::Count(count) => count,
            Self::Percent(percent) => all.saturating_mul(percent.into()).div_ceil(100),
            Self::Bytes(bytes) => bytes.div_ceil(size),
        }
    }
}

/// The cleaner's settings. Their meanings are those of `nilfs_cleanerd.conf` (docs/cleaning.md).
/// There will be more fields: take those that you do not name from `CleanerOptions::default()`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CleanerOptions {
    /// Whether it runs by itself at all.
    pub enabled: bool,
    /// Which segments come first.
    pub policy: Policy,
    /// Checkpoints that are younger are kept, as long as there is room.
    pub protection: Duration,
    /// They are kept even if a writer has to be refused for that.
    pub hard_protection: bool,
    /// Below this many clean segments besides the reserve, cleaning may no longer wait for an idle
    /// moment. On a volume that is so full that they would be most of what is not in use, a quarter
    /// of that will do: the longer blocks can die before their segment is cleaned, the fewer are
    /// moved.
    pub min_clean: Amount,
    /// Above this many clean segments besides the reserve, there is nothing to do.
    pub max_clean: Amount,
    /// How often an idle cleaner looks whether there is something to do.
    pub check_interval: Duration,
    /// Victims of one step, as far as there are room and memory for what must be moved. Blocks of
    /// the DAT that the moves change are written once in a step, so a large one is cheaper.
    pub segments_per_step: u32,
    /// The same while clean segments are few.
    pub urgent_segments_per_step: u32,
    /// Pause between two steps while there are enough clean segments.
    pub step_interval: Duration,
    /// The same while clean segments are few.
    pub urgent_step_interval: Duration,
    /// Segments with fewer reclaimable blocks are left alone.
    pub min_reclaimable: Amount,
    /// The same while clean segments are few.
    pub urgent_min_reclaimable: Amount,
}

impl CleanerOptions {
    /// Whether any checkpoint besides snapshots is kept although there is no room.
    #[must_use]
    pub fn keeps_hard(&self) -> bool {
        self.hard_protection && !self.protection.is_zero()
    }
}

impl Default for CleanerOptions {
    fn default() -> Self {
        Self {
            enabled: true,
            policy: Policy::default(),
            protection: Duration::from_secs(3600),
            hard_protection: false,
            min_clean: Amount::Percent(10),
            max_clean: Amount::Percent(20),
            check_interval: Duration::from_secs(10),
            segments_per_step: 64,
            urgent_segments_per_step: 64,
            step_interval: Duration::from_millis(100),
            urgent_step_interval: Duration::ZERO,
            min_reclaimable: Amount::Percent(10),
            urgent_min_reclaimable: Amount::Percent(5),
        }
    }
}

/// What the cleaner is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CleanerState {
    /// There is nothing to do.
    Idle,
    /// It is cleaning.
    Running,
    /// Somebody has asked it to pause.
    Suspended,
    /// Another process reads the volume, such as a mount of a past checkpoint: what is cleaned
    /// could not be written again.
    HeldUp,
    /// The volume cannot be written, or the mount has no cleaner.
    Off,
}

/// What somebody asks of the cleaner.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CleanerOrder {
    /// Clean now, without waiting for an idle moment, until `until` of the segments are clean or
    /// nothing more can be reclaimed.
    Run(ManualRun),
    /// End the run that was asked for.
    Stop,
    /// Do nothing until told to resume.
    Suspend,
    /// Go on.
    Resume,
    /// Take over these settings.
    Configure(CleanerOptions),
}

/// A run of the cleaner that somebody asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ManualRun {
    /// Ends when this many segments are clean; `None`: when nothing more can be reclaimed.
    pub until: Option<Amount>,
    /// Instead of the protection period of the settings.
    pub protection: Option<Duration>,
    /// Instead of the settings' least number of reclaimable blocks.
    pub min_reclaimable: Option<Amount>,
    /// Not faster than this.
    pub speed: Option<Speed>,
}

/// How fast a run goes at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Speed {
    /// Segments of a step.
    pub segments: u32,
    /// The time between two steps.
    pub pause: Duration,
}

/// How far a run has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunProgress {
    /// Whether it goes on.
    pub running: bool,
    /// Segments that were worth cleaning when the run began.
    pub candidates: u64,
    /// Segments cleaned since.
    pub cleaned: u64,
}

/// What the cleaner has done since the mount.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CleanerTotals {
    /// Steps.
    pub steps: u64,
    /// Segments that became clean.
    pub segments_freed: u64,
    /// Live blocks that were moved.
    pub blocks_moved: u64,
    /// Blocks that its logs took, summaries included.
    pub blocks_written: u64,
    /// Checkpoints that were given up because a block of theirs was reclaimed.
    pub checkpoints_deleted: u64,
    /// Segments that could not be cleaned because they are damaged.
    pub segments_skipped: u64,
}

/// The state of a mounted volume, for people who watch it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// What the cleaner is doing.
    pub state: CleanerState,
    /// Settings in force.
    pub options: CleanerOptions,
    /// Layout of the volume.
    pub geometry: Geometry,
    /// The newest checkpoint.
    pub cno: Cno,
    /// Segments by state.
    pub clean_segments: u64,
    /// Segments that are kept back for deleting and cleaning.
    pub kept_segments: u64,
    /// Segments that are not written, although their usage entries call them clean, because something in
    /// them is needed: those of which this is known. They are not among `clean_segments`.
    #[serde(default)]
    pub refused_segments: u64,
    /// Totals of the cleaner.
    pub cleaner: CleanerTotals,
    /// The run that was asked for last.
    pub run: RunProgress,
    /// When the last step ended (s since 1970).
    pub last_step: Option<u64>,
    /// Blocks in all logs since the mount, the cleaner's included.
    pub blocks_written: u64,
    /// Blocks of user files in them that programs had changed.
    pub user_blocks_written: u64,
    /// Blocks since the mount, by what they are: data of user files in checkpoints, everything else
    /// in checkpoints, and data-sync logs. [`CleanerTotals::blocks_written`] is the rest.
    pub data_blocks: u64,
    /// See `data_blocks`.
    pub metadata_blocks: u64,
    /// See `data_blocks`.
    pub data_sync_blocks: u64,
    /// Metadata blocks that were wanted and in memory, since the mount.
    pub cache_hits: u64,
    /// Metadata blocks that were wanted and had to be read.
    pub cache_misses: u64,
    /// Bytes of user files that programs have changed and logs have taken, over the volume's life.
    pub lifetime_user_bytes: u64,
    /// Bytes of all logs over the volume's life.
    pub lifetime_written_bytes: u64,
    /// Segments that the cleaner has freed over the volume's life.
    pub lifetime_segments_freed: u64,
    /// Seconds since the mount.
    pub uptime: u64,
    /// Changed bytes in memory.
    pub dirty_bytes: u64,
    /// The error after which nothing is written any more, and what that has cost.
    pub stopped: Option<Loss>,
    /// `cno` was asked for at the mount, and is not the newest checkpoint.
    pub of_the_past: bool,
}

/// What is lost when nothing can be written any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// The error.
    pub reason: String,
    /// Everything that was changed before this moment is on the device (s since 1970).
    pub since: u64,
    /// How many files have changed since, at most.
    pub files: u64,
    /// How many bytes of theirs, at most.
    pub bytes: u64,
}

/// Where the space of a volume is. All in blocks, of the moment of the newest checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Usage {
    /// Bytes of a block.
    pub block_size: u64,
    /// All that segments hold.
    pub total: u64,
    /// Blocks of the newest checkpoint, metadata included.
    pub live: u64,
    /// Blocks that snapshots keep, and perhaps checkpoints inside the protection period too.
    pub snapshots: u64,
    /// Blocks that only checkpoints inside the protection period keep.
    pub protected: u64,
    /// They stay even if a writer has to be refused for that; otherwise they count as available.
    pub hard_protection: bool,
    /// When the last of them can be reclaimed (s since 1970).
    pub protected_until: Option<u64>,
    /// Blocks that the cleaner can reclaim at once.
    pub reclaimable: u64,
    /// Blocks that no checkpoint needs, in [refused segments](Status::refused_segments).
    #[serde(default)]
    pub refused: u64,
    /// Number of refused segments: as many as [`Status::refused_segments`] says from then on.
    #[serde(default)]
    pub refused_segments: u64,
    /// Blocks that no checkpoint needs, in segments that are marked with an error and never used again.
    #[serde(default)]
    pub bad: u64,
    /// Blocks of clean segments and of the rest of the current one.
    pub free: u64,
    /// Of free and reclaimable blocks, and of those that are protected unless that is hard, those
    /// that are kept back.
    pub reserved: u64,
    /// Of the same, those that data of files can take, with what was changed since the newest checkpoint
    /// taken into account.
    pub available: u64,
    /// What deleting each snapshot alone would free.
    pub exclusive: Vec<SnapshotUsage>,
}

/// What one snapshot alone keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SnapshotUsage {
    /// Its checkpoint.
    pub cno: Cno,
    /// Blocks that no other snapshot has, and, where protection is hard, no checkpoint inside its period.
    pub blocks: u64,
}

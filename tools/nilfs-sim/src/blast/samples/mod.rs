//! The volumes that are damaged: small ones with something of everything, and larger ones that have lived.
//!
//! ```text
//! blank ──► Writer ── changes ──► lives, syncs ──► Lived ──► Sample
//! ```

mod blank;
mod changes;
mod lived;
mod lived_in;
mod small_lives;
mod syncs;
mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::{Amount, CleanerOptions, Cno, Filesystem, MountOptions};
use nilfs_ondisk::BlockNr;

use self::lived::Lived;
use self::writer::Writer;
use super::blocks::{Block, in_use};
use super::picture::Picture;
use crate::clock::{EPOCH, ThreadClock};

/// How a volume was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Left {
    /// Unmounted.
    Clean,
    /// Without power: with checkpoints after the one that the superblocks name, and sync logs after the
    /// newest.
    Crashed,
    /// As [`Left::Crashed`], with large segments and many sync logs after the newest checkpoint, in its segment
    /// and the next.
    Synced,
    /// Without power, soon after it was made: the superblocks name the empty checkpoint.
    Fresh,
    /// Made and filled by Linux, and unmounted.
    Linux,
    /// As [`Left::Linux`], then mounted here, written, and without power as [`Left::Crashed`].
    LinuxThenCrashed,
    /// Unmounted, after a longer life: long names, directories below directories, files with maps of more
    /// than one level, links, snapshots, and a past of all that can be done to files.
    LivedIn,
    /// As [`Left::LivedIn`], but without power, after syncs of all kinds.
    LivedInCrashed,
    /// As [`Left::LivedIn`], and no block can be written any more: full, cleaned, and full again.
    Full,
}

/// Name of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Which {
    /// How it was left.
    pub left: Left,
    /// Bytes of its blocks.
    pub block_bytes: u32,
}

impl Which {
    /// All there are.
    pub const ALL: [Self; 16] = [
        Self { left: Left::Clean, block_bytes: 4096 },
        Self { left: Left::Crashed, block_bytes: 4096 },
        Self { left: Left::Clean, block_bytes: 1024 },
        Self { left: Left::Crashed, block_bytes: 1024 },
        Self { left: Left::Synced, block_bytes: 4096 },
        Self { left: Left::Synced, block_bytes: 1024 },
        Self { left: Left::Fresh, block_bytes: 1024 },
        Self { left: Left::Linux, block_bytes: 4096 },
        Self { left: Left::LinuxThenCrashed, block_bytes: 4096 },
        Self { left: Left::Linux, block_bytes: 1024 },
        Self { left: Left::LinuxThenCrashed, block_bytes: 1024 },
        Self { left: Left::LivedIn, block_bytes: 4096 },
        Self { left: Left::LivedInCrashed, block_bytes: 4096 },
        Self { left: Left::LivedIn, block_bytes: 1024 },
        Self { left: Left::LivedInCrashed, block_bytes: 1024 },
        Self { left: Left::Full, block_bytes: 4096 },
    ];

    /// Makes the volume, the same each time.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn make(self, seed: u64) -> Result<Sample, String> {
        ThreadClock::set(EPOCH);
        let lived = self.live(seed)?;
        let former = lived.former(self.block_bytes as usize);
        let unflushed = lived.unflushed(self.block_bytes.into());
        let written = lived.written(self.block_bytes.into());
        let content = lived.content();
        let picture = look(&content)?;
        let blocks = in_use(&content, &picture, &lived.synced)?;
        let device = MemoryDevice::from(content.clone());
        let report = nilfs_check::check(&device, &Default::default());
        let report = report.map_err(|error| error.to_string())?;
        if !report.is_consistent() {
            return Err(format!("the volume is not sound: {report}"));
        }
        let (newest, newest_log) = (report.newest, report.newest_log.block);
        let which = self;
        Ok(Sample {
            which,
            content,
            former,
            picture,
            newest,
            newest_log,
            blocks,
            unflushed,
            written,
        })
    }

    fn live(self, seed: u64) -> Result<Lived, String> {
        if self.left == Left::Linux {
            return Ok(Lived::without_syncs(blank::filled_by_linux(self.block_bytes)?, Vec::new()));
        }
        let start = match self.left {
            Left::LinuxThenCrashed => blank::filled_by_linux(self.block_bytes)?,
            _ => blank::formatted(self),
        };
        let writer = Writer::begin(self, seed, start)?;
        match self.left {
            Left::Fresh => writer.begin_to_live(),
            Left::Linux | Left::LinuxThenCrashed => writer.live_briefly(),
            Left::Clean | Left::Crashed | Left::Synced => writer.live(self.left),
            Left::LivedIn => writer.live_long(),
            Left::LivedInCrashed => writer.live_long_and_crash(),
            Left::Full => writer.live_until_full(),
        }
    }
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left = match self.left {
            Left::Clean => "clean",
            Left::Crashed => "crashed",
            Left::Synced => "synced",
            Left::Fresh => "fresh",
            Left::Linux => "linux",
            Left::LinuxThenCrashed => "linux-crashed",
            Left::LivedIn => "lived-in",
            Left::LivedInCrashed => "lived-in-crashed",
            Left::Full => "full",
        };
        f.pad(&format!("{left}-{}k", self.block_bytes / 1024))
    }
}

impl FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(|which| which.to_string()).join(", ");
        let found = Self::ALL.into_iter().find(|which| which.to_string() == text);
        found.ok_or_else(|| format!("{text} is none of {}", names()))
    }
}

/// A volume before it is damaged.
pub struct Sample {
    /// Its name.
    pub which: Which,
    /// Content of the device.
    pub content: Vec<u8>,
    /// Content of each block before it was written last.
    pub former: Vec<u8>,
    /// Its files, as a mount shows them.
    pub picture: Picture,
    /// The newest checkpoint.
    pub newest: Cno,
    /// Where the log of that begins.
    pub newest_log: BlockNr,
    /// Its blocks in use, by their numbers.
    pub blocks: Vec<Block>,
    /// Numbers of blocks that were written after the last flush.
    pub unflushed: BTreeSet<u64>,
    /// When blocks were written last: the number of the write, and of the block.
    pub written: BTreeMap<u64, (usize, u64)>,
}

impl Sample {
    /// The bytes of a block.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.which.block_bytes.into()
    }
}

/// Files that a mount shows which only looks: it must show those of a mount that writes.
fn look(content: &[u8]) -> Result<Picture, String> {
    let device = || -> Arc<dyn Device> { Arc::new(MemoryDevice::from(content.to_vec())) };
    let fs = Filesystem::mount(device(), options()).map_err(|error| error.to_string())?;
    let written = Picture::take(&*fs);
    let read = nilfs_engine::ReadOnlyVolume::mount(device(), Default::default());
    let read = Picture::take(&read.map_err(|error| error.to_string())?);
    match written.difference(&read) {
        None => Ok(written),
        Some(what) => Err(format!("a read-only mount shows {what} otherwise")),
    }
}

/// How volumes are mounted to be written.
#[must_use]
pub fn options() -> MountOptions {
    MountOptions {
        commit_interval: None,
        clock: Arc::new(ThreadClock),
        cleaner: CleanerOptions {
            protection: Duration::ZERO,
            step_interval: Duration::ZERO,
            max_clean: Amount::Percent(100),
            ..CleanerOptions::default()
        },
        ..MountOptions::default()
    }
}

//! The consistency checker: checks a volume by the rules of docs/format.md §15.
//!
//! It shares nothing with the engine but the parsers of `nilfs-ondisk` and the device: what the
//! engine believes about trees, logs and liveness is not known here, so that the checker does not
//! repeat the mistakes of the accused. It never writes.
//!
//! One pass, in the order in which each thing gives the ground for the next:
//!
//! ```text
//! superblocks → newest super root → bitmaps of the DAT → sufile → all logs (who owns each block)
//!     → entries of the DAT → cpfile → trees of the checkpoints, newest first → leaks
//!     → what damaged summaries should say
//! ```
//!
//! A virtual block never changes: the same number in two checkpoints is the same block. So the
//! checker goes from each checkpoint to the next older one by what differs (`difference.rs`): other
//! blocks of the ifile, in them other inodes, and of directories other blocks and the names in them.
//! What is known of inodes and names is brought up to date and judged again only there, so a
//! checkpoint costs what it does not share with its neighbour. That a block lives long enough is
//! asked when it is met first, which is in the newest checkpoint that has it, and that it is old
//! enough when it is met last. Memory is proportional to what is on the volume (docs/checking.md says
//! how much), never to what a damaged field claims.
//!
//! One thread judges, so that findings come in one order. Before it comes to a piece of the newest
//! checkpoint, another core has looked at that, which is enough where nothing is to be said
//! (`pieces.rs`). One more thread has the system read what will be asked for next (`ahead.rs`).

mod ahead;
mod allocation;
mod beyond;
mod bits;
mod block_map;
mod checker;
mod checkpoints;
mod cores;
mod correction;
mod dat;
mod difference;
mod directory;
mod files;
mod ifile;
mod inode;
mod log;
mod namespace;
mod owners;
mod pieces;
mod progress;
mod reached;
mod recovery;
mod report;
mod roll_forward;
mod segment_usage;
mod segments;
mod short_usage;
mod stale_summaries;
mod summaries;
mod superblocks;
mod volume;
mod xattr_file;

use std::fmt;
use std::io;

use nilfs_device::Device;
use nilfs_ondisk::superblock::LogCursor;
use nilfs_ondisk::{BlockNr, ByteCount, Cno, FormatError};
use thiserror::Error;

use crate::checker::Checker;
use crate::report::Findings;
use crate::volume::Volume;

pub use correction::{Correction, Holder, Part, Position, TypeClaim};
pub use progress::{Observer, Step};
pub use report::{Counts, Finding, Location, PastCheckpoint, Report, Rule, Severity, Unclaimed};

/// Which checkpoints are walked. The newest always is, and the entries of all are checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Checkpoints {
    /// Every one.
    All,
    /// The newest and those named, where they exist.
    List(Vec<Cno>),
}

/// How thoroughly to check.
#[derive(Debug, Clone)]
pub struct Options {
    /// Which checkpoints are walked.
    pub checkpoints: Checkpoints,
    /// Whether the content of files is read as well: the checksum over every log, which covers all
    /// blocks in use, and what lies beyond the ends of files.
    pub read_content: bool,
    /// Findings kept per rule and severity; further ones are only counted.
    pub findings_per_rule: usize,
    /// Blocks that lived in this checkpoint or later are counted as protected.
    pub protected_from: Cno,
    /// The newest log with a super root, as a process says that writes to the volume meanwhile and
    /// makes no segment clean. What is written after it is not judged, nor is what may lag until the
    /// volume is closed: the superblocks, and files that were deleted and are open. `None`: nobody
    /// writes, and the newest log is the one that a mount would find.
    pub newest: Option<LogCursor>,
    /// What else is on the device. The checker does not look for it: it knows one format.
    pub foreign: Vec<Foreign>,
    /// How many threads look at the volume. What is found does not depend on it.
    pub threads: usize,
    /// Who wants to know how far it is.
    pub observer: Observer,
}

/// Something on a device that is not of the volume: another file system, a partition table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    /// What it is, in words.
    pub what: String,
    /// Where it is recognised, in bytes from the start of the device.
    pub offset: u64,
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.what, self.offset)
    }
}

impl Default for Options {
    /// Everything, on all cores.
    fn default() -> Self {
        Self {
            checkpoints: Checkpoints::All,
            read_content: true,
            findings_per_rule: 20,
            protected_from: Cno::MAX,
            newest: None,
            foreign: Vec::new(),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            observer: Observer::default(),
        }
    }
}

/// Why a volume could not be checked at all.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The device failed.
    #[error("the device cannot be read: {0}")]
    Device(#[from] io::Error),
    /// The device is smaller than any volume.
    #[error("{} is too small for a volume", ByteCount(*bytes))]
    DeviceTooSmall {
        /// Its size.
        bytes: u64,
    },
    /// A superblock is not valid, or needs features that are not known here.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Neither copy of the superblock is valid.
    #[error("no valid superblock: the primary: {primary}; the secondary: {secondary}")]
    NoSuperblock {
        /// What is wrong with the primary.
        primary: Box<CheckError>,
        /// What is wrong with the secondary.
        secondary: Box<CheckError>,
    },
    /// No superblock leads to a checkpoint.
    #[error("no super root can be found from the superblocks: {fault}")]
    NoSuperRoot {
        /// What is wrong with the log where the search began.
        fault: String,
    },
    /// The log that was said to be the newest is not there.
    #[error("the newest log, at block {block}, cannot be used: {fault}")]
    NewestLog {
        /// The first block of the log.
        block: BlockNr,
        /// What is wrong with it.
        fault: String,
    },
}

/// Checks the volume on a device, at its newest super root, without writing. Somebody else may write
/// meanwhile if the options name that super root.
///
/// # Errors
/// See [`CheckError`]. Damage after the super root is not an error but a finding of the report.
pub fn check(device: &dyn Device, options: &Options) -> Result<Report, CheckError> {
    let mut findings = Findings::new(options.findings_per_rule);
    let superblocks = superblocks::choose(device, &options.foreign, &mut findings)?;
    let winner = superblocks.winner;
    let volume = Volume::new(device, winner.geometry(), winner.crc_seed());
    let newest = match options.newest {
        Some(cursor) => recovery::newest_at(&volume, cursor)?,
        None => recovery::find_newest(&volume, &superblocks, &mut findings)?,
    };
    let checker = Checker::new(&volume, &winner, &newest, findings, options);
    Ok(checker.run())
}

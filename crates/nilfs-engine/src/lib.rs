//! The NILFS2 engine: volumes, checkpoints, files.
//!
//! [`Volume`] looks at a volume without mounting it. A [`Tree`] is a checkpoint: its files,
//! read-only, for as long as somebody looks at them. [`Filesystem`] is a volume that is mounted to
//! be written: the newest checkpoint with the changes since on top. [`ReadOnlyVolume`] is one that
//! is mounted to be read. ARCHITECTURE.md has the map.
//!
//! The engine knows nothing of FUSE, of command lines or of terminals.

mod block;
mod bmap;
mod cache;
mod checkpoints;
mod cleaner;
mod commit;
mod dat;
mod error;
mod files;
#[cfg(test)]
mod fixtures;
pub mod fs;
mod host;
mod log;
mod memo;
pub mod metadata_image;
mod metafile;
pub mod mkfs;
mod overlay;
mod palloc;
mod protection;
mod read_only;
mod recovery;
pub mod rescue;
pub mod scan;
pub mod scrub;
mod scrub_device;
mod segments;
mod store;
mod superblocks;
mod times;
pub mod tree;
mod types;
mod volume;
mod writer;
mod xattr_file;

pub use checkpoints::{CheckpointInfo, CheckpointTotals, newest_below};
pub use cleaner::options::{
    Amount, CleanerOptions, CleanerOrder, CleanerState, CleanerTotals, Loss, ManualRun, Policy,
    RunProgress, SnapshotUsage, Speed, Status, Usage,
};
pub use error::{Error, Result};
pub use files::Files;
pub use fs::admin::DeletedCheckpoints;
pub use fs::defragment::Defragmented;
pub use fs::purge::{Holders, Moved, PurgeOptions, PurgeProgress, Purged, Wiping};
pub use fs::replay::SyncedContent;
pub use fs::resize::ResizeProgress;
pub use fs::rollback::{RollbackProgress, RolledBack, Stale};
pub use fs::snapshots::SnapshotChange;
pub use fs::{
    Background, Entry, Filesystem, FsyncBy, Inode, InodeRef, MountOptions, OnError, Order,
};
pub use host::{Clock, SystemClock, Timestamp, without_waiting};
#[cfg(feature = "shuttle")]
pub use host::{sleep, world};
pub use log::reader::Log;
pub use nilfs_ondisk::inode::{DeviceCode, FileType};
pub use nilfs_ondisk::notes::{MadeBy, Note, NoteText, SnapshotName};
pub use nilfs_ondisk::{BlockNr, BlockSize, Cno, Ino, SegNum};
pub use read_only::{ReadOnlyOptions, ReadOnlyVolume};
pub use recovery::RecoveryPlan;
pub use scrub_device::scrub_device;
pub use store::Verify;
pub use superblocks::Superblocks;
pub use times::{EffectiveTimes, Times};
pub use tree::{Checkpoints, Tree};
pub use types::{Attr, DirEntry, NewInode, RenameMode, Seek, SetAttr, SetTime, StatFs};
pub use volume::{SegmentInfo, SegmentLife, Volume};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! How a volume is mounted to be written.

use std::sync::Arc;
use std::time::Duration;

use nilfs_ondisk::ByteCount;

use crate::cleaner::options::CleanerOptions;
use crate::host::{Clock, SystemClock};
use crate::store::{FLASH_PAGE, Verify};
pub use crate::writer::OnError;

/// Extent of what a sync of one file makes durable (mount option `order`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// That file, at least. An overwrite can become durable before older changes of other files,
    /// and nothing is written for a file that has not changed.
    #[default]
    Relaxed,
    /// Every change on the volume that came before, in a checkpoint.
    Strict,
}

/// How a volume is mounted to be written. There will be more fields: take those that you do not
/// name from `MountOptions::default()`.
#[derive(Clone)]
pub struct MountOptions {
    /// See [`Order`].
    pub order: Order,
    /// See [`FsyncBy`].
    pub fsync: FsyncBy,
    /// See [`OnError`].
    pub on_error: OnError,
    /// See [`Verify`].
    pub verify: Verify,
    /// Tell the device about segments that became free.
    pub discard: bool,
    /// Flush the device where durability asks for it. Without it a power cut can lose everything.
    pub barrier: bool,
    /// Memory for changes that are not committed yet, in bytes.
    pub dirty_limit: u64,
    /// Memory for what can be read again, in bytes: blocks of metadata, inodes without a reference, and where the names of directories are.
    pub cache_limit: u64,
    /// Time from a change to its checkpoint; the volume's own setting, or 5 s, if `None`.
    pub commit_interval: Option<Duration>,
    /// Bytes that flash programs at once: a log of an fsync ends where they do.
    pub flash_page: ByteCount,
    /// Give up what was fsynced last if it cannot be rolled forward, instead of refusing to mount:
    /// [`Volume::recovery_plan`](crate::Volume::recovery_plan) says what.
    pub give_up_unrecoverable: bool,
    /// Take for every change the room that a full volume keeps for deletions. It is for a repair, of
    /// which the volume cannot do without anything, and which makes little.
    pub use_reserve: bool,
    /// How the cleaner behaves.
    pub cleaner: CleanerOptions,
    /// The source of all timestamps.
    pub clock: Arc<dyn Clock>,
}

/// Options are equal if they mean the same, with the very same clock.
impl PartialEq for MountOptions {
    fn eq(&self, other: &Self) -> bool {
        let Self {
            order,
            fsync,
            on_error,
            verify,
            discard,
            barrier,
            dirty_limit,
            cache_limit,
            commit_interval,
            flash_page,
            give_up_unrecoverable,
            use_reserve,
            cleaner,
            clock,
        } = self;
        *order == other.order
            && *fsync == other.fsync
            && *on_error == other.on_error
            && *verify == other.verify
            && *discard == other.discard
            && *barrier == other.barrier
            && *dirty_limit == other.dirty_limit
            && *cache_limit == other.cache_limit
            && *commit_interval == other.commit_interval
            && *flash_page == other.flash_page
            && *give_up_unrecoverable == other.give_up_unrecoverable
            && *use_reserve == other.use_reserve
            && *cleaner == other.cleaner
            && Arc::ptr_eq(clock, &other.clock)
    }
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            order: Order::default(),
            fsync: FsyncBy::default(),
            on_error: OnError::default(),
            verify: Verify::default(),
            discard: false,
            barrier: true,
            dirty_limit: 256 << 20,
            cache_limit: 64 << 20,
            commit_interval: None,
            flash_page: FLASH_PAGE,
            give_up_unrecoverable: false,
            use_reserve: false,
            cleaner: CleanerOptions::default(),
            clock: Arc::new(SystemClock),
        }
    }
}

/// How an fsync makes durable what is more than new content of existing blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FsyncBy {
    /// By a log with roll-forward records. A crash leaves a volume that Linux refuses to write until
    /// we have recovered it.
    #[default]
    Log,
    /// By a checkpoint. Linux can recover the volume at any time.
    Checkpoint,
}

impl MountOptions {
    /// The part of [`Self::cache_limit`] for inodes and the names of directories.
    pub(super) fn inode_cache(&self) -> usize {
        usize::try_from(self.cache_limit / 2).unwrap_or(usize::MAX)
    }

    /// The part of it for blocks.
    pub(super) fn block_cache(&self) -> u64 {
        self.cache_limit / 2
    }
}

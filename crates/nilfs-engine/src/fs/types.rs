//! The words of the file system's interface: attributes, requests, options.

use std::sync::Arc;
use std::time::Duration;

use nilfs_ondisk::inode::{DeviceCode, FileType};
use nilfs_ondisk::{ByteCount, Ino};

use crate::cleaner::options::CleanerOptions;
use crate::host::{Clock, SystemClock, Timestamp};
use crate::store::{FLASH_PAGE, Verify};
pub use crate::writer::OnError;

/// What a sync of one file makes durable (mount option `order`).
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
    /// Memory for what can be read again, in bytes: blocks of metadata, inodes that nobody refers
    /// to, and where the names of directories are.
    pub cache_limit: u64,
    /// Time from a change to its checkpoint; the volume's own setting, or 5 s, if `None`.
    pub commit_interval: Option<Duration>,
    /// What flash programs at once: a log of an fsync ends where it does.
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

/// What is known about a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// File type.
    pub file_type: FileType,
    /// Permission bits with set-id and sticky bits (0o7777).
    pub mode: u16,
    /// Number of links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The device that a device node stands for.
    pub rdev: DeviceCode,
    /// Bytes.
    pub size: u64,
    /// Blocks in use, in units of 512 bytes.
    pub blocks: u64,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of the content or the attributes.
    pub ctime: Timestamp,
    /// `FS_*_FL` flags.
    pub flags: u32,
    /// Tells apart files that had the same inode number one after the other.
    pub generation: u32,
}

/// Changes of attributes; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits (0o7777).
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Takes the set-user-ID bit from whatever is not a directory, and the set-group-ID bit if the
    /// group may execute it.
    pub clear_set_id: bool,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Last access. The format does not keep it; set together with the mtime, it is a change of the
    /// file all the same.
    pub atime: Option<SetTime>,
    /// Last change of the content.
    pub mtime: Option<SetTime>,
    /// Last change of anything; now, if `None`. No program can set it: it comes from a cache that
    /// has taken changes in for us, together with the mtime.
    pub ctime: Option<Timestamp>,
}

/// A time to be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// That of the change itself.
    Now,
    /// A time that somebody has chosen.
    At(Timestamp),
}

impl SetTime {
    pub(super) fn at(self, now: Timestamp) -> Timestamp {
        match self {
            Self::Now => now,
            Self::At(time) => time,
        }
    }
}

impl SetAttr {
    /// Whether this changes the content alone.
    pub(super) fn only_size(&self) -> bool {
        let attributes = self.mode.is_some() || self.uid.is_some() || self.gid.is_some();
        self.size.is_some() && !attributes && self.atime.is_none() && self.mtime.is_none()
    }

    /// Whether somebody chooses the times, as `touch -d` and `cp -p` do, which takes more rights
    /// than to say that the file was used now.
    pub(super) fn chooses_times(&self) -> bool {
        match (self.atime, self.mtime) {
            (None, None) | (Some(SetTime::Now), Some(SetTime::Now)) => false,
            (None, Some(_)) => self.ctime.is_none(),
            _ => true,
        }
    }
}

/// A file to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewInode {
    /// Type and permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory hands its own down.
    pub gid: u32,
    /// For device nodes.
    pub rdev: DeviceCode,
}

/// An entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The file.
    pub ino: Ino,
    /// Its name.
    pub name: &'a [u8],
    /// Its type, if the directory says.
    pub file_type: Option<FileType>,
    /// Where reading goes on after this entry.
    pub next: u64,
}

/// What a rename does with an existing target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces it.
    Replace,
    /// Fails.
    NoReplace,
    /// Lets the two change places; both must exist.
    Exchange,
}

/// What to look for in a sparse file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that is data.
    Data,
    /// The next byte in a hole; the end of the file counts as one.
    Hole,
}

/// How full a volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatFs {
    /// Bytes in a block.
    pub block_size: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Free blocks without those that are kept back.
    pub available: u64,
    /// Number of inodes that could exist.
    pub files: u64,
    /// Number of inodes that could still be made.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_max: u32,
}

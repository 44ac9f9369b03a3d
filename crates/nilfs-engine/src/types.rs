//! The words of the file system's interface: attributes, entries of directories, requests.

use nilfs_ondisk::Ino;
use nilfs_ondisk::inode::{DeviceCode, FileType};

use crate::host::Timestamp;

/// Attributes of a file.
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

/// Effect of a rename on an existing target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces it.
    Replace,
    /// Fails.
    NoReplace,
    /// Lets the two change places; both must exist.
    Exchange,
}

/// Part to look for in a sparse file.
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

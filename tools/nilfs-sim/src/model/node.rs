//! Inodes of the model.

use std::collections::BTreeMap;

use nilfs_engine::Timestamp;
use nilfs_ondisk::inode::{DeviceCode, FileType};

use super::{FileBody, NodeId};
use crate::name::Name;
use crate::outcome::{Facts, Refusal};
use crate::tree::Content;

/// Nothing about the file can change.
pub(super) const IMMUTABLE: u32 = 0x10;
/// The file can only grow at its end.
pub(super) const APPEND: u32 = 0x20;

/// What a new file takes over from its directory.
const INHERITED: u32 = 0x1_86cf;
/// Flags that can be set: those that have an effect, and those that are true of every file.
pub(super) const FLAGS_DONE: u32 = IMMUTABLE | APPEND | 0x40 | 0x80 | 0x400 | 0x8000;

/// An inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Kind of file.
    pub kind: FileType,
    /// Permission bits.
    pub mode: u16,
    /// Number of names; for a directory two more than it has subdirectories.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Inode flags (`FS_*_FL`).
    pub flags: u32,
    /// Time of the last change of content.
    pub mtime: Timestamp,
    /// Time of the last change of content or attributes.
    pub ctime: Timestamp,
    /// What is in it.
    pub body: Body,
}

/// What is in an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// The bytes of a regular file.
    File(FileBody),
    /// The entries of a directory.
    Directory {
        /// Names other than `.` and `..`.
        entries: BTreeMap<Name, NodeId>,
        /// What `..` names.
        parent: NodeId,
    },
    /// The text of a symbolic link.
    Symlink(Vec<u8>),
    /// The number of a device; zero for a FIFO or socket.
    Special(DeviceCode),
}

impl Node {
    pub(super) fn new(kind: FileType, mode: u16, body: Body, now: Timestamp) -> Self {
        Self {
            kind,
            mode,
            nlink: if kind == FileType::Directory { 2 } else { 1 },
            uid: 0,
            gid: 0,
            flags: 0,
            mtime: now,
            ctime: now,
            body,
        }
    }

    /// The attributes.
    #[must_use]
    pub fn facts(&self) -> Facts {
        let (size, rdev) = match &self.body {
            Body::File(file) => (file.size(), DeviceCode::default()),
            Body::Symlink(text) => (text.len() as u64, DeviceCode::default()),
            Body::Directory { .. } => (0, DeviceCode::default()),
            Body::Special(rdev) => (0, *rdev),
        };
        Facts {
            kind: self.kind,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev,
            size,
            mtime: self.mtime,
            ctime: self.ctime,
            flags: self.flags,
        }
    }

    /// What is in it, as a picture of a tree shows it.
    #[must_use]
    pub fn content(&self) -> Content {
        match &self.body {
            Body::File(file) => Content::Blocks(file.blocks().clone()),
            Body::Symlink(text) => Content::Text(text.clone()),
            Body::Directory { .. } | Body::Special(_) => Content::None,
        }
    }

    /// Whether names can neither be given nor taken away.
    pub(super) fn is_protected(&self) -> bool {
        self.flags & (IMMUTABLE | APPEND) != 0
    }

    /// The entries of a directory.
    pub(super) fn entries(&self) -> Result<&BTreeMap<Name, NodeId>, Refusal> {
        match &self.body {
            Body::Directory { entries, .. } => Ok(entries),
            _ => Err(Refusal::NotDirectory),
        }
    }

    /// The bytes of a regular file.
    pub(super) fn file(&self) -> Result<&FileBody, Refusal> {
        match &self.body {
            Body::File(file) => Ok(file),
            Body::Directory { .. } => Err(Refusal::IsDirectory),
            _ => Err(Refusal::Invalid),
        }
    }

    pub(super) fn file_mut(&mut self) -> Result<&mut FileBody, Refusal> {
        match &mut self.body {
            Body::File(file) => Ok(file),
            Body::Directory { .. } => Err(Refusal::IsDirectory),
            _ => Err(Refusal::Invalid),
        }
    }
}

/// The flags that a new file takes over from its directory (docs/format.md §13). Immutable and
/// append-only are none of them, or nobody could ever delete the file.
#[must_use]
pub(super) fn flags_inherited(directory: u32, kind: FileType) -> u32 {
    const DIRSYNC: u32 = 0x1_0000;
    const NODUMP_NOATIME: u32 = 0xc0;
    match kind {
        FileType::Directory => directory & INHERITED,
        FileType::Regular => directory & INHERITED & !DIRSYNC,
        _ => directory & NODUMP_NOATIME,
    }
}

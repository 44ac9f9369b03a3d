//! What each request of the kernel means for the engine.
//!
//! Requests and answers are in terms of the engine and of this module; how they travel is the
//! transport's affair. The kernel has checked names, types and permissions before it asks.

use std::sync::Arc;

use nilfs_engine::{
    Attr, DeviceCode, Entry, Error, FileType, Filesystem, InodeRef, NewInode, RenameMode, Seek,
    SetAttr, StatFs,
};
use nilfs_ondisk::Ino;
use rustix::fs::{OFlags, RenameFlags};
use rustix::io::Errno;

use crate::fault::Faults;
use crate::ioctl;
use crate::metrics::{Metrics, Operation};
use crate::nodes::NodeId;

/// What a request comes to.
pub(crate) type Answer<T> = Result<T, Errno>;

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// A directory entry that was copied out of the engine.
#[derive(Debug)]
pub(crate) struct Listed {
    pub ino: Ino,
    pub name: Vec<u8>,
    /// Where the next entry is.
    pub next: u64,
    file_type: Option<FileType>,
}

impl Listed {
    /// Whether this is "." or "..", which the kernel does not count as given to it.
    pub fn is_dots(&self) -> bool {
        matches!(self.name.as_slice(), b"." | b"..")
    }
}

/// Entries copied out of a directory at a time.
const LISTED_AT_ONCE: usize = 64;

/// The file system as the kernel sees it.
pub(crate) struct Operations {
    fs: Arc<Filesystem>,
    faults: Faults,
    metrics: Arc<Metrics>,
}

impl Operations {
    pub fn new(fs: Arc<Filesystem>, metrics: Arc<Metrics>) -> Self {
        Self { fs, faults: Faults::default(), metrics }
    }

    /// Runs an operation and notes how it went.
    fn noted<T>(&self, operation: Operation, work: impl FnOnce() -> Answer<T>) -> Answer<T> {
        self.metrics.measure(operation, Result::is_err, work)
    }

    fn answer<T>(&self, result: Result<T, Error>) -> Answer<T> {
        result.map_err(|error| self.faults.answer(&self.fs, &error))
    }

    /// The inode that the kernel means. It need not hold it: an NFS client can come back with a
    /// handle after years.
    fn inode(&self, node: NodeId) -> Answer<InodeRef> {
        self.answer(self.fs.by_number(node.ino()))
    }

    /// Gives `entry` to the kernel, to be forgotten by it later.
    fn give(&self, entry: Entry) -> Attr {
        self.fs.hold(&entry.inode);
        entry.attr
    }

    pub fn lookup(&self, dir: NodeId, name: &[u8]) -> Answer<Attr> {
        let is_error = |answer: &Answer<Attr>| !matches!(answer, Ok(_) | Err(Errno::NOENT));
        self.metrics.measure(Operation::Lookup, is_error, || {
            let found = match name {
                // So the kernel asks for a file of which it has nothing but a handle.
                b"." => self.fs.inode(dir.ino()).and_then(still_named),
                _ => self.fs.lookup(&self.inode(dir)?, name),
            };
            Ok(self.give(self.answer(found)?))
        })
    }

    pub fn forget(&self, node: NodeId, lookups: u64) {
        self.fs.let_go(node.ino(), lookups);
    }

    pub fn attr(&self, node: NodeId) -> Answer<Attr> {
        self.noted(Operation::GetAttr, || self.answer(self.fs.attr(&self.inode(node)?)))
    }

    pub fn set_attr(&self, node: NodeId, changes: &SetAttr) -> Answer<Attr> {
        self.noted(Operation::SetAttr, || {
            self.answer(self.fs.set_attr(&self.inode(node)?, changes))
        })
    }

    pub fn read_link(&self, node: NodeId) -> Answer<Vec<u8>> {
        self.noted(Operation::ReadLink, || self.answer(self.fs.read_link(&self.inode(node)?)))
    }

    /// Makes a file, directory, device node, FIFO or socket.
    pub fn create(
        &self,
        caller: Caller,
        dir: NodeId,
        name: &[u8],
        mode: u16,
        rdev: DeviceCode,
    ) -> Answer<Attr> {
        self.noted(Operation::Create, || {
            let Caller { uid, gid } = caller;
            let new = NewInode { mode, uid, gid, rdev };
            let entry = self.answer(self.fs.create(&self.inode(dir)?, name, &new))?;
            Ok(self.give(entry))
        })
    }

    pub fn symlink(&self, caller: Caller, dir: NodeId, name: &[u8], target: &[u8]) -> Answer<Attr> {
        self.noted(Operation::Symlink, || {
            let Caller { uid, gid } = caller;
            let entry = self.answer(self.fs.symlink(&self.inode(dir)?, name, target, uid, gid))?;
            Ok(self.give(entry))
        })
    }

    pub fn link(&self, node: NodeId, dir: NodeId, name: &[u8]) -> Answer<Attr> {
        self.noted(Operation::Link, || {
            let inode = self.inode(node)?;
            let attr = self.answer(self.fs.link(&inode, &self.inode(dir)?, name))?;
            Ok(self.give(Entry { inode, attr }))
        })
    }

    pub fn unlink(&self, dir: NodeId, name: &[u8]) -> Answer<()> {
        self.noted(Operation::Unlink, || self.answer(self.fs.unlink(&self.inode(dir)?, name)))
    }

    pub fn rmdir(&self, dir: NodeId, name: &[u8]) -> Answer<()> {
        self.noted(Operation::Rmdir, || self.answer(self.fs.rmdir(&self.inode(dir)?, name)))
    }

    pub fn rename(
        &self,
        dir: NodeId,
        name: &[u8],
        to_dir: NodeId,
        to_name: &[u8],
        flags: u32,
    ) -> Answer<()> {
        self.noted(Operation::Rename, || {
            let mode = match RenameFlags::from_bits_retain(flags) {
                none if none.is_empty() => RenameMode::Replace,
                RenameFlags::NOREPLACE => RenameMode::NoReplace,
                RenameFlags::EXCHANGE => RenameMode::Exchange,
                _ => return Err(Errno::INVAL),
            };
            let (dir, to_dir) = (self.inode(dir)?, self.inode(to_dir)?);
            self.answer(self.fs.rename(&dir, name, &to_dir, to_name, mode))
        })
    }

    /// Reads into `buffer`; fewer bytes come only at the end of the file.
    pub fn read(&self, node: NodeId, offset: u64, buffer: &mut [u8]) -> Answer<usize> {
        self.noted(Operation::Read, || {
            self.answer(self.fs.read(&self.inode(node)?, offset, buffer))
        })
    }

    /// Writes, and returns how many bytes of `data`: less than all of them only if there is no room
    /// for the rest. `flags` are those of the open file: with `O_SYNC` or `O_DSYNC` the data are
    /// durable when this returns. `None` stands for pages that the kernel writes back, which are
    /// written as a whole or not at all, because nobody would hear of the rest.
    pub fn write(
        &self,
        node: NodeId,
        offset: u64,
        data: &[u8],
        flags: Option<OFlags>,
    ) -> Answer<usize> {
        self.noted(Operation::Write, || {
            let inode = self.inode(node)?;
            let Some(flags) = flags else {
                self.answer(self.fs.write(&inode, offset, data))?;
                return Ok(data.len());
            };
            let written = self.answer(self.fs.write_some(&inode, offset, data))?;
            if flags.contains(OFlags::DSYNC) {
                // O_SYNC is O_DSYNC and one more bit.
                self.answer(self.fs.sync_file(&inode, !flags.contains(OFlags::SYNC)))?;
            }
            Ok(written)
        })
    }

    /// Looks for data or a hole; `whence` is that of `lseek(2)`.
    pub fn seek(&self, node: NodeId, offset: u64, whence: u32) -> Answer<u64> {
        self.noted(Operation::Seek, || {
            const SEEK_DATA: u32 = 3;
            const SEEK_HOLE: u32 = 4;
            let what = match whence {
                SEEK_DATA => Seek::Data,
                SEEK_HOLE => Seek::Hole,
                _ => return Err(Errno::INVAL),
            };
            self.answer(self.fs.seek(&self.inode(node)?, offset, what))
        })
    }

    pub fn sync(&self, node: NodeId, data_only: bool) -> Answer<()> {
        self.noted(Operation::Fsync, || {
            self.answer(self.fs.sync_file(&self.inode(node)?, data_only))
        })
    }

    /// Makes everything durable.
    pub fn sync_fs(&self) -> Answer<()> {
        self.noted(Operation::SyncFs, || self.answer(self.fs.sync()))
    }

    pub fn stat_fs(&self) -> Answer<StatFs> {
        self.noted(Operation::StatFs, || self.answer(self.fs.stat_fs()))
    }

    /// Some entries from `cookie` on; none at the end.
    pub fn list(&self, dir: NodeId, cookie: u64) -> Answer<Vec<Listed>> {
        self.noted(Operation::ReadDir, || {
            let mut listed = Vec::with_capacity(LISTED_AT_ONCE);
            let dir = self.inode(dir)?;
            self.answer(self.fs.read_dir(&dir, cookie, &mut |entry| {
                listed.push(Listed {
                    ino: entry.ino,
                    name: entry.name.to_vec(),
                    next: entry.next,
                    file_type: entry.file_type,
                });
                listed.len() < LISTED_AT_ONCE
            }))?;
            Ok(listed)
        })
    }

    /// The type of a listed entry, which need not say it.
    pub fn type_of(&self, listed: &Listed) -> Answer<FileType> {
        match listed.file_type {
            Some(file_type) => Ok(file_type),
            None => Ok(self.entry_of(listed)?.attr.file_type),
        }
    }

    /// The inode of a listed entry. It is not given to the kernel before [`Self::give_listed`].
    pub fn entry_of(&self, listed: &Listed) -> Answer<Entry> {
        self.answer(self.fs.inode(listed.ino))
    }

    /// Gives a listed entry to the kernel, to be forgotten by it later.
    pub fn give_listed(&self, entry: &Entry) {
        self.fs.hold(&entry.inode);
    }

    /// Inode flags and generation; at most `room` bytes come back.
    pub fn ioctl(&self, node: NodeId, command: u32, input: &[u8], room: usize) -> Answer<Vec<u8>> {
        self.noted(Operation::Ioctl, || {
            let request = ioctl::Request::parse(command, input).ok_or(Errno::NOTTY)?;
            let inode = self.inode(node)?;
            let attr = self.answer(self.fs.attr(&inode))?;
            let value = match request {
                ioctl::Request::GetFlags => attr.flags,
                ioctl::Request::GetExtended => ioctl::extended(attr.flags),
                ioctl::Request::GetGeneration => attr.generation,
                ioctl::Request::SetFlags(flags) => {
                    self.answer(self.fs.set_flags(&inode, flags))?.flags
                }
                ioctl::Request::SetExtended(extended) => {
                    let flags =
                        ioctl::with_extended(attr.flags, extended).ok_or(Errno::OPNOTSUPP)?;
                    self.answer(self.fs.set_flags(&inode, flags))?.flags
                }
            };
            Ok(request.answer(value, room))
        })
    }
}

/// A file without a name is kept only for those who have it open, and they need no handle.
fn still_named(entry: Entry) -> nilfs_engine::Result<Entry> {
    if entry.attr.nlink == 0 { Err(Error::Stale) } else { Ok(entry) }
}

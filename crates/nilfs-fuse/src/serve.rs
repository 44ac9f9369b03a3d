//! What answers the kernel's requests, as [`crate::Session`] asks it.
//!
//! The transport knows nothing else of a file system, and a file system nothing of how requests
//! travel. The kernel has checked names, types and permissions before it asks. What a file system
//! does not have, it leaves to the defaults here: the kernel hears that it is not there, and mostly
//! does not ask again.

use nilfs_engine::{Attr, DeviceCode, DirEntry, SetAttr, StatFs};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::nodes::NodeId;

/// What a request comes to. [`WOULD_WAIT`] is no answer.
pub type Answer<T> = Result<T, Errno>;

/// What changes nothing may be asked by a thread that [must not wait](nilfs_engine::without_waiting).
/// If it would have to, this comes back, nothing has happened, and it is asked again by another thread.
pub const WOULD_WAIT: Errno = Errno::WOULDBLOCK;

/// What is found by a name: `None` says that there is nothing until somebody makes it, which the
/// kernel may remember. [`Errno::NOENT`] says so for this once.
pub type Found = Option<Given>;

/// A file that the kernel is given, to be forgotten by it later.
#[derive(Debug)]
pub struct Given {
    /// The number by which the kernel will name it.
    pub node: NodeId,
    /// What is known about it.
    pub attr: Attr,
    /// How long that stays so.
    pub validity: Validity,
}

/// How long what the kernel is told of a file stays true.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// Until the kernel changes it: nobody else changes names.
    Present,
    /// For ever.
    Always,
    /// It has to be asked for again each time.
    Never,
    /// For a moment, or until the kernel is told that it is not so any more.
    Shortly,
}

impl Given {
    /// A file that only the kernel changes, under its inode number.
    #[must_use]
    pub fn present(attr: Attr) -> Self {
        Self { node: NodeId::from(attr.ino), attr, validity: Validity::Present }
    }
}

/// The process that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// Takes an entry of a directory, with the file if that is asked for. Returns whether there was room
/// for it.
pub type AddEntry<'a> = dyn FnMut(&DirEntry<'_>, Option<&Given>) -> bool + 'a;

/// A file system. Several threads ask at the same time; what they may assume is in ARCHITECTURE.md.
pub trait Serve: Send + Sync {
    /// Whether the kernel has to ask before it opens a file.
    fn is_asked_for_opening(&self) -> bool {
        false
    }

    /// Whether a change may have to wait for long just now, for instance for room. What makes a file
    /// shorter names it. A cheap look.
    fn may_delay_changes(&self, _shortened: Option<NodeId>) -> bool {
        false
    }

    /// Looks a name up in a directory.
    ///
    /// # Errors
    /// As all requests: what the process that asks is told.
    fn lookup(&self, dir: NodeId, name: &[u8]) -> Answer<Found>;

    /// The kernel does not have a file any more that it was given as often as this.
    fn forget(&self, _node: NodeId, _lookups: u64) {}

    /// The kernel has no file any more: the mount is gone.
    fn forget_all(&self) {}

    /// What is known about a file.
    fn attr(&self, node: NodeId) -> Answer<Given>;

    /// Changes attributes.
    fn set_attr(&self, node: NodeId, changes: &SetAttr) -> Answer<Given>;

    /// The target of a symbolic link.
    fn read_link(&self, node: NodeId) -> Answer<Vec<u8>>;

    /// Makes a file, directory, device node, FIFO or socket; the type is in the mode.
    fn create(
        &self,
        caller: Caller,
        dir: NodeId,
        name: &[u8],
        mode: u16,
        rdev: DeviceCode,
    ) -> Answer<Given>;

    /// Makes a regular file without a name, which may get one by [`Serve::link`].
    fn create_nameless(&self, _caller: Caller, _dir: NodeId, _mode: u16) -> Answer<Given> {
        Err(Errno::NOSYS)
    }

    /// Makes a symbolic link.
    fn symlink(&self, caller: Caller, dir: NodeId, name: &[u8], target: &[u8]) -> Answer<Given>;

    /// Gives a file one more name.
    fn link(&self, _node: NodeId, _dir: NodeId, _name: &[u8]) -> Answer<Given> {
        Err(Errno::NOSYS)
    }

    /// Takes a name away from a file that is no directory.
    fn unlink(&self, dir: NodeId, name: &[u8]) -> Answer<()>;

    /// Removes an empty directory.
    fn rmdir(&self, dir: NodeId, name: &[u8]) -> Answer<()>;

    /// Renames; the flags are those of renameat2(2).
    fn rename(
        &self,
        _dir: NodeId,
        _name: &[u8],
        _to_dir: NodeId,
        _to_name: &[u8],
        _flags: u32,
    ) -> Answer<()> {
        Err(Errno::NOSYS)
    }

    /// Says whether a file may be opened with these flags of open(2), where
    /// [`Serve::is_asked_for_opening`]. The kernel may still refuse it afterwards, so nothing is
    /// changed here: `O_TRUNC` comes as a change of size.
    fn open(&self, _node: NodeId, _flags: OFlags) -> Answer<()> {
        Err(Errno::NOSYS)
    }

    /// Reads into `buffer`; fewer bytes come only at the end of the file.
    fn read(&self, node: NodeId, offset: u64, buffer: &mut [u8]) -> Answer<usize>;

    /// Writes, and returns how many bytes of `data`: less than all of them only if there is no room
    /// for the rest. `flags` are those of the open file: with `O_SYNC` or `O_DSYNC` the data are
    /// durable when this returns. `None` stands for pages that the kernel writes back, which are
    /// written as a whole or not at all, because no program would hear of the rest, and regardless of
    /// the flags of the file, because the program that wrote them has its answer. `clear_set_id`: the
    /// writer must not leave set-id bits to the file.
    fn write(
        &self,
        node: NodeId,
        offset: u64,
        data: &[u8],
        flags: Option<OFlags>,
        clear_set_id: bool,
    ) -> Answer<usize>;

    /// Copies bytes of a file to another one, or to another place in it, by way of `buffer`, which is as
    /// large as the largest request. Returns how many: fewer than `length` at the end of the file, where
    /// there is no room for the rest, and if it would take long.
    fn copy(
        &self,
        _node: NodeId,
        _offset: u64,
        _to: NodeId,
        _to_offset: u64,
        _length: u64,
        _buffer: &mut [u8],
    ) -> Answer<usize> {
        Err(Errno::NOSYS)
    }

    /// Looks for data or a hole; `whence` is that of lseek(2).
    fn seek(&self, _node: NodeId, _offset: u64, _whence: u32) -> Answer<u64> {
        Err(Errno::NOSYS)
    }

    /// Makes a file durable.
    fn sync(&self, node: NodeId) -> Answer<()>;

    /// Makes everything durable.
    fn sync_fs(&self) -> Answer<()> {
        Err(Errno::NOSYS)
    }

    /// How full it is.
    fn stat_fs(&self, node: NodeId) -> Answer<StatFs>;

    /// Hands the entries of a directory to `add`, from `cookie` on, until there is no room. With
    /// `files`, each comes with the file that it leads to, which the kernel gets by that; but not "."
    /// and "..", nor what the kernel had better look up when it needs it. What was handed over before
    /// an error counts.
    fn list(&self, dir: NodeId, cookie: u64, files: bool, add: &mut AddEntry<'_>) -> Answer<()>;

    /// Does what ioctl(2) asks; at most `room` bytes come back.
    fn ioctl(&self, _node: NodeId, _command: u32, _input: &[u8], _room: usize) -> Answer<Vec<u8>> {
        Err(Errno::NOTTY)
    }

    /// Answers a message of [`crate::ask`].
    fn message(&self, _caller: Caller, _message: &[u8]) -> Answer<Vec<u8>> {
        Err(Errno::NOTTY)
    }
}

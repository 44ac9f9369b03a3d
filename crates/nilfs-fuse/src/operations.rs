//! What each request of the kernel means for the engine.
//!
//! Requests and answers are in terms of the engine and of this module; how they travel is the
//! transport's affair. The kernel has checked names, types and permissions before it asks.

use std::sync::Arc;

use nilfs_engine::{
    Attr, DeviceCode, Error, FileType, Files, Filesystem, InodeRef, NewInode, RenameMode, Seek,
    SetAttr, StatFs,
};
use nilfs_ondisk::Ino;
use parking_lot::Mutex;
use rustix::fs::{OFlags, RenameFlags};
use rustix::io::Errno;

use crate::fault::Faults;
use crate::ioctl::{self, InodeIoctl};
use crate::metrics::{Metrics, Operation};
use crate::nodes::NodeId;
use crate::past::Past;

/// What a request comes to.
pub(crate) type Answer<T> = Result<T, Errno>;

/// What is found by a name: `None` says that there is nothing until somebody makes it, which the
/// kernel may remember. [`Errno::NOENT`] says so for this once.
pub(crate) type Found = Option<Given>;

/// A file that the kernel is given, to be forgotten by it later.
#[derive(Debug)]
pub(crate) struct Given {
    pub node: NodeId,
    pub attr: Attr,
    pub validity: Validity,
}

/// How long what the kernel is told of a file stays true.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Validity {
    /// Until the kernel changes it: nobody else changes names.
    Present,
    /// For ever.
    Always,
    /// It has to be asked for again each time.
    Never,
    /// For a moment, or until [`Operations::renew_doors`].
    Shortly,
}

impl Given {
    /// A file of the present, which is held.
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

/// A directory entry that was copied out of the engine.
#[derive(Debug)]
pub(crate) struct Listed {
    /// Its `st_ino`.
    pub ino: Ino,
    pub name: Vec<u8>,
    /// Where the next entry is.
    pub next: u64,
    /// Its type, if the directory says.
    pub file_type: Option<FileType>,
}

impl Listed {
    /// Whether this is "." or "..", which the kernel does not count as given to it.
    pub fn is_dots(&self) -> bool {
        matches!(self.name.as_slice(), b"." | b"..")
    }
}

/// The set-user-ID and set-group-ID bits of a mode.
const SET_ID: u16 = 0o6000;

/// Entries copied out of a directory at a time.
const LISTED_AT_ONCE: usize = 64;

/// Bytes that a request to copy moves at most: another one gets its turn then.
const COPIED_AT_ONCE: u64 = 8 << 20;

/// Bytes that are copied in one piece.
const COPIED_PIECE: usize = 1 << 20;

/// Asks the kernel whether it still has an inode.
pub(crate) type StillHas = Box<dyn Fn(NodeId) -> bool + Send + Sync>;

/// Tells the kernel that what it knows of an inode is not so any more.
pub(crate) type Outdate = Box<dyn Fn(NodeId) + Send + Sync>;

/// The file system as the kernel sees it.
pub(crate) struct Operations {
    /// What is read.
    files: Arc<dyn Files>,
    /// What is changed, where anything can be.
    writer: Option<Arc<Filesystem>>,
    past: Option<Arc<Past>>,
    faults: Faults,
    metrics: Arc<Metrics>,
    still_has: StillHas,
    noticing: Mutex<()>,
    outdate: Outdate,
}

impl Operations {
    pub fn new(
        files: Arc<dyn Files>,
        writer: Option<Arc<Filesystem>>,
        past: Option<Arc<Past>>,
        metrics: Arc<Metrics>,
        still_has: StillHas,
        outdate: Outdate,
    ) -> Self {
        Self {
            files,
            writer,
            past,
            faults: Faults::default(),
            metrics,
            still_has,
            noticing: Mutex::default(),
            outdate,
        }
    }

    /// Lets the kernel ask for doors again, if there is another checkpoint than when it was told of
    /// them. To be done before somebody is told that a checkpoint was made or deleted.
    pub fn renew_doors(&self) {
        let Some(past) = &self.past else { return };
        past.take_outdated().into_iter().for_each(|node| (self.outdate)(node));
    }

    /// Runs an operation and notes how it went. If there is no room for it, it is tried again when
    /// files that the kernel has let go of make some, which another operation may have noticed, and
    /// then when the past does that is only kept because somebody looks at it.
    pub fn noted<T>(&self, operation: Operation, mut work: impl FnMut() -> Answer<T>) -> Answer<T> {
        self.metrics.measure(operation, Result::is_err, || {
            let answer = match work() {
                Err(Errno::NOSPC) => {
                    self.notice_released();
                    work()
                }
                answer => answer,
            };
            match answer {
                Err(Errno::NOSPC) if self.give_up_past() => work(),
                answer => answer,
            }
        })
    }

    /// Lets go of the past that is only kept because somebody looks at it, because there is no room.
    /// Returns whether there was any.
    fn give_up_past(&self) -> bool {
        let Some(cnos) = self.past.as_ref().and_then(|past| past.give_up()) else { return false };
        tracing::warn!(
            "there is no room to write, so the checkpoints that somebody was looking at are not kept \
             any more, and whatever still reads them gets ESTALE: {cnos}"
        );
        true
    }

    /// Looks for files without a name that the kernel has let go of, but has not told us so: it
    /// sends `FORGET` when unlink(2) or close(2) is over, and waits for no answer.
    ///
    /// The kernel cannot get back what it does not have: nothing leads to a file without a name. A
    /// lookup that found the file before it lost its name is over, because the kernel locks the
    /// directory for both.
    fn notice_released(&self) {
        let Some(writer) = &self.writer else { return };
        let _one_at_a_time = self.noticing.lock();
        let held = writer.held_without_name().into_iter();
        let released: Vec<Ino> = held.filter(|ino| !(self.still_has)(NodeId::from(*ino))).collect();
        released.iter().for_each(|ino| writer.expect_let_go(*ino));
    }

    fn answer<T>(&self, result: Result<T, Error>) -> Answer<T> {
        result.map_err(|error| self.faults.answer(self.writer.as_deref(), &error))
    }

    /// What can be changed, and the file in it that the kernel means. The kernel need not hold it:
    /// an NFS client can come back with a handle after years.
    fn changeable(&self, node: NodeId) -> Answer<(&Filesystem, InodeRef)> {
        let writer = self.writer.as_deref().filter(|_| !node.is_past()).ok_or(Errno::ROFS)?;
        Ok((writer, self.answer(writer.by_number(node.ino()))?))
    }

    /// The past, of which the kernel has a node.
    fn past(&self) -> Answer<&Past> {
        self.past.as_deref().ok_or(Errno::STALE)
    }

    /// Gives a file that was made, or has another name, to the kernel.
    fn give(writer: &Filesystem, inode: &InodeRef, attr: Attr) -> Given {
        writer.hold(inode);
        Given::present(attr)
    }

    pub fn lookup(&self, dir: NodeId, name: &[u8]) -> Answer<Found> {
        let is_error = |answer: &Answer<Found>| !matches!(answer, Ok(_) | Err(Errno::NOENT));
        self.metrics.measure(Operation::Lookup, is_error, || {
            let found = match dir.is_past() {
                true => self.past()?.lookup(dir, name),
                false => self.lookup_now(dir.ino(), name),
            };
            match found {
                Err(Error::NotFound) if !self.is_door(dir) => Ok(None),
                found => self.answer(found).map(Some),
            }
        })
    }

    /// Looks up a name in a directory of the present.
    fn lookup_now(&self, dir: Ino, name: &[u8]) -> Result<Given, Error> {
        let found = self.files.lookup(dir, name);
        let Some(past) = self.past.as_deref().filter(|past| past.is_door(name)) else {
            return found.map(Given::present);
        };
        match found {
            Err(Error::NotFound) => past.door(dir),
            found => {
                // It comes first, because the volume is the user's.
                if found.is_ok() {
                    past.warn_of_namesake(dir);
                }
                found.map(Given::present)
            }
        }
    }

    /// Whether a node is a door, in which there may be another name in the next moment, and very many
    /// of them.
    pub fn is_door(&self, node: NodeId) -> bool {
        self.past.as_ref().is_some_and(|past| past.is_node_of_door(node))
    }

    /// The kernel does not have these files any more. The number says how often it was given each.
    pub fn forget(&self, nodes: impl IntoIterator<Item = (NodeId, u64)>) {
        self.metrics.measure(
            Operation::Forget,
            |()| false,
            || {
                nodes.into_iter().for_each(|(node, lookups)| self.take_back(node, lookups));
            },
        );
    }

    /// Takes a file back that the kernel does not have, or was not given after all.
    pub fn take_back(&self, node: NodeId, lookups: u64) {
        match &self.past {
            Some(past) if node.is_past() => past.forget(node, lookups),
            _ => self.files.let_go(node.ino(), lookups),
        }
    }

    pub fn attr(&self, node: NodeId) -> Answer<Given> {
        self.noted(Operation::GetAttr, || match node.is_past() {
            true => self.answer(self.past()?.attr(node)),
            false => self.answer(self.files.attr(node.ino())).map(Given::present),
        })
    }

    /// Whether the kernel has to ask before it opens a file: what is of the past, only the process can
    /// refuse to open for writing.
    pub fn is_asked_for_opening(&self) -> bool {
        self.past.is_some() && self.writer.is_some()
    }

    /// Opens a file, with the flags of open(2). With `O_TRUNC`, it loses its content, and its set-id
    /// bits if the caller must not keep them.
    pub fn open(&self, node: NodeId, flags: OFlags, clear_set_id: bool) -> Answer<()> {
        self.noted(Operation::Open, || {
            let truncates = flags.contains(OFlags::TRUNC);
            let writes = truncates || !matches!(flags & OFlags::RWMODE, OFlags::RDONLY);
            if node.is_past() && writes {
                return Err(Errno::ROFS);
            }
            if truncates {
                let (writer, inode) = self.changeable(node)?;
                self.clear_set_id(writer, &inode, clear_set_id)?;
                let empty = SetAttr { size: Some(0), ..SetAttr::default() };
                self.answer(writer.set_attr(&inode, &empty))?;
            }
            Ok(())
        })
    }

    /// Takes set-id bits away, for a request whose answer has no attributes.
    fn clear_set_id(&self, writer: &Filesystem, inode: &InodeRef, asked: bool) -> Answer<()> {
        if asked && self.answer(writer.attr(inode))?.mode & SET_ID != 0 {
            let cleared = SetAttr { clear_set_id: true, ..SetAttr::default() };
            self.answer(writer.set_attr(inode, &cleared))?;
            (self.outdate)(NodeId::from(inode.ino()));
        }
        Ok(())
    }

    /// An open file was closed by the last of those who had it.
    pub fn release(&self) {
        self.metrics.measure(Operation::Release, |()| false, || ());
    }

    /// What the kernel asks, and we do not do.
    pub fn unsupported(&self) -> Errno {
        self.metrics.measure(Operation::Unsupported, |_| true, || Errno::NOSYS)
    }

    pub fn set_attr(&self, node: NodeId, changes: &SetAttr) -> Answer<Given> {
        self.noted(Operation::SetAttr, || {
            let (writer, inode) = self.changeable(node)?;
            self.answer(writer.set_attr(&inode, changes)).map(Given::present)
        })
    }

    pub fn read_link(&self, node: NodeId) -> Answer<Vec<u8>> {
        self.noted(Operation::ReadLink, || match node.is_past() {
            true => self.answer(self.past()?.read_link(node)),
            false => self.answer(self.files.read_link(node.ino())),
        })
    }

    /// Makes a file, directory, device node, FIFO or socket.
    pub fn create(
        &self,
        caller: Caller,
        dir: NodeId,
        name: &[u8],
        mode: u16,
        rdev: DeviceCode,
    ) -> Answer<Given> {
        let operation = match FileType::from_mode(mode) {
            Some(FileType::Regular) => Operation::Create,
            Some(FileType::Directory) => Operation::MkDir,
            _ => Operation::MkNod,
        };
        self.noted(operation, || {
            let Caller { uid, gid } = caller;
            let new = NewInode { mode, uid, gid, rdev };
            let (writer, dir) = self.changeable(dir)?;
            self.check_new_name(name)?;
            let made = self.answer(writer.create(&dir, name, &new))?;
            Ok(Self::give(writer, &made.inode, made.attr))
        })
    }

    /// Fails if a new name is the door's, which it would hide.
    fn check_new_name(&self, name: &[u8]) -> Answer<()> {
        if self.is_name_of_door(name) { Err(Errno::EXIST) } else { Ok(()) }
    }

    fn is_name_of_door(&self, name: &[u8]) -> bool {
        self.past.as_ref().is_some_and(|past| past.is_door(name))
    }

    pub fn symlink(
        &self,
        caller: Caller,
        dir: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> Answer<Given> {
        self.noted(Operation::Symlink, || {
            let Caller { uid, gid } = caller;
            let (writer, dir) = self.changeable(dir)?;
            self.check_new_name(name)?;
            let made = self.answer(writer.symlink(&dir, name, target, uid, gid))?;
            Ok(Self::give(writer, &made.inode, made.attr))
        })
    }

    pub fn link(&self, node: NodeId, dir: NodeId, name: &[u8]) -> Answer<Given> {
        self.noted(Operation::Link, || {
            match (node.is_past(), dir.is_past()) {
                (true, true) => return Err(Errno::ROFS),
                (past, into_past) if past || into_past => return Err(Errno::XDEV),
                _ => {}
            }
            let (_, dir) = self.changeable(dir)?;
            let (writer, inode) = self.changeable(node)?;
            self.check_new_name(name)?;
            let attr = self.answer(writer.link(&inode, &dir, name))?;
            Ok(Self::give(writer, &inode, attr))
        })
    }

    pub fn unlink(&self, dir: NodeId, name: &[u8]) -> Answer<()> {
        self.noted(Operation::Unlink, || {
            let (writer, dir) = self.changeable(dir)?;
            self.answer(writer.unlink(&dir, name)).map_err(|errno| self.kept_door(name, errno))
        })
    }

    pub fn rmdir(&self, dir: NodeId, name: &[u8]) -> Answer<()> {
        self.noted(Operation::Rmdir, || {
            let (writer, dir) = self.changeable(dir)?;
            self.answer(writer.rmdir(&dir, name)).map_err(|errno| self.kept_door(name, errno))
        })
    }

    /// The error for a name that is to be taken away: the door stays.
    fn kept_door(&self, name: &[u8], errno: Errno) -> Errno {
        let is_door = self.is_name_of_door(name);
        if is_door && errno == Errno::NOENT { Errno::ROFS } else { errno }
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
            if dir.is_past() != to_dir.is_past() {
                return Err(Errno::XDEV);
            }
            let (writer, from) = self.changeable(dir)?;
            let (_, to) = self.changeable(to_dir)?;
            self.check_new_name(to_name)?;
            let renamed = self.answer(writer.rename(&from, name, &to, to_name, mode));
            renamed.map_err(|errno| self.kept_door(name, errno))
        })
    }

    /// Reads into `buffer`; fewer bytes come only at the end of the file.
    pub fn read(&self, node: NodeId, offset: u64, buffer: &mut [u8]) -> Answer<usize> {
        self.noted(Operation::Read, || self.read_now_or_then(node, offset, buffer))
    }

    fn read_now_or_then(&self, node: NodeId, offset: u64, buffer: &mut [u8]) -> Answer<usize> {
        match node.is_past() {
            true => self.answer(self.past()?.read(node, offset, buffer)),
            false => self.answer(self.files.read(node.ino(), offset, buffer)),
        }
    }

    /// Writes, and returns how many bytes of `data`: less than all of them only if there is no room
    /// for the rest. `flags` are those of the open file: with `O_SYNC` or `O_DSYNC` the data are
    /// durable when this returns. `None` stands for pages that the kernel writes back, which are
    /// written as a whole or not at all, because nobody would hear of the rest. `clear_set_id`: the
    /// writer must not leave set-id bits to the file.
    pub fn write(
        &self,
        node: NodeId,
        offset: u64,
        data: &[u8],
        flags: Option<OFlags>,
        clear_set_id: bool,
    ) -> Answer<usize> {
        self.noted(Operation::Write, || {
            let (writer, inode) = self.changeable(node)?;
            self.clear_set_id(writer, &inode, clear_set_id)?;
            let Some(flags) = flags else {
                self.answer(writer.write(&inode, offset, data))?;
                return Ok(data.len());
            };
            let written = self.answer(writer.write_some(&inode, offset, data))?;
            if flags.contains(OFlags::DSYNC) {
                // O_SYNC is O_DSYNC and one more bit.
                self.answer(writer.sync_file(&inode))?;
            }
            Ok(written)
        })
    }

    /// Copies bytes from a file, also of the past, to another one, or to another place in it, by way
    /// of `buffer`. Returns how many: fewer than `length` at the end of the file, where there is no
    /// room for the rest, and if it would take long.
    pub fn copy(
        &self,
        node: NodeId,
        offset: u64,
        to: NodeId,
        to_offset: u64,
        length: u64,
        buffer: &mut Vec<u8>,
    ) -> Answer<usize> {
        let length = length.min(COPIED_AT_ONCE) as usize;
        self.noted(Operation::Copy, || {
            let (writer, target) = self.changeable(to)?;
            let mut copied = 0;
            while copied < length {
                let piece = (length - copied).min(COPIED_PIECE);
                if buffer.len() < piece {
                    buffer.resize(piece, 0);
                }
                let done = self
                    .read_now_or_then(node, offset + copied as u64, &mut buffer[..piece])
                    .and_then(|read| {
                        let data = &buffer[..read];
                        self.answer(writer.write_some(&target, to_offset + copied as u64, data))
                    });
                match done {
                    Ok(0) => break,
                    Ok(written) => copied += written,
                    // What was copied before the error is an answer; the error comes at the next call.
                    Err(_) if copied > 0 => break,
                    Err(errno) => return Err(errno),
                }
            }
            Ok(copied)
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
            match node.is_past() {
                true => self.answer(self.past()?.seek(node, offset, what)),
                false => self.answer(self.files.seek(node.ino(), offset, what)),
            }
        })
    }

    pub fn sync(&self, node: NodeId) -> Answer<()> {
        self.noted(Operation::Fsync, || match self.changeable(node) {
            Err(Errno::ROFS) if node.is_past() => self.answer(self.past()?.touch(node)),
            // What cannot be changed is durable.
            Err(Errno::ROFS) => Ok(()),
            found => {
                let (writer, inode) = found?;
                self.answer(writer.sync_file(&inode))
            }
        })
    }

    /// Makes everything durable.
    pub fn sync_fs(&self) -> Answer<()> {
        self.noted(Operation::SyncFs, || match &self.writer {
            Some(writer) => self.answer(writer.sync()),
            None => Ok(()),
        })
    }

    pub fn stat_fs(&self, node: NodeId) -> Answer<StatFs> {
        self.noted(Operation::StatFs, || {
            if node.is_past() {
                self.answer(self.past()?.touch(node))?;
            }
            self.notice_released();
            self.answer(self.files.stat_fs())
        })
    }

    /// Some entries from `cookie` on; none at the end.
    pub fn list(&self, dir: NodeId, cookie: u64) -> Answer<Vec<Listed>> {
        if dir.is_past() {
            return self.answer(self.past()?.list(dir, cookie, LISTED_AT_ONCE));
        }
        let mut listed = Vec::with_capacity(LISTED_AT_ONCE);
        self.answer(self.files.read_dir(dir.ino(), cookie, &mut |entry| {
            listed.push(Listed {
                ino: entry.ino,
                name: entry.name.to_vec(),
                next: entry.next,
                file_type: entry.file_type,
            });
            listed.len() < LISTED_AT_ONCE
        }))?;
        Ok(listed)
    }

    /// The type of a listed entry, which need not say it.
    pub fn type_of(&self, dir: NodeId, listed: &Listed) -> Answer<FileType> {
        match listed.file_type {
            Some(file_type) => Ok(file_type),
            None => {
                let given = self.give_listed(dir, listed)?;
                self.take_back(given.node, 1);
                Ok(given.attr.file_type)
            }
        }
    }

    /// Hands a listed entry to the kernel.
    pub fn give_listed(&self, dir: NodeId, listed: &Listed) -> Answer<Given> {
        match dir.is_past() {
            true => self.answer(self.past()?.give_listed(dir, listed)),
            false => self.answer(self.files.hold(listed.ino)).map(Given::present),
        }
    }

    /// Inode flags and generation; at most `room` bytes come back.
    pub fn ioctl(&self, node: NodeId, command: u32, input: &[u8], room: usize) -> Answer<Vec<u8>> {
        self.noted(Operation::Ioctl, || {
            let request = InodeIoctl::parse(command, input).ok_or(Errno::NOTTY)?;
            let attr = self.attr(node)?.attr;
            let set_flags = |flags| {
                let (writer, inode) = self.changeable(node)?;
                self.answer(writer.set_flags(&inode, flags)).map(|attr| attr.flags)
            };
            let value = match request {
                InodeIoctl::GetFlags => attr.flags,
                InodeIoctl::GetExtended => ioctl::extended(attr.flags),
                InodeIoctl::GetGeneration => attr.generation,
                InodeIoctl::SetFlags(flags) => set_flags(flags)?,
                InodeIoctl::SetExtended(extended) => {
                    let flags =
                        ioctl::with_extended(attr.flags, extended).ok_or(Errno::OPNOTSUPP)?;
                    set_flags(flags)?
                }
            };
            Ok(request.answer(value, room))
        })
    }
}

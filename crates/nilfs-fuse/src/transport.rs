//! The FUSE library: takes requests from `/dev/fuse`, lets [`Operations`] answer them, and sends
//! the answers back. No other module knows of the library.
//!
//! # Threads
//! Two to four threads read requests and answer them. One that waits for the device in an fsync
//! answers nobody else, and concurrent fsyncs can only share a commit while all of them wait. So
//! at least one reader stays out of it: further fsyncs get a thread each. So do messages to the
//! process itself, which may ask for a checkpoint. Where no further thread is to be had, the reader
//! does it after all.
//!
//! # Faults of the library (fuser 0.18) that are worked around here
//! * A time before 1970 arrives with its nanoseconds counted backwards: see [`convert::timestamp`].
//! * An inode's number in an answer is also its node id, so the root cannot be inode 2 in an
//!   answer that names it: see [`convert::Numbering`].

mod convert;

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Config, Errno, FileHandle, FopenFlags, Generation, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, Request, SessionACL, TimeOrNow, WriteFlags,
};
use nilfs_engine::{Attr, DeviceCode, FileType, Filesystem, SetAttr};
use nilfs_ondisk::inode::{S_IFDIR, S_IFMT, S_IFREG};
use rustix::fs::OFlags;

use self::convert::{
    NOTHING, Numbering, caller, code, file_attr, kind_of, name_of, node, timestamp,
};
use crate::control::{self, Handler};
use crate::metrics::Metrics;
use crate::nodes::NodeId;
use crate::operations::{Answer, Caller, Listed, Operations};

/// How long the kernel may keep a name. Nobody but the kernel changes names.
const NAMES_KEPT: Duration = Duration::from_secs(24 * 3600);

/// How long the kernel may keep attributes. It knows of all changes except that of the number of
/// blocks when delayed blocks get their place.
const ATTRIBUTES_KEPT: Duration = Duration::from_secs(60);

/// Bytes in the largest request; `fs.fuse.max_pages_limit` allows no more.
const REQUEST_SIZE: u32 = 1 << 20;

/// Requests that the kernel may have under way in the background, read-ahead above all.
const IN_BACKGROUND: u16 = 64;

/// Threads that wait for the device beside the readers.
const WAITING_BESIDE: usize = 32;

/// What the kernel must be able to do. Linux 5.13 and all later ones are.
const NEEDED: InitFlags = InitFlags::FUSE_NO_OPEN_SUPPORT.union(InitFlags::FUSE_NO_OPENDIR_SUPPORT);

/// What is asked of the kernel if it can do it. `FUSE_ASYNC_DIO` is not: with it, a buffered read
/// beside an asynchronous direct write leaves old content in the kernel's cache.
const WANTED: InitFlags = InitFlags::FUSE_ASYNC_READ
    .union(InitFlags::FUSE_BIG_WRITES)
    .union(InitFlags::FUSE_CACHE_SYMLINKS)
    .union(InitFlags::FUSE_DO_READDIRPLUS)
    .union(InitFlags::FUSE_EXPLICIT_INVAL_DATA)
    .union(InitFlags::FUSE_EXPORT_SUPPORT)
    .union(InitFlags::FUSE_HAS_IOCTL_DIR)
    .union(InitFlags::FUSE_MAX_PAGES)
    .union(InitFlags::FUSE_PARALLEL_DIROPS)
    .union(InitFlags::FUSE_READDIRPLUS_AUTO);

/// How the kernel's requests are answered.
#[derive(Clone, Default)]
pub struct Settings {
    /// Lets the kernel keep small writes back and pass them on in large ones. Faster, but an
    /// error such as `ENOSPC` may come after `write(2)` has reported success.
    pub writeback: bool,
    /// Answers the messages that come through [`crate::ask`]; without it nobody understands them.
    pub control: Option<Handler>,
    /// Where requests are counted.
    pub metrics: Arc<Metrics>,
}

/// The threads that answer the kernel's requests.
#[derive(Debug)]
pub struct Session {
    threads: fuser::BackgroundSession,
    /// The place of a buffer that the library has used for a moment, which nobody touches: given out
    /// once more, it would be cleared, and so take memory that no request of today's size needs.
    _untouched: Vec<u8>,
}

/// Bytes of each of the library's buffers.
const LIBRARY_BUFFER: usize = (16 << 20) + 4096;

impl Session {
    /// Starts to answer the requests that come through `channel`, an open `/dev/fuse`.
    ///
    /// # Errors
    /// The kernel's FUSE is older than Linux 5.13, or the channel or a thread fails. That a reader
    /// could not be started is told by [`Session::join`].
    pub fn start(channel: OwnedFd, fs: Arc<Filesystem>, settings: Settings) -> io::Result<Self> {
        let readers = readers();
        let mut config = Config::default();
        config.n_threads = Some(readers);
        // A user who may not open the device got the channel from fusermount3.
        config.clone_fd = rustix::fs::access("/dev/fuse", CAN_OPEN).is_ok();
        let front = Front {
            operations: Arc::new(Operations::new(fs, Arc::clone(&settings.metrics))),
            settings,
            readers,
            waiting: Arc::default(),
        };
        // Who may use the mount is checked by the kernel.
        let session = fuser::Session::from_fd(front, channel, SessionACL::All, config)?;
        let _untouched = Vec::with_capacity(LIBRARY_BUFFER);
        Ok(Self { threads: session.spawn()?, _untouched })
    }

    /// The number of threads that a session is made of.
    #[must_use]
    pub fn threads() -> usize {
        // The library starts a thread that starts the readers.
        readers() + 1
    }

    /// Waits until the kernel sends no more requests: the volume has been unmounted and the last
    /// open file on it closed, or the connection was aborted.
    ///
    /// # Errors
    /// The channel failed.
    pub fn join(self) -> io::Result<()> {
        self.threads.join()
    }
}

/// Threads that read requests.
fn readers() -> usize {
    thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 4))
}

/// Whether a message in the library's log means nothing: that the kernel did not wait for an
/// answer any more. The library answers an interruption when the request itself has been answered
/// or is another reader's, so that happens to every program that is killed in the middle of one.
#[must_use]
pub fn is_noise(message: &str) -> bool {
    let nobody_waits = io::Error::from(rustix::io::Errno::NOENT);
    message
        .strip_prefix("Failed to send FUSE reply: ")
        .is_some_and(|why| why == nobody_waits.to_string())
}

const CAN_OPEN: rustix::fs::Access =
    rustix::fs::Access::READ_OK.union(rustix::fs::Access::WRITE_OK);

/// What the library calls.
struct Front {
    operations: Arc<Operations>,
    settings: Settings,
    readers: usize,
    /// Requests under way that may wait for the device for long.
    waiting: Arc<AtomicUsize>,
}

impl Front {
    /// Does what may take long without taking the last reader from everybody else.
    fn patiently(&self, work: impl FnOnce(&Operations) + Send + 'static) {
        let waiting = self.waiting.fetch_add(1, Ordering::Relaxed) + 1;
        let operations = Arc::clone(&self.operations);
        let counter = Arc::clone(&self.waiting);
        let work = move || {
            work(&operations);
            counter.fetch_sub(1, Ordering::Relaxed);
        };
        if waiting < self.readers || waiting > WAITING_BESIDE {
            return work();
        }
        // The thread gets its work when it is there, because a thread that cannot be started keeps
        // nothing of what it was given.
        let (hand_over, handed) = mpsc::channel();
        let wait = move || handed.recv().map(|work: Box<dyn FnOnce() + Send>| work());
        let _ = thread::Builder::new().spawn(wait);
        if let Err(mpsc::SendError(work)) = hand_over.send(Box::new(work)) {
            work();
        }
    }

    fn sync(&self, node: NodeId, data_only: bool, reply: ReplyEmpty) {
        self.patiently(move |operations| done(operations.sync(node, data_only), reply));
    }

    /// Passes a message on to those who understand it, and their answer back.
    fn control(&self, caller: Caller, input: &[u8], room: usize, reply: ReplyIoctl) {
        let handler = self.settings.control.clone();
        let (Some(handler), Some(message)) = (handler, control::unframed(input)) else {
            return reply.error(Errno::ENOTTY);
        };
        let message = message.to_vec();
        self.patiently(move |_| {
            let answer = control::frame(&handler(caller, &message));
            match answer.filter(|answer| answer.len() <= room) {
                Some(answer) => reply.ioctl(0, &answer),
                None => reply.error(Errno::EMSGSIZE),
            }
        });
    }
}

thread_local! {
    /// Where a reader thread puts what is read from a file.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl fuser::Filesystem for Front {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let offered = config.capabilities();
        if !offered.contains(NEEDED) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel's FUSE is too old; Linux 5.13 or newer is needed",
            ));
        }
        let mut wanted = NEEDED | (WANTED & offered);
        if self.settings.writeback {
            wanted |= InitFlags::FUSE_WRITEBACK_CACHE & offered;
        }
        // Each of these gives back a value that is possible, if ours is not.
        let _ = config.add_capabilities(wanted);
        let _ = config.set_max_write(REQUEST_SIZE);
        let _ = config.set_max_background(IN_BACKGROUND);
        if let Err(most) = config.set_max_readahead(REQUEST_SIZE) {
            let _ = config.set_max_readahead(most);
        }
        Ok(())
    }

    fn lookup(&self, _: &Request, dir: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.operations.lookup(node(dir), name.as_bytes()) {
            Err(rustix::io::Errno::NOENT) => {
                // Node 0: the kernel may remember that there is no such name.
                reply.entry(&NAMES_KEPT, &file_attr(&NOTHING, Numbering::Node), Generation(0));
            }
            answer => entry(answer, reply),
        }
    }

    fn forget(&self, _: &Request, ino: INodeNo, lookups: u64) {
        self.operations.forget(node(ino), lookups);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        attr(self.operations.attr(node(ino)), reply);
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changes = SetAttr {
            mode: mode.map(|mode| (mode & 0o7777) as u16),
            uid,
            gid,
            size,
            mtime: mtime.map(|time| match time {
                TimeOrNow::SpecificTime(time) => timestamp(time),
                TimeOrNow::Now => timestamp(SystemTime::now()),
            }),
            ctime: ctime.map(timestamp),
        };
        attr(self.operations.set_attr(node(ino), &changes), reply);
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        match self.operations.read_link(node(ino)) {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        dir: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let rdev = DeviceCode::decode(u64::from(rdev));
        let name = name.as_bytes();
        let answer = self.operations.create(caller(request), node(dir), name, mode as u16, rdev);
        entry(answer, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        dir: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let (name, mode) = (name.as_bytes(), mode as u16 & !S_IFMT | S_IFDIR);
        let rdev = DeviceCode::default();
        entry(self.operations.create(caller(request), node(dir), name, mode, rdev), reply);
    }

    fn create(
        &self,
        request: &Request,
        dir: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let (name, mode) = (name.as_bytes(), mode as u16 & !S_IFMT | S_IFREG);
        let rdev = DeviceCode::default();
        match self.operations.create(caller(request), node(dir), name, mode, rdev) {
            Ok(attr) => reply.created(
                &ATTRIBUTES_KEPT,
                &file_attr(&attr, Numbering::Node),
                Generation(u64::from(attr.generation)),
                FileHandle(0),
                FopenFlags::FOPEN_KEEP_CACHE,
            ),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn symlink(
        &self,
        request: &Request,
        dir: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let (name, target) = (name.as_bytes(), target.as_os_str().as_bytes());
        entry(self.operations.symlink(caller(request), node(dir), name, target), reply);
    }

    fn link(&self, _: &Request, ino: INodeNo, dir: INodeNo, name: &OsStr, reply: ReplyEntry) {
        entry(self.operations.link(node(ino), node(dir), name.as_bytes()), reply);
    }

    fn unlink(&self, _: &Request, dir: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(self.operations.unlink(node(dir), name.as_bytes()), reply);
    }

    fn rmdir(&self, _: &Request, dir: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(self.operations.rmdir(node(dir), name.as_bytes()), reply);
    }

    fn rename(
        &self,
        _: &Request,
        dir: INodeNo,
        name: &OsStr,
        to_dir: INodeNo,
        to_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (name, to_name) = (name.as_bytes(), to_name.as_bytes());
        let (dir, to_dir) = (node(dir), node(to_dir));
        done(self.operations.rename(dir, name, to_dir, to_name, flags.bits()), reply);
    }

    /// Says that no `OPEN` is needed; see the crate's documentation.
    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    /// Says that no `OPENDIR` is needed.
    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        BUFFER.with_borrow_mut(|buffer| {
            let size = size as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            match self.operations.read(node(ino), offset, &mut buffer[..size]) {
                Ok(length) => reply.data(&buffer[..length]),
                Err(errno) => reply.error(code(errno)),
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        how: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // Pages that the kernel writes back belong to no particular open file.
        let flags = if how.contains(WriteFlags::FUSE_WRITE_CACHE) { 0 } else { flags.0 as u32 };
        let flags = OFlags::from_bits_retain(flags);
        match self.operations.write(node(ino), offset, data, flags) {
            Ok(()) => reply.written(data.len() as u32),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn lseek(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        // The kernel lets no negative offset through.
        match self.operations.seek(node(ino), offset as u64, whence as u32) {
            Ok(offset) => reply.offset(offset as i64),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, data_only: bool, reply: ReplyEmpty) {
        self.sync(node(ino), data_only, reply);
    }

    fn fsyncdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.sync(node(ino), data_only, reply);
    }

    fn readdir(
        &self,
        _: &Request,
        dir: INodeNo,
        _: FileHandle,
        cookie: u64,
        mut reply: ReplyDirectory,
    ) {
        let answer = self.list(dir, cookie, &mut |listed| {
            // The library cannot say "unknown", which a damaged inode would be.
            let kind = self.operations.type_of(listed).unwrap_or(FileType::Regular);
            reply.add(INodeNo(listed.ino.0), listed.next, kind_of(kind), name_of(listed))
        });
        match answer {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn readdirplus(
        &self,
        _: &Request,
        dir: INodeNo,
        _: FileHandle,
        cookie: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let answer = self.list(dir, cookie, &mut |listed| {
            let entry = self.operations.entry_of(listed);
            let attr = match &entry {
                Ok(entry) if listed.is_dots() => file_attr(&entry.attr, Numbering::Volume),
                Ok(entry) => file_attr(&entry.attr, Numbering::Node),
                // Node 0: a name without an inode. The kernel asks for it when it needs it.
                Err(_) => file_attr(&NOTHING, Numbering::Node),
            };
            let generation = entry.as_ref().map_or(0, |entry| entry.attr.generation);
            let full = reply.add(
                attr.ino,
                listed.next,
                name_of(listed),
                &ATTRIBUTES_KEPT,
                &attr,
                Generation(u64::from(generation)),
            );
            if let Ok(entry) = entry
                && !full
                && !listed.is_dots()
            {
                self.operations.give_listed(&entry);
            }
            full
        });
        match answer {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match self.operations.stat_fs() {
            Ok(stat) => reply.statfs(
                stat.blocks,
                stat.free,
                stat.available,
                stat.files,
                stat.files_free,
                stat.block_size,
                stat.name_max,
                stat.block_size,
            ),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn ioctl(
        &self,
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        command: u32,
        input: &[u8],
        room: u32,
        reply: ReplyIoctl,
    ) {
        if command == control::NUMBER {
            return self.control(caller(request), input, room as usize, reply);
        }
        match self.operations.ioctl(node(ino), command, input, room as usize) {
            Ok(output) => reply.ioctl(0, &output),
            Err(errno) => reply.error(code(errno)),
        }
    }
}

impl Front {
    /// Lists a directory from `cookie` on, until `add` says that its buffer is full.
    fn list(
        &self,
        dir: INodeNo,
        mut cookie: u64,
        add: &mut dyn FnMut(&Listed) -> bool,
    ) -> Answer<()> {
        let first = cookie;
        loop {
            let listed = match self.operations.list(node(dir), cookie) {
                // What was found before the error is an answer; the error comes at the next call.
                Err(_) if cookie != first => return Ok(()),
                listed => listed?,
            };
            for entry in &listed {
                if add(entry) {
                    return Ok(());
                }
                cookie = entry.next;
            }
            if listed.is_empty() {
                return Ok(());
            }
        }
    }
}

fn done(answer: Answer<()>, reply: ReplyEmpty) {
    match answer {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(code(errno)),
    }
}

fn entry(answer: Answer<Attr>, reply: ReplyEntry) {
    match answer {
        Ok(attr) => reply.entry_with_ttls(
            &ATTRIBUTES_KEPT,
            &NAMES_KEPT,
            &file_attr(&attr, Numbering::Node),
            Generation(u64::from(attr.generation)),
        ),
        Err(errno) => reply.error(code(errno)),
    }
}

fn attr(answer: Answer<Attr>, reply: ReplyAttr) {
    match answer {
        Ok(attr) => reply.attr(&ATTRIBUTES_KEPT, &file_attr(&attr, Numbering::Volume)),
        Err(errno) => reply.error(code(errno)),
    }
}

//! FUSE requests answered by the device.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{FallocateFlags, OFlags};

use super::device::{Device, MAX_REQUEST_BYTES};
use super::pacer::Pacer;

/// Name of the only file.
pub(super) const FILE_NAME: &str = "device";

const FILE: INodeNo = INodeNo(2);
/// Nothing about the file ever changes.
const TTL: Duration = Duration::from_secs(365 * 24 * 3600);
const GENERATION: Generation = Generation(0);
const NO_HANDLE: FileHandle = FileHandle(0);
/// What a loop device takes for the smallest range that can be discarded.
const BLOCK_BYTES: u32 = 4096;

/// What the kernel talks to.
pub(super) struct Front {
    device: Arc<Device>,
    pacer: Option<Pacer>,
    queue_depth: u16,
    root: FileAttr,
    file: FileAttr,
}

impl Front {
    pub(super) fn new(device: Arc<Device>, pace: bool, queue_depth: u16) -> Result<Self> {
        let pacer = pace.then(Pacer::start).transpose()?;
        let root = attr(INodeNo::ROOT, FileType::Directory, 0o700, 0);
        let file = attr(FILE, FileType::RegularFile, 0o600, device.bytes());
        Ok(Self { device, pacer, queue_depth, root, file })
    }

    fn attr(&self, ino: INodeNo) -> Result<&FileAttr, Errno> {
        match ino {
            INodeNo::ROOT => Ok(&self.root),
            FILE => Ok(&self.file),
            _ => Err(Errno::ENOENT),
        }
    }

    /// The moment at which a request arrives. A device without power refuses it.
    fn arrival(&self) -> Result<Duration, Errno> {
        self.device.is_powered().then(|| self.device.now()).ok_or(Errno::EIO)
    }

    /// Answers when the device is done.
    fn answer(&self, due: Duration, answer: impl FnOnce() + Send + 'static) {
        match &self.pacer {
            Some(pacer) => pacer.send_at(self.device.instant(due), Box::new(answer)),
            None => answer(),
        }
    }

    fn change_range(
        &self,
        offset: u64,
        length: u64,
        mode: FallocateFlags,
    ) -> Result<Duration, Errno> {
        let at = self.arrival()?;
        let bytes = self.device.within(offset, length);
        let done = match mode.difference(FallocateFlags::KEEP_SIZE) {
            // Everything is there already.
            rest if rest.is_empty() => Ok(at),
            _ if bytes == 0 => Ok(at),
            FallocateFlags::PUNCH_HOLE => self.device.discard(offset, bytes, at),
            FallocateFlags::ZERO_RANGE => self.device.zero(offset, bytes, at),
            _ => return Err(Errno::EOPNOTSUPP),
        };
        done.map_err(Errno::from)
    }
}

fn attr(ino: INodeNo, kind: FileType, perm: u16, size: u64) -> FileAttr {
    let now = SystemTime::now();
    FileAttr {
        ino,
        size,
        blocks: size / 512,
        atime: now,
        mtime: now,
        ctime: now,
        crtime: now,
        kind,
        perm,
        nlink: 1,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        rdev: 0,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

fn is_synchronous(flags: OpenFlags) -> bool {
    OFlags::from_bits_retain(flags.0 as u32).intersects(OFlags::DSYNC | OFlags::SYNC)
}

impl Filesystem for Front {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // An older kernel sends asynchronous requests one after another, as any queue may.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        // An ordinary user may be allowed fewer.
        let _ = config.set_max_background(self.queue_depth);
        config
            .set_max_write(MAX_REQUEST_BYTES)
            .map(drop)
            .map_err(|_| io::Error::other("requests of 1 MiB are refused"))
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match parent == INodeNo::ROOT && name == FILE_NAME {
            true => reply.entry(&TTL, &self.file, GENERATION),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        match self.attr(ino) {
            Ok(attr) => reply.attr(&TTL, attr),
            Err(error) => reply.error(error),
        }
    }

    /// Changes nothing and accepts everything, as a disk that is opened with `O_TRUNC`.
    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.getattr(request, ino, handle, reply);
    }

    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(NO_HANDLE, flags);
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let bytes = self.device.within(offset, size.into());
        if bytes == 0 {
            return reply.data(&[]);
        }
        let read = self.arrival().and_then(|at| Ok(self.device.read(offset, bytes, at)?));
        match read {
            Ok((data, due)) => self.answer(due, move || reply.data(&data)),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let bytes = self.device.within(offset, data.len() as u64) as usize;
        if bytes == 0 {
            return reply.error(Errno::ENOSPC);
        }
        let write = || {
            let at = self.arrival()?;
            let written = self.device.write(offset, &data[..bytes], at)?;
            // The kernel leaves it to us to keep the promise of O_DSYNC.
            Ok(if is_synchronous(flags) { self.device.flush(at) } else { written })
        };
        match write() {
            Ok(due) => self.answer(due, move || reply.written(bytes as u32)),
            Err(error) => reply.error(error),
        }
    }

    /// Closing the file is of no interest to a disk.
    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        match self.arrival() {
            Ok(at) => self.answer(self.device.flush(at), move || reply.ok()),
            Err(error) => reply.error(error),
        }
    }

    fn fallocate(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let mode = FallocateFlags::from_bits_retain(mode as u32);
        match self.change_range(offset, length, mode) {
            Ok(due) => self.answer(due, move || reply.ok()),
            Err(error) => reply.error(error),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let entries = [
            (INodeNo::ROOT, FileType::Directory, "."),
            (INodeNo::ROOT, FileType::Directory, ".."),
            (FILE, FileType::RegularFile, FILE_NAME),
        ];
        for (next, (ino, kind, name)) in (1..).zip(entries).skip(offset as usize) {
            if reply.add(ino, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    /// The kernel asks for the block size when a loop device is made.
    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let blocks = self.device.bytes() / u64::from(BLOCK_BYTES);
        reply.statfs(blocks, 0, 0, 1, 0, BLOCK_BYTES, 255, BLOCK_BYTES);
    }
}

//! FUSE requests, answered from the nodes in memory.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite,
    Request, TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;

use super::MAX_REQUEST_BYTES;
use super::nodes::{NewNode, Node, Nodes};

/// Nobody but the kernel changes anything, so what it knows stays true.
const TTL: Duration = Duration::from_secs(365 * 24 * 3600);
const GENERATION: Generation = Generation(0);
const NO_HANDLE: FileHandle = FileHandle(0);

/// What makes the transport fast; each is taken if the kernel offers it.
const WANTED: &[InitFlags] = &[
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_NO_OPEN_SUPPORT,
    InitFlags::FUSE_NO_OPENDIR_SUPPORT,
    InitFlags::FUSE_CACHE_SYMLINKS,
];

/// The file system.
pub struct NullFs {
    nodes: Mutex<Nodes>,
    zeros: Vec<u8>,
    writeback_cache: bool,
}

impl NullFs {
    /// An empty one.
    pub fn new(writeback_cache: bool) -> Self {
        let zeros = vec![0; MAX_REQUEST_BYTES as usize];
        Self { nodes: Mutex::new(Nodes::new()), zeros, writeback_cache }
    }

    /// Attributes of a node. The lock is free again when the caller replies.
    fn attr(&self, ino: INodeNo) -> Result<FileAttr, Errno> {
        self.nodes.lock().node(ino).map(|node| node.attr)
    }

    fn change(&self, ino: INodeNo, change: impl FnOnce(&mut Node)) -> Result<FileAttr, Errno> {
        let mut nodes = self.nodes.lock();
        let node = nodes.node_mut(ino)?;
        change(node);
        Ok(node.attr)
    }

    fn create_node(&self, parent: INodeNo, name: &OsStr, new: NewNode) -> Result<FileAttr, Errno> {
        self.nodes.lock().create(parent, name, new).map(|node| node.attr)
    }

    fn remove(&self, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.nodes.lock().remove(parent, name);
        match removed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }
}

fn answer_entry(reply: ReplyEntry, attr: Result<FileAttr, Errno>) {
    match attr {
        Ok(attr) => reply.entry(&TTL, &attr, GENERATION),
        Err(error) => reply.error(error),
    }
}

fn new_node(request: &Request, kind: FileType, mode: u32) -> NewNode {
    NewNode {
        kind,
        perm: (mode & 0o7777) as u16,
        uid: request.uid(),
        gid: request.gid(),
        target: OsString::new(),
    }
}

fn resolve(time: TimeOrNow) -> SystemTime {
    match time {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => SystemTime::now(),
    }
}

impl Filesystem for NullFs {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let writeback = self.writeback_cache.then_some(InitFlags::FUSE_WRITEBACK_CACHE);
        for flag in WANTED.iter().copied().chain(writeback) {
            // A kernel that does not know the flag is slower; that is its limit then.
            let _ = config.add_capabilities(flag);
        }
        config
            .set_max_write(MAX_REQUEST_BYTES)
            .map(drop)
            .map_err(|_| io::Error::other("requests of 1 MiB are refused"))
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.nodes.lock().lookup(parent, name).map(|node| node.attr);
        // An entry without a node lets the kernel remember that the name does not exist.
        answer_entry(reply, Ok(found.unwrap_or_else(|_| Nodes::absent())));
    }

    fn getattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        match self.attr(ino) {
            Ok(attr) => reply.attr(&TTL, &attr),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changed = self.change(ino, |node| {
            if let Some(size) = size {
                node.resize(size);
            }
            let attr = &mut node.attr;
            attr.perm = mode.map_or(attr.perm, |mode| (mode & 0o7777) as u16);
            attr.uid = uid.unwrap_or(attr.uid);
            attr.gid = gid.unwrap_or(attr.gid);
            attr.atime = atime.map_or(attr.atime, resolve);
            attr.mtime = mtime.map_or(attr.mtime, resolve);
            attr.ctime = ctime.unwrap_or(attr.ctime);
        });
        match changed {
            Ok(attr) => reply.attr(&TTL, &attr),
            Err(error) => reply.error(error),
        }
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        match self.nodes.lock().node(ino) {
            Ok(node) => reply.data(node.target.as_bytes()),
            Err(error) => reply.error(error),
        }
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let new = new_node(request, FileType::Directory, mode);
        answer_entry(reply, self.create_node(parent, name, new));
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let mut new = new_node(request, FileType::Symlink, 0o777);
        new.target = target.as_os_str().to_owned();
        answer_entry(reply, self.create_node(parent, name, new));
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let new = new_node(request, FileType::RegularFile, mode);
        match self.create_node(parent, name, new) {
            Ok(attr) => {
                let flags = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH;
                reply.created(&TTL, &attr, GENERATION, NO_HANDLE, flags);
            }
            Err(error) => reply.error(error),
        }
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(parent, name, reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(parent, name, reply);
    }

    /// Refused once, never asked again: from then on, opening costs no request.
    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    /// As [`NullFs::open`].
    fn opendir(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.attr(ino) {
            Ok(attr) => {
                let left = attr.size.saturating_sub(offset).min(u64::from(size)) as usize;
                reply.data(&self.zeros[..left.min(self.zeros.len())]);
            }
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let end = offset.saturating_add(data.len() as u64);
        let grown = self.change(ino, |node| {
            if end > node.attr.size {
                node.resize(end);
            }
        });
        match grown {
            Ok(_) => reply.written(data.len() as u32),
            Err(error) => reply.error(error),
        }
    }

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
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn readdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let nodes = self.nodes.lock();
        match nodes.list(ino, offset) {
            Ok(mut names) => {
                names.find(|(cookie, name, node)| {
                    reply.add(node.attr.ino, *cookie, node.attr.kind, name)
                });
                reply.ok();
            }
            Err(error) => reply.error(error),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let nodes = self.nodes.lock();
        match nodes.list(ino, offset) {
            Ok(mut names) => {
                names.find(|(cookie, name, node)| {
                    reply.add(node.attr.ino, *cookie, name, &TTL, &node.attr, GENERATION)
                });
                reply.ok();
            }
            Err(error) => reply.error(error),
        }
    }

    /// Room without end.
    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        const BLOCKS: u64 = 1 << 32;
        reply.statfs(BLOCKS, BLOCKS, BLOCKS, BLOCKS, BLOCKS, 4096, 255, 4096);
    }
}

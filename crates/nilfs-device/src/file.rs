//! A block device or an image file.

use std::fmt;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::num::{NonZeroU64, NonZeroUsize};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{Advice, FallocateFlags, FlockOperation, OFlags};
use rustix::io::ReadWriteFlags;
use thiserror::Error;

use crate::claims::Marked;
use crate::direct::{Direct, LONG_WRITE};
use crate::holder::{Holder, holder_of};
use crate::loops::{self, InUse, Node};
use crate::part::{self, Part};
use crate::under_way::UnderWay;
use crate::{Claim, Device, IoSlice, check_range, claims, kernel, reads};

/// Pieces that one gathered write may have (`IOV_MAX` of Linux).
const PIECES_PER_CALL: usize = 1024;

/// How a device is opened, and so which other processes may have it open.
///
/// A reader keeps nobody out, but every writer sees it, also one that was there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read, even while somebody writes.
    Inspect,
    /// Read, unless somebody writes already.
    ReadOnly,
    /// Read and write; nobody else may write meanwhile.
    ReadWrite,
    /// As `ReadWrite`, although the kernel may have it mounted: at the user's own risk.
    Forced,
}

impl Access {
    fn writes(self) -> bool {
        matches!(self, Self::ReadWrite | Self::Forced)
    }
}

/// Why a device could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The operating system said no.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// The device or image.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Neither a block device nor a regular file.
    #[error("{} is {kind}, not a block device or an image file", path.display())]
    WrongKind {
        /// What was named.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// Somebody else has it.
    #[error("{} {}is in use by {holder}", path.display(), Below(below.as_deref()))]
    Busy {
        /// The device or image.
        path: PathBuf,
        /// What is in use, if it is not the device itself: a file that a loop device shows, or
        /// another loop device that shows the same.
        below: Option<PathBuf>,
        /// The program that has it, as far as that can be known.
        holder: Holder,
    },
}

/// "shows the same as disk.img, which ", or nothing.
struct Below<'a>(Option<&'a Path>);

impl fmt::Display for Below<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(path) => write!(f, "shows the same as {}, which ", path.display()),
            None => Ok(()),
        }
    }
}

impl OpenError {
    /// The kind of error that the operating system gave, where it was one.
    #[must_use]
    pub fn io_kind(&self) -> Option<io::ErrorKind> {
        match self {
            Self::Open { source, .. } => Some(source.kind()),
            _ => None,
        }
    }
}

/// A block device or an image file. Others can see that it is being read or written, and a second
/// writer is kept out.
pub struct FileDevice {
    file: Arc<File>,
    /// The same past the system's memory, where that is possible.
    direct: Option<Direct>,
    /// What is written there.
    under_way: UnderWay,
    /// The same block device, opened so that nobody else on this host can claim it.
    exclusive: Mutex<Option<File>>,
    /// Says that this process is about to let go of it.
    ending: Mutex<Option<File>>,
    size: AtomicU64,
    /// Bytes that are read at a time; `None`: as many as are asked for.
    read_at_once: Option<NonZeroUsize>,
    access: Access,
    /// Somebody has locked all of it for reading, so that other writers cannot see this one yet.
    unmarked: AtomicBool,
    /// Tells writers that this process reads.
    _reading: Option<Claim>,
}

impl fmt::Debug for FileDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileDevice")
            .field("file", &self.file)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

impl FileDevice {
    /// Opens `path`.
    ///
    /// For reading, this waits while a writer [keeps readers out](Device::keep_readers_out); what
    /// is seen then stays where it is, as long as writers respect [`Device::is_read`].
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(path: &Path, access: Access) -> Result<Self, OpenError> {
        let opening = Opening::new(path, access)?;
        match access.writes() {
            true => opening.for_writing(),
            false => opening.for_reading(),
        }
    }

    /// Releases the exclusive claim on a block device, so that the kernel can have it for a mount.
    /// Other writers of ours are still kept out. Nothing may be written until somebody has claimed
    /// the device again.
    pub fn yield_claim(&self) {
        self.exclusive.lock().take();
    }

    /// Claims a block device once more.
    ///
    /// # Errors
    /// Somebody was faster.
    pub fn retake_claim(&self) -> io::Result<()> {
        if self.file.metadata()?.file_type().is_block_device() {
            let claim = claim_exclusively(Path::new(&claims::path_of(&self.file)))?;
            *self.exclusive.lock() = Some(claim);
        }
        Ok(())
    }

    /// Tells other processes that it is worth waiting: only what is left is still being written.
    /// [`crate::wait_for_end`] waits for that.
    ///
    /// # Errors
    /// The system has no lock for that.
    pub fn announce_end(&self) -> io::Result<()> {
        let announced = claims::announce_end(&self.file)?;
        *self.ending.lock() = Some(announced);
        Ok(())
    }

    /// Releases all locks and claims. Nothing may be written any more.
    ///
    /// # Errors
    /// The name of this process is still on the device, or something could not be written.
    pub fn release(&self) -> io::Result<()> {
        let written = self.under_way.finish();
        self.yield_claim();
        if self.access.writes() {
            claims::stop_writing(&self.file);
        }
        rustix::fs::flock(&self.file, FlockOperation::Unlock)?;
        self.ending.lock().take();
        written
    }
}

/// Asks the kernel whether anybody has a block device mounted or claimed, and claims it.
fn claim_exclusively(path: &Path) -> io::Result<File> {
    let flags = OFlags::EXCL.bits() as i32;
    File::options().read(true).write(true).custom_flags(flags).open(path)
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        // Whoever needs to know whether it has failed has flushed.
        let _ = self.under_way.finish();
        if self.access.writes() {
            claims::stop_writing(&self.file);
        }
    }
}

/// A device that is about to be opened.
struct Opening<'a> {
    path: &'a Path,
    access: Access,
    node: Node,
}

impl<'a> Opening<'a> {
    fn new(path: &'a Path, access: Access) -> Result<Self, OpenError> {
        let metadata = std::fs::metadata(path)
            .map_err(|source| OpenError::Open { path: path.to_owned(), source })?;
        let kind = metadata.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            let kind = if kind.is_dir() { "a directory" } else { "a special file" };
            return Err(OpenError::WrongKind { path: path.to_owned(), kind });
        }
        Ok(Self { path, access, node: Node::of(&metadata) })
    }

    fn for_reading(self) -> Result<FileDevice, OpenError> {
        let mut file = self.open_file(self.path)?;
        if self.access == Access::ReadOnly {
            self.refuse_if(claims::is_written(&file).unwrap_or(false))?;
        }
        if let Node::Device(device) = self.node
            && let Some(written) = loops::written_below(device)
        {
            match (self.access, written.same) {
                // What the kernel remembers of the loop device may be older than the file.
                (Access::Inspect, Some(same)) => file = same,
                (Access::Inspect, None) => {}
                _ => return Err(self.busy_below(written.in_use)),
            }
        }
        // Where nothing can be locked, nobody can be told.
        let reading = claims::read(&file).ok();
        self.opened(file, None, Marked::Yes, reading)
    }

    fn for_writing(self) -> Result<FileDevice, OpenError> {
        let exclusive = self.claim()?;
        let same = exclusive.as_ref().map(claims::path_of);
        let mut file = self.open_file(same.as_ref().map_or(self.path, Path::new))?;
        let mut marked = self.mark(&file)?;
        if let (Marked::No, Node::File { .. }) = (marked, self.node) {
            drop(file);
            self.refuse_if(self.is_open_for_writing())?;
            file = self.open_file(self.path)?;
            marked = self.mark(&file)?;
        }
        // Names this process to the processes that are refused, and keeps udev away. Any user who
        // may read the file can take this lock: it does not decide anything.
        let _ = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
        if let Node::Device(device) = self.node {
            if let Some(written) = loops::written_below(device) {
                return Err(self.busy_below(written.in_use));
            }
            if self.access == Access::ReadWrite
                && let Some(in_use) = loops::used_elsewhere(device)
            {
                return Err(self.busy_below(in_use));
            }
        }
        if self.access == Access::ReadWrite
            && let Some(device) = loops::showing(self.node)
        {
            return Err(self.busy(Holder::Loop(device)));
        }
        self.opened(file, exclusive, marked, None)
    }

    /// Claims a block device for this process alone, if it is to be written.
    fn claim(&self) -> Result<Option<File>, OpenError> {
        if self.access != Access::ReadWrite || !matches!(self.node, Node::Device(_)) {
            return Ok(None);
        }
        let claimed = claim_exclusively(self.path).map(Some);
        claimed.map_err(|error| match error.kind() {
            io::ErrorKind::ResourceBusy => self.busy(holder_of(self.path, self.node)),
            _ => self.cannot(error),
        })
    }

    fn open_file(&self, path: &Path) -> Result<File, OpenError> {
        let mut options = File::options();
        options.read(true).write(self.access.writes());
        options.open(path).map_err(|error| self.cannot(error))
    }

    /// Shows other writers that this one is there.
    fn mark(&self, file: &File) -> Result<Marked, OpenError> {
        claims::write(file).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => self.busy(holder_of(self.path, self.node)),
            _ => self.cannot(error),
        })
    }

    /// Whether anybody writes to the file, marked or not. A caller who may not ask is not the
    /// owner, and gives way.
    fn is_open_for_writing(&self) -> bool {
        let file = File::open(self.path);
        file.and_then(|file| kernel::is_open_for_writing(&file)).unwrap_or(true)
    }

    fn opened(
        self,
        file: File,
        exclusive: Option<File>,
        marked: Marked,
        reading: Option<Claim>,
    ) -> Result<FileDevice, OpenError> {
        // The end of a block device is found as that of a file.
        let size = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0));
        let read_at_once = match self.node {
            Node::Device(device) => reads::at_once(device),
            Node::File { .. } => None,
        };
        Ok(FileDevice {
            direct: Direct::of(&file, self.access.writes()),
            under_way: UnderWay::default(),
            read_at_once,
            size: AtomicU64::new(size.map_err(|error| self.cannot(error.into()))?),
            file: Arc::new(file),
            exclusive: Mutex::new(exclusive),
            ending: Mutex::default(),
            access: self.access,
            unmarked: AtomicBool::new(marked == Marked::No),
            _reading: reading,
        })
    }

    fn refuse_if(&self, in_use: bool) -> Result<(), OpenError> {
        match in_use {
            true => Err(self.busy(holder_of(self.path, self.node))),
            false => Ok(()),
        }
    }

    fn cannot(&self, source: io::Error) -> OpenError {
        OpenError::Open { path: self.path.to_owned(), source }
    }

    fn busy(&self, holder: Holder) -> OpenError {
        OpenError::Busy { path: self.path.to_owned(), below: None, holder }
    }

    fn busy_below(&self, in_use: InUse) -> OpenError {
        let holder = holder_of(&in_use.path, in_use.node);
        OpenError::Busy { path: self.path.to_owned(), below: Some(in_use.path), holder }
    }
}

impl Device for FileDevice {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    fn is_read_only(&self) -> bool {
        !self.access.writes()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        check_range(self.size(), offset, buffer.len() as u64)?;
        self.under_way.wait_for(&(offset..offset + buffer.len() as u64))?;
        let at_once = self.read_at_once.map_or(usize::MAX, NonZeroUsize::get);
        let mut at = offset;
        buffer.chunks_mut(at_once).try_for_each(|part| {
            self.file.read_exact_at(part, at)?;
            at += part.len() as u64;
            Ok(())
        })
    }

    /// Reads what the system has in memory. Where its file system cannot say what that is, as a few
    /// cannot, everything may have to be waited for.
    fn read_without_waiting(&self, offset: u64, buffer: &mut [u8]) -> io::Result<bool> {
        check_range(self.size(), offset, buffer.len() as u64)?;
        let length = buffer.len();
        if self.under_way.has(&(offset..offset + length as u64)) {
            return Ok(false);
        }
        let (pieces, flags) = (&mut [IoSliceMut::new(buffer)], ReadWriteFlags::NOWAIT);
        // A read that waits will tell what was wrong.
        let read = rustix::io::preadv2(&self.file, pieces, offset, flags);
        Ok(read.is_ok_and(|read| read == length))
    }

    fn read_once(&self, offset: u64, parts: &mut [Part<'_>], wait: bool) -> io::Result<bool> {
        let total = part::total(parts) as u64;
        check_range(self.size(), offset, total)?;
        if wait {
            self.under_way.wait_for(&(offset..offset + total))?;
        }
        let direct = self.direct.as_ref().filter(|direct| direct.is_for(offset, parts));
        if direct.is_some() && !wait {
            return Ok(false);
        }
        if direct.is_some_and(|direct| direct.read(offset, parts)) {
            return Ok(true);
        }
        part::gather(parts, |buffer| match wait {
            true => self.read_at(offset, buffer).map(|()| true),
            false => self.read_without_waiting(offset, buffer),
        })
    }

    fn write_at(&self, offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        let total = pieces.iter().map(|piece| piece.len() as u64).sum();
        check_range(self.size(), offset, total)?;
        // A card with one open unit should get first what was written first, and a superblock must not
        // name a log that may still fail.
        self.under_way.finish()?;
        write_cached(&self.file, offset, pieces)
    }

    fn begin_to_write(&self, offset: u64, pieces: Vec<Arc<Box<[u8]>>>) -> io::Result<()> {
        let total = pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        check_range(self.size(), offset, total)?;
        let direct = self.direct.as_ref().and_then(|direct| direct.to_write(offset, &pieces));
        let Some(direct) = direct else {
            return self.write_at(offset, &slices(&pieces));
        };
        let file = Arc::clone(&self.file);
        let write = move || {
            let pieces = slices(&pieces);
            // Through the system's memory, it tells what was wrong, or that nothing is.
            write_groups(&direct, offset, &pieces).or_else(|_| write_cached(&file, offset, &pieces))
        };
        self.under_way.begin(offset..offset + total, Box::new(write))
    }

    fn flush(&self) -> io::Result<()> {
        self.under_way.finish()?;
        if self.unmarked.load(Ordering::Relaxed) {
            // If a second writer is there by now, this one must not write.
            let marked = claims::write(&self.file)?;
            self.unmarked.store(marked == Marked::No, Ordering::Relaxed);
        }
        Ok(rustix::fs::fdatasync(&self.file)?)
    }

    fn discard(&self, offset: u64, bytes: u64) -> io::Result<()> {
        check_range(self.size(), offset, bytes)?;
        self.under_way.wait_for(&(offset..offset + bytes))?;
        // A hole in a file; on a block device the kernel turns it into a discard.
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, mode, offset, bytes)?)
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        self.under_way.finish()?;
        if self.file.metadata()?.is_file() {
            self.file.set_len(bytes)?;
        }
        let size = rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0))?;
        self.size.store(size, Ordering::Relaxed);
        if size == bytes { Ok(()) } else { Err(io::ErrorKind::Unsupported.into()) }
    }

    fn forget_cached(&self, offset: u64, bytes: u64) {
        let Some(bytes) = NonZeroU64::new(bytes) else { return };
        let _ = rustix::fs::fadvise(&self.file, offset, Some(bytes), Advice::DontNeed);
    }

    fn write_out(&self, offset: u64, bytes: u64, wait: bool) -> io::Result<()> {
        if wait {
            self.under_way.wait_for(&(offset..offset + bytes))?;
        }
        kernel::write_out(&self.file, offset, bytes, wait)
    }

    fn will_need(&self, offset: u64, bytes: u64) {
        let Some(bytes) = NonZeroU64::new(bytes) else { return };
        let _ = rustix::fs::fadvise(&self.file, offset, Some(bytes), Advice::WillNeed);
    }

    fn without_read_ahead(&self) {
        let _ = rustix::fs::fadvise(&self.file, 0, None, Advice::Random);
    }

    fn is_read(&self) -> bool {
        // Where nothing can be locked, nobody can have told.
        claims::is_read(&self.file).unwrap_or(false)
    }

    fn keep_readers_out(&self) -> Option<Claim> {
        claims::keep_readers_out(&self.file).unwrap_or_else(|_| Some(Box::new(())))
    }
}

fn slices(pieces: &[Arc<Box<[u8]>>]) -> Vec<IoSlice<'_>> {
    pieces.iter().map(|piece| IoSlice::new(piece)).collect()
}

/// Writes all pieces at `offset` to the system's memory.
fn write_cached(file: &File, offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<()> {
    write_groups(file, offset, pieces)?;
    let total = pieces.iter().map(|piece| piece.len()).sum::<usize>();
    if total >= LONG_WRITE {
        // The system begins to write at once, while we go on: the next flush has less to wait for, and
        // tells what has failed. A system that cannot begin before is no worse.
        let _ = kernel::write_out(file, offset, total as u64, false);
    }
    Ok(())
}

/// Writes all pieces at `offset`, with as few calls as possible.
fn write_groups(file: &File, offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<()> {
    let mut at = offset;
    pieces.chunks(PIECES_PER_CALL).try_for_each(|group| {
        at = write_all(file, at, group)?;
        Ok(())
    })
}

/// Writes all pieces at `offset` and returns the offset after them, whatever part of them the
/// system takes at a time.
fn write_all(file: &File, offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<u64> {
    let (mut at, mut nth, mut within) = (offset, 0, 0);
    while nth < pieces.len() {
        if pieces[nth].len() == within {
            (nth, within) = (nth + 1, 0);
            continue;
        }
        let written = if within == 0 {
            rustix::io::retry_on_intr(|| rustix::io::pwritev(file, &pieces[nth..], at))?
        } else {
            rustix::io::retry_on_intr(|| rustix::io::pwrite(file, &pieces[nth][within..], at))?
        };
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        at += written as u64;
        let mut left = written;
        while left > 0 {
            let take = left.min(pieces[nth].len() - within);
            (within, left) = (within + take, left - take);
            if within == pieces[nth].len() {
                (nth, within) = (nth + 1, 0);
            }
        }
    }
    Ok(at)
}

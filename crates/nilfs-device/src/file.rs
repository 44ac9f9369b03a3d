//! A block device or an image file.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Advice, FallocateFlags, FlockOperation, OFlags};
use thiserror::Error;

use crate::holder::{Holder, holder_of, loop_device_of};
use crate::{Claim, Device, IoSlice, check_range, claims};

/// Pieces that one gathered write may have (`IOV_MAX` of Linux).
const PIECES_PER_CALL: usize = 1024;

/// Bytes from which on a write is worth being sent on its way to the device at once.
const LARGE_WRITE: u64 = 1 << 20;

/// How a device is opened, and so who else may have it open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Look inside without a lock, even while somebody writes.
    Inspect,
    /// Read; nobody may write meanwhile.
    ReadOnly,
    /// Read and write; nobody else may read or write meanwhile.
    ReadWrite,
    /// As `ReadWrite`, although the kernel may have it mounted: at the user's own risk.
    Forced,
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
    #[error("{} is in use by {holder}", path.display())]
    Busy {
        /// The device or image.
        path: PathBuf,
        /// Who has it, as far as that can be known.
        holder: Holder,
    },
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

/// A block device or an image file, with a lock that keeps a second writer out.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    size: AtomicU64,
    access: Access,
}

impl FileDevice {
    /// Opens `path`.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(path: &Path, access: Access) -> Result<Self, OpenError> {
        let cannot = |source| OpenError::Open { path: path.to_owned(), source };
        let metadata = std::fs::metadata(path).map_err(cannot)?;
        let kind = metadata.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            let kind = if kind.is_dir() { "a directory" } else { "a special file" };
            return Err(OpenError::WrongKind { path: path.to_owned(), kind });
        }
        let mut options = File::options();
        options.read(true).write(matches!(access, Access::ReadWrite | Access::Forced));
        if access == Access::ReadWrite && kind.is_block_device() {
            // On a block device this asks the kernel whether anybody has it mounted.
            options.custom_flags(OFlags::EXCL.bits() as i32);
        }
        let busy = || OpenError::Busy { path: path.to_owned(), holder: holder_of(path, &metadata) };
        let file = options.open(path).map_err(|error| match error.raw_os_error() {
            Some(code) if code == rustix::io::Errno::BUSY.raw_os_error() => busy(),
            _ => cannot(error),
        })?;
        let lock = match access {
            Access::Inspect => None,
            Access::ReadOnly => Some(FlockOperation::NonBlockingLockShared),
            Access::ReadWrite | Access::Forced => Some(FlockOperation::NonBlockingLockExclusive),
        };
        if let Some(lock) = lock
            && let Err(error) = rustix::fs::flock(&file, lock)
        {
            return Err(match error {
                rustix::io::Errno::WOULDBLOCK => busy(),
                other => cannot(other.into()),
            });
        }
        if access == Access::ReadWrite
            && kind.is_file()
            && let Some(device) = loop_device_of(&metadata)
        {
            return Err(OpenError::Busy { path: path.to_owned(), holder: Holder::Loop(device) });
        }
        // The end of a block device is found as that of a file.
        let size =
            rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).map_err(|e| cannot(e.into()))?;
        Ok(Self { file, size: AtomicU64::new(size), access })
    }
}

impl Device for FileDevice {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    fn is_read_only(&self) -> bool {
        matches!(self.access, Access::Inspect | Access::ReadOnly)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        check_range(self.size(), offset, buffer.len() as u64)?;
        self.file.read_exact_at(buffer, offset)
    }

    fn write_at(&self, offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        let total = pieces.iter().map(|piece| piece.len() as u64).sum();
        check_range(self.size(), offset, total)?;
        let mut at = offset;
        for group in pieces.chunks(PIECES_PER_CALL) {
            at = write_all(&self.file, at, group)?;
        }
        if let Some(large) = NonZeroU64::new(total).filter(|total| total.get() >= LARGE_WRITE) {
            // Only advice, but it lets the system begin to write at once, while we go on: the next
            // flush has less to wait for. The system above us caches the same data already.
            let _ = rustix::fs::fadvise(&self.file, offset, Some(large), Advice::DontNeed);
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(&self.file)?)
    }

    fn discard(&self, offset: u64, bytes: u64) -> io::Result<()> {
        check_range(self.size(), offset, bytes)?;
        // A hole in a file; on a block device the kernel turns it into a discard.
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, mode, offset, bytes)?)
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        if self.file.metadata()?.is_file() {
            self.file.set_len(bytes)?;
        }
        let size = rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0))?;
        self.size.store(size, Ordering::Relaxed);
        if size == bytes { Ok(()) } else { Err(io::ErrorKind::Unsupported.into()) }
    }

    fn claim(&self, key: u64) -> io::Result<Claim> {
        claims::claim(&self.file, key)
    }

    fn reserve(&self, keys: Range<u64>) -> io::Result<(Vec<u64>, Claim)> {
        claims::reserve(&self.file, keys)
    }
}

/// Writes all pieces at `offset` and gives the offset behind them, whatever part of them the
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

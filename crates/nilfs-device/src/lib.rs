//! What a volume lies on: an array of bytes that can be read, written, flushed and discarded.
//!
//! [`Device`] is all that the engine and the checker know of hardware. [`FileDevice`] is a block
//! device or an image file, [`MemoryDevice`] a buffer, [`RecordingDevice`] a wrapper that
//! remembers writes and flushes so that a power cut can be played at any of them,
//! [`FaultyDevice`] one whose requests fail by a rule, [`MaskedDevice`] one of which some parts are
//! not to be read, and [`CopyOnWriteDevice`] one that keeps writes elsewhere, in a scratch file.
//!
//! This crate knows nothing of NILFS2.

mod claims;
mod copy_on_write;
mod direct;
mod faulty;
mod file;
mod holder;
mod kernel;
mod loops;
mod masked;
mod memory;
mod part;
mod reads;
mod recording;
mod scratch;
mod under_way;
mod writes;

use std::io;
use std::sync::Arc;

pub use claims::{Claim, is_ending, is_read, is_written, wait_for_end};
pub use copy_on_write::CopyOnWriteDevice;
pub use faulty::{Action, Fault, Faults, FaultyDevice, Request};
pub use file::{Access, FileDevice, OpenError};
pub use holder::Holder;
pub use masked::MaskedDevice;
pub use memory::MemoryDevice;
pub use part::{Part, gather};
pub use recording::{Event, RecordingDevice};
pub use scratch::Scratch;
pub use writes::Writes;

pub use std::io::IoSlice;

/// An array of bytes with a durability barrier.
///
/// Methods take `&self`: a device serves several threads at once. Data that were written can be
/// read at once, but survive a power cut only after the next [`flush`](Device::flush).
pub trait Device: Send + Sync {
    /// Size in bytes.
    fn size(&self) -> u64;

    /// Whether writes are impossible.
    fn is_read_only(&self) -> bool;

    /// Fills `buffer` with the bytes at `offset`.
    ///
    /// # Errors
    /// Any device error; reading beyond the end is [`io::ErrorKind::UnexpectedEof`].
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Fills `buffer` with the bytes at `offset`, if nobody has to wait for that. Returns whether it
    /// did. A device that does not know what has to be waited for reads in any case.
    ///
    /// # Errors
    /// As [`Device::read_at`].
    fn read_without_waiting(&self, offset: u64, buffer: &mut [u8]) -> io::Result<bool> {
        self.read_at(offset, buffer).map(|()| true)
    }

    /// Reads the parts, which lie one after the other from `offset` on, as [`Device::read_at`], or as
    /// [`Device::read_without_waiting`] unless `wait`. They are not likely to be asked for again soon:
    /// nothing need be kept of them.
    ///
    /// # Errors
    /// As [`Device::read_at`], also for what is skipped, which may be read as well.
    fn read_once(&self, offset: u64, parts: &mut [Part<'_>], wait: bool) -> io::Result<bool> {
        part::gather(parts, |buffer| match wait {
            true => self.read_at(offset, buffer).map(|()| true),
            false => self.read_without_waiting(offset, buffer),
        })
    }

    /// Writes the pieces one after the other, starting at `offset`.
    ///
    /// # Errors
    /// Any device error; some of the bytes may have been written then. Writing beyond the end
    /// is an error.
    fn write_at(&self, offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<()>;

    /// Writes the pieces one after the other, starting at `offset`, perhaps while the caller goes on.
    /// Through this device, whoever reads the same bytes waits for that, and so does every other write; who
    /// has the file open otherwise may still see what was there before.
    ///
    /// # Errors
    /// As [`Device::write_at`]. If it fails later, every write and flush from then on does, and so does
    /// reading these bytes.
    fn begin_to_write(&self, offset: u64, pieces: Vec<Arc<Box<[u8]>>>) -> io::Result<()> {
        let slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        self.write_at(offset, &slices)
    }

    /// Returns when everything that was written before, or begun to be written, is durable.
    ///
    /// # Errors
    /// Any device error; what had been written since the last flush may be lost then.
    fn flush(&self) -> io::Result<()>;

    /// Tells the device that the content of a range is not needed any more. What a later read of
    /// the range gives is not defined.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] if the device cannot do it, or any device error.
    fn discard(&self, offset: u64, bytes: u64) -> io::Result<()>;

    /// Makes an image file `bytes` long; what it gains is zeros. A block device is as large as it
    /// is, but may have become larger since it was opened, which this finds out.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] if the device has another size and keeps it, or any system
    /// error.
    fn resize(&self, _bytes: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Lets go of what the system has in memory of a range, so that the next read comes from the
    /// device. What has not reached the device yet stays. Only advice: nothing may depend on it.
    fn forget_cached(&self, _offset: u64, _bytes: u64) {}

    /// Has what was written to a range leave the system's memory for the device, and with `wait`, waits
    /// until it has. That makes nothing durable, but the next [`Device::flush`] has less to wait for.
    ///
    /// # Errors
    /// As [`Device::flush`]: what was written may be lost.
    fn write_out(&self, _offset: u64, _bytes: u64, _wait: bool) -> io::Result<()> {
        Ok(())
    }

    /// Has the system begin to read a range that will be asked for soon. Only advice.
    fn will_need(&self, _offset: u64, _bytes: u64) {}

    /// Has the system read nothing ahead but what [`Device::will_need`] asks for. Only advice.
    fn without_read_ahead(&self) {}

    /// Whether there are readers: other processes, or devices of this process that are open on
    /// the same file.
    fn is_read(&self) -> bool {
        false
    }

    /// Keeps new readers waiting until the value is dropped. `None` if there is a reader already. A
    /// device that no other process can open has no readers to keep out.
    fn keep_readers_out(&self) -> Option<Claim> {
        Some(Box::new(()))
    }
}

impl<D: Device + ?Sized> Device for Arc<D> {
    fn size(&self) -> u64 {
        (**self).size()
    }

    fn is_read_only(&self) -> bool {
        (**self).is_read_only()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        (**self).read_at(offset, buffer)
    }

    fn read_without_waiting(&self, offset: u64, buffer: &mut [u8]) -> io::Result<bool> {
        (**self).read_without_waiting(offset, buffer)
    }

    fn read_once(&self, offset: u64, parts: &mut [Part<'_>], wait: bool) -> io::Result<bool> {
        (**self).read_once(offset, parts, wait)
    }

    fn write_at(&self, offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        (**self).write_at(offset, pieces)
    }

    fn begin_to_write(&self, offset: u64, pieces: Vec<Arc<Box<[u8]>>>) -> io::Result<()> {
        (**self).begin_to_write(offset, pieces)
    }

    fn flush(&self) -> io::Result<()> {
        (**self).flush()
    }

    fn discard(&self, offset: u64, bytes: u64) -> io::Result<()> {
        (**self).discard(offset, bytes)
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        (**self).resize(bytes)
    }

    fn forget_cached(&self, offset: u64, bytes: u64) {
        (**self).forget_cached(offset, bytes);
    }

    fn write_out(&self, offset: u64, bytes: u64, wait: bool) -> io::Result<()> {
        (**self).write_out(offset, bytes, wait)
    }

    fn will_need(&self, offset: u64, bytes: u64) {
        (**self).will_need(offset, bytes);
    }

    fn without_read_ahead(&self) {
        (**self).without_read_ahead();
    }

    fn is_read(&self) -> bool {
        (**self).is_read()
    }

    fn keep_readers_out(&self) -> Option<Claim> {
        (**self).keep_readers_out()
    }
}

/// Fails unless `bytes` bytes at `offset` lie within a device of `size` bytes.
pub(crate) fn check_range(size: u64, offset: u64, bytes: u64) -> io::Result<()> {
    if offset.checked_add(bytes).is_some_and(|end| end <= size) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::UnexpectedEof,
        format!("{bytes} bytes at {offset} are beyond the device's end at {size}"),
    ))
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

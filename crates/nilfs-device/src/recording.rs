//! A device that remembers what was done to it, so that a test can cut the power anywhere.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::{Claim, Device, IoSlice};

/// Something that changed the device, in the order in which it happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Bytes were written.
    Write {
        /// Byte address.
        offset: u64,
        /// What was written.
        bytes: Vec<u8>,
    },
    /// Everything before became durable.
    Flush,
    /// A range was discarded.
    Discard {
        /// Byte address.
        offset: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// The device has another size.
    Resize {
        /// In bytes.
        bytes: u64,
    },
}

/// A device that passes everything on, keeps a record of what changes it, and counts
/// what is read.
pub struct RecordingDevice<D> {
    below: D,
    events: Arc<Mutex<Vec<Event>>>,
    read: AtomicU64,
    read_ahead: AtomicU64,
    reads_ahead: AtomicBool,
    begun: AtomicU64,
}

impl<D: Device> RecordingDevice<D> {
    /// Records what is done to `below` from now on.
    pub fn new(below: D) -> Self {
        let (events, read, read_ahead, begun) = Default::default();
        Self { below, events, read, read_ahead, reads_ahead: AtomicBool::new(true), begun }
    }

    /// The device below.
    pub fn below(&self) -> &D {
        &self.below
    }

    /// Bytes read since the last call.
    #[must_use]
    pub fn take_bytes_read(&self) -> u64 {
        self.read.swap(0, Ordering::Relaxed)
    }

    /// Bytes read before somebody said that the system should not read ahead.
    #[must_use]
    pub fn bytes_read_ahead(&self) -> u64 {
        self.read_ahead.load(Ordering::Relaxed)
    }

    /// Bytes that were written by [`Device::begin_to_write`].
    #[must_use]
    pub fn bytes_begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Everything recorded so far.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().clone()
    }

    /// Everything recorded since the last call.
    #[must_use]
    pub fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut self.events.lock())
    }
}

impl<D: Device> Device for RecordingDevice<D> {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        if self.reads_ahead.load(Ordering::Relaxed) {
            self.read_ahead.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        }
        self.below.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        // The lock is held across the write so that the record has the device's order.
        let mut events = self.events.lock();
        self.below.write_at(offset, pieces)?;
        let bytes = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
        events.push(Event::Write { offset, bytes });
        Ok(())
    }

    fn begin_to_write(&self, offset: u64, pieces: Vec<Arc<Box<[u8]>>>) -> io::Result<()> {
        let slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        self.begun.fetch_add(bytes as u64, Ordering::Relaxed);
        self.write_at(offset, &slices)
    }

    fn flush(&self) -> io::Result<()> {
        let mut events = self.events.lock();
        self.below.flush()?;
        events.push(Event::Flush);
        Ok(())
    }

    fn discard(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let mut events = self.events.lock();
        self.below.discard(offset, bytes)?;
        events.push(Event::Discard { offset, bytes });
        Ok(())
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        let mut events = self.events.lock();
        self.below.resize(bytes)?;
        events.push(Event::Resize { bytes });
        Ok(())
    }

    fn without_read_ahead(&self) {
        self.reads_ahead.store(false, Ordering::Relaxed);
        self.below.without_read_ahead();
    }

    fn is_read(&self) -> bool {
        self.below.is_read()
    }

    fn keep_readers_out(&self) -> Option<Claim> {
        self.below.keep_readers_out()
    }
}

//! A device whose requests fail on demand, to see what becomes of its users.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Claim, Device, IoSlice};

/// The switches of a [`FaultyDevice`]; all off at first.
#[derive(Debug, Default)]
pub struct Faults {
    /// Reads fail with an I/O error.
    pub reads: AtomicBool,
    /// Writes and discards fail with an I/O error.
    pub writes: AtomicBool,
    /// Flushes fail with an I/O error.
    pub flushes: AtomicBool,
}

/// A device that passes everything on unless its [`Faults`] say otherwise.
pub struct FaultyDevice<D> {
    below: D,
    faults: Arc<Faults>,
}

impl<D: Device> FaultyDevice<D> {
    /// A device over `below` without faults so far, and its switches.
    pub fn new(below: D) -> (Self, Arc<Faults>) {
        let faults = Arc::new(Faults::default());
        (Self { below, faults: Arc::clone(&faults) }, faults)
    }
}

fn unless(fault: &AtomicBool, what: &str) -> io::Result<()> {
    if fault.load(Ordering::Relaxed) {
        return Err(io::Error::other(format!("the device failed to {what} (injected)")));
    }
    Ok(())
}

impl<D: Device> Device for FaultyDevice<D> {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        unless(&self.faults.reads, "read")?;
        self.below.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        unless(&self.faults.writes, "write")?;
        self.below.write_at(offset, pieces)
    }

    fn flush(&self) -> io::Result<()> {
        unless(&self.faults.flushes, "flush")?;
        self.below.flush()
    }

    fn discard(&self, offset: u64, bytes: u64) -> io::Result<()> {
        unless(&self.faults.writes, "discard")?;
        self.below.discard(offset, bytes)
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        self.below.resize(bytes)
    }

    fn is_read(&self) -> bool {
        self.below.is_read()
    }

    fn keep_readers_out(&self) -> Option<Claim> {
        self.below.keep_readers_out()
    }
}

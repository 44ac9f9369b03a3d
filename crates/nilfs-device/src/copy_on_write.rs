//! A device that keeps what is written to it elsewhere, above another that stays as it is.

use std::io;
use std::sync::Arc;

use crate::{Device, IoSlice, Writes, check_range};

/// A view of a device that can be written without changing the device.
pub struct CopyOnWriteDevice {
    below: Arc<dyn Device>,
    writes: Arc<Writes>,
}

impl CopyOnWriteDevice {
    /// A view of `below` as it is now, with these writes above it, to which others are added.
    #[must_use]
    pub fn new(below: Arc<dyn Device>, writes: Arc<Writes>) -> Self {
        Self { below, writes }
    }
}

impl Device for CopyOnWriteDevice {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        check_range(self.size(), offset, buffer.len() as u64)?;
        self.writes.read(&*self.below, offset, buffer)
    }

    fn write_at(&self, offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        let total = pieces.iter().map(|piece| piece.len() as u64).sum();
        check_range(self.size(), offset, total)?;
        self.writes.write(&*self.below, offset, pieces)
    }

    fn flush(&self) -> io::Result<()> {
        self.writes.flush();
        Ok(())
    }

    fn discard(&self, _offset: u64, _bytes: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

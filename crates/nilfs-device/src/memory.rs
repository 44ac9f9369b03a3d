//! A device in memory, for tests and for images that never touch a disk.

use std::io;

use parking_lot::RwLock;

use crate::{Device, IoSlice, check_range};

/// A buffer that behaves like a device. Every write is durable at once.
#[derive(Debug)]
pub struct MemoryDevice {
    bytes: RwLock<Vec<u8>>,
}

impl MemoryDevice {
    /// A device of `size` zero bytes.
    #[must_use]
    pub fn new(size: u64) -> Self {
        Self::from(vec![0; size as usize])
    }

    /// A copy of the whole content.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        self.bytes.read().clone()
    }
}

impl From<Vec<u8>> for MemoryDevice {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes: RwLock::new(bytes) }
    }
}

impl Device for MemoryDevice {
    fn size(&self) -> u64 {
        self.bytes.read().len() as u64
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let bytes = self.bytes.read();
        check_range(bytes.len() as u64, offset, buffer.len() as u64)?;
        let offset = offset as usize;
        buffer.copy_from_slice(&bytes[offset..offset + buffer.len()]);
        Ok(())
    }

    fn write_at(&self, offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        let mut bytes = self.bytes.write();
        let total = pieces.iter().map(|piece| piece.len() as u64).sum();
        check_range(bytes.len() as u64, offset, total)?;
        let mut at = offset as usize;
        for piece in pieces {
            bytes[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        self.bytes.write().resize(bytes as usize, 0);
        Ok(())
    }

    fn discard(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let mut content = self.bytes.write();
        check_range(content.len() as u64, offset, bytes)?;
        content[offset as usize..(offset + bytes) as usize].fill(0);
        Ok(())
    }
}

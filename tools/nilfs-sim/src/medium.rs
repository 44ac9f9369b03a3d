//! What the disks of worlds are made of: discarded ranges hold something that hurts from then on, and
//! requests fail as somebody wants it.

use std::io;

use nilfs_device::{Device, FaultyDevice, IoSlice, MemoryDevice, RecordingDevice};

/// What every byte of a discarded range is.
pub const DISCARDED: u8 = 0xdb;

/// What the disks of worlds are made of: what fails above, and a record of what was done below.
pub type Medium = FaultyDevice<RecordingDevice<Bytes>>;

/// An array of bytes.
pub struct Bytes(MemoryDevice);

/// A medium with this content.
#[must_use]
pub fn medium(content: Vec<u8>) -> Medium {
    FaultyDevice::new(RecordingDevice::new(Bytes(MemoryDevice::from(content)))).0
}

/// A copy of the whole content.
#[must_use]
pub fn content(medium: &Medium) -> Vec<u8> {
    medium.below().below().0.snapshot()
}

impl Device for Bytes {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        self.0.write_at(offset, pieces)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }

    fn discard(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let garbage = vec![DISCARDED; bytes as usize];
        self.0.write_at(offset, &[IoSlice::new(&garbage)])
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        self.0.resize(bytes)
    }
}

//! What the disks of worlds are made of: discarded ranges hold something that hurts from then on, and
//! reads fail now and then while somebody wants it so.

use std::io;

use nilfs_device::{Device, IoSlice, MemoryDevice, RecordingDevice};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// What every byte of a discarded range is.
pub const DISCARDED: u8 = 0xdb;

/// Of this many reads one fails while reads fail.
const FAILING: u32 = 60;

/// What the disks of worlds are made of, with a record of what was done to it.
pub type Medium = RecordingDevice<Flawed>;

/// An array of bytes with its flaws.
pub struct Flawed {
    content: MemoryDevice,
    chance: Mutex<Option<StdRng>>,
}

impl Flawed {
    /// A copy of the whole content.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        self.content.snapshot()
    }

    /// From now on, chance from this seed decides which reads fail; `None`: no read fails.
    pub fn fail_reads(&self, seed: Option<u64>) {
        *self.chance.lock() = seed.map(StdRng::seed_from_u64);
    }
}

/// A medium with this content.
#[must_use]
pub fn medium(content: Vec<u8>) -> Medium {
    let content = MemoryDevice::from(content);
    RecordingDevice::new(Flawed { content, chance: Mutex::default() })
}

impl Device for Flawed {
    fn size(&self) -> u64 {
        self.content.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if let Some(chance) = &mut *self.chance.lock()
            && chance.random_range(0..FAILING) == 0
        {
            return Err(io::Error::other("a read failed (injected)"));
        }
        self.content.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        self.content.write_at(offset, pieces)
    }

    fn flush(&self) -> io::Result<()> {
        self.content.flush()
    }

    fn discard(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let garbage = vec![DISCARDED; bytes as usize];
        self.content.write_at(offset, &[IoSlice::new(&garbage)])
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        self.content.resize(bytes)
    }
}

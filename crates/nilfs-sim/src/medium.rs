//! What the disks of worlds are made of: an image file that remembers what was done to it, whose
//! discarded ranges hold something that hurts from then on, and whose reads fail now and then while
//! somebody wants it so.

use std::io;

use nilfs_device::{Device, IoSlice, MemoryDevice};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// What every byte of a discarded range is.
pub const DISCARDED: u8 = 0xdb;

/// Of so many reads one fails while reads fail.
const FAILING: u32 = 60;

/// Something that changed the medium, in the order in which it happened.
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
    /// It has another size.
    Resize {
        /// In bytes.
        bytes: u64,
    },
}

/// An array of bytes with its record and its flaws.
pub struct Medium {
    content: MemoryDevice,
    events: Mutex<Vec<Event>>,
    chance: Mutex<Option<StdRng>>,
}

impl Medium {
    /// A copy of the whole content.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        self.content.snapshot()
    }

    /// Everything that has happened since the last call.
    #[must_use]
    pub fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut self.events.lock())
    }

    /// From now on, chance from this seed decides which reads fail; `None`: no read fails.
    pub fn fail_reads(&self, seed: Option<u64>) {
        *self.chance.lock() = seed.map(StdRng::seed_from_u64);
    }

    /// Does something and notes it, in the same order as the medium does.
    fn note(&self, event: Event, done: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut events = self.events.lock();
        done()?;
        events.push(event);
        Ok(())
    }
}

impl From<Vec<u8>> for Medium {
    fn from(content: Vec<u8>) -> Self {
        let content = MemoryDevice::from(content);
        Self { content, events: Mutex::default(), chance: Mutex::default() }
    }
}

impl Device for Medium {
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
        let bytes = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
        self.note(Event::Write { offset, bytes }, || self.content.write_at(offset, pieces))
    }

    fn flush(&self) -> io::Result<()> {
        self.note(Event::Flush, || self.content.flush())
    }

    fn discard(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let garbage = vec![DISCARDED; bytes as usize];
        self.note(Event::Discard { offset, bytes }, || {
            self.content.write_at(offset, &[IoSlice::new(&garbage)])
        })
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        self.note(Event::Resize { bytes }, || self.content.resize(bytes))
    }
}

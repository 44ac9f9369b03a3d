//! What a mount must read, and how long that takes without a file system around it.
//!
//! The reads are those of the engine, recorded on their way to the device; they are repeated with
//! nothing in between. So the reference depends on what is read, but not on how fast we are.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nilfs_device::{Access, Device, FileDevice, IoSlice};
use nilfs_engine::{Filesystem, MountOptions};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Reads of an image, in their order.
#[derive(Serialize, Deserialize)]
pub struct Reads(Vec<Read>);

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Read {
    offset: u64,
    bytes: u64,
}

impl Reads {
    /// Mounts the volume of an image for writing, and keeps what was read until it was usable.
    pub fn of_mounting(image: &Path) -> Result<Self> {
        let below = FileDevice::open(image, Access::ReadWrite)?;
        let recorder = Arc::new(Recorder { below, reads: Mutex::default() });
        let mounting = || format!("cannot mount {}", image.display());
        let options = MountOptions::default();
        let mounted =
            Filesystem::mount(Arc::clone(&recorder) as _, options).with_context(mounting)?;
        let reads = recorder.reads.lock().clone();
        mounted.unmount().context("cannot unmount it again")?;
        Ok(Self(reads))
    }

    /// Writes the list to a file.
    pub fn save(&self, path: &Path) -> Result<()> {
        let list = serde_json::to_vec(self).context("cannot write down the reads")?;
        std::fs::write(path, list).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Takes the list from a file.
    pub fn load(path: &Path) -> Result<Self> {
        let list =
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&list).with_context(|| path.display().to_string())
    }

    /// Does the same reads again and times them.
    pub fn time(&self, image: &Path) -> Result<Duration> {
        let reading = || format!("cannot read {}", image.display());
        let longest = self.0.iter().map(|read| read.bytes).max().unwrap_or(0);
        let mut buffer = vec![0; longest as usize];
        let start = Instant::now();
        let file = File::open(image).with_context(reading)?;
        for read in &self.0 {
            let piece = &mut buffer[..read.bytes as usize];
            file.read_exact_at(piece, read.offset).with_context(reading)?;
        }
        Ok(start.elapsed())
    }
}

/// A device that remembers what is read of it.
struct Recorder {
    below: FileDevice,
    reads: Mutex<Vec<Read>>,
}

impl Device for Recorder {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.reads.lock().push(Read { offset, bytes: buffer.len() as u64 });
        self.below.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        self.below.write_at(offset, pieces)
    }

    fn flush(&self) -> io::Result<()> {
        self.below.flush()
    }

    fn discard(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.below.discard(offset, bytes)
    }
}

//! What requests are sent to.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nilfs_device::{Access, FileDevice};
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use rustix::fs::OFlags;

use super::Extent;
use crate::model::Model;
use crate::trace::{DeviceRequest, Kind};

/// The largest request.
pub(super) const MAX_REQUEST_BYTES: u64 = 1 << 20;
/// Direct I/O wants memory that begins at a page.
const PAGE_BYTES: usize = 4096;
const SEED: u64 = 0x6c61_6220_7072_6f62;

/// A device whose requests can be timed. Requests lie on the device and are at most
/// [`MAX_REQUEST_BYTES`] large.
pub(super) trait Target {
    /// Size in bytes.
    fn bytes(&self) -> u64;

    /// Does a request and says how long it took.
    fn time(&mut self, kind: Kind, offset: u64, bytes: u64) -> Result<Duration>;
}

/// A model, whose clock stands still between requests.
pub(super) struct ModelTarget {
    model: Box<dyn Model>,
    bytes: u64,
    now: Duration,
}

impl ModelTarget {
    pub(super) fn new(model: Box<dyn Model>, bytes: u64) -> Self {
        Self { model, bytes, now: Duration::ZERO }
    }
}

impl Target for ModelTarget {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn time(&mut self, kind: Kind, offset: u64, bytes: u64) -> Result<Duration> {
        let time = self.model.serve(&DeviceRequest { kind, offset, bytes, at: self.now });
        self.now += time;
        Ok(time)
    }
}

/// A block device or a file.
pub(super) struct FileTarget {
    path: PathBuf,
    file: File,
    bytes: u64,
    input: Vec<u8>,
    /// Noise, because some controllers compress.
    output: Vec<u8>,
    _opened: FileDevice,
}

impl FileTarget {
    pub(super) fn open(path: &Path, extent: Extent) -> Result<Self> {
        let write = extent == Extent::Destructive;
        let access = if write { Access::ReadWrite } else { Access::Inspect };
        // It says what cannot be probed in its own words, and keeps others out while it is written.
        let opened = FileDevice::open(path, access)?;
        let file = File::options()
            .read(true)
            .write(write)
            .custom_flags(OFlags::DIRECT.bits() as i32)
            .open(path)
            .with_context(|| {
                format!("cannot open {} past the page cache, with O_DIRECT", path.display())
            })?;
        let bytes = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))
            .with_context(|| format!("size of {}", path.display()))?;
        let input = vec![0; MAX_REQUEST_BYTES as usize + PAGE_BYTES];
        let mut output = input.clone();
        StdRng::seed_from_u64(SEED).fill_bytes(&mut output);
        Ok(Self { path: path.to_owned(), file, bytes, input, output, _opened: opened })
    }
}

impl Target for FileTarget {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn time(&mut self, kind: Kind, offset: u64, bytes: u64) -> Result<Duration> {
        let input = aligned(&self.input, bytes);
        let output = aligned(&self.output, bytes);
        let began = Instant::now();
        match kind {
            Kind::Read => self.file.read_exact_at(&mut self.input[input], offset),
            Kind::Write => self.file.write_all_at(&self.output[output], offset),
            Kind::Flush => self.file.sync_data(),
            // No probe discards.
            Kind::Discard => Ok(()),
        }
        .with_context(|| format!("{}: {bytes} bytes at {offset}", self.path.display()))?;
        Ok(began.elapsed())
    }
}

/// The given number of bytes of a buffer, starting at a page.
fn aligned(buffer: &[u8], bytes: u64) -> Range<usize> {
    let start = buffer.as_ptr().align_offset(PAGE_BYTES);
    start..start + bytes as usize
}

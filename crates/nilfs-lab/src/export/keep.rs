//! What was written, kept along with the trace: the bytes of all writes, one after the other, in
//! the order of the trace. Zeroed ranges are holes in it.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use nilfs_device::Event;
use rustix::fs::FallocateFlags;

use crate::trace::{DeviceRequest, Kind, Trace, Traffic};

/// The permissions of files with bytes of a device in them.
const PRIVATE: u32 = 0o600;

/// Options to open a file with bytes of a device in it. If the file is new, only its owner may read it.
pub(super) fn private() -> OpenOptions {
    let mut options = File::options();
    options.write(true).create(true).mode(PRIVATE);
    options
}

/// A file of kept bytes that grows.
pub(super) struct Keeper {
    file: File,
    end: u64,
}

impl Keeper {
    /// Begins with nothing.
    pub(super) fn create(path: &Path) -> Result<Self> {
        let about = || format!("cannot keep data in {}", path.display());
        let file = private().truncate(true).open(path).with_context(about)?;
        // A file of that name may have been there, for others to read.
        if file.metadata().with_context(about)?.is_file() {
            file.set_permissions(Permissions::from_mode(PRIVATE)).with_context(about)?;
        }
        Ok(Self { file, end: 0 })
    }

    pub(super) fn add(&mut self, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, self.end)?;
        self.end += data.len() as u64;
        Ok(())
    }

    pub(super) fn add_zeros(&mut self, bytes: u64) -> io::Result<()> {
        self.end += bytes;
        self.file.set_len(self.end)
    }
}

/// Does the writes and discards of a trace once more, with the bytes that were kept. The image is
/// as it was when the export began; if it was empty then, there need not be one.
///
/// # Errors
/// The kept bytes are not those of the trace, or a file cannot be read or written.
pub fn rebuild(trace: &Trace, kept: &Path, image: &Path) -> Result<()> {
    let about_image = || format!("image {}", image.display());
    let target = private().read(true).truncate(false).open(image).with_context(about_image)?;
    if target.metadata().with_context(about_image)?.len() < trace.device_bytes {
        target.set_len(trace.device_bytes).with_context(about_image)?;
    }
    for event in events(trace, kept)? {
        match event? {
            Some(Event::Write { offset, bytes }) => target.write_all_at(&bytes, offset),
            Some(Event::Discard { offset, bytes }) => punch(&target, offset, bytes),
            Some(Event::Flush | Event::Resize { .. }) | None => Ok(()),
        }
        .with_context(about_image)?;
    }
    Ok(())
}

/// What each request of a trace did to the device, one after the other, with the bytes that were
/// kept; `None` for one that only read.
///
/// # Errors
/// The kept bytes are not those of the trace, or cannot be read.
pub fn events(trace: &Trace, kept: &Path) -> Result<impl Iterator<Item = Result<Option<Event>>>> {
    let about = format!("kept data {}", kept.display());
    let source = File::open(kept).with_context(|| about.clone())?;
    let found = source.metadata().with_context(|| about.clone())?.len();
    let expected = Traffic::of(&trace.requests).written.bytes;
    ensure!(
        found == expected,
        "{} has {found} bytes, but the trace wrote {expected}: they do not belong together",
        kept.display()
    );
    let mut source = BufReader::new(source);
    Ok(trace.requests.iter().map(move |&DeviceRequest { kind, offset, bytes, .. }| {
        Ok(match kind {
            Kind::Write => {
                let mut written = vec![0; bytes as usize];
                source.read_exact(&mut written).with_context(|| about.clone())?;
                Some(Event::Write { offset, bytes: written })
            }
            Kind::Discard => Some(Event::Discard { offset, bytes }),
            Kind::Flush => Some(Event::Flush),
            Kind::Read => None,
        })
    }))
}

/// Makes a hole that reads as zeros.
pub(super) fn punch(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(file, mode, offset, bytes)?)
}

//! What was written, kept along with the trace: the bytes of all writes, one after the other, in
//! the order of the trace. Zeroed ranges are holes in it.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustix::fs::FallocateFlags;

use crate::trace::{Kind, Trace, Traffic};

/// A file of kept bytes that grows.
pub(super) struct Keeper {
    file: File,
    end: u64,
}

impl Keeper {
    /// Begins with nothing.
    pub(super) fn create(path: &Path) -> Result<Self> {
        let file = File::create(path)
            .with_context(|| format!("cannot keep data in {}", path.display()))?;
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
    let about_kept = || format!("kept data {}", kept.display());
    let about_image = || format!("image {}", image.display());
    let source = File::open(kept).with_context(about_kept)?;
    let found = source.metadata().with_context(about_kept)?.len();
    let expected = Traffic::of(&trace.requests).written.bytes;
    ensure!(
        found == expected,
        "{} has {found} bytes, but the trace wrote {expected}: they do not belong together",
        kept.display()
    );
    let mut options = File::options();
    let options = options.read(true).write(true).create(true).truncate(false);
    let target = options.open(image).with_context(about_image)?;
    if target.metadata().with_context(about_image)?.len() < trace.device_bytes {
        target.set_len(trace.device_bytes).with_context(about_image)?;
    }
    let mut source = BufReader::new(source);
    let mut buffer = Vec::new();
    for request in &trace.requests {
        match request.kind {
            Kind::Write => {
                buffer.clear();
                let piece = source.by_ref().take(request.bytes);
                copy(piece, &mut buffer, &target, request.offset).with_context(about_image)?;
            }
            Kind::Discard => {
                punch(&target, request.offset, request.bytes).with_context(about_image)?
            }
            Kind::Read | Kind::Flush => (),
        }
    }
    Ok(())
}

fn copy(mut from: impl Read, buffer: &mut Vec<u8>, to: &File, offset: u64) -> io::Result<()> {
    from.read_to_end(buffer)?;
    to.write_all_at(buffer, offset)
}

/// Makes a hole that reads as zeros.
pub(super) fn punch(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(file, mode, offset, bytes)?)
}

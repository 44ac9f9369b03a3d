//! Long reads and writes that go straight between a device and the memory of whoever asks for them.
//! Nobody needs a second copy in the system's memory, and copying takes about as long as a fast device
//! does. Small ones are none of its business, nor is the reading of what the system has in memory already.

use std::fs::File;
use std::io::IoSliceMut;
use std::mem;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use rustix::fs::OFlags;

use crate::part::{self, Part};
use crate::{claims, kernel};

/// The shortest read, in bytes, that is worth it.
const LONG_READ: usize = 128 << 10;

/// The same for a write, which also goes on its way at once where it cannot be direct. Shorter ones reach
/// the device together with their neighbours if the system has them in memory for a while.
pub(crate) const LONG_WRITE: usize = 1 << 20;

/// Where direct reads begin and end, in the file and in memory: no device asks for more.
const ALIGNED: usize = 4096;

/// The same for direct writes, which begin wherever the log goes on. A device that wants more refuses
/// them, and they go through the system's memory.
const SECTOR: usize = 512;

/// A device that is open once more, past the system's memory.
pub(crate) struct Direct(Arc<File>);

impl Direct {
    /// Opens what `device` is open on, also for writing if it `writes`; `None` if that is not possible.
    pub(crate) fn of(device: &File, writes: bool) -> Option<Self> {
        let mut options = File::options();
        options.read(true).write(writes).custom_flags(OFlags::DIRECT.bits() as i32);
        options.open(claims::path_of(device)).ok().map(|file| Self(Arc::new(file)))
    }

    /// Whether a read is better done here than from the system's memory.
    pub(crate) fn is_for(&self, offset: u64, parts: &[Part<'_>]) -> bool {
        let in_memory = |part: &Part<'_>| match part {
            Part::Wanted(buffer) => buffer.as_ptr().addr(),
            Part::Skipped(_) => 0,
        };
        let aligned = offset.is_multiple_of(ALIGNED as u64)
            && parts.iter().all(|part| (part.bytes() | in_memory(part)).is_multiple_of(ALIGNED));
        let bytes = part::total(parts);
        if bytes < LONG_READ || !aligned {
            return false;
        }
        // The edges may be there, since they lie next to something that was read.
        let bytes = bytes as u64;
        kernel::cached(&self.0, offset, bytes)
            .is_none_or(|cached| !cached.unwritten && cached.bytes < bytes / 2)
    }

    /// The file, if a write is better done here than through the system's memory.
    pub(crate) fn to_write(&self, offset: u64, pieces: &[Arc<Box<[u8]>>]) -> Option<Arc<File>> {
        let aligned = |piece: &[u8]| (piece.len() | piece.as_ptr().addr()).is_multiple_of(SECTOR);
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        let is_for = bytes >= LONG_WRITE
            && offset.is_multiple_of(SECTOR as u64)
            && pieces.iter().all(|piece| aligned(piece));
        is_for.then(|| Arc::clone(&self.0))
    }

    /// Fills the parts. Returns whether that was possible; if not, another way of reading tells why.
    pub(crate) fn read(&self, offset: u64, parts: &mut [Part<'_>]) -> bool {
        let total = part::total(parts);
        let skipped = parts.iter().map(|part| match part {
            Part::Wanted(_) => 0,
            Part::Skipped(bytes) => *bytes,
        });
        let mut scratch = vec![0; skipped.sum::<usize>() + ALIGNED];
        let start = scratch.as_ptr().align_offset(ALIGNED).min(ALIGNED);
        let mut unused = &mut scratch[start..];
        let mut pieces = Vec::with_capacity(parts.len());
        for part in parts {
            pieces.push(IoSliceMut::new(match part {
                Part::Wanted(buffer) => buffer,
                Part::Skipped(bytes) => {
                    let (skipped, rest) = mem::take(&mut unused).split_at_mut(*bytes);
                    unused = rest;
                    skipped
                }
            }));
        }
        rustix::io::preadv(&self.0, &mut pieces, offset).is_ok_and(|read| read == total)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};
    use std::os::unix::fs::FileExt;

    use super::*;

    /// A file of which the system has nothing in memory, and what is in it; `None` where the system
    /// does not tell what it has there, or does not let go of it.
    fn cold_file() -> Option<(File, Vec<u8>)> {
        // The directory for temporary files may be in memory.
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let content: Vec<u8> = (0..4 * LONG_READ).map(|nth| (nth / 7) as u8).collect();
        file.write_all(&content).unwrap();
        file.sync_all().unwrap();
        file.rewind().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
        let length = content.len() as u64;
        let cached = || kernel::cached(&file, 0, length).map(|cached| cached.bytes);
        if cached() != Some(length) {
            eprintln!("not tested: this system does not tell what it has in memory of a file");
            return None;
        }
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        if cached() != Some(0) {
            eprintln!("not tested: this file system does not let go of what it has in memory");
            return None;
        }
        Some((file, content))
    }

    /// Bytes that a direct read can fill, and what stands before and after them.
    fn aligned(bytes: &mut Vec<u8>, length: usize) -> &mut [u8] {
        bytes.resize(length + 2 * ALIGNED, 0);
        let start = bytes.as_ptr().align_offset(ALIGNED);
        &mut bytes[start..start + length]
    }

    fn is_for(direct: &Direct, offset: usize, buffer: &mut [u8]) -> bool {
        direct.is_for(offset as u64, &[Part::Wanted(buffer)])
    }

    #[test]
    fn a_long_read_leaves_nothing_in_the_memory_of_the_system() {
        let Some((file, content)) = cold_file() else { return };
        let (direct, mut bytes) = (Direct::of(&file, false).unwrap(), Vec::new());
        let buffer = aligned(&mut bytes, 2 * LONG_READ);
        let parts = &mut [Part::Wanted(&mut *buffer)];
        assert!(direct.is_for(LONG_READ as u64, parts) && direct.read(LONG_READ as u64, parts));
        assert!(buffer == &content[LONG_READ..3 * LONG_READ]);
        assert_eq!(kernel::cached(&file, 0, content.len() as u64).unwrap().bytes, 0);
    }

    #[test]
    fn what_lies_between_is_skipped() {
        let Some((file, content)) = cold_file() else { return };
        let (direct, mut bytes) = (Direct::of(&file, false).unwrap(), Vec::new());
        let (first, rest) = aligned(&mut bytes, 2 * LONG_READ).split_at_mut(LONG_READ);
        let (second, third) = rest.split_at_mut(ALIGNED);
        let (one, two) = (Part::Skipped(ALIGNED), Part::Skipped(2 * ALIGNED));
        let parts = &mut [Part::Wanted(third), one, Part::Wanted(first), two, Part::Wanted(second)];
        assert!(direct.is_for(0, parts) && direct.read(0, parts));
        let (first, second) = (LONG_READ, 2 * LONG_READ + 2 * ALIGNED);
        let expected = [
            &content[first..][..LONG_READ],
            &content[second..][..ALIGNED],
            &content[..LONG_READ - ALIGNED],
        ];
        assert!(aligned(&mut bytes, 2 * LONG_READ) == expected.concat());
    }

    #[test]
    fn what_the_system_has_in_memory_is_taken_from_there() {
        let Some((file, _)) = cold_file() else { return };
        let (direct, mut bytes) = (Direct::of(&file, false).unwrap(), Vec::new());
        let buffer = aligned(&mut bytes, LONG_READ);
        file.read_exact_at(buffer, 0).unwrap();
        assert!(!is_for(&direct, 0, buffer), "read already");
        assert!(is_for(&direct, 2 * LONG_READ, buffer));
        file.write_all_at(b"new", 2 * LONG_READ as u64).unwrap();
        assert!(!is_for(&direct, 2 * LONG_READ, buffer), "not written out yet");
    }

    #[test]
    fn what_lies_askew_is_read_otherwise() {
        let Some((file, _)) = cold_file() else { return };
        let (direct, mut bytes) = (Direct::of(&file, false).unwrap(), Vec::new());
        let buffer = aligned(&mut bytes, LONG_READ + ALIGNED);
        assert!(!is_for(&direct, 512, &mut buffer[..LONG_READ]));
        assert!(!is_for(&direct, 0, &mut buffer[..LONG_READ + 512]));
        assert!(!is_for(&direct, 0, &mut buffer[512..LONG_READ + 512]));
        assert!(!is_for(&direct, 0, &mut buffer[..LONG_READ - ALIGNED]), "a short one");
        assert!(!direct.is_for(0, &[Part::Skipped(512), Part::Wanted(&mut buffer[..LONG_READ])]));
    }

    #[test]
    fn what_is_beyond_the_end_is_left_to_another_way_of_reading() {
        let Some((file, content)) = cold_file() else { return };
        let (direct, mut bytes) = (Direct::of(&file, false).unwrap(), Vec::new());
        let parts = &mut [Part::Wanted(aligned(&mut bytes, 2 * LONG_READ))];
        assert!(!direct.read((content.len() - LONG_READ) as u64, parts));
    }
}

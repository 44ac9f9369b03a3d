//! Long reads that go from a device straight into the buffer of whoever asked for them. Nobody needs a
//! second copy in the system's memory, and copying from there takes about as long as a fast device does.
//! Small reads are none of its business, nor is what the system has in memory already.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::OFlags;

use crate::{claims, kernel};

/// The shortest read, in bytes, that is worth it.
const LONG: usize = 128 << 10;

/// Where such reads begin and end, in the file and in memory: no device asks for more.
const ALIGNED: usize = 4096;

/// A device that is open once more, past the system's memory.
pub(crate) struct Direct(File);

impl Direct {
    /// Opens what `device` is open on; `None` if it cannot be read like this.
    pub(crate) fn of(device: &File) -> Option<Self> {
        let mut options = File::options();
        options.read(true).custom_flags(OFlags::DIRECT.bits() as i32);
        options.open(claims::path_of(device)).ok().map(Self)
    }

    /// Whether a read is better done here than from the system's memory.
    pub(crate) fn is_for(&self, offset: u64, buffer: &[u8]) -> bool {
        let aligned = offset.is_multiple_of(ALIGNED as u64)
            && buffer.len().is_multiple_of(ALIGNED)
            && buffer.as_ptr().addr().is_multiple_of(ALIGNED);
        if buffer.len() < LONG || !aligned {
            return false;
        }
        // The edges may be there, since they lie next to something that was read.
        let bytes = buffer.len() as u64;
        kernel::cached(&self.0, offset, bytes)
            .is_none_or(|cached| !cached.unwritten && cached.bytes < bytes / 2)
    }

    /// Fills `buffer`. Returns whether that was possible; if not, another way of reading tells why.
    pub(crate) fn read(&self, offset: u64, buffer: &mut [u8]) -> bool {
        self.0.read_exact_at(buffer, offset).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};

    use super::*;

    /// A file of which the system has nothing in memory, and what is in it; `None` where the system
    /// does not tell what it has there, or does not let go of it.
    fn cold_file() -> Option<(File, Vec<u8>)> {
        // The directory for temporary files may be in memory.
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let content: Vec<u8> = (0..4 * LONG).map(|nth| (nth / 7) as u8).collect();
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

    #[test]
    fn a_long_read_leaves_nothing_in_the_memory_of_the_system() {
        let Some((file, content)) = cold_file() else { return };
        let (direct, mut bytes) = (Direct::of(&file).unwrap(), Vec::new());
        let buffer = aligned(&mut bytes, 2 * LONG);
        assert!(direct.is_for(LONG as u64, buffer) && direct.read(LONG as u64, buffer));
        assert!(buffer == &content[LONG..3 * LONG]);
        assert_eq!(kernel::cached(&file, 0, content.len() as u64).unwrap().bytes, 0);
    }

    #[test]
    fn what_the_system_has_in_memory_is_taken_from_there() {
        let Some((file, _)) = cold_file() else { return };
        let (direct, mut bytes) = (Direct::of(&file).unwrap(), Vec::new());
        let buffer = aligned(&mut bytes, LONG);
        file.read_exact_at(buffer, 0).unwrap();
        assert!(!direct.is_for(0, buffer), "read already");
        assert!(direct.is_for(2 * LONG as u64, buffer));
        file.write_all_at(b"new", 2 * LONG as u64).unwrap();
        assert!(!direct.is_for(2 * LONG as u64, buffer), "not written out yet");
    }

    #[test]
    fn what_lies_askew_is_read_otherwise() {
        let Some((file, _)) = cold_file() else { return };
        let (direct, mut bytes) = (Direct::of(&file).unwrap(), Vec::new());
        let buffer = aligned(&mut bytes, LONG + ALIGNED);
        assert!(!direct.is_for(512, &buffer[..LONG]));
        assert!(!direct.is_for(0, &buffer[..LONG + 512]));
        assert!(!direct.is_for(0, &buffer[512..LONG + 512]));
        assert!(!direct.is_for(0, &buffer[..LONG - ALIGNED]), "a short one");
    }

    #[test]
    fn what_is_beyond_the_end_is_left_to_another_way_of_reading() {
        let Some((file, content)) = cold_file() else { return };
        let (direct, mut bytes) = (Direct::of(&file).unwrap(), Vec::new());
        assert!(!direct.read((content.len() - LONG) as u64, aligned(&mut bytes, 2 * LONG)));
    }
}

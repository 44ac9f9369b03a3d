//! A file's shared mapping, read and written by copying. It knows nothing of what is compared.

use std::fs::File;
use std::io;
use std::ptr;

use memmap2::{MmapOptions, MmapRaw};

/// A mapping of the front of a file, which may be shorter or get shorter.
pub struct Mapping {
    memory: MmapRaw,
}

impl Mapping {
    /// Maps the first `length` bytes.
    pub fn new(file: &File, length: usize) -> io::Result<Self> {
        Ok(Self { memory: MmapOptions::new().len(length).map_raw(file)? })
    }

    /// The bytes from `offset` on, which must be within the file.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        let source = self.at(offset, bytes.len());
        // SAFETY: `at` has made sure that the range lies in the mapping, which lives as long as
        // `self`; `bytes` is memory of its own. No reference to the mapping exists, so that others
        // may change the file. A range beyond the end of the file ends the process by a signal.
        unsafe { ptr::copy_nonoverlapping(source, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Changes the bytes from `offset` on, which must be within the file.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let target = self.at(offset, bytes.len());
        // SAFETY: as in `read`; the mapping is writable.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) }
    }

    /// Writes what was changed to the file, and makes it durable.
    pub fn sync(&self) -> io::Result<()> {
        self.memory.flush()
    }

    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        let end = offset.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.memory.len()), "{offset}, {length} bytes");
        self.memory.as_mut_ptr().wrapping_add(offset)
    }
}

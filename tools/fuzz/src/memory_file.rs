//! A file that lies in memory.

use std::fs::File;
use std::io::Write;

use rustix::fs::{MemfdFlags, memfd_create};

/// A file with these bytes, which nobody else sees.
pub fn memory_file(content: &[u8]) -> File {
    let mut file = File::from(memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("memfd_create"));
    file.write_all(content).expect("there is memory for a file");
    file
}

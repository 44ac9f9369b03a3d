//! Asynchronous direct writes. They left stale pages in the kernel's cache: asked by the file
//! system to complete them asynchronously (`FUSE_ASYNC_DIO`), the kernel does not drop what a
//! buffered read has put into the cache while the write was under way.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use io_uring::{IoUring, opcode, types};
use rustix::fs::OFlags;

use crate::content::Mapping;
use crate::support::{World, open};

const PAGE: usize = 4096;

/// Enough for dozens of stale pages where the kernel leaves any.
const WRITES: u32 = 1000;

#[test]
fn a_buffered_read_sees_a_finished_asynchronous_direct_write() {
    let mut ring = match IoUring::new(1) {
        Ok(ring) => ring,
        Err(error) => return eprintln!("skipped: no io_uring on this machine: {error}"),
    };
    let world = World::new();
    let path = world.file("file", [0; PAGE]);
    let direct = open(&path, OFlags::DIRECT).unwrap();
    let buffered = File::open(&path).unwrap();
    let mut memory = Mapping::anonymous(PAGE);
    let end = AtomicBool::new(false);
    let stale: Vec<u32> = thread::scope(|scope| {
        scope.spawn(|| {
            let mut page = [0; PAGE];
            while !end.load(Ordering::Relaxed) {
                buffered.read_exact_at(&mut page, 0).unwrap();
            }
        });
        let stale = (0..WRITES).filter(|nth| {
            memory.bytes_mut().fill(*nth as u8);
            write_asynchronously(&mut ring, &direct, memory.bytes());
            let mut page = [0; PAGE];
            buffered.read_exact_at(&mut page, 0).unwrap();
            page != memory.bytes()
        });
        let stale = stale.collect();
        end.store(true, Ordering::Relaxed);
        stale
    });
    assert!(stale.is_empty(), "old content after {} of {WRITES} writes", stale.len());
}

/// Writes at the beginning of a file, and waits for the end.
fn write_asynchronously(ring: &mut IoUring, file: &File, bytes: &[u8]) {
    let file = types::Fd(file.as_raw_fd());
    let write = opcode::Write::new(file, bytes.as_ptr(), bytes.len() as u32).build();
    // SAFETY: bytes and file outlive the write, for whose end is waited below.
    unsafe { ring.submission().push(&write) }.unwrap();
    ring.submit_and_wait(1).unwrap();
    let written = ring.completion().next().unwrap().result();
    assert_eq!(written, bytes.len() as i32);
}

//! A file that lies in many places is read with few requests to the device, and nothing of it twice.

#![allow(clippy::disallowed_types, reason = "the engine's locks are for the engine")]

mod common;

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use common::{make, pattern};
use nilfs_device::{Device, IoSlice, MemoryDevice, Part};
use nilfs_engine::mkfs::{Parameters, format};
use nilfs_engine::{Filesystem, InodeRef, MountOptions};

const MIB: usize = 1 << 20;
const BLOCK: usize = 4096;
const FILE: usize = 40 * MIB;

/// What reading the file takes at most: itself, and its map.
const MOST: u64 = FILE as u64 + (2 * MIB) as u64;

/// In how many places each MiB of the file lies.
const PLACES: usize = 12;

/// A device below a system that keeps what it was asked for ahead, and nothing else.
struct Cold {
    below: MemoryDevice,
    /// Blocks that the system has.
    in_memory: Mutex<BTreeSet<u64>>,
    /// Bytes of each request that reaches the device.
    requests: Mutex<Vec<u64>>,
}

impl Cold {
    fn new(below: MemoryDevice) -> Arc<Self> {
        Arc::new(Self { below, in_memory: Mutex::default(), requests: Mutex::default() })
    }

    /// Has a range read, but for what is in memory.
    fn request(&self, offset: u64, bytes: u64) -> BTreeSet<u64> {
        let in_memory = self.in_memory.lock().unwrap();
        let blocks = blocks(offset, bytes).filter(|block| !in_memory.contains(block));
        let missing: BTreeSet<u64> = blocks.collect();
        if !missing.is_empty() {
            self.requests.lock().unwrap().push(missing.len() as u64 * BLOCK as u64);
        }
        missing
    }

    /// What reached the device since this was asked last.
    fn take_requests(&self) -> Vec<u64> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

fn blocks(offset: u64, bytes: u64) -> Range<u64> {
    offset / BLOCK as u64..(offset + bytes).div_ceil(BLOCK as u64)
}

impl Device for Cold {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.request(offset, buffer.len() as u64);
        self.below.read_at(offset, buffer)
    }

    /// Past the system's memory.
    fn read_once(&self, offset: u64, parts: &mut [Part<'_>], wait: bool) -> io::Result<bool> {
        let bytes = parts.iter().map(Part::bytes).sum::<usize>() as u64;
        self.requests.lock().unwrap().push(bytes);
        self.below.read_once(offset, parts, wait)
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

    fn will_need(&self, offset: u64, bytes: u64) {
        let missing = self.request(offset, bytes);
        self.in_memory.lock().unwrap().extend(missing);
    }
}

/// A volume with a file that lies in [`PLACES`] places, and what is in it.
fn scattered() -> (Arc<Cold>, Arc<Filesystem>, InodeRef, Vec<u8>) {
    let device = Arc::new(MemoryDevice::new(160 * MIB as u64));
    let parameters = Parameters { blocks_per_segment: 2048, ..common::parameters(BLOCK as u64) };
    format(&*device, &parameters).unwrap();
    let fs = common::mount(&device);
    let file = make(&fs, &fs.root().unwrap().inode, "file");
    let content = pattern(3, FILE);
    for place in 0..PLACES {
        for (nth, block) in content.chunks(BLOCK).enumerate().skip(place).step_by(PLACES) {
            fs.write(&file, (nth * BLOCK) as u64, block).unwrap();
        }
        fs.commit().unwrap();
    }
    drop(file);
    fs.unmount().unwrap();
    let device = Cold::new(MemoryDevice::from(device.snapshot()));
    let fs = Filesystem::mount(Arc::clone(&device) as _, MountOptions::default()).unwrap();
    let file = fs.lookup(&fs.root().unwrap().inode, b"file").unwrap().inode;
    device.take_requests();
    (device, fs, file, content)
}

/// Reads these requests of a MiB, and returns what reached the device.
fn read(
    device: &Cold,
    fs: &Filesystem,
    file: &InodeRef,
    content: &[u8],
    requests: impl Iterator<Item = usize>,
) -> Vec<u64> {
    let mut buffer = vec![0; MIB];
    for start in requests.map(|nth| nth * MIB) {
        assert_eq!(fs.read(file, start as u64, &mut buffer).unwrap(), MIB);
        assert!(buffer == content[start..start + MIB], "{start}");
    }
    device.take_requests()
}

#[test]
fn a_scattered_file_is_read_in_long_requests_and_once() {
    let (device, fs, file, content) = scattered();
    for _ in 0..2 {
        let requests = read(&device, &fs, &file, &content, 0..FILE / MIB);
        let bytes = requests.iter().sum::<u64>();
        assert!(bytes <= MOST, "{bytes} bytes are read for {FILE}");
        let mean = bytes / requests.len() as u64;
        assert!(mean >= 160 << 10, "{} requests of {mean} bytes", requests.len());
        device.in_memory.lock().unwrap().clear();
    }
    drop(file);
    fs.unmount().unwrap();
}

#[test]
fn a_scattered_file_that_is_read_here_and_there_is_not_read_ahead() {
    let (device, fs, file, content) = scattered();
    let requests = read(&device, &fs, &file, &content, (0..FILE / MIB).map(|nth| nth * 17 % 40));
    let bytes = requests.iter().sum::<u64>();
    assert!(bytes <= MOST, "{bytes} bytes are read for {FILE}");
    drop(file);
    fs.unmount().unwrap();
}

//! What an fsync has to wait for that others have written: no more than a piece of it.

mod common;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use common::{check, make, parameters, pattern};
use nilfs_device::{Device, IoSlice, MemoryDevice};
use nilfs_engine::mkfs::format;
use nilfs_engine::{Filesystem, InodeRef, MountOptions};

const MIB: u64 = 1 << 20;

/// Bytes of a piece, and of the log and the metadata with which a flush may come.
const PIECE: u64 = MIB / 4;
const LITTLE: u64 = MIB / 4;

type Work = Box<dyn Fn() + Send + Sync>;

/// A device that counts what the system would have in memory.
struct Cached {
    below: MemoryDevice,
    waiting: AtomicU64,
    most: AtomicU64,
    write_outs: AtomicU64,
    /// What is done during one of the write-outs, counted from 0.
    meanwhile: OnceLock<(u64, Work)>,
}

impl Cached {
    /// The most that has waited to be written since this was asked last.
    fn take_most(&self) -> u64 {
        self.most.swap(0, Ordering::Relaxed)
    }
}

impl Device for Cached {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.below.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        let bytes = pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        let waiting = self.waiting.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.most.fetch_max(waiting, Ordering::Relaxed);
        self.below.write_at(offset, pieces)
    }

    fn flush(&self) -> io::Result<()> {
        self.waiting.store(0, Ordering::Relaxed);
        self.below.flush()
    }

    fn discard(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.below.discard(offset, bytes)
    }

    fn write_out(&self) -> io::Result<()> {
        self.waiting.store(0, Ordering::Relaxed);
        let nth = self.write_outs.fetch_add(1, Ordering::Relaxed);
        if let Some((_, work)) = self.meanwhile.get().filter(|(when, _)| *when == nth) {
            work();
        }
        Ok(())
    }
}

/// Somebody syncs a small file, while 30 MiB of another are made durable by `how`.
fn most_that_waits(how: impl Fn(&Cached, &Arc<Filesystem>, &InodeRef)) -> u64 {
    let below = MemoryDevice::new(512 * MIB);
    let parameters =
        nilfs_engine::mkfs::Parameters { blocks_per_segment: 2048, ..parameters(4096) };
    format(&below, &parameters).unwrap();
    let (waiting, most, write_outs, meanwhile) = Default::default();
    let device = Arc::new(Cached { below, waiting, most, write_outs, meanwhile });
    let fs = Filesystem::mount(Arc::clone(&device) as _, MountOptions::default()).unwrap();
    let root = fs.root().unwrap().inode;
    let (small, large) = (make(&fs, &root, "small"), make(&fs, &root, "large"));
    for nth in 0..30 {
        fs.write(&large, nth * MIB, &pattern(nth as usize, MIB as usize)).unwrap();
        fs.write(&small, 0, &pattern(nth as usize, 100)).unwrap();
        fs.sync_file(&small).unwrap();
    }
    device.take_most();
    how(&device, &fs, &large);
    let most = device.take_most();
    fs.unmount().unwrap();
    drop(fs);
    check(&device.below);
    most
}

#[test]
fn an_fsync_of_a_large_file_leaves_no_more_than_a_piece_to_others() {
    let most = most_that_waits(|_, fs, large| fs.sync_file(large).unwrap());
    assert!(most <= PIECE + LITTLE, "{most} bytes");
}

#[test]
fn a_commit_leaves_no_more_than_a_piece_and_metadata_to_an_fsync() {
    let most = most_that_waits(|_, fs, _| fs.commit().map(drop).unwrap());
    assert!(most <= PIECE + 4 * LITTLE, "{most} bytes");
}

/// Not even if some of it is overwritten when it has been written ahead already.
#[test]
fn what_is_written_during_a_commit_is_not_left_to_an_fsync() {
    let most = most_that_waits(|device, fs, large| {
        let (writer, large) = (Arc::downgrade(fs), Arc::clone(large));
        let overwrite = move || {
            let writer = writer.upgrade().unwrap();
            writer.write(&large, 0, &pattern(99, 4 << 20)).unwrap();
        };
        let later = device.write_outs.load(Ordering::Relaxed) + 60;
        assert!(device.meanwhile.set((later, Box::new(overwrite))).is_ok());
        fs.commit().unwrap();
    });
    assert!(most <= PIECE + 4 * LITTLE, "{most} bytes");
}

//! What an fsync has to wait for that others have written: no more than a piece of it.

#![allow(clippy::disallowed_types, reason = "the engine's locks are for the engine")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use common::{check, make, parameters, pattern};
use nilfs_device::{Device, IoSlice, MemoryDevice};
use nilfs_engine::mkfs::format;
use nilfs_engine::{Filesystem, InodeRef, ManualRun, MountOptions, RenameMode};

const MIB: u64 = 1 << 20;

/// Bytes of a piece, and of the log and the metadata with which a flush may come.
const PIECE: u64 = MIB / 4;
const LITTLE: u64 = MIB / 4;

/// MiB of a volume with many clean segments, and of one with few.
const ROOMY: u64 = 512;
const SMALL: u64 = 160;

/// Bytes of a write with which the system begins at once.
const LARGE: u64 = MIB;

/// What may be on its way to the device where nobody syncs.
const ON_THE_WAY: u64 = 4 * MIB;

type Work = Box<dyn Fn() + Send + Sync>;

/// A device that counts what the system would have in memory.
struct Cached {
    below: MemoryDevice,
    /// Where, and how many bytes.
    waiting: Mutex<BTreeMap<u64, u64>>,
    /// Where small writes are with which the system has not begun, and how many there were when it began
    /// with a large one.
    idle: Mutex<BTreeSet<u64>>,
    overtaken: AtomicU64,
    most: AtomicU64,
    /// All bytes, and those of the largest request since this was asked last.
    written: AtomicU64,
    largest: AtomicU64,
    write_outs: AtomicU64,
    /// What is done during one of the write-outs that are waited for, counted from 0.
    meanwhile: OnceLock<(u64, Work)>,
}

impl Cached {
    /// The most that has waited to be written since this was asked last.
    fn take_most(&self) -> u64 {
        self.most.swap(0, Ordering::Relaxed)
    }

    /// The bytes of the largest request since this was asked last.
    fn take_largest(&self) -> u64 {
        self.largest.swap(0, Ordering::Relaxed)
    }

    /// Bytes that are written by `work`.
    fn written_by(&self, work: impl FnOnce()) -> u64 {
        let before = self.written.load(Ordering::Relaxed);
        work();
        self.written.load(Ordering::Relaxed) - before
    }

    /// Does something during the `nth` write-out from now on.
    fn during_write_out(&self, nth: u64, work: impl Fn() + Send + Sync + 'static) {
        let later = self.write_outs.load(Ordering::Relaxed) + nth;
        assert!(self.meanwhile.set((later, Box::new(work))).is_ok());
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
        let mut waiting = self.waiting.lock().unwrap();
        waiting.insert(offset, bytes);
        self.most.fetch_max(waiting.values().sum(), Ordering::Relaxed);
        drop(waiting);
        let mut idle = self.idle.lock().unwrap();
        match bytes < LARGE {
            true => _ = idle.insert(offset),
            false => _ = self.overtaken.fetch_add(idle.len() as u64, Ordering::Relaxed),
        }
        drop(idle);
        self.written.fetch_add(bytes, Ordering::Relaxed);
        self.largest.fetch_max(bytes, Ordering::Relaxed);
        self.below.write_at(offset, pieces)
    }

    fn flush(&self) -> io::Result<()> {
        self.waiting.lock().unwrap().clear();
        self.idle.lock().unwrap().clear();
        self.below.flush()
    }

    fn discard(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.below.discard(offset, bytes)
    }

    fn write_out(&self, offset: u64, bytes: u64, wait: bool) -> io::Result<()> {
        self.idle.lock().unwrap().retain(|at| !(offset..offset + bytes).contains(at));
        if !wait {
            return Ok(());
        }
        self.waiting.lock().unwrap().retain(|at, _| !(offset..offset + bytes).contains(at));
        let nth = self.write_outs.fetch_add(1, Ordering::Relaxed);
        if let Some((_, work)) = self.meanwhile.get().filter(|(when, _)| *when == nth) {
            work();
        }
        Ok(())
    }
}

/// A volume with a small file that is durable, and a large one that is not.
struct Scene {
    device: Arc<Cached>,
    fs: Arc<Filesystem>,
    small: InodeRef,
    large: InodeRef,
}

impl Scene {
    fn new(mebibytes: u64) -> Self {
        let below = MemoryDevice::new(mebibytes * MIB);
        let parameters =
            nilfs_engine::mkfs::Parameters { blocks_per_segment: 2048, ..parameters(4096) };
        format(&below, &parameters).unwrap();
        let device = Arc::new(Cached {
            below,
            waiting: Mutex::default(),
            idle: Mutex::default(),
            overtaken: AtomicU64::default(),
            most: AtomicU64::default(),
            written: AtomicU64::default(),
            largest: AtomicU64::default(),
            write_outs: AtomicU64::default(),
            meanwhile: OnceLock::new(),
        });
        let fs = Filesystem::mount(Arc::clone(&device) as _, MountOptions::default()).unwrap();
        let root = fs.root().unwrap().inode;
        let (small, large) = (make(&fs, &root, "small"), make(&fs, &root, "large"));
        fs.sync().unwrap();
        Self { device, fs, small, large }
    }

    /// Changes the small file, and makes it durable.
    fn sync_small(&self, nth: usize) {
        self.fs.write(&self.small, 0, &pattern(nth, 100)).unwrap();
        self.fs.sync_file(&self.small).unwrap();
    }

    /// Changes this much of a file.
    fn write(&self, file: &InodeRef, mebibytes: u64) {
        for nth in 0..mebibytes {
            self.fs.write(file, nth * MIB, &pattern(nth as usize, MIB as usize)).unwrap();
        }
        self.device.take_most();
        self.device.take_largest();
    }

    fn end(self) {
        let Self { device, fs, small, large } = self;
        drop((small, large));
        fs.unmount().unwrap();
        drop(fs);
        check(&device.below);
    }
}

/// Somebody syncs a small file, while 30 MiB of another are made durable by `how`, on a volume of this many
/// MiB.
fn most_that_waits(mebibytes: u64, how: impl Fn(&Scene)) -> u64 {
    let scene = Scene::new(mebibytes);
    for nth in 0..30 {
        scene.fs.write(&scene.large, nth * MIB, &pattern(nth as usize, MIB as usize)).unwrap();
        scene.sync_small(nth as usize);
    }
    scene.device.take_most();
    how(&scene);
    let most = scene.device.take_most();
    scene.end();
    most
}

/// A card with one open unit was half as fast where the last blocks of a segment came after the first
/// ones of the next.
#[test]
fn the_rest_of_a_segment_is_on_its_way_before_the_next_one() {
    let scene = Scene::new(ROOMY);
    for mebibytes in [20, 41, 5] {
        scene.write(&scene.large, mebibytes);
        scene.fs.commit().unwrap();
    }
    assert_eq!(scene.device.overtaken.load(Ordering::Relaxed), 0);
    scene.end();
}

#[test]
fn an_fsync_of_a_large_file_leaves_no_more_than_a_piece_to_others() {
    let most = most_that_waits(ROOMY, |scene| scene.fs.sync_file(&scene.large).unwrap());
    assert!(most <= PIECE + LITTLE, "{most} bytes");
}

#[test]
fn an_fsync_of_the_root_leaves_no_more_than_a_piece_to_others() {
    let most = most_that_waits(ROOMY, |scene| {
        let root = scene.fs.root().unwrap().inode;
        scene.fs.sync_file(&root).unwrap();
    });
    assert!(most <= PIECE + LITTLE, "{most} bytes");
}

/// Also where few segments are clean.
#[test]
fn a_commit_leaves_no_more_than_a_piece_and_metadata_to_an_fsync() {
    for mebibytes in [ROOMY, SMALL] {
        let most = most_that_waits(mebibytes, |scene| scene.fs.commit().map(drop).unwrap());
        assert!(most <= PIECE + 4 * LITTLE, "{most} bytes on {mebibytes} MiB");
    }
}

/// Not even if some of it is overwritten when it has been written ahead already.
#[test]
fn what_is_written_during_a_commit_is_not_left_to_an_fsync() {
    let most = most_that_waits(ROOMY, |Scene { device, fs, large, .. }| {
        let (writer, large) = (Arc::downgrade(fs), Arc::clone(large));
        device.during_write_out(60, move || {
            let writer = writer.upgrade().unwrap();
            writer.write(&large, 0, &pattern(99, 4 << 20)).unwrap();
        });
        fs.commit().unwrap();
    });
    assert!(most <= PIECE + 4 * LITTLE, "{most} bytes");
}

type Verb = fn(&Scene);

/// Whatever makes a checkpoint.
const COMMITS: &[(&str, Verb)] = &[
    ("commit", |scene| _ = scene.fs.commit().unwrap()),
    ("sync", |scene| scene.fs.sync().unwrap()),
    ("checkpoint", |scene| _ = scene.fs.checkpoint_now().unwrap()),
    ("snapshot", |scene| scene.fs.set_snapshot(scene.fs.newest_log().cno, true).unwrap()),
    ("clean", |scene| {
        let run = ManualRun { protection: Some(Duration::ZERO), ..ManualRun::default() };
        assert!(scene.fs.clean(&run).unwrap() > 0);
    }),
    ("shrink", |scene| scene.fs.resize(480 * MIB, &mut |_| {}).unwrap()),
    ("fsync of the large file", |scene| scene.fs.sync_file(&scene.large).unwrap()),
    ("fsync of the root", |scene| {
        scene.fs.sync_file(&scene.fs.root().unwrap().inode).unwrap();
    }),
    ("read-only", |scene| scene.fs.set_read_only(true).unwrap()),
];

/// The log is left after each piece, and as soon as there is an fsync, pieces are small, and the device
/// has no more to do before it.
#[test]
fn the_first_fsync_after_none_for_long_waits_for_one_piece() {
    for (what, verb) in COMMITS {
        let scene = Scene::new(ROOMY);
        // There is something to clean, and little to move for that.
        for mebibytes in [20, 10] {
            scene.write(&scene.large, mebibytes);
            scene.fs.sync().unwrap();
        }
        scene.write(&scene.large, 30);
        let (fs, small) = (Arc::downgrade(&scene.fs), Arc::clone(&scene.small));
        let device = Arc::downgrade(&scene.device);
        let most_before = Arc::new(AtomicU64::new(0));
        let before = Arc::clone(&most_before);
        scene.device.during_write_out(0, move || {
            let (fs, device) = (fs.upgrade().unwrap(), device.upgrade().unwrap());
            before.store(device.take_most(), Ordering::Relaxed);
            fs.write(&small, 0, b"saved").unwrap();
            fs.sync_file(&small).unwrap();
            device.take_most();
            device.take_largest();
        });
        verb(&scene);
        let (most, largest) = (scene.device.take_most(), scene.device.take_largest());
        let before = most_before.load(Ordering::Relaxed);
        assert!((PIECE..=ON_THE_WAY + LITTLE).contains(&before), "{what}: {before} before");
        assert!(most <= PIECE + 4 * LITTLE, "{what}: {most} bytes");
        assert!(largest <= PIECE + 4 * LITTLE, "{what}: {largest} bytes at a time");
        if scene.fs.is_read_only() {
            scene.fs.set_read_only(false).unwrap();
        }
        scene.end();
    }
}

/// Where segments end, and where so much has been synced that a checkpoint is due.
#[test]
fn an_fsync_of_little_writes_little_however_many_there_have_been() {
    let scene = Scene::new(ROOMY);
    scene.write(&scene.large, 30);
    for nth in 0..1200 {
        let written = scene.device.written_by(|| scene.sync_small(nth));
        assert!(written <= LITTLE, "fsync {nth}: {written} bytes");
    }
    scene.end();
}

/// A file that takes the place of another becomes durable with its name. It is more than fits into a
/// segment.
#[test]
fn an_fsync_takes_along_what_has_replaced_another_file_and_nothing_else() {
    let scene = Scene::new(ROOMY);
    let root = scene.fs.root().unwrap().inode;
    let [old, new] = ["old", "new"].map(|name| make(&scene.fs, &root, name));
    scene.fs.write(&old, 0, b"old").unwrap();
    scene.fs.sync().unwrap();
    scene.write(&scene.large, 30);
    scene.write(&new, 12);
    scene.fs.rename(&root, b"new", &root, b"old", RenameMode::Replace).unwrap();
    let written = scene.device.written_by(|| scene.sync_small(1));
    let most = scene.device.take_most();
    assert!((12 * MIB..13 * MIB).contains(&written), "{written} bytes");
    assert!(most <= ON_THE_WAY + LITTLE, "{most} bytes");
    drop((root, old, new));
    scene.end();
}

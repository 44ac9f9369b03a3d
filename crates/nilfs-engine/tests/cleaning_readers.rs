//! Another process that reads the volume finds what it looks for, whatever is cleaned meanwhile.

#![allow(clippy::disallowed_types, reason = "the engine's locks are for the engine")]

mod common;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use common::{check, make, parameters, pattern};
use nilfs_device::{Claim, Device, IoSlice, MemoryDevice};
use nilfs_engine::mkfs::format;
use nilfs_engine::{Amount, CleanerOptions, Error, Filesystem, ManualRun, MountOptions, Volume};

const BLOCK: usize = 1024;
const PER_SEGMENT: usize = 64;
const SEGMENTS: usize = 40;

/// A device with a reader that others do not expect.
struct Visited {
    below: MemoryDevice,
    /// Whether another process reads.
    visitor: AtomicBool,
    /// What happens when the next log is written.
    at_log: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Device for Visited {
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
        // A superblock is one block.
        if pieces.iter().map(|piece| piece.len()).sum::<usize>() > BLOCK {
            let happens = self.at_log.lock().unwrap_or_else(PoisonError::into_inner).take();
            happens.into_iter().for_each(|happens| happens());
        }
        self.below.write_at(offset, pieces)
    }

    fn flush(&self) -> io::Result<()> {
        self.below.flush()
    }

    fn discard(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.below.discard(offset, bytes)
    }

    fn keep_readers_out(&self) -> Option<Claim> {
        (!self.visitor.load(Ordering::SeqCst)).then(|| Box::new(()) as Claim)
    }
}

/// An empty volume.
fn volume() -> Arc<Visited> {
    let below = MemoryDevice::new(((SEGMENTS * PER_SEGMENT + 8) * BLOCK) as u64);
    let mut parameters = parameters(BLOCK as u64);
    parameters.blocks_per_segment = PER_SEGMENT as u32;
    format(&below, &parameters).unwrap();
    Arc::new(Visited { below, visitor: AtomicBool::new(false), at_log: Mutex::default() })
}

fn mount(device: &Arc<Visited>) -> Arc<Filesystem> {
    let shared: Arc<dyn Device> = Arc::clone(device) as _;
    let cleaner = CleanerOptions { protection: Duration::ZERO, ..CleanerOptions::default() };
    Filesystem::mount(shared, MountOptions { cleaner, ..MountOptions::default() }).unwrap()
}

/// A segment that is clean on the device may be written by the next mount, which does not know
/// since when somebody reads.
#[test]
fn no_segment_becomes_clean_on_the_device_while_another_process_reads() {
    let device = volume();
    device.visitor.store(true, Ordering::SeqCst);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let warm = make(&fs, &root, "warm");
    for round in 0..4 {
        fs.write(&warm, 0, &pattern(round, 200 * BLOCK)).unwrap();
        fs.sync().unwrap();
    }
    let clean = || Volume::open(Arc::clone(&device) as _).unwrap().clean_segments().unwrap();
    let run = ManualRun { min_reclaimable: Some(Amount::Count(1)), ..ManualRun::default() };
    fs.sync().unwrap();
    let before = clean();
    assert_eq!(fs.clean(&run).unwrap(), 0);
    fs.sync().unwrap();
    assert!(clean() <= before, "{} clean segments, {before} before", clean());
    device.visitor.store(false, Ordering::SeqCst);
    assert!(fs.clean(&run).unwrap() > 0);
    fs.sync().unwrap();
    assert!(clean() > before);
    drop((warm, root));
    fs.unmount().unwrap();
    check(&*device);
}

/// The cleaner has chosen what to give up, and is about to commit that, when somebody looks. If that
/// stopped it, a volume without room on which many look back would seem to be full.
#[test]
fn a_checkpoint_that_is_being_given_up_cannot_be_opened_any_more() {
    let device = volume();
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let (stays, changes) = (make(&fs, &root, "stays"), make(&fs, &root, "changes"));
    for nth in 0..40 {
        let at = nth * 5 * BLOCK as u64;
        fs.write(&stays, at, &pattern(1, 5 * BLOCK)).unwrap();
        fs.write(&changes, at, &pattern(2, 5 * BLOCK)).unwrap();
        fs.commit().unwrap();
    }
    let old = fs.checkpoint_now().unwrap();
    fs.write(&changes, 0, &pattern(3, 200 * BLOCK)).unwrap();
    drop((stays, changes, root));
    // Nothing is left to be committed, so the first log is that of what is moved.
    fs.unmount().unwrap();
    let fs = mount(&device);
    let opened = Arc::new(Mutex::new(None));
    let (looking, seen) = (Arc::clone(&fs), Arc::clone(&opened));
    let look = move || *seen.lock().unwrap() = Some(looking.tree(Some(old)).map(drop));
    *device.at_log.lock().unwrap() = Some(Box::new(look));
    let run = ManualRun { min_reclaimable: Some(Amount::Count(1)), ..ManualRun::default() };
    assert!(fs.clean(&run).unwrap() > 0, "the step is not in vain");
    let seen = opened.lock().unwrap().take().expect("the step has moved something");
    assert!(matches!(seen, Err(Error::NoCheckpoint(cno)) if cno == old), "{seen:?}");
    assert!(matches!(fs.tree(Some(old)), Err(Error::NoCheckpoint(_))), "it is gone");
    // Others can be opened again.
    let newest = fs.checkpoint_now().unwrap();
    fs.tree(Some(newest)).unwrap();
    fs.unmount().unwrap();
    check(&*device);
}

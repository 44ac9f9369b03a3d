//! Cleaning a device that fails, and a volume that is damaged: what can be read is not lost, and
//! what cannot be understood is left alone.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{check, make, parameters, pattern};
use nilfs_device::{Action, Device, Fault, FaultyDevice, IoSlice, MemoryDevice};
use nilfs_engine::mkfs::format;
use nilfs_engine::{
    Amount, CleanerOptions, Error, Filesystem, InodeRef, ManualRun, MountOptions, Volume,
};
use nilfs_ondisk::summary::BlockInfo;
use nilfs_ondisk::{BlockNr, Ino, SegNum};

const BLOCK: usize = 1024;
const PER_SEGMENT: usize = 64;

type Scratched = FaultyDevice<MemoryDevice>;

fn scratch(device: &Scratched, block: BlockNr) {
    let size = BLOCK as u64;
    device.faults().scratch(std::iter::once(block.0 * size..(block.0 + 1) * size));
}

fn formatted() -> MemoryDevice {
    let memory = MemoryDevice::new(((40 * PER_SEGMENT + 8) * BLOCK) as u64);
    let mut parameters = parameters(BLOCK as u64);
    parameters.blocks_per_segment = PER_SEGMENT as u32;
    format(&memory, &parameters).unwrap();
    memory
}

fn mount<D: Device + 'static>(device: &Arc<D>) -> Arc<Filesystem> {
    let shared: Arc<dyn Device> = Arc::clone(device) as _;
    let cleaner = CleanerOptions { protection: Duration::ZERO, ..CleanerOptions::default() };
    Filesystem::mount(shared, MountOptions { cleaner, ..MountOptions::default() }).unwrap()
}

fn everything() -> ManualRun {
    ManualRun { min_reclaimable: Some(Amount::Count(1)), ..ManualRun::default() }
}

const FILE_BLOCKS: usize = 250;

/// A file in several segments, of which every other block was written again elsewhere.
fn worn_file(fs: &Filesystem) -> (InodeRef, Vec<u8>) {
    let file = make(fs, &fs.root().unwrap().inode, "file");
    let mut content = pattern(5, FILE_BLOCKS * BLOCK);
    fs.write(&file, 0, &content).unwrap();
    fs.sync().unwrap();
    for nth in (0..FILE_BLOCKS).step_by(2) {
        let fresh = pattern(nth, BLOCK);
        fs.write(&file, (nth * BLOCK) as u64, &fresh).unwrap();
        content[nth * BLOCK..(nth + 1) * BLOCK].copy_from_slice(&fresh);
    }
    fs.sync().unwrap();
    (file, content)
}

/// Where a segment begins that holds blocks of the file which are still needed, the address of one
/// of these, and its place in the file.
fn victim(device: Arc<dyn Device>, ino: Ino) -> (SegNum, BlockNr, BlockNr, usize) {
    let volume = Volume::open(device).unwrap();
    let geometry = volume.geometry();
    let logs = (1..geometry.nsegments).flat_map(|nth| volume.logs(SegNum(nth)).unwrap());
    for log in logs {
        let mut block = log.start.plus(log.header.summary_blocks(geometry.block_size));
        for file in &log.files {
            for info in &file.blocks {
                if let BlockInfo::Data { offset, .. } = info
                    && file.ino == ino
                    && offset.0 % 2 == 1
                {
                    let segment = geometry.segment_of(block);
                    return (segment, log.start, block, offset.0 as usize);
                }
                block = block.plus(1);
            }
        }
    }
    panic!("the file is in some segment");
}

/// Reads the file block by block and compares, but for the blocks that cannot be read. Returns the
/// number of these.
fn unreadable_blocks(fs: &Filesystem, file: &InodeRef, content: &[u8]) -> usize {
    let mut buffer = vec![0; BLOCK];
    let mut unreadable = 0;
    for (nth, expected) in content.chunks(BLOCK).enumerate() {
        match fs.read(file, (nth * BLOCK) as u64, &mut buffer) {
            Ok(_) => assert_eq!(buffer, expected, "block {nth}"),
            Err(_) => unreadable += 1,
        }
    }
    unreadable
}

fn bad_segments(device: &Arc<Scratched>) -> Vec<SegNum> {
    let volume = Volume::open(Arc::clone(device) as _).unwrap();
    let segments = volume.segments(SegNum(0)).unwrap();
    segments.iter().filter(|it| it.bad).map(|it| it.segment).collect()
}

fn scratched() -> (Arc<Scratched>, Arc<Filesystem>) {
    let device = Arc::new(FaultyDevice::new(formatted()).0);
    let fs = mount(&device);
    (device, fs)
}

#[test]
fn a_block_that_cannot_be_read_costs_nothing_but_itself() {
    let (device, fs) = scratched();
    let (file, content) = worn_file(&fs);
    let (segment, _, block, _) = victim(Arc::clone(&device) as _, file.ino());
    scratch(&device, block);
    fs.clean(&everything()).unwrap();
    assert_eq!(bad_segments(&device), [segment], "the segment is marked");
    assert_eq!(unreadable_blocks(&fs, &file, &content), 1);
    fs.write(&file, 0, &content[..BLOCK]).unwrap();
    fs.unmount().unwrap();
    device.faults().clear();
    check(&*device);
    let fs = mount(&device);
    let file = fs.lookup(&fs.root().unwrap().inode, b"file").unwrap().inode;
    scratch(&device, block);
    assert!(fs.clean(&everything()).is_ok());
    device.faults().clear();
    assert_eq!(unreadable_blocks(&fs, &file, &content), 0, "even that is where it was");
    fs.unmount().unwrap();
    assert_eq!(bad_segments(&device), [segment]);
    check(&*device);
}

#[test]
fn a_summary_that_cannot_be_read_makes_its_segment_bad_and_no_other() {
    let (device, fs) = scratched();
    let (file, content) = worn_file(&fs);
    let (segment, summary, ..) = victim(Arc::clone(&device) as _, file.ino());
    scratch(&device, summary);
    fs.clean(&everything()).unwrap();
    assert_eq!(bad_segments(&device), [segment]);
    assert_eq!(unreadable_blocks(&fs, &file, &content), 0, "its blocks can be read");
    fs.unmount().unwrap();
    device.faults().clear();
    check(&*device);
}

#[test]
fn a_segment_with_a_damaged_summary_is_left_alone_and_reported() {
    let (device, fs) = scratched();
    let (file, content) = worn_file(&fs);
    let (segment, summary, ..) = victim(Arc::clone(&device) as _, file.ino());
    let address = summary.0 * BLOCK as u64;
    let mut header = vec![0; BLOCK];
    device.read_at(address, &mut header).unwrap();
    let healthy = header.clone();
    header[100] ^= 1;
    device.write_at(address, &[IoSlice::new(&header)]).unwrap();
    for _ in 0..2 {
        fs.clean(&everything()).unwrap();
        assert_eq!(fs.status().cleaner.segments_skipped, 1, "it is told once");
    }
    let usage = Volume::open(Arc::clone(&device) as _).unwrap().segments(segment).unwrap()[0];
    assert!(usage.dirty && !usage.bad, "it is neither freed nor called bad");
    assert_eq!(unreadable_blocks(&fs, &file, &content), 0);
    fs.unmount().unwrap();
    device.write_at(address, &[IoSlice::new(&healthy)]).unwrap();
    check(&*device);
}

#[test]
fn a_write_that_fails_while_blocks_are_moved_does_no_harm() {
    let (device, fs) = scratched();
    let (file, content) = worn_file(&fs);
    for action in [Action::Write, Action::Flush] {
        device.faults().fail(action);
        assert!(fs.clean(&everything()).is_err());
        device.faults().clear();
        assert_eq!(unreadable_blocks(&fs, &file, &content), 0);
        check(&*device);
    }
    drop((fs, file));
    let fs = mount(&device);
    let file = fs.lookup(&fs.root().unwrap().inode, b"file").unwrap().inode;
    assert!(fs.clean(&everything()).unwrap() > 0, "afterwards, it goes on");
    assert_eq!(unreadable_blocks(&fs, &file, &content), 0);
    fs.unmount().unwrap();
    check(&*device);
}

#[test]
fn a_segment_that_cannot_be_written_is_not_taken_again() {
    let (device, fs) = scratched();
    let (file, content) = worn_file(&fs);
    // The cleaner takes segments from the middle of the volume on, which the log has not reached.
    let beyond = (20 * PER_SEGMENT * BLOCK) as u64..device.size() - 4096;
    let worn_out = Arc::new(AtomicBool::new(false));
    let met = Arc::clone(&worn_out);
    device.faults().set(move |request| {
        let fails = request.action == Action::Write
            && request.touches(&beyond)
            && !met.swap(true, Ordering::Relaxed);
        fails.then_some(Fault::Error)
    });
    assert!(fs.clean(&everything()).is_err(), "the cleaner has met the fault");
    assert!(worn_out.load(Ordering::Relaxed));
    assert!(fs.clean(&everything()).unwrap() > 0, "it goes on elsewhere");
    assert!(common::content(&fs, &file) == content);
    drop(file);
    fs.unmount().unwrap();
    check(&*device);
    assert_eq!(bad_segments(&device).len(), 1);
}

#[test]
fn a_read_that_fails_once_is_not_taken_for_lack_of_room() {
    let memory = Arc::new(formatted());
    let fs = mount(&memory);
    worn_file(&fs);
    fs.unmount().unwrap();
    drop(fs);
    let volume = Volume::open(Arc::clone(&memory) as _).unwrap();
    // The log has to leave them first.
    let all = volume.segments(SegNum(0)).unwrap();
    let segments: BTreeSet<SegNum> =
        all.iter().filter(|it| it.active).map(|it| it.segment).collect();
    for nth in 0.. {
        let (device, faults) = FaultyDevice::new(MemoryDevice::from(memory.snapshot()));
        let device = Arc::new(device);
        let fs = mount(&device);
        let has_failed = Arc::new(AtomicBool::new(false));
        let (mut reads, failing) = (0, Arc::clone(&has_failed));
        faults.set(move |request| {
            reads += u64::from(request.action == Action::Read);
            let fails = reads == nth + 1 && !failing.swap(reads > nth, Ordering::Relaxed);
            fails.then_some(Fault::Error)
        });
        let done = fs.evacuate(segments.clone(), &mut |_| {});
        faults.clear();
        _ = fs.unmount();
        match done {
            // What of a segment cannot be read is not moved, and the segment is marked.
            Ok(left) => assert!(
                left.is_empty() || !bad_segments(&device).is_empty(),
                "read {nth} fails: {left:?} are left"
            ),
            Err(error) => assert!(matches!(error, Error::Device { .. }), "read {nth}: {error}"),
        }
        check(&*device);
        if !has_failed.load(Ordering::Relaxed) {
            return;
        }
    }
}

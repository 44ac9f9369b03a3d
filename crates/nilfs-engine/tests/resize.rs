//! A volume grows and shrinks while it is in use, and keeps everything.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{check, content, make, mount, parameters, pattern};
use nilfs_device::{Action, Fault, FaultyDevice, MemoryDevice};
use nilfs_engine::mkfs::format;
use nilfs_engine::{Error, Filesystem, MountOptions};

const MEGABYTE: u64 = 1 << 20;

/// A volume of `size` megabytes with room for `room` on its device.
fn volume(size: u64, room: u64) -> Arc<MemoryDevice> {
    let small = MemoryDevice::new(size * MEGABYTE);
    format(&small, &parameters(1024)).unwrap();
    let mut bytes = small.snapshot();
    bytes.resize((room * MEGABYTE) as usize, 0);
    Arc::new(MemoryDevice::from(bytes))
}

fn fill(fs: &Filesystem, files: std::ops::Range<usize>) {
    let root = fs.root().unwrap().inode;
    for nth in files {
        let file = make(fs, &root, &format!("file {nth}"));
        fs.write(&file, 0, &pattern(nth, 100_000)).unwrap();
    }
    fs.sync().unwrap();
}

fn expect(fs: &Filesystem, files: std::ops::Range<usize>) {
    let root = fs.root().unwrap().inode;
    for nth in files {
        let file = fs.lookup(&root, format!("file {nth}").as_bytes()).unwrap().inode;
        assert!(content(fs, &file) == pattern(nth, 100_000), "file {nth} is as it was");
    }
}

#[test]
fn a_volume_grows_and_shrinks_and_keeps_its_files_and_its_past() {
    let device = volume(12, 32);
    let fs = mount(&device);
    fill(&fs, 0..40);
    let small = fs.stat_fs().unwrap().blocks;
    fs.resize(32 * MEGABYTE, &mut |_| {}).unwrap();
    check(&*device);
    assert!(fs.stat_fs().unwrap().blocks > 2 * small);
    fill(&fs, 40..160);
    let before = fs.checkpoint_now().unwrap();
    let root = fs.root().unwrap().inode;
    for nth in 20..150 {
        fs.unlink(&root, format!("file {nth}").as_bytes()).unwrap();
    }
    fs.set_snapshot(before, true).unwrap();
    assert!(
        matches!(
            fs.resize(12 * MEGABYTE, &mut |_| {}),
            Err(Error::NoRoomToShrink { segments: 1.. })
        ),
        "the snapshot needs the room"
    );
    fs.set_snapshot(before, false).unwrap();
    fs.sync().unwrap();
    fs.clean(&nilfs_engine::ManualRun {
        protection: Some(std::time::Duration::ZERO),
        ..Default::default()
    })
    .unwrap();
    let mut seen = Vec::new();
    fs.resize(14 * MEGABYTE, &mut |progress| seen.push(progress)).unwrap();
    assert_eq!(seen.last().map(|last| last.emptied), seen.last().map(|last| last.to_empty));
    expect(&fs, 0..20);
    expect(&fs, 150..160);
    check(&*device);
    fs.unmount().unwrap();
    check(&*device);

    // What was beyond the new end is not needed any more.
    let mut bytes = device.snapshot();
    bytes.truncate((14 * MEGABYTE) as usize);
    let device = Arc::new(MemoryDevice::from(bytes));
    check(&*device);
    let fs = mount(&device);
    expect(&fs, 0..20);
    fill(&fs, 200..210);
    fs.unmount().unwrap();
    check(&*device);
}

#[test]
fn a_size_that_makes_no_sense_is_refused() {
    let device = volume(12, 16);
    let fs = mount(&device);

    assert!(matches!(fs.resize(100_000, &mut |_| {}), Err(Error::Invalid(_))), "too small");
    fs.set_read_only(true).unwrap();
    assert!(matches!(fs.resize(16 * MEGABYTE, &mut |_| {}), Err(Error::ReadOnly { .. })));
}

/// The last commit of a resize leaves the new number of segments out if it cannot read what has to be
/// changed for it. The superblocks took that number over nevertheless, and the volume was damaged.
#[test]
fn a_resize_that_cannot_read_something_leaves_the_size_as_it_was() {
    let original = volume(12, 32).snapshot();
    // With hardly anything in memory, it has to read.
    let options = || MountOptions { cache_limit: 0, ..MountOptions::default() };
    let mut failed = 0;
    for size in [8, 32] {
        for unreadable in 0.. {
            let (device, faults) = FaultyDevice::new(MemoryDevice::from(original.clone()));
            let device = Arc::new(device);
            let fs = Filesystem::mount(device.clone(), options()).unwrap();
            fill(&fs, 0..10);
            let reads = Arc::new(AtomicU64::new(0));
            let seen = Arc::clone(&reads);
            faults.set(move |request| {
                let fails = request.action == Action::Read
                    && seen.fetch_add(1, Ordering::Relaxed) == unreadable;
                fails.then_some(Fault::Error)
            });
            let resized = fs.resize(size * MEGABYTE, &mut |_| {});
            faults.clear();
            if resized.is_err() {
                failed += 1;
                check(&*device);
            }
            expect(&fs, 0..10);
            drop(fs);
            let fs = Filesystem::mount(device.clone(), options()).unwrap();
            fs.resize(size * MEGABYTE, &mut |_| {}).unwrap();
            expect(&fs, 0..10);
            fs.unmount().unwrap();
            check(&*device);
            if reads.load(Ordering::Relaxed) <= unreadable {
                break;
            }
        }
    }
    assert!(failed > 0, "a resize reads something");
}

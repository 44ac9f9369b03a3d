//! A volume grows and shrinks while it is in use, and keeps everything.

mod common;

use std::sync::Arc;

use common::{check, content, make, mount, parameters, pattern};
use nilfs_device::MemoryDevice;
use nilfs_engine::mkfs::format;
use nilfs_engine::{Error, Filesystem};

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

//! A volume is consistent whenever the power fails, and the checker says so of what the cut left,
//! before any mount has put it right. It once took every volume whose growing was cut off for
//! damaged: the sufile counts the new segments a moment before the superblocks do.

use std::sync::Arc;

use nilfs_device::{MemoryDevice, RecordingDevice};
use nilfs_engine::{Filesystem, MountOptions, NewInode};
use nilfs_ondisk::inode::{DeviceCode, S_IFREG};
use nilfs_sim::power::{Disk, Survivors};
use nilfs_sim::volume::Shape;

/// Everything that a resize to this size does to a volume with a few files, and the volume before.
fn resize(bytes: u64) -> (Disk, Vec<nilfs_device::Event>) {
    let content = Shape::SMALL.format();
    let below = MemoryDevice::from(content);
    let device = Arc::new(RecordingDevice::new(below));
    let fs = Filesystem::mount(device.clone(), MountOptions::default()).unwrap();
    let root = fs.root().unwrap().inode;
    let new = NewInode { mode: S_IFREG | 0o644, uid: 0, gid: 0, rdev: DeviceCode::default() };
    for name in [b"a", b"b", b"c"] {
        let file = fs.create(&root, name, &new).unwrap().inode;
        fs.write(&file, 0, &[7; 100 << 10]).unwrap();
    }
    fs.sync().unwrap();
    let before = Disk::new(device.below().snapshot());
    let _ = device.take_events();
    fs.resize(bytes, &mut |_| {}).unwrap();
    (before, device.take_events())
}

fn the_checker_finds_no_error(bytes: u64) {
    let (mut disk, events) = resize(bytes);
    for (nth, event) in events.iter().enumerate() {
        disk.play(event);
        for survivors in Survivors::CORNERS {
            let left = MemoryDevice::from(disk.after_cut(survivors));
            let report = nilfs_check::check(&left, &nilfs_check::Options::default()).unwrap();
            assert!(
                report.is_consistent(),
                "a cut at event {nth} of {}, {survivors:?}: {report}",
                events.len()
            );
        }
    }
}

#[test]
fn while_a_volume_grows() {
    the_checker_finds_no_error(2 * Shape::SMALL.device_size());
}

#[test]
fn while_a_volume_shrinks() {
    the_checker_finds_no_error(Shape::SMALL.device_size() / 2);
}

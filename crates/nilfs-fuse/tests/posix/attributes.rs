//! What stat says, and what is refused.

use std::ffi::c_long;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags, XattrFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

use crate::support::{World, chmod, open};

#[test]
fn st_blocks_counts_what_is_allocated() {
    let mut world = World::new();
    let path = world.file("file", vec![1; 40_960]);
    let blocks = || fs::metadata(&path).unwrap().blocks();
    assert_eq!(fs::metadata(world.file("empty", "")).unwrap().blocks(), 0);
    assert!((80..=96).contains(&blocks()), "{} sectors before the commit", blocks());
    world.remount();
    let path = world.path("file");
    let blocks = fs::metadata(path).unwrap().blocks();
    assert!((80..=96).contains(&blocks), "{blocks} sectors after the commit");
}

fn generation(path: &Path) -> c_long {
    const GET_VERSION: Opcode = opcode::read::<c_long>(b'v', 1);
    let mut version: c_long = 0;
    // SAFETY: FS_IOC_GETVERSION writes an int, or a long, to the address it is given.
    unsafe { ioctl(File::open(path).unwrap(), Updater::<GET_VERSION, _>::new(&mut version)) }
        .unwrap();
    version
}

#[test]
fn a_file_that_takes_over_a_number_has_another_generation() {
    let world = World::new();
    let first = world.file("first", "");
    let (ino, version) = (fs::metadata(&first).unwrap().ino(), generation(&first));
    fs::remove_file(&first).unwrap();
    let second = world.file("second", "");
    assert!(fs::metadata(&second).unwrap().ino() != ino || generation(&second) != version);
}

#[test]
fn what_the_format_cannot_do_is_refused_as_such() {
    let world = World::new();
    let path = world.file("file", "content");
    let attribute = rustix::fs::setxattr(&path, "user.a", b"b", XattrFlags::empty());
    assert_eq!(attribute, Err(Errno::OPNOTSUPP));
    assert_eq!(rustix::fs::getxattr(&path, "user.a", &mut [0_u8; 8]), Err(Errno::OPNOTSUPP));
    let file = open(&path, OFlags::empty()).unwrap();
    let flags = FallocateFlags::KEEP_SIZE;
    assert_eq!(rustix::fs::fallocate(&file, flags, 0, 4096), Err(Errno::OPNOTSUPP));
}

#[test]
fn copies_within_the_volume_work_without_support_for_them() {
    let world = World::new();
    let from = File::open(world.file("from", vec![7; 100_000])).unwrap();
    let to = File::create(world.path("to")).unwrap();
    let copied = rustix::fs::copy_file_range(&from, None, &to, None, 100_000);
    assert_eq!(copied, Ok(100_000));
    assert_eq!(fs::read(world.path("to")).unwrap(), vec![7; 100_000]);
}

#[test]
fn stat_by_descriptor_and_by_name_agree() {
    let world = World::new();
    let path = world.file("file", "content");
    chmod(&path, 0o640);
    let (by_name, by_file) =
        (fs::metadata(&path).unwrap(), File::open(&path).unwrap().metadata().unwrap());
    let facts = |metadata: &fs::Metadata| {
        (metadata.ino(), metadata.size(), metadata.mode(), metadata.mtime_nsec())
    };
    assert_eq!(facts(&by_name), facts(&by_file));
}

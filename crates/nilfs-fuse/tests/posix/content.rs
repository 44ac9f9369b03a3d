//! The content of files.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{OFlags, SeekFrom as Position, copy_file_range};
use rustix::io::Errno;

use crate::client;
use crate::support::{Settings, World, errno, open};

/// Bytes that differ from block to block and within a block.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 4096 * 7 + at % 251) as u8).collect()
}

#[test]
fn what_was_written_is_read_before_and_after_a_remount() {
    let mut world = World::new();
    let content = pattern(3_000_001);
    let path = world.file("file", &content);
    assert!(fs::read(&path).unwrap() == content);
    world.remount();
    assert!(fs::read(&path).unwrap() == content);
}

#[test]
fn an_overwrite_in_the_middle_changes_nothing_else() {
    let mut world = World::new();
    let mut content = pattern(100_000);
    let path = world.file("file", &content);
    world.remount();
    let file = open(&path, OFlags::empty()).unwrap();
    file.write_all_at(&[0xee; 5000], 4000).unwrap();
    drop(file);
    content[4000..9000].fill(0xee);
    assert!(fs::read(&path).unwrap() == content);
    world.remount();
    assert!(fs::read(&path).unwrap() == content);
}

/// Copies as copy_file_range(2) does, in as many calls as it takes. Returns how many bytes.
fn copy(from: &File, mut at: u64, to: &File, mut to_at: u64, mut length: usize) -> usize {
    let mut copied = 0;
    while length > 0 {
        let part = copy_file_range(from, Some(&mut at), to, Some(&mut to_at), length).unwrap();
        if part == 0 {
            break;
        }
        (copied, length) = (copied + part, length - part);
    }
    copied
}

#[test]
fn a_range_is_copied_by_the_file_system_itself() {
    let settings = Settings::default();
    let metrics = Arc::clone(&settings.metrics);
    let mut world = World::with_settings(settings);
    let content = pattern(20_000_001);
    let path = world.file("file", &content);
    let from = File::open(&path).unwrap();
    let to = open(&world.path("copy"), OFlags::CREATE).unwrap();
    assert_eq!(copy(&from, 0, &to, 0, usize::MAX >> 1), content.len());
    // From the middle to beyond the end, and within one file.
    assert_eq!(copy(&from, 5001, &to, 20_010_000, 10_001), 10_001);
    assert_eq!(copy(&to, 0, &to, 9_000_000, 12_345), 12_345);
    let mut expected = content.clone();
    expected.resize(20_010_000, 0);
    expected.extend_from_slice(&content[5001..15_002]);
    expected[9_000_000..9_012_345].copy_from_slice(&content[..12_345]);
    let read = metrics.operations().iter().find(|one| one.operation == "read").unwrap().count;
    assert_eq!(read, 0, "the content does not go through the kernel");
    assert!(fs::read(world.path("copy")).unwrap() == expected);
    drop((from, to));
    world.remount();
    assert!(fs::read(world.path("copy")).unwrap() == expected);
}

#[test]
fn what_was_read_before_shows_what_is_copied_over_it() {
    let world = World::new();
    let from = open(&world.file("file", vec![7; 10_000]), OFlags::empty()).unwrap();
    let to = open(&world.file("target", vec![1; 10_000]), OFlags::empty()).unwrap();
    assert_eq!(fs::read(world.path("target")).unwrap(), [1; 10_000]);
    assert_eq!(copy(&from, 0, &to, 100, 5000), 5000);
    let mut expected = vec![1; 10_000];
    expected[100..5100].fill(7);
    assert_eq!(fs::read(world.path("target")).unwrap(), expected);
    assert_eq!(to.metadata().unwrap().size(), 10_000);
}

#[test]
fn a_copy_to_a_full_volume_ends_where_the_room_does() {
    let world = World::new();
    let from = open(&world.file("file", vec![7; 24 << 20]), OFlags::empty()).unwrap();
    let to = open(&world.path("target"), OFlags::CREATE).unwrap();
    let mut at = 0;
    let mut to_at = 0;
    let error = loop {
        match copy_file_range(&from, Some(&mut at), &to, Some(&mut to_at), 8 << 20) {
            Ok(0) => at = 0,
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error, Errno::NOSPC);
    assert_eq!(to.metadata().unwrap().size(), to_at);
    assert!(fs::read(world.path("target")).unwrap().iter().all(|byte| *byte == 7));
}

#[test]
fn holes_are_zero_take_no_room_and_can_be_found() {
    let world = World::new();
    let path = world.path("sparse");
    let file = open(&path, OFlags::CREATE).unwrap();
    file.write_all_at(&[1; 4096], 1 << 20).unwrap();
    file.set_len(2 << 20).unwrap();
    let metadata = file.metadata().unwrap();
    assert_eq!(metadata.size(), 2 << 20);
    assert!(metadata.blocks() <= 4 * 8, "{} sectors for one block", metadata.blocks());
    let seek = |from| rustix::fs::seek(&file, from);
    assert_eq!(seek(Position::Data(0)), Ok(1 << 20));
    assert_eq!(seek(Position::Hole(0)), Ok(0));
    assert_eq!(seek(Position::Hole(1 << 20)), Ok((1 << 20) + 4096));
    assert_eq!(seek(Position::Data((1 << 20) + 4096)), Err(Errno::NXIO));
    assert_eq!(seek(Position::Hole(2 << 20)), Err(Errno::NXIO));
    let content = fs::read(&path).unwrap();
    assert!(content[..1 << 20].iter().all(|byte| *byte == 0));
    assert!(content[(1 << 20) + 4096..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_file_reaches_to_the_last_offset_there_is() {
    let mut world = World::new();
    let path = world.path("large");
    let last = i64::MAX as u64 - 1;
    let file = open(&path, OFlags::CREATE).unwrap();
    file.write_all_at(b"x", last).unwrap();
    drop(file);
    world.remount();
    let mut byte = [0];
    File::open(&path).unwrap().read_exact_at(&mut byte, last).unwrap();
    assert_eq!(&byte, b"x");
}

#[test]
fn a_file_that_was_cut_shows_zeros_when_it_grows_again() {
    let world = World::new();
    let path = world.file("file", [0xaa; 10_000]);
    let file = open(&path, OFlags::empty()).unwrap();
    file.set_len(5000).unwrap();
    file.set_len(10_000).unwrap();
    let content = fs::read(&path).unwrap();
    assert!(content[..5000].iter().all(|byte| *byte == 0xaa));
    assert!(content[5000..].iter().all(|byte| *byte == 0));
}

#[test]
fn truncating_gives_the_room_back() {
    let world = World::new();
    let path = world.file("file", pattern(1 << 20));
    let before = fs::metadata(&path).unwrap().blocks();
    open(&path, OFlags::empty()).unwrap().set_len(4096).unwrap();
    let after = fs::metadata(&path).unwrap().blocks();
    assert!(before >= 2048 && after <= 16, "{before} sectors, then {after}");
}

#[test]
fn o_append_writes_at_the_end_although_others_have_moved_it() {
    let world = World::new();
    let path = world.file("log", "");
    let mut one = open(&path, OFlags::APPEND).unwrap();
    let mut other = open(&path, OFlags::APPEND).unwrap();
    for _ in 0..3 {
        one.write_all(b"one ").unwrap();
        other.write_all(b"other ").unwrap();
    }
    one.seek(SeekFrom::Start(0)).unwrap();
    one.write_all(b"end").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "one other one other one other end");
}

#[test]
fn o_trunc_empties_a_file() {
    let world = World::new();
    let path = world.file("file", "content");
    drop(open(&path, OFlags::TRUNC).unwrap());
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
}

#[test]
fn o_excl_refuses_a_name_that_exists() {
    let world = World::new();
    let path = world.file("file", "content");
    assert_eq!(errno(open(&path, OFlags::CREATE | OFlags::EXCL)), Errno::EXIST);
    assert_eq!(fs::read(&path).unwrap(), b"content");
}

#[test]
fn o_direct_and_buffered_access_see_the_same() {
    let world = World::new();
    let path = world.path("file");
    let direct = open(&path, OFlags::CREATE | OFlags::DIRECT).unwrap();
    let mut buffered = open(&path, OFlags::empty()).unwrap();
    let content = pattern(1 << 16);
    // Direct access wants memory at a page's boundary, as a mapping is.
    let mut memory = Mapping::anonymous(1 << 16);
    memory.bytes_mut().copy_from_slice(&content);
    direct.write_all_at(memory.bytes(), 0).unwrap();
    let mut read = Vec::new();
    buffered.read_to_end(&mut read).unwrap();
    assert!(read == content);
    buffered.write_all_at(&[9; 4096], 8192).unwrap();
    direct.read_exact_at(memory.bytes_mut(), 0).unwrap();
    assert_eq!(memory.bytes()[8192..12288], [9; 4096]);
}

#[test]
fn a_shared_mapping_is_the_file() {
    let mut world = World::new();
    let path = world.file("file", pattern(20_000));
    client::run("map shared", &path);
    assert_eq!(fs::read(&path).unwrap()[10_000..10_002], [0xff, 0xfe]);
    world.remount();
    assert_eq!(fs::read(&path).unwrap()[10_000..10_002], [0xff, 0xfe]);
}

pub fn map_shared(path: &Path) {
    let file = open(path, OFlags::empty()).unwrap();
    let mut mapping = Mapping::of_file(&file, 20_000, rustix::mm::MapFlags::SHARED);
    assert!(mapping.bytes() == pattern(20_000));
    mapping.bytes_mut()[10_000] = 0xff;
    let mut byte = [0];
    file.read_exact_at(&mut byte, 10_000).unwrap();
    assert_eq!(byte, [0xff]);
    file.write_all_at(&[0xfe], 10_001).unwrap();
    assert_eq!(mapping.bytes()[10_001], 0xfe);
}

#[test]
fn a_private_mapping_leaves_the_file_alone() {
    let world = World::new();
    let path = world.file("file", pattern(5000));
    client::run("map privately", &path);
    assert!(fs::read(&path).unwrap() == pattern(5000));
}

pub fn map_privately(path: &Path) {
    let file = open(path, OFlags::empty()).unwrap();
    let mut mapping = Mapping::of_file(&file, 5000, rustix::mm::MapFlags::PRIVATE);
    mapping.bytes_mut()[0] ^= 0xff;
}

#[test]
fn with_the_write_back_cache_content_is_the_same() {
    let mut world = World::with_settings(Settings { writeback: true, ..Default::default() });
    let path = world.path("file");
    let content = pattern(200_000);
    let mut file = File::create(&path).unwrap();
    for piece in content.chunks(777) {
        file.write_all(piece).unwrap();
    }
    drop(file);
    assert!(fs::read(&path).unwrap() == content);
    world.remount();
    assert!(fs::read(&path).unwrap() == content);
}

/// Memory that is mapped as long as this lives.
pub struct Mapping {
    start: *mut u8,
    length: usize,
}

impl Mapping {
    pub fn anonymous(length: usize) -> Self {
        use rustix::mm::{MapFlags, ProtFlags};
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an address that nobody uses.
        let start = unsafe {
            let start = std::ptr::null_mut();
            rustix::mm::mmap_anonymous(start, length, protection, MapFlags::PRIVATE)
        };
        Self { start: start.unwrap().cast(), length }
    }

    pub fn of_file(file: &File, length: usize, flags: rustix::mm::MapFlags) -> Self {
        use rustix::mm::ProtFlags;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an address that nobody uses.
        let start = unsafe {
            let start = std::ptr::null_mut();
            rustix::mm::mmap(start, length, protection, flags, file, 0)
        };
        Self { start: start.unwrap().cast(), length }
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the range stays mapped as long as `self` lives. A test changes the file behind
        // it only while it holds no slice.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }

    /// Waits until the changes are in the file.
    pub fn sync(&self) {
        // SAFETY: the range is mapped.
        unsafe { rustix::mm::msync(self.start.cast(), self.length, rustix::mm::MsyncFlags::SYNC) }
            .unwrap();
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody can have a reference into the range any more.
        let _ = unsafe { rustix::mm::munmap(self.start.cast(), self.length) };
    }
}

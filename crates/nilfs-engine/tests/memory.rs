//! Memory is bounded by what the options allow, and by little for each file that somebody knows by
//! its number alone. An inode that is gone from memory comes back as it was.
//!
//! What was promised broke once: 300 000 small files that were read held more than a gigabyte, and
//! kept it.

#![allow(clippy::disallowed_types, reason = "the engine's locks are for the engine")]

mod common;

use std::sync::{Arc, Mutex, MutexGuard};

use common::{check, content, make, new, parameters, pattern, volume};
use nilfs_device::MemoryDevice;
use nilfs_engine::mkfs::format;
use nilfs_engine::{Error, Filesystem, InodeRef, MountOptions, RenameMode, SetAttr};
use nilfs_ondisk::Ino;
use nilfs_ondisk::inode::S_IFDIR;
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Memory is counted for the whole process, so one test runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

const CACHE: u64 = 8 << 20;
const DIRTY: u64 = 8 << 20;

fn mount(device: &Arc<MemoryDevice>) -> Arc<Filesystem> {
    mount_with(device, CACHE)
}

fn mount_with(device: &Arc<MemoryDevice>, cache_limit: u64) -> Arc<Filesystem> {
    let options = MountOptions { cache_limit, dirty_limit: DIRTY, ..MountOptions::default() };
    Filesystem::mount(Arc::clone(device) as _, options).unwrap()
}

fn name_of(nth: usize) -> String {
    format!("a file with number {nth}")
}

/// Makes files of one block, whose content is their number, in directories of a thousand.
fn fill(fs: &Filesystem, count: usize) {
    let root = fs.root().unwrap().inode;
    let mut dir = InodeRef::clone(&root);
    for nth in 0..count {
        if nth % 1000 == 0 {
            let name = (nth / 1000).to_string();
            dir = fs.create(&root, name.as_bytes(), &new(S_IFDIR | 0o755)).unwrap().inode;
        }
        let file = make(fs, &dir, &name_of(nth));
        fs.write(&file, 0, name_of(nth).as_bytes()).unwrap();
    }
}

/// Reads them all as a front end does for somebody who keeps their numbers. Returns the numbers.
fn read_and_hold(fs: &Filesystem, count: usize) -> Vec<Ino> {
    let root = fs.root().unwrap().inode;
    let mut held = Vec::with_capacity(count);
    for nth in 0..count {
        let dir = fs.lookup(&root, (nth / 1000).to_string().as_bytes()).unwrap().inode;
        let file = fs.lookup(&dir, name_of(nth).as_bytes()).unwrap().inode;
        fs.hold(&file);
        held.push(file.ino());
        drop(file);
        let file = fs.by_number(held[nth]).unwrap();
        assert_eq!(content(fs, &file), name_of(nth).as_bytes());
    }
    held
}

#[test]
fn a_file_that_is_held_by_its_number_takes_little_memory_and_gives_it_back() {
    const FILES: usize = 30_000;
    let _alone = alone();
    let device = volume(1024, 128);
    let fs = mount(&device);
    fill(&fs, FILES);
    fs.unmount().unwrap();
    drop(fs);

    let fs = mount(&device);
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let held = read_and_hold(&fs, FILES);
    let own = held.capacity() * size_of::<Ino>();
    let peak = MEMORY.peak_usage() - before - own;
    let each = peak.saturating_sub(CACHE as usize) / FILES;
    assert!(each <= 100, "{each} bytes for each file besides the cache, {peak} in all");
    // All at once, as the kernel does it when it needs memory.
    held.iter().for_each(|ino| fs.let_go(*ino, 1));
    let after = MEMORY.current_usage().saturating_sub(before + own);
    assert!(after <= CACHE as usize, "{after} bytes for files that nobody holds");
    fs.unmount().unwrap();
    check(&*device);
}

#[test]
fn making_many_files_takes_no_more_memory_than_changes_may() {
    let _alone = alone();
    let device = volume(1024, 128);
    let fs = mount(&device);
    fill(&fs, 1000);
    fs.commit().unwrap();
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    // No thread makes checkpoints here, and no time passes: memory alone calls for them.
    let root = fs.root().unwrap().inode;
    for nth in 0..60_000 {
        make(&fs, &root, &name_of(nth));
    }
    let peak = MEMORY.peak_usage() - before;
    let bound = (CACHE + 3 * DIRTY) as usize;
    assert!(peak <= bound, "{peak} bytes, more than {bound}");
    fs.unmount().unwrap();
    check(&*device);
}

/// A file of 100 MiB, with holes, so that its blocks are not where its size says.
fn large(fs: &Filesystem) -> InodeRef {
    let large = make(fs, &fs.root().unwrap().inode, "large");
    let part = pattern(3, 1 << 20);
    for nth in 0..100 {
        fs.write(&large, nth * nth * (10 << 20), &part).unwrap();
    }
    fs.commit().unwrap();
    fs.free_spare_memory();
    large
}

/// Frees blocks, which must not take more memory than changes may.
fn freeing(free: impl FnOnce()) {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    free();
    let peak = MEMORY.peak_usage() - before;
    let bound = (CACHE + 2 * DIRTY) as usize;
    assert!(peak <= bound, "{peak} bytes, more than {bound}");
}

#[test]
fn deleting_a_large_file_takes_no_more_memory_than_changes_may() {
    let _alone = alone();
    let device = volume(1024, 256);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    fs.commit().unwrap();
    let free = fs.stat_fs().unwrap().files_free;
    drop(large(&fs));
    freeing(|| {
        fs.unlink(&root, b"large").unwrap();
        fs.commit().unwrap();
    });
    assert_eq!(fs.stat_fs().unwrap().files_free, free, "it is deleted at once all the same");
    fs.unmount().unwrap();
    check(&*device);
}

/// One commit freed all of it, at hundreds of bytes for each block.
#[test]
fn making_a_large_file_shorter_takes_no_more_memory_than_changes_may() {
    let _alone = alone();
    let device = volume(1024, 256);
    let fs = mount(&device);
    let file = large(&fs);
    let (kept, size) = (pattern(3, 1 << 20), 500_000);
    freeing(|| {
        let changes = SetAttr { size: Some(size), ..SetAttr::default() };
        assert_eq!(fs.set_attr(&file, &changes).unwrap().size, size);
        fs.commit().unwrap();
    });
    assert!(content(&fs, &file) == kept[..size as usize]);
    drop(file);
    fs.unmount().unwrap();
    check(&*device);
}

/// All that had been synced after the last checkpoint was put into memory at once. Ours is what one
/// segment holds at most, so it takes a large one to see it; Linux' can be any amount.
#[test]
fn recovering_synced_data_takes_no_more_memory_than_changes_may() {
    const FILES: usize = 20;
    const LITTLE: u64 = 2 << 20;
    let _alone = alone();
    let device = Arc::new(MemoryDevice::new(640 << 20));
    let mut parameters = parameters(1024);
    parameters.blocks_per_segment = 32 << 10;
    format(&*device, &parameters).unwrap();
    let fs = Filesystem::mount(Arc::clone(&device) as _, MountOptions::default()).unwrap();
    let root = fs.root().unwrap().inode;
    let files: Vec<InodeRef> = (0..FILES).map(|nth| make(&fs, &root, &name_of(nth))).collect();
    let (old, fresh) = (|nth| pattern(nth, 1 << 20), |nth| pattern(nth + FILES, 1 << 20));
    files.iter().enumerate().for_each(|(nth, file)| fs.write(file, 0, &old(nth)).unwrap());
    // The log goes on at the start of a segment.
    fs.write(&make(&fs, &root, "filler"), 0, &pattern(1, 14 << 20)).unwrap();
    fs.sync().unwrap();
    let newest = fs.status().cno;
    for (nth, file) in files.iter().enumerate() {
        fs.write(file, 0, &fresh(nth)).unwrap();
        fs.sync_file(file).unwrap();
    }
    assert_eq!(fs.status().cno, newest, "only data-sync logs were written");
    drop((files, root, fs));

    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let options =
        MountOptions { cache_limit: CACHE, dirty_limit: LITTLE, ..MountOptions::default() };
    let fs = Filesystem::mount(Arc::clone(&device) as _, options).unwrap();
    let peak = MEMORY.peak_usage() - before;
    let bound = (CACHE + 3 * LITTLE) as usize;
    assert!(peak <= bound, "{peak} bytes, more than {bound}");
    let root = fs.root().unwrap().inode;
    for nth in 0..FILES {
        let file = fs.lookup(&root, name_of(nth).as_bytes()).unwrap().inode;
        assert!(content(&fs, &file) == fresh(nth), "file {nth}");
    }
    fs.unmount().unwrap();
    check(&*device);
}

#[test]
fn a_file_without_a_name_lives_as_long_as_its_number_is_held() {
    let _alone = alone();
    let device = volume(1024, 64);
    let fs = mount_with(&device, 0);
    let root = fs.root().unwrap().inode;
    let file = make(&fs, &root, "file");
    fs.write(&file, 0, &pattern(1, 5000)).unwrap();
    fs.hold(&file);
    fs.hold(&file);
    let ino = file.ino();
    drop(file);
    fs.commit().unwrap();
    let used = fs.stat_fs().unwrap().files_free;
    fs.unlink(&root, b"file").unwrap();
    for _ in 0..3 {
        fs.commit().unwrap();
        make(&fs, &root, &name_of(fs.commit().unwrap().0 as usize));
    }
    let file = fs.by_number(ino).unwrap();
    assert_eq!((content(&fs, &file), fs.attr(&file).unwrap().nlink), (pattern(1, 5000), 0));
    fs.write(&file, 5000, b"more").unwrap();
    drop(file);
    fs.let_go(ino, 1);
    fs.commit().unwrap();
    assert_eq!(fs.attr(&fs.by_number(ino).unwrap()).unwrap().size, 5004);
    fs.let_go(ino, 1);
    fs.commit().unwrap();
    assert!(matches!(fs.by_number(ino), Err(Error::Stale)));
    // Three files were made, and one is gone.
    assert_eq!(fs.stat_fs().unwrap().files_free, used - 3 + 1);
    fs.unmount().unwrap();
    check(&*device);
}

#[test]
fn no_number_is_held_any_more_when_a_front_end_ends() {
    let _alone = alone();
    let device = volume(1024, 64);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let file = make(&fs, &root, "file");
    fs.hold(&file);
    drop(file);
    fs.unlink(&root, b"file").unwrap();
    fs.let_go_of_all();
    fs.unmount().unwrap();
    check(&*device);
    let fs = mount(&device);
    assert_eq!(fs.release_orphans().unwrap(), 0, "the file should be gone already");
    fs.unmount().unwrap();
}

#[test]
fn a_directory_needs_no_index_and_little_memory_for_one() {
    const NAMES: usize = 3000;
    let _alone = alone();
    // None; some, which the directory outgrows; and enough.
    for cache in [0, 128 << 10, CACHE] {
        let device = volume(1024, 64);
        let fs = mount_with(&device, cache);
        let root = fs.root().unwrap().inode;
        for nth in 0..NAMES {
            make(&fs, &root, &name_of(nth));
        }
        fs.commit().unwrap();
        for nth in (0..NAMES).step_by(3) {
            fs.unlink(&root, name_of(nth).as_bytes()).unwrap();
        }
        for nth in (1..NAMES).step_by(30) {
            let (from, to) = (name_of(nth), name_of(nth + NAMES));
            fs.rename(&root, from.as_bytes(), &root, to.as_bytes(), RenameMode::NoReplace).unwrap();
        }
        let exists = |name: usize| match fs.lookup(&root, name_of(name).as_bytes()) {
            Ok(_) => true,
            Err(Error::NotFound) => false,
            Err(error) => panic!("{error}"),
        };
        for nth in 0..NAMES {
            let (gone, renamed) = (nth % 3 == 0, nth % 30 == 1);
            assert_eq!(exists(nth), !gone && !renamed, "{nth}, cache of {cache}");
            assert_eq!(exists(nth + NAMES), renamed, "{nth}, cache of {cache}");
        }
        let first = fs.lookup(&root, name_of(2).as_bytes()).unwrap().inode;
        let taken = fs.link(&first, &root, name_of(4).as_bytes());
        assert!(matches!(taken, Err(Error::Exists)));
        fs.unmount().unwrap();
        check(&*device);
    }
}

#[test]
fn ten_thousand_checkpoints_are_open_at_once_in_little_memory() {
    const TREES: usize = 10_000;
    let _alone = alone();
    let device = volume(1024, 256);
    let fs = mount(&device);
    let file = make(&fs, &fs.root().unwrap().inode, "file");
    let numbers: Vec<_> = (0..TREES)
        .map(|nth| {
            fs.write(&file, 0, &(nth as u64).to_le_bytes()).unwrap();
            fs.commit().unwrap()
        })
        .collect();
    let before = MEMORY.current_usage();
    let trees: Vec<_> = numbers.iter().map(|cno| fs.tree(Some(*cno)).unwrap()).collect();
    for (nth, tree) in trees.iter().enumerate() {
        let file = tree.lookup(&tree.root().unwrap(), b"file").unwrap();
        let mut content = [0; 8];
        tree.read(&file, 0, &mut content).unwrap();
        assert_eq!(u64::from_le_bytes(content), nth as u64);
    }
    let each =
        (MEMORY.current_usage().saturating_sub(before) as u64).saturating_sub(CACHE) / TREES as u64;
    assert!(each <= 512, "{each} bytes for each tree, besides the cache");
}

//! A file that was made contiguous stays where it is, regardless of its size and that of segments.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{check, content, make, parameters, pattern};
use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::mkfs::format;
use nilfs_engine::{
    Amount, CleanerOptions, Defragmented, Error, Filesystem, InodeRef, ManualRun, MountOptions,
};

/// Blocks that are written before a commit: a file has as many pieces.
const PIECE: usize = 3;

fn volume(
    block_size: u64,
    per_segment: u32,
    segments: u64,
) -> (Arc<MemoryDevice>, Arc<Filesystem>) {
    let mut parameters = parameters(block_size);
    parameters.blocks_per_segment = per_segment;
    let blocks = segments * u64::from(per_segment) + 16;
    let device = Arc::new(MemoryDevice::new(blocks * block_size));
    format(&*device, &parameters).unwrap();
    let cleaner = CleanerOptions { protection: std::time::Duration::ZERO, ..Default::default() };
    let options = MountOptions { cleaner, ..MountOptions::default() };
    let fs = Filesystem::mount(Arc::clone(&device) as Arc<dyn Device>, options).unwrap();
    (device, fs)
}

/// Files of these many blocks, of which pieces were written by turns.
fn fragmented(fs: &Filesystem, block_size: usize, sizes: &[usize]) -> Vec<InodeRef> {
    let root = fs.root().unwrap().inode;
    let files: Vec<InodeRef> =
        (0..sizes.len()).map(|nth| make(fs, &root, &format!("file {nth}"))).collect();
    let longest = sizes.iter().copied().max().unwrap_or(0);
    for at in (0..longest).step_by(PIECE) {
        for (file, size) in files.iter().zip(sizes) {
            let count = PIECE.min(size.saturating_sub(at));
            if count > 0 {
                let content = pattern(at, count * block_size);
                fs.write(file, (at * block_size) as u64, &content).unwrap();
            }
        }
        fs.commit().unwrap();
    }
    files
}

fn defragment(fs: &Filesystem, file: &InodeRef) -> Defragmented {
    fs.defragment(file, u64::MAX).unwrap()
}

/// A file of 19 segments was moved again by each run, because the steps in which it was moved gave it
/// four pieces more than it has segments.
#[test]
fn what_is_contiguous_is_not_moved_again() {
    for (block_size, per_segment) in [(1024, 16), (1024, 64), (2048, 32), (4096, 64), (4096, 256)] {
        let whole = per_segment as usize;
        let sizes = [1, 2, 7, whole / 2, whole - 1, whole, whole + 1, 3 * whole - 5, 7 * whole];
        let (device, fs) = volume(block_size, per_segment, 120);
        let files = fragmented(&fs, block_size as usize, &sizes);
        let before: Vec<_> = files.iter().map(|file| content(&fs, file)).collect();
        for (file, size) in files.iter().zip(sizes) {
            let what = format!("{size} blocks in segments of {per_segment}");
            let done = defragment(&fs, file);
            // A summary takes a block of each segment at least, and the file begins somewhere in one.
            let most = size.div_ceil(whole - whole / 8 - 1) + 1;
            assert!(done.extents_after as usize <= most, "{what}: {done:?}");
            let again = defragment(&fs, file);
            assert_eq!((again.moved, again.extents_after), (0, done.extents_after), "{what}");
        }
        let after: Vec<_> = files.iter().map(|file| content(&fs, file)).collect();
        assert!(before == after, "the content of files has changed");
        let moved: u64 = files.iter().map(|file| defragment(&fs, file).moved).sum();
        assert_eq!(moved, 0, "a file was moved because another one was");
        fs.unmount().unwrap();
        check(&*device);
    }
}

/// More than one step moves, with a segment of which no step moves a part.
#[test]
fn the_steps_in_which_a_file_is_moved_leave_no_trace() {
    for (per_segment, size) in [(2048, 10_000), (16_384, 20_000)] {
        let (device, fs) = volume(1024, per_segment, 17);
        let file = make(&fs, &fs.root().unwrap().inode, "file");
        let piece = size / 40;
        for at in (0..size).step_by(piece) {
            fs.write(&file, at as u64 * 1024, &pattern(at, 1024 * piece)).unwrap();
            fs.commit().unwrap();
        }
        let done = defragment(&fs, &file);
        let most = size.div_ceil(per_segment as usize) as u64 + 1;
        assert!(done.extents_before >= 40 && done.extents_after <= most, "{done:?}");
        assert_eq!(defragment(&fs, &file).moved, 0);
        fs.unmount().unwrap();
        check(&*device);
    }
}

#[test]
fn of_a_file_that_has_grown_only_the_end_is_moved() {
    let (device, fs) = volume(1024, 64, 60);
    let file = fragmented(&fs, 1024, &[300, 300]).remove(0);
    defragment(&fs, &file);
    let end = fs.attr(&file).unwrap().size;
    for nth in 0..20 {
        fs.write(&file, end + nth * 1024, &pattern(nth as usize, 1024)).unwrap();
        fs.commit().unwrap();
    }
    let done = defragment(&fs, &file);
    assert!((20..20 + 64).contains(&done.moved), "{done:?}");
    assert_eq!(defragment(&fs, &file).moved, 0);
    fs.unmount().unwrap();
    check(&*device);
}

/// Ends a thread, also if the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn commits_of_others_do_not_come_in_between() {
    let (device, fs) = volume(1024, 64, 1000);
    let files = fragmented(&fs, 1024, &[50, 1000, 200]);
    let other = make(&fs, &fs.root().unwrap().inode, "other");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // As many as there is room for without a cleaner.
            for nth in 0..2000 {
                fs.write(&other, nth % 64 * 1024, &pattern(nth as usize, 1024)).unwrap();
                match nth % 2 {
                    0 => fs.sync().unwrap(),
                    _ => fs.sync_file(&other).unwrap(),
                }
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let _over = Over(&is_over);
        let moved = files.iter().map(|file| {
            defragment(&fs, file);
            defragment(&fs, file).moved
        });
        let moved: Vec<u64> = moved.collect();
        assert_eq!(moved, [0, 0, 0]);
    });
    fs.unmount().unwrap();
    check(&*device);
}

/// Where there is no room for all of it, each run goes on where the one before ended.
#[test]
fn a_file_is_made_contiguous_in_as_many_runs_as_there_is_room_for() {
    let (device, fs) = volume(1024, 64, 100);
    let file = fragmented(&fs, 1024, &[2500, 100]).remove(0);
    let before = content(&fs, &file);
    let filler = make(&fs, &fs.root().unwrap().inode, "filler");
    let clean = || {
        let run = ManualRun { min_reclaimable: Some(Amount::Count(1)), ..Default::default() };
        fs.clean(&run).unwrap();
    };
    let mut end = 0;
    // After this loop, less room is free than the file takes.
    while fs.stat_fs().unwrap().available > 500 {
        fs.write(&filler, end, &pattern(1, 64 << 10)).unwrap();
        end += 64 << 10;
        fs.commit().unwrap();
        clean();
    }
    let mut runs = 0;
    let last = loop {
        runs += 1;
        assert!(runs < 100, "nothing is gained by more runs");
        match fs.defragment(&file, u64::MAX) {
            Err(Error::NoSpace) => clean(),
            done => break done.unwrap(),
        }
    };
    assert!(runs > 1 && last.moved < 2500, "{runs} runs, the last: {last:?}");
    assert_eq!(defragment(&fs, &file).moved, 0);
    assert!(content(&fs, &file) == before);
    fs.unmount().unwrap();
    check(&*device);
}

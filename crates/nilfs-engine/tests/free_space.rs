//! A volume from which things were deleted is a volume with room, and what it says of its room is
//! so. The past is kept for as long as there is room, and no longer.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{check, content, in_the_past, make, new, parameters, pattern};
use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::mkfs::format;
use nilfs_engine::{
    CleanerOptions, Cno, Error, Filesystem, InodeRef, MountOptions, NewInode, SetAttr, SetTime,
    Volume,
};
use nilfs_ondisk::BlockSize;

/// Bytes, block size, blocks of a segment.
type Shape = (u64, u64, u32);

const SHAPES: [Shape; 6] = [
    (12 << 20, 1024, 128),
    (12 << 20, 4096, 64),
    (20 << 20, 4096, 128),
    (40 << 20, 4096, 128),
    (40 << 20, 1024, 256),
    (64 << 20, 4096, 256),
];

fn volume((bytes, block_size, blocks_per_segment): Shape) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(bytes));
    let mut parameters = parameters(block_size);
    parameters.block_size = BlockSize::from_bytes(block_size).unwrap();
    parameters.blocks_per_segment = blocks_per_segment;
    format(&*device, &parameters).unwrap();
    device
}

fn mount(device: &Arc<MemoryDevice>, cleaner: CleanerOptions) -> Arc<Filesystem> {
    let shared: Arc<dyn Device> = Arc::clone(device) as _;
    Filesystem::mount(shared, MountOptions { cleaner, ..MountOptions::default() }).unwrap()
}

/// As everybody mounts it: with an hour of protection.
fn mount_as_usual(device: &Arc<MemoryDevice>) -> Arc<Filesystem> {
    mount(device, CleanerOptions::default())
}

fn available(fs: &Filesystem) -> u64 {
    let stat = fs.stat_fs().unwrap();
    stat.available * u64::from(stat.block_size)
}

const PIECE: usize = 16 << 10;

/// Appends up to `bytes` bytes to a file; returns how many there was room for.
fn append(fs: &Filesystem, file: &InodeRef, bytes: u64) -> u64 {
    let size = fs.attr(file).unwrap().size;
    let data = pattern(7, PIECE);
    let mut written = 0;
    while written < bytes {
        let piece = PIECE.min((bytes - written) as usize);
        match fs.write(file, size + written, &data[..piece]) {
            Ok(()) => written += piece as u64,
            Err(Error::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    written
}

/// Makes files of 64 KiB until there is no room for one, with a checkpoint for every ten. Returns
/// their number.
fn fill_with_files(fs: &Filesystem, dir: &InodeRef) -> usize {
    for nth in 0.. {
        let file = match fs.create(dir, nth.to_string().as_bytes(), &regular()) {
            Ok(entry) => entry.inode,
            Err(Error::NoSpace) => return nth,
            Err(error) => panic!("{error}"),
        };
        if append(fs, &file, 64 << 10) < 64 << 10 {
            return nth + 1;
        }
        if nth % 10 == 0 {
            fs.sync().unwrap();
        }
    }
    unreachable!("a volume has an end")
}

fn regular() -> NewInode {
    new(0o100_644)
}

fn checkpoints(device: &Arc<MemoryDevice>) -> Vec<Cno> {
    let shared: Arc<dyn Device> = Arc::clone(device) as _;
    let listed = Volume::open(shared).unwrap().checkpoints(Cno(1), usize::MAX).unwrap();
    listed.iter().map(|checkpoint| checkpoint.cno).collect()
}

/// Everything was protected: for an hour nothing could be written, and on the smallest volumes not
/// even everything be deleted.
#[test]
fn a_full_volume_that_was_emptied_takes_as_much_again_at_once() {
    for shape in SHAPES {
        let device = volume(shape);
        let fs = mount_as_usual(&device);
        let root = fs.root().unwrap().inode;
        let fresh = available(&fs);
        let count = fill_with_files(&fs, &root);
        let bytes = count as u64 * (64 << 10);
        assert!(bytes > fresh * 85 / 100, "{shape:?}: {bytes} of {fresh} bytes in files");
        for nth in 0..count {
            fs.unlink(&root, nth.to_string().as_bytes()).unwrap();
        }
        let unsynced = available(&fs);
        assert!(unsynced > fresh * 95 / 100, "{shape:?}: {unsynced} of {fresh} after rm");
        fs.sync().unwrap();
        let synced = available(&fs);
        assert!(synced > fresh * 95 / 100, "{shape:?}: {synced} of {fresh} after rm and sync");
        let file = make(&fs, &root, "again");
        let written = append(&fs, &file, u64::MAX);
        assert!(written > synced * 95 / 100, "{shape:?}: {written} of {synced} could be written");
        drop((root, file));
        fs.unmount().unwrap();
        check(&*device);
    }
}

/// Programs ask before they write: what they are told is there, and not much more.
#[test]
fn what_is_available_can_be_written() {
    for shape in SHAPES {
        let device = volume(shape);
        let fs = mount_as_usual(&device);
        let root = fs.root().unwrap().inode;
        for round in 0..3 {
            let file = make(&fs, &root, "file");
            let told = available(&fs);
            let written = append(&fs, &file, u64::MAX);
            let range = told * 95 / 100..told * 108 / 100;
            assert!(range.contains(&written), "{shape:?}, round {round}: {written} of {told}");
            fs.unlink(&root, b"file").unwrap();
        }
    }
}

#[test]
fn what_a_snapshot_keeps_is_neither_available_nor_given_up() {
    let device = volume(SHAPES[3]);
    let fs = mount_as_usual(&device);
    let root = fs.root().unwrap().inode;
    let kept = make(&fs, &root, "kept");
    append(&fs, &kept, 8 << 20);
    let before = content(&fs, &kept);
    let snapshot = fs.checkpoint_now().unwrap();
    fs.set_snapshot(snapshot, true).unwrap();
    drop(kept);
    fs.unlink(&root, b"kept").unwrap();
    fs.sync().unwrap();
    // A mount looks for what snapshots keep in the background; so does this.
    let usage = fs.usage().unwrap();
    assert!(usage.snapshots >= 2048 && usage.exclusive[0].blocks >= 2048, "{usage:?}");
    let told = available(&fs);
    for _ in 0..3 {
        let file = make(&fs, &root, "file");
        let written = append(&fs, &file, u64::MAX);
        assert!((told * 96 / 100..told * 108 / 100).contains(&written), "{written} of {told}");
        drop(file);
        fs.unlink(&root, b"file").unwrap();
    }
    fs.unmount().unwrap();
    check(&*device);
    assert!(in_the_past(&device, snapshot, "kept") == before);
}

/// Checkpoints of a file that is rewritten again and again, until there is no room for another
/// version.
fn versions(fs: &Filesystem, count: u64) -> Vec<Cno> {
    let root = fs.root().unwrap().inode;
    let mut made = Vec::new();
    for nth in 0..count {
        let file = make(fs, &root, &format!("version {nth}"));
        append(fs, &file, 1 << 20);
        drop(file);
        if let Some(before) = nth.checked_sub(1) {
            fs.unlink(&root, format!("version {before}").as_bytes()).unwrap();
        }
        made.push(fs.checkpoint_now().unwrap());
    }
    made
}

#[test]
fn the_oldest_checkpoints_go_first_and_no_more_of_them_than_need_be() {
    let device = volume(SHAPES[3]);
    let fs = mount_as_usual(&device);
    let made = versions(&fs, 20);
    let left = checkpoints(&device);
    assert!(made.iter().all(|cno| left.contains(cno)), "there was room for all of them");
    let file = make(&fs, &fs.root().unwrap().inode, "large");
    assert_eq!(append(&fs, &file, 20 << 20), 20 << 20);
    fs.sync().unwrap();
    let left = checkpoints(&device);
    let survivors: Vec<Cno> = made.iter().copied().filter(|cno| left.contains(cno)).collect();
    assert!(!left.contains(&made[0]), "there was no room for that one");
    // Of 40 MiB, 21 are live: half of the versions fit in what is left.
    assert!(survivors.len() >= 5, "{survivors:?} are left of {made:?}");
    assert!(made.ends_with(&survivors), "{survivors:?} are left of {made:?}");
}

#[test]
fn hard_protection_refuses_the_writer() {
    let device = volume(SHAPES[3]);
    let hard = CleanerOptions { hard_protection: true, ..CleanerOptions::default() };
    let fs = mount(&device, hard);
    let made = versions(&fs, 20);
    fs.usage().unwrap();
    let told = available(&fs);
    let file = make(&fs, &fs.root().unwrap().inode, "large");
    let written = append(&fs, &file, u64::MAX);
    assert!((told * 90 / 100..told * 110 / 100).contains(&written), "{written} of {told}");
    fs.sync().unwrap();
    let left = checkpoints(&device);
    assert!(made.iter().all(|cno| left.contains(cno)));
    let hard_for_no_time = CleanerOptions { protection: Duration::ZERO, ..hard };
    drop(fs);
    let fs = mount(&device, hard_for_no_time);
    assert!(available(&fs) > 10 << 20);
}

/// A checkpoint was made for every six files.
#[test]
fn deleting_many_files_on_a_full_volume_takes_few_checkpoints() {
    let device = volume((48 << 20, 4096, 128));
    let fs = mount_as_usual(&device);
    let root = fs.root().unwrap().inode;
    let dir = fs.create(&root, b"dir", &new(0o040_755)).unwrap().inode;
    let name = |nth: usize| format!("file number {nth}");
    let create = |nth: usize| fs.create(&dir, name(nth).as_bytes(), &regular());
    let count = (0..50_000).take_while(|nth| create(*nth).is_ok()).count();
    fs.sync().unwrap();
    let rest = make(&fs, &root, "rest");
    append(&fs, &rest, u64::MAX);
    fs.sync().unwrap();
    let before = fs.status().cno.0;
    (0..count).for_each(|nth| fs.unlink(&dir, name(nth).as_bytes()).unwrap());
    fs.sync().unwrap();
    let made = fs.status().cno.0 - before;
    assert!(made < count as u64 / 126, "{made} checkpoints for {count} files");
}

/// Fills a file until not one more block of it can be written. Returns its size.
fn fill_to_the_last_block(fs: &Filesystem, file: &InodeRef, block_size: u64) -> u64 {
    append(fs, file, u64::MAX);
    let block = vec![1; block_size as usize];
    while fs.write(file, fs.attr(file).unwrap().size, &block).is_ok() {}
    fs.attr(file).unwrap().size
}

/// Writes in as many parts as it takes; none of them may be refused.
fn overwrite(fs: &Filesystem, file: &InodeRef, at: u64, data: &[u8]) -> Result<(), Error> {
    let mut done = 0;
    while done < data.len() {
        done += fs.write_some(file, at + done as u64, &data[done..])?;
    }
    Ok(())
}

/// An editor that saves, a database that updates, a program that locks: none of them makes a volume
/// larger.
#[test]
fn what_makes_nothing_longer_works_on_a_full_volume() {
    for shape in SHAPES {
        let device = volume(shape);
        let fs = mount_as_usual(&device);
        let root = fs.root().unwrap().inode;
        let empty = make(&fs, &root, "empty");
        let file = make(&fs, &root, "file");
        let names = 300;
        (0..names).for_each(|nth| _ = make(&fs, &root, &format!("name {nth}")));
        let size = fill_to_the_last_block(&fs, &file, shape.1) as usize;
        let must = |done: Result<(), Error>, what: &str| {
            done.unwrap_or_else(|error| panic!("{shape:?}: {what}: {error}"));
        };
        for round in 0..2 {
            let fresh = pattern(round, size);
            for (nth, piece) in fresh.chunks(100_000).enumerate() {
                must(overwrite(&fs, &file, (nth * 100_000) as u64, piece), "overwrite");
                let truncate = SetAttr { size: Some(0), ..SetAttr::default() };
                must(fs.set_attr(&empty, &truncate).map(drop), "truncate an empty file");
                let mode = SetAttr { mode: Some(nth as u16 & 0o777), ..SetAttr::default() };
                must(fs.set_attr(&file, &mode).map(drop), "chmod");
                let now = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
                must(fs.set_attr(&empty, &now).map(drop), "touch");
                must(fs.set_flags(&empty, 0x80).map(drop), "chattr");
                must(fs.sync_file(&file), "fsync");
                if round == 1 && nth < names {
                    must(fs.unlink(&root, format!("name {nth}").as_bytes()), "unlink");
                }
            }
            assert!(content(&fs, &file) == fresh, "{shape:?}");
        }
        drop((root, empty, file));
        fs.unmount().unwrap();
        check(&*device);
    }
}

/// Single blocks all over a file that fills the volume were refused after some hundreds. What is
/// dead then lies here and there, much of it in a past that is protected, and giving a little of
/// that up gained less than the commit after it took. Where nothing was left of the past, all that
/// was not clean were summaries.
#[test]
fn scattered_overwrites_of_a_full_volume_go_on_for_ever() {
    for shape in SHAPES {
        let device = volume(shape);
        let fs = mount_as_usual(&device);
        let root = fs.root().unwrap().inode;
        let file = make(&fs, &root, "file");
        let blocks = fill_to_the_last_block(&fs, &file, shape.1) as usize / 4096;
        let mut expected = content(&fs, &file);
        for nth in 0..2000 {
            let at = (nth * 7919 % blocks) * 4096;
            let fresh = pattern(nth, 4096);
            let done = overwrite(&fs, &file, at as u64, &fresh);
            done.unwrap_or_else(|error| panic!("{shape:?}: overwrite {nth}: {error}"));
            expected[at..at + 4096].copy_from_slice(&fresh);
        }
        assert!(content(&fs, &file) == expected, "{shape:?}");
        drop((root, file));
        fs.unmount().unwrap();
        check(&*device);
    }
}

/// A large write to a volume with a little room was refused as a whole.
#[test]
fn as_much_is_written_as_there_is_room_for() {
    let device = volume(SHAPES[3]);
    let fs = mount_as_usual(&device);
    let root = fs.root().unwrap().inode;
    let small = make(&fs, &root, "small");
    append(&fs, &small, 256 << 10);
    let file = make(&fs, &root, "file");
    append(&fs, &file, u64::MAX);
    while fs.write(&file, fs.attr(&file).unwrap().size, &[1; 4096]).is_ok() {}
    drop(small);
    fs.unlink(&root, b"small").unwrap();
    let file = make(&fs, &root, "part");
    let data = pattern(3, 1 << 20);
    let mut written = 0;
    while let Ok(count @ 1..) = fs.write_some(&file, written as u64, &data[written..]) {
        written += count;
    }
    assert!((128 << 10..320 << 10).contains(&written), "{written} bytes");
    assert!(content(&fs, &file) == data[..written]);
}

/// Keeping the past must not make the cleaner move full segments for the little that is dead in
/// each.
#[test]
fn keeping_the_past_does_not_make_cleaning_dear() {
    let moved = |protection| {
        let device = volume((40 << 20, 4096, 64));
        let fs = mount(&device, CleanerOptions { protection, ..CleanerOptions::default() });
        let file = make(&fs, &fs.root().unwrap().inode, "file");
        let blocks = available(&fs) as usize / 4096 * 3 / 4;
        append(&fs, &file, blocks as u64 * 4096);
        for nth in 0..4 * blocks {
            let at = nth * 7919 % blocks * 4096;
            fs.write(&file, at as u64, &pattern(nth, 4096)).unwrap();
            if nth % 500 == 0 {
                fs.commit().unwrap();
            }
        }
        check(&*device);
        fs.status().cleaner.blocks_moved
    };
    let (without, with) = (moved(Duration::ZERO), moved(Duration::from_secs(3600)));
    assert!(with < 3 * without, "{with} blocks were moved, {without} without a past");
}

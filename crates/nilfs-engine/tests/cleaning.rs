//! Cleaning gives space back and changes nothing that anybody can see.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{check, in_the_past, make, parameters, pattern};
use nilfs_device::{Device, MemoryDevice, RecordingDevice};
use nilfs_engine::mkfs::{Parameters, format};
use nilfs_engine::{
    Amount, CleanerOptions, CleanerOrder, Cno, Filesystem, InodeRef, ManualRun, MountOptions,
    SetAttr, Volume,
};

type Recorded = Arc<RecordingDevice<MemoryDevice>>;

const BLOCK: usize = 1024;
const SEGMENTS: usize = 40;
const PER_SEGMENT: usize = 64;

fn new_volume() -> (Recorded, Arc<Filesystem>) {
    volume_of_segments(PER_SEGMENT)
}

/// A volume of `SEGMENTS` segments of this many blocks.
fn volume_of_segments(per_segment: usize) -> (Recorded, Arc<Filesystem>) {
    let mut parameters = parameters(BLOCK as u64);
    parameters.blocks_per_segment = per_segment as u32;
    volume_of(SEGMENTS, &parameters)
}

fn volume_of(segments: usize, parameters: &Parameters) -> (Recorded, Arc<Filesystem>) {
    let blocks = segments * parameters.blocks_per_segment as usize + 8;
    let memory = MemoryDevice::new((blocks * BLOCK) as u64);
    format(&memory, parameters).unwrap();
    let device = Arc::new(RecordingDevice::new(memory));
    let fs = mount(&device);
    (device, fs)
}

fn mount(device: &Recorded) -> Arc<Filesystem> {
    mount_protecting(device, Duration::ZERO)
}

fn mount_protecting(device: &Recorded, protection: Duration) -> Arc<Filesystem> {
    mount_with(device, CleanerOptions { protection, ..CleanerOptions::default() })
}

fn mount_with(device: &Recorded, cleaner: CleanerOptions) -> Arc<Filesystem> {
    let shared: Arc<dyn Device> = Arc::clone(device) as _;
    Filesystem::mount(shared, MountOptions { cleaner, ..MountOptions::default() }).unwrap()
}

/// Everything that can be had.
fn everything() -> ManualRun {
    ManualRun { min_reclaimable: Some(Amount::Count(1)), ..ManualRun::default() }
}

/// Writes a file in pieces, as programs do.
fn fill(fs: &Filesystem, file: &InodeRef, content: &[u8]) {
    for (nth, piece) in content.chunks(16 * BLOCK).enumerate() {
        fs.write(file, (nth * 16 * BLOCK) as u64, piece).unwrap();
    }
}

fn read_all(fs: &Filesystem, file: &InodeRef) -> Vec<u8> {
    let mut content = vec![0; fs.attr(file).unwrap().size as usize];
    let count = fs.read(file, 0, &mut content).unwrap();
    assert_eq!(count, content.len());
    content
}

#[test]
fn overwriting_a_volume_many_times_needs_no_more_room_than_its_content() {
    let (device, fs) = new_volume();
    let root = fs.root().unwrap().inode;
    let file = make(&fs, &root, "file");
    let cold = make(&fs, &root, "cold");
    fill(&fs, &cold, &pattern(77, 300 * BLOCK));
    let mut content = pattern(1, 600 * BLOCK);
    fill(&fs, &file, &content);
    for round in 0..24 * SEGMENTS * PER_SEGMENT / 16 {
        let at = (round * 7919 % 584) * BLOCK;
        let fresh = pattern(round, 16 * BLOCK);
        fs.write(&file, at as u64, &fresh).unwrap();
        content[at..at + fresh.len()].copy_from_slice(&fresh);
    }
    fs.sync().unwrap();
    assert!(read_all(&fs, &file) == content, "the file is as it was written");
    assert!(read_all(&fs, &cold) == pattern(77, 300 * BLOCK), "the cold file is untouched");
    check(&*device);
    fs.unmount().unwrap();
    check(&*device);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let file = fs.lookup(&root, b"file").unwrap().inode;
    assert!(read_all(&fs, &file) == content, "and after a remount");
    fs.unmount().unwrap();
}

/// Overwrites blocks of a file here and there, as many as `count`.
fn overwrite(fs: &Filesystem, file: &InodeRef, blocks: usize, count: usize) {
    for nth in 0..count {
        let at = nth * 7919 % blocks * BLOCK;
        fs.write(file, at as u64, &pattern(nth, BLOCK)).unwrap();
    }
    fs.sync().unwrap();
}

/// What is kept back is kept back for this: where everything is live, a segment would be moved for
/// each block.
#[test]
fn overwriting_a_full_volume_costs_what_its_reserve_allows() {
    let parameters =
        Parameters { blocks_per_segment: 64, reserved_percent: 30, ..parameters(BLOCK as u64) };
    let (device, fs) = volume_of(120, &parameters);
    let file = make(&fs, &fs.root().unwrap().inode, "file");
    let mut blocks = 0;
    while fs.write(&file, (blocks * BLOCK) as u64, &pattern(blocks, BLOCK)).is_ok() {
        blocks += 1;
    }
    // A little room is needed to change anything.
    blocks -= blocks / 20;
    let size = Some((blocks * BLOCK) as u64);
    fs.set_attr(&file, &SetAttr { size, ..SetAttr::default() }).unwrap();
    overwrite(&fs, &file, blocks, 2 * blocks);
    let before = fs.status().cleaner.blocks_moved;
    overwrite(&fs, &file, blocks, 2 * blocks);
    let moved = (fs.status().cleaner.blocks_moved - before) as usize;
    assert!(moved < 5 * 2 * blocks, "{moved} blocks were moved for {} written", 2 * blocks);
    let usage = fs.usage().unwrap();
    let filled = usage.live as f64 / usage.total as f64;
    assert!((0.6..0.72).contains(&filled), "{filled} of the volume is live");
    check(&*device);
}

#[test]
fn what_is_overwritten_stays_available() {
    let (_, fs) = volume_of_segments(2 * PER_SEGMENT);
    let file = make(&fs, &fs.root().unwrap().inode, "file");
    let blocks = fs.stat_fs().unwrap().available as usize / 2;
    overwrite(&fs, &file, blocks, blocks);
    let before = fs.stat_fs().unwrap().available;
    overwrite(&fs, &file, blocks, 6 * blocks);
    let after = fs.stat_fs().unwrap().available;
    assert!(after > before / 2, "{after} of {before} blocks");
}

/// Room for the change is made by giving up old checkpoints: not by giving up that one.
#[test]
fn a_full_volume_does_not_lose_the_checkpoint_that_becomes_a_snapshot() {
    let (device, fs) = new_volume();
    let cleaner = |enabled| {
        let options =
            CleanerOptions { enabled, protection: Duration::ZERO, ..CleanerOptions::default() };
        fs.order_cleaner(CleanerOrder::Configure(options)).unwrap();
    };
    cleaner(false);
    let root = fs.root().unwrap().inode;
    let file = make(&fs, &root, "file");
    let old = pattern(0, 100 * BLOCK);
    fs.write(&file, 0, &old).unwrap();
    let first = fs.commit().unwrap();
    let mut round = 1;
    while fs.write(&file, 0, &pattern(round, 100 * BLOCK)).is_ok() {
        fs.sync().unwrap();
        round += 1;
    }
    while fs.checkpoint_now().is_ok() {}
    cleaner(true);
    fs.set_snapshot(first, true).unwrap();
    assert!(fs.status().cleaner.checkpoints_deleted > 0, "there was no room without");
    for round in 0..30 {
        fill(&fs, &file, &pattern(round, 100 * BLOCK));
    }
    fs.unmount().unwrap();
    check(&*device);
    assert!(in_the_past(&device, first, "file") == old);
}

#[test]
fn what_is_deleted_comes_back_and_snapshots_stay() {
    let (device, fs) = new_volume();
    let root = fs.root().unwrap().inode;
    let file = make(&fs, &root, "file");
    let old = pattern(3, 200 * BLOCK);
    fs.write(&file, 0, &old).unwrap();
    fs.sync().unwrap();
    let snapshot = fs.checkpoint_now().unwrap();
    fs.set_snapshot(snapshot, true).unwrap();
    let before = fs.stat_fs().unwrap().free;
    for round in 0..30 {
        fill(&fs, &file, &pattern(round, 200 * BLOCK));
        fs.sync().unwrap();
        if round % 5 == 0 {
            let freed = fs.clean(&everything()).unwrap();
            assert!(round == 0 || freed > 0);
            check(&*device);
        }
    }
    fs.clean(&everything()).unwrap();
    let after = fs.stat_fs().unwrap().free;
    assert!(after + 500 > before, "{after} blocks are free, {before} were before");
    let usage = fs.usage().unwrap();
    assert!(usage.exclusive.iter().any(|it| it.cno == snapshot && it.blocks >= 200));
    fs.unmount().unwrap();

    let shown = in_the_past(&device, snapshot, "file");
    assert!(shown == old, "the snapshot shows the file as it was");

    let fs = mount(&device);
    fs.set_snapshot(snapshot, false).unwrap();
    let freed = fs.clean(&everything()).unwrap();
    assert!(freed >= 2, "without the snapshot, {freed} more segments are clean");
    fs.unmount().unwrap();
    check(&*device);
    let shared: Arc<dyn Device> = Arc::clone(&device) as _;
    let left = Volume::open(shared).unwrap().checkpoints(Cno(1), usize::MAX).unwrap();
    assert!(left.iter().all(|checkpoint| checkpoint.cno != snapshot), "it cannot be read any more");
}

#[test]
fn a_file_in_pieces_becomes_contiguous() {
    let (device, fs) = new_volume();
    let root = fs.root().unwrap().inode;
    let file = make(&fs, &root, "file");
    for nth in 0..100 {
        fs.write(&file, nth * BLOCK as u64, &pattern(nth as usize, BLOCK)).unwrap();
        fs.sync().unwrap();
    }
    let before = read_all(&fs, &file);
    let done = fs.defragment(&file, 1000).unwrap();
    assert!(done.extents_before >= 90 && done.extents_after <= 4, "{done:?}");
    assert!(read_all(&fs, &file) == before, "with the same content");
    check(&*device);
    assert_eq!(fs.defragment(&file, 1000).unwrap().moved, 0, "there is nothing left to do");
    fs.unmount().unwrap();
    check(&*device);
}

#[test]
fn snapshots_outlast_any_number_of_overwrites() {
    let (device, fs) = new_volume();
    let root = fs.root().unwrap().inode;
    let file = make(&fs, &root, "file");
    let mut content = pattern(1, 300 * BLOCK);
    fill(&fs, &file, &content);
    let mut snapshots = Vec::new();
    let rounds = 24 * SEGMENTS * PER_SEGMENT / 16;
    for round in 0..rounds {
        let at = (round * 7919 % 284) * BLOCK;
        let fresh = pattern(round, 16 * BLOCK);
        fs.write(&file, at as u64, &fresh).unwrap();
        content[at..at + fresh.len()].copy_from_slice(&fresh);
        if round % (rounds / 12) == 0 {
            let cno = fs.checkpoint_now().unwrap();
            fs.set_snapshot(cno, true).unwrap();
            snapshots.push((cno, content.clone()));
        }
        // The oldest but one is given up, the very first stays.
        if snapshots.len() > 3 {
            let (cno, _) = snapshots.remove(1);
            fs.set_snapshot(cno, false).unwrap();
        }
    }
    fs.sync().unwrap();
    assert!(read_all(&fs, &file) == content, "the present");
    assert_eq!(fs.status().cleaner.segments_skipped, 0);
    check(&*device);
    fs.unmount().unwrap();
    assert_eq!(snapshots.len(), 3);
    for (cno, content) in &snapshots {
        assert!(in_the_past(&device, *cno, "file") == *content, "snapshot {cno}");
    }
}

/// What a cleaning with another period has forgotten is found out again.
#[test]
fn a_period_or_a_snapshot_can_come_after_a_cleaning() {
    let (device, fs) = new_volume();
    fs.unmount().unwrap();
    let fs = mount_protecting(&device, Duration::from_secs(3600));
    let file = make(&fs, &fs.root().unwrap().inode, "file");
    let mut checkpoints = Vec::new();
    for round in 0..4 {
        fs.write(&file, 0, &pattern(round, 100 * BLOCK)).unwrap();
        checkpoints.push(fs.checkpoint_now().unwrap());
    }
    assert!(fs.usage().unwrap().protected >= 300, "three versions are protected");
    // Only old segments are cleaned; what is in the current one survives any cleaning.
    let at_once = ManualRun { protection: Some(Duration::ZERO), ..everything() };
    fs.clean(&at_once).unwrap();
    let last = checkpoints[3];
    for round in 4..8 {
        fs.write(&file, 0, &pattern(round, 100 * BLOCK)).unwrap();
        fs.sync().unwrap();
    }
    assert!(fs.usage().unwrap().protected >= 300, "those since are protected");
    fs.set_snapshot(last, true).unwrap();
    assert!(fs.clean(&at_once).unwrap() > 0, "a new snapshot does not keep it from cleaning");
    fs.unmount().unwrap();
    assert!(in_the_past(&device, last, "file") == pattern(3, 100 * BLOCK));
    check(&*device);
}

/// The cleaner may not touch the past here, so every checkpoint costs room for good. Each refusal used to
/// make the cleaner try again, which took room as well, until nothing could be deleted any more; that
/// depended on how full the volume was.
#[test]
fn checkpoints_cannot_wedge_a_volume() {
    [6300, 6450, 6520, 6600].into_iter().for_each(checkpoints_cannot_wedge_a_volume_with);
}

fn checkpoints_cannot_wedge_a_volume_with(blocks: usize) {
    let (device, fs) = volume_of_segments(256);
    fs.unmount().unwrap();
    let fs =
        mount_with(&device, CleanerOptions { hard_protection: true, ..CleanerOptions::default() });
    let root = fs.root().unwrap().inode;
    let file = make(&fs, &root, "file");
    fill(&fs, &file, &pattern(1, blocks * BLOCK));
    let mut made = 0;
    while let Ok(cno) = fs.checkpoint_now() {
        made += 1;
        assert!(made < 20_000, "the volume gets full");
        if made < 20 {
            fs.set_snapshot(cno, true).unwrap();
        }
    }
    (0..1000).for_each(|_| drop(fs.checkpoint_now()));
    fs.unlink(&root, b"file").unwrap();
    drop((root, file));
    fs.unmount().unwrap();
    check(&*device);
    let fs = mount(&device);
    let deleted = fs.delete_checkpoints(Cno(1)..=Cno::MAX).unwrap();
    assert_eq!(deleted.snapshots.len(), 19);
    deleted.snapshots.iter().for_each(|cno| fs.set_snapshot(*cno, false).unwrap());
    let file = make(&fs, &fs.root().unwrap().inode, "again");
    fill(&fs, &file, &pattern(2, 1000 * BLOCK));
    fs.unmount().unwrap();
    check(&*device);
}

#[test]
fn a_volume_full_of_empty_files_can_be_emptied() {
    let (device, fs) = volume_of_segments(256);
    let root = fs.root().unwrap().inode;
    let large = make(&fs, &root, "large");
    let content = pattern(3, 5000 * BLOCK);
    fill(&fs, &large, &content);
    for _ in 0..2 {
        let dir = fs.create(&root, b"dir", &common::new(0o040_755)).unwrap().inode;
        let name = |nth: usize| nth.to_string();
        let create = |nth: usize| fs.create(&dir, name(nth).as_bytes(), &common::new(0o100_644));
        let count = (0..).find(|nth| create(*nth).is_err()).unwrap();
        assert!(count > 2000, "{count} files fit");
        (0..count).for_each(|nth| fs.unlink(&dir, name(nth).as_bytes()).unwrap());
        fs.rmdir(&root, b"dir").unwrap();
        drop(dir);
        // The blocks of the inodes stay with the volume.
        let file = make(&fs, &root, "file");
        fill(&fs, &file, &pattern(2, 20 * BLOCK));
        fs.unlink(&root, b"file").unwrap();
    }
    assert!(read_all(&fs, &large) == content);
    drop((root, large));
    fs.unmount().unwrap();
    check(&*device);
}

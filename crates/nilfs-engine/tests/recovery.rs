//! Where the log goes on after a crash: nothing that was synced is lost when the recovery is cut
//! off as well, and nothing that was lost comes back. Volumes of few clean segments go on in the
//! segment of the newest checkpoint, others in a fresh one; the promises are the same.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use common::{check, content, logs, make, mount, parameters, pattern, volume};
use nilfs_device::{Device, Event, FaultyDevice, IoSlice, MemoryDevice, RecordingDevice};
use nilfs_engine::mkfs::{Parameters, format};
use nilfs_engine::{
    Attr, Clock, Cno, Error, Files, Filesystem, InodeRef, Log, MountOptions, Order,
    ReadOnlyOptions, ReadOnlyVolume, Timestamp, Volume as Opened,
};
use nilfs_ondisk::SegNum;
use nilfs_ondisk::geometry::{PRIMARY_SUPERBLOCK, secondary_superblock};
use nilfs_ondisk::summary::SR;

const BLOCK: usize = 1024;
const BLOCKS: usize = 4;
const SEGMENT: usize = 256 * BLOCK;
/// What the log of an fsync takes.
const FLASH_PAGE: usize = 16 << 10;
/// A volume with few clean segments and one with many.
const VOLUMES: [Volume; 2] =
    [Volume { megabytes: 5, filled: true }, Volume { megabytes: 16, filled: false }];

#[derive(Debug, Clone, Copy)]
struct Volume {
    megabytes: u64,
    filled: bool,
}

fn copy_of(device: &MemoryDevice) -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::from(device.snapshot()))
}

fn file(fs: &Filesystem) -> InodeRef {
    fs.lookup(&fs.root().unwrap().inode, b"file").unwrap().inode
}

fn open(device: &Arc<MemoryDevice>) -> Opened {
    Opened::open(Arc::clone(device) as _).unwrap()
}

fn read(device: &Arc<MemoryDevice>) -> Vec<u8> {
    let fs = mount(device);
    content(&fs, &file(&fs))
}

/// Overwrites blocks of the file and syncs the data of each, `count` times.
fn overwrite(fs: &Filesystem, count: usize) {
    let file = file(fs);
    for nth in 1..=count {
        let block = pattern(nth, BLOCK);
        fs.write(&file, (nth % BLOCKS * BLOCK) as u64, &block).unwrap();
        fs.sync_file(&file).unwrap();
    }
}

/// A volume with a file, not unmounted; what it was at its checkpoint, and what it became by
/// `count` data-sync logs after that.
fn crashed(shape: Volume, count: usize) -> [Arc<MemoryDevice>; 2] {
    let device = volume(BLOCK as u64, shape.megabytes);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let filler = make(&fs, &root, "filler");
    let piece = pattern(0, 64 << 10);
    while shape.filled && fs.stat_fs().unwrap().available > 256 {
        fs.write(&filler, fs.attr(&filler).unwrap().size, &piece).unwrap();
        fs.commit().unwrap();
    }
    let file = make(&fs, &root, "file");
    loop {
        fs.write(&file, 0, &pattern(0, BLOCKS * BLOCK)).unwrap();
        fs.sync().unwrap();
        // At the end of a segment, where few are clean, an fsync is a checkpoint.
        let checkpoint = fs.newest_log().block.0 as usize * BLOCK % SEGMENT;
        if checkpoint + (count.min(12) + 2) * FLASH_PAGE <= SEGMENT {
            break;
        }
    }
    let before = copy_of(&device);
    overwrite(&fs, count);
    [before, copy_of(&device)]
}

/// The device has lost one of the logs, but has those that came later. They were dropped without a
/// word, and on a volume with few clean segments destroyed.
#[test]
fn a_log_that_must_not_be_missing_is_damage() {
    for volume in VOLUMES {
        let [_, sound] = crashed(volume, 12);
        let logs = open(&sound).recovery_plan().unwrap().applied;
        assert_eq!(logs.len(), 12);
        for lost in [0, 5, 10] {
            let what = format!("{volume:?}, without log {lost}");
            let after = copy_of(&sound);
            let at = logs[lost].start.0 * BLOCK as u64;
            after.write_at(at, &[IoSlice::new(&[0; BLOCK])]).unwrap();
            let damaged = after.snapshot();
            let mount = |options| Filesystem::mount(Arc::clone(&after) as _, options).map(drop);
            let refused = mount(MountOptions::default());
            assert!(matches!(refused, Err(Error::RollForward(_))), "{what}: {refused:?}");
            let shared = Arc::clone(&after) as Arc<dyn Device>;
            let refused = ReadOnlyVolume::mount(shared, ReadOnlyOptions::default()).map(drop);
            assert!(matches!(refused, Err(Error::RollForward(_))), "{what}: {refused:?}");
            let plan = open(&after).recovery_plan().unwrap();
            assert!(plan.why.is_some(), "{what}");
            assert_eq!((plan.applied.len(), plan.lost.len()), (lost, 11 - lost), "{what}");
            assert!(after.snapshot() == damaged, "{what}: something was written");
            let force = MountOptions { give_up_unrecoverable: true, ..MountOptions::default() };
            mount(force).unwrap();
            let [_, expected] = crashed(volume, lost);
            let expected = read(&expected);
            // The others were found again when the log of the recovery ended where one of them starts.
            for crash in 1..=3 {
                assert!(read(&after) == expected, "{what}, after crash {crash}");
                check(&*after);
            }
        }
    }
}

/// A mount stopped at a damaged log, and showed the checkpoint before it without a word: of a young volume,
/// the empty first one.
#[test]
fn checkpoints_beyond_a_damaged_log_are_found() {
    let device = volume(BLOCK as u64, 16);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    for nth in 0..5 {
        let file = make(&fs, &root, &nth.to_string());
        fs.write(&file, 0, &pattern(nth, 3 * BLOCK)).unwrap();
        fs.checkpoint_now().unwrap();
    }
    drop(root);
    let crashed = copy_of(&device);
    let volume = open(&crashed);
    let logs: Vec<_> = (0..4).flat_map(|nth| volume.logs(SegNum(nth)).unwrap()).collect();
    let first = volume.superblock().last_log().block;
    let newest = volume.last_log();
    let others: Vec<_> =
        logs.iter().filter(|log| log.start > first && log.header.cno < newest.cno).collect();
    assert!(others.len() >= 3, "{} logs can be damaged", others.len());
    for log in others {
        for content in [0, 0xa5] {
            let damaged = copy_of(&crashed);
            let at = log.start.0 * BLOCK as u64;
            damaged.write_at(at, &[IoSlice::new(&[content; BLOCK])]).unwrap();
            let found = open(&damaged).last_log();
            assert_eq!(found, newest, "block {} is full of {content}", log.start);
        }
    }
}

/// A mount showed the checkpoint before without a word, and went on writing there, if the super root of the
/// newest one had a wrong bit.
#[test]
fn a_bit_in_the_newest_checkpoint_is_no_step_into_the_past() {
    for bytes in [5 << 10, 100 << 10] {
        let device = volume(BLOCK as u64, 16);
        let fs = mount(&device);
        let root = fs.root().unwrap().inode;
        for name in ["first", "second", "third"] {
            let file = make(&fs, &root, name);
            fs.write(&file, 0, &pattern(0, bytes)).unwrap();
            fs.sync().unwrap();
        }
        let [start, end] = {
            let volume = open(&device);
            let newest = volume.last_log();
            let logs =
                volume.logs(volume.superblock().geometry().segment_of(newest.block)).unwrap();
            let newest = logs.iter().find(|log| log.start == newest.block).unwrap();
            [newest.start, newest.start.plus(newest.header.nblocks.into())]
        };
        for block in [start.0, start.0 + 3, (start.0 + end.0) / 2, end.0 - 2, end.0 - 1] {
            let damaged = copy_of(&device);
            let at = block * BLOCK as u64 + 37;
            let mut byte = [0];
            damaged.read_at(at, &mut byte).unwrap();
            damaged.write_at(at, &[IoSlice::new(&[byte[0] ^ 8])]).unwrap();
            let refused = Filesystem::mount(Arc::clone(&damaged) as _, MountOptions::default());
            let refused = refused.map(drop);
            let what = format!("{bytes} bytes, block {block} of {start} to {end}");
            assert!(matches!(refused, Err(Error::Inconsistent(_))), "{what}: {refused:?}");
            let found = nilfs_check::check(&*damaged, &Default::default()).unwrap();
            let places: Vec<_> = found.errors().filter_map(|error| error.place.log).collect();
            assert!(places.contains(&start), "{what}: {places:?}");
        }
    }
}

/// A mount refused the volume, and fsck found nothing to repair, if a bit was wrong in the super root of an
/// older checkpoint of which the log filled a segment: what came after it was not looked for in the next one.
#[test]
fn a_bit_in_a_super_root_that_ends_with_its_segment_hides_no_later_checkpoint() {
    let mut tried = 0;
    for files in 1..40 {
        let device = Arc::new(MemoryDevice::new(4 << 20));
        let shape = Parameters { blocks_per_segment: 16, ..parameters(BLOCK as u64) };
        format(&*device, &shape).unwrap();
        let mut older = *open(&device).superblock();
        older.raw_mut().s_state.set(0);
        let fs = mount(&device);
        let root = fs.root().unwrap().inode;
        for nth in 0..files {
            make(&fs, &root, &nth.to_string());
        }
        fs.sync().unwrap();
        for name in ["later", "last"] {
            make(&fs, &root, name);
            fs.sync().unwrap();
        }
        let newest = open(&device).last_log();
        let fills = |log: &&Log| log.header.has(SR) && log.header.nblocks == 16;
        let logs = logs(&device);
        for log in logs.iter().filter(fills).filter(|log| log.start != newest.block) {
            tried += 1;
            let damaged = copy_of(&device);
            // They are not written with each checkpoint.
            for at in [PRIMARY_SUPERBLOCK, secondary_superblock(device.size()).unwrap()] {
                damaged.write_at(at, &[IoSlice::new(&older.encode())]).unwrap();
            }
            let at = (log.start.0 + 15) * BLOCK as u64 + 37;
            let mut byte = [0];
            damaged.read_at(at, &mut byte).unwrap();
            damaged.write_at(at, &[IoSlice::new(&[byte[0] ^ 8])]).unwrap();
            assert_eq!(open(&damaged).last_log(), newest, "{files} files, log {}", log.start);
            let report = nilfs_check::check(&*damaged, &Default::default()).unwrap();
            assert_eq!(report.newest, newest.cno, "{report}");
        }
    }
    assert!(tried > 0, "no log fills its segment");
}

/// How long a log is stands in its summary, so the next one must be found without that. It was looked for in 80 KiB
/// alone: one block of noise, and a mount stepped back without a word.
#[test]
fn a_later_log_is_found_though_the_summary_of_a_long_one_is_damaged() {
    for (long, damaged_blocks) in [(10, 1), (25, 1), (40, 1), (300, 1), (300, 128), (1000, 512)] {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        let shape = Parameters { blocks_per_segment: 2048, ..parameters(BLOCK as u64) };
        format(&*device, &shape).unwrap();
        let fs = mount(&device);
        let file = make(&fs, &fs.root().unwrap().inode, "file");
        fs.sync().unwrap();
        fs.write(&file, 0, &pattern(1, long * BLOCK)).unwrap();
        fs.sync_file(&file).unwrap();
        let newest = open(&device).last_log().block;
        let later = logs(&device).into_iter().find(|log| log.start > newest).unwrap();
        let first = later.start.0 * BLOCK as u64;
        fs.write(&file, 0, b"later").unwrap();
        fs.sync_file(&file).unwrap();
        for damage in [vec![0; damaged_blocks * BLOCK], pattern(7, damaged_blocks * BLOCK)] {
            let damaged = copy_of(&device);
            damaged.write_at(first, &[IoSlice::new(&damage)]).unwrap();
            let report = nilfs_check::check(&*damaged, &Default::default()).unwrap();
            assert!(!report.is_consistent(), "{damaged_blocks} of {long} blocks");
            let refused = Filesystem::mount(damaged, MountOptions::default()).map(drop);
            let is_refused = matches!(refused, Err(Error::RollForward(_)));
            assert!(is_refused, "{damaged_blocks} of {long} blocks");
        }
    }
}

/// A volume of small segments with a log through several of them, in use, whose superblocks name its first
/// checkpoint: they are not written with each. Each of the others has so many blocks of a file.
fn through_small_segments(blocks: usize) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let shape = Parameters { blocks_per_segment: 64, ..parameters(BLOCK as u64) };
    format(&*device, &shape).unwrap();
    let mut first = *open(&device).superblock();
    first.raw_mut().s_state.set(0);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    for nth in 0..6 {
        let file = make(&fs, &root, &nth.to_string());
        fs.write(&file, 0, &pattern(nth, blocks * BLOCK)).unwrap();
        fs.sync().unwrap();
    }
    let crashed = copy_of(&device);
    for at in [PRIMARY_SUPERBLOCK, secondary_superblock(device.size()).unwrap()] {
        crashed.write_at(at, &[IoSlice::new(&first.encode())]).unwrap();
    }
    crashed
}

/// Later logs were looked for in one segment and the next, so two damaged blocks hid all of them: a mount showed
/// the empty volume and went on writing there. The check agreed.
#[test]
fn two_damaged_logs_hide_none_of_the_later_ones() {
    let device = through_small_segments(30);
    let newest = open(&device).last_log();
    let geometry = open(&device).superblock().geometry();
    let segments = geometry.segment_of(newest.block).0;
    assert!(segments >= 4, "{segments} segments");
    for segment in 1..segments - 1 {
        for damage in [vec![0; BLOCK], pattern(9, BLOCK)] {
            let damaged = copy_of(&device);
            for segment in [segment, segment + 1] {
                let at = geometry.segment_start(SegNum(segment)).0 * BLOCK as u64;
                damaged.write_at(at, &[IoSlice::new(&damage)]).unwrap();
            }
            assert_eq!(open(&damaged).last_log(), newest, "segments from {segment} on");
            let report = nilfs_check::check(&*damaged, &Default::default()).unwrap();
            assert_eq!(report.newest, newest.cno, "segments from {segment} on: {report}");
        }
    }
}

/// In segments that are lost as a whole, no log names the next. They were passed over at the gap itself alone: where
/// the damage began in the segment before them, the check saw the empty volume, and fsck would have made it that; and
/// so did a mount where the logs before them had been found beyond another gap.
#[test]
fn segments_that_are_lost_as_a_whole_hide_none_of_the_later_ones() {
    let device = through_small_segments(40);
    let newest = open(&device).last_log();
    let geometry = open(&device).superblock().geometry();
    let last = geometry.segment_of(newest.block).0;
    for (first, count) in (1..last).flat_map(|first| [(first, 1), (first, 3)]) {
        if first + count > last {
            continue;
        }
        let start = geometry.segment_start(SegNum(first)).0;
        let whole = start..start + count * 64;
        let before = start - 64..start - 63;
        let mut damages = vec![(0..0, whole.clone())];
        // The superblocks name the first log of all.
        if first > 1 {
            damages.extend([(0..0, start - 56..whole.end), (before, whole)]);
        }
        for (damage, is_noise) in damages.iter().flat_map(|it| [(it, false), (it, true)]) {
            let damaged = copy_of(&device);
            for blocks in [&damage.0, &damage.1] {
                let bytes = (blocks.end - blocks.start) as usize * BLOCK;
                let content = if is_noise { pattern(9, bytes) } else { vec![0; bytes] };
                damaged.write_at(blocks.start * BLOCK as u64, &[IoSlice::new(&content)]).unwrap();
            }
            assert_eq!(open(&damaged).last_log(), newest, "{damage:?}");
            let report = nilfs_check::check(&*damaged, &Default::default()).unwrap();
            assert_eq!(report.newest, newest.cno, "{damage:?}: {report}");
        }
    }
}

/// A volume with a file that was written ahead of the log of its fsync, and two fsyncs after that. Returns it with
/// the logs after the checkpoint, the content of the file, and its name.
fn synced_ahead() -> (Arc<MemoryDevice>, Vec<Log>, Vec<u8>) {
    let device = Arc::new(MemoryDevice::new(160 << 20));
    let shape = Parameters { blocks_per_segment: 8192, ..parameters(BLOCK as u64) };
    format(&*device, &shape).unwrap();
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let [large, small] = ["file", "small"].map(|name| make(&fs, &root, name));
    fs.sync().unwrap();
    let newest = open(&device).last_log().block;
    fs.write(&large, 0, &pattern(1, 4200 << 10)).unwrap();
    fs.sync_file(&large).unwrap();
    for nth in 0..2 {
        fs.write(&small, 0, &pattern(nth, 100)).unwrap();
        fs.sync_file(&small).unwrap();
    }
    let logs = logs(&device).into_iter().filter(|log| log.start > newest).collect();
    (copy_of(&device), logs, content(&fs, &large))
}

/// The log goes on after a damaged summary of what was written ahead, and no fsync is missing: a mount was refused
/// in the last segment, where no later one is that the chain comes by.
#[test]
fn a_summary_of_what_was_written_ahead_costs_no_mount() {
    let (device, logs, expected) = synced_ahead();
    let is_sync = |log: &Log| log.records().unwrap().is_some();
    let ahead = logs.iter().take_while(|log| !is_sync(log));
    assert!(ahead.clone().count() >= 2);
    for log in ahead {
        let damaged = copy_of(&device);
        damaged.write_at(log.start.0 * BLOCK as u64, &[IoSlice::new(&[0xa5; BLOCK])]).unwrap();
        // Of the last fsync, nothing has reached the device: that is no damage.
        let last = logs.last().unwrap();
        damaged.write_at(last.start.0 * BLOCK as u64, &[IoSlice::new(&[0; BLOCK])]).unwrap();
        let fs = mount(&damaged);
        assert!(content(&fs, &file(&fs)) == expected, "without the summary in block {}", log.start);
        let small = fs.lookup(&fs.root().unwrap().inode, b"small").unwrap().inode;
        assert!(content(&fs, &small) == pattern(0, 100), "log {}", log.start);
        fs.unmount().unwrap();
        let report = nilfs_check::check(&*damaged, &Default::default()).unwrap();
        assert!(report.errors().all(|it| it.place.log == Some(log.start)), "{report}");
    }
}

/// What was written ahead in segments before the damaged summary is needed as well: a mount wrote over it.
#[test]
fn what_was_written_ahead_is_not_written_over() {
    const BYTES: usize = 600 * BLOCK;
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let shape = Parameters { blocks_per_segment: 64, ..parameters(BLOCK as u64) };
    format(&*device, &shape).unwrap();
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let [large, small] = ["file", "small"].map(|name| make(&fs, &root, name));
    fs.sync().unwrap();
    let newest = open(&device).last_log();
    fs.write(&large, 0, &pattern(1, BYTES)).unwrap();
    fs.sync_file(&large).unwrap();
    let geometry = open(&device).superblock().geometry();
    let logs = logs(&device);
    let ahead = logs.iter().filter(|log| log.start > newest.block);
    let ahead = ahead.take_while(|log| log.records().unwrap().is_none());
    let begins = |log: &&Log| geometry.segment_start(geometry.segment_of(log.start)) == log.start;
    let ahead: Vec<_> = ahead.filter(begins).map(|log| log.start).collect();
    assert!(ahead.len() > 4, "{} segments were written ahead", ahead.len());
    for log in ahead {
        let damaged = copy_of(&device);
        damaged.write_at(log.0 * BLOCK as u64, &[IoSlice::new(&[0; BLOCK])]).unwrap();
        let fs = mount(&damaged);
        for nth in 0..8 {
            let small = fs.lookup(&fs.root().unwrap().inode, b"small").unwrap().inode;
            fs.write(&small, 0, &pattern(nth, 30 * BLOCK)).unwrap();
            fs.sync().unwrap();
        }
        assert!(content(&fs, &file(&fs)) == pattern(1, BYTES), "log {log}");
        fs.unmount().unwrap();
        let report = nilfs_check::check(&*damaged, &Default::default()).unwrap();
        assert!(report.errors().all(|it| it.place.log == Some(log)), "log {log}: {report}");
    }
    drop(small);
}

/// Zeros that begin in a log which was written ahead looked like the end of all that was ever written.
#[test]
fn zeros_from_the_middle_of_a_log_on_hide_no_later_ones() {
    let (device, logs, _) = synced_ahead();
    let [.., ahead, _, _, last] = &logs[..] else { panic!("too few logs") };
    let from = ahead.start.0 + u64::from(ahead.header.nblocks) - 100;
    let zeros = vec![0; (last.start.0 - from) as usize * BLOCK];
    assert!(zeros.len() <= 512 << 10, "{} bytes", zeros.len());
    device.write_at(from * BLOCK as u64, &[IoSlice::new(&zeros)]).unwrap();
    let report = nilfs_check::check(&*device, &Default::default()).unwrap();
    assert!(!report.is_consistent(), "{report}");
    let refused = Filesystem::mount(device, MountOptions::default()).map(drop);
    assert!(matches!(refused, Err(Error::RollForward(_))), "{refused:?}");
}

/// As many bytes as a device may lose together, zeros from the beginning of a log on, looked like the end of all that
/// was ever written, if what comes after them is short.
#[test]
fn zeros_over_many_logs_hide_none_of_the_later_ones() {
    let (device, logs) = synced_one_by_one(2048, 40);
    for lost in 4..logs.len() - 7 {
        if !zeros_are_noticed(&device, &logs[0], &logs[lost]) {
            break;
        }
    }
}

/// The rest of a segment that is blank, and the beginning of the next one, are what a device has lost in one piece.
#[test]
fn zeros_over_the_end_of_a_segment_hide_no_later_logs() {
    let (device, logs) = synced_one_by_one(512, 60);
    let goes_over = |pair: &[Log]| pair[0].header.seq != pair[1].header.seq;
    let border = 1 + logs.windows(2).position(goes_over).unwrap();
    for first in [border - 1, border - 5, border - 10] {
        for lost in [border + 1, border + 3, border + 8] {
            assert!(zeros_are_noticed(&device, &logs[first], &logs[lost]));
        }
    }
}

/// A segment that a device has lost as a whole hides no later one.
#[test]
fn zeros_over_a_whole_segment_hide_no_later_logs() {
    let (device, logs) = synced_one_by_one(512, 110);
    let begins = |log: &&Log| log.header.seq != logs[0].header.seq;
    let first = logs.iter().find(begins).unwrap();
    let end = logs.iter().find(|log| log.header.seq.0 == first.header.seq.0 + 1).unwrap();
    assert_eq!(end.start.0 - first.start.0, 512);
    assert!(zeros_are_noticed(&device, first, end));
}

/// Returns a volume with segments of so many blocks, and the logs of so many fsyncs that come after its newest checkpoint.
fn synced_one_by_one(blocks_per_segment: u32, fsyncs: usize) -> (Arc<MemoryDevice>, Vec<Log>) {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let shape = Parameters { blocks_per_segment, ..parameters(BLOCK as u64) };
    format(&*device, &shape).unwrap();
    let fs = mount(&device);
    let file = make(&fs, &fs.root().unwrap().inode, "file");
    fs.sync().unwrap();
    for nth in 0..fsyncs {
        fs.write(&file, 0, &pattern(nth, 100)).unwrap();
        fs.sync_file(&file).unwrap();
    }
    let mut logs = logs(&device);
    let newest = logs.iter().rposition(|log| log.header.has(SR)).unwrap();
    let synced = logs.split_off(newest + 1);
    (device, synced)
}

/// Makes zeros of some logs of a volume in a copy, and fails unless check and mount notice that. Returns whether the
/// zeros are as few as a device may lose together.
fn zeros_are_noticed(device: &MemoryDevice, first: &Log, end: &Log) -> bool {
    let zeros = vec![0; (end.start.0 - first.start.0) as usize * BLOCK];
    if zeros.len() > 512 << 10 {
        return false;
    }
    let lost = format!("blocks {} to {}", first.start, end.start);
    let damaged = copy_of(device);
    damaged.write_at(first.start.0 * BLOCK as u64, &[IoSlice::new(&zeros)]).unwrap();
    let report = nilfs_check::check(&*damaged, &Default::default()).unwrap();
    assert!(!report.is_consistent(), "without {lost}: {report}");
    let refused = Filesystem::mount(damaged, MountOptions::default()).map(drop);
    assert!(matches!(refused, Err(Error::RollForward(_))), "without {lost}: {refused:?}");
    true
}

/// A summary that was written to the wrong place says that its log reaches beyond what is there. A mount looked for
/// later logs after that, and showed the checkpoint without what was fsynced.
#[test]
fn a_summary_in_the_wrong_place_hides_no_log() {
    for syncs in [2, 3] {
        let device = volume(BLOCK as u64, 16);
        let fs = mount(&device);
        let file = make(&fs, &fs.root().unwrap().inode, "file");
        fs.write(&file, 0, &pattern(1, 100 * BLOCK)).unwrap();
        fs.sync().unwrap();
        let newest = open(&device).last_log().block;
        for nth in 0..syncs {
            fs.write(&file, 0, &pattern(nth, 100)).unwrap();
            fs.sync_file(&file).unwrap();
        }
        let logs = logs(&device);
        let size = open(&device).superblock().geometry().block_size;
        let first = logs.iter().find(|log| log.start > newest).unwrap().start;
        for log in logs.iter().filter(|log| log.start < first) {
            let what = format!("{syncs} fsyncs, the summary in block {}", log.start);
            let damaged = copy_of(&device);
            let mut head = vec![0; log.header.summary_blocks(size) as usize * BLOCK];
            damaged.read_at(log.start.0 * BLOCK as u64, &mut head).unwrap();
            damaged.write_at(first.0 * BLOCK as u64, &[IoSlice::new(&head)]).unwrap();
            let report = nilfs_check::check(&*damaged, &Default::default()).unwrap();
            assert!(!report.is_consistent(), "{what}: {report}");
            let refused = Filesystem::mount(damaged, MountOptions::default()).map(drop);
            assert!(matches!(refused, Err(Error::RollForward(_))), "{what}: {refused:?}");
        }
    }
}

#[test]
fn what_was_synced_outlives_a_recovery_that_is_cut_off() {
    for volume in VOLUMES {
        // With little memory, a recovery takes several checkpoints.
        for dirty_limit in [MountOptions::default().dirty_limit, 1] {
            let options = MountOptions { dirty_limit, ..MountOptions::default() };
            let mount = |device| drop(Filesystem::mount(device, options.clone()).unwrap());
            let [_, after] = crashed(volume, 30);
            let expected = read(&copy_of(&after));
            assert_ne!(expected, pattern(0, BLOCKS * BLOCK), "something was synced");
            let recovery = Arc::new(RecordingDevice::new(MemoryDevice::from(after.snapshot())));
            mount(Arc::clone(&recovery) as _);
            let events = recovery.take_events();
            let cut_off = MemoryDevice::from(after.snapshot());
            for (nth, event) in events.iter().enumerate() {
                let Event::Write { offset, bytes } = event else { continue };
                for written in [bytes.len() / 2 / 512 * 512, bytes.len()] {
                    cut_off.write_at(*offset, &[IoSlice::new(&bytes[..written])]).unwrap();
                    let again = copy_of(&cut_off);
                    assert!(read(&again) == expected, "{volume:?}, cut at event {nth}");
                    check(&*again);
                }
            }
        }
    }
}

/// What a mount shows of the file.
fn shown(files: &dyn Files) -> (Attr, Vec<u8>) {
    let root = files.hold(nilfs_engine::Ino::ROOT).unwrap();
    let attr = files.lookup(root.ino, b"file").unwrap();
    let mut content = vec![0; attr.size as usize];
    assert_eq!(files.read(attr.ino, 0, &mut content).unwrap(), content.len());
    (attr, content)
}

/// The logs that a read-only mount reads from may lie in segments that were clean at the newest
/// checkpoint, and a writer that comes later takes these without asking.
#[test]
fn a_read_only_mount_shows_what_was_synced_and_goes_on_while_a_writer_recovers_that() {
    for logs in [0, 1, 24, 700] {
        let [_, device] = crashed(VOLUMES[1], logs);
        let before = device.snapshot();
        let mounted = ReadOnlyVolume::mount(device.clone(), ReadOnlyOptions::default()).unwrap();
        let first = shown(&mounted);
        assert!(device.snapshot() == before, "nothing is written");
        let writer = mount(&device);
        assert!(shown(&*writer) == first, "{logs} logs: what the writer recovers");
        let filler = make(&writer, &writer.root().unwrap().inode, "filler2");
        let piece = pattern(1, 64 << 10);
        while writer.stat_fs().unwrap().available > 1024 {
            writer.write(&filler, writer.attr(&filler).unwrap().size, &piece).unwrap();
        }
        writer.sync().unwrap();
        assert!(shown(&mounted) == first, "{logs} logs: while the writer works");
    }
}

/// One block of content that the device could not read cost a read-only mount, and all that takes its view,
/// everything that had been synced; one of an old checkpoint, any mount.
#[test]
fn a_block_that_cannot_be_read_keeps_no_volume_from_being_mounted() {
    let [_, crashed] = crashed(VOLUMES[1], 12);
    let volume = open(&crashed);
    let content = |log: &nilfs_engine::Log| {
        let size = volume.superblock().geometry().block_size;
        log.start.plus(log.header.summary_blocks(size))
    };
    let synced = volume.recovery_plan().unwrap().applied;
    let first = volume.superblock().last_log().block;
    let logs = volume.logs(volume.superblock().geometry().segment_of(first)).unwrap();
    let oldest = logs.iter().find(|log| log.start == first).unwrap();
    for block in [content(&synced[3]), content(oldest)] {
        let unreadable = || {
            let (device, faults) = FaultyDevice::new(MemoryDevice::from(crashed.snapshot()));
            let start = block.0 * BLOCK as u64;
            faults.scratch(std::iter::once(start..start + BLOCK as u64));
            Arc::new(device)
        };
        Filesystem::mount(unreadable(), MountOptions::default()).unwrap();
        ReadOnlyVolume::mount(unreadable(), ReadOnlyOptions::default()).unwrap();
    }
}

/// A later checkpoint has everything that a log before it was needed for, also where that cannot be read. But what is
/// needed may be read the next time: it is not given up.
#[test]
fn a_log_that_cannot_be_read_stops_a_mount_only_where_it_is_needed() {
    let device = with_three_checkpoints();
    let all = logs(&device);
    let roots: Vec<_> = all.iter().filter(|log| log.header.has(SR)).collect();
    let [.., before, newest] = roots[..] else { panic!("too few checkpoints") };
    let synced = all.last().unwrap();
    assert!(synced.start > newest.start);
    let mounted = |log: &Log| {
        let (faulty, faults) = FaultyDevice::new(MemoryDevice::from(device.snapshot()));
        let last = log.start.0 + u64::from(log.header.nblocks) - 1;
        let bad = [log.start.0, last].map(|block| block * BLOCK as u64);
        faults.scratch(bad.map(|start| start..start + BLOCK as u64));
        let faulty: Arc<dyn Device> = Arc::new(faulty);
        let report = nilfs_check::check(&*faulty, &Default::default()).unwrap();
        (Filesystem::mount(faulty, MountOptions::default()), report)
    };
    let (fs, report) = mounted(before);
    assert_eq!(report.newest, newest.header.cno, "{report}");
    assert!(!report.to_string().contains("a mount would fail"), "{report}");
    let fs = fs.unwrap();
    assert!(content(&fs, &file(&fs)) == pattern(4, 3000));
    for needed in [newest, synced] {
        let (refused, report) = mounted(needed);
        assert!(matches!(refused.map(drop), Err(Error::Device { .. })), "block {}", needed.start);
        assert!(!report.is_consistent(), "block {}: {report}", needed.start);
    }
}

/// One wrong bit in the super root before the newest hid the newest one, where logs of fsyncs went on in the next
/// segment.
#[test]
fn a_wrong_bit_in_a_super_root_hides_no_later_one() {
    for before in 0..14 {
        let device = volume(BLOCK as u64, 16);
        let fs = mount(&device);
        let file = make(&fs, &fs.root().unwrap().inode, "file");
        let sync = |nth, checkpoint: bool| {
            fs.write(&file, 0, &pattern(nth, 3000)).unwrap();
            fs.sync_file(&file).unwrap();
            if checkpoint {
                fs.sync().unwrap();
            }
        };
        (0..before).for_each(|nth| sync(nth, false));
        (20..23).for_each(|nth| sync(nth, true));
        (23..30).for_each(|nth| sync(nth, false));
        let all = logs(&device);
        let mut roots = all.iter().rev().filter(|log| log.header.has(SR));
        let last_but_one = roots.nth(1).unwrap();
        let end = last_but_one.start.0 + u64::from(last_but_one.header.nblocks);
        let at = (end - 1) * BLOCK as u64 + 3;
        let mut byte = [0];
        device.read_at(at, &mut byte).unwrap();
        let damaged = copy_of(&device);
        damaged.write_at(at, &[IoSlice::new(&[byte[0] ^ 0x80])]).unwrap();
        let fs = Filesystem::mount(damaged, MountOptions::default()).unwrap();
        assert!(content(&fs, &self::file(&fs)) == pattern(29, 3000), "{before} fsyncs before");
    }
}

/// Returns a volume with three checkpoints after the one that its superblocks name, each after an fsync, and one more
/// fsync.
fn with_three_checkpoints() -> Arc<MemoryDevice> {
    let device = volume(BLOCK as u64, 16);
    let fs = mount(&device);
    let file = make(&fs, &fs.root().unwrap().inode, "file");
    for nth in 1..5 {
        fs.write(&file, 0, &pattern(nth, 3000)).unwrap();
        fs.sync_file(&file).unwrap();
        if nth < 4 {
            fs.sync().unwrap();
        }
    }
    device
}

/// A summary that lies one block after its place says that its log reaches into the next one, which was looked for
/// after that: all that came later was gone.
#[test]
fn a_summary_in_the_block_after_its_place_hides_no_checkpoint() {
    let device = volume(BLOCK as u64, 16);
    let fs = mount(&device);
    let file = make(&fs, &fs.root().unwrap().inode, "file");
    for nth in 0..5 {
        fs.write(&file, 0, &pattern(nth, 3000)).unwrap();
        fs.sync().unwrap();
    }
    let size = open(&device).superblock().geometry().block_size;
    let all = logs(&device);
    let roots: Vec<_> = all.iter().filter(|log| log.header.has(SR)).collect();
    // The first of them has the directory, which would be lost.
    for log in &roots[2..roots.len() - 1] {
        let damaged = copy_of(&device);
        let at = log.start.0 * BLOCK as u64;
        let mut summary = vec![0; log.header.summary_blocks(size) as usize * BLOCK];
        damaged.read_at(at, &mut summary).unwrap();
        damaged.write_at(at, &[IoSlice::new(&[0; BLOCK]), IoSlice::new(&summary)]).unwrap();
        let report = nilfs_check::check(&*damaged, &Default::default()).unwrap();
        assert_eq!(report.newest, roots[roots.len() - 1].header.cno, "block {}", log.start);
        assert!(read(&damaged) == pattern(4, 3000), "block {}", log.start);
    }
}

#[test]
fn without_recovery_a_read_only_mount_shows_the_newest_checkpoint() {
    let [_, device] = crashed(VOLUMES[1], 5);
    let options = ReadOnlyOptions { recovery: false, ..ReadOnlyOptions::default() };
    let mounted = ReadOnlyVolume::mount(device, options).unwrap();
    assert!(shown(&mounted).1 == pattern(0, BLOCKS * BLOCK));
}

/// One bad sector where nothing lies kept a volume from being mounted that had not been closed: the log was to go on
/// there. It goes on elsewhere.
#[test]
fn a_clean_segment_that_cannot_be_read_stops_no_mount() {
    for shape in VOLUMES {
        let [_, sound] = crashed(shape, 3);
        let expected = read(&copy_of(&sound));
        let volume = open(&sound);
        let geometry = volume.superblock().geometry();
        let logs = logs(&sound);
        // A log may have gone on where the last one says.
        let next = logs.iter().map(|log| log.header.next).next_back();
        let starts = logs.iter().map(|log| log.start).chain(next);
        let used: Vec<_> = starts.map(|start| geometry.segment_of(start)).collect();
        let clean = (0..geometry.nsegments).map(SegNum).filter(|it| !used.contains(it));
        for segment in clean.take(8) {
            let (device, faults) = FaultyDevice::new(copy_of(&sound));
            let at = geometry.segment_start(segment).0 * BLOCK as u64;
            faults.scratch(std::iter::once(at..at + BLOCK as u64));
            let fs = mount(&Arc::new(device));
            assert!(content(&fs, &file(&fs)) == expected, "{shape:?}, segment {segment}");
            fs.unmount().unwrap();
        }
    }
}

/// A machine that crashes whenever it starts must not fill its volume by that.
#[test]
fn crashes_in_a_row_do_not_use_up_the_last_segments() {
    let [_, device] = crashed(VOLUMES[0], 5);
    let free = |device: &Arc<MemoryDevice>| mount(device).stat_fs().unwrap().free;
    let first = free(&device);
    let last = (0..20).map(|_| free(&device)).next_back().unwrap();
    let per_crash = (first - last) / 20;
    assert!(per_crash < SEGMENT as u64 / BLOCK as u64 / 4, "each crash cost {per_crash} blocks");
    check(&*device);
}

/// In strict order a sync of any file makes every older change durable: also of a file that has not
/// changed itself, and also if only its data are asked for.
#[test]
fn in_strict_order_a_sync_of_one_file_is_a_sync_of_all_before() {
    for (changed, data_only) in [(false, false), (false, true), (true, false), (true, true)] {
        let device = volume(BLOCK as u64, 16);
        let options = MountOptions { order: Order::Strict, ..MountOptions::default() };
        let fs = Filesystem::mount(Arc::clone(&device) as _, options).unwrap();
        let root = fs.root().unwrap().inode;
        let file = make(&fs, &root, "file");
        fs.write(&file, 0, &pattern(0, BLOCK)).unwrap();
        fs.sync().unwrap();
        make(&fs, &root, "older");
        if changed {
            fs.write(&file, 0, &pattern(1, BLOCK)).unwrap();
        }
        fs.sync_file(&file).unwrap();
        let after_cut = mount(&copy_of(&device));
        let root = after_cut.root().unwrap().inode;
        let older = after_cut.lookup(&root, b"older");
        assert!(older.is_ok(), "changed: {changed}, data only: {data_only}");
    }
}

/// A mount believes a super root that says that everything before it was durable. Of what was not
/// flushed, the device may have half, and all of what was written last.
#[test]
fn a_large_checkpoint_is_there_as_a_whole_or_not_at_all() {
    let memory = volume(4096, 64);
    let start = memory.snapshot();
    let device = Arc::new(RecordingDevice::new(MemoryDevice::from(start.clone())));
    let fs = mount(&device);
    let large = make(&fs, &fs.root().unwrap().inode, "large");
    for nth in 0..2 {
        fs.write(&large, 0, &pattern(nth, 3 << 20)).unwrap();
        fs.sync().unwrap();
    }
    let events = device.take_events();
    for at in 1..=events.len() {
        let durable = events[..at].iter().rposition(|event| *event == Event::Flush).unwrap_or(0);
        let left = MemoryDevice::from(start.clone());
        for (nth, event) in events[..at].iter().enumerate() {
            if let Event::Write { offset, bytes } = event {
                let whole = nth < durable || nth + 1 == at;
                let arrived = if whole { bytes.len() } else { bytes.len() / 2 };
                left.write_at(*offset, &[IoSlice::new(&bytes[..arrived])]).unwrap();
            }
        }
        let left = Arc::new(left);
        let fs = mount(&left);
        if let Ok(found) = fs.lookup(&fs.root().unwrap().inode, b"large") {
            let content = content(&fs, &found.inode);
            assert!((0..2).any(|nth| content == pattern(nth, 3 << 20)), "after event {at}");
        }
        fs.unmount().unwrap();
        check(&*left);
    }
    fs.unmount().unwrap();
}

/// A clock that somebody sets.
#[derive(Default)]
struct Set(AtomicI64);

impl Clock for Set {
    fn now(&self) -> Timestamp {
        Timestamp { seconds: self.0.load(Ordering::Relaxed), nanoseconds: 0 }
    }
}

/// The checkpoint of a recovery shows the volume as it was at the last fsync, however much later
/// somebody mounts it: who looks for the state of a moment finds it there.
#[test]
fn what_was_recovered_is_of_the_time_at_which_it_was_synced() {
    let clock = Arc::new(Set(AtomicI64::new(2_000_000_000)));
    let options = || MountOptions { clock: Arc::clone(&clock) as _, ..MountOptions::default() };
    let created = |device: &Arc<MemoryDevice>| -> Vec<u64> {
        let all = open(device).checkpoints(Cno(1), 100).unwrap();
        all.iter().map(|checkpoint| checkpoint.created).collect()
    };
    let device = volume(BLOCK as u64, 16);
    let fs = Filesystem::mount(Arc::clone(&device) as _, options()).unwrap();
    let file = make(&fs, &fs.root().unwrap().inode, "file");
    fs.sync().unwrap();
    for _ in 0..3 {
        clock.0.fetch_add(60, Ordering::Relaxed);
        fs.write(&file, 0, &pattern(0, 100)).unwrap();
        fs.sync_file(&file).unwrap();
    }
    let [synced, nothing_synced] = [0, 1].map(|_| copy_of(&device));
    let last = clock.now().seconds as u64;
    let before = created(&device);
    clock.0.fetch_add(86_400, Ordering::Relaxed);
    drop(Filesystem::mount(Arc::clone(&synced) as _, options()).unwrap());
    assert_eq!(created(&synced), [&before[..], &[last]].concat());
    let first = open(&nothing_synced).recovery_plan().unwrap().applied[0].start.0;
    let rest = vec![0; SEGMENT];
    nothing_synced.write_at(first * BLOCK as u64, &[IoSlice::new(&rest)]).unwrap();
    drop(Filesystem::mount(Arc::clone(&nothing_synced) as _, options()).unwrap());
    assert_eq!(created(&nothing_synced), [&before[..], &[last + 86_400]].concat());
}

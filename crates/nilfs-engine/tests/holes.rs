//! Blocks that a log claims and does not write: what lies there is of no account to anybody, be it the
//! remains of what the segment was used for before.

mod common;

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Duration;

use common::{check, content, make, parameters, pattern, volume};
use nilfs_device::{Device, IoSlice, MaskedDevice, MemoryDevice};
use nilfs_engine::mkfs::{Parameters, format};
use nilfs_engine::scan::{FoundLog, Scan};
use nilfs_engine::scrub::{Scrubbed, Selection};
use nilfs_engine::scrub_device;
use nilfs_engine::{
    Amount, BlockNr, CleanerOptions, Filesystem, ManualRun, MountOptions, ReadOnlyOptions,
    ReadOnlyVolume, metadata_image,
};
use nilfs_ondisk::crc::crc32_le;
use nilfs_ondisk::geometry::{PRIMARY_SUPERBLOCK, secondary_superblock};
use nilfs_ondisk::summary::{GC, SR};
use nilfs_ondisk::superblock::Superblock;
use nilfs_ondisk::{BlockSize, ByteCount};

const BLOCK: usize = 4096;
/// The seed of the checksums of the volumes of these tests.
const CRC_SEED: u32 = 0x1234_5678;

fn mount(device: &Arc<MemoryDevice>, page: usize) -> Arc<Filesystem> {
    let cleaner = CleanerOptions { protection: Duration::ZERO, ..CleanerOptions::default() };
    let flash_page = ByteCount(page as u64);
    let options = MountOptions { flash_page, cleaner, ..MountOptions::default() };
    Filesystem::mount(Arc::clone(device) as _, options).unwrap()
}

/// A volume with fsyncs of very little in several segments, closed, or as a power cut leaves it; and what
/// the file has.
fn volume_with_holes(is_closed: bool) -> (Vec<u8>, Vec<u8>) {
    let device = volume(BLOCK as u64, 32);
    let fs = mount(&device, BLOCK);
    let root = fs.root().unwrap().inode;
    fs.write(&make(&fs, &root, "large"), 0, &pattern(1, 3 << 20)).unwrap();
    let file = make(&fs, &root, "file");
    fs.sync().unwrap();
    for nth in 0..200 {
        fs.write(&file, nth * 10, &pattern(nth as usize, 10)).unwrap();
        fs.sync_file(&file).unwrap();
    }
    let expected = content(&fs, &file);
    let crashed = device.snapshot();
    fs.unmount().unwrap();
    (if is_closed { device.snapshot() } else { crashed }, expected)
}

fn logs(device: &dyn Device) -> Vec<FoundLog> {
    Scan::run(device, &|_| {}).unwrap().logs
}

fn hole(log: &FoundLog) -> Option<BlockNr> {
    let described = log.header.described_blocks(BlockSize::DEFAULT);
    (described < log.header.nblocks.into()).then(|| log.start.plus(described))
}

fn bytes_of(block: BlockNr) -> Range<usize> {
    block.0 as usize * BLOCK..(block.0 as usize + 1) * BLOCK
}

/// The summary of an older log, which claims more than one block.
fn older_summary(image: &[u8], logs: &[FoundLog]) -> Vec<u8> {
    assert!(logs[0].header.nblocks > 2);
    image[bytes_of(logs[0].start)].to_vec()
}

fn scrubbed(device: Arc<dyn Device>) -> Scrubbed {
    scrub_device(&device, &Selection::default(), &mut |_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn whatever_lies_in_the_hole_of_a_log_is_as_good_as_zeros() {
    for is_closed in [false, true] {
        let (image, expected) = volume_with_holes(is_closed);
        let before = logs(&MemoryDevice::from(image.clone()));
        let holes: Vec<BlockNr> = before.iter().filter_map(hole).collect();
        assert!(holes.len() >= 200, "{} holes", holes.len());
        let sound = scrubbed(Arc::new(MemoryDevice::from(image.clone())));
        for content_of_hole in [vec![0xff; BLOCK], older_summary(&image, &before)] {
            let mut image = image.clone();
            holes.iter().for_each(|at| image[bytes_of(*at)].copy_from_slice(&content_of_hole));
            let device = Arc::new(MemoryDevice::from(image));
            check(&*device);
            assert_eq!(logs(&*device), before);
            let found = scrubbed(Arc::clone(&device) as _);
            assert_eq!((found.damage.len(), found.sound_logs), (0, sound.sound_logs));
            let copy = MemoryDevice::new(device.size());
            let mut put = |at: u64, bytes: &[u8]| copy.write_at(at, &[IoSlice::new(bytes)]);
            metadata_image::copy(&(Arc::clone(&device) as _), false, &mut put, &|_| {}).unwrap();
            check(&copy);
            let fs = mount(&device, BLOCK);
            let root = fs.root().unwrap().inode;
            let file = fs.lookup(&root, b"file").unwrap().inode;
            assert_eq!(content(&fs, &file), expected);
            drop((root, file));
            fs.unmount().unwrap();
            check(&*device);
        }
        let bad = holes.iter().map(|at| bytes_of(*at).start as u64..bytes_of(*at).end as u64);
        let bad: Arc<dyn Device> =
            Arc::new(MaskedDevice::new(Arc::new(MemoryDevice::from(image)), bad));
        check(&*bad);
        assert_eq!(logs(&*bad), before, "unreadable");
        let found = scrubbed(Arc::clone(&bad));
        assert_eq!((found.damage.len(), found.sound_logs), (0, sound.sound_logs));
        ReadOnlyVolume::mount(bad, ReadOnlyOptions::default()).unwrap();
    }
}

/// Where there is nothing to say that a block is a hole, a log that was there before must not cover those
/// that were written after the damaged one.
#[test]
fn an_older_log_in_the_hole_of_a_damaged_one_hides_none_after_it() {
    let (image, _) = volume_with_holes(true);
    let before = logs(&MemoryDevice::from(image.clone()));
    let sound = scrubbed(Arc::new(MemoryDevice::from(image.clone())));
    let begins = |log: &FoundLog| log.start.0.is_multiple_of(256) && hole(log).is_some();
    let first = before.iter().find(|log| begins(log)).expect("one begins a segment");
    let last = before.iter().rfind(|log| hole(log).is_some()).unwrap();
    for damaged in [first, last] {
        let mut image = image.clone();
        let older = older_summary(&image, &before);
        image[bytes_of(damaged.start)].fill(0);
        image[bytes_of(hole(damaged).unwrap())].copy_from_slice(&older);
        let device = Arc::new(MemoryDevice::from(image));
        let others: Vec<FoundLog> = before.iter().filter(|it| *it != damaged).copied().collect();
        assert_eq!(logs(&*device), others);
        assert_eq!(scrubbed(Arc::clone(&device) as _).sound_logs, sound.sound_logs - 1);
        let report = nilfs_check::check(&*device, &nilfs_check::Options::default()).unwrap();
        let errors: Vec<String> = report.errors().map(ToString::to_string).collect();
        assert_eq!(errors.len(), 1, "{errors:#?}");
    }
}

/// What nilfs-utils 2.3 demands of a log in `left` blocks, up to the end of its segment: else its
/// cleaner ends. In its words, what is wrong.
fn complaint_of_nilfs_utils(log: &[u8], block_size: usize, left: usize) -> Option<&'static str> {
    let word = |at: usize, bytes: usize| {
        log[at..at + bytes].iter().rev().fold(0, |all, byte| all << 8 | usize::from(*byte))
    };
    let (header, blocks, sumbytes) = (word(12, 2), word(40, 4), word(48, 4));
    let summary_blocks = sumbytes.div_ceil(block_size);
    if header < 64 || header % 8 != 0 || header > block_size {
        return Some("bad header size");
    }
    if sumbytes < header || summary_blocks >= blocks {
        return Some("too big summary info");
    }
    if blocks > left {
        return Some("too big partial segment");
    }
    if crc32_le(CRC_SEED, &log[8..sumbytes]) as usize != word(4, 4) {
        return Some("bad summary checksum");
    }
    let (mut at, mut payload) = (header, summary_blocks);
    let mut item = |bytes: usize| {
        if at % block_size + bytes > block_size {
            at = at.next_multiple_of(block_size);
        }
        at += bytes;
        (at - bytes, at <= sumbytes)
    };
    for _ in 0..word(44, 4) {
        let (info, fits) = item(24);
        if !fits {
            return Some("too many file infos");
        }
        let (ino, all, data) = (word(info, 8), word(info + 16, 4), word(info + 20, 4));
        if data > all {
            return Some("inconsistent block counts");
        }
        payload += all;
        if payload > blocks {
            return Some("too many blocks");
        }
        for nth in 0..all {
            if !item(if (ino == 3) == (nth >= data) { 16 } else { 8 }).1 {
                return Some("too many block infos");
            }
        }
    }
    None
}

/// Checkpoints, sync logs with blocks and without, and what the cleaner has moved.
#[test]
fn nilfs_utils_take_every_log_for_sound() {
    for block_size in [1024, 2048, BLOCK] {
        for page in [block_size, 16 << 10] {
            let per_segment = 64;
            let parameters = Parameters { blocks_per_segment: 64, ..parameters(block_size as u64) };
            let device = Arc::new(MemoryDevice::new((60 * per_segment * block_size) as u64));
            format(&*device, &parameters).unwrap();
            let fs = mount(&device, page);
            let root = fs.root().unwrap().inode;
            let file = make(&fs, &root, "file");
            for nth in 0..120_u64 {
                let what = pattern(nth as usize, [100, 100, 5000, 900][nth as usize % 4]);
                fs.write(&file, nth * 300, &what).unwrap();
                fs.sync_file(&file).unwrap();
                make(&fs, &root, &format!("another {nth}"));
                if nth % 9 == 0 {
                    fs.write(&make(&fs, &root, &format!("{nth}")), 0, &what).unwrap();
                    fs.commit().unwrap();
                }
            }
            let run = ManualRun { min_reclaimable: Some(Amount::Count(1)), ..ManualRun::default() };
            fs.clean(&run).unwrap();
            drop((root, file));
            fs.unmount().unwrap();
            check(&*device);

            let image = device.snapshot();
            let (mut records, mut with_super_root, mut moved, mut others) = (0, 0, 0, 0);
            for log in logs(&*device) {
                let at = log.start.0 as usize;
                let left = per_segment - at % per_segment;
                let bytes = &image[at * block_size..];
                let complaint = complaint_of_nilfs_utils(bytes, block_size, left);
                assert_eq!(complaint, None, "{log:?}, blocks of {block_size}");
                *match log.header {
                    header if header.has(SR) => &mut with_super_root,
                    header if header.has(GC) => &mut moved,
                    header if header.nfinfo == 0 => &mut records,
                    _ => &mut others,
                } += 1;
            }
            let kinds = [records, with_super_root, moved, others];
            assert!(kinds.iter().all(|count| *count > 0), "{kinds:?}, blocks of {block_size}");
        }
    }
}

/// Linux takes a log with something in its hole for the end of all logs.
#[test]
fn a_superblock_follows_each_checkpoint_after_a_log_with_a_hole() {
    let device = volume(BLOCK as u64, 32);
    let fs = mount(&device, BLOCK);
    let file = make(&fs, &fs.root().unwrap().inode, "file");
    fs.sync().unwrap();
    for nth in 0..20 {
        fs.write(&file, nth * 10, b"0123456789").unwrap();
        fs.sync_file(&file).unwrap();
        let newest = fs.commit().unwrap();
        let image = device.snapshot();
        let size = image.len() as u64;
        let named = [PRIMARY_SUPERBLOCK, secondary_superblock(size).unwrap()]
            .map(|at| Superblock::parse(&image[at as usize..], size).unwrap().last_log().cno);
        assert_eq!(named.into_iter().max(), Some(newest));
    }
    drop(file);
    fs.unmount().unwrap();
    check(&*device);
}

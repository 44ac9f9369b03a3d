//! What the sufile and the newest log may say wrongly, and that nothing is written over then.

use std::sync::Arc;

use nilfs_device::MemoryDevice;
use nilfs_ondisk::crc::Crc;
use nilfs_ondisk::segment_usage::{SEGMENT_USAGE_SIZE, SufileLayout};
use nilfs_ondisk::{BlockNr, SegNum, Slot};

use crate::cleaner::Mounted;
use crate::cleaner::options::ManualRun;
use crate::fixtures::{
    BLOCK, SEGMENT_BLOCKS, check, copy_of, empty_volume, make_file, mount, open, write,
};
use crate::volume::Volume;
use crate::{Filesystem, MountOptions, Verify};

const SEGMENTS: u64 = 24;
/// Bytes that fill some segments.
const SOME: usize = 3 * SEGMENT_BLOCKS as usize * BLOCK;

/// Where the header of the sufile, which is in the block of the entries, has the last segment that was taken.
const LAST_ALLOC: usize = 16;

/// A volume that was closed cleanly, with a file in several segments.
fn used() -> Arc<MemoryDevice> {
    let device = empty_volume(SEGMENTS);
    let fs = mount(&device);
    let file = make_file(&fs);
    fs.write(&file, 0, &[b'o'; SOME]).unwrap();
    fs.unmount().unwrap();
    device
}

/// Where the usage entry of a segment lies.
fn entry(volume: &Volume, segment: SegNum) -> (BlockNr, usize) {
    let Slot { block, offset } = SufileLayout::new(&volume.store.geometry()).slot(segment);
    let source = volume.source();
    let pointer = source.lookup(&volume.sufile().unwrap(), block).unwrap().unwrap();
    (source.locate(pointer).unwrap(), offset)
}

fn bytes_at(device: &MemoryDevice, block: BlockNr, count: u64) -> Vec<u8> {
    let start = block.0 as usize * BLOCK;
    device.snapshot()[start..start + count as usize * BLOCK].to_vec()
}

/// Lets the entry of a segment say that it is clean, and the search for one begin there.
fn call_clean(device: &Arc<MemoryDevice>, segment: SegNum) {
    let volume = open(device);
    let (block, offset) = entry(&volume, segment);
    let mut bytes = bytes_at(device, block, 1);
    bytes[offset..offset + SEGMENT_USAGE_SIZE].fill(0);
    let before = (segment.0 + SEGMENTS - 1) % SEGMENTS;
    bytes[LAST_ALLOC..LAST_ALLOC + 8].copy_from_slice(&before.to_le_bytes());
    write(device, block, &bytes);
}

/// The segments in use, without the one that is set aside.
fn in_use(volume: &Volume) -> Vec<SegNum> {
    let all = volume.segments(SegNum(0)).unwrap();
    all.iter().filter(|it| it.dirty && it.blocks > 0).map(|it| it.segment).collect()
}

/// Writes new files until there is no room. Returns how many segments were kept out of use. Checksums would
/// tell that the sufile has changed, but where Linux has written it, there are none.
fn fill(device: &Arc<MemoryDevice>) -> u64 {
    let options = MountOptions { verify: Verify::None, ..MountOptions::default() };
    let fs = Filesystem::mount(Arc::clone(device) as _, options).unwrap();
    let root = fs.root().unwrap().inode;
    let new = crate::NewInode { mode: 0o100_644, uid: 0, gid: 0, rdev: Default::default() };
    let file = fs.create(&root, b"more", &new).unwrap().inode;
    let piece = vec![b'n'; 64 * BLOCK];
    let mut at = 0;
    while fs.write(&file, at, &piece).is_ok() {
        at += piece.len() as u64;
    }
    let refused = refused(&fs);
    fs.unmount().unwrap();
    refused
}

fn refused(fs: &Filesystem) -> u64 {
    fs.log().lock().refused_segments()
}

/// Fills a damaged copy of a volume, of which nothing that the volume had may change, except in the segment
/// in which the log goes on, after its end.
fn nothing_is_written_over(sound: &Arc<MemoryDevice>, damaged: &Arc<MemoryDevice>) -> u64 {
    let volume = open(sound);
    let before = damaged.snapshot();
    let refused = fill(damaged);
    let after = damaged.snapshot();
    let geometry = volume.store.geometry();
    let newest = volume.found.newest;
    for segment in in_use(&volume) {
        let end = match segment == newest.segment {
            true => newest.end(),
            false => geometry.segment_end(segment),
        };
        let start = geometry.segment_start(segment).0 as usize * BLOCK;
        let end = end.0 as usize * BLOCK;
        assert!(before[start..end] == after[start..end], "segment {segment} was written over");
    }
    refused
}

/// The entry was the only witness: the live file in the segment was overwritten, without a word.
#[test]
fn a_segment_whose_entry_says_that_it_is_clean_is_not_written_over() {
    let sound = used();
    let mut noticed = 0;
    for segment in in_use(&open(&sound)) {
        let damaged = copy_of(&sound);
        call_clean(&damaged, segment);
        noticed += nothing_is_written_over(&sound, &damaged);
    }
    assert!(noticed >= 3, "{noticed} segments with live files were noticed");
}

/// A block of the sufile that holds what it held long ago, when everything was clean.
#[test]
fn a_sufile_of_long_ago_lets_nothing_be_written_over() {
    let sound = used();
    let fresh = empty_volume(SEGMENTS);
    let (old, _) = entry(&open(&fresh), SegNum(0));
    let damaged = copy_of(&sound);
    write(&damaged, entry(&open(&sound), SegNum(0)).0, &bytes_at(&fresh, old, 1));
    assert!(nothing_is_written_over(&sound, &damaged) > 0);
}

/// A log whose `ss_next` leads to a segment in use: the log went on there, over five files.
#[test]
fn a_next_segment_that_is_in_use_is_not_entered() {
    let sound = used();
    let volume = open(&sound);
    let (newest, seed) = (volume.found.newest, volume.store.seed());
    for segment in in_use(&volume) {
        let damaged = copy_of(&sound);
        let blocks = newest.header.summary_blocks(volume.store.block_size());
        let mut summary = bytes_at(&damaged, newest.start, blocks);
        let next = volume.store.geometry().segment_start(segment);
        summary[32..40].copy_from_slice(&next.0.to_le_bytes());
        let mut crc = Crc::new(seed);
        crc.update(&summary[8..newest.header.sumbytes as usize]);
        summary[4..8].copy_from_slice(&crc.value().to_le_bytes());
        write(&damaged, newest.start, &summary);
        nothing_is_written_over(&sound, &damaged);
        let names = open(&damaged).found.newest.next;
        assert_ne!(names, Some(segment), "segment {segment}");
    }
}

/// Segments that were freed and taken many times, with old summaries in all of them.
#[test]
fn no_segment_is_kept_out_of_use_although_it_is_free() {
    let device = used();
    let everything =
        ManualRun { protection: Some(std::time::Duration::ZERO), ..ManualRun::default() };
    for round in 0..8_u8 {
        let fs = mount(&device);
        let root = fs.root().unwrap().inode;
        let file = fs.lookup(&root, b"file").unwrap().inode;
        for part in 0..6_usize {
            let at = (part * 7919 + usize::from(round) * 104_729) % (SOME / 2);
            fs.write(&file, at as u64, &vec![round; SOME / 3]).unwrap();
            fs.sync_file(&file).unwrap();
            fs.commit().unwrap();
            fs.clean(&everything).unwrap();
        }
        for segment in open(&copy_of(&device)).segments(SegNum(0)).unwrap() {
            if !segment.dirty && !segment.bad {
                let log = fs.log().lock();
                assert!(log.is_withheld(segment.segment) || log.may_write(segment.segment));
            }
        }
        assert_eq!(refused(&fs), 0, "in round {round}");
        fs.unmount().unwrap();
        check(&device);
    }
}

//! Nothing is written over where the sufile or the newest log is wrong.

use std::sync::Arc;

use nilfs_device::{Action, Fault, FaultyDevice, MemoryDevice};
use nilfs_ondisk::crc::Crc;
use nilfs_ondisk::segment_usage::{DIRTY, RawSegmentUsage, SEGMENT_USAGE_SIZE, SufileLayout};
use nilfs_ondisk::{BlockNr, SegNum, Slot};
use zerocopy::IntoBytes;

use crate::cleaner::options::ManualRun;
use crate::fixtures::{
    BLOCK, SEGMENT_BLOCKS, check, copy_of, empty_volume, make_file, mount, open, write,
};
use crate::volume::Volume;
use crate::{Filesystem, MountOptions, PurgeOptions, Verify, Wiping};

use super::{CleanSegments, Refusal, reader};

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

/// Writes new files until there is no room. Returns how many segments were kept out of use.
fn fill(device: &Arc<MemoryDevice>) -> u64 {
    let fs = mount_unverified(device);
    write_until_refused(&fs);
    let refused = refused(&fs);
    fs.unmount().unwrap();
    refused
}

/// Mounts without a look at checksums: they would tell that the sufile has changed, but where Linux has
/// written it, there are none.
fn mount_unverified(device: &Arc<MemoryDevice>) -> Arc<Filesystem> {
    let options = MountOptions { verify: Verify::None, ..MountOptions::default() };
    Filesystem::mount(Arc::clone(device) as _, options).unwrap()
}

fn write_until_refused(fs: &Filesystem) {
    let root = fs.root().unwrap().inode;
    let new = crate::NewInode { mode: 0o100_644, uid: 0, gid: 0, rdev: Default::default() };
    let file =
        fs.lookup(&root, b"more").or_else(|_| fs.create(&root, b"more", &new)).unwrap().inode;
    let piece = vec![b'n'; 64 * BLOCK];
    let mut at = 0;
    while fs.write(&file, at, &piece).is_ok() {
        at += piece.len() as u64;
    }
}

fn refused(fs: &Filesystem) -> u64 {
    fs.writer.look().refused_segments().len() as u64
}

/// Fills a damaged copy of a volume, of which nothing that the volume had may change, except in the segment
/// in which the log goes on, after its end.
fn nothing_is_written_over(sound: &Arc<MemoryDevice>, damaged: &Arc<MemoryDevice>) -> u64 {
    let before = damaged.snapshot();
    let refused = fill(damaged);
    assert_kept(sound, &before, &damaged.snapshot());
    refused
}

fn assert_kept(sound: &Arc<MemoryDevice>, before: &[u8], after: &[u8]) {
    let volume = open(sound);
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

/// Lets the newest log name a segment as the next.
fn name_as_next(device: &Arc<MemoryDevice>, segment: SegNum) {
    let volume = open(device);
    let (newest, seed) = (volume.found.newest, volume.store.seed());
    let blocks = newest.header.summary_blocks(volume.store.block_size());
    let mut summary = bytes_at(device, newest.start, blocks);
    let next = volume.store.geometry().segment_start(segment);
    summary[32..40].copy_from_slice(&next.0.to_le_bytes());
    let mut crc = Crc::new(seed);
    crc.update(&summary[8..newest.header.sumbytes as usize]);
    summary[4..8].copy_from_slice(&crc.value().to_le_bytes());
    write(device, newest.start, &summary);
}

/// A log whose `ss_next` leads to a segment in use: the log went on there, over five files.
#[test]
fn a_next_segment_that_is_in_use_is_not_entered() {
    let sound = used();
    for segment in in_use(&open(&sound)) {
        for clean in [false, true] {
            let damaged = copy_of(&sound);
            name_as_next(&damaged, segment);
            if clean {
                call_clean(&damaged, segment);
            }
            nothing_is_written_over(&sound, &damaged);
            let names = open(&damaged).found.newest.next;
            assert_ne!(names, Some(segment), "segment {segment}");
        }
    }
}

/// The newest log and the sufile agree that a segment was set aside, and both are wrong: the log went on
/// there. It stops before that, and the next mount goes on elsewhere.
#[test]
fn a_segment_in_use_that_seems_to_be_set_aside_is_not_entered() {
    let sound = used();
    let mut stopped = 0;
    for segment in in_use(&open(&sound)) {
        let damaged = copy_of(&sound);
        name_as_next(&damaged, segment);
        let (block, offset) = entry(&open(&damaged), segment);
        let mut bytes = bytes_at(&damaged, block, 1);
        let usage = RawSegmentUsage { su_flags: DIRTY.into(), ..RawSegmentUsage::CLEAN };
        bytes[offset..offset + SEGMENT_USAGE_SIZE].copy_from_slice(usage.as_bytes());
        write(&damaged, block, &bytes);
        let before = damaged.snapshot();
        let fs = mount_unverified(&damaged);
        write_until_refused(&fs);
        stopped += u64::from(fs.is_read_only());
        // It ends with the error that has stopped it, if any has.
        assert_eq!(fs.is_read_only(), fs.unmount().is_err());
        assert_kept(&sound, &before, &damaged.snapshot());
        // What the first file has in other segments may be moved by the cleaner now.
        fill(&damaged);
        let fs = mount_unverified(&damaged);
        let file = fs.lookup(&fs.root().unwrap().inode, b"file").unwrap().inode;
        let mut found = vec![0; SOME];
        assert_eq!(fs.read(&file, 0, &mut found).unwrap(), SOME);
        assert!(found == [b'o'; SOME], "segment {segment} was written over");
        fs.unmount().unwrap();
    }
    assert!(stopped >= 2, "the log came to {stopped} such segments");
}

/// Live blocks in segments that are clean by their usage entries are neither discarded, wiped nor cut off.
#[test]
fn a_refused_segment_is_neither_trimmed_nor_purged_nor_cut_off() {
    let sound = empty_volume(SEGMENTS);
    let fs = mount(&sound);
    let file = make_file(&fs);
    fs.write(&file, 0, &vec![b'o'; 3 * SOME]).unwrap();
    fs.unmount().unwrap();
    let geometry = open(&sound).store.geometry();
    let discarded = |fs: &Filesystem| fs.trim(0, u64::MAX, 0).map(|_| ());
    let purged = |wiping| {
        move |fs: &Filesystem| {
            let options = PurgeOptions { keep_snapshots: true, wiping };
            fs.purge(None, options, &mut |_| {}).map(|_| ())
        }
    };
    let cut_off = |fs: &Filesystem| {
        let end = geometry.segment_start(SegNum(8)).0 * BLOCK as u64 + 8192;
        fs.resize(end, &mut |_| {})
    };
    type Way<'a> = &'a dyn Fn(&Filesystem) -> crate::Result<()>;
    let ways: [(&str, Way<'_>); 4] = [
        ("trim", &discarded),
        ("discarding purge", &purged(Wiping::Discard)),
        ("overwriting purge", &purged(Wiping::Overwrite)),
        ("resize", &cut_off),
    ];
    let whole = in_use(&open(&sound)).into_iter().filter(|it| *it >= SegNum(8));
    let segments: Vec<SegNum> =
        whole.filter(|it| *it != open(&sound).found.newest.segment).collect();
    assert!(!segments.is_empty());
    for segment in segments {
        for (what, way) in ways {
            let damaged = copy_of(&sound);
            call_clean(&damaged, segment);
            let range = |device: &Arc<MemoryDevice>| {
                let blocks = u64::from(SEGMENT_BLOCKS);
                bytes_at(device, geometry.segment_start(segment), blocks)
            };
            let before = range(&damaged);
            let fs = mount_unverified(&damaged);
            let done = way(&fs);
            assert_eq!(refused(&fs), 1, "{what}, segment {segment}: {done:?}");
            let why = done.map_or_else(|error| error.to_string(), |()| String::new());
            let is_named = why
                .starts_with(&format!("the volume is damaged: segment {segment} is not cut off"));
            assert!(what != "resize" || is_named, "segment {segment} was cut off, or: {why}");
            fs.unmount().unwrap();
            assert!(range(&damaged) == before, "{what}, segment {segment}");
        }
    }
}

/// The whole DAT says it of every segment, without a look into any.
#[test]
fn counting_live_blocks_finds_what_is_wrongly_called_clean() {
    let sound = used();
    let mut found = 0;
    for segment in in_use(&open(&sound)) {
        let damaged = copy_of(&sound);
        call_clean(&damaged, segment);
        let fs = mount_unverified(&damaged);
        let usage = fs.usage().unwrap();
        let status = fs.status();
        assert_eq!(status.refused_segments, refused(&fs));
        assert!(status.refused_segments <= 1 && (usage.refused > 0) == (refused(&fs) == 1));
        let counted = usage.live + usage.snapshots + usage.protected + usage.reclaimable;
        assert_eq!(counted + usage.refused + usage.free, usage.total, "segment {segment}");
        found += status.refused_segments;
        fs.unmount().unwrap();
    }
    assert!(found >= 2, "{found} segments with live files were found");
}

/// Where the DAT could not be read, the usage entry was blamed, and fsck was to correct it.
#[test]
fn what_cannot_be_judged_is_blamed_on_what_cannot_be_read() {
    let device = used();
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let file = fs.lookup(&root, b"file").unwrap().inode;
    fs.write(&file, 0, &[b'n'; SOME]).unwrap();
    fs.commit().unwrap();
    let everything =
        ManualRun { protection: Some(std::time::Duration::ZERO), ..ManualRun::default() };
    fs.clean(&everything).unwrap();
    fs.unmount().unwrap();
    let clean = |volume: &Volume| -> Vec<SegNum> {
        let all = volume.segments(SegNum(0)).unwrap();
        let has_logs = |it: &SegNum| !reader::logs_of(&volume.store, *it).unwrap().is_empty();
        all.iter().filter(|it| !it.dirty).map(|it| it.segment).filter(has_logs).collect()
    };
    let segments = clean(&open(&device));
    assert!(!segments.is_empty());
    for segment in segments {
        let (failing, faults) = FaultyDevice::new(Arc::clone(&device));
        let volume = open(&Arc::new(failing));
        let geometry = volume.store.geometry();
        let own = geometry.segment_start(segment).0 * BLOCK as u64
            ..geometry.segment_end(segment).0 * BLOCK as u64;
        faults.set(move |request| {
            let fails = request.action == Action::Read && !request.touches(&own);
            fails.then_some(Fault::Error)
        });
        let looked_at = CleanSegments::default();
        assert!(!looked_at.is_free(&volume.store, &volume.dat, segment));
        let refusal = looked_at.refusal(segment).unwrap();
        assert!(matches!(refusal, Refusal::Unjudged(_)), "{refusal}");
        assert!(!refusal.to_string().contains("usage entry"), "{refusal}");
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
                let log = fs.writer.look();
                assert!(log.is_withheld(segment.segment) || log.may_write(segment.segment));
            }
        }
        assert_eq!(refused(&fs), 0, "in round {round}");
        fs.unmount().unwrap();
        check(&device);
    }
}

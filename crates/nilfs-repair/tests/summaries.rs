//! A log whose summary cannot be used, though something lives in it: the summary is made anew from what
//! leads to the blocks, and everything moves to where its log describes it.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nilfs_check::{Options, Rule};
use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::{CleanerOptions, Filesystem, MountOptions, Volume};
use nilfs_ondisk::segment_usage::{ERROR, RawSegmentUsage, SufileLayout};
use nilfs_ondisk::{BlockNr, Ino, SegNum};
use support::{
    BLOCK_SIZES, Content, Image, Patient, UUID, add, bad_sectors, content, read, vblock, write,
};

const SS_CREATE: usize = 24;
const FILE_TYPE: usize = 11;
const DE_END: usize = 16;
const SU_FLAGS: usize = 12;

/// How a summary is damaged.
#[derive(Debug, Clone, Copy)]
enum Damage {
    Unreadable,
    Garbage,
    /// A field is not the one of which the header has the checksum.
    Field,
}

const DAMAGE: [Damage; 3] = [Damage::Unreadable, Damage::Garbage, Damage::Field];

fn usage(image: &Image, segment: SegNum) -> RawSegmentUsage {
    let slot = SufileLayout::new(&image.geometry()).slot(segment);
    let entries = image.block(image.data(Ino::SUFILE, slot.block.0).block);
    RawSegmentUsage::parse(&entries[slot.offset..]).unwrap()
}

fn flags(image: &Image, segment: SegNum) -> u32 {
    usage(image, segment).su_flags.get()
}

/// Blocks in use of a segment.
fn blocks_in_use(image: &Image, segment: SegNum) -> u64 {
    usage(image, segment).su_nblocks.get().into()
}

/// The logs of segments in use but for that of the newest.
fn older_logs(image: &Image) -> Vec<(BlockNr, u64)> {
    let geometry = image.geometry();
    let newest = geometry.segment_of(image.newest_log().block);
    let logs = image.logs().into_iter().filter(|log| {
        let segment = geometry.segment_of(log.block);
        let end = geometry.segment_start(segment).plus(blocks_in_use(image, segment));
        segment != newest && log.block < end
    });
    logs.map(|log| (log.block, log.header.summary_blocks(geometry.block_size))).collect()
}

/// Damages the summaries, and demands that the repair loses nothing and leaves no damage.
#[track_caller]
fn heals(image: &Image, expected: &Content, logs: &[(BlockNr, u64)], damage: Damage) {
    let (mut image, size) = (image.clone(), image.block_size());
    let mut unreadable = Vec::new();
    for (log, blocks) in logs {
        let (start, end) = (log.0 as usize * size, (log.0 + blocks) as usize * size);
        match damage {
            Damage::Unreadable => unreadable.extend((log.0..log.0 + blocks).map(BlockNr)),
            Damage::Garbage => image.bytes[start..end].fill(0x5a),
            Damage::Field => image.bytes[start + SS_CREATE] ^= 1,
        }
    }
    let bad = Arc::new(bad_sectors(image, &unreadable));
    let device: Arc<dyn Device> = bad.clone();
    let plan = nilfs_repair::plan(&device, &Options::default(), UUID).unwrap();
    let found = plan.before.as_ref().unwrap();
    assert!(found.errors().any(|it| it.rule == Rule::Log), "{logs:?}: {found}");
    assert!(plan.obstacle.is_none(), "{logs:?}, {damage:?}: {:?}", plan.obstacle);
    assert_eq!(plan.risk(), nilfs_repair::Risk::Safe, "{:?}", plan.repairs);
    plan.apply(&*device, &mut |_| {}).unwrap();
    let report = nilfs_check::check(&*device, &Options::default()).unwrap();
    assert!(report.is_consistent(), "{logs:?}, {damage:?}: {report}");
    let bytes = bad.below().snapshot();
    assert!(content(&bytes) == *expected, "{logs:?}, {damage:?}: a file has changed");
    everything_can_be_cleaned(device);
}

/// Every segment with something in it can be emptied.
#[track_caller]
fn everything_can_be_cleaned(device: Arc<dyn Device>) {
    let segments = Volume::open(Arc::clone(&device)).unwrap().segments(SegNum(0)).unwrap();
    let in_use = segments.iter().filter(|it| it.blocks > 0).map(|it| it.segment);
    let cleaner = CleanerOptions { enabled: false, ..CleanerOptions::default() };
    let options = MountOptions { cleaner, ..MountOptions::default() };
    let fs = Filesystem::mount(device, options).unwrap();
    assert_eq!(fs.evacuate(in_use.collect(), &mut |_| {}).unwrap(), BTreeSet::new());
    assert_eq!(fs.damaged_segments(), BTreeMap::new());
    fs.unmount().unwrap();
}

#[test]
fn any_log_but_the_newest() {
    for block_size in BLOCK_SIZES {
        let image = Image::by_linux(block_size);
        let expected = content(&image.bytes);
        let logs = older_logs(&image);
        assert!(logs.len() > 10, "there are such logs");
        for (nth, log) in logs.iter().enumerate() {
            heals(&image, &expected, &[*log], DAMAGE[nth % DAMAGE.len()]);
        }
    }
}

#[test]
fn every_log_of_a_segment() {
    for block_size in BLOCK_SIZES {
        let image = Image::by_linux(block_size);
        let geometry = image.geometry();
        let expected = content(&image.bytes);
        let logs = older_logs(&image);
        let segments: BTreeSet<_> = logs.iter().map(|log| geometry.segment_of(log.0)).collect();
        for (segment, damage) in segments.into_iter().zip(DAMAGE.into_iter().cycle()) {
            let is_here = |log: &(BlockNr, u64)| geometry.segment_of(log.0) == segment;
            let here: Vec<_> = logs.iter().copied().filter(is_here).collect();
            heals(&image, &expected, &here, damage);
        }
    }
}

/// Logs of the cleaner's own, which are no part of the chain, in a volume of ours.
#[test]
fn logs_of_moved_blocks() {
    for block_size in BLOCK_SIZES {
        let memory = Arc::new(MemoryDevice::from(Image::by_linux(block_size).bytes));
        everything_can_be_cleaned(Arc::clone(&memory) as Arc<dyn Device>);
        let image = Image::from(memory.snapshot());
        let expected = content(&image.bytes);
        let moved: BTreeSet<BlockNr> = image
            .logs()
            .into_iter()
            .filter(|log| log.header.is_off_chain())
            .map(|log| log.block)
            .collect();
        let logs = older_logs(&image);
        let logs: Vec<_> = logs.into_iter().filter(|(log, _)| moved.contains(log)).collect();
        assert!(!logs.is_empty(), "there are such logs");
        for (log, damage) in logs.iter().zip(DAMAGE.into_iter().cycle()) {
            heals(&image, &expected, &[*log], damage);
        }
    }
}

/// A summary that cannot be made anew, because something is said to live in its place, keeps its
/// segment from being emptied. What is wrong elsewhere is repaired all the same.
#[test]
fn a_segment_that_cannot_be_emptied_is_left() {
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        let log = image.data(Ino::ROOT, 0).log;
        assert_ne!(log, image.newest_log().block);
        image.edit_record(Ino::ROOT, "direct", |record| record[FILE_TYPE] = 2);
        let counters = image.data(Ino::SUFILE, 0);
        image.edit(counters, |block| add(block, 0, 1));
        let dead = image.blocks_of(Ino::SUFILE).into_iter().map(vblock).find(|vblock| {
            let (found, at) = image.dat_entry(*vblock);
            read(&image.block(found.block)[at..], DE_END) != u64::MAX
        });
        image.edit_dat(dead.unwrap(), |entry| write(entry, 0, log.0));
        let start = log.0 as usize * block_size as usize;
        image.bytes[start..start + 64].fill(0x5a);
        let segment = image.geometry().segment_of(log);
        let patient = Patient::new(image);
        let plan = patient.plan();
        assert!(plan.obstacle.is_none(), "{:?}", plan.obstacle);
        let record = plan.kept.iter().find(|kept| kept.fault.contains("direct"));
        let why = &record.expect("that is known to be wrong").why;
        assert!(why.contains(&format!("segment {segment} ")), "{why}");
        plan.apply(&*patient.device, &mut |_| {}).unwrap();
        let report = nilfs_check::check(&*patient.device, &Options::default()).unwrap();
        let rules: BTreeSet<Rule> = report.errors().map(|it| it.rule).collect();
        assert_eq!(rules, BTreeSet::from([Rule::Log, Rule::DirectoryEntry]), "{report}");
    }
}

/// Where nothing is clean, what is wrong is known, and that there is no room to put it right.
#[test]
fn a_lack_of_room_is_said_to_be_one() {
    // With larger blocks, the usages of all segments are in one.
    let mut image = Image::by_linux(4096);
    let log = image.data(Ino::ROOT, 0).log;
    let segments = (0..image.geometry().nsegments).map(SegNum);
    for segment in segments.filter(|it| flags(&image, *it) == 0).collect::<Vec<_>>() {
        image.edit_usage(segment, |usage| usage[SU_FLAGS] = ERROR as u8);
    }
    let start = log.0 as usize * image.block_size();
    image.bytes[start..start + 64].fill(0x5a);
    let plan = Patient::new(image).plan();
    let obstacle = plan.obstacle.as_ref().expect("there is no room").to_string();
    assert!(obstacle.contains("room") || obstacle.contains("space"), "{obstacle}");
    assert!(!plan.can_be_applied());
}

//! Segments that are longer than their usage entries say: blocks of files that the map and the DAT have there
//! are no holes.

mod support;

use std::sync::Arc;

use nilfs_check::Rule;
use nilfs_device::MemoryDevice;
use nilfs_engine::NewInode;
use nilfs_ondisk::BlockNr;
use nilfs_ondisk::inode::S_IFREG;
use nilfs_repair::Risk;
use support::{Content, Image, LogAt, Patient, content, formatted, mount};

const SU_NBLOCKS: usize = 8;

/// A volume after a crash, and logs that were written ahead for an fsync that has logs in later segments.
fn crashed() -> (Image, Vec<BlockNr>) {
    let device = formatted(32 << 20, 4096, 256);
    let fs = mount(&device);
    let new = NewInode { mode: S_IFREG | 0o644, uid: 0, gid: 0, rdev: Default::default() };
    let root = fs.root().unwrap().inode;
    let file = |name: &[u8], size: usize| {
        let file = fs.create(&root, name, &new).unwrap().inode;
        let content: Vec<u8> = (0..size).map(|at| (at / 4096 + at * 3) as u8).collect();
        fs.write(&file, 0, &content).unwrap();
        fs.sync_file(&file).unwrap();
        file.ino()
    };
    file(b"first", 900);
    let long = file(b"long", 5 << 20);
    file(b"last", 900);
    let image = Image::from(device.snapshot());
    let geometry = image.geometry();
    let logs = image.logs();
    let last = logs.last().unwrap().header.seq;
    // Where no log is before it in the segment, the chain ends, and a mount looks beyond short logs.
    let begins = |log| geometry.segment_start(geometry.segment_of(log)) == log;
    let is_ahead = |log: &&LogAt| {
        let is_long = log.header.nblocks > 2 && log.files.iter().any(|it| it.ino == long);
        log.header.seq < last && is_long && !begins(log.block)
    };
    let ahead: Vec<_> = logs.iter().filter(is_ahead).map(|log| log.block).collect();
    assert!(ahead.len() > 4, "{} logs were written ahead", ahead.len());
    (image, ahead)
}

fn lose_summary(image: &mut Image, log: BlockNr) {
    let size = image.block_size();
    image.bytes[log.0 as usize * size..][..size].fill(0x5a);
}

/// Returns what a mount makes of a volume.
fn recovered(image: Image) -> (Image, Content) {
    let device = Arc::new(MemoryDevice::from(image.bytes));
    mount(&device).unmount().unwrap();
    let bytes = device.snapshot();
    let content = content(&bytes);
    (Image::from(bytes), content)
}

/// Repairs a volume, and demands that nothing is lost, and what is not known to be what was written is named.
#[track_caller]
fn heals(image: Image, expected: &Content) {
    let patient = Patient::new(image);
    let plan = patient.plan();
    assert!(plan.obstacle.is_none(), "{:?}", plan.obstacle);
    assert_eq!(plan.risk(), Risk::Safe, "{:?}", plan.repairs);
    let named: Vec<&str> = plan.doubtful.iter().map(|kept| &kept.fault[..]).collect();
    assert!(named.iter().any(|it| it.starts_with("long: ")), "{named:?}, {:?}", plan.repairs);
    plan.apply(&*patient.device, &mut |_| {}).unwrap();
    let report = nilfs_check::check(&*patient.device, &Default::default()).unwrap();
    assert!(report.is_consistent(), "{report}");
    assert!(patient.plan().repairs.is_empty(), "nothing is left to be repaired");
    assert!(content(&patient.bytes()) == *expected, "a file has changed");
}

/// The usage entry alone was believed against the map and the DAT: the file's blocks became holes, though they
/// could be read, and with each repair more of them. Recoveries of older versions have left such entries.
#[test]
fn blocks_after_the_end_of_a_segment_are_no_holes() {
    let (crashed, ahead) = crashed();
    for log in ahead.into_iter().step_by(3) {
        let (mut image, expected) = recovered(crashed.clone());
        lose_summary(&mut image, log);
        let geometry = image.geometry();
        let segment = geometry.segment_of(log);
        let blocks = (log.0 - geometry.segment_start(segment).0) as u32;
        image.edit_usage(segment, |usage| {
            usage[SU_NBLOCKS..][..4].copy_from_slice(&blocks.to_le_bytes());
        });
        let report = image.check().unwrap();
        assert!(report.errors().any(|it| it.rule == Rule::SegmentUsage), "log {log}: {report}");
        heals(image, &expected);
    }
}

/// A mount rolls such a volume forward with all that is there. The checker said that it would fail, because no
/// log that it comes by has the blocks, and that nothing of that could be repaired.
#[test]
fn what_a_mount_rolls_forward_beyond_a_damaged_log_is_repaired() {
    let (mut crashed, ahead) = crashed();
    crashed.forget_copies();
    let (_, expected) = recovered(crashed.clone());
    for log in ahead.into_iter().step_by(4) {
        let mut image = crashed.clone();
        lose_summary(&mut image, log);
        let report = image.check().unwrap();
        let fails = report.errors().find(|it| it.message.contains("a mount would fail"));
        assert!(fails.is_none(), "log {log}: {report}");
        assert!(recovered(image.clone()).1 == expected, "log {log}");
        heals(image, &expected);
    }
}

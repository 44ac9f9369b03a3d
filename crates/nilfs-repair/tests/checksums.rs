//! What a repair does to logs that have checksums of their blocks.

mod support;

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use nilfs_check::Options;
use nilfs_device::Device;
use nilfs_engine::NewInode;
use nilfs_engine::scrub::{Fault, Selection};
use nilfs_engine::scrub_device;
use nilfs_ondisk::crc::crc32_le;
use nilfs_ondisk::inode::S_IFREG;
use nilfs_ondisk::summary::{BlockInfo, FileInfo};
use nilfs_ondisk::{BlockNr, Ino};
use nilfs_repair::{Observer, Plan, Risk, Settings, plan_observed};
use support::{
    BLOCK_SIZES, Image, LogAt, Patient, UUID, bad_sectors, checked, content, formatted, mount,
};

const FILE_TYPE: usize = 11;

/// A volume with a fault that is corrected in a directory, and a block of a file in the same log, which has
/// checksums.
fn directory_and_file(block_size: u64) -> (Image, BlockNr, BlockNr) {
    let mut image = Image::by_linux(block_size);
    let log = image.data(Ino::ROOT, 0).log;
    image.give_sums(log);
    image.edit_record(Ino::ROOT, "direct", |record| record[FILE_TYPE] = 2);
    let files = image.names_in_root().into_iter();
    let of_file = |ino| image.blocks_of(ino).into_iter().rfind(|it| it.log == log);
    let block = files.filter_map(of_file).map(|it| it.block).next();
    (image, log, block.expect("the log has a file"))
}

/// Damage of the volume, as a scrub sees it.
fn damage_on(device: &Arc<dyn Device>) -> Vec<(Fault, u64)> {
    let found = scrub_device(device, &Selection::default(), &mut |_| ControlFlow::Continue(()));
    let found = found.unwrap().damage.into_iter();
    found.map(|it| (it.fault, it.blocks.end.0 - it.blocks.start.0)).collect()
}

fn damage(patient: &Patient) -> Vec<(Fault, u64)> {
    damage_on(&patient.device)
}

/// Demands that a scrub finds content there that is unverified, and nothing else.
#[track_caller]
fn some_is_unverified(patient: &Patient) {
    let damage = damage(patient);
    assert!(!damage.is_empty(), "the volume does not know any more what may be damaged");
    assert!(damage.iter().all(|(fault, _)| *fault == Fault::Unverified), "{damage:?}");
}

/// Repairs a volume, taking what is there for what was written.
#[track_caller]
fn accept(patient: &Patient) -> Plan {
    let settings = Settings { uuid: UUID, accept: true, in_view: false };
    let (options, observer) = (Options::default(), Observer::default());
    let plan = plan_observed(&patient.device, &options, settings, &observer).unwrap();
    assert!(plan.can_be_applied(), "{:?}", plan.obstacle);
    plan.apply(&*patient.device, &mut |_| {}).unwrap();
    plan
}

/// A block was corrected, and the log got a checksum that was right also over what had been damaged beside
/// it: from then on nothing told of that.
#[test]
fn what_is_damaged_beside_a_correction_stays_known() {
    for block_size in BLOCK_SIZES {
        let (mut image, _, file) = directory_and_file(block_size);
        let at = file.0 as usize * image.block_size();
        // A single bit would be set right.
        image.bytes[at] ^= 3;
        let patient = Patient::new(image);
        assert_eq!(damage(&patient), [(Fault::Content, 1)]);
        let plan = patient.plan();
        assert!(!plan.repairs.is_empty() && plan.obstacle.is_none(), "{:?}", plan.obstacle);
        plan.apply(&*patient.device, &mut |_| {}).unwrap();
        assert_eq!(damage(&patient), [(Fault::Content, 1)]);
    }
}

/// Older versions correct blocks and the checksum of their log, and know of no others.
#[test]
fn a_log_that_is_right_is_believed_against_the_checksums_of_its_blocks() {
    for block_size in BLOCK_SIZES {
        let (mut image, log, file) = directory_and_file(block_size);
        let size = image.block_size();
        let start = log.0 as usize * size;
        image.bytes[file.0 as usize * size] ^= 1;
        let blocks = image.logs().iter().find(|it| it.block == log).unwrap().header.nblocks;
        let bytes = &mut image.bytes[start..start + blocks as usize * size];
        let sum = crc32_le(image.superblock.crc_seed(), &bytes[4..]);
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
        let patient = Patient::new(image);
        assert_eq!(damage(&patient), []);
        patient.heal();
        assert_eq!(damage(&patient), []);
    }
}

/// The checksums of content are gone with the summary of its log. The repair made new ones, whatever was
/// there, and from then on nothing told that it may not be what was written.
#[test]
fn content_of_which_the_summary_is_lost_is_unverified_until_it_is_accepted() {
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        let before = content(&image.bytes);
        let newest = image.superblock.last_log().block;
        let has_content = |ino: &Ino| *ino >= Ino::FIRST_USER;
        let mut logs = image.logs().into_iter().filter(|log| {
            log.block != newest && log.files.iter().any(|file| has_content(&file.ino))
        });
        let log = logs.next().expect("there is a log with content").block;
        image.bytes[log.0 as usize * block_size as usize..][..64].fill(0x5a);
        let patient = Patient::new(image);
        let plan = patient.plan();
        assert_eq!(plan.risk(), Risk::Safe, "{:?}", plan.repairs);
        assert!(!plan.doubtful.is_empty(), "the files are named");
        plan.apply(&*patient.device, &mut |_| {}).unwrap();
        assert!(content(&patient.bytes()) == before, "nothing is lost");
        some_is_unverified(&patient);
        let again = patient.plan();
        assert!(again.repairs.is_empty(), "{:?}", again.repairs);
        let accepted = accept(&patient);
        assert_eq!(accepted.risk(), Risk::Accepted);
        let named: BTreeSet<&str> =
            accepted.repairs.iter().map(|repair| &repair.fault[..]).collect();
        assert!(named.iter().any(|it| it.contains("perhaps not what was written")), "{named:?}");
        assert_eq!(damage(&patient), []);
        assert!(content(&patient.bytes()) == before, "it is taken as it is");
    }
}

/// On a volume that was not unmounted, the summary got a checksum that fitted the damaged content, if a mount
/// would have come by its log: no file was named, and from then on nothing told of the damage.
#[test]
fn content_of_which_the_summary_is_lost_stays_known_after_a_crash() {
    let (crashed, logs) = crashed();
    for log in logs {
        let mut image = Image::from(crashed.clone());
        let size = image.block_size();
        for block in [log.start.0, log.end.0 - 1] {
            image.bytes[block as usize * size..][..size].fill(0x5a);
        }
        let patient = Patient::new(image);
        let plan = patient.plan();
        let named: Vec<&str> = plan.doubtful.iter().map(|kept| &kept.fault[..]).collect();
        assert!(named.iter().any(|it| it.starts_with("long: ")), "log {log:?}: {named:?}");
        plan.apply(&*patient.device, &mut |_| {}).unwrap();
        some_is_unverified(&patient);
        let again = patient.plan();
        assert!(again.repairs.is_empty(), "{:?}", again.repairs);
        assert!(content(&patient.bytes()).contains_key("/synced"), "log {log:?}");
    }
}

/// A volume with a long file in a checkpoint that no superblock names, and one that was fsynced after that;
/// and logs with content of the long one alone.
fn crashed() -> (Vec<u8>, Vec<Range<BlockNr>>) {
    let device = formatted(16 << 20, 4096, 64);
    let fs = mount(&device);
    let new = NewInode { mode: S_IFREG | 0o644, uid: 0, gid: 0, rdev: Default::default() };
    let file = |name: &[u8]| fs.create(&fs.root().unwrap().inode, name, &new).unwrap().inode;
    let long = file(b"long");
    fs.write(&long, 0, &vec![b'.'; 2 << 20]).unwrap();
    fs.commit().unwrap();
    let synced = file(b"synced");
    fs.write(&synced, 0, &[b'.'; 5000]).unwrap();
    fs.sync_file(&synced).unwrap();
    let image = Image::from(device.snapshot());
    let newest = checked(&image.bytes).unwrap().newest_log.block;
    assert!(newest > image.superblock.last_log().block, "the superblock is older");
    let geometry = image.geometry();
    // Where no log is before it in the segment, the chain ends.
    let begins = |log| geometry.segment_start(geometry.segment_of(log)) == log;
    let is_content = |file: &FileInfo| {
        file.ino == long.ino() && file.blocks.iter().all(|it| matches!(it, BlockInfo::Data { .. }))
    };
    let of_content = |log: &LogAt| log.files.iter().all(is_content);
    let logs = image.logs().into_iter().filter(|log| !begins(log.block) && of_content(log));
    let blocks = |log: LogAt| log.block..log.block.plus(log.header.nblocks.into());
    let logs: Vec<_> = logs.map(blocks).collect();
    assert!(logs.len() > 2, "{logs:?}");
    (image.bytes, logs)
}

/// A log of Linux has one checksum, which was wrong before the repair, and was made right by it.
#[test]
fn what_is_damaged_in_a_log_without_checksums_of_its_blocks_stays_known() {
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        let root = image.data(Ino::ROOT, 0);
        image.edit_record(Ino::ROOT, "direct", |record| record[FILE_TYPE] = 2);
        let files = image.names_in_root().into_iter();
        let of_file = |ino| image.blocks_of(ino).into_iter().rfind(|it| it.log == root.log);
        let block = files.filter_map(of_file).map(|it| it.block).next();
        let block = block.expect("the log has a file").0 as usize * image.block_size();
        image.bytes[block] ^= 1;
        let patient = Patient::new(image);
        patient.plan().apply(&*patient.device, &mut |_| {}).unwrap();
        some_is_unverified(&patient);
    }
}

/// Zeros in the place of content that cannot be read had a checksum that was right: the file was whole, and
/// of zeros.
#[test]
fn zeros_in_the_place_of_unreadable_content_are_known_to_be_wrong() {
    for block_size in BLOCK_SIZES {
        let (image, _, file) = directory_and_file(block_size);
        let device: Arc<dyn Device> = Arc::new(bad_sectors(image, &[file]));
        let plan = nilfs_repair::plan(&device, &Options::default(), UUID).unwrap();
        assert_eq!(plan.risk(), Risk::Loses, "{:?}", plan.repairs);
        plan.apply(&*device, &mut |_| {}).unwrap();
        assert_eq!(damage_on(&device), [(Fault::Content, 1)]);
    }
}

//! A round of a repair is a check of the whole volume, so their number must not grow with the checkpoints
//! that have the same fault.

mod support;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use nilfs_check::Options;
use nilfs_engine::{FileType, NewInode};
use nilfs_ondisk::summary::BlockInfo;
use nilfs_ondisk::{FileBlock, Ino};
use nilfs_repair::{Observer, Settings, Task, plan_observed};
use support::{BLOCK_SIZES, Image, LoggedBlock, Patient, formatted, mount};

/// Checkpoints that have each another version of the root directory.
const CHECKPOINTS: usize = 24;

/// Makes a volume with a file that is in the root directory of many checkpoints.
fn with_past(block_size: u64) -> Image {
    let device = formatted(16 << 20, block_size, 64);
    let fs = mount(&device);
    let mode = FileType::Regular.mode_bits() | 0o644;
    let new = NewInode { mode, uid: 0, gid: 0, rdev: Default::default() };
    let root = fs.root().unwrap().inode;
    drop(fs.create(&root, b"file", &new).unwrap());
    for nth in 0..CHECKPOINTS {
        drop(fs.create(&root, format!("other {nth}").as_bytes(), &new).unwrap());
        fs.commit().unwrap();
    }
    drop(root);
    fs.unmount().unwrap();
    drop(fs);
    Image::from(device.snapshot())
}

/// Counts the checks that it takes to find out how a volume is repaired.
fn checks(image: Image) -> usize {
    let rounds = Arc::new(Mutex::new(BTreeSet::new()));
    let note = Arc::clone(&rounds);
    let observer = Observer::new(move |task, _, _| {
        if let Task::Check { round, .. } = task {
            note.lock().unwrap().insert(round);
        }
    });
    let device = Patient::new(image).device;
    let settings = Settings { uuid: support::UUID, accept: false, in_view: false };
    let plan = plan_observed(&device, &Options::default(), settings, &observer).unwrap();
    assert!(plan.can_be_applied(), "{:?}", plan.repairs);
    let left: Vec<_> = plan.after.iter().flat_map(|after| after.errors()).collect();
    assert!(left.is_empty(), "{left:?}");
    rounds.lock().unwrap().len()
}

/// The versions of the first block of the root directory that have the file.
fn versions(image: &Image) -> Vec<LoggedBlock> {
    let is_first = |it: &LoggedBlock| match it.info {
        BlockInfo::Data { offset, .. } => offset == FileBlock(0),
        _ => false,
    };
    let all = image.blocks_of(Ino::ROOT).into_iter().filter(is_first);
    all.filter(|it| name_in(image, it).is_some()).collect()
}

/// Where the name of the file is in a version of the directory.
fn name_in(image: &Image, version: &LoggedBlock) -> Option<usize> {
    let mut records = nilfs_ondisk::dirent::records(image.block(version.block)).flatten();
    records.find(|it| it.is_used() && it.name == b"file").map(|it| it.offset)
}

/// Lets the name of the file claim another type in these versions.
fn mistype(image: &mut Image, versions: &[LoggedBlock]) {
    for version in versions {
        let at = name_in(image, version).unwrap();
        image.edit(*version, |block| block[at + 11] = FileType::Fifo.dirent_code());
    }
}

/// Each round corrected one checkpoint, and no more than sixteen were corrected.
#[test]
fn a_fault_of_many_checkpoints_takes_as_many_checks_as_one_of_a_single_checkpoint() {
    for block_size in BLOCK_SIZES {
        let sound = with_past(block_size);
        let versions = versions(&sound);
        assert!(versions.len() >= CHECKPOINTS, "{}", versions.len());
        let (mut one, mut all) = (sound.clone(), sound);
        mistype(&mut one, &versions[versions.len() - 1..]);
        mistype(&mut all, &versions);
        let (one, all) = (checks(one), checks(all));
        assert_eq!(all, one, "block size {block_size}");
    }
}

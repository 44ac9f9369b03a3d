//! No false alarm: volumes as mkfs.nilfs2 and Linux leave them are consistent, to the last warning.

mod support;

use nilfs_check::{Checkpoints, Options, check};
use nilfs_device::{Action, Device, FaultyDevice, MemoryDevice};
use support::{BLOCK_SIZES, Image};

#[test]
fn a_fresh_volume_is_consistent() {
    for block_size in BLOCK_SIZES {
        let report = Image::by_mkfs(block_size).check().unwrap();
        assert!(report.findings.is_empty(), "block size {block_size}:\n{report}");
        let counts = report.counts;
        assert_eq!((counts.checkpoints, counts.snapshots, counts.logs), (1, 0, 1));
        assert_eq!(counts.segments, 2, "the one written and the next");
        let said = report.to_string();
        assert!(said.starts_with("checkpoint 1: 1 checkpoint (1 walked), 0 snapshots, "), "{said}");
        assert!(said.ends_with(", 1 log in 2 segments"), "{said}");
    }
}

#[test]
fn a_volume_filled_by_linux_is_consistent() {
    for block_size in BLOCK_SIZES {
        let report = Image::by_linux(block_size).check().unwrap();
        assert!(report.findings.is_empty(), "block size {block_size}:\n{report}");
        assert_eq!(report.counts.snapshots, 2);
        assert_eq!(report.counts.checkpoints_walked, report.counts.checkpoints);
        assert!(report.counts.inodes > 30 && report.counts.live_blocks > 50, "{report}");
    }
}

/// Linux hands out virtual blocks from the last group of all, whose numbers almost overflow.
#[test]
fn virtual_blocks_of_the_last_group_are_consistent() {
    let report = Image::stored("last-group-1024").check().unwrap();
    assert!(report.findings.is_empty(), "{report}");
}

#[test]
fn the_options_say_which_checkpoints_are_walked() {
    let image = Image::by_linux(1024);
    let all = image.check().unwrap().counts.checkpoints;
    for (checkpoints, walked) in [
        (Checkpoints::All, all),
        (Checkpoints::List(vec![]), 1),
        (Checkpoints::List(vec![nilfs_ondisk::Cno(1), nilfs_ondisk::Cno(1 << 40)]), 2),
    ] {
        let options = Options { checkpoints: checkpoints.clone(), ..Options::default() };
        let report = check(&MemoryDevice::from(image.bytes.clone()), &options).unwrap();
        assert_eq!(report.counts.checkpoints_walked, walked, "{checkpoints:?}");
        assert!(report.is_consistent(), "{checkpoints:?}:\n{report}");
    }
}

#[test]
fn nothing_is_written() {
    let bytes = Image::by_linux(4096).bytes;
    let (device, faults) = FaultyDevice::new(MemoryDevice::from(bytes));
    faults.fail_after(0, |request| request.action != Action::Read);
    assert!(check(&device, &Options::default()).unwrap().is_consistent());
    assert!(!device.is_read_only());
}

#[test]
fn a_device_that_cannot_be_read_is_an_error_and_no_finding() {
    let (device, faults) = FaultyDevice::new(MemoryDevice::from(Image::by_linux(4096).bytes));
    faults.fail(Action::Read);
    let error = check(&device, &Options::default()).unwrap_err();
    assert!(error.to_string().contains("injected"), "{error}");
}

//! A field with one possible value is set to it, and costs no checkpoint.

mod support;

use std::sync::Arc;

use nilfs_engine::NewInode;
use nilfs_ondisk::inode::S_IFREG;
use nilfs_ondisk::segment_usage::{ERROR, SufileLayout};
use nilfs_ondisk::{BlockNr, FileBlock, SegNum};
use nilfs_repair::Risk;
use support::{BLOCK_SIZES, Image, Patient, content, formatted, heals, mount, write};

/// A volume of which several checkpoints are in one segment.
fn in_one_segment(block_size: u64) -> Image {
    let blocks_per_segment = 256;
    let device =
        formatted(32 * u64::from(blocks_per_segment) * block_size, block_size, blocks_per_segment);
    let fs = mount(&device);
    let new = NewInode { mode: S_IFREG | 0o644, uid: 0, gid: 0, rdev: Default::default() };
    let root = fs.root().unwrap().inode;
    for nth in 0..3 {
        let file = fs.create(&root, format!("file {nth}").as_bytes(), &new).unwrap().inode;
        fs.write(&file, 0, &[nth; 3000]).unwrap();
        fs.sync().unwrap();
    }
    drop(root);
    fs.unmount().unwrap();
    drop(fs);
    Image::from(Arc::into_inner(device).unwrap().snapshot())
}

/// Damages the newest log of volumes where others come before it in its segment, and demands that they are
/// healed without a loss.
#[track_caller]
fn heals_newest(damage: impl Fn(&mut Image, BlockNr)) {
    for block_size in BLOCK_SIZES {
        let whole = in_one_segment(block_size);
        let newest = whole.newest_log().block;
        let geometry = whole.geometry();
        let start = geometry.segment_start(geometry.segment_of(newest));
        assert!(newest > start, "other logs come before it in its segment");
        let mut image = whole.clone();
        damage(&mut image, newest);
        let patient = Patient::new(image);
        let plan = patient.heal();
        assert_eq!(plan.risk(), Risk::Safe, "{:?}", plan.repairs);
        assert!(content(&patient.bytes()) == content(&whole.bytes), "no file has changed");
    }
}

/// The newest checkpoint was given up, though a super root has no other size.
#[test]
fn a_size_of_a_super_root() {
    for wrong in [[0, 0], [0xff, 0xff], [17, 0]] {
        heals(|image| {
            let root = image.super_root();
            image.edit(root, |block| block[4..6].copy_from_slice(&wrong));
        });
        // Its own checksum is as it was, and that of the log is not.
        heals(|image| {
            let root = image.super_root();
            let at = root.block.0 as usize * image.block_size() + 4;
            image.bytes[at..at + 2].copy_from_slice(&wrong);
        });
    }
}

/// Nothing could be written to the volume any more, and so no repair either.
#[test]
fn a_next_segment_that_is_none_or_not_the_one_of_the_logs_before() {
    for wrong in [1 << 60, 7, 0] {
        heals_newest(|image, newest| {
            image.edit_summary(newest, |block| write(block, 32, wrong));
        });
    }
    // Another segment of the volume is not the one that waits for logs.
    heals_newest(|image, newest| {
        let other = image.geometry().segment_start(SegNum(20));
        image.edit_summary(newest, |block| write(block, 32, other.0));
    });
}

/// Nothing was known that could be done: with the greatest number, no log can follow.
#[test]
fn a_sequence_number_that_the_logs_before_do_not_have() {
    for wrong in [u64::MAX, 1 << 40, 1] {
        heals_newest(|image, newest| {
            image.edit_summary(newest, |block| write(block, 16, wrong));
            image.edit_superblocks(|raw| raw.s_last_seq.set(wrong));
        });
    }
}

/// Nothing was in use, and nothing could be written.
#[test]
fn segments_that_are_all_erroneous() {
    heals(|image| {
        let geometry = image.geometry();
        let layout = SufileLayout::new(&geometry);
        let slots = layout.slots_of(FileBlock(0)).map(|(segment, _)| segment);
        for segment in slots.filter(|it| it.0 < geometry.nsegments) {
            image.edit_usage(segment, |usage| {
                usage[12..16].copy_from_slice(&ERROR.to_le_bytes());
            });
        }
    });
}

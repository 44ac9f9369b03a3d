//! Superblocks that are damaged, gone, or lead nowhere are written anew, from the other copy or from
//! the logs, and every file is as it was.

mod support;

use nilfs_check::{Foreign, Options, Severity};
use nilfs_ondisk::geometry::{PRIMARY_SUPERBLOCK, secondary_superblock};
use nilfs_repair::{RepairError, Risk};
use support::{BLOCK_SIZES, Image, Patient, UUID};

fn copies(image: &Image) -> [usize; 2] {
    let secondary = secondary_superblock(image.bytes.len() as u64).unwrap();
    [PRIMARY_SUPERBLOCK as usize, secondary as usize]
}

#[test]
fn a_copy_is_written_anew_from_the_other() {
    for block_size in BLOCK_SIZES {
        for nth in 0..2 {
            let mut image = Image::by_linux(block_size);
            let at = copies(&image)[nth];
            image.bytes[at + 20] ^= 0x55;
            Patient::new(image).is_healed(Risk::Safe);
        }
    }
}

#[test]
fn what_took_the_place_of_the_primary_copy_is_left_unless_somebody_insists() {
    let foreign = vec![Foreign { what: "ext4 data".into(), offset: 1080 }];
    let options = Options { foreign, ..Options::default() };
    for (without, is_displaced) in [(&[0, 1][..], true), (&[0], true), (&[1], false)] {
        let mut image = Image::by_linux(1024);
        for nth in without {
            let at = copies(&image)[*nth];
            image.bytes[at..at + 1024].fill(0x55);
        }
        let patient = Patient::new(image);
        let mut plan = nilfs_repair::plan(&patient.device, &options, UUID).unwrap();
        assert_eq!(matches!(plan.obstacle, Some(RepairError::Displaced { .. })), is_displaced);
        assert_eq!(plan.can_be_applied(), !is_displaced);
        assert_eq!(plan.risk() != Risk::Safe, is_displaced, "somebody has to ask for it");
        if let Ok(report) = &plan.before {
            let expected = if is_displaced { Severity::Error } else { Severity::Warning };
            assert_eq!(report.worst(), Some(expected), "{report}");
        }
        plan.take_back();
        assert!(plan.can_be_applied());
    }
}

#[test]
fn an_error_mark_is_taken_off_a_sound_volume() {
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        image.edit_superblocks(|raw| raw.s_state.set(raw.s_state.get() | 2));
        let healed = Patient::new(image).is_healed(Risk::Safe);
        assert_eq!(healed.superblock.raw().s_state.get(), 1, "clean, and without errors");
    }
}

#[test]
fn both_copies_are_made_of_what_the_logs_tell() {
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        let before = image.superblock;
        for at in copies(&image) {
            image.bytes[at..at + 1024].fill(0);
        }
        let healed = Patient::new(image).is_healed(Risk::Loses);
        assert_eq!(healed.superblock.geometry(), before.geometry());
        assert_eq!(healed.superblock.crc_seed(), before.crc_seed());
    }
}

#[test]
fn an_error_mark_stays_while_there_are_errors() {
    let mut image = Image::by_linux(1024);
    let direct = image.data(image.named("direct"), 1);
    image.bytes[direct.block.0 as usize * 1024] ^= 1;
    image.edit_superblocks(|raw| raw.s_state.set(raw.s_state.get() | 2));
    let plan = Patient::new(image).plan();
    assert!(plan.repairs.is_empty(), "{:?}", plan.repairs);
}

/// One log is not much to tell the size of a segment from.
#[test]
fn both_copies_of_a_new_volume_are_made_of_its_only_log() {
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_mkfs(block_size);
        let before = image.superblock;
        for at in copies(&image) {
            image.bytes[at..at + 1024].fill(0);
        }
        let patient = Patient::new(image);
        patient.heal();
        let healed = Image::from(patient.bytes());
        assert_eq!(healed.superblock.geometry(), before.geometry());
        assert_eq!(healed.superblock.crc_seed(), before.crc_seed());
    }
}

#[test]
fn a_cursor_at_no_log_is_moved_to_the_newest_super_root() {
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        let newest = image.newest();
        image.edit_superblocks(|raw| raw.s_last_pseg.set(raw.s_last_pseg.get() + 1));
        let healed = Patient::new(image).is_healed(Risk::Safe);
        assert!(healed.superblock.last_log().cno >= newest);
    }
}

/// Their checksums are right, and the logs say otherwise.
#[test]
fn copies_that_the_logs_contradict() {
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        let before = image.superblock;
        image.edit_superblocks(|raw| {
            raw.s_blocks_per_segment.set(raw.s_blocks_per_segment.get() * 2);
            raw.s_nsegments.set(raw.s_nsegments.get() / 2);
        });
        let healed = Patient::new(image).is_healed(Risk::Loses);
        assert_eq!(healed.superblock.geometry(), before.geometry());
        assert_eq!(healed.superblock.raw().s_uuid, before.raw().s_uuid);
        assert_eq!(healed.superblock.crc_seed(), before.crc_seed());
    }
}

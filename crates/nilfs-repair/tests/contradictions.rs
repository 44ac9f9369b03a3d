//! Logs and inodes of which the checksums are right and that contradict the rest of the volume: the
//! segment is emptied, and what is there is described anew.

mod support;

use nilfs_check::Rule;
use nilfs_ondisk::summary::{GC, LOGBGN, LOGEND};
use nilfs_ondisk::{BlockNr, Ino};
use nilfs_repair::Risk;
use support::{BLOCK_SIZES, Image, Patient, add, content, write};

const SS_FLAGS: usize = 14;
const SS_SEQ: usize = 16;
const SS_NEXT: usize = 32;
const SS_CNO: usize = 56;
const FI_CNO: usize = 64 + 8;
const I_SIZE: usize = 8;

/// Damages the volumes that Linux has filled, sees that the rule is broken, and demands that no file
/// has other content when that is repaired.
#[track_caller]
fn heals(rule: Rule, damage: impl Fn(&mut Image)) {
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        damage(&mut image);
        let report = image.check().unwrap();
        assert!(report.errors().any(|it| it.rule == rule), "{report}");
        Patient::new(image).is_healed(Risk::Safe);
    }
}

/// A log that is not the newest.
fn older(image: &Image) -> BlockNr {
    image.data(Ino::ROOT, 0).log
}

#[test]
fn a_log_that_contradicts_itself() {
    for (rule, field, value) in [
        (Rule::Log, SS_CNO, 1),
        (Rule::Log, SS_CNO, 1000),
        (Rule::Log, FI_CNO, 1000),
        (Rule::LogChain, SS_NEXT, 17),
    ] {
        heals(rule, |image| image.edit_summary(older(image), |block| write(block, field, value)));
    }
}

#[test]
fn the_newest_log_contradicts_itself() {
    heals(Rule::Log, |image| {
        let log = image.newest_log().block;
        image.edit_summary(log, |block| block[SS_FLAGS] &= !2);
    });
}

#[test]
fn a_log_that_contradicts_the_one_before() {
    heals(Rule::LogChain, |image| {
        let geometry = image.geometry();
        let logs = image.logs();
        let newest = image.newest_log().block;
        let second = logs.windows(2).rfind(|pair| {
            pair[1].block != newest
                && geometry.segment_of(pair[0].block) == geometry.segment_of(pair[1].block)
        });
        image.edit_summary(second.unwrap()[1].block, |block| add(block, SS_SEQ, 1));
    });
}

#[test]
fn two_segments_with_one_number() {
    heals(Rule::LogChain, |image| {
        let newest = image.newest_log().header.seq;
        let logs = image.logs();
        for log in logs.iter().filter(|log| log.header.seq.plus(1) == newest) {
            image.edit_summary(log.block, |block| add(block, SS_SEQ, 1));
        }
    });
}

/// A mount after a crash follows the chain, and would take blocks that were moved for what was synced.
#[test]
fn the_chain_leads_astray_to_moved_blocks() {
    heals(Rule::LogChain, |image| {
        image.append(Ino(777), GC | LOGBGN | LOGEND);
        image.edit_superblocks(|raw| raw.s_state.set(0));
    });
}

#[test]
fn a_superblock_with_the_number_of_another_checkpoint() {
    heals(Rule::SuperRoot, |image| {
        image.edit_superblocks(|raw| raw.s_last_cno.set(raw.s_last_cno.get() + 1));
    });
}

/// The size of a file that is more than any file can have becomes that of its blocks.
#[test]
fn a_size_that_no_file_can_have() {
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        let size = content(&image.bytes)["/direct"].2;
        let direct = image.named("direct");
        image.edit_inode(direct, |inode| write(inode, I_SIZE, u64::MAX));
        let patient = Patient::new(image);
        patient.heal();
        let found = content(&patient.bytes())["/direct"].2;
        assert_eq!(found, size.next_multiple_of(block_size));
    }
}

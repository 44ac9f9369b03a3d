//! A volume that was not closed is checked at its newest super root, and what a mount would roll
//! forward after it is named.

mod support;

use nilfs_check::{Rule, Severity};
use nilfs_ondisk::Ino;
use nilfs_ondisk::summary::{GC, LOGBGN, LOGEND, SYNDT};
use support::{BLOCK_SIZES, Image};

/// Makes both superblocks name the first log, as if no later state had been noted.
fn forget_the_newest(image: &mut Image) {
    let log = image.logs().into_iter().next().expect("the log of mkfs");
    image.edit_superblocks(|raw| {
        raw.s_state.set(0);
        raw.s_last_cno.set(log.header.cno.0);
        raw.s_last_pseg.set(log.block.0);
        raw.s_last_seq.set(log.header.seq.0);
    });
}

/// Not on the volume that was cleaned: a superblock would not name a log that is gone.
#[test]
fn the_newest_super_root_is_found_from_an_old_superblock() {
    for block_size in [1024, 2048] {
        let mut image = Image::by_linux(block_size);
        forget_the_newest(&mut image);
        let report = image.check().unwrap();
        assert!(report.findings.is_empty(), "{report}");
        assert_eq!(report.newest, image.newest());
    }
}

#[test]
fn logs_to_roll_forward_are_named() {
    for (flags, says) in [
        (LOGBGN | LOGEND, "sync logs for 1 file follow"),
        (LOGBGN, "an unfinished logical segment"),
    ] {
        for block_size in BLOCK_SIZES {
            let mut image = Image::by_linux(block_size);
            let direct = image.named("direct");
            image.append(direct, SYNDT | flags);
            image.edit_superblocks(|raw| raw.s_state.set(0));
            let report = image.check().unwrap();
            assert!(report.is_consistent(), "{report}");
            let named = report.findings.iter().any(|finding| {
                finding.severity == Severity::Note
                    && finding.rule == Rule::RollForward
                    && finding.message.contains(says)
            });
            assert!(named, "block size {block_size}:\n{report}");
        }
    }
}

#[test]
fn a_log_for_a_file_that_does_not_exist_cannot_be_rolled_forward() {
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        image.append(Ino(777), SYNDT | LOGBGN | LOGEND);
        image.edit_superblocks(|raw| raw.s_state.set(0));
        let report = image.check().unwrap();
        let seen = |finding: &nilfs_check::Finding| finding.place.ino == Some(Ino(777));
        assert!(report.errors().any(seen), "block size {block_size}:\n{report}");
    }
}

/// A recovery would take moved blocks for what somebody had synced.
#[test]
fn the_chain_must_not_run_into_moved_blocks() {
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        image.append(Ino(777), GC | LOGBGN | LOGEND);
        image.edit_superblocks(|raw| raw.s_state.set(0));
        let report = image.check().unwrap();
        let seen = |finding: &nilfs_check::Finding| {
            finding.rule == Rule::LogChain && finding.message.contains("moved blocks")
        };
        assert!(report.errors().any(seen), "block size {block_size}:\n{report}");
    }
}

//! Each rule about the superblock, the logs and the metadata files is seen to be broken when it is:
//! one structure at a time is damaged in volumes that Linux filled, with right checksums around it.

mod support;

use nilfs_check::{CheckError, Rule, Severity};
use nilfs_ondisk::geometry::{PRIMARY_SUPERBLOCK, secondary_superblock};
use nilfs_ondisk::{BlockNr, Cno, Ino};
use support::{BLOCK_SIZES, Image, add, expect, expect_error, read, vblock, write};

const DE_START: usize = 8;
const DE_END: usize = 16;

/// The superblock names block `at` as its newest log.
fn name_log(image: &mut Image, at: BlockNr) {
    image.edit_superblocks(|raw| raw.s_last_pseg.set(at.0));
}

#[test]
fn superblocks() {
    expect(Severity::Warning, Rule::Superblock, "primary copy cannot be used", |image| {
        image.bytes[PRIMARY_SUPERBLOCK as usize + 0x98] ^= 1;
    });
    expect(Severity::Warning, Rule::Superblock, "marked as having errors", |image| {
        image.edit_superblocks(|raw| raw.s_state.set(3));
    });
    let mut image = Image::by_linux(1024);
    let secondary = secondary_superblock(image.bytes.len() as u64).unwrap();
    for offset in [PRIMARY_SUPERBLOCK, secondary] {
        image.bytes[offset as usize + 6] = 0;
    }
    let error = image.check().unwrap_err();
    assert!(matches!(error, CheckError::NoSuperblock { .. }), "{error}");
    let mut image = Image::by_linux(1024);
    image.edit_superblocks(|raw| raw.s_feature_incompat.set(1 << 40));
    assert!(image.check().unwrap_err().to_string().contains("0x10000000000"));
}

#[test]
fn the_way_to_the_newest_super_root() {
    let mut image = Image::by_linux(2048);
    let newest = image.newest_log().block;
    name_log(&mut image, newest.plus(1));
    assert!(matches!(image.check().unwrap_err(), CheckError::NoSuperRoot { .. }));
    expect_error(Rule::SuperRoot, "cannot be used", |image| {
        // The older log is the first one, the volume's own; the newer one is no log at all.
        let first = image.logs().into_iter().find(|log| log.header.flags & 4 != 0).unwrap();
        image.edit_superblocks(|raw| {
            raw.s_last_cno.set(first.header.cno.0);
            raw.s_last_pseg.set(first.block.0);
            raw.s_last_seq.set(first.header.seq.0);
        });
        let primary = PRIMARY_SUPERBLOCK as usize;
        let older = image.bytes[primary..primary + 1024].to_vec();
        let newest = image.newest_log().block;
        name_log(image, newest.plus(1));
        let secondary = secondary_superblock(image.bytes.len() as u64).unwrap() as usize;
        image.bytes[secondary..secondary + 1024].copy_from_slice(&older);
    });
    expect_error(Rule::SuperRoot, "names it as that of checkpoint", |image| {
        let cno = image.newest().0;
        image.edit_superblocks(|raw| raw.s_last_cno.set(cno + 3));
    });
    expect(Severity::Warning, Rule::Superblock, "a newer super root follows", |image| {
        let logs = image.logs();
        let newest = image.newest_log();
        let before = logs
            .iter()
            .rfind(|log| log.header.cno < newest.header.cno && log.header.flags & 4 != 0)
            .unwrap();
        image.edit_superblocks(|raw| {
            raw.s_last_cno.set(before.header.cno.0);
            raw.s_last_pseg.set(before.block.0);
            raw.s_last_seq.set(before.header.seq.0);
        });
    });
}

#[test]
fn a_block_that_has_another_checksum_than_its_own_is_named() {
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        let found = image.data(Ino::ROOT, 0);
        image.give_sums(found.log);
        let report = image.check().unwrap();
        assert!(report.is_consistent(), "{report}");
        let at = (found.block.0 as usize + 1) * image.block_size() - 1;
        image.bytes[at] ^= 1;
        let report = image.check().unwrap();
        let says = format!("because this is not what was written: block {}", found.block);
        let named =
            report.errors().filter(|it| it.rule == Rule::Log && it.message.ends_with(&says));
        assert_eq!((named.count(), report.errors().count()), (1, 1), "{report}");
    }
}

#[test]
fn logs() {
    // A payload byte of a log that is not the newest, without sealing.
    expect_error(Rule::Log, "ss_datasum", |image| {
        let found = image.data(Ino::ROOT, 0);
        let at = (found.block.0 as usize + 1) * image.block_size() - 1;
        image.bytes[at] ^= 1;
    });
    let own = |image: &Image| image.data(Ino::ROOT, 0).log;
    for (rule, says, field, value) in [
        (Rule::Log, "more than ss_cno", 56, 1),
        (Rule::Log, "but the newest is", 56, 1000),
        (Rule::LogChain, "which is no start of a segment", 32, 17),
    ] {
        expect_error(rule, says, |image| {
            let log = own(image);
            image.edit_summary(log, |block| write(block, field, value));
        });
    }
    expect_error(Rule::Log, "ss_nblocks", |image| {
        let log = own(image);
        image.edit_summary(log, |block| block[40] -= 1);
    });
    expect_error(Rule::Log, "ss_sumbytes", |image| {
        let log = own(image);
        image.edit_summary(log, |block| block[48] ^= 8);
    });
    expect_error(Rule::Log, "ss_sumsum", |image| {
        let log = own(image);
        let at = log.0 as usize * image.block_size() + 70;
        image.bytes[at] ^= 1;
    });
    expect_error(Rule::Log, "must end its logical segment", |image| {
        let log = image.newest_log().block;
        image.edit_summary(log, |block| block[14] &= !2);
    });
    expect_error(Rule::LogChain, "ss_seq", |image| {
        let geometry = image.geometry();
        let logs = image.logs();
        let newest = image.newest_log().block;
        let second = logs.windows(2).rfind(|pair| {
            pair[1].block != newest
                && geometry.segment_of(pair[0].block) == geometry.segment_of(pair[1].block)
        });
        image.edit_summary(second.unwrap()[1].block, |block| add(block, 16, 1));
    });
    expect_error(Rule::LogChain, "is also that of segment", |image| {
        // The segment before the newest log's takes its number.
        let newest = image.newest_log().header.seq;
        let logs = image.logs();
        for log in logs.iter().filter(|log| log.header.seq.plus(1) == newest) {
            image.edit_summary(log.block, |block| add(block, 16, 1));
        }
    });
}

#[test]
fn segment_usage() {
    for (field, at) in [("sh_ncleansegs", 0), ("sh_ndirtysegs", 8)] {
        expect_error(Rule::SegmentUsage, field, |image| {
            let header = image.data(Ino::SUFILE, 0);
            image.edit(header, |block| add(block, at, 1));
        });
    }
    expect(Severity::Warning, Rule::SegmentUsage, "sh_last_alloc", |image| {
        let header = image.data(Ino::SUFILE, 0);
        image.edit(header, |block| write(block, 16, 1 << 33));
    });
    let current = |image: &Image| image.geometry().segment_of(image.newest_log().block);
    let next = |image: &Image| image.geometry().segment_of(image.newest_log().header.next);
    for segment in [current, next] {
        expect_error(Rule::SegmentUsage, "not marked as in use", |image| {
            image.edit_usage(segment(image), |usage| usage[12] = 0);
        });
        expect_error(Rule::SegmentUsage, "su_nblocks is", |image| {
            image.edit_usage(segment(image), |usage| usage[8] ^= 1);
        });
    }
    expect_error(Rule::SegmentUsage, "but the segment has", |image| {
        image.edit_usage(next(image), |usage| usage[9] = 0xff);
    });
    // A segment with live blocks is called clean, then shorter than it is.
    let live = |image: &Image| image.geometry().segment_of(image.data(Ino::ROOT, 0).block);
    expect_error(Rule::Owner, "the segment of the block is not in use", |image| {
        image.edit_usage(live(image), |usage| usage.fill(0));
    });
    expect_error(Rule::DatEntry, "the segment of the block is not in use", |image| {
        image.edit_usage(live(image), |usage| usage.fill(0));
    });
    expect_error(Rule::Owner, "after the last log", |image| {
        image.edit_usage(live(image), |usage| usage[8..12].fill(0));
    });
    expect_error(Rule::Log, "blocks in use (su_nblocks)", |image| {
        image.edit_usage(live(image), |usage| usage[8] -= 1);
    });
}

#[test]
fn allocation_of_the_dat_and_the_ifile() {
    for file in [Ino::DAT, Ino::IFILE] {
        expect_error(Rule::Allocation, "counter of free entries of group 0", |image| {
            let descriptor = image.data(file, 0);
            image.edit(descriptor, |block| block[0] ^= 1);
        });
        expect_error(Rule::Allocation, "its block does not exist", |image| {
            let bitmap = image.data(file, 1);
            image.edit(bitmap, |block| *block.last_mut().unwrap() = 0x80);
        });
        expect_error(Rule::Allocation, "the reserved", |image| {
            let bitmap = image.data(file, 1);
            image.edit(bitmap, |block| block[0] &= !1);
        });
    }
}

#[test]
fn dat_entries() {
    let live = |image: &Image| vblock(image.data(Ino::ROOT, 0));
    expect_error(Rule::Pointer, "not allocated in the DAT", |image| {
        let vblock = live(image);
        let bitmap = image.data(Ino::DAT, 1);
        image.edit(bitmap, |block| block[vblock.0 as usize / 8] &= !(1 << (vblock.0 % 8)));
    });
    expect_error(Rule::Lifetime, "lives from checkpoint", |image| {
        let newest = image.newest().0;
        image.edit_dat(live(image), |entry| write(entry, DE_END, newest));
    });
    expect_error(Rule::DatEntry, "which cannot be", |image| {
        let newest = image.newest().0;
        image.edit_dat(live(image), |entry| write(entry, DE_START, newest + 1));
    });
    expect_error(Rule::DatEntry, "its fi_cno is", |image| {
        image.edit_dat(live(image), |entry| add(entry, DE_START, u64::MAX));
    });
    expect_error(Rule::Pointer, "outside of all segments", |image| {
        image.edit_dat(live(image), |entry| write(entry, 0, 1 << 40));
    });
    expect_error(Rule::DatEntry, "block 0", |image| {
        image.edit_dat(live(image), |entry| write(entry, 0, 0));
    });
    // The address of another block, then of a summary.
    expect_error(Rule::Owner, "its log says it is", |image| {
        let other = image.data(image.named("direct"), 1).block;
        image.edit_dat(live(image), |entry| write(entry, 0, other.0));
    });
    expect_error(Rule::DatEntry, "is not at its address", |image| {
        let log = image.data(image.named("direct"), 1).log;
        image.edit_dat(live(image), |entry| write(entry, 0, log.0));
    });
    // A block of an old checkpoint, wherever it is, must be where its entry says.
    expect_error(Rule::DatEntry, "needed) is not at its address", |image| {
        let tree = image.blocks_of(image.named("tree"));
        let snapshot = image.snapshots()[0];
        let ended = tree.iter().map(|found| vblock(*found)).find(|vblock| {
            let (found, at) = image.dat_entry(*vblock);
            let entry = &image.block(found.block)[at..];
            read(entry, DE_START) <= snapshot.0 && read(entry, DE_END) < image.newest().0
        });
        image.edit_dat(ended.unwrap(), |entry| add(entry, 0, 1));
    });
}

#[test]
fn leaked_blocks() {
    // An allocated entry that looks live, but that nothing uses.
    expect_error(Rule::Leak, "nothing uses it", |image| {
        let dead = image
            .blocks_of(Ino::SUFILE)
            .into_iter()
            .map(vblock)
            .find(|vblock| {
                let (found, at) = image.dat_entry(*vblock);
                read(&image.block(found.block)[at..], DE_END) != Cno::MAX.0
            })
            .unwrap();
        image.edit_dat(dead, |entry| write(entry, DE_END, Cno::MAX.0));
    });
}

#[test]
fn the_cpfile() {
    for (field, at) in [("ch_ncheckpoints", 0), ("ch_nsnapshots", 8)] {
        expect_error(Rule::Checkpoint, field, |image| {
            let header = image.data(Ino::CPFILE, 0);
            image.edit(header, |block| add(block, at, 1));
        });
    }
    for (field, at) in [("ch_snapshot_list.next", 16), ("ch_snapshot_list.prev", 24)] {
        expect_error(Rule::SnapshotList, field, |image| {
            let header = image.data(Ino::CPFILE, 0);
            image.edit(header, |block| add(block, at, 1));
        });
    }
    for (field, at) in [("ssl_next", 8), ("ssl_prev", 16)] {
        expect_error(Rule::SnapshotList, field, |image| {
            let last = image.snapshots()[1];
            image.edit_checkpoint(last, |entry| add(entry, at, 1));
        });
    }
    expect_error(Rule::Checkpoint, "cp_cno", |image| {
        let snapshot = image.snapshots()[0];
        image.edit_checkpoint(snapshot, |entry| add(entry, 24, 1));
    });
    for (field, at) in [("cp_inodes_count", 48), ("cp_blocks_count", 56)] {
        for (severity, feature) in [(Severity::Warning, 0), (Severity::Error, 1)] {
            expect(severity, Rule::CheckpointCounts, field, |image| {
                image.edit_checkpoint(image.newest(), |entry| add(entry, at, 1));
                image.edit_superblocks(|raw| raw.s_feature_compat_ro.set(feature));
            });
        }
    }
    expect_error(Rule::Inode, "i_mode", |image| {
        image.edit_checkpoint(image.newest(), |entry| entry[64 + 49] = 0);
    });
    expect_error(Rule::Checkpoint, "no valid entry", |image| {
        image.edit_checkpoint(image.newest(), |entry| entry[0] |= 2);
    });
    expect_error(Rule::Checkpoint, "a snapshot, but not valid", |image| {
        let snapshot = image.snapshots()[0];
        image.edit_checkpoint(snapshot, |entry| entry[0] |= 2);
    });
}

#[test]
fn the_count_of_checkpoints_in_a_block() {
    let mut image = Image::by_linux(1024);
    let second = image.data(Ino::CPFILE, 1);
    image.edit(second, |block| add(block, 0, 1 << 32));
    let report = image.check().unwrap();
    assert!(report.errors().any(|f| f.message.contains("cp_checkpoints_count")), "{report}");
}

#[test]
fn a_checkpoint_that_does_not_exist_yet() {
    let mut image = Image::by_linux(1024);
    let newest = image.newest();
    let newer = newest.plus(1);
    image.edit_checkpoint(newer, |entry| entry[0] = 0);
    let report = image.check().unwrap();
    let seen = report.errors().any(|finding| {
        finding.rule == Rule::Checkpoint && finding.message.contains("newest checkpoint is")
    });
    assert!(seen, "{report}");
    assert_eq!(report.newest, newest);
}

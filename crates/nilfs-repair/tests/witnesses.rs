//! What a damaged part of a volume has lost, or says wrongly, others know: nothing is lost by such damage,
//! in the present or in a snapshot.

mod support;

use nilfs_ondisk::dat::DAT_ENTRY_SIZE;
use nilfs_ondisk::palloc::Palloc;
use nilfs_ondisk::summary::BlockInfo;
use nilfs_ondisk::{FileBlock, Ino, SegNum};
use nilfs_repair::Risk;
use support::{BLOCK_SIZES, Image, LoggedBlock, Patient, add, heals, read, write};

/// Changes a number of eight bytes in the summary of the log of a block.
#[track_caller]
fn edit_summary(image: &mut Image, found: LoggedBlock, old: u64, new: u64) {
    image.edit_summary(found.log, |block| {
        let at = (64..block.len() - 8).step_by(8).find(|at| read(block, *at) == old);
        write(block, at.expect("the summary says so"), new);
    });
}

/// It was taken for right, and the directory lost all its names.
#[test]
fn a_summary_that_gives_a_block_to_another_file() {
    heals(|image| {
        let many = image.named("many");
        let found = image.data(many, 0);
        edit_summary(image, found, many.0, 1 << 40);
    });
}

/// The entry of the DAT was freed, because no log had a block with its number.
#[test]
fn a_summary_that_gives_a_block_another_virtual_number() {
    heals(|image| {
        let found = image.data(image.named("many"), 0);
        edit_summary(image, found, support::vblock(found).0, 1 << 40);
    });
}

/// An older version of the block was taken, and files were as they had been before, without a word.
#[test]
fn a_summary_that_gives_a_block_of_the_dat_another_place() {
    for block_size in BLOCK_SIZES {
        let image = Image::by_linux(block_size);
        let entries = Palloc::new(image.geometry().block_size, DAT_ENTRY_SIZE).entry(0).block;
        let blocks = image.blocks_of(Ino::DAT);
        let versions = blocks.iter().filter(|found| is_at(found, entries));
        assert!(versions.count() > 1, "there is an older version");
        let mut damaged = image.clone();
        let found = image.data(Ino::DAT, entries.0);
        damaged.edit_summary(found.log, |block| {
            // The DAT is the last file of a log.
            let at = (64..block.len() - 8).step_by(8).rfind(|at| read(block, *at) == entries.0);
            write(block, at.expect("the summary says so"), 1 << 40);
        });
        Patient::new(damaged).is_healed(Risk::Safe);
    }
}

fn is_at(found: &LoggedBlock, place: FileBlock) -> bool {
    matches!(found.info, BlockInfo::DatData { offset } if offset == place)
}

/// The blocks below were taken for leaked, and the file for one with holes.
#[test]
fn nodes_that_have_lost_entries() {
    let loses = |image: &mut Image, node: LoggedBlock| image.edit(node, |block| block[2] -= 2);
    heals(|image| loses(image, image.node(image.named("tree"))));
    // That of larger blocks needs no node.
    let mut image = Image::by_linux(1024);
    let node = image.node(Ino::IFILE);
    loses(&mut image, node);
    Patient::new(image).is_healed(Risk::Safe);
}

/// Nothing was known that could be done.
#[test]
fn a_length_of_a_segment_that_no_segment_has() {
    heals(|image| {
        let segment = image.geometry().segment_of(image.data(Ino::ROOT, 0).block);
        image.edit_usage(segment, |usage| usage[11] = 0x7f);
    });
    heals(|image| {
        let newest = image.newest_log();
        let next: SegNum = image.geometry().segment_of(newest.header.next);
        image.edit_usage(next, |usage| usage[11] = 0x7f);
    });
}

/// Nothing was known that could be done.
#[test]
fn counts_of_blocks_and_modes_of_metadata_files() {
    for nth in 0..3 {
        heals(|image| {
            let root = image.super_root();
            image.edit(root, |block| add(block, 16 + nth * 128, 1 << 20));
        });
    }
    heals(|image| image.edit_checkpoint(image.newest(), |entry| add(entry, 64, 1 << 20)));
    heals(|image| image.edit_checkpoint(image.newest(), |entry| entry[64 + 49] ^= 0xf0));
}

/// The newest checkpoint was given up.
#[test]
fn the_summary_of_the_newest_log() {
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        let newest = image.newest_log().block;
        // The number of blocks of the first file.
        image.edit_summary(newest, |block| block[64 + 16..64 + 20].fill(0xff));
        Patient::new(image).is_healed(Risk::Safe);
    }
}

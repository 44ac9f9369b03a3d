//! Metadata that follows from the rest of the volume: each field of it can be wrong, and is put right
//! without any file being lost, in the present or in a snapshot.

mod support;

use nilfs_ondisk::{Cno, Ino, SegNum};
use support::{Image, LoggedBlock, add, heals, read, vblock, write};

const DE_START: usize = 8;
const DE_END: usize = 16;

fn live(image: &Image) -> LoggedBlock {
    image.data(Ino::ROOT, 0)
}

fn current(image: &Image) -> SegNum {
    image.geometry().segment_of(image.newest_log().block)
}

fn next(image: &Image) -> SegNum {
    image.geometry().segment_of(image.newest_log().header.next)
}

#[test]
fn counters_of_the_sufile() {
    for at in [0, 8] {
        heals(|image| {
            let header = image.data(Ino::SUFILE, 0);
            image.edit(header, |block| add(block, at, 1));
        });
    }
    heals(|image| {
        let header = image.data(Ino::SUFILE, 0);
        image.edit(header, |block| write(block, 16, 1 << 33));
    });
}

#[test]
fn segments_of_the_log_that_are_not_in_use() {
    for segment in [current, next] {
        heals(|image| image.edit_usage(segment(image), |usage| usage[12] = 0));
        heals(|image| image.edit_usage(segment(image), |usage| usage[8] ^= 1));
    }
    heals(|image| image.edit_usage(next(image), |usage| usage[9] = 0xff));
}

#[test]
fn segments_with_live_blocks_that_are_clean_or_too_short() {
    let segment = |image: &Image| image.geometry().segment_of(live(image).block);
    heals(|image| image.edit_usage(segment(image), |usage| usage.fill(0)));
    heals(|image| image.edit_usage(segment(image), |usage| usage[8..12].fill(0)));
    heals(|image| image.edit_usage(segment(image), |usage| usage[8] -= 1));
}

#[test]
fn allocation_of_the_dat_and_the_ifile() {
    for file in [Ino::DAT, Ino::IFILE] {
        heals(|image| {
            let descriptor = image.data(file, 0);
            image.edit(descriptor, |block| block[0] ^= 1);
        });
        heals(|image| {
            let bitmap = image.data(file, 1);
            image.edit(bitmap, |block| *block.last_mut().unwrap() = 0x80);
        });
        heals(|image| {
            let bitmap = image.data(file, 1);
            image.edit(bitmap, |block| block[0] &= !1);
        });
    }
}

#[test]
fn entries_of_the_dat() {
    heals(|image| {
        let vblock = vblock(live(image));
        let bitmap = image.data(Ino::DAT, 1);
        image.edit(bitmap, |block| block[vblock.0 as usize / 8] &= !(1 << (vblock.0 % 8)));
    });
    heals(|image| {
        let newest = image.newest().0;
        image.edit_dat(vblock(live(image)), |entry| write(entry, DE_END, newest));
    });
    heals(|image| {
        image.edit_dat(vblock(live(image)), |entry| add(entry, DE_START, u64::MAX));
    });
}

#[test]
fn blocks_that_nothing_uses() {
    heals(|image| {
        let dead = image.blocks_of(Ino::SUFILE).into_iter().map(vblock).find(|vblock| {
            let (found, at) = image.dat_entry(*vblock);
            read(&image.block(found.block)[at..], DE_END) != Cno::MAX.0
        });
        image.edit_dat(dead.unwrap(), |entry| write(entry, DE_END, Cno::MAX.0));
    });
}

#[test]
fn counters_and_lists_of_the_cpfile() {
    for at in [0, 8, 16, 24] {
        heals(|image| {
            let header = image.data(Ino::CPFILE, 0);
            image.edit(header, |block| add(block, at, 1));
        });
    }
    for at in [8, 16] {
        heals(|image| {
            let last = image.snapshots()[1];
            image.edit_checkpoint(last, |entry| add(entry, at, 1));
        });
    }
    heals(|image| {
        let snapshot = image.snapshots()[0];
        image.edit_checkpoint(snapshot, |entry| add(entry, 24, 1));
    });
    heals(|image| {
        let newer = image.newest().plus(1);
        image.edit_checkpoint(newer, |entry| entry[0] = 0);
    });
    heals(|image| image.edit_checkpoint(image.newest(), |entry| entry[0] |= 2));
}

#[test]
fn counts_of_a_checkpoint() {
    for at in [48, 56] {
        heals(|image| {
            image.edit_checkpoint(image.newest(), |entry| add(entry, at, 1));
            image.edit_superblocks(|raw| raw.s_feature_compat_ro.set(1));
        });
    }
}

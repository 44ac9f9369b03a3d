//! The past as Linux keeps it: snapshots, deleted checkpoints, and what Linux's cleaner has moved.
//! Every checkpoint that is left shows the same in ours, whichever of the two wrote, cleaned and
//! wrote again.

use std::collections::BTreeMap;

use nilfs_real_kernels::{Fill, LinuxImage};

use crate::ours::{Image, assert_same, scale};
use crate::past::{agreed, in_linux, listed_by_us, snapshots, work_of_ours};

fn history(block_size: u32) {
    let fill = |seed| Fill { seed: seed + u64::from(block_size), scale: scale() };
    let Fill { seed, scale } = fill(1);
    let made = LinuxImage::of_size(1 << 30).block_size(block_size).blocks_per_segment(256);
    let image = Image::of_linux(&made);

    let script = format!(
        "mkdir $MNT/tree; fill populate --seed {seed} --scale {scale} $MNT/tree; mkcp -s $DEV
         for time in 1 2 3; do head -c 5000000 /dev/urandom >$MNT/churn; sync; done
         fill modify --seed {seed} --scale {scale} $MNT/tree; mkcp -s $DEV
         rm -r $MNT/tree/sizes; mkcp $DEV; deleted=$(newest)
         for time in 1 2 3; do head -c 5000000 /dev/urandom >$MNT/churn; sync; done
         rmcp $DEV $deleted
         clean
         echo new >$MNT/tree/new; sync; rm -r $MNT/tree/wide"
    );
    in_linux(&image, &script);
    assert_eq!(snapshots(&listed_by_us(&image)), 2);
    let shown = agreed("Linux has cleaned", &image, &BTreeMap::new());

    work_of_ours(&image, fill(2), "large", "more");
    let shown = agreed("we have worked on it", &image, &shown);

    in_linux(&image, "clean");
    assert_eq!(snapshots(&listed_by_us(&image)), 2);
    let newest = shown.last_key_value().unwrap().1.clone();
    let shown = agreed("Linux has cleaned after us", &image, &shown);
    assert_same("the newest before and after", &newest, shown.last_key_value().unwrap().1);

    work_of_ours(&image, fill(3), "more", "again");
    agreed("we have worked on it again", &image, &shown);
}

#[test]
fn the_past_with_blocks_of_4_kib_stays_as_it_was() {
    history(4096);
}

#[test]
fn the_past_with_blocks_of_1_kib_stays_as_it_was() {
    history(1024);
}

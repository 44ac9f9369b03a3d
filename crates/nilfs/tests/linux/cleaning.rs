//! What our cleaner leaves: Linux mounts it with nothing to complain of, sees every checkpoint and
//! snapshot that is left as it was, cleans on, and gives it back to us.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use nilfs_device::{Access, FileDevice};
use nilfs_engine::{Amount, Filesystem, ManualRun, MountOptions};
use nilfs_real_kernels::{Fill, LinuxImage};

use crate::ours::{Image, assert_same, scale};
use crate::past::{agreed, in_linux, listed_by_us, snapshots, work_of_ours};

/// Cleans all there is to clean. Returns the number of segments that became clean, and of
/// checkpoints that were given up.
fn cleaned_by_us(image: &Image, protection: Duration) -> (u64, u64) {
    let device = Arc::new(FileDevice::open(&image.path(), Access::ReadWrite).unwrap());
    let fs = Filesystem::mount(device, MountOptions::default()).unwrap();
    let run = ManualRun {
        protection: Some(protection),
        min_reclaimable: Some(Amount::Count(1)),
        ..ManualRun::default()
    };
    let freed = fs.clean(&run).unwrap();
    let totals = fs.status().cleaner;
    assert_eq!(totals.segments_skipped, 0, "no segment is damaged");
    fs.unmount().unwrap();
    (freed, totals.checkpoints_deleted)
}

/// Changes files all over the volume, so that every segment loses some of its blocks.
fn wear(image: &Image, round: u8) {
    let mounted = image.mount("rw");
    for entry in fs::read_dir(mounted.join("tree/wear")).unwrap() {
        let path = entry.unwrap().path();
        let mut content = fs::read(&path).unwrap();
        content.iter_mut().step_by(20_000).for_each(|byte| *byte = byte.wrapping_add(round));
        fs::write(&path, content).unwrap();
    }
    mounted.unmount();
}

fn cleaning(block_size: u32) {
    let fill = |seed| Fill { seed: seed + u64::from(block_size), scale: scale() };
    let Fill { seed, scale } = fill(1);
    let made = LinuxImage::of_size(512 << 20).block_size(block_size).blocks_per_segment(256);
    let image = Image::of_linux(&made);
    let script = format!(
        "mkdir $MNT/tree; fill populate --seed {seed} --scale {scale} $MNT/tree; mkcp -s $DEV
         mkdir $MNT/tree/wear
         for nth in 1 2 3 4 5; do head -c 1000000 /dev/urandom >$MNT/tree/wear/$nth; sync; done
         fill modify --seed {seed} --scale {scale} $MNT/tree; mkcp -s $DEV
         rm -r $MNT/tree/sizes; sync"
    );
    in_linux(&image, &script);
    let shown = agreed("Linux has filled it", &image, &BTreeMap::new());
    let newest = shown.last_key_value().unwrap().1.clone();

    cleaned_by_us(&image, Duration::from_secs(3600));
    assert_eq!(shown.len(), agreed("all is young", &image, &shown).len());
    let mut freed = 0;
    for round in 1..4 {
        wear(&image, round);
        freed += cleaned_by_us(&image, Duration::ZERO).0;
        image.check();
    }
    assert!(freed > 10, "{freed} segments became clean");
    assert_eq!(snapshots(&listed_by_us(&image)), 2);
    let shown = agreed("we have cleaned", &image, &shown);

    let churn = "for time in 1 2 3; do head -c 5000000 /dev/urandom >$MNT/churn; sync; done";
    in_linux(&image, &format!("echo new >$MNT/tree/new; rm -r $MNT/tree/wide; {churn}; clean"));
    assert_eq!(snapshots(&listed_by_us(&image)), 2);
    let shown = agreed("Linux has cleaned after us", &image, &shown);

    work_of_ours(&image, fill(2), "large", "more");
    let (freed, deleted) = cleaned_by_us(&image, Duration::ZERO);
    assert!(freed > 0 && deleted > 0, "{freed} segments became clean, {deleted} checkpoints went");
    let again = agreed("we have cleaned after Linux", &image, &shown);
    let last = again.last_key_value().unwrap().1.clone();

    in_linux(&image, &format!("{churn}; clean"));
    let end = agreed("Linux has cleaned again", &image, &again);
    assert_same("the newest, only cleaned", &last, end.last_key_value().unwrap().1);
    assert_ne!(newest.to_string(), last.to_string(), "something has happened");
}

#[test]
fn blocks_of_4_kib() {
    cleaning(4096);
}

#[test]
fn blocks_of_1_kib() {
    cleaning(1024);
}

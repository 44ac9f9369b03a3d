//! What was purged from a volume of Linux' own is gone for Linux, too: it shows every checkpoint that is
//! left as we do, works on, and its cleaner loses nothing.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use nilfs_real_kernels::{Fill, LinuxImage, Manifest};
use serde_json::Value;

use crate::ours::{Image, assert_same, scale};
use crate::past::{agreed, in_linux};

const SECRET: &str = "the secret that nobody may ever find again";

/// In how many places the secret lies on the device.
fn traces(image: &Image) -> usize {
    let bytes = fs::read(image.path()).unwrap();
    bytes.windows(SECRET.len()).filter(|window| *window == SECRET.as_bytes()).count()
}

/// A directory that Linux has filled, snapshotted, renamed and cleaned around, and then deleted.
fn purged_directory(block_size: u32) {
    let Fill { seed, scale } = Fill { seed: u64::from(block_size), scale: scale() };
    let made = LinuxImage::of_size(256 << 20).block_size(block_size).blocks_per_segment(256);
    let image = Image::of_linux(&made);
    let churn = "for time in 1 2 3; do head -c 5000000 /dev/urandom >$MNT/churn; sync; done";
    in_linux(
        &image,
        &format!(
            "secrets() {{ for nth in $(seq 200); do echo '{SECRET}'; done; }}
             mkdir -p $MNT/tree/keys/old
             fill populate --seed {seed} --scale {scale} $MNT/tree; mkcp $DEV
             secrets >$MNT/tree/keys/a; secrets >$MNT/tree/keys/old/b; mkcp -s $DEV
             secrets >>$MNT/tree/keys/a; mv $MNT/tree/keys/old $MNT/tree/keys/new; {churn}; clean
             fill modify --seed {seed} --scale {scale} $MNT/tree
             mv $MNT/tree/keys/new/b $MNT/tree/keys/c; mkcp $DEV
             secrets >$MNT/tree/keys/save; mv $MNT/tree/keys/save $MNT/tree/keys/a; sync
             rm -r $MNT/tree/keys; sync"
        ),
    );
    let shown = agreed("Linux has worked on it", &image, &BTreeMap::new());
    let (newest, present) = shown.last_key_value().unwrap();
    assert!(traces(&image) >= 800, "it is everywhere");

    let mut nilfs = Command::new(env!("CARGO_BIN_EXE_nilfs"));
    nilfs.args(["purge", "-y", "--json"]).arg(image.path()).arg("tree/keys");
    let output = nilfs.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&said["left"], &said["present_bytes"]), (&0.into(), &0.into()), "{said}");
    assert!(said["deleted"].as_u64().unwrap() >= 3, "{said}");
    assert_eq!(traces(&image), 0, "{said}");

    let left = agreed("a directory was purged", &image, &BTreeMap::new());
    for (number, tree) in &left {
        let before = shown.get(number).filter(|_| number <= newest).unwrap_or(present);
        assert_same(&format!("checkpoint {number}"), before, tree);
    }
    in_linux(
        &image,
        &format!(
            "rm -r $MNT/tree/wide; cp -a $MNT/tree/sizes $MNT/tree/copy; mkcp -s $DEV; {churn}"
        ),
    );
    let worked = agreed("Linux has worked on", &image, &BTreeMap::new());
    in_linux(&image, "clean");
    let cleaned = agreed("Linux has cleaned", &image, &worked);
    let newest = |shown: &BTreeMap<u64, Manifest>| shown.last_key_value().unwrap().1.clone();
    assert_same("cleaned", &newest(&worked), &newest(&cleaned));
    assert_eq!(traces(&image), 0);
}

#[test]
fn of_a_volume_with_blocks_of_4_kib() {
    purged_directory(4096);
}

#[test]
fn of_a_volume_with_blocks_of_1_kib() {
    purged_directory(1024);
}

//! Names and notes of snapshots lie in a file of the volume that no name leads to. Linux mounts such
//! a volume, writes and cleans it, its tools have nothing to complain of, and the names are there
//! afterwards.

use std::collections::BTreeMap;

use nilfs_real_kernels::{LinuxImage, NilfsUtils};
use serde_json::Value;

use crate::ours::Image;
use crate::past::{agreed, in_linux};

/// Number, name and note of every snapshot, as we list them.
fn named(image: &Image) -> Vec<(u64, String, String)> {
    let list: Vec<Value> =
        serde_json::from_str(&image.nilfs(&["snapshot", "list", "--json"])).unwrap();
    let text = |entry: &Value, field: &str| entry[field].as_str().unwrap_or_default().to_owned();
    let number = |entry: &Value| entry["checkpoint"].as_u64().unwrap();
    list.iter().map(|it| (number(it), text(it, "name"), text(it, "note"))).collect()
}

fn names_outlast_linux(block_size: u32) {
    let made = LinuxImage::of_size(256 << 20).block_size(block_size).blocks_per_segment(256);
    let image = Image::of_linux(&made);
    let churn = "for time in 1 2 3; do head -c 5000000 /dev/urandom >$MNT/churn; sync; done";
    in_linux(&image, &format!("mkdir $MNT/tree; echo old >$MNT/tree/file; {churn}"));
    let long = "x".repeat(1000);
    image.nilfs(&["snapshot", "create", "-m", "first", "--note", &long]);
    for nth in 0..30 {
        let name = format!("number-{nth}");
        image.nilfs(&["snapshot", "create", "-m", &name, "--note", &long]);
    }
    image.check();
    let before = named(&image);
    assert_eq!(before.len(), 31);
    let shown = agreed("named", &image, &BTreeMap::new());

    // Linux lets go of one, whose name nobody may find any more.
    let gone = before[7].0;
    let script = format!("chcp cp $DEV {gone}; echo new >$MNT/tree/new; {churn}; clean; {churn}");
    in_linux(&image, &script);
    let mut expected = before;
    expected.remove(7);
    assert_eq!(named(&image), expected);
    agreed("Linux has cleaned", &image, &shown);
    let utils = NilfsUtils::read(&image.path()).unwrap();
    assert_eq!(utils.complaints(), Vec::<String>::new());

    image.nilfs(&["snapshot", "create", "-m", "number-6"]);
    assert_eq!(named(&image).last().unwrap().1, "number-6", "the name was free");
    in_linux(&image, "clean");
    assert_eq!(named(&image).len(), 31);
    image.check();
}

#[test]
fn names_with_blocks_of_4_kib_outlast_linux() {
    names_outlast_linux(4096);
}

#[test]
fn names_with_blocks_of_1_kib_outlast_linux() {
    names_outlast_linux(1024);
}

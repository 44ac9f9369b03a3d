//! A volume that was rolled back is one of Linux' own: it shows every checkpoint as we do, works on in
//! files whose blocks have come back to life, and its cleaner loses nothing, whoever cleans first.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use nilfs_device::{Access, FileDevice};
use nilfs_engine::{Amount, Filesystem, ManualRun, MountOptions};
use nilfs_real_kernels::{Fill, LinuxImage, Manifest};
use serde_json::Value;

use crate::ours::{Image, assert_same, scale};
use crate::past::{agreed, in_linux, listed_by_us, snapshots, work_of_ours};

/// Rolls a volume, mounted or not, or a path on it back. Returns what the command has said.
#[track_caller]
fn roll_back(to: u64, place: &Path, path: &str) -> Value {
    let mut nilfs = Command::new(env!("CARGO_BIN_EXE_nilfs"));
    nilfs.args(["rollback", "--json", &to.to_string()]).arg(place);
    if !path.is_empty() {
        nilfs.arg(path);
    }
    let output = nilfs.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Cleans all there is to clean, whatever is young.
fn cleaned_by_us(image: &Image) {
    let device = Arc::new(FileDevice::open(&image.path(), Access::ReadWrite).unwrap());
    let fs = Filesystem::mount(device, MountOptions::default()).unwrap();
    let run = ManualRun {
        protection: Some(Duration::ZERO),
        min_reclaimable: Some(Amount::Count(1)),
        ..ManualRun::default()
    };
    assert!(fs.clean(&run).unwrap() > 0, "there is something to clean");
    assert_eq!(fs.status().cleaner.segments_skipped, 0, "no segment is damaged");
    fs.unmount().unwrap();
}

fn newest(shown: &BTreeMap<u64, Manifest>) -> &Manifest {
    shown.last_key_value().unwrap().1
}

fn rolled_back(block_size: u32) {
    let fill = |seed| Fill { seed: seed + u64::from(block_size), scale: scale() };
    let Fill { seed, scale } = fill(1);
    let made = LinuxImage::of_size(1 << 30).block_size(block_size).blocks_per_segment(256);
    let image = Image::of_linux(&made);
    let churn = "for time in 1 2 3; do head -c 5000000 /dev/urandom >$MNT/churn; sync; done";
    in_linux(
        &image,
        &format!(
            "mkdir $MNT/tree; fill populate --seed {seed} --scale {scale} $MNT/tree; mkcp -s $DEV
             fill modify --seed {seed} --scale {scale} $MNT/tree; {churn}
             rm -r $MNT/tree/sizes; echo new >$MNT/tree/new; sync"
        ),
    );
    let to = listed_by_us(&image).iter().find(|(_, snapshot, ..)| *snapshot).unwrap().0;
    let shown = agreed("Linux has worked on it", &image, &BTreeMap::new());
    let (then, before) = (shown[&to].clone(), newest(&shown).clone());
    assert!(!Manifest::diff(&then, &before).is_empty(), "much has changed");

    // Not mounted, everything.
    let said = roll_back(to, &image.path(), "");
    assert!(said["revived_blocks"].as_u64().unwrap() > 100, "{said}");
    let kept = said["snapshot"].as_u64().unwrap();
    let shown = agreed("it was rolled back", &image, &shown);
    assert_same("as it was", &then, newest(&shown));
    assert_same("the state before", &before, &shown[&kept]);

    // The snapshot goes, so that nothing but the present keeps the blocks that have come back.
    in_linux(&image, &format!("chcp cp $DEV {to}; {churn}; clean"));
    let shown = agreed("Linux has cleaned", &image, &shown);
    assert_same("cleaned by Linux", &then, newest(&shown));
    assert_same("the state before, cleaned by Linux", &before, &shown[&kept]);

    // Linux ends the lives that were prolonged, and cleans again.
    in_linux(
        &image,
        &format!(
            "fill modify --seed {seed} --scale {scale} $MNT/tree; mkcp -s $DEV; {churn}; clean"
        ),
    );
    let shown = agreed("Linux has worked on, and cleaned", &image, &shown);
    let worked = newest(&shown).clone();
    assert_eq!(snapshots(&listed_by_us(&image)), 2);

    // Mounted, one directory, and back again.
    let mounted = image.mount("rw");
    let of_files = Manifest::of(&mounted.join("tree/files")).ok();
    fs::remove_dir_all(mounted.join("tree")).unwrap();
    fs::create_dir(mounted.join("tree")).unwrap();
    fs::write(mounted.join("tree/other"), "other").unwrap();
    let at = listed_by_us(&image).last().unwrap().0;
    let said = roll_back(at, &mounted.join("tree"), "");
    assert!(said["checkpoint"].is_u64(), "{said}");
    assert_same("the directory is back", &worked, &mounted.manifest("tree"));
    assert_eq!(Manifest::of(&mounted.join("tree/files")).ok(), of_files);
    mounted.unmount();
    let shown = agreed("a directory was rolled back", &image, &shown);
    cleaned_by_us(&image);
    let shown = agreed("we have cleaned", &image, &shown);
    assert_same("cleaned by us", &worked, newest(&shown));
    roll_back(kept, &image.path(), "");
    in_linux(&image, &format!("{churn}; clean"));
    let shown = agreed("it was rolled back again, and Linux has cleaned", &image, &shown);
    assert_same("the state before all", &before, newest(&shown));
    work_of_ours(&image, fill(2), "wide", "more");
    let shown = agreed("we have worked on it", &image, &shown);

    let mounted = image.mount("rw");
    fs::remove_file(mounted.join("tree/new")).unwrap();
    let present = mounted.manifest("tree");
    mounted.unmount();
    let mut nilfs = Command::new(env!("CARGO_BIN_EXE_nilfs"));
    nilfs.args(["purge", "-y", "--json"]).arg(image.path()).arg("tree/new");
    let output = nilfs.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["left"], 0, "{said}");
    let shown = agreed("a file was purged", &image, &shown);
    assert_same("purged", &present, newest(&shown));
}

#[test]
fn a_volume_with_blocks_of_4_kib() {
    rolled_back(4096);
}

#[test]
fn a_volume_with_blocks_of_1_kib() {
    rolled_back(1024);
}

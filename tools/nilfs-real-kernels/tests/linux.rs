//! A real Linux fills, changes, lists and recovers an image.

use std::path::PathBuf;

use nilfs_real_kernels::{CrashWorkload, Fill, LinuxImage, Manifest, NilfsUtils, linux};
use tempfile::TempDir;

/// An image in a directory that goes away with the test.
fn image(image: &LinuxImage) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volume.img");
    image.make(&path).unwrap();
    (directory, path)
}

#[track_caller]
fn assert_same(first: &Manifest, second: &Manifest) {
    let differences = Manifest::diff(first, second);
    assert!(differences.is_empty(), "{} differences: {:#?}", differences.len(), differences);
}

/// Linux's nilfs2 and the host's file system hold the same tree, across unmounts.
fn linux_agrees_with_the_host(block_size: u32) {
    let fill = Fill { seed: u64::from(block_size), scale: 2 };
    let host = tempfile::tempdir().unwrap();
    let (_directory, image) = image(&LinuxImage::of_size(1 << 30).block_size(block_size));

    fill.populate(host.path()).unwrap();
    assert_same(&Manifest::of(host.path()).unwrap(), &linux::populate(&image, fill).unwrap());
    fill.modify(host.path()).unwrap();
    let modified = linux::modify(&image, fill).unwrap();
    assert_same(&Manifest::of(host.path()).unwrap(), &modified);
    assert_same(&modified, &linux::manifest(&image).unwrap());
}

#[test]
fn linux_agrees_with_the_host_on_blocks_of_1_kib() {
    linux_agrees_with_the_host(1024);
}

#[test]
fn linux_agrees_with_the_host_on_blocks_of_2_kib() {
    linux_agrees_with_the_host(2048);
}

#[test]
fn linux_agrees_with_the_host_on_blocks_of_4_kib() {
    linux_agrees_with_the_host(4096);
}

#[test]
fn linux_keeps_what_was_synced_when_its_power_is_cut() {
    let (directory, image) = image(&LinuxImage::of_size(2 << 30).blocks_per_segment(256));
    let log = directory.path().join("synced");
    let workload = CrashWorkload { seed: 1, strict: false };
    linux::crash(&image, workload, &log, 200).unwrap();
    let recovered = linux::recover(&image, &log).unwrap();
    assert!(recovered.checked >= 20, "only {} paths checked", recovered.checked);
    assert!(!recovered.kernel_log.recovery().is_empty(), "the volume was clean");
    // Recovered once, it is clean.
    assert_eq!(NilfsUtils::read(&image).unwrap().complaints(), [""; 0]);
}

#[test]
fn nilfs_utils_read_what_linux_left() {
    let (_directory, image) = image(&LinuxImage::of_size(256 << 20).block_size(1024));
    linux::populate(&image, Fill { seed: 1, scale: 1 }).unwrap();
    let utils = NilfsUtils::read(&image).unwrap();
    assert_eq!(utils.complaints(), [""; 0]);
    assert!(
        utils.nilfs_tune.stdout.contains("Block size:\t\t  1024"),
        "{}",
        utils.nilfs_tune.stdout
    );
    assert!(utils.lscp.stdout.lines().count() >= 3, "{}", utils.lscp.stdout);
    assert!(utils.lssu.stdout.lines().any(|line| line.contains(" ad-")), "{}", utils.lssu.stdout);
    assert!(utils.dumpseg.stdout.contains("segnum = 0"), "{}", utils.dumpseg.stdout);
}

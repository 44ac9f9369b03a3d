//! What counts most: a real Linux works on our volumes and we on its, in turns, and both see
//! the same tree each time. `NILFS_TEST_SCALE` makes the tree larger.

use std::fs;
use std::path::Path;

use nilfs_real_kernels::{Fill, LinuxImage, Manifest, NilfsUtils, linux};

use crate::ours::{Image, assert_same, scale};

fn fill(seed: u32) -> Fill {
    Fill { seed: u64::from(seed), scale: scale() }
}

/// What the tree looks like on the host's file system, before and after the filler's changes.
fn truth(fill: Fill) -> [Manifest; 2] {
    let host = tempfile::tempdir().unwrap();
    fill.populate(host.path()).unwrap();
    let populated = Manifest::of(host.path()).unwrap();
    fill.modify(host.path()).unwrap();
    [populated, Manifest::of(host.path()).unwrap()]
}

/// We mount the volume, work on its directory `tree`, and leave it; all must be well then.
#[track_caller]
fn with_ours(image: &Image, work: impl FnOnce(&Path)) -> Manifest {
    let mounted = image.mount("rw");
    let tree = mounted.join("tree");
    work(&tree);
    let seen = mounted.manifest("tree");
    mounted.unmount();
    image.check();
    seen
}

/// Linux mounts the volume for writing, lists the tree, and leaves the volume; its tools and our
/// checker have nothing to complain of then.
#[track_caller]
fn seen_by_linux(image: &Image) -> Manifest {
    let seen = linux::manifest(&image.path()).unwrap();
    assert_eq!(NilfsUtils::read(&image.path()).unwrap().complaints(), [""; 0]);
    image.check();
    seen
}

fn ours_goes_to_linux_and_back(block_size: u32) {
    let (first, second) = (fill(block_size), fill(block_size + 1));
    let [populated, modified] = truth(first);
    let image = Image::ours(&format!("--size 4G -b {block_size}"));

    let ours = with_ours(&image, |tree| {
        fs::create_dir(tree).unwrap();
        first.populate(tree).unwrap();
    });
    assert_same("we filled the volume", &populated, &ours);
    assert_same("Linux mounts it", &populated, &seen_by_linux(&image));

    assert_same("Linux changed it", &modified, &linux::modify(&image.path(), first).unwrap());
    image.check();
    assert_same("it is back", &modified, &with_ours(&image, |_| {}));

    let [_, modified] = truth(second);
    let ours = with_ours(&image, |tree| {
        fs::remove_dir_all(tree).unwrap();
        fs::create_dir(tree).unwrap();
        second.populate(tree).unwrap();
        second.modify(tree).unwrap();
    });
    assert_same("we replaced the tree", &modified, &ours);
    assert_same("Linux sees it", &modified, &seen_by_linux(&image));
}

#[test]
fn our_volume_with_blocks_of_4_kib_goes_to_linux_and_back() {
    ours_goes_to_linux_and_back(4096);
}

#[test]
fn our_volume_with_blocks_of_2_kib_goes_to_linux_and_back() {
    ours_goes_to_linux_and_back(2048);
}

#[test]
fn our_volume_with_blocks_of_1_kib_goes_to_linux_and_back() {
    ours_goes_to_linux_and_back(1024);
}

fn linux_comes_to_ours_and_goes_back(block_size: u32) {
    let first = fill(block_size + 2);
    let [populated, modified] = truth(first);
    let image = Image::of_linux(&LinuxImage::of_size(4 << 30).block_size(block_size));

    linux::populate(&image.path(), first).unwrap();
    image.check();
    assert_same("Linux filled the volume", &populated, &with_ours(&image, |_| {}));
    let ours = with_ours(&image, |tree| first.modify(tree).unwrap());
    assert_same("we changed it", &modified, &ours);
    assert_same("Linux sees it", &modified, &seen_by_linux(&image));
}

#[test]
fn a_volume_of_linux_with_blocks_of_4_kib_comes_to_us_and_goes_back() {
    linux_comes_to_ours_and_goes_back(4096);
}

#[test]
fn a_volume_of_linux_with_blocks_of_2_kib_comes_to_us_and_goes_back() {
    linux_comes_to_ours_and_goes_back(2048);
}

#[test]
fn a_volume_of_linux_with_blocks_of_1_kib_comes_to_us_and_goes_back() {
    linux_comes_to_ours_and_goes_back(1024);
}

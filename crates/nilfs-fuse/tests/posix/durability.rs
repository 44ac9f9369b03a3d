//! What a power cut cannot take. The volume is looked at as it is on the device at the moment when
//! a call returns.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nilfs_engine::tree::File as FileOfTree;
use nilfs_engine::{Error, Tree};
use rustix::fs::{IFlags, OFlags};

use crate::client;
use crate::content::Mapping;
use crate::support::{Settings, World, chmod, open};

fn find(tree: &Tree, path: &str) -> Result<FileOfTree, Error> {
    path.split('/').try_fold(tree.root()?, |dir, name| tree.lookup(&dir, name.as_bytes()))
}

fn content(tree: &Tree, path: &str) -> Vec<u8> {
    let file = find(tree, path).unwrap();
    let mut content = vec![0; file.size() as usize];
    tree.read(&file, 0, &mut content).unwrap();
    content
}

#[test]
fn fsync_of_a_new_file_keeps_it_with_the_names_that_lead_to_it() {
    let world = World::new();
    world.directory("a");
    world.directory("a/b");
    let mut file = File::create(world.path("a/b/file")).unwrap();
    file.write_all(&[7; 10_000]).unwrap();
    file.sync_all().unwrap();
    assert_eq!(content(&world.after_power_cut(), "a/b/file"), vec![7; 10_000]);
}

#[test]
fn fdatasync_keeps_an_overwrite_and_a_longer_file() {
    let world = World::new();
    let path = world.file("file", [1; 8192]);
    let mut file = open(&path, OFlags::APPEND).unwrap();
    file.sync_all().unwrap();
    let other = open(&path, OFlags::empty()).unwrap();
    other.write_all_at(&[2; 4096], 0).unwrap();
    other.sync_data().unwrap();
    assert_eq!(content(&world.after_power_cut(), "file")[..4096], [2; 4096]);
    file.write_all(&[3; 4096]).unwrap();
    file.sync_data().unwrap();
    assert_eq!(content(&world.after_power_cut(), "file")[8192..], [3; 4096]);
}

#[test]
fn fsync_keeps_a_rename_a_link_and_a_mode() {
    let world = World::new();
    let path = world.file("file", "content");
    File::open(&path).unwrap().sync_all().unwrap();
    fs::rename(&path, world.path("renamed")).unwrap();
    fs::hard_link(world.path("renamed"), world.path("link")).unwrap();
    chmod(&world.path("link"), 0o4711);
    File::open(world.path("link")).unwrap().sync_all().unwrap();
    let cut = world.after_power_cut();
    assert!(matches!(find(&cut, "file"), Err(Error::NotFound)));
    assert_eq!(content(&cut, "renamed"), b"content");
    let attr = find(&cut, "link").unwrap().attr();
    assert_eq!((attr.mode, attr.nlink), (0o4711, 2));
}

#[test]
fn fsync_of_a_directory_keeps_its_entries() {
    let world = World::new();
    let dir = world.directory("dir");
    world.file("dir/gone", "");
    File::open(&dir).unwrap().sync_all().unwrap();
    world.file("dir/new", "");
    fs::remove_file(dir.join("gone")).unwrap();
    File::open(&dir).unwrap().sync_all().unwrap();
    let cut = world.after_power_cut();
    find(&cut, "dir/new").unwrap();
    assert!(matches!(find(&cut, "dir/gone"), Err(Error::NotFound)));
}

#[test]
fn a_write_through_o_dsync_or_o_sync_is_durable_when_it_returns() {
    for flags in [OFlags::DSYNC, OFlags::SYNC] {
        let world = World::new();
        let file = open(&world.path("file"), OFlags::CREATE | flags).unwrap();
        file.write_all_at(&[7; 5000], 0).unwrap();
        assert_eq!(content(&world.after_power_cut(), "file"), vec![7; 5000]);
        file.write_all_at(&[8; 100], 4000).unwrap();
        assert_eq!(content(&world.after_power_cut(), "file")[4000..4100], [8; 100]);
    }
}

#[test]
fn msync_keeps_what_was_written_through_a_mapping() {
    let world = World::new();
    let path = world.file("file", [0; 8192]);
    client::run("write mapped and sync", &path);
    assert_eq!(content(&world.after_power_cut(), "file")[4096..], [9; 4096]);
}

pub fn write_mapped_and_sync(path: &Path) {
    let file = open(path, OFlags::empty()).unwrap();
    let mut mapping = Mapping::of_file(&file, 8192, rustix::mm::MapFlags::SHARED);
    mapping.bytes_mut()[4096..].fill(9);
    mapping.sync();
    // The end of the process must not be what writes it back.
    std::mem::forget(mapping);
}

#[test]
fn fsync_through_the_write_back_cache_keeps_everything() {
    let world = World::with_settings(Settings { writeback: true, ..Default::default() });
    let mut file = File::create(world.path("file")).unwrap();
    for _ in 0..1000 {
        file.write_all(&[7; 33]).unwrap();
    }
    file.sync_all().unwrap();
    assert_eq!(content(&world.after_power_cut(), "file"), vec![7; 33_000]);
}

/// Only what was written was durable then, and no name.
#[test]
fn on_a_synchronous_mount_each_change_is_durable_when_it_returns() {
    let settings = Settings { synchronous: true, ..Settings::default() };
    let world = World::with_settings(settings);
    let path = world.path("file");
    let exists = |name: &str| find(&world.after_power_cut(), name).is_ok();
    let attr = |name: &str| find(&world.after_power_cut(), name).unwrap().attr();
    fs::write(&path, [7; 5000]).unwrap();
    assert_eq!(content(&world.after_power_cut(), "file"), vec![7; 5000]);
    world.directory("dir");
    assert!(exists("dir"));
    std::os::unix::fs::symlink("x", world.path("link")).unwrap();
    assert!(exists("link"));
    fs::hard_link(&path, world.path("dir/second")).unwrap();
    assert!(exists("dir/second"));
    fs::rename(world.path("dir/second"), world.path("third")).unwrap();
    assert!(exists("third") && !exists("dir/second"));
    fs::remove_file(world.path("link")).unwrap();
    assert!(!exists("link"));
    fs::remove_dir(world.path("dir")).unwrap();
    assert!(!exists("dir"));
    chmod(&path, 0o604);
    assert_eq!(attr("file").mode, 0o604);
    open(&path, OFlags::empty()).unwrap().set_len(3).unwrap();
    assert_eq!(attr("file").size, 3);
    rustix::fs::ioctl_setflags(File::open(&path).unwrap(), IFlags::NODUMP).unwrap();
    assert_eq!(attr("file").flags, IFlags::NODUMP.bits());
    let (from, to) = (File::open(&path).unwrap(), File::create(world.path("copy")).unwrap());
    assert_eq!(rustix::fs::copy_file_range(from, None, to, None, 3), Ok(3));
    assert_eq!(content(&world.after_power_cut(), "copy"), [7; 3]);
}

//! What each user may do, and what happens to ownership and set-id bits.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::support::{NOBODY, World, as_nobody, chmod, errno, mode, open};

fn refused(dir: &Path, script: &str, why: &str) {
    let output = as_nobody(dir, script);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains(why), "{script}: {said}");
}

fn works(dir: &Path, script: &str) {
    let output = as_nobody(dir, script);
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn permission_bits_decide_for_others() {
    let world = World::new();
    let dir = world.open_directory("dir");
    chmod(&world.file("dir/secret", "x"), 0o600);
    chmod(&world.file("dir/readable", "x"), 0o644);
    chmod(&world.directory("dir/closed"), 0o700);
    refused(&dir, "cat secret", "Permission denied");
    works(&dir, "cat readable");
    refused(&dir, "echo x >> readable", "Permission denied");
    refused(&dir, "ls closed", "Permission denied");
    refused(&dir, "chmod 666 readable", "Operation not permitted");
    refused(&dir, "chown 65534 readable", "Operation not permitted");
    refused(world.path("").as_path(), "touch new", "Permission denied");
}

#[test]
fn a_new_file_belongs_to_its_maker_with_the_umask_taken_away() {
    let mut world = World::new();
    let dir = world.open_directory("dir");
    works(&dir, "umask 027; echo x > file; mkdir sub; ln -s file link; mkfifo fifo");
    world.remount();
    for (name, bits) in [("file", 0o640), ("sub", 0o750), ("fifo", 0o640)] {
        let metadata = fs::metadata(dir.join(name)).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (NOBODY, NOBODY), "{name}");
        assert_eq!(mode(&dir.join(name)), bits, "{name}");
    }
    assert_eq!(fs::symlink_metadata(dir.join("link")).unwrap().uid(), NOBODY);
}

#[test]
fn in_a_sticky_directory_only_owners_delete() {
    let world = World::new();
    let dir = world.open_directory("dir");
    chmod(&dir, 0o1777);
    world.file("dir/other's", "");
    works(&dir, "touch own");
    refused(&dir, "rm -f \"other's\"", "Operation not permitted");
    refused(&dir, "mv \"other's\" moved", "Operation not permitted");
    works(&dir, "mv own renamed && rm renamed");
}

#[test]
fn a_set_gid_directory_hands_its_group_down() {
    let mut world = World::new();
    let dir = world.directory("dir");
    chown(&dir, None, Some(7)).unwrap();
    chmod(&dir, 0o2777);
    works(&dir, "echo x > file; mkdir sub; mkdir sub/sub; ln -s x link; mkfifo fifo");
    world.remount();
    for name in ["file", "sub", "sub/sub", "link", "fifo"] {
        assert_eq!(fs::symlink_metadata(dir.join(name)).unwrap().gid(), 7, "{name}");
    }
    assert_eq!(mode(&dir.join("sub/sub")) & 0o2000, 0o2000);
    assert_eq!(mode(&dir.join("file")) & 0o2000, 0);
}

#[test]
fn an_owner_cannot_make_a_file_set_gid_for_a_group_that_is_not_its_own() {
    let world = World::new();
    let dir = world.open_directory("dir");
    let file = world.file("dir/file", "x");
    chown(&file, Some(NOBODY), Some(7)).unwrap();
    works(&dir, "chmod 2755 file");
    assert_eq!(mode(&file), 0o755);
}

#[test]
fn what_was_open_stays_usable_when_permissions_go() {
    let world = World::new();
    let path = world.file("file", "x");
    let file = open(&path, OFlags::empty()).unwrap();
    chmod(&path, 0);
    std::os::unix::fs::FileExt::write_all_at(&file, b"still", 0).unwrap();
}

#[test]
fn ownership_and_mode_survive_a_remount() {
    let mut world = World::new();
    let path = world.file("file", "");
    chmod(&path, 0o4321);
    chown(&path, Some(100_000), Some(4_000_000_000)).unwrap();
    chmod(&path, 0o4321);
    world.remount();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.uid(), metadata.gid()), (100_000, 4_000_000_000));
    assert_eq!(mode(&path), 0o4321);
}

#[test]
fn a_read_only_mount_changes_nothing() {
    let mut world = World::new();
    let file = world.file("file", "x");
    world.remount_read_only();
    assert_eq!(fs::read(&file).unwrap(), b"x");
    assert_eq!(errno(fs::write(&file, "y")), Errno::ROFS);
    assert_eq!(errno(fs::write(world.path("new"), "y")), Errno::ROFS);
    assert_eq!(errno(fs::remove_file(&file)), Errno::ROFS);
    assert_eq!(errno(fs::create_dir(world.path("dir"))), Errno::ROFS);
}

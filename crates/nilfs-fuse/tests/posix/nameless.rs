//! Files that are made without a name (`O_TMPFILE`), and get one when they are complete.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nilfs_fuse::PastSettings;
use rustix::fs::{AtFlags, CWD, OFlags, linkat};
use rustix::io::Errno;

use crate::support::{Settings, World, errno, mode, names, open};

/// Makes a file without a name.
fn nameless(dir: &Path, flags: OFlags) -> File {
    let mut file = open(dir, OFlags::TMPFILE | flags).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all(b"content").unwrap();
    file
}

/// Gives an open file a name.
fn name(file: &File, path: &Path) -> io::Result<()> {
    let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(linkat(CWD, itself, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

#[test]
fn a_file_gets_its_first_name_when_it_is_complete() {
    let mut world = World::new();
    let dir = world.directory("directory");
    let mut file = nameless(&dir, OFlags::empty());
    assert!(names(&dir).is_empty());
    name(&file, &dir.join("file")).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 1);
    file.write_all(b" and more").unwrap();
    drop(file);
    world.remount();
    assert_eq!(names(&dir), ["file"]);
    assert_eq!(fs::read(dir.join("file")).unwrap(), b"content and more");
    assert_eq!(mode(&dir.join("file")), 0o644);
}

#[test]
fn what_was_synced_without_a_name_survives_a_power_cut_with_the_name() {
    let world = World::new();
    let dir = world.directory("directory");
    let file = nameless(&dir, OFlags::empty());
    file.sync_all().unwrap();
    name(&file, &dir.join("file")).unwrap();
    File::open(&dir).unwrap().sync_all().unwrap();
    let tree = world.after_power_cut();
    let dir = tree.lookup(&tree.root().unwrap(), b"directory").unwrap();
    let found = tree.lookup(&dir, b"file").unwrap();
    let mut content = [0; 16];
    let length = tree.read(&found, 0, &mut content).unwrap();
    assert_eq!(&content[..length], b"content");
}

#[test]
fn a_file_that_gets_no_name_leaves_nothing() {
    let world = World::new();
    let root = world.path("");
    let never = nameless(&root, OFlags::EXCL);
    assert_eq!(errno(name(&never, &world.path("file"))), Errno::NOENT, "O_EXCL says never");
    let other = world.file("file", "another");
    let late = nameless(&root, OFlags::empty());
    assert_eq!(errno(name(&late, &other)), Errno::EXIST);
    drop((never, late));
    assert_eq!(names(&root), ["file"]);
    assert_eq!(fs::read(other).unwrap(), b"another");
}

#[test]
fn the_past_takes_no_file() {
    let past = Some(PastSettings::default());
    let world = World::with_settings(Settings { past, ..Settings::default() });
    world.file("file", "");
    world.checkpoint();
    let then = fs::read_dir(world.path(".checkpoints")).unwrap().next().unwrap().unwrap().path();
    assert_eq!(errno(open(&then, OFlags::TMPFILE)), Errno::ROFS);
}

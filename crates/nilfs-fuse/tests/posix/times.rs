//! Timestamps.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, IFlags, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;

use crate::client;
use crate::content::Mapping;
use crate::flags::set_flags;
use crate::support::{World, as_nobody, chmod, open};

type Moment = (i64, i64);

fn mtime(path: &Path) -> Moment {
    let metadata = fs::symlink_metadata(path).unwrap();
    (metadata.mtime(), metadata.mtime_nsec())
}

fn ctime(path: &Path) -> Moment {
    let metadata = fs::symlink_metadata(path).unwrap();
    (metadata.ctime(), metadata.ctime_nsec())
}

const OMIT: Timespec = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT as _ };

const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW as _ };

const SOME_TIME: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

fn try_set(path: &Path, atime: Timespec, mtime: Timespec) -> Result<(), Errno> {
    let times = Timestamps { last_access: atime, last_modification: mtime };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
}

fn set(path: &Path, atime: Timespec, mtime: Timespec) {
    try_set(path, atime, mtime).unwrap();
}

fn set_mtime(path: &Path, (tv_sec, tv_nsec): Moment) {
    set(path, OMIT, Timespec { tv_sec, tv_nsec });
}

const LONG_AGO: Moment = (1_000_000_000, 123_456_789);

/// Which of mtime and ctime `change` brings to the present. Both are in the past before.
fn touched(path: &Path, change: impl FnOnce()) -> (bool, bool) {
    set_mtime(path, LONG_AGO);
    let before = ctime(path);
    change();
    (mtime(path) != LONG_AGO, ctime(path) > before)
}

#[test]
fn a_write_changes_both_times_and_a_read_none() {
    let world = World::new();
    let path = world.file("file", "content");
    let file = open(&path, OFlags::empty()).unwrap();
    assert_eq!(touched(&path, || file.write_all_at(b"x", 0).unwrap()), (true, true));
    assert_eq!(touched(&path, || file.set_len(3).unwrap()), (true, true));
    assert_eq!(touched(&path, || drop(fs::read(&path).unwrap())), (false, false));
    assert_eq!(touched(&path, || drop(open(&path, OFlags::TRUNC).unwrap())), (true, true));
}

#[test]
fn a_write_through_a_mapping_changes_both_times() {
    let world = World::new();
    let path = world.file("file", [0; 8192]);
    assert_eq!(touched(&path, || client::run("write mapped", &path)), (true, true));
}

pub fn write_mapped(path: &Path) {
    let file = open(path, OFlags::empty()).unwrap();
    let mut mapping = Mapping::of_file(&file, 8192, rustix::mm::MapFlags::SHARED);
    mapping.bytes_mut()[5000] = 1;
    mapping.sync();
}

#[test]
fn a_change_of_attributes_changes_the_ctime_only() {
    let world = World::new();
    let path = world.file("file", "");
    assert_eq!(touched(&path, || chmod(&path, 0o600)), (false, true));
    let chown = || std::os::unix::fs::chown(&path, Some(7), None).unwrap();
    assert_eq!(touched(&path, chown), (false, true));
    let link = || fs::hard_link(&path, world.path("link")).unwrap();
    assert_eq!(touched(&path, link), (false, true));
    assert_eq!(touched(&path, || fs::remove_file(world.path("link")).unwrap()), (false, true));
}

#[test]
fn a_change_of_names_changes_the_times_of_the_directory() {
    let world = World::new();
    let dir = world.directory("dir");
    let file = dir.join("file");
    assert_eq!(touched(&dir, || drop(world.file("dir/file", ""))), (true, true));
    assert_eq!(touched(&dir, || fs::hard_link(&file, dir.join("link")).unwrap()), (true, true));
    assert_eq!(touched(&dir, || fs::rename(&file, dir.join("other")).unwrap()), (true, true));
    assert_eq!(touched(&dir, || fs::remove_file(dir.join("link")).unwrap()), (true, true));
    assert_eq!(touched(&dir, || drop(world.directory("dir/sub"))), (true, true));
    assert_eq!(touched(&dir, || fs::remove_dir(dir.join("sub")).unwrap()), (true, true));
    assert_eq!(touched(&dir, || fs::write(dir.join("other"), "x").unwrap()), (false, false));
}

#[test]
fn any_time_that_can_be_set_comes_back_with_its_nanoseconds() {
    let mut world = World::new();
    let times = [
        (1_700_000_000, 1),
        (0, 0),
        (-1, 999_999_999),
        (-2, 250_000_000),
        (-2_177_452_800, 1),
        (i64::from(u32::MAX) + 7, 999_999_999),
        (i64::MIN, 0),
        (i64::MAX, 0),
    ];
    for (nth, time) in times.into_iter().enumerate() {
        let path = world.file(&nth.to_string(), "");
        set_mtime(&path, time);
        assert_eq!(mtime(&path), time);
    }
    world.remount();
    for (nth, time) in times.into_iter().enumerate() {
        assert_eq!(mtime(&world.path(&nth.to_string())), time);
    }
}

#[test]
fn the_time_of_a_symbolic_link_is_its_own() {
    let world = World::new();
    let target = world.file("target", "");
    let link = world.path("link");
    std::os::unix::fs::symlink("target", &link).unwrap();
    set_mtime(&target, (1, 0));
    set_mtime(&link, (2, 0));
    assert_eq!((mtime(&target), mtime(&link)), ((1, 0), (2, 0)));
}

#[test]
fn who_may_write_may_touch_but_only_the_owner_sets_a_time() {
    let world = World::new();
    let dir = world.open_directory("dir");
    let file = world.file("dir/file", "");
    chmod(&file, 0o666);
    set_mtime(&file, LONG_AGO);
    assert!(as_nobody(&dir, "touch -c file").status.success());
    assert!(mtime(&file) > LONG_AGO);
    set_mtime(&file, LONG_AGO);
    assert!(!as_nobody(&dir, "touch -c -d 2001-01-01 file").status.success());
    assert_eq!(mtime(&file), LONG_AGO);
}

/// The kernel must not answer from what it was told before.
#[test]
fn choosing_both_times_of_a_file_just_opened_changes_the_ctime() {
    let world = World::new();
    let path = world.file("file", "");
    for _ in 0..2 {
        let before = ctime(&path);
        let file = open(&path, OFlags::empty()).unwrap();
        let times = Timestamps { last_access: SOME_TIME, last_modification: SOME_TIME };
        rustix::fs::futimens(&file, &times).unwrap();
        let metadata = file.metadata().unwrap();
        let after = (metadata.ctime(), metadata.ctime_nsec());
        assert!(after > before, "{after:?}, but it was {before:?} before");
        assert_eq!((ctime(&path), mtime(&path)), (after, (5, 0)));
    }
}

/// A new file has the same mtime and ctime. The two used to be set by different looks at the clock
/// when the program that makes the file also touches it, as touch(1) does.
#[test]
fn the_times_of_a_file_that_is_made_or_touched_are_equal() {
    let world = World::new();
    let path = world.file("file", "");
    assert_eq!(mtime(&path), ctime(&path));
    set(&path, NOW, NOW);
    assert_eq!(mtime(&path), ctime(&path));
    open(&path, OFlags::empty()).unwrap().set_len(5).unwrap();
    assert_eq!(mtime(&path), ctime(&path));
}

#[test]
fn the_times_of_a_file_that_is_only_appended_to_are_not_for_choosing() {
    let world = World::new();
    let path = world.file("file", "");
    set_flags(&path, IFlags::APPEND);
    for (atime, mtime) in [(OMIT, SOME_TIME), (SOME_TIME, OMIT), (SOME_TIME, SOME_TIME)] {
        assert_eq!(try_set(&path, atime, mtime), Err(Errno::PERM));
    }
    assert_eq!(try_set(&path, OMIT, NOW), Err(Errno::PERM), "as ext4 does");
    assert_eq!(try_set(&path, NOW, NOW), Ok(()), "it has been used");
    set_flags(&path, IFlags::empty());
    assert_eq!(try_set(&path, SOME_TIME, SOME_TIME), Ok(()));
}

/// The kernel does not expect that an ioctl changes the ctime, and went on to show the one that it
/// had been told before.
#[test]
fn a_change_of_flags_is_seen_in_the_ctime_at_once() {
    let world = World::new();
    let path = world.file("file", "");
    assert_eq!(touched(&path, || set_flags(&path, IFlags::NODUMP)), (false, true));
    let directory = world.directory("directory");
    assert_eq!(touched(&directory, || set_flags(&directory, IFlags::NODUMP)), (false, true));
    for path in [&path, &directory] {
        assert_eq!(touched(path, || set_flags(path, IFlags::empty())), (false, true));
        assert_eq!(touched(path, || set_flags(path, IFlags::NOATIME)), (false, true));
    }
}

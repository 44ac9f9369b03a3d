//! The flags that chattr sets, and what a file or a directory with one of them refuses.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, chown, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use nilfs_fuse::PastSettings;
use rustix::fs::{
    AtFlags, CWD, FileType, IFlags, Mode, OFlags, RawMode, Timespec, Timestamps, UTIME_NOW,
    ioctl_getflags, ioctl_setflags,
};
use rustix::io::Errno;

use crate::client;
use crate::content::Mapping;
use crate::support::{Settings, World, as_nobody, errno, open};

/// Sets these flags, and removes all others.
pub fn set_flags(path: &Path, flags: IFlags) {
    ioctl_setflags(File::open(path).unwrap(), flags).unwrap();
}

fn flags(path: &Path) -> IFlags {
    ioctl_getflags(File::open(path).unwrap()).unwrap()
}

/// Something that is tried in a directory with the file or directory `target` in it.
type Attempt = (&'static str, fn(&Path) -> io::Result<()>);

/// What changes any file or directory.
const CHANGES: [Attempt; 6] = [
    ("chmod", |dir| chmod(&dir.join("target"), 0o700)),
    ("chown", |dir| chown(dir.join("target"), Some(7), Some(7))),
    ("times", |dir| {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(5);
        File::open(dir.join("target"))?.set_modified(time)
    }),
    ("rename", |dir| fs::rename(dir.join("target"), dir.join("renamed"))),
    ("rename to another directory", |dir| {
        fs::create_dir_all(dir.join("elsewhere"))?;
        fs::rename(dir.join("target"), dir.join("elsewhere/target"))
    }),
    ("times now", touch),
];

fn chmod(path: &Path, mode: RawMode) -> io::Result<()> {
    Ok(rustix::fs::chmod(path, Mode::from_raw_mode(mode))?)
}

fn touch(dir: &Path) -> io::Result<()> {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW as _ };
    let times = Timestamps { last_access: now, last_modification: now };
    Ok(rustix::fs::utimensat(CWD, dir.join("target"), &times, AtFlags::empty())?)
}

/// What changes a file, or takes its name.
const CHANGES_OF_A_FILE: [Attempt; 7] = [
    ("write", |dir| open(&dir.join("target"), OFlags::empty())?.write_all_at(b"x", 0)),
    ("truncate", |dir| open(&dir.join("target"), OFlags::empty())?.set_len(1)),
    ("extend", |dir| open(&dir.join("target"), OFlags::empty())?.set_len(100)),
    ("O_TRUNC", |dir| open(&dir.join("target"), OFlags::TRUNC | OFlags::APPEND).map(drop)),
    ("link", |dir| fs::hard_link(dir.join("target"), dir.join("link"))),
    ("delete", |dir| fs::remove_file(dir.join("target"))),
    ("rename over it", |dir| {
        fs::write(dir.join("other"), "")?;
        fs::rename(dir.join("other"), dir.join("target"))
    }),
];

fn append(dir: &Path) -> io::Result<()> {
    open(&dir.join("target"), OFlags::APPEND)?.write_all(b"x")
}

/// Ways to open a file to change what is there.
const OPENINGS: [Attempt; 5] = [
    ("open for writing", |dir| File::options().write(true).open(dir.join("target")).map(drop)),
    ("open for both", |dir| open(&dir.join("target"), OFlags::empty()).map(drop)),
    ("open, and make what is missing", |dir| open(&dir.join("target"), OFlags::CREATE).map(drop)),
    ("open for writing, empty", |dir| open(&dir.join("target"), OFlags::TRUNC).map(drop)),
    ("open for reading, empty", |dir| {
        let flags = OFlags::RDONLY | OFlags::TRUNC;
        Ok(rustix::fs::open(dir.join("target"), flags, Mode::empty()).map(drop)?)
    }),
];

const OPEN_TO_APPEND: Attempt =
    ("open to append", |dir| open(&dir.join("target"), OFlags::APPEND).map(drop));

const OPEN_TO_READ: Attempt = ("open to read", |dir| File::open(dir.join("target")).map(drop));

/// What takes a name out of a directory.
const REMOVALS: [Attempt; 5] = [
    ("unlink", |dir| fs::remove_file(dir.join("target/file"))),
    ("rmdir", |dir| fs::remove_dir(dir.join("target/sub"))),
    ("rename within", |dir| fs::rename(dir.join("target/file"), dir.join("target/renamed"))),
    ("rename out", |dir| fs::rename(dir.join("target/file"), dir.join("out"))),
    ("rename over", |dir| {
        fs::write(dir.join("other"), "")?;
        fs::rename(dir.join("other"), dir.join("target/file"))
    }),
];

/// What adds a name to a directory.
const ADDITIONS: [Attempt; 7] = [
    ("a file without a name", |dir| open(&dir.join("target"), OFlags::TMPFILE).map(drop)),
    ("create", |dir| fs::write(dir.join("target/new"), "")),
    ("mkdir", |dir| fs::create_dir(dir.join("target/new"))),
    ("symlink", |dir| symlink("x", dir.join("target/new"))),
    ("mkfifo", |dir| {
        let mode = Mode::from_raw_mode(0o600);
        Ok(rustix::fs::mknodat(CWD, dir.join("target/new"), FileType::Fifo, mode, 0)?)
    }),
    ("link into it", |dir| fs::hard_link(dir.join("target/file"), dir.join("target/new"))),
    ("rename into it", |dir| {
        fs::write(dir.join("other"), "")?;
        fs::rename(dir.join("other"), dir.join("target/new"))
    }),
];

const RMDIR: Attempt = ("rmdir of itself", |dir| fs::remove_dir(dir.join("target")));

/// What happens with a flag to each attempt. Without the flag it works, so it was refused for the
/// flag's sake, and has changed nothing.
fn try_all(flag: IFlags, prepare: fn(&Path), attempts: &[&[Attempt]], expected: Result<(), Errno>) {
    try_on(&World::new(), flag, prepare, attempts, expected);
}

fn try_on(
    world: &World,
    flag: IFlags,
    prepare: fn(&Path),
    attempts: &[&[Attempt]],
    expected: Result<(), Errno>,
) {
    for (what, attempt) in attempts.concat() {
        let dir = world.directory(&format!("{what} with {flag:?}"));
        let target = dir.join("target");
        prepare(&target);
        set_flags(&target, flag);
        let done = attempt(&dir).map_err(|error| Errno::from_io_error(&error).unwrap());
        assert_eq!(done, expected, "{what} with {flag:?}");
        if target.exists() {
            assert_eq!(flags(&target), flag, "after {what}");
            set_flags(&target, IFlags::empty());
        }
        if done.is_err() {
            attempt(&dir).unwrap_or_else(|error| panic!("{what} without {flag:?}: {error}"));
        }
    }
}

fn file(path: &Path) {
    fs::write(path, "content").unwrap();
}

fn directory(path: &Path) {
    fs::create_dir(path).unwrap();
    fs::create_dir(path.join("sub")).unwrap();
    fs::write(path.join("file"), "content").unwrap();
}

fn empty_directory(path: &Path) {
    fs::create_dir(path).unwrap();
}

#[test]
fn an_immutable_file_cannot_be_changed_in_any_way() {
    let changes: [&[Attempt]; 3] = [&CHANGES, &CHANGES_OF_A_FILE, &[("append", append)]];
    try_all(IFlags::IMMUTABLE, file, &changes, Err(Errno::PERM));
}

#[test]
fn an_append_only_file_only_grows() {
    let changes: [&[Attempt]; 2] = [&CHANGES[..5], &CHANGES_OF_A_FILE];
    try_all(IFlags::APPEND, file, &changes, Err(Errno::PERM));
    try_all(IFlags::APPEND, file, &[&[("append", append), ("times now", touch)]], Ok(()));
}

/// Such a file could be opened for writing, because the kernel does not know the flag, and what was
/// written through a mapping of it was lost without a word.
#[test]
fn immutable_and_append_only_files_are_refused_when_they_are_opened() {
    for past in [None, Some(PastSettings::default())] {
        for writeback in [false, true] {
            let settings = Settings { past: past.clone(), writeback, ..Settings::default() };
            let world = World::with_settings(settings);
            let refused = Err(Errno::PERM);
            let immutable: [&[Attempt]; 2] = [&OPENINGS, &[OPEN_TO_APPEND]];
            try_on(&world, IFlags::IMMUTABLE, file, &immutable, refused);
            try_on(&world, IFlags::APPEND, file, &[&OPENINGS], refused);
            try_on(&world, IFlags::IMMUTABLE, file, &[&[OPEN_TO_READ]], Ok(()));
            try_on(&world, IFlags::APPEND, file, &[&[OPEN_TO_APPEND, OPEN_TO_READ]], Ok(()));
        }
    }
}

#[test]
fn an_immutable_directory_keeps_its_names() {
    let changes: [&[Attempt]; 3] = [&CHANGES, &REMOVALS, &ADDITIONS];
    try_all(IFlags::IMMUTABLE, directory, &changes, Err(Errno::PERM));
    try_all(IFlags::IMMUTABLE, empty_directory, &[&[RMDIR]], Err(Errno::PERM));
    let change = |dir: &Path| fs::write(dir.join("target/file"), "files within can change");
    try_all(IFlags::IMMUTABLE, directory, &[&[("write within", change)]], Ok(()));
}

#[test]
fn names_are_added_to_an_append_only_directory_and_never_taken_out() {
    try_all(IFlags::APPEND, directory, &[&CHANGES[..5], &REMOVALS], Err(Errno::PERM));
    try_all(IFlags::APPEND, empty_directory, &[&[RMDIR]], Err(Errno::PERM));
    try_all(IFlags::APPEND, directory, &[&ADDITIONS, &[("times now", touch)]], Ok(()));
}

/// A descriptor from before is no way around the flag.
#[test]
fn what_was_open_for_writing_becomes_immutable_too() {
    let world = World::new();
    let path = world.file("file", "content");
    let file = open(&path, OFlags::empty()).unwrap();
    set_flags(&path, IFlags::IMMUTABLE);
    assert_eq!(errno(file.write_all_at(b"x", 0)), Errno::PERM);
    assert_eq!(errno(file.set_len(1)), Errno::PERM);
    set_flags(&path, IFlags::empty());
    file.write_all_at(b"x", 0).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"xontent");
}

/// Nor is there a way by what was opened to append: Linux would not let go of O_APPEND.
#[test]
fn what_was_open_for_writing_only_grows_once_the_file_is_append_only() {
    let world = World::new();
    let path = world.file("file", "content");
    let before = open(&path, OFlags::empty()).unwrap();
    set_flags(&path, IFlags::APPEND);
    let after = open(&path, OFlags::APPEND).unwrap();
    rustix::fs::fcntl_setfl(&after, OFlags::empty()).unwrap();
    for file in [before, after] {
        assert_eq!(errno(file.write_all_at(b"x", 0)), Errno::PERM);
        assert_eq!(errno(file.set_len(1)), Errno::PERM);
        let end = fs::metadata(&path).unwrap().len();
        file.write_all_at(b"+", end).unwrap();
    }
    assert_eq!(fs::read(&path).unwrap(), b"content++");
    set_flags(&path, IFlags::empty());
}

/// Data that the kernel wrote back to a file with a flag were refused, and lost: with the write-back
/// cache of the kernel all that was appended to an append-only file.
#[test]
fn what_was_written_before_a_flag_was_set_is_written_back() {
    for writeback in [false, true] {
        let settings = Settings { writeback, ..Settings::default() };
        let mut world = World::with_settings(settings);
        let log = world.file("log", "content");
        set_flags(&log, IFlags::APPEND);
        for _ in 0..2 {
            let mut end = open(&log, OFlags::APPEND).unwrap();
            end.write_all(b"+").unwrap();
            end.sync_all().unwrap();
        }
        let early = world.file("early", "content");
        let file = open(&early, OFlags::empty()).unwrap();
        file.write_all_at(b"C", 0).unwrap();
        set_flags(&early, IFlags::IMMUTABLE);
        file.sync_data().unwrap();
        drop(file);
        let mapped = world.file("mapped", [0; 8192]);
        client::run("write mapped and make immutable", &mapped);
        world.remount();
        assert_eq!(fs::read(&log).unwrap(), b"content++");
        assert_eq!(fs::read(&early).unwrap(), b"Content");
        assert_eq!(fs::read(&mapped).unwrap()[5000], 1);
        [log, early, mapped].iter().for_each(|path| set_flags(path, IFlags::empty()));
    }
}

pub fn write_mapped_and_make_immutable(path: &Path) {
    let file = open(path, OFlags::empty()).unwrap();
    let mut mapping = Mapping::of_file(&file, 8192, rustix::mm::MapFlags::SHARED);
    mapping.bytes_mut()[5000] = 1;
    set_flags(path, IFlags::IMMUTABLE);
    mapping.sync();
}

#[test]
fn flags_are_kept_and_go_on_to_have_their_effect() {
    let mut world = World::new();
    for flag in [IFlags::NOATIME | IFlags::NODUMP, IFlags::IMMUTABLE, IFlags::APPEND] {
        let path = world.file("file", "content");
        set_flags(&path, flag);
        world.remount();
        assert_eq!(flags(&path), flag);
        let deleted = fs::remove_file(&path);
        if !(IFlags::NOATIME | IFlags::NODUMP).contains(flag) {
            assert_eq!(errno(deleted), Errno::PERM);
            set_flags(&path, IFlags::empty());
        }
    }
}

#[test]
fn only_the_superuser_makes_a_file_immutable_or_append_only_or_ends_that() {
    let world = World::new();
    let dir = world.open_directory("dir");
    let path = world.file("dir/own", "");
    chown(&path, Some(crate::support::NOBODY), None).unwrap();
    let refused = |script: &str| {
        let output = as_nobody(&dir, script);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("not permitted"), "{script}: {said}");
    };
    assert!(as_nobody(&dir, "chattr +d own").status.success());
    for (flag, letter) in [(IFlags::IMMUTABLE, 'i'), (IFlags::APPEND, 'a')] {
        refused(&format!("chattr +{letter} own"));
        set_flags(&path, flag);
        refused(&format!("chattr -{letter} own"));
        assert_eq!(flags(&path), flag);
        set_flags(&path, IFlags::empty());
    }
}

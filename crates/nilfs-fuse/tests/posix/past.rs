//! The past of a directory, in `.checkpoints` within it.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nilfs_fuse::{PastAccess, PastSettings};
use rustix::fs::{OFlags, RawDir};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::support::{PATIENCE, Settings, World, as_nobody, chmod, errno, names};

fn world() -> World {
    world_with(PastSettings::default())
}

fn world_with(past: PastSettings) -> World {
    World::with_settings(Settings { past: Some(past), ..Settings::default() })
}

/// A directory as it was at a checkpoint.
fn at(dir: &Path, cno: u64) -> PathBuf {
    let door = dir.join(".checkpoints");
    let end = format!("+cp{cno}");
    let listed = names(&door);
    let found: Vec<_> = listed.iter().filter(|name| name.ends_with(&end)).collect();
    assert_eq!(found.len(), 1, "checkpoint {cno} is in {listed:?} once");
    door.join(found[0])
}

#[test]
fn a_file_of_the_past_is_copied_into_the_present_and_not_back() {
    let world = world();
    let dir = world.directory("dir");
    let file = world.file("dir/file", "first");
    let first = world.checkpoint();
    fs::write(&file, "second").unwrap();
    let past = File::open(at(&dir, first).join("file")).unwrap();
    let copy = File::create(world.path("copy")).unwrap();
    assert_eq!(rustix::fs::copy_file_range(&past, None, &copy, None, 100), Ok(5));
    assert_eq!(fs::read(world.path("copy")).unwrap(), b"first");
    let into = File::options().write(true).open(at(&dir, first).join("file"));
    assert_eq!(errno(into), Errno::ROFS);
}

#[test]
fn a_directory_shows_what_was_in_it_at_each_checkpoint() {
    let world = world();
    let dir = world.directory("dir");
    let file = world.file("dir/file", "first");
    let first = world.checkpoint();
    fs::write(&file, "second, and longer").unwrap();
    fs::create_dir(dir.join("below")).unwrap();
    symlink("file", dir.join("link")).unwrap();
    let second = world.checkpoint();
    fs::remove_file(&file).unwrap();
    fs::remove_dir(dir.join("below")).unwrap();
    world.checkpoint();
    assert_eq!(names(&at(&dir, first)), ["file"]);
    assert_eq!(fs::read(at(&dir, first).join("file")).unwrap(), b"first");
    assert_eq!(names(&at(&dir, second)), ["below", "file", "link"]);
    assert_eq!(fs::read(at(&dir, second).join("link")).unwrap(), b"second, and longer");
    // By the short name, too.
    let short = dir.join(format!(".checkpoints/cp{first}"));
    assert_eq!(fs::read(short.join("file")).unwrap(), b"first");
    assert_eq!(fs::canonicalize(&short).unwrap(), fs::canonicalize(at(&dir, first)).unwrap());
    // From above, too.
    let from_root = at(&world.path(""), first).join("dir/file");
    assert_eq!(fs::read(from_root).unwrap(), b"first");
    assert!(fs::symlink_metadata(&file).is_err());
}

#[test]
fn a_directory_keeps_its_past_when_it_is_renamed_and_leaves_none_to_its_successor() {
    let world = world();
    let dir = world.directory("dir");
    world.file("dir/file", "content");
    let first = world.checkpoint();
    let moved = world.path("moved");
    fs::rename(&dir, &moved).unwrap();
    world.directory("dir");
    world.checkpoint();
    assert_eq!(fs::read(at(&moved, first).join("file")).unwrap(), b"content");
    let ends = format!("+cp{first}");
    let of_new = names(&dir.join(".checkpoints"));
    assert!(of_new.iter().all(|name| !name.ends_with(&ends)), "{of_new:?}");
}

#[test]
fn the_door_is_not_listed_so_programs_do_not_fall_in() {
    let world = world();
    let dir = world.directory("dir");
    world.file("dir/file", "content");
    world.checkpoint();
    assert_eq!(names(&dir), ["file"]);
    let copied = Command::new("cp").arg("-a").arg(&dir).arg(world.path("copy")).status().unwrap();
    assert!(copied.success());
    assert_eq!(names(&world.path("copy")), ["file"]);
    let removed = Command::new("rm").arg("-r").arg(&dir).status().unwrap();
    assert!(removed.success() && !dir.exists());
}

#[test]
fn nothing_of_the_past_can_be_changed() {
    let world = world();
    let dir = world.directory("dir");
    world.file("dir/file", "content");
    let past = at(&dir, world.checkpoint());
    let file = past.join("file");
    assert_eq!(errno(File::create(past.join("new"))), Errno::ROFS);
    assert_eq!(errno(fs::create_dir(past.join("new"))), Errno::ROFS);
    assert_eq!(errno(fs::remove_file(&file)), Errno::ROFS);
    assert_eq!(errno(fs::set_permissions(&file, fs::Permissions::from_mode(0o777))), Errno::ROFS);
    assert_eq!(errno(fs::rename(&file, past.join("other"))), Errno::ROFS);
    assert_eq!(errno(fs::rename(&file, dir.join("other"))), Errno::XDEV);
    assert_eq!(errno(fs::rename(dir.join("file"), past.join("other"))), Errno::XDEV);
    assert_eq!(errno(fs::hard_link(&file, dir.join("other"))), Errno::XDEV);
    assert_eq!(errno(fs::hard_link(dir.join("file"), past.join("other"))), Errno::XDEV);
    assert_eq!(errno(fs::hard_link(&file, past.join("other"))), Errno::ROFS);
    assert_eq!(errno(fs::remove_dir(dir.join(".checkpoints"))), Errno::ROFS);
    assert_eq!(errno(fs::create_dir(dir.join(".checkpoints"))), Errno::EXIST);
    let other = world.directory("other");
    assert_eq!(errno(fs::rename(other, dir.join(".checkpoints"))), Errno::EXIST);
    assert_eq!(fs::read(&file).unwrap(), b"content");
}

/// The superuser may open any file, and what is written to a shared mapping, or kept back by the
/// kernel, would be lost without a word: it is refused where a program still looks at the answer.
#[test]
fn a_file_of_the_past_cannot_be_opened_for_writing() {
    for writeback in [false, true] {
        let past = Some(PastSettings::default());
        let world = World::with_settings(Settings { past, writeback, ..Settings::default() });
        let dir = world.directory("dir");
        world.file("dir/file", "content");
        let file = at(&dir, world.checkpoint()).join("file");
        let open = |flags: OFlags| rustix::fs::open(&file, flags, rustix::fs::Mode::empty());
        for flags in [
            OFlags::WRONLY,
            OFlags::RDWR,
            OFlags::WRONLY | OFlags::APPEND,
            OFlags::WRONLY | OFlags::TRUNC,
            OFlags::RDONLY | OFlags::TRUNC,
            OFlags::RDWR | OFlags::CREATE,
        ] {
            assert_eq!(open(flags).err(), Some(Errno::ROFS), "{flags:?}, writeback {writeback}");
        }
        let reader = open(OFlags::RDONLY | OFlags::CREATE).unwrap();
        let (protection, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the kernel chooses the address, and nothing is mapped, because that is refused.
        let mapped =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), 7, protection, shared, &reader, 0) };
        assert_eq!(mapped.err(), Some(Errno::ACCESS));
        assert_eq!(fs::read(&file).unwrap(), b"content");
        // The present is opened as ever.
        fs::write(dir.join("file"), "other").unwrap();
    }
}

/// Programs that look for their place by inode numbers, and those that read a directory in small
/// pieces.
#[test]
fn doors_have_a_place_in_the_tree_of_directories() {
    let world = world();
    let dir = world.directory("dir");
    world.directory("dir/below");
    let first = world.checkpoint();
    world.checkpoint();
    let past = at(&dir, first);
    let (door, gmt) = (dir.join(".checkpoints"), dir.join(".checkpoints/gmt"));
    let of_samba = gmt.join(&names(&gmt)[0]);
    for place in [&past.join("below"), &past, &door, &of_samba, &gmt] {
        let seen = Command::new("pwd").arg("-P").current_dir(place).output().unwrap();
        assert_eq!(String::from_utf8(seen.stdout).unwrap().trim(), place.to_str().unwrap());
        let above = fs::metadata(place.join("..")).unwrap();
        let parent = fs::metadata(place.parent().unwrap()).unwrap();
        assert_eq!(above.ino(), parent.ino(), "{}", place.display());
    }
    for place in [&past, &door, &gmt, &of_samba] {
        let directory = File::open(place).unwrap();
        // Room for one entry at a time.
        let mut buffer = [std::mem::MaybeUninit::uninit(); 64];
        let mut entries = RawDir::new(&directory, &mut buffer);
        let mut seen = Vec::new();
        while let Some(entry) = entries.next() {
            let entry = entry.unwrap();
            let name = entry.file_name().to_str().unwrap().to_owned();
            let found = fs::symlink_metadata(place.join(&name)).unwrap();
            assert_eq!(entry.ino(), found.ino(), "{name} in {}", place.display());
            seen.push(name);
        }
        seen.sort();
        let mut expected = [vec![".".to_owned(), "..".to_owned()], names(place)].concat();
        expected.sort();
        assert_eq!(seen, expected);
    }
}

#[test]
fn samba_finds_the_newest_checkpoint_of_each_second() {
    let world = world();
    let dir = world.directory("dir");
    let file = world.file("dir/file", "first");
    let cnos = [world.checkpoint(), {
        fs::write(&file, "second").unwrap();
        world.checkpoint()
    }];
    let gmt = dir.join(".checkpoints/gmt");
    // The two are of one second, unless that ended between them.
    let mut expected: Vec<String> = cnos
        .map(|cno| {
            let canonical = at(&dir, cno);
            let name = canonical.file_name().unwrap().to_str().unwrap();
            let time = name.split('Z').next().unwrap();
            format!("@GMT-{}", time.replace('T', "-").replacen('-', ".", 2))
        })
        .into();
    expected.dedup();
    assert_eq!(names(&gmt), expected);
    let newest = gmt.join(expected.last().unwrap());
    assert_eq!(fs::read(newest.join("file")).unwrap(), b"second");
    assert!(fs::symlink_metadata(&newest).unwrap().is_dir(), "Samba lists no symbolic links");
    for name in ["@GMT-2001.01.01-00.00.00", "@GMT-", "@GMT-2026.13.01-00.00.00", "now"] {
        assert_eq!(errno(fs::metadata(gmt.join(name))), Errno::NOENT, "{name}");
    }
}

/// A directory that stays open, and a look at it that the kernel does not answer by itself.
struct Watched(File);

impl Watched {
    fn new(dir: &Path) -> Self {
        Self(File::open(dir).unwrap())
    }

    fn look(&self) -> Result<(), Errno> {
        rustix::fs::fsync(&self.0)
    }

    /// What a look says when nothing is kept for it any more.
    fn look_until_it_fails(&self) -> Errno {
        let started = Instant::now();
        loop {
            match self.look() {
                Err(errno) => return errno,
                Ok(()) => assert!(started.elapsed() < PATIENCE, "it is still there"),
            }
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_checkpoint_is_kept_while_somebody_looks_at_it_and_for_a_while_after() {
    let world = world();
    let dir = world.directory("dir");
    let first = world.checkpoint();
    let watched = Watched::new(&at(&dir, first));
    world.checkpoint();
    world.delete_checkpoint(first);
    assert_eq!(watched.look(), Ok(()));
    let end = format!("+cp{first}");
    assert!(names(&dir.join(".checkpoints")).iter().all(|name| !name.ends_with(&end)));

    let short = PastSettings { hold: Duration::ZERO, ..PastSettings::default() };
    let world = world_with(short);
    let dir = world.directory("dir");
    let first = world.checkpoint();
    let watched = Watched::new(&at(&dir, first));
    for _ in 0..100 {
        assert_eq!(watched.look(), Ok(()), "it is not kept, but it is there");
    }
    world.checkpoint();
    world.delete_checkpoint(first);
    assert_eq!(watched.look_until_it_fails(), Errno::STALE);
}

/// The checkpoint that somebody has looked at last would otherwise keep a volume full for as long as
/// the kernel remembers it.
#[test]
fn a_writer_without_room_gets_what_is_only_kept_to_be_looked_at() {
    let world = world();
    let dir = world.directory("dir");
    let most = vec![7; crate::support::SIZE as usize / 5 * 3];
    world.file("dir/old", &most);
    let watched = Watched::new(&at(&dir, world.checkpoint()));
    fs::remove_file(dir.join("old")).unwrap();
    for _ in 0..3 {
        let file = world.file("new", &most);
        File::open(&file).unwrap().sync_all().unwrap();
        assert_eq!(fs::read(&file).unwrap(), most);
        fs::remove_file(&file).unwrap();
    }
    assert_eq!(watched.look(), Err(Errno::STALE));
    // By its name it can be looked at again, or it is gone.
    assert!(names(&dir.join(".checkpoints")).len() > 1);
}

/// Trees that were kept of a snapshot went as well, though that gave nothing back: a program that read the
/// snapshot got ESTALE, as if the snapshot had gone.
#[test]
fn a_snapshot_and_the_present_are_read_without_interruption_while_there_is_no_room() {
    let world = world();
    let dir = world.directory("dir");
    let (half, small) = (vec![7; crate::support::SIZE as usize / 2], vec![3; 1 << 20]);
    world.file("dir/file", &small);
    let snapshot = world.checkpoint();
    world.keep_checkpoint(snapshot);
    world.file("dir/old", &half);
    let plain = world.checkpoint();
    let [of_snapshot, of_plain] = [snapshot, plain].map(|cno| Watched::new(&at(&dir, cno)));
    let present = File::open(dir.join("file")).unwrap();
    let past = File::open(at(&dir, snapshot).join("file")).unwrap();
    let still_there = |when: &str| {
        assert_eq!(of_snapshot.look(), Ok(()), "{when}");
        for (file, what) in [(&past, "the snapshot"), (&present, "the present")] {
            // Nothing of it is in the kernel.
            rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            let mut read = vec![0; small.len()];
            file.read_exact_at(&mut read, 0).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(read == small, "{what}, {when}");
        }
    };
    still_there("before");
    fs::remove_file(dir.join("old")).unwrap();
    for round in 0..3 {
        let file = world.file("new", &half);
        still_there(&format!("in round {round}"));
        // Now there is no room, regardless of what is given up.
        let more = fs::write(world.path("more"), &half);
        assert_eq!(errno(more), Errno::NOSPC);
        still_there(&format!("on the full volume of round {round}"));
        fs::remove_file(world.path("more")).unwrap();
        fs::remove_file(file).unwrap();
    }
    assert_eq!(of_plain.look(), Err(Errno::STALE), "what is no snapshot has made room");
    assert_eq!(fs::read(at(&dir, snapshot).join("file")).unwrap(), small);
}

/// The kernel remembers what is in a directory for as long as its modification time stays, and that of
/// the door was that of the directory.
#[test]
fn a_door_lists_what_is_there_now() {
    let world = world();
    let (dir, other) = (world.directory("dir"), world.directory("other"));
    let listed = || names(&dir.join(".checkpoints")).len();
    let first = world.checkpoint();
    assert_eq!(listed(), 1);
    fs::create_dir(other.join("new")).unwrap();
    world.checkpoint();
    assert_eq!(listed(), 2);
    world.delete_checkpoint(first);
    assert_eq!(listed(), 1);
    let minor = world.checkpoint();
    assert_eq!(listed(), 1, "it has nothing that the one before has not");
    world.keep_checkpoint(minor);
    assert_eq!(listed(), 2, "somebody wants to have it");
}

/// All that was ever looked at stayed in memory, and was kept on the volume, until the kernel forgot
/// it by itself.
#[test]
fn only_the_checkpoints_that_were_used_last_are_kept() {
    const MOST: u64 = 4096;
    let world = world();
    let dir = world.directory("dir");
    let first = world.checkpoint();
    let oldest = Watched::new(&at(&dir, first));
    world.file("dir/file", "used");
    let in_use = world.checkpoint();
    let mut last = in_use;
    for nth in 0..MOST {
        world.file("dir/file", nth.to_string());
        last = world.checkpoint();
    }
    // However many somebody looks at, nobody loses what they go on using.
    let used = Watched::new(&at(&dir, in_use));
    let entries = fs::read_dir(dir.join(".checkpoints")).unwrap();
    let mut seen = 0;
    for (nth, entry) in entries.enumerate() {
        seen += u64::from(entry.unwrap().path().join("file").symlink_metadata().is_ok());
        if nth % 500 == 0 {
            assert_eq!(used.look(), Ok(()));
        }
    }
    assert!(seen > MOST, "{seen}");
    let newest = Watched::new(&at(&dir, last));
    world.checkpoint();
    world.delete_checkpoint(first);
    world.delete_checkpoint(in_use);
    world.delete_checkpoint(last);
    assert_eq!(oldest.look_until_it_fails(), Errno::STALE);
    assert_eq!(used.look(), Ok(()));
    assert_eq!(newest.look(), Ok(()));
}

#[test]
fn a_file_of_the_past_is_another_file_than_that_of_the_present_and_always_the_same() {
    let world = world();
    let dir = world.directory("dir");
    let file = world.file("dir/file", "content");
    let first = world.checkpoint();
    fs::write(&file, "other content").unwrap();
    let second = world.checkpoint();
    let ino = |path: &Path| fs::symlink_metadata(path).unwrap().ino();
    let past = at(&dir, first);
    let inos = [ino(&file), ino(&past.join("file")), ino(&at(&dir, second).join("file"))];
    assert!(inos[0] != inos[1] && inos[1] != inos[2] && inos[0] != inos[2], "{inos:?}");
    let from_root = at(&world.path(""), first).join("dir/file");
    assert_eq!(ino(&from_root), inos[1], "the same file through another door");
    let listed = fs::read_dir(&past).unwrap().next().unwrap().unwrap();
    assert_eq!(std::os::unix::fs::DirEntryExt::ino(&listed), inos[1]);
}

#[test]
fn set_id_bits_have_no_power_in_the_past() {
    let world = world();
    let program = world.file("program", "content");
    chmod(&program, 0o6755);
    let past = at(&world.path(""), world.checkpoint()).join("program");
    assert_eq!(fs::metadata(&past).unwrap().permissions().mode() & 0o7777, 0o755);
}

/// Others see that there is a door, but do not get in.
#[test]
fn only_root_and_the_owner_of_the_mount_see_the_past() {
    for access in [PastAccess::Owner, PastAccess::Root] {
        let world = world_with(PastSettings { access, ..PastSettings::default() });
        let dir = world.open_directory("dir");
        let file = world.file("dir/file", "secret");
        let first = world.checkpoint();
        chmod(&file, 0o600);
        // Somebody else asks before and after root has looked, and does not come in root's way.
        let closed = || {
            for command in ["ls .checkpoints", &format!("cat .checkpoints/cp{first}/file")] {
                let seen = as_nobody(&dir, command);
                assert!(!seen.status.success(), "{command}: {seen:?}");
            }
        };
        closed();
        assert_eq!(fs::read(at(&dir, first).join("file")).unwrap(), b"secret");
        closed();
    }
}

#[test]
fn the_past_can_be_for_everybody_as_permissions_of_then_and_now_allow() {
    let access = PastAccess::All;
    let world = world_with(PastSettings { access, ..PastSettings::default() });
    let dir = world.open_directory("dir");
    let (open, closed) = (world.file("dir/open", "for all"), world.file("dir/closed", "secret"));
    chmod(&closed, 0o600);
    let first = world.checkpoint();
    chmod(&open, 0o600);
    chmod(&closed, 0o644);
    let can_read = |name: &str| {
        as_nobody(&dir, &format!("cat .checkpoints/cp{first}/{name}")).status.success()
    };
    assert!(can_read("open") && !can_read("closed"), "what counts for a file are those of then");
    assert!(as_nobody(&dir, "ls .checkpoints").status.success());
    chmod(&dir, 0o700);
    let from_above = format!("ls {}/.checkpoints", dir.display());
    assert!(!as_nobody(&world.path(""), &from_above).status.success(), "nor is a way around");
}

#[test]
fn every_name_of_a_moment_leads_to_the_canonical_one() {
    let world = world();
    let dir = world.directory("dir");
    let first = world.checkpoint();
    let canonical = at(&dir, first);
    let name = canonical.file_name().unwrap().to_str().unwrap();
    let time = name.strip_suffix(&format!("+cp{first}")).unwrap();
    let link = |word: &str| fs::read_link(dir.join(".checkpoints").join(word));
    for word in [&first.to_string(), &format!("cp{first}"), "now", time, &time.replace('.', ":")] {
        assert_eq!(link(word).unwrap(), Path::new(name), "{word}");
    }
    // Nobody asks for these but by mistake.
    for word in ["cp", "0", "tomorrow", "x+cp1", &format!("2000-01-01T00.00.00Z+cp{first}")] {
        assert_eq!(errno(link(word)), Errno::NOENT, "{word}");
    }
}

/// A name that meant nothing, or another moment, may mean this one in the next second. The kernel
/// remembered for a day what was not there.
#[test]
fn names_of_moments_are_not_remembered() {
    let world = world();
    let dir = world.directory("dir");
    let first = world.checkpoint();
    let next = dir.join(format!(".checkpoints/cp{}", first + 1));
    let now = dir.join(".checkpoints/now");
    let before = fs::canonicalize(&now).unwrap();
    assert!(before.ends_with(at(&dir, first).file_name().unwrap()));
    assert_eq!(errno(fs::metadata(&next)), Errno::NOENT);
    let second = world.checkpoint();
    assert_eq!(second, first + 1);
    assert!(fs::metadata(&next).is_ok());
    assert_eq!(fs::canonicalize(&now).unwrap(), fs::canonicalize(&next).unwrap());
}

#[test]
fn the_door_can_have_another_name() {
    let world = world_with(PastSettings { name: "#snap".to_owned(), ..PastSettings::default() });
    let dir = world.directory("dir");
    world.checkpoint();
    assert!(!names(&dir.join("#snap")).is_empty());
    assert_eq!(errno(fs::create_dir(dir.join("#snap"))), Errno::EXIST);
    fs::create_dir(dir.join(".checkpoints")).unwrap();
    assert_eq!(names(&dir.join(".checkpoints")), [""; 0]);
}

/// A volume that was written without a door may have files of its name.
#[test]
fn a_file_of_that_name_comes_before_the_door() {
    let mut world = World::new();
    world.directory("dir");
    fs::create_dir(world.path("dir/.checkpoints")).unwrap();
    world.file("dir/.checkpoints/own", "content");
    world.set(Settings { past: Some(PastSettings::default()), ..Settings::default() });
    world.remount();
    assert_eq!(names(&world.path("dir/.checkpoints")), ["own"]);
    assert!(!names(&world.path(".checkpoints")).is_empty());
    // It can go, and then the past is seen.
    fs::remove_dir_all(world.path("dir/.checkpoints")).unwrap();
    assert!(names(&world.path("dir/.checkpoints")).iter().any(|name| name.contains("+cp")));
}

#[test]
fn without_the_option_there_is_no_door() {
    let world = World::new();
    world.checkpoint();
    assert_eq!(errno(fs::metadata(world.path(".checkpoints"))), Errno::NOENT);
}

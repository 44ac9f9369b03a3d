//! The past of a directory, in `.checkpoints` within it.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use nilfs_fuse::{PastAccess, PastSettings, Settings};
use rustix::io::Errno;

use crate::support::{World, as_nobody, chmod, errno, names};

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
    assert_eq!(errno(fs::remove_dir(dir.join(".checkpoints"))), Errno::ROFS);
    assert_eq!(errno(fs::create_dir(dir.join(".checkpoints"))), Errno::EXIST);
    let other = world.directory("other");
    assert_eq!(errno(fs::rename(other, dir.join(".checkpoints"))), Errno::EXIST);
    assert_eq!(fs::read(&file).unwrap(), b"content");
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

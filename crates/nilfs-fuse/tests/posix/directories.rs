//! Directories as their readers see them.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::Errno;

use crate::support::{World, errno, names};

#[test]
fn a_large_directory_lists_every_name_once() {
    const COUNT: usize = 20_000;
    let mut world = World::new();
    world.directory("large");
    for nth in 0..COUNT {
        world.file(&format!("large/file {nth}"), "");
    }
    let expected: HashSet<_> = (0..COUNT).map(|nth| format!("file {nth}")).collect();
    for _ in 0..2 {
        let listed = names(&world.path("large"));
        assert_eq!(listed.len(), COUNT);
        assert_eq!(listed.into_iter().collect::<HashSet<_>>(), expected);
        world.remount();
    }
    fs::remove_dir_all(world.path("large")).unwrap();
}

#[test]
fn a_reader_sees_names_that_stay_exactly_once_while_others_come_and_go() {
    const STAY: usize = 2000;
    let world = World::new();
    let directory = world.directory("directory");
    for nth in 0..STAY {
        world.file(&format!("directory/stays {nth}"), "");
        world.file(&format!("directory/goes {nth}"), "");
    }
    let mut seen: HashMap<String, usize> = HashMap::new();
    for (nth, entry) in fs::read_dir(&directory).unwrap().enumerate() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        *seen.entry(name).or_default() += 1;
        if nth % 2 == 0 {
            // Whether these are seen is nobody's promise.
            let _ = fs::remove_file(world.path(&format!("directory/goes {}", STAY - 1 - nth / 2)));
            world.file(&format!("directory/comes {nth}"), "");
        }
        assert!(nth < 10 * STAY, "the directory has no end");
    }
    for nth in 0..STAY {
        assert_eq!(seen.get(&format!("stays {nth}")), Some(&1), "stays {nth}");
    }
    assert!(seen.iter().all(|(_, times)| *times == 1));
}

#[test]
fn entries_name_the_inode_and_type_that_stat_gives() {
    let world = World::new();
    world.directory("directory");
    world.file("file", "");
    std::os::unix::fs::symlink("target", world.path("link")).unwrap();
    for entry in fs::read_dir(world.path("")).unwrap() {
        let entry = entry.unwrap();
        let metadata = fs::symlink_metadata(entry.path()).unwrap();
        let ino = std::os::unix::fs::DirEntryExt::ino(&entry);
        assert_eq!(ino, metadata.ino(), "{entry:?}");
        assert_eq!(entry.file_type().unwrap(), metadata.file_type(), "{entry:?}");
    }
}

#[test]
fn dots_lead_to_the_directory_and_its_parent() {
    let world = World::new();
    let directory = world.directory("directory");
    let root = fs::metadata(world.path("")).unwrap().ino();
    let own = fs::metadata(&directory).unwrap().ino();
    let listed: HashMap<_, _> = Dir::read_from(File::open(&directory).unwrap())
        .unwrap()
        .map(|entry| entry.map(|entry| (entry.file_name().to_owned(), entry.ino())).unwrap())
        .collect();
    assert_eq!(listed, HashMap::from([(c".".to_owned(), own), (c"..".to_owned(), root)]));
    assert_eq!(fs::metadata(directory.join("..")).unwrap().ino(), root);
}

#[test]
fn the_root_has_the_number_that_it_has_on_the_volume() {
    let world = World::new();
    assert_eq!(fs::metadata(world.path("")).unwrap().ino(), 2);
}

#[test]
fn a_directory_counts_its_subdirectories() {
    let world = World::new();
    let directory = world.directory("directory");
    let links = || fs::metadata(&directory).unwrap().nlink();
    assert_eq!(links(), 2);
    world.directory("directory/one");
    world.directory("directory/two");
    world.file("directory/file", "");
    assert_eq!(links(), 4);
    fs::remove_dir(world.path("directory/one")).unwrap();
    assert_eq!(links(), 3);
}

#[test]
fn only_an_empty_directory_can_be_removed() {
    let world = World::new();
    let directory = world.directory("directory");
    let file = world.file("directory/file", "");
    assert_eq!(errno(fs::remove_dir(&directory)), Errno::NOTEMPTY);
    assert_eq!(errno(fs::remove_dir(&file)), Errno::NOTDIR);
    assert_eq!(errno(fs::remove_file(&directory)), Errno::ISDIR);
    fs::remove_file(file).unwrap();
    fs::remove_dir(&directory).unwrap();
    assert_eq!(errno(fs::metadata(&directory)), Errno::NOENT);
}

#[test]
fn nothing_can_be_made_in_a_removed_directory() {
    let world = World::new();
    let path = world.directory("directory");
    let directory = File::open(&path).unwrap();
    fs::remove_dir(&path).unwrap();
    let flags = OFlags::CREATE | OFlags::WRONLY;
    let file = openat(&directory, "file", flags, Mode::RUSR);
    assert_eq!(file.unwrap_err(), Errno::NOENT);
    assert_eq!(mkdirat(&directory, "sub", Mode::RWXU), Err(Errno::NOENT));
    assert_eq!(directory.metadata().unwrap().nlink(), 0);
}

#[test]
fn names_are_found_from_an_open_directory_that_was_moved() {
    let world = World::new();
    let path = world.directory("here");
    world.file("here/file", "");
    let directory = File::open(&path).unwrap();
    world.directory("elsewhere");
    fs::rename(&path, world.path("elsewhere/there")).unwrap();
    unlinkat(&directory, "file", AtFlags::empty()).unwrap();
    assert_eq!(names(&world.path("elsewhere/there")), Vec::<String>::new());
}

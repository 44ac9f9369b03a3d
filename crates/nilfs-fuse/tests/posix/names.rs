//! Names: links, renames, special files.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, RenameFlags, makedev, mknodat};
use rustix::io::Errno;

use crate::support::{World, errno, names, open};

fn rename_with(from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()> {
    Ok(rustix::fs::renameat_with(CWD, from, CWD, to, flags)?)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn hard_links_are_one_file() {
    let mut world = World::new();
    let one = world.file("one", "content");
    let two = world.path("two");
    fs::hard_link(&one, &two).unwrap();
    fs::write(&two, "changed").unwrap();
    assert_eq!(read(&one), "changed");
    let (first, second) = (fs::metadata(&one).unwrap(), fs::metadata(&two).unwrap());
    assert_eq!((first.ino(), first.nlink()), (second.ino(), 2));
    fs::remove_file(&one).unwrap();
    assert_eq!(fs::metadata(&two).unwrap().nlink(), 1);
    world.remount();
    assert_eq!(read(&two), "changed");
}

#[test]
fn a_directory_cannot_have_a_second_name() {
    let world = World::new();
    let directory = world.directory("directory");
    assert_eq!(errno(fs::hard_link(directory, world.path("other"))), Errno::PERM);
}

#[test]
fn symbolic_links_keep_what_they_were_given() {
    let mut world = World::new();
    let longest = "t".repeat(4095);
    symlink(&longest, world.path("longest")).unwrap();
    symlink("../somewhere else", world.path("short")).unwrap();
    world.remount();
    assert_eq!(fs::read_link(world.path("longest")).unwrap(), Path::new(&longest));
    let short = world.path("short");
    assert_eq!(fs::read_link(&short).unwrap(), Path::new("../somewhere else"));
    assert_eq!(fs::symlink_metadata(&short).unwrap().len(), 17);
}

#[test]
fn a_name_can_have_255_bytes_of_any_kind_and_no_more() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let mut world = World::new();
    let bytes: Vec<u8> = (1..=255).map(|byte| if byte == b'/' { 0xff } else { byte }).collect();
    let path = world.path("").join(OsStr::from_bytes(&bytes));
    fs::write(&path, "x").unwrap();
    world.remount();
    assert_eq!(read(&path), "x");
    let longer = world.path(&"n".repeat(256));
    assert_eq!(errno(fs::write(longer, "x")), Errno::NAMETOOLONG);
}

#[test]
fn a_name_that_was_missed_is_found_once_it_exists() {
    let world = World::new();
    let path = world.path("late");
    assert_eq!(errno(fs::metadata(&path)), Errno::NOENT);
    fs::write(&path, "here").unwrap();
    assert_eq!(read(&path), "here");
    fs::remove_file(&path).unwrap();
    assert_eq!(errno(fs::metadata(&path)), Errno::NOENT);
    let other = world.file("other", "moved");
    fs::rename(other, &path).unwrap();
    assert_eq!(read(&path), "moved");
}

#[test]
fn rename_replaces_a_file_in_one_step() {
    let mut world = World::new();
    let (from, to) = (world.file("from", "new"), world.file("to", "old"));
    let old = File::open(&to).unwrap();
    fs::rename(&from, &to).unwrap();
    assert_eq!(names(&world.path("")), ["to"]);
    assert_eq!(read(&to), "new");
    assert_eq!(old.metadata().unwrap().nlink(), 0);
    drop(old);
    world.remount();
    assert_eq!(read(&to), "new");
}

#[test]
fn rename_noreplace_refuses_a_name_that_exists() {
    let world = World::new();
    let (from, to) = (world.file("from", "new"), world.file("to", "old"));
    assert_eq!(errno(rename_with(&from, &to, RenameFlags::NOREPLACE)), Errno::EXIST);
    assert_eq!(read(&to), "old");
    rename_with(&from, &world.path("free"), RenameFlags::NOREPLACE).unwrap();
    assert_eq!(names(&world.path("")), ["free", "to"]);
}

#[test]
fn rename_exchange_lets_a_file_and_a_directory_change_places() {
    let mut world = World::new();
    let (one, sub) = (world.directory("one"), world.directory("sub"));
    world.file("one/inner", "inner");
    let file = world.file("sub/file", "file");
    rename_with(&one, &file, RenameFlags::EXCHANGE).unwrap();
    world.remount();
    assert_eq!(read(&one), "file");
    assert_eq!(read(&file.join("inner")), "inner");
    assert_eq!(fs::metadata(&sub).unwrap().nlink(), 3);
    assert_eq!(fs::metadata(world.path("")).unwrap().nlink(), 3);
    let missing = world.path("missing");
    assert_eq!(errno(rename_with(&one, &missing, RenameFlags::EXCHANGE)), Errno::NOENT);
}

#[test]
fn a_rename_whiteout_is_refused() {
    let world = World::new();
    let file = world.file("file", "");
    let result = rename_with(&file, &world.path("to"), RenameFlags::WHITEOUT);
    assert_eq!(errno(result), Errno::INVAL);
}

#[test]
fn renaming_a_directory_takes_its_content_along() {
    let mut world = World::new();
    world.directory("a");
    world.directory("b");
    world.directory("a/moving");
    world.file("a/moving/file", "content");
    fs::rename(world.path("a/moving"), world.path("b/moved")).unwrap();
    world.remount();
    assert_eq!(read(&world.path("b/moved/file")), "content");
    let parent = fs::metadata(world.path("b/moved/..")).unwrap().ino();
    assert_eq!(parent, fs::metadata(world.path("b")).unwrap().ino());
    assert_eq!(fs::metadata(world.path("a")).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(world.path("b")).unwrap().nlink(), 3);
}

#[test]
fn rename_does_not_mix_files_and_directories_or_lose_content() {
    let world = World::new();
    let file = world.file("file", "");
    let full = world.directory("full");
    world.file("full/inner", "");
    let empty = world.directory("empty");
    assert_eq!(errno(fs::rename(&file, &empty)), Errno::ISDIR);
    assert_eq!(errno(fs::rename(&empty, &file)), Errno::NOTDIR);
    assert_eq!(errno(fs::rename(&empty, &full)), Errno::NOTEMPTY);
    assert_eq!(errno(fs::rename(&full, full.join("within"))), Errno::INVAL);
    fs::rename(&full, &empty).unwrap();
    assert_eq!(names(&empty), ["inner"]);
}

#[test]
fn an_open_file_lives_on_without_a_name_and_gives_its_room_back_at_the_end() {
    let mut world = World::new();
    let path = world.path("file");
    let file = open(&path, OFlags::CREATE).unwrap();
    file.write_all_at(&[1; 100_000], 0).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all_at(&[2; 100_000], 100_000).unwrap();
    let mut content = vec![0; 200_000];
    file.read_exact_at(&mut content, 0).unwrap();
    assert!(content[..100_000] == [1; 100_000] && content[100_000..] == [2; 100_000]);
    drop(file);
    // The check at the end finds an inode that nobody names, if there is one.
    world.remount();
    assert_eq!(names(&world.path("")), Vec::<String>::new());
}

#[test]
fn device_nodes_keep_their_numbers() {
    let mut world = World::new();
    for (name, kind) in [("char", FileType::CharacterDevice), ("block", FileType::BlockDevice)] {
        let device = makedev(259, 70_000);
        mknodat(CWD, world.path(name), kind, Mode::from_bits_retain(0o600), device).unwrap();
    }
    world.remount();
    let (char, block) = (world.path("char"), world.path("block"));
    let (char, block) = (fs::metadata(char).unwrap(), fs::metadata(block).unwrap());
    assert!(char.file_type().is_char_device() && block.file_type().is_block_device());
    assert_eq!([char.rdev(), block.rdev()], [makedev(259, 70_000); 2]);
}

#[test]
fn a_fifo_passes_bytes_on() {
    let mut world = World::new();
    let path = world.path("fifo");
    mknodat(CWD, &path, FileType::Fifo, Mode::from_bits_retain(0o600), 0).unwrap();
    world.remount();
    assert!(fs::metadata(&path).unwrap().file_type().is_fifo());
    let writer = std::thread::spawn({
        let path = path.clone();
        move || File::options().write(true).open(path).unwrap().write_all(b"through").unwrap()
    });
    assert_eq!(read(&path), "through");
    writer.join().unwrap();
}

#[test]
fn a_socket_can_be_connected_to() {
    let world = World::new();
    let path = world.path("socket");
    let listener = UnixListener::bind(&path).unwrap();
    assert!(fs::metadata(&path).unwrap().file_type().is_socket());
    let mut client = UnixStream::connect(&path).unwrap();
    client.write_all(b"hello").unwrap();
    drop(client);
    let mut heard = String::new();
    listener.accept().unwrap().0.read_to_string(&mut heard).unwrap();
    assert_eq!(heard, "hello");
}

//! How much room a volume says it has, and what happens when there is none.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::support::{SIZE, World, errno, open};

/// Bytes of a request to write.
const PIECE: usize = 1 << 20;

/// What programs that ask before they write are told, in bytes.
fn available(world: &World) -> u64 {
    let stat = rustix::fs::statvfs(world.path("")).unwrap();
    stat.f_bavail * stat.f_frsize
}

/// Deletes a file, whose room is available then.
fn delete(world: &World, path: &Path) {
    let (before, size) = (available(world), fs::metadata(path).unwrap().len());
    fs::remove_file(path).unwrap();
    let after = available(world);
    let gained = after.saturating_sub(before);
    assert!(gained > size * 9 / 10, "{gained} bytes are available after {size} were deleted");
}

/// Appends to a file until there is no room. Returns how many bytes the system calls have taken.
fn fill(path: &Path) -> u64 {
    let mut file = open(path, OFlags::CREATE | OFlags::APPEND).unwrap();
    let piece = vec![0x5a; PIECE];
    let mut written = 0;
    loop {
        match file.write(&piece) {
            Ok(count) => written += count as u64,
            Err(error) => {
                assert_eq!(Errno::from_io_error(&error), Some(Errno::NOSPC));
                return written;
            }
        }
    }
}

/// Makes files of a block each until there is no room for one; returns their number.
fn fill_with_files(dir: &Path) -> usize {
    for nth in 0.. {
        if let Err(error) = fs::write(dir.join(nth.to_string()), [0x5a; 4096]) {
            assert_eq!(Errno::from_io_error(&error), Some(Errno::NOSPC));
            return nth;
        }
    }
    unreachable!("a volume has an end")
}

/// Before the next checkpoint, statfs promises a little less than what was deleted: it counts no more blocks
/// of that than one checkpoint is sure to free.
fn is_about(bytes: u64, expected: u64, what: &str) {
    let range = expected * 92 / 100..=expected * 108 / 100;
    assert!(range.contains(&bytes), "{what}: {bytes} bytes, about {expected} expected");
}

#[test]
fn statfs_follows_what_is_written() {
    let mut world = World::new();
    let before = rustix::fs::statvfs(world.path("")).unwrap();
    assert_eq!((before.f_frsize, before.f_namemax), (4096, 255));
    assert!(before.f_blocks * 4096 <= SIZE && before.f_bavail <= before.f_bfree);
    world.file("file", vec![1; 8 << 20]);
    world.remount();
    let after = rustix::fs::statvfs(world.path("")).unwrap();
    let gone = (before.f_bfree - after.f_bfree) * 4096;
    assert!((8 << 20..16 << 20).contains(&gone), "8 MiB take {gone} bytes");
    assert_eq!(before.f_blocks, after.f_blocks);
}

#[test]
fn a_full_volume_says_so_at_the_write_and_recovers_by_deleting() {
    let mut world = World::new();
    let path = world.path("large");
    let written = fill(&path);
    assert!(written > 32 << 20, "only {written} bytes fitted");
    File::open(&path).unwrap().sync_all().unwrap();
    world.remount();
    assert_eq!(fs::metadata(&path).unwrap().len(), written);
    assert!(fs::read(&path).unwrap().iter().all(|byte| *byte == 0x5a));
    fs::remove_file(&path).unwrap();
}

/// After `rm` on a full volume, `df` showed 2 MB where a hundred could be written, so programs that
/// trust statvfs refused.
#[test]
fn what_is_available_can_be_written_and_is_available_again_after_rm() {
    let world = World::new();
    let fresh = available(&world);
    for round in 0..3 {
        let (path, told) = (world.path("file"), available(&world));
        is_about(told, fresh, &format!("available in round {round}"));
        is_about(fill(&path), told, &format!("written in round {round}"));
        let full = available(&world);
        assert!(full < fresh / 20, "{full} bytes are said to be available on a full volume");
        delete(&world, &path);
    }
}

/// The metadata of many files is given back as well.
#[test]
fn what_small_files_take_is_available_again_after_rm() {
    let world = World::new();
    let fresh = available(&world);
    let dir = world.directory("dir");
    let count = fill_with_files(&dir);
    fs::remove_dir_all(&dir).unwrap();
    is_about(available(&world), fresh, "available after rm");
    let dir = world.directory("dir");
    is_about(fill_with_files(&dir) as u64, count as u64, "files in the second round");
}

/// A large write to a volume with a little room was refused as a whole.
#[test]
fn a_write_of_which_a_part_fits_writes_that_part() {
    let mut world = World::new();
    let spare = [world.file("one", vec![1; 256 << 10]), world.file("other", vec![1; 4 << 20])];
    File::open(world.path("")).unwrap().sync_all().unwrap();
    let mut large = open(&world.path("large"), OFlags::CREATE | OFlags::APPEND).unwrap();
    fill(&world.path("large"));
    // What is less than a request is filled up as well.
    while large.write_all(&[2; 4096]).is_ok() {}
    drop(large);
    for (nth, spare) in spare.iter().enumerate() {
        let room = fs::metadata(spare).unwrap().len();
        delete(&world, spare);
        let path = world.path(&format!("part {nth}"));
        let written = fill(&path);
        let least = room / 2;
        assert!(written >= least, "{written} bytes fitted in the room of {room}");
        assert_eq!(fs::metadata(&path).unwrap().len(), written);
        File::open(&path).unwrap().sync_all().unwrap();
    }
    let parts: Vec<_> = ["part 0", "part 1"].map(|name| fs::read(world.path(name)).unwrap()).into();
    world.remount();
    for (nth, part) in parts.iter().enumerate() {
        assert!(part.iter().all(|byte| *byte == 0x5a));
        assert!(fs::read(world.path(&format!("part {nth}"))).unwrap() == *part);
    }
}

/// A program that tries again and again on a full volume is refused each time, and harms no other.
#[test]
fn a_volume_that_stays_full_can_still_be_read_and_deleted_from() {
    let world = World::new();
    let kept = world.file("kept", "content");
    let path = world.path("large");
    let written = fill(&path);
    for _ in 0..20 {
        let full: io::Result<()> = open(&path, OFlags::APPEND).unwrap().write_all(&[1; 8 * PIECE]);
        assert_eq!(errno(full), Errno::NOSPC);
        assert_eq!(fs::read(&kept).unwrap(), b"content");
    }
    assert!(fs::metadata(&path).unwrap().len() >= written);
    File::open(&path).unwrap().sync_all().unwrap();
    delete(&world, &path);
    fs::write(&kept, "changed").unwrap();
}

/// The kernel tells when unlink(2) has returned that nobody has the file any more, and waits for no
/// answer. For a moment its blocks were neither free nor could they be deleted, and a write was
/// refused.
#[test]
fn a_write_after_rm_is_not_refused_and_a_file_that_is_open_stays() {
    let world = World::new();
    let open_file = world.file("open", vec![7; 1 << 20]);
    let reader = open(&open_file, OFlags::empty()).unwrap();
    fs::remove_file(&open_file).unwrap();
    let mut sizes = Vec::new();
    for round in 0..30 {
        let path = world.path("file");
        sizes.push(fill(&path));
        fs::remove_file(&path).unwrap();
        // Not even statfs comes in between, which looks as well.
        let small = world.path("small");
        fs::write(&small, vec![1; 4 << 20]).unwrap_or_else(|error| panic!("{round}: {error}"));
        fs::remove_file(&small).unwrap();
    }
    let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
    assert!(*least > most * 95 / 100, "{sizes:?} bytes could be written");
    let mut content = Vec::new();
    io::Read::read_to_end(&mut { reader }, &mut content).unwrap();
    assert!(content == vec![7; 1 << 20]);
}

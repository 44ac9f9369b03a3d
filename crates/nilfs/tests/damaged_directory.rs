//! A directory one of whose blocks is damaged, as programs see it: the names in other blocks are all there,
//! and for those in this one there is an error. The superuser and `/dev/fuse` are needed; io_uring where the
//! kernel offers it.

mod common {
    pub mod ours;
}
#[path = "../../nilfs-fuse/tests/posix/switch.rs"]
mod switch;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use common::ours::{Image, Mounted};
use rustix::io::Errno;
use switch::Switch;

const FILES: usize = 300;

fn name(nth: usize) -> String {
    format!("a file with quite a long name, so that there are many blocks, {nth:03}")
}

/// A volume with a directory in which the block is damaged that has name 100.
fn damaged() -> Image {
    let image = Image::ours("--size 32M -b 1024 -B 256");
    let mounted = image.mount("cleaner-config=/dev/null");
    fs::create_dir(mounted.join("dir")).unwrap();
    (0..FILES).for_each(|nth| fs::write(mounted.join("dir").join(name(nth)), b"content").unwrap());
    mounted.unmount();
    let bytes = fs::read(image.path()).unwrap();
    let mut places = bytes.windows(name(100).len()).enumerate().rev();
    let last = places.find(|(_, it)| *it == name(100).as_bytes()).unwrap().0;
    let file = File::options().write(true).open(image.path()).unwrap();
    file.write_all_at(b"!", last as u64).unwrap();
    image
}

fn errno(error: &io::Error) -> Option<i32> {
    error.raw_os_error()
}

/// The names that a directory lists, and whether that ends with EIO. Any other end fails.
fn list(dir: &Path) -> (BTreeSet<String>, bool) {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(dir).unwrap() {
        match entry {
            Ok(entry) => assert!(names.insert(entry.file_name().into_string().unwrap())),
            Err(error) => {
                assert_eq!(errno(&error), Some(Errno::IO.raw_os_error()));
                return (names, true);
            }
        }
    }
    (names, false)
}

#[track_caller]
fn is_eio<T>(result: io::Result<T>) {
    let found = result.err().as_ref().and_then(errno);
    assert_eq!(found, Some(Errno::IO.raw_os_error()));
}

/// Looks at everything that must be the same for all views of the directory. Returns the names that are lost.
fn look(dir: &Path) -> BTreeSet<String> {
    let (listed, ends_with_error) = list(dir);
    assert!(ends_with_error, "{} names of {}", listed.len(), dir.display());
    let lost: BTreeSet<_> = (0..FILES).map(name).filter(|it| !listed.contains(it)).collect();
    assert!(lost.len() > 5 && lost.len() < 20, "{} names are lost", lost.len());
    for name in (0..FILES).map(name) {
        match fs::read(dir.join(&name)) {
            Ok(content) => assert!(content == b"content" && listed.contains(&name)),
            Err(error) => {
                assert!(lost.contains(&name), "{name}: {error}");
                assert_eq!(errno(&error), Some(Errno::IO.raw_os_error()));
            }
        }
    }
    is_eio(fs::metadata(dir.join("another")));
    let ls = Command::new("ls").arg("-l").arg(dir).output().unwrap();
    assert_eq!(ls.status.code(), Some(2), "{ls:?}");
    // The first line has the number of blocks.
    assert_eq!(String::from_utf8(ls.stdout).unwrap().lines().count(), 1 + listed.len());
    lost
}

/// The newest checkpoint, by way of the directory's past.
fn past_of(dir: &Path) -> std::path::PathBuf {
    let entries = fs::read_dir(dir.join(".checkpoints")).unwrap();
    entries.map(|entry| entry.unwrap().path()).max().unwrap()
}

#[track_caller]
fn unmount_after_one_word(mounted: Mounted) {
    let said = mounted.unmount_after_words();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("bytes ") && said.contains(" of inode ") && said.contains("damaged"));
}

/// A mount that writes had no name of the whole directory, and said so to `ls` by an error alone.
fn costs_what_is_in_it(transport: &str) {
    let image = damaged();
    let options = format!("transport={transport},cleaner-config=/dev/null");
    let read_only = image.mount(&format!("ro,{options}"));
    let lost = look(&read_only.join("dir"));
    unmount_after_one_word(read_only);
    let mounted = image.mount(&options);
    let dir = mounted.join("dir");
    assert_eq!(look(&dir), lost);
    assert_eq!(look(&past_of(&dir)), lost);
    for name in lost.iter().map(String::as_str).take(2).chain(["another"]) {
        is_eio(fs::write(dir.join(name), b"new"));
        is_eio(fs::create_dir(dir.join(name)));
        is_eio(fs::hard_link(dir.join(self::name(0)), dir.join(name)));
        is_eio(fs::rename(dir.join(self::name(0)), dir.join(name)));
        is_eio(fs::remove_file(dir.join(name)));
    }
    fs::remove_file(dir.join(name(0))).unwrap();
    fs::rename(dir.join(name(1)), mounted.join("moved")).unwrap();
    fs::write(dir.join(name(2)), b"changed").unwrap();
    for (nth, name) in (3..FILES).map(name).enumerate() {
        if !lost.contains(&name) && nth % 2 == 0 {
            fs::remove_file(dir.join(name)).unwrap();
        }
    }
    mounted.checkpoint();
    unmount_after_one_word(mounted);
    let mounted = image.mount(&options);
    let dir = mounted.join("dir");
    assert_eq!(fs::read(mounted.join("moved")).unwrap(), b"content");
    assert_eq!(fs::read(dir.join(name(2))).unwrap(), b"changed");
    let (names, ends_with_error) = list(&dir);
    assert!(ends_with_error && names.len() < FILES / 2, "{}", names.len());
    names.iter().for_each(|name| fs::remove_file(dir.join(name)).unwrap());
    is_eio(fs::remove_dir(&dir));
    unmount_after_one_word(mounted);
}

#[test]
fn a_damaged_block_of_a_directory_costs_the_names_in_it() {
    costs_what_is_in_it("dev");
    if let Some(_on) = Switch::on() {
        costs_what_is_in_it("uring");
    }
}

//! Making files contiguous. The superuser and `/dev/fuse` are needed.

mod common {
    pub mod asking;
    pub mod ours;
}

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use common::asking::{nilfs, refused, works};
use common::ours::{Image, Mounted};
use serde_json::Value;

/// No cleaner that works by itself, and nothing of the system's settings.
const MOUNT: &str = "nogc,pp=0,cleaner-config=/dev/null";

/// Pieces in which each file is written, and their bytes.
const PIECES: usize = 20;
const PIECE: usize = 16 << 10;

/// A volume with two files of which pieces were written by turns.
fn fragmented() -> (Image, Mounted) {
    let image = Image::ours("--size 32M -B 256");
    let mounted = image.mount(MOUNT);
    fs::create_dir(mounted.join("dir")).unwrap();
    let mut files = ["dir/one", "dir/two"].map(|name| File::create(mounted.join(name)).unwrap());
    for piece in 0..PIECES {
        for file in &mut files {
            file.write_all(&vec![piece as u8; PIECE]).unwrap();
            file.sync_all().unwrap();
        }
    }
    (image, mounted)
}

#[track_caller]
fn defrag(words: &[&str], path: &Path) -> Vec<Value> {
    let printed = works(&[&["defrag", "--json"], words].concat(), path, &[]);
    serde_json::from_str(&printed).unwrap()
}

#[test]
fn files_become_contiguous_and_stay_what_they_are() {
    let (image, mounted) = fragmented();
    let snapshot = works(&["snapshot", "create"], mounted.root(), &[]);
    let manifest = mounted.manifest("");
    let done = defrag(&[], &mounted.join("dir/one"));
    // A piece for which a segment has no room left is divided.
    assert!(done[0]["extents_before"].as_u64().unwrap() >= PIECES as u64);
    assert_eq!(
        (&done[0]["extents_after"], &done[0]["moved_bytes"]),
        (&1.into(), &(PIECES * PIECE).into())
    );
    let again = defrag(&[], &mounted.join("dir/one"));
    assert_eq!((&again[0]["extents_before"], &again[0]["moved_bytes"]), (&1.into(), &0.into()));
    assert!(mounted.manifest("") == manifest);
    mounted.unmount();
    image.check();
    let past = image.mount(&format!("ro,cp={}", snapshot.trim()));
    assert!(past.manifest("") == manifest);
    past.unmount();
}

#[test]
fn directories_are_taken_when_asked_for_and_the_budget_is_kept() {
    let (image, mounted) = fragmented();
    let said = refused(&["defrag"], mounted.root(), &[]);
    assert!(said.contains("is a directory; use -r"), "{said}");
    // Enough for one of them, and the blocks of its map.
    let budget = (PIECES * PIECE + 8192).to_string();
    let done = defrag(&["-r", "--budget", &budget], mounted.root());
    let over: Vec<_> = done.iter().map(|file| file["over_budget"].as_bool().unwrap()).collect();
    assert_eq!((over, &done[0]["extents_after"]), (vec![false, true], &1.into()));
    let table = works(&["defrag", "-r"], mounted.root(), &[]);
    assert_eq!(table.lines().count(), 3, "{table}");
    mounted.unmount();
    image.check();
}

#[test]
fn what_cannot_be_taken_is_named_and_the_others_are_taken() {
    let (_image, mounted) = fragmented();
    let file = mounted.join("dir/one");
    let words = ["defrag", "/etc/hostname", "/nowhere", "--json"];
    let (code, printed, said) = nilfs(&words, &file, &[]);
    assert_eq!(code, Some(1));
    let done: Vec<Value> = serde_json::from_str(&printed).unwrap();
    assert_eq!((done.len(), &done[0]["extents_after"]), (1, &1.into()));
    let expected = "\
nilfs: /etc/hostname: is not on a volume that is mounted by nilfs
nilfs: /nowhere: No such file or directory
nilfs: 2 files could not be defragmented
";
    assert_eq!(said, expected);
    mounted.unmount();
}

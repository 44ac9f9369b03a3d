//! Rolling back a volume that is mounted: what programs see that look on, and have files open. The
//! superuser and `/dev/fuse` are needed.

mod common {
    pub mod ours;
}

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Output};

use common::ours::{Image, Mounted};
use nilfs_real_kernels::Manifest;
use serde_json::Value;

/// A mounted volume.
fn volume() -> (Image, Mounted) {
    let image = Image::ours("--size 256M");
    let mounted = image.mount("rw");
    (image, mounted)
}

fn run(words: &[&str], place: &Path) -> Output {
    let mut nilfs = Command::new(env!("CARGO_BIN_EXE_nilfs"));
    nilfs.args(words).arg(place).output().unwrap()
}

#[track_caller]
fn said(output: &Output) -> String {
    let (stdout, stderr) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && stderr.is_empty(), "{stderr}");
    String::from_utf8_lossy(stdout).into_owned()
}

/// The one line that a command says which refuses something.
#[track_caller]
fn refused(output: &Output) -> String {
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    let sentence = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
    assert_eq!(sentence.lines().count(), 1, "{sentence}");
    sentence
}

/// Makes a snapshot of the present.
fn snapshot(mounted: &Mounted) -> String {
    said(&run(&["snapshot", "create"], mounted.root())).trim().to_owned()
}

#[track_caller]
fn roll_back(to: &str, place: &Path) -> Value {
    serde_json::from_str(&said(&run(&["rollback", "--json", to], place))).unwrap()
}

#[test]
fn what_the_kernel_remembers_is_forgotten() {
    let (image, mounted) = volume();
    let path = |name: &str| mounted.join(name);
    fs::create_dir_all(path("dir/below")).unwrap();
    fs::write(path("dir/written"), "then").unwrap();
    fs::write(path("dir/removed"), "then").unwrap();
    fs::write(path("dir/below/moved"), "then").unwrap();
    let to = snapshot(&mounted);
    said(&run(
        &["snapshot", "rename", mounted.root().to_str().unwrap(), &to],
        "milestone".as_ref(),
    ));
    let then = mounted.manifest("");
    fs::write(path("dir/written"), "something longer").unwrap();
    fs::remove_file(path("dir/removed")).unwrap();
    fs::rename(path("dir/below/moved"), path("dir/moved")).unwrap();
    fs::write(path("dir/new"), "new").unwrap();
    // The kernel has seen everything: names that are there and are not, content, and lists.
    let before = mounted.manifest("");
    assert!(!path("dir/removed").exists() && !path("dir/below/moved").exists());
    roll_back(&to, mounted.root());
    assert_eq!(Manifest::diff(&then, &mounted.manifest("")), [""; 0]);
    assert!(!path("dir/new").exists() && !path("dir/moved").exists());
    assert_eq!(fs::read(path("dir/written")).unwrap(), b"then");
    assert_eq!(fs::metadata(path("dir/written")).unwrap().len(), 4);
    let names = fs::read_dir(path("dir")).unwrap().count();
    assert_eq!(names, 3);
    // And it can be undone.
    let listed: Vec<Value> =
        serde_json::from_str(&said(&run(&["snapshot", "list", "--json"], mounted.root()))).unwrap();
    let undo = listed.last().unwrap();
    assert_eq!(undo["note"], format!("before the rollback to checkpoint {to}"), "{undo}");
    let undo = undo["checkpoint"].to_string();
    roll_back(&undo, mounted.root());
    assert_eq!(Manifest::diff(&before, &mounted.manifest("")), [""; 0]);
    // The names of snapshots are not rolled back.
    roll_back("milestone", mounted.root());
    assert_eq!(Manifest::diff(&then, &mounted.manifest("")), [""; 0]);
    mounted.unmount();
    image.check();
}

#[test]
fn open_files_stay_the_files_that_they_are() {
    let (image, mounted) = volume();
    let path = |name: &str| mounted.join(name);
    fs::write(path("kept"), "then").unwrap();
    fs::write(path("gone"), "then").unwrap();
    let number = fs::metadata(path("gone")).unwrap().ino();
    let to = snapshot(&mounted);
    fs::write(path("kept"), "now, and longer").unwrap();
    fs::remove_file(path("gone")).unwrap();
    // A file of the present gets the number of one that comes back, and stays open.
    let mut open = loop {
        mounted.checkpoint();
        let made =
            File::options().read(true).write(true).create_new(true).open(path("new")).unwrap();
        if made.metadata().unwrap().ino() == number {
            break made;
        }
        drop(made);
        fs::remove_file(path("new")).unwrap();
    };
    open.write_all(b"of the present").unwrap();
    let mut kept = File::options().read(true).write(true).open(path("kept")).unwrap();
    roll_back(&to, mounted.root());
    assert_eq!(fs::read(path("gone")).unwrap(), b"then");
    assert!(!path("new").exists());
    open.write_all(b", still").unwrap();
    let mut content = String::new();
    open.rewind().unwrap();
    open.read_to_string(&mut content).unwrap();
    assert_eq!(content, "of the present, still");
    assert_eq!(open.metadata().unwrap().nlink(), 0);
    assert_eq!(fs::read(path("gone")).unwrap(), b"then", "it is another file");
    content.clear();
    kept.read_to_string(&mut content).unwrap();
    assert_eq!(content, "then");
    kept.write_all_at(b"T", 0).unwrap();
    assert_eq!(fs::read(path("kept")).unwrap(), b"Then");
    drop((open, kept));
    mounted.unmount();
    image.check();
}

#[test]
fn what_would_change_is_listed_and_what_cannot_be_is_said() {
    let (image, mounted) = volume();
    let path = |name: &str| mounted.join(name);
    fs::create_dir(path("dir")).unwrap();
    fs::write(path("dir/gone"), "then").unwrap();
    fs::write(path("other"), "then").unwrap();
    let to = snapshot(&mounted);
    fs::remove_file(path("dir/gone")).unwrap();
    fs::write(path("other"), "now").unwrap();
    let listed = said(&run(&["rollback", "-n", "--json", &to], mounted.root()));
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let changes: Vec<_> = listed["changes"].as_array().unwrap().iter().collect();
    let told = |it: &&Value| {
        format!("{} {}", it["change"].as_str().unwrap(), it["path"].as_str().unwrap())
    };
    assert_eq!(changes.iter().map(told).collect::<Vec<_>>(), ["added dir/gone", "modified other"]);
    let part = said(&run(&["rollback", "-n", &to], &path("dir")));
    assert_eq!(part.lines().count(), 2, "{part}");
    assert!(!path("dir/gone").exists(), "nothing was done");
    roll_back(&to, &path("dir/gone"));
    assert_eq!(fs::read(path("other")).unwrap(), b"now", "nothing else is rolled back");
    assert_eq!(fs::read(path("dir/gone")).unwrap(), b"then");

    let says = |words: &[&str], place: &Path, what: &str| {
        let sentence = refused(&run(words, place));
        assert!(sentence.contains(what), "{sentence}");
    };
    says(&["rollback", "99"], mounted.root(), "there is no checkpoint 99");
    says(&["rollback", &to], &path("never"), "has no such file or directory");
    says(&["rollback", "-n", &to], &path("never"), "no such file or directory");
    says(&["rollback", &to], Path::new("/"), "not a block device");
    fs::remove_dir_all(path("dir")).unwrap();
    says(&["rollback", &to], &path("dir/gone"), "roll back a directory above it");
    mounted.unmount();
    let mounted = image.mount("ro");
    says(&["rollback", &to], mounted.root(), "read-only");
    mounted.unmount();
    // And without a process that serves it.
    assert!(roll_back(&to, &image.path())["checkpoint"].is_u64());
    image.check();
}

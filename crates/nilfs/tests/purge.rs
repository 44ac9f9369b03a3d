//! Purging a file by the command, mounted or not: what is asked, done, and said. The superuser and
//! `/dev/fuse` are needed.

mod common {
    pub mod ours;
}

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::ours::Image;
use serde_json::Value;

const SECRET: &[u8] = b"the secret that nobody may ever find again";

fn run(words: &[&str], operands: &[&Path]) -> Output {
    let mut nilfs = Command::new(env!("CARGO_BIN_EXE_nilfs"));
    nilfs.args(words).args(operands).stdin(Stdio::null()).output().unwrap()
}

#[track_caller]
fn said(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn is_on(image: &Image) -> bool {
    let bytes = fs::read(image.path()).unwrap();
    bytes.windows(SECRET.len()).any(|window| window == SECRET)
}

#[test]
fn a_secret_goes_from_the_past_when_that_was_agreed_to() {
    let image = Image::ours("--size 256M");
    let mounted = image.mount("rw");
    let secret = mounted.join("secret");
    fs::write(mounted.join("other"), "other").unwrap();
    for round in 1..4 {
        fs::write(&secret, SECRET.repeat(round * 100)).unwrap();
        File::open(&secret).unwrap().sync_all().unwrap();
        assert!(run(&["snapshot", "create"], &[mounted.root()]).status.success());
    }
    fs::remove_file(&secret).unwrap();
    let listed = said(&run(&["purge", "-n", "--json"], &[&secret]));
    let snapshots = listed["checkpoints"].as_array().unwrap().iter();
    assert_eq!(snapshots.filter(|it| it["snapshot"] == true).count(), 3, "{listed}");

    // Nobody can be asked.
    let refused = run(&["purge"], &[&secret]);
    assert_eq!(refused.status.code(), Some(6));
    let sentence = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(sentence.contains("3 of them") && sentence.contains("use -y"), "{sentence}");
    assert!(is_on(&image), "nothing was done");

    let part = said(&run(&["purge", "-y", "--json", "--keep-snapshots"], &[&secret]));
    assert_eq!(part["snapshots"].as_array().unwrap().len(), 3, "{part}");
    assert!(is_on(&image), "snapshots have it");
    let done = said(&run(&["purge", "-y", "--json"], &[&secret]));
    assert_eq!((&done["left"], &done["present_bytes"]), (&0.into(), &0.into()), "{done}");
    assert!(!is_on(&image), "{done}");
    assert_eq!(fs::read(mounted.join("other")).unwrap(), b"other");
    // It is nowhere any more, and if that was not finished, one is told how to do it.
    let gone = run(&["purge", "-y"], &[&secret]);
    assert_eq!(gone.status.code(), Some(1));
    let sentence = String::from_utf8_lossy(&gone.stderr).into_owned();
    assert!(sentence.contains("no checkpoint has /secret"), "{sentence}");
    assert!(sentence.contains("nilfs purge --finish"), "{sentence}");
    said(&run(&["purge", "--finish", "--json"], &[&image.path()]));

    // A whole directory, but never the whole volume.
    let keys = mounted.join("keys");
    fs::create_dir_all(keys.join("old")).unwrap();
    fs::write(keys.join("old/key"), SECRET.repeat(50)).unwrap();
    assert!(run(&["sync"], &[mounted.root()]).status.success());
    fs::remove_dir_all(&keys).unwrap();
    let all = run(&["purge", "-y"], &[mounted.root()]);
    assert_eq!(all.status.code(), Some(1));
    assert!(is_on(&image));
    let done = said(&run(&["purge", "-y", "--json"], &[&keys]));
    assert_eq!((&done["left"], &done["present_bytes"]), (&0.into(), &0.into()), "{done}");
    assert!(!is_on(&image), "{done}");

    // A file that was moved is named by where it is, and so can be purged.
    fs::write(&secret, SECRET).unwrap();
    assert!(run(&["sync"], &[mounted.root()]).status.success());
    let moved = mounted.join("moved");
    fs::rename(&secret, &moved).unwrap();
    let listed = said(&run(&["purge", "-n", "--json"], &[&secret]));
    assert_eq!(listed["moved"], serde_json::json!([{ "path": "moved", "present": true }]));
    let done = run(&["purge", "-y"], &[&secret]);
    let sentence = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(sentence.contains("as moved; delete that, and purge it by that name"), "{sentence}");
    fs::remove_file(&moved).unwrap();
    said(&run(&["purge", "-y", "--json"], &[&moved]));
    assert!(!is_on(&image));

    // By the image, too.
    fs::write(&secret, SECRET).unwrap();
    mounted.unmount();
    assert!(is_on(&image));
    let place = image.path();
    let present = said(&run(&["purge", "-y", "--json"], &[&place, Path::new("secret")]));
    assert!(present["present_bytes"].as_u64().unwrap() > 0, "{present}");
    let mounted = image.mount("rw");
    fs::remove_file(mounted.join("secret")).unwrap();
    mounted.unmount();
    said(&run(&["purge", "-y", "--json", "--overwrite"], &[&place, Path::new("secret")]));
    assert!(!is_on(&image));
    image.check();
}

/// One looks whether it is there before one purges it, and what was looked at was kept for a while.
#[test]
fn what_somebody_has_just_looked_at_goes_as_well() {
    let image = Image::ours("--size 256M");
    let mounted = image.mount("rw,past-hold=1h");
    let secret = mounted.join("secret");
    fs::write(&secret, SECRET.repeat(100)).unwrap();
    let made = run(&["sync"], &[mounted.root()]);
    let number = String::from_utf8_lossy(&made.stdout).trim().to_owned();
    fs::remove_file(&secret).unwrap();
    let past = mounted.join(&format!(".checkpoints/{number}/secret"));
    let looked_at = File::open(&past).unwrap();
    assert_eq!(fs::read(&past).unwrap(), SECRET.repeat(100));
    let done = said(&run(&["purge", "-y", "--json"], &[&secret]));
    assert_eq!((&done["left"], &done["read"]), (&0.into(), &serde_json::json!([])), "{done}");
    assert!(!is_on(&image), "{done}");
    assert!(File::open(&past).is_err());
    drop(looked_at);
    mounted.unmount();
    image.check();
}

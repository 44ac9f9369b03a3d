//! The cleaner's settings, from files and from words after `-o`, as a mount takes them. The
//! superuser and `/dev/fuse` are needed.

mod common {
    pub mod ours;
}

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use common::ours::Image;
use serde_json::Value;

/// Runs the command: its exit code and what it complained of.
fn nilfs<'a>(words: impl IntoIterator<Item = &'a Path>) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nilfs"));
    let output = command.args(words).stdin(Stdio::null()).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// Mounts with a settings file of this name and content, and more options. Returns what was said,
/// and the cleaner as the mount describes it.
fn mounted_with(name: &str, content: &str, options: &str) -> (String, Value) {
    let image = Image::ours("--size 32M -B 256");
    let (file, dir) = (image.beside(name), image.beside("mnt"));
    fs::write(&file, content).unwrap();
    fs::create_dir(&dir).unwrap();
    let options = format!("cleaner-config={}{options}", file.display());
    let words = [Path::new("mount"), Path::new("-o"), Path::new(&options), &image.path(), &dir];
    let (code, said) = nilfs(words);
    assert_eq!(code, Some(0), "{said}");
    let mut status = Command::new(env!("CARGO_BIN_EXE_nilfs"));
    let status = status.args(["status", "--json"]).arg(&dir).output().unwrap();
    assert_eq!(nilfs([Path::new("umount"), &dir]), (Some(0), String::new()));
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    (said.replace(&file.display().to_string(), "FILE"), status["cleaner"].clone())
}

#[test]
fn both_kinds_of_files_are_taken() {
    let (said, cleaner) =
        mounted_with("a.conf", "protection_period 60\nselection_policy greedy\n", "");
    assert_eq!(said, "");
    assert_eq!(
        (&cleaner["protection_seconds"], &cleaner["policy"]),
        (&60.0.into(), &"greedy".into())
    );
    let ours = "[cleaner]\nprotection_period = '2m'\npolicy = 'timestamp'\nenabled = false\n";
    let (said, cleaner) = mounted_with("a.toml", ours, "");
    assert_eq!(said, "");
    assert_eq!(
        (&cleaner["protection_seconds"], &cleaner["policy"]),
        (&120.0.into(), &"timestamp".into())
    );
    assert_eq!(cleaner["state"], "off");
}

#[test]
fn words_after_o_win() {
    let ours = "[cleaner]\nprotection_period = 60\npolicy = 'greedy'\n";
    let (_, cleaner) = mounted_with("a.toml", ours, ",pp=7,policy=timestamp,nogc");
    assert_eq!(
        (&cleaner["protection_seconds"], &cleaner["policy"]),
        (&7.0.into(), &"timestamp".into())
    );
    assert_eq!(cleaner["state"], "off");
}

#[test]
fn what_is_wrong_is_told_and_keeps_nobody_from_mounting() {
    let (said, cleaner) = mounted_with("a.conf", "\nprotection_period soon\nfrob\n", "");
    let expected = "\
nilfs: FILE, line 2: protection_period: expected seconds, or a time such as 1h30m, not \"soon\"
nilfs: FILE, line 3: there is no setting \"frob\"
";
    assert_eq!(said, expected);
    assert_eq!(cleaner["protection_seconds"], 3600.0);
    let (said, cleaner) =
        mounted_with("a.toml", "[cleaner]\nprotection_period = 60\nfrob = 1\n", "");
    assert!(
        said.starts_with("nilfs: FILE, line 3: there is no setting \"frob\" (frob = 1); "),
        "{said}"
    );
    assert_eq!((said.lines().count(), &cleaner["protection_seconds"]), (1, &3600.0.into()));
}

#[test]
fn a_file_that_was_named_must_be_there() {
    let image = Image::ours("--size 32M -B 256");
    let dir = image.beside("mnt");
    fs::create_dir(&dir).unwrap();
    let options = Path::new("cleaner-config=/nowhere/cleaner.conf");
    let words = [Path::new("mount"), Path::new("-o"), options, &image.path(), &dir];
    let (code, said) = nilfs(words);
    assert_eq!(code, Some(1));
    assert!(said.contains("cannot read the cleaner's settings in /nowhere/cleaner.conf"), "{said}");
}

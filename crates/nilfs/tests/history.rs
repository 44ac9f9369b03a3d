//! What has changed between two moments, and the versions of a file. The superuser and `/dev/fuse` are
//! needed for what is about mounts.

mod common;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{CommandOutput, Volume, nilfs};
use rustix::mount::UnmountFlags;
use serde_json::{Value, json};

#[test]
fn the_past_of_an_image_is_compared_without_mounting_it() {
    let volume = common::volume();
    let at = volume.before_deletion;
    let names = volume.nilfs(&format!("diff --name-only {at} IMAGE")).output();
    let expected = "bell\\u{7}\ndirectory\ndirectory/file\ngone\nlink\nsecond name\nsparse\n";
    assert_eq!(names, expected);
    assert_eq!(volume.nilfs(&format!("diff {at} {at} IMAGE")).output(), "");
    let below = volume.nilfs(&format!("diff --name-only {at} now IMAGE directory/")).output();
    assert_eq!(below, "directory\ndirectory/file\n");
    let both = volume.nilfs(&format!("diff --name-only {at} IMAGE gone /directory/file")).output();
    assert_eq!(both, "directory/file\ngone\n");
    let raw = volume.nilfs(&format!("diff --name-only -z {at} IMAGE bell\x07")).output();
    assert_eq!(raw, "bell\x07\0");
    let missing = volume.nilfs(&format!("diff {at} IMAGE no-such")).sentence(1);
    assert!(missing.contains("neither") && missing.ends_with("has no-such"), "{missing}");
    let stat = volume.nilfs(&format!("diff --stat {at} IMAGE")).output();
    assert_eq!(stat, "6 files added, 1.0 MiB\n1 file removed, 12 B\n");
    let lines = volume.nilfs(&format!("diff -p {at} IMAGE gone directory")).output();
    assert_eq!(
        lines,
        "added directory/\nadded directory/file\n--- /dev/null\n+++ b/directory/file\n\
         @@ -0,0 +1 @@\n+content\nremoved gone\n--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-it was here\n"
    );
    let back = volume.nilfs(&format!("diff --json now {at} IMAGE gone")).output();
    let back: Value = serde_json::from_str(&back).unwrap();
    assert_eq!(back["to_checkpoint"], at.0);
    assert_eq!(
        back["changes"],
        json!([{
            "change": "added", "path": "gone", "type": "regular file",
            "size_before_bytes": null, "size_after_bytes": 12, "changed_bytes": 12,
        }])
    );
}

#[test]
fn the_versions_of_a_file_of_an_image_are_listed_also_of_one_that_is_gone() {
    let volume = common::volume();
    let at = volume.before_deletion;
    let log = volume.nilfs("log --json IMAGE gone").output();
    let log: Vec<Value> = serde_json::from_str(&log).unwrap();
    let seen: Vec<_> =
        log.iter().map(|it| (it["cause"].as_str(), it["size_bytes"].as_u64())).collect();
    assert_eq!(seen, [(Some("deleted"), Some(12)), (Some("created"), Some(12))]);
    assert_eq!(log[1]["checkpoint"], at.0);
    let lines = volume.nilfs("log -p -n 1 IMAGE gone").output();
    assert!(
        lines.ends_with("--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-it was here\n\n"),
        "{lines}"
    );
    let table = volume.nilfs(&format!("log --at {at} IMAGE gone")).output();
    assert!(table.lines().nth(1).unwrap().contains("created"), "{table}");
    let sentence = volume.nilfs("log IMAGE no/such").sentence(1);
    assert_eq!(sentence, "no checkpoint that is there has no/such");
}

#[test]
fn what_cannot_be_compared_is_said() {
    let volume = common::volume();
    for (line, expected, code) in [
        ("diff 99 IMAGE", "there is no checkpoint 99", 1),
        ("diff 1 99 IMAGE", "there is no checkpoint 99", 1),
        ("diff 1 mistyped.img", "there is no file mistyped.img", 4),
        ("diff 5x IMAGE", "invalid value '5x' for '<WHEN>'", 2),
        ("diff tomorrow IMAGE", "there is no snapshot called tomorrow", 1),
        ("diff -z 1 IMAGE", "--name-only", 2),
        ("diff 1 /no/such", "/no/such", 4),
        ("log IMAGE", "the path of a file on the volume is missing", 2),
        ("log --at 99 IMAGE gone", "there is no checkpoint 99", 1),
    ] {
        let sentence = volume.nilfs(line).sentence(code);
        assert!(sentence.contains(expected), "{line}: {sentence}");
    }
}

/// A volume that is mounted, until the end of the test.
struct Mounted {
    volume: Volume,
    dir: PathBuf,
}

impl Mounted {
    fn new() -> Self {
        Self::with("rw")
    }

    fn with(options: &str) -> Self {
        let volume = common::volume();
        let dir = volume.beside("mnt");
        fs::create_dir(&dir).unwrap();
        let options = ["mount", "-o", options].map(AsRef::as_ref);
        let operands = [volume.image.as_os_str(), dir.as_os_str()];
        nilfs(options.into_iter().chain(operands)).output();
        Self { volume, dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn nilfs(&self, line: &str) -> CommandOutput {
        let dir = self.dir.to_str().unwrap();
        nilfs(line.split(' ').map(|word| word.replace("MNT", dir)))
    }

    fn newest(&self) -> u64 {
        let listed = self.nilfs("checkpoints --json MNT").output();
        let listed: Vec<Value> = serde_json::from_str(&listed).unwrap();
        listed.last().unwrap()["checkpoint"].as_u64().unwrap()
    }

    fn sync(&self) {
        self.nilfs("sync MNT").output();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.dir, UnmountFlags::DETACH);
    }
}

#[test]
fn a_mounted_volume_tells_what_was_changed_until_now() {
    let mounted = Mounted::new();
    let before = mounted.newest();
    fs::write(mounted.path("directory/file"), "content\nand more\n").unwrap();
    fs::rename(mounted.path("sparse"), mounted.path("directory/moved")).unwrap();
    let told = mounted.nilfs(&format!("diff -p {before} MNT/directory/file")).output();
    let expected = "modified directory/file\n--- a/directory/file\n+++ b/directory/file\n\
                    @@ -1 +1,2 @@\n content\n+and more\n";
    assert_eq!(told, expected);
    let names = mounted.nilfs(&format!("diff --name-only {before} MNT")).output();
    assert_eq!(names, "directory/file\ndirectory/moved\nsecond name\n");
    // Once more, from what is known of the first time.
    fs::write(mounted.path("link"), "content\nand more\nand more\n").unwrap();
    let names = mounted.nilfs(&format!("diff --name-only {before} MNT")).output();
    assert_eq!(names, "directory/file\ndirectory/moved\nsecond name\n");
    let log = mounted.nilfs("log --json MNT/directory/moved").output();
    let log: Vec<Value> = serde_json::from_str(&log).unwrap();
    let seen: Vec<_> = log.iter().map(|it| (it["cause"].as_str(), it["path"].as_str())).collect();
    let renamed = (Some("renamed"), Some("directory/moved"));
    assert_eq!(seen, [renamed, (Some("created"), Some("sparse"))]);
}

/// A program that saves a file by writing a new one, with a checkpoint in between.
#[test]
fn a_file_that_was_saved_by_another_in_its_place_keeps_its_history() {
    let mounted = Mounted::new();
    for text in ["first\n", "second\n"] {
        fs::write(mounted.path("new~"), text).unwrap();
        mounted.sync();
        fs::rename(mounted.path("new~"), mounted.path("saved")).unwrap();
        mounted.sync();
    }
    let lines = mounted.nilfs("log -p -n 1 MNT/saved").output();
    assert!(lines.ends_with("-first\n+second\n\n"), "{lines}");
    let log: Vec<Value> =
        serde_json::from_str(&mounted.nilfs("log --json MNT/saved").output()).unwrap();
    let causes: Vec<_> = log.iter().map(|it| it["cause"].as_str().unwrap()).collect();
    assert_eq!(causes, ["replaced", "renamed", "created"]);
    fs::remove_file(mounted.path("saved")).unwrap();
    mounted.sync();
    fs::write(mounted.path("saved"), "again\n").unwrap();
    let log: Vec<Value> =
        serde_json::from_str(&mounted.nilfs("log --json MNT/saved").output()).unwrap();
    let causes: Vec<_> = log.iter().map(|it| it["cause"].as_str().unwrap()).collect();
    assert_eq!(causes, ["recreated", "deleted", "replaced", "renamed", "created"]);
}

/// Names are told to root and to the owner of the mount alone. Others are as they were without a mount:
/// what counts is whether they may read the device.
#[test]
fn others_are_told_nothing_that_they_may_not_see() {
    const NOBODY: u32 = 65534;
    let mounted = Mounted::new();
    let before = mounted.newest();
    fs::write(mounted.path("secret name"), "content").unwrap();
    mounted.sync();
    let set = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    set(mounted.volume.directory.path(), 0o755);
    set(&mounted.volume.image, 0o600);
    for words in [vec!["diff".to_owned(), before.to_string()], vec!["log".to_owned()]] {
        let output = Command::new(env!("CARGO_BIN_EXE_nilfs"))
            .args(&words)
            .arg(mounted.path(if words.len() == 1 { "secret name" } else { "" }))
            .stdin(Stdio::null())
            .uid(NOBODY)
            .gid(NOBODY)
            .output();
        let Ok(output) = output else {
            eprintln!("not tested: the program cannot be run by others");
            return;
        };
        let refused = CommandOutput::of(&output);
        let sentence = refused.sentence(4);
        assert!(sentence.contains("mounted with past=all"), "{words:?}: {sentence}");
        assert!(sentence.contains("Permission denied"), "{words:?}: {sentence}");
    }
}

/// With `past=all`, they see what the permissions of then and now allow, without leave to read the device.
#[test]
fn others_see_the_past_that_is_for_all_through_the_mount() {
    const NOBODY: u32 = 65534;
    let mounted = Mounted::with("past=all");
    let set = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    set(mounted.volume.directory.path(), 0o755);
    set(&mounted.volume.image, 0o600);
    for (name, mode) in [("open", 0o644), ("closed", 0o600)] {
        fs::write(mounted.path(name), "content\n").unwrap();
        set(&mounted.path(name), mode);
    }
    mounted.sync();
    let before = mounted.newest();
    fs::remove_file(mounted.path("open")).unwrap();
    let cat = |name: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_nilfs"))
            .arg("cat")
            .arg(mounted.path(&format!("{name}@{before}")))
            .stdin(Stdio::null())
            .uid(NOBODY)
            .gid(NOBODY)
            .output();
        output.map(|output| CommandOutput::of(&output))
    };
    let Ok(open) = cat("open") else {
        eprintln!("not tested: the program cannot be run by others");
        return;
    };
    assert_eq!(open.output(), "content\n");
    let sentence = cat("closed").unwrap().sentence(1);
    assert!(sentence.contains("Permission denied"), "{sentence}");
}

/// What they may see of what has changed is the same that the superuser sees, but for how many bytes
/// were written and for what is closed to them.
#[test]
fn others_are_told_what_has_changed_in_the_past_that_is_for_all() {
    const NOBODY: u32 = 65534;
    let mounted = Mounted::with("past=all");
    let set = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    set(mounted.volume.directory.path(), 0o755);
    set(&mounted.volume.image, 0o600);
    set(&mounted.path("directory"), 0o755);
    for dir in ["tree", "tree/moved", "tree/stays", "closed"] {
        fs::create_dir(mounted.path(dir)).unwrap();
    }
    for file in ["moved/file", "moved/written", "stays/file", "written", "replaced", "mode", "gone"]
    {
        fs::write(mounted.path("tree").join(file), file).unwrap();
    }
    fs::hard_link(mounted.path("tree/written"), mounted.path("tree/linked")).unwrap();
    mounted.sync();
    let before = mounted.newest();
    fs::write(mounted.path("closed/secret"), "content").unwrap();
    fs::write(mounted.path("tree/written"), "more than before").unwrap();
    fs::write(mounted.path("tree/moved/written"), "more than before").unwrap();
    fs::write(mounted.path("tree/new~"), "another").unwrap();
    fs::rename(mounted.path("tree/new~"), mounted.path("tree/replaced")).unwrap();
    fs::rename(mounted.path("tree/stays/file"), mounted.path("tree/stays/renamed")).unwrap();
    fs::rename(mounted.path("tree/moved"), mounted.path("tree/elsewhere")).unwrap();
    set(&mounted.path("tree/mode"), 0o600);
    fs::remove_file(mounted.path("tree/gone")).unwrap();
    fs::create_dir(mounted.path("tree/new")).unwrap();
    fs::write(mounted.path("tree/new/file"), "content").unwrap();
    set(&mounted.path("closed"), 0o700);
    mounted.sync();
    let after = mounted.newest();
    let asked = |line: &str| {
        let dir = mounted.dir.to_str().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_nilfs"));
        command.args(line.split(' ').map(|word| word.replace("MNT", dir)));
        command.stdin(Stdio::null()).uid(NOBODY).gid(NOBODY).output()
    };
    let diff = format!("diff --json {before} {after} MNT");
    let Ok(seen) = asked(&diff) else {
        eprintln!("not tested: the program cannot be run by others");
        return;
    };
    let said = String::from_utf8(seen.stderr).unwrap();
    assert_eq!(said, "nilfs: left out, because you may not look into it: closed\n");
    let changes = |json: &[u8]| -> Vec<Value> {
        let mut read: Value = serde_json::from_slice(json).unwrap();
        let mut changes = read["changes"].take();
        for change in changes.as_array_mut().unwrap() {
            change.as_object_mut().unwrap().remove("changed_bytes");
        }
        serde_json::from_value(changes).unwrap()
    };
    let mut expected = changes(mounted.nilfs(&diff).output().as_bytes());
    expected.retain(|change| !change["path"].as_str().unwrap().starts_with("closed/"));
    // That it is the same file only the process can tell, because it has another content as well.
    let is_moved = |change: &Value| change["path"] == "tree/elsewhere/written";
    expected.retain(|change| !is_moved(change));
    let mut told = changes(&seen.stdout);
    told.retain(|change| !is_moved(change) && change["path"] != "tree/moved/written");
    assert_eq!(told, expected);
    assert!(told.len() > 7, "{told:#?}");
    for path in ["tree/written", "tree/replaced", "tree/mode", "tree/gone"] {
        let log = format!("log --json MNT/{path}");
        let causes = |json: &[u8]| -> Vec<Value> {
            let read: Vec<Value> = serde_json::from_slice(json).unwrap();
            read.iter().map(|it| json!([it["cause"], it["checkpoint"], it["path"]])).collect()
        };
        let expected = causes(mounted.nilfs(&log).output().as_bytes());
        assert_eq!(causes(&asked(&log).unwrap().stdout), expected, "{path}");
    }
    let refused = CommandOutput::of(&asked("log MNT/closed/secret").unwrap()).sentence(1);
    assert!(refused.contains("Permission denied"), "{refused}");
}

#[test]
fn names_that_are_no_text_are_told_as_they_are() {
    let mounted = Mounted::new();
    let before = mounted.newest();
    let name = std::ffi::OsStr::from_bytes(b"a\nb\xff");
    fs::write(mounted.dir.join(name), "content").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_nilfs"))
        .args(["diff", "--name-only", "-z", &before.to_string()])
        .arg(&mounted.dir)
        .output()
        .unwrap();
    assert_eq!(output.stdout, b"a\nb\xff\0");
    let names = mounted.nilfs(&format!("diff --name-only {before} MNT")).output();
    assert_eq!(names, "a\\nb\\xff\n");
}

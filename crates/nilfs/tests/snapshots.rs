//! Names and notes of snapshots, and rules about which are kept, as people use them: on a mount and
//! without one. The superuser and `/dev/fuse` are needed.

mod common {
    pub mod asking;
    pub mod ours;
}

use std::fs;
use std::path::Path;

use common::asking::{json, nilfs, refused, works};
use common::ours::{Image, Mounted};

const MOUNT: &str = "nogc,cleaner-config=/dev/null";

fn image() -> Image {
    Image::ours("--size 32M -B 256")
}

/// Number, name and maker of every snapshot.
#[track_caller]
fn snapshots(path: &Path) -> Vec<(u64, String, String)> {
    let list = json(&["snapshot", "list"], path);
    let listed = list.as_array().unwrap().iter().map(|it| {
        let text = |field: &str| it[field].as_str().unwrap_or_default().to_owned();
        (it["checkpoint"].as_u64().unwrap(), text("name"), text("made_by"))
    });
    listed.collect()
}

/// Makes a file, and a checkpoint that has it.
fn write(mounted: &Mounted, content: &str) {
    fs::write(mounted.join("file"), content).unwrap();
    mounted.checkpoint();
}

#[test]
fn a_name_is_a_moment_wherever_one_can_be_named() {
    let image = image();
    let mounted = image.mount(MOUNT);
    let root = mounted.root();
    write(&mounted, "old");
    works(&["snapshot", "create", "-m", "before"], root, &[]);
    write(&mounted, "new");
    let file = mounted.join("file");
    assert_eq!(works(&["cat", "--at", "before"], &file, &[]), "old");
    assert_eq!(works(&["cat"], &file.with_file_name("file@before"), &[]), "old");
    assert_eq!(fs::read(root.join(".checkpoints/before/file")).unwrap(), b"old");
    assert!(works(&["diff", "before"], root, &[]).contains("modified"));
    works(&["restore", "-f", "--at", "before"], &file, &[]);
    assert_eq!(fs::read(&file).unwrap(), b"old");
    let past = image.mount("ro,cp=before");
    assert_eq!(fs::read(past.join("file")).unwrap(), b"old");
    past.unmount();
    mounted.unmount();
    assert_eq!(works(&["cat", "--at", "before"], &image.path(), &["file"]), "old");
    assert_eq!(works(&["cat"], &image.path(), &["file@before"]), "old");
    let said = refused(&["cat", "--at", "befor"], &image.path(), &["file"]);
    assert!(said.contains("there is no snapshot called befor"), "{said}");
}

/// Whatever follows a `@` could be a name.
#[test]
fn a_file_with_an_at_in_its_name_is_found_though_it_was_deleted() {
    let image = image();
    let mounted = image.mount(MOUNT);
    let mail = mounted.join("mail@example.org");
    fs::write(&mail, "a letter").unwrap();
    works(&["snapshot", "create", "-m", "kept"], mounted.root(), &[]);
    fs::remove_file(&mail).unwrap();
    assert_eq!(works(&["cat", "--at", "kept"], &mail, &[]), "a letter");
    let named = mail.with_file_name("mail@example.org@kept");
    assert_eq!(works(&["cat"], &named, &[]), "a letter");
    mounted.unmount();
    assert_eq!(works(&["cat", "--at", "kept"], &image.path(), &["mail@example.org"]), "a letter");
}

#[test]
fn names_change_and_go_with_their_snapshots() {
    let image = image();
    let mounted = image.mount(MOUNT);
    let root = mounted.root();
    write(&mounted, "content");
    works(&["snapshot", "create", "--name", "a"], root, &["2"]);
    works(&["snapshot", "rename"], root, &["a", "b"]);
    works(&["snapshot", "note"], root, &["b", "a line"]);
    assert!(works(&["snapshot", "list"], root, &[]).contains("b     a line"));
    mounted.unmount();
    let root = image.path();
    let said = refused(&["snapshot", "create", "-m", "b"], &root, &[]);
    assert!(said.contains("snapshot 2 is called b already"), "{said}");
    let (code, _, said) = nilfs(&["snapshot", "rename"], &root, &["b", "monday"]);
    assert!(said.contains("monday means something else"), "{said}");
    assert_eq!(code, Some(2));
    let said = refused(&["snapshot", "rename"], &root, &["1", "c"]);
    assert!(said.contains("checkpoint 1 is not a snapshot"), "{said}");
    let said = refused(&["snapshot", "create", "-m", "c"], &root, &["1", "2"]);
    assert!(said.contains("a name belongs to one snapshot"), "{said}");
    works(&["snapshot", "delete"], &root, &["b"]);
    assert!(snapshots(&root).is_empty());
    let said = refused(&["snapshot", "delete"], &root, &["b"]);
    assert!(said.contains("there is no snapshot called b"), "{said}");
    image.check();
}

#[test]
fn a_mount_follows_its_rule_and_a_command_does_it_once() {
    let image = image();
    let mounted = image.mount(MOUNT);
    write(&mounted, "content");
    works(&["snapshot", "create", "-m", "mine"], mounted.root(), &["1"]);
    mounted.unmount();
    let mounted = image.mount(&format!("{MOUNT},keep=monthly:1"));
    let root = mounted.root();
    while snapshots(root).len() < 2 {
        std::thread::sleep(common::ours::GLANCE);
    }
    let by_rule = snapshots(root)[1].clone();
    assert_eq!((by_rule.1.as_str(), by_rule.2.as_str()), ("", "retention"));
    write(&mounted, "other content");
    let said = works(&["snapshot", "keep", "--monthly", "1", "--dry-run"], root, &[]);
    assert!(said.starts_with("keep ") && said.contains("let go of "), "{said}");
    assert_eq!(snapshots(root)[1], by_rule, "nothing was done");
    assert_eq!(works(&["snapshot", "keep", "--monthly", "1"], root, &[]), said);
    let left = snapshots(root);
    assert_eq!((left.len(), left[0].1.as_str()), (2, "mine"));
    assert_ne!(left[1], by_rule);
    assert_eq!(works(&["snapshot", "keep", "--monthly", "1"], root, &[]), "");
    mounted.unmount();
    let (code, _, said) = nilfs(&["snapshot", "keep"], &image.path(), &[]);
    assert!(code == Some(2) && said.contains("keep what?"), "{said}");
    image.check();
}

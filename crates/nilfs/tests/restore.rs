//! Bringing files back as they were. The superuser and `/dev/fuse` are needed.

mod common;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{CommandOutput, Volume, nilfs};
use nilfs_real_kernels::Manifest;
use rustix::mount::UnmountFlags;
use serde_json::Value;

/// A volume that is mounted, with a directory of files of all kinds, until the end of the test.
struct Mounted {
    volume: Volume,
    dir: PathBuf,
}

impl Mounted {
    fn new() -> Self {
        let volume = common::volume();
        let dir = volume.beside("mnt");
        fs::create_dir(&dir).unwrap();
        nilfs(["mount".as_ref(), volume.image.as_os_str(), dir.as_os_str()]).output();
        let mounted = Self { volume, dir };
        let top = mounted.path("top");
        fs::create_dir_all(top.join("below")).unwrap();
        fs::write(top.join("file"), "first\n").unwrap();
        fs::write(top.join("below/deep"), vec![7; 5000]).unwrap();
        fs::hard_link(top.join("file"), top.join("below/same")).unwrap();
        symlink("below/deep", top.join("link")).unwrap();
        File::create(top.join("sparse")).unwrap().set_len(1 << 20).unwrap();
        std::os::unix::fs::chown(top.join("file"), Some(1234), Some(4321)).unwrap();
        fs::set_permissions(top.join("file"), fs::Permissions::from_mode(0o4750)).unwrap();
        fs::set_permissions(top.join("below"), fs::Permissions::from_mode(0o2711)).unwrap();
        mounted
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn nilfs(&self, line: &str) -> CommandOutput {
        let dir = self.dir.to_str().unwrap();
        nilfs(line.split(' ').map(|word| word.replace("MNT", dir)))
    }

    /// The number of a checkpoint with everything that was written until now.
    fn checkpoint(&self) -> u64 {
        self.nilfs("sync MNT").output().trim().parse().unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.dir, UnmountFlags::DETACH);
    }
}

#[track_caller]
fn assert_same(expected: &Manifest, found: &Path) {
    let found = Manifest::of(found).unwrap();
    let differences = Manifest::diff(expected, &found);
    assert!(differences.is_empty(), "{differences:#?}");
}

#[test]
fn a_directory_that_was_deleted_comes_back_with_everything() {
    let mounted = Mounted::new();
    let top = mounted.path("top");
    let before = Manifest::of(&top).unwrap();
    let at = mounted.checkpoint();
    fs::remove_dir_all(&top).unwrap();
    let said = mounted.nilfs(&format!("restore -n MNT/top@{at}")).output();
    assert_eq!(said.lines().filter(|line| line.starts_with("make ")).count(), 7, "{said}");
    assert!(!top.exists());
    assert_eq!(mounted.nilfs(&format!("restore MNT/top@{at}")).output(), "7 files restored\n");
    assert_same(&before, &top);
    assert_eq!(mounted.nilfs(&format!("restore MNT/top@{at}")).output(), "0 files restored\n");
}

#[test]
fn what_would_be_overwritten_is_told_before_and_what_is_besides_stays() {
    let mounted = Mounted::new();
    let top = mounted.path("top");
    let before = Manifest::of(&top).unwrap();
    let at = mounted.checkpoint();
    let deep = fs::metadata(top.join("below/deep")).unwrap().ino();
    fs::write(top.join("file"), "second, and longer\n").unwrap();
    fs::remove_file(top.join("below/same")).unwrap();
    fs::remove_file(top.join("link")).unwrap();
    symlink("elsewhere", top.join("link")).unwrap();
    fs::remove_file(top.join("sparse")).unwrap();
    let now = Manifest::of(&top).unwrap();
    let sentence = mounted.nilfs(&format!("restore MNT/top@{at}")).sentence(6);
    assert!(sentence.contains("2 files would be overwritten"), "{sentence}");
    assert_same(&now, &top);
    let plan = mounted.nilfs(&format!("restore --dry-run --at {at} MNT/top")).output();
    let named = |word: &str| -> Vec<&str> {
        let names = plan.lines().filter_map(|line| line.strip_prefix(word));
        names.map(|path| path.rsplit('/').next().unwrap()).collect()
    };
    assert_eq!(
        (named("make "), named("overwrite ")),
        (vec!["same", "sparse"], vec!["file", "link"])
    );
    mounted.nilfs(&format!("restore -f MNT/top@{at}")).output();
    assert_same(&before, &top);
    assert_eq!(fs::metadata(top.join("below/deep")).unwrap().ino(), deep, "it was left alone");
    fs::write(top.join("new"), "besides\n").unwrap();
    mounted.nilfs(&format!("restore MNT/top@{at}")).output();
    assert_eq!(fs::read(top.join("new")).unwrap(), b"besides\n");
}

#[test]
fn it_can_be_put_elsewhere() {
    let mounted = Mounted::new();
    let at = mounted.checkpoint();
    fs::write(mounted.path("top/file"), "second\n").unwrap();
    let before = Manifest::of(&mounted.path(&format!(".checkpoints/{at}/top/below"))).unwrap();
    mounted.nilfs(&format!("restore --to MNT/old MNT/top/below@{at}")).output();
    assert_eq!(before.len(), Manifest::of(&mounted.path("old")).unwrap().len());
    mounted.nilfs(&format!("restore --to MNT/old MNT/top/file@{at}")).output();
    assert_eq!(fs::read(mounted.path("old/file")).unwrap(), b"first\n");
    assert_eq!(fs::read(mounted.path("top/file")).unwrap(), b"second\n");
}

#[test]
fn what_was_deleted_at_several_moments_is_found_and_brought_back() {
    let mounted = Mounted::new();
    let top = mounted.path("top");
    let before = Manifest::of(&top).unwrap();
    let whole = mounted.checkpoint();
    fs::remove_file(top.join("link")).unwrap();
    fs::write(top.join("passing"), "made and deleted later\n").unwrap();
    fs::write(top.join("moving"), "renamed later, so it is not gone\n").unwrap();
    let without_link = mounted.checkpoint();
    fs::remove_dir_all(top.join("below")).unwrap();
    fs::remove_file(top.join("sparse")).unwrap();
    fs::write(top.join("sparse"), "another one, so this is not gone\n").unwrap();
    fs::rename(top.join("moving"), top.join("moved")).unwrap();
    fs::remove_file(top.join("passing")).unwrap();
    let listed = mounted.nilfs("undelete --json MNT/top").output();
    let listed: Vec<Value> = serde_json::from_str(&listed).unwrap();
    let seen: Vec<_> = listed
        .iter()
        .map(|it| (it["path"].as_str().unwrap(), it["last_checkpoint"].as_u64().unwrap()))
        .collect();
    let expected =
        [("top/below", without_link), ("top/link", whole), ("top/passing", without_link)];
    assert_eq!(seen, expected);
    let since = mounted.nilfs(&format!("undelete -n --since {without_link} MNT/top")).output();
    assert_eq!(since.lines().count(), 3, "{since}");
    let refused = mounted.nilfs("undelete MNT/top");
    assert_eq!(refused.code, Some(6), "{refused:?}");
    assert!(!top.join("below").exists());
    let said = mounted.nilfs("undelete -f MNT/top").output();
    assert!(said.ends_with("3 files restored\n"), "{said}");
    fs::remove_file(top.join("passing")).unwrap();
    fs::remove_file(top.join("moved")).unwrap();
    mounted.nilfs(&format!("restore -f MNT/top@{whole}")).output();
    assert_same(&before, &top);
    assert_eq!(mounted.nilfs("undelete -n MNT/top/below").output(), "");
}

/// The checkpoint of what it had listed could go while it waited for an answer, and then nothing at all
/// came back.
#[test]
fn what_undelete_has_listed_is_there_until_it_is_answered() {
    let mounted = Mounted::new();
    let at = mounted.checkpoint();
    let file = mounted.path("top/below/deep");
    fs::remove_file(&file).unwrap();
    mounted.checkpoint();
    // It asks on a terminal only.
    let undelete =
        format!("{} undelete {}", env!("CARGO_BIN_EXE_nilfs"), mounted.path("top").display());
    let mut asking = Command::new("script")
        .args(["-qec", &undelete, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut stdout = asking.stdout.take().unwrap();
    while !said.ends_with("[y/N] ") {
        let mut byte = [0];
        assert_eq!(stdout.read(&mut byte).unwrap(), 1, "{said}");
        said.push(byte[0].into());
    }
    mounted.nilfs(&format!("checkpoints delete MNT {at}")).output();
    asking.stdin.take().unwrap().write_all(b"y\n").unwrap();
    stdout.read_to_string(&mut said).unwrap();
    assert!(asking.wait().unwrap().success(), "{said}");
    assert_eq!(fs::read(&file).unwrap(), vec![7; 5000]);
}

#[test]
fn what_cannot_be_restored_is_said_and_left_alone() {
    let mounted = Mounted::new();
    let at = mounted.checkpoint();
    fs::remove_file(mounted.path("top/file")).unwrap();
    fs::create_dir(mounted.path("top/file")).unwrap();
    let image = mounted.volume.image.display();
    for (line, expected, code) in [
        ("restore MNT/top/link".to_owned(), "at which moment?", 2),
        (format!("restore MNT/no/such@{at}"), "no such file", 1),
        ("restore MNT/top@999".to_owned(), "there is no checkpoint 999", 1),
        (format!("restore -f MNT/top@{at}"), "is a directory; move it away first", 1),
        (format!("restore {image}@{at}"), "is not on a mounted volume", 1),
    ] {
        let sentence = mounted.nilfs(&line).sentence(code);
        assert!(sentence.contains(expected), "{line}: {sentence}");
    }
    assert!(mounted.path("top/file").is_dir());
}

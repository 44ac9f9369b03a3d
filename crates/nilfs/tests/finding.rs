//! Finding what is mounted, and volumes by their names. The superuser and `/dev/fuse` are needed,
//! and loop devices for names.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::UnmountFlags;
use serde_json::Value;

use common::loops::Loop;
use common::{CommandOutput, Volume, nilfs};

/// A volume that is mounted, until the end of the test.
struct Mounted {
    volume: Volume,
    dirs: Vec<PathBuf>,
}

impl Mounted {
    fn new(options: &str) -> Self {
        Self::of(common::volume(), options)
    }

    fn of(volume: Volume, options: &str) -> Self {
        let mut mounted = Self { volume, dirs: Vec::new() };
        mounted.mount("mnt", options);
        mounted
    }

    /// Mounts the volume once more.
    fn mount(&mut self, name: &str, options: &str) {
        let dir = self.volume.beside(name);
        fs::create_dir(&dir).unwrap();
        let device = self.volume.image.clone();
        nilfs([
            "mount".as_ref(),
            "-o".as_ref(),
            options.as_ref(),
            device.as_os_str(),
            dir.as_ref(),
        ])
        .output();
        self.dirs.push(dir);
    }

    fn dir(&self) -> &Path {
        &self.dirs[0]
    }

    /// Runs a subcommand; `MNT` at the beginning of a word stands for the directory.
    fn nilfs(&self, line: &str) -> CommandOutput {
        let dir = self.dir().to_str().unwrap();
        nilfs(line.split(' ').map(|word| match word.strip_prefix("MNT") {
            Some(rest) => format!("{dir}{rest}"),
            None => word.replace("IMAGE", self.volume.image.to_str().unwrap()),
        }))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for dir in &self.dirs {
            let _ = rustix::mount::unmount(dir, UnmountFlags::DETACH);
        }
    }
}

fn is_mounted(dir: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.contains(&format!(" {} ", dir.display()))
}

#[test]
fn files_are_named_by_their_ordinary_paths_on_a_mount() {
    let mounted = Mounted::new("rw");
    fs::write(mounted.dir().join("directory/new"), "written just now\n").unwrap();
    for line in [
        "cat MNT/directory/new",
        "cat MNT directory/new",
        "cat MNT /directory/new",
        "cat MNT/directory/../directory/new",
    ] {
        assert_eq!(mounted.nilfs(line).output(), "written just now\n", "{line}");
    }
    let both = mounted.nilfs("cat MNT/directory/file MNT/directory/new").output();
    assert_eq!(both, "content\nwritten just now\n");
    assert_eq!(mounted.nilfs("ls MNT/directory").output(), "file\nnew\n");
    assert_eq!(mounted.nilfs("ls MNT directory").output(), "file\nnew\n");
    assert!(mounted.nilfs("ls MNT").output().contains("second name\n"));
    let link = mounted.nilfs("stat MNT/link").output();
    assert!(link.contains("symbolic link"), "{link}");
    assert_eq!(mounted.nilfs("cat MNT/link").output(), "content\n");
    for line in ["info MNT", "info MNT/directory/file", "info IMAGE"] {
        assert!(mounted.nilfs(line).output().starts_with("label              lab\n"), "{line}");
    }
    let copy = mounted.volume.beside("copy");
    let (file, copies) = (mounted.dir().join("directory"), copy.as_path());
    nilfs(["cp".as_ref(), "-r".as_ref(), file.as_os_str(), copies.as_os_str()]).output();
    assert_eq!(fs::read_to_string(copy.join("new")).unwrap(), "written just now\n");
}

#[test]
fn what_was_deleted_is_still_found_by_its_path() {
    let mounted = Mounted::new("rw");
    let at = mounted.volume.before_deletion;
    assert!(!mounted.dir().join("gone").exists());
    assert_eq!(mounted.nilfs(&format!("cat --at {at} MNT/gone")).output(), "it was here\n");
    let by_name = [
        format!("cat MNT/gone@{at}"),
        format!("cat MNT/gone@cp{at}"),
        format!("cat MNT gone@{at}"),
        format!("cat MNT@{at} gone"),
        format!("cat IMAGE gone@{at}"),
        format!("cat IMAGE@{at} gone"),
        format!("cat --at 1 MNT/gone@{at}"),
    ];
    for line in &by_name {
        assert_eq!(mounted.nilfs(line).output(), "it was here\n", "{line}");
    }
    let both = mounted.nilfs(&format!("cat MNT/link MNT/gone@{at}")).output();
    assert_eq!(both, "content\nit was here\n", "a moment is that of one path");
    assert_eq!(mounted.nilfs(&format!("ls MNT@{at}")).output(), "gone\n");
    // A file of that very name comes first.
    fs::write(mounted.dir().join("gone@now"), "another file\n").unwrap();
    assert_eq!(mounted.nilfs("cat MNT/gone@now").output(), "another file\n");
    let sentence = mounted.nilfs("cat MNT/link@99").sentence(1);
    assert!(sentence.contains("there is no checkpoint 99"), "{sentence}");
    let sentence = mounted.nilfs("cat MNT/gone").sentence(1);
    assert!(sentence.contains("/gone: no such file"), "{sentence}");
    let sentence = mounted.nilfs("ls MNT/no/such/directory").sentence(1);
    assert!(sentence.contains("/no/such/directory: no such file"), "{sentence}");
}

#[test]
fn a_mount_of_the_past_shows_the_past_by_every_path() {
    let mut mounted = Mounted::new("rw");
    let at = mounted.volume.before_deletion;
    mounted.mount("past", &format!("ro,cp={at}"));
    let gone = mounted.dirs[1].join("gone");
    assert_eq!(nilfs(["cat".as_ref(), gone.as_os_str()]).output(), "it was here\n");
    mounted.mount("then", "ro,cp=2023-11-14T22:13Z");
    assert!(
        mounted.dirs[2].join("directory/file").exists() && !mounted.dirs[2].join("gone").exists()
    );
    let (never, image) = (mounted.volume.beside("never"), mounted.volume.image.clone());
    fs::create_dir(&never).unwrap();
    let words = ["mount", "-o", "ro,cp=2023-11-13"].map(AsRef::as_ref);
    let operands = [image.as_os_str(), never.as_os_str()];
    let sentence = nilfs(words.into_iter().chain(operands)).sentence(1);
    assert!(sentence.contains("no checkpoint is as old as 2023-11-13"), "{sentence}");
}

#[test]
fn a_mount_of_the_past_outlives_the_deletion_of_its_checkpoint() {
    let mut mounted = Mounted::new("rw,pp=0");
    let at = mounted.volume.before_deletion;
    mounted.mount("past", &format!("ro,cp={at}"));
    mounted.nilfs(&format!("checkpoints delete MNT {at}")).output();
    mounted.nilfs("clean -p 0 MNT").output();
    let past = &mounted.dirs[1];
    assert_eq!(fs::read(past.join("gone")).unwrap(), b"it was here\n");
}

#[test]
fn an_image_on_a_mount_is_a_volume_and_other_mounts_are_not_mixed_up() {
    let outer = Mounted::new("rw");
    let inner = common::volume();
    let image = outer.dir().join("inner.img");
    // The outer volume is too small for a copy.
    symlink(&inner.image, &image).unwrap();
    assert_eq!(nilfs([OsStr::new("cat"), image.as_ref(), "link".as_ref()]).output(), "content\n");
    let other = Mounted::new("rw");
    let (here, there) = (outer.dir().join("link"), other.dir().join("link"));
    let sentence = nilfs([OsStr::new("cat"), here.as_ref(), there.as_ref()]).sentence(1);
    assert!(sentence.contains("is not on the volume that is mounted on"), "{sentence}");
}

#[test]
fn the_path_of_a_file_must_not_be_missing() {
    let mounted = Mounted::new("rw");
    for line in ["cat IMAGE", "stat IMAGE", "cp IMAGE x"] {
        let sentence = mounted.nilfs(line).sentence(2);
        assert!(sentence.contains("the path of a file on the volume is missing"), "{sentence}");
    }
    let sentence = mounted.nilfs("ls MNT/directory MNT/link").sentence(2);
    assert!(sentence.contains("one path too many"), "{sentence}");
}

#[test]
fn through_a_bind_mount_the_same_files_are_seen() {
    let mut mounted = Mounted::new("rw");
    let bound = mounted.volume.beside("bound");
    fs::create_dir(&bound).unwrap();
    rustix::mount::mount_bind(mounted.dir().join("directory"), &bound).unwrap();
    mounted.dirs.insert(1, bound.clone());
    assert_eq!(nilfs([OsStr::new("ls"), bound.as_ref()]).output(), "file\n");
    for words in [vec![bound.join("file")], vec![bound.clone(), "file".into()]] {
        let words = words.iter().map(AsRef::as_ref);
        assert_eq!(nilfs([OsStr::new("cat")].into_iter().chain(words)).output(), "content\n");
    }
}

/// The permission to open the device is what counts, not that of the mount.
#[test]
fn who_may_not_read_the_image_does_not_see_it_through_its_mount() {
    const NOBODY: u32 = 65534;
    let mounted = Mounted::new("rw");
    use std::os::unix::fs::PermissionsExt;
    let set = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    set(mounted.volume.directory.path(), 0o755);
    set(&mounted.volume.image, 0o600);
    let look = || {
        let output = Command::new(env!("CARGO_BIN_EXE_nilfs"))
            .args([OsStr::new("cat"), mounted.dir().join("directory/file").as_ref()])
            .stdin(Stdio::null())
            .uid(NOBODY)
            .gid(NOBODY)
            .output();
        output.map(|output| CommandOutput::of(&output))
    };
    let Ok(refused) = look() else {
        eprintln!("not tested: the program cannot be run by others");
        return;
    };
    assert!(refused.sentence(4).contains("Permission denied"));
}

#[test]
fn all_mounts_are_listed() {
    let mut mounted = Mounted::new("rw");
    let at = mounted.volume.before_deletion.0;
    mounted.mount("past", &format!("ro,cp={at}"));
    let listed: Vec<Value> = serde_json::from_str(&mounted.nilfs("list --json").output()).unwrap();
    let of = |dir: &Path| {
        let found = listed.iter().find(|record| record["directory"] == dir.to_str().unwrap());
        found.unwrap_or_else(|| panic!("{} is not in {listed:?}", dir.display()))
    };
    let (present, past) = (of(&mounted.dirs[0]), of(&mounted.dirs[1]));
    for record in [present, past] {
        assert_eq!(record["device"], mounted.volume.image.to_str().unwrap());
        assert_eq!(record["uid"], 0);
    }
    assert_eq!((&present["access"], &present["checkpoint"]), (&"rw".into(), &Value::Null));
    assert_eq!((&past["access"], &past["checkpoint"]), (&"ro".into(), &at.into()));
    let named = ["snapshot", "create", "-m", "kept", "IMAGE", &at.to_string()].join(" ");
    mounted.nilfs(&named).output();
    let listed: Vec<Value> =
        serde_json::from_str(&mounted.nilfs("list --long --json").output()).unwrap();
    let past = listed.iter().find(|it| it["directory"] == mounted.dirs[1].to_str().unwrap());
    assert_eq!(past.unwrap()["name"], "kept");
    let table = mounted.nilfs("list").output();
    assert!(table.starts_with("DEVICE "), "{table}");
    let line = table.lines().find(|line| line.contains(mounted.dir().to_str().unwrap())).unwrap();
    assert!(line.contains(" rw "), "{line}");
}

#[test]
fn a_volume_is_unmounted_by_the_name_of_its_image() {
    let mut mounted = Mounted::new("rw");
    let at = mounted.volume.before_deletion;
    mounted.mount("past", &format!("ro,cp={at}"));
    let sentence = mounted.nilfs("umount IMAGE").sentence(2);
    for dir in &mounted.dirs {
        assert!(sentence.contains(dir.to_str().unwrap()) && is_mounted(dir), "{sentence}");
    }
    nilfs([OsStr::new("umount"), mounted.dirs[1].as_ref()]).output();
    mounted.nilfs("umount IMAGE").output();
    assert!(!is_mounted(mounted.dir()));
    let sentence = mounted.nilfs("umount IMAGE").sentence(1);
    assert!(sentence.contains("is not mounted"), "{sentence}");
}

#[test]
fn one_that_cannot_be_unmounted_does_not_keep_the_others() {
    let (one, other) = (Mounted::new("rw"), Mounted::new("rw"));
    let missing = one.volume.beside("missing");
    let outcome =
        nilfs([OsStr::new("umount"), one.dir().as_ref(), missing.as_ref(), other.dir().as_ref()]);
    assert!(outcome.sentence(1).contains("missing"));
    assert!(!is_mounted(one.dir()) && !is_mounted(other.dir()));
}

#[test]
fn volumes_are_found_by_label_and_uuid() {
    let volume = common::volume();
    // Other tests and other people have volumes, too.
    let label = format!("test-{}", std::process::id());
    let uuid = "0190163a-0a5c-4f0b-9d0a-123456789abc";
    volume.nilfs(&format!("tune -L {label} -U {uuid} IMAGE")).output();
    let dir = volume.beside("mnt");
    fs::create_dir(&dir).unwrap();
    let mounted = |name: &str| nilfs(["mount".as_ref(), OsStr::new(name), dir.as_os_str()]);
    let by_label = format!("LABEL={label}");
    let sentence = mounted(&by_label).sentence(4);
    assert!(sentence.contains(&format!("there is no volume {by_label}")), "{sentence}");
    let sentence = mounted("UUID=no").sentence(2);
    assert!(sentence.contains("no is not a UUID"), "{sentence}");

    let device = Loop::attach(&volume.image).unwrap();
    for name in [&by_label, &format!("UUID={uuid}")] {
        mounted(name).output();
        assert!(dir.join("directory/file").exists());
        nilfs(["umount", name]).output();
        assert!(!is_mounted(&dir));
        let sentence = nilfs(["umount", name]).sentence(1);
        assert!(sentence.contains("is not mounted"), "{sentence}");
    }
    let twin = volume.beside("twin.img");
    fs::copy(&volume.image, &twin).unwrap();
    let other = Loop::attach(&twin).unwrap();
    let sentence = mounted(&by_label).sentence(2);
    for device in [&device, &other] {
        assert!(sentence.contains(device.0.to_str().unwrap()), "{sentence}");
    }
}

/// An image that was mounted and then attached to a loop device could be formatted and mounted
/// through that.
#[test]
fn a_mounted_image_is_not_written_through_a_loop_device() {
    let mounted = Mounted::new("rw");
    let device = Loop::attach(&mounted.volume.image).unwrap();
    let loop_device = device.0.to_str().unwrap();
    let elsewhere = mounted.volume.beside("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    for line in [
        format!("mount {loop_device} {}", elsewhere.display()),
        format!("mount -o ro {loop_device} {}", elsewhere.display()),
        format!("mkfs -f -B 16 {loop_device}"),
        format!("tune -L x {loop_device}"),
        format!("tune --force -L x {loop_device}"),
        format!("check {loop_device}"),
        format!("resize {loop_device} 1M"),
        format!("checkpoints delete {loop_device} .."),
    ] {
        let sentence = mounted.nilfs(&line).sentence(5);
        assert!(sentence.contains("in use by"), "{line}: {sentence}");
    }
    fs::write(mounted.dir().join("new"), "written\n").unwrap();
    mounted.nilfs("umount MNT").output();
    drop(device);
    assert_eq!(mounted.nilfs("cat IMAGE new").output(), "written\n");
    mounted.nilfs("check IMAGE").output();
}

//! Everyday programs in and around the past of a mount: copies made from it are exact, nothing falls
//! into it by accident, and a repository of then works. The superuser, `/dev/fuse`, git and rsync are
//! needed.

mod common {
    pub mod ours;
}

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::ours::{Image, Mounted};
use nilfs_real_kernels::Manifest;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{FileType, Mode, mknodat};

/// A mounted volume with a tree that has changed since, and a copy of what it was.
struct Changed {
    image: Image,
    mounted: Mounted,
    /// Where the mount shows the tree as it was.
    then: PathBuf,
    /// What it was.
    expected: Manifest,
}

/// Runs a script that must succeed without a word on stderr. Returns what it prints.
#[track_caller]
fn sh(script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{script}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

fn fill(tree: &Path) {
    fs::create_dir_all(tree.join("dir/below")).unwrap();
    fs::write(tree.join("dir/file"), "as it was\n").unwrap();
    fs::write(tree.join("dir/below/large"), vec![7; 300_000]).unwrap();
    fs::hard_link(tree.join("dir/file"), tree.join("link")).unwrap();
    symlink("dir/file", tree.join("symlink")).unwrap();
    symlink("nowhere", tree.join("dangling")).unwrap();
    mknodat(rustix::fs::CWD, tree.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    fs::write(tree.join("private"), "mine\n").unwrap();
    fs::set_permissions(tree.join("private"), PermissionsExt::from_mode(0o600)).unwrap();
    fs::File::create(tree.join("sparse")).unwrap().set_len(5 << 20).unwrap();
    let git = "git -c user.name=a -c user.email=a@example.org -c init.defaultBranch=main";
    let repository = tree.join("repository");
    let dir = repository.display();
    sh(&format!(
        "{git} init -q {dir}; cd {dir}; echo one >file; {git} add file; {git} commit -qm one"
    ));
}

impl Changed {
    fn new() -> Self {
        let image = Image::ours("--size 128M -B 512");
        let mounted = image.mount("rw");
        let tree = mounted.join("tree");
        fill(&tree);
        let expected = Manifest::of(&tree).unwrap();
        mounted.checkpoint();
        let then = newest(&tree);
        fs::write(tree.join("dir/file"), "as it is now\n").unwrap();
        fs::remove_file(tree.join("private")).unwrap();
        fs::remove_dir_all(tree.join("repository")).unwrap();
        fs::rename(tree.join("dir"), tree.join("moved")).unwrap();
        mounted.checkpoint();
        Self { image, mounted, then, expected }
    }

    fn beside(&self, name: &str) -> PathBuf {
        self.image.beside(name)
    }

    #[track_caller]
    fn assert_copied(&self, copy: &Path) {
        let copied = Manifest::of(copy).unwrap();
        assert_eq!(Manifest::diff(&self.expected, &copied), Vec::<String>::new());
    }
}

/// The newest entry in the door of a directory.
fn newest(dir: &Path) -> PathBuf {
    let entries = fs::read_dir(dir.join(".checkpoints")).unwrap();
    let cno = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        name.rsplit_once("+cp").unwrap().1.parse::<u64>().unwrap()
    };
    entries.map(|entry| entry.unwrap().path()).max_by_key(cno).unwrap()
}

#[test]
fn copies_from_the_past_are_what_was_there() {
    let changed = Changed::new();
    let then = changed.then.display().to_string();
    let copies = ["cp", "tar", "rsync"].map(|name| changed.beside(name));
    let [cp, tar, rsync] = copies.each_ref().map(|path| path.display());
    sh(&format!("cp -a {then} {cp}"));
    sh(&format!("mkdir {tar}; tar -C {then} --format=posix -cf - . | tar -C {tar} -xpf -"));
    // By itself, rsync takes times within the same second for equal.
    let sync = format!("rsync -aHX --modify-window=-1 --delete --itemize-changes {then}/ {rsync}/");
    assert_ne!(sh(&sync), "");
    for copy in &copies {
        changed.assert_copied(copy);
    }
    assert_eq!(sh(&sync), "", "a second rsync finds nothing to do");
    changed.mounted.unmount();
}

#[test]
fn nothing_falls_into_the_past_by_accident() {
    let changed = Changed::new();
    let root = changed.mounted.root().display().to_string();
    let looks =
        format!("find {root} | sort; du -s {root}; ls -aR {root}; tar -C {root} -cf - . | tar -t");
    let before = sh(&looks);
    assert!(!before.contains(".checkpoints"), "{before}");
    // Now the kernel knows of doors.
    sh(&format!(
        "find {}/tree/.checkpoints/ -xdev -type f -exec cat {{}} + >{}",
        root,
        changed.beside("all").display()
    ));
    assert_eq!(sh(&looks), before);
    let inside = changed.then.join("dir/below");
    let place = sh(&format!("cd {}; pwd -P", inside.display()));
    assert_eq!(Path::new(place.trim_end()), inside, "a program finds out where it is");
    sh(&format!("rm -r {root}/tree"));
    assert!(!changed.mounted.join("tree").exists());
    changed.mounted.unmount();
}

#[test]
fn a_repository_of_then_can_be_read_and_cloned() {
    let changed = Changed::new();
    let repository = changed.then.join("repository").display().to_string();
    let git = format!("git -c safe.directory='*' -C {repository}");
    assert_eq!(sh(&format!("{git} log --format=%s")), "one\n");
    assert_eq!(sh(&format!("{git} status --porcelain; {git} diff; {git} fsck --no-progress")), "");
    let clone = changed.beside("clone");
    sh(&format!(
        "git -c safe.directory='*' clone -q --no-hardlinks {repository} {}",
        clone.display()
    ));
    assert_eq!(fs::read(clone.join("file")).unwrap(), b"one\n");
    changed.mounted.unmount();
}

/// As file managers do for the directory that they show.
#[test]
fn a_door_can_be_watched() {
    let changed = Changed::new();
    let watcher = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
    for dir in [changed.mounted.join("tree/.checkpoints"), changed.then.clone()] {
        inotify::add_watch(&watcher, &dir, WatchFlags::ALL_EVENTS).unwrap();
    }
    assert_eq!(fs::read(changed.then.join("private")).unwrap(), b"mine\n");
    drop(watcher);
    changed.mounted.unmount();
}

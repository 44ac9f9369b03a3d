//! Bringing files back as they were. The superuser and `/dev/fuse` are needed.

mod common;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

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
    /// A new volume of this size, in bytes, with nothing on it.
    fn on_new(bytes: u64) -> Self {
        let volume = common::volume();
        File::options().write(true).open(&volume.image).unwrap().set_len(bytes).unwrap();
        volume.nilfs("mkfs -f -b 4096 -B 256 IMAGE").output();
        Self::on(volume)
    }

    fn on(volume: Volume) -> Self {
        let dir = volume.beside("mnt");
        fs::create_dir(&dir).unwrap();
        nilfs(["mount".as_ref(), volume.image.as_os_str(), dir.as_os_str()]).output();
        Self { volume, dir }
    }

    fn new() -> Self {
        let mounted = Self::on(common::volume());
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
    assert!(said.ends_with("4 files and 1 directory restored\n"), "{said}");
    fs::remove_file(top.join("passing")).unwrap();
    fs::remove_file(top.join("moved")).unwrap();
    mounted.nilfs(&format!("restore -f MNT/top@{whole}")).output();
    assert_same(&before, &top);
    assert_eq!(mounted.nilfs("undelete -n MNT/top/below").output(), "");
}

/// Runs a command on a terminal until it asks, and returns what it has said so far.
fn asked(command: &str) -> (Child, ChildStdout, String) {
    let mut asking = Command::new("script")
        .args(["-qec", command, "/dev/null"])
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
    (asking, stdout, said)
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
    let undelete =
        format!("{} undelete {}", env!("CARGO_BIN_EXE_nilfs"), mounted.path("top").display());
    let (mut asking, mut stdout, mut said) = asked(&undelete);
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
        (format!("restore {image}@{at}"), "is not on a mounted volume", 1),
    ] {
        let sentence = mounted.nilfs(&line).sentence(code);
        assert!(sentence.contains(expected), "{line}: {sentence}");
    }
    let outcome = mounted.nilfs(&format!("restore -f MNT/top@{at}"));
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    let file = mounted.path("top/file");
    let in_the_way = "exists already and is a directory; move it away first";
    assert_eq!(
        (outcome.code, &lines[..]),
        (
            Some(1),
            &[
                format!("nilfs: {}: {in_the_way}", file.display()).as_str(),
                "nilfs: 1 file could not be copied"
            ][..]
        )
    );
    assert!(file.is_dir());
}

/// Levels of a path, of which a user can make any a symbolic link.
const LEVELS: [&str; 4] = ["", "/a", "/a/b", "/a/b/file"];

/// Trees of a user's on a mount, in each of which a level has become a link, and the checkpoint before
/// that. The links lead to a directory outside; there is a file of the same name at the end, or none.
struct Traps {
    mounted: Mounted,
    at: u64,
    outside: PathBuf,
    before: Manifest,
    /// The name of a tree, and the level that is a link.
    trees: Vec<(String, &'static str)>,
}

impl Traps {
    fn new() -> Self {
        let mounted = Mounted::new();
        let outside = mounted.volume.beside("outside");
        let with_file = [true, false];
        let trees: Vec<_> = with_file
            .iter()
            .flat_map(|with_file| LEVELS.map(|level| (format!("user{with_file}"), level)))
            .map(|(name, level)| (format!("{name}{}", level.replace('/', "-")), level))
            .collect();
        for (name, _) in &trees {
            let tree = mounted.path(name);
            fs::create_dir_all(tree.join("a/b")).unwrap();
            for file in ["a/b/file", "rest"] {
                fs::write(tree.join(file), "of the user\n").unwrap();
                std::os::unix::fs::chown(tree.join(file), Some(1234), Some(1234)).unwrap();
            }
        }
        let at = mounted.checkpoint();
        for (name, level) in &trees {
            let target = outside.join(name);
            fs::create_dir_all(target.join("a/b")).unwrap();
            if name.contains("true") {
                fs::write(target.join("a/b/file"), "secret\n").unwrap();
            }
            let tree = mounted.path(name);
            fs::remove_file(tree.join("rest")).unwrap();
            let link = format!("{}{level}", tree.display());
            match level.ends_with("file") {
                true => fs::remove_file(&link).unwrap(),
                false => fs::remove_dir_all(&link).unwrap(),
            }
            symlink(format!("{}{level}", target.display()), &link).unwrap();
        }
        mounted.checkpoint();
        let before = Manifest::of(&outside).unwrap();
        Self { mounted, at, outside, before, trees }
    }

    /// Runs a command for each tree, which is `TREE` in it; nothing outside may be touched.
    #[track_caller]
    fn each(&self, line: &str, judge: impl Fn(&str, &str, CommandOutput)) {
        for (name, level) in &self.trees {
            let line = line.replace("TREE", &format!("MNT/{name}"));
            let outcome = self.mounted.nilfs(&line.replace("AT", &self.at.to_string()));
            assert_same(&self.before, &self.outside);
            judge(name, level, outcome);
        }
    }

    fn file(&self, name: &str, path: &str) -> Option<String> {
        let path = self.mounted.path(name).join(path);
        fs::symlink_metadata(&path).is_ok_and(|it| it.is_file()).then(|| {
            assert_eq!(fs::metadata(&path).unwrap().uid(), 1234);
            fs::read_to_string(&path).unwrap()
        })
    }
}

/// A user had removed a directory and put a link to /etc in its place, and the superuser's `restore` made
/// the user's files there, for they were written by paths that the kernel resolved.
#[test]
fn restore_writes_through_no_link_in_the_place_of_a_directory() {
    let traps = Traps::new();
    traps.each("restore -n TREE@AT", |name, level, outcome| {
        let is_last = level.ends_with("file");
        assert_eq!(outcome.code, Some(i32::from(!is_last)), "{outcome:?}");
        assert_eq!(
            outcome.stdout.contains(&format!("make {}/rest\n", traps.mounted.path(name).display())),
            !level.is_empty()
        );
    });
    traps.each("restore -f TREE/a/b/file@AT", |name, level, outcome| {
        if level.ends_with("file") {
            assert_eq!(outcome.output(), "1 file restored\n");
            assert_eq!(traps.file(name, "a/b/file").unwrap(), "of the user\n");
            return;
        }
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(1), ""), "{outcome:?}");
        let link = format!("{}{level}", traps.mounted.path(name).display());
        let says = |words: &str| outcome.stderr.contains(&format!("{link}{words}"));
        let is_named = says(" is a symbolic link") || says(", which is a symbolic link");
        assert!(is_named, "{outcome:?}");
    });
    traps.each("restore -f TREE@AT", |name, level, outcome| {
        let is_last = level.ends_with("file");
        assert_eq!(outcome.code, Some(i32::from(!is_last)), "{outcome:?}");
        if !is_last {
            let link = format!("nilfs: {}{level}: ", traps.mounted.path(name).display());
            let expected = format!("{link}exists already and is a symbolic link; move it away");
            assert!(outcome.stderr.starts_with(&expected), "{outcome:?}");
        }
        if !level.is_empty() {
            assert_eq!(traps.file(name, "rest").unwrap(), "of the user\n", "the rest goes on");
        }
    });
}

#[test]
fn undelete_writes_through_no_link_in_the_place_of_a_directory() {
    let traps = Traps::new();
    traps.each("undelete -f TREE", |name, level, outcome| {
        match level.ends_with("file") {
            // The name is in use.
            true => assert_eq!(traps.file(name, "a/b/file"), None),
            false => {
                assert_eq!(outcome.code, Some(1), "{outcome:?}");
                let link = format!("{}{level}", traps.mounted.path(name).display());
                let expected = format!(": {link} is a symbolic link");
                assert!(outcome.stderr.contains(&expected), "{outcome:?}");
            }
        }
        if !level.is_empty() {
            assert_eq!(traps.file(name, "rest").unwrap(), "of the user\n", "the rest goes on");
        }
    });
}

/// A file system that is mounted below the mount is another place, and has no past on the volume.
#[test]
fn nothing_is_written_to_what_is_mounted_below() {
    let mounted = Mounted::new();
    let at = mounted.checkpoint();
    fs::remove_file(mounted.path("top/file")).unwrap();
    fs::remove_file(mounted.path("top/below/deep")).unwrap();
    let below = mounted.path("top/below");
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", &below, "tmpfs", flags, None).unwrap();
    let mode = fs::metadata(&below).unwrap().mode();
    for line in [format!("restore -f MNT/top@{at}"), "undelete -f MNT/top".to_owned()] {
        let outcome = mounted.nilfs(&line);
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
        let expected = format!("another file system is mounted on {}", below.display());
        assert!(outcome.stderr.contains(&expected), "{outcome:?}");
        assert_eq!(fs::read_dir(&below).unwrap().count(), 0, "{line}");
        assert_eq!(fs::metadata(&below).unwrap().mode(), mode, "{line}");
        assert!(mounted.path("top/file").exists(), "the rest goes on");
    }
    rustix::mount::unmount(&below, UnmountFlags::DETACH).unwrap();
    assert!(!below.join("deep").exists());
}

#[test]
fn what_is_typed_may_lead_through_links() {
    let mounted = Mounted::new();
    let at = mounted.checkpoint();
    let deep = mounted.path("top/below/deep");
    fs::write(&deep, "new\n").unwrap();
    symlink("top/below", mounted.path("short")).unwrap();
    symlink("mnt", mounted.volume.beside("mnt too")).unwrap();
    let through = mounted.volume.beside("mnt too/short/deep");
    let operand = format!("{}@{at}", through.display());
    assert_eq!(nilfs(["restore", "-f", &operand]).output(), "1 file restored\n");
    assert_eq!(fs::read(&deep).unwrap(), vec![7; 5000]);
    fs::remove_file(&deep).unwrap();
    mounted.checkpoint();
    nilfs(["undelete", "-f", mounted.volume.beside("mnt too/top").to_str().unwrap()]).output();
    assert!(deep.exists());
    let to = mounted.volume.beside("to");
    fs::create_dir(mounted.volume.beside("there")).unwrap();
    symlink("there", &to).unwrap();
    mounted.nilfs(&format!("restore --to {} MNT/top@{at}", to.display())).output();
    assert_eq!(fs::read(to.join("top/file")).unwrap(), b"first\n");
}

/// While the superuser thought about what was listed, a user made a file of that name, and it was gone.
#[test]
fn undelete_replaces_nothing_that_has_been_made_since() {
    let mounted = Mounted::new();
    mounted.checkpoint();
    let names = ["top/link", "top/below"];
    fs::remove_file(mounted.path(names[0])).unwrap();
    fs::remove_dir_all(mounted.path(names[1])).unwrap();
    let undelete =
        format!("{} undelete {}", env!("CARGO_BIN_EXE_nilfs"), mounted.path("top").display());
    let (mut asking, mut stdout, mut said) = asked(&undelete);
    fs::write(mounted.path(names[0]), "new\n").unwrap();
    fs::create_dir(mounted.path(names[1])).unwrap();
    fs::set_permissions(mounted.path(names[1]), fs::Permissions::from_mode(0o700)).unwrap();
    asking.stdin.take().unwrap().write_all(b"y\n").unwrap();
    stdout.read_to_string(&mut said).unwrap();
    assert!(!asking.wait().unwrap().success(), "{said}");
    assert_eq!(said.matches("exists already and is a").count(), 2, "{said}");
    assert_eq!(fs::read(mounted.path(names[0])).unwrap(), b"new\n");
    assert_eq!(fs::metadata(mounted.path(names[1])).unwrap().mode() & 0o7777, 0o700);
}

/// Writes of the command made the mount give up the checkpoint that was being copied, and then the file was
/// nowhere any more.
#[test]
fn what_finds_no_room_is_not_lost_by_that() {
    const SMALL_FILES: usize = 100;
    let mounted = Mounted::on_new(64 << 20);
    let film: Vec<u8> =
        (0..40 << 20).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::create_dir(mounted.path("home")).unwrap();
    let small = |nth: usize| mounted.path(&format!("home/{nth}"));
    (0..SMALL_FILES).for_each(|nth| fs::write(small(nth), nth.to_string()).unwrap());
    fs::write(mounted.path("home/film"), &film).unwrap();
    let at = mounted.checkpoint();
    fs::remove_dir_all(mounted.path("home")).unwrap();
    fs::create_dir(mounted.path("home")).unwrap();
    mounted.checkpoint();
    let full = |line: &str| {
        let outcome = mounted.nilfs(line);
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
        assert!(outcome.stderr.to_lowercase().contains("no space left"), "{outcome:?}");
    };
    full(&format!("restore -f MNT/home/film@{at}"));
    full("undelete -f MNT/home");
    full(&format!("restore -f MNT/home@{at}"));
    full(&format!("cp -r MNT/home@{at} MNT/copy"));
    (0..SMALL_FILES)
        .for_each(|nth| assert_eq!(fs::read_to_string(small(nth)).unwrap(), nth.to_string()));
    let saved = mounted.volume.beside("film");
    mounted.nilfs(&format!("cp MNT/home/film@{at} {}", saved.display())).output();
    assert!(fs::read(saved).unwrap() == film);
}

#[test]
fn a_path_that_cannot_be_found_is_no_reason_to_leave_the_others() {
    let mounted = Mounted::new();
    let at = mounted.checkpoint();
    let names = ["top/file", "top/below/deep"];
    names.iter().for_each(|name| fs::remove_file(mounted.path(name)).unwrap());
    let outcome = mounted
        .nilfs(&format!("restore -f MNT/top/file@{at} MNT/nothing@{at} MNT/top/below/deep@{at}"));
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(
        outcome
            .stderr
            .contains("MNT/nothing".replace("MNT", mounted.dir.to_str().unwrap()).as_str()),
        "{outcome:?}"
    );
    names.iter().for_each(|name| assert!(mounted.path(name).exists(), "{name}"));
    fs::create_dir(mounted.path("to")).unwrap();
    let outcome = mounted.nilfs("cp MNT/top/file MNT/nothing MNT/top/below/deep MNT/to");
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(mounted.path("to/file").exists() && mounted.path("to/deep").exists(), "{outcome:?}");
}

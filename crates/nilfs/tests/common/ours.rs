//! Our side of a comparison: an image, made, mounted, unmounted, killed and checked by `nilfs`.

// Each test program takes of it what it needs.
#![allow(dead_code)]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::Duration;

use nilfs_real_kernels::{LinuxImage, Manifest};
use tempfile::{NamedTempFile, TempDir};

/// Pause between two checks of a condition.
pub const GLANCE: Duration = Duration::from_millis(2);
/// Checks after which a condition is taken for impossible.
const MOST_GLANCES: u32 = 5000;

/// An image in a directory of its own, which goes away with it.
pub struct Image {
    directory: TempDir,
}

impl Image {
    /// A volume that we make, with the words of `options` for `nilfs mkfs`.
    pub fn ours(options: &str) -> Self {
        let image = Self::none();
        let words: Vec<&str> = std::iter::once("mkfs").chain(options.split(' ')).collect();
        image.nilfs(&words);
        image
    }

    /// A volume that mkfs.nilfs2 makes.
    pub fn of_linux(made: &LinuxImage) -> Self {
        let image = Self::none();
        made.make(&image.path()).unwrap();
        image
    }

    /// A volume with these bytes.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        let image = Self::none();
        fs::write(image.path(), bytes).unwrap();
        image
    }

    fn none() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    /// Where it is.
    pub fn path(&self) -> PathBuf {
        self.beside("volume.img")
    }

    /// A path next to it.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Another one with the same bytes.
    pub fn copy(&self) -> Self {
        let copy = Self::none();
        run(Command::new("cp").arg("--sparse=always").args([self.path(), copy.path()]));
        copy
    }

    /// When somebody last wrote to it or changed its attributes.
    pub fn last_change(&self) -> (i64, i64) {
        let metadata = fs::metadata(self.path()).unwrap();
        (metadata.ctime(), metadata.ctime_nsec())
    }

    /// Runs a subcommand on it, which must have nothing to complain of.
    #[track_caller]
    pub fn nilfs(&self, words: &[&str]) -> String {
        run(nilfs().args(words).arg(self.path()))
    }

    /// Fails unless the volume keeps every rule of the format.
    #[track_caller]
    pub fn check(&self) {
        self.nilfs(&["check"]);
    }

    /// Mounts it.
    #[track_caller]
    pub fn mount(&self, options: &str) -> Mounted {
        Mounted::new(nilfs(), &self.path(), options)
    }

    /// Mounts it in a control group, whose directory is given, from the beginning.
    #[track_caller]
    pub fn mount_in(&self, group: &Path, options: &str) -> Mounted {
        Mounted::new(nilfs_in(group), &self.path(), options)
    }

    /// Runs a subcommand on it in a control group; it must have nothing to complain of.
    #[track_caller]
    pub fn nilfs_in(&self, group: &Path, words: &[&str]) -> String {
        run(nilfs_in(group).args(words).arg(self.path()))
    }
}

fn nilfs() -> Command {
    let mut nilfs = Command::new(env!("CARGO_BIN_EXE_nilfs"));
    nilfs.stdin(Stdio::null()).env("STATE_DIRECTORY", env!("CARGO_TARGET_TMPDIR"));
    nilfs
}

/// Our command in a control group, whose directory is given.
fn nilfs_in(group: &Path) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]).arg(group);
    shell.arg(env!("CARGO_BIN_EXE_nilfs")).stdin(Stdio::null());
    shell
}

/// Runs a command, which must succeed without a word on stderr, and returns what it printed.
#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{command:?}: {stderr}{stdout}");
    stdout
}

/// A volume that a process of ours serves. Dropped without [`Mounted::unmount`], it is killed.
pub struct Mounted {
    directory: TempDir,
    log: NamedTempFile,
    process: Child,
}

impl Mounted {
    /// Mounts the volume on a device, or in any other file.
    #[track_caller]
    pub fn of(device: &Path, options: &str) -> Self {
        Self::new(nilfs(), device, options)
    }

    #[track_caller]
    fn new(mut nilfs: Command, image: &Path, options: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let log = NamedTempFile::new().unwrap();
        let process = nilfs
            .args(["mount", "--foreground", "-o", options])
            .args([image, directory.path()])
            .env("NILFS_LOG", "warn")
            .stderr(log.reopen().unwrap())
            .spawn()
            .unwrap();
        let mut mounted = Self { directory, log, process };
        while !mounted.is_usable() {
            let ended = mounted.process.try_wait().unwrap();
            assert!(ended.is_none(), "{}: {ended:?}: {}", image.display(), mounted.said());
            thread::sleep(GLANCE);
        }
        mounted
    }

    /// A look at the directory waits for the volume, once it is mounted.
    fn is_usable(&self) -> bool {
        let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev());
        let outside = device(&std::env::temp_dir()).unwrap();
        device(self.root()).is_ok_and(|device| device != outside)
    }

    /// The process that serves it.
    pub fn process(&self) -> u32 {
        self.process.id()
    }

    /// Where it is mounted.
    pub fn root(&self) -> &Path {
        self.directory.path()
    }

    /// A path below.
    pub fn join(&self, path: &str) -> PathBuf {
        self.root().join(path)
    }

    /// What the tree at a path below looks like.
    #[track_caller]
    pub fn manifest(&self, path: &str) -> Manifest {
        Manifest::of(&self.join(path)).unwrap()
    }

    /// Makes a checkpoint of what has changed.
    #[track_caller]
    pub fn checkpoint(&self) {
        let made = nilfs().arg("sync").arg(self.root()).output().unwrap();
        assert!(made.status.success(), "{made:?}");
    }

    /// Runs a subcommand on it, whatever becomes of that.
    pub fn nilfs(&self, words: &[&str]) -> Output {
        nilfs().args(words).arg(self.root()).output().unwrap()
    }

    /// Waits until the process that serves the volume has ended.
    pub fn wait(mut self) -> ExitStatus {
        self.process.wait().unwrap()
    }

    /// Unmounts, and makes sure that the process ended well and without a warning.
    #[track_caller]
    pub fn unmount(self) {
        assert_eq!(self.unmount_after_words(), "", "the process that served the volume has warned");
    }

    /// Unmounts, makes sure that the process ended well, and returns its warnings.
    #[track_caller]
    pub fn unmount_after_words(mut self) -> String {
        let mut umount = nilfs();
        umount.arg("umount").arg(self.root());
        // A process that another test starts has, until it runs its program, everything open that
        // was open here at that moment.
        let mut output = umount.output().unwrap();
        for _ in 0..MOST_GLANCES {
            if output.status.success() {
                break;
            }
            thread::sleep(GLANCE);
            output = umount.output().unwrap();
        }
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let status = self.process.wait().unwrap();
        assert!(status.success(), "the process that served the volume: {status}");
        self.said()
    }

    /// What the process that serves the volume has said so far.
    fn said(&self) -> String {
        fs::read_to_string(self.log.path()).unwrap()
    }

    /// The process that serves the volume.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Kills the process that serves the volume, in the middle of whatever it does.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // It fails only if the process is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = Command::new("umount").arg("-l").arg(self.root()).stderr(Stdio::null()).status();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) || thread::panicking() {
            self.end();
        }
    }
}

/// How much more than usual is to be tested: `NILFS_TEST_SCALE`, 1 unless it is set.
pub fn scale() -> u32 {
    std::env::var("NILFS_TEST_SCALE").map_or(1, |scale| scale.parse().expect("NILFS_TEST_SCALE"))
}

/// Fails with the differences, if there are any.
#[track_caller]
pub fn assert_same(what: &str, expected: &Manifest, found: &Manifest) {
    let differences = Manifest::diff(expected, found);
    assert!(
        differences.is_empty(),
        "{what}: {} differences, the first of them: {:#?}",
        differences.len(),
        &differences[..differences.len().min(20)]
    );
}

/// Fails with the differences, if there are any but those of times: Linux does not know the ones
/// that our sync logs have.
#[track_caller]
pub fn assert_same_but_for_times(what: &str, expected: &Manifest, found: &Manifest) {
    let mut differences = Manifest::diff(expected, found);
    differences.retain(|difference| !difference.contains(": mtime is "));
    assert!(differences.is_empty(), "{what}: {differences:#?}");
}

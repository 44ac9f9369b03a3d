//! Ctrl-C: commands said nothing when they were ended, also where the process that serves the volume went
//! on with what they had begun, and to say the same again was refused then. The superuser, loop devices and
//! `/dev/fuse` are needed.
//!
//! So that a command is ended at a known moment, its volume lies on a file system that is frozen: a
//! process that writes there waits until the test goes on.

mod common {
    pub mod interrupts;
    pub mod loops;
    pub mod ours;
}

use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;

use common::interrupts;
use common::loops::Loop;
use common::ours::{GLANCE, Image, Mounted};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// No cleaner that works by itself, and nothing of the system's settings.
const MOUNT: &str = "nogc,pp=0,cleaner-config=/dev/null";

/// A file system that can be frozen.
struct Host {
    directory: TempDir,
    _device: Loop,
    _image: TempDir,
}

impl Host {
    /// Makes one. `None` if there are no loop devices here.
    fn new() -> Option<Self> {
        let image = tempfile::tempdir().unwrap();
        let path = image.path().join("host.img");
        File::create(&path).unwrap().set_len(256 << 20).unwrap();
        works(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&path));
        let device = Loop::attach(&path)?;
        let directory = tempfile::tempdir().unwrap();
        works(Command::new("mount").arg(&device.0).arg(directory.path()));
        Some(Self { directory, _device: device, _image: image })
    }

    /// A volume on it, with a file in its second checkpoint and not in the newest.
    fn volume(&self) -> PathBuf {
        let path = self.directory.path().join("volume.img");
        works(nilfs(&["mkfs", "--size", "48M", "-B", "256"]).arg(&path).stdout(Stdio::null()));
        let mounted = Mounted::of(&path, MOUNT);
        fs::write(mounted.join("file"), vec![7; 4 << 20]).unwrap();
        mounted.checkpoint();
        fs::remove_file(mounted.join("file")).unwrap();
        mounted.unmount();
        path
    }

    /// Lets writers wait from now on.
    fn freeze(&self) -> Frozen<'_> {
        works(Command::new("fsfreeze").arg("-f").arg(self.directory.path()));
        Frozen(self)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.directory.path()).status();
    }
}

/// Lets writers go on when it is dropped, which has to come before anybody waits for one of them.
struct Frozen<'a>(&'a Host);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("-u").arg(self.0.directory.path()).status();
    }
}

fn nilfs(words: &[&str]) -> Command {
    let mut nilfs = Command::new(env!("CARGO_BIN_EXE_nilfs"));
    nilfs.args(words).stdin(Stdio::null()).env("STATE_DIRECTORY", env!("CARGO_TARGET_TMPDIR"));
    nilfs
}

#[track_caller]
fn works(command: &mut Command) {
    let status = command.status().unwrap();
    assert!(status.success(), "{command:?}: {status}");
}

/// A command that has begun, and what it says.
struct Begun(Child);

impl Begun {
    fn new(command: &mut Command) -> Self {
        interrupts::hear();
        Self(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Presses Ctrl-C, and returns what is said of that.
    fn interrupt(&mut self) -> String {
        kill_process(Pid::from_child(&self.0), Signal::INT).unwrap();
        // It may have to wait before it has ended, but has said all by then.
        let mut said = Vec::new();
        let mut stderr = self.0.stderr.take().unwrap();
        while !said.ends_with(b"\n") {
            let mut byte = [0];
            stderr.read_exact(&mut byte).expect("it says something");
            said.extend(byte);
        }
        String::from_utf8(said).unwrap()
    }

    /// The exit code, and what it has printed.
    fn end(mut self) -> (Option<i32>, String) {
        let mut printed = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
        (self.0.wait().unwrap().code(), printed)
    }
}

/// Whether a thread of a process waits for a device that does not answer.
fn waits_for_device(pid: u32) -> bool {
    has_thread(pid, "status", "State:\tD")
}

/// Whether a file in `/proc` about a thread of a process has these words.
fn has_thread(pid: u32, file: &str, words: &str) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut about = tasks.map(|task| fs::read_to_string(task.path().join(file)));
    about.any(|about| about.is_ok_and(|about| about.contains(words)))
}

#[track_caller]
fn wait_until(condition: impl Fn() -> bool) {
    for _ in 0..5000 {
        if condition() {
            return;
        }
        thread::sleep(GLANCE);
    }
    panic!("it never came to that");
}

/// Whether a command waits for the process that serves the mount to be done, as `Client::wait` does.
fn is_waiting(begun: &Begun) -> bool {
    has_thread(begun.0.id(), "stack", "nanosleep")
}

/// Whether it waits for an answer of that process. Nothing else that it does is an ioctl.
fn is_asking(begun: &Begun) -> bool {
    has_thread(begun.0.id(), "stack", "ioctl")
}

#[test]
fn what_a_mount_goes_on_with_is_said_and_the_same_again_waits_for_it() {
    let Some(host) = Host::new() else { return };
    let image = host.volume();
    for (words, after, goes_on, again) in [
        (&["purge", "--finish"][..], None, "the purge goes on", "nilfs purge --finish"),
        (&["resize"], Some("32M"), "goes on with the resize", "same command again waits for it"),
        (&["rollback", "2"], None, "goes on with the rollback", "same command again waits for it"),
    ] {
        let mounted = Mounted::of(&image, MOUNT);
        let command = || {
            let mut command = nilfs(words);
            command.arg(&image).args(after);
            command
        };
        let frozen = host.freeze();
        let mut first = Begun::new(&mut command());
        wait_until(|| waits_for_device(mounted.process()) && is_waiting(&first));
        let said = first.interrupt();
        assert!(said.contains("interrupted; ") && said.contains(goes_on), "{said}");
        assert!(said.contains(image.to_str().unwrap()) && said.contains(again), "{said}");
        assert_eq!(first.end(), (Some(130), String::new()));
        let second = Begun::new(&mut command());
        // The mount may not even be able to answer.
        wait_until(|| is_waiting(&second) || is_asking(&second));
        drop(frozen);
        let (code, printed) = second.end();
        assert_eq!(code, Some(0), "{words:?}: {printed}");
        mounted.unmount();
        works(nilfs(&["check"]).arg(&image).stdout(Stdio::null()));
    }
}

#[test]
fn what_a_mount_is_busy_with_for_a_command_is_said() {
    let Some(host) = Host::new() else { return };
    let image = host.volume();
    for (words, operand, said) in [
        (&["trim"][..], "", "the process that serves the volume goes on with the trim"),
        (&["defrag"], "new", "0 files done, and the process that serves the volume goes on with "),
    ] {
        let mounted = Mounted::of(&image, MOUNT);
        fs::write(mounted.join("new"), words[0].repeat(1 << 20)).unwrap();
        let frozen = host.freeze();
        let mut begun = Begun::new(nilfs(words).arg(mounted.join(operand)));
        wait_until(|| waits_for_device(mounted.process()) && is_asking(&begun));
        let words = begun.interrupt();
        assert!(words.contains(said) && words.contains("again"), "{words}");
        // The kernel lets no process end while its request is with the process that serves the mount.
        drop(frozen);
        assert_eq!(begun.end().0, Some(130));
        mounted.unmount();
        works(nilfs(&["check"]).arg(&image).stdout(Stdio::null()));
    }
}

#[test]
fn how_a_volume_is_left_that_nobody_serves_is_said() {
    let Some(host) = Host::new() else { return };
    let image = host.volume();
    let again = "can be done by the same command again";
    for (words, after, has_crashed, said) in [
        (&["resize"][..], Some("24M"), false, "is as large as it was, or as it should be"),
        (&["rollback", "2"], None, false, "everything is as it was, or as it should be"),
        // A recovery is the first that is written.
        (&["purge", "--finish"], None, true, again),
        (&["snapshot", "create"], None, true, again),
        (&["recover"], None, true, "nilfs recover goes on from there"),
        (&["tune", "-L", "name"], None, false, "the same command again"),
    ] {
        let mounted = Mounted::of(&image, MOUNT);
        fs::write(mounted.join("new"), words[0]).unwrap();
        mounted.checkpoint();
        match has_crashed {
            true => mounted.kill(),
            false => mounted.unmount(),
        }
        // The system lets go of it after a moment.
        works(nilfs(&["check"]).arg(&image).stdout(Stdio::null()));
        let frozen = host.freeze();
        let mut begun = Begun::new(nilfs(words).arg(&image).args(after));
        wait_until(|| waits_for_device(begun.0.id()));
        let spoken = begun.interrupt();
        assert!(spoken.contains("interrupted") && spoken.contains(said), "{words:?}: {spoken}");
        assert!(spoken.contains(image.to_str().unwrap()), "{words:?}: {spoken}");
        drop(frozen);
        assert_eq!(begun.end().0, Some(130));
        works(nilfs(words).arg(&image).args(after).stdout(Stdio::null()));
        works(nilfs(&["check"]).arg(&image).stdout(Stdio::null()));
    }
}

/// A command that only reads has nothing to tell but that it has changed nothing.
#[test]
fn a_command_that_reads_says_that_nothing_was_changed() {
    let image = Image::ours("--size 48M -B 256");
    let mounted = image.mount(MOUNT);
    let text: String = (0..1 << 16).map(|line| format!("line {line}\n")).collect();
    fs::write(mounted.join("file"), &text).unwrap();
    mounted.checkpoint();
    mounted.unmount();
    let place = image.path();
    for words in [&["cat"][..], &["diff", "-p", "1"]] {
        let mut command = nilfs(words);
        command.arg(&place);
        if words[0] == "cat" {
            command.arg("file");
        }
        // The test does not read on, so the command waits.
        let mut begun = Begun::new(&mut command);
        begun.0.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let said = begun.interrupt();
        assert_eq!(said, "nilfs: interrupted; nothing was changed\n");
        assert_eq!(begun.end().0, Some(130));
    }
}

#[test]
fn an_interrupted_clean_and_scrub_stop_in_good_order() {
    let image = Image::ours("--size 64M -B 256");
    let mounted = image.mount(MOUNT);
    for name in 0..16 {
        fs::write(mounted.join(&name.to_string()), vec![name; 1 << 20]).unwrap();
    }
    mounted.checkpoint();
    for name in 0..16 {
        fs::remove_file(mounted.join(&name.to_string())).unwrap();
    }
    mounted.checkpoint();
    let is_busy = |words: &[&str], sign: &str| {
        let said = mounted.nilfs(words).stdout;
        String::from_utf8(said).unwrap().contains(sign)
    };
    // At this rate it would take an hour.
    let mut begun = Begun::new(nilfs(&["clean", "-S", "1/1000"]).arg(mounted.root()));
    wait_until(|| is_busy(&["status", "--json"], "\"state\": \"running\""));
    let said = begun.interrupt();
    assert!(said.contains("interrupted; nilfs clean goes on from there"), "{said}");
    let (code, printed) = begun.end();
    assert_eq!(code, Some(130));
    assert!(printed.contains("cleaned"), "{printed}");
    assert!(!is_busy(&["status", "--json"], "\"state\": \"running\""));

    let mut begun = Begun::new(nilfs(&["scrub", "--rate", "1K"]).arg(mounted.root()));
    wait_until(|| is_busy(&["scrub", "--status"], "running: "));
    let said = begun.interrupt();
    assert!(
        said.contains("interrupted before everything was read; the next scrub goes on"),
        "{said}"
    );
    assert_eq!(begun.end().0, Some(130));
    mounted.unmount();
}

/// The name of a file that is not complete meant nothing to anybody.
#[test]
fn an_interrupted_image_leaves_none() {
    // Much that is not there has to be read.
    const BYTES: u64 = 256 << 30;
    let image = Image::ours("--size 256G");
    let there = tempfile::tempdir().unwrap();
    let to = there.path().join("metadata.img");
    let mut begun = Begun::new(nilfs(&["image"]).arg(image.path()).arg(&to));
    let sizes = || {
        let files = fs::read_dir(there.path()).unwrap().flatten();
        files.map(|file| file.metadata().map_or(0, |it| it.len())).collect::<Vec<_>>()
    };
    wait_until(|| sizes() == [BYTES]);
    let said = begun.interrupt();
    assert!(said.contains("interrupted; no image was made"), "{said}");
    assert_eq!(begun.end().0, Some(130));
    assert_eq!(sizes(), []);
}

/// A script that lets a command work in the background has it ignore Ctrl-C.
#[test]
fn a_signal_that_is_ignored_stays_so() {
    let image = Image::ours("--size 48M -B 256");
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' INT; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_nilfs"), "ls", "-R"]);
    let mounted = image.mount(MOUNT);
    for name in 0..2000 {
        File::create(mounted.join(&format!("{name:0>200}"))).unwrap();
    }
    mounted.unmount();
    let mut begun = Begun::new(command.arg(image.path()));
    begun.0.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    kill_process(Pid::from_child(&begun.0), Signal::INT).unwrap();
    let (code, printed) = begun.end();
    assert_eq!((code, printed.lines().count()), (Some(0), 2000));
}

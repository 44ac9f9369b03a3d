//! Unmounting while others use the mount, for a moment or for longer. The superuser and `/dev/fuse`
//! are needed.

mod common;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use common::{CommandOutput, Volume, nilfs};

/// One test at a time: a process that another test starts would inherit our open files for a moment.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A volume and a directory for it. If a test ends early, the mount goes with it.
struct Place {
    volume: Volume,
    dir: PathBuf,
}

impl Place {
    fn new() -> Self {
        let volume = common::volume();
        let dir = volume.beside("mnt");
        fs::create_dir(&dir).unwrap();
        Self { volume, dir }
    }

    fn mount(&self, options: &str) -> CommandOutput {
        let words = ["mount".as_ref(), "-o".as_ref(), Path::new(options), &self.volume.image];
        nilfs(words.into_iter().chain([self.dir.as_path()]))
    }

    fn umount(&self) -> CommandOutput {
        nilfs([Path::new("umount"), &self.dir])
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.dir, UnmountFlags::DETACH);
    }
}

/// A mount whose process does not answer, until it is dropped.
struct Frozen {
    process: Child,
}

impl Frozen {
    fn new(place: &Place, options: &str) -> Self {
        let process = Command::new(env!("CARGO_BIN_EXE_nilfs"))
            .args(["mount", "--foreground", "-o", options])
            .args([&place.volume.image, &place.dir])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let outside = device_of(place.volume.directory.path());
        while device_of(&place.dir) == outside {
            thread::yield_now();
        }
        let frozen = Self { process };
        frozen.send(Signal::STOP);
        frozen
    }

    fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.send(Signal::CONT);
        self.send(Signal::TERM);
        let _ = self.process.wait();
    }
}

fn device_of(path: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::dev(&fs::metadata(path).unwrap())
}

/// Output of a command that must not wait for a mount; a minute is taken for waiting, which nothing but
/// KILL ends.
#[track_caller]
fn prints(variables: &[(&str, &str)], words: &[&str]) -> String {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "60", env!("CARGO_BIN_EXE_nilfs")]).args(words);
    let output = command.envs(variables.iter().copied()).output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Completions that bash is offered for the last word of a line.
#[track_caller]
fn completes(line: &[&str]) -> String {
    let index = (line.len() - 1).to_string();
    let variables = [("NILFS_COMPLETE", "bash"), ("_CLAP_COMPLETE_INDEX", &index)];
    prints(&variables, &[&["--"], line].concat())
}

/// `nilfs list` opened every read-only mount, which could not be unmounted meanwhile.
#[test]
fn listing_and_completing_mounts_asks_none_of_them() {
    let _alone = alone();
    let place = Place::new();
    let cno = place.volume.before_deletion;
    let frozen = Frozen::new(&place, &format!("ro,cp={cno}"));
    let dir = place.dir.to_str().unwrap();
    let listed: Vec<Value> = serde_json::from_str(&prints(&[], &["list", "--json"])).unwrap();
    let of_ours = listed.iter().find(|it| it["directory"] == dir).expect("it is listed");
    assert_eq!((&of_ours["access"], &of_ours["checkpoint"]), (&"ro".into(), &cno.0.into()));
    assert!(prints(&[], &["list"]).contains(dir));
    for begun in ["", dir, place.volume.image.to_str().unwrap()] {
        let offered = completes(&["nilfs", "umount", begun]);
        assert!(offered.lines().any(|it| it.starts_with(begun) && !it.is_empty()), "{offered}");
    }
    drop(frozen);
}

/// A program that looked at the mount in that moment, df(1) for example, made the unmount fail.
#[test]
fn what_is_in_use_for_a_moment_is_unmounted_when_that_is_over() {
    let _alone = alone();
    let place = Place::new();
    place.mount("rw").output();
    let in_use = File::open(&place.dir).unwrap();
    let mut umount = Command::new(env!("CARGO_BIN_EXE_nilfs"))
        .arg("umount")
        .arg(&place.dir)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // While the file is open, it pauses for nothing but another try.
    let threads = format!("/proc/{}/task", umount.id());
    let pauses = || {
        let threads = fs::read_dir(&threads).into_iter().flatten().flatten();
        let mut waits = threads.map(|it| fs::read_to_string(it.path().join("wchan")));
        waits.any(|waits| waits.is_ok_and(|waits| waits.contains("nanosleep")))
    };
    while umount.try_wait().unwrap().is_none() && !pauses() {}
    drop(in_use);
    let output = CommandOutput::of(&umount.wait_with_output().unwrap());
    assert_eq!(output.output(), "");
}

/// Of eighty unmounts beside others who looked at all mounts, thirty failed.
#[test]
fn nobody_who_looks_at_all_mounts_keeps_one_from_being_unmounted() {
    const ROUNDS: usize = 30;
    let _alone = alone();
    let (place, other) = (Place::new(), Place::new());
    other.mount("ro").output();
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                for dir in [&place.dir, &other.dir] {
                    let _ = rustix::fs::statvfs(dir);
                }
            }
        });
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                prints(&[], &["list", "--long"]);
                completes(&["nilfs", "umount", ""]);
            }
        });
        let rounds = (0..ROUNDS).flat_map(|round| {
            let options = if round % 2 == 0 { "ro" } else { "rw" };
            [place.mount(options), place.umount()]
        });
        let failed: Vec<_> = rounds.filter(|output| output.code != Some(0)).collect();
        ended.store(true, Ordering::Relaxed);
        assert!(failed.is_empty(), "{} of {ROUNDS}: {failed:?}", failed.len());
    });
    other.umount().output();
}

#[test]
fn what_keeps_a_mount_in_use_is_named() {
    let _alone = alone();
    let place = Place::new();
    place.mount("rw").output();
    let dir = place.dir.display();
    let open = File::open(place.dir.join("directory/file")).unwrap();
    let said = place.umount().sentence(5);
    assert!(
        said.starts_with(&format!("{dir} is in use by process {} (", std::process::id())),
        "{said}"
    );
    assert!(said.ends_with(&format!("), which has {dir}/directory/file open")), "{said}");
    drop(open);
    let below = place.dir.join("directory");
    let mut cat = Command::new("cat").current_dir(&below).stdin(Stdio::piped()).spawn().unwrap();
    let said = place.umount().sentence(5);
    cat.kill().unwrap();
    cat.wait().unwrap();
    let expected = format!("by process {} (cat), which works in {}", cat.id(), below.display());
    assert!(said.ends_with(&expected), "{said}");
    let other = common::volume();
    nilfs([Path::new("mount"), &other.image, &below]).output();
    let said = place.umount().sentence(5);
    assert!(said.ends_with(&format!("is in use by the mount on {}", below.display())), "{said}");
    nilfs([Path::new("umount"), &below]).output();
    place.umount().output();
}

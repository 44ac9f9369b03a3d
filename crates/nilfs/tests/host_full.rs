//! A sparse image on a host file system that fills up: what was synced stays, what can be read
//! stays readable, and everybody is told of the rest. The superuser and `/dev/fuse` are needed.

mod common;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use common::{CommandOutput, nilfs};

/// One test at a time: a process that another test starts would inherit our open files for a
/// moment, and a volume with an open file cannot be unmounted.
static ALONE: Mutex<()> = Mutex::new(());

/// A sparse image of 64 MiB on a tmpfs that has room for little of it. If a test ends early, all of
/// it goes away.
struct World {
    directory: tempfile::TempDir,
    /// The image, or a loop device on it.
    device: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

impl World {
    fn new() -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = tempfile::tempdir().unwrap();
        let device = directory.path().join("host/disk.img");
        let world = Self { directory, device, _alone: alone };
        fs::create_dir(world.host()).unwrap();
        fs::create_dir(world.dir()).unwrap();
        let flags = MountFlags::empty();
        rustix::mount::mount("none", world.host(), "tmpfs", flags, Some(c"size=8m")).unwrap();
        world.nilfs("mkfs --size 64M --blocks-per-segment 256 DEVICE").output();
        world
    }

    fn on_a_loop_device() -> Self {
        let mut world = Self::new();
        let attach = Command::new("losetup").args(["-f", "--show"]).arg(&world.device).output();
        let name = String::from_utf8(attach.unwrap().stdout).unwrap();
        world.device = name.trim_end().into();
        world
    }

    fn host(&self) -> PathBuf {
        self.directory.path().join("host")
    }

    /// Where the volume is mounted.
    fn dir(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    /// Runs a subcommand; `DEVICE` and `DIR` among the words stand for ours.
    fn nilfs(&self, line: &str) -> CommandOutput {
        nilfs(line.split(' ').map(|word| match word {
            "DEVICE" => self.device.clone().into_os_string(),
            "DIR" => self.dir().into_os_string(),
            word => OsStr::new(word).to_owned(),
        }))
    }

    /// Mounts the volume, with a log that can be read.
    fn mount(&self) {
        let line =
            format!("mount --log {} DEVICE DIR", self.directory.path().join("log").display());
        self.nilfs(&line).output();
    }

    /// The host gets as much room as the image can take.
    fn make_room(&self) {
        rustix::mount::mount_remount(self.host(), MountFlags::empty(), c"size=80m").unwrap();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.dir(), UnmountFlags::DETACH);
        if self.device.starts_with("/dev") {
            let _ = Command::new("losetup").arg("-d").arg(&self.device).status();
        }
        let _ = rustix::mount::unmount(self.host(), UnmountFlags::DETACH);
    }
}

fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn errno<T>(result: io::Result<T>) -> Option<Errno> {
    Errno::from_io_error(&result.err()?)
}

/// Bytes of one value, more of them than the host has room for.
fn too_much() -> Vec<u8> {
    vec![3; 16 << 20]
}

/// `reason` is what the device says when the host has no room.
fn a_full_host_is_survived(world: &World, reason: &str) {
    let (cold, kept) = (world.path("cold"), world.path("kept"));
    world.mount();
    fs::write(&cold, vec![1; 1 << 20]).unwrap();
    world.nilfs("umount DIR").output();
    world.mount();
    fs::write(&kept, vec![2; 1 << 20]).unwrap();
    sync(&kept).unwrap();
    // Some of it may be refused: that the host is full may be noticed early.
    let accepted = fs::write(world.path("lost"), too_much());
    assert!(accepted.is_err() || errno(sync(&world.path("lost"))) == Some(Errno::IO));

    // Nothing is written any more, whatever is read is right, and the log says why.
    assert_eq!(errno(fs::write(&kept, "changed")), Some(Errno::ROFS));
    assert_eq!(errno(fs::create_dir(world.path("dir"))), Some(Errno::ROFS));
    let is_readable = || {
        assert!(fs::read(&cold).unwrap() == vec![1; 1 << 20]);
        assert!(fs::read(&kept).unwrap() == vec![2; 1 << 20]);
    };
    is_readable();
    let log = world.log();
    let said = log.lines().find(|line| line.ends_with("; nothing is written any more"));
    let said = said.unwrap_or_else(|| panic!("{log}"));
    assert!(said.contains("ERROR the device failed to") && said.contains(reason), "{said}");
    // It is told once, in the system's words alone.
    assert_eq!(log.matches(reason).count(), 1, "{log}");
    assert!(!log.contains("os error"), "{log}");
    let status = world.nilfs("status DIR").output();
    assert!(status.contains("read-only after an error") && status.contains(reason), "{status}");
    assert!(status.contains("not on the device"), "{status}");

    let sentence = world.nilfs("umount DIR").sentence(1);
    let lost = format!(" not on {}", world.device.display());
    assert!(sentence.contains("is unmounted, but"), "{sentence}");
    assert!(sentence.contains(&lost), "{sentence}");
    assert!(sentence.contains(" with changes since ") && sentence.ends_with(reason), "{sentence}");
    assert!(world.log().contains(" is unmounted, but the last changes could not be written: "));
    // Only damage would be more than a warning.
    let checked = world.nilfs("check DEVICE").output();
    assert!(checked.contains("marked as having errors"), "{checked}");

    world.make_room();
    world.mount();
    is_readable();
    let again = world.path("again");
    fs::write(&again, too_much()).unwrap();
    sync(&again).unwrap();
    world.nilfs("umount DIR").output();
    world.nilfs("check DEVICE").output();
    world.mount();
    is_readable();
    assert!(fs::read(&again).unwrap() == too_much());
    world.nilfs("umount DIR").output();
}

/// `nilfs umount` used to report success although the last checkpoint could not be written.
#[test]
fn an_image_on_a_host_without_room_keeps_what_was_synced() {
    a_full_host_is_survived(&World::new(), "No space left on device");
}

/// A loop device takes more than the host has room for, and says so only when it is flushed.
#[test]
fn a_loop_device_on_a_host_without_room_keeps_what_was_synced() {
    a_full_host_is_survived(&World::on_a_loop_device(), "Input/output error");
}

/// What fails once may work again, but the order in which things would reach the device is lost.
#[test]
fn room_that_comes_back_does_not_let_a_mount_write_again() {
    let world = World::new();
    world.mount();
    let _ = fs::write(world.path("lost"), too_much());
    let _ = sync(&world.path("lost"));
    world.make_room();
    assert_eq!(errno(fs::write(world.path("new"), "x")), Some(Errno::ROFS));
    world.nilfs("umount DIR").sentence(1);
    world.mount();
    fs::write(world.path("new"), "x").unwrap();
    world.nilfs("umount DIR").output();
}

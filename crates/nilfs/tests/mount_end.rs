//! The end of a mount as others see it: what umount(8) and sync(1) wait for, what becomes of the
//! loop device that lends its name, and what a mount is called. The superuser and `/dev/fuse` are
//! needed.

mod common;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nilfs_device::{Access, FileDevice};
use rustix::fs::{FlockOperation, OFlags};
use rustix::mount::UnmountFlags;

use common::{CommandOutput, Volume, nilfs};

/// One test at a time: a process that another test starts would inherit our open files for a
/// moment, and a volume with an open file cannot be unmounted.
static ALONE: Mutex<()> = Mutex::new(());

/// A volume of 64 MiB and a directory for it. If a test ends early, the mount goes with it.
struct World {
    directory: tempfile::TempDir,
    image: PathBuf,
    dir: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

impl World {
    fn new() -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = tempfile::tempdir().unwrap();
        let (image, dir) = (directory.path().join("disk.img"), directory.path().join("mnt"));
        fs::create_dir(&dir).unwrap();
        let made = Self { directory, image, dir, _alone: alone };
        made.nilfs("mkfs --size 64M --blocks-per-segment 256 IMAGE").output();
        made
    }

    /// Runs a subcommand; `IMAGE` and `DIR` among the words stand for ours.
    fn nilfs(&self, line: &str) -> CommandOutput {
        nilfs(line.split(' ').map(|word| match word {
            "IMAGE" => self.image.as_os_str(),
            "DIR" => self.dir.as_os_str(),
            word => OsStr::new(word),
        }))
    }

    fn mount(&self, options: &str) {
        self.nilfs(&format!("mount -o {options} IMAGE DIR")).output();
    }

    /// Mounts in the foreground, and returns the process when the volume can be used.
    fn serve(&self) -> Child {
        let mut child = Command::new(env!("CARGO_BIN_EXE_nilfs"))
            .args([Path::new("mount"), Path::new("--foreground"), &self.image, &self.dir])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        assert!(line_of(&mut child).contains("is mounted on"));
        child
    }

    /// Type and source, as the table of mounts shows them.
    fn shown(&self) -> Option<(String, String)> {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line =
            table.lines().find(|line| line.contains(&format!(" {} ", self.dir.display())))?;
        let mut words = line.split_once(" - ").unwrap().1.split(' ').map(str::to_owned);
        Some((words.next()?, words.next()?))
    }

    /// Fills a file with this many bytes.
    fn write(&self, name: &str, size: usize) {
        fs::write(self.dir.join(name), vec![7; size]).unwrap();
    }

    /// The volume is marked clean, and nobody has it.
    fn is_free_and_clean(&self) {
        let image = File::open(&self.image).unwrap();
        rustix::fs::flock(&image, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(self.is_clean());
    }

    fn is_clean(&self) -> bool {
        let info = self.nilfs("info IMAGE").output();
        info.contains("clean\n") && !info.contains("not clean")
    }

    /// Loop devices that are attached to the image.
    fn loop_devices(&self) -> Vec<PathBuf> {
        let attached = |device: &fs::DirEntry| {
            fs::read_to_string(device.path().join("loop/backing_file"))
                .is_ok_and(|image| Path::new(image.trim_end()) == self.image)
        };
        let devices = fs::read_dir("/sys/block").unwrap().flatten().filter(attached);
        devices.map(|device| Path::new("/dev").join(device.file_name())).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.dir, UnmountFlags::DETACH);
    }
}

/// The next line that a process says on standard error.
fn line_of(child: &mut Child) -> String {
    let mut line = String::new();
    // What is read too much is not needed.
    BufReader::with_capacity(1, child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
    line
}

fn unmount(dir: &Path, flags: UnmountFlags) {
    rustix::mount::unmount(dir, flags).unwrap();
}

/// umount(8) used to return while the volume was still being written.
#[test]
fn umount_2_returns_when_everything_is_on_the_device_and_nobody_has_it() {
    let world = World::new();
    for round in 0..3 {
        world.mount("rw");
        world.write(&round.to_string(), 12 << 20);
        unmount(&world.dir, UnmountFlags::empty());
        world.is_free_and_clean();
    }
    world.nilfs("check IMAGE").output();
}

/// Whether the kernel passes syncfs(2) on.
fn has_syncfs() -> bool {
    let release = rustix::system::uname();
    let release = release.release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap(), numbers.next().unwrap()) >= (6, 18)
}

/// `sync` used to reach nobody.
#[test]
fn what_was_there_at_a_sync_survives_a_crash() {
    if !has_syncfs() {
        eprintln!("skipped: this kernel tells FUSE servers of no sync");
        return;
    }
    for everything in [false, true] {
        let world = World::new();
        let mut process = world.serve();
        world.write("file", 1 << 20);
        match everything {
            true => rustix::fs::sync(),
            false => rustix::fs::syncfs(File::open(&world.dir).unwrap()).unwrap(),
        }
        process.kill().unwrap();
        process.wait().unwrap();
        unmount(&world.dir, UnmountFlags::DETACH);
        let content = world.nilfs("cat IMAGE /file").output();
        assert_eq!(content.len(), 1 << 20);
    }
}

#[test]
fn a_loop_device_lends_its_name_to_an_image_and_goes_with_the_mount() {
    let world = World::new();
    world.mount("rw");
    let (file_system, source) = world.shown().unwrap();
    assert_eq!(file_system, "fuseblk.nilfs");
    assert_eq!(world.loop_devices(), [Path::new(&source)]);
    // Whatever names the volume leads to the mount.
    for path in [world.dir.as_path(), &world.image, Path::new(&source)] {
        let status = nilfs([Path::new("status"), path]).output();
        assert!(status.contains("newest checkpoint"), "{status}");
    }
    world.nilfs("umount DIR").output();
    assert_eq!(world.loop_devices(), [] as [PathBuf; 0]);
}

#[test]
fn a_block_device_is_claimed_all_the_time_and_free_afterwards() {
    let world = World::new();
    let losetup = |words: &[&OsStr]| {
        let output = Command::new("losetup").args(words).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        PathBuf::from(String::from_utf8(output.stdout).unwrap().trim_end())
    };
    let device = losetup(&[OsStr::new("-f"), OsStr::new("--show"), world.image.as_os_str()]);
    let claim = || {
        let flags = OFlags::EXCL.bits() as i32;
        File::options().read(true).write(true).custom_flags(flags).open(&device)
    };
    nilfs([Path::new("mount"), &device, &world.dir]).output();
    let shown = world.shown();
    world.write("file", 1 << 20);
    let claimed_by_us = claim().is_err();
    let refused = nilfs([Path::new("mkfs"), Path::new("-f"), &device]);
    let status = nilfs([Path::new("status"), &device]);
    unmount(&world.dir, UnmountFlags::empty());
    let free = claim().is_ok();
    let checked = nilfs([Path::new("check"), &device]);
    losetup(&[OsStr::new("-d"), device.as_os_str()]);
    assert_eq!(shown, Some(("fuseblk.nilfs".into(), device.display().to_string())));
    assert!(claimed_by_us && free);
    assert!(refused.sentence(5).contains("is mounted on"));
    assert!(status.output().contains("newest checkpoint"));
    checked.output();
}

#[test]
fn after_a_lazy_unmount_the_process_ends_with_the_last_open_file() {
    let world = World::new();
    let mut process = world.serve();
    let file = File::create(world.dir.join("file")).unwrap();
    unmount(&world.dir, UnmountFlags::DETACH);
    rustix::io::write(&file, b"late").unwrap();
    drop(file);
    assert!(process.wait().unwrap().success());
    assert_eq!(world.nilfs("cat IMAGE /file").output(), "late");
    assert!(world.is_clean());
}

#[test]
fn a_forced_unmount_ends_the_process_with_a_clean_volume() {
    let world = World::new();
    let mut process = world.serve();
    world.write("file", 5);
    unmount(&world.dir, UnmountFlags::FORCE);
    assert!(process.wait().unwrap().success());
    world.is_free_and_clean();
    assert_eq!(world.nilfs("cat IMAGE /file").output().len(), 5);
}

/// Where it left the session, a request of a program there took twice as long.
#[test]
fn a_mount_in_the_background_stays_in_its_session_but_not_in_the_group_of_the_terminal() {
    let world = World::new();
    let mut child = Command::new(env!("CARGO_BIN_EXE_nilfs"))
        .args([Path::new("mount"), Path::new("--background"), &world.image, &world.dir])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdout.take().unwrap().read_exact(&mut [0; 5]).unwrap();
    let process = child.id().to_string();
    let (group, session) = group_and_session(&process);
    world.nilfs("umount DIR").output();
    assert!(child.wait().unwrap().success());
    assert_eq!(session, group_and_session("self").1);
    assert_eq!(group, process);
}

/// From `/proc`, because in a container the session may be one from outside, whose number is 0; getsid(2)
/// has no such answer.
fn group_and_session(process: &str) -> (String, String) {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let (_, after_name) = stat.rsplit_once(')').unwrap();
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    (fields[2].to_owned(), fields[3].to_owned())
}

#[test]
fn a_mount_in_the_background_outlives_the_terminal() {
    let world = World::new();
    let words = [Path::new(env!("CARGO_BIN_EXE_nilfs")), &world.image, &world.dir];
    let [nilfs, image, dir] = words.map(Path::display);
    // The terminal ends with the command.
    let terminal = Command::new("script")
        .args(["--quiet", "--return", "--command", &format!("{nilfs} mount {image} {dir}")])
        .arg("/dev/null")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(terminal.status.success(), "{terminal:?}");
    world.write("file", 5);
    world.nilfs("umount DIR").output();
    assert!(world.is_clean());
}

#[test]
fn a_mount_whose_process_was_killed_says_what_to_do() {
    let world = World::new();
    let mut process = world.serve();
    process.kill().unwrap();
    process.wait().unwrap();
    let other = world.directory.path().join("other");
    fs::create_dir(&other).unwrap();
    let refused = nilfs([Path::new("mount"), &world.image, &other]).sentence(5);
    let expected = format!("whose process is gone; unmount {}", world.dir.display());
    assert!(refused.ends_with(&expected), "{refused}");
    world.nilfs("umount DIR").output();
    nilfs([Path::new("mount"), &world.image, &other]).output();
    nilfs([Path::new("umount"), &other]).output();
}

/// Where umount(8) cannot wait, the next command used to give up after ten seconds, or at once.
#[test]
fn a_process_that_is_finishing_with_a_volume_is_waited_for() {
    let world = World::new();
    for line in ["mount IMAGE DIR", "check IMAGE", "tune --label new IMAGE", "mkfs -fB256 IMAGE"] {
        let finishing = FileDevice::open(&world.image, Access::ReadWrite).unwrap();
        finishing.announce_end().unwrap();
        let words = line.split(' ').map(|word| match word {
            "IMAGE" => world.image.as_os_str(),
            "DIR" => world.dir.as_os_str(),
            word => OsStr::new(word),
        });
        let mut next = Command::new(env!("CARGO_BIN_EXE_nilfs"))
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = line_of(&mut next);
        let expected = format!("nilfs: waiting for process {}", std::process::id());
        assert!(said.starts_with(&expected), "{line}: {said}");
        assert_eq!(next.try_wait().unwrap(), None, "{line}");
        finishing.release().unwrap();
        assert!(next.wait().unwrap().success(), "{line}");
        if world.shown().is_some() {
            world.nilfs("umount DIR").output();
        }
    }
}

#[test]
fn the_type_can_be_named_and_the_mount_is_ours_all_the_same() {
    let world = World::new();
    for (options, file_system) in [
        ("nofuseblk", "fuse.nilfs"),
        ("subtype=other", "fuseblk.other"),
        ("nofuseblk,subtype=", "fuse"),
        ("ro", "fuse.nilfs"),
    ] {
        world.mount(options);
        assert_eq!(world.shown().unwrap().0, file_system);
        assert!(world.nilfs("status IMAGE").output().contains("newest checkpoint"));
        world.nilfs("umount DIR").output();
    }
}

/// Nothing but the options that were given told which mount was one of the past.
#[test]
fn a_mount_of_the_past_shows_which_checkpoint_it_is() {
    let world = World::new();
    let volume: Volume = common::volume();
    let cno = volume.before_deletion;
    nilfs(
        ["mount", "-o", &format!("ro,cp={cno}"), volume.image.to_str().unwrap()]
            .map(OsStr::new)
            .into_iter()
            .chain([world.dir.as_os_str()]),
    )
    .output();
    let shown = format!("{}@cp={cno}", volume.image.display());
    assert_eq!(world.shown(), Some(("fuse.nilfs".into(), shown)));
    let status = world.nilfs("status DIR").output();
    assert!(status.contains(&format!("checkpoint shown     {cno}")), "{status}");
    assert!(!status.contains("newest checkpoint"), "{status}");
    let json = world.nilfs("status --json DIR").output();
    assert!(json.contains("\"of_the_past\": true"), "{json}");
    let by_device = volume.nilfs("status IMAGE").output();
    assert!(by_device.contains("checkpoint shown"), "{by_device}");
    world.nilfs("umount DIR").output();
}

//! This machine: root, its kernel, and a loop device over the device's file.

mod processes;
mod shell;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::{Output, Place, Session, Surroundings};
use crate::cleanup::{self, Pending, Undo, register, set_up};
use crate::command;
use crate::export::{Export, Power};

/// How long the kernel may take to let go of a loop device that nobody uses any more.
const RELEASE_LIMIT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// This machine.
#[derive(Debug)]
pub struct Host {
    work_dir: PathBuf,
    surroundings: Surroundings,
}

/// This machine as a place; `work_dir` is where its sessions have their directories.
///
/// # Errors
/// We are not root, or a program is missing.
pub fn host(work_dir: &Path) -> Result<Host> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "only root can mount on this machine; a virtual machine (--where vm) does without"
    );
    ensure!(
        command::find("losetup").is_some(),
        "losetup is missing: please install the package mount"
    );
    fs::create_dir_all(work_dir).with_context(|| format!("cannot make {}", work_dir.display()))?;
    let work_dir = fs::canonicalize(work_dir)
        .with_context(|| format!("cannot find {}", work_dir.display()))?;
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let surroundings =
        Surroundings { place: "host".to_owned(), kernel, machine: super::processor() };
    Ok(Host { work_dir, surroundings })
}

impl Place for Host {
    fn surroundings(&self) -> &Surroundings {
        &self.surroundings
    }

    fn can_mount(&self, kind: &str) -> std::result::Result<(), String> {
        let kind = super::kernel_type(kind);
        let known = fs::read_to_string("/proc/filesystems")
            .map_err(|error| format!("cannot read /proc/filesystems: {error}"))?;
        if known.lines().any(|line| line.split_whitespace().next_back() == Some(kind)) {
            return match kind {
                "fuse" if !Path::new("/dev/fuse").exists() => Err("there is no /dev/fuse".into()),
                _ => Ok(()),
            };
        }
        let module = format!("fs-{kind}");
        match command::run(Command::new("modprobe").args(["--dry-run", "--quiet", &module])) {
            Ok(_) => Ok(()),
            Err(_) => Err(format!(
                "the kernel of this machine ({}) has no {kind}, and no module for it",
                self.surroundings.kernel
            )),
        }
    }

    fn attach(&self, device: &Export) -> Result<Box<dyn Session>> {
        Ok(Box::new(HostSession::start(&self.work_dir, device)?))
    }
}

/// A session on this machine. Dropped without [`Session::end`], it is ended all the same.
struct HostSession {
    device: Option<LoopDevice>,
    path: String,
    power: Power,
    directory: String,
    scratch: String,
    script: PathBuf,
    undo: Undoing,
}

/// Steps to be undone, the last one first.
struct Undoing(Vec<Pending>);

impl Undoing {
    fn register(&mut self, step: Undo) {
        self.0.push(register(step));
    }

    fn undo(&mut self) {
        while let Some(step) = self.0.pop() {
            drop(step);
        }
    }
}

impl Drop for Undoing {
    fn drop(&mut self) {
        self.undo();
    }
}

impl HostSession {
    fn start(work_dir: &Path, export: &Export) -> Result<Self> {
        let (dir, removal) = cleanup::directory("session-", work_dir)?;
        let mut undo = Undoing(vec![removal]);
        let scratch = dir.join("scratch");
        make_directory(&scratch)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "lab-scratch"]).arg(&scratch);
        let mount = || Ok((command::run(&mut mount)?, Undo::Unmount(scratch.clone())));
        undo.0.push(set_up(mount)?.1);

        let power = export.power();
        power.restore();
        let device = LoopDevice::attach(export.path())?;
        let directory = dir.join("mount");
        make_directory(&directory)?;
        undo.register(Undo::Unmount(directory.clone()));
        undo.register(Undo::CutPower(power.clone()));
        Ok(Self {
            path: device.path.clone(),
            device: Some(device),
            power,
            directory: text(&directory)?,
            scratch: text(&scratch)?,
            script: dir.join("script"),
            undo,
        })
    }

    /// Cuts the power, then takes everything away that had it.
    fn stop(&mut self) -> Result<()> {
        let Some(device) = self.device.take() else { return Ok(()) };
        self.power.cut();
        processes::kill_users_of(Path::new(&self.directory));
        self.undo.undo();
        processes::kill_users_of(Path::new(&self.path));
        device.detach()
    }
}

impl Session for HostSession {
    fn device(&self) -> &str {
        &self.path
    }

    fn directory(&self) -> &str {
        &self.directory
    }

    fn scratch(&self) -> &str {
        &self.scratch
    }

    fn run(&mut self, script: &str) -> Result<Output> {
        fs::write(&self.script, script)
            .with_context(|| format!("cannot write {}", self.script.display()))?;
        shell::run(&self.script)
    }

    fn end(mut self: Box<Self>) -> Result<()> {
        self.stop()
    }
}

impl Drop for HostSession {
    fn drop(&mut self) {
        // To know of a failure, a caller uses end().
        let _ = self.stop();
    }
}

/// A loop device over a file, without the page cache in between.
struct LoopDevice {
    /// "/dev/loop0".
    path: String,
    /// What the kernel says about it: "/sys/block/loop0".
    in_sys: PathBuf,
    pending: Pending,
}

impl LoopDevice {
    fn attach(file: &Path) -> Result<Self> {
        let options = ["--find", "--show", "--direct-io=on"];
        let (path, pending) = set_up(|| {
            let printed = command::run(Command::new("losetup").args(options).arg(file))?;
            let path = String::from_utf8_lossy(&printed).trim().to_owned();
            Ok((path.clone(), Undo::Detach(PathBuf::from(path))))
        })?;
        let name = path.rsplit('/').next().unwrap_or_default();
        let device = Self { in_sys: Path::new("/sys/block").join(name), path, pending };
        ensure!(
            device.attribute("loop/dio").is_some_and(|dio| dio.trim() == "1"),
            "{} cannot use {} without the page cache, so it would not see requests when they are \
             made: its file system has no O_DIRECT",
            device.path,
            file.display()
        );
        // As a card's or a stick's driver has it. A kernel without this scheduler keeps its own.
        let _ = fs::write(device.in_sys.join("queue/scheduler"), "mq-deadline");
        // What a flash device says of itself.
        let _ = fs::write(device.in_sys.join("queue/rotational"), "0");
        Ok(device)
    }

    /// Detaches it and waits until the kernel has let go of the file.
    fn detach(self) -> Result<()> {
        let file = self.attribute("loop/backing_file");
        // The kernel detaches when the last user closes it, at the latest.
        let Self { path, in_sys, pending } = self;
        drop(pending);
        let start = Instant::now();
        // Another program's file may get the same loop device at once.
        while file.is_some() && read(&in_sys.join("loop/backing_file")) == file {
            if start.elapsed() > RELEASE_LIMIT {
                bail!("{path} is still in use {} s after its end", RELEASE_LIMIT.as_secs());
            }
            sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn attribute(&self, attribute: &str) -> Option<String> {
        read(&self.in_sys.join(attribute))
    }
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

fn make_directory(path: &Path) -> Result<()> {
    fs::create_dir(path).with_context(|| format!("cannot make {}", path.display()))
}

fn text(path: &Path) -> Result<String> {
    let text = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(text.to_owned())
}

//! This machine: root, its kernel, and a loop device over the device's file.
//!
//! File systems get a partition that covers the whole loop device and exists in the kernel only.
//! Shrinking it to one sector is the power cut: from then on the kernel refuses every request,
//! while requests under way are finished. All file systems, ours too, go this way.

mod processes;
mod shell;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::{Output, Place, Session, Surroundings};
use crate::cleanup::{Pending, Undo, register};
use crate::command;

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
    for (program, package) in
        [("losetup", "mount"), ("addpart", "util-linux"), ("resizepart", "util-linux")]
    {
        ensure!(
            command::find(program).is_some(),
            "{program} is missing: please install the package {package}"
        );
    }
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

    fn attach(&self, device: &Path) -> Result<Box<dyn Session>> {
        Ok(Box::new(HostSession::start(&self.work_dir, &super::device_file(device)?)?))
    }
}

/// A session on this machine. Dropped without [`Session::end`], it is ended all the same.
struct HostSession {
    device: Option<LoopDevice>,
    partition: String,
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
    fn start(work_dir: &Path, file: &Path) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("session-")
            .tempdir_in(work_dir)
            .with_context(|| format!("cannot make a directory in {}", work_dir.display()))?
            .keep();
        let mut undo = Undoing(Vec::new());
        undo.register(Undo::Remove(dir.clone()));
        let scratch = dir.join("scratch");
        make_directory(&scratch)?;
        undo.register(Undo::Unmount(scratch.clone()));
        command::run(Command::new("mount").args(["-t", "tmpfs", "lab-scratch"]).arg(&scratch))?;

        let device = LoopDevice::attach(file)?;
        let partition = device.cover()?;
        let directory = dir.join("mount");
        make_directory(&directory)?;
        undo.register(Undo::Unmount(directory.clone()));
        Ok(Self {
            device: Some(device),
            partition,
            directory: text(&directory)?,
            scratch: text(&scratch)?,
            script: dir.join("script"),
            undo,
        })
    }

    /// Cuts the power, then takes everything away that had it.
    fn stop(&mut self) -> Result<()> {
        let Some(device) = self.device.take() else { return Ok(()) };
        let cut = device.cut();
        processes::kill_users_of(Path::new(&self.directory));
        self.undo.undo();
        processes::kill_users_of(Path::new(&self.partition));
        device.detach()?;
        cut
    }
}

impl Session for HostSession {
    fn device(&self) -> &str {
        &self.partition
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
        // Whoever wants to know of a failure calls end().
        let _ = self.stop();
    }
}

/// A loop device over a file, without the page cache in between.
struct LoopDevice {
    /// "/dev/loop0".
    path: String,
    pending: Pending,
}

impl LoopDevice {
    fn attach(file: &Path) -> Result<Self> {
        // --partscan, because without it the kernel has no partitions there at all.
        let options = ["--find", "--show", "--partscan", "--direct-io=on"];
        let printed = command::run(Command::new("losetup").args(options).arg(file))?;
        let path = String::from_utf8_lossy(&printed).trim().to_owned();
        let device =
            Self { pending: register(Undo::Detach(PathBuf::from(&path))), path: path.clone() };
        ensure!(
            device.attribute("loop/dio").is_some_and(|dio| dio.trim() == "1"),
            "{path} cannot use {} without the page cache, so it would not see requests when they \
             are made: its file system has no O_DIRECT",
            file.display()
        );
        // As a card's or a stick's driver has it. A kernel without this scheduler keeps its own.
        let _ = fs::write(device.in_sys("queue/scheduler"), "mq-deadline");
        // What a flash device says of itself.
        let _ = fs::write(device.in_sys("queue/rotational"), "0");
        Ok(device)
    }

    /// Makes the partition that covers all of it, and returns its path.
    fn cover(&self) -> Result<String> {
        for number in self.partitions()? {
            command::run(Command::new("delpart").args([&self.path, &number]))?;
        }
        let sectors = self.attribute("size").context("a loop device without a size")?;
        command::run(Command::new("addpart").args([&self.path, "1", "0", sectors.trim()]))?;
        let partition = format!("{}p1", self.path);
        ensure!(Path::new(&partition).exists(), "the kernel made no {partition}");
        Ok(partition)
    }

    /// Numbers of the partitions that the kernel has found in the file.
    fn partitions(&self) -> Result<Vec<String>> {
        let mut numbers = Vec::new();
        let prefix = format!("{}p", self.name());
        let entries = fs::read_dir(self.in_sys("")).context("cannot list a loop device")?;
        for entry in entries {
            let name = entry.context("cannot list a loop device")?.file_name();
            if let Some(number) = name.to_string_lossy().strip_prefix(&prefix) {
                numbers.push(number.to_owned());
            }
        }
        Ok(numbers)
    }

    /// From now on no request gets through, but for one sector, which nobody writes alone.
    fn cut(&self) -> Result<()> {
        command::run(Command::new("resizepart").args([&self.path, "1", "1"])).map(drop)
    }

    /// Detaches it and waits until the kernel has let go of the file.
    fn detach(self) -> Result<()> {
        // The kernel detaches when the last user closes it, at the latest.
        drop(self.pending);
        let start = Instant::now();
        while Path::new("/sys/block").join(name_of(&self.path)).join("loop").exists() {
            if start.elapsed() > RELEASE_LIMIT {
                bail!("{} is still in use {} s after its end", self.path, RELEASE_LIMIT.as_secs());
            }
            sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn name(&self) -> &str {
        name_of(&self.path)
    }

    fn in_sys(&self, attribute: &str) -> PathBuf {
        Path::new("/sys/block").join(self.name()).join(attribute)
    }

    fn attribute(&self, attribute: &str) -> Option<String> {
        fs::read_to_string(self.in_sys(attribute)).ok()
    }
}

fn name_of(device: &str) -> &str {
    device.rsplit('/').next().unwrap_or(device)
}

fn make_directory(path: &Path) -> Result<()> {
    fs::create_dir(path).with_context(|| format!("cannot make {}", path.display()))
}

fn text(path: &Path) -> Result<String> {
    let text = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(text.to_owned())
}

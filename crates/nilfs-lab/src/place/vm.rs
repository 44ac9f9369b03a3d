//! A virtual machine: a distribution's kernel in QEMU, with the processor emulated in software, so
//! that it works without root and inside of another virtual machine.
//!
//! The guest sees all files of this machine below a layer in memory, under their own paths: it runs
//! the same mkfs, fio, git and our own program. The device is a virtio disk without any cache in
//! between, so flushes and discards reach its file too. Every session starts a machine of its own,
//! and its end kills it: that is the power cut.

mod agent;
mod initramfs;
mod kernel;
mod qemu;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use self::agent::Agent;
use self::initramfs::Initramfs;
use self::kernel::Kernel;
use self::qemu::{PROGRAM, Qemu};
use super::{Output, Place, Session, Surroundings};
use crate::command;
use crate::export::Export;

/// Five seconds on an idle machine; but it may be a slow and busy one.
const BOOT_LIMIT: Duration = Duration::from_secs(90);
/// How long a step may take there. Longer than any that comes to an end: a file system can keep a
/// writer waiting for ever.
const STEP_LIMIT: Duration = Duration::from_secs(3600);
/// Software emulation of two processors stops for good now and then before the kernel says a word.
const BOOTS: usize = 3;
/// QEMU needs that much for itself.
const OVERHEAD_MIB: u64 = 256;

/// The size of the virtual machine.
#[derive(Debug, Clone)]
pub struct VmOptions {
    /// Its memory: page cache, scratch files and programs share it. In MiB.
    pub memory_mib: u64,
    /// Its processors.
    pub processors: usize,
}

impl Default for VmOptions {
    fn default() -> Self {
        let here = std::thread::available_parallelism().map_or(1, usize::from);
        Self { memory_mib: 1024, processors: here.min(2) }
    }
}

/// A virtual machine.
#[derive(Debug)]
pub struct Vm {
    work_dir: PathBuf,
    options: VmOptions,
    kernel: Kernel,
    initramfs: Initramfs,
    surroundings: Surroundings,
}

/// A virtual machine of ordinary size as a place; `work_dir` is for what it needs and for its
/// console's log.
///
/// # Errors
/// As [`vm_with`].
pub fn vm(work_dir: &Path) -> Result<Vm> {
    vm_with(work_dir, VmOptions::default())
}

/// A virtual machine as a place.
///
/// # Errors
/// QEMU, a kernel or a program is missing (the error says what to install), or memory is.
pub fn vm_with(work_dir: &Path, options: VmOptions) -> Result<Vm> {
    for (program, package) in
        [(PROGRAM, "qemu-system-x86"), ("cpio", "cpio"), ("depmod", "kmod"), ("find", "findutils")]
    {
        ensure!(
            command::find(program).is_some(),
            "{program} is missing: please install the package {package} (or run scripts/need lab)"
        );
    }
    let kernel = Kernel::find()?;
    check_memory(&options)?;
    fs::create_dir_all(work_dir).with_context(|| format!("cannot make {}", work_dir.display()))?;
    let work_dir = fs::canonicalize(work_dir)
        .with_context(|| format!("cannot find {}", work_dir.display()))?;
    let initramfs = Initramfs::build(&kernel, &work_dir)?;
    let surroundings = Surroundings {
        place: "vm".to_owned(),
        kernel: kernel.release.clone(),
        machine: format!(
            "{}, software emulation with {} processors and {} MiB, on {}",
            version()?,
            options.processors,
            options.memory_mib,
            super::processor()
        ),
    };
    Ok(Vm { work_dir, options, kernel, initramfs, surroundings })
}

impl Place for Vm {
    fn surroundings(&self) -> &Surroundings {
        &self.surroundings
    }

    fn can_mount(&self, kind: &str) -> std::result::Result<(), String> {
        let kind = super::kernel_type(kind);
        match self.initramfs.has_file_system(kind) {
            true => Ok(()),
            false => Err(format!(
                "the virtual machine's kernel ({}) has no {kind}, and we no module for it",
                self.kernel.release
            )),
        }
    }

    fn attach(&self, device: &Export) -> Result<Box<dyn Session>> {
        device.power().restore();
        let mut boot = self.boot(device);
        for _ in 1..BOOTS {
            boot = boot.or_else(|_| self.boot(device));
        }
        Ok(Box::new(boot?))
    }
}

impl Vm {
    fn boot(&self, device: &Export) -> Result<VmSession> {
        let (qemu, scripts, answers) = Qemu::start(
            &self.options,
            &self.kernel,
            &self.initramfs.archive,
            device,
            &self.work_dir,
        )?;
        let agent = Agent::new(scripts, answers);
        let ready = agent.wait_until_ready(BOOT_LIMIT);
        ready.map_err(|error| anyhow!("{error:#}: {}", qemu.last_words()))?;
        Ok(VmSession { qemu, agent })
    }
}

/// A running virtual machine. Dropped, its power is cut.
struct VmSession {
    // Before the agent, whose end the guest would notice and take as its own.
    qemu: Qemu,
    agent: Agent,
}

impl Session for VmSession {
    fn device(&self) -> &'static str {
        "/dev/vda"
    }

    fn directory(&self) -> &'static str {
        "/lab/mount"
    }

    fn scratch(&self) -> &'static str {
        "/lab/scratch"
    }

    fn run(&mut self, script: &str) -> Result<Output> {
        let ended = self.agent.run(script, STEP_LIMIT);
        ended.map_err(|error| anyhow!("{error:#}: {}", self.qemu.last_words()))
    }

    fn end(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// "QEMU 7.2.22".
fn version() -> Result<String> {
    let printed = command::run(Command::new(PROGRAM).arg("--version"))?;
    let printed = String::from_utf8_lossy(&printed);
    let version = printed.split_whitespace().skip_while(|word| *word != "version").nth(1);
    Ok(format!("QEMU {}", version.unwrap_or("of unknown version")))
}

fn check_memory(options: &VmOptions) -> Result<()> {
    let info = fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let available = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let available = available.and_then(|rest| rest.trim().split(' ').next()?.parse::<u64>().ok());
    let needed = options.memory_mib + OVERHEAD_MIB;
    // A kernel that does not say how much there is, is believed to have enough.
    let available = available.map_or(u64::MAX, |kib| kib / 1024);
    ensure!(
        available >= needed,
        "the virtual machine needs {needed} MiB of memory, and there are {available}"
    );
    Ok(())
}

//! Where file systems run: this machine, or a virtual one. Everything that is done there is a
//! shell script run as root, so that both are the same to those who use them.

mod host;
mod vm;

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};

pub use host::{Host, host};
pub use vm::{Vm, VmOptions, vm, vm_with};

use crate::export::Export;

/// Somewhere a device can be attached.
pub trait Place {
    /// What a report says about it.
    fn surroundings(&self) -> &Surroundings;

    /// Whether the kernel there can mount a type of file system ("f2fs"); why not, if it cannot.
    fn can_mount(&self, kind: &str) -> std::result::Result<(), String>;

    /// Attaches a device, and switches its power on, to a fresh session.
    fn attach(&self, device: &Export) -> Result<Box<dyn Session>>;
}

/// A device attached somewhere, and a shell there.
pub trait Session {
    /// The path of the block device, as the shell sees it.
    fn device(&self) -> &str;

    /// An empty directory to mount on, as the shell sees it.
    fn directory(&self) -> &str;

    /// A directory in memory for what is copied to the device, as the shell sees it.
    fn scratch(&self) -> &str;

    /// Runs a script with `sh -e`, as root. Whatever is in the file system of this machine can be
    /// read and executed there under the same path.
    fn run(&mut self, script: &str) -> Result<Output>;

    /// Detaches the device, without unmounting first what still is mounted: all that was not
    /// written is lost, as when the power goes.
    fn end(self: Box<Self>) -> Result<()>;
}

/// How a script ended.
#[derive(Debug, Clone, Default)]
pub struct Output {
    /// Exit status; 128 + signal if a signal ended it.
    pub status: i32,
    /// What it printed.
    pub stdout: String,
    /// What it complained about.
    pub stderr: String,
    /// How long it ran, by the clock of this machine.
    pub elapsed: Duration,
}

/// Where the rows of a table were measured.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Surroundings {
    /// "host" or "vm".
    pub place: String,
    /// The kernel's release.
    pub kernel: String,
    /// The processor, and how it is emulated if it is.
    pub machine: String,
}

/// The type of file system that the kernel has to know: those of FUSE servers are one to it.
fn kernel_type(kind: &str) -> &str {
    match kind {
        "nilfs" => "fuse",
        kind if kind.starts_with("fuse.") => "fuse",
        kind => kind,
    }
}

/// The processor of this machine, as it calls itself.
fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let name = name.map_or(std::env::consts::ARCH, |(_, name)| name.trim());
    format!("{name}, {count} {}", if count == 1 { "processor" } else { "processors" })
}

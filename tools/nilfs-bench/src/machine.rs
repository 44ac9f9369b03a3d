//! The facts about the machine without which no figure means anything.

use std::path::Path;
use std::process::Command;

use serde::Serialize;

/// What the figures were measured on.
#[derive(Serialize)]
pub struct Machine {
    /// Processors that this program may use.
    pub cores: usize,
    /// Name of the processor.
    pub processor: String,
    /// Main memory.
    pub memory_bytes: u64,
    /// The kernel's release and version.
    pub kernel: String,
    /// Where the images lie.
    pub backing_dir: String,
    /// Device and type of the file system that holds the images.
    pub backing_file_system: String,
}

impl Machine {
    /// Looks them up. What cannot be found out is called unknown: no fact stops a measurement.
    pub fn look(dir: &Path) -> Self {
        let system = rustix::system::uname();
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: processor(),
            memory_bytes: memory_bytes(),
            kernel: format!(
                "{} {}",
                system.sysname().to_string_lossy(),
                system.release().to_string_lossy()
            ),
            backing_dir: dir.display().to_string(),
            backing_file_system: backing_file_system(dir),
        }
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name"));
    name.map_or_else(unknown, |name| name.trim_start_matches([' ', '\t', ':']).to_owned())
}

fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram * u64::from(info.mem_unit)
}

fn backing_file_system(dir: &Path) -> String {
    let output =
        Command::new("findmnt").args(["-no", "FSTYPE,SOURCE", "--target"]).arg(dir).output();
    match output {
        Ok(output) if output.status.success() => {
            // Mounts may lie on top of each other; the last is the one that is seen.
            let mounts = String::from_utf8_lossy(&output.stdout);
            let seen = mounts.lines().last().unwrap_or_default();
            seen.split_whitespace().collect::<Vec<_>>().join(" on ")
        }
        _ => unknown(),
    }
}

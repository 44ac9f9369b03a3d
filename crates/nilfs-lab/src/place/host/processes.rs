//! The processes that use a mount or a device, and their end.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};

/// Kills every process that works in a directory, runs a program from it, or has something open
/// below it (or the path itself). They are those that our own scripts left behind.
pub fn kill_users_of(path: &Path) {
    let Ok(entries) = fs::read_dir("/proc") else { return };
    for entry in entries.flatten() {
        let number = entry.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
        if let Some(process) = number
            && process != rustix::process::getpid()
            && uses(&entry.path(), path)
        {
            // It may have ended by itself meanwhile.
            let _ = kill_process(process, Signal::KILL);
        }
    }
}

fn uses(process: &Path, path: &Path) -> bool {
    let mut links: Vec<PathBuf> =
        ["cwd", "root", "exe"].iter().map(|name| process.join(name)).collect();
    if let Ok(open) = fs::read_dir(process.join("fd")) {
        links.extend(open.flatten().map(|entry| entry.path()));
    }
    links.iter().any(|link| fs::read_link(link).is_ok_and(|target| target.starts_with(path)))
}

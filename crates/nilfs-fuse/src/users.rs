//! Reasons why a mount is in use: mounts below it, and processes, as far as `/proc` shows them to the
//! user who asks.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::mounts::Mounted;

/// Something for which a mount cannot be unmounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum User {
    /// A file system that is mounted on this directory below.
    Mount(PathBuf),
    /// A process.
    Process {
        /// Its number.
        pid: u32,
        /// Its name.
        name: String,
        /// Way in which the process keeps the file or directory in use.
        hold: Hold,
        /// The file or directory.
        path: PathBuf,
    },
}

/// A way to keep a file or directory in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// As the current directory.
    WorksIn,
    /// As the root directory.
    LivesIn,
    /// As the program that runs.
    Runs,
    /// As an open file.
    Open,
    /// As memory.
    Mapped,
}

/// The links in the directory of a process, and what each says.
const LINKS: [(&str, Hold); 3] =
    [("cwd", Hold::WorksIn), ("root", Hold::LivesIn), ("exe", Hold::Runs)];

impl User {
    /// Finds the users of what is mounted on `dir`, an absolute path without symbolic links. Each
    /// other process is found once, and none of those that this user may not look at.
    #[must_use]
    pub fn of(dir: &Path) -> Vec<Self> {
        let below = |it: &Mounted| it.dir != dir && it.dir.starts_with(dir);
        let mounts = Mounted::all().into_iter().filter(below).map(|it| Self::Mount(it.dir));
        let mut pids = numbers_in(Path::new("/proc"));
        pids.retain(|pid| *pid != std::process::id());
        pids.sort_unstable();
        mounts.chain(pids.into_iter().filter_map(|pid| Self::process(pid, dir))).collect()
    }

    fn process(pid: u32, dir: &Path) -> Option<Self> {
        let proc = PathBuf::from(format!("/proc/{pid}"));
        let is_there = |path: &PathBuf| path.starts_with(dir);
        let leads_there = |link: PathBuf| fs::read_link(link).ok().filter(is_there);
        let by_link =
            || LINKS.iter().find_map(|(name, hold)| Some((*hold, leads_there(proc.join(name))?)));
        let by_file = || {
            let files = proc.join("fd");
            let mut open = numbers_in(&files).into_iter();
            open.find_map(|nth| leads_there(files.join(nth.to_string())))
                .map(|path| (Hold::Open, path))
        };
        let by_memory = || {
            let maps = fs::read(proc.join("maps")).ok()?;
            let maps = String::from_utf8_lossy(&maps);
            // Nothing before the path has a slash.
            let mut paths = maps.lines().filter_map(|line| Some(&line[line.find('/')?..]));
            paths
                .find(|path| Path::new(path).starts_with(dir))
                .map(|path| (Hold::Mapped, path.into()))
        };
        let (hold, path) = by_link().or_else(by_file).or_else(by_memory)?;
        let name = fs::read_to_string(proc.join("comm")).unwrap_or_default();
        Some(Self::Process { pid, name: name.trim_end().to_owned(), hold, path })
    }
}

/// The entries of a directory that are numbers.
fn numbers_in(dir: &Path) -> Vec<u32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names may come from a hostile volume, and must not control the terminal.
        let safe = |path: &Path| path.to_string_lossy().escape_debug().to_string();
        match self {
            Self::Mount(dir) => write!(f, "the mount on {}", safe(dir)),
            Self::Process { pid, name, hold, path } => {
                let (name, path) = (name.escape_debug(), safe(path));
                let (act, end) = match hold {
                    Hold::WorksIn => ("works in", ""),
                    Hold::LivesIn => ("has its root in", ""),
                    Hold::Runs => ("runs", ""),
                    Hold::Open => ("has", " open"),
                    Hold::Mapped => ("has", " mapped"),
                };
                write!(f, "process {pid} ({name}), which {act} {path}{end}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::process::{Command, Stdio};

    use super::*;

    /// Returns what is said of a process that has this standard input and works in `works_in`.
    fn said_of(dir: &Path, input: Stdio, works_in: &Path) -> Option<String> {
        let mut cat = Command::new("cat").stdin(input).current_dir(works_in).spawn().unwrap();
        let found = User::of(dir);
        cat.kill().unwrap();
        cat.wait().unwrap();
        let start = format!("process {} (cat), which ", cat.id());
        found.iter().find_map(|it| it.to_string().strip_prefix(&start).map(str::to_owned))
    }

    #[test]
    fn what_a_process_does_in_a_directory_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let dir = directory.path().canonicalize().unwrap();
        let shown = dir.display();
        let elsewhere = Path::new("/");
        assert_eq!(said_of(&dir, Stdio::piped(), elsewhere), None);
        let said = said_of(&dir, Stdio::piped(), &dir).unwrap();
        assert_eq!(said, format!("works in {shown}"));
        // cat does not end before it is killed: nothing writes into the pipe.
        let pipe = dir.join("a\x1bb");
        let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let pipe = File::options().read(true).write(true).open(&pipe).unwrap();
        let said = said_of(&dir, pipe.into(), elsewhere).unwrap();
        assert_eq!(said, format!("has {shown}/a\\u{{1b}}b open"));
    }
}

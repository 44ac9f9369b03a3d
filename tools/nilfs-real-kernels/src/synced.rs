//! The log of what was made durable, and its check after the power has failed.
//!
//! One line per event, each on the disk of the side that keeps the log before the work goes on:
//!
//! ```text
//! synced PATH MODE SIZE CONTENT    PATH must be there, with this mode, size and content
//! removed PATH                     PATH must not be there
//! released PATH                    nothing is known of PATH: it is about to be changed
//! ```
//!
//! Paths are relative and escaped as in a manifest; a line that the failure cut off counts for
//! nothing.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::manifest::{at, content, escape, unescape};

/// What must be true of a path after the power has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    /// It is there. A directory has neither size nor content: both are 0.
    Present { mode: u32, size: u64, content: u64 },
    /// It is not there.
    Absent,
    /// Nothing is known.
    Unknown,
}

/// Writes the log.
pub(crate) struct SyncedLog {
    path: PathBuf,
    file: File,
}

impl SyncedLog {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .map_err(|error| at(path, &error))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Says durably what is to be expected of a path.
    pub(crate) fn expect(&mut self, path: &Path, expected: Expected) -> io::Result<()> {
        let name = escape(path.as_os_str().as_bytes());
        let line = match expected {
            Expected::Present { mode, size, content } => {
                format!("synced {name} {mode:o} {size} {content:016x}\n")
            }
            Expected::Absent => format!("removed {name}\n"),
            Expected::Unknown => format!("released {name}\n"),
        };
        self.file
            .write_all(line.as_bytes())
            .and_then(|()| self.file.sync_data())
            .map_err(|error| at(&self.path, &error))
    }
}

/// What came of checking a log.
#[derive(Debug, Clone, Default)]
pub struct SyncedReport {
    /// How many paths the log had something to say about.
    pub checked: usize,
    /// One line per path that is not as it must be.
    pub failures: Vec<String>,
}

/// Checks that everything that `log` says was made durable below `directory` is there, whole.
pub fn verify_synced(log: &Path, directory: &Path) -> io::Result<SyncedReport> {
    let mut report = SyncedReport::default();
    for (path, expected) in read(log)? {
        if expected == Expected::Unknown {
            continue;
        }
        report.checked += 1;
        let found = look_at(&directory.join(&path))?;
        if found != expected {
            let failure = format!("{}: expected {expected:x?}, found {found:x?}", path.display());
            report.failures.push(failure);
        }
    }
    Ok(report)
}

/// The number of events that `log` has so far; 0 if there is no log yet.
pub fn count_synced(log: &Path) -> usize {
    fs::read(log).map_or(0, |text| text.iter().filter(|byte| **byte == b'\n').count())
}

/// The last word of the log on each path.
fn read(log: &Path) -> io::Result<BTreeMap<PathBuf, Expected>> {
    let text = fs::read_to_string(log).map_err(|error| at(log, &error))?;
    let whole_lines = text.rfind('\n').map_or("", |end| &text[..end]);
    whole_lines
        .lines()
        .map(|line| {
            parse(line).ok_or_else(|| {
                io::Error::other(format!("{}: not a line of this log: {line:?}", log.display()))
            })
        })
        .collect()
}

fn parse(line: &str) -> Option<(PathBuf, Expected)> {
    let words: Vec<&str> = line.split(' ').collect();
    let expected = match words[..] {
        ["synced", _, mode, size, content] => Expected::Present {
            mode: u32::from_str_radix(mode, 8).ok()?,
            size: size.parse().ok()?,
            content: u64::from_str_radix(content, 16).ok()?,
        },
        ["removed", _] => Expected::Absent,
        ["released", _] => Expected::Unknown,
        _ => return None,
    };
    let path = std::ffi::OsString::from_vec(unescape(words[1])?);
    Some((path.into(), expected))
}

/// What is there, as far as it can be expected.
fn look_at(path: &Path) -> io::Result<Expected> {
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Expected::Absent),
        metadata => metadata.map_err(|error| at(path, &error))?,
    };
    if !metadata.is_file() {
        return Ok(Expected::Present { mode: metadata.mode(), size: 0, content: 0 });
    }
    let content = File::open(path)
        .and_then(|file| content::hash_of(&file))
        .map_err(|error| at(path, &error))?;
    Ok(Expected::Present { mode: metadata.mode(), size: metadata.len(), content })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn present(bytes: &[u8]) -> Expected {
        Expected::Present {
            mode: 0o100_644,
            size: bytes.len() as u64,
            content: content::hash_of_bytes(bytes),
        }
    }

    fn make(path: &Path, bytes: &[u8]) {
        use std::os::unix::fs::PermissionsExt;
        fs::write(path, bytes).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
    }

    #[test]
    fn every_kind_of_loss_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let log_path = directory.path().join("log");
        let mut log = SyncedLog::open(&log_path).unwrap();
        for name in ["kept", "lost", "torn", "short"] {
            log.expect(Path::new(name), present(b"content")).unwrap();
        }
        log.expect(Path::new("risen"), Expected::Absent).unwrap();
        log.expect(Path::new("gone"), Expected::Absent).unwrap();
        for (name, bytes) in
            [("kept", &b"content"[..]), ("torn", b"c\0ntent"), ("short", b"conten"), ("risen", b"")]
        {
            make(&directory.path().join(name), bytes);
        }
        let report = verify_synced(&log_path, directory.path()).unwrap();
        assert_eq!(report.checked, 6);
        let failed: Vec<_> =
            report.failures.iter().map(|line| line.split(':').next().unwrap()).collect();
        assert_eq!(failed, ["lost", "risen", "short", "torn"]);
    }

    #[test]
    fn the_last_whole_line_counts() {
        let directory = tempfile::tempdir().unwrap();
        let log_path = directory.path().join("log");
        let mut log = SyncedLog::open(&log_path).unwrap();
        log.expect(Path::new("file"), present(b"old")).unwrap();
        log.expect(Path::new("file"), Expected::Unknown).unwrap();
        log.expect(Path::new("other one"), present(b"old")).unwrap();
        log.expect(Path::new("other one"), present(b"new")).unwrap();
        log.file.write_all(b"synced other\\x20one 1006").unwrap();
        make(&directory.path().join("other one"), b"new");
        assert_eq!(count_synced(&log_path), 4);
        let report = verify_synced(&log_path, directory.path()).unwrap();
        assert_eq!((report.checked, report.failures), (1, vec![]));
    }
}

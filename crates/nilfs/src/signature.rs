//! What is already on a device that is about to be overwritten.
//!
//! blkid(8) is asked, which knows every file system, partition table and RAID member; a list of
//! our own would be shorter and older. Where it is not installed, anything but zeros counts.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow};

use crate::output::printable;

/// Where blkid may be; the directories of an ordinary user's PATH leave its usual place out.
const BLKID: [&str; 3] = ["blkid", "/usr/sbin/blkid", "/sbin/blkid"];
/// blkid ends with this code if it finds nothing that it knows…
const NOTHING_FOUND: i32 = 2;
/// … and with this one if there are several things at once.
const AMBIGUOUS: i32 = 8;
/// Bytes at either end of a device in which all common signatures lie.
const SEARCHED_BYTES: u64 = 128 << 10;

/// What a device or image holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// The name that blkid has for the kind of file system, if it is one.
    pub file_system: Option<String>,
    /// What it is, in words.
    pub description: String,
}

impl Signature {
    fn other(description: &str) -> Self {
        Self { file_system: None, description: description.to_owned() }
    }
}

/// Returns what a device or image holds, or `None` if it seems to be empty.
pub fn find(path: &Path) -> anyhow::Result<Option<Signature>> {
    for program in BLKID {
        match ask_blkid(program, path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => return found.context("blkid failed")?,
        }
    }
    let file = File::open(path)?;
    Ok(holds_anything(&file)?.then(|| Signature::other("data of an unknown kind")))
}

fn ask_blkid(program: &str, path: &Path) -> io::Result<anyhow::Result<Option<Signature>>> {
    let arguments = ["--probe", "--output", "export", "--"].map(OsStr::new);
    let output = Command::new(program).args(arguments).arg(path).stdin(Stdio::null()).output()?;
    Ok(match output.status.code() {
        Some(0) => Ok(Some(describe(&String::from_utf8_lossy(&output.stdout)))),
        Some(NOTHING_FOUND) => Ok(None),
        Some(AMBIGUOUS) => Ok(Some(Signature::other("several file systems or partition tables"))),
        _ => Err(anyhow!("{}", String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    })
}

/// Words for what blkid prints as `NAME=value` lines.
fn describe(export: &str) -> Signature {
    let value = |name: &str| {
        let mut lines = export.lines().filter_map(|line| line.split_once('='));
        lines.find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    let label = value("LABEL")
        .map_or(String::new(), |label| format!(" labelled {}", printable(label.as_bytes())));
    let description = match (value("TYPE"), value("PTTYPE")) {
        (Some("nilfs2"), _) => format!("a NILFS2 volume{label}"),
        (Some(kind), _) => format!("{kind} data{label}"),
        (None, Some(kind)) => format!("a partition table ({kind})"),
        (None, None) => "data that blkid knows".to_owned(),
    };
    Signature { file_system: value("TYPE").map(str::to_owned), description }
}

fn holds_anything(file: &File) -> io::Result<bool> {
    let size = rustix::fs::seek(file, rustix::fs::SeekFrom::End(0))?;
    let mut buffer = vec![0; SEARCHED_BYTES.min(size) as usize];
    for at in [0, size - buffer.len() as u64] {
        file.read_exact_at(&mut buffer, at)?;
        if buffer.iter().any(|byte| *byte != 0) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_blkid_finds_is_put_into_words() {
        for (export, words) in [
            ("DEVNAME=x\nLABEL=lab\nTYPE=nilfs2\nUSAGE=filesystem", "a NILFS2 volume labelled lab"),
            ("TYPE=ext4", "ext4 data"),
            ("PTTYPE=gpt", "a partition table (gpt)"),
        ] {
            assert_eq!(describe(export).description, words);
        }
    }

    #[test]
    fn without_blkid_only_zeros_are_empty() {
        let mut file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        assert!(!holds_anything(&file).unwrap());
        file.write_all(b"x").unwrap();
        assert!(holds_anything(&file).unwrap());
    }
}

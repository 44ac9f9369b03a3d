//! Who has a device: a name for the message that refuses a second opener.

use std::fmt;
use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Who has a device open or mounted, as far as the system tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// A process.
    Process {
        /// Its number.
        pid: u32,
        /// Its name; empty if it cannot be read.
        name: String,
    },
    /// It is mounted on this directory.
    Mount(String),
    /// Somebody.
    Unknown,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, name } if name.is_empty() => write!(f, "process {pid}"),
            Self::Process { pid, name } => write!(f, "process {pid} ({name})"),
            Self::Mount(directory) => write!(f, "the mount on {directory}"),
            Self::Unknown => f.write_str("another program"),
        }
    }
}

/// Looks for the holder of the lock on a file, then for a mount of a block device.
pub(crate) fn holder_of(path: &Path, metadata: &Metadata) -> Holder {
    let (dev, ino) = (metadata.dev(), metadata.ino());
    let key = format!("{:02x}:{:02x}:{ino}", rustix::fs::major(dev), rustix::fs::minor(dev));
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let pid = locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip_while(|word| *word != "FLOCK");
        let pid = words.nth(3)?.parse().ok()?;
        (words.next()? == key).then_some(pid)
    });
    if let Some(pid) = pid {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        return Holder::Process { pid, name: name.trim().to_owned() };
    }
    if !metadata.file_type().is_block_device() {
        return Holder::Unknown;
    }
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts
        .lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(device, _)| Path::new(device) == path)
        .and_then(|(_, rest)| rest.split(' ').next())
        .map_or(Holder::Unknown, |directory| Holder::Mount(directory.to_owned()))
}

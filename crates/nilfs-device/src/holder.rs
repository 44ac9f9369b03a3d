//! The program that has a device: a name for the message that refuses a second opener.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::claims::table_key;
use crate::loops::{Node, directory_of};

/// The program that has a device open or mounted, as far as the system tells.
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
    /// This loop device has it.
    Loop(PathBuf),
    /// The device mapper, or a RAID, has made this device of it.
    Above(PathBuf),
    /// Somebody.
    Unknown,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, name } if name.is_empty() => write!(f, "process {pid}"),
            Self::Process { pid, name } => write!(f, "process {pid} ({name})"),
            Self::Mount(directory) => write!(f, "the mount on {directory}"),
            Self::Loop(device) => write!(f, "the loop device {}", device.display()),
            Self::Above(device) => write!(f, "{}, which lies on it", device.display()),
            Self::Unknown => f.write_str("another program"),
        }
    }
}

/// Looks for the process that uses a file or device, then for a mount of a block device, then for a
/// device that was made of it.
pub(crate) fn holder_of(path: &Path, node: Node) -> Holder {
    let metadata = match node {
        Node::File { dev, ino } => Some((dev, ino)),
        // Its lock is that of its name, which is a file.
        Node::Device(_) => fs::metadata(path).ok().map(|it| (it.dev(), it.ino())),
    };
    if let Some((dev, ino)) = metadata
        && let Some(pid) = process_that_locks(&table_key(dev, ino))
    {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        return Holder::Process { pid, name: name.trim().to_owned() };
    }
    let Node::Device(device) = node else { return Holder::Unknown };
    let mounted = mount_of(device).map(Holder::Mount);
    mounted.or_else(|| device_on(device).map(Holder::Above)).unwrap_or(Holder::Unknown)
}

/// The directory on which a block device is mounted, by whatever name.
fn mount_of(device: u64) -> Option<String> {
    let is_it = |source: &str| {
        let metadata = fs::metadata(source).ok().filter(|_| source.starts_with('/'));
        metadata.is_some_and(|it| Node::of(&it) == Node::Device(device))
    };
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mut mounts = mounts.lines().filter_map(|line| line.split_once(' '));
    let (_, rest) = mounts.find(|(source, _)| is_it(source))?;
    rest.split(' ').next().map(str::to_owned)
}

/// A device that was made of this one.
fn device_on(device: u64) -> Option<PathBuf> {
    let mut holders = fs::read_dir(directory_of(device).join("holders")).ok()?.flatten();
    let above = holders.next()?;
    let mapped = fs::read_to_string(above.path().join("dm/name"));
    Some(match mapped {
        Ok(name) => Path::new("/dev/mapper").join(name.trim()),
        Err(_) => Path::new("/dev").join(above.file_name()),
    })
}

/// The process that has a file locked as a whole. Unlike locks on bytes, such a lock has the number
/// of its process in the system's table.
fn process_that_locks(file: &str) -> Option<u32> {
    let table = fs::read_to_string("/proc/locks").ok()?;
    table.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip_while(|word| *word != "FLOCK");
        let pid = words.nth(3)?.parse().ok()?;
        (words.next()? == file).then_some(pid)
    })
}

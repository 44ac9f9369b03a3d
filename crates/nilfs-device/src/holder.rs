//! Who has a device: a name for the message that refuses a second opener.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

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
    /// This loop device has it.
    Loop(PathBuf),
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

/// The loop device that an image is attached to. The kernel opens the image without a lock that
/// others could see, and whoever has the loop device open or mounted does not show at the image.
pub(crate) fn loop_device_of(image: &Metadata) -> Option<PathBuf> {
    let devices = fs::read_dir("/sys/block").ok()?;
    devices.flatten().find_map(|device| {
        let attached = fs::read(device.path().join("loop/backing_file")).ok()?;
        let attached = fs::metadata(OsStr::from_bytes(attached.trim_ascii_end())).ok()?;
        let same = (attached.dev(), attached.ino()) == (image.dev(), image.ino());
        same.then(|| Path::new("/dev").join(device.file_name()))
    })
}

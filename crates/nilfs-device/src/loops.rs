//! Loop devices: block devices that show the content of a file, or of another block device.
//!
//! The kernel keeps users of a disk and of its partitions apart, or of a device and of what the
//! device mapper makes of it, as long as they ask for exclusive use. It does not do so for a loop
//! device and what that shows, nor for two loop devices that show the same; this module looks for
//! such users.
//!
//! Nothing is locked below a loop device: several volumes may lie on its partitions. A program that
//! writes to a file directly has marked it as written and then looks whether a loop device shows
//! it; a program that writes through a loop device comes when that shows the file, and then looks
//! for the mark. So of two programs that come at the same time, at least one sees the other.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::claims;
use crate::kernel::loop_status;

/// An ordinary file or a block device, whatever its name is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Node {
    /// A file, by its file system and inode.
    File { dev: u64, ino: u64 },
    /// A block device.
    Device(u64),
}

impl Node {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        match metadata.file_type().is_block_device() {
            true => Self::Device(metadata.rdev()),
            false => Self::File { dev: metadata.dev(), ino: metadata.ino() },
        }
    }
}

/// A loop device that shows something.
#[derive(Debug)]
pub(crate) struct Loop {
    /// Its path.
    pub(crate) device: PathBuf,
    /// What it shows, by the name that this had when somebody looked last.
    pub(crate) backing: PathBuf,
    /// The part that it shows: from here…
    offset: u64,
    /// … for this number of bytes; 0 stands for all that follow.
    limit: u64,
}

/// What is in use below a block device, or shows the same file.
#[derive(Debug)]
pub(crate) struct InUse {
    /// The file or device, by a name that may be out of date.
    pub(crate) path: PathBuf,
    /// The same without a name.
    pub(crate) node: Node,
}

impl Loop {
    /// The loop device with this directory in /sys.
    fn at(directory: &Path) -> Option<Self> {
        let read = |name: &str| fs::read(directory.join("loop").join(name)).ok();
        let number = |name| {
            let text = read(name).unwrap_or_default();
            str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
        };
        let backing = read("backing_file")?;
        Some(Self {
            device: Path::new("/dev").join(directory.file_name()?),
            backing: OsStr::from_bytes(backing.trim_ascii_end()).into(),
            offset: number("offset"),
            limit: number("sizelimit"),
        })
    }

    /// All of this machine that show something.
    fn all() -> impl Iterator<Item = Self> {
        let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        devices.filter_map(|device| Self::at(&device.path()))
    }

    /// What it shows. A caller who may not open it must believe the name, which is wrong if the
    /// file is deleted or lies where only others see it.
    fn node(&self) -> Option<Node> {
        let status = File::open(&self.device).and_then(|device| loop_status(&device));
        match status {
            Ok(status) if status.special() != 0 => Some(Node::Device(status.special())),
            Ok(status) => Some(Node::File { dev: status.device(), ino: status.inode }),
            Err(_) => fs::metadata(&self.backing).ok().map(|metadata| Node::of(&metadata)),
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        let end = |it: &Self| match it.limit {
            0 => u64::MAX,
            limit => it.offset.saturating_add(limit),
        };
        self.offset < end(other) && other.offset < end(self)
    }

    /// What it shows, opened for reading, if the name still leads there.
    fn open_backing(&self, node: Node) -> Option<File> {
        let is_same = |metadata: Metadata| Node::of(&metadata) == node;
        // Others than files and block devices are not even opened.
        fs::metadata(&self.backing).ok().filter(|it| is_same(it.clone()))?;
        let file = File::open(&self.backing).ok()?;
        is_same(file.metadata().ok()?).then_some(file)
    }
}

/// The loop device that shows a file or a device.
pub(crate) fn showing(node: Node) -> Option<PathBuf> {
    Loop::all().find(|it| it.node() == Some(node)).map(|it| it.device)
}

/// A file below a block device that somebody writes to directly.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) in_use: InUse,
    /// The file itself, open for reading, if it is just what the block device shows.
    pub(crate) same: Option<File>,
}

/// Looks for a process that writes to a file below a block device, past that device.
pub(crate) fn written_below(device: u64) -> Option<Written> {
    below(device).into_iter().find_map(|(it, node)| {
        let Some(Node::File { dev, ino }) = node else { return None };
        let node = Node::File { dev, ino };
        let file = it.open_backing(node);
        let written = match file.as_ref().map(claims::is_written) {
            Some(Ok(written)) => written,
            _ => claims::is_written_by_table(dev, ino),
        };
        let is_same = it.offset == 0 && it.limit == 0 && number_of(&it.device) == Some(device);
        written.then_some(Written {
            in_use: InUse { path: it.backing, node },
            same: file.filter(|_| is_same),
        })
    })
}

/// Looks for a process that uses a device below a block device, or another loop device that shows
/// some of the same bytes.
pub(crate) fn used_elsewhere(device: u64) -> Option<InUse> {
    below(device).into_iter().find_map(|(it, node)| {
        let node = node?;
        if let Node::Device(_) = node
            && is_in_use(&it.backing)
        {
            return Some(InUse { path: it.backing, node });
        }
        let same_file = |other: &Loop| {
            other.device != it.device
                && other.overlaps(&it)
                && other.node() == Some(node)
                && is_in_use(&other.device)
        };
        let other = Loop::all().find(same_file)?;
        let node = Node::Device(number_of(&other.device)?);
        Some(InUse { path: other.device, node })
    })
}

/// The loop devices that a block device lies on, and what they show.
fn below(device: u64) -> Vec<(Loop, Option<Node>)> {
    let mut found = Vec::new();
    let (mut devices, mut seen) = (vec![device], HashSet::new());
    while let Some(device) = devices.pop() {
        let directory = fs::canonicalize(directory_of(device));
        let Some(directory) = directory.ok().filter(|_| seen.insert(device)) else { continue };
        if directory.join("partition").exists() {
            devices.extend(directory.parent().and_then(listed_number));
        }
        let slaves = fs::read_dir(directory.join("slaves")).into_iter().flatten().flatten();
        devices.extend(slaves.filter_map(|slave| listed_number(&slave.path())));
        if let Some(it) = Loop::at(&directory) {
            let node = it.node();
            if let Some(Node::Device(device)) = node {
                devices.push(device);
            }
            found.push((it, node));
        }
    }
    found
}

/// The directory of a block device in /sys.
pub(crate) fn directory_of(device: u64) -> PathBuf {
    let numbers = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    Path::new("/sys/dev/block").join(numbers)
}

/// The number of the block device with this directory in /sys.
fn listed_number(directory: &Path) -> Option<u64> {
    let text = fs::read_to_string(directory.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

fn number_of(device: &Path) -> Option<u64> {
    fs::metadata(device).ok().map(|metadata| metadata.rdev())
}

/// Whether somebody uses a block device, or a partition of it, exclusively.
fn is_in_use(device: &Path) -> bool {
    let exclusive = OFlags::EXCL.bits() as i32;
    let opened = File::options().read(true).custom_flags(exclusive).open(device);
    opened.is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
}

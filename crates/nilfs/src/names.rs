//! Volumes by what they are called, as in fstab(5): `LABEL=`, `UUID=`, `PARTLABEL=`, `PARTUUID=`.
//!
//! Label and UUID are read from the superblocks of the block devices themselves: neither udev nor a
//! cache of blkid(8) is needed, and two volumes with one label are noticed. The names of partitions
//! are left to udev, which knows the kinds of partition tables.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use nilfs_device::{Access, Device, FileDevice};
use nilfs_ondisk::geometry::PRIMARY_SUPERBLOCK;
use nilfs_ondisk::superblock::{SUPERBLOCK_SIZE, Superblock};
use rustix::rand::GetRandomFlags;
use uuid::Uuid;

use crate::commands::info::label;
use crate::exit::{Failure, Status};
use crate::output::printable;

/// What a volume is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name<'a> {
    /// Its label.
    Label(&'a [u8]),
    /// Its UUID.
    Uuid(Uuid),
    /// The name or UUID of its partition: udev's directory, and the name in it.
    Partition(&'static str, &'a [u8]),
}

/// A random UUID. The kernel is asked itself: a bare chroot has no `/dev/urandom`.
///
/// # Errors
/// The kernel has no random numbers.
pub fn new_uuid() -> anyhow::Result<Uuid> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())
        .context("the kernel has no random numbers")?;
    Ok(uuid::Builder::from_random_bytes(bytes).into_uuid())
}

/// Reads a UUID on the command line.
pub fn parse_uuid(text: &str) -> Result<Uuid, String> {
    let example = "8f481382-d326-486d-86ca-73a3bb2d13f1";
    Uuid::try_parse(text).map_err(|_| format!("expected a UUID such as {example}"))
}

impl<'a> Name<'a> {
    /// The name in an operand; `None` if the operand is a path.
    ///
    /// # Errors
    /// It is to be a UUID and is none.
    pub fn parse(operand: &'a Path) -> Result<Option<Self>, Failure> {
        let operand = operand.as_os_str().as_bytes();
        let Some(at) = operand.iter().position(|byte| *byte == b'=') else { return Ok(None) };
        let value = &operand[at + 1..];
        Ok(Some(match &operand[..at] {
            b"LABEL" => Self::Label(value),
            b"UUID" => {
                let uuid = str::from_utf8(value).ok().and_then(|text| Uuid::try_parse(text).ok());
                let wrong = || {
                    let message = format!("{} is not a UUID", printable(value));
                    Failure::new(Status::Usage, message)
                };
                Self::Uuid(uuid.ok_or_else(wrong)?)
            }
            b"PARTLABEL" => Self::Partition("/dev/disk/by-partlabel", value),
            b"PARTUUID" => Self::Partition("/dev/disk/by-partuuid", value),
            _ => return Ok(None),
        }))
    }

    /// Whether the volume on a device or image has that name. One that cannot be read has not.
    pub fn is_of(&self, device: &Path) -> bool {
        if let Self::Partition(directory, name) = self {
            let named = fs::canonicalize(Path::new(directory).join(as_udev_writes(name)));
            return named.ok() == fs::canonicalize(device).ok();
        }
        let Some(superblock) = superblock(device) else { return false };
        match self {
            Self::Label(wanted) => label(superblock.raw()) == *wanted,
            Self::Uuid(uuid) => superblock.raw().s_uuid == *uuid.as_bytes(),
            Self::Partition(..) => false,
        }
    }
}

/// The device that an operand means: a path stays as it is, a name becomes the only block device
/// with a volume that has that name.
///
/// # Errors
/// There is none, or there are several.
pub fn device(operand: &Path) -> anyhow::Result<PathBuf> {
    let Some(name) = Name::parse(operand)? else { return Ok(operand.to_owned()) };
    let candidates = block_devices();
    let found: Vec<_> = candidates.iter().filter(|device| name.is_of(device)).collect();
    match found[..] {
        [device] => Ok(device.clone()),
        [] => {
            let operand = printable(operand.as_os_str().as_bytes());
            let message = format!(
                "there is no volume {operand} on the block devices that you may read; name an \
                 image by its path"
            );
            Err(Failure::new(Status::CannotOpen, message).into())
        }
        _ => Err(ambiguous(operand, found.iter().map(|device| device.as_path()))),
    }
}

/// Several things are called the same, or used in several ways.
pub fn ambiguous<'a>(operand: &Path, found: impl Iterator<Item = &'a Path>) -> anyhow::Error {
    let found: Vec<_> = found.map(|path| printable(path.as_os_str().as_bytes())).collect();
    let operand = printable(operand.as_os_str().as_bytes());
    let message = format!("{operand} may mean {}; name one of them", found.join(" or "));
    Failure::new(Status::Usage, message).into()
}

/// Block devices with content, but for those on which others lie: what belongs to a RAID or has
/// several paths shows the same volume again.
fn block_devices() -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/partitions").unwrap_or_default();
    let names = table.lines().skip(2).filter_map(|line| line.split_whitespace().nth(3));
    let is_whole = |name: &&str| {
        let holders = fs::read_dir(Path::new("/sys/class/block").join(name).join("holders"));
        holders.map_or(true, |mut holders| holders.next().is_none())
    };
    names.filter(is_whole).map(|name| Path::new("/dev").join(name.replace('!', "/"))).collect()
}

/// The first superblock of a device or image.
fn superblock(device: &Path) -> Option<Superblock> {
    let device = FileDevice::open(device, Access::Inspect).ok()?;
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read_at(PRIMARY_SUPERBLOCK, &mut bytes).ok()?;
    Superblock::parse(&bytes, device.size()).ok()
}

/// A name as udev has it in a directory: what might confuse somebody is `\x` and two digits.
fn as_udev_writes(name: &[u8]) -> PathBuf {
    let mut written = Vec::new();
    for byte in name {
        match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | 0x80.. => written.push(*byte),
            _ if b"#+-.:=@_".contains(byte) => written.push(*byte),
            _ => written.extend(format!("\\x{byte:02x}").bytes()),
        }
    }
    OsStr::from_bytes(&written).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(operand: &str) -> Result<Option<Name<'_>>, String> {
        Name::parse(Path::new(operand)).map_err(|failure| failure.to_string())
    }

    #[test]
    fn names_are_told_from_paths() {
        assert_eq!(parse("LABEL=a b=c"), Ok(Some(Name::Label(b"a b=c"))));
        assert_eq!(parse("LABEL="), Ok(Some(Name::Label(b""))));
        let uuid = "0190163A-0a5c-4f0b-9d0a-0123456789ab";
        assert_eq!(parse(&format!("UUID={uuid}")), Ok(Some(Name::Uuid(uuid.parse().unwrap()))));
        assert_eq!(parse("UUID=x"), Err("x is not a UUID".into()));
        for path in ["./LABEL=x", "disk.img", "a=b", "label=x", "/dev/disk/by-label/x=y"] {
            assert_eq!(parse(path), Ok(None), "{path}");
        }
    }

    #[test]
    fn partitions_are_found_where_udev_puts_them() {
        assert_eq!(as_udev_writes(b"EFI system/1"), Path::new("EFI\\x20system\\x2f1"));
        assert_eq!(as_udev_writes("grün-2".as_bytes()), Path::new("grün-2"));
    }
}

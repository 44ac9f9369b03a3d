//! Inodes as they lie on disk (docs/format.md §6).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::FormatError;
use crate::bmap::ROOT_SIZE;

/// Bytes of the fields of an inode; an entry can be larger, its tail is zero.
pub const INODE_SIZE: usize = 128;

/// The greatest number of links of a file or directory.
pub const LINK_MAX: u16 = 32000;

/// The type bits of a mode.
pub const S_IFMT: u16 = 0o170_000;
/// Regular file.
pub const S_IFREG: u16 = 0o100_000;
/// Directory.
pub const S_IFDIR: u16 = 0o040_000;
/// Symbolic link.
pub const S_IFLNK: u16 = 0o120_000;
/// Block device.
pub const S_IFBLK: u16 = 0o060_000;
/// Character device.
pub const S_IFCHR: u16 = 0o020_000;
/// FIFO.
pub const S_IFIFO: u16 = 0o010_000;
/// Socket.
pub const S_IFSOCK: u16 = 0o140_000;

/// What kind of file an inode is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileType {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
    /// FIFO.
    Fifo,
    /// Socket.
    Socket,
    /// Symbolic link.
    Symlink,
}

impl FileType {
    /// The type in a mode, if it is one.
    #[must_use]
    pub fn from_mode(mode: u16) -> Option<Self> {
        Some(match mode & S_IFMT {
            S_IFREG => Self::Regular,
            S_IFDIR => Self::Directory,
            S_IFLNK => Self::Symlink,
            S_IFBLK => Self::BlockDevice,
            S_IFCHR => Self::CharDevice,
            S_IFIFO => Self::Fifo,
            S_IFSOCK => Self::Socket,
            _ => return None,
        })
    }

    /// The type in words.
    #[must_use]
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Regular => "regular file",
            Self::Directory => "directory",
            Self::CharDevice => "character device",
            Self::BlockDevice => "block device",
            Self::Fifo => "FIFO",
            Self::Socket => "socket",
            Self::Symlink => "symbolic link",
        }
    }

    /// The type bits of a mode.
    #[must_use]
    pub fn mode_bits(self) -> u16 {
        match self {
            Self::Regular => S_IFREG,
            Self::Directory => S_IFDIR,
            Self::Symlink => S_IFLNK,
            Self::BlockDevice => S_IFBLK,
            Self::CharDevice => S_IFCHR,
            Self::Fifo => S_IFIFO,
            Self::Socket => S_IFSOCK,
        }
    }

    /// The advisory type in directory entries (docs/format.md §13).
    #[must_use]
    pub fn dirent_code(self) -> u8 {
        match self {
            Self::Regular => 1,
            Self::Directory => 2,
            Self::CharDevice => 3,
            Self::BlockDevice => 4,
            Self::Fifo => 5,
            Self::Socket => 6,
            Self::Symlink => 7,
        }
    }

    /// The type that a directory entry claims; `None` for unknown.
    #[must_use]
    pub fn from_dirent_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Regular,
            2 => Self::Directory,
            3 => Self::CharDevice,
            4 => Self::BlockDevice,
            5 => Self::Fifo,
            6 => Self::Socket,
            7 => Self::Symlink,
            _ => return None,
        })
    }

    /// Whether files of this type map blocks (the others have none).
    #[must_use]
    pub fn has_blocks(self) -> bool {
        matches!(self, Self::Regular | Self::Directory | Self::Symlink)
    }
}

/// An inode as it lies on disk.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields have the names and the meaning of docs/format.md §6")]
pub struct RawInode {
    pub i_blocks: U64,
    pub i_size: U64,
    pub i_ctime: U64,
    pub i_mtime: U64,
    pub i_ctime_nsec: U32,
    pub i_mtime_nsec: U32,
    pub i_uid: U32,
    pub i_gid: U32,
    pub i_mode: U16,
    pub i_links_count: U16,
    pub i_flags: U32,
    pub i_bmap: [u8; ROOT_SIZE],
    pub i_xattr: U64,
    pub i_generation: U32,
    pub i_pad: U32,
}

const _: () = assert!(size_of::<RawInode>() == INODE_SIZE);
const _: () = assert!(std::mem::offset_of!(RawInode, i_bmap) == 56);

impl RawInode {
    /// An inode with all fields zero.
    #[must_use]
    pub fn zeroed() -> Self {
        Self::read_from_bytes(&[0; INODE_SIZE]).unwrap_or_else(|_| unreachable!("128 zero bytes"))
    }

    /// Reads the inode at the start of an ifile entry.
    ///
    /// # Errors
    /// [`FormatError::Short`].
    pub fn parse(entry: &[u8]) -> Result<Self, FormatError> {
        let (inode, _) = Self::read_from_prefix(entry).map_err(|_| FormatError::Short {
            structure: "inode",
            have: entry.len() as u64,
            need: INODE_SIZE as u64,
        })?;
        Ok(inode)
    }

    /// The file type.
    ///
    /// # Errors
    /// Type bits that are none of the seven.
    pub fn file_type(&self) -> Result<FileType, FormatError> {
        FileType::from_mode(self.i_mode.get()).ok_or_else(|| {
            let found = format!("{:#o}", self.i_mode.get());
            FormatError::field("inode", "i_mode", found, "a known file type")
        })
    }

    /// What every reader demands of the inodes of DAT, cpfile, sufile and ifile.
    ///
    /// # Errors
    /// Not a regular file, or not linked.
    pub fn validate_metadata_file(&self, name: &'static str) -> Result<(), FormatError> {
        if self.i_mode.get() & S_IFMT != S_IFREG {
            let found = format!("{:#o}", self.i_mode.get());
            return Err(FormatError::field(name, "i_mode", found, "a regular file"));
        }
        if self.i_links_count.get() == 0 {
            return Err(FormatError::field(name, "i_links_count", 0, "1"));
        }
        Ok(())
    }
}

/// A device number as it lies in the first pointer slot of a device inode (docs/format.md §6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DeviceCode {
    /// Major number, 12 bits.
    pub major: u32,
    /// Minor number, 20 bits.
    pub minor: u32,
}

impl DeviceCode {
    /// From the 64-bit slot.
    #[must_use]
    pub fn decode(slot: u64) -> Self {
        let code = slot as u32;
        Self { major: (code & 0xfff00) >> 8, minor: (code & 0xff) | ((code >> 12) & 0xfff00) }
    }

    /// For the 64-bit slot.
    #[must_use]
    pub fn encode(self) -> u64 {
        let code = (self.minor & 0xff) | (self.major << 8) | ((self.minor & !0xff) << 12);
        u64::from(code)
    }
}

#[cfg(test)]
mod tests {
    use super::DeviceCode;

    /// The vectors of docs/format.md §6.
    #[test]
    fn device_codes_are_linux_s() {
        for (major, minor, code) in [(259, 70000, 0x1111_0370), (4095, 1_048_575, 0xffff_ffff)] {
            let device = DeviceCode { major, minor };
            assert_eq!(device.encode(), code);
            assert_eq!(DeviceCode::decode(code), device);
        }
    }
}

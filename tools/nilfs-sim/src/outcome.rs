//! What an operation answers, in a form in which the answers of model and engine can be compared.

use std::fmt;

use nilfs_engine::Timestamp;
use nilfs_ondisk::inode::{DeviceCode, FileType};

/// The answer to an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was done, and there is nothing more to say.
    Done,
    /// It was refused.
    Refused(Refusal),
    /// The attributes of the file that it was about.
    Facts(Facts),
    /// Bytes that were read.
    Bytes(Vec<u8>),
    /// The entries of a directory without `.` and `..`, sorted by name.
    Names(Vec<(Vec<u8>, FileType)>),
    /// A position in a file; `None` if there is none before its end.
    Position(Option<u64>),
}

/// Why an operation was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// No such name, or the directory is gone.
    NotFound,
    /// The name exists.
    Exists,
    /// A directory is needed.
    NotDirectory,
    /// A directory will not do.
    IsDirectory,
    /// The directory has entries.
    NotEmpty,
    /// The volume is full.
    NoSpace,
    /// The volume holds too much to become that small.
    NoRoom,
    /// The volume cannot be written.
    ReadOnly,
    /// The greatest number of links is reached.
    TooManyLinks,
    /// The name or link text is too long.
    NameTooLong,
    /// The operation makes no sense on this file.
    Invalid,
    /// Beyond the greatest size of a file.
    FileTooLarge,
    /// It would have no effect.
    Unsupported,
    /// Flags or file type forbid it.
    NotPermitted,
    /// No file is open under this handle.
    NotOpen,
    /// The checkpoint is not there any more.
    NoCheckpoint,
    /// Another thread is changing the whole volume.
    Busy,
    /// The device failed, in the engine's words.
    Device(String),
    /// What no healthy file system answers, in the engine's words.
    Broken(String),
}

/// The attributes that model and engine must agree on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Kind of file.
    pub kind: FileType,
    /// Permission bits.
    pub mode: u16,
    /// Number of names; for a directory two more than it has subdirectories.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: DeviceCode,
    /// Size in bytes; zero for a directory, whose size is the engine's business.
    pub size: u64,
    /// Time of the last change of content.
    pub mtime: Timestamp,
    /// Time of the last change of content or attributes.
    pub ctime: Timestamp,
    /// Inode flags.
    pub flags: u32,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) if bytes.len() > 32 => {
                write!(f, "{} bytes, first {:02x?}", bytes.len(), &bytes[..32])
            }
            other => write!(f, "{other:?}"),
        }
    }
}

/// Says where two outcomes differ, or `None` if they agree.
#[must_use]
pub fn difference(expected: &Outcome, found: &Outcome) -> Option<String> {
    if expected == found {
        return None;
    }
    if let (Outcome::Bytes(want), Outcome::Bytes(have)) = (expected, found)
        && want.len() == have.len()
    {
        let at = want.iter().zip(have).position(|(a, b)| a != b)?;
        let (want, have) = (want[at], have[at]);
        return Some(format!("byte {at} of what was read is {have:#04x}, expected {want:#04x}"));
    }
    Some(format!("answered {found}, expected {expected}"))
}

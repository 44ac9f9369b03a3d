//! What can go wrong in the engine, in words for the person who reads them.
//!
//! Corruption is an error that says where, what was found and what was expected. A broken
//! invariant of our own is a bug and panics.

use std::io;

use nilfs_ondisk::notes::MOST_BYTES;
use nilfs_ondisk::{BlockNr, ByteCount, Cno, FormatError, Ino, SegNum};
use thiserror::Error;

/// The result of engine functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the engine could not do what it was asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// No such file or directory.
    #[error("no such file or directory")]
    NotFound,
    /// The name exists already.
    #[error("the name exists already")]
    Exists,
    /// Something on the way is not a directory.
    #[error("not a directory")]
    NotDirectory,
    /// The operation does not work on a directory.
    #[error("is a directory")]
    IsDirectory,
    /// The directory still has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// There is no room for what should be written.
    #[error("no space left on the volume")]
    NoSpace,
    /// The volume was not closed cleanly and is too full for a recovery on the device.
    #[error(
        "the volume was not closed cleanly, and there is no room to recover it; nothing is lost: a \
         read-only mount (-o ro) shows everything"
    )]
    NoRoomToRecover,
    /// What lies beyond the new end does not fit before it.
    #[error("what is in use does not fit into that size; clean segments missing: {segments}")]
    NoRoomToShrink {
        /// Segments that are missing.
        segments: u64,
    },
    /// A rollback would have to write more than there is room for.
    #[error(
        "a rollback needs up to {needed} bytes of free space, and there are {free}; delete snapshots or \
         files that are not needed, and clean"
    )]
    NoRoomToRollBack {
        /// Bytes that it writes at most.
        needed: u64,
        /// Bytes that can be written.
        free: u64,
    },
    /// A rollback of a path that the checkpoint does not have.
    #[error("checkpoint {0} has no such file or directory")]
    NotInCheckpoint(Cno),
    /// A rollback of a path whose directory is gone.
    #[error("the directory in which it was is not there any more; roll back a directory above it")]
    NoDirectoryNow,
    /// Something else is changing the whole volume.
    #[error("the volume is being resized or rolled back; try again when that is done")]
    Busy,
    /// The volume cannot be written.
    #[error("the volume is read-only: {reason}")]
    ReadOnly {
        /// Why.
        reason: String,
    },
    /// The file has as many links as the format allows (32000).
    #[error("too many links")]
    TooManyLinks,
    /// The name has more than 255 bytes, or a link target does not fit into a block.
    #[error("the name is too long")]
    NameTooLong,
    /// The arguments make no sense.
    #[error("{0}")]
    Invalid(&'static str),
    /// A request for something that is not done here.
    #[error("not supported: {0}")]
    Unsupported(&'static str),
    /// The offset lies beyond the largest file that the format allows.
    #[error("the file would be too large")]
    FileTooLarge,
    /// A flag of the inode forbids it.
    #[error("not permitted: {0}")]
    NotPermitted(&'static str),
    /// There is nothing at or after the offset (seek for data or a hole).
    #[error("no data at or beyond the offset")]
    NoData,
    /// The inode has been deleted meanwhile.
    #[error("the file has been deleted")]
    Stale,
    /// The volume contains something that the format does not allow.
    #[error("the volume is damaged: {what}{}: {source}", At(*.block))]
    Corrupt {
        /// What was being read.
        what: String,
        /// The block, where it is known.
        block: Option<BlockNr>,
        /// What is wrong with it.
        source: FormatError,
    },
    /// The volume contradicts itself.
    #[error("the volume is damaged: {0}")]
    Inconsistent(String),
    /// A block is not what was written there: its checksum is another one. It is as good as unreadable,
    /// and the rest of the volume goes on.
    #[error(
        "block {block}{part}, is damaged: it is not what was written there; nilfs scrub says which files \
         and checkpoints need it, and nilfs fsck what can be done"
    )]
    Damaged {
        /// The block.
        block: BlockNr,
        /// The part of a file that it is, after a comma; empty if that is not known.
        part: String,
    },
    /// What was fsynced after the newest checkpoint is there, but cannot be put on top of it.
    #[error(
        "what was fsynced last cannot be rolled forward: {0}; nilfs fsck may repair the volume, \
         nilfs recover says what would be lost without that, and -o ro,norecovery shows the newest checkpoint"
    )]
    RollForward(Box<Error>),
    /// The device failed.
    #[error("the device failed to {what}: {source}")]
    Device {
        /// What it should have done.
        what: String,
        /// What it said.
        source: io::Error,
    },
    /// The answer has to be read from the device, and the caller [must not wait](crate::without_waiting).
    #[error("the device would have to be waited for")]
    WouldWait,
    /// Neither a valid superblock nor a log.
    #[error("not a NILFS2 volume: {0}")]
    NotAVolume(String),
    /// There are logs of a volume, and no valid superblock.
    #[error(
        "both superblocks of the NILFS2 volume are damaged ({0}); nilfs fsck makes them anew from its \
         logs, nilfs salvage copies the files out, and nilfs mount -o ro,rescue shows them"
    )]
    NoSuperblock(String),
    /// There is a volume, and none of its checkpoints can be used.
    #[error("the volume is damaged: it has no checkpoint that can be used")]
    NothingToRescue,
    /// The device is shorter than the volume on it ([`FormatError::Truncated`]).
    #[error(transparent)]
    Truncated(FormatError),
    /// The volume uses features that are not known here.
    #[error("{0}; this version of nilfs cannot open it")]
    Feature(FormatError),
    /// There is no such checkpoint.
    #[error("there is no checkpoint {0}")]
    NoCheckpoint(Cno),
    /// Another snapshot has the name.
    #[error("snapshot {cno} is called {name} already")]
    NameTaken {
        /// The name.
        name: String,
        /// Its owner.
        cno: Cno,
    },
    /// There is no room for more names and notes of snapshots.
    #[error(
        "the names and notes of all snapshots have no more than {}; delete snapshots, or shorten \
         their notes",
        ByteCount(MOST_BYTES as u64)
    )]
    TooManyNotes,
}

struct At(Option<BlockNr>);

impl std::fmt::Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(block) => write!(f, " in block {block}"),
            None => Ok(()),
        }
    }
}

impl Error {
    /// A metadata block that should be there and is not.
    pub(crate) fn missing(what: impl std::fmt::Display) -> Self {
        Self::Inconsistent(format!("{what} is missing"))
    }

    /// An inode that is not what its directory entry or its use says.
    pub(crate) fn bad_inode(ino: Ino, source: FormatError) -> Self {
        Self::Corrupt { what: format!("inode {ino}"), block: None, source }
    }

    /// A segment that does not hold what it should.
    pub(crate) fn bad_segment(segment: SegNum, source: FormatError) -> Self {
        Self::Corrupt { what: format!("segment {segment}"), block: None, source }
    }

    /// Whether the error tells of damage or of a failing device, as opposed to a request that
    /// could not be granted.
    #[must_use]
    pub fn is_fault(&self) -> bool {
        matches!(
            self,
            Self::Corrupt { .. }
                | Self::Inconsistent(_)
                | Self::Damaged { .. }
                | Self::RollForward(_)
                | Self::Device { .. }
        )
    }

    /// Whether the volume is damaged where it was read.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Corrupt { .. } | Self::Inconsistent(_) | Self::Damaged { .. })
    }

    /// Whether blocks cannot be had: the device does not read them, or they are not what was written.
    pub(crate) fn is_of_block(&self) -> bool {
        matches!(self, Self::Device { .. } | Self::Damaged { .. })
    }
}

/// Adds to a [`FormatError`] where the bytes came from.
pub(crate) trait Locate<T> {
    /// The bytes were `what`, in `block`.
    fn at(self, what: impl FnOnce() -> String, block: BlockNr) -> Result<T>;
}

impl<T> Locate<T> for Result<T, FormatError> {
    fn at(self, what: impl FnOnce() -> String, block: BlockNr) -> Result<T> {
        self.map_err(|source| Error::Corrupt { what: what(), block: Some(block), source })
    }
}

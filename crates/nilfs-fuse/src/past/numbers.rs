//! `st_ino` in the past: the same wherever a file is met, and no number of a present file.
//!
//! ```text
//! bit 63 | 62      | 61 .. 32          | 31 .. 0
//! 1      | 0       | checkpoint        | inode number      a file of a checkpoint
//! 1      | 1       | 0                 | inode number      the door of a directory
//! 1      | 1       | bit 60            | inode number      `gmt` in it
//! 1      | 1       | bit 61, then the checkpoint           another name of a checkpoint
//! ```

use nilfs_engine::{Cno, Error, Ino, Result};

/// No number of a present file has it, because no volume is so large.
const PAST: u64 = 1 << 63;
const OF_DOOR: u64 = PAST | 1 << 62;
const OF_ALIAS: u64 = OF_DOOR | 1 << 61;
const OF_GMT: u64 = OF_DOOR | 1 << 60;

/// The bits of a checkpoint's number that are told: a billion checkpoints lie between two that
/// look the same.
const CNO: u64 = (1 << 30) - 1;

/// An inode number as it is part of others.
///
/// # Errors
/// It has more than 32 bits. The inodes alone of a volume with that many take terabytes.
pub(super) fn short(ino: Ino) -> Result<u32> {
    u32::try_from(ino.0).map_err(|_| Error::Invalid("an inode number of more than 32 bits"))
}

/// That of a file of a checkpoint.
pub(super) fn of_file(cno: Cno, ino: Ino) -> Ino {
    Ino(PAST | (cno.0 & CNO) << 32 | ino.0 & u64::from(u32::MAX))
}

/// That of the door of a directory.
pub(super) fn of_door(dir: Ino) -> Ino {
    Ino(OF_DOOR | dir.0 & u64::from(u32::MAX))
}

/// That of `gmt` in the door of a directory.
pub(super) fn of_gmt(dir: Ino) -> Ino {
    Ino(OF_GMT | dir.0 & u64::from(u32::MAX))
}

/// That of a symbolic link to a checkpoint.
pub(super) fn of_alias(cno: Cno) -> Ino {
    Ino(OF_ALIAS | cno.0 & CNO)
}

/// Whether a file, by its `st_ino`, is one of the past, or a door to that.
#[must_use]
pub fn is_of_past(st_ino: u64) -> bool {
    st_ino & PAST != 0
}

/// The inode number of a file of the past on the volume, by its `st_ino`.
#[must_use]
pub fn ino_of_past(st_ino: u64) -> Ino {
    Ino(st_ino & u64::from(u32::MAX))
}

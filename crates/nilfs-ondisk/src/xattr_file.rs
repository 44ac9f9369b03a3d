//! The xattr file, inode 8: one regular file without a name, for everything that the format has no
//! room for (docs/format.md §25).
//!
//! The format reserves the inode for extended attributes and puts nothing into it. Linux never opens
//! it, and its cleaner moves the blocks as those of any file. The file is divided into regions of
//! the same size, most of which are holes: the first block of a region begins with a magic number
//! and a version of its own, so each can change without the others.

/// Bytes from the start of one region to the start of the next.
pub const REGION_SIZE: u64 = 1 << 40;

/// What a part of the file is for. The numbers are part of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Region {
    /// Names and notes of snapshots ([`crate::notes`]).
    Notes = 0,
}

impl Region {
    /// Where it begins in the file, in bytes.
    #[must_use]
    pub fn offset(self) -> u64 {
        self as u64 * REGION_SIZE
    }
}

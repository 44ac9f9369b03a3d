//! The cpfile: a header and an array of checkpoint entries (docs/format.md §11).

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::inode::RawInode;
use crate::slots::{Slot, SlotArray};
use crate::{Cno, FileBlock, FormatError, Geometry};

/// `cp_flags`: kept as a snapshot.
pub const SNAPSHOT: u32 = 1;
/// `cp_flags`: no checkpoint in this slot.
pub const INVALID: u32 = 2;
/// `cp_flags`: nothing that a user sees has changed.
pub const MINOR: u32 = 8;

/// Bytes of the header.
pub const HEADER_SIZE: usize = 32;
/// Bytes of the fields of an entry.
pub const CHECKPOINT_SIZE: usize = 192;

/// The header at the start of the first block.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields have the names and the meaning of docs/format.md §11")]
pub struct RawCpfileHeader {
    pub ch_ncheckpoints: U64,
    pub ch_nsnapshots: U64,
    pub ch_snapshot_next: U64,
    pub ch_snapshot_prev: U64,
}

/// A checkpoint entry.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields have the names and the meaning of docs/format.md §11")]
pub struct RawCheckpoint {
    pub cp_flags: U32,
    pub cp_checkpoints_count: U32,
    pub cp_snapshot_next: U64,
    pub cp_snapshot_prev: U64,
    pub cp_cno: U64,
    pub cp_create: U64,
    pub cp_nblk_inc: U64,
    pub cp_inodes_count: U64,
    pub cp_blocks_count: U64,
    pub cp_ifile_inode: RawInode,
}

const _: () = assert!(size_of::<RawCpfileHeader>() == HEADER_SIZE);
const _: () = assert!(size_of::<RawCheckpoint>() == CHECKPOINT_SIZE);
const _: () = assert!(std::mem::offset_of!(RawCheckpoint, cp_ifile_inode) == 64);

impl RawCpfileHeader {
    /// Reads the header from the first block of the file.
    ///
    /// # Errors
    /// [`FormatError::Short`].
    pub fn parse(block: &[u8]) -> Result<Self, FormatError> {
        let (header, _) = Self::read_from_prefix(block).map_err(|_| FormatError::Short {
            structure: "cpfile header",
            have: block.len() as u64,
            need: HEADER_SIZE as u64,
        })?;
        Ok(header)
    }
}

impl RawCheckpoint {
    /// Reads an entry from its slot.
    ///
    /// # Errors
    /// [`FormatError::Short`].
    pub fn parse(slot: &[u8]) -> Result<Self, FormatError> {
        let (entry, _) = Self::read_from_prefix(slot).map_err(|_| FormatError::Short {
            structure: "checkpoint entry",
            have: slot.len() as u64,
            need: CHECKPOINT_SIZE as u64,
        })?;
        Ok(entry)
    }

    /// Whether the slot holds a checkpoint.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.cp_flags.get() & INVALID == 0 && self.cp_cno.get() != 0
    }

    /// Whether the checkpoint is kept as a snapshot.
    #[must_use]
    pub fn is_snapshot(&self) -> bool {
        self.cp_flags.get() & SNAPSHOT != 0
    }
}

/// The arithmetic of the cpfile.
#[derive(Debug, Clone, Copy)]
pub struct CpfileLayout(SlotArray);

impl CpfileLayout {
    /// For a volume.
    #[must_use]
    pub fn new(geometry: &Geometry) -> Self {
        Self(SlotArray::new(geometry.block_size, geometry.checkpoint_size, HEADER_SIZE))
    }

    /// Block and byte offset of the slot of a checkpoint.
    #[must_use]
    pub fn slot(&self, cno: Cno) -> Slot {
        self.0.slot(cno.0.saturating_sub(Cno::MIN.0))
    }

    /// The checkpoints whose slots lie in a block, ascending, each with the byte offset of its
    /// slot.
    pub fn slots_of(&self, block: FileBlock) -> impl Iterator<Item = (Cno, usize)> + use<> {
        self.0.slots_of(block).map(|(nth, offset)| (Cno::MIN.plus(nth), offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(block: FileBlock, offset: usize) -> Slot {
        Slot { block, offset }
    }
    use crate::BlockSize;

    #[test]
    fn slots_follow_the_format() {
        let layout = CpfileLayout(SlotArray::new(BlockSize::DEFAULT, CHECKPOINT_SIZE, HEADER_SIZE));
        assert_eq!(layout.slot(Cno(1)), at(FileBlock(0), 192));
        assert_eq!(layout.slot(Cno(20)), at(FileBlock(0), 20 * 192));
        assert_eq!(layout.slot(Cno(21)), at(FileBlock(1), 0));
        for block in [FileBlock(0), FileBlock(3)] {
            for (cno, offset) in layout.slots_of(block) {
                assert_eq!(layout.slot(cno), at(block, offset));
            }
        }
        assert_eq!(layout.slots_of(FileBlock(0)).count(), 20);
    }
}

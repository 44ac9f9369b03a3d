//! The sufile: a header and an array of segment usage entries (docs/format.md §12).

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::slots::{Slot, SlotArray};
use crate::{FileBlock, FormatError, Geometry, SegNum};

/// `su_flags`: set by mkfs only; means nothing on disk.
pub const ACTIVE: u32 = 1;
/// `su_flags`: in use.
pub const DIRTY: u32 = 2;
/// `su_flags`: an I/O error was seen; never allocated again.
pub const ERROR: u32 = 4;

/// Bytes of the header.
pub const HEADER_SIZE: usize = 24;
/// Bytes of the fields of an entry.
pub const SEGMENT_USAGE_SIZE: usize = 16;

/// The header at the start of the first block.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields have the names and the meaning of docs/format.md §12")]
pub struct RawSufileHeader {
    pub sh_ncleansegs: U64,
    pub sh_ndirtysegs: U64,
    pub sh_last_alloc: U64,
}

/// A segment usage entry.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields have the names and the meaning of docs/format.md §12")]
pub struct RawSegmentUsage {
    pub su_lastmod: U64,
    pub su_nblocks: U32,
    pub su_flags: U32,
}

const _: () = assert!(size_of::<RawSufileHeader>() == HEADER_SIZE);
const _: () = assert!(size_of::<RawSegmentUsage>() == SEGMENT_USAGE_SIZE);

impl RawSufileHeader {
    /// Reads the header from the first block of the file.
    ///
    /// # Errors
    /// [`FormatError::Short`].
    pub fn parse(block: &[u8]) -> Result<Self, FormatError> {
        let (header, _) = Self::read_from_prefix(block).map_err(|_| FormatError::Short {
            structure: "sufile header",
            have: block.len() as u64,
            need: HEADER_SIZE as u64,
        })?;
        Ok(header)
    }
}

impl RawSegmentUsage {
    /// The entry of a segment that is not in use.
    pub const CLEAN: Self =
        Self { su_lastmod: U64::ZERO, su_nblocks: U32::ZERO, su_flags: U32::ZERO };

    /// Reads an entry from its slot.
    ///
    /// # Errors
    /// [`FormatError::Short`].
    pub fn parse(slot: &[u8]) -> Result<Self, FormatError> {
        let (entry, _) = Self::read_from_prefix(slot).map_err(|_| FormatError::Short {
            structure: "segment usage entry",
            have: slot.len() as u64,
            need: SEGMENT_USAGE_SIZE as u64,
        })?;
        Ok(entry)
    }

    /// Whether the segment is free: no flag at all is set.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.su_flags.get() == 0
    }

    /// Whether the segment is in use.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.su_flags.get() & DIRTY != 0
    }

    /// Whether the segment must never be used again.
    #[must_use]
    pub fn is_bad(&self) -> bool {
        self.su_flags.get() & ERROR != 0
    }
}

/// The arithmetic of the sufile.
#[derive(Debug, Clone, Copy)]
pub struct SufileLayout(SlotArray);

impl SufileLayout {
    /// For a volume.
    #[must_use]
    pub fn new(geometry: &Geometry) -> Self {
        Self(SlotArray::new(geometry.block_size, geometry.segment_usage_size, HEADER_SIZE))
    }

    /// Block and byte offset of the slot of a segment.
    #[must_use]
    pub fn slot(&self, segment: SegNum) -> Slot {
        self.0.slot(segment.0)
    }

    /// The segments whose slots lie in a block, ascending, each with the byte offset of its slot.
    pub fn slots_of(&self, block: FileBlock) -> impl Iterator<Item = (SegNum, usize)> + use<> {
        self.0.slots_of(block).map(|(nth, offset)| (SegNum(nth), offset))
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
        let layout =
            SufileLayout(SlotArray::new(BlockSize::DEFAULT, SEGMENT_USAGE_SIZE, HEADER_SIZE));
        assert_eq!(layout.slot(SegNum(0)), at(FileBlock(0), 32));
        assert_eq!(layout.slot(SegNum(253)), at(FileBlock(0), 255 * 16));
        assert_eq!(layout.slot(SegNum(254)), at(FileBlock(1), 0));
        for (segment, offset) in layout.slots_of(FileBlock(1)) {
            assert_eq!(layout.slot(segment), at(FileBlock(1), offset));
        }
        assert_eq!(layout.slots_of(FileBlock(0)).count(), 254);
    }
}

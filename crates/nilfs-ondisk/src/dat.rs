//! Entries of the DAT: where a virtual block is and in which checkpoints it lives
//! (docs/format.md §8).

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{BlockNr, Cno, FormatError};

/// Bytes of the fields of an entry.
pub const DAT_ENTRY_SIZE: usize = 32;

/// An entry as it lies on disk.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
#[allow(missing_docs, reason = "the fields have the names and the meaning of docs/format.md §8")]
pub struct RawDatEntry {
    pub de_blocknr: U64,
    pub de_start: U64,
    pub de_end: U64,
    pub de_rsv: U64,
}

const _: () = assert!(size_of::<RawDatEntry>() == DAT_ENTRY_SIZE);

/// A DAT entry: the block at `block` belongs to every checkpoint c with `start <= c < end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatEntry {
    /// Where the block is; 0 = not written.
    pub block: BlockNr,
    /// First checkpoint that contains it.
    pub start: Cno,
    /// First checkpoint that does not contain it any more.
    pub end: Cno,
}

impl DatEntry {
    /// Reads an entry from the bytes of its slot.
    ///
    /// # Errors
    /// [`FormatError::Short`].
    pub fn parse(slot: &[u8]) -> Result<Self, FormatError> {
        let (raw, _) = RawDatEntry::read_from_prefix(slot).map_err(|_| FormatError::Short {
            structure: "DAT entry",
            have: slot.len() as u64,
            need: DAT_ENTRY_SIZE as u64,
        })?;
        Ok(Self {
            block: BlockNr(raw.de_blocknr.get()),
            start: Cno(raw.de_start.get()),
            end: Cno(raw.de_end.get()),
        })
    }

    /// Writes the entry into the bytes of its slot.
    pub fn encode(&self, slot: &mut [u8]) {
        let raw = RawDatEntry {
            de_blocknr: U64::new(self.block.0),
            de_start: U64::new(self.start.0),
            de_end: U64::new(self.end.0),
            de_rsv: U64::new(0),
        };
        slot[..DAT_ENTRY_SIZE].copy_from_slice(raw.as_bytes());
    }

    /// Whether the block is part of the checkpoint.
    #[must_use]
    pub fn contains(&self, cno: Cno) -> bool {
        self.start <= cno && cno < self.end
    }
}

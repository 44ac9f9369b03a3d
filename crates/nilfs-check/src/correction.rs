//! What would put a fault right, where that follows from the rest of the volume. Nothing is
//! written here, and nothing is known of how a volume is repaired.

use std::fmt;

use nilfs_ondisk::BlockNr;

/// A change after which the volume keeps the rule that a finding is about.
///
/// Blocks of the log are never written in place. A correction says what a block should be, so that
/// it can be written so to another place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Correction {
    /// Both copies of the superblock are written anew, from the one that counts: with the newest
    /// log, and without the mark of an error.
    Superblocks,
    /// Bytes of a block are replaced.
    Bytes {
        /// Where they are.
        at: Position,
        /// What they should be.
        bytes: Vec<u8>,
    },
    /// A number that only counts what is said elsewhere is replaced. It is to be corrected after
    /// what it counts.
    Count {
        /// Where it is.
        at: Position,
        /// What it should be, as it is stored.
        bytes: Vec<u8>,
    },
    /// A bit of a bitmap is set or cleared.
    Bit {
        /// The byte with the bit.
        at: Position,
        /// Which of its bits, from the least significant.
        bit: u8,
        /// Whether it should be set.
        set: bool,
    },
}

/// A byte of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The block.
    pub block: BlockNr,
    /// Bytes from its start.
    pub offset: usize,
}

impl Position {
    pub(crate) fn new(block: BlockNr, offset: usize) -> Self {
        Self { block, offset }
    }

    /// The position some bytes further on in the block.
    pub(crate) fn plus(self, bytes: usize) -> Self {
        Self { offset: self.offset + bytes, ..self }
    }
}

impl Correction {
    /// A count of two bytes should have this value.
    pub(crate) fn count_u16(at: Position, value: u16) -> Self {
        Self::Count { at, bytes: value.to_le_bytes().to_vec() }
    }

    /// A field of four bytes should have this value.
    pub(crate) fn u32(at: Position, value: u32) -> Self {
        Self::Bytes { at, bytes: value.to_le_bytes().to_vec() }
    }

    /// A field of eight bytes should have this value.
    pub(crate) fn u64(at: Position, value: u64) -> Self {
        Self::Bytes { at, bytes: value.to_le_bytes().to_vec() }
    }

    /// A count of four bytes should have this value.
    pub(crate) fn count_u32(at: Position, value: u32) -> Self {
        Self::Count { at, bytes: value.to_le_bytes().to_vec() }
    }

    /// A count of eight bytes should have this value.
    pub(crate) fn count_u64(at: Position, value: u64) -> Self {
        Self::Count { at, bytes: value.to_le_bytes().to_vec() }
    }

    /// A bit of a bitmap that begins at a position should be set or not.
    pub(crate) fn bit(bitmap: Position, bit: usize, set: bool) -> Self {
        Self::Bit { at: bitmap.plus(bit / 8), bit: (bit % 8) as u8, set }
    }
}

impl fmt::Display for Correction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Superblocks => f.write_str("write both superblocks anew"),
            Self::Bytes { bytes, .. } | Self::Count { bytes, .. } => match bytes[..] {
                // Numbers of the format have these sizes.
                [_] | [_, _] | [_, _, _, _] | [_, _, _, _, _, _, _, _] => {
                    let number =
                        bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
                    write!(f, "set it to {number}")
                }
                _ => write!(f, "replace {} bytes", bytes.len()),
            },
            Self::Bit { set: true, .. } => f.write_str("mark it as allocated"),
            Self::Bit { set: false, .. } => f.write_str("mark it as free"),
        }
    }
}

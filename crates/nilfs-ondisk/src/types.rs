//! A type for every kind of number, so that a virtual block number is never used as a physical
//! one and a segment never as a checkpoint.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::FormatError;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[derive(Serialize, Deserialize)]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl $name {
            /// The number `count` further on.
            #[must_use]
            pub const fn plus(self, count: u64) -> Self {
                Self(self.0.wrapping_add(count))
            }
        }
    };
}

number! {
    /// A physical block number: the byte address on the device divided by the block size.
    BlockNr
}
number! {
    /// A virtual block number: an index into the DAT, which says where the block is now.
    VBlockNr
}
number! {
    /// A checkpoint number. Counting starts with 1.
    Cno
}
number! {
    /// A segment number.
    SegNum
}
number! {
    /// The sequence number of a full segment: one more for each segment that is taken into use.
    Seq
}
number! {
    /// An inode number.
    Ino
}
number! {
    /// The index of a block within a file.
    FileBlock
}

/// A number of bytes, shown for people: as a whole number or with one decimal, and with a binary
/// unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteCount(pub u64);

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        // From here on, rounding would show 1024.0 of the smaller unit.
        const NEXT_UNIT: f64 = 1023.95;
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= NEXT_UNIT && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        let decimals = usize::from(value.fract() != 0.0);
        write!(f, "{value:.decimals$} {}", UNITS[unit])
    }
}

impl Cno {
    /// The first checkpoint of a volume.
    pub const MIN: Cno = Cno(1);
    /// In `de_end` of a DAT entry: the block is part of the present.
    pub const MAX: Cno = Cno(u64::MAX);
}

impl Ino {
    /// The root directory.
    pub const ROOT: Ino = Ino(2);
    /// The DAT; its inode is in the super root.
    pub const DAT: Ino = Ino(3);
    /// The checkpoint file; its inode is in the super root.
    pub const CPFILE: Ino = Ino(4);
    /// The segment usage file; its inode is in the super root.
    pub const SUFILE: Ino = Ino(5);
    /// The inode file; its inode is in the checkpoint entry.
    pub const IFILE: Ino = Ino(6);
    /// The xattr file: what the format has no room for (docs/format.md §25). It is reserved by the
    /// format, which puts nothing into it, and no directory entry names it.
    pub const XATTR: Ino = Ino(8);
    /// The first inode number that a user file may have.
    pub const FIRST_USER: Ino = Ino(11);

    /// Whether this is the inode of the root directory or of another file of a user, and none that
    /// the format reserves (docs/format.md §10).
    #[must_use]
    pub fn is_of_user(self) -> bool {
        self >= Self::FIRST_USER || self == Self::ROOT
    }

    /// Whether Linux reads a directory entry that names this inode. Number 10 was meant for a sketch
    /// file, which nobody has ever made.
    #[must_use]
    pub fn is_nameable(self) -> bool {
        self.is_of_user() || self.0 == 10
    }
}

/// The size of a block: a power of two from 1 KiB to 64 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct BlockSize {
    log2: u32,
}

impl BlockSize {
    /// The usual block size, 4096 bytes.
    pub const DEFAULT: BlockSize = BlockSize { log2: 12 };

    /// From the exponent in the superblock (`1024 << exponent` bytes).
    pub fn from_exponent(exponent: u32) -> Result<Self, FormatError> {
        if exponent > 6 {
            return Err(FormatError::field("superblock", "s_log_block_size", exponent, "0 to 6"));
        }
        Ok(Self { log2: 10 + exponent })
    }

    /// From a number of bytes.
    pub fn from_bytes(bytes: u64) -> Result<Self, FormatError> {
        if !bytes.is_power_of_two() || !(1024..=65536).contains(&bytes) {
            return Err(FormatError::field(
                "superblock",
                "block size",
                bytes,
                "a power of two from 1024 to 65536",
            ));
        }
        Ok(Self { log2: bytes.trailing_zeros() })
    }

    /// The exponent as the superblock stores it.
    #[must_use]
    pub const fn exponent(self) -> u32 {
        self.log2 - 10
    }

    /// Bytes in a block.
    #[must_use]
    pub const fn bytes(self) -> usize {
        1 << self.log2
    }

    /// Bytes in a block, as a 64-bit number for arithmetic with file sizes.
    #[must_use]
    pub const fn bytes64(self) -> u64 {
        1 << self.log2
    }

    /// Blocks needed for `bytes` bytes.
    #[must_use]
    pub const fn blocks_for(self, bytes: u64) -> u64 {
        bytes.div_ceil(1 << self.log2)
    }

    /// The block of a file that holds byte `offset`.
    #[must_use]
    pub const fn block_of(self, offset: u64) -> FileBlock {
        FileBlock(offset >> self.log2)
    }

    /// The byte address of physical block `block`, or `None` if it exceeds 64 bits.
    #[must_use]
    pub const fn address_of(self, block: BlockNr) -> Option<u64> {
        if block.0 > u64::MAX >> self.log2 { None } else { Some(block.0 << self.log2) }
    }

    /// 512-byte sectors in a block, the unit of `i_blocks`.
    #[must_use]
    pub const fn sectors(self) -> u64 {
        1 << (self.log2 - 9)
    }
}

impl TryFrom<u64> for BlockSize {
    type Error = FormatError;

    fn try_from(bytes: u64) -> Result<Self, FormatError> {
        Self::from_bytes(bytes)
    }
}

impl From<BlockSize> for u64 {
    fn from(size: BlockSize) -> Self {
        size.bytes64()
    }
}

impl fmt::Display for BlockSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_bytes_are_shown_with_binary_units() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (4 << 30, "4 GiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(ByteCount(bytes).to_string(), text);
        }
    }
}

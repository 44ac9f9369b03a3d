//! Persistent object files: arrays of entries with an allocation bitmap, used by the DAT and the
//! ifile (docs/format.md §9).
//!
//! ```text
//! file block:  D*bpd           : group descriptor block D (gpd × u32 pg_nfrees)
//!              D*bpd+1+g*bpg   : bitmap block of group D*gpd+g
//!              ... +1 ...      : entry blocks of that group
//! ```

use std::ops::Range;

use crate::{BlockSize, FileBlock};

/// The arithmetic of a persistent object file with entries of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Palloc {
    entry_size: usize,
    /// Entries of a group: the bits of one bitmap block.
    pub entries_per_group: u64,
    /// Entries in an entry block.
    pub entries_per_block: u64,
    /// Blocks of a group: its bitmap and its entry blocks.
    pub blocks_per_group: u64,
    /// Groups of a descriptor block.
    pub groups_per_descriptor: u64,
    /// Blocks from one descriptor block to the next.
    pub blocks_per_descriptor: u64,
}

/// A bit in the bitmap of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BitmapPosition {
    /// The bitmap block.
    pub block: FileBlock,
    /// The bit in it.
    pub bit: usize,
}

/// A slot in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotPosition {
    /// The block.
    pub block: FileBlock,
    /// Byte offset in it.
    pub offset: usize,
}

impl Palloc {
    /// For entries of `entry_size` bytes. The size must have been validated: not 0, not more
    /// than a block.
    #[must_use]
    pub fn new(block_size: BlockSize, entry_size: usize) -> Self {
        let bs = block_size.bytes64();
        let entries_per_group = bs * 8;
        let entries_per_block = bs / entry_size as u64;
        let blocks_per_group = entries_per_group.div_ceil(entries_per_block) + 1;
        let groups_per_descriptor = bs / 4;
        let blocks_per_descriptor = groups_per_descriptor * blocks_per_group + 1;
        Self {
            entry_size,
            entries_per_group,
            entries_per_block,
            blocks_per_group,
            groups_per_descriptor,
            blocks_per_descriptor,
        }
    }

    /// The group of an entry.
    #[must_use]
    pub fn group_of(&self, entry: u64) -> u64 {
        entry / self.entries_per_group
    }

    /// The first entry of a group.
    #[must_use]
    pub fn first_of_group(&self, group: u64) -> u64 {
        group.saturating_mul(self.entries_per_group)
    }

    /// Where the counter of free entries of a group is.
    #[must_use]
    pub fn descriptor(&self, group: u64) -> SlotPosition {
        SlotPosition {
            block: FileBlock(
                (group / self.groups_per_descriptor).saturating_mul(self.blocks_per_descriptor),
            ),
            offset: (group % self.groups_per_descriptor) as usize * 4,
        }
    }

    /// The bitmap block of a group.
    #[must_use]
    pub fn bitmap(&self, group: u64) -> FileBlock {
        let in_descriptor = group % self.groups_per_descriptor;
        self.descriptor(group).block.plus(1 + in_descriptor * self.blocks_per_group)
    }

    /// The bit of an entry.
    #[must_use]
    pub fn bit(&self, entry: u64) -> BitmapPosition {
        BitmapPosition {
            block: self.bitmap(self.group_of(entry)),
            bit: (entry % self.entries_per_group) as usize,
        }
    }

    /// The slot of an entry.
    #[must_use]
    pub fn entry(&self, entry: u64) -> SlotPosition {
        let in_group = entry % self.entries_per_group;
        SlotPosition {
            block: self.bitmap(self.group_of(entry)).plus(1 + in_group / self.entries_per_block),
            offset: (in_group % self.entries_per_block) as usize * self.entry_size,
        }
    }

    /// Counts the blocks of entries, from the first group on: the one with this entry.
    #[must_use]
    pub fn nth_entry_block(&self, entry: u64) -> u64 {
        let in_group = (entry % self.entries_per_group) / self.entries_per_block;
        self.group_of(entry) * (self.blocks_per_group - 1) + in_group
    }

    /// The entries of the nth block of entries. Those of the very last one end before the last
    /// number.
    #[must_use]
    pub fn entries_of_block(&self, nth: u64) -> Range<u64> {
        let group = nth / (self.blocks_per_group - 1);
        let in_group = (nth % (self.blocks_per_group - 1)) * self.entries_per_block;
        let first = self.first_of_group(group);
        let end = (in_group + self.entries_per_block).min(self.entries_per_group);
        first.saturating_add(in_group)..first.saturating_add(end)
    }

    /// The number of groups that can exist: those of all entries with a number of 64 bits. Linux
    /// does use the very last one for virtual blocks.
    #[must_use]
    pub fn max_groups(&self) -> u64 {
        self.group_of(u64::MAX) + 1
    }

    /// What a block of the file holds.
    #[must_use]
    pub fn role_of(&self, block: FileBlock) -> BlockRole {
        let descriptor = block.0 / self.blocks_per_descriptor;
        let within = block.0 % self.blocks_per_descriptor;
        if within == 0 {
            return BlockRole::Descriptor { first_group: descriptor * self.groups_per_descriptor };
        }
        // A block after the last group, which only a damaged volume has, has no entries.
        let group = descriptor * self.groups_per_descriptor + (within - 1) / self.blocks_per_group;
        match (within - 1) % self.blocks_per_group {
            0 => BlockRole::Bitmap { group },
            nth => BlockRole::Entries {
                first_entry: self
                    .first_of_group(group)
                    .saturating_add((nth - 1) * self.entries_per_block),
            },
        }
    }
}

/// What a block of a persistent object file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockRole {
    /// Counters of free entries, for groups from `first_group` on.
    Descriptor {
        /// The group of the first counter.
        first_group: u64,
    },
    /// The bitmap of a group.
    Bitmap {
        /// The group.
        group: u64,
    },
    /// Entries from `first_entry` on.
    Entries {
        /// The entry of the first slot.
        first_entry: u64,
    },
}

/// Whether a bit is set.
#[must_use]
pub fn test_bit(bitmap: &[u8], bit: usize) -> bool {
    bitmap[bit / 8] & (1 << (bit % 8)) != 0
}

/// Sets a bit; tells whether it was clear before.
pub fn set_bit(bitmap: &mut [u8], bit: usize) -> bool {
    let was_clear = !test_bit(bitmap, bit);
    bitmap[bit / 8] |= 1 << (bit % 8);
    was_clear
}

/// Clears a bit; tells whether it was set before.
pub fn clear_bit(bitmap: &mut [u8], bit: usize) -> bool {
    let was_set = test_bit(bitmap, bit);
    bitmap[bit / 8] &= !(1 << (bit % 8));
    was_set
}

/// The first clear bit at or after `from`, if there is one.
#[must_use]
pub fn next_clear_bit(bitmap: &[u8], from: usize) -> Option<usize> {
    let mut byte = from / 8;
    let head = bitmap.get(byte)?;
    // Bits below `from` count as set.
    let masked = head | !(0xff << (from % 8)) as u8;
    if masked != 0xff {
        return Some(byte * 8 + masked.trailing_ones() as usize);
    }
    byte += 1;
    let rest = bitmap.get(byte..)?;
    let nth = rest.iter().position(|&b| b != 0xff)?;
    Some((byte + nth) * 8 + rest[nth].trailing_ones() as usize)
}

/// Number of set bits.
#[must_use]
pub fn count_set(bitmap: &[u8]) -> u64 {
    bitmap.iter().map(|b| u64::from(b.count_ones())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of docs/format.md §9: epg, DAT epb/bpg/gpd/bpd, ifile epb/bpg/gpd/bpd.
    #[test]
    fn geometry_is_that_of_the_format() {
        for (bs, epg, dat, ifile) in [
            (1024, 8192, [32, 257, 256, 65793], [8, 1025, 256, 262_401]),
            (4096, 32768, [128, 257, 1024, 263_169], [32, 1025, 1024, 1_049_601]),
            (65536, 524_288, [2048, 257, 16384, 4_210_689], [512, 1025, 16384, 16_793_601]),
        ] {
            let block_size = BlockSize::from_bytes(bs).unwrap();
            for (size, expected) in [(32, dat), (128, ifile)] {
                let p = Palloc::new(block_size, size);
                assert_eq!(p.entries_per_group, epg);
                let found = [
                    p.entries_per_block,
                    p.blocks_per_group,
                    p.groups_per_descriptor,
                    p.blocks_per_descriptor,
                ];
                assert_eq!(found, expected);
            }
        }
    }

    #[test]
    fn every_position_has_the_role_it_was_computed_for() {
        let p = Palloc::new(BlockSize::DEFAULT, 32);
        for entry in [0, 1, 127, 128, 32767, 32768, 33_554_431, 33_554_432, 40_000_000] {
            let group = p.group_of(entry);
            assert!(group < p.max_groups());
            assert_eq!(p.role_of(p.bitmap(group)), BlockRole::Bitmap { group });
            let slot = p.entry(entry);
            let BlockRole::Entries { first_entry } = p.role_of(slot.block) else {
                panic!("entry {entry} is not in an entry block")
            };
            assert_eq!(first_entry + slot.offset as u64 / 32, entry);
        }
    }

    #[test]
    fn the_next_clear_bit_is_found_across_bytes() {
        let bitmap = [0xff, 0b0111_1111, 0xff, 0xfe];
        assert_eq!(next_clear_bit(&bitmap, 0), Some(15));
        assert_eq!(next_clear_bit(&bitmap, 15), Some(15));
        assert_eq!(next_clear_bit(&bitmap, 16), Some(24));
        assert_eq!(next_clear_bit(&bitmap, 25), None);
        assert_eq!(next_clear_bit(&bitmap, 32), None);
    }
}

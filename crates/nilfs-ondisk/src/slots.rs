//! Arrays of entries after a header, as the cpfile and the sufile are: the header takes the place
//! of the first entries, and no entry crosses a block.

use crate::{BlockSize, FileBlock};

/// Where an entry is in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The block.
    pub block: FileBlock,
    /// The first byte within the block.
    pub offset: usize,
}

/// The arithmetic of such an array.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotArray {
    entry_size: usize,
    per_block: u64,
    header_slots: u64,
}

impl SlotArray {
    /// For entries and a header of these sizes in bytes.
    pub(crate) fn new(block_size: BlockSize, entry_size: usize, header_size: usize) -> Self {
        Self {
            entry_size,
            per_block: (block_size.bytes() / entry_size) as u64,
            header_slots: header_size.div_ceil(entry_size) as u64,
        }
    }

    /// Where the nth entry is.
    pub(crate) fn slot(&self, nth: u64) -> Slot {
        let index = nth.saturating_add(self.header_slots);
        Slot {
            block: FileBlock(index / self.per_block),
            offset: (index % self.per_block) as usize * self.entry_size,
        }
    }

    /// The entries of a block, ascending, each with its byte offset.
    pub(crate) fn slots_of(self, block: FileBlock) -> impl Iterator<Item = (u64, usize)> {
        let first = block.0.saturating_mul(self.per_block);
        (0..self.per_block).filter_map(move |within| {
            let nth = first.checked_add(within)?.checked_sub(self.header_slots)?;
            Some((nth, within as usize * self.entry_size))
        })
    }
}

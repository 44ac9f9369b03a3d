//! Arrays of entries behind a header, as the cpfile and the sufile are: the header takes the place
//! of the first entries, and no entry crosses a block.

use crate::{BlockSize, FileBlock};

/// The arithmetic of such an array.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotArray {
    entry_size: usize,
    per_block: u64,
    header_slots: u64,
}

impl SlotArray {
    /// For entries and a header of so many bytes.
    pub(crate) fn new(block_size: BlockSize, entry_size: usize, header_size: usize) -> Self {
        Self {
            entry_size,
            per_block: (block_size.bytes() / entry_size) as u64,
            header_slots: header_size.div_ceil(entry_size) as u64,
        }
    }

    /// Block and byte offset of the nth entry.
    pub(crate) fn slot(&self, nth: u64) -> (FileBlock, usize) {
        let index = nth.saturating_add(self.header_slots);
        (FileBlock(index / self.per_block), (index % self.per_block) as usize * self.entry_size)
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

//! Addresses that a version of the DAT has told lately. The way to an entry leads through a B-tree and
//! several blocks of the cache, and of metadata the same few are asked for again and again: by random
//! lookups, every node and block of the ifile.

use nilfs_ondisk::{BlockNr, VBlockNr};

use crate::host::atomic::{AtomicU64, Ordering};

/// Numbers that are remembered, a power of two. They take eight bytes each.
const SLOTS: u64 = 4096;

/// The bits of a slot for the address. The others tell which of the numbers it is whose slot this is.
const ADDRESS: u32 = 40;

/// A slot for each of some numbers. Readers need no lock: each slot is one word, with an address that
/// holds for as long as this version of the DAT does.
#[derive(Debug)]
pub(super) struct Known(Box<[AtomicU64]>);

impl Known {
    pub(super) fn new() -> Self {
        Self((0..SLOTS).map(|_| AtomicU64::new(0)).collect())
    }

    /// The address of a block, if it is known.
    pub(super) fn get(&self, vblocknr: VBlockNr) -> Option<BlockNr> {
        let word = self.slot(vblocknr).load(Ordering::Relaxed);
        let address = word & ((1 << ADDRESS) - 1);
        (address != 0 && word >> ADDRESS == vblocknr.0 / SLOTS).then_some(BlockNr(address))
    }

    /// Notes an address; not one of the few that are too large for a slot.
    pub(super) fn note(&self, vblocknr: VBlockNr, address: BlockNr) {
        let which = vblocknr.0 / SLOTS;
        if address.0 >> ADDRESS == 0 && which >> (u64::BITS - ADDRESS) == 0 {
            self.slot(vblocknr).store(which << ADDRESS | address.0, Ordering::Relaxed);
        }
    }

    fn slot(&self, vblocknr: VBlockNr) -> &AtomicU64 {
        &self.0[(vblocknr.0 % SLOTS) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_told_of_no_other_number() {
        let known = Known::new();
        let (number, address) = (VBlockNr(7), BlockNr(99));
        assert_eq!(known.get(number), None);
        known.note(number, address);
        assert_eq!(known.get(number), Some(address));
        assert_eq!(known.get(VBlockNr(7 + SLOTS)), None);
        assert_eq!(known.get(VBlockNr(8)), None);
        known.note(VBlockNr(7 + SLOTS), BlockNr(5));
        assert_eq!(known.get(number), None, "it had to make room");
        assert_eq!(known.get(VBlockNr(7 + SLOTS)), Some(BlockNr(5)));
    }

    #[test]
    fn what_is_too_large_for_a_slot_is_not_remembered() {
        let known = Known::new();
        let largest = VBlockNr((SLOTS << (u64::BITS - ADDRESS)) - 1);
        known.note(largest, BlockNr((1 << ADDRESS) - 1));
        assert_eq!(known.get(largest), Some(BlockNr((1 << ADDRESS) - 1)));
        let numbers = [VBlockNr(largest.0 + 1), VBlockNr(u64::MAX)];
        numbers.iter().for_each(|number| known.note(*number, BlockNr(1)));
        assert!(numbers.iter().all(|number| known.get(*number).is_none()));
        known.note(VBlockNr(3), BlockNr(1 << ADDRESS));
        assert_eq!(known.get(VBlockNr(3)), None);
    }
}

//! Where maps have led lately. A way through a map leads over several blocks of the cache, and of
//! metadata the same few are asked for again and again: by random lookups, every node and block of the
//! ifile.

use crate::host::atomic::{AtomicU64, Ordering};

/// Numbers that are remembered, a power of two. They take eight bytes each.
const SLOTS: u64 = 4096;

/// The bits of a slot for where a number leads. The others tell which of the numbers it is whose slot
/// this is.
const TARGET: u32 = 40;

/// A slot for each of some numbers. Readers need no lock: each slot is one word, and what it says holds
/// for as long as the version of the map does that the memo belongs to.
#[derive(Debug)]
pub(crate) struct Memo(Box<[AtomicU64]>);

impl Memo {
    pub(crate) fn new() -> Self {
        Self((0..SLOTS).map(|_| AtomicU64::new(0)).collect())
    }

    /// Where a number leads, if that is known; never to 0.
    pub(crate) fn get(&self, number: u64) -> Option<u64> {
        let word = self.slot(number).load(Ordering::Relaxed);
        let target = word & ((1 << TARGET) - 1);
        (target != 0 && word >> TARGET == number / SLOTS).then_some(target)
    }

    /// Notes where a number leads, unless one of both is so large that there is no room for it in a
    /// slot.
    pub(crate) fn note(&self, number: u64, target: u64) {
        let which = number / SLOTS;
        if target >> TARGET == 0 && which >> (u64::BITS - TARGET) == 0 {
            self.slot(number).store(which << TARGET | target, Ordering::Relaxed);
        }
    }

    fn slot(&self, number: u64) -> &AtomicU64 {
        &self.0[(number % SLOTS) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_told_of_no_other_number() {
        let memo = Memo::new();
        assert_eq!(memo.get(7), None);
        memo.note(7, 99);
        assert_eq!(memo.get(7), Some(99));
        assert_eq!(memo.get(7 + SLOTS), None);
        assert_eq!(memo.get(8), None);
        memo.note(7 + SLOTS, 5);
        assert_eq!(memo.get(7), None, "it had to make room");
        assert_eq!(memo.get(7 + SLOTS), Some(5));
    }

    #[test]
    fn what_is_too_large_for_a_slot_is_not_remembered() {
        let memo = Memo::new();
        let largest = (SLOTS << (u64::BITS - TARGET)) - 1;
        memo.note(largest, (1 << TARGET) - 1);
        assert_eq!(memo.get(largest), Some((1 << TARGET) - 1));
        let numbers = [largest + 1, u64::MAX];
        numbers.iter().for_each(|number| memo.note(*number, 1));
        assert!(numbers.iter().all(|number| memo.get(*number).is_none()));
        memo.note(3, 1 << TARGET);
        assert_eq!(memo.get(3), None);
    }
}

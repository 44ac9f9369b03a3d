//! Sets of pages, one bit each.

use std::ops::Range;

/// A set of pages.
#[derive(Debug, Clone)]
pub(super) struct Pages {
    words: Vec<u64>,
}

impl Pages {
    /// None, or all, of this many.
    pub(super) fn new(count: u64, all: bool) -> Self {
        let word = if all { u64::MAX } else { 0 };
        Self { words: vec![word; count.div_ceil(64) as usize] }
    }

    pub(super) fn has(&self, page: u64) -> bool {
        self.words[(page / 64) as usize] >> (page % 64) & 1 == 1
    }

    pub(super) fn set(&mut self, page: u64) {
        self.words[(page / 64) as usize] |= 1 << (page % 64);
    }

    pub(super) fn clear(&mut self, page: u64) {
        self.words[(page / 64) as usize] &= !(1 << (page % 64));
    }

    /// How many of a range are in it.
    pub(super) fn count(&self, range: Range<u64>) -> u64 {
        range.filter(|&page| self.has(page)).count() as u64
    }
}

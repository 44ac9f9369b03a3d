//! Yes or no for each of a growing number of things.

/// A list of bits.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bits {
    words: Vec<u64>,
    len: usize,
}

impl Bits {
    /// Adds one at the end.
    pub(crate) fn push(&mut self, bit: bool) {
        if self.len.is_multiple_of(64) {
            self.words.push(0);
        }
        self.len += 1;
        self.set(self.len - 1, bit);
    }

    /// The bit at a place that exists.
    pub(crate) fn get(&self, at: usize) -> bool {
        self.words[at / 64] >> (at % 64) & 1 != 0
    }

    /// Sets the bit at a place that exists.
    pub(crate) fn set(&mut self, at: usize, bit: bool) {
        let mask = 1 << (at % 64);
        if bit {
            self.words[at / 64] |= mask;
        } else {
            self.words[at / 64] &= !mask;
        }
    }
}

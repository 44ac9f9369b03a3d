//! The checksum of the format: reflected CRC-32 (polynomial 0xEDB88320) whose register starts with
//! the volume's seed and is not inverted, neither at the start nor at the end (docs/format.md
//! §1.1).

use crc32fast::Hasher;

const POLYNOMIAL: u32 = 0xEDB8_8320;

/// Checksum of one block, whichever log it lies in: CRC-32 as zlib computes it, without a seed, so that it
/// travels with the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockSum(pub u32);

impl BlockSum {
    /// Returns the checksum of a block.
    #[must_use]
    pub fn of(block: &[u8]) -> Self {
        Self(crc32fast::hash(block))
    }

    /// Returns the bit that is wrong in a block that should have this checksum, if it is only one. Other damage
    /// looks like that in one of 2³² / bits cases: of blocks of 4 KiB, in one of 131 072.
    #[must_use]
    pub fn wrong_bit(self, block: &[u8]) -> Option<WrongBit> {
        WrongBit::between(block.len(), Self::of(block).0, self.0)
    }

    /// Returns what is recorded of a block with this checksum if it is not known whether its content is
    /// what was written: the complement. It stays with the content, wherever that is moved to.
    #[must_use]
    pub fn unverified(self) -> Self {
        Self(!self.0)
    }

    /// Returns what this checksum, as it is recorded, says of the block that is there.
    #[must_use]
    pub fn judge(self, block: &[u8]) -> Verdict {
        self.judge_found(Self::of(block))
    }

    /// Returns a checksum by which a block is known not to be what was written.
    #[must_use]
    pub fn of_something_else(self) -> Self {
        // It is neither its own nor the mark of what is unverified, and no wrong bit of zeros explains it.
        Self(self.0.rotate_left(16) ^ 0x5a5a_a5a5)
    }

    /// As [`BlockSum::judge`], given the checksum of the block that is there.
    #[must_use]
    pub fn judge_found(self, found: Self) -> Verdict {
        match self {
            _ if self == found => Verdict::Right,
            _ if self == found.unverified() => Verdict::Unverified,
            _ => Verdict::Wrong,
        }
    }
}

/// Judgement of a block by its recorded checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is what was written.
    Right,
    /// It is what was there when the proof of it was lost, and may or may not be what was written.
    Unverified,
    /// It is not what was written.
    Wrong,
}

/// A bit of some bytes that is not what it was when their checksum was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrongBit {
    /// The byte that has it.
    pub byte: usize,
    /// Its place there, from the least significant.
    pub bit: u8,
}

impl WrongBit {
    /// Finds the bit of `length` bytes by which two checksums differ, under the same seed. A bit that is
    /// flipped changes a CRC by what its place alone says, and two places never say the same.
    #[must_use]
    pub fn between(length: usize, one: u32, other: u32) -> Option<Self> {
        let difference = one ^ other;
        let mut change = 1;
        (1..=8 * length).find_map(|from_end| {
            change = if change & 1 == 1 { (change >> 1) ^ POLYNOMIAL } else { change >> 1 };
            (change == difference).then(|| Self {
                byte: length - from_end.div_ceil(8),
                bit: (from_end.next_multiple_of(8) - from_end) as u8,
            })
        })
    }

    /// Finds the bit among `bits` of some bytes without which they are right.
    pub(crate) fn without_which(
        bytes: &mut [u8],
        mut bits: std::ops::Range<usize>,
        is_right: impl Fn(&[u8]) -> bool,
    ) -> Option<Self> {
        bits.find_map(|nth| {
            let bit = Self { byte: nth / 8, bit: (nth % 8) as u8 };
            bit.flip(bytes);
            let is_right = is_right(bytes);
            bit.flip(bytes);
            is_right.then_some(bit)
        })
    }

    /// Flips the bit, in the same bytes.
    pub fn flip(self, bytes: &mut [u8]) {
        if let Some(byte) = bytes.get_mut(self.byte) {
            *byte ^= 1 << self.bit;
        }
    }

    /// The bit, of bytes that begin that many before.
    pub(crate) fn after(self, bytes: usize) -> Self {
        Self { byte: self.byte + bytes, ..self }
    }
}

/// A running checksum over several pieces.
#[derive(Debug, Clone)]
pub struct Crc(Hasher);

impl Crc {
    /// Starts a checksum with the volume's `s_crc_seed`.
    #[must_use]
    pub fn new(seed: u32) -> Self {
        // The library inverts the register at both ends, as zlib does; the format does at none.
        Self(Hasher::new_with_initial(!seed))
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Adds a block of `length` bytes of which the checksum is known, without reading it.
    pub fn append(&mut self, sum: BlockSum, length: usize) {
        self.0.combine(&Hasher::new_with_initial_len(sum.0, length as u64));
    }

    /// The checksum of all bytes so far.
    #[must_use]
    pub fn value(self) -> u32 {
        !self.0.finalize()
    }
}

/// The checksum of `bytes` with the volume's seed.
#[must_use]
pub fn crc32_le(seed: u32, bytes: &[u8]) -> u32 {
    let mut crc = Crc::new(seed);
    crc.update(bytes);
    crc.value()
}

/// The seed under which the checksum of `bytes` is `value`. Each step of the register can be undone,
/// so there is always exactly one: what is found means nothing until another checksum agrees.
#[must_use]
pub fn seed_of(bytes: &[u8], value: u32) -> u32 {
    let undo_bit = |register: u32| match register >> 31 {
        0 => register << 1,
        _ => ((register ^ POLYNOMIAL) << 1) | 1,
    };
    let undo_byte =
        |register: u32, byte: &u8| (0..8).fold(register, |it, _| undo_bit(it)) ^ u32::from(*byte);
    bytes.iter().rfold(value, undo_byte)
}

#[cfg(test)]
mod tests {
    use super::{BlockSum, Crc, Verdict, WrongBit, crc32_le, seed_of};

    #[test]
    fn each_bit_that_is_wrong_is_told_by_the_checksums() {
        for length in [1, 3, 1024] {
            let block: Vec<u8> = (0..length).map(|at| (at * 7 % 251) as u8).collect();
            for byte in 0..length {
                for bit in 0..8 {
                    let wrong = WrongBit { byte, bit };
                    let mut damaged = block.clone();
                    wrong.flip(&mut damaged);
                    assert_eq!(BlockSum::of(&block).wrong_bit(&damaged), Some(wrong));
                    let (one, other) = (crc32_le(77, &block), crc32_le(77, &damaged));
                    assert_eq!(WrongBit::between(length, one, other), Some(wrong));
                }
            }
        }
    }

    #[test]
    fn other_damage_is_not_taken_for_one_bit() {
        let block = [5; 1024];
        let sum = BlockSum::of(&block);
        assert_eq!(sum.wrong_bit(&block), None, "there is none");
        assert_eq!(sum.wrong_bit(&[0; 1024]), None);
        let mut two = block;
        (two[7], two[900]) = (4, 4);
        assert_eq!(sum.wrong_bit(&two), None);
    }

    #[test]
    fn a_block_is_right_or_unverified_only_as_long_as_it_stays_the_same() {
        let (block, other) = ([0x5a; 1024], [0x5b; 1024]);
        let sum = BlockSum::of(&block);
        assert_eq!(sum.judge(&block), Verdict::Right);
        assert_eq!(sum.unverified().judge(&block), Verdict::Unverified);
        assert_eq!(sum.judge(&other), Verdict::Wrong);
        assert_eq!(sum.unverified().judge(&other), Verdict::Wrong);
        assert_eq!(sum.unverified().unverified(), sum);
    }

    #[test]
    fn zeros_in_place_of_something_else_are_known_to_be_wrong() {
        for length in (10..=16).map(|bits| 1 << bits) {
            let zeros = vec![0; length];
            let sum = BlockSum::of(&zeros).of_something_else();
            assert_eq!(sum.judge(&zeros), Verdict::Wrong);
            assert_eq!(sum.wrong_bit(&zeros), None);
        }
    }

    #[test]
    fn a_block_counts_by_its_checksum_as_by_its_bytes() {
        for length in [0, 1, 1024, 4096, 65536] {
            let block = vec![0x5a; length];
            for seed in [0, 0x1234_5678, u32::MAX] {
                let (mut by_bytes, mut by_sum) = (Crc::new(seed), Crc::new(seed));
                by_bytes.update(b"summary");
                by_sum.update(b"summary");
                by_bytes.update(&block);
                by_sum.append(BlockSum::of(&block), length);
                by_bytes.update(b"more");
                by_sum.update(b"more");
                assert_eq!(by_sum.value(), by_bytes.value(), "{length} bytes after seed {seed}");
            }
        }
    }

    #[test]
    fn checksums_of_blocks_are_those_of_zlib() {
        assert_eq!(BlockSum::of(b"123456789"), BlockSum(0xcbf4_3926));
    }

    #[test]
    fn a_seed_follows_from_a_checksum() {
        let bytes = b"NILFS2 is a log-structured file system";
        for seed in [0, 1, 0x1234_5678, 0x90ba_9212, u32::MAX] {
            assert_eq!(seed_of(bytes, crc32_le(seed, bytes)), seed);
        }
        assert_eq!(seed_of(b"", 7), 7);
    }

    /// The vectors of docs/format.md §1.1.
    #[test]
    fn matches_the_vectors_of_the_format() {
        assert_eq!(crc32_le(0, b"123456789"), 0x2dfd_2d88);
        assert_eq!(crc32_le(0xffff_ffff, b"123456789"), 0x340b_c6d9);
        assert_eq!(crc32_le(0x90ba_9212, b"123456789"), 0x5b0d_f25e);
        assert_eq!(crc32_le(0x1234_5678, b""), 0x1234_5678);
        assert_eq!(crc32_le(0x1234_5678, b"\0"), 0x5ecc_cd58);
    }
}

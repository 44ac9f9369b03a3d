//! The hash of a file's content: the same for the same bytes, however they are laid out.
//!
//! It covers every granule that is not all zero, with its offset. Of a file larger than 1 GiB it
//! covers windows only: the first and the last MiB, and a MiB on either side of each power of two
//! from 1 GiB on. No more can be done quickly: Linux's nilfs2 answers SEEK_DATA as if no file had
//! holes, its FIEMAP looks through holes block by block, and neither is quicker than to read them.
//!
//! It is meant for comparing what one build of this crate wrote; another compiler may give other
//! values.

use std::fs::File;
use std::hash::Hasher;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Divides every block size, so that a hole covers whole granules.
const GRANULE: usize = 1024;

const READ_AT_ONCE: usize = 256 * 1024;

const READ_WHOLE_UP_TO: u64 = 1 << 30;

const MIB: u64 = 1 << 20;

/// The hash of an open file's content.
pub(crate) fn hash_of(file: &File) -> io::Result<u64> {
    let mut hash = ContentHash::default();
    for range in windows(file.metadata()?.len()) {
        hash.add_range(file, range)?;
    }
    Ok(hash.finish())
}

/// The hash of a file with this content.
pub(crate) fn hash_of_bytes(bytes: &[u8]) -> u64 {
    let mut hash = ContentHash::default();
    hash.add(0, bytes);
    hash.finish()
}

#[derive(Default)]
struct ContentHash(std::hash::DefaultHasher);

impl ContentHash {
    fn add_range(&mut self, file: &File, range: Range<u64>) -> io::Result<()> {
        let mut buffer = vec![0; READ_AT_ONCE];
        let mut offset = range.start;
        while offset < range.end {
            let length =
                buffer.len().min(usize::try_from(range.end - offset).unwrap_or(usize::MAX));
            file.read_exact_at(&mut buffer[..length], offset)?;
            self.add(offset, &buffer[..length]);
            offset += length as u64;
        }
        Ok(())
    }

    /// Adds the bytes at an offset, which is a multiple of the granule.
    fn add(&mut self, offset: u64, bytes: &[u8]) {
        const ZEROS: [u8; GRANULE] = [0; GRANULE];
        for (index, granule) in bytes.chunks(GRANULE).enumerate() {
            if granule != &ZEROS[..granule.len()] {
                self.0.write_u64(offset + (index * GRANULE) as u64);
                self.0.write(granule);
            }
        }
    }

    fn finish(&self) -> u64 {
        self.0.finish()
    }
}

/// The parts of a file of `size` bytes that the hash covers, in order, without overlap.
fn windows(size: u64) -> Vec<Range<u64>> {
    let first = 0..if size <= READ_WHOLE_UP_TO { size } else { MIB };
    let around_powers = (READ_WHOLE_UP_TO.ilog2()..u64::BITS)
        .map(|exponent| 1 << exponent)
        .take_while(|power| *power < size)
        .map(|power| power - MIB..(power + MIB).min(size));
    let last = size.saturating_sub(MIB) / GRANULE as u64 * GRANULE as u64..size;
    let mut joined: Vec<Range<u64>> = Vec::new();
    for window in [first].into_iter().chain(around_powers).chain([last]) {
        match joined.last_mut() {
            Some(before) if window.start <= before.end => before.end = window.end,
            _ => joined.push(window),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_with(pieces: &[(u64, &[u8])], size: u64) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        for (offset, bytes) in pieces {
            file.write_all_at(bytes, *offset).unwrap();
        }
        file
    }

    #[test]
    fn written_zeros_and_holes_are_the_same_content() {
        const SIZE: u64 = 3 << 30;
        let sparse = file_with(&[(2 << 30, b"x")], SIZE);
        let written = file_with(&[(0, &[0; 70_000]), (2 << 30, b"x"), (SIZE - 9, &[0; 9])], SIZE);
        assert_eq!(hash_of(&sparse).unwrap(), hash_of(&written).unwrap());
    }

    #[test]
    fn another_byte_or_another_place_is_another_content() {
        const SIZE: u64 = 3 << 30;
        let hashes: Vec<u64> = [(2 << 30, b"x"), (2 << 30, b"y"), ((2 << 30) + 1, b"x")]
            .into_iter()
            .map(|(offset, byte)| hash_of(&file_with(&[(offset, byte)], SIZE)).unwrap())
            .collect();
        assert!(hashes[0] != hashes[1] && hashes[0] != hashes[2] && hashes[1] != hashes[2]);
    }

    #[test]
    fn memory_and_file_agree() {
        let bytes: Vec<u8> = (0..100_000_u32).map(|n| (n % 251) as u8).collect();
        let file = file_with(&[(0, &bytes)], bytes.len() as u64);
        assert_eq!(hash_of(&file).unwrap(), hash_of_bytes(&bytes));
    }

    #[test]
    fn windows_lie_in_order_at_the_ends_and_around_powers_of_two() {
        const GIB: u64 = 1 << 30;
        assert_eq!((windows(5).first(), windows(5).len()), (Some(&(0..5)), 1));
        assert_eq!(windows(GIB + 1), [0..MIB, GIB - MIB..GIB + 1]);
        assert_eq!(
            windows(3 * GIB + 5),
            [
                0..MIB,
                GIB - MIB..GIB + MIB,
                2 * GIB - MIB..2 * GIB + MIB,
                3 * GIB - MIB..3 * GIB + 5
            ]
        );
        assert_eq!(windows(u64::MAX).last(), Some(&(u64::MAX / 1024 * 1024 - MIB..u64::MAX)));
    }
}

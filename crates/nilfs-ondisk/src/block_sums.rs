//! Checksums of the blocks of a log, one for each (docs/format.md §4.3).
//!
//! The format's own checksum is of a whole log: it says that one of two hundred blocks is damaged, but
//! not which. So the summary ends with one more checksum for each block after it, where no other reader
//! looks: after the items and the roll-forward records, within `ss_sumbytes`.
//!
//! ```text
//! | header | items … | records … | 0 … | "NfBs" | checksum | checksum | … |   end of the last summary block
//! ```

use crate::crc::BlockSum;

/// Marks the checksums: "NfBs".
const MAGIC: [u8; 4] = *b"NfBs";

/// Bytes of one checksum.
const SUM_SIZE: usize = size_of::<u32>();

/// Bytes in a summary for the checksums of as many blocks. A log without blocks has none.
#[must_use]
pub fn size(blocks: u64) -> usize {
    match blocks {
        0 => 0,
        _ => MAGIC.len() + SUM_SIZE * blocks as usize,
    }
}

/// Reads the checksums of as many blocks from `rest`, the bytes of a summary after its items. `None`: the
/// log was written without them.
#[must_use]
pub fn parse(rest: &[u8], blocks: u64) -> Option<Vec<BlockSum>> {
    let start = rest.len().checked_sub(size(blocks)).filter(|start| *start < rest.len())?;
    let sums = rest[start..].strip_prefix(&MAGIC)?;
    let (sums, []) = sums.as_chunks() else { return None };
    Some(sums.iter().map(|sum| BlockSum(u32::from_le_bytes(*sum))).collect())
}

/// Writes checksums at the end of a summary.
pub(crate) fn put(summary: &mut [u8], sums: &[BlockSum]) {
    let start = summary.len() - size(sums.len() as u64);
    let bytes = MAGIC.into_iter().chain(sums.iter().flat_map(|sum| sum.0.to_le_bytes()));
    summary[start..].iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_read_as_they_were_written() {
        let sums: Vec<BlockSum> = (1..=5).map(BlockSum).collect();
        let mut rest = vec![0xee; 100];
        put(&mut rest, &sums);
        assert_eq!(rest[..100 - size(5)], [0xee; 76]);
        assert_eq!(parse(&rest, 5), Some(sums));
    }

    #[test]
    fn a_summary_of_linux_has_none() {
        assert_eq!(parse(&[], 3), None);
        assert_eq!(parse(&[0; 64], 3), None);
        assert_eq!(parse(&[0; 64], 16), None, "there is no room for them");
        assert_eq!(parse(&[0; 64], 0), None);
        assert_eq!(parse(&MAGIC, 0), None);
    }
}

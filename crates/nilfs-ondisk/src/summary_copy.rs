//! Copies of the summaries of earlier logs (docs/format.md §19).
//!
//! Where the summary of a sync log is lost, nothing else tells of which files its blocks are, and no log after it
//! can be rolled forward. So a sync log repeats the summaries of the logs before it in bytes of its own
//! summary that would be zeros: after its records, before the checksums of its blocks.
//!
//! ```text
//! | header | items … | records … | copy | copy | … | 0 … | checksums of the blocks |
//! ```

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::summary::{LogHeader, MAGIC, parse_items, seal_again};
use crate::{BlockNr, BlockSize, block_sums, roll_forward};

/// Bytes at the beginning of a summary that a copy leaves out: both checksums, which follow from the rest, and
/// the magic number, without which no copy is ever taken for a log.
const LEFT_OUT: usize = 12;

/// The head of a copy as it lies on disk.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHead {
    /// Of the copy, with this head; 0: there are no more.
    bytes: U32,
    /// Of the copy that belong to the end of the summary.
    checksums: U32,
    start: U64,
}

const HEAD_SIZE: usize = size_of::<RawHead>();

/// A copy of the summary of a log, without the zeros in it and without copies that it has itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SummaryCopy {
    /// The first block of the log.
    pub start: BlockNr,
    /// The summary from `ss_bytes` to the end of its records.
    beginning: Vec<u8>,
    /// The checksums of the blocks, as they lie at the end of the summary.
    checksums: Vec<u8>,
}

impl SummaryCopy {
    /// Copies the summary of a log of so many described `blocks`, given the bytes of the summary up to
    /// `ss_sumbytes`. Its items and records end at `end`.
    #[must_use]
    pub fn of(start: BlockNr, summary: &[u8], end: usize, blocks: u64) -> Self {
        let checksums = summary.len().saturating_sub(block_sums::size(blocks));
        Self {
            start,
            beginning: summary.get(LEFT_OUT..end).unwrap_or_default().to_vec(),
            checksums: summary.get(checksums..).unwrap_or_default().to_vec(),
        }
    }

    /// Returns the bytes of the copy.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let bytes = HEAD_SIZE + self.beginning.len() + self.checksums.len();
        let head = RawHead {
            bytes: U32::new(bytes as u32),
            checksums: U32::new(self.checksums.len() as u32),
            start: U64::new(self.start.0),
        };
        [head.as_bytes(), &self.beginning, &self.checksums].concat()
    }

    /// Reads the copies in a summary that describes so many `blocks`, given its bytes from the end of its items
    /// up to `ss_sumbytes`.
    #[must_use]
    pub fn parse_all(rest: &[u8], blocks: u64) -> Vec<Self> {
        let end = rest.len().saturating_sub(block_sums::size(blocks));
        let start = roll_forward::bytes(rest).unwrap_or(end);
        let mut bytes = rest.get(start..end).unwrap_or_default();
        let mut copies = Vec::new();
        while let Ok((head, _)) = RawHead::read_from_prefix(bytes) {
            let (all, checksums) = (head.bytes.get() as usize, head.checksums.get() as usize);
            let Some(content) = bytes.get(HEAD_SIZE..all) else { break };
            let Some(middle) = content.len().checked_sub(checksums) else { break };
            let (beginning, checksums) = content.split_at(middle);
            copies.push(Self {
                start: BlockNr(head.start.get()),
                beginning: beginning.to_vec(),
                checksums: checksums.to_vec(),
            });
            bytes = &bytes[all..];
        }
        copies
    }

    /// Returns the header of the log and the blocks of its summary, as they were but for copies that it had
    /// itself; `None` if the copy is of no log.
    #[must_use]
    pub fn restore(
        &self,
        block_size: BlockSize,
        blocks_per_segment: u32,
        seed: u32,
    ) -> Option<(LogHeader, Vec<u8>)> {
        let mut summary = vec![0; LEFT_OUT];
        summary[8..].copy_from_slice(&MAGIC.to_le_bytes());
        summary.extend_from_slice(&self.beginning);
        let header = LogHeader::parse(&summary, block_size, blocks_per_segment).ok()?;
        let all = header.summary_blocks(block_size) as usize * block_size.bytes();
        let at = (header.sumbytes as usize).checked_sub(self.checksums.len())?;
        if at < summary.len() {
            return None;
        }
        summary.resize(all, 0);
        summary.get_mut(at..)?.get_mut(..self.checksums.len())?.copy_from_slice(&self.checksums);
        let sums = parse_items(&header, &summary, block_size).ok()?.sums.unwrap_or_default();
        let payload = header.described_blocks(block_size) - header.summary_blocks(block_size);
        if sums.len() as u64 != payload {
            return None;
        }
        seal_again(&mut summary, &header, &sums, block_size, seed);
        let header = LogHeader::parse(&summary, block_size, blocks_per_segment).ok()?;
        Some((header, summary))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crc::BlockSum;
    use crate::roll_forward::Records;
    use crate::summary::{BlockInfo, FileInfo, LOGBGN, LOGEND, NewLog, encode_summary};
    use crate::{Cno, FileBlock, Ino, Seq, VBlockNr};

    const BLOCKS_PER_SEGMENT: u32 = 256;
    const SEED: u32 = 77;

    fn size() -> BlockSize {
        BlockSize::from_bytes(1024).unwrap()
    }

    /// The summary of a log of as many blocks, and where its records end.
    fn summary(blocks: u64, records: &[u8]) -> (Vec<u8>, usize) {
        let data = |nth| BlockInfo::Data { vblocknr: VBlockNr(nth), offset: FileBlock(nth) };
        let file = FileInfo { ino: Ino(12), cno: Cno(7), blocks: (0..blocks).map(data).collect() };
        let log = NewLog {
            flags: LOGBGN | LOGEND,
            seq: Seq(4),
            create: 99,
            next: BlockNr(64),
            cno: Cno(7),
            summary_blocks: 0,
            block_sums: true,
        };
        let sums: Vec<BlockSum> = (1..=blocks as u32).map(BlockSum).collect();
        let files = if blocks == 0 { &[][..] } else { &[file] };
        let payload = if blocks == 0 { &[BlockSum(0)] } else { &sums[..] };
        let bytes = encode_summary(&log, files, records, payload, size(), SEED);
        let header = LogHeader::parse(&bytes, size(), BLOCKS_PER_SEGMENT).unwrap();
        let end = parse_items(&header, &bytes, size()).unwrap().end + records.len();
        (bytes, end)
    }

    /// The bytes after the items of a summary that describes two blocks and has these copies.
    fn rest(copies: &[u8]) -> Vec<u8> {
        let records = Records { base: Cno(6), number: 3, unflushed: None, records: Vec::new() };
        [&records.encode(), copies, &[0; 30], &[0xee; 12]].concat()
    }

    #[test]
    fn a_summary_is_restored_to_the_byte() {
        for (blocks, records) in [(1, 40), (0, 40), (130, 2000), (61, 0)] {
            let (bytes, end) = summary(blocks, &vec![5; records]);
            let copy = SummaryCopy::of(BlockNr(9), &bytes, end, blocks);
            let parsed = SummaryCopy::parse_all(&rest(&copy.encode().repeat(2)), 2);
            assert_eq!(parsed, [copy.clone(), copy.clone()]);
            let (_, restored) = copy.restore(size(), BLOCKS_PER_SEGMENT, SEED).unwrap();
            assert_eq!(restored, bytes, "{blocks} blocks, {records} bytes of records");
        }
    }

    #[test]
    fn a_copy_that_lies_restores_nothing() {
        let (bytes, end) = summary(3, &[]);
        let copy = SummaryCopy::of(BlockNr(9), &bytes, end, 3);
        let restored = |copy: &SummaryCopy| copy.restore(size(), BLOCKS_PER_SEGMENT, SEED);
        let shorter = SummaryCopy { beginning: copy.beginning[..60].to_vec(), ..copy.clone() };
        assert_eq!(restored(&shorter), None, "items are missing");
        let none = SummaryCopy { checksums: Vec::new(), ..copy.clone() };
        assert_eq!(restored(&none), None, "checksums are missing");
        let long = SummaryCopy { checksums: vec![0; 2000], ..copy.clone() };
        assert_eq!(restored(&long), None, "more checksums than the summary has bytes");
        let mut hostile = copy.encode();
        hostile[..8].fill(0xff);
        assert_eq!(SummaryCopy::parse_all(&rest(&hostile), 2), []);
        assert_eq!(SummaryCopy::parse_all(&copy.encode(), 2), [], "no records are before it");
    }
}

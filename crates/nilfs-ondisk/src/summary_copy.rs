//! Copies of the summaries of earlier logs (docs/format.md §19).
//!
//! Where the summary of a sync log is lost, nothing else tells of which files its blocks are, and no log after it
//! can be rolled forward. So a sync log repeats the summaries of the logs before it in bytes of its own
//! summary that would be zeros: after its records, before the checksums of its blocks.
//!
//! ```text
//! | header | items … | records … | copy | copy | … | 0 … | checksums of the blocks |
//! ```

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::crc::BlockSum;
use crate::summary::{
    BlockInfo, FileInfo, Items, LogHeader, NewLog, SR, encode_summary, parse_items,
};
use crate::{BlockNr, BlockSize, Cno, FileBlock, Ino, Seq, VBlockNr, block_sums, roll_forward};

/// The head of a copy as it lies on disk.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawCopy {
    /// Of the copy, with this head; 0: there are no more.
    bytes: U32,
    /// Of the records among them.
    records: U32,
    start: U64,
    create: U64,
    next: U64,
    seq: U64,
    cno: U64,
    nblocks: U32,
    summary_blocks: U32,
    flags: U16,
    files: U16,
    checksums: U32,
}

/// The blocks of a file, or some of them.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawFile {
    ino: U64,
    cno: U64,
    runs: U32,
}

/// Blocks of a file that follow one another.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
struct RawRun {
    kind: U32,
    count: U32,
    /// The virtual block number of the first block; of the DAT, the first key of a node, or the offset.
    first: U64,
    /// The offset of the first block in the file; of a node of the DAT, its level.
    offset: U64,
}

const DATA: u32 = 0;
const NODE: u32 = 1;
const DAT_DATA: u32 = 2;
const DAT_NODE: u32 = 3;

/// A copy of the summary of a log, without copies that it has itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SummaryCopy {
    /// The first block of the log.
    pub start: BlockNr,
    log: NewLog,
    nblocks: u32,
    files: Vec<CopiedFile>,
    records: Vec<u8>,
    sums: Vec<BlockSum>,
}

/// The blocks of a file in a log.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct CopiedFile {
    ino: Ino,
    cno: Cno,
    runs: Vec<RawRun>,
}

impl SummaryCopy {
    /// Copies the summary of a log with so many bytes of records; `None` if it is none.
    #[must_use]
    pub fn of(
        start: BlockNr,
        summary: &[u8],
        records: usize,
        block_size: BlockSize,
        blocks_per_segment: u32,
    ) -> Option<Self> {
        let header = LogHeader::parse(summary, block_size, blocks_per_segment).ok()?;
        let Items { files, end, sums } = parse_items(&header, summary, block_size).ok()?;
        let log = NewLog {
            flags: header.flags,
            seq: header.seq,
            create: header.create,
            next: header.next,
            cno: header.cno,
            summary_blocks: header.summary_blocks(block_size),
            block_sums: true,
        };
        let copied =
            |it: FileInfo| CopiedFile { ino: it.ino, cno: it.cno, runs: runs_of(&it.blocks) };
        let files = files.into_iter().map(copied).collect();
        let records = summary.get(end..end + records)?.to_vec();
        let sums = sums.unwrap_or_default();
        Some(Self { start, log, nblocks: header.nblocks, files, records, sums })
    }

    /// Returns the bytes of the copy.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut items = Vec::new();
        for file in &self.files {
            let raw = RawFile {
                ino: U64::new(file.ino.0),
                cno: U64::new(file.cno.0),
                runs: U32::new(file.runs.len() as u32),
            };
            items.extend_from_slice(raw.as_bytes());
            items.extend_from_slice(file.runs.as_bytes());
        }
        let sums = self.sums.iter().flat_map(|sum| sum.0.to_le_bytes());
        items.extend(self.records.iter().copied().chain(sums));
        let head = RawCopy {
            bytes: U32::new((size_of::<RawCopy>() + items.len()) as u32),
            records: U32::new(self.records.len() as u32),
            start: U64::new(self.start.0),
            create: U64::new(self.log.create),
            next: U64::new(self.log.next.0),
            seq: U64::new(self.log.seq.0),
            cno: U64::new(self.log.cno.0),
            nblocks: U32::new(self.nblocks),
            summary_blocks: U32::new(self.log.summary_blocks as u32),
            flags: U16::new(self.log.flags),
            files: U16::new(self.files.len() as u16),
            checksums: U32::new(self.sums.len() as u32),
        };
        [head.as_bytes(), &items].concat()
    }

    /// Reads the copies in a summary that describes so many `blocks`, given its bytes from the end of its items
    /// up to `ss_sumbytes`. After one that is nonsense there are none.
    #[must_use]
    pub fn parse_all(rest: &[u8], blocks: u64) -> Vec<Self> {
        let end = rest.len().saturating_sub(block_sums::size(blocks));
        let start = roll_forward::bytes(rest).unwrap_or(end);
        let mut bytes = rest.get(start..end).unwrap_or_default();
        std::iter::from_fn(|| Self::parse(&mut bytes)).collect()
    }

    /// Reads a copy, and goes on to the next.
    fn parse(bytes: &mut &[u8]) -> Option<Self> {
        let (head, _) = RawCopy::read_from_prefix(bytes).ok()?;
        let mut items = bytes.get(size_of::<RawCopy>()..head.bytes.get() as usize)?;
        let mut files = Vec::new();
        for _ in 0..head.files.get() {
            let (file, _) = RawFile::read_from_prefix(items).ok()?;
            let runs = items.get(size_of::<RawFile>()..)?;
            let (runs, rest) = <[RawRun]>::ref_from_prefix_with_elems(
                runs,
                usize::try_from(file.runs.get()).ok()?,
            )
            .ok()?;
            let (ino, cno) = (Ino(file.ino.get()), Cno(file.cno.get()));
            files.push(CopiedFile { ino, cno, runs: runs.to_vec() });
            items = rest;
        }
        let (records, sums) = items.split_at_checked(head.records.get() as usize)?;
        let (sums, []) = sums.as_chunks() else { return None };
        if sums.len() as u64 != u64::from(head.checksums.get()) {
            return None;
        }
        *bytes = &bytes[head.bytes.get() as usize..];
        let log = NewLog {
            flags: head.flags.get(),
            seq: Seq(head.seq.get()),
            create: head.create.get(),
            next: BlockNr(head.next.get()),
            cno: Cno(head.cno.get()),
            summary_blocks: head.summary_blocks.get().into(),
            block_sums: true,
        };
        Some(Self {
            start: BlockNr(head.start.get()),
            log,
            nblocks: head.nblocks.get(),
            files,
            records: records.to_vec(),
            sums: sums.iter().map(|sum| BlockSum(u32::from_le_bytes(*sum))).collect(),
        })
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
        let payload = u64::from(self.nblocks).checked_sub(self.log.summary_blocks)?;
        if self.log.summary_blocks == 0 || self.nblocks > blocks_per_segment {
            return None;
        }
        let is_described = !self.files.is_empty() || self.log.flags & SR != 0;
        let sums = match is_described {
            true => self.sums.clone(),
            // Of these, nothing is known and nothing is asked.
            false => vec![BlockSum(0); payload as usize],
        };
        if sums.len() as u64 != payload {
            return None;
        }
        let counts =
            self.files.iter().flat_map(|it| &it.runs).map(|run| u64::from(run.count.get()));
        if counts.sum::<u64>() > payload {
            return None;
        }
        let file = |it: &CopiedFile| {
            let blocks = it.runs.iter().map(blocks_of).collect::<Option<Vec<_>>>()?.concat();
            Some(FileInfo { ino: it.ino, cno: it.cno, blocks })
        };
        let files = self.files.iter().map(file).collect::<Option<Vec<_>>>()?;
        let summary = encode_summary(&self.log, &files, &self.records, &sums, block_size, seed);
        let header = LogHeader::parse(&summary, block_size, blocks_per_segment).ok()?;
        let is_sound = header.nblocks == self.nblocks
            && summary.len() as u64 == self.log.summary_blocks * block_size.bytes64()
            && parse_items(&header, &summary, block_size).is_ok();
        is_sound.then_some((header, summary))
    }
}

/// Gathers blocks that follow one another.
fn runs_of(blocks: &[BlockInfo]) -> Vec<RawRun> {
    let mut runs: Vec<RawRun> = Vec::new();
    let mut before = None;
    for block in blocks {
        if let Some(last) = runs.last_mut()
            && before.and_then(follower) == Some(*block)
        {
            last.count += 1;
        } else {
            let (kind, first, offset) = match *block {
                BlockInfo::Data { vblocknr, offset } => (DATA, vblocknr.0, offset.0),
                BlockInfo::Node { vblocknr } => (NODE, vblocknr.0, 0),
                BlockInfo::DatData { offset } => (DAT_DATA, offset.0, 0),
                BlockInfo::DatNode { key, level } => (DAT_NODE, key, level.into()),
            };
            let (first, offset) = (U64::new(first), U64::new(offset));
            runs.push(RawRun { kind: U32::new(kind), count: U32::new(1), first, offset });
        }
        before = Some(block);
    }
    runs
}

/// The blocks of a run.
fn blocks_of(run: &RawRun) -> Option<Vec<BlockInfo>> {
    let (first, offset) = (run.first.get(), run.offset.get());
    let begin = match run.kind.get() {
        DATA => BlockInfo::Data { vblocknr: VBlockNr(first), offset: FileBlock(offset) },
        NODE => BlockInfo::Node { vblocknr: VBlockNr(first) },
        DAT_DATA => BlockInfo::DatData { offset: FileBlock(first) },
        DAT_NODE => BlockInfo::DatNode { key: first, level: u8::try_from(offset).ok()? },
        _ => return None,
    };
    let blocks: Vec<_> =
        std::iter::successors(Some(begin), follower).take(run.count.get() as usize).collect();
    (blocks.len() == run.count.get() as usize).then_some(blocks)
}

/// The block that follows another in a run.
fn follower(block: &BlockInfo) -> Option<BlockInfo> {
    Some(match *block {
        BlockInfo::Data { vblocknr, offset } => BlockInfo::Data {
            vblocknr: VBlockNr(vblocknr.0.checked_add(1)?),
            offset: FileBlock(offset.0.checked_add(1)?),
        },
        BlockInfo::Node { vblocknr } => {
            BlockInfo::Node { vblocknr: VBlockNr(vblocknr.0.checked_add(1)?) }
        }
        BlockInfo::DatData { offset } => {
            BlockInfo::DatData { offset: FileBlock(offset.0.checked_add(1)?) }
        }
        BlockInfo::DatNode { .. } => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roll_forward::Records;
    use crate::summary::{LOGBGN, LOGEND};

    const BLOCKS_PER_SEGMENT: u32 = 256;
    const SEED: u32 = 77;

    fn size() -> BlockSize {
        BlockSize::from_bytes(1024).unwrap()
    }

    /// A log of as many data blocks, in two runs, and a node.
    fn summary(blocks: u64, records: &[u8]) -> Vec<u8> {
        let data = |nth| BlockInfo::Data { vblocknr: VBlockNr(nth), offset: FileBlock(nth) };
        let node = BlockInfo::Node { vblocknr: VBlockNr(900) };
        let infos = (0..blocks / 2).chain(500..500 + blocks - blocks / 2).map(data);
        let file = FileInfo { ino: Ino(12), cno: Cno(7), blocks: infos.chain([node]).collect() };
        let log = NewLog {
            flags: LOGBGN | LOGEND,
            seq: Seq(4),
            create: 99,
            next: BlockNr(64),
            cno: Cno(7),
            summary_blocks: 0,
            block_sums: true,
        };
        let sums: Vec<BlockSum> = (0..=blocks as u32).map(BlockSum).collect();
        let files = if blocks == 0 { &[][..] } else { &[file] };
        encode_summary(&log, files, records, &sums, size(), SEED)
    }

    fn copy(summary: &[u8], records: usize) -> SummaryCopy {
        SummaryCopy::of(BlockNr(9), summary, records, size(), BLOCKS_PER_SEGMENT).unwrap()
    }

    /// The bytes after the items of a summary that describes two blocks and has these copies.
    fn rest(copies: &[u8]) -> Vec<u8> {
        let records = Records { base: Cno(6), number: 3, unflushed: None, records: Vec::new() };
        [&records.encode(), copies, &[0; 30], &[0xee; 12]].concat()
    }

    #[test]
    fn a_summary_is_restored_to_the_byte() {
        for (blocks, records) in [(1, 40), (0, 40), (130, 2000), (61, 0)] {
            let bytes = summary(blocks, &vec![5; records]);
            let copy = copy(&bytes, records);
            let parsed = SummaryCopy::parse_all(&rest(&copy.encode().repeat(2)), 2);
            assert_eq!(parsed, [copy.clone(), copy.clone()]);
            let (_, restored) = copy.restore(size(), BLOCKS_PER_SEGMENT, SEED).unwrap();
            assert_eq!(restored, bytes, "{blocks} blocks, {records} bytes of records");
        }
    }

    /// An fsync of a large file is many logs, and the next one has little room for their summaries.
    #[test]
    fn blocks_that_follow_one_another_take_no_room_but_for_their_checksums() {
        let bytes = copy(&summary(200, &[]), 0).encode();
        assert!(bytes.len() < 4 * 201 + 200, "{} bytes", bytes.len());
    }

    #[test]
    fn a_copy_that_lies_restores_nothing() {
        let copy = copy(&summary(3, &[]), 0);
        let restored = |copy: &SummaryCopy| copy.restore(size(), BLOCKS_PER_SEGMENT, SEED);
        assert!(restored(&copy).is_some());
        let mut longer = copy.clone();
        longer.files[0].runs[0].count = U32::new(u32::MAX);
        assert_eq!(restored(&longer), None, "more blocks than the log has");
        let mut other = copy.clone();
        other.files[0].runs[0].kind = U32::new(7);
        assert_eq!(restored(&other), None, "a kind that there is not");
        let none = SummaryCopy { sums: Vec::new(), ..copy.clone() };
        assert_eq!(restored(&none), None, "checksums are missing");
        let long = SummaryCopy { nblocks: u32::MAX, ..copy.clone() };
        assert_eq!(restored(&long), None, "more blocks than a segment has");
        let mut large = copy.clone();
        large.log.summary_blocks = u64::from(u32::MAX) - 4;
        large.nblocks = u32::MAX;
        assert_eq!(restored(&large), None, "more summary than log");
        let mut hostile = copy.encode();
        hostile[..8].fill(0xff);
        assert_eq!(SummaryCopy::parse_all(&rest(&hostile), 2), []);
        assert_eq!(SummaryCopy::parse_all(&copy.encode(), 2), [], "no records are before it");
    }
}

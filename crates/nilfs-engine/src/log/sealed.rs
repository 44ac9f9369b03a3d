//! New logs: what they have, and the form in which they go to the device. The layout has decided where
//! they go; what they mean is the caller's affair.

use std::ops::Range;
use std::sync::Arc;

use nilfs_ondisk::crc::BlockSum;
use nilfs_ondisk::summary::{FileInfo, NewLog, encode_summary};
use nilfs_ondisk::{BlockNr, Cno, Geometry, SegNum, Seq, SummaryCopy};

use super::layout::{Plan, PlannedLog};
use crate::block::{Block, zeroed};
use crate::store::Store;

/// Bytes in a log, of which on the average each of its files has at least this many if they are large.
const LARGE: usize = 128 << 10;

/// A log, ready to be written.
pub(crate) struct SealedLog {
    pub(crate) start: BlockNr,
    pub(crate) segment: SegNum,
    pub(crate) seq: Seq,
    pub(crate) next: SegNum,
    summary: Block,
    summary_blocks: u64,
    /// Bytes of records in the summary.
    records: usize,
    /// How many files the blocks are of.
    files: usize,
    blocks: Vec<Block>,
    /// The checksums of these, and of those after them that are not written.
    sums: Vec<BlockSum>,
    /// Blocks after these that the log claims and that are not written.
    hole: u64,
}

impl SealedLog {
    /// What goes to the device: the summary as one piece, and the blocks after it.
    pub(crate) fn content(&self) -> Vec<Block> {
        std::iter::once(&self.summary).chain(&self.blocks).cloned().collect()
    }

    /// Whether files have so much in the log that hardly anything of it will be read from the device
    /// soon: of what a program has written, the kernel keeps whole pages, but not the one in which a file
    /// ends, and of a small file it is asked for that one, too.
    pub(crate) fn is_of_large_files(&self) -> bool {
        let bytes: usize = self.blocks.iter().map(|block| block.len()).sum();
        bytes >= self.files.saturating_mul(LARGE)
    }

    /// A copy of the summary, for later logs.
    pub(crate) fn summary_copy(&self, geometry: &Geometry) -> Option<SummaryCopy> {
        let Geometry { block_size, blocks_per_segment, .. } = *geometry;
        SummaryCopy::of(self.start, &self.summary, self.records, block_size, blocks_per_segment)
    }

    /// The first block after the summary, and the checksums of the blocks from there on.
    pub(crate) fn sums(&self) -> (BlockNr, &[BlockSum]) {
        (self.start.plus(self.summary_blocks), &self.sums)
    }

    /// Blocks of the log, its summary included.
    pub(crate) fn len(&self) -> u64 {
        self.written() + self.hole
    }

    /// Those that go to the device.
    pub(crate) fn written(&self) -> u64 {
        self.summary_blocks + self.blocks.len() as u64
    }

    /// The addresses of those.
    pub(crate) fn extent(&self) -> Range<BlockNr> {
        self.start..BlockNr(self.start.0 + self.written())
    }

    /// The addresses of the log's blocks.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = BlockNr> {
        (self.start.0..self.start.0 + self.len()).map(BlockNr)
    }
}

/// The blocks of one file for a log.
pub(crate) struct Payload {
    pub(crate) info: FileInfo,
    /// As many as `info.blocks`.
    pub(crate) blocks: Vec<Block>,
    /// The checksums that they had in the logs from which they move, whether the content agrees or not: so
    /// damage stays damage, wherever it goes. `None`: the blocks are new.
    pub(crate) moved_sums: Option<Vec<BlockSum>>,
}

impl Payload {
    /// Returns the checksums of some of the blocks.
    fn sums(&self, range: Range<usize>) -> Vec<BlockSum> {
        match &self.moved_sums {
            Some(sums) => sums[range].to_vec(),
            None => self.blocks[range].iter().map(|block| BlockSum::of(block)).collect(),
        }
    }
}

/// What logs have besides the blocks of files.
pub(crate) struct Extras<'a> {
    pub(crate) cno: Cno,
    /// The time (s).
    pub(crate) now: u64,
    /// Roll-forward records, for a log that is alone.
    pub(crate) records: &'a [u8],
    /// Copies of the summaries of logs before that one: as many of them as there is room for, the last first.
    pub(crate) copies: &'a [Arc<[u8]>],
    pub(crate) super_root: Option<&'a Block>,
}

impl Extras<'_> {
    /// Returns what follows the items of a summary with so many bytes to spare.
    fn after_items(&self, mut unused: usize) -> Vec<u8> {
        let mut bytes = self.records.to_vec();
        for copy in self.copies.iter().rev() {
            if let Some(left) = unused.checked_sub(copy.len()) {
                bytes.extend_from_slice(copy);
                unused = left;
            }
        }
        bytes
    }
}

/// Seals the logs of a plan.
pub(crate) fn seal(
    store: &Store,
    plan: &Plan,
    payload: &[Payload],
    extras: &Extras<'_>,
    flags: impl Fn(usize) -> u16,
) -> Vec<SealedLog> {
    let geometry = store.geometry();
    for file in payload {
        assert_eq!(file.info.blocks.len(), file.blocks.len(), "a summary describes every block");
    }
    let one = |(nth, log): (usize, &PlannedLog)| {
        let mut files = Vec::with_capacity(log.parts.len());
        let (mut blocks, mut sums): (Vec<Block>, Vec<BlockSum>) = Default::default();
        for (file, range) in &log.parts {
            let file = &payload[*file];
            let info = &file.info;
            let part = info.blocks[range.clone()].to_vec();
            files.push(FileInfo { ino: info.ino, cno: info.cno, blocks: part });
            blocks.extend(file.blocks[range.clone()].iter().cloned());
            sums.extend(file.sums(range.clone()));
        }
        blocks.extend(extras.super_root.filter(|_| log.super_root).cloned());
        blocks.extend((0..log.empty + log.hole).map(|_| zeroed(geometry.block_size)));
        sums.extend(blocks[sums.len()..].iter().map(|block| BlockSum::of(block)));
        let header = NewLog {
            flags: flags(nth),
            seq: log.seq,
            create: extras.now,
            next: geometry.segment_start(log.next),
            cno: extras.cno,
            summary_blocks: log.summary_blocks,
            block_sums: true,
        };
        let summary = encode_summary(
            &header,
            &files,
            &extras.after_items(log.unused),
            &sums,
            geometry.block_size,
            store.seed(),
        );
        let summary_bytes = log.summary_blocks as usize * geometry.block_size.bytes();
        assert_eq!(summary.len(), summary_bytes, "the layout has left room for the summary");
        blocks.truncate(blocks.len() - log.hole as usize);
        let summary = Arc::new(summary.into_boxed_slice());
        let PlannedLog { start, segment, seq, next, summary_blocks, hole, .. } = *log;
        let files = files.len();
        SealedLog {
            start,
            segment,
            seq,
            next,
            summary,
            summary_blocks,
            records: extras.records.len(),
            files,
            blocks,
            sums,
            hole,
        }
    };
    plan.logs.iter().enumerate().map(one).collect()
}

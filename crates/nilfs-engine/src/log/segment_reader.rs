//! Reading a segment to empty it: which of its blocks must be kept, and what becomes of the others.
//!
//! Nothing is decided for good here. The commit that frees the segment looks again at every block
//! that was moved or given up meanwhile.

use std::collections::BTreeMap;
use std::ops::Range;

use nilfs_ondisk::crc::{BlockSum, Verdict};
use nilfs_ondisk::summary::BlockInfo;
use nilfs_ondisk::{BlockNr, Cno, FileBlock, Ino, SegNum, Seq, VBlockNr};

use crate::bmap::{Pointers, Source};
use crate::dat::Dat;
use crate::error::{Error, Result};
use crate::log::reader::{self, DescribedBlock, Log, Proof};
use crate::protection::Protection;
use crate::store::Store;

/// A block that must be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LiveBlock {
    pub(crate) ino: Ino,
    /// As the summary says; it stays with the block for good.
    pub(crate) fi_cno: Cno,
    pub(crate) vblocknr: VBlockNr,
    /// Its place in the file; none for a node of the map.
    pub(crate) offset: Option<FileBlock>,
    pub(crate) block: BlockNr,
    pub(crate) sum: MovedSum,
}

/// The checksum that a block has where it moves to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MovedSum {
    /// The recorded checksum of the content that was written, whether the content agrees or not.
    Recorded(BlockSum),
    /// That of the content: the log has none of its blocks, but is whole, or the content is known from
    /// elsewhere.
    OfContent,
    /// The log has none and is not whole: it is not known whether the content is what was written.
    Unverified,
}

impl MovedSum {
    /// Returns the checksum to be recorded, given the content.
    pub(crate) fn of(self, content: &[u8]) -> BlockSum {
        match self {
            Self::Recorded(sum) => sum,
            Self::OfContent => BlockSum::of(content),
            Self::Unverified => BlockSum::of(content).unverified(),
        }
    }
}

impl From<Option<BlockSum>> for MovedSum {
    fn from(recorded: Option<BlockSum>) -> Self {
        recorded.map_or(Self::OfContent, Self::Recorded)
    }
}

impl LiveBlock {
    /// By file, data before nodes, by offset: so cleaning puts together what belongs together.
    pub(crate) fn order(&self) -> (Ino, Cno, bool, FileBlock, VBlockNr) {
        let offset = self.offset.unwrap_or(FileBlock(u64::MAX));
        (self.ino, self.fi_cno, self.offset.is_none(), offset, self.vblocknr)
    }
}

/// Content of a segment.
#[derive(Debug, Default)]
pub(crate) struct Content {
    pub(crate) live: Vec<LiveBlock>,
    /// Numbers of dead blocks, with their addresses.
    pub(crate) dead: Vec<(VBlockNr, BlockNr)>,
    /// Checkpoints that cannot be read any more without the dead blocks.
    pub(crate) lost: Vec<Range<Cno>>,
    /// Blocks of the DAT whose rewriting moves every live block of the DAT out of the segment.
    pub(crate) dat_keys: Vec<FileBlock>,
    /// These live blocks, with their checksums as far as there are any.
    dat: Vec<(BlockNr, Option<BlockSum>)>,
}

impl Content {
    /// Returns the number of live blocks.
    pub(crate) fn count_live(&self) -> u64 {
        (self.live.len() + self.dat.len()) as u64
    }
}

/// How many live blocks logs have: of files, and of the DAT.
#[derive(Debug, Clone, Copy)]
struct Before {
    live: usize,
    dat: usize,
}

/// Why a victim is left alone.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// A superblock still names a log there, or one before.
    Needed,
    /// Its summaries are damaged, or do not describe all of its live blocks; a block of the DAT is damaged;
    /// or one of several blocks is, and no checksum tells which.
    Damaged(String),
    /// The device cannot read its summaries.
    Unreadable(Error),
}

/// Reads segments, and says which of their blocks are alive.
pub(crate) struct SegmentReader<'a> {
    pub(crate) store: &'a Store,
    pub(crate) dat: &'a Dat,
    pub(crate) protection: &'a Protection,
    /// Segments written under this number or later are needed for recovery.
    pub(crate) needed_from: Seq,
    /// Whether content moves as unverified out of a log of which one block is damaged, and no checksum
    /// tells which. Everything else there has to be known to be right.
    pub(crate) with_unproved: bool,
}

impl SegmentReader<'_> {
    /// Reads the summaries of a segment whose first `filled` blocks hold logs.
    pub(crate) fn read(&self, segment: SegNum, filled: u64) -> Result<Result<Content, Refusal>> {
        self.read_logs(segment, filled, |_, _, _| Ok(None))
    }

    /// As [`SegmentReader::read`], for blocks that will move: damage of them must stay known.
    pub(crate) fn read_to_move(
        &self,
        segment: SegNum,
        filled: u64,
    ) -> Result<Result<Content, Refusal>> {
        self.read_logs(segment, filled, |content, before, log| self.prove(content, before, log))
    }

    /// Reads the summaries of a segment. `prove` looks at the content with each log that has live blocks,
    /// given how much of that is of the logs before.
    fn read_logs(
        &self,
        segment: SegNum,
        filled: u64,
        prove: impl Fn(&mut Content, Before, &Log) -> Result<Option<Refusal>>,
    ) -> Result<Result<Content, Refusal>> {
        let geometry = self.store.geometry();
        let start = geometry.segment_start(segment);
        // The first segment is counted from its first usable block.
        let end = BlockNr(start.0.saturating_add(filled));
        let mut content = Content::default();
        let mut at = start;
        let mut generation = None;
        while at.plus(1) < end {
            let header = match reader::header(self.store, at) {
                Ok(Some(header)) if generation.is_none_or(|seq| seq == header.seq) => header,
                Ok(_) => return Ok(Err(damaged(at, "there is no summary"))),
                Err(error) => return unreadable(error),
            };
            if generation.is_none() && !header.is_off_chain() && header.seq >= self.needed_from {
                return Ok(Err(Refusal::Needed));
            }
            generation = Some(header.seq);
            let log = match reader::read(self.store, at, header) {
                Ok(log) => log,
                Err(Error::Corrupt { source, .. }) => {
                    return Ok(Err(damaged(at, &source.to_string())));
                }
                Err(error) => return unreadable(error),
            };
            let before = Before { live: content.live.len(), dat: content.dat.len() };
            for described in log.blocks(self.store.block_size()) {
                match self.classify(&mut content, described) {
                    // Whether the block is alive is not known.
                    Err(error @ Error::Damaged { .. }) => {
                        return Ok(Err(Refusal::Damaged(error.to_string())));
                    }
                    classified => classified?,
                }
            }
            if content.count_live() > (before.live + before.dat) as u64
                && let Some(refusal) = prove(&mut content, before, &log)?
            {
                return Ok(Err(refusal));
            }
            at = at.plus(header.nblocks.into());
        }
        Ok(Ok(content))
    }

    /// Makes sure that damage of the live blocks of a log is known when they have moved. A block of the DAT
    /// is written anew, and not as it is.
    fn prove(&self, content: &mut Content, before: Before, log: &Log) -> Result<Option<Refusal>> {
        match log.proof(self.store)? {
            Proof::OfBlocks => {}
            Proof::OfLog => {
                content.live[before.live..]
                    .iter_mut()
                    .for_each(|live| live.sum = MovedSum::OfContent);
                return Ok(None);
            }
            Proof::Missing if self.with_unproved => {
                for live in &mut content.live[before.live..] {
                    live.sum = match live.ino >= Ino::FIRST_USER && live.offset.is_some() {
                        true => MovedSum::Unverified,
                        false => MovedSum::OfContent,
                    };
                }
                return Ok(None);
            }
            Proof::Missing => {
                return Ok(Some(damaged(log.start, "the checksum of the log there is wrong")));
            }
        }
        for &(block, sum) in &content.dat[before.dat..] {
            let is_damaged = match self.store.read(block) {
                Ok(content) => sum.is_some_and(|sum| sum.judge(&content) == Verdict::Wrong),
                Err(error) => matches!(error, Error::Damaged { .. }),
            };
            if is_damaged {
                return Ok(Some(damaged(block, "it is one of the DAT, and not what was written")));
            }
        }
        Ok(None)
    }

    fn classify(&self, content: &mut Content, described: DescribedBlock) -> Result<()> {
        let DescribedBlock { ino, fi_cno, info, block, sum } = described;
        match info {
            BlockInfo::Data { vblocknr, offset } => {
                let live = LiveBlock {
                    ino,
                    fi_cno,
                    vblocknr,
                    offset: Some(offset),
                    block,
                    sum: sum.into(),
                };
                self.classify_virtual(content, live)
            }
            BlockInfo::Node { vblocknr } => {
                let live =
                    LiveBlock { ino, fi_cno, vblocknr, offset: None, block, sum: sum.into() };
                self.classify_virtual(content, live)
            }
            BlockInfo::DatData { offset } => {
                if is_of_dat(self.store, self.dat, &described)? {
                    content.dat_keys.push(offset);
                    content.dat.push((block, sum));
                }
                Ok(())
            }
            BlockInfo::DatNode { key, .. } => {
                if is_of_dat(self.store, self.dat, &described)? {
                    // Rewriting what lies below a node rewrites the node.
                    content.dat_keys.push(FileBlock(key));
                    content.dat.push((block, sum));
                }
                Ok(())
            }
        }
    }

    fn classify_virtual(&self, content: &mut Content, found: LiveBlock) -> Result<()> {
        let Some(entry) = self.dat.life(self.store, found.vblocknr)? else { return Ok(()) };
        if entry.block != found.block {
            return Ok(());
        }
        if self.protection.needs(&entry) {
            content.live.push(found);
        } else {
            content.dead.push((found.vblocknr, found.block));
            // Files without a history are part of no checkpoint.
            if found.fi_cno.0 != 0 && entry.start < entry.end {
                content.lost.push(entry.start..entry.end);
            }
        }
        Ok(())
    }
}

/// Whether a block is what a log says, and is needed by any checkpoint.
pub(crate) fn is_in_a_checkpoint(
    store: &Store,
    dat: &Dat,
    described: &DescribedBlock,
) -> Result<bool> {
    let Some(vblocknr) = described.info.vblock() else {
        return is_of_dat(store, dat, described);
    };
    let life = dat.life(store, vblocknr)?.filter(|life| life.block == described.block);
    Ok(life.is_some_and(|life| Protection::of_everything().needs(&life)))
}

/// Whether a block is what a log says, and one of the DAT.
fn is_of_dat(store: &Store, dat: &Dat, described: &DescribedBlock) -> Result<bool> {
    let block = described.block;
    match described.info {
        BlockInfo::DatData { offset } => {
            let source = Source { store, pointers: Pointers::Physical };
            Ok(source.lookup(dat.root(), offset)? == Some(block.0))
        }
        BlockInfo::DatNode { key, level } => dat.has_node(store, key, level, block),
        BlockInfo::Data { .. } | BlockInfo::Node { .. } => Ok(false),
    }
}

/// Only what lies in the segment itself is held against it.
fn unreadable(error: Error) -> Result<Result<Content, Refusal>> {
    match error {
        Error::Device { .. } => Ok(Err(Refusal::Unreadable(error))),
        error => Err(error),
    }
}

fn damaged(block: BlockNr, what: &str) -> Refusal {
    Refusal::Damaged(format!("block {block}: {what}"))
}

/// Joins ranges that overlap or touch.
pub(crate) fn merged(ranges: Vec<Range<Cno>>) -> Vec<Range<Cno>> {
    let mut by_start: BTreeMap<Cno, Cno> = BTreeMap::new();
    for range in ranges {
        let end = by_start.entry(range.start).or_insert(range.end);
        *end = (*end).max(range.end);
    }
    let mut merged: Vec<Range<Cno>> = Vec::new();
    for (start, end) in by_start {
        match merged.last_mut() {
            Some(last) if last.end >= start => last.end = last.end.max(end),
            _ => merged.push(start..end),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_become_one() {
        let range = |start, end| Cno(start)..Cno(end);
        let ranges = vec![range(7, 9), range(1, 3), range(3, 4), range(2, 3), range(12, 13)];
        assert_eq!(merged(ranges), [range(1, 4), range(7, 9), range(12, 13)]);
    }
}

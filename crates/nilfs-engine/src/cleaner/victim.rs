//! Reading a victim: which of its blocks must be kept, and what becomes of the others.
//!
//! Nothing is decided for good here. The commit that frees the segment looks again at every block
//! that was moved or given up meanwhile.

use std::collections::BTreeMap;
use std::ops::Range;

use nilfs_ondisk::summary::BlockInfo;
use nilfs_ondisk::{BlockNr, Cno, FileBlock, Ino, SegNum, Seq, VBlockNr};

use super::protection::Protection;
use crate::bmap::{Pointers, Source};
use crate::dat::Dat;
use crate::error::{Error, Result};
use crate::log::reader;
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
}

impl LiveBlock {
    /// By file, data before nodes, by offset: so cleaning puts together what belongs together.
    pub(crate) fn order(&self) -> (Ino, Cno, bool, FileBlock, VBlockNr) {
        let offset = self.offset.unwrap_or(FileBlock(u64::MAX));
        (self.ino, self.fi_cno, self.offset.is_none(), offset, self.vblocknr)
    }
}

/// What is in a victim.
#[derive(Debug, Default)]
pub(crate) struct Content {
    pub(crate) live: Vec<LiveBlock>,
    /// Numbers of dead blocks, with their addresses.
    pub(crate) dead: Vec<(VBlockNr, BlockNr)>,
    /// Checkpoints that cannot be read any more without the dead blocks.
    pub(crate) lost: Vec<Range<Cno>>,
    /// Blocks of the DAT whose rewriting moves every live block of the DAT out of the segment, and
    /// the number of these.
    pub(crate) dat_keys: Vec<FileBlock>,
    pub(crate) dat_live: u64,
}

/// Why a victim is left alone.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// A superblock still names a log there, or one before.
    Needed,
    /// Its summaries are damaged, or do not describe all of its live blocks.
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
}

impl SegmentReader<'_> {
    /// Reads the summaries of a segment whose first `filled` blocks hold logs.
    pub(crate) fn read(&self, segment: SegNum, filled: u64) -> Result<Result<Content, Refusal>> {
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
            let mut block = at.plus(header.summary_blocks(self.store.block_size()));
            for file in &log.files {
                for info in &file.blocks {
                    self.classify(&mut content, file.ino, file.cno, *info, block)?;
                    block = block.plus(1);
                }
            }
            at = at.plus(header.nblocks.into());
        }
        Ok(Ok(content))
    }

    fn classify(
        &self,
        content: &mut Content,
        ino: Ino,
        fi_cno: Cno,
        info: BlockInfo,
        block: BlockNr,
    ) -> Result<()> {
        match info {
            BlockInfo::Data { vblocknr, offset } => {
                let live = LiveBlock { ino, fi_cno, vblocknr, offset: Some(offset), block };
                self.classify_virtual(content, live)
            }
            BlockInfo::Node { vblocknr } => self.classify_virtual(
                content,
                LiveBlock { ino, fi_cno, vblocknr, offset: None, block },
            ),
            BlockInfo::DatData { offset } => {
                let source = Source { store: self.store, pointers: Pointers::Physical };
                if source.lookup(self.dat.root(), offset)? == Some(block.0) {
                    content.dat_keys.push(offset);
                    content.dat_live += 1;
                }
                Ok(())
            }
            BlockInfo::DatNode { key, level } => {
                if self.dat.has_node(self.store, key, level, block)? {
                    // Rewriting what lies below a node rewrites the node.
                    content.dat_keys.push(FileBlock(key));
                    content.dat_live += 1;
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

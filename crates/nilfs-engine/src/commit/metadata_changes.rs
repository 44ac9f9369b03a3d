//! What a commit changes besides files: segment usage, addresses and checkpoints, for the cleaner,
//! for a resize and for an administrator. Nothing here knows how it is done.

use std::ops::Range;

use nilfs_ondisk::{BlockNr, Cno, FileBlock, SegNum, VBlockNr};

use crate::dat::Moved;
use crate::error::Error;
use crate::xattr_file::XattrFile;

/// What a commit changes in the DAT, the cpfile, the sufile and the xattr file besides what follows from files.
#[derive(Debug, Default)]
pub(crate) struct MetadataChanges {
    /// Checkpoints that are given up; snapshots among them stay.
    pub(crate) delete: Vec<Range<Cno>>,
    /// Checkpoints that become snapshots (true) or stop being one.
    pub(crate) snapshots: Vec<(Cno, bool)>,
    /// What changes in the xattr file of the checkpoint before.
    pub(crate) xattr_file: Option<XattrFile>,
    /// Blocks that the cleaner has written elsewhere.
    pub(crate) moved: Vec<Moved>,
    /// Numbers of dead blocks, with the addresses of these.
    pub(crate) released: Vec<(VBlockNr, BlockNr)>,
    /// Blocks of the DAT that must leave their segments.
    pub(crate) dat_keys: Vec<FileBlock>,
    /// Segments in which nothing is needed any more.
    pub(crate) cleaned: Vec<SegNum>,
    /// Segments that the device cannot read.
    pub(crate) bad: Vec<SegNum>,
    /// Segments next to the chain of logs that the cleaner has written.
    pub(crate) filled: Vec<FilledSegment>,
    /// The new number of segments.
    pub(crate) segments: Option<u64>,
    /// A checkpoint is wanted even if nothing has changed.
    pub(crate) checkpoint: bool,
}

/// What became of changes of metadata.
#[derive(Debug, Default)]
pub(crate) struct MetadataOutcome {
    /// Why they are not done: there was no room for them, or something that they change cannot be
    /// read.
    pub(crate) refused: Option<Error>,
    pub(crate) deleted_checkpoints: u64,
}

/// A segment next to the chain of logs that the cleaner has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FilledSegment {
    pub(crate) segment: SegNum,
    /// How far, in blocks.
    pub(crate) blocks: u64,
    /// When its content was last modified (s).
    pub(crate) modified: u64,
}

impl MetadataChanges {
    pub(crate) fn is_empty(&self) -> bool {
        self.delete.is_empty()
            && self.snapshots.is_empty()
            && self.xattr_file.is_none()
            && self.moved.is_empty()
            && self.released.is_empty()
            && self.dat_keys.is_empty()
            && self.cleaned.is_empty()
            && self.bad.is_empty()
            && self.filled.is_empty()
            && self.segments.is_none()
            && !self.checkpoint
    }

    /// Takes out what a commit of about `blocks` addresses can do of the cleaner's changes ahead of
    /// the rest; `None` if the rest is no more than that. The cleaned segments stay with the rest:
    /// they are free when nothing in them is named any more.
    pub(crate) fn split_part(&mut self, blocks: usize) -> Option<Self> {
        // The blocks of the DAT lie apart from each other, and each costs one of its own.
        let keys = blocks / 16;
        if self.moved.len() + self.released.len() <= blocks && self.dat_keys.len() <= keys {
            return None;
        }
        let (moved, released) = self.split_numbers(blocks);
        let left = moved.len() + released.len() < blocks;
        let dat_keys = if left { first(&mut self.dat_keys, keys) } else { Vec::new() };
        Some(Self {
            moved,
            released,
            dat_keys,
            // Blocks end with the checkpoints that had them, and are moved to segments in use.
            delete: std::mem::take(&mut self.delete),
            filled: std::mem::take(&mut self.filled),
            ..Self::default()
        })
    }

    /// Takes out the `blocks` lowest numbers that are moved or given up. Both are in order, and
    /// what lies side by side in the DAT is written in one block of it.
    fn split_numbers(&mut self, blocks: usize) -> (Vec<Moved>, Vec<(VBlockNr, BlockNr)>) {
        let (mut moved, mut released) = (0, 0);
        while moved + released < blocks {
            let next_moved = self.moved.get(moved).map(|moved| moved.vblocknr);
            let next_released = self.released.get(released).map(|(number, _)| *number);
            match (next_moved, next_released) {
                (Some(one), Some(other)) if one <= other => moved += 1,
                (_, Some(_)) => released += 1,
                (Some(_), None) => moved += 1,
                (None, None) => break,
            }
        }
        (first(&mut self.moved, moved), first(&mut self.released, released))
    }
}

/// Takes the first items out, `count` at most.
fn first<T>(items: &mut Vec<T>, count: usize) -> Vec<T> {
    let rest = items.split_off(count.min(items.len()));
    std::mem::replace(items, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_go_through_the_numbers_in_order_and_lose_none() {
        let moved = |number| Moved {
            vblocknr: VBlockNr(number),
            from: BlockNr(number),
            to: BlockNr(number + 1000),
        };
        let mut changes = MetadataChanges {
            moved: [1, 2, 6, 8, 9].map(moved).into(),
            released: [3, 4, 5, 7].map(|number| (VBlockNr(number), BlockNr(number))).into(),
            cleaned: vec![SegNum(4)],
            ..MetadataChanges::default()
        };
        let numbers = |changes: &MetadataChanges| {
            let moved = changes.moved.iter().map(|moved| moved.vblocknr.0);
            let mut all: Vec<u64> =
                moved.chain(changes.released.iter().map(|(number, _)| number.0)).collect();
            all.sort_unstable();
            all
        };
        let mut parts = Vec::new();
        while let Some(part) = changes.split_part(4) {
            assert!(part.cleaned.is_empty(), "something in it is still named");
            parts.push(numbers(&part));
        }
        parts.push(numbers(&changes));
        assert_eq!(parts, [vec![1, 2, 3, 4], vec![5, 6, 7, 8], vec![9]]);
        assert_eq!(changes.cleaned, [SegNum(4)]);
    }
}

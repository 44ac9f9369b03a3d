//! Which blocks must be kept: those of the newest checkpoint, of snapshots, of checkpoints that
//! are too young to be given up, and of those that somebody is reading (docs/format.md §22).

use std::collections::BTreeSet;

use nilfs_ondisk::Cno;
use nilfs_ondisk::dat::DatEntry;

/// The checkpoints that must stay readable, besides the newest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Protection {
    /// All checkpoints from here on.
    pub(crate) from: Cno,
    /// Single ones before.
    pub(crate) kept: BTreeSet<Cno>,
}

impl Protection {
    /// Everything that any checkpoint has.
    pub(crate) fn of_everything() -> Self {
        Self { from: Cno(0), kept: BTreeSet::new() }
    }

    /// Whether a block with this life is needed. A block that died in the checkpoint that would
    /// have been its first is in none.
    pub(crate) fn needs(&self, entry: &DatEntry) -> bool {
        entry.end == Cno::MAX || self.keeps(entry.start, entry.end)
    }

    /// Whether a checkpoint from `start` to before `end` is protected.
    pub(crate) fn keeps(&self, start: Cno, end: Cno) -> bool {
        start < end && (end > self.from || self.has_single(start, end))
    }

    /// The last checkpoint that is kept, if `newest` is the newest of all: of its blocks, those are kept
    /// when they die that were born by then.
    pub(crate) fn last_kept(&self, newest: Cno) -> Option<Cno> {
        if self.from <= newest { Some(newest) } else { self.kept.last().copied() }
    }

    /// Whether one of the single checkpoints is there from `start` to before `end`.
    pub(crate) fn has_single(&self, start: Cno, end: Cno) -> bool {
        self.kept.range(start..end).next().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protection() -> Protection {
        Protection { from: Cno(50), kept: [Cno(10), Cno(20)].into() }
    }

    #[test]
    fn a_block_lives_as_long_as_a_checkpoint_needs_it() {
        let needs = |start, end| {
            let (start, end) = (Cno(start), Cno(end));
            protection().needs(&DatEntry { block: nilfs_ondisk::BlockNr(1), start, end })
        };
        assert!(needs(60, Cno::MAX.0), "the newest checkpoint has it");
        assert!(needs(40, 51), "checkpoint 50 has it");
        assert!(!needs(40, 50), "49 is the last that has it");
        assert!(needs(5, 11), "snapshot 10 has it");
        assert!(!needs(5, 10), "it ended before snapshot 10");
        assert!(!needs(11, 20), "it lived between two snapshots");
        assert!(!needs(60, 60), "no checkpoint has it");
    }
}

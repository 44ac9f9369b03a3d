//! What can be asked of a volume that nobody can change here: how it is, and nothing else.

use std::ops::RangeInclusive;

use nilfs_engine::{
    CheckpointInfo, CheckpointTotals, Checkpoints, CleanerOrder, Cno, Defragmented,
    DeletedCheckpoints, Error, Holders, Ino, Note, PurgeOptions, PurgeProgress, Purged,
    ReadOnlyVolume, ResizeProgress, RollbackProgress, RolledBack, SnapshotChange, Status, Usage,
};

use nilfs_ondisk::superblock::LogCursor;

use super::{Administration, Refusal};
use crate::past::Name;

/// A volume, or what is shown of one, that can only be looked at.
pub trait ReadOnly {
    /// Why nothing can be changed.
    const REASON: &'static str;

    /// How things are.
    fn status(&self) -> Result<Status, Refusal>;

    /// Where the space is.
    fn usage(&self) -> Result<Usage, Refusal>;

    /// The checkpoints from `from` on, as [`Administration::checkpoints`] lists them.
    fn checkpoints(&self, from: Cno, limit: usize) -> Result<Vec<CheckpointInfo>, Refusal>;

    /// How many checkpoints the volume has.
    fn checkpoint_totals(&self) -> Result<CheckpointTotals, Refusal>;

    /// The newest checkpoint that was not made after a second since 1970.
    fn newest_until(&self, second: u64) -> Result<Option<CheckpointInfo>, Refusal>;

    /// What is noted about snapshots, as [`Administration::notes`] lists it.
    fn notes(&self) -> Result<Vec<Note>, Refusal>;

    /// The answer to whatever would change something.
    fn refuse<T>(&self) -> Result<T, Refusal> {
        Err(Error::ReadOnly { reason: Self::REASON.into() }.into())
    }
}

impl ReadOnly for ReadOnlyVolume {
    const REASON: &'static str = "it is mounted read-only";

    fn status(&self) -> Result<Status, Refusal> {
        Ok(self.status())
    }

    fn usage(&self) -> Result<Usage, Refusal> {
        Ok(self.usage()?)
    }

    fn checkpoints(&self, from: Cno, limit: usize) -> Result<Vec<CheckpointInfo>, Refusal> {
        Ok(Checkpoints::checkpoints(self, from, limit)?)
    }

    fn checkpoint_totals(&self) -> Result<CheckpointTotals, Refusal> {
        Ok(self.checkpoint_totals()?)
    }

    fn newest_until(&self, second: u64) -> Result<Option<CheckpointInfo>, Refusal> {
        Ok(self.newest_made(Cno::MAX, &(0..=second))?)
    }

    fn notes(&self) -> Result<Vec<Note>, Refusal> {
        Ok(Checkpoints::notes(self)?)
    }
}

impl<V: ReadOnly> Administration for V {
    fn status(&self) -> Result<Status, Refusal> {
        ReadOnly::status(self)
    }

    fn usage(&self) -> Result<Usage, Refusal> {
        ReadOnly::usage(self)
    }

    fn checkpoints(&self, from: Cno, limit: usize) -> Result<Vec<CheckpointInfo>, Refusal> {
        ReadOnly::checkpoints(self, from, limit)
    }

    fn checkpoint_totals(&self) -> Result<CheckpointTotals, Refusal> {
        ReadOnly::checkpoint_totals(self)
    }

    fn newest_until(&self, second: u64) -> Result<Option<CheckpointInfo>, Refusal> {
        ReadOnly::newest_until(self, second)
    }

    fn notes(&self) -> Result<Vec<Note>, Refusal> {
        ReadOnly::notes(self)
    }

    fn newest_log(&self) -> Result<LogCursor, Refusal> {
        self.refuse()
    }

    fn change_snapshots(&self, _: &[SnapshotChange]) -> Result<(), Refusal> {
        self.refuse()
    }

    fn delete_checkpoints(&self, _: RangeInclusive<Cno>) -> Result<DeletedCheckpoints, Refusal> {
        self.refuse()
    }

    fn checkpoint(&self, _: bool) -> Result<Cno, Refusal> {
        self.refuse()
    }

    fn order_cleaner(&self, _: CleanerOrder) -> Result<(), Refusal> {
        self.refuse()
    }

    fn trim(&self, _: u64, _: u64, _: u64) -> Result<u64, Refusal> {
        self.refuse()
    }

    fn resize(&self, _: u64, _: &mut dyn FnMut(ResizeProgress)) -> Result<(), Refusal> {
        self.refuse()
    }

    fn holders(&self, _: &Name) -> Result<Holders, Refusal> {
        self.refuse()
    }

    fn purge(
        &self,
        _: Option<&Name>,
        _: PurgeOptions,
        _: &mut dyn FnMut(PurgeProgress),
    ) -> Result<Purged, Refusal> {
        self.refuse()
    }

    fn roll_back(
        &self,
        _: Cno,
        _: &Name,
        _: &mut dyn FnMut(RollbackProgress),
    ) -> Result<RolledBack, Refusal> {
        self.refuse()
    }

    fn defragment(&self, _: Ino, _: u64) -> Result<Defragmented, Refusal> {
        self.refuse()
    }
}

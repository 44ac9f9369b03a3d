//! The past of a volume: its checkpoints, each of which can be looked at.

use std::ops::RangeInclusive;

use nilfs_ondisk::Cno;
use nilfs_ondisk::notes::Note;

use super::Tree;
use crate::checkpoints::{CheckpointInfo, newest_below};
use crate::error::Result;
use crate::times::Times;

/// The checkpoints of a volume, each of which can be looked at.
pub trait Checkpoints: Send + Sync {
    /// The number of the newest one.
    fn newest(&self) -> Cno;

    /// The checkpoints from `from` on, ascending, at most `limit`.
    ///
    /// # Errors
    /// The cpfile cannot be read.
    fn checkpoints(&self, from: Cno, limit: usize) -> Result<Vec<CheckpointInfo>>;

    /// The newest checkpoint below `end`.
    ///
    /// # Errors
    /// The cpfile cannot be read.
    fn newest_below(&self, end: Cno) -> Result<Option<CheckpointInfo>> {
        let list = |from, limit| self.checkpoints(from, limit);
        newest_below(end.min(Cno(self.newest().0.saturating_add(1))), &list, &|_| true)
    }

    /// When checkpoints were made, as far as somebody has had to find out.
    fn times(&self) -> &Times;

    /// The newest checkpoint below `end` that was made in one of these seconds since 1970.
    ///
    /// # Errors
    /// The cpfile cannot be read.
    fn newest_made(
        &self,
        end: Cno,
        seconds: &RangeInclusive<u64>,
    ) -> Result<Option<CheckpointInfo>> {
        let list = |from, limit| self.checkpoints(from, limit);
        self.times().newest_made(self.newest(), end, seconds, &list)
    }

    /// The files of a checkpoint; of the newest one if `cno` is `None`.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`](crate::Error::NoCheckpoint), damage, a device error.
    fn tree(&self, cno: Option<Cno>) -> Result<Tree>;

    /// Notes about snapshots, by ascending number. Snapshots without a note are not there.
    ///
    /// # Errors
    /// The notes are damaged or of a later version; a device error.
    fn notes(&self) -> Result<Vec<Note>>;
}

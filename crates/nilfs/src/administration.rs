//! What an administrator asks of a volume, mounted or not.
//!
//! [`on`] finds who can answer: the process that serves the volume if it is mounted, or the engine
//! in this process. Commands and drop-ins know only [`Administration`].

mod offline;
mod read_only;
mod target;

use std::fmt;
use std::ops::RangeInclusive;

use jiff::Zoned;
use nilfs_engine::{
    CheckpointInfo, CheckpointTotals, Checkpoints, CleanerOrder, Cno, Defragmented,
    DeletedCheckpoints, Error, Filesystem, Holders, Ino, Note, PurgeOptions, PurgeProgress, Purged,
    ResizeProgress, RollbackProgress, RolledBack, SnapshotChange, Status, Usage,
};
use nilfs_fuse::When;
use nilfs_ondisk::superblock::LogCursor;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::past::Name;

pub use read_only::ReadOnly;
pub use target::{
    Place, Purpose, Target, is_believable, mount_around, mount_of, mounts_of, not_a_volume, on,
    source_of, unnamed,
};

/// Checkpoints that are listed at a time.
const CHECKPOINTS_AT_ONCE: usize = 1024;

/// A volume as an administrator sees it. The methods mean what those of [`Filesystem`] with the
/// same names mean.
pub trait Administration {
    /// Whether another process serves the volume, which goes on with what was begun if this one ends.
    fn is_served(&self) -> bool {
        false
    }

    /// How things are.
    fn status(&self) -> Result<Status, Refusal>;

    /// Where the space is.
    fn usage(&self) -> Result<Usage, Refusal>;

    /// The checkpoints from `from` on, ascending, at most `limit`; or fewer, but at least one.
    fn checkpoints(&self, from: Cno, limit: usize) -> Result<Vec<CheckpointInfo>, Refusal>;

    /// How many checkpoints there are.
    fn checkpoint_totals(&self) -> Result<CheckpointTotals, Refusal>;

    /// The log of the newest checkpoint of a volume that is written, which stays on the device for those
    /// who read it.
    fn newest_log(&self) -> Result<LogCursor, Refusal>;

    /// What is noted about snapshots, by ascending number.
    fn notes(&self) -> Result<Vec<Note>, Refusal>;

    /// Makes all of these changes, or none.
    fn change_snapshots(&self, changes: &[SnapshotChange]) -> Result<(), Refusal>;

    /// Makes a snapshot of a checkpoint, or an ordinary checkpoint of a snapshot.
    fn set_snapshot(&self, cno: Cno, snapshot: bool) -> Result<(), Refusal> {
        self.change_snapshots(&[SnapshotChange::plain(cno, snapshot)])
    }

    /// Deletes the checkpoints of a range, except snapshots and the newest.
    fn delete_checkpoints(&self, range: RangeInclusive<Cno>)
    -> Result<DeletedCheckpoints, Refusal>;

    /// The newest checkpoint that was not made after a second since 1970.
    fn newest_until(&self, second: u64) -> Result<Option<CheckpointInfo>, Refusal>;

    /// Makes everything durable in a checkpoint, and returns its number. If nothing has changed
    /// since the newest checkpoint, that one will do unless `anew`.
    fn checkpoint(&self, anew: bool) -> Result<Cno, Refusal>;

    /// Gives the cleaner an order. Returns at once; [`Administration::status`] tells how far it is.
    fn order_cleaner(&self, order: CleanerOrder) -> Result<(), Refusal>;

    /// Tells the device about clean segments between two bytes of the volume, in runs of at least
    /// `minimum` bytes. Returns the number of bytes.
    fn trim(&self, from: u64, to: u64, minimum: u64) -> Result<u64, Refusal>;

    /// Gives the volume another size (bytes). Calls `progress` now and then, and returns when it is
    /// done.
    fn resize(&self, bytes: u64, progress: &mut dyn FnMut(ResizeProgress)) -> Result<(), Refusal>;

    /// Makes everything, or what is at a path and below it, what it was in a checkpoint. Calls
    /// `progress` now and then, and returns when it is done.
    fn roll_back(
        &self,
        to: Cno,
        path: &Name,
        progress: &mut dyn FnMut(RollbackProgress),
    ) -> Result<RolledBack, Refusal>;

    /// What has blocks of the file at a path, which need not be there any more.
    fn holders(&self, path: &Name) -> Result<Holders, Refusal>;

    /// Takes away all that the past has of the file at a path; without a path, completes that. Calls
    /// `progress` now and then, and returns when it is done.
    fn purge(
        &self,
        path: Option<&Name>,
        options: PurgeOptions,
        progress: &mut dyn FnMut(PurgeProgress),
    ) -> Result<Purged, Refusal>;

    /// Makes a file contiguous, if its blocks are at most `budget`.
    fn defragment(&self, ino: Ino, budget: u64) -> Result<Defragmented, Refusal>;
}

impl Administration for Filesystem {
    fn status(&self) -> Result<Status, Refusal> {
        Ok(self.status())
    }

    fn usage(&self) -> Result<Usage, Refusal> {
        Ok(self.usage()?)
    }

    fn checkpoints(&self, from: Cno, limit: usize) -> Result<Vec<CheckpointInfo>, Refusal> {
        Ok(self.checkpoints(from, limit)?)
    }

    fn checkpoint_totals(&self) -> Result<CheckpointTotals, Refusal> {
        Ok(self.checkpoint_totals()?)
    }

    fn newest_log(&self) -> Result<LogCursor, Refusal> {
        Ok(self.newest_log())
    }

    fn notes(&self) -> Result<Vec<Note>, Refusal> {
        Ok(self.notes()?)
    }

    fn change_snapshots(&self, changes: &[SnapshotChange]) -> Result<(), Refusal> {
        Ok(self.change_snapshots(changes)?)
    }

    fn delete_checkpoints(
        &self,
        range: RangeInclusive<Cno>,
    ) -> Result<DeletedCheckpoints, Refusal> {
        Ok(self.delete_checkpoints(range)?)
    }

    fn newest_until(&self, second: u64) -> Result<Option<CheckpointInfo>, Refusal> {
        Ok(Checkpoints::newest_made(self, Cno::MAX, &(0..=second))?)
    }

    fn checkpoint(&self, anew: bool) -> Result<Cno, Refusal> {
        Ok(if anew { self.checkpoint_now() } else { self.checkpoint_changes() }?)
    }

    fn order_cleaner(&self, order: CleanerOrder) -> Result<(), Refusal> {
        Ok(self.order_cleaner(order)?)
    }

    fn trim(&self, from: u64, to: u64, minimum: u64) -> Result<u64, Refusal> {
        Ok(self.trim(from, to, minimum)?)
    }

    fn resize(&self, bytes: u64, progress: &mut dyn FnMut(ResizeProgress)) -> Result<(), Refusal> {
        Ok(self.resize(bytes, progress)?)
    }

    fn roll_back(
        &self,
        to: Cno,
        path: &Name,
        progress: &mut dyn FnMut(RollbackProgress),
    ) -> Result<RolledBack, Refusal> {
        Ok(self.roll_back(to, path.as_bytes(), progress)?)
    }

    fn holders(&self, path: &Name) -> Result<Holders, Refusal> {
        Ok(self.holders(path.as_bytes())?)
    }

    fn purge(
        &self,
        path: Option<&Name>,
        options: PurgeOptions,
        progress: &mut dyn FnMut(PurgeProgress),
    ) -> Result<Purged, Refusal> {
        Ok(self.purge(path.map(Name::as_bytes), options, progress)?)
    }

    fn defragment(&self, ino: Ino, budget: u64) -> Result<Defragmented, Refusal> {
        Ok(self.defragment(&self.inode(ino)?.inode, budget)?)
    }
}

/// The checkpoint that is meant by a moment.
///
/// # Errors
/// There is none, with the nearest ones; or they cannot be read.
pub fn find(volume: &dyn Administration, when: &When) -> anyhow::Result<CheckpointInfo> {
    let list = |from, limit| volume.checkpoints(from, limit);
    let newest = volume.status()?.cno;
    let until = |second| volume.newest_until(second);
    Ok(when.find(&Zoned::now, newest, &list, &until, &|| volume.notes())?)
}

/// All checkpoints, ascending.
///
/// # Errors
/// They cannot be read.
pub fn all_checkpoints(volume: &dyn Administration) -> Result<Vec<CheckpointInfo>, Refusal> {
    let (mut from, mut all) = (Cno::MIN, Vec::new());
    loop {
        let some = volume.checkpoints(from, CHECKPOINTS_AT_ONCE)?;
        let Some(last) = some.last() else { return Ok(all) };
        from = Cno(last.cno.0.saturating_add(1));
        all.extend(some);
    }
}

/// Why something was not done: an error of the engine, in a form that can be sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// For programs. One that only a newer version knows is taken for a failure.
    #[serde(deserialize_with = "known_reason")]
    pub reason: Reason,
    /// For people.
    pub message: String,
}

/// What kind of refusal it is, as far as anybody acts on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// There is no such checkpoint.
    NoCheckpoint,
    /// The volume cannot be written.
    ReadOnly,
    /// There is no room.
    NoSpace,
    /// What lies beyond the new end does not fit before it.
    NoRoomToShrink {
        /// Segments that are missing.
        segments: u64,
    },
    /// Only the superuser and the owner of the mount may do it.
    NotPermitted,
    /// The words with which it was asked for make no sense.
    Usage,
    /// The device, or the process that serves the volume, does not know how.
    Unsupported,
    /// The volume is damaged.
    Damaged,
    /// Anything else.
    Failed,
}

fn known_reason<'de, D: Deserializer<'de>>(from: D) -> Result<Reason, D::Error> {
    let reason = Value::deserialize(from)?;
    Ok(Reason::deserialize(reason).unwrap_or(Reason::Failed))
}

impl Refusal {
    /// A refusal in our own words.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refusal {}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let reason = match &error {
            Error::NoCheckpoint(_) => Reason::NoCheckpoint,
            Error::ReadOnly { .. } => Reason::ReadOnly,
            Error::NoSpace | Error::NoRoomToRollBack { .. } => Reason::NoSpace,
            Error::NoRoomToShrink { segments } => Reason::NoRoomToShrink { segments: *segments },
            Error::NotPermitted(_) => Reason::NotPermitted,
            Error::RollForward(_) => Reason::Damaged,
            damage if damage.is_damage() => Reason::Damaged,
            Error::Device { source, .. } if source.kind() == std::io::ErrorKind::Unsupported => {
                Reason::Unsupported
            }
            _ => Reason::Failed,
        };
        Self::new(reason, error.to_string())
    }
}

//! What is wrong with a moment, in sentences that name the nearest ones.

use std::fmt;

use jiff::tz::TimeZone;
use nilfs_engine::{CheckpointInfo, Cno, SnapshotName};
use nilfs_ondisk::notes::NotAName;

use super::time_of;

/// These words name no moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected a checkpoint number, the name of a snapshot, or a time, such as 17, 2026-11-20, \
     \"2026-11-20 17:00\", \"yesterday 17:00\", monday, \"10 minutes ago\" or now"
)]
pub struct NotAMoment;

/// Why a snapshot cannot be called so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnfitName {
    /// No snapshot can.
    #[error(transparent)]
    NotAName(#[from] NotAName),
    /// It would not be found by this name.
    #[error("{0} means something else where a moment is named, so no snapshot can be called that")]
    Meaning(SnapshotName),
}

/// Why no checkpoint was found; `E` is why checkpoints cannot be listed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WhenError<E: std::error::Error + 'static> {
    /// No checkpoint has this number, or this number and time.
    #[error("there is no checkpoint {words}{near}")]
    Missing {
        /// What was asked for.
        words: String,
        /// What there is instead.
        near: Nearest,
    },
    /// No snapshot has this name.
    #[error(
        "there is no snapshot called {words}, nor is that a number or a time, such as 17, \
         2026-11-20, \"yesterday 17:00\" or \"10 minutes ago\""
    )]
    NoSnapshot {
        /// What was asked for.
        words: String,
    },
    /// Every checkpoint is later.
    #[error("no checkpoint is as old as {words}; the oldest is {oldest}")]
    TooEarly {
        /// What was asked for.
        words: String,
        /// The checkpoint with the smallest number.
        oldest: Named,
    },
    /// The moment is still to come.
    #[error("{words} is still to come; the newest checkpoint is {newest}")]
    ToCome {
        /// What was asked for.
        words: String,
        /// The newest checkpoint.
        newest: Named,
    },
    /// Clocks were put back or forward, so there were two such moments, or none.
    #[error("{words} was {count} in the time zone {zone}; say {one} or {other}")]
    Ambiguous {
        /// What was asked for.
        words: String,
        /// How often it was.
        count: &'static str,
        /// Where.
        zone: String,
        /// The earlier of the two moments that may be meant.
        one: String,
        /// The later one.
        other: String,
    },
    /// No calendar has the moment.
    #[error("{words} is farther away than any calendar goes")]
    NoCalendar {
        /// What was asked for.
        words: String,
    },
    /// The checkpoints cannot be listed.
    #[error(transparent)]
    Unreadable(E),
}

/// The checkpoints before and after one that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nearest {
    pub(super) before: Option<Named>,
    pub(super) after: Option<Named>,
}

impl fmt::Display for Nearest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.before, self.after) {
            (Some(before), Some(after)) => write!(f, "; the nearest are {before} and {after}"),
            (Some(newest), None) => write!(f, "; the newest is {newest}"),
            (None, Some(oldest)) => write!(f, "; the oldest is {oldest}"),
            (None, None) => Ok(()),
        }
    }
}

/// A checkpoint in a sentence: its number and its time in the local time zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named {
    cno: Cno,
    created: u64,
}

impl From<CheckpointInfo> for Named {
    fn from(checkpoint: CheckpointInfo) -> Self {
        Self { cno: checkpoint.cno, created: checkpoint.created }
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let created = time_of(self.created).to_zoned(TimeZone::system());
        write!(f, "{} of {}", self.cno, created.strftime("%F %T"))
    }
}

//! What can be asked of the process that serves a mount, and what it answers. Both as JSON, since
//! the two may be of different versions.

use std::path::PathBuf;

use nilfs_engine::{
    CleanerOrder, Cno, Defragmented, DeletedCheckpoints, Ino, ResizeProgress, Status, Usage,
};
use serde::{Deserialize, Serialize};

use crate::administration::Refusal;
use crate::metrics::Metrics;

/// A question or an order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    Status,
    Usage,
    Metrics,
    SetSnapshot {
        cno: Cno,
        snapshot: bool,
    },
    DeleteCheckpoints {
        first: Cno,
        last: Cno,
    },
    Checkpoint {
        anew: bool,
    },
    Cleaner(CleanerOrder),
    /// Reads the cleaner's settings again, from this file instead of the mount's own.
    ReloadSettings {
        file: Option<PathBuf>,
    },
    /// Gets ready for the kernel's mount to become read-only or writable, if the words behind `-o`
    /// ask for nothing else.
    Remount {
        words: Vec<String>,
    },
    Trim {
        from: u64,
        to: u64,
        minimum: u64,
    },
    /// Begins a resize. It can take hours, so it is not waited for.
    StartResize {
        bytes: u64,
    },
    /// How the resize is going that was begun last.
    Resizing,
    Defragment {
        ino: Ino,
        budget: u64,
    },
}

impl Request {
    /// Whether it only looks, and so is for everybody.
    pub fn is_harmless(&self) -> bool {
        matches!(self, Self::Status | Self::Usage | Self::Metrics | Self::Resizing)
    }
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    Status(Box<Status>),
    Usage(Usage),
    Metrics(Box<Metrics>),
    Deleted(DeletedCheckpoints),
    Checkpoint(Cno),
    Trimmed(u64),
    Resizing(Resizing),
    Defragmented(Defragmented),
    /// The settings are in force, but for what was wrong with the file.
    Reloaded {
        warnings: Vec<String>,
    },
    /// There is nothing to be said but that it was done.
    Done,
    Refused(Refusal),
}

/// How a resize is going.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resizing {
    Running(ResizeProgress),
    /// It is over, or there was none.
    Done(ResizeProgress),
    Failed(Refusal),
}

impl Default for Resizing {
    fn default() -> Self {
        Self::Done(ResizeProgress::default())
    }
}

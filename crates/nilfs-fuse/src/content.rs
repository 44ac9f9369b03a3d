//! What is mounted of a volume, and what a mount shows of it.

use std::fmt;
use std::sync::Arc;

use nilfs_engine::{Checkpoints, Files, Filesystem, ReadOnlyVolume};

use crate::control::Handler;
use crate::past::PastSettings;

/// What is mounted.
#[derive(Clone)]
pub struct Content {
    pub(crate) files: Arc<dyn Files>,
    /// What doors to the past show.
    pub(crate) checkpoints: Option<Arc<dyn Checkpoints>>,
    /// What can be changed.
    pub(crate) writer: Option<Arc<Filesystem>>,
    pub(crate) past: Option<PastSettings>,
    /// Changes are durable when they are answered.
    pub(crate) synchronous: bool,
    pub(crate) control: Option<Handler>,
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Content").field("writer", &self.writer).finish_non_exhaustive()
    }
}

impl Content {
    /// Files that nobody can change, and that have no past.
    #[must_use]
    pub fn files(files: Arc<dyn Files>) -> Self {
        Self {
            files,
            checkpoints: None,
            writer: None,
            past: None,
            synchronous: false,
            control: None,
        }
    }

    /// Shows the past of each directory.
    #[must_use]
    pub fn with_past(self, past: Option<PastSettings>) -> Self {
        Self { past, ..self }
    }

    /// Makes each change of names, sizes and other attributes durable before it is answered. What is
    /// written is the kernel's affair, which asks for it with [`KernelOptions::sync`].
    ///
    /// [`KernelOptions::sync`]: crate::KernelOptions::sync
    #[must_use]
    pub fn with_durable_changes(self, synchronous: bool) -> Self {
        Self { synchronous, ..self }
    }

    /// Answers the messages that come through [`crate::ask`]; without it nobody understands them.
    #[must_use]
    pub fn with_control(self, control: Option<Handler>) -> Self {
        Self { control, ..self }
    }
}

impl From<Arc<Filesystem>> for Content {
    fn from(fs: Arc<Filesystem>) -> Self {
        let (checkpoints, writer) = (Some(fs.clone() as _), Some(fs.clone()));
        Self { checkpoints, writer, ..Self::files(fs) }
    }
}

impl From<Arc<ReadOnlyVolume>> for Content {
    fn from(volume: Arc<ReadOnlyVolume>) -> Self {
        Self { checkpoints: Some(volume.clone()), ..Self::files(volume) }
    }
}

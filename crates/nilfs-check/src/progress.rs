//! Telling how far a check has come.

use std::fmt;
use std::sync::Arc;

/// What a check is doing. The steps follow each other in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Reading logs; counted in blocks.
    Logs,
    /// Checking the inodes of the newest checkpoint and their block maps; counted in blocks of inodes.
    Inodes,
    /// Checking the names of the newest checkpoint; counted in directories.
    Names,
    /// Checking the other checkpoints; counted in checkpoints.
    Checkpoints,
}

/// Is called with the step, and with how much of how much of it is done.
#[derive(Clone)]
pub struct Observer(Arc<dyn Fn(Step, u64, u64) + Send + Sync>);

impl Observer {
    /// Calls this, now and then.
    pub fn new(observe: impl Fn(Step, u64, u64) + Send + Sync + 'static) -> Self {
        Self(Arc::new(observe))
    }

    pub(crate) fn observe(&self, step: Step, done: u64, all: u64) {
        (self.0)(step, done, all);
    }
}

impl Default for Observer {
    /// Looks away.
    fn default() -> Self {
        Self::new(|_, _, _| {})
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

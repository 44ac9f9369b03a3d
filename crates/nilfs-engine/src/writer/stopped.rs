//! Whether and why a volume that could be written is not.

use std::fmt;

use super::Writer;
use crate::error::{Error, Result};

/// Reaction to damage of the volume, or to a device that fails to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnError {
    /// Stop writing, go on reading.
    #[default]
    RemountReadOnly,
    /// Go on as far as possible.
    Continue,
    /// End the process at once.
    Panic,
}

/// A reason why nothing is written.
#[derive(Debug)]
pub(crate) enum Stopped {
    Unmounted,
    /// Until it is mounted writable again.
    ReadOnly,
    /// An error, as it was reported.
    Failed(String),
    /// Damage because of which no checkpoint can be made of what was recovered: nothing has changed.
    Unrecovered(String),
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unmounted => "it has been unmounted",
            Self::ReadOnly => "it is mounted read-only",
            Self::Failed(error) | Self::Unrecovered(error) => error,
        })
    }
}

impl Writer {
    /// Whether nothing can be changed for now, or any more because of an error.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.read().is_some()
    }

    /// Whether nothing is written although nothing is wrong.
    pub(crate) fn rests(&self) -> bool {
        matches!(*self.stopped.read(), Some(Stopped::ReadOnly | Stopped::Unmounted))
    }

    /// The error after which nothing was written any more.
    pub(crate) fn failure(&self) -> Option<String> {
        match &*self.stopped.read() {
            Some(Stopped::Failed(reason)) => Some(reason.clone()),
            _ => None,
        }
    }

    /// Damage because of which no checkpoint can be made of what was recovered.
    pub(crate) fn unrecovered(&self) -> Option<String> {
        match &*self.stopped.read() {
            Some(Stopped::Unrecovered(damage)) => Some(damage.clone()),
            _ => None,
        }
    }

    /// Lets nothing be written for this reason, or everything again.
    pub(crate) fn set_stopped(&self, stopped: Option<Stopped>) {
        *self.stopped.write() = stopped;
    }

    /// Fails if nothing is written.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], with the reason.
    pub(crate) fn check_writable(&self) -> Result<()> {
        match &*self.stopped.read() {
            Some(stopped) => Err(Error::ReadOnly { reason: stopped.to_string() }),
            None => Ok(()),
        }
    }

    /// Stops writing because of an error, or does what else the mount option `errors` says.
    pub(crate) fn stop(&self, error: &Error) {
        match self.options.on_error {
            OnError::Continue => tracing::error!("{error}"),
            OnError::Panic => {
                tracing::error!("{error}; ending at once, as errors=panic demands");
                std::process::abort();
            }
            OnError::RemountReadOnly => {
                let mut stopped = self.stopped.write();
                if stopped.is_none() {
                    tracing::error!("{error}; nothing is written any more");
                    *stopped = Some(Stopped::Failed(error.to_string()));
                }
            }
        }
    }

    /// Stops writing because of an error of writing. Here `errors=continue` does not help: what was frozen could
    /// never be committed.
    pub(super) fn stop_for_good(&self, error: &Error) {
        self.stop(error);
        let mut stopped = self.stopped.write();
        if !matches!(*stopped, Some(Stopped::Failed(_))) {
            *stopped = Some(Stopped::Failed(error.to_string()));
        }
    }
}

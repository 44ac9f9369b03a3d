//! What can go wrong while a real kernel works for a test.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::{ParseManifestError, ScriptResult};

/// An error of this crate. A test prints it and fails; nothing is meant to be caught and retried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The machine lacks something that a real kernel needs.
    #[error("no real Linux to test against: {0}")]
    Unavailable(String),

    /// The host refused to read, write or start something.
    #[error("cannot {action} {}: {source}", path.display())]
    Host {
        /// What was tried, as an infinitive: "read", "start".
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why the host refused.
        source: io::Error,
    },

    /// The guest stopped, or was stopped at its time-out, before its script had ended.
    #[error("the guest did not end its script: {reason}; its console said:\n{console}")]
    Unfinished {
        /// "it stopped by itself", or the time-out that passed.
        reason: String,
        /// All that the guest's kernel printed.
        console: String,
    },

    /// The guest ended its script with another status than 0.
    #[error("the guest's script failed\n{0}")]
    ScriptFailed(Box<ScriptResult>),

    /// The guest's kernel complained although the script ended well.
    #[error("the guest's kernel complained:\n{}", .0.join("\n"))]
    Complaints(Vec<String>),

    /// The guest printed something else than a manifest.
    #[error("the guest's manifest is none: {0}")]
    Manifest(#[from] ParseManifestError),

    /// A program on the host ended with another status than 0.
    #[error("`{command}` failed: {stderr}")]
    Program {
        /// The command line.
        command: String,
        /// What it wrote to its standard error.
        stderr: String,
    },
}

/// The result of an operation of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Says on what the host refused `action`: `fs::read(p).map_err(host("read", p))`.
pub(crate) fn host(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Host { action, path, source }
}

/// The text of a file, with a replacement character for what is not UTF-8.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let bytes = fs::read(path).map_err(host("read", path))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

//! Failures that the exit code of the program tells apart.

use std::fmt;

/// The exit codes of a program that has failed, as docs/exit-codes.md has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It was tried and did not work.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// A device, an image or a file is missing or cannot be opened.
    CannotOpen = 4,
    /// Something is in use.
    Busy = 5,
}

/// A failure with the status that the program ends with.
#[derive(Debug)]
pub struct Failure {
    status: Status,
    message: String,
}

impl Failure {
    /// A failure. The message is one sentence that says what failed and what to do.
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// The status that the program ends with.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

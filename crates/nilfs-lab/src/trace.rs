//! What reached a device: its requests, in order, with the times at which they came.

mod format;

pub use format::TraceError;

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Bytes from the device.
    Read,
    /// Bytes to the device.
    Write,
    /// Make everything written before durable.
    Flush,
    /// A range whose content is not needed any more.
    Discard,
}

/// One request to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceRequest {
    /// What it asks for.
    pub kind: Kind,
    /// Where, in bytes; 0 for a flush.
    pub offset: u64,
    /// How much, in bytes; 0 for a flush.
    pub bytes: u64,
    /// When it arrived, since the recording began.
    pub at: Duration,
}

/// A moment between requests that somebody gave a name: "step begins", "step ends".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The number of requests before it.
    pub before: usize,
    /// When, since the recording began.
    pub at: Duration,
    /// Its name.
    pub name: String,
}

/// A recording.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    /// Size of the device in bytes.
    pub device_bytes: u64,
    /// All requests, as they came.
    pub requests: Vec<DeviceRequest>,
    /// The named moments, in order.
    pub marks: Vec<Mark>,
}

impl Trace {
    /// The requests between two marks: the first mark of the one name, and the first of the other
    /// name at or after it.
    #[must_use]
    pub fn phase(&self, from_mark: &str, to_mark: &str) -> Option<&[DeviceRequest]> {
        let from = self.marks.iter().position(|mark| mark.name == from_mark)?;
        let to = self.marks[from..].iter().find(|mark| mark.name == to_mark)?;
        self.requests.get(self.marks[from].before..to.before)
    }

    /// Writes it into a file, which is there whole or not at all.
    ///
    /// # Errors
    /// [`TraceError::File`].
    pub fn save(&self, path: &Path) -> Result<(), TraceError> {
        format::save(self, path)
    }

    /// Reads what [`Trace::save`] has written.
    ///
    /// # Errors
    /// See [`TraceError`]; whatever is in the file, it is an error or a trace that could be.
    pub fn load(path: &Path) -> Result<Self, TraceError> {
        format::load(path)
    }
}

/// A number of requests of one kind, and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// How many.
    pub requests: u64,
    /// How much, in bytes.
    pub bytes: u64,
}

/// What some requests amount to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Reads.
    pub read: Count,
    /// Writes.
    pub written: Count,
    /// Discards.
    pub discarded: Count,
    /// Flushes.
    pub flushes: u64,
    /// Sequences of writes that each began where the one before had ended. The fewer for the same
    /// bytes, the more sequential.
    pub sequential_runs: u64,
}

impl Traffic {
    /// Sums requests up.
    #[must_use]
    pub fn of(requests: &[DeviceRequest]) -> Self {
        let mut traffic = Self::default();
        let mut end = None;
        for request in requests {
            let count = match request.kind {
                Kind::Read => &mut traffic.read,
                Kind::Write => &mut traffic.written,
                Kind::Discard => &mut traffic.discarded,
                Kind::Flush => {
                    traffic.flushes += 1;
                    continue;
                }
            };
            count.requests += 1;
            count.bytes += request.bytes;
            if request.kind == Kind::Write {
                traffic.sequential_runs += u64::from(end != Some(request.offset));
                end = Some(request.offset + request.bytes);
            }
        }
        traffic
    }
}

//! Models of flash devices: how long a request keeps the device busy, and what it wears.
//!
//! A model is a pure function of the requests it has served: the same trace gives the same times
//! to the digit. It knows nothing of files, of content, or of the clock on the wall.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::trace::DeviceRequest;

pub mod card;
mod check;
pub mod disk;
pub mod preset;
mod range;
pub mod ssd;
mod time;
mod wear;

/// A device that takes its time.
pub trait Model: Send {
    /// Serves a request and says how long the device is busy with it. What a device does of itself
    /// while nothing is asked of it happens between the end of the last request and `request.at`.
    fn serve(&mut self, request: &DeviceRequest) -> Duration;

    /// How long it has worked so far on what it had acknowledged before, while nothing was asked of
    /// it. Without that, a slow processor's pauses would make a device with memory for writes look
    /// faster than its flash is.
    fn background(&self) -> Duration {
        Duration::ZERO
    }

    /// What the flash has suffered so far.
    fn wear(&self) -> Wear;

    /// What the device can do at best, if large requests have this many bytes.
    fn limits(&self, request_bytes: u64) -> Limits;
}

/// Serves a request and says how long it takes, and that with what was worked on before it came.
pub(crate) fn serve(model: &mut dyn Model, request: &DeviceRequest) -> (Duration, Duration) {
    let before = model.background();
    let time = model.serve(request);
    (time, time + model.background().saturating_sub(before))
}

/// What flash has suffered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Wear {
    /// Bytes that were asked to be written.
    pub host_bytes: u64,
    /// Bytes that were programmed into flash for it, copies by the device included.
    pub programmed_bytes: u64,
    /// Erases of all erase blocks together.
    pub erases: u64,
    /// Erases of the erase block that had the most.
    pub most_erases: u64,
    /// How many erase blocks there are.
    pub erase_blocks: u64,
    /// Standard deviation of the erases per erase block.
    pub erases_spread: f64,
}

impl Wear {
    /// Bytes programmed for each that was asked to be written; `None` before any was.
    #[must_use]
    pub fn amplification(&self) -> Option<f64> {
        (self.host_bytes > 0).then(|| self.programmed_bytes as f64 / self.host_bytes as f64)
    }
}

/// What a device can do at best, in bytes per second and in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Reading large requests one after the other, bytes per second.
    pub sequential_read: f64,
    /// Writing large requests one after the other, bytes per second.
    pub sequential_write: f64,
    /// A read of 4 KiB anywhere, seconds.
    pub small_read: f64,
    /// A write of 4 KiB right after the one before, seconds.
    pub small_write: f64,
    /// A flush with nothing to do, seconds.
    pub flush: f64,
}

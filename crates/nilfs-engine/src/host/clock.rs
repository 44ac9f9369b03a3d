//! What time it is.

use super::machine;

/// A moment, in seconds and nanoseconds since 1970; seconds can be negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp {
    /// Whole seconds.
    pub seconds: i64,
    /// Nanoseconds after them, below 1 000 000 000.
    pub nanoseconds: u32,
}

/// Where the engine gets the time of day from, which all timestamps on a volume are made of. What
/// only takes its time, such as the commit interval, goes by the machine's own time.
pub trait Clock: Send + Sync {
    /// The present moment.
    fn now(&self) -> Timestamp;
}

/// The clock of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let now = machine::since_1970();
        Timestamp { seconds: now.as_secs() as i64, nanoseconds: now.subsec_nanos() }
    }
}

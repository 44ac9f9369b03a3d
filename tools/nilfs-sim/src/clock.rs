//! A clock that shows what the test says.

use std::cell::Cell;

use nilfs_engine::{Clock, Timestamp};

use crate::threads::thread_local;

thread_local! {
    static NOW: Cell<Timestamp> = const { Cell::new(EPOCH) };
}

/// The time before anything happens.
pub const EPOCH: Timestamp = Timestamp { seconds: 1_800_000_000, nanoseconds: 0 };

/// A clock that each thread sets for itself, so that concurrent worlds know their times too.
#[derive(Debug, Clone, Copy, Default)]
pub struct ThreadClock;

impl ThreadClock {
    /// Sets the time of the calling thread.
    pub fn set(now: Timestamp) {
        NOW.with(|it| it.set(now));
    }

    /// The time at which step number `step` of a world happens: different for each.
    #[must_use]
    pub fn at_step(step: u64) -> Timestamp {
        Timestamp {
            seconds: EPOCH.seconds + step as i64,
            nanoseconds: (step * 7_654_321 % 1_000_000_000) as u32,
        }
    }
}

impl Clock for ThreadClock {
    fn now(&self) -> Timestamp {
        NOW.with(Cell::get)
    }
}

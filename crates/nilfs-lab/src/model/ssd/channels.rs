//! Channels: flash that works at the same time, each on one page after the other.

use std::time::Duration;

/// When each channel will have done what it was given.
#[derive(Debug)]
pub(super) struct Channels {
    free_at: Vec<Duration>,
    next: usize,
}

impl Channels {
    pub(super) fn new(count: u32) -> Self {
        Self { free_at: vec![Duration::ZERO; count as usize], next: 0 }
    }

    /// Gives pages to the channels in turn; when the last one is done.
    pub(super) fn pages(&mut self, from: Duration, pages: u64, each: Duration) -> Duration {
        let mut end = from;
        for _ in 0..pages {
            let free_at = &mut self.free_at[self.next];
            *free_at = (*free_at).max(from) + each;
            end = end.max(*free_at);
            self.next = (self.next + 1) % self.free_at.len();
        }
        end
    }

    /// Gives all channels the same to do.
    pub(super) fn all(&mut self, from: Duration, time: Duration) {
        for free_at in &mut self.free_at {
            *free_at = (*free_at).max(from) + time;
        }
    }

    /// Makes all wait that have something to do: a read goes before.
    pub(super) fn delay(&mut self, now: Duration, time: Duration) {
        for free_at in self.free_at.iter_mut().filter(|free_at| **free_at > now) {
            *free_at += time;
        }
    }

    /// When all of them have nothing to do.
    pub(super) fn latest(&self) -> Duration {
        self.free_at.iter().max().copied().unwrap_or_default()
    }

    /// When the first of them has nothing to do.
    pub(super) fn earliest(&self) -> Duration {
        self.free_at.iter().min().copied().unwrap_or_default()
    }
}

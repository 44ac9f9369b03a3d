//! The write buffer: units that wait to be programmed, and those that are just being.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use super::super::range::Covered;

/// Memory between the host and the flash.
#[derive(Debug)]
pub(super) struct Buffer {
    unit_bytes: u64,
    capacity: u64,
    /// The units that wait, the oldest first.
    order: VecDeque<u32>,
    waiting: HashMap<u32, Covered>,
    /// Pages being programmed: until when, and how many bytes.
    leaving: VecDeque<(Duration, u64)>,
    leaving_bytes: u64,
}

impl Buffer {
    pub(super) fn new(unit_bytes: u64, capacity: u64) -> Self {
        Self {
            unit_bytes,
            capacity,
            order: VecDeque::new(),
            waiting: HashMap::new(),
            leaving: VecDeque::new(),
            leaving_bytes: 0,
        }
    }

    pub(super) fn holds(&self, unit: u32) -> bool {
        self.waiting.contains_key(&unit)
    }

    /// Adds a part of a unit.
    pub(super) fn add(&mut self, unit: u32, part: Range<u64>) {
        let order = &mut self.order;
        let covered = self.waiting.entry(unit).or_insert_with(|| {
            order.push_back(unit);
            Covered::default()
        });
        covered.add(part);
    }

    /// Drops a unit.
    pub(super) fn forget(&mut self, unit: u32) {
        if self.waiting.remove(&unit).is_some() {
            self.order.retain(|&other| other != unit);
        }
    }

    /// Takes the unit that has waited for longest.
    pub(super) fn oldest(&mut self) -> Option<(u32, Covered)> {
        let unit = self.order.pop_front()?;
        Some((unit, self.waiting.remove(&unit).unwrap_or_default()))
    }

    /// Half of the memory is for waiting, the rest for what is being programmed.
    pub(super) fn is_half_full(&self) -> bool {
        self.order.len() as u64 * self.unit_bytes * 2 > self.capacity
    }

    /// Remembers that `bytes` bytes are being programmed, until the time `until`.
    pub(super) fn leaves(&mut self, until: Duration, bytes: u64) {
        self.leaving.push_back((until, bytes));
        self.leaving_bytes += bytes;
    }

    /// When what waits and what is being programmed will fit, from now on.
    pub(super) fn fits_at(&mut self, now: Duration) -> Duration {
        let mut then = now;
        let waiting = self.order.len() as u64 * self.unit_bytes;
        while let Some(&(until, bytes)) = self.leaving.front() {
            if until > now && self.leaving_bytes + waiting <= self.capacity {
                break;
            }
            then = then.max(until);
            self.leaving_bytes -= bytes;
            self.leaving.pop_front();
        }
        then
    }

    /// When all that is being programmed is done.
    pub(super) fn empty_at(&mut self, now: Duration) -> Duration {
        self.leaving_bytes = 0;
        self.leaving.drain(..).map(|(until, _)| until).fold(now, Duration::max)
    }
}

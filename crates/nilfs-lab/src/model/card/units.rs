//! Allocation units: which are open, what was written to them since, and what it costs to close
//! one. Counts pages; knows nothing of time.
//!
//! An open unit is written to a fresh erase block, while its old one stays. Closing it brings both
//! together: nothing is left to do if everything was written anew; otherwise the pages that still
//! are in the old block are copied after that.

use super::pages::Pages;
use super::pool::Pool;
use super::{Card, Writing};

/// All units of a card.
#[derive(Debug)]
pub(super) struct Units {
    writing: Writing,
    pages_per_unit: u64,
    /// Pages that the fresh block of an open unit can take.
    pages_per_log: u64,
    most_open: usize,
    /// Pages that hold something.
    valid: Pages,
    /// The one that was written last is last.
    open: Vec<Open>,
    pool: Pool,
}

/// An open unit.
#[derive(Debug)]
struct Open {
    unit: u64,
    /// Pages of the unit that are in the fresh block.
    fresh: Pages,
    /// Random writing: how many pages of the fresh block are programmed.
    used: u64,
    /// Linear writing: the page after the last one written.
    next: u64,
}

impl Units {
    pub(super) fn new(card: &Card, device_bytes: u64) -> Self {
        let pages_per_unit = card.unit_bytes / card.page_bytes;
        let units = device_bytes.div_ceil(card.unit_bytes);
        // A card's reserve is a few percent, and at least what can be open at once.
        let spare = units / 64 + u64::from(card.open_units) + 1;
        Self {
            writing: card.writing,
            pages_per_unit,
            pages_per_log: pages_per_unit + card.log_spare_bytes / card.page_bytes,
            most_open: card.open_units as usize,
            valid: Pages::new(units * pages_per_unit, card.used),
            open: Vec::new(),
            pool: Pool::new(units as u32, spare as u32),
        }
    }

    pub(super) fn erases(&self) -> &[u32] {
        self.pool.erases()
    }

    /// Whether a page holds something.
    pub(super) fn is_valid(&self, page: u64) -> bool {
        self.valid.has(page)
    }

    /// Forgets a page.
    pub(super) fn discard(&mut self, page: u64) {
        self.valid.clear(page);
    }

    /// Counts an erase of a unit for which nothing is copied.
    pub(super) fn renew(&mut self, unit: u64) {
        self.pool.renew(unit as u32);
    }

    /// Writes a page, and says how many others had to be copied for it.
    pub(super) fn write(&mut self, page: u64) -> u64 {
        let (unit, page_in_unit) = (page / self.pages_per_unit, page % self.pages_per_unit);
        let mut copied = self.most_recent(unit);
        copied += match self.writing {
            Writing::Random => self.make_room(unit),
            Writing::Linear => self.make_linear(unit, page_in_unit),
        };
        if let Some(open) = self.open.last_mut() {
            open.used += 1;
            open.next = page_in_unit + 1;
            open.fresh.set(page_in_unit);
        }
        self.valid.set(page);
        copied
    }

    /// Makes a unit the last of the open ones; closes the one that was not written for longest if
    /// there are too many. The pages copied for that.
    fn most_recent(&mut self, unit: u64) -> u64 {
        if let Some(at) = self.open.iter().position(|open| open.unit == unit) {
            self.open[at..].rotate_left(1);
            return 0;
        }
        let copied = if self.open.len() < self.most_open { 0 } else { self.close(0) };
        self.reopen(unit);
        copied
    }

    fn reopen(&mut self, unit: u64) {
        self.pool.renew(unit as u32);
        let fresh = Pages::new(self.pages_per_unit, false);
        self.open.push(Open { unit, fresh, used: 0, next: 0 });
    }

    /// The fresh block of the last open unit may be full: then it is closed and opened again.
    fn make_room(&mut self, unit: u64) -> u64 {
        if self.open.last().is_some_and(|open| open.used < self.pages_per_log) {
            return 0;
        }
        let copied = self.close(self.open.len() - 1);
        self.reopen(unit);
        copied
    }

    /// Pages can be programmed in ascending order only: those left out are copied, and going back
    /// closes the unit. The last page can be written once more, as when a file grows.
    fn make_linear(&mut self, unit: u64, page: u64) -> u64 {
        let mut copied = 0;
        let mut next = self.open.last().map_or(0, |open| open.next);
        if page + 1 < next {
            copied += self.close(self.open.len() - 1);
            self.reopen(unit);
            next = 0;
        }
        copied + self.count_valid(unit, next.min(page)..page)
    }

    fn count_valid(&self, unit: u64, pages: std::ops::Range<u64>) -> u64 {
        let base = unit * self.pages_per_unit;
        self.valid.count(base + pages.start..base + pages.end)
    }

    /// Closes an open unit: the pages copied for that.
    fn close(&mut self, at: usize) -> u64 {
        let open = self.open.remove(at);
        match self.writing {
            Writing::Linear => self.count_valid(open.unit, open.next..self.pages_per_unit),
            Writing::Random => self.merge(&open),
        }
    }

    /// What is left in the old block goes after the log, if there is room; else log and old block
    /// are copied into a third.
    fn merge(&mut self, open: &Open) -> u64 {
        let base = open.unit * self.pages_per_unit;
        let left = (0..self.pages_per_unit)
            .filter(|&page| self.valid.has(base + page) && !open.fresh.has(page))
            .count() as u64;
        if open.used + left <= self.pages_per_log {
            return left;
        }
        self.pool.renew(open.unit as u32);
        self.count_valid(open.unit, 0..self.pages_per_unit)
    }
}

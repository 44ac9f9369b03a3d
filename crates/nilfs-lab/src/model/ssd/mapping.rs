//! The translation layer: where each unit of the device's addresses is in flash, and the greedy
//! collection that makes erased blocks of stale ones. Counts pages and erases; knows nothing of
//! time.
//!
//! Erase blocks of all channels that have the same number are filled, collected and erased
//! together, as one *stripe*. There is one place where writing goes on, for what is new and for
//! what is moved.

use std::collections::VecDeque;
use std::ops::AddAssign;

use super::Ssd;

/// No unit, or no slot.
const NONE: u32 = u32::MAX;
/// The collector keeps one stripe erased to move into, and one more is being asked for.
const FEWEST_FREE: usize = 2;
/// What is spare at least: the stripe that is being filled, and those that stay erased.
pub(super) const LEAST_SPARE: u64 = 3;

/// What flash had to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Work {
    /// Pages read to move them.
    pub(super) read: u64,
    /// Pages programmed.
    pub(super) programmed: u64,
    /// Stripes erased.
    pub(super) erased: u64,
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Self) {
        self.read += other.read;
        self.programmed += other.programmed;
        self.erased += other.erased;
    }
}

/// The state of the flash.
#[derive(Debug)]
pub(super) struct Mapping {
    /// A unit has this many pages, or a page this many units: one of both is 1.
    pages_per_unit: u64,
    units_per_page: u32,
    slots_per_stripe: u32,
    /// The slot of each unit.
    slots: Vec<u32>,
    /// The unit in each slot.
    units: Vec<u32>,
    /// How many slots of each stripe hold something needed.
    valid: Vec<u32>,
    erases: Vec<u32>,
    /// Erased stripes; also those with nothing valid that will be erased when they are used.
    free: VecDeque<u32>,
    is_free: Vec<bool>,
    /// Where writing goes on.
    stripe: u32,
    cursor: u32,
}

impl Mapping {
    pub(super) fn new(ssd: &Ssd, device_bytes: u64) -> Self {
        let units = device_bytes.div_ceil(ssd.mapping_bytes);
        let per_stripe = ssd.stripe_bytes() / ssd.mapping_bytes;
        let stripes = ssd.stripes(device_bytes);
        let mut is_free = vec![true; stripes as usize];
        is_free[0] = false;
        Self {
            pages_per_unit: (ssd.mapping_bytes / ssd.page_bytes).max(1),
            units_per_page: (ssd.page_bytes / ssd.mapping_bytes).max(1) as u32,
            slots_per_stripe: per_stripe as u32,
            slots: vec![NONE; units as usize],
            units: vec![NONE; (stripes * per_stripe) as usize],
            valid: vec![0; stripes as usize],
            erases: vec![0; stripes as usize],
            free: (1..stripes as u32).collect(),
            is_free,
            stripe: 0,
            cursor: 0,
        }
    }

    /// Writes this share of all units in an order without any, and each of them once more if what
    /// is stale was not collected meanwhile: as years of use would.
    pub(super) fn use_up(&mut self, percent: u8, until_balance: bool) {
        let units = self.slots.len() as u32;
        let mut order: Vec<u32> = (0..units).collect();
        let mut random = Random::default();
        random.shuffle(&mut order);
        order.truncate((u64::from(units) * u64::from(percent) / 100) as usize);
        for &unit in &order {
            self.write(unit);
        }
        if until_balance {
            for _ in 0..order.len() {
                self.write(order[random.below(order.len())]);
            }
        }
        self.erases.fill(0);
    }

    pub(super) fn erases(&self) -> &[u32] {
        &self.erases
    }

    pub(super) fn is_mapped(&self, unit: u32) -> bool {
        self.slots[unit as usize] != NONE
    }

    /// Writes a unit, after collecting if there is too little room.
    pub(super) fn write(&mut self, unit: u32) -> Work {
        let mut work = Work::default();
        while self.free.len() < FEWEST_FREE {
            let Some(collected) = self.collect() else { break };
            work += collected;
        }
        self.forget(unit);
        work += self.place(unit);
        work
    }

    /// Forgets a unit's content.
    pub(super) fn forget(&mut self, unit: u32) {
        let slot = std::mem::replace(&mut self.slots[unit as usize], NONE);
        if slot != NONE {
            self.units[slot as usize] = NONE;
            self.valid[(slot / self.slots_per_stripe) as usize] -= 1;
        }
    }

    /// Programs the page that is not full yet.
    pub(super) fn pad(&mut self) -> Work {
        let mut work = Work::default();
        if !self.cursor.is_multiple_of(self.units_per_page) {
            self.cursor = self.cursor.next_multiple_of(self.units_per_page);
            work.programmed = 1;
        }
        work
    }

    /// Whether fewer stripes than this share of all are free.
    pub(super) fn is_short_of(&self, percent: u8) -> bool {
        self.free.len() * 100 < self.valid.len() * usize::from(percent)
    }

    /// Empties the stripe with the least in it. `None` if that would gain nothing.
    pub(super) fn collect(&mut self) -> Option<Work> {
        let victim = (0..self.valid.len() as u32)
            .filter(|&stripe| stripe != self.stripe && !self.is_free[stripe as usize])
            .min_by_key(|&stripe| self.valid[stripe as usize])?;
        let valid = self.valid[victim as usize];
        if valid == self.slots_per_stripe {
            return None;
        }
        let mut work = Work { read: self.pages_of(valid), ..Work::default() };
        let first = (victim * self.slots_per_stripe) as usize;
        for slot in first..first + self.slots_per_stripe as usize {
            let unit = self.units[slot];
            if unit != NONE {
                self.forget(unit);
                work += self.place(unit);
            }
        }
        self.free.push_back(victim);
        self.is_free[victim as usize] = true;
        Some(work)
    }

    fn pages_of(&self, units: u32) -> u64 {
        u64::from(units.div_ceil(self.units_per_page)) * self.pages_per_unit
    }

    /// Puts a unit into the next slot.
    fn place(&mut self, unit: u32) -> Work {
        let mut work = Work::default();
        if self.cursor == self.slots_per_stripe {
            self.next_stripe();
        }
        if self.cursor == 0 {
            self.erases[self.stripe as usize] += 1;
            work.erased = 1;
        }
        let slot = self.stripe * self.slots_per_stripe + self.cursor;
        self.slots[unit as usize] = slot;
        self.units[slot as usize] = unit;
        self.valid[self.stripe as usize] += 1;
        self.cursor += 1;
        if self.cursor.is_multiple_of(self.units_per_page) {
            work.programmed = self.pages_per_unit;
        }
        work
    }

    fn next_stripe(&mut self) {
        // There always is one: collecting begins while one is left to move into, and the spare
        // stripes hold so much that is stale that it gains.
        let next = self.free.pop_front().expect("a free stripe is always left");
        self.is_free[next as usize] = false;
        self.stripe = next;
        self.cursor = 0;
    }
}

/// A small generator, which gives the same numbers everywhere.
struct Random(u64);

impl Default for Random {
    fn default() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }
}

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }

    /// Fisher and Yates.
    fn shuffle(&mut self, order: &mut [u32]) {
        for last in (1..order.len()).rev() {
            order.swap(last, self.below(last + 1));
        }
    }
}

//! Erase blocks behind the allocation units. A unit gets another one whenever it is opened, and
//! those that became free wait in a queue, so that wear spreads over what is being written.

use std::collections::VecDeque;

/// The erase blocks of a card.
#[derive(Debug)]
pub(super) struct Pool {
    /// Which block holds a unit.
    holds: Vec<u32>,
    free: VecDeque<u32>,
    erases: Vec<u32>,
}

impl Pool {
    /// A block for each unit, and some to spare.
    pub(super) fn new(units: u32, spare: u32) -> Self {
        Self {
            holds: (0..units).collect(),
            free: (units..units + spare).collect(),
            erases: vec![0; (units + spare) as usize],
        }
    }

    /// Erases a free block for a unit; its old one becomes free.
    pub(super) fn renew(&mut self, unit: u32) {
        let old = self.holds[unit as usize];
        self.free.push_back(old);
        let new = self.free.pop_front().unwrap_or(old);
        self.holds[unit as usize] = new;
        self.erases[new as usize] += 1;
    }

    pub(super) fn erases(&self) -> &[u32] {
        &self.erases
    }
}

//! Requests to the cleaner of a mounted volume.

use super::Filesystem;
use crate::cleaner::Cleaning;
use crate::cleaner::options::{CleanerOrder, ManualRun};
use crate::error::Result;
use crate::writer::space::Cost;

impl Filesystem {
    /// The cleaner at work on this volume.
    pub(super) fn cleaning(&self) -> Cleaning<'_> {
        self.cleaner.on(self.writing())
    }

    /// The life of the cleaner's thread.
    pub(super) fn run_cleaner(&self) {
        self.cleaning().run();
    }

    /// Lets the cleaner find out what could be reclaimed, unless that is known or being found out.
    pub(super) fn look_for_reclaimable(&self) {
        let is_known = self.writer.space.knows_unused() && !self.cleaning().needs_less();
        if !is_known && self.cleaner.options().enabled {
            self.cleaner.ask_reclaimable();
        }
    }

    /// Lets the cleaner make room for somebody who found none for `cost`. Returns whether it is
    /// worth trying again. `thorough`: everything is tried, also what costs a lot, and giving up
    /// checkpoints that are protected.
    pub(super) fn make_room(&self, cost: Cost, thorough: bool) -> Result<bool> {
        self.cleaning().make_room(cost, thorough)
    }

    /// Cleans until nothing more can be reclaimed. Returns the number of segments that became
    /// clean.
    ///
    /// # Errors
    /// The volume cannot be written, damage, a device error.
    pub fn clean(&self, run: &ManualRun) -> Result<u64> {
        self.cleaning().clean(run)
    }

    /// Gives the cleaner an order. Returns at once.
    ///
    /// # Errors
    /// The volume cannot be written.
    pub fn order_cleaner(&self, order: CleanerOrder) -> Result<()> {
        self.check_writable()?;
        self.cleaner.obey(order);
        if matches!(order, CleanerOrder::Configure(_)) {
            // More or less may be kept from now on.
            let session = self.writing().lock();
            self.cleaning().count_needed();
            session.refresh();
        }
        Ok(())
    }
}

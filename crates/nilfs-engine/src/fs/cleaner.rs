//! The mounted volume as its cleaner sees it, and what others ask of the cleaner.

use std::ops::Range;

use nilfs_ondisk::Cno;

use super::Filesystem;
use super::space::{Cost, Space};
use crate::cleaner::options::{CleanerOrder, ManualRun};
use crate::cleaner::{Cleaning, Mounted};
use crate::commit::{MetadataChanges, MetadataOutcome};
use crate::error::Result;
use crate::host::atomic::Ordering;
use crate::host::{Mutex, MutexGuard};
use crate::log::segment_writer::SegmentWriter;
use crate::store::Store;

impl Mounted for Filesystem {
    fn store(&self) -> &Store {
        &self.store
    }

    fn space(&self) -> &Space {
        &self.space
    }

    fn seconds(&self) -> u64 {
        self.now().seconds as u64
    }

    fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    fn dirty_limit(&self) -> u64 {
        self.options.dirty_limit
    }

    fn barrier(&self) -> bool {
        self.options.barrier
    }

    fn kept_checkpoints(&self) -> Vec<Cno> {
        self.trees.kept()
    }

    fn give_up(&self, checkpoints: &[Range<Cno>]) -> bool {
        self.trees.give_up(checkpoints)
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only()
    }

    fn log(&self) -> &Mutex<SegmentWriter> {
        &self.log
    }

    fn writable_log(&self) -> Result<MutexGuard<'_, SegmentWriter>> {
        self.writable_log()
    }

    fn write_ahead(&self) -> Result<MutexGuard<'_, SegmentWriter>> {
        self.write_ahead()
    }

    fn write_ahead_of_metadata(&self) -> Result<MutexGuard<'_, SegmentWriter>> {
        self.write_ahead_of_metadata()
    }

    fn commit(&self) -> Result<Cno> {
        self.commit()
    }

    fn commit_locked(
        &self,
        log: &mut SegmentWriter,
        changes: &MetadataChanges,
    ) -> Result<MetadataOutcome> {
        self.commit_locked(log, changes)
    }

    fn commit_metadata(
        &self,
        log: &mut SegmentWriter,
        changes: &MetadataChanges,
    ) -> Result<MetadataOutcome> {
        self.commit_metadata(log, changes)
    }

    fn flush_locked(&self, log: &mut SegmentWriter) -> Result<()> {
        self.flush_locked(log)
    }

    fn write_superblocks(&self, log: &mut SegmentWriter) -> Result<()> {
        self.write_superblocks(log)
    }

    fn or_stop(&self, log: &mut SegmentWriter, result: Result<()>) -> Result<()> {
        self.or_stop(log, result)
    }

    fn release_freed(&self, log: &mut SegmentWriter) {
        self.release_freed(log);
    }

    fn refresh_space(&self, log: &SegmentWriter) {
        self.refresh_space(log);
    }
}

impl Filesystem {
    /// The cleaner at work on this volume.
    pub(super) fn cleaning(&self) -> Cleaning<'_> {
        self.cleaner.on(self)
    }

    /// The life of the cleaner's thread.
    pub(super) fn run_cleaner(&self) {
        self.cleaning().run();
    }

    /// Lets the cleaner find out what could be reclaimed, unless that is known or being found out.
    pub(super) fn look_for_reclaimable(&self) {
        let is_known = self.space.knows_unused() && !self.cleaning().needs_less();
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
            let log = self.log.lock();
            self.cleaning().count_needed();
            self.refresh_space(&log);
        }
        Ok(())
    }
}

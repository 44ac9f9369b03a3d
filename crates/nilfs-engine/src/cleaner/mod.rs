//! The cleaner: taking space back (docs/format.md §22). Live blocks are moved out of victims, then
//! a checkpoint names their new places and frees the victims.
//!
//! Moved blocks do not go into the chain of logs. They fill segments of their own next to it, which
//! no recovery looks at: so what is cold stays apart from what is fresh, the log is locked only
//! for the small commit at the end, and whatever is interrupted leaves only clean segments.
//!
//! # What may be written before what
//!
//! 1. The moved blocks, then a flush: no checkpoint may name blocks that are not durable.
//! 2. The checkpoint that names them, then a flush: until then a recovery would look for them in
//!    the victims.
//! 3. The victims can be written again when nobody holds a view from before the checkpoint.
//!
//! # What it knows
//!
//! The cleaner has its state and its locks here. It knows nothing of files, names and inodes in
//! memory: of the mounted volume it sees what [`Mounted`] says, above all the owner of the log.

pub(crate) mod live_blocks;
pub(crate) mod moving;
pub mod options;
mod past;
pub(crate) mod policy;
pub(crate) mod protection;
pub(crate) mod schedule;
pub(crate) mod segment_table;
pub(crate) mod space_usage;
mod step;
pub(crate) mod victim;

use std::collections::BTreeMap;
use std::ops::Range;

use nilfs_ondisk::{Cno, Geometry, SegNum};

use self::live_blocks::Tracking;
use self::options::{CleanerOptions, CleanerTotals};
use self::protection::Protection;
use self::schedule::Control;
pub(crate) use self::step::Evacuated;
use self::step::StepState;
use crate::commit::{Effects, MetadataChanges, MetadataOutcome};
use crate::error::Result;
use crate::fs::space::{Needed, Space};
use crate::host::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::host::{Condvar, Mutex, MutexGuard, Rank};
use crate::log::segment_writer::SegmentWriter;
use crate::store::Store;

/// What the cleaner sees of the mounted volume.
pub(crate) trait Mounted {
    fn store(&self) -> &Store;

    fn space(&self) -> &Space;

    /// The time (s since 1970).
    fn seconds(&self) -> u64;

    /// Changes that programs have made so far: tells whether the volume is idle.
    fn changes(&self) -> u64;

    /// How often programs have asked for durability.
    fn syncs(&self) -> u64;

    /// Bytes of changes that programs may have in memory. A step of the cleaner takes no more.
    fn dirty_limit(&self) -> u64;

    /// Whether the device is told to make durable what was written.
    fn barrier(&self) -> bool;

    /// Checkpoints that somebody looks at or is about to make snapshots of.
    fn kept_checkpoints(&self) -> Vec<Cno>;

    /// From now on, nobody can look at these checkpoints, and at others again. False if somebody is
    /// looking at one of them.
    fn give_up(&self, checkpoints: &[Range<Cno>]) -> bool;

    fn is_read_only(&self) -> bool;

    /// The log, whether it can be written or not.
    fn log(&self) -> &Mutex<SegmentWriter>;

    /// The log, if it can be written.
    fn writable_log(&self) -> Result<MutexGuard<'_, SegmentWriter>>;

    /// The log, if it can be written, for a checkpoint of everything. Those who sync files need not wait
    /// for the data of others.
    fn write_ahead(&self) -> Result<MutexGuard<'_, SegmentWriter>>;

    /// The log, if it can be written, for changes of metadata. Those who sync files need not wait for
    /// what a checkpoint would have to write with them.
    fn write_ahead_of_metadata(&self) -> Result<MutexGuard<'_, SegmentWriter>>;

    /// Makes a checkpoint of what programs have changed, if they have changed anything.
    fn commit(&self) -> Result<Cno>;

    /// Makes a checkpoint of changes of metadata and of everything that programs have changed.
    fn commit_locked(
        &self,
        log: &mut SegmentWriter,
        changes: &MetadataChanges,
    ) -> Result<MetadataOutcome>;

    /// Makes a checkpoint of changes of metadata, of no more than that if it can be.
    fn commit_metadata(
        &self,
        log: &mut SegmentWriter,
        changes: &MetadataChanges,
    ) -> Result<MetadataOutcome>;

    /// Makes everything durable that is in the log.
    fn flush_locked(&self, log: &mut SegmentWriter) -> Result<()>;

    /// Lets both superblocks name the newest checkpoint, which must be durable.
    fn write_superblocks(&self, log: &mut SegmentWriter) -> Result<()>;

    /// Passes on the result of writing; after an error nothing is written any more.
    fn or_stop(&self, log: &mut SegmentWriter, result: Result<()>) -> Result<()>;

    /// Lets the log have freed segments, as far as nobody in this process can be reading there.
    fn release_freed(&self, log: &mut SegmentWriter);

    /// Takes over what the log has room for.
    fn refresh_space(&self, log: &SegmentWriter);
}

/// The state of the cleaner of a mounted volume.
#[derive(Debug)]
pub(crate) struct Cleaner {
    work: Mutex<StepState>,
    control: Mutex<Control>,
    condition: Condvar,
    totals: Mutex<CleanerTotals>,
    gathering: Mutex<()>,
    live_blocks: Mutex<Tracking>,
    /// The last step was not done, because another process was reading.
    held_up: AtomicBool,
    /// When somebody was last told that history has become shorter than was promised (s).
    warned: AtomicU64,
}

/// Seconds in which nobody is told again that history is short.
const WARNING_INTERVAL: u64 = 3600;

/// The cleaner together with the volume that it cleans.
#[derive(Clone, Copy)]
pub(crate) struct Cleaning<'a> {
    cleaner: &'a Cleaner,
    volume: &'a dyn Mounted,
    store: &'a Store,
}

/// No step of the cleaner is under way, or begins.
pub(crate) struct Paused<'a> {
    _work: MutexGuard<'a, StepState>,
}

impl Cleaner {
    pub(crate) fn new(options: CleanerOptions) -> Self {
        Self {
            work: Mutex::new(Rank::CleanerStep, StepState::default()),
            control: Mutex::new(Rank::CleanerControl, Control::new(options)),
            condition: Condvar::default(),
            totals: Mutex::new(Rank::CleanerTotals, CleanerTotals::default()),
            gathering: Mutex::new(Rank::CleanerGathering, ()),
            live_blocks: Mutex::new(Rank::LiveBlocks, Tracking::default()),
            held_up: AtomicBool::new(false),
            warned: AtomicU64::new(0),
        }
    }

    /// Says that checkpoints are given up although they are protected, unless that was said lately.
    /// `left` is the age of the oldest that is kept (s), if any is.
    fn warn_of_short_history(&self, left: Option<u64>, now: u64) {
        let last = self.warned.load(Ordering::Relaxed);
        if last != 0 && now.abs_diff(last) < WARNING_INTERVAL {
            return;
        }
        self.warned.store(now, Ordering::Relaxed);
        let period = self.options().protection.as_secs();
        let left = left.unwrap_or_default();
        tracing::warn!(
            "the volume is full, so checkpoints are given up inside the protection period: all of \
             them are there for the last {left} s only, instead of {period} s"
        );
    }

    /// The cleaner at work on its volume.
    pub(crate) fn on<'a>(&'a self, volume: &'a dyn Mounted) -> Cleaning<'a> {
        Cleaning { cleaner: self, volume, store: volume.store() }
    }

    pub(crate) fn totals(&self) -> CleanerTotals {
        *self.totals.lock()
    }

    fn count(&self, change: impl FnOnce(&mut CleanerTotals)) {
        change(&mut self.totals.lock());
    }

    /// Waits for the step that is under way, and keeps the next one from beginning.
    pub(crate) fn pause(&self) -> Paused<'_> {
        Paused { _work: self.work.lock() }
    }

    /// What is known of the blocks.
    pub(crate) fn live_blocks(&self) -> MutexGuard<'_, Tracking> {
        self.live_blocks.lock()
    }

    /// Takes note of a commit; called by the thread that has the log.
    pub(crate) fn follow(&self, effects: &Effects, changes: &MetadataChanges, time: u64) {
        self.live_blocks().follow(effects, changes, time);
    }

    /// Returns what must be kept when there is no room; `None` if that is not known.
    pub(crate) fn needed_blocks(&self) -> Option<Needed> {
        self.live_blocks().ready().map(|known| known.needed())
    }

    /// Live blocks, of any checkpoint, in the segments from `first` on; `None` if that is not
    /// known.
    pub(crate) fn live_blocks_from(&self, first: SegNum, geometry: &Geometry) -> Option<u64> {
        let mut state = self.live_blocks();
        let table = &state.ready()?.table;
        let everything = Protection::of_everything();
        let segments = (first.0..geometry.nsegments).map(SegNum);
        Some(segments.map(|segment| table.live(segment, &everything)).sum())
    }

    /// The volume has another size.
    pub(crate) fn resized(&self, geometry: &Geometry) {
        if let Some(known) = self.live_blocks().ready() {
            known.table.resize(geometry);
        }
    }

    /// Lets the cleaner take a new segment for moved blocks, if its own, or the one that its logs
    /// name as the next, is `end` or comes after.
    pub(crate) fn leave_segments_from(&self, end: SegNum) {
        self.work.lock().leave_segments_from(end);
    }

    /// Segments that are damaged and left alone, and what is damaged.
    pub(crate) fn skipped(&self) -> BTreeMap<SegNum, String> {
        self.work.lock().skipped().clone()
    }
}

#[cfg(test)]
mod tests;

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
//! memory: of the mounted volume it sees no more than the writer.

pub(crate) mod live_blocks;
pub(crate) mod moving;
pub mod options;
mod past;
pub(crate) mod policy;
pub(crate) mod schedule;
pub(crate) mod segment_table;
pub(crate) mod space_usage;
mod step;

use std::collections::BTreeMap;

use nilfs_ondisk::{Geometry, SegNum};

use self::live_blocks::Tracking;
use self::options::{CleanerOptions, CleanerTotals};
use self::schedule::Control;
pub(crate) use self::step::Evacuated;
use self::step::StepState;
use crate::commit::{Effects, MetadataChanges};
use crate::host::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::host::{Condvar, Mutex, MutexGuard, Rank};
use crate::protection::Protection;
use crate::store::Store;
use crate::writer::space::Needed;
use crate::writer::{Cleaned, Writing};

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
    writing: Writing<'a>,
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
    pub(crate) fn on<'a>(&'a self, writing: Writing<'a>) -> Cleaning<'a> {
        Cleaning { cleaner: self, writing, store: writing.store() }
    }

    pub(crate) fn totals(&self) -> CleanerTotals {
        *self.totals.lock()
    }

    /// Returns the work of the cleaner since the mount, as far as the writer counts it.
    pub(crate) fn cleaned(&self) -> Cleaned {
        let CleanerTotals { blocks_written, segments_freed, .. } = self.totals();
        Cleaned { blocks_written, segments_freed }
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

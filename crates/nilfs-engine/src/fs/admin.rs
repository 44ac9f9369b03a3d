//! What an administrator asks of a mounted volume: checkpoints and snapshots, the cleaner, space.

use std::ops::{ControlFlow, RangeInclusive};
use std::time::Duration;

use nilfs_ondisk::lifetime::Lifetime;
use nilfs_ondisk::{BlockNr, Cno, SegNum};
use serde::{Deserialize, Serialize};

use super::space::{self, Cost, Effect};
use super::{Filesystem, Stopped};
use crate::checkpoints;
use crate::cleaner::live_blocks::LiveBlocks;
use crate::cleaner::options::{CleanerState, Loss, SnapshotUsage, Status, Usage};
use crate::cleaner::protection::Protection;
use crate::cleaner::segment_table::SegmentTable;
use crate::commit::{MetadataChanges, root_of};
use crate::error::{Error, Result};
use crate::host::Mutex;
use crate::host::atomic::Ordering;
use crate::log::segment_writer::SegmentWriter;
use crate::tree::{Kept, Tree};
use crate::volume::CheckpointInfo;

/// As many changed inodes cost at least what changes of metadata cost: blocks of the cpfile and
/// their like.
const METADATA_CHANGE_INODES: u64 = 2;

/// How often what must be known is gathered in vain.
const ATTEMPTS: u32 = 3;

/// What became of a request to delete checkpoints.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeletedCheckpoints {
    /// Number of checkpoints that are gone.
    pub deleted: u64,
    /// Snapshots in the range; they stay.
    pub snapshots: Vec<Cno>,
}

/// What is counted when somebody asks where the space is.
struct Look {
    table: SegmentTable,
    protection: Protection,
    /// The protection period.
    period: Duration,
    /// Blocks.
    free: u64,
    reserved: u64,
}

impl Filesystem {
    /// Makes a snapshot of a checkpoint, or an ordinary checkpoint of a snapshot. Durable on return.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`], [`Error::ReadOnly`], damage, a device error.
    pub fn set_snapshot(&self, cno: Cno, snapshot: bool) -> Result<()> {
        let pinned = self.pin(cno)?;
        self.admit_metadata_change(if snapshot { Effect::Grows } else { Effect::Frees })?;
        let mut log = self.writable_log()?;
        drop(pinned);
        if self.is_snapshot(&log, cno)? == snapshot {
            return Ok(());
        }
        let changes =
            MetadataChanges { snapshots: vec![(cno, snapshot)], ..MetadataChanges::default() };
        self.change_metadata(&mut log, &changes).map(|_| ())
    }

    /// The files of a checkpoint; of the newest one if `cno` is `None`. They can be read while writing
    /// goes on, for as long as the tree is there, whatever is deleted and cleaned meanwhile.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`], damage, a device error.
    pub fn tree(&self, cno: Option<Cno>) -> Result<Tree> {
        let Some(log) = &self.log else {
            let view = self.view();
            let cpfile = root_of(&self.super_root.cpfile)?;
            return self.trees.open(view.source(), &cpfile, cno.unwrap_or(view.tree.cno));
        };
        let log = log.lock();
        let cpfile = root_of(&log.base().super_root.cpfile)?;
        let cno = cno.unwrap_or(log.cno());
        // A step of the cleaner that is about to give it up looks again when it has the log.
        self.trees.open(log.source(), &cpfile, cno)
    }

    /// The checkpoints from `from` on, ascending, at most `limit`.
    ///
    /// # Errors
    /// The cpfile cannot be read.
    pub fn checkpoints(&self, from: Cno, limit: usize) -> Result<Vec<CheckpointInfo>> {
        let (view, cpfile) = {
            let log = self.log.as_ref().map(Mutex::lock);
            let super_root = log.as_ref().map_or(&self.super_root, |log| &log.base().super_root);
            (self.view(), root_of(&super_root.cpfile)?)
        };
        checkpoints::list(view.source(), &cpfile, from, limit)
    }

    /// Keeps a checkpoint from being given up for the room that its change into a snapshot takes.
    fn pin(&self, cno: Cno) -> Result<Kept> {
        let log = self.writable_log()?;
        self.is_snapshot(&log, cno)?;
        Ok(self.trees.keep(cno))
    }

    fn is_snapshot(&self, log: &SegmentWriter, cno: Cno) -> Result<bool> {
        let cpfile = root_of(&log.base().super_root.cpfile)?;
        let entry = checkpoints::checkpoint(log.source(), &cpfile, cno)?;
        Ok(entry.is_snapshot())
    }

    /// Deletes the checkpoints of a range, except snapshots and the newest. Durable on return.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`] if the range has none, [`Error::ReadOnly`], damage, a device error.
    pub fn delete_checkpoints(&self, range: RangeInclusive<Cno>) -> Result<DeletedCheckpoints> {
        self.admit_metadata_change(Effect::Frees)?;
        let mut log = self.writable_log()?;
        let cpfile = root_of(&log.base().super_root.cpfile)?;
        let (first, last) = (*range.start(), *range.end());
        let end = Cno(last.0.saturating_add(1)).min(log.cno());
        let (mut found, mut snapshots) = (false, Vec::new());
        checkpoints::scan(log.source(), &cpfile, first, &mut |cno, entry| {
            if cno >= end {
                return Ok(ControlFlow::Break(()));
            }
            found = true;
            if entry.is_snapshot() {
                snapshots.push(cno);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        if !found {
            return Err(Error::NoCheckpoint(first));
        }
        let changes = MetadataChanges { delete: vec![first..end], ..MetadataChanges::default() };
        let deleted = self.change_metadata(&mut log, &changes)?;
        Ok(DeletedCheckpoints { deleted, snapshots })
    }

    /// Makes everything durable in a checkpoint even if nothing has changed, and returns its number.
    ///
    /// # Errors
    /// As [`Filesystem::sync`].
    pub fn checkpoint_now(&self) -> Result<Cno> {
        self.checkpoint_with(&MetadataChanges { checkpoint: true, ..MetadataChanges::default() })
    }

    /// Makes what has changed since the newest checkpoint durable in another one. Returns the number
    /// of the newest.
    ///
    /// # Errors
    /// As [`Filesystem::sync`].
    pub fn checkpoint_changes(&self) -> Result<Cno> {
        self.checkpoint_with(&MetadataChanges::default())
    }

    fn checkpoint_with(&self, changes: &MetadataChanges) -> Result<Cno> {
        self.admit_metadata_change(Effect::Changes)?;
        let mut log = self.writable_log()?;
        self.change_metadata(&mut log, changes)?;
        Ok(log.cno())
    }

    /// Makes a writable volume read-only until further notice, or writable again. Read-only it is as
    /// durable and as clean as after [`Filesystem::unmount`], and its device is left alone.
    ///
    /// # Errors
    /// As [`Filesystem::sync`]; and the volume is just being resized, or was never writable.
    pub fn set_read_only(&self, read_only: bool) -> Result<()> {
        let Some(log) = &self.log else {
            let reason = "it was mounted read-only; unmount it and mount it again".into();
            return if read_only { Ok(()) } else { Err(Error::ReadOnly { reason }) };
        };
        let Some(_no_resize) = self.resizing.try_lock() else {
            return Err(Error::Invalid("the volume is being resized"));
        };
        let _between_steps = self.cleaner.pause();
        match read_only {
            true if self.is_read_only() => Ok(()),
            true => {
                let closed = self.close();
                *self.stopped.write() = Some(match &closed {
                    Ok(()) => Stopped::ReadOnly,
                    Err(error) => Stopped::Failed(error.to_string()),
                });
                closed
            }
            false if self.rests() => {
                let mut log = log.lock();
                log.reopen();
                *self.stopped.write() = None;
                self.refresh_space(&log);
                self.cleaner.wake();
                Ok(())
            }
            false => self.check_writable(),
        }
    }

    /// Whether nothing is written although nothing is wrong.
    pub(super) fn rests(&self) -> bool {
        matches!(*self.stopped.read(), Some(Stopped::ReadOnly | Stopped::Unmounted))
    }

    /// How things are.
    #[must_use]
    pub fn status(&self) -> Status {
        let geometry = self.store.geometry();
        let per_segment = u64::from(geometry.blocks_per_segment);
        let (state, run, last_step) = self.cleaner.state();
        let totals = self.cleaner.totals();
        let (cache_hits, cache_misses) = self.store.cache_counts();
        let chain = self.written.in_chain();
        let lifetime = self.lifetime();
        let state = match state {
            _ if self.is_read_only() => CleanerState::Off,
            // It will see that when it looks again.
            CleanerState::HeldUp if !self.store.is_read_elsewhere() => CleanerState::Idle,
            state => state,
        };
        Status {
            state,
            options: self.cleaner.options(),
            geometry,
            cno: self.view().tree.cno,
            clean_segments: self.space.free_blocks() / per_segment,
            kept_segments: self.space.kept_blocks().div_ceil(per_segment),
            cleaner: totals,
            run,
            last_step,
            blocks_written: chain + totals.blocks_written,
            user_blocks_written: self.written.user_blocks.load(Ordering::Relaxed),
            data_blocks: self.written.data.load(Ordering::Relaxed),
            metadata_blocks: self.written.metadata.load(Ordering::Relaxed),
            data_sync_blocks: self.written.data_sync.load(Ordering::Relaxed),
            cache_hits,
            cache_misses,
            lifetime_user_bytes: lifetime.user_bytes,
            lifetime_written_bytes: lifetime.written_bytes,
            lifetime_segments_freed: lifetime.segments_freed,
            uptime: self.mounted.elapsed().as_secs(),
            dirty_bytes: self.space.uncommitted_pages() * geometry.block_size.bytes64(),
            stopped: self.loss(),
            of_the_past: self.options.checkpoint.is_some(),
        }
    }

    /// What is not on the device because of an error.
    fn loss(&self) -> Option<Loss> {
        let reason = match &*self.stopped.read() {
            Some(Stopped::Failed(reason)) => reason.clone(),
            _ => return None,
        };
        let pages = self.exposed.pages.load(Ordering::Relaxed) + self.space.dirty_pages();
        Some(Loss {
            reason,
            since: self.exposed.since.load(Ordering::Relaxed),
            files: self.exposed.files.load(Ordering::Relaxed)
                + self.table.lock().dirty.len() as u64,
            bytes: pages * self.store.block_size().bytes64(),
        })
    }

    /// Totals over the life of the volume, so far.
    pub(super) fn lifetime(&self) -> Lifetime {
        let (before, totals) = (self.written.before, self.cleaner.totals());
        let bytes = |blocks: u64| blocks.saturating_mul(self.store.block_size().bytes64());
        let chain = self.written.in_chain();
        let user = self.written.user_blocks.load(Ordering::Relaxed);
        Lifetime {
            user_bytes: before.user_bytes.saturating_add(bytes(user)),
            written_bytes: before
                .written_bytes
                .saturating_add(bytes(chain + totals.blocks_written)),
            segments_freed: before.segments_freed.saturating_add(totals.segments_freed),
        }
    }

    /// Where the space is. Reads the DAT when it is asked for the first time.
    ///
    /// # Errors
    /// Damage, a device error.
    pub fn usage(&self) -> Result<Usage> {
        let period = self.cleaner.options().protection;
        let Some(log) = &self.log else {
            let view = self.view();
            let known = LiveBlocks::gather(&self.store, &view.dat, &self.super_root)?;
            return Ok(self.count(&self.look(&known, period), |cno| known.time_of(cno)));
        };
        let look = self.look_at_log(log, period)?;
        // Counting takes a while on a large volume: nobody should have to wait for it.
        Ok(self.count(&look, |cno| self.cleaner.live_blocks().ready()?.time_of(cno)))
    }

    /// What is to be counted, of one moment. Gathers what must be known for that.
    fn look_at_log(&self, log: &Mutex<SegmentWriter>, period: Duration) -> Result<Look> {
        for _ in 0..ATTEMPTS {
            self.cleaning().gather_live_blocks()?;
            // What is counted is of one moment.
            let _log = log.lock();
            let now = self.now().seconds as u64;
            let mut state = self.cleaner.live_blocks();
            match state.ready() {
                Some(known) if known.covers(&known.protection(period, now)) => {
                    return Ok(self.look(known, period));
                }
                Some(_) => state.forget_all(),
                None => {}
            }
        }
        Err(Error::Invalid("the volume changes too fast to be counted; try again"))
    }

    fn look(&self, known: &LiveBlocks, period: Duration) -> Look {
        let free = self.space.free_blocks();
        Look {
            table: known.table.clone(),
            protection: known.protection(period, self.now().seconds as u64),
            period,
            free,
            reserved: self.space.reserved_blocks(),
        }
    }

    /// Counts. `time_of` says when a checkpoint was made (s).
    fn count(&self, look: &Look, time_of: impl FnOnce(Cno) -> Option<u64>) -> Usage {
        let geometry = self.store.geometry();
        let census = look.table.census(&look.protection);
        let until = census.protected_until.and_then(time_of);
        let total = space::total(&geometry);
        let kept = census.current + census.protected + census.kept;
        let reclaimable = total.saturating_sub(look.free).saturating_sub(kept);
        let hard = self.cleaner.options().keeps_hard();
        let given_up = if hard { 0 } else { census.protected };
        let unused = look.free + reclaimable + given_up;
        // Ascending, as the snapshots are.
        let snapshots = look.protection.kept.iter();
        let alone = |cno: &Cno| SnapshotUsage {
            cno: *cno,
            blocks: census.exclusive.get(cno).copied().unwrap_or(0),
        };
        Usage {
            block_size: geometry.block_size.bytes64(),
            total,
            live: census.current,
            snapshots: census.kept,
            protected: census.protected,
            hard_protection: hard,
            protected_until: until.map(|time| time.saturating_add(look.period.as_secs())),
            reclaimable,
            free: look.free,
            reserved: look.reserved.min(unused),
            available: self.space.available(unused, geometry.block_size.bytes64()),
            exclusive: snapshots.map(alone).collect(),
        }
    }

    /// Tells the device about clean segments, in bytes `from` to `to` of the volume, in runs of at
    /// least `minimum` bytes. Returns the number of bytes.
    ///
    /// # Errors
    /// The device cannot do it, or fails.
    pub fn trim(&self, from: u64, to: u64, minimum: u64) -> Result<u64> {
        let mut log = self.writable_log()?;
        // Nothing that the log could fall back to is given up.
        self.flush_locked(&mut log)?;
        let clean = log.segment_usages()?.into_iter().filter(|(_, usage)| usage.is_clean());
        let clean: Vec<SegNum> =
            clean.map(|(segment, _)| segment).filter(|it| !log.is_withheld(*it)).collect();
        let geometry = self.store.geometry();
        let bytes = |block: BlockNr| block.0 * geometry.block_size.bytes64();
        let mut trimmed = 0;
        for run in clean.chunk_by(|a, b| a.plus(1) == *b) {
            let (Some(&first), Some(&last)) = (run.first(), run.last()) else { continue };
            let start = bytes(geometry.segment_start(first)).max(from);
            let end = bytes(geometry.segment_end(last)).min(to);
            if end > start && end - start >= minimum.max(1) {
                self.store.discard(start, end - start)?;
                trimmed += end - start;
            }
        }
        Ok(trimmed)
    }

    /// Sees to it that there is room for a checkpoint with changes of metadata.
    fn admit_metadata_change(&self, effect: Effect) -> Result<()> {
        self.check_writable()?;
        self.admitted(Cost { pages: 0, inodes: METADATA_CHANGE_INODES, effect }, || Ok(()))
    }

    /// A commit with changes of metadata, durable. Returns the number of checkpoints that were deleted.
    fn change_metadata(&self, log: &mut SegmentWriter, changes: &MetadataChanges) -> Result<u64> {
        let outcome = self.commit_locked(log, changes)?;
        self.flush_locked(log)?;
        outcome.refused.map_or(Ok(outcome.deleted_checkpoints), Err)
    }
}

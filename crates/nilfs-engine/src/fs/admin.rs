//! What an administrator asks of a mounted volume: checkpoints and snapshots, the cleaner, space.

use std::ops::{ControlFlow, RangeInclusive};
use std::sync::atomic::Ordering;
use std::time::Duration;

use nilfs_ondisk::lifetime::Lifetime;
use nilfs_ondisk::{BlockNr, Cno, SegNum};
use serde::{Deserialize, Serialize};

use super::Filesystem;
use super::cleaning::{Knowledge, Known};
use super::space::Cost;
use super::sync::Log;
use crate::checkpoints;
use crate::cleaner::options::{CleanerOrder, CleanerState, Status, Usage};
use crate::commit::{Chores, root_of};
use crate::error::{Error, Result};

/// As many changed inodes cost at least what chores cost: blocks of the cpfile and their like.
const CHORES_INODES: u64 = 2;

/// What became of a request to delete checkpoints.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeletedCheckpoints {
    /// Number of checkpoints that are gone.
    pub deleted: u64,
    /// Snapshots in the range; they stay.
    pub snapshots: Vec<Cno>,
}

impl Filesystem {
    /// Makes a snapshot of a checkpoint, or an ordinary checkpoint of a snapshot. Durable on return.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`], [`Error::ReadOnly`], damage, a device error.
    pub fn set_snapshot(&self, cno: Cno, snapshot: bool) -> Result<()> {
        self.admit_chores(!snapshot)?;
        let mut log = self.administer()?;
        let cpfile = root_of(&log.base.super_root.cpfile)?;
        let entry = checkpoints::checkpoint(log.base.source(&self.store), &cpfile, cno)?;
        if entry.is_snapshot() == snapshot {
            return Ok(());
        }
        log.snapshot_changes += 1;
        let chores = Chores { snapshots: vec![(cno, snapshot)], ..Chores::default() };
        self.do_chores(&mut log, &chores).map(|_| ())
    }

    /// Deletes the checkpoints of a range, except snapshots and the newest. Durable on return.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`] if the range has none, [`Error::ReadOnly`], damage, a device error.
    pub fn delete_checkpoints(&self, range: RangeInclusive<Cno>) -> Result<DeletedCheckpoints> {
        self.admit_chores(true)?;
        let mut log = self.administer()?;
        let cpfile = root_of(&log.base.super_root.cpfile)?;
        let (first, last) = (*range.start(), *range.end());
        let end = Cno(last.0.saturating_add(1)).min(log.base.tree.cno);
        let (mut found, mut snapshots) = (false, Vec::new());
        checkpoints::scan(log.base.source(&self.store), &cpfile, first, &mut |cno, entry| {
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
        let chores = Chores { delete: vec![first..end], ..Chores::default() };
        let deleted = self.do_chores(&mut log, &chores)?;
        Ok(DeletedCheckpoints { deleted, snapshots })
    }

    /// Makes everything durable in a checkpoint even if nothing has changed, and gives its number.
    ///
    /// # Errors
    /// As [`Filesystem::sync`].
    pub fn checkpoint_now(&self) -> Result<Cno> {
        self.admit_chores(false)?;
        let mut log = self.administer()?;
        self.do_chores(&mut log, &Chores { checkpoint: true, ..Chores::default() })?;
        Ok(log.base.tree.cno)
    }

    /// Gives the cleaner an order. Returns at once.
    ///
    /// # Errors
    /// The volume cannot be written.
    pub fn order_cleaner(&self, order: CleanerOrder) -> Result<()> {
        self.check_writable()?;
        self.cleaner.obey(order);
        Ok(())
    }

    /// How things are.
    #[must_use]
    pub fn status(&self) -> Status {
        let geometry = self.store.geometry();
        let per_segment = u64::from(geometry.blocks_per_segment);
        let (state, run, last_step) = self.cleaner.state();
        let totals = self.cleaner.totals();
        let chain = self.written.blocks.load(Ordering::Relaxed);
        let lifetime = self.lifetime();
        Status {
            state: if self.is_read_only() { CleanerState::Off } else { state },
            options: self.cleaner.options(),
            geometry,
            cno: self.view().tree.cno,
            clean_segments: self.space.free_blocks() / per_segment,
            reserved_segments: self.space.reserved_blocks().div_ceil(per_segment),
            cleaner: totals,
            run,
            last_step,
            blocks_written: chain + totals.blocks_written,
            user_blocks_written: self.written.user_blocks.load(Ordering::Relaxed),
            lifetime_user_bytes: lifetime.user_bytes,
            lifetime_written_bytes: lifetime.written_bytes,
            lifetime_segments_freed: lifetime.segments_freed,
            uptime: self.mounted.elapsed().as_secs(),
            dirty_bytes: self.space.uncommitted_pages() * geometry.block_size.bytes64(),
            stopped: self.stopped.read().is_some(),
        }
    }

    /// Totals over the life of the volume, so far.
    pub(super) fn lifetime(&self) -> Lifetime {
        let (before, totals) = (self.written.before, self.cleaner.totals());
        let bytes = |blocks: u64| blocks.saturating_mul(self.store.block_size().bytes64());
        let chain = self.written.blocks.load(Ordering::Relaxed);
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
        if self.log.is_none() {
            let view = self.view();
            let mut known = Known::gather(&self.store, &view.dat, &self.super_root)?;
            return Ok(self.usage_from(&mut known, period));
        }
        let mut log = self.known_now(period)?;
        match log.knowledge.ready() {
            Some(known) => Ok(self.usage_from(known, period)),
            None => Err(Error::Invalid("the volume changes too fast to be counted; try again")),
        }
    }

    fn usage_from(&self, known: &mut Known, period: Duration) -> Usage {
        let geometry = self.store.geometry();
        let now = self.now().seconds as u64;
        let protection = known.protection(period, now);
        let census = known.table.census(&protection);
        let until = census.protected_until.and_then(|cno| known.time_of(cno));
        let total = geometry.nsegments * u64::from(geometry.blocks_per_segment)
            - geometry.first_data_block.0;
        let free = self.space.free_blocks();
        let kept = census.current + census.protected + census.kept;
        let mut exclusive: Vec<(Cno, u64)> = known
            .snapshots
            .iter()
            .map(|cno| (*cno, census.exclusive.get(cno).copied().unwrap_or(0)))
            .collect();
        exclusive.sort_unstable();
        Usage {
            block_size: geometry.block_size.bytes64(),
            total,
            live: census.current,
            snapshots: census.kept,
            protected: census.protected,
            protected_until: until.map(|time| time.saturating_add(period.as_secs())),
            reclaimable: total.saturating_sub(free).saturating_sub(kept),
            free,
            reserved: self.space.reserved_blocks().min(free),
            exclusive,
        }
    }

    /// Tells the device about clean segments, in bytes `from` to `to` of the volume, in runs of at
    /// least `minimum` bytes. Gives the number of bytes.
    ///
    /// # Errors
    /// The device cannot do it, or fails.
    pub fn trim(&self, from: u64, to: u64, minimum: u64) -> Result<u64> {
        let mut log = self.administer()?;
        // Nothing that the log could fall back to is given up.
        self.flush_locked(&mut log)?;
        let clean = self.usages(&log)?.into_iter().filter(|(_, usage)| usage.is_clean());
        let clean: Vec<SegNum> =
            clean.map(|(segment, _)| segment).filter(|it| !log.barred.has(*it)).collect();
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

    /// Tells the device that segments hold nothing any more. A device that cannot do it is not
    /// asked again.
    pub(super) fn discard(&self, segments: &[SegNum]) {
        if self.discard_failed.load(Ordering::Relaxed) {
            return;
        }
        let mut sorted = segments.to_vec();
        sorted.sort_unstable();
        let geometry = self.store.geometry();
        for run in sorted.chunk_by(|a, b| a.plus(1) == *b) {
            let (Some(&first), Some(&last)) = (run.first(), run.last()) else { continue };
            let (start, end) = (geometry.segment_start(first), geometry.segment_end(last));
            let size = geometry.block_size.bytes64();
            if let Err(error) = self.store.discard(start.0 * size, (end.0 - start.0) * size) {
                tracing::warn!("discard is switched off: {error}");
                self.discard_failed.store(true, Ordering::Relaxed);
                return;
            }
        }
    }

    /// Sees to it that there is room for a checkpoint with chores. `frees`: they help to make room.
    fn admit_chores(&self, frees: bool) -> Result<()> {
        self.check_writable()?;
        self.admitted(Cost { pages: 0, inodes: CHORES_INODES, frees }, || Ok(()))
    }

    /// The log, for somebody who has a right to it.
    pub(super) fn administer(&self) -> Result<parking_lot::MutexGuard<'_, Log>> {
        match &self.log {
            Some(log) => self.lock_writable(log),
            None => Err(self.check_writable().err().unwrap_or(Error::NoSpace)),
        }
    }

    /// The log, with everything known about what is younger than `period`.
    fn known_now(&self, period: Duration) -> Result<parking_lot::MutexGuard<'_, Log>> {
        for _ in 0..3 {
            self.gather_knowledge()?;
            let mut log = self.administer()?;
            let now = self.now().seconds as u64;
            match log.knowledge.ready() {
                Some(known) if known.covers(&known.protection(period, now)) => return Ok(log),
                Some(_) => log.knowledge = Knowledge::Absent,
                None => {}
            }
        }
        self.administer()
    }

    /// A commit with chores, durable. Gives the number of checkpoints that were deleted.
    fn do_chores(&self, log: &mut Log, chores: &Chores) -> Result<u64> {
        let outcome = self.commit_locked(log, chores)?;
        self.flush_locked(log)?;
        if outcome.done { Ok(outcome.deleted_checkpoints) } else { Err(Error::NoSpace) }
    }
}

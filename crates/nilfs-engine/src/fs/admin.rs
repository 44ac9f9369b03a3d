//! Requests of an administrator to a mounted volume: checkpoints, the cleaner, its state.

use std::ops::{ControlFlow, RangeInclusive};

use nilfs_ondisk::superblock::LogCursor;
use nilfs_ondisk::{BlockNr, Cno, SegNum};
use serde::{Deserialize, Serialize};

use super::Filesystem;
use crate::checkpoints;
use crate::checkpoints::{CheckpointInfo, CheckpointTotals};
use crate::cleaner::options::{CleanerState, Loss, Status};
use crate::cleaner::schedule::Activity;
use crate::commit::{MetadataChanges, root_of};
use crate::error::{Error, Result};
use crate::host::atomic::Ordering;
use crate::tree::Tree;
use crate::writer::space::{Cost, Effect};
use crate::writer::{Session, Stopped};

/// As many changed inodes cost at least what changes of metadata cost: blocks of the cpfile and
/// their like.
const METADATA_CHANGE_INODES: u64 = 2;

/// What became of a request to delete checkpoints.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeletedCheckpoints {
    /// Number of checkpoints that are gone.
    pub deleted: u64,
    /// Snapshots in the range; they stay.
    pub snapshots: Vec<Cno>,
}

impl Filesystem {
    /// The files of a checkpoint; of the newest one if `cno` is `None`. They can be read while
    /// writing goes on, for as long as the tree is there, whatever is deleted and cleaned
    /// meanwhile.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`], also if the cleaner is just giving it up; damage, a device error.
    pub fn tree(&self, cno: Option<Cno>) -> Result<Tree> {
        let log = self.writer.look();
        let cpfile = root_of(&log.base().super_root.cpfile)?;
        let cno = cno.unwrap_or(log.cno());
        self.writer.trees.open(log.source(), &cpfile, cno)
    }

    /// As [`Filesystem::tree`], but while somebody holds the tree of the checkpoint, this works even if
    /// the checkpoint was deleted: a mount of the past asks about its files in more ways than one.
    ///
    /// # Errors
    /// As [`Filesystem::tree`].
    pub fn tree_of_past(&self, cno: Cno) -> Result<Tree> {
        self.writer.trees.held(cno).unwrap_or_else(|| self.tree(Some(cno)))
    }

    /// The checkpoints from `from` on, ascending, at most `limit`.
    ///
    /// # Errors
    /// The cpfile cannot be read.
    pub fn checkpoints(&self, from: Cno, limit: usize) -> Result<Vec<CheckpointInfo>> {
        let (view, cpfile) = {
            let log = self.writer.look();
            (self.view(), root_of(&log.base().super_root.cpfile)?)
        };
        checkpoints::list(view.source(), &cpfile, from, limit)
    }

    /// How many checkpoints there are, as the cpfile counts them.
    ///
    /// # Errors
    /// The cpfile cannot be read.
    pub fn checkpoint_totals(&self) -> Result<CheckpointTotals> {
        let log = self.writer.look();
        let cpfile = root_of(&log.base().super_root.cpfile)?;
        checkpoints::totals(log.source(), &cpfile, log.cno())
    }

    /// The log of the newest checkpoint. All that this checkpoint needs stays on the device for a reader
    /// who has been there since before the question.
    #[must_use]
    pub fn newest_log(&self) -> LogCursor {
        self.writer.look().base().last_log
    }

    /// Deletes the checkpoints of a range, except snapshots and the newest. Durable on return.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`] if the range has none, [`Error::ReadOnly`], damage, a device error.
    pub fn delete_checkpoints(&self, range: RangeInclusive<Cno>) -> Result<DeletedCheckpoints> {
        self.admit_metadata_change(Effect::Frees, 0)?;
        let mut session = self.writing().write_ahead()?;
        let cpfile = root_of(&session.base().super_root.cpfile)?;
        let (first, last) = (*range.start(), *range.end());
        let end = Cno(last.0.saturating_add(1)).min(session.cno());
        let (mut found, mut snapshots) = (false, Vec::new());
        checkpoints::scan(session.source(), &cpfile, first, &mut |cno, entry| {
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
        let deleted = change_metadata(&mut session, &changes)?;
        Ok(DeletedCheckpoints { deleted, snapshots })
    }

    /// Changes checkpoints. Returns the number of those that were deleted. Durable on return.
    pub(super) fn change_checkpoints(&self, changes: &MetadataChanges) -> Result<u64> {
        self.admit_metadata_change(Effect::Frees, 0)?;
        let mut session = self.writing().write_ahead()?;
        change_metadata(&mut session, changes)
    }

    /// Makes everything durable in a checkpoint even if nothing has changed, and returns its
    /// number.
    ///
    /// # Errors
    /// As [`Filesystem::sync`].
    pub fn checkpoint_now(&self) -> Result<Cno> {
        self.checkpoint_with(&MetadataChanges { checkpoint: true, ..MetadataChanges::default() })
    }

    /// Makes what has changed since the newest checkpoint durable in another one. Returns the
    /// number of the newest.
    ///
    /// # Errors
    /// As [`Filesystem::sync`].
    pub fn checkpoint_changes(&self) -> Result<Cno> {
        self.checkpoint_with(&MetadataChanges::default())
    }

    fn checkpoint_with(&self, changes: &MetadataChanges) -> Result<Cno> {
        self.admit_metadata_change(Effect::Changes, 0)?;
        let mut session = self.writing().write_ahead()?;
        change_metadata(&mut session, changes)?;
        Ok(session.cno())
    }

    /// Makes the volume read-only until further notice, or writable again. Read-only it is as
    /// durable and as clean as after [`Filesystem::unmount`], and its device is left alone.
    ///
    /// # Errors
    /// As [`Filesystem::sync`]; and the volume is just being resized.
    pub fn set_read_only(&self, read_only: bool) -> Result<()> {
        let Some(_alone) = self.remaking.try_lock() else {
            return Err(Error::Invalid("the volume is being resized or rolled back"));
        };
        let _between_steps = self.cleaner.pause();
        match read_only {
            true if self.is_read_only() => Ok(()),
            true => {
                let closed = self.writing().close();
                self.writer.set_stopped(Some(match &closed {
                    Ok(()) => Stopped::ReadOnly,
                    Err(error) => Stopped::Failed(error.to_string()),
                }));
                closed
            }
            false if self.writer.rests() => {
                self.writing().lock().reopen();
                self.cleaner.wake();
                Ok(())
            }
            false => self.check_writable(),
        }
    }

    /// Damage because of which the recovery of the volume could not be completed: all that was durable is
    /// shown, and nothing is written.
    #[must_use]
    pub fn unrecovered(&self) -> Option<String> {
        self.writer.unrecovered()
    }

    /// How things are.
    #[must_use]
    pub fn status(&self) -> Status {
        let geometry = self.store.geometry();
        let per_segment = u64::from(geometry.blocks_per_segment);
        let Activity { state, run, last_step } = self.cleaner.activity();
        let totals = self.cleaner.totals();
        let (cache_hits, cache_misses) = self.store.cache_counts();
        let chain = self.writer.written.in_chain();
        let lifetime = self.writer.lifetime(self.cleaner.cleaned());
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
            clean_segments: self.writer.space.free_blocks() / per_segment,
            kept_segments: self.writer.space.kept_blocks().div_ceil(per_segment),
            refused_segments: self.writer.space.refused_segments(),
            cleaner: totals,
            run,
            last_step,
            blocks_written: chain + totals.blocks_written,
            user_blocks_written: self.writer.written.user_blocks.load(Ordering::Relaxed),
            data_blocks: self.writer.written.data.load(Ordering::Relaxed),
            metadata_blocks: self.writer.written.metadata.load(Ordering::Relaxed),
            data_sync_blocks: self.writer.written.data_sync.load(Ordering::Relaxed),
            cache_hits,
            cache_misses,
            lifetime_user_bytes: lifetime.user_bytes,
            lifetime_written_bytes: lifetime.written_bytes,
            lifetime_segments_freed: lifetime.segments_freed,
            uptime: self.mounted.elapsed().as_secs(),
            dirty_bytes: self.writer.space.uncommitted_pages() * geometry.block_size.bytes64(),
            stopped: self.loss(),
            of_the_past: false,
        }
    }

    /// What is not on the device because of an error.
    fn loss(&self) -> Option<Loss> {
        let reason = self.writer.failure()?;
        let pages =
            self.writer.exposed.pages.load(Ordering::Relaxed) + self.writer.space.dirty_pages();
        Some(Loss {
            reason,
            since: self.writer.exposed.since.load(Ordering::Relaxed),
            files: self.writer.exposed.files.load(Ordering::Relaxed)
                + self.table.lock().dirty.len() as u64,
            bytes: pages * self.store.block_size().bytes64(),
        })
    }

    /// Tells the device about clean segments, in bytes `from` to `to` of the volume, in runs of at
    /// least `minimum` bytes. Returns the number of bytes.
    ///
    /// # Errors
    /// The device cannot do it, or fails.
    pub fn trim(&self, from: u64, to: u64, minimum: u64) -> Result<u64> {
        let mut session = self.writing().session()?;
        // Nothing that the log could fall back to is given up.
        session.flush()?;
        let clean = session.segment_usages()?.into_iter().filter(|(_, usage)| usage.is_clean());
        let clean: Vec<SegNum> =
            clean.map(|(segment, _)| segment).filter(|it| session.may_write(*it)).collect();
        session.refresh();
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

    /// Sees to it that there is room for a checkpoint with changes of metadata, and of this many
    /// `pages` of the xattr file.
    pub(super) fn admit_metadata_change(&self, effect: Effect, pages: u64) -> Result<()> {
        self.check_writable()?;
        self.admitted(Cost { pages, inodes: METADATA_CHANGE_INODES, effect }, || Ok(()))
    }
}

/// Makes a commit with changes of metadata, durable. Returns the number of checkpoints that were
/// deleted.
pub(super) fn change_metadata(session: &mut Session<'_>, changes: &MetadataChanges) -> Result<u64> {
    let outcome = session.commit(changes)?;
    session.flush()?;
    outcome.refused.map_or(Ok(outcome.deleted_checkpoints), Err)
}

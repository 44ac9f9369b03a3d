//! A session of writing: the log, for the thread that has it. Whatever must follow a write is done here.

use std::ops::Deref;

use nilfs_ondisk::SegNum;

use super::{Alone, Writing};
use crate::commit::{Frozen, MetadataChanges, MetadataOutcome, SyncContent, SyncedFile};
use crate::error::Result;
use crate::host::MutexGuard;
use crate::host::atomic::Ordering;
use crate::log::segment_writer::{SegmentWriter, Stamp, Synced, Written};
use crate::log::withheld::NewEnd;
use crate::overlay::Placed;

/// The log of a volume, for the thread that writes to it, until the session ends.
pub(crate) struct Session<'a> {
    writing: Writing<'a>,
    log: MutexGuard<'a, SegmentWriter>,
}

impl Deref for Session<'_> {
    type Target = SegmentWriter;

    fn deref(&self) -> &SegmentWriter {
        &self.log
    }
}

impl<'a> Session<'a> {
    pub(super) fn new(writing: Writing<'a>, log: MutexGuard<'a, SegmentWriter>) -> Self {
        Self { writing, log }
    }

    /// Ends the session in favour of a thread that waits for one.
    pub(crate) fn end_fairly(self) {
        MutexGuard::unlock_fair(self.log);
    }

    /// Makes a checkpoint of everything that has changed, and changes metadata with it. What stands in
    /// the way of these changes alone leaves them undone.
    ///
    /// # Errors
    /// Damage, a device error: nothing is written any more then.
    pub(crate) fn commit(&mut self, changes: &MetadataChanges) -> Result<MetadataOutcome> {
        self.release_freed();
        let alone = self.writing.writer.exclude_transactions();
        let (frozen, freeze) = self.freeze(&alone);
        drop(alone);
        self.commit_frozen(frozen, freeze, changes)
    }

    /// As [`Session::commit`], while no transaction is open, and none can be.
    ///
    /// # Errors
    /// As [`Session::commit`].
    pub(crate) fn commit_alone(&mut self, alone: &Alone<'_>) -> Result<()> {
        self.release_freed();
        let (frozen, freeze) = self.freeze(alone);
        self.commit_frozen(frozen, freeze, &MetadataChanges::default()).map(drop)
    }

    /// Commits unless a freeze at or after `ticket` is in a checkpoint already.
    ///
    /// # Errors
    /// As [`Session::commit`].
    pub(crate) fn commit_since(&mut self, ticket: u64) -> Result<()> {
        if self.writing.writer.committed_freeze() < ticket {
            self.commit(&MetadataChanges::default())?;
        }
        Ok(())
    }

    /// Makes the checkpoints that delete the rest of large files.
    pub(super) fn finish_deleting(&mut self) -> Result<()> {
        while self.writing.writer.deleting.load(Ordering::Acquire) {
            self.commit(&MetadataChanges::default())?;
        }
        Ok(())
    }

    fn freeze(&self, alone: &Alone<'_>) -> (Frozen, u64) {
        let Writing { writer, memory } = self.writing;
        let frozen = memory.freeze(alone);
        writer.deleting.store(frozen.leaves_deletions, Ordering::Release);
        writer.space.freeze();
        let freeze = writer.freezes.fetch_add(1, Ordering::AcqRel) + 1;
        (frozen, freeze)
    }

    fn commit_frozen(
        &mut self,
        frozen: Frozen,
        freeze: u64,
        changes: &MetadataChanges,
    ) -> Result<MetadataOutcome> {
        let writer = self.writing.writer;
        let now = writer.seconds();
        if frozen.is_empty() && changes.is_empty() && !self.log.is_recovering() {
            writer.space.thaw();
            writer.set_committed(freeze, now);
            return Ok(MetadataOutcome::default());
        }
        // What was frozen stays in memory after a failure, and can still be read.
        let done = self.write_and_publish(frozen, changes, now, SegmentWriter::write_checkpoint)?;
        writer.set_committed(freeze, now);
        if self.log.superblock_is_due(writer.now().seconds) {
            self.flush()?;
            self.write_superblock()?;
        }
        Ok(done)
    }

    /// Makes a checkpoint of changes of metadata alone: what programs have changed stays for the next.
    /// Unless sync logs have made some of it durable.
    ///
    /// # Errors
    /// As [`Session::commit`].
    pub(crate) fn commit_metadata(&mut self, changes: &MetadataChanges) -> Result<MetadataOutcome> {
        if self.log.needs_everything() {
            return self.commit(changes);
        }
        self.release_freed();
        let now = self.writing.writer.seconds();
        let write = |log: &mut SegmentWriter, _: &Frozen, changes: &_, stamp: &_| {
            log.write_metadata_checkpoint(changes, stamp)
        };
        self.write_and_publish(Frozen::default(), changes, now, write)
    }

    /// Makes a checkpoint of what was made beside memory, and of changes of metadata, both or nothing. It says
    /// that it was made at this time (s since 1970).
    ///
    /// # Errors
    /// As [`Session::commit`].
    pub(crate) fn commit_together(
        &mut self,
        made: Frozen,
        changes: &MetadataChanges,
        now: u64,
    ) -> Result<MetadataOutcome> {
        self.write_and_publish(made, changes, now, SegmentWriter::write_together)
    }

    /// Lets go of blocks that were written ahead, by a checkpoint.
    ///
    /// # Errors
    /// As [`Session::commit`].
    pub(crate) fn abandon(&mut self, ahead: Vec<Placed>) -> Result<()> {
        let frozen = Frozen { unborn: ahead, ..Frozen::default() };
        let (now, nothing) = (self.writing.writer.seconds(), MetadataChanges::default());
        self.write_and_publish(frozen, &nothing, now, SegmentWriter::write_checkpoint).map(drop)
    }

    /// Makes a checkpoint of what was frozen, and puts it in the place of the one before.
    fn write_and_publish(
        &mut self,
        frozen: Frozen,
        changes: &MetadataChanges,
        now: u64,
        write: impl FnOnce(&mut SegmentWriter, &Frozen, &MetadataChanges, &Stamp) -> Result<Written>,
    ) -> Result<MetadataOutcome> {
        let writer = self.writing.writer;
        let flushes = self.log.flushes();
        let written = write(&mut self.log, &frozen, changes, &self.writing.stamp());
        if self.log.flushes() != flushes {
            writer.exposed.flushed();
        }
        let exposed = frozen.size();
        let done = self.noting(written).map(|written| self.publish(frozen, changes, written, now));
        writer.exposed.add(exposed);
        done
    }

    /// Puts a checkpoint that was written in the place of the old one and the frozen changes.
    fn publish(
        &mut self,
        frozen: Frozen,
        changes: &MetadataChanges,
        written: Written,
        now: u64,
    ) -> MetadataOutcome {
        let Writing { writer, memory } = self.writing;
        let Written { effects, refused } = written;
        let Some(effects) = effects else {
            writer.space.thaw();
            return MetadataOutcome { refused, deleted_checkpoints: 0 };
        };
        writer.written.add(&effects);
        if let Some(damage) = &effects.damage {
            writer.stop(damage);
        }
        let deleted_checkpoints = effects.deleted_checkpoints;
        let nothing = MetadataChanges::default();
        let changes = if refused.is_none() { changes } else { &nothing };
        // The old view is dropped when nothing is locked.
        drop(writer.trees.publish(self.log.view()));
        memory.published(frozen, changes, effects, now);
        let needed = memory.needed(&self.log);
        writer.space.committed(&writer.store.geometry(), &self.log, needed);
        MetadataOutcome { refused, deleted_checkpoints }
    }

    /// Makes everything durable that is in the log.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let flushed = self.log.flush();
        self.noting(flushed)?;
        self.writing.writer.exposed.flushed();
        Ok(())
    }

    /// Writes blocks of files that the next checkpoint has to write anyway; `None` if there is no room.
    ///
    /// # Errors
    /// The log cannot be written.
    pub(crate) fn write_files_ahead(&mut self, files: &[SyncedFile]) -> Result<Option<Synced>> {
        let written = self.log.write_ahead(files, &self.writing.stamp());
        self.written(written)
    }

    /// Writes a sync log; `None` if it does not fit into the segment, or must read what cannot be read.
    ///
    /// # Errors
    /// The log cannot be written.
    pub(crate) fn write_sync(&mut self, content: &SyncContent) -> Result<Option<Synced>> {
        let written = self.log.write_sync(content, &self.writing.stamp());
        self.written(written)
    }

    /// Lets the log go on in the next segment, after it was filled with blocks of what is to be synced;
    /// `None` if it goes on where it is.
    ///
    /// # Errors
    /// A log cannot be written.
    pub(crate) fn leave_segment(&mut self, files: &[SyncedFile]) -> Result<Option<Synced>> {
        let written = self.log.leave_segment(files, &self.writing.stamp());
        self.written(written)
    }

    /// Takes note of logs without a checkpoint. First the room that they have taken: only then are their
    /// blocks charged without themselves.
    fn written(&mut self, written: Result<Option<Synced>>) -> Result<Option<Synced>> {
        let written = self.noting(written)?;
        if let Some(written) = &written {
            self.refresh();
            self.writing.writer.written.add_logs(written);
        }
        Ok(written)
    }

    /// Lets the older superblock name the newest checkpoint, which must be durable.
    ///
    /// # Errors
    /// The device failed.
    pub(super) fn write_superblock(&mut self) -> Result<()> {
        let written = self.log.write_superblock(&self.writing.stamp());
        self.noting(written)
    }

    /// Lets both superblocks name the newest checkpoint, which must be durable.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn write_superblocks(&mut self) -> Result<()> {
        let written = self.log.write_superblocks(&self.writing.stamp());
        self.noting(written)
    }

    /// Lets the log have segments that the cleaner has freed, as far as nobody in this process can be
    /// reading there.
    pub(crate) fn release_freed(&mut self) {
        if self.log.release_freed() {
            self.refresh();
        }
    }

    /// Takes note that everything is durable that was freed when this was the number of frees.
    pub(crate) fn frees_are_durable(&mut self, frees: u64) {
        self.log.frees_are_durable(frees);
        self.release_freed();
    }

    /// Takes a clean segment for moved blocks.
    ///
    /// # Errors
    /// As [`SegmentWriter::claim_segment`].
    pub(crate) fn claim_segment(&mut self) -> Result<SegNum> {
        let segment = self.log.claim_segment()?;
        self.refresh();
        Ok(segment)
    }

    /// Gives up segments that were claimed and are not in use yet.
    pub(crate) fn unclaim(&mut self, segments: &[SegNum]) {
        self.log.unclaim(segments);
        self.refresh();
    }

    /// Lets the log go on before this end only.
    pub(crate) fn set_end(&mut self, end: Option<NewEnd>) {
        self.log.set_end(end);
        self.refresh();
    }

    /// Lets the next log begin in the next segment.
    pub(crate) fn skip_rest_of_segment(&mut self) {
        self.log.skip_rest_of_segment();
    }

    /// Says in the superblocks that the volume is going to have this many segments.
    ///
    /// # Errors
    /// The superblocks cannot be written.
    pub(crate) fn begin_resize(&mut self, segments: u64) -> Result<()> {
        let begun = self.log.begin_resize(segments, &self.writing.stamp());
        self.noting(begun)
    }

    /// Takes back what [`Session::begin_resize`] said: the volume keeps this many segments.
    ///
    /// # Errors
    /// The superblocks cannot be written.
    pub(crate) fn give_up_resize(&mut self, segments: u64) -> Result<()> {
        let given_up = self.log.give_up_resize(segments, &self.writing.stamp());
        self.noting(given_up)?;
        self.refresh();
        Ok(())
    }

    /// Lets the volume have this many segments on a device of this many bytes.
    ///
    /// # Errors
    /// The superblocks cannot be written.
    pub(crate) fn finish_resize(&mut self, segments: u64, bytes: u64) -> Result<()> {
        let finished = self.log.finish_resize(segments, bytes, &self.writing.stamp());
        self.noting(finished)
    }

    /// Takes over the space that the log has left.
    pub(crate) fn refresh(&self) {
        let Writing { writer, memory } = self.writing;
        let needed = memory.needed(&self.log);
        writer.space.refresh(&writer.store.geometry(), &self.log, needed);
    }

    /// Says in the superblocks that the volume is in use.
    ///
    /// # Errors
    /// The superblocks cannot be written.
    pub(crate) fn mark_in_use(&mut self) -> Result<()> {
        self.log.mark_in_use(&self.writing.stamp())
    }

    /// Takes the number that a sync log has given to a block, for a recovery. Returns false if it is taken already.
    ///
    /// # Errors
    /// The DAT cannot be read.
    pub(crate) fn claim(&mut self, placed: Placed) -> Result<bool> {
        self.log.claim(placed)
    }

    /// Completes a recovery by a checkpoint, unless damage keeps it from that: then nothing is written.
    ///
    /// # Errors
    /// The damage that `claimed` says, or that there is no place for the checkpoint; as [`Session::commit`].
    pub(crate) fn complete_recovery(&mut self, claimed: Result<()>) -> Result<()> {
        let claimed = claimed.and_then(|()| self.log.check_place());
        self.noting(claimed)?;
        self.commit(&MetadataChanges::default())?;
        self.flush()?;
        self.log.finish_recovery(&self.writing.stamp())?;
        self.refresh();
        Ok(())
    }

    /// Closes the log after its last checkpoint, which must be durable. The volume is clean then, unless a file
    /// without a name is open.
    pub(super) fn close(&mut self) -> Result<()> {
        let is_clean = !self.writing.memory.has_orphans();
        self.log.close(is_clean, &self.writing.stamp())
    }

    /// Lets a closed log go on.
    pub(crate) fn reopen(&mut self) {
        self.log.reopen();
        self.writing.writer.set_stopped(None);
        self.refresh();
    }

    /// Passes the result of writing on, also of writing beside the log. After an error of the device, or damage
    /// found while writing, nothing is written any more.
    ///
    /// # Errors
    /// That of the result.
    pub(crate) fn noting<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.writing.writer.stop_for_good(error);
            self.log.fail();
        }
        result
    }
}

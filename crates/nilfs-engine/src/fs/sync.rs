//! Making changes durable: freezing what has changed, having checkpoints written of it, publishing
//! them (docs/format.md §18). The log itself belongs to its owner (`log/segment_writer.rs`).

use std::sync::Arc;
use std::time::Duration;

use nilfs_ondisk::{BlockSize, Cno, FileBlock};

use super::inode::{Inode, InodeRef, Unlogged};
use super::journal::Journal;
use super::space::Needed;
use super::{Filesystem, Stopped};
use crate::checkpoints;
use crate::commit::{self, Effects, Frozen, MetadataChanges, MetadataOutcome};
use crate::error::{Error, Result};
use crate::host::atomic::{AtomicU64, Ordering};
use crate::host::{MutexGuard, RwLockWriteGuard};
use crate::log::segment_writer::{SegmentWriter, Stamp, Written};
use crate::overlay::{FrozenInode, Overlay};
use crate::recovery::SyncLog;

/// Inodes that are looked at, for those that can go, while the table is locked.
const EVICTED_AT_ONCE: usize = 1024;

/// The right to freeze: no transaction is open, and none can be.
pub(super) type Alone<'a> = RwLockWriteGuard<'a, ()>;

/// Whether a recovery was completed. The inner error is damage, or of the device, because of which no checkpoint can be made
/// of what sync logs have made durable, although all of that is there.
pub(super) type Begun = Result<()>;

/// What has been taken from memory and is not durable yet, or never will be.
#[derive(Debug, Default)]
pub(super) struct Exposed {
    pub(super) files: AtomicU64,
    pub(super) pages: AtomicU64,
    /// What was changed before is in a checkpoint (s since 1970).
    frozen: AtomicU64,
    /// What was changed before is durable (s since 1970).
    pub(super) since: AtomicU64,
}

impl Exposed {
    /// Nothing has been changed before this moment (s since 1970).
    pub(super) fn new(since: u64) -> Self {
        Self { since: AtomicU64::new(since), ..Self::default() }
    }

    fn add(&self, frozen: &Frozen) {
        let pages: usize = frozen.inodes.iter().map(|file| file.overlay.pages.len()).sum();
        self.files.fetch_add(frozen.inodes.len() as u64, Ordering::Relaxed);
        self.pages.fetch_add(pages as u64, Ordering::Relaxed);
    }

    fn committed(&self, frozen: u64) {
        self.frozen.store(frozen, Ordering::Relaxed);
    }

    fn flushed(&self) {
        self.files.store(0, Ordering::Relaxed);
        self.pages.store(0, Ordering::Relaxed);
        self.since.fetch_max(self.frozen.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Filesystem {
    /// Gets ready to write, and completes a recovery by a checkpoint.
    pub(super) fn begin(&self, log: &mut SegmentWriter, sync_logs: &[SyncLog]) -> Result<Begun> {
        self.refresh_space(log);
        if !log.is_recovering() {
            return Ok(Ok(()));
        }
        let claimed = self.roll_forward(log, sync_logs)?.and_then(|()| log.check_place());
        match self.complete_recovery(log, claimed).map_err(|error| log.cause(error)) {
            Err(error) if error.is_damage() || matches!(error, Error::Device { .. }) => {
                Ok(Err(error))
            }
            completed => completed.map(Ok),
        }
    }

    fn complete_recovery(&self, log: &mut SegmentWriter, claimed: Result<()>) -> Result<()> {
        self.or_stop(log, claimed)?;
        self.commit_locked(log, &MetadataChanges::default())?;
        self.flush_locked(log)?;
        log.finish_recovery(&self.stamp())?;
        self.refresh_space(log);
        Ok(())
    }

    /// Shows what was to be recovered, and leaves the volume as it is: no checkpoint can be made of it.
    pub(super) fn show_unrecovered(&self, damage: &Error) {
        tracing::error!(
            "what was written last is all there, but no checkpoint can be made of it, so nothing else \
             is written; nilfs fsck may repair the volume, and nilfs recover says what would be lost \
             without a repair: {damage}"
        );
        *self.stopped.write() = Some(Stopped::Unrecovered(damage.to_string()));
    }

    /// What the log's owner must know of the world.
    pub(super) fn stamp(&self) -> Stamp {
        Stamp { seconds: self.now().seconds, lifetime: self.lifetime() }
    }

    /// The interval that the volume itself asks for.
    pub(super) fn volume_commit_interval(&self) -> Option<Duration> {
        let seconds = self.log.lock().superblock().raw().s_c_interval.get();
        (seconds > 0).then(|| Duration::from_secs(seconds.into()))
    }

    /// Makes a checkpoint of everything that has changed; the last one, if nothing has. It is
    /// whole after a power cut, but not necessarily there: see [`Filesystem::sync`].
    ///
    /// # Errors
    /// [`Error::ReadOnly`], damage, a device error.
    pub fn commit(&self) -> Result<Cno> {
        let ticket = self.next_freeze();
        let mut log = self.write_ahead()?;
        self.commit_past(&mut log, ticket)?;
        self.finish_deleting(&mut log)?;
        Ok(log.cno())
    }

    /// Makes everything durable, which a volume that nobody can write is.
    ///
    /// # Errors
    /// As [`Filesystem::commit`].
    pub fn sync(&self) -> Result<()> {
        if self.rests() {
            return Ok(());
        }
        let ticket = self.next_freeze();
        let mut log = self.write_ahead()?;
        self.commit_past(&mut log, ticket)?;
        self.flush_locked(&mut log)?;
        if log.superblocks_lag() {
            self.write_superblock(&mut log)?;
        }
        Ok(())
    }

    /// The log, when everybody before has left it, if it can still be written. They may have failed,
    /// and then nobody may believe that anything became durable.
    pub(super) fn writable_log(&self) -> Result<MutexGuard<'_, SegmentWriter>> {
        let log = self.log.lock();
        self.check_writable()?;
        Ok(log)
    }

    /// Commits, closes the log, and marks the volume as clean, unless a file without a name is still
    /// open. Nothing can be changed afterwards.
    ///
    /// # Errors
    /// As [`Filesystem::commit`]; the volume is not marked as clean then.
    pub fn unmount(&self) -> Result<()> {
        // What a step of the cleaner moves is written without the log.
        let _between_steps = self.cleaner.pause();
        self.close()
    }

    /// As [`Filesystem::unmount`], between two steps of the cleaner.
    pub(super) fn close(&self) -> Result<()> {
        let written_ahead = self.write_ahead().map(drop);
        let mut log = self.log.lock();
        if log.is_closed() || self.unrecovered().is_some() {
            return Ok(());
        }
        written_ahead?;
        self.check_writable()?;
        {
            // A transaction that has begun is part of the last commit; those that begin later find
            // the volume unmounted.
            let _transaction = self.transactions.write();
            *self.stopped.write() = Some(Stopped::Unmounted);
        }
        self.commit_locked(&mut log, &MetadataChanges::default())?;
        self.finish_deleting(&mut log)?;
        self.flush_locked(&mut log)?;
        // A program that still has a file open without a name may be killed: the next mount looks for
        // such files.
        let has_orphans = !self.table.lock().orphans.is_empty();
        log.close(!has_orphans, &self.stamp())
    }

    /// Makes the checkpoints that delete the rest of large files.
    fn finish_deleting(&self, log: &mut SegmentWriter) -> Result<()> {
        while self.deleting.load(Ordering::Acquire) {
            self.commit_locked(log, &MetadataChanges::default())?;
        }
        Ok(())
    }

    /// Commits unless a freeze at or after `ticket` is in a checkpoint already.
    fn commit_past(&self, log: &mut SegmentWriter, ticket: u64) -> Result<()> {
        if self.committed_freeze() < ticket {
            self.commit_locked(log, &MetadataChanges::default())?;
        }
        Ok(())
    }

    /// The last freeze whose changes are in a checkpoint, as of now for a thread that has the log.
    pub(super) fn committed_freeze(&self) -> u64 {
        self.committed_freeze.load(Ordering::Acquire)
    }

    fn set_committed(&self, freeze: u64, at: u64) {
        self.committed_freeze.store(freeze, Ordering::Release);
        self.exposed.committed(at);
    }

    /// Makes a checkpoint of everything that has changed, and changes metadata with it. What stands in
    /// the way of these changes alone leaves them undone.
    pub(super) fn commit_locked(
        &self,
        log: &mut SegmentWriter,
        changes: &MetadataChanges,
    ) -> Result<MetadataOutcome> {
        self.release_freed(log);
        let (frozen, freeze) = {
            let alone = self.transactions.write();
            self.freeze(&alone)
        };
        self.commit_frozen(log, frozen, freeze, changes)
    }

    /// As [`Filesystem::commit_locked`], while no transaction is open, and none can be.
    pub(super) fn commit_alone(&self, log: &mut SegmentWriter, alone: &Alone<'_>) -> Result<()> {
        self.release_freed(log);
        let (frozen, freeze) = self.freeze(alone);
        self.commit_frozen(log, frozen, freeze, &MetadataChanges::default()).map(drop)
    }

    fn commit_frozen(
        &self,
        log: &mut SegmentWriter,
        frozen: Frozen,
        freeze: u64,
        changes: &MetadataChanges,
    ) -> Result<MetadataOutcome> {
        let now = self.now().seconds as u64;
        if frozen.is_empty() && changes.is_empty() && !log.is_recovering() {
            self.space.thaw();
            self.set_committed(freeze, now);
            return Ok(MetadataOutcome::default());
        }
        let done =
            self.write_and_publish(log, &frozen, changes, now, SegmentWriter::write_checkpoint);
        // What was frozen stays in memory after a failure, and can still be read.
        let done = done?;
        // Nobody but this function refers to what was frozen any more.
        let files = frozen.inodes.into_iter().filter_map(Arc::into_inner);
        let pages = files.flat_map(|file| file.overlay.pages.into_values());
        self.pool.recycle(pages.filter_map(|page| page.data));
        self.set_committed(freeze, now);
        if log.superblock_is_due(self.now().seconds) {
            self.flush_locked(log)?;
            self.write_superblock(log)?;
        }
        Ok(done)
    }

    /// Makes a checkpoint of what was frozen, and puts it in the place of the one before.
    pub(super) fn write_and_publish(
        &self,
        log: &mut SegmentWriter,
        frozen: &Frozen,
        changes: &MetadataChanges,
        now: u64,
        write: impl FnOnce(&mut SegmentWriter, &Frozen, &MetadataChanges, &Stamp) -> Result<Written>,
    ) -> Result<MetadataOutcome> {
        let flushes = log.flushes();
        let written = write(log, frozen, changes, &self.stamp());
        if log.flushes() != flushes {
            self.exposed.flushed();
        }
        let done = self
            .or_stop(log, written)
            .map(|written| self.publish(log, frozen, changes, written, now));
        self.exposed.add(frozen);
        done
    }

    /// Makes a checkpoint of changes of metadata alone: what programs have changed stays for the next.
    /// Unless sync logs have made some of it durable.
    pub(super) fn commit_metadata(
        &self,
        log: &mut SegmentWriter,
        changes: &MetadataChanges,
    ) -> Result<MetadataOutcome> {
        if log.needs_everything() {
            return self.commit_locked(log, changes);
        }
        self.release_freed(log);
        let now = self.now().seconds as u64;
        let flushes = log.flushes();
        let written = log.write_metadata_checkpoint(changes, &self.stamp());
        if log.flushes() != flushes {
            self.exposed.flushed();
        }
        let written = self.or_stop(log, written)?;
        Ok(self.publish(log, &Frozen::default(), changes, written, now))
    }

    pub(super) fn flush_locked(&self, log: &mut SegmentWriter) -> Result<()> {
        let flushed = log.flush();
        self.or_stop(log, flushed)?;
        self.exposed.flushed();
        Ok(())
    }

    /// Moves everything that has changed aside; writers go on in fresh overlays.
    fn freeze(&self, _alone: &Alone<'_>) -> (Frozen, u64) {
        let most = self.most_freed();
        let (mut blocks, mut waiting) = (0, false);
        let fits = |inode: &Inode| {
            // A damaged file may claim any number of blocks.
            let with_it = inode.unshared().sectors(1).saturating_add(blocks);
            let fits = blocks == 0 || with_it <= most * self.store.block_size().sectors();
            blocks = if fits { with_it } else { blocks };
            waiting |= !fits;
            fits
        };
        let (abandoned, dirty) = {
            let mut table = self.table.lock();
            (table.take_abandoned(fits), std::mem::take(&mut table.dirty))
        };
        let mut inodes = Vec::with_capacity(abandoned.len() + dirty.len());
        let mut unborn = Vec::new();
        for inode in abandoned {
            // Damage is met again by the commit that deletes the file.
            if self.shorten(&inode, &mut inode.state.write(), 0).unwrap_or(false) {
                inodes.push(freeze_inode(&inode, false, self.store.block_size()));
                let sectors = inode.state.read().file.raw.i_blocks.get();
                let blocks = sectors / self.store.block_size().sectors();
                self.table.lock().put_back(inode, blocks);
                waiting = true;
                continue;
            }
            let fresh = inode.state.read().fresh;
            if fresh {
                unborn.extend(inode.state.write().overlay.take_placed());
            }
            let given_back = self.numbers.lock().give_back(&self.view(), inode.ino());
            if let Err(error) = given_back {
                self.stop(&error);
            } else if !fresh {
                inodes.push(freeze_inode(&inode, true, self.store.block_size()));
            }
        }
        self.deleting.store(waiting, Ordering::Release);
        inodes.extend(
            dirty.values().map(|inode| freeze_inode(inode, false, self.store.block_size())),
        );
        inodes.sort_by_key(|frozen| frozen.ino);
        let numbers = self.numbers.lock().freeze();
        *self.journal.lock() = Journal::default();
        self.space.freeze();
        self.wakeup.frozen();
        let freeze = self.freezes.fetch_add(1, Ordering::AcqRel) + 1;
        (Frozen { inodes, numbers, unborn }, freeze)
    }

    /// Puts a checkpoint that was written in the place of the old one and the frozen changes.
    fn publish(
        &self,
        log: &SegmentWriter,
        frozen: &Frozen,
        changes: &MetadataChanges,
        written: Written,
        now: u64,
    ) -> MetadataOutcome {
        let Written { effects, refused } = written;
        let Some(effects) = effects else {
            self.space.thaw();
            return MetadataOutcome { refused, deleted_checkpoints: 0 };
        };
        self.account(&effects);
        if let Some(damage) = &effects.damage {
            self.stop(damage);
        }
        let done = if refused.is_none() { changes } else { &MetadataChanges::default() };
        self.cleaner.follow(&effects, done, now);
        // The old view is dropped when nothing is locked.
        drop(self.trees.publish(log.view()));
        // In the order in which they were frozen; not every inode has a map.
        let mut maps = effects.inodes.into_iter().peekable();
        for inode in &frozen.inodes {
            let map = maps.next_if(|map| map.ino == inode.ino);
            let known = self.table.lock().get(inode.ino);
            if let Some(known) = known.filter(|_| !inode.deleted) {
                let mut state = known.state.write();
                if inode.rolled_back.is_some() {
                    known.rolled_back(&mut state, inode.inode);
                }
                known.committed(&mut state, map.map(|map| (map.root, map.blocks)));
                if state.links() == 0 {
                    let sectors = state.file.raw.i_blocks.get();
                    let blocks = sectors / self.store.block_size().sectors();
                    self.table.lock().orphan_committed(inode.ino, blocks);
                }
            }
        }
        let needed = self.needed_blocks(log);
        self.space.committed(&self.store.geometry(), log, needed);
        // What was changed need not stay any more. Everything is looked at twice, once for its use,
        // but in parts: nobody should wait for all of it to go.
        let parts = 2 * self.table.lock().len() / EVICTED_AT_ONCE + 1;
        for _ in 0..parts {
            self.table.lock().evict(EVICTED_AT_ONCE);
        }
        MetadataOutcome { refused, deleted_checkpoints: effects.deleted_checkpoints }
    }

    /// Counts what a commit has written.
    fn account(&self, effects: &Effects) {
        let blocks: u64 = effects.written.iter().map(|(_, blocks)| blocks).sum();
        assert!(effects.user_blocks <= blocks, "a commit has written less than its users' blocks");
        self.written.data.fetch_add(effects.user_blocks, Ordering::Relaxed);
        self.written.metadata.fetch_add(blocks - effects.user_blocks, Ordering::Relaxed);
        self.written.user_blocks.fetch_add(effects.user_blocks, Ordering::Relaxed);
    }

    /// Lets the log have segments that the cleaner has freed, as far as nobody in this process can be
    /// reading there.
    pub(super) fn release_freed(&self, log: &mut SegmentWriter) {
        if log.release_freed() {
            self.refresh_space(log);
        }
    }

    /// Takes over what the device has room for.
    pub(super) fn refresh_space(&self, log: &SegmentWriter) {
        let needed = self.needed_blocks(log);
        self.space.refresh(&self.store.geometry(), log, needed);
    }

    /// Returns what must be kept when there is no room; `None` if that is not known.
    fn needed_blocks(&self, log: &SegmentWriter) -> Option<Needed> {
        let options = self.cleaner.options();
        if !options.enabled {
            return None;
        }
        if let Some(needed) = self.cleaner.needed_blocks() {
            return Some(needed);
        }
        // Without snapshots and the like, it is what the newest checkpoint has.
        let base = log.base();
        let cpfile = commit::root_of(&base.super_root.cpfile).ok()?;
        let header = checkpoints::header(log.source(), &cpfile).ok()?;
        let only_newest = header.ch_nsnapshots.get() == 0 && !options.keeps_hard();
        only_newest.then(|| {
            let metadata = [&base.super_root.dat, &base.super_root.cpfile, &base.super_root.sufile];
            let sectors = metadata.iter().map(|inode| inode.i_blocks.get());
            let sectors = sectors.fold(0, u64::saturating_add);
            let metadata = sectors / self.store.block_size().sectors();
            Needed { blocks: base.tree.blocks.saturating_add(metadata), last_kept: None }
        })
    }

    pub(super) fn write_superblock(&self, log: &mut SegmentWriter) -> Result<()> {
        let written = log.write_superblock(&self.stamp());
        self.or_stop(log, written)
    }

    /// Lets both superblocks name the newest checkpoint, which must be durable.
    pub(super) fn write_superblocks(&self, log: &mut SegmentWriter) -> Result<()> {
        let written = log.write_superblocks(&self.stamp());
        self.or_stop(log, written)
    }

    /// Passes the result of writing on. After an error of the device, or damage found while writing,
    /// nothing is written any more. Here `errors=continue` does not help: what was frozen could never
    /// be committed.
    pub(super) fn or_stop<T>(&self, log: &mut SegmentWriter, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.stop(error);
            let mut stopped = self.stopped.write();
            if !matches!(*stopped, Some(Stopped::Failed(_))) {
                *stopped = Some(Stopped::Failed(error.to_string()));
            }
            drop(stopped);
            log.fail();
        }
        result
    }
}

/// Moves the changes of an inode into a form that nobody changes any more.
fn freeze_inode(inode: &InodeRef, deleted: bool, block_size: BlockSize) -> Arc<FrozenInode> {
    let mut state = inode.state.write();
    let overlay: Overlay = std::mem::take(&mut state.overlay);
    let frozen = FrozenInode {
        ino: inode.ino(),
        inode: state.file.raw,
        overlay,
        deleted,
        rolled_back: None,
    };
    let frozen = Arc::new(frozen);
    state.frozen = Some(Arc::clone(&frozen));
    state.end_below = FileBlock(block_size.blocks_for(state.size()));
    state.dirty = false;
    state.unlogged = Unlogged::default();
    state.recorded = false;
    frozen
}

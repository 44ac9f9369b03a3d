//! Making changes durable: freezing them, writing checkpoints and data-sync logs, flushing, and
//! keeping the superblocks near (docs/format.md §17 to §5).
//!
//! # What may be written before what
//!
//! The logs of one segment need no order: recovery stops at the first that is not whole. But it
//! then looks once into the next segment. So a super root goes into a segment only when every log
//! in the segments before is durable.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use nilfs_ondisk::bmap::Root;
use nilfs_ondisk::superblock::{LogCursor, STATE_ERROR, STATE_VALID};
use nilfs_ondisk::{BlockSize, Cno, FileBlock, SegNum, Seq};
use zerocopy::little_endian::{U16, U64};

use super::cleaning::{Knowledge, Quarantine};
use super::inode::{Inode, InodeRef};
use super::{Filesystem, Stopped, resume};
use crate::checkpoints;
use crate::commit::{self, Barred, Base, Chores, Commit, Frozen, Request};
use crate::dat::DatEdit;
use crate::error::{Error, Result};
use crate::host::atomic::{AtomicU64, Ordering};
use crate::host::{Mutex, MutexGuard};
use crate::log::writer::LogWrite;
use crate::overlay::{FrozenInode, Overlay};
use crate::segments::SufileEdit;
use crate::superblocks::SuperblockWriter;
use crate::tree::{Era, View};
use crate::volume::Volume;

/// Seconds after which a superblock follows the log into another segment, so that a recovery has
/// little to scan.
const SUPERBLOCK_INTERVAL: i64 = 10;

/// Bytes of memory that a commit needs for each block that it frees.
const FREED_BLOCK_BYTES: u64 = 512;

/// Inodes that are looked at, for those that can go, while the table is locked.
const EVICTED_AT_ONCE: usize = 1024;

/// The end of the log and everything that only its writer needs.
pub(super) struct Log {
    pub(super) base: Base,
    pub(super) superblocks: SuperblockWriter,
    pub(super) barred: Barred,
    /// Clean segments behind the end to which the volume is about to shrink.
    pub(super) beyond_end: u64,
    /// What the cleaner knows of the blocks.
    pub(super) knowledge: Knowledge,
    /// Segments that were cleaned and wait to be written again.
    pub(super) quarantine: Quarantine,
    /// How often a snapshot was made or given up.
    pub(super) snapshot_changes: u64,
    /// The last freeze whose changes are in a checkpoint.
    pub(super) completed: u64,
    /// Data-sync logs were written since the last checkpoint.
    pub(super) synced: bool,
    /// The segment of the oldest log that may not be durable.
    unflushed: Option<SegNum>,
    /// Segment and time (s) of the last superblock.
    superblock_seq: Seq,
    superblock_time: i64,
    /// The next checkpoint has to be written even if nothing has changed: the chain of logs was cut
    /// by a recovery.
    pub(super) resumes: bool,
    /// Before the newest checkpoint took what had changed (s since 1970).
    frozen_at: u64,
    /// The superblocks say that the volume is in use.
    in_use: bool,
    pub(super) closed: bool,
}

/// What has been taken from memory and is not durable yet, or never will be.
#[derive(Debug, Default)]
pub(super) struct Exposed {
    pub(super) files: AtomicU64,
    pub(super) pages: AtomicU64,
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

    fn flushed(&self, frozen_at: u64) {
        self.files.store(0, Ordering::Relaxed);
        self.pages.store(0, Ordering::Relaxed);
        self.since.fetch_max(frozen_at, Ordering::Relaxed);
    }
}

/// What a commit has done beside making a checkpoint.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Why the chores are not done: there was no room for them, or something that they change cannot
    /// be read.
    pub(super) refused: Option<Error>,
    pub(super) deleted_checkpoints: u64,
}

impl Log {
    /// Gets ready to write after the newest checkpoint. `salvaged`: something was found in data-sync
    /// logs after an unclean end, and they are still needed until the next superblock.
    pub(super) fn open(volume: &Volume, salvaged: bool) -> Result<Self> {
        let (store, found) = (&volume.store, &volume.found);
        let newest = &found.newest;
        let source = volume.source();
        let entry = checkpoints::checkpoint(source, &volume.cpfile()?, found.cno)?;
        let view = volume.view(None)?;
        let mut sufile_edit = SufileEdit::new(source, volume.sufile()?);
        let needed: BTreeSet<SegNum> = match found.clean {
            true => BTreeSet::new(),
            false => found.needed(salvaged).collect(),
        };
        let position = match found.clean {
            true => resume::after(newest)?,
            false => resume::position(volume, &mut sufile_edit, &needed, salvaged)?,
        };
        let base = Base {
            tree: Arc::clone(&view.tree),
            dat: Arc::clone(&volume.dat),
            super_root: volume.super_root,
            ifile_inode: entry.cp_ifile_inode,
            position,
            last_log: newest.start,
            clean_segments: sufile_edit.clean_segments(source)?,
            dat_edit: DatEdit::new(&volume.dat),
            sufile_edit,
        };
        let mut superblocks = SuperblockWriter::new(*volume.superblock(), store.device());
        if !found.clean {
            // A superblock that was gone back to may still call the volume clean.
            let raw = superblocks.current_mut().raw_mut();
            raw.s_state = U16::new(raw.s_state.get() & !STATE_VALID);
        }
        Ok(Self {
            base,
            superblocks,
            barred: Barred { segments: needed, from: None },
            beyond_end: 0,
            knowledge: Knowledge::default(),
            quarantine: Quarantine::default(),
            snapshot_changes: 0,
            completed: 0,
            synced: false,
            unflushed: None,
            superblock_seq: newest.header.seq,
            superblock_time: 0,
            resumes: !found.clean,
            frozen_at: 0,
            in_use: false,
            closed: false,
        })
    }
}

impl Filesystem {
    /// Gets ready to write, and completes a recovery by a checkpoint.
    pub(super) fn begin(&self, log: &mut Log) -> Result<()> {
        self.refresh_space(log);
        if log.resumes {
            // The superblocks are about to say so, with the new checkpoint: they may name it only when
            // it is there. Until then recovery does not trust what they say.
            log.in_use = true;
            self.commit_locked(log, &Chores::default())?;
            self.flush_locked(log)?;
            // What was recovered is in the new checkpoint. But another process that has opened the
            // volume as it was found still needs it there.
            if !self.store.is_read_elsewhere() {
                log.barred.segments.clear();
            }
            self.refresh_space(log);
            self.write_in_use(log)?;
        }
        Ok(())
    }

    /// Says in the superblocks that the volume is in use, before the first log of this mount:
    /// recovery looks for logs without a checkpoint only on a volume that was not left clean. Who
    /// only looks at a volume does not pay for that, and leaves it as it was.
    pub(super) fn mark_in_use(&self, log: &mut Log) -> Result<()> {
        if log.in_use {
            return Ok(());
        }
        log.in_use = true;
        self.write_in_use(log)
    }

    fn write_in_use(&self, log: &mut Log) -> Result<()> {
        let now = self.now().seconds;
        let raw = log.superblocks.current_mut().raw_mut();
        raw.s_state = U16::new(raw.s_state.get() & !STATE_VALID);
        raw.s_mnt_count = U16::new(raw.s_mnt_count.get().saturating_add(1));
        raw.s_mtime = U64::new(now as u64);
        if raw.s_max_mnt_count.get() == 0 {
            raw.s_max_mnt_count = U16::new(50);
        }
        self.aim_superblocks(log);
        log.superblocks.write_all(self.store.device())
    }

    /// The interval that the volume itself asks for.
    pub(super) fn volume_commit_interval(&self) -> Option<Duration> {
        let log = self.log.as_ref()?.lock();
        let seconds = log.superblocks.current().raw().s_c_interval.get();
        (seconds > 0).then(|| Duration::from_secs(seconds.into()))
    }

    /// Makes a checkpoint of everything that has changed; the last one, if nothing has. It is
    /// whole after a power cut, but not necessarily there: see [`Filesystem::sync`].
    ///
    /// # Errors
    /// [`Error::ReadOnly`], damage, a device error.
    pub fn commit(&self) -> Result<Cno> {
        let Some(log) = &self.log else { return Ok(self.view().tree.cno) };
        let ticket = self.next_freeze();
        let mut log = self.lock_writable(log)?;
        self.commit_past(&mut log, ticket)?;
        self.finish_deleting(&mut log)?;
        Ok(log.base.tree.cno)
    }

    /// Makes everything durable, which a volume that nobody can write is.
    ///
    /// # Errors
    /// As [`Filesystem::commit`].
    pub fn sync(&self) -> Result<()> {
        let Some(log) = self.log.as_ref().filter(|_| !self.rests()) else { return Ok(()) };
        let ticket = self.next_freeze();
        let mut log = self.lock_writable(log)?;
        self.commit_past(&mut log, ticket)?;
        self.flush_locked(&mut log)?;
        if log.base.position.seq != log.superblock_seq {
            self.write_superblock(&mut log)?;
        }
        Ok(())
    }

    /// The log, when everybody before has left it. They may have failed, and then nobody may believe
    /// that anything became durable.
    pub(super) fn lock_writable<'a>(&self, log: &'a Mutex<Log>) -> Result<MutexGuard<'a, Log>> {
        let log = log.lock();
        self.check_writable()?;
        Ok(log)
    }

    /// Commits, closes the log, and marks the volume as clean, unless a file without a name is still
    /// open. Nothing can be changed afterwards.
    ///
    /// # Errors
    /// As [`Filesystem::commit`]; the volume is not marked as clean then.
    pub fn unmount(&self) -> Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        let mut log = log.lock();
        if log.closed {
            return Ok(());
        }
        self.check_writable()?;
        {
            // Whoever still has the gate is part of the last commit; nobody gets it any more.
            let _gate = self.gate.write();
            *self.stopped.write() = Some(Stopped::Unmounted);
        }
        log.closed = true;
        self.commit_locked(&mut log, &Chores::default())?;
        self.finish_deleting(&mut log)?;
        self.flush_locked(&mut log)?;
        // Who still has a file open that has no name any more may be killed: the next mount looks for it.
        let has_orphans = !self.table.lock().orphans.is_empty();
        if has_orphans || !std::mem::take(&mut log.in_use) {
            return Ok(());
        }
        self.aim_superblocks(&mut log);
        let raw = log.superblocks.current_mut().raw_mut();
        raw.s_state = U16::new(raw.s_state.get() | STATE_VALID);
        log.superblocks.write_all(self.store.device())
    }

    /// Makes the checkpoints that delete the rest of large files.
    fn finish_deleting(&self, log: &mut Log) -> Result<()> {
        while self.deleting.load(Ordering::Acquire) {
            self.commit_locked(log, &Chores::default())?;
        }
        Ok(())
    }

    /// Commits unless a freeze at or behind `ticket` is in a checkpoint already.
    fn commit_past(&self, log: &mut MutexGuard<'_, Log>, ticket: u64) -> Result<()> {
        if log.completed < ticket {
            self.commit_locked(log, &Chores::default())?;
        }
        Ok(())
    }

    /// Makes a checkpoint of everything that has changed, and does the chores with it. What stands in
    /// the way of the chores alone leaves these undone.
    pub(super) fn commit_locked(&self, log: &mut Log, chores: &Chores) -> Result<Outcome> {
        self.release_quarantine(log);
        let now = self.now().seconds as u64;
        let (frozen, freeze) = self.freeze();
        if frozen.is_empty() && chores.is_empty() && !log.resumes {
            self.space.thaw();
            log.completed = freeze;
            log.frozen_at = now;
            return Ok(Outcome::default());
        }
        let done = self.write_checkpoint(log, &frozen, chores);
        self.exposed.add(&frozen);
        log.synced = false;
        if done.is_ok() {
            // Nobody but this function refers to what was frozen any more.
            let files = frozen.inodes.into_iter().filter_map(Arc::into_inner);
            let pages = files.flat_map(|file| file.overlay.pages.into_values());
            self.pool.recycle(pages.map(|page| page.data));
        }
        if let Err(error) = &done {
            // What was frozen stays in memory and can still be read.
            self.stop_writing(log, error);
        }
        let done = done?;
        log.completed = freeze;
        log.frozen_at = now;
        log.resumes = false;
        let moved = log.base.position.seq != log.superblock_seq;
        if moved && self.now().seconds - log.superblock_time >= SUPERBLOCK_INTERVAL {
            self.flush_locked(log)?;
            self.write_superblock(log)?;
        }
        Ok(done)
    }

    /// Makes a checkpoint of the chores alone: what programs have changed stays for the next. Unless
    /// data-sync logs have made some of it durable, which recovery would not look for before this
    /// checkpoint.
    pub(super) fn commit_chores(&self, log: &mut Log, chores: &Chores) -> Result<Outcome> {
        if log.synced {
            return self.commit_locked(log, chores);
        }
        self.release_quarantine(log);
        let done = self.write_checkpoint(log, &Frozen::default(), chores);
        if let Err(error) = &done {
            self.stop_writing(log, error);
        }
        done
    }

    fn write_checkpoint(&self, log: &mut Log, frozen: &Frozen, chores: &Chores) -> Result<Outcome> {
        let now = self.now().seconds as u64;
        let request = Request { frozen, chores, barred: &log.barred, now };
        let idle = Chores::default();
        let (commit, chores, refused) = match commit::build(&self.store, &log.base, &request) {
            Err(error @ (Error::NoSpace | Error::Device { .. })) if !chores.is_empty() => {
                // A checkpoint of nothing would only take room.
                if frozen.is_empty() && !log.resumes {
                    self.space.thaw();
                    return Ok(Outcome { refused: Some(error), deleted_checkpoints: 0 });
                }
                let request = Request { chores: &idle, ..request };
                (commit::build(&self.store, &log.base, &request)?, &idle, Some(error))
            }
            built => (built?, chores, None),
        };
        let outcome = Outcome { refused, deleted_checkpoints: commit.deleted_checkpoints };
        let last = commit.logs.last().map(|log| log.segment);
        for write in &commit.logs {
            let crosses = log.unflushed.is_some_and(|segment| segment != write.segment);
            if crosses && Some(write.segment) == last {
                self.flush_locked(log)?;
            }
            self.write_log(log, write)?;
        }
        self.account(&commit);
        self.publish(log, frozen, chores, commit, now);
        Ok(outcome)
    }

    pub(super) fn write_log(&self, log: &mut Log, write: &LogWrite) -> Result<()> {
        self.mark_in_use(log)?;
        write.addresses().for_each(|block| self.store.forget(block));
        self.store.write_run(write.start, &write.pieces())?;
        log.unflushed.get_or_insert(write.segment);
        Ok(())
    }

    pub(super) fn flush_locked(&self, log: &mut Log) -> Result<()> {
        if log.unflushed.is_some() && self.options.barrier {
            let flushed = self.store.flush();
            if let Err(error) = &flushed {
                self.stop_writing(log, error);
            }
            flushed?;
        }
        log.unflushed = None;
        self.exposed.flushed(log.frozen_at);
        log.quarantine.flushed(log.quarantine.commits());
        Ok(())
    }

    /// Takes the last blocks from a file that is to be deleted, if it has more than `most`: the commit
    /// that frees them would need too much memory for all.
    fn shorten(&self, inode: &Inode, most: u64) -> bool {
        let mut state = inode.state.write();
        let context = self.context();
        // Damage is met again by the commit that deletes the file.
        let Ok(Some(from)) = inode.tail(&state, &context.view, most) else { return false };
        if inode.cut(&mut state, &context, from).is_err() {
            return false;
        }
        let size = from.0.saturating_mul(self.store.block_size().bytes64());
        let shorter = state.size().min(size);
        state.set_size(shorter);
        true
    }

    /// Takes everything that has changed out of the hands of those who change it.
    fn freeze(&self) -> (Frozen, u64) {
        let _gate = self.gate.write();
        let most = self.options.dirty_limit / FREED_BLOCK_BYTES;
        let (mut blocks, mut waiting) = (0, false);
        let fits = |inode: &Inode| {
            let own = inode.unshared().sectors(1);
            let fits = blocks == 0 || blocks + own <= most * self.store.block_size().sectors();
            blocks += if fits { own } else { 0 };
            waiting |= !fits;
            fits
        };
        let (abandoned, dirty) = {
            let mut table = self.table.lock();
            (table.take_abandoned(fits), std::mem::take(&mut table.dirty))
        };
        let mut inodes = Vec::with_capacity(abandoned.len() + dirty.len());
        for inode in abandoned {
            if self.shorten(&inode, most) {
                inodes.push(freeze_inode(&inode, false, self.store.block_size()));
                let sectors = inode.state.read().file.raw.i_blocks.get();
                let blocks = sectors / self.store.block_size().sectors();
                self.table.lock().put_back(inode, blocks);
                waiting = true;
                continue;
            }
            let fresh = inode.state.read().fresh;
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
        self.space.freeze();
        self.wakeup.frozen();
        let freeze = self.freezes.fetch_add(1, Ordering::AcqRel) + 1;
        (Frozen { inodes, numbers }, freeze)
    }

    /// Puts a new checkpoint in the place of the old one and the frozen changes.
    fn publish(&self, log: &mut Log, frozen: &Frozen, chores: &Chores, commit: Commit, now: u64) {
        log.knowledge.follow(&commit, chores, now);
        for (address, block) in commit.metadata {
            self.store.remember(address, block);
        }
        let moves = !chores.moved.is_empty() || !chores.cleaned.is_empty();
        let old = {
            let view = self.view();
            let era = if moves { Arc::new(Era(view.era.0 + 1)) } else { Arc::clone(&view.era) };
            let new = View {
                store: Arc::clone(&self.store),
                dat: Arc::clone(&commit.base.dat),
                tree: Arc::clone(&commit.base.tree),
                era,
            };
            self.trees.publish(new)
        };
        if moves {
            log.quarantine.add(&old.era, &chores.cleaned);
            log.barred.segments.extend(&chores.cleaned);
        }
        drop(old);
        for (segment, ..) in &chores.adopted {
            log.barred.segments.remove(segment);
        }
        log.base = commit.base;
        let mut maps: HashMap<_, (Root, u64)> = commit
            .inodes
            .into_iter()
            .map(|inode| (inode.ino, (inode.root, inode.blocks)))
            .collect();
        for inode in &frozen.inodes {
            let known = self.table.lock().get(inode.ino);
            if let Some(known) = known.filter(|_| !inode.deleted) {
                known.committed(&mut known.state.write(), maps.remove(&inode.ino));
            }
        }
        self.space.thaw();
        self.refresh_space(log);
        // What was changed need not stay any more. Everything is looked at twice, once for its use,
        // but in parts: nobody should wait for all of it to go.
        let parts = 2 * self.table.lock().len() / EVICTED_AT_ONCE + 1;
        for _ in 0..parts {
            self.table.lock().evict(EVICTED_AT_ONCE);
        }
    }

    /// Counts what a commit has written.
    fn account(&self, commit: &Commit) {
        let blocks: u64 = commit.written().map(|(_, blocks)| blocks).sum();
        let metadata = blocks.saturating_sub(commit.user_blocks);
        self.written.data.fetch_add(commit.user_blocks, Ordering::Relaxed);
        self.written.metadata.fetch_add(metadata, Ordering::Relaxed);
        self.written.user_blocks.fetch_add(commit.user_blocks, Ordering::Relaxed);
    }

    /// Takes over what the device has room for.
    pub(super) fn refresh_space(&self, log: &Log) {
        let clean = log.base.clean_segments.saturating_sub(log.barred.segments.len() as u64);
        let clean = clean.saturating_sub(log.beyond_end);
        let needed = self.needed_blocks(log);
        self.space.refresh(&self.store.geometry(), &log.base, clean, needed);
    }

    /// Blocks that must be kept when there is no room; `None` if that is not known.
    fn needed_blocks(&self, log: &Log) -> Option<u64> {
        let options = self.cleaner.options();
        if !options.enabled {
            return None;
        }
        if let Knowledge::Ready(known) = &log.knowledge {
            return Some(known.needed());
        }
        // Without snapshots and the like, it is what the newest checkpoint has.
        let base = &log.base;
        let cpfile = commit::root_of(&base.super_root.cpfile).ok()?;
        let header = checkpoints::header(base.source(&self.store), &cpfile).ok()?;
        let only_newest = header.ch_nsnapshots.get() == 0 && !options.keeps_hard();
        only_newest.then(|| {
            let metadata = [&base.super_root.dat, &base.super_root.cpfile, &base.super_root.sufile];
            let sectors: u64 = metadata.iter().map(|inode| inode.i_blocks.get()).sum();
            base.tree.blocks.saturating_add(sectors / self.store.block_size().sectors())
        })
    }

    pub(super) fn write_superblock(&self, log: &mut Log) -> Result<()> {
        self.mark_in_use(log)?;
        self.aim_superblocks(log);
        let written = log.superblocks.write_one(self.store.device());
        if let Err(error) = &written {
            self.stop_writing(log, error);
        }
        written
    }

    /// Lets the superblock in memory name the newest checkpoint.
    fn aim_superblocks(&self, log: &mut Log) {
        let now = self.now().seconds;
        let geometry = self.store.geometry();
        let per_segment = u64::from(geometry.blocks_per_segment);
        let free = log.base.clean_segments.saturating_mul(per_segment);
        let (block, cno) = (log.base.last_log, log.base.tree.cno);
        let seq = log.base.position.seq;
        let lifetime = self.lifetime();
        let superblock = log.superblocks.current_mut();
        lifetime.encode(superblock.raw_mut());
        superblock.set_last_log(LogCursor { block, seq, cno });
        superblock.raw_mut().s_free_blocks_count = U64::new(free);
        superblock.raw_mut().s_wtime = U64::new(now as u64);
        log.superblock_seq = seq;
        log.superblock_time = now;
    }

    /// After an error of the device or damage found while writing: stops, and leaves a note in the
    /// superblocks if they can be written.
    ///
    /// Here `errors=continue` does not help: what was frozen could never be committed.
    pub(super) fn stop_writing(&self, log: &mut Log, error: &Error) {
        self.stop(error);
        self.stopped.write().get_or_insert_with(|| Stopped::Failed(error.to_string()));
        let raw = log.superblocks.current_mut().raw_mut();
        raw.s_state = U16::new(raw.s_state.get() | STATE_ERROR);
        if let Err(error) = log.superblocks.write_all(self.store.device()) {
            tracing::error!("cannot note the error in the superblocks: {error}");
        }
    }
}

/// Moves the changes of an inode into a form that nobody changes any more.
fn freeze_inode(inode: &InodeRef, deleted: bool, block_size: BlockSize) -> Arc<FrozenInode> {
    let mut state = inode.state.write();
    let overlay: Overlay = std::mem::take(&mut state.overlay);
    let frozen =
        Arc::new(FrozenInode { ino: inode.ino(), inode: state.file.raw, overlay, deleted });
    state.frozen = Some(Arc::clone(&frozen));
    state.end_below = FileBlock(block_size.blocks_for(state.size()));
    state.dirty = false;
    state.attributes_changed = false;
    state.times_changed = false;
    frozen
}

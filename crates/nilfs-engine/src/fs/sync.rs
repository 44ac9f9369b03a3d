//! Making changes durable, as the files in memory see it: what a checkpoint takes of them, and what they take over
//! when it has been written. The order in which that is done is the writer's (`writer/mod.rs`).

use std::sync::Arc;
use std::time::Duration;

use nilfs_ondisk::{BlockSize, Cno, FileBlock};

use super::Filesystem;
use super::inode::{Inode, InodeRef, Unlogged};
use super::journal::Journal;
use crate::checkpoints;
use crate::commit::{self, Effects, Frozen, MetadataChanges};
use crate::error::{Error, Result};
use crate::log::segment_writer::SegmentWriter;
use crate::overlay::{FrozenInode, Overlay};
use crate::recovery::SyncLog;
use crate::writer::space::Needed;
use crate::writer::{Alone, Cleaned, Memory, Stopped};

/// Inodes that are looked at, for those that can go, while the table is locked.
const EVICTED_AT_ONCE: usize = 1024;

/// Whether a recovery was completed. The inner error is damage, or of the device, because of which no checkpoint can be made
/// of what sync logs have made durable, although all of that is there.
pub(super) type Begun = Result<()>;

impl Filesystem {
    /// Gets ready to write, and completes a recovery by a checkpoint.
    pub(super) fn begin(&self, sync_logs: &[SyncLog]) -> Result<Begun> {
        let mut session = self.writing().lock();
        session.refresh();
        if !session.is_recovering() {
            return Ok(Ok(()));
        }
        let claimed = self.roll_forward(&mut session, sync_logs)?;
        match session.complete_recovery(claimed).map_err(|error| session.cause(error)) {
            Err(error) if error.is_damage() || matches!(error, Error::Device { .. }) => {
                Ok(Err(error))
            }
            completed => completed.map(Ok),
        }
    }

    /// Shows what was to be recovered, and leaves the volume as it is: no checkpoint can be made of it.
    pub(super) fn show_unrecovered(&self, damage: &Error) {
        tracing::error!(
            "what was written last is all there, but no checkpoint can be made of it, so nothing else \
             is written; nilfs fsck may repair the volume, and nilfs recover says what would be lost \
             without a repair: {damage}"
        );
        self.writer.set_stopped(Some(Stopped::Unrecovered(damage.to_string())));
    }

    /// The interval that the volume itself asks for.
    pub(super) fn volume_commit_interval(&self) -> Option<Duration> {
        let seconds = self.writer.look().superblock().raw().s_c_interval.get();
        (seconds > 0).then(|| Duration::from_secs(seconds.into()))
    }

    /// Makes a checkpoint of everything that has changed; the last one, if nothing has. It is
    /// whole after a power cut, but not necessarily there: see [`Filesystem::sync`].
    ///
    /// # Errors
    /// [`Error::ReadOnly`], damage, a device error.
    pub fn commit(&self) -> Result<Cno> {
        self.writing().commit()
    }

    /// Makes everything durable, which a volume that nobody can write is.
    ///
    /// # Errors
    /// As [`Filesystem::commit`].
    pub fn sync(&self) -> Result<()> {
        if self.writer.rests() { Ok(()) } else { self.writing().sync() }
    }

    /// Commits, closes the log, and marks the volume as clean, unless a file without a name is still
    /// open. Nothing can be changed afterwards.
    ///
    /// # Errors
    /// As [`Filesystem::commit`]; the volume is not marked as clean then.
    pub fn unmount(&self) -> Result<()> {
        // What a step of the cleaner moves is written without the log.
        let _between_steps = self.cleaner.pause();
        self.writing().close()
    }
}

impl Memory for Filesystem {
    fn freeze(&self, _alone: &Alone<'_>) -> Frozen {
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
                self.writer.stop(&error);
            } else if !fresh {
                inodes.push(freeze_inode(&inode, true, self.store.block_size()));
            }
        }
        inodes.extend(
            dirty.values().map(|inode| freeze_inode(inode, false, self.store.block_size())),
        );
        inodes.sort_by_key(|frozen| frozen.ino);
        let numbers = self.numbers.lock().freeze();
        *self.journal.lock() = Journal::default();
        self.wakeup.frozen();
        Frozen { inodes, numbers, unborn, leaves_deletions: waiting }
    }

    fn published(&self, frozen: Frozen, changes: &MetadataChanges, effects: Effects, time: u64) {
        self.cleaner.follow(&effects, changes, time);
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
        // Nobody but this function refers to what was frozen any more.
        let files = frozen.inodes.into_iter().filter_map(Arc::into_inner);
        let pages = files.flat_map(|file| file.overlay.pages.into_values());
        self.pool.recycle(pages.filter_map(|page| page.data));
        // What was changed need not stay any more. Everything is looked at twice, once for its use,
        // but in parts: nobody should wait for all of it to go.
        let parts = 2 * self.table.lock().len() / EVICTED_AT_ONCE + 1;
        for _ in 0..parts {
            self.table.lock().evict(EVICTED_AT_ONCE);
        }
    }

    fn write_ahead(&self, syncs: u64) -> Result<()> {
        match self.writes_records() {
            true => self.write_pieces(self.dirty_inodes(), self.small_piece(), syncs),
            false => Ok(()),
        }
    }

    fn has_unwritten(&self) -> bool {
        self.writes_records() && self.has_unwritten_blocks(self.small_piece())
    }

    fn has_orphans(&self) -> bool {
        !self.table.lock().orphans.is_empty()
    }

    fn needed(&self, log: &SegmentWriter) -> Option<Needed> {
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

    fn cleaned(&self) -> Cleaned {
        self.cleaner.cleaned()
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

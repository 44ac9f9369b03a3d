//! Making the present what it was: one checkpoint in which all files, or those below a path, are again as
//! in an earlier one.
//!
//! Blocks of files that have ended since then live on: the end of their lives is taken back, so nothing
//! is read or written but metadata, and a full volume can be rolled back. A number stays the number of
//! one block, of the same file at the same place. What tells since when things are so is made anew: the
//! inode file, the blocks of directories, and the nodes of maps. So are the blocks of files that cannot
//! have their number again.
//!
//! The state before becomes a snapshot by the same checkpoint. Other operations wait from the moment in
//! which that state is fixed until it is replaced, so there is nothing between the two.

mod plan;
mod scope;

use std::collections::BTreeSet;
use std::sync::Arc;

use nilfs_ondisk::bmap::Root;
use nilfs_ondisk::inode::{FileType, RawInode};
use nilfs_ondisk::notes::MadeBy;
use nilfs_ondisk::{BlockSize, Cno, FileBlock, Ino, dirent};
use serde::{Deserialize, Serialize};
use zerocopy::little_endian::{U16, U32, U64};

use self::plan::{Leaving, Plan, Restored, plan};
use self::scope::{Scope, Subtree};
use super::Filesystem;
use super::directory::{Addition, Redirection};
use super::inode::{Context, Inode, InodeRef};
use super::snapshots::SnapshotChange;
use crate::block::{Block, bytes_mut, zeroed};
use crate::commit::{Frozen, MetadataChanges, SyncedFile, root_of};
use crate::error::{Error, Result};
use crate::host::Timestamp;
use crate::host::atomic::Ordering;
use crate::log::segment_writer::SegmentWriter;
use crate::overlay::{FrozenInode, Overlay, Page, Placed};
use crate::tree::content::Content;
use crate::tree::names::damaged;
use crate::tree::{File, Tree};
use crate::writer::Session;
use crate::writer::space::{Cost, Effect, Space};
use crate::xattr_file;

/// Blocks that are copied in memory; more are written before the checkpoint.
const COPIED_IN_MEMORY: usize = 1024;

/// What a rollback has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RolledBack {
    /// The state before, which is a snapshot now.
    pub before: Cno,
    /// The checkpoint in which everything is as it was; `None` if it was so already, and nothing was
    /// done.
    pub checkpoint: Option<Cno>,
    /// Files that are as they were.
    pub files: u64,
    /// Files that are gone, or have fewer names.
    pub removed: u64,
    /// Blocks that live on.
    pub revived_blocks: u64,
    /// Blocks that were written anew.
    pub copied_blocks: u64,
}

/// How far a rollback has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollbackProgress {
    /// Files that are ready for the checkpoint.
    pub files: u64,
    /// All that have changed.
    pub of: u64,
}

/// What a rollback has changed under the eyes of those who remember what they have seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stale {
    /// Files with another content or other attributes.
    pub inodes: Vec<Ino>,
    /// Names, and the directories that have or had them, that may lead to something else, or nothing.
    pub names: BTreeSet<(Ino, Vec<u8>)>,
}

/// Is told what a rollback has changed, when nothing is locked.
pub(super) type Witness = Box<dyn Fn(&Stale) + Send + Sync>;

/// How an attempt has ended.
enum Attempt {
    Done(RolledBack, Stale),
    NoRoom(Cost),
}

impl Filesystem {
    /// Has `witness` told what each rollback has changed. Only the first call counts.
    pub fn tell_of_rollbacks(&self, witness: impl Fn(&Stale) + Send + Sync + 'static) {
        // A volume has one front end.
        let _ = self.witness.set(Box::new(witness));
    }

    /// Makes all files, or those at a path and below it, what they were in a checkpoint, by a new one
    /// which is durable on return. The state before becomes a snapshot. The path begins at the root of
    /// the volume, symbolic links in it are not followed, and an empty one stands for everything.
    ///
    /// What has changed since then has the present for the time of its last change. Files that are open
    /// stay the files that they are, even if they lose their names. Calls `progress` now and then.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`], [`Error::NotInCheckpoint`], [`Error::NoDirectoryNow`],
    /// [`Error::NoRoomToRollBack`], [`Error::Busy`], [`Error::ReadOnly`], damage, a device error.
    pub fn roll_back(
        &self,
        to: Cno,
        path: &[u8],
        progress: &mut dyn FnMut(RollbackProgress),
    ) -> Result<RolledBack> {
        let Some(_alone) = self.remaking.try_lock() else { return Err(Error::Busy) };
        self.check_writable()?;
        let then = self.tree(Some(to))?;
        loop {
            match self.attempt(&then, path, progress)? {
                Attempt::Done(done, stale) => {
                    if let Some(witness) = self.witness.get().filter(|_| done.checkpoint.is_some())
                    {
                        witness(&stale);
                    }
                    return Ok(done);
                }
                Attempt::NoRoom(cost) => {
                    self.admitted(cost, || Ok(())).map_err(|error| self.no_room(error, cost))?;
                }
            }
        }
    }

    fn no_room(&self, error: Error, cost: Cost) -> Error {
        let Error::NoSpace = error else { return error };
        let (needed, free) = self.writer.space.needed_and_free(cost);
        let block = self.store.block_size().bytes64();
        Error::NoRoomToRollBack { needed: needed * block, free: free * block }
    }

    fn attempt(
        &self,
        then: &Tree,
        path: &[u8],
        progress: &mut dyn FnMut(RollbackProgress),
    ) -> Result<Attempt> {
        // A step that is under way may be about to give the numbers of dead blocks away.
        let _between_steps = self.cleaner.pause();
        let mut session = self.writing().write_ahead()?;
        let alone = self.writer.exclude_transactions();
        session.commit_alone(&alone)?;
        let cpfile = root_of(&session.base().super_root.cpfile)?;
        let now = self.writer.trees.open(session.source(), &cpfile, session.cno())?;
        let numbers = self.numbers.lock().clone();
        let done = plan(self, &now, then, path).and_then(|plan| {
            let cost = self.cost(&session, &plan);
            if plan.is_empty() {
                let nothing = RolledBack { before: now.cno(), ..RolledBack::default() };
                Ok(Attempt::Done(nothing, Stale::default()))
            } else if self.writer.space.fits(cost) {
                self.carry_out(&mut session, plan, &now, then, progress)
            } else {
                Ok(Attempt::NoRoom(cost))
            }
        });
        if !matches!(&done, Ok(Attempt::Done(done, _)) if done.checkpoint.is_some()) {
            *self.numbers.lock() = numbers;
        }
        self.table.lock().end_leaving();
        done
    }

    /// What a plan may change, at most.
    fn cost(&self, log: &SegmentWriter, plan: &Plan) -> Cost {
        let geometry = self.store.geometry();
        let sectors = geometry.block_size.sectors();
        // The smallest node that is made anew has a quarter of the entries that fit.
        let fewest = (geometry.block_size.bytes64() / 16 / 4).max(1);
        let nodes = |file: &Restored| {
            let blocks = file.then.raw.i_blocks.get() / sectors;
            (file.blocks.len() as u64).min(blocks / fewest + 3)
        };
        let nodes: u64 = plan.restored.iter().map(nodes).sum();
        let dat = log.base().super_root.dat.i_blocks.get() / sectors;
        let lives: u64 = plan.restored.iter().map(|file| file.blocks.len() as u64).sum();
        let layout = self.ifile_layout();
        let numbers = plan.restored.iter().map(|file| file.ino);
        let numbers = numbers.chain(plan.leaving.iter().map(|file| file.ino));
        let inodes: BTreeSet<FileBlock> = numbers.map(|ino| layout.entry(ino.0).block).collect();
        // A page counts for two blocks: itself, and the node above it.
        let notes = xattr_file::blocks(&log.view());
        let pages = plan.copied_blocks() + (nodes + lives.min(dat) + notes).div_ceil(2);
        let copies = plan.restored.iter().any(|file| file.is_copied());
        let effect = if copies { Effect::Grows } else { Effect::Changes };
        Cost { pages, inodes: 2 + inodes.len() as u64, effect }
    }

    fn carry_out(
        &self,
        session: &mut Session<'_>,
        plan: Plan,
        now: &Tree,
        then: &Tree,
        progress: &mut dyn FnMut(RollbackProgress),
    ) -> Result<Attempt> {
        let cost = self.cost(session, &plan);
        let changes = self.snapshot_before(session, now.cno(), then.cno())?;
        let mut making = Making::new(self, &plan, then);
        let made = making.frozen(session, now, progress);
        let Making { ahead, orphans, time, .. } = making;
        let frozen = match made {
            Ok(frozen) => frozen,
            Err(error) => return self.give_up(session, ahead, error, cost),
        };
        let outcome = session.commit_together(frozen, &changes, time.seconds as u64)?;
        if let Some(error) = outcome.refused {
            return self.give_up(session, ahead, error, cost);
        }
        self.note_orphans(&plan, orphans);
        session.flush()?;
        let done = RolledBack {
            before: now.cno(),
            checkpoint: Some(session.cno()),
            files: plan.restored.len() as u64,
            removed: plan.leaving.len() as u64,
            revived_blocks: plan.revived_blocks(),
            copied_blocks: plan.copied_blocks(),
        };
        Ok(Attempt::Done(done, plan.stale))
    }

    /// The state before a rollback becomes a snapshot, with a note that says so. Where notes cannot
    /// be written, because a later version has made them, it is a snapshot without one.
    fn snapshot_before(
        &self,
        log: &SegmentWriter,
        before: Cno,
        then: Cno,
    ) -> Result<MetadataChanges> {
        let text = format!("before the rollback to checkpoint {then}").parse().ok();
        let noted = SnapshotChange::Keep { cno: before, made_by: MadeBy::User, name: None, text };
        match self.changes_of_metadata(log, &[noted]) {
            Ok(changes) => Ok(changes),
            Err(failed @ Error::Device { .. }) => Err(failed),
            Err(_) => self.changes_of_metadata(log, &[SnapshotChange::plain(before, true)]),
        }
    }

    /// Takes note of files that have no name any more, or have one again.
    fn note_orphans(&self, plan: &Plan, orphans: Vec<(InodeRef, u64)>) {
        let mut table = self.table.lock();
        if !orphans.is_empty() {
            // A checkpoint deletes them when nobody has them open any more.
            self.wakeup.changed();
        }
        for (inode, blocks) in orphans {
            table.orphans.insert(inode.ino(), blocks);
        }
        for file in &plan.restored {
            table.orphans.remove(&file.ino);
        }
    }

    /// Lets go of blocks that were written ahead.
    fn give_up(
        &self,
        session: &mut Session<'_>,
        ahead: Vec<Placed>,
        error: Error,
        cost: Cost,
    ) -> Result<Attempt> {
        if !ahead.is_empty() {
            session.abandon(ahead)?;
        }
        Err(self.no_room(error, cost))
    }
}

/// A file that loses names. A directory that somebody still has open is empty, as any is that was
/// removed: what it had does not exist any more.
fn leaving(file: &Leaving, time: Timestamp, block_size: BlockSize) -> FrozenInode {
    let mut inode = file.raw;
    inode.i_links_count = U16::new(file.links);
    set_ctime(&mut inode, time);
    let mut overlay = Overlay::default();
    if inode.file_type() == Ok(FileType::Directory) && !file.is_unknown {
        let mut block = zeroed(block_size);
        dirent::format_first(bytes_mut(&mut block), file.ino, Ino::ROOT);
        overlay.insert(FileBlock(0), Page { data: Some(block), placed: None }, false);
        overlay.cut = Some(FileBlock(1));
        inode.i_size = U64::new(block_size.bytes64());
    }
    let (deleted, rolled_back) = (file.is_unknown, Some(Vec::new()));
    FrozenInode { ino: file.ino, inode, overlay, deleted, rolled_back }
}

fn set_ctime(inode: &mut RawInode, time: Timestamp) {
    inode.i_ctime = U64::new(time.seconds as u64);
    inode.i_ctime_nsec = U32::new(time.nanoseconds);
}

/// Makes what a commit takes of a plan.
struct Making<'a> {
    fs: &'a Filesystem,
    plan: &'a Plan,
    then: &'a Tree,
    time: Timestamp,
    /// Blocks that were written already.
    ahead: Vec<Placed>,
    /// Blocks in memory.
    pages: usize,
    /// Files that somebody knows and that lose their last name, with their blocks. They stay in memory
    /// until the checkpoint says so.
    orphans: Vec<(InodeRef, u64)>,
}

impl<'a> Making<'a> {
    fn new(fs: &'a Filesystem, plan: &'a Plan, then: &'a Tree) -> Self {
        let (ahead, orphans) = (Vec::new(), Vec::new());
        Self { fs, plan, then, time: fs.now(), ahead, pages: 0, orphans }
    }

    fn frozen(
        &mut self,
        session: &mut Session<'_>,
        now: &Tree,
        progress: &mut dyn FnMut(RollbackProgress),
    ) -> Result<Frozen> {
        let plan = self.plan;
        let of = (plan.restored.len() + plan.leaving.len()) as u64;
        let mut inodes = Vec::new();
        for (file, files) in plan.restored.iter().zip(1..) {
            inodes.push(self.restored(session, file)?);
            progress(RollbackProgress { files, of });
        }
        let block_size = self.fs.store.block_size();
        for file in &plan.leaving {
            inodes.push(leaving(file, self.time, block_size));
            if file.links == 0 && !file.is_unknown {
                let blocks = file.raw.i_blocks.get() / block_size.sectors();
                self.orphans.push((self.fs.get(file.ino)?, blocks));
            }
        }
        if let Some(subtree) = plan.scope.subtree() {
            inodes.extend(self.renamed(subtree, now)?);
        }
        inodes.sort_by_key(|frozen| frozen.ino);
        let inodes = inodes.into_iter().map(Arc::new).collect();
        let numbers = self.fs.numbers.lock().freeze();
        Ok(Frozen { inodes, numbers, ..Frozen::default() })
    }

    /// The directory that has the name of what is rolled back, if the name is new or leads to another
    /// file.
    fn renamed(&self, subtree: &Subtree, now: &Tree) -> Result<Option<FrozenInode>> {
        let top = &subtree.past;
        let ino = self.plan.numbers.get(&top.ino()).copied().unwrap_or(top.ino());
        let is_directory = |file: &File| file.file_type() == FileType::Directory;
        let known = subtree.present.as_ref();
        let leads_there =
            known.is_some_and(|known| known.ino() == ino && known.file_type() == top.file_type());
        if leads_there {
            return Ok(None);
        }
        // What is changed here is part of no account.
        let space = Space::default();
        let context = Context { view: Arc::new(now.view()), space: &space, ..self.fs.context() };
        let inode = Inode::new(subtree.directory.ino(), subtree.directory.raw, false)?;
        let mut state = inode.unshared();
        let (name, file_type) = (&subtree.name[..], top.file_type());
        match known {
            Some(_) => {
                let known = Redirection::prepare(&mut state, &context, name)?;
                known.apply(&mut state, &context, (ino, file_type));
            }
            None => {
                let new = Addition::prepare(&mut state, &context, name)?;
                new.apply(&mut state, &context, (ino, file_type));
            }
        }
        let links = state.links() - u16::from(known.is_some_and(is_directory))
            + u16::from(is_directory(top));
        state.set_links(links);
        state.file.set_mtime(self.time);
        state.file.set_ctime(self.time);
        let overlay = std::mem::take(&mut state.overlay);
        let (ino, raw) = (inode.ino(), state.file.raw);
        let rolled_back = Some(Vec::new());
        Ok(Some(FrozenInode { ino, inode: raw, overlay, deleted: false, rolled_back }))
    }

    fn restored(&mut self, session: &mut Session<'_>, file: &Restored) -> Result<FrozenInode> {
        let mut inode = file.then.raw;
        inode.i_links_count = U16::new(file.links);
        // Programs that look for changes must see that there was one.
        set_ctime(&mut inode, self.time);
        if file.ino != file.then.ino() {
            let generation = self.fs.generation.fetch_add(1, Ordering::Relaxed);
            inode.i_generation = U32::new(generation);
        }
        if file.then.file_type().has_blocks() {
            let has_blocks = |raw: &RawInode| raw.file_type().is_ok_and(FileType::has_blocks);
            let base = file.base.filter(has_blocks);
            inode.i_bmap = base.map_or_else(|| Root::default().encode(), |base| base.i_bmap);
            inode.i_blocks = base.map_or(U64::ZERO, |base| base.i_blocks);
        }
        let mut overlay = Overlay { cut: file.cut, ..Overlay::default() };
        for keys in file.copied.chunks(self.at_once()) {
            let pages = keys.iter().map(|key| Ok((*key, self.block(file, *key)?)));
            let pages = pages.collect::<Result<Vec<_>>>()?;
            self.pages += pages.len();
            if self.pages <= COPIED_IN_MEMORY {
                let page = |data| Page { data: Some(data), placed: None };
                overlay.pages.extend(pages.into_iter().map(|(key, data)| (key, page(data))));
                continue;
            }
            let written = [SyncedFile { ino: file.ino, pages }];
            let placed = session.write_files_ahead(&written)?.ok_or(Error::NoSpace)?.placed;
            let placed: Vec<Placed> = placed.into_iter().flatten().collect();
            self.ahead.extend(&placed);
            let page = |placed| Page { data: None, placed: Some(placed) };
            let pages = keys.iter().zip(placed).map(|(key, placed)| (*key, page(placed)));
            overlay.pages.extend(pages);
        }
        let rolled_back = Some(file.blocks.clone());
        Ok(FrozenInode { ino: file.ino, inode, overlay, deleted: false, rolled_back })
    }

    /// Blocks that are copied together, a part of a segment.
    fn at_once(&self) -> usize {
        (self.fs.store.geometry().blocks_per_segment as usize / 8).clamp(1, 64)
    }

    /// A block of the past as it is to be written: a directory's has the numbers that files have now.
    fn block(&self, file: &Restored, key: FileBlock) -> Result<Block> {
        let view = self.then.view();
        let missing = || Error::missing(format_args!("block {key} of inode {}", file.then.ino()));
        let mut block = file.then.block(&view, key)?.ok_or_else(missing)?;
        if file.then.file_type() != FileType::Directory {
            return Ok(block);
        }
        let mut targets = Vec::new();
        for record in dirent::records(&block) {
            let record = record.map_err(damaged(file.then.ino(), key))?;
            if let Some(ino) = self.number_now(file, record.ino).filter(|_| record.is_used()) {
                targets.push((record.offset, ino));
            }
        }
        for (offset, ino) in targets {
            dirent::set_ino(bytes_mut(&mut block), offset, ino);
        }
        Ok(block)
    }

    /// The number that a file has now, if that is another one than a directory had for it.
    fn number_now(&self, directory: &Restored, ino: Ino) -> Option<Ino> {
        if let Scope::Below(subtree) = &self.plan.scope
            && directory.then.ino() == subtree.past.ino()
            && ino == subtree.past_directory
        {
            return Some(subtree.directory.ino());
        }
        self.plan.numbers.get(&ino).copied()
    }
}

//! Rolling forward: what sync logs have made durable after the newest checkpoint, put on top of it in
//! memory (docs/format.md §16). Blocks stay where they lie; only those of which a record has some bytes
//! are read.
//!
//! The result is what it would be if the operations were done again: inodes with an overlay. What
//! becomes of them is the caller's affair; a mount that only reads shows them as they are.
//!
//! A block of a directory that cannot be read costs the names in it, as everywhere: a name that is to go and is
//! nowhere else may be there, and stays there. One that is to come gets a place in another block.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nilfs_ondisk::inode::{FileType, RawInode};
use nilfs_ondisk::roll_forward::{
    BytesRecord, ContentRecord, ExtentRecord, InodeRecord, NameRecord, Record, Time,
};
use nilfs_ondisk::{BlockNr, FileBlock, Ino, dirent};
use zerocopy::little_endian::{U16, U32, U64};

use super::blocks::Ready;
use super::data::Tail;
use super::directory::{self, Addition, Redirection, Removal};
use super::inode::{Context, Inode, InodeRef};
use crate::block::{BlockPool, bytes_mut, zeroed};
use crate::error::{Error, Result};
use crate::host::Timestamp;
use crate::overlay::{Overlay, Placed};
use crate::recovery::{LoggedBlock, RollForward, SyncLog};
use crate::tree::{File, View};
use crate::writer::space::Space;

/// Every inode that sync logs have changed, as it is after them.
#[derive(Debug, Default)]
pub(super) struct Replayed {
    pub(super) inodes: BTreeMap<Ino, InodeRef>,
}

/// Puts the sync logs on top of the checkpoint that the context shows.
///
/// # Errors
/// [`Error::RollForward`] if records contradict the checkpoint or each other, a device error.
pub(super) fn replay(context: &Context<'_>, logs: &[SyncLog]) -> Result<Replayed> {
    let mut replay = Replay::new(context);
    for log in logs {
        replay.log(log).map_err(|error| match error {
            Error::Device { .. } => error,
            fault => Error::RollForward(Box::new(fault)),
        })?;
    }
    Ok(Replayed { inodes: replay.inodes })
}

/// Content of files that sync logs put on top of a checkpoint.
#[derive(Debug, Default)]
pub struct SyncedContent {
    /// Blocks that lie in logs, and are taken over from there.
    pub placed: BTreeMap<BlockNr, (Ino, FileBlock)>,
    /// Blocks that are not what was written, with bytes that were synced and are lost with them.
    pub lost: BTreeSet<(Ino, FileBlock)>,
}

/// Returns what sync logs have of the content of files, but for what later ones replace.
///
/// # Errors
/// As [`replay`], without what it was that contradicts.
pub(crate) fn synced_content(view: View, logs: &[SyncLog]) -> Result<SyncedContent> {
    let (space, pool) = (Space::default(), BlockPool::new(view.store.block_size(), 0));
    let view = Arc::new(view);
    let context = Context { view, space: &space, pool: &pool, index_limit: 0 };
    let mut replay = Replay::new(&context);
    logs.iter().try_for_each(|log| replay.log(log))?;
    let mut content = SyncedContent::default();
    for (ino, inode) in replay.inodes {
        let state = inode.state.read();
        if state.links() == 0 {
            continue;
        }
        let pages = state.overlay.pages.iter().filter(|(_, page)| page.data.is_none());
        let pages = pages.filter_map(|(key, page)| Some((page.placed?.block, (ino, *key))));
        content.placed.extend(pages);
        content.lost.extend(replay.lost.iter().filter(|(of, _)| *of == ino));
    }
    Ok(content)
}

/// What can be rolled forward, without the logs from the first on that contradicts the checkpoint or
/// those before it.
///
/// # Errors
/// A device error.
pub(crate) fn without_contradictions(view: View, found: RollForward) -> Result<RollForward> {
    let (space, pool) = (Space::default(), BlockPool::new(view.store.block_size(), 0));
    let view = Arc::new(view);
    let context = Context { view, space: &space, pool: &pool, index_limit: 0 };
    let mut replay = Replay::new(&context);
    let refused = found.logs.iter().enumerate().find_map(|(nth, log)| {
        let fault = replay.log(log).err()?;
        Some((nth, fault))
    });
    match refused {
        None => Ok(found),
        Some((nth, fault)) => found.before_contradiction(nth, fault),
    }
}

/// The files that sync logs have changed, for those who only read: those that are gone have no links.
///
/// # Errors
/// As for a mount that writes.
pub(crate) fn replayed_files(
    view: View,
    logs: &[SyncLog],
    names_limit: usize,
) -> Result<BTreeMap<Ino, (File, Overlay)>> {
    let (space, pool) = (Space::default(), BlockPool::new(view.store.block_size(), 0));
    let sectors = view.store.block_size().sectors();
    let view = Arc::new(view);
    let context = Context { view, space: &space, pool: &pool, index_limit: names_limit };
    let files = replay(&context, logs)?.inodes.into_iter().map(|(ino, inode)| {
        let mut state = inode.unshared();
        let mut file = state.file.clone();
        file.raw.i_blocks = U64::new(state.sectors(sectors));
        (ino, (file, std::mem::take(&mut state.overlay)))
    });
    Ok(files.collect())
}

struct Replay<'a> {
    context: &'a Context<'a>,
    inodes: BTreeMap<Ino, InodeRef>,
    /// Blocks of which a part was synced that is lost with the rest.
    lost: BTreeSet<(Ino, FileBlock)>,
}

impl<'a> Replay<'a> {
    fn new(context: &'a Context<'a>) -> Self {
        Self { context, inodes: BTreeMap::new(), lost: BTreeSet::new() }
    }

    fn log(&mut self, log: &SyncLog) -> Result<()> {
        let Some(records) = &log.records else {
            return log.blocks.iter().try_for_each(|block| self.block_of_linux(block));
        };
        records.records.iter().try_for_each(|record| match record {
            Record::Inode(record) => self.inode(record),
            Record::Name(record) => self.name(record),
            Record::Content(record) => self.content(record),
            Record::Bytes(record) => self.bytes(record),
            Record::Extent(record) => self.extent(record),
        })?;
        log.blocks.iter().try_for_each(|block| self.block_within(block))
    }

    /// An inode as it is so far.
    fn get(&mut self, ino: Ino) -> Result<InodeRef> {
        if let Some(known) = self.inodes.get(&ino) {
            return Ok(Arc::clone(known));
        }
        let in_checkpoint = self.in_checkpoint(ino)?;
        let raw = in_checkpoint.ok_or_else(|| contradiction(ino, "there is no such inode"))?;
        Ok(self.insert(Inode::new(ino, raw, false)?))
    }

    /// An inode of the checkpoint. On a damaged volume, one to which names led can be missing in the
    /// bitmap: the writer of the log had no need to look there.
    fn in_checkpoint(&self, ino: Ino) -> Result<Option<RawInode>> {
        let view = &self.context.view;
        if self.has_number(ino)? {
            return view.raw_inode(ino).map(Some);
        }
        match view.inode(ino) {
            Err(Error::Stale) => Ok(None),
            // The writer may have made it in a block of the ifile that cannot be read.
            Err(damage) if damage.is_damage() => Ok(None),
            found => found.map(Some),
        }
    }

    /// Whether the bitmap says that an inode is in use. Where it cannot be read, the inode tells.
    fn has_number(&self, ino: Ino) -> Result<bool> {
        match self.context.view.has_inode(ino) {
            Err(error) if error.is_of_block() => Ok(false),
            has => has,
        }
    }

    /// Whether a record is of an inode that the checkpoint does not have.
    fn is_new(&self, record: &InodeRecord) -> Result<bool> {
        if self.inodes.contains_key(&record.ino) || self.has_number(record.ino)? {
            return Ok(false);
        }
        let in_checkpoint = self.in_checkpoint(record.ino)?;
        Ok(in_checkpoint.is_none_or(|raw| raw.i_generation.get() != record.generation))
    }

    fn insert(&mut self, inode: Inode) -> InodeRef {
        let inode = Arc::new(inode);
        self.inodes.insert(inode.ino(), Arc::clone(&inode));
        inode
    }

    /// An inode with content of this generation.
    fn same(&mut self, ino: Ino, generation: u32) -> Result<InodeRef> {
        let inode = self.get(ino)?;
        let found = inode.state.read().file.raw.i_generation.get();
        match found == generation {
            true => Ok(inode),
            false => Err(contradiction(ino, "it is another file")),
        }
    }

    fn inode(&mut self, record: &InodeRecord) -> Result<()> {
        let ino = record.ino;
        let inode = match self.is_new(record)? {
            true => self.new_inode(record)?,
            false => self.same(ino, record.generation)?,
        };
        let file_type = FileType::from_mode(record.mode);
        if file_type != Some(inode.file_type()) {
            return Err(contradiction(ino, "it is a file of another type"));
        }
        let mut state = inode.state.write();
        let raw = &mut state.file.raw;
        raw.i_mode = U16::new(record.mode);
        raw.i_links_count = U16::new(record.links);
        raw.i_uid = U32::new(record.uid);
        raw.i_gid = U32::new(record.gid);
        raw.i_flags = U32::new(record.flags);
        state.file.set_ctime(timestamp(record.changed));
        if let Some(modified) = record.modified {
            state.file.set_mtime(timestamp(modified));
        }
        if inode.file_type() == FileType::Directory && record.links > 0 {
            let parent = (Ino(record.device_or_parent), FileType::Directory);
            let found = Redirection::prepare_parent(&state, self.context);
            if let Some(redirection) = unless_damaged(ino, found)? {
                redirection.apply(&mut state, self.context, parent);
            }
        }
        Ok(())
    }

    fn new_inode(&mut self, record: &InodeRecord) -> Result<InodeRef> {
        let mut raw = RawInode::zeroed();
        raw.i_mode = U16::new(record.mode);
        raw.i_generation = U32::new(record.generation);
        let inode = self.insert(Inode::new(record.ino, raw, true)?);
        let mut state = inode.state.write();
        match inode.file_type() {
            FileType::Directory => {
                let block_size = self.context.view.store.block_size();
                let mut block = zeroed(block_size);
                let parent = Ino(record.device_or_parent);
                dirent::format_first(bytes_mut(&mut block), record.ino, parent);
                state.apply_whole(self.context, Ready::first(block));
                state.set_size(block_size.bytes64());
            }
            FileType::CharDevice | FileType::BlockDevice => {
                let device = record.device_or_parent.to_le_bytes();
                state.file.raw.i_bmap[..8].copy_from_slice(&device);
            }
            _ => {}
        }
        drop(state);
        Ok(inode)
    }

    fn name(&mut self, record: &NameRecord) -> Result<()> {
        let dir = self.get(record.directory)?;
        if dir.file_type() != FileType::Directory {
            return Err(contradiction(record.directory, "it is no directory"));
        }
        let mut state = dir.state.write();
        let (context, name) = (self.context, &record.name[..]);
        let found = directory::lookup(&mut state, context, name);
        match (record.target, unless_damaged(dir.ino(), found)?.flatten()) {
            (Some(target), Some(_)) => {
                let known = Redirection::prepare(&mut state, context, name)?;
                known.apply(&mut state, context, target);
            }
            (Some(target), None) => {
                Addition::prepare(&mut state, context, name)?.apply(&mut state, context, target);
            }
            (None, Some(at)) => {
                let known = Removal::prepare(&state, context, name, at, None)?;
                known.apply(&mut state, context);
            }
            (None, None) => {}
        }
        Ok(())
    }

    fn content(&mut self, record: &ContentRecord) -> Result<()> {
        let inode = self.same(record.ino, record.generation)?;
        if !matches!(inode.file_type(), FileType::Regular | FileType::Symlink) {
            return Err(contradiction(record.ino, "it is no file with content"));
        }
        let mut state = inode.state.write();
        let mut cut = record.cut;
        if record.size < state.size() {
            match Tail::prepare(&state, self.context, record.size) {
                Ok(Some(tail)) => tail.apply(&mut state, self.context),
                Ok(None) => {}
                Err(damage) if damage.is_of_block() => {
                    self.lost_with_block(record.ino, record.size, &damage);
                }
                Err(error) => return Err(error),
            }
            let end = FileBlock(self.context.view.store.block_size().blocks_for(record.size));
            cut = Some(cut.map_or(end, |cut| cut.min(end)));
        }
        if let Some(cut) = cut {
            let cut = state.prepare_cut(&self.context.view, cut)?;
            state.apply_cut(self.context, cut);
        }
        state.set_size(record.size);
        state.file.set_mtime(timestamp(record.modified));
        state.file.set_ctime(timestamp(record.changed));
        Ok(())
    }

    fn bytes(&mut self, record: &BytesRecord) -> Result<()> {
        let inode = self.get(record.ino)?;
        let block_size = self.context.view.store.block_size();
        let start = (record.offset % block_size.bytes64()) as usize;
        let within = start..start + record.bytes.len();
        if !inode.file_type().has_blocks() || within.end > block_size.bytes() {
            return Err(contradiction(record.ino, "its bytes lie in no block"));
        }
        let key = block_size.block_of(record.offset);
        self.check_end(&inode, key)?;
        let mut state = inode.state.write();
        match state.prepare_part(self.context, key) {
            Ok(ready) => {
                let bytes = state.apply_part(self.context, ready, within);
                bytes.copy_from_slice(&record.bytes);
            }
            Err(damage) if damage.is_of_block() => {
                self.lost_with_block(record.ino, record.offset, &damage);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Takes note that what was fsynced of a part of a block is lost with the rest of it. With a checksum that
    /// fits, nothing would tell of the damage any more.
    fn lost_with_block(&mut self, ino: Ino, offset: u64, damage: &Error) {
        tracing::error!(
            "inode {ino}: what was fsynced at offset {offset} is lost with the block that it is in: {damage}"
        );
        self.lost.insert((ino, self.context.view.store.block_size().block_of(offset)));
    }

    /// Blocks of one earlier log, which are in one segment.
    fn extent(&mut self, record: &ExtentRecord) -> Result<()> {
        let geometry = self.context.view.store.geometry();
        let last = record.block.plus(u64::from(record.count) - 1);
        let segment = geometry.segment_of(record.block);
        if !geometry.has_block(record.block) || last >= geometry.segment_end(segment) {
            return Err(contradiction(record.ino, "its blocks lie in no segment"));
        }
        (0..u64::from(record.count)).try_for_each(|nth| {
            let (vblocknr, block) = (record.vblocknr.plus(nth), record.block.plus(nth));
            let key = FileBlock(record.offset.0 + nth);
            let placed = Placed { vblocknr, block };
            self.block_within(&LoggedBlock { ino: record.ino, key, placed })
        })
    }

    /// A block of a file whose size is known by then.
    fn block_within(&mut self, block: &LoggedBlock) -> Result<()> {
        let inode = self.get(block.ino)?;
        self.check_end(&inode, block.key)?;
        self.block(block)
    }

    fn check_end(&self, inode: &Inode, key: FileBlock) -> Result<()> {
        let blocks = self.context.view.store.block_size().blocks_for(inode.state.read().size());
        match key.0 < blocks {
            true => Ok(()),
            false => Err(contradiction(inode.ino(), "its content lies beyond its end")),
        }
    }

    fn block(&mut self, block: &LoggedBlock) -> Result<()> {
        let inode = self.get(block.ino)?;
        if !matches!(inode.file_type(), FileType::Regular | FileType::Symlink) {
            return Err(contradiction(block.ino, "it is no file with content"));
        }
        let mut state = inode.state.write();
        self.lost.remove(&(block.ino, block.key));
        state.place(self.context, block.key, block.placed)
    }

    /// Linux syncs the data of a file that has lost its last name, too.
    fn block_of_linux(&mut self, block: &LoggedBlock) -> Result<()> {
        let is_there = |view: &View| match view.inode(block.ino) {
            Err(Error::Stale) => Ok(false),
            other => other.map(|_| true),
        };
        if !self.inodes.contains_key(&block.ino) && !is_there(&self.context.view)? {
            tracing::warn!("dropped synced data of the deleted file {}", block.ino);
            return Ok(());
        }
        self.block(block)
    }
}

/// What was found of a name, unless that is in a block that cannot be read.
fn unless_damaged<T>(dir: Ino, found: Result<T>) -> Result<Option<T>> {
    match found {
        Err(damage) if damage.is_fault() => {
            tracing::error!(
                "a name of directory {dir} was synced and may be in a block that cannot be read; nilfs fsck \
                 says what can be done: {damage}"
            );
            Ok(None)
        }
        found => found.map(Some),
    }
}

fn timestamp(time: Time) -> Timestamp {
    Timestamp { seconds: time.seconds as i64, nanoseconds: time.nanoseconds }
}

fn contradiction(ino: Ino, why: &str) -> Error {
    Error::Inconsistent(format!("roll-forward records of inode {ino} cannot be applied: {why}"))
}

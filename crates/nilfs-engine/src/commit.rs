//! A commit as a function: from the newest checkpoint and frozen changes to the logs that make a
//! new checkpoint of them (docs/format.md §18). It reads what it must know of the old state and
//! writes nothing.
//!
//! The order of work follows from what depends on what:
//!
//! 1. User files and the xattr file, then the ifile: their blocks get virtual numbers, so their maps are complete
//!    before any address is known.
//! 2. The checkpoint entry in the cpfile needs the ifile's map and the counters: known now.
//! 3. The sufile and the DAT depend on how many segments the logs take, which depends on their own
//!    size: tried with more segments until it fits.
//! 4. The layout gives every block its address. The DAT entries, the DAT's own map, the segment
//!    usages and the super root are filled in.

mod metadata_changes;
mod moved;
mod sync_log;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nilfs_ondisk::bmap::{Root, encode_node};
use nilfs_ondisk::checkpoint::{MINOR, RawCheckpoint};
use nilfs_ondisk::dat::DatEntry;
use nilfs_ondisk::inode::{INODE_SIZE, RawInode};
use nilfs_ondisk::palloc::Palloc;
use nilfs_ondisk::summary::{BlockInfo, FileInfo, LOGBGN, LOGEND, SR};
use nilfs_ondisk::super_root::SuperRoot;
use nilfs_ondisk::superblock::LogCursor;
use nilfs_ondisk::{BlockNr, Cno, FileBlock, Ino, SegNum, VBlockNr};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

pub(crate) use self::metadata_changes::{FilledSegment, MetadataChanges, MetadataOutcome};
pub(crate) use self::moved::{
    MovedBlock, MovedLogs, OffChain, SegmentHead, build_moved, most_in_log,
};
pub(crate) use self::sync_log::{
    SyncContent, SyncedFile, build_ahead, build_rest_of_segment, build_sync_log,
};
use crate::block::{Block, bytes_mut, zeroed};
use crate::bmap::edit::{PROVISIONAL_DATA, Rewritten, Update, rewrite};
use crate::bmap::{Pointers, Source};
use crate::checkpoints::CpfileEdit;
use crate::dat::{Dat, DatEdit, LifeEvent};
use crate::error::{Error, Result};
use crate::log::layout::{LogPosition, Plan, plan};
use crate::log::sealed::{Extras, Payload, SealedLog, seal};
use crate::log::withheld::Withheld;
use crate::metafile::FileEdit;
use crate::overlay::{FrozenInode, Page, Placed};
use crate::palloc;
use crate::segments::SufileEdit;
use crate::store::Store;
use crate::tree::TreeRoot;

/// Bytes in the logs of a checkpoint before its last from which on these are made durable first. A
/// mount after a crash would read them for longer than most devices need for the flush.
const BYTES_WORTH_A_FLUSH: u64 = 512 << 10;

/// The newest checkpoint, and where and how the log goes on after it.
#[derive(Clone)]
pub(crate) struct Base {
    pub(crate) tree: Arc<TreeRoot>,
    pub(crate) dat: Arc<Dat>,
    pub(crate) super_root: SuperRoot,
    pub(crate) ifile_inode: RawInode,
    pub(crate) position: LogPosition,
    /// The newest log with a super root. The log may have gone on in another segment since.
    pub(crate) last_log: LogCursor,
    /// Number of clean segments.
    pub(crate) clean_segments: u64,
    /// Segments that the log has left since the checkpoint, which does not know that they are in use.
    pub(crate) left: Vec<SegNum>,
    /// Copies of the summaries of the latest logs, those of the checkpoint among them.
    pub(crate) copies: Vec<Arc<[u8]>>,
    /// Changes that the next checkpoint has to contain: numbers that sync logs have taken.
    pub(crate) dat_edit: DatEdit,
    /// Likewise: segments that recovery has taken or freed.
    pub(crate) sufile_edit: SufileEdit,
}

impl Base {
    /// Where the blocks of metadata files come from.
    pub(crate) fn source<'a>(&'a self, store: &'a Store) -> Source<'a> {
        Source { store, pointers: Pointers::Virtual(&self.dat) }
    }
}

/// What a commit is made of.
pub(crate) struct CommitInput<'a> {
    pub(crate) frozen: &'a Frozen,
    pub(crate) changes: &'a MetadataChanges,
    /// Clean segments that it may not take.
    pub(crate) withheld: &'a Withheld,
    /// Blocks of logs before it that may not be durable; none if nothing is ever made durable.
    pub(crate) unflushed: Option<u64>,
    /// Time of the checkpoint (s).
    pub(crate) now: u64,
}

/// Everything that has changed since the last freeze.
#[derive(Debug, Default)]
pub(crate) struct Frozen {
    /// By ascending inode number.
    pub(crate) inodes: Vec<Arc<FrozenInode>>,
    /// Inode numbers that were taken (true) or given back.
    pub(crate) numbers: BTreeMap<Ino, bool>,
    /// Blocks in sync logs of files that are gone and were in no checkpoint.
    pub(crate) unborn: Vec<Placed>,
    /// A part of what is to be deleted is left to the next freeze.
    pub(crate) leaves_deletions: bool,
}

impl Frozen {
    /// Files, and pages of them.
    pub(crate) fn size(&self) -> (u64, u64) {
        let pages: usize = self.inodes.iter().map(|file| file.overlay.pages.len()).sum();
        (self.inodes.len() as u64, pages as u64)
    }

    /// Whether nothing has changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.inodes.is_empty() && self.numbers.is_empty() && self.unborn.is_empty()
    }
}

/// What became of an inode.
#[derive(Debug)]
pub(crate) struct CommittedInode {
    pub(crate) ino: Ino,
    pub(crate) root: Root,
    pub(crate) blocks: u64,
}

/// The logs of a commit and the state after it.
pub(crate) struct Commit {
    pub(crate) logs: Vec<SealedLog>,
    pub(crate) base: Base,
    /// Metadata blocks with their addresses, worth remembering.
    pub(crate) metadata: Vec<(BlockNr, Block)>,
    pub(crate) effects: Effects,
}

/// What a commit has done, for all who keep something in memory that follows from it.
#[derive(Debug)]
pub(crate) struct Effects {
    /// The checkpoint.
    pub(crate) cno: Cno,
    pub(crate) inodes: Vec<CommittedInode>,
    /// How many blocks were written to which segments.
    pub(crate) written: Vec<(SegNum, u64)>,
    /// What has become of blocks, for the cleaner's table.
    pub(crate) events: Vec<LifeEvent>,
    /// Number of checkpoints that were deleted.
    pub(crate) deleted_checkpoints: u64,
    /// Blocks of user files that were written.
    pub(crate) user_blocks: u64,
    /// Damage that was met in what the checkpoint gives up, and that did not stand in its way.
    pub(crate) damage: Option<Error>,
}

/// The map of a metadata file.
pub(crate) fn root_of(inode: &RawInode) -> Result<Root> {
    parse_root("metadata file", inode)
}

/// Builds the logs of a checkpoint.
pub(crate) fn build(store: &Store, base: &Base, request: &CommitInput<'_>) -> Result<Commit> {
    let CommitInput { frozen, changes, withheld, unflushed, now } = *request;
    let cno = base.tree.cno.plus(1);
    if cno == Cno::MAX {
        return Err(Error::Inconsistent("the checkpoint numbers are used up".into()));
    }
    let mut build = Build {
        store,
        old_dat: &base.dat,
        dat: base.dat_edit.clone(),
        cno,
        payload: Vec::new(),
        block_delta: 0,
        damage: None,
    };
    build.unborn(frozen.unborn.iter().copied())?;
    let ChangedIfile { inode: ifile_inode, committed: inodes, numbers } =
        build.files_and_ifile(base, frozen, changes)?;
    build.dat_changes(changes)?;
    let user_files = !frozen.inodes.is_empty() || !frozen.numbers.is_empty();
    let counters = |value: u64, delta: i64| {
        value
            .checked_add_signed(delta)
            .ok_or_else(|| Error::Inconsistent("a counter of the checkpoint is wrong".into()))
    };
    let tree = TreeRoot {
        cno,
        ifile: parse_root("ifile", &ifile_inode)?,
        inodes: counters(base.tree.inodes, numbers)?,
        blocks: counters(base.tree.blocks, build.block_delta)?,
        known: None,
        created: now,
    }
    .remembering();
    let data_blocks: usize = build.payload.iter().map(|file| file.blocks.len()).sum();
    let entry = RawCheckpoint {
        cp_flags: U32::new(if user_files { 0 } else { MINOR }),
        cp_checkpoints_count: U32::ZERO,
        cp_snapshot_next: U64::ZERO,
        cp_snapshot_prev: U64::ZERO,
        cp_cno: U64::new(cno.0),
        cp_create: U64::new(now),
        cp_nblk_inc: U64::new(data_blocks as u64),
        cp_inodes_count: U64::new(tree.inodes),
        cp_blocks_count: U64::new(tree.blocks),
        cp_ifile_inode: ifile_inode,
    };
    let user_blocks = user_blocks(&build.payload);
    let (cpfile, deleted) = build.cpfile(base, cno, entry, changes)?;
    let laid_out = build.lay_out(base, changes, withheld)?;
    let only_cleaning = !user_files && !changes.cleaned.is_empty();
    let decided = Decided {
        tree,
        cpfile,
        ifile_inode,
        inodes,
        deleted_checkpoints: deleted,
        user_blocks,
        damage: build.damage,
        unflushed,
        nongc_ctime: if only_cleaning { base.super_root.nongc_ctime } else { now },
    };
    laid_out.finish(store, base, build.payload, decided, now)
}

/// Data blocks of user files.
fn user_blocks(payload: &[Payload]) -> u64 {
    let files = payload.iter().filter(|file| file.info.ino >= Ino::FIRST_USER);
    files.flat_map(|file| &file.info.blocks).filter(|info| !info.is_node()).count() as u64
}

/// The ifile with its changes.
struct ChangedIfile {
    inode: RawInode,
    committed: Vec<CommittedInode>,
    /// Numbers that it has more than before.
    numbers: i64,
}

/// Leaves a bitmap of the ifile as it is if its block cannot be read: no number in there is given away, and an
/// inode tells by itself whether it is in use.
fn without_bitmap(error: Error) -> Result<()> {
    match error.is_of_block() {
        true => {
            tracing::error!(
                "inode numbers stay unused until nilfs fsck repairs the ifile: {error}"
            );
            Ok(())
        }
        false => Err(error),
    }
}

/// What the first two steps of a commit have decided.
struct Decided {
    tree: TreeRoot,
    cpfile: RawInode,
    ifile_inode: RawInode,
    inodes: Vec<CommittedInode>,
    deleted_checkpoints: u64,
    user_blocks: u64,
    damage: Option<Error>,
    /// Blocks of logs before this commit that may not be durable.
    unflushed: Option<u64>,
    /// When something else than the cleaner last made a checkpoint (s).
    nongc_ctime: u64,
}

/// The map of a file before the commit, and what becomes of blocks that are not new.
struct OldMap<'a> {
    root: &'a Root,
    /// Everything from here on becomes a hole.
    cut: Option<FileBlock>,
    /// These become holes, or are blocks that are there already.
    others: Vec<Update>,
}

struct Build<'a> {
    store: &'a Store,
    /// Translates the pointers of the old maps.
    old_dat: &'a Dat,
    dat: DatEdit,
    cno: Cno,
    payload: Vec<Payload>,
    /// Blocks that the tree has more than the old one.
    block_delta: i64,
    /// Damage of something that is given up.
    damage: Option<Error>,
}

impl Build<'_> {
    fn source(&self) -> Source<'_> {
        Source { store: self.store, pointers: Pointers::Virtual(self.old_dat) }
    }

    fn files_and_ifile(
        &mut self,
        base: &Base,
        frozen: &Frozen,
        changes: &MetadataChanges,
    ) -> Result<ChangedIfile> {
        let geometry = self.store.geometry();
        let layout = Palloc::new(geometry.block_size, geometry.inode_size);
        let mut ifile = FileEdit::new(base.tree.ifile.clone());
        let mut delta = 0;
        let kept = self.kept(&ifile, &layout, &frozen.inodes);
        for (&ino, &taken) in frozen.numbers.iter().filter(|(ino, _)| !kept.contains(ino)) {
            delta += self.number(&mut ifile, &layout, ino, taken)?;
        }
        let mut committed = Vec::with_capacity(frozen.inodes.len());
        for frozen in &frozen.inodes {
            if kept.contains(&frozen.ino) {
                self.unborn(frozen.unborn())?;
                continue;
            }
            let inode = self.user_file(frozen)?;
            let slot = palloc::entry_mut(&mut ifile, self.source(), &layout, frozen.ino.0)?;
            let generation = |slot: &[u8]| RawInode::parse(slot).map(|it| it.i_generation);
            let is_replaced = generation(slot).ok() != Some(inode.i_generation);
            slot[..INODE_SIZE].copy_from_slice(inode.as_bytes());
            slot[INODE_SIZE..geometry.inode_size].fill(0);
            if is_replaced {
                // The life of this block says for how long the number belongs to one file, also if it
                // was given back and taken again.
                let touched = ifile.get_mut(self.source(), layout.bit(frozen.ino.0).block, |_| {});
                touched.map(drop).or_else(without_bitmap)?;
            }
            if !frozen.deleted && has_map(&inode) {
                let root = parse_root("inode", &inode)?;
                let blocks = inode.i_blocks.get();
                committed.push(CommittedInode { ino: frozen.ino, root, blocks });
            }
        }
        if let Some(file) = &changes.xattr_file {
            let mut inode = file.inode();
            let history = Some(self.cno);
            self.block_delta +=
                self.metadata_file(Ino::XATTR, self.cno, history, file.edit(), &mut inode)?;
            let slot = palloc::entry_mut(&mut ifile, self.source(), &layout, Ino::XATTR.0)?;
            slot[..INODE_SIZE].copy_from_slice(inode.as_bytes());
        }
        let mut ifile_inode = base.ifile_inode;
        if ifile.is_changed() {
            let history = Some(self.cno);
            self.block_delta +=
                self.metadata_file(Ino::IFILE, self.cno, history, &ifile, &mut ifile_inode)?;
        }
        Ok(ChangedIfile { inode: ifile_inode, committed, numbers: delta })
    }

    /// Files that are to be deleted and stay as they are, without a name, because their inodes cannot be read,
    /// nor the others in the same blocks.
    fn kept(
        &self,
        ifile: &FileEdit,
        layout: &Palloc,
        inodes: &[Arc<FrozenInode>],
    ) -> BTreeSet<Ino> {
        let deleted = inodes.iter().filter(|it| it.deleted).map(|it| it.ino);
        let is_kept = |ino: &Ino| match ifile.get(self.source(), layout.entry(ino.0).block) {
            Err(error) if error.is_of_block() => {
                tracing::error!("a file without a name stays until nilfs fsck frees it: {error}");
                true
            }
            _ => false,
        };
        deleted.filter(is_kept).collect()
    }

    /// Marks an inode number as used or free, if its bitmap can be read. Returns how many more are in use then.
    fn number(
        &mut self,
        ifile: &mut FileEdit,
        layout: &Palloc,
        ino: Ino,
        taken: bool,
    ) -> Result<i64> {
        let (marked, delta) = match taken {
            true => (palloc::mark(ifile, self.source(), layout, ino.0, true, "inode"), 1),
            false => (palloc::free(ifile, self.source(), layout, ino.0, "inode"), -1),
        };
        match marked {
            Err(error) => without_bitmap(error).map(|()| 0),
            Ok(()) => Ok(delta),
        }
    }

    /// Takes up the blocks of a user file. Returns its inode as it is to be written.
    fn user_file(&mut self, frozen: &FrozenInode) -> Result<RawInode> {
        let mut inode = frozen.inode;
        let overlay = &frozen.overlay;
        self.unborn(frozen.unborn())?;
        let again = frozen.rolled_back.as_deref().unwrap_or_default();
        if has_map(&inode) && (frozen.deleted || !overlay.is_empty() || !again.is_empty()) {
            let root = parse_root("inode", &inode)?;
            let cut = if frozen.deleted { Some(FileBlock(0)) } else { overlay.cut };
            let pages = overlay.pages.iter().filter(|_| !frozen.deleted);
            let pages = pages.map(|(key, page)| (*key, page.clone()));
            let again = again.iter().map(|(key, vblocknr)| (*key, vblocknr.map(|it| it.0)));
            let old = OldMap { root: &root, cut, others: again.collect() };
            for vblocknr in frozen.rolled_back.iter().flatten().filter_map(|(_, it)| *it) {
                self.dat.revive(self.store, vblocknr)?;
            }
            let (root, delta) =
                self.virtual_file(frozen.ino, self.cno, Some(self.cno), old, pages)?;
            self.block_delta += delta;
            set_map(&mut inode, &root, delta, self.store)?;
        }
        if frozen.deleted {
            inode.i_links_count = U16::ZERO;
            inode.i_flags = U32::ZERO;
        }
        Ok(inode)
    }

    /// Blocks in sync logs that no checkpoint will have.
    fn unborn(&mut self, blocks: impl Iterator<Item = Placed>) -> Result<()> {
        for Placed { vblocknr, block } in blocks {
            self.dat.set_unborn(self.store, vblocknr, block, self.cno)?;
        }
        Ok(())
    }

    /// Blocks that lie elsewhere now, or are given up.
    fn dat_changes(&mut self, changes: &MetadataChanges) -> Result<()> {
        self.dat.relocate(self.store, &changes.moved)?;
        self.dat.release(self.store, &changes.released)?;
        for &key in &changes.dat_keys {
            self.dat.touch(self.store, key)?;
        }
        Ok(())
    }

    /// Returns the new inode of the cpfile and the number of checkpoints that were deleted.
    fn cpfile(
        &mut self,
        base: &Base,
        cno: Cno,
        entry: RawCheckpoint,
        changes: &MetadataChanges,
    ) -> Result<(RawInode, u64)> {
        let mut inode = base.super_root.cpfile;
        let mut cpfile = CpfileEdit::new(self.source(), parse_root("cpfile", &inode)?);
        for &(cno, snapshot) in &changes.snapshots {
            cpfile.set_snapshot(self.source(), cno, snapshot)?;
        }
        let mut deleted = 0;
        for range in &changes.delete {
            deleted += cpfile.delete(self.source(), range)?;
        }
        cpfile.add(self.source(), cno, entry)?;
        self.metadata_file(Ino::CPFILE, Cno(0), None, &cpfile.file, &mut inode)?;
        Ok((inode, deleted))
    }

    /// Takes up the changed blocks of a metadata file and updates its inode. Returns the number
    /// of blocks that it has more than before.
    fn metadata_file(
        &mut self,
        ino: Ino,
        fi_cno: Cno,
        history: Option<Cno>,
        file: &FileEdit,
        inode: &mut RawInode,
    ) -> Result<i64> {
        let pages = file
            .dirty()
            .iter()
            .map(|(key, data)| (*key, Page { data: Some(Block::clone(data)), placed: None }));
        let others = file.removed().iter().map(|hole| (*hole, None)).collect();
        let old = OldMap { root: file.root(), cut: None, others };
        let (root, delta) = self.virtual_file(ino, fi_cno, history, old, pages)?;
        set_map(inode, &root, delta, self.store)?;
        Ok(delta)
    }

    /// Takes up new blocks of a file with virtual pointers: numbers for them and for the nodes of
    /// the new map; an end for what they replace.
    fn virtual_file(
        &mut self,
        ino: Ino,
        fi_cno: Cno,
        history: Option<Cno>,
        old: OldMap<'_>,
        pages: impl Iterator<Item = (FileBlock, Page)>,
    ) -> Result<(Root, i64)> {
        let info = FileInfo { ino, cno: fi_cno, blocks: Vec::new() };
        let mut payload = Payload { info, blocks: Vec::new(), moved_sums: None };
        let mut updates: Vec<Update> = Vec::new();
        for (offset, page) in pages {
            let vblocknr = match page.placed {
                Some(placed) => {
                    self.dat.assign(self.store, placed.vblocknr, placed.block, self.cno)?;
                    placed.vblocknr
                }
                None => {
                    let vblocknr = self.dat.allocate(self.store)?;
                    payload.info.blocks.push(BlockInfo::Data { vblocknr, offset });
                    let data = page.data.expect("a block that is in no log is in memory");
                    payload.blocks.push(data);
                    vblocknr
                }
            };
            updates.push((offset, Some(vblocknr.0)));
        }
        if !old.others.is_empty() {
            updates.extend(old.others);
            updates.sort_unstable_by_key(|update| update.0);
        }
        let mut map = rewrite(self.source(), old.root, old.cut, &updates)?;
        let numbers = (0..map.nodes.len())
            .map(|_| self.dat.allocate(self.store))
            .collect::<Result<Vec<_>>>()?;
        map.resolve(|nth| numbers[nth].0, |data| data);
        for (node, &vblocknr) in map.nodes.iter().zip(&numbers) {
            payload.info.blocks.push(BlockInfo::Node { vblocknr });
            payload.blocks.push(node_block(self.store, node.level, &node.entries));
        }
        for &pointer in &map.dead {
            if let Err(damage) = self.dat.end(self.store, VBlockNr(pointer), history)? {
                self.damage.get_or_insert(damage);
            }
        }
        if !payload.blocks.is_empty() {
            self.payload.push(payload);
        }
        Ok((map.root, map.block_delta))
    }

    /// Decides how many segments the logs take, and with them the sufile and the DAT.
    fn lay_out(
        &mut self,
        base: &Base,
        changes: &MetadataChanges,
        withheld: &Withheld,
    ) -> Result<LaidOut> {
        let fixed = self.payload.len();
        let dat = self.dat.clone();
        let blocks: u64 = self.payload.iter().map(|file| file.blocks.len() as u64).sum();
        let geometry = self.store.geometry();
        let room = geometry.segment_end(base.position.segment).0 - base.position.block.0
            + geometry.segment_blocks(base.position.next);
        let mut count = blocks.saturating_sub(room) / u64::from(geometry.blocks_per_segment);
        loop {
            match self.try_segments(base, changes, withheld, count)? {
                Ok(laid_out) => return Ok(laid_out),
                Err(left) => count += 1 + left / u64::from(geometry.blocks_per_segment),
            }
            self.payload.truncate(fixed);
            self.dat = dat.clone();
        }
    }

    /// As if the logs took `count` segments after the next one. Returns the number of blocks that
    /// found no room, if that is too few.
    fn try_segments(
        &mut self,
        base: &Base,
        changes: &MetadataChanges,
        withheld: &Withheld,
        count: u64,
    ) -> Result<Result<LaidOut, u64>> {
        let mut sufile = base.sufile_edit.clone();
        for filled in &changes.filled {
            sufile.adopt(self.source(), filled.segment, filled.blocks, filled.modified)?;
        }
        for &segment in &changes.bad {
            sufile.mark_bad(self.source(), segment)?;
        }
        for &segment in &changes.cleaned {
            sufile.free(self.source(), segment)?;
        }
        if let Some(count) = changes.segments {
            sufile.resize(self.source(), count)?;
        }
        sufile.touch(self.source(), base.position.segment)?;
        sufile.touch(self.source(), base.position.next)?;
        let allows = |segment| {
            !changes.cleaned.contains(&segment) && withheld.allows(self.store, &base.dat, segment)
        };
        let extra = (0..count)
            .map(|_| sufile.allocate(self.source(), &allows))
            .collect::<Result<Vec<_>>>()?;
        let mut sufile_inode = base.super_root.sufile;
        let sufile_index = self.payload.len();
        self.metadata_file(Ino::SUFILE, Cno(0), None, &sufile.file, &mut sufile_inode)?;
        let dat_map = self.rewrite_dat()?;
        let dat_info = dat_info(&self.dat, &dat_map);
        let infos: Vec<&FileInfo> =
            self.payload.iter().map(|file| &file.info).chain([&dat_info]).collect();
        let (geometry, page) = (self.store.geometry(), self.store.flash_page());
        let plan = match plan(&geometry, page, base.position, &extra, &infos, 0, true) {
            Ok(plan) => plan,
            Err(left) => return Ok(Err(left)),
        };
        let dat = self.dat.clone();
        Ok(Ok(LaidOut {
            cno: self.cno,
            plan,
            dat,
            dat_map,
            dat_info,
            sufile,
            sufile_inode,
            sufile_index,
        }))
    }

    fn rewrite_dat(&self) -> Result<Rewritten> {
        let written = (self.dat.file.dirty().keys().zip(0..))
            .map(|(key, nth)| (*key, Some(PROVISIONAL_DATA | nth)));
        let removed = self.dat.file.removed().iter().map(|key| (*key, None));
        let mut updates: Vec<Update> = written.chain(removed).collect();
        updates.sort_unstable_by_key(|update| update.0);
        let source = Source { store: self.store, pointers: Pointers::Physical };
        rewrite(source, self.dat.file.root(), None, &updates)
    }
}

/// A commit whose blocks all have their addresses.
struct LaidOut {
    cno: Cno,
    plan: Plan,
    dat: DatEdit,
    dat_map: Rewritten,
    dat_info: FileInfo,
    sufile: SufileEdit,
    sufile_inode: RawInode,
    /// The sufile's place in the payload, whose blocks are still without the final usages.
    sufile_index: usize,
}

impl LaidOut {
    /// Fills in everything that depends on addresses and seals the logs.
    fn finish(
        mut self,
        store: &Store,
        base: &Base,
        mut payload: Vec<Payload>,
        decided: Decided,
        now: u64,
    ) -> Result<Commit> {
        let source = Source { store, pointers: Pointers::Virtual(&base.dat) };
        for log in &self.plan.logs {
            let filled = log.end().0 - store.geometry().segment_start(log.segment).0;
            self.sufile.fill(source, log.segment, filled, now)?;
        }
        let sufile = &mut payload[self.sufile_index];
        assert_eq!(sufile.info.ino, Ino::SUFILE, "a commit changes the sufile");
        let data = sufile.info.blocks.iter().filter(|info| !info.is_node()).count();
        let filled = self.sufile.file.dirty();
        assert_eq!(data, filled.len(), "usages are filled in where they were laid out");
        sufile.blocks.iter_mut().zip(filled.values()).for_each(|(old, new)| *old = Arc::clone(new));
        self.assign_addresses(store, &payload)?;
        payload.push(self.dat_payload(store));
        let events = self.events();
        let mut dat_inode = base.super_root.dat;
        set_map(&mut dat_inode, &self.dat_map.root, self.dat_map.block_delta, store)?;
        let super_root = SuperRoot {
            nongc_ctime: decided.nongc_ctime,
            durable_before: self.is_all_durable_before(store, decided.unflushed),
            dat: dat_inode,
            cpfile: decided.cpfile,
            sufile: self.sufile_inode,
        };
        let logs = self.seal(store, &payload, &super_root, now);
        let dat = Arc::new(Dat::new(self.dat_map.root.clone(), &store.geometry()));
        let sufile = SufileEdit::new(source, parse_root("sufile", &self.sufile_inode)?);
        let position = self.plan.position;
        let last = self.plan.logs.last().expect("a checkpoint has a log with a super root");
        let last_log = LogCursor { block: last.start, seq: last.seq, cno: self.cno };
        let metadata = metadata(&self.plan, &payload);
        let mut base = Base {
            tree: Arc::new(decided.tree),
            dat_edit: self.dat.restart(&dat),
            dat,
            super_root,
            ifile_inode: decided.ifile_inode,
            position,
            last_log,
            clean_segments: self.sufile.clean_segments(source)?,
            left: Vec::new(),
            copies: Vec::new(),
            sufile_edit: sufile,
        };
        base.keep_copies(&logs, &store.geometry());
        let effects = Effects {
            cno: base.tree.cno,
            inodes: decided.inodes,
            written: logs.iter().map(|log| (log.segment, log.len())).collect(),
            events,
            deleted_checkpoints: decided.deleted_checkpoints,
            user_blocks: decided.user_blocks,
            damage: decided.damage,
        };
        Ok(Commit { logs, base, metadata, effects })
    }

    /// Whether the super root says that all logs before the last are durable. That takes no flush if there
    /// is nothing to flush, and none besides that by which a log with a super root enters a segment. It is
    /// worth one where so much is written before the last log that a mount after a crash had better not
    /// read it.
    fn is_all_durable_before(&self, store: &Store, unflushed: Option<u64>) -> bool {
        let Some((last, earlier)) = self.plan.logs.split_last() else { return false };
        let begins_segment = last.start == store.geometry().segment_start(last.segment);
        let own: u64 = earlier.iter().map(|log| log.end().0 - log.start.0).sum();
        unflushed.is_some_and(|others| {
            let bytes = store.block_size().bytes64() * (others + own);
            bytes == 0 || begins_segment || bytes >= BYTES_WORTH_A_FLUSH
        })
    }

    /// What has become of blocks: those with virtual numbers, and the DAT's own.
    fn events(&mut self) -> Vec<LifeEvent> {
        let own = |block| DatEntry { block, start: Cno(0), end: Cno::MAX };
        let old = self.dat_map.dead.iter().map(|&block| LifeEvent::Remove(own(BlockNr(block))));
        let new = self.plan.addresses.last().into_iter().flatten();
        let new = new.map(|&block| LifeEvent::Add(own(block)));
        let mut events = self.dat.take_events();
        events.extend(old.chain(new));
        events
    }

    fn assign_addresses(&mut self, store: &Store, payload: &[Payload]) -> Result<()> {
        let planned = self.plan.addresses.len();
        assert_eq!(planned, payload.len() + 1, "every file has addresses, and the DAT after them");
        for (file, addresses) in payload.iter().zip(&self.plan.addresses) {
            assert_eq!(file.blocks.len(), addresses.len(), "every block has an address");
            for (info, &address) in file.info.blocks.iter().zip(addresses) {
                if let Some(vblock) = info.vblock() {
                    self.dat.assign(store, vblock, address, self.cno)?;
                }
            }
        }
        Ok(())
    }

    /// The DAT's own blocks; their addresses follow all others in the plan.
    fn dat_payload(&mut self, store: &Store) -> Payload {
        let addresses = self.plan.addresses.last().cloned().unwrap_or_default();
        let data = self.dat.file.dirty().len();
        let blocks = data + self.dat_map.nodes.len();
        assert_eq!(addresses.len(), blocks, "every block of the DAT has an address");
        self.dat_map.resolve(|nth| addresses[data + nth].0, |nth| addresses[nth as usize].0);
        let nodes = self.dat_map.nodes.iter();
        let nodes = nodes.map(|node| node_block(store, node.level, &node.entries));
        let blocks = self.dat.file.dirty().values().cloned().chain(nodes).collect();
        Payload { info: self.dat_info.clone(), blocks, moved_sums: None }
    }

    fn seal(
        &self,
        store: &Store,
        payload: &[Payload],
        super_root: &SuperRoot,
        now: u64,
    ) -> Vec<SealedLog> {
        let mut root = zeroed(store.block_size());
        super_root.encode(bytes_mut(&mut root), &store.geometry(), store.seed());
        let last = self.plan.logs.len() - 1;
        let flags = |nth| {
            let begin = if nth == 0 { LOGBGN } else { 0 };
            let end = if nth == last { LOGEND | SR } else { 0 };
            begin | end
        };
        let super_root = Some(&root);
        let extras = Extras { cno: self.cno, now, records: &[], copies: &[], super_root };
        seal(store, &self.plan, payload, &extras, flags)
    }
}

fn dat_info(dat: &DatEdit, map: &Rewritten) -> FileInfo {
    let data = dat.file.dirty().keys().map(|offset| BlockInfo::DatData { offset: *offset });
    let nodes = map
        .nodes
        .iter()
        .map(|node| BlockInfo::DatNode { key: node.entries[0].0, level: node.level });
    FileInfo { ino: Ino::DAT, cno: Cno(0), blocks: data.chain(nodes).collect() }
}

/// The blocks worth keeping in the cache: all nodes, and the data of metadata files.
fn metadata(plan: &Plan, payload: &[Payload]) -> Vec<(BlockNr, Block)> {
    let mut kept = Vec::new();
    for (file, addresses) in payload.iter().zip(&plan.addresses) {
        let user = file.info.ino >= Ino::FIRST_USER;
        for ((info, block), &address) in file.info.blocks.iter().zip(&file.blocks).zip(addresses) {
            if !user || info.is_node() {
                kept.push((address, Arc::clone(block)));
            }
        }
    }
    kept
}

fn node_block(store: &Store, level: u8, entries: &[nilfs_ondisk::bmap::Entry]) -> Block {
    let mut block = zeroed(store.block_size());
    encode_node(bytes_mut(&mut block), level, entries);
    block
}

fn has_map(inode: &RawInode) -> bool {
    inode.file_type().is_ok_and(nilfs_ondisk::inode::FileType::has_blocks)
}

fn parse_root(what: &str, inode: &RawInode) -> Result<Root> {
    Root::parse(&inode.i_bmap).map_err(|source| Error::Corrupt {
        what: what.into(),
        block: None,
        source,
    })
}

fn set_map(inode: &mut RawInode, root: &Root, block_delta: i64, store: &Store) -> Result<()> {
    inode.i_bmap = root.encode();
    let sectors = block_delta * store.block_size().sectors() as i64;
    // mkfs counts in blocks, the kernel in sectors (trap of docs/format.md §6): a file of mkfs can
    // shrink by more than it counts.
    inode.i_blocks = U64::new(inode.i_blocks.get().saturating_add_signed(sectors));
    Ok(())
}

#[cfg(test)]
mod tests;

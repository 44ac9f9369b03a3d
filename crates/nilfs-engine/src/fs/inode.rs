//! A file in memory: its attributes, and its blocks in layers — the changes since the last freeze,
//! those that a commit is writing, and the newest checkpoint below.

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nilfs_ondisk::bmap::Root;
use nilfs_ondisk::inode::{DeviceCode, FileType, RawInode};
use nilfs_ondisk::summary::FileTimes;
use nilfs_ondisk::{BlockNr, BlockSize, FileBlock, Ino, VBlockNr};
use parking_lot::RwLock;
use zerocopy::little_endian::{U16, U32, U64};

use super::directory::Names;
use super::space::Space;
use super::types::{Attr, Timestamp};
use crate::block::{Block, BlockPool, bytes_mut, zeroed};
use crate::error::{Error, Result};
use crate::overlay::{FrozenInode, Lookup, Overlay};
use crate::tree::View;

/// A file that is known to the file system. Holding a reference keeps the file, even without a
/// name.
pub struct Inode {
    ino: Ino,
    file_type: FileType,
    pub(super) state: RwLock<State>,
    pub(super) residence: Residence,
}

/// What an inode in memory takes, beside the changes that are not committed: itself, the top of its
/// map, and its entry in the table.
pub(super) const INODE_BYTES: usize = size_of::<Inode>() + 128;

/// What the table of inodes notes with each of them.
#[derive(Debug)]
pub(super) struct Residence {
    /// Somebody has asked for the inode since this was last looked at.
    used: AtomicBool,
    /// Bytes that it counts for. Changes only under the lock of the table.
    counted: AtomicUsize,
}

impl Residence {
    fn new() -> Self {
        Self { used: AtomicBool::new(true), counted: AtomicUsize::new(INODE_BYTES) }
    }

    pub(super) fn mark_used(&self) {
        self.used.store(true, Ordering::Relaxed);
    }

    /// Whether somebody has asked for the inode since the last call.
    pub(super) fn was_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    pub(super) fn counted(&self) -> usize {
        self.counted.load(Ordering::Relaxed)
    }

    /// Counts so many bytes beside the inode itself. Returns what was counted before, and now.
    pub(super) fn recount(&self, beside: usize) -> (usize, usize) {
        let new = INODE_BYTES + beside;
        (self.counted.swap(new, Ordering::Relaxed), new)
    }
}

/// How files are passed around.
pub type InodeRef = Arc<Inode>;

/// What changes in an inode.
pub(super) struct State {
    /// All fields as they are now, except `i_bmap` and `i_blocks`, which are those of the newest
    /// checkpoint.
    pub(super) raw: RawInode,
    /// The map of the newest checkpoint.
    root: Root,
    pub(super) overlay: Overlay,
    pub(super) frozen: Option<Arc<FrozenInode>>,
    /// The layers below the overlay have no block from here on.
    pub(super) end_below: FileBlock,
    /// In the list of what the next commit takes.
    pub(super) dirty: bool,
    /// More than times and the content of existing blocks has changed.
    pub(super) attributes_changed: bool,
    /// The times are neither in a checkpoint nor in a data-sync log.
    pub(super) times_changed: bool,
    /// Not in any checkpoint yet.
    pub(super) fresh: bool,
    /// The freeze that will take the last change of the file's names.
    pub(super) names_changed: u64,
    /// The names of a directory.
    pub(super) names: Names,
}

/// What it takes to work on a file's blocks.
pub(super) struct Context<'a> {
    pub(super) view: View,
    pub(super) space: &'a Space,
    pub(super) pool: &'a BlockPool,
    /// Bytes that the index of a directory may have.
    pub(super) index_limit: usize,
}

impl std::fmt::Debug for Inode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inode").field("ino", &self.ino).finish_non_exhaustive()
    }
}

impl Inode {
    pub(super) fn new(ino: Ino, raw: RawInode, fresh: bool) -> Result<Self> {
        let bad = |source| Error::bad_inode(ino, source);
        let file_type = raw.file_type().map_err(bad)?;
        let root = match file_type.has_blocks() {
            true => Root::parse(&raw.i_bmap).map_err(bad)?,
            false => Root::default(),
        };
        if raw.i_size.get() > i64::MAX as u64 {
            return Err(Error::Inconsistent(format!("the size of inode {ino} is out of range")));
        }
        let state = State {
            raw,
            // A size that is too small on a damaged volume hides blocks; it must not lose them.
            end_below: FileBlock(u64::MAX),
            root,
            overlay: Overlay::default(),
            frozen: None,
            dirty: false,
            attributes_changed: fresh,
            times_changed: fresh,
            fresh,
            names_changed: 0,
            names: Names::default(),
        };
        Ok(Self { ino, file_type, state: RwLock::new(state), residence: Residence::new() })
    }

    /// The inode number.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// The file type; it never changes.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        self.file_type
    }

    /// Fails unless the file is a directory.
    pub(super) fn require_directory(&self) -> Result<()> {
        if self.file_type == FileType::Directory { Ok(()) } else { Err(Error::NotDirectory) }
    }

    pub(super) fn attr(&self, state: &State, block_size: BlockSize) -> Attr {
        let raw = &state.raw;
        let device = !self.file_type.has_blocks();
        let mut slot = [0; 8];
        // A device number lies where a direct map has its first slot's header (docs/format.md §6).
        slot.copy_from_slice(&raw.i_bmap[..8]);
        Attr {
            ino: self.ino,
            file_type: self.file_type,
            mode: raw.i_mode.get() & 0o7777,
            nlink: raw.i_links_count.get().into(),
            uid: raw.i_uid.get(),
            gid: raw.i_gid.get(),
            rdev: if device {
                DeviceCode::decode(u64::from_le_bytes(slot))
            } else {
                DeviceCode::default()
            },
            size: raw.i_size.get(),
            blocks: state.sectors(block_size.sectors()),
            mtime: Timestamp {
                seconds: raw.i_mtime.get() as i64,
                nanoseconds: raw.i_mtime_nsec.get(),
            },
            ctime: Timestamp {
                seconds: raw.i_ctime.get() as i64,
                nanoseconds: raw.i_ctime_nsec.get(),
            },
            flags: raw.i_flags.get(),
            generation: raw.i_generation.get(),
        }
    }

    /// Whether the newest checkpoint has everything that has changed. Only for the inode of which
    /// nobody else has a reference.
    pub(super) fn is_committed(&self) -> bool {
        self.state.try_read().is_some_and(|state| !state.dirty && state.frozen.is_none())
    }

    /// Where the last blocks of the newest checkpoint begin, as many as can be up to `most`; `None` if
    /// it has no more than these.
    pub(super) fn tail(&self, state: &State, view: &View, most: u64) -> Result<Option<FileBlock>> {
        let per_block = view.store.block_size().sectors();
        if !self.file_type.has_blocks() || state.raw.i_blocks.get() / per_block <= most {
            return Ok(None);
        }
        let source = view.source();
        let Some(last) = source.last_mapped(&state.root)? else { return Ok(None) };
        let fits = |from: FileBlock| -> Result<bool> {
            let mut count = 0;
            source.scan(&state.root, from, &mut |_, _| {
                count += 1;
                Ok(if count > most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?;
            Ok(count <= most)
        };
        let from = |width: u64| FileBlock((last.0 + 1).saturating_sub(width));
        // A file with holes has fewer blocks than places for them.
        let mut width = most.max(1);
        while from(width).0 > 0 && fits(from(width.saturating_mul(2)))? {
            width = width.saturating_mul(2);
        }
        Ok(Some(from(width)).filter(|from| from.0 > 0))
    }

    /// Where the content of a block comes from.
    pub(super) fn find<'a>(
        &self,
        state: &'a State,
        view: &View,
        key: FileBlock,
    ) -> Result<Found<'a>> {
        if let Some(found) = self.find_in_memory(state, key) {
            return Ok(found);
        }
        let source = view.source();
        Ok(match source.lookup(&state.root, key)? {
            Some(pointer) => Found::Device(source.locate(pointer)?),
            None => Found::Hole,
        })
    }

    /// The same as far as the layers in memory know it; `None`: the newest checkpoint does.
    pub(super) fn find_in_memory<'a>(&self, state: &'a State, key: FileBlock) -> Option<Found<'a>> {
        match state.overlay.lookup(key) {
            Lookup::Page(block) => return Some(Found::Memory(block)),
            Lookup::Cut => return Some(Found::Hole),
            Lookup::Below if key >= state.end_below => return Some(Found::Hole),
            Lookup::Below => {}
        }
        match state.frozen.as_ref().map(|frozen| frozen.overlay.lookup(key)) {
            Some(Lookup::Page(block)) => return Some(Found::Memory(block)),
            Some(Lookup::Cut) => return Some(Found::Hole),
            Some(Lookup::Below) | None => {}
        }
        (state.fresh || !self.file_type.has_blocks()).then_some(Found::Hole)
    }

    /// Whether a block is a hole. Who replaces one whole needs no more than this, and so not the
    /// DAT, which the commit before has changed if small writes alternate with fsyncs.
    pub(super) fn is_hole(&self, state: &State, view: &View, key: FileBlock) -> Result<bool> {
        match self.find_in_memory(state, key) {
            Some(found) => Ok(matches!(found, Found::Hole)),
            None => Ok(view.source().lookup(&state.root, key)?.is_none()),
        }
    }

    /// The content of a block, `None` for a hole. `cached`: keep it, because it is metadata.
    pub(super) fn block(
        &self,
        state: &State,
        view: &View,
        key: FileBlock,
        cached: bool,
    ) -> Result<Option<Block>> {
        match self.find(state, view, key)? {
            Found::Memory(block) => Ok(Some(Arc::clone(block))),
            Found::Hole => Ok(None),
            Found::Device(address) if cached => view.store.read(address).map(Some),
            Found::Device(address) => {
                let mut block = zeroed(view.store.block_size());
                view.store.read_run(address, bytes_mut(&mut block))?;
                Ok(Some(block))
            }
        }
    }

    /// A block for changing: its page, made from what is below or from zeros.
    pub(super) fn page_mut<'a>(
        &self,
        state: &'a mut State,
        context: &Context<'_>,
        key: FileBlock,
    ) -> Result<&'a mut [u8]> {
        if !state.overlay.pages.contains_key(&key) {
            let cached = self.file_type == FileType::Directory;
            let old = self.block(state, &context.view, key, cached)?;
            let hole = old.is_none();
            let block = old.unwrap_or_else(|| zeroed(context.view.store.block_size()));
            self.put(state, context, key, block, hole);
        } else if let Some(page) = state.overlay.pages.get_mut(&key)
            && let Some(placed) = page.placed.take()
        {
            state.overlay.superseded.push(placed);
        }
        let page = state.overlay.pages.get_mut(&key).ok_or(Error::Stale)?;
        Ok(bytes_mut(&mut page.data))
    }

    /// Sets the whole content of a block to a copy of `content`.
    pub(super) fn write_block(
        &self,
        state: &mut State,
        context: &Context<'_>,
        key: FileBlock,
        content: &[u8],
    ) -> Result<()> {
        if state.overlay.pages.contains_key(&key) {
            self.page_mut(state, context, key)?.copy_from_slice(content);
            return Ok(());
        }
        self.set_block(state, context, key, context.pool.copy_of(content))
    }

    /// Sets the whole content of a block.
    pub(super) fn set_block(
        &self,
        state: &mut State,
        context: &Context<'_>,
        key: FileBlock,
        block: Block,
    ) -> Result<()> {
        let hole = self.is_hole(state, &context.view, key)?;
        self.put(state, context, key, block, hole);
        Ok(())
    }

    fn put(
        &self,
        state: &mut State,
        context: &Context<'_>,
        key: FileBlock,
        block: Block,
        hole: bool,
    ) {
        if state.overlay.is_empty() {
            context.space.add_map();
        }
        context.space.add_pages(state.overlay.insert(key, block));
        if hole {
            context.space.add_grown();
            state.overlay.block_delta += 1;
            state.attributes_changed = true;
        }
    }

    /// Makes a hole of everything from `key` on.
    pub(super) fn cut(
        &self,
        state: &mut State,
        context: &Context<'_>,
        key: FileBlock,
    ) -> Result<()> {
        let mut visible = 0;
        self.scan(state, &context.view, key, &mut |_| {
            visible += 1;
            Ok(ControlFlow::Continue(()))
        })?;
        state.overlay.block_delta -= visible;
        if state.overlay.is_empty() {
            context.space.add_map();
        }
        context.space.remove_pages(state.overlay.truncate(key));
        state.attributes_changed = true;
        Ok(())
    }

    /// Calls `visit` with every block from `from` on that is not a hole, ascending.
    pub(super) fn scan(
        &self,
        state: &State,
        view: &View,
        from: FileBlock,
        visit: &mut dyn FnMut(FileBlock) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let overlays: Vec<&Overlay> = std::iter::once(&state.overlay)
            .chain(state.frozen.as_ref().map(|frozen| &frozen.overlay))
            .collect();
        let mut upper = BTreeSet::new();
        let mut end = None;
        for overlay in overlays {
            let visible = overlay.pages.range(from..).map(|(key, _)| *key);
            upper.extend(visible.filter(|key| end.is_none_or(|end| *key < end)));
            end = [end, overlay.cut].into_iter().flatten().min();
        }
        let mut upper = upper.into_iter().peekable();
        let mut stopped = false;
        if !state.fresh && self.file_type.has_blocks() {
            view.source().scan(&state.root, from, &mut |key, _| {
                if end.is_some_and(|end| key >= end) {
                    return Ok(ControlFlow::Break(()));
                }
                while let Some(above) = upper.next_if(|above| *above < key) {
                    if visit(above)?.is_break() {
                        stopped = true;
                        return Ok(ControlFlow::Break(()));
                    }
                }
                upper.next_if_eq(&key);
                let flow = visit(key)?;
                stopped = flow.is_break();
                Ok(flow)
            })?;
        }
        for key in upper {
            if stopped || visit(key)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Takes over what a commit has made of the inode.
    pub(super) fn committed(&self, state: &mut State, map: Option<(Root, u64)>) {
        state.frozen = None;
        state.fresh = false;
        if let Some((root, blocks)) = map {
            state.raw.i_bmap = root.encode();
            state.raw.i_blocks = U64::new(blocks);
            state.root = root;
        }
    }
}

/// Where the content of a block is.
pub(super) enum Found<'a> {
    Memory(&'a Block),
    Device(BlockNr),
    Hole,
}

/// Where the blocks of a range of a file are in the newest checkpoint, looked up together, through
/// the map and the DAT, when the first of them is asked for.
pub(super) struct Addresses {
    /// The blocks in question, from the first that was asked for.
    keys: Range<u64>,
    /// 0 = a hole; empty until somebody has asked.
    found: Vec<BlockNr>,
}

impl Addresses {
    /// Of the blocks below `end`.
    pub(super) fn below(end: FileBlock) -> Self {
        Self { keys: 0..end.0, found: Vec::new() }
    }

    /// Where a block is; `None` for a hole. Blocks are asked for in ascending order.
    pub(super) fn of(
        &mut self,
        state: &State,
        view: &View,
        key: FileBlock,
    ) -> Result<Option<BlockNr>> {
        if self.found.is_empty() {
            self.keys.start = key.0;
            self.found = resolve(state, view, self.keys.clone())?;
        }
        let nth = key.0.checked_sub(self.keys.start).and_then(|nth| usize::try_from(nth).ok());
        let found = nth.and_then(|nth| self.found.get(nth)).copied();
        Ok(found.filter(|address| address.0 != 0))
    }
}

fn resolve(state: &State, view: &View, keys: Range<u64>) -> Result<Vec<BlockNr>> {
    let count = keys.end.saturating_sub(keys.start);
    let mut found = vec![BlockNr(0); usize::try_from(count).unwrap_or(usize::MAX)];
    let mut translator = view.dat.translator(&view.store);
    view.source().scan(&state.root, FileBlock(keys.start), &mut |key, pointer| {
        let Some(slot) = found.get_mut((key.0 - keys.start) as usize) else {
            return Ok(ControlFlow::Break(()));
        };
        *slot = translator.translate(VBlockNr(pointer))?;
        Ok(if key.0 + 1 == keys.end { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok(found)
}

impl State {
    /// Bytes of the file.
    pub(super) fn size(&self) -> u64 {
        self.raw.i_size.get()
    }

    pub(super) fn set_size(&mut self, size: u64) {
        if self.size() != size {
            self.raw.i_size = U64::new(size);
            self.attributes_changed = true;
        }
    }

    pub(super) fn links(&self) -> u16 {
        self.raw.i_links_count.get()
    }

    pub(super) fn set_links(&mut self, links: u16) {
        self.raw.i_links_count = U16::new(links);
        self.attributes_changed = true;
    }

    pub(super) fn set_mtime(&mut self, time: Timestamp) {
        self.raw.i_mtime = U64::new(time.seconds as u64);
        self.raw.i_mtime_nsec = U32::new(time.nanoseconds);
        self.times_changed = true;
    }

    pub(super) fn set_ctime(&mut self, time: Timestamp) {
        self.raw.i_ctime = U64::new(time.seconds as u64);
        self.raw.i_ctime_nsec = U32::new(time.nanoseconds);
        self.times_changed = true;
    }

    /// As a data-sync log keeps them.
    pub(super) fn times(&self, ino: Ino) -> FileTimes {
        let raw = &self.raw;
        FileTimes {
            ino,
            modified: (raw.i_mtime.get(), raw.i_mtime_nsec.get()),
            changed: (raw.i_ctime.get(), raw.i_ctime_nsec.get()),
        }
    }

    /// Takes over what a data-sync log has kept.
    pub(super) fn set_times(&mut self, times: &FileTimes) {
        let time = |(seconds, nanoseconds): (u64, u32)| Timestamp {
            seconds: seconds as i64,
            nanoseconds: nanoseconds.min(999_999_999),
        };
        self.set_mtime(time(times.modified));
        self.set_ctime(time(times.changed));
    }

    /// The content changed now.
    pub(super) fn touch(&mut self, now: Timestamp) {
        self.set_mtime(now);
        self.set_ctime(now);
    }

    /// Whether a flag of the inode is set.
    pub(super) fn has_flag(&self, flag: u32) -> bool {
        self.raw.i_flags.get() & flag != 0
    }

    /// Blocks in use, in units of 512 bytes, as far as it is known before a commit.
    pub(super) fn sectors(&self, per_block: u64) -> u64 {
        let frozen = self.frozen.as_ref().map_or(0, |frozen| frozen.overlay.block_delta);
        let delta = (frozen + self.overlay.block_delta) * per_block as i64;
        self.raw.i_blocks.get().saturating_add_signed(delta)
    }
}

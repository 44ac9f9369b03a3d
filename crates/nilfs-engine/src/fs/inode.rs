//! A file in memory: its attributes, and its blocks in layers — the changes since the last freeze,
//! those that a commit is writing, and the newest checkpoint below. Reading through the layers is
//! the same for every checkpoint (`tree/content.rs`); what changes them is in `fs/blocks.rs`.

use std::ops::{ControlFlow, DerefMut};
use std::sync::Arc;

use nilfs_ondisk::bmap::Root;
use nilfs_ondisk::inode::{FileType, RawInode};
use nilfs_ondisk::{BlockSize, FileBlock, Ino};
use zerocopy::little_endian::{U16, U64};

use super::directory::Names;
use crate::block::{BlockPool, bytes_mut, zeroed};
use crate::error::{Error, Result};
use crate::host::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::host::{Rank, RwLock, Timestamp};
use crate::overlay::{FrozenInode, InMemory, Lookup, Overlay, Page, Place, Placed};
use crate::tree::content::Content;
use crate::tree::{File, View};
use crate::types::Attr;
use crate::writer::space::Space;

/// A file that is known to the file system. Holding a reference keeps the file, even without a
/// name.
pub struct Inode {
    ino: Ino,
    file_type: FileType,
    pub(super) state: RwLock<State>,
    pub(super) residence: Residence,
}

/// What an inode in memory takes, besides the changes that are not committed: itself, the top of
/// its map, and its entry in the table.
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

    /// Counts this many bytes besides the inode itself. Returns what was counted before, and now.
    pub(super) fn recount(&self, more: usize) -> (usize, usize) {
        let new = INODE_BYTES + more;
        (self.counted.swap(new, Ordering::Relaxed), new)
    }
}

/// How files are passed around.
pub type InodeRef = Arc<Inode>;

/// What changes in an inode.
pub(super) struct State {
    /// All fields as they are now, except the map and the number of blocks, which are those of the
    /// newest checkpoint.
    pub(super) file: File,
    pub(super) overlay: Overlay,
    pub(super) frozen: Option<Arc<FrozenInode>>,
    /// The layers below the overlay have no block from here on.
    pub(super) end_below: FileBlock,
    /// In the list of what the next commit takes.
    pub(super) dirty: bool,
    /// What neither a checkpoint nor a sync log has, besides bytes of the overlay.
    pub(super) unlogged: Unlogged,
    /// Not in any checkpoint yet.
    pub(super) fresh: bool,
    /// A sync log since the last checkpoint has a record of the inode.
    pub(super) recorded: bool,
    /// The names of a directory.
    pub(super) names: Names,
}

/// What of an inode neither a checkpoint nor a sync log has.
#[derive(Debug, Default)]
pub(super) struct Unlogged {
    /// Attributes that are no part of the content.
    pub(super) attributes: Option<AttributeTimes>,
    /// The content: size, blocks, or times of writing.
    pub(super) content: bool,
    /// The size.
    pub(super) size: bool,
    /// Everything from this block on was cut off.
    pub(super) cut: Option<FileBlock>,
}

/// The times that belong to a change of attributes: writing changes them, too, but that is content.
#[derive(Debug, Clone, Copy)]
pub(super) struct AttributeTimes {
    pub(super) changed: Timestamp,
    /// Only if it was chosen.
    pub(super) modified: Option<Timestamp>,
}

/// What it takes to work on a file's blocks.
pub(super) struct Context<'a> {
    pub(super) view: Arc<View>,
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
        File::new(ino, raw).map(|file| Self::of(file, fresh))
    }

    /// A file; `fresh`: no checkpoint has it yet.
    pub(super) fn of(file: File, fresh: bool) -> Self {
        let (ino, file_type) = (file.ino(), file.file_type());
        let state = State {
            file,
            // A size that is too small on a damaged volume hides blocks; it must not lose them.
            end_below: FileBlock(u64::MAX),
            overlay: Overlay::default(),
            frozen: None,
            dirty: false,
            unlogged: Unlogged::default(),
            fresh,
            recorded: false,
            names: Names::default(),
        };
        let (state, residence) = (RwLock::new(Rank::Inode, state), Residence::new());
        Self { ino, file_type, state, residence }
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

    /// Its state, if nobody else refers to it: that takes no waiting, and so is no matter of which
    /// locks are held.
    pub(super) fn unshared(&self) -> impl DerefMut<Target = State> {
        self.state.try_write().expect("nobody else refers to the inode")
    }

    /// Whether the newest checkpoint has everything that has changed. Only for the inode of which
    /// nobody else has a reference.
    pub(super) fn is_committed(&self) -> bool {
        self.state.try_read().is_some_and(|state| !state.dirty && state.frozen.is_none())
    }

    /// Where the last blocks of the newest checkpoint begin, as many as can be up to `most`; `None`
    /// if it has no more than these.
    pub(super) fn tail(&self, state: &State, view: &View, most: u64) -> Result<Option<FileBlock>> {
        let per_block = view.store.block_size().sectors();
        let file = &state.file;
        if !self.file_type.has_blocks() || file.raw.i_blocks.get() / per_block <= most {
            return Ok(None);
        }
        let source = view.source();
        let Some(last) = source.last_mapped(&file.map)? else { return Ok(None) };
        let fits = |from: FileBlock| -> Result<bool> {
            let mut count = 0;
            source.scan(&file.map, from, &mut |_, _| {
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

    /// Lets `claim` take the number of each block that lies in a sync log. One that it cannot have
    /// becomes a block of which no log knows.
    pub(super) fn claim_placed(
        &self,
        state: &mut State,
        context: &Context<'_>,
        mut claim: impl FnMut(Placed) -> Result<bool>,
    ) -> Result<()> {
        state.overlay.superseded.clear();
        for page in state.overlay.pages.values_mut() {
            let Some(placed) = page.placed else { continue };
            if !claim(placed)? {
                let mut block = zeroed(context.view.store.block_size());
                context.view.store.read_run(placed.block, bytes_mut(&mut block))?;
                context.view.store.check(placed.block, &block)?;
                *page = Page { data: Some(block), placed: None };
            }
        }
        Ok(())
    }

    /// Takes over what a rollback has made of the inode, but for its blocks.
    pub(super) fn rolled_back(&self, state: &mut State, raw: RawInode) {
        let file = &mut state.file;
        let (map, blocks) = (file.raw.i_bmap, file.raw.i_blocks);
        file.raw = raw;
        if self.file_type.has_blocks() {
            (file.raw.i_bmap, file.raw.i_blocks) = (map, blocks);
        }
        state.end_below = FileBlock(u64::MAX);
        state.names = Names::default();
    }

    /// Takes over what a commit has made of the inode.
    pub(super) fn committed(&self, state: &mut State, map: Option<(Root, u64)>) {
        state.frozen = None;
        state.fresh = false;
        if let Some((root, blocks)) = map {
            state.file.raw.i_bmap = root.encode();
            state.file.raw.i_blocks = U64::new(blocks);
            state.file.map = root;
        }
    }
}

impl Content for State {
    fn file(&self) -> &File {
        &self.file
    }

    fn in_memory(&self, key: FileBlock) -> Option<Place<'_>> {
        match self.overlay.lookup(key) {
            Lookup::Page(page) => return Some(page.place()),
            Lookup::Cut => return Some(Place::Hole),
            Lookup::Below if key >= self.end_below => return Some(Place::Hole),
            Lookup::Below => {}
        }
        match self.frozen.as_ref()?.overlay.lookup(key) {
            Lookup::Page(page) => Some(page.place()),
            Lookup::Cut => Some(Place::Hole),
            Lookup::Below => None,
        }
    }

    fn all_in_memory(&self, from: FileBlock) -> InMemory {
        let frozen = self.frozen.as_ref().map(|frozen| &frozen.overlay);
        Overlay::all(std::iter::once(&self.overlay).chain(frozen), from)
    }
}

impl State {
    /// Bytes of the file.
    pub(super) fn size(&self) -> u64 {
        self.file.size()
    }

    /// The attributes as they are now.
    pub(super) fn attr(&self, block_size: BlockSize) -> Attr {
        Attr { blocks: self.sectors(block_size.sectors()), ..self.file.attr() }
    }

    pub(super) fn set_size(&mut self, size: u64) {
        if self.size() != size {
            self.file.raw.i_size = U64::new(size);
            self.unlogged.content = true;
            self.unlogged.size = true;
        }
    }

    pub(super) fn links(&self) -> u16 {
        self.file.raw.i_links_count.get()
    }

    pub(super) fn set_links(&mut self, links: u16) {
        self.file.raw.i_links_count = U16::new(links);
    }

    /// The content changed now.
    pub(super) fn written(&mut self, now: Timestamp) {
        self.file.set_mtime(now);
        self.file.set_ctime(now);
        self.unlogged.content = true;
    }

    /// Attributes have changed with the times that the inode has now. `chosen`: also the mtime.
    pub(super) fn attributes_changed(&mut self, chosen: bool) {
        let before = self.unlogged.attributes.and_then(|times| times.modified);
        let modified = chosen.then(|| self.file.modified()).or(before);
        let changed = self.file.changed();
        self.unlogged.attributes = Some(AttributeTimes { changed, modified });
    }

    /// Whether a flag of the inode is set.
    pub(super) fn has_flag(&self, flag: u32) -> bool {
        self.file.raw.i_flags.get() & flag != 0
    }

    /// Blocks in use, in units of 512 bytes, as far as it is known before a commit.
    pub(super) fn sectors(&self, per_block: u64) -> u64 {
        let frozen = self.frozen.as_ref().map_or(0, |frozen| frozen.overlay.block_delta);
        let delta = (frozen + self.overlay.block_delta) * per_block as i64;
        self.file.raw.i_blocks.get().saturating_add_signed(delta)
    }
}

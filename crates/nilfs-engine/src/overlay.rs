//! What has changed in a file since the last commit froze it.
//!
//! An overlay lies on top of the file below: a block is looked up in the overlay, then, unless it
//! is cut off, below it.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use nilfs_ondisk::inode::RawInode;
use nilfs_ondisk::{BlockNr, FileBlock, Ino, VBlockNr};

use crate::block::Block;

/// Where the content of a block is.
pub(crate) enum Place<'a> {
    Memory(&'a Block),
    Device(BlockNr),
    Hole,
}

/// The blocks that layers in memory have of a file from some block on.
#[derive(Debug, Default)]
pub(crate) struct InMemory {
    pub(crate) blocks: BTreeSet<FileBlock>,
    /// From here on there is nothing below them.
    pub(crate) end_below: Option<FileBlock>,
}

/// Where a sync log has put a block already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) vblocknr: VBlockNr,
    pub(crate) block: BlockNr,
}

/// A changed block of a file.
#[derive(Debug, Clone)]
pub(crate) struct Page {
    /// `None`: it is only where it was placed.
    pub(crate) data: Option<Block>,
    /// Set if the block is in a sync log, so that a commit need not write it again.
    pub(crate) placed: Option<Placed>,
}

impl Page {
    /// Where its content is.
    pub(crate) fn place(&self) -> Place<'_> {
        match (&self.data, self.placed) {
            (Some(data), _) => Place::Memory(data),
            (None, Some(placed)) => Place::Device(placed.block),
            (None, None) => panic!("a changed block is neither in memory nor in a log"),
        }
    }
}

/// What an overlay had of a block before that was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    Nothing,
    Page,
    /// A page that a log has.
    Placed,
}

impl From<&Page> for Before {
    fn from(page: &Page) -> Self {
        if page.placed.is_some() { Self::Placed } else { Self::Page }
    }
}

/// The changed blocks of a file.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    pub(crate) pages: BTreeMap<FileBlock, Page>,
    /// Which bytes of these blocks no sync log has.
    pub(crate) unlogged: BTreeMap<FileBlock, Range<usize>>,
    /// What lies below from this block on does not exist any more.
    pub(crate) cut: Option<FileBlock>,
    /// Blocks of sync logs that were overwritten again.
    pub(crate) superseded: Vec<Placed>,
    /// Data blocks that the file has more than the one below.
    pub(crate) block_delta: i64,
}

/// What an overlay says about a block.
pub(crate) enum Lookup<'a> {
    /// This is it.
    Page(&'a Page),
    /// It is a hole.
    Cut,
    /// See below.
    Below,
}

impl Overlay {
    pub(crate) fn lookup(&self, key: FileBlock) -> Lookup<'_> {
        match self.pages.get(&key) {
            Some(page) => Lookup::Page(page),
            None if self.cut.is_some_and(|cut| key >= cut) => Lookup::Cut,
            None => Lookup::Below,
        }
    }

    /// Whether a commit has anything to do with the blocks.
    pub(crate) fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.cut.is_none() && self.superseded.is_empty()
    }

    /// Puts a page in, perhaps in the place of a `hole`. Returns what was there before.
    pub(crate) fn insert(&mut self, key: FileBlock, page: Page, hole: bool) -> Before {
        let old = self.pages.insert(key, page);
        self.superseded.extend(old.as_ref().and_then(|page| page.placed));
        let before = old.as_ref().map_or(Before::Nothing, Before::from);
        self.block_delta += i64::from(hole && before == Before::Nothing);
        before
    }

    /// The block at `key` for changing: the one that is there, or else `block`, which may take the place of a
    /// `hole`. Also returns what was there.
    pub(crate) fn edit(
        &mut self,
        key: FileBlock,
        block: Block,
        hole: bool,
    ) -> (&mut Block, Before) {
        let (page, before) = match self.pages.entry(key) {
            Entry::Vacant(place) => {
                self.block_delta += i64::from(hole);
                (place.insert(Page { data: None, placed: None }), Before::Nothing)
            }
            Entry::Occupied(page) => {
                let page = page.into_mut();
                let before = Before::from(&*page);
                self.superseded.extend(page.placed.take());
                (page, before)
            }
        };
        (page.data.get_or_insert(block), before)
    }

    /// Replaces the content of a block where that is, if it is in memory and nobody else refers to it. Returns
    /// what was there if it has done so.
    pub(crate) fn overwrite(&mut self, key: FileBlock, content: &[u8]) -> Option<Before> {
        let page = self.pages.get_mut(&key)?;
        Arc::get_mut(page.data.as_mut()?)?.copy_from_slice(content);
        let before = Before::from(&*page);
        self.superseded.extend(page.placed.take());
        Some(before)
    }

    /// Takes out all pages from `key` on.
    pub(crate) fn truncate(&mut self, key: FileBlock) -> BTreeMap<FileBlock, Page> {
        let removed = self.pages.split_off(&key);
        self.unlogged.split_off(&key);
        self.superseded.extend(removed.values().filter_map(|page| page.placed));
        self.cut = Some(self.cut.map_or(key, |cut| cut.min(key)));
        removed
    }

    /// Takes out all blocks that sync logs have of the file.
    pub(crate) fn take_placed(&mut self) -> Vec<Placed> {
        let pages = std::mem::take(&mut self.pages).into_values();
        let mut placed = std::mem::take(&mut self.superseded);
        placed.extend(pages.filter_map(|page| page.placed));
        placed
    }

    /// Takes note that these bytes of a block have changed.
    pub(crate) fn changed(&mut self, key: FileBlock, bytes: Range<usize>) {
        let unlogged = self.unlogged.entry(key).or_insert_with(|| bytes.clone());
        *unlogged = unlogged.start.min(bytes.start)..unlogged.end.max(bytes.end);
    }

    /// What several overlays, the uppermost first, have from a block on.
    pub(crate) fn all<'a>(layers: impl IntoIterator<Item = &'a Self>, from: FileBlock) -> InMemory {
        let mut found = InMemory::default();
        for overlay in layers {
            let end = found.end_below;
            let pages = overlay.pages.range(from..).map(|(key, _)| *key);
            found.blocks.extend(pages.filter(|key| end.is_none_or(|end| *key < end)));
            found.end_below = [end, overlay.cut].into_iter().flatten().min();
        }
        found
    }
}

/// A changed inode as a commit sees it: nobody changes it any more.
#[derive(Debug)]
pub(crate) struct FrozenInode {
    pub(crate) ino: Ino,
    /// All fields as they are to be written; `i_bmap` and `i_blocks` as they were below.
    pub(crate) inode: RawInode,
    pub(crate) overlay: Overlay,
    /// The inode is to be deleted.
    pub(crate) deleted: bool,
    /// What a rollback makes of it; then all that is in memory of the inode is out of date.
    pub(crate) rolled_back: Option<RolledBack>,
}

impl FrozenInode {
    /// Blocks in sync logs that no checkpoint will have. A deleted file's were never part of one either.
    pub(crate) fn unborn(&self) -> impl Iterator<Item = Placed> {
        let deleted = self.deleted.then(|| self.overlay.pages.values().filter_map(|it| it.placed));
        self.overlay.superseded.iter().copied().chain(deleted.into_iter().flatten())
    }
}

/// The blocks of a file that a rollback changes besides those of the overlay, ascending: they are again
/// what they were in an earlier checkpoint, or holes.
pub(crate) type RolledBack = Vec<(FileBlock, Option<VBlockNr>)>;

//! What has changed in a file since the last commit froze it.
//!
//! An overlay lies on top of the file below: a block is looked up in the overlay, then, unless it is
//! cut off, below it.

use std::collections::BTreeMap;

use nilfs_ondisk::inode::RawInode;
use nilfs_ondisk::{BlockNr, FileBlock, Ino, VBlockNr};

use crate::block::Block;

/// Where a data-sync log has put a block already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) vblocknr: VBlockNr,
    pub(crate) block: BlockNr,
}

/// A changed block of a file.
#[derive(Debug, Clone)]
pub(crate) struct Page {
    pub(crate) data: Block,
    /// Set if the block is in a data-sync log, so that a commit need not write it again.
    pub(crate) placed: Option<Placed>,
}

/// The changed blocks of a file.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    pub(crate) pages: BTreeMap<FileBlock, Page>,
    /// What lies below from this block on does not exist any more.
    pub(crate) cut: Option<FileBlock>,
    /// Blocks of data-sync logs that were overwritten again.
    pub(crate) superseded: Vec<Placed>,
    /// Data blocks that the file has more than the one below.
    pub(crate) block_delta: i64,
}

/// What an overlay says about a block.
pub(crate) enum Lookup<'a> {
    /// This is it.
    Page(&'a Block),
    /// It is a hole.
    Cut,
    /// See below.
    Below,
}

impl Overlay {
    pub(crate) fn lookup(&self, key: FileBlock) -> Lookup<'_> {
        match self.pages.get(&key) {
            Some(page) => Lookup::Page(&page.data),
            None if self.cut.is_some_and(|cut| key >= cut) => Lookup::Cut,
            None => Lookup::Below,
        }
    }

    /// Whether a commit has anything to do with the blocks.
    pub(crate) fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.cut.is_none() && self.superseded.is_empty()
    }

    /// Puts a page in; returns the number of pages that the overlay has more than before.
    pub(crate) fn insert(&mut self, key: FileBlock, data: Block) -> usize {
        let old = self.pages.insert(key, Page { data, placed: None });
        self.superseded.extend(old.as_ref().and_then(|page| page.placed));
        usize::from(old.is_none())
    }

    /// Takes out all pages from `key` on; returns their number.
    pub(crate) fn truncate(&mut self, key: FileBlock) -> usize {
        let removed = self.pages.split_off(&key);
        self.superseded.extend(removed.values().filter_map(|page| page.placed));
        self.cut = Some(self.cut.map_or(key, |cut| cut.min(key)));
        removed.len()
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
}

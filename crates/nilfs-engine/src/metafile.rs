//! A metadata file while a commit changes it: its old map and the blocks that are new.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use nilfs_ondisk::FileBlock;
use nilfs_ondisk::bmap::Root;

use crate::block::{Block, bytes_mut, zeroed};
use crate::bmap::Source;
use crate::error::Result;

/// The old state of a metadata file with changes on top. Cloning is cheap enough to try a change
/// and go back: blocks are shared.
#[derive(Clone)]
pub(crate) struct FileEdit {
    root: Root,
    dirty: BTreeMap<FileBlock, Block>,
    /// Blocks that become holes; none of them is in `dirty`.
    removed: BTreeSet<FileBlock>,
}

impl FileEdit {
    pub(crate) fn new(root: Root) -> Self {
        Self { root, dirty: BTreeMap::new(), removed: BTreeSet::new() }
    }

    /// The map as it was before the changes.
    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    /// The changed blocks.
    pub(crate) fn dirty(&self) -> &BTreeMap<FileBlock, Block> {
        &self.dirty
    }

    /// The blocks that become holes.
    pub(crate) fn removed(&self) -> &BTreeSet<FileBlock> {
        &self.removed
    }

    /// Whether anything changes.
    pub(crate) fn is_changed(&self) -> bool {
        !self.dirty.is_empty() || !self.removed.is_empty()
    }

    /// Makes a hole of a block.
    pub(crate) fn remove(&mut self, source: Source<'_>, key: FileBlock) -> Result<()> {
        self.dirty.remove(&key);
        if source.lookup(&self.root, key)?.is_some() {
            self.removed.insert(key);
        }
        Ok(())
    }

    /// A block as it is now, or `None` for a hole.
    pub(crate) fn get(&self, source: Source<'_>, key: FileBlock) -> Result<Option<Block>> {
        match self.dirty.get(&key) {
            Some(block) => Ok(Some(Block::clone(block))),
            None if self.removed.contains(&key) => Ok(None),
            None => source.block(&self.root, key),
        }
    }

    /// Replaces a block as a whole, whether or not the old one can be read.
    pub(crate) fn replace(&mut self, key: FileBlock, block: Block) {
        self.removed.remove(&key);
        self.dirty.insert(key, block);
    }

    /// A block for changing, or `None` for a hole.
    pub(crate) fn block_mut(
        &mut self,
        source: Source<'_>,
        key: FileBlock,
    ) -> Result<Option<&mut [u8]>> {
        self.block_or(source, key, || None)
    }

    /// A block for changing. A hole becomes a block that `format` fills in.
    pub(crate) fn get_mut(
        &mut self,
        source: Source<'_>,
        key: FileBlock,
        format: impl FnOnce(&mut [u8]),
    ) -> Result<&mut [u8]> {
        let block = self.block_or(source, key, || {
            let mut block = zeroed(source.store.block_size());
            format(bytes_mut(&mut block));
            Some(block)
        })?;
        Ok(block.unwrap_or_else(|| unreachable!("a hole has become a block")))
    }

    /// A block for changing. A hole becomes what `in_hole` makes of it.
    fn block_or(
        &mut self,
        source: Source<'_>,
        key: FileBlock,
        in_hole: impl FnOnce() -> Option<Block>,
    ) -> Result<Option<&mut [u8]>> {
        let place = match self.dirty.entry(key) {
            Entry::Occupied(known) => return Ok(Some(bytes_mut(known.into_mut()))),
            Entry::Vacant(place) => place,
        };
        let old = match self.removed.contains(&key) {
            true => None,
            false => source.block(&self.root, key)?,
        };
        let Some(block) = old.or_else(in_hole) else { return Ok(None) };
        self.removed.remove(&key);
        Ok(Some(bytes_mut(place.insert(block))))
    }
}

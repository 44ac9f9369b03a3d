//! A metadata file while a commit changes it: its old map and the blocks that are new.

use std::collections::BTreeMap;

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
}

impl FileEdit {
    pub(crate) fn new(root: Root) -> Self {
        Self { root, dirty: BTreeMap::new() }
    }

    /// The map as it was before the changes.
    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    /// The changed blocks.
    pub(crate) fn dirty(&self) -> &BTreeMap<FileBlock, Block> {
        &self.dirty
    }

    /// A block as it is now, or `None` for a hole.
    pub(crate) fn get(&self, source: Source<'_>, key: FileBlock) -> Result<Option<Block>> {
        match self.dirty.get(&key) {
            Some(block) => Ok(Some(Block::clone(block))),
            None => source.block(&self.root, key),
        }
    }

    /// A block for changing. A hole becomes a block that `format` fills in.
    pub(crate) fn get_mut(
        &mut self,
        source: Source<'_>,
        key: FileBlock,
        format: impl FnOnce(&mut [u8]),
    ) -> Result<&mut [u8]> {
        if !self.dirty.contains_key(&key) {
            let block = match source.block(&self.root, key)? {
                Some(block) => block,
                None => {
                    let mut block = zeroed(source.store.block_size());
                    format(bytes_mut(&mut block));
                    block
                }
            };
            self.dirty.insert(key, block);
        }
        let block = self.dirty.get_mut(&key).unwrap_or_else(|| unreachable!("inserted above"));
        Ok(bytes_mut(block))
    }
}

//! Making files contiguous: what the cleaner does, with another goal. The blocks of a file move
//! into segments next to the chain of logs, in order; nothing else is touched.

use std::ops::ControlFlow;

use nilfs_ondisk::{FileBlock, VBlockNr};
use serde::{Deserialize, Serialize};

use super::Filesystem;
use super::inode::InodeRef;
use crate::cleaner::victim::LiveBlock;
use crate::error::Result;

/// What making a file contiguous has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Defragmented {
    /// Runs of blocks that followed each other on the device, before.
    pub extents_before: u64,
    /// And afterwards.
    pub extents_after: u64,
    /// Blocks that were moved.
    pub moved: u64,
}

impl Filesystem {
    /// Makes a file contiguous on the device, if its blocks are at most `budget`. Does nothing if
    /// it is already. Changes that are not committed are first.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`], the volume cannot be written, damage, a device error.
    pub fn defragment(&self, inode: &InodeRef, budget: u64) -> Result<Defragmented> {
        self.commit()?;
        let blocks = self.blocks_of(inode)?;
        let before = extents(&blocks);
        let mut done = Defragmented { extents_before: before, extents_after: before, moved: 0 };
        let least = (blocks.len() as u64).div_ceil(self.store.geometry().blocks_per_segment.into());
        if before <= least.max(1) || blocks.len() as u64 > budget {
            return Ok(done);
        }
        done.moved = self.cleaning().relocate(&blocks)?;
        done.extents_after = extents(&self.blocks_of(inode)?);
        Ok(done)
    }

    /// The data blocks of a file in the newest checkpoint, in order.
    fn blocks_of(&self, inode: &InodeRef) -> Result<Vec<LiveBlock>> {
        let view = self.view();
        let raw = view.inode(inode.ino())?;
        if !inode.file_type().has_blocks() {
            return Ok(Vec::new());
        }
        let root = nilfs_ondisk::bmap::Root::parse(&raw.i_bmap)
            .map_err(|source| crate::Error::bad_inode(inode.ino(), source))?;
        let mut translator = view.dat.translator(&view.store);
        let mut blocks = Vec::new();
        view.source().scan(&root, FileBlock(0), &mut |offset, pointer| {
            let vblocknr = VBlockNr(pointer);
            let entry = translator.entry(vblocknr)?;
            blocks.push(LiveBlock {
                ino: inode.ino(),
                // A block is born in the checkpoint that its summary names.
                fi_cno: entry.start,
                vblocknr,
                offset: Some(offset),
                block: entry.block,
            });
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(blocks)
    }
}

fn extents(blocks: &[LiveBlock]) -> u64 {
    let gaps = blocks.windows(2).filter(|pair| pair[1].block != pair[0].block.plus(1)).count();
    u64::from(!blocks.is_empty()) + gaps as u64
}

//! Making files contiguous: what the cleaner does, with another goal. The blocks of a file move into
//! a segment beside the chain of logs, in order; nobody else is touched.

use std::ops::ControlFlow;

use nilfs_ondisk::{FileBlock, VBlockNr};
use serde::{Deserialize, Serialize};

use super::super::Filesystem;
use super::super::inode::InodeRef;
use super::{Age, Ages, Harvest};
use crate::cleaner::relocate::LiveBlock;
use crate::error::Result;

/// Blocks that are moved in one step.
const STEP_BLOCKS: usize = 8192;

/// What making a file contiguous has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Defragmented {
    /// Runs of blocks that followed each other on the device, before.
    pub extents_before: u64,
    /// And afterwards.
    pub extents_after: u64,
    /// Blocks that were moved.
    pub moved: u64,
}

impl Filesystem {
    /// Makes a file contiguous on the device, if its blocks are at most `budget`. Does nothing if it
    /// is already. Changes that are not committed are first.
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
        let mut work = self.cleaner.work();
        for part in blocks.chunks(STEP_BLOCKS) {
            let now = Age { modified: self.now().seconds as u64, blocks: 0 };
            let ages = Ages { of_others: now, ..Ages::default() };
            let mut harvest = Harvest { live: part.to_vec(), ages, ..Harvest::default() };
            let contents = self.read_live(&mut harvest)?;
            let moves = self.move_blocks(&mut work, &mut harvest, &contents)?;
            done.moved += harvest.changes.moved.len() as u64;
            self.finish_step(&mut work, None, harvest.changes, moves)?;
        }
        drop(work);
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

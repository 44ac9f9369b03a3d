//! Making files contiguous: what the cleaner does, with another goal. The blocks of a file move
//! into segments next to the chain of logs, in order; nothing else is touched.
//!
//! A log ends with its segment at the latest, and begins with its summary. So a file is contiguous when
//! its first piece ends where a segment does, and each of the others is as long as the one log that a
//! segment has room for. That is how moving leaves a file, wherever it began: what was moved once is
//! not moved again, and of what was appended since, no more than the last piece is.

use std::ops::ControlFlow;

use nilfs_ondisk::{FileBlock, Geometry, VBlockNr};
use serde::{Deserialize, Serialize};

use super::Filesystem;
use super::inode::InodeRef;
use crate::cleaner::moving::LEAST_LOG;
use crate::commit::most_in_log;
use crate::error::Result;
use crate::log::segment_reader::{LiveBlock, MovedSum};

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
    /// Makes a file contiguous on the device, as far as segments allow, if its blocks are at most
    /// `budget`. Moves only what is not: nothing, if it was done before. Changes that are not committed
    /// are first.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`], the volume cannot be written, damage, a device error.
    pub fn defragment(&self, inode: &InodeRef, budget: u64) -> Result<Defragmented> {
        self.commit()?;
        let blocks = self.blocks_of(inode)?;
        let before = pieces(&blocks).count() as u64;
        let mut done = Defragmented { extents_before: before, extents_after: before, moved: 0 };
        let in_place = contiguous(&self.store.geometry(), &blocks);
        if in_place == blocks.len() || blocks.len() as u64 > budget {
            return Ok(done);
        }
        done.moved = self.cleaning().relocate(&blocks[in_place..], in_place > 0)?;
        done.extents_after = pieces(&self.blocks_of(inode)?).count() as u64;
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
                sum: MovedSum::OfContent,
            });
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(blocks)
    }
}

/// How many blocks of a file, from the first on, are contiguous as far as segments allow: whole pieces.
fn contiguous(geometry: &Geometry, blocks: &[LiveBlock]) -> usize {
    let mut in_place = 0;
    for piece in pieces(blocks) {
        let rest = &blocks[in_place..];
        let is_first = rest.len() == blocks.len();
        let is_complete = piece.len() == rest.len()
            || is_first && ends_with_segment(geometry, &piece[piece.len() - 1])
            || piece.len()
                >= most_in_log(geometry.block_size, rest, geometry.blocks_per_segment.into());
        if !is_complete {
            break;
        }
        in_place += piece.len();
    }
    in_place
}

/// Whether no log has room after a block in its segment.
fn ends_with_segment(geometry: &Geometry, last: &LiveBlock) -> bool {
    let end = geometry.segment_end(geometry.segment_of(last.block));
    end.0.saturating_sub(last.block.plus(1).0) < LEAST_LOG
}

/// Runs of blocks that follow each other on the device.
fn pieces(blocks: &[LiveBlock]) -> impl Iterator<Item = &[LiveBlock]> {
    blocks.chunk_by(|one, other| other.block == one.block.plus(1))
}

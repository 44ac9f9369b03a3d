//! A block of memory, shared by reference and copied only when somebody changes it.

use std::sync::Arc;

use nilfs_ondisk::BlockSize;

use crate::host::{Mutex, Rank};

/// The content of one block. The count of its owners lies apart: with it, a block would take the next
/// larger of the allocator's sizes, which is a quarter more.
pub(crate) type Block = Arc<Box<[u8]>>;

/// A block of zeros that nobody else refers to yet.
pub(crate) fn zeroed(block_size: BlockSize) -> Block {
    Arc::new(vec![0; block_size.bytes()].into_boxed_slice())
}

/// A block with this content that nobody else refers to yet.
pub(crate) fn copy_of(content: &[u8]) -> Block {
    Arc::new(content.into())
}

/// The bytes of a block for changing; copies them first if somebody else refers to the block.
pub(crate) fn bytes_mut(block: &mut Block) -> &mut [u8] {
    Arc::<Box<[u8]>>::make_mut(block)
}

/// Bytes of used blocks that are kept for the next use at most.
const POOL_BYTES: usize = 64 << 20;

/// Blocks that were written and are used again. Fresh memory comes from the system page by page, and is
/// cleared by it, which costs several times as much as filling a block.
#[derive(Debug)]
pub(crate) struct BlockPool {
    blocks: Mutex<Vec<Block>>,
    block_size: BlockSize,
    limit: usize,
}

impl BlockPool {
    /// A pool for a file system that may have `dirty_limit` bytes of changes in memory.
    pub(crate) fn new(block_size: BlockSize, dirty_limit: u64) -> Self {
        let bytes = usize::try_from(dirty_limit / 4).unwrap_or(usize::MAX).min(POOL_BYTES);
        let blocks = Mutex::new(Rank::BlockPool, Vec::new());
        Self { blocks, block_size, limit: bytes / block_size.bytes() }
    }

    /// Returns all blocks to the system.
    pub(crate) fn clear(&self) {
        let blocks = std::mem::take(&mut *self.blocks.lock());
        drop(blocks);
    }

    /// A block with the given content, which is exactly one block long.
    pub(crate) fn copy_of(&self, content: &[u8]) -> Block {
        match self.used() {
            Some(mut block) => {
                bytes_mut(&mut block).copy_from_slice(content);
                block
            }
            None => copy_of(content),
        }
    }

    /// A block of zeros.
    pub(crate) fn zeroed(&self) -> Block {
        match self.used() {
            Some(mut block) => {
                bytes_mut(&mut block).fill(0);
                block
            }
            None => zeroed(self.block_size),
        }
    }

    /// A block with some content, to which nobody else refers.
    fn used(&self) -> Option<Block> {
        self.blocks.lock().pop()
    }

    /// Takes blocks back; those that somebody still refers to are left alone.
    pub(crate) fn recycle(&self, mut used: impl Iterator<Item = Block>) {
        let mut blocks = self.blocks.lock();
        // What does not fit is given back to the system when the lock is.
        for mut block in used.by_ref() {
            if blocks.len() >= self.limit {
                return;
            }
            if Arc::get_mut(&mut block).is_some() {
                blocks.push(block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{BLOCK, block_size};

    #[test]
    fn a_used_block_has_nothing_of_what_was_in_it_and_stays_with_who_still_has_it() {
        let pool = BlockPool::new(block_size(), 1 << 20);
        let (used, kept) = (pool.copy_of(&[1; BLOCK]), pool.copy_of(&[2; BLOCK]));
        let at = used.as_ptr();
        pool.recycle([used, Block::clone(&kept)].into_iter());
        let zeroed = pool.zeroed();
        assert_eq!(zeroed.as_ptr(), at, "it is used again");
        assert!(zeroed.iter().all(|byte| *byte == 0));
        assert!(kept.iter().all(|byte| *byte == 2));
        assert_ne!(pool.zeroed().as_ptr(), kept.as_ptr());
    }
}

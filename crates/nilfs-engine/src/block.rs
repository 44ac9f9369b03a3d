//! A block of memory, shared by reference and copied only when somebody changes it.

use std::sync::Arc;

use nilfs_ondisk::BlockSize;

use crate::host::{Mutex, Rank};

/// The content of one block.
pub(crate) type Block = Arc<[u8]>;

/// A block of zeros that nobody else refers to yet.
pub(crate) fn zeroed(block_size: BlockSize) -> Block {
    std::iter::repeat_n(0, block_size.bytes()).collect()
}

/// The bytes of a block for changing; copies them first if somebody else refers to the block.
pub(crate) fn bytes_mut(block: &mut Block) -> &mut [u8] {
    Arc::make_mut(block)
}

/// Bytes of used blocks that are kept for the next use at most.
const POOL_BYTES: usize = 64 << 20;

/// Blocks that were written and are used again. Fresh memory has to be cleared by the system before
/// we overwrite it anyway, which costs as much as the copy itself.
#[derive(Debug)]
pub(crate) struct BlockPool {
    blocks: Mutex<Vec<Block>>,
    limit: usize,
}

impl BlockPool {
    /// A pool for a file system that may have `dirty_limit` bytes of changes in memory.
    pub(crate) fn new(block_size: BlockSize, dirty_limit: u64) -> Self {
        let bytes = usize::try_from(dirty_limit / 4).unwrap_or(usize::MAX).min(POOL_BYTES);
        let blocks = Mutex::new(Rank::BlockPool, Vec::new());
        Self { blocks, limit: bytes / block_size.bytes() }
    }

    /// Returns all blocks to the system.
    pub(crate) fn clear(&self) {
        let blocks = std::mem::take(&mut *self.blocks.lock());
        drop(blocks);
    }

    /// A block with the given content, which is exactly one block long.
    pub(crate) fn copy_of(&self, content: &[u8]) -> Block {
        let used = self.blocks.lock().pop();
        match used {
            Some(mut block) => {
                bytes_mut(&mut block).copy_from_slice(content);
                block
            }
            None => Block::from(content),
        }
    }

    /// Takes blocks back; those that somebody still refers to are left alone.
    pub(crate) fn recycle(&self, used: impl Iterator<Item = Block>) {
        let mut blocks = self.blocks.lock();
        for mut block in used {
            if blocks.len() >= self.limit {
                return;
            }
            if Arc::get_mut(&mut block).is_some() {
                blocks.push(block);
            }
        }
    }
}

//! A block of memory, shared by reference and copied only when somebody changes it.

use std::sync::Arc;

use nilfs_ondisk::BlockSize;

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

//! The device as an immutable store of blocks: a live block is never overwritten, so a block
//! address identifies its content until its segment is reclaimed. The cache is keyed by it, never
//! dirty, and shared by every checkpoint.
//!
//! The store knows nothing of files. Metadata blocks go through the cache; file data do not,
//! because the page cache of the system above keeps them already.

use std::sync::Arc;

use nilfs_device::{Device, IoSlice};
use nilfs_ondisk::{BlockNr, BlockSize, Geometry};
use quick_cache::sync::Cache;

use crate::block::{Block, bytes_mut, zeroed};
use crate::error::{Error, Result};

/// Memory for cached metadata blocks, in bytes.
const CACHE_BYTES: usize = 64 << 20;

/// The blocks of a volume.
pub(crate) struct Store {
    device: Arc<dyn Device>,
    geometry: Geometry,
    seed: u32,
    cache: Cache<BlockNr, Block>,
}

impl Store {
    pub(crate) fn new(device: Arc<dyn Device>, geometry: Geometry, seed: u32) -> Self {
        let cache = Cache::new(CACHE_BYTES / geometry.block_size.bytes());
        Self { device, geometry, seed, cache }
    }

    pub(crate) fn device(&self) -> &dyn Device {
        &*self.device
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub(crate) fn block_size(&self) -> BlockSize {
        self.geometry.block_size
    }

    /// The seed of every checksum on the volume.
    pub(crate) fn seed(&self) -> u32 {
        self.seed
    }

    /// A metadata block, from the cache or the device.
    pub(crate) fn read(&self, block: BlockNr) -> Result<Block> {
        self.read_checked(block, |_| Ok(()))
    }

    /// As [`Store::read`], with a check that runs once, when the block comes from the device.
    pub(crate) fn read_checked(
        &self,
        block: BlockNr,
        check: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<Block> {
        if let Some(content) = self.cache.get(&block) {
            return Ok(content);
        }
        let mut content = zeroed(self.block_size());
        self.read_run(block, bytes_mut(&mut content))?;
        check(&content)?;
        self.cache.insert(block, Arc::clone(&content));
        Ok(content)
    }

    /// Blocks that lie behind each other, past the cache, as many as fill `buffer`.
    pub(crate) fn read_run(&self, first: BlockNr, buffer: &mut [u8]) -> Result<()> {
        let count = (buffer.len() / self.block_size().bytes()) as u64;
        let last = BlockNr(first.0.saturating_add(count.saturating_sub(1)));
        if !self.geometry.has_block(first) || !self.geometry.has_block(last) {
            return Err(Error::Inconsistent(format!(
                "a pointer leads to block {last}, which is in no segment"
            )));
        }
        self.device
            .read_at(self.address(first), buffer)
            .map_err(|source| Error::Device { what: format!("read block {first}"), source })
    }

    /// Writes blocks that lie behind each other, in pieces of whole blocks.
    pub(crate) fn write_run(&self, first: BlockNr, pieces: &[IoSlice<'_>]) -> Result<()> {
        self.device
            .write_at(self.address(first), pieces)
            .map_err(|source| Error::Device { what: format!("write block {first}"), source })
    }

    /// Puts a block that was just written, or is about to be, into the cache.
    pub(crate) fn remember(&self, block: BlockNr, content: Block) {
        self.cache.insert(block, content);
    }

    /// Drops a block from the cache: its place is about to get another content.
    pub(crate) fn forget(&self, block: BlockNr) {
        self.cache.remove(&block);
    }

    /// Makes everything written so far durable.
    pub(crate) fn flush(&self) -> Result<()> {
        self.device
            .flush()
            .map_err(|source| Error::Device { what: "flush its cache".into(), source })
    }

    /// Byte address of a block; block numbers were checked against the geometry before.
    fn address(&self, block: BlockNr) -> u64 {
        self.block_size().address_of(block).unwrap_or(u64::MAX)
    }
}

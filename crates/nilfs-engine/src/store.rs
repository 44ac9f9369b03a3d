//! The device as an immutable store of blocks: a live block is never overwritten, so a block
//! address identifies its content until its segment is reclaimed. The cache is keyed by it, never
//! dirty, and shared by every checkpoint.
//!
//! The store knows nothing of files. Metadata blocks go through the cache; file data do not,
//! because the page cache of the system above keeps them already.

mod ahead;
mod checksums;

use std::io;
use std::ops::Range;
use std::sync::Arc;

use nilfs_device::{Claim, Device, IoSlice, Part, gather};
use nilfs_ondisk::summary::LogHeader;
use nilfs_ondisk::{BlockNr, BlockSize, ByteCount, Geometry};
use quick_cache::UnitWeighter;
use quick_cache::sync::Cache;

use self::ahead::ReadAhead;
use self::checksums::Checksums;
pub use self::checksums::Verify;
use crate::block::{Block, bytes_mut, zeroed};
use crate::cache::{Room, cache};
use crate::error::{Error, Result};
use crate::host::atomic::{AtomicU64, Ordering};
use crate::host::{NumberState, Rank, RwLock, may_wait};
use crate::log::sealed::SealedLog;

/// What flash programs at once on most cards, sticks and drives, unless somebody says otherwise.
pub(crate) const FLASH_PAGE: ByteCount = ByteCount(16 << 10);

/// Memory for cached metadata blocks, in bytes, unless somebody says otherwise.
const CACHE_BYTES: u64 = 64 << 20;

/// The part of that for checksums of blocks.
const CHECKSUMS: u64 = 8;

/// Bytes of memory that the cache takes for a block besides its content: its place in the cache, the
/// count of its owners, and what the allocator rounds up.
const BESIDE_BLOCK: usize = 128;

/// Blocks that are cached at least: the way to any block of the largest map, several times.
const LEAST_BLOCKS: u64 = 128;

/// The part of the cache for blocks that were used more than once. A commit writes each block it
/// changes at a new address, so what is used often is a new block each time, and must live long
/// enough to be used again.
const CACHE_HOT: f64 = 0.5;

/// What blocks are read for.
#[derive(Clone, Copy)]
enum Kind {
    /// A block of metadata, which is kept in memory.
    Metadata,
    /// A part of a file, which the system above keeps.
    Content,
    /// Whatever lies there.
    Run,
}

impl Kind {
    /// What the device is asked for at least if it is to read ahead what lies near.
    fn least_ahead(self) -> Option<ByteCount> {
        match self {
            Self::Metadata => Some(FLASH_PAGE),
            Self::Content => Some(ByteCount(0)),
            Self::Run => None,
        }
    }
}

/// The blocks of a volume.
pub(crate) struct Store {
    device: Arc<dyn Device>,
    /// As it was when the store was opened.
    geometry: Geometry,
    /// The one number of the geometry that can change.
    nsegments: AtomicU64,
    /// Bytes that flash programs at once.
    flash_page: AtomicU64,
    seed: u32,
    cache: Cache<BlockNr, Block, UnitWeighter, NumberState>,
    cache_hits: AtomicU64,
    cache_misses: AtomicU64,
    /// A run of blocks that is being held in memory as it is on the device.
    held: RwLock<Option<(BlockNr, Vec<u8>)>>,
    ahead: ReadAhead,
    /// Which blocks are checked when they are read.
    verify: Verify,
    checksums: Checksums,
}

impl Store {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        geometry: Geometry,
        seed: u32,
        verify: Verify,
    ) -> Self {
        let (blocks, sums) = shares(CACHE_BYTES, verify);
        let blocks = cached_blocks(blocks, geometry.block_size);
        let room = Room { values: blocks as usize, weight: blocks, hot: Some(CACHE_HOT) };
        let cache = cache(&room, UnitWeighter);
        let checksums = Checksums::new(sums);
        let nsegments = AtomicU64::new(geometry.nsegments);
        let flash_page = AtomicU64::new(FLASH_PAGE.0);
        let (cache_hits, cache_misses) = Default::default();
        let held = RwLock::new(Rank::ReadAhead, None);
        device.without_read_ahead();
        Self {
            device,
            geometry,
            nsegments,
            flash_page,
            seed,
            cache,
            cache_hits,
            cache_misses,
            held,
            ahead: ReadAhead::new(),
            verify,
            checksums,
        }
    }

    /// The same blocks without what is in memory of them, and unchecked.
    pub(crate) fn afresh(&self) -> Self {
        Self::new(Arc::clone(&self.device), self.geometry(), self.seed, Verify::None)
    }

    /// Which blocks are checked when they are read.
    pub(crate) fn verify(&self) -> Verify {
        self.verify
    }

    pub(crate) fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Device of this store, for another store of its own.
    pub(crate) fn shared_device(&self) -> Arc<dyn Device> {
        Arc::clone(&self.device)
    }

    pub(crate) fn geometry(&self) -> Geometry {
        Geometry { nsegments: self.nsegments.load(Ordering::Acquire), ..self.geometry }
    }

    /// The volume has another number of segments now.
    pub(crate) fn set_segments(&self, count: u64) {
        self.nsegments.store(count, Ordering::Release);
    }

    pub(crate) fn block_size(&self) -> BlockSize {
        self.geometry.block_size
    }

    /// The seed of every checksum on the volume.
    pub(crate) fn seed(&self) -> u32 {
        self.seed
    }

    /// What flash programs at once: logs end where it does.
    pub(crate) fn flash_page(&self) -> ByteCount {
        ByteCount(self.flash_page.load(Ordering::Relaxed))
    }

    /// Makes logs end at multiples of this many bytes.
    pub(crate) fn set_flash_page(&self, bytes: ByteCount) {
        self.flash_page.store(bytes.0, Ordering::Relaxed);
    }

    /// Keeps metadata blocks in this many bytes of memory from now on.
    pub(crate) fn set_cache_limit(&self, bytes: u64) {
        let (blocks, sums) = shares(bytes, self.verify);
        self.cache.set_capacity(cached_blocks(blocks, self.block_size()));
        self.checksums.set_limit(sums);
    }

    /// How many metadata blocks were wanted and in the cache, and how many had to be read.
    pub(crate) fn cache_counts(&self) -> (u64, u64) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (count(&self.cache_hits), count(&self.cache_misses))
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
            self.cache_hits.fetch_add(1, Ordering::Relaxed);
            return Ok(content);
        }
        let mut content = zeroed(self.block_size());
        match self.verify {
            Verify::None | Verify::Rescue => {
                self.fetch_all(block, bytes_mut(&mut content), Kind::Metadata)?;
            }
            Verify::Metadata | Verify::All => {
                self.checksums.read_metadata(self, block, bytes_mut(&mut content))?;
            }
        }
        self.cache_misses.fetch_add(1, Ordering::Relaxed);
        check(&content)?;
        self.cache.insert(block, Arc::clone(&content));
        Ok(content)
    }

    /// Blocks that lie one after the other, past the cache, as many as fill `buffer`.
    pub(crate) fn read_run(&self, first: BlockNr, buffer: &mut [u8]) -> Result<()> {
        self.fetch_all(first, buffer, Kind::Run)
    }

    /// As [`Store::read_run`], for the content of files. The system above keeps it, and asks ahead for what
    /// follows in a file, but does not know what lies next to each other.
    pub(crate) fn read_content(&self, first: BlockNr, buffer: &mut [u8]) -> Result<()> {
        if self.copy_held(first, buffer) {
            return Ok(());
        }
        self.read_parts(first, &mut [Part::Wanted(buffer)], false)
    }

    /// As [`Store::read_content`], with parts that nobody needs; together they are whole blocks. If the
    /// device has been `asked` for them, they are not read past what the system has in memory.
    pub(crate) fn read_parts(
        &self,
        first: BlockNr,
        parts: &mut [Part<'_>],
        asked: bool,
    ) -> Result<()> {
        let bytes = parts.iter().map(Part::bytes).sum();
        let kind = if asked { Kind::Run } else { Kind::Content };
        self.fetch(first, bytes, kind, |start, wait| match asked {
            true => gather(parts, |buffer| self.read_bytes(start, buffer, wait)),
            false => self.device.read_once(start, parts, wait),
        })
    }

    /// Fails if a block of a file that is about to be changed in part is not what was written there, as far as
    /// that is known.
    pub(crate) fn check(&self, block: BlockNr, content: &[u8]) -> Result<()> {
        match self.verify {
            Verify::None => Ok(()),
            Verify::Rescue | Verify::Metadata | Verify::All => {
                self.checksums.check_metadata(self, block, content)
            }
        }
    }

    /// As [`Store::check`], for content of files that is only read; or sets it right, as far as that is known.
    pub(crate) fn check_content(&self, first: BlockNr, content: &mut [u8]) -> Result<()> {
        match self.verify {
            Verify::None | Verify::Metadata => Ok(()),
            Verify::Rescue => self.set_right(first, content),
            Verify::All => self.checksums.check(self, first, content),
        }
    }

    /// Sets content of files right that was read without a check, if that is asked and as far as it is known.
    pub(crate) fn set_right(&self, first: BlockNr, content: &mut [u8]) -> Result<()> {
        match self.verify {
            Verify::Rescue => self.checksums.set_right(self, first, content),
            Verify::None | Verify::Metadata | Verify::All => Ok(()),
        }
    }

    fn fetch_all(&self, first: BlockNr, buffer: &mut [u8], kind: Kind) -> Result<()> {
        if self.copy_held(first, buffer) {
            return Ok(());
        }
        self.fetch(first, buffer.len(), kind, |start, wait| self.read_bytes(start, buffer, wait))
    }

    /// Returns whether that was possible, which it is if it may `wait`.
    fn read_bytes(&self, start: u64, buffer: &mut [u8], wait: bool) -> io::Result<bool> {
        match wait {
            true => self.device.read_at(start, buffer).map(|()| true),
            false => self.device.read_without_waiting(start, buffer),
        }
    }

    /// Has blocks read, if this thread may wait for that or need not.
    fn fetch(
        &self,
        first: BlockNr,
        bytes: usize,
        kind: Kind,
        read: impl FnOnce(u64, bool) -> io::Result<bool>,
    ) -> Result<()> {
        let count = (bytes / self.block_size().bytes()) as u64;
        let last = BlockNr(first.0.saturating_add(count.saturating_sub(1)));
        let geometry = self.geometry();
        if !geometry.has_block(first) || !geometry.has_block(last) {
            return Err(Error::Inconsistent(format!(
                "a pointer leads to block {last}, which is in no segment"
            )));
        }
        let (start, bytes) = (self.address(first), bytes as u64);
        let ahead = kind.least_ahead();
        if let Some(asked) = ahead.and_then(|least| self.ahead.ask(start, bytes, least.0)) {
            self.device.will_need(asked.start, asked.end - asked.start);
        }
        match read(start, may_wait()) {
            Ok(true) => Ok(()),
            Ok(false) => {
                // It will be read by another thread, once.
                if ahead.is_some() {
                    self.ahead.take_back(start, bytes);
                }
                Err(Error::WouldWait)
            }
            Err(source) => Err(Error::Device { what: format!("read block {first}"), source }),
        }
    }

    /// Has the system begin to read blocks that will be asked for soon, if they are in segments. Only
    /// advice.
    pub(crate) fn will_need(&self, blocks: &Range<BlockNr>) {
        let geometry = self.geometry();
        let last = BlockNr(blocks.end.0.saturating_sub(1));
        if geometry.has_block(blocks.start) && geometry.has_block(last) {
            let (start, end) = (self.address(blocks.start), self.address(blocks.end));
            self.device.will_need(start, end.saturating_sub(start));
        }
    }

    /// Holds blocks that were read, instead of those held before, until [`Store::let_go`]: a mount
    /// reads the newest log to verify it, and finds most of what it needs next in it.
    pub(crate) fn hold(&self, first: BlockNr, content: Vec<u8>) {
        *self.held.write() = Some((first, content));
    }

    /// Holds nothing any more. Comes before what is held can be cleaned and written again.
    pub(crate) fn let_go(&self) {
        *self.held.write() = None;
    }

    fn copy_held(&self, first: BlockNr, buffer: &mut [u8]) -> bool {
        let held = self.held.read();
        let Some((start, content)) = &*held else { return false };
        let Some(skip) = first.0.checked_sub(start.0) else { return false };
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        let from = skip.saturating_mul(self.block_size().bytes());
        match content.get(from..from.saturating_add(buffer.len())) {
            Some(content) => buffer.copy_from_slice(content),
            None => return false,
        }
        true
    }

    /// Writes blocks that lie one after the other, in pieces of whole blocks.
    pub(crate) fn write_run(&self, first: BlockNr, pieces: &[IoSlice<'_>]) -> Result<()> {
        self.device
            .write_at(self.address(first), pieces)
            .map_err(|source| Error::Device { what: format!("write block {first}"), source })
    }

    /// As [`Store::write_run`].
    pub(crate) fn write_blocks(&self, first: BlockNr, blocks: &[Block]) -> Result<()> {
        let pieces: Vec<_> = blocks.iter().map(|block| IoSlice::new(block)).collect();
        self.write_run(first, &pieces)
    }

    /// Writes blocks that lie one after the other, perhaps past the system's memory and while the caller
    /// goes on: a flush waits for that, and so does whoever reads them.
    pub(crate) fn begin_to_write(&self, first: BlockNr, blocks: Vec<Block>) -> Result<()> {
        self.device
            .begin_to_write(self.address(first), blocks)
            .map_err(|source| Error::Device { what: format!("write the log at {first}"), source })
    }

    /// Puts a block that was just written, or is about to be, into the cache.
    pub(crate) fn remember(&self, block: BlockNr, content: Block) {
        self.cache.insert(block, content);
    }

    /// Lets the places of a log that is about to be written have their new content: what is known of the
    /// old one is dropped.
    pub(crate) fn make_way_for(&self, log: &SealedLog) {
        log.addresses().for_each(|block| _ = self.cache.remove(&block));
        if self.verify != Verify::None {
            let places = log.start..log.start.plus(log.len());
            self.checksums.note_written(log.segment, places, log.seq, log.sums());
        }
    }

    /// Takes note of a log, so that nothing has to be read to find it.
    pub(crate) fn note_log(&self, start: BlockNr, header: LogHeader) {
        if self.verify != Verify::None {
            self.checksums.note_found(self.geometry().segment_of(start), start, header);
        }
    }

    /// Whether another process reads the volume.
    pub(crate) fn is_read_elsewhere(&self) -> bool {
        self.device.is_read()
    }

    /// Keeps other processes from beginning to read until the value is dropped. `None` if one is
    /// reading.
    pub(crate) fn keep_readers_out(&self) -> Option<Claim> {
        self.device.keep_readers_out()
    }

    /// Makes everything written so far durable.
    pub(crate) fn flush(&self) -> Result<()> {
        self.device
            .flush()
            .map_err(|source| Error::Device { what: "flush its cache".into(), source })
    }

    /// Has blocks that were written begin to reach the device, durable or not.
    pub(crate) fn begin_to_write_out(&self, blocks: &Range<BlockNr>) -> Result<()> {
        self.write_out_and(blocks, false)
    }

    /// Waits until blocks that were written have reached the device, durable or not.
    pub(crate) fn write_out(&self, blocks: &Range<BlockNr>) -> Result<()> {
        self.write_out_and(blocks, true)
    }

    fn write_out_and(&self, blocks: &Range<BlockNr>, wait: bool) -> Result<()> {
        let (start, end) = (self.address(blocks.start), self.address(blocks.end));
        self.device
            .write_out(start, end - start, wait)
            .map_err(|source| Error::Device { what: "write what it was given".into(), source })
    }

    /// Tells the device that a range of bytes holds nothing any more.
    pub(crate) fn discard(&self, offset: u64, bytes: u64) -> Result<()> {
        self.device
            .discard(offset, bytes)
            .map_err(|source| Error::Device { what: "discard free space".into(), source })
    }

    /// Byte address of a block; block numbers were checked against the geometry before.
    fn address(&self, block: BlockNr) -> u64 {
        self.block_size().address_of(block).unwrap_or(u64::MAX)
    }
}

/// Divides memory into that for blocks and that for checksums.
fn shares(bytes: u64, verify: Verify) -> (u64, u64) {
    let sums = if verify == Verify::None { 0 } else { bytes / CHECKSUMS };
    (bytes - sums, sums)
}

/// How many blocks fit into this many bytes.
fn cached_blocks(bytes: u64, block_size: BlockSize) -> u64 {
    let block = block_size.bytes() + BESIDE_BLOCK;
    (bytes / block as u64).max(LEAST_BLOCKS)
}

//! What a scrub has in memory of a segment: one piece, while the device reads the next. So neither the
//! sums nor many small logs keep the device waiting.

use std::ops::Range;

use nilfs_ondisk::BlockNr;

use crate::store::Store;

/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;

/// A piece of a segment.
pub(super) struct Window<'a> {
    store: &'a Store,
    /// Where the part of the segment ends that is of interest.
    end: BlockNr,
    buffer: Vec<u8>,
    blocks: Range<BlockNr>,
    /// Those among them that the device cannot read, ascending.
    unreadable: Vec<BlockNr>,
    /// Up to where the device has been asked for what comes next.
    asked: BlockNr,
}

impl<'a> Window<'a> {
    pub(super) fn new(store: &'a Store) -> Self {
        let buffer = vec![0; READ_BYTES.max(store.block_size().bytes())];
        let nothing = BlockNr(0);
        let blocks = nothing..nothing;
        Self { store, end: nothing, buffer, blocks, unreadable: Vec::new(), asked: nothing }
    }

    /// Begins with a part of a segment, of which nothing is in memory yet.
    pub(super) fn enter(&mut self, part: &Range<BlockNr>) {
        self.blocks = part.start..part.start;
        self.asked = part.start;
        self.end = part.end;
    }

    /// The blocks that are in memory.
    pub(super) fn blocks(&self) -> &Range<BlockNr> {
        &self.blocks
    }

    /// Those among them that cannot be read.
    pub(super) fn unreadable(&self) -> &[BlockNr] {
        &self.unreadable
    }

    /// What is in some of the blocks that are in memory.
    pub(super) fn content(&self, blocks: &Range<BlockNr>) -> &[u8] {
        let block_bytes = self.store.block_size().bytes();
        let offset = |block: BlockNr| (block.0 - self.blocks.start.0) as usize * block_bytes;
        &self.buffer[offset(blocks.start)..offset(blocks.end)]
    }

    /// Reads the piece that begins at a block. Returns its bytes. What a log claims beyond the part comes
    /// block by block.
    pub(super) fn read(&mut self, at: BlockNr) -> u64 {
        let block_bytes = self.store.block_size().bytes();
        self.blocks = at..self.end_of_piece(at).max(at.plus(1));
        self.ask_up_to(self.blocks.end);
        let bytes = (self.blocks.end.0 - at.0) as usize * block_bytes;
        let piece = &mut self.buffer[..bytes];
        self.unreadable.clear();
        if self.store.read_run(at, piece).is_err() {
            let pairs = (at.0..).map(BlockNr).zip(piece.chunks_mut(block_bytes));
            let bad = pairs.filter_map(|(block, content)| {
                self.store.read_run(block, content).is_err().then_some(block)
            });
            self.unreadable.extend(bad);
        }
        self.ask_up_to(self.end_of_piece(self.blocks.end));
        bytes as u64
    }

    fn end_of_piece(&self, start: BlockNr) -> BlockNr {
        let most = self.buffer.len() / self.store.block_size().bytes();
        start.plus(most as u64).min(self.end)
    }

    /// Has the device read ahead. What is in a cache says nothing about the device.
    fn ask_up_to(&mut self, end: BlockNr) {
        let block_bytes = self.store.block_size().bytes64();
        let (offset, blocks) = (self.asked.0 * block_bytes, end.0.saturating_sub(self.asked.0));
        self.store.device().forget_cached(offset, blocks * block_bytes);
        self.store.device().will_need(offset, blocks * block_bytes);
        self.asked = self.asked.max(end);
    }
}

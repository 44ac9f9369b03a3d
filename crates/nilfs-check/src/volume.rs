//! The bytes of a volume: the device seen as blocks. It knows nothing of what the blocks hold.

use std::io;
use std::ops::Range;

use nilfs_device::Device;
use nilfs_ondisk::{BlockNr, BlockSize, Geometry};

/// Blocks so near to each other are read together, with what lies between them.
const NEAR: u64 = 8;
/// The system is asked for this many blocks at a time.
const ADVISED: u64 = 256;

/// A device with the geometry of the volume on it.
pub(crate) struct Volume<'d> {
    device: &'d dyn Device,
    pub(crate) geometry: Geometry,
    /// The seed of every checksum.
    pub(crate) seed: u32,
}

impl<'d> Volume<'d> {
    pub(crate) fn new(device: &'d dyn Device, geometry: Geometry, seed: u32) -> Self {
        Self { device, geometry, seed }
    }

    pub(crate) fn block_size(&self) -> BlockSize {
        self.geometry.block_size
    }

    /// Fills `buffer` with the blocks from `first` on.
    pub(crate) fn read(&self, first: BlockNr, buffer: &mut [u8]) -> io::Result<()> {
        let offset = self.block_size().address_of(first).ok_or(io::ErrorKind::UnexpectedEof)?;
        self.device.read_at(offset, buffer)
    }

    /// Has the system begin to read blocks that will be asked for, given in ascending order.
    pub(crate) fn will_need(&self, blocks: impl Iterator<Item = BlockNr>) {
        let advise = |run: Range<u64>| {
            let start = self.block_size().address_of(BlockNr(run.start));
            if let Some(start) = start.filter(|_| !run.is_empty()) {
                let bytes = (run.end - run.start).saturating_mul(self.block_size().bytes64());
                self.device.will_need(start, bytes);
            }
        };
        let mut run = 0..0_u64;
        for BlockNr(block) in blocks.filter(|block| self.geometry.has_block(*block)) {
            let length = run.end.saturating_sub(run.start);
            if block < run.end.saturating_add(NEAR) && length < ADVISED {
                run.end = block + 1;
            } else {
                advise(std::mem::replace(&mut run, block..block + 1));
            }
        }
        advise(run);
    }

    /// Reads one block.
    pub(crate) fn block(&self, nr: BlockNr) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; self.block_size().bytes()];
        self.read(nr, &mut buffer)?;
        Ok(buffer)
    }
}

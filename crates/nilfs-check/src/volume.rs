//! The bytes of a volume: the device seen as blocks. It knows nothing of what the blocks hold.

use std::io;

use hashbrown::HashMap;
use nilfs_device::Device;
use nilfs_ondisk::crc::BlockSum;
use nilfs_ondisk::{BlockNr, BlockSize, Geometry};
use parking_lot::Mutex;

use crate::ahead::Pace;
use crate::report::Location;

/// A device with the geometry of the volume on it.
pub(crate) struct Volume<'d> {
    pub(crate) device: &'d dyn Device,
    pub(crate) geometry: Geometry,
    /// The seed of every checksum.
    pub(crate) seed: u32,
    /// How many blocks were read one by one.
    pub(crate) pace: Pace,
    /// The blocks that were read one by one, which are those of metadata and of links.
    pub(crate) found: Mutex<HashMap<BlockNr, ReadBlock>>,
}

/// A block that was read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadBlock {
    pub(crate) block: BlockNr,
    pub(crate) sum: BlockSum,
    /// Where it is the target of a symbolic link, if it is one.
    pub(crate) target: Option<Location>,
}

impl<'d> Volume<'d> {
    pub(crate) fn new(device: &'d dyn Device, geometry: Geometry, seed: u32) -> Self {
        Self { device, geometry, seed, pace: Pace::default(), found: Mutex::default() }
    }

    pub(crate) fn block_size(&self) -> BlockSize {
        self.geometry.block_size
    }

    /// Fills `buffer` with the blocks from `first` on.
    pub(crate) fn read(&self, first: BlockNr, buffer: &mut [u8]) -> io::Result<()> {
        let offset = self.block_size().address_of(first).ok_or(io::ErrorKind::UnexpectedEof)?;
        self.device.read_at(offset, buffer)
    }

    /// Reads one block.
    pub(crate) fn block(&self, nr: BlockNr) -> io::Result<Vec<u8>> {
        self.pace.step();
        let mut buffer = vec![0; self.block_size().bytes()];
        self.read(nr, &mut buffer)?;
        let sum = BlockSum::of(&buffer);
        let found = ReadBlock { block: nr, sum, target: None };
        self.found.lock().entry(nr).or_insert(found).sum = sum;
        Ok(buffer)
    }

    /// Remembers that a block that was read is the target of a symbolic link.
    pub(crate) fn is_target(&self, nr: BlockNr, place: Location) {
        if let Some(found) = self.found.lock().get_mut(&nr) {
            found.target.get_or_insert(place);
        }
    }
}

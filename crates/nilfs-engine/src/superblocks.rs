//! The two copies of the superblock: choosing one at mount, rewriting them later
//! (behaviour spec §1.1 and §2).

use nilfs_device::{Device, IoSlice};
use nilfs_ondisk::BlockNr;
use nilfs_ondisk::geometry::{PRIMARY_SUPERBLOCK, secondary_superblock};
use nilfs_ondisk::superblock::{SUPERBLOCK_SIZE, Superblock};

use crate::error::{Error, Result};

/// The valid copies, best first. There is at least one.
#[derive(Debug, Clone)]
pub(crate) struct Superblocks {
    pub(crate) best: Superblock,
    pub(crate) other: Option<Superblock>,
}

/// Reads both copies.
pub(crate) fn load(device: &dyn Device) -> Result<Superblocks> {
    let size = device.size();
    let read = |offset: u64| -> Result<Superblock, String> {
        let mut bytes = [0; SUPERBLOCK_SIZE];
        device.read_at(offset, &mut bytes).map_err(|error| error.to_string())?;
        Superblock::parse(&bytes, size).map_err(|error| error.to_string())
    };
    let primary = read(PRIMARY_SUPERBLOCK);
    let secondary = match secondary_superblock(size) {
        Some(offset) => read(offset).and_then(|copy| match inside_segments(&copy, offset) {
            true => Err("it lies inside a segment".to_owned()),
            false => Ok(copy),
        }),
        None => Err("the device is too small".to_owned()),
    };
    match (primary, secondary) {
        (Ok(primary), Ok(secondary)) => {
            let newer = secondary.last_log().cno > primary.last_log().cno;
            let (best, other) = if newer { (secondary, primary) } else { (primary, secondary) };
            Ok(Superblocks { best, other: Some(other) })
        }
        (Ok(best), Err(_)) | (Err(_), Ok(best)) => Ok(Superblocks { best, other: None }),
        (Err(first), Err(_)) => Err(Error::NotAVolume(format!("no valid superblock ({first})"))),
    }
}

/// A copy that a segment would overwrite is not one of this volume's.
fn inside_segments(copy: &Superblock, offset: u64) -> bool {
    let geometry = copy.geometry();
    geometry.has_segment(geometry.segment_of(BlockNr(offset / geometry.block_size.bytes64())))
}

/// Keeps both copies up to date on the device.
#[derive(Debug)]
pub(crate) struct SuperblockWriter {
    current: Superblock,
    offsets: Vec<u64>,
    /// Which copy is the older one, to be written next.
    next: usize,
}

impl SuperblockWriter {
    pub(crate) fn new(current: Superblock, device: &dyn Device) -> Self {
        let secondary = secondary_superblock(device.size())
            .filter(|&offset| !inside_segments(&current, offset));
        let offsets = std::iter::once(PRIMARY_SUPERBLOCK).chain(secondary).collect();
        Self { current, offsets, next: 0 }
    }

    pub(crate) fn current(&self) -> &Superblock {
        &self.current
    }

    pub(crate) fn current_mut(&mut self) -> &mut Superblock {
        &mut self.current
    }

    /// Writes the older copy. What it points to must be durable already; the copy itself is when
    /// this returns.
    pub(crate) fn write_one(&mut self, device: &dyn Device) -> Result<()> {
        let offset = self.offsets[self.next % self.offsets.len()];
        self.next += 1;
        let failed = |source| Error::Device { what: "write a superblock".into(), source };
        device.write_at(offset, &[IoSlice::new(&self.current.encode())]).map_err(failed)?;
        device.flush().map_err(failed)
    }

    /// Writes both copies, one after the other, so that one of them is whole at any time.
    pub(crate) fn write_all(&mut self, device: &dyn Device) -> Result<()> {
        (0..self.offsets.len()).try_for_each(|_| self.write_one(device))
    }
}

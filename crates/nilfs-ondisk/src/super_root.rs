//! The super root: the last block of a log that completes a checkpoint. It holds the inodes of
//! the DAT, the cpfile and the sufile, which exist nowhere else (docs/format.md §5).
//!
//! ```text
//! 0       4          6          8                16        16+isz     16+2*isz
//! | sr_sum | sr_bytes | sr_flags | sr_nongc_ctime | DAT inode | cpfile inode | sufile inode | 0…
//! ```

use crate::crc::{WrongBit, crc32_le};
use crate::inode::{INODE_SIZE, RawInode};
use crate::{FormatError, Geometry};
use zerocopy::{FromBytes, IntoBytes};

const STRUCTURE: &str = "super root";

/// Of `sr_flags`: see [`SuperRoot::durable_before`]. Linux leaves all of them zero and looks at none.
const DURABLE_BEFORE: u16 = 1 << 15;

/// The checked content of a super root.
#[derive(Debug, Clone, Copy)]
pub struct SuperRoot {
    /// Time (s) of the last log that the cleaner did not write.
    pub nongc_ctime: u64,
    /// Whether all logs before this one were durable before it was written. A mount after a crash then
    /// need not read them to know that they are whole.
    pub durable_before: bool,
    /// Inode of the DAT.
    pub dat: RawInode,
    /// Inode of the cpfile.
    pub cpfile: RawInode,
    /// Inode of the sufile.
    pub sufile: RawInode,
}

impl SuperRoot {
    /// Reads the super root from its block.
    ///
    /// # Errors
    /// Wrong size, checksum, or a metadata inode that is not a linked regular file.
    pub fn parse(block: &[u8], geometry: &Geometry, seed: u32) -> Result<Self, FormatError> {
        let size = Self::size(geometry);
        if block.len() < size {
            let (have, need) = (block.len() as u64, size as u64);
            return Err(FormatError::Short { structure: STRUCTURE, have, need });
        }
        let bytes = usize::from(u16::from_le_bytes([block[4], block[5]]));
        if bytes < size || bytes > block.len() {
            return Err(FormatError::field(STRUCTURE, "sr_bytes", bytes, size));
        }
        let stored = u32::from_le_bytes([block[0], block[1], block[2], block[3]]);
        let computed = crc32_le(seed, &block[4..bytes]);
        if stored != computed {
            return Err(FormatError::Checksum {
                structure: STRUCTURE,
                field: "sr_sum",
                stored,
                computed,
            });
        }
        let inode = |nth: usize, name| -> Result<RawInode, FormatError> {
            let at = 16 + nth * geometry.inode_size;
            let (inode, _) = RawInode::read_from_prefix(&block[at..at + INODE_SIZE])
                .map_err(|_| FormatError::field(STRUCTURE, name, "truncated", "an inode"))?;
            inode.validate_metadata_file(name)?;
            Ok(inode)
        };
        let flags = u16::from_le_bytes([block[6], block[7]]);
        let mut time = [0; 8];
        time.copy_from_slice(&block[8..16]);
        Ok(Self {
            nongc_ctime: u64::from_le_bytes(time),
            durable_before: flags & DURABLE_BEFORE != 0,
            dat: inode(0, "DAT inode")?,
            cpfile: inode(1, "cpfile inode")?,
            sufile: inode(2, "sufile inode")?,
        })
    }

    /// Returns the bit that is wrong in the block of a super root, if it is only one.
    #[must_use]
    pub fn wrong_bit(block: &[u8], geometry: &Geometry, seed: u32) -> Option<WrongBit> {
        let is_right = |bytes: &[u8]| Self::parse(bytes, geometry, seed).is_ok();
        let (mut bytes, of_header) = (block.to_vec(), 0..48.min(8 * block.len()));
        WrongBit::without_which(&mut bytes, of_header, is_right).or_else(|| {
            let size = usize::from(u16::from_le_bytes([*block.get(4)?, *block.get(5)?]));
            let stored = u32::from_le_bytes([block[0], block[1], block[2], block[3]]);
            let covered = block.get(4..size)?;
            let bit = WrongBit::between(covered.len(), crc32_le(seed, covered), stored)?.after(4);
            bit.flip(&mut bytes);
            is_right(&bytes).then_some(bit)
        })
    }

    /// Returns a block with a super root of the size that every one has, and its checksum, if that makes it
    /// one.
    #[must_use]
    pub fn with_its_size(block: &[u8], geometry: &Geometry, seed: u32) -> Option<Vec<u8>> {
        let size = Self::size(geometry);
        let mut bytes = block.to_vec();
        bytes.get_mut(4..6)?.copy_from_slice(&(size as u16).to_le_bytes());
        let sum = crc32_le(seed, bytes.get(4..size)?);
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
        Self::parse(&bytes, geometry, seed).is_ok().then_some(bytes)
    }

    /// Writes the super root into a zeroed block.
    pub fn encode(&self, block: &mut [u8], geometry: &Geometry, seed: u32) {
        let size = Self::size(geometry);
        block[4..6].copy_from_slice(&(size as u16).to_le_bytes());
        let flags = if self.durable_before { DURABLE_BEFORE } else { 0 };
        block[6..8].copy_from_slice(&flags.to_le_bytes());
        block[8..16].copy_from_slice(&self.nongc_ctime.to_le_bytes());
        for (nth, inode) in [&self.dat, &self.cpfile, &self.sufile].into_iter().enumerate() {
            let at = 16 + nth * geometry.inode_size;
            block[at..at + INODE_SIZE].copy_from_slice(inode.as_bytes());
        }
        let sum = crc32_le(seed, &block[4..size]);
        block[..4].copy_from_slice(&sum.to_le_bytes());
    }

    fn size(geometry: &Geometry) -> usize {
        16 + 3 * geometry.inode_size
    }
}

//! Where things are on the device (docs/format.md §2).
//!
//! ```text
//! byte 0      1024            fdb*bs           bps*bs                       SB2 offset     device
//! end | boot area | primary SB ...| segment 0 .....| segment 1 ...| unused tail | secondary SB |
//! rest <4K
//! ```

use serde::{Deserialize, Serialize};

use crate::{BlockNr, BlockSize, FormatError, SegNum};

/// Byte address of the primary superblock.
pub const PRIMARY_SUPERBLOCK: u64 = 1024;
/// The smallest number of blocks in a segment.
pub const MIN_BLOCKS_PER_SEGMENT: u32 = 16;
/// The smallest number of blocks in a log: a summary block and one more.
pub const MIN_LOG_BLOCKS: u64 = 2;
/// The smallest number of segments kept back for the cleaner.
pub const MIN_RESERVED_SEGMENTS: u64 = 8;
/// The smallest device that can hold a volume, in bytes.
pub const MIN_DEVICE_SIZE: u64 = 16 * 1024 + 4096;

/// Byte address of the secondary superblock on a device of `device_size` bytes, or `None` if the
/// device is too small for one.
///
/// It follows from the size of the *device*, not from `s_dev_size`.
#[must_use]
pub const fn secondary_superblock(device_size: u64) -> Option<u64> {
    if device_size < MIN_DEVICE_SIZE { None } else { Some(((device_size >> 12) - 1) << 12) }
}

/// The layout of a volume: sizes that never change while it is open, except by a resize.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Geometry {
    /// Size of a block.
    pub block_size: BlockSize,
    /// Blocks in a full segment.
    pub blocks_per_segment: u32,
    /// Number of segments.
    pub nsegments: u64,
    /// First block of segment 0.
    pub first_data_block: BlockNr,
    /// Percentage of the segments that is kept back.
    pub reserved_percent: u32,
    /// Bytes of an inode on disk.
    pub inode_size: usize,
    /// Bytes of a DAT entry.
    pub dat_entry_size: usize,
    /// Bytes of a checkpoint entry.
    pub checkpoint_size: usize,
    /// Bytes of a segment usage entry.
    pub segment_usage_size: usize,
}

impl Geometry {
    /// Checks what the kernel checks at mount and what a reader relies on (docs/format.md §2), but
    /// for the size of the device.
    ///
    /// # Errors
    /// Names the field that is out of range.
    pub fn validate(&self) -> Result<(), FormatError> {
        let bad = |field, found: u64, expected: String| {
            Err(FormatError::field("superblock", field, found, expected))
        };
        let bs = self.block_size.bytes();
        let bps = u64::from(self.blocks_per_segment);
        if self.blocks_per_segment < MIN_BLOCKS_PER_SEGMENT {
            return bad("s_blocks_per_segment", bps, format!("at least {MIN_BLOCKS_PER_SEGMENT}"));
        }
        if !(1..=99).contains(&self.reserved_percent) {
            let found = u64::from(self.reserved_percent);
            return bad("s_r_segments_percentage", found, "1 to 99".into());
        }
        let first = self.first_data_block.0;
        if first.saturating_add(2) > bps || first.saturating_mul(bs as u64) < 2048 {
            let expected = format!("at least {} and at most {}", 2048_usize.div_ceil(bs), bps - 2);
            return bad("s_first_data_block", first, expected);
        }
        if self.nsegments == 0 {
            return bad("s_nsegments", 0, "at least 1".into());
        }
        for (field, size, min) in [
            ("s_inode_size", self.inode_size, 128),
            ("s_dat_entry_size", self.dat_entry_size, 32),
            ("s_checkpoint_size", self.checkpoint_size, 192),
            ("s_segment_usage_size", self.segment_usage_size, 16),
        ] {
            if !(min..=bs).contains(&size) {
                return bad(field, size as u64, format!("{min} to {bs}"));
            }
        }
        if 16 + 3 * self.inode_size > bs {
            let expected = format!("three of them in a block of {bs} bytes");
            return bad("s_inode_size", self.inode_size as u64, expected);
        }
        Ok(())
    }

    /// The segment that holds `block`.
    #[must_use]
    pub fn segment_of(&self, block: BlockNr) -> SegNum {
        SegNum(block.0 / u64::from(self.blocks_per_segment))
    }

    /// First block of a segment. Segment 0 starts after the boot area.
    #[must_use]
    pub fn segment_start(&self, segment: SegNum) -> BlockNr {
        if segment.0 == 0 {
            self.first_data_block
        } else {
            BlockNr(segment.0.saturating_mul(u64::from(self.blocks_per_segment)))
        }
    }

    /// The block after the last block of a segment.
    #[must_use]
    pub fn segment_end(&self, segment: SegNum) -> BlockNr {
        BlockNr(segment.0.saturating_add(1).saturating_mul(u64::from(self.blocks_per_segment)))
    }

    /// Blocks of a segment: all of them full except segment 0.
    #[must_use]
    pub fn segment_blocks(&self, segment: SegNum) -> u64 {
        self.segment_end(segment).0 - self.segment_start(segment).0
    }

    /// Whether `segment` is one of the volume's.
    #[must_use]
    pub fn has_segment(&self, segment: SegNum) -> bool {
        segment.0 < self.nsegments
    }

    /// Whether `block` lies inside a segment, where all data live.
    #[must_use]
    pub fn has_block(&self, block: BlockNr) -> bool {
        block >= self.first_data_block && self.has_segment(self.segment_of(block))
    }

    /// Segments kept back so that a full volume can still be cleaned.
    #[must_use]
    pub fn reserved_segments(&self) -> u64 {
        let share = u128::from(self.nsegments) * u128::from(self.reserved_percent);
        MIN_RESERVED_SEGMENTS.max(u64::try_from(share.div_ceil(100)).unwrap_or(u64::MAX))
    }

    /// Bytes of a segment.
    #[must_use]
    pub fn segment_bytes(&self) -> u64 {
        u64::from(self.blocks_per_segment) * self.block_size.bytes64()
    }

    /// The smallest first data block for a block size: the superblock's area comes before it.
    #[must_use]
    pub fn first_data_block_for(block_size: BlockSize) -> BlockNr {
        BlockNr(block_size.blocks_for(4096))
    }
}

//! Blocks of metadata that are not what was written. One wrong bit is set right. Anything else that they seem
//! to say is worth no more than what cannot be read, however plausible it is: so they cannot be read in the
//! draft, until they are made anew from the rest of the volume.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use nilfs_check::Report;
use nilfs_device::{CopyOnWriteDevice, Device, IoSlice, MaskedDevice};
use nilfs_ondisk::BlockNr;
use nilfs_ondisk::crc::BlockSum;

use super::Draft;
use crate::{Concerned, Repair, RepairError, Risk, superblocks};

impl Draft {
    /// Returns what a check says when the blocks that this one has found wrong cannot be read any more, nor
    /// those that come to light by that.
    pub(super) fn judged(&mut self, mut report: Report) -> Result<Report, RepairError> {
        while self.distrust(&report.changed_metadata)? {
            report = self.check().map_err(RepairError::Check)?;
        }
        Ok(report)
    }

    /// Sets blocks right, or makes them unreadable, given the checksums that they should have. A block that has
    /// been corrected is left as it is: the checksums of its log may be those of before. Returns whether there
    /// are any.
    fn distrust(&mut self, blocks: &BTreeMap<BlockNr, BlockSum>) -> io::Result<bool> {
        if blocks.is_empty() {
            return Ok(false);
        }
        let superblock = superblocks::best(&*self.device).map_err(io::Error::other)?;
        let (geometry, size) = (superblock.geometry(), self.block_size()?);
        let (set_right, distrusted) = (self.repairs.count(), self.distrusted.len());
        for (block, sum) in blocks {
            let offset = block.0 * size;
            let mut found = vec![0; size as usize];
            let mut is = found.clone();
            if self.device.read_at(offset, &mut is).is_err()
                || self.below.read_at(offset, &mut found).is_err()
                || found != is
            {
                continue;
            }
            let Some(wrong) = sum.wrong_bit(&found) else {
                self.distrusted.insert(*block);
                continue;
            };
            wrong.flip(&mut is);
            self.device.write_at(offset, &[IoSlice::new(&is)])?;
            self.segments.insert(geometry.segment_of(*block));
            self.repairs.push(Repair {
                fault: format!("block {block} has another checksum than when it was written"),
                action: format!(
                    "set bit {} of byte {} right, which the checksum tells",
                    wrong.bit, wrong.byte
                ),
                risk: Risk::Safe,
                concerned: Concerned::none(),
            });
        }
        if self.distrusted.len() > distrusted {
            let masked = self.distrusted.iter().map(|block| block.0 * size..(block.0 + 1) * size);
            let below = MaskedDevice::new(Arc::clone(&self.below), masked);
            let below = Arc::new(below.because("it is not what was written there"));
            self.device = Arc::new(CopyOnWriteDevice::new(below, Arc::clone(&self.corrections)));
        }
        Ok(self.distrusted.len() > distrusted || self.repairs.count() > set_right)
    }
}

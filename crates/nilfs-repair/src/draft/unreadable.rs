//! Blocks that cannot be read where nothing lives.

use std::io;
use std::sync::Arc;

use nilfs_device::Device;
use nilfs_engine::{Log, Verify, Volume};
use nilfs_ondisk::{BlockNr, SegNum};

use super::Draft;
use crate::{Concerned, Repair, Risk, dat, superblocks};

impl Draft {
    /// Writes zeros in place of what cannot be read in segments that are clean. A log that goes on would look
    /// there, and fail. Returns whether there was anything.
    pub(crate) fn clear_unused(&mut self) -> io::Result<bool> {
        let device = Arc::clone(&self.device) as Arc<dyn Device>;
        let volume = Volume::open_with(device, Verify::Rescue);
        let found = volume.and_then(|it| Ok((it.segments(SegNum(0))?, it.recovery_plan()?)));
        let Ok((segments, plan)) = found else { return Ok(false) };
        // What fsyncs have written is in use, and the segments do not say so yet.
        let is_synced = |block: &BlockNr| plan.applied.iter().any(|log| is_within(*block, log));
        let mut bad = Vec::new();
        for segment in segments.iter().filter(|it| it.blocks == 0) {
            bad.extend(self.unreadable_in(segment.segment)?);
        }
        bad.retain(|block| !is_synced(block));
        let size = self.block_size()?;
        for block in &bad {
            self.give_up_bytes(block.0 * size, vec![0; size as usize])?;
        }
        if let (Some(first), count) = (bad.first(), bad.len()) {
            self.repairs.push(Repair {
                fault: format!(
                    "{count} blocks from block {first} on cannot be read, in segments that are clean"
                ),
                action: "write zeros there, so that the log can go on".to_owned(),
                risk: Risk::Accepted,
                concerned: Concerned::none(),
            });
        }
        Ok(!bad.is_empty())
    }

    /// The blocks of a segment that cannot be read.
    pub(super) fn unreadable_in(&self, segment: SegNum) -> io::Result<Vec<BlockNr>> {
        let geometry = superblocks::best(&*self.device).map_err(io::Error::other)?.geometry();
        let (start, end) = (geometry.segment_start(segment), geometry.segment_end(segment));
        let size = geometry.block_size.bytes64();
        let mut all = vec![0; ((end.0 - start.0) * size) as usize];
        if self.device.read_at(start.0 * size, &mut all).is_ok() {
            return Ok(Vec::new());
        }
        let blocks = (start.0..end.0).map(BlockNr);
        Ok(blocks.filter(|it| dat::read(&*self.device, &geometry, *it).is_none()).collect())
    }
}

fn is_within(block: BlockNr, log: &Log) -> bool {
    (log.start..log.start.plus(log.header.nblocks.into())).contains(&block)
}

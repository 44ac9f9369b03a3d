//! Evidence of whether the content of a file is what was written: the checksums of blocks in the summaries
//! of logs, and where a log has none, its own.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use nilfs_device::Device;
use nilfs_ondisk::crc::Verdict;
use nilfs_ondisk::summary::BlockInfo;
use nilfs_ondisk::{BlockNr, SegNum};

use crate::error::Result;
use crate::log::reader::{self, DescribedBlock, Proof};
use crate::store::{Store, Verify};
use crate::tree::{Extent, File, MappedBlock, Tree};
use crate::volume::Volume;

/// Segments of which the logs are remembered.
const MOST_SEGMENTS: usize = 64;

/// The logs of a volume as they are on the device.
pub struct Evidence {
    store: Store,
    known: BTreeMap<SegNum, Vec<JudgedLog>>,
}

/// Parts of a file that are not known to be what was written, ascending.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Doubts {
    /// Parts that are known to be something else.
    pub wrong: Vec<Extent>,
    /// Parts of which it cannot be told.
    pub unverified: Vec<Extent>,
}

/// A log, and what tells whether its blocks are right.
struct JudgedLog {
    blocks: Range<BlockNr>,
    proof: Proof,
    described: Vec<DescribedBlock>,
}

impl Evidence {
    /// Evidence on a device, of a volume that may be a corrected view of it.
    pub(super) fn new(device: Arc<dyn Device>, volume: &Volume) -> Self {
        let store = Store::new(device, volume.geometry(), volume.store.seed(), Verify::None);
        Self { store, known: BTreeMap::new() }
    }

    /// Reads the content of a regular file, and judges it. Blocks that a sync log has are among them.
    ///
    /// # Errors
    /// Damage of the metadata that lead to it, a device error.
    pub fn judge(&mut self, tree: &Tree, file: &File) -> Result<Doubts> {
        let mut doubts = Doubts::default();
        let size = self.store.block_size().bytes64();
        tree.blocks(file, &mut |mapped, content| {
            let part = match self.verdict(file, mapped, content) {
                Verdict::Right => return,
                Verdict::Wrong => &mut doubts.wrong,
                Verdict::Unverified => &mut doubts.unverified,
            };
            let offset = mapped.key.0.saturating_mul(size);
            let length = size.min(file.size().saturating_sub(offset));
            match part.last_mut() {
                Some(last) if last.end() == offset => last.length += length,
                _ => part.push(Extent { offset, length }),
            }
        })?;
        Ok(doubts)
    }

    fn verdict(&mut self, file: &File, mapped: MappedBlock, content: &[u8]) -> Verdict {
        let MappedBlock { key, vblock, block } = mapped;
        let segment = self.store.geometry().segment_of(block);
        if self.known.len() >= MOST_SEGMENTS && !self.known.contains_key(&segment) {
            self.known.clear();
        }
        let store = &self.store;
        let logs = self.known.entry(segment).or_insert_with(|| logs_of(store, segment));
        // Both are in the order in which they lie there.
        let after = logs.partition_point(|log| log.blocks.start <= block);
        let log = after.checked_sub(1).and_then(|nth| logs.get(nth));
        let Some(log) = log.filter(|log| log.blocks.contains(&block)) else {
            return Verdict::Unverified;
        };
        let nth = log.described.binary_search_by_key(&block, |it| it.block).ok();
        // What leads to the block may be damaged, and the block be that of another place, or an older version.
        let is_meant = |it: &&DescribedBlock| match it.info {
            BlockInfo::Data { vblocknr, offset } => {
                it.ino == file.ino() && offset == key && vblock == vblocknr
            }
            _ => false,
        };
        let described = nth.map(|nth| &log.described[nth]).filter(is_meant);
        match (log.proof, described.and_then(|it| it.sum)) {
            _ if described.is_none() => Verdict::Unverified,
            (Proof::OfLog, _) => Verdict::Right,
            (Proof::OfBlocks, Some(sum)) => sum.judge(content),
            (Proof::OfBlocks, None) | (Proof::Missing, _) => Verdict::Unverified,
        }
    }
}

/// The logs of a segment that can be read. Without its log, nothing can be told of a block.
fn logs_of(store: &Store, segment: SegNum) -> Vec<JudgedLog> {
    let judged = |log: reader::Log| JudgedLog {
        blocks: log.start..log.start.plus(log.header.nblocks.into()),
        proof: log.proof(store).unwrap_or(Proof::Missing),
        described: log.blocks(store.block_size()).collect(),
    };
    reader::logs_of(store, segment).unwrap_or_default().into_iter().map(judged).collect()
}

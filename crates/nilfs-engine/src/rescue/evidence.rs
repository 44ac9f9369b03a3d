//! Evidence of whether the content of a file is what was written: the checksums of blocks in the summaries
//! of logs, and where a log has none, its own.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use nilfs_device::Device;
use nilfs_ondisk::crc::Verdict;
use nilfs_ondisk::summary::BlockInfo;
use nilfs_ondisk::{BlockNr, SegNum};

use crate::error::{Error, Result};
use crate::log::reader::{self, DescribedBlock, Proof};
use crate::store::{Store, Verify};
use crate::tree::{Extent, File, MappedBlock, Tree};
use crate::volume::Volume;

/// Segments of which the logs are remembered.
const MOST_SEGMENTS: usize = 64;

/// The logs of a volume as they are on the device.
pub struct Evidence {
    store: Store,
    /// The corrected view.
    view: Arc<Store>,
    known: BTreeMap<SegNum, JudgedLogs>,
}

/// The logs of a segment, in the order in which they lie there.
struct JudgedLogs {
    logs: Vec<JudgedLog>,
    /// Whether they are all that can be read, also those to which damage cuts the way, and those of which
    /// the summary is corrected.
    is_all: bool,
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
        Self { store, view: Arc::clone(&volume.store), known: BTreeMap::new() }
    }

    /// Reads the content of a regular file, and judges it. Blocks that a sync log has are among them.
    ///
    /// # Errors
    /// Damage of the metadata that lead to it, a device error.
    pub fn judge(&mut self, tree: &Tree, file: &File) -> Result<Doubts> {
        self.doubts(tree, file, &mut Err)
    }

    /// As [`Evidence::judge`], of what can be read of a file of which not all can.
    ///
    /// # Errors
    /// Damage of the metadata that lead to it.
    pub fn judge_readable(&mut self, tree: &Tree, file: &File) -> Result<Doubts> {
        self.doubts(tree, file, &mut |error| if error.is_fault() { Ok(()) } else { Err(error) })
    }

    /// Calls `unread` for each block that cannot be read.
    fn doubts(
        &mut self,
        tree: &Tree,
        file: &File,
        unread: &mut dyn FnMut(Error) -> Result<()>,
    ) -> Result<Doubts> {
        let mut doubts = Doubts::default();
        let size = self.store.block_size().bytes64();
        tree.blocks(file, |mapped, content| {
            let content = match content {
                Ok(content) => content,
                Err(error) => return unread(error),
            };
            let part = match self.verdict(file, mapped, content) {
                Verdict::Right => return Ok(()),
                Verdict::Wrong => &mut doubts.wrong,
                Verdict::Unverified => &mut doubts.unverified,
            };
            let offset = mapped.key.0.saturating_mul(size);
            let length = size.min(file.size().saturating_sub(offset));
            match part.last_mut() {
                Some(last) if last.end() == offset => last.length += length,
                _ => part.push(Extent { offset, length }),
            }
            Ok(())
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
        let known =
            self.known.entry(segment).or_insert_with(|| JudgedLogs::on_chain(store, segment));
        if known.with(block).is_none() && !known.is_all {
            *known = JudgedLogs::all(store, &self.view, segment);
        }
        let Some(log) = known.with(block) else { return Verdict::Unverified };
        // They are in the order in which they lie there.
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

impl JudgedLog {
    /// Returns a log of a corrected view: its own checksum was made right for what is there, and proves nothing.
    fn without_proof_of_log(self) -> Self {
        match self.proof {
            Proof::OfLog => Self { proof: Proof::Missing, ..self },
            _ => self,
        }
    }
}

impl JudgedLogs {
    /// Finds the logs that follow one another from the beginning of the segment on.
    fn on_chain(store: &Store, segment: SegNum) -> Self {
        let logs = reader::logs_of(store, segment).unwrap_or_default();
        Self { logs: judged(store, logs), is_all: false }
    }

    /// Finds all logs that can be read, and of others those that a corrected view has.
    fn all(store: &Store, view: &Store, segment: SegNum) -> Self {
        let mut logs = judged(store, reader::logs_beyond_damage(store, segment));
        let corrected = judged(view, reader::logs_beyond_damage(view, segment));
        let is_known = |it: &JudgedLog| logs.iter().any(|log| log.blocks.start == it.blocks.start);
        let corrected: Vec<_> = corrected.into_iter().filter(|it| !is_known(it)).collect();
        logs.extend(corrected.into_iter().map(JudgedLog::without_proof_of_log));
        logs.sort_by_key(|log| log.blocks.start);
        Self { logs, is_all: true }
    }

    /// The log that has a block. Without it, nothing can be told of the block.
    fn with(&self, block: BlockNr) -> Option<&JudgedLog> {
        let after = self.logs.partition_point(|log| log.blocks.start <= block);
        let log = self.logs.get(after.checked_sub(1)?)?;
        log.blocks.contains(&block).then_some(log)
    }
}

fn judged(store: &Store, logs: Vec<reader::Log>) -> Vec<JudgedLog> {
    let judged = |log: reader::Log| JudgedLog {
        blocks: log.start..log.start.plus(log.header.nblocks.into()),
        proof: log.proof(store).unwrap_or(Proof::Missing),
        described: log.blocks(store.block_size()).collect(),
    };
    logs.into_iter().map(judged).collect()
}

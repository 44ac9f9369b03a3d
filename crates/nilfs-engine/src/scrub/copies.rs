//! Other copies of damaged blocks: what the cleaner has left where it moved them from, and what other
//! versions of a file have in their place. Whether a copy is what was written is proved by the checksum
//! that the damaged log has of the block; or by that of the log, which must be right when the copy is put
//! in, where it has none of its blocks.

use std::collections::{BTreeMap, HashMap};

use nilfs_ondisk::crc::{BlockSum, Crc};
use nilfs_ondisk::summary::BlockInfo;
use nilfs_ondisk::{BlockNr, FileBlock, Ino, SegNum, VBlockNr};

use super::moment::Moment;
use crate::block::{Block, bytes_mut, zeroed};
use crate::error::Result;
use crate::log::reader::{self, Log};

/// Copies of a block that are tried.
const MOST_COPIES: usize = 16;

/// Ways to put a log together that are tried.
const MOST_TRIES: usize = 4096;

/// What a block is, wherever it lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Identity {
    Data(Ino, FileBlock),
    Node(Ino, VBlockNr),
    DatNode(u64, u8),
}

impl Identity {
    fn of(ino: Ino, info: BlockInfo) -> Self {
        match info {
            BlockInfo::Data { offset, .. } | BlockInfo::DatData { offset } => {
                Self::Data(ino, offset)
            }
            BlockInfo::Node { vblocknr } => Self::Node(ino, vblocknr),
            BlockInfo::DatNode { key, level } => Self::DatNode(key, level),
        }
    }
}

/// A log, as far as it is known what was written there.
pub(crate) struct Restored {
    pub(crate) log: Log,
    /// Its blocks after the summary. `None`: there is no other copy of what was written.
    pub(crate) blocks: Vec<Option<Block>>,
}

/// A damaged log, as far as it can be read.
struct Torn {
    log: Log,
    /// Its summary.
    summary: Vec<u8>,
    /// What comes after it. `None`: unreadable.
    blocks: Vec<Option<Block>>,
    /// Where other copies of these blocks are.
    copies: Vec<Vec<BlockNr>>,
}

/// Puts together the logs that begin in these blocks, as far as there are other copies on the device of
/// what is damaged. `None`: nothing proves what was in a log.
///
/// # Errors
/// The summaries of the volume cannot be read.
pub(crate) fn restored(moment: &Moment, starts: &[BlockNr]) -> Result<Vec<Option<Restored>>> {
    let mut torn: Vec<Option<Torn>> =
        starts.iter().map(|at| moment.torn(*at).ok().flatten()).collect();
    let size = moment.store.block_size();
    let mut wanted: HashMap<Identity, Vec<(usize, usize)>> = HashMap::new();
    for (nth, log) in torn.iter().enumerate() {
        for (place, it) in log.iter().flat_map(|it| it.log.blocks(size)).enumerate() {
            wanted.entry(Identity::of(it.ino, it.info)).or_default().push((nth, place));
        }
    }
    for segment in (0..moment.store.geometry().nsegments).map(SegNum) {
        // A segment of which nothing can be read has no copies.
        for log in reader::logs_of(&moment.store, segment).unwrap_or_default() {
            for it in log.blocks(size) {
                for (nth, place) in wanted.get(&Identity::of(it.ino, it.info)).into_iter().flatten()
                {
                    let Some(torn) = &mut torn[*nth] else { continue };
                    if torn.log.start != log.start && torn.copies[*place].len() < MOST_COPIES {
                        torn.copies[*place].push(it.block);
                    }
                }
            }
        }
    }
    Ok(torn.into_iter().map(|torn| torn.and_then(|torn| torn.restored(moment))).collect())
}

impl Moment {
    /// The log that begins in a block, if its summary is whole.
    fn torn(&self, at: BlockNr) -> Result<Option<Torn>> {
        let store = &self.store;
        let Some(header) = reader::header(store, at)? else { return Ok(None) };
        let log = reader::read(store, at, header)?;
        let summary_blocks = header.summary_blocks(store.block_size());
        let mut summary = vec![0; summary_blocks as usize * store.block_size().bytes()];
        store.read_run(at, &mut summary)?;
        let rest = summary_blocks..header.described_blocks(store.block_size());
        let blocks: Vec<_> = rest.map(|nth| self.block(at.plus(nth))).collect();
        let copies = vec![Vec::new(); blocks.len()];
        Ok(Some(Torn { log, summary, blocks, copies }))
    }

    fn block(&self, at: BlockNr) -> Option<Block> {
        let mut block = zeroed(self.store.block_size());
        self.store.read_run(at, bytes_mut(&mut block)).ok().map(|()| block)
    }
}

impl Torn {
    fn restored(self, moment: &Moment) -> Option<Restored> {
        let blocks = match &self.log.sums {
            Some(sums) => {
                let places = self.blocks.iter().zip(&self.copies).zip(sums);
                places.map(|((block, copies), sum)| proved(moment, block, copies, *sum)).collect()
            }
            None => self.whole(moment)?.into_iter().map(Some).collect(),
        };
        Some(Restored { log: self.log, blocks })
    }

    /// The blocks of a log that has no checksums of them.
    fn whole(&self, moment: &Moment) -> Option<Vec<Block>> {
        let copies = |place: usize| -> Vec<Block> {
            let all = self.copies[place].iter().filter_map(|at| moment.block(*at));
            let mut others: Vec<Block> = Vec::new();
            for copy in all.filter(|copy| self.blocks[place].as_ref() != Some(copy)) {
                if !others.contains(&copy) {
                    others.push(copy);
                }
            }
            others
        };
        let is_lost = |place: &usize| self.blocks[*place].is_none();
        let lost: Vec<usize> = (0..self.blocks.len()).filter(is_lost).collect();
        match lost.is_empty() {
            true => self.with_one_replaced(moment, &copies),
            false => {
                let choices = lost.iter().map(|place| (*place, copies(*place))).collect();
                self.with_all_replaced(moment, &choices)
            }
        }
    }

    /// One block is not what was written, and it is not known which.
    fn with_one_replaced(
        &self,
        moment: &Moment,
        copies: &dyn Fn(usize) -> Vec<Block>,
    ) -> Option<Vec<Block>> {
        let mut tries = 0;
        for place in 0..self.blocks.len() {
            for copy in copies(place) {
                tries += 1;
                let replaced = BTreeMap::from([(place, copy)]);
                if let Some(whole) = self.proved(moment, &replaced) {
                    return Some(whole);
                }
                if tries == MOST_TRIES {
                    return None;
                }
            }
        }
        None
    }

    /// These blocks cannot be read, and each is one of several.
    fn with_all_replaced(
        &self,
        moment: &Moment,
        choices: &BTreeMap<usize, Vec<Block>>,
    ) -> Option<Vec<Block>> {
        let ways = choices.values().try_fold(1_usize, |ways, it| ways.checked_mul(it.len()))?;
        (0..ways.min(MOST_TRIES)).find_map(|nth| {
            let mut left = nth;
            let chosen = choices.iter().map(|(place, copies)| {
                let copy = copies[left % copies.len()].clone();
                left /= copies.len();
                (*place, copy)
            });
            self.proved(moment, &chosen.collect())
        })
    }

    /// The blocks with some of them replaced, if the checksum of the log is right then.
    fn proved(&self, moment: &Moment, replaced: &BTreeMap<usize, Block>) -> Option<Vec<Block>> {
        let mut crc = Crc::new(moment.store.seed());
        // The checksum does not cover itself.
        crc.update(&self.summary[4..]);
        let mut whole = Vec::with_capacity(self.blocks.len());
        for (place, block) in self.blocks.iter().enumerate() {
            let block = replaced.get(&place).or(block.as_ref())?;
            crc.update(block);
            whole.push(block.clone());
        }
        self.log.header.verify_log(crc, moment.store.block_size()).is_ok().then_some(whole)
    }
}

/// Returns what was written in a block: what is there, or else one of the copies, whichever has its checksum.
fn proved(
    moment: &Moment,
    block: &Option<Block>,
    copies: &[BlockNr],
    sum: BlockSum,
) -> Option<Block> {
    let copies = copies.iter().filter_map(|at| moment.block(*at));
    block.clone().into_iter().chain(copies).find(|block| BlockSum::of(block) == sum)
}

//! A scrub of a mounted volume: as of any other, but from where the log is known to be; and repairs of
//! what it finds damaged, where the device has another copy.

use std::collections::BTreeSet;

use nilfs_ondisk::BlockNr;
use nilfs_ondisk::summary::BlockInfo;

use super::Filesystem;
use crate::block::Block;
use crate::cleaner::victim::LiveBlock;
use crate::commit::MovedBlock;
use crate::error::Result;
use crate::log::reader::Log;
use crate::scrub::copies::{blocks_of, restored};
use crate::scrub::moment::Moment;
use crate::scrub::needs::Needs;
use crate::scrub::{self, Observe, Scrubbed, Selection};

impl Filesystem {
    /// Reads the logs of the volume; see [`crate::scrub`]. Nobody has to wait for it.
    ///
    /// # Errors
    /// It cannot be told which segments are in use.
    pub fn scrub(&self, selection: &Selection, observe: Observe<'_>) -> Result<Scrubbed> {
        scrub::read(self.moment()?, &|| self.moment(), selection, observe)
    }

    /// Repairs what a scrub has found, where that is possible: if a damaged log can be put together again
    /// from copies of its blocks that lie elsewhere, so that its checksum is right, then all of it that is
    /// needed moves to another place, for every checkpoint that has it. Notes what is repaired.
    ///
    /// # Errors
    /// [`Error::ReadOnly`](crate::Error::ReadOnly), [`Error::NoSpace`](crate::Error::NoSpace), damage of
    /// the DAT, a device error. What was repaired before stays so.
    pub fn repair(&self, found: &mut Scrubbed) -> Result<()> {
        let mut logs: Vec<BlockNr> = found.damage.iter().filter_map(|damage| damage.log).collect();
        logs.dedup();
        let moment = self.moment()?;
        for (start, whole) in logs.iter().zip(restored(&moment, &logs)?) {
            let Some((log, blocks)) = whole else { continue };
            self.rewrite(&moment, &log, blocks)?;
            let of_log = found.damage.iter_mut().filter(|damage| damage.log == Some(*start));
            of_log.for_each(|damage| damage.repaired = true);
        }
        self.empty_repaired(found)
    }

    /// Empties segments in which nothing is damaged that somebody needs. The others keep their damaged
    /// logs, or what is moved would have a checksum that is right.
    fn empty_repaired(&self, found: &Scrubbed) -> Result<()> {
        let (mut repaired, mut damaged) = (BTreeSet::new(), BTreeSet::new());
        for damage in &found.damage {
            let is = if damage.repaired { &mut repaired } else { &mut damaged };
            is.insert(damage.segment);
        }
        repaired.retain(|segment| !damaged.contains(segment));
        // What finds no room now is left to the cleaner.
        if repaired.is_empty() { Ok(()) } else { self.evacuate(repaired, &mut |_| {}).map(drop) }
    }

    fn moment(&self) -> Result<Moment> {
        let log = self.log.lock();
        Moment::of_base(log.base(), log.view())
    }

    /// Moves what is needed of a log, whose content is known, as the cleaner moves blocks.
    fn rewrite(&self, moment: &Moment, log: &Log, blocks: Vec<Block>) -> Result<()> {
        let needs = Needs::of(moment);
        let first = log.start.plus(log.header.summary_blocks(self.store.block_size()));
        let fi_cnos = log.files.iter().flat_map(|file| file.blocks.iter().map(|_| file.cno));
        let (mut moved, mut dat_keys) = (Vec::new(), Vec::new());
        let all = (first.0..).map(BlockNr).zip(blocks_of(log)).zip(fi_cnos).zip(blocks);
        for (((at, (ino, info)), fi_cno), content) in all {
            if needs.span(info, at).is_none() {
                continue;
            }
            let virtually =
                |vblocknr, offset| LiveBlock { ino, fi_cno, vblocknr, offset, block: at, sum: None };
            let found = match info {
                BlockInfo::Data { vblocknr, offset } => virtually(vblocknr, Some(offset)),
                BlockInfo::Node { vblocknr } => virtually(vblocknr, None),
                BlockInfo::DatData { offset: key } => {
                    // It is rewritten from what is in memory.
                    self.store.remember(at, content);
                    dat_keys.push(key);
                    continue;
                }
                BlockInfo::DatNode { key, .. } => {
                    self.store.remember(at, content);
                    dat_keys.push(nilfs_ondisk::FileBlock(key));
                    continue;
                }
            };
            moved.push(MovedBlock { found, content });
        }
        self.cleaning().rewrite(&moved, dat_keys)
    }
}

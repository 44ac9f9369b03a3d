//! A scrub of a mounted volume: as of any other, but from where the log is known to be; and repairs of
//! what it finds damaged, where the device has another copy.

use std::collections::BTreeSet;

use nilfs_ondisk::BlockNr;
use nilfs_ondisk::summary::BlockInfo;

use super::Filesystem;
use crate::commit::MovedBlock;
use crate::error::Result;
use crate::log::reader::DescribedBlock;
use crate::log::segment_reader::LiveBlock;
use crate::scrub::copies::{Restored, restored};
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

    /// Repairs what a scrub has found, where that is possible: what is needed of a damaged log, and is known
    /// to be what was written, moves to another place, for every checkpoint that has it. A damaged block
    /// is known if there is a copy elsewhere that has its checksum. Notes what is repaired.
    ///
    /// # Errors
    /// [`Error::ReadOnly`](crate::Error::ReadOnly), [`Error::NoSpace`](crate::Error::NoSpace), damage of
    /// the DAT, a device error. What was repaired before stays so.
    pub fn repair(&self, found: &mut Scrubbed) -> Result<()> {
        let mut logs: Vec<BlockNr> = found.damage.iter().filter_map(|damage| damage.log).collect();
        logs.dedup();
        let moment = self.moment()?;
        for (start, restored) in logs.iter().zip(restored(&moment, &logs)?) {
            let Some(restored) = restored else { continue };
            let lost = self.rewrite(&moment, restored)?;
            for damage in found.damage.iter_mut().filter(|damage| damage.log == Some(*start)) {
                damage.repaired = !lost.iter().any(|block| damage.blocks.contains(block));
            }
        }
        self.empty_repaired(found)
    }

    /// Empties segments in which nothing is damaged any more that is needed. The others keep their damaged
    /// logs: there may be other copies one day.
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
        let log = self.writer.look();
        Moment::of_base(log.base(), log.view())
    }

    /// Moves what is needed of a log, and of which the content is known, as the cleaner moves blocks.
    /// Returns the blocks that are needed and not known.
    fn rewrite(&self, moment: &Moment, restored: Restored) -> Result<Vec<BlockNr>> {
        let needs = Needs::of(moment);
        let Restored { log, blocks } = restored;
        let (mut moved, mut dat_keys, mut lost) = (Vec::new(), Vec::new(), Vec::new());
        for (described, content) in log.blocks(self.store.block_size()).zip(blocks) {
            let DescribedBlock { ino, fi_cno, info, block: at, sum } = described;
            if needs.span(info, at).is_none() {
                continue;
            }
            let Some(content) = content else {
                lost.push(at);
                continue;
            };
            let virtually = |vblocknr, offset| LiveBlock {
                ino,
                fi_cno,
                vblocknr,
                offset,
                block: at,
                sum: sum.into(),
            };
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
        self.cleaning().rewrite(&moved, dat_keys)?;
        Ok(lost)
    }
}

//! Segments that are longer than their usage entries say. Where a log has lost its summary, the logs do not
//! tell how far a segment is filled; but the DAT does, if what it has there is nowhere else.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use nilfs_ondisk::dat::DatEntry;
use nilfs_ondisk::summary::LogHeader;
use nilfs_ondisk::{BlockNr, Ino, SegNum, VBlockNr};

use crate::checker::Checker;
use crate::log::LogReader;
use crate::owners::{Owners, SegmentOwners};
use crate::report::{Location, Rule, counted};
use crate::segment_usage::UsageTable;
use crate::segments::read_log;

impl Checker<'_, '_> {
    /// Reports segments with blocks of living entries of the DAT after their ends, and reads their logs as far
    /// as that.
    pub(crate) fn extend_segments(&mut self, lives: impl Fn(&DatEntry) -> bool) {
        let beyond = self.beyond_ends(lives);
        if beyond.is_empty() {
            return;
        }
        // Until the checkpoints are walked, there is no other reference to these.
        let (mut owners, mut usage) = (self.owners.take(), std::mem::take(&mut self.usage));
        if let Some(owners) = owners.as_mut().and_then(Arc::get_mut)
            && let Some(usage) = Arc::get_mut(&mut usage)
        {
            for (segment, blocks) in unknown_to(owners, beyond) {
                if let Some(owners) = owners.segment_mut(segment) {
                    self.extend_segment(segment, &blocks, owners, usage);
                }
            }
        }
        (self.owners, self.usage) = (owners, usage);
        self.dat_mut().used = None;
    }

    /// Entries that live after the ends of segments in use, and after the logs that follow each other there.
    fn beyond_ends(&mut self, lives: impl Fn(&DatEntry) -> bool) -> BTreeMap<SegNum, Blocks> {
        let geometry = self.volume.geometry;
        let end_of = |segment, blocks| geometry.segment_start(segment).plus(blocks);
        let usage = Arc::clone(&self.usage);
        // The log goes on in these.
        let newest = &self.newest;
        let active = [newest.log, newest.header.next].map(|block| geometry.segment_of(block));
        let in_use = usage.in_use().filter(|(segment, _)| !active.contains(segment));
        let ends: HashMap<SegNum, BlockNr> =
            in_use.map(|(it, entry)| (it, end_of(it, entry.su_nblocks.get().into()))).collect();
        let mut beyond: BTreeMap<SegNum, Blocks> = BTreeMap::new();
        self.for_all_entries(|_, vblock, (entry, _)| {
            let segment = geometry.segment_of(entry.block);
            if geometry.has_block(entry.block)
                && ends.get(&segment).is_some_and(|end| entry.block >= *end)
                && lives(&entry)
            {
                beyond.entry(segment).or_default().push((entry.block, vblock));
            }
        });
        for (segment, blocks) in &mut beyond {
            let filled = end_of(*segment, self.filled(*segment));
            blocks.retain(|(block, _)| *block >= filled);
        }
        beyond
    }

    fn extend_segment(
        &mut self,
        segment: SegNum,
        blocks: &Blocks,
        owners: &mut SegmentOwners,
        usage: &mut UsageTable,
    ) {
        let Some(needed) = blocks.iter().map(|(block, _)| block.plus(1)).max() else { return };
        let start = self.volume.geometry.segment_start(segment);
        let mut reader = LogReader::new(self.volume, self.options.read_content);
        let known = self.logs.iter().filter(|log| reader.segment_of(log.start) == segment);
        let last = known.map(|log| log.start).max();
        let last = last.and_then(|last| reader.header(last).ok());
        let first = owners.undescribed(start).start;
        let Some(end) = end_of_logs(&mut reader, first, needed, last.as_ref()) else { return };
        let (found, in_use) = (owners.in_use(), end.0 - start.0);
        let corrections = usage.in_use_with(segment, in_use as u32);
        let place = Location::segment(segment).ino(Ino::SUFILE);
        self.error(Rule::SegmentUsage, place, || {
            let blocks = counted(blocks.len() as u64, "block");
            format!("su_nblocks is {found}, but {blocks} after that, up to {needed}, are in use")
        })
        .corrected_by(corrections);
        usage.extend(segment, in_use as u32);
        owners.extend(in_use);
        self.read_on(&mut reader, segment, owners, last, usage);
    }
}

/// Virtual blocks, and where the DAT has them.
type Blocks = Vec<(BlockNr, VBlockNr)>;

/// Returns the segments with blocks of which no log says that they are elsewhere: there, it is the DAT that is
/// wrong.
fn unknown_to(owners: &Owners, mut beyond: BTreeMap<SegNum, Blocks>) -> BTreeMap<SegNum, Blocks> {
    let asked: HashSet<VBlockNr> = beyond.values().flatten().map(|(_, vblock)| *vblock).collect();
    let described = owners.blocks(|_| true).filter_map(|(_, owner)| owner.info.vblock());
    let elsewhere: HashSet<VBlockNr> = described.filter(|it| asked.contains(it)).collect();
    for blocks in beyond.values_mut() {
        blocks.retain(|(_, vblock)| !elsewhere.contains(vblock));
    }
    beyond.retain(|_, blocks| !blocks.is_empty());
    beyond
}

/// Returns the end of the log that has the block before `needed`, given the log before those blocks; `needed`
/// if that log is not whole. `None` if logs of another use of the segment lie there: then nothing was written
/// over them.
fn end_of_logs(
    reader: &mut LogReader<'_, '_>,
    mut at: BlockNr,
    needed: BlockNr,
    last: Option<&LogHeader>,
) -> Option<BlockNr> {
    let mut seq = last.map(|last| last.seq);
    while at < needed {
        let log = read_log(reader, at).ok().map(|(header, _)| header);
        let log = log.filter(|log| !reader.is_in_hole(at, log));
        if let Some(log) = &log
            && *seq.get_or_insert(log.seq) != log.seq
        {
            return None;
        }
        at = at.plus(log.map_or(1, |log| log.nblocks.into()));
    }
    Some(at)
}

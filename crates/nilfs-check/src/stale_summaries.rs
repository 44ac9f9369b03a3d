//! Summaries that an earlier use of a segment has left, where the write of a later one was lost: whole, and of other
//! blocks than those that are there. By itself such a log fits into its segment; the DAT contradicts it.

use std::collections::BTreeSet;
use std::sync::Arc;

use nilfs_ondisk::summary::LogHeader;
use nilfs_ondisk::{BlockNr, Cno};

use crate::checker::Checker;
use crate::log::LogReader;
use crate::owners::Ownership;
use crate::report::Rule;
use crate::segments::{FOREIGN, FoundLog, read_log};
use crate::summaries::Undescribed;

impl Checker<'_, '_> {
    /// Passes over logs with blocks to which living entries of the DAT lead as other ones, if none of their own
    /// is there: the blocks count as described by none.
    pub(crate) fn pass_over_stale_summaries(&mut self) {
        let mut reader = LogReader::new(self.volume, false);
        let mut stale = Vec::new();
        for at in self.contradicted_logs() {
            let Ok((header, files)) = read_log(&mut reader, at) else { continue };
            let log = FoundLog { at, header, files, fault: None };
            if at != self.newest.log && !self.is_at_home(&mut reader, &log) {
                self.foreign.insert(at);
                stale.push((at, header));
            }
        }
        if stale.is_empty() {
            return;
        }
        // None of them tells of the use of the segment in which another one lies.
        self.logs.retain(|log| !self.foreign.contains(&log.start));
        self.unproved.retain(|unproved| !self.foreign.contains(&unproved.log));
        self.counts.logs -= stale.len() as u64;
        for (at, header) in stale {
            self.pass_over_log(&mut reader, at, &header);
        }
    }

    /// The logs with blocks that are others by living entries of the DAT.
    fn contradicted_logs(&mut self) -> BTreeSet<BlockNr> {
        let mut contradicted = BTreeSet::new();
        self.logs.sort_unstable_by_key(|log| log.start);
        let mut near = 0;
        self.for_all_entries(|checker, vblock, (entry, _)| {
            let Some(owners) = checker.owners.as_ref().filter(|_| entry.end == Cno::MAX) else {
                return;
            };
            let (Ownership::Of(owner), _) = owners.written(entry.block, &mut near) else { return };
            if owner.info.vblock() != Some(vblock) {
                let before = checker.logs.partition_point(|log| log.start <= entry.block);
                contradicted.extend(checker.logs[..before].last().map(|log| log.start));
            }
        });
        contradicted
    }

    fn pass_over_log(&mut self, reader: &mut LogReader<'_, '_>, at: BlockNr, header: &LogHeader) {
        let segment = reader.segment_of(at);
        let blocks = at..at.plus(header.nblocks.into());
        let after = self.logs.partition_point(|log| log.start < at);
        let mut beside = [after.checked_sub(1), Some(after)].into_iter().flatten();
        let other = beside.find_map(|nth| {
            self.logs.get(nth).map(|log| log.start).filter(|it| reader.segment_of(*it) == segment)
        });
        let neighbour = other.and_then(|at| Some(read_log(reader, at).ok()?.0));
        let start = self.volume.geometry.segment_start(segment);
        if let Some(owners) =
            self.owners.as_mut().and_then(Arc::get_mut).and_then(|it| it.segment_mut(segment))
        {
            owners.forget((blocks.start.0 - start.0) as u32..(blocks.end.0 - start.0) as u32);
        }
        let faults = vec![(Rule::Log, FOREIGN.to_owned())];
        self.undescribed.push(Undescribed { segment, blocks, faults, neighbour });
    }
}

//! Emptying segments that have to go, whatever there is to be gained: what was in them is to be wiped,
//! or they are damaged.

use std::collections::{BTreeMap, BTreeSet};

use nilfs_ondisk::SegNum;

use super::Filesystem;
use crate::cleaner::Evacuated;
use crate::commit::MetadataChanges;
use crate::error::{Error, Result};
use crate::log::segment_writer::SegmentWriter;

/// How often a segment that does not come free is tried.
const ATTEMPTS: u32 = 4;

impl Filesystem {
    /// Empties segments, as far as they can be: what checkpoints have there is moved. Calls `progress`
    /// now and then with the number of those that are left, and returns them.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], damage, a device error. Lack of room is none: the segments are left.
    pub fn evacuate(
        &self,
        segments: BTreeSet<SegNum>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<BTreeSet<SegNum>> {
        self.empty(segments, progress, |these| Evacuated::These(these))
    }

    /// As [`Filesystem::evacuate`], for a volume of which all metadata are known to be right: content moves
    /// as unverified out of logs that are damaged, and have no checksums that tell where.
    ///
    /// # Errors
    /// As [`Filesystem::evacuate`].
    pub fn evacuate_checked(
        &self,
        segments: BTreeSet<SegNum>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<BTreeSet<SegNum>> {
        self.empty(segments, progress, |these| Evacuated::Checked(these))
    }

    fn empty(
        &self,
        segments: BTreeSet<SegNum>,
        progress: &mut dyn FnMut(u64),
        which: fn(&BTreeSet<SegNum>) -> Evacuated<'_>,
    ) -> Result<BTreeSet<SegNum>> {
        self.leave(&segments)?;
        let (mut left, mut failures) = (segments, 0);
        loop {
            self.retain_used(&mut left)?;
            progress(left.len() as u64);
            if left.is_empty() || failures == ATTEMPTS {
                return Ok(left);
            }
            let freed = match self.cleaning().evacuate(which(&left)) {
                Err(Error::NoSpace) => 0,
                freed => freed?,
            };
            failures = if freed == 0 { failures + 1 } else { 0 };
            if freed == 0 {
                // The superblocks may still need a segment.
                self.sync()?;
            }
        }
    }

    /// Segments that could not be emptied because they are damaged, and what is damaged.
    pub fn damaged_segments(&self) -> BTreeMap<SegNum, String> {
        self.cleaner.skipped()
    }

    /// Lets the log, and what the cleaner moves, go on elsewhere.
    fn leave(&self, segments: &BTreeSet<SegNum>) -> Result<()> {
        self.cleaner.leave_segments_from(SegNum(0));
        let mut session = self.writing().write_ahead()?;
        let in_the_way = |log: &SegmentWriter| segments.iter().any(|it| log.is_busy(*it));
        // The segment that is set aside is entered, and left again, only if it is one of them.
        for _ in 0..2 {
            if in_the_way(&session) {
                session.skip_rest_of_segment();
                let changes = MetadataChanges { checkpoint: true, ..MetadataChanges::default() };
                match session.commit(&changes)?.refused {
                    // Then the log stays, and so does the segment.
                    None | Some(Error::NoSpace) => {}
                    Some(error) => return Err(error),
                }
            }
        }
        session.flush()?;
        session.write_superblocks()
    }

    fn retain_used(&self, segments: &mut BTreeSet<SegNum>) -> Result<()> {
        let usages = self.writing().session()?.segment_usages()?;
        let clean = usages.iter().filter(|(_, usage)| usage.is_clean());
        clean.for_each(|(segment, _)| _ = segments.remove(segment));
        Ok(())
    }
}

//! The segments of the log's owner: those that the cleaner claims and frees, and where the volume
//! ends.

use nilfs_ondisk::SegNum;
use nilfs_ondisk::segment_usage::RawSegmentUsage;
use nilfs_ondisk::superblock::STATE_RESIZE;

use super::{SegmentWriter, Stamp};
use crate::commit::Base;
use crate::error::{Error, Result};
use crate::log::clean_segments::Refusal;
use crate::log::withheld::NewEnd;

impl SegmentWriter {
    /// The usages of all segments, with those that the log has used since the newest checkpoint: that
    /// one calls them clean, and what was synced lies there.
    ///
    /// # Errors
    /// The sufile cannot be read.
    pub(crate) fn segment_usages(&self) -> Result<Vec<(SegNum, RawSegmentUsage)>> {
        self.base.sufile_edit.clone().into_usages(self.source(), SegNum(0)).collect()
    }

    /// The usage of one segment, as [`SegmentWriter::segment_usages`] has it.
    ///
    /// # Errors
    /// The sufile cannot be read.
    pub(crate) fn segment_usage(&self, segment: SegNum) -> Result<RawSegmentUsage> {
        self.base.sufile_edit.usage(self.source(), segment)
    }

    /// Whether the log is in a segment, will be there next, or has been there since the newest
    /// checkpoint: what it has written there is in no checkpoint yet.
    pub(crate) fn is_busy(&self, segment: SegNum) -> bool {
        let Base { position, left, .. } = &self.base;
        [position.segment, position.next].contains(&segment) || left.contains(&segment)
    }

    /// Clean segments that may be written.
    pub(crate) fn writable_segments(&self) -> u64 {
        self.free_segments().saturating_sub(self.withheld.count())
    }

    /// Clean segments in which nothing is needed, as far as they were looked at. The header of the sufile
    /// may have counted the others as clean or not.
    fn free_segments(&self) -> u64 {
        let counted = self.base.clean_segments;
        match self.refused_segments().len() as u64 {
            0 => counted,
            refused => {
                let clean = self.base.sufile_edit.clean(self.source());
                clean.map_or(0, |clean| clean.len() as u64).saturating_sub(refused).min(counted)
            }
        }
    }

    /// Whether a segment may not be written, although it is clean.
    pub(crate) fn is_withheld(&self, segment: SegNum) -> bool {
        self.withheld.has(segment)
    }

    /// Whether a clean segment may be written. What is there is looked at first, if that is not known.
    pub(crate) fn may_write(&self, segment: SegNum) -> bool {
        self.withheld.allows(&self.store, &self.base.dat, segment)
    }

    /// Takes note of how many blocks live in segments, by the DAT of a moment in which they were clean by
    /// their usage entries. Those that have been taken since are no concern of this.
    ///
    /// # Errors
    /// The sufile cannot be read.
    pub(crate) fn judge_clean(&self, clean: &[(SegNum, u64)]) -> Result<()> {
        for &(segment, live) in clean {
            if self.segment_usage(segment)?.is_clean() {
                self.withheld.judge(segment, live);
            }
        }
        Ok(())
    }

    /// Returns the reason not to write a segment that holds, or may hold, what is needed. The segment is
    /// looked at first, if that is not known.
    pub(crate) fn refusal(&self, segment: SegNum) -> Option<Refusal> {
        self.withheld.refusal(&self.store, &self.base.dat, segment)
    }

    /// Returns the clean segments in which something is needed, as far as they were looked at. Where the log
    /// is, or was set aside to go on, its next checkpoint corrects the entry.
    pub(crate) fn refused_segments(&self) -> Vec<SegNum> {
        let is_clean = |segment: &SegNum| {
            let is_clean = self.segment_usage(*segment).map_or(true, |usage| usage.is_clean());
            is_clean && !self.is_busy(*segment)
        };
        self.withheld.refused().into_iter().filter(is_clean).collect()
    }

    /// Takes a clean segment out of the log's way, for logs next to the chain.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if there is none, damage of the sufile.
    pub(crate) fn claim_segment(&mut self) -> Result<SegNum> {
        // Far from the segments that the log will take next.
        let from = self.base.position.next.plus(self.store.geometry().nsegments / 2);
        let find = |shorter: bool| {
            let allows = |segment| (segment != SegNum(0) || !shorter) && self.may_write(segment);
            self.base.sufile_edit.find_clean(self.source(), from, &allows)
        };
        // The first segment is shorter than the others: a file that is made contiguous has its pieces
        // in whole ones.
        let found = find(true).transpose().or_else(|| find(false).transpose()).transpose()?;
        let segment = found.ok_or(Error::NoSpace)?;
        self.withheld.claim(segment);
        Ok(segment)
    }

    /// Takes back claimed segments that no checkpoint has come to use.
    pub(crate) fn unclaim(&mut self, segments: &[SegNum]) {
        segments.iter().for_each(|segment| self.withheld.unclaim(*segment));
    }

    /// How many checkpoints have freed segments, for [`SegmentWriter::frees_are_durable`].
    pub(crate) fn frees(&self) -> u64 {
        self.withheld.frees()
    }

    /// The first `frees` checkpoints that freed segments are durable, by a flush that began when they
    /// had been written.
    pub(crate) fn frees_are_durable(&mut self, frees: u64) {
        self.withheld.durable(frees);
    }

    /// Whether freed segments still wait for readers in this process, or to become durable.
    pub(crate) fn has_freed_segments(&self) -> bool {
        self.withheld.has_freed()
    }

    /// Lets the log have freed segments that nobody in this process can be reading any more. Returns
    /// whether there were any.
    pub(crate) fn release_freed(&mut self) -> bool {
        let mut segments = self.withheld.release();
        segments.sort_unstable();
        if self.discard {
            self.discard(&segments);
        }
        !segments.is_empty()
    }

    /// Tells the device that segments hold nothing any more. A device that cannot do it is not
    /// asked again.
    fn discard(&mut self, sorted: &[SegNum]) {
        let geometry = self.store.geometry();
        for run in sorted.chunk_by(|a, b| a.plus(1) == *b) {
            let (start, end) = (run[0], run[run.len() - 1]);
            let (start, end) = (geometry.segment_start(start), geometry.segment_end(end));
            let size = geometry.block_size.bytes64();
            if let Err(error) = self.store.discard(start.0 * size, (end.0 - start.0) * size) {
                tracing::warn!("discard is switched off: {error}");
                self.discard = false;
                return;
            }
        }
    }

    /// From `end.segment` on, no segment is taken any more, because the volume is about to end there;
    /// `None`: all can be.
    pub(crate) fn set_end(&mut self, end: Option<NewEnd>) {
        self.withheld.set_end(end);
    }

    /// Whether the log is in one of the segments from `end` on, or will be next.
    pub(crate) fn reaches(&self, end: SegNum) -> bool {
        self.base.position.segment >= end || self.base.position.next >= end
    }

    /// Leaves the rest of the segment empty. Recovery looks into the next one then.
    pub(crate) fn skip_rest_of_segment(&mut self) {
        let segment = self.base.position.segment;
        self.base.position.block = self.store.geometry().segment_end(segment);
    }

    /// Says in the superblocks that the number of segments is about to become `count`, and takes it
    /// over. Everything must be durable.
    ///
    /// # Errors
    /// As [`SegmentWriter::write_superblock`].
    pub(crate) fn begin_resize(&mut self, count: u64, stamp: &Stamp) -> Result<()> {
        let old = self.store.geometry().nsegments;
        // Where the second superblock is now must not be written before it has moved.
        let clean = 0;
        self.withheld.set_end(Some(NewEnd { segment: SegNum(old.min(count)), clean }));
        self.superblocks.set_state(STATE_RESIZE, true);
        self.write_superblocks(stamp)?;
        self.store.set_segments(count);
        Ok(())
    }

    /// Takes back that the number of segments is about to be another than `count`. The newest
    /// checkpoint must be durable, and have the sufile as it was.
    ///
    /// # Errors
    /// As [`SegmentWriter::write_superblock`].
    pub(crate) fn give_up_resize(&mut self, count: u64, stamp: &Stamp) -> Result<()> {
        self.store.set_segments(count);
        self.superblocks.set_state(STATE_RESIZE, false);
        self.write_superblocks(stamp)?;
        self.withheld.set_end(None);
        Ok(())
    }

    /// Lets the superblocks take over the new number of segments and the new size of the volume, the
    /// one first that has to move. The checkpoint with the new sufile must be durable.
    ///
    /// # Errors
    /// As [`SegmentWriter::write_superblock`].
    pub(crate) fn finish_resize(&mut self, count: u64, bytes: u64, stamp: &Stamp) -> Result<()> {
        self.superblocks.resize(count, bytes);
        self.superblocks.set_state(STATE_RESIZE, false);
        self.write_superblocks(stamp)?;
        self.withheld.set_end(None);
        Ok(())
    }
}

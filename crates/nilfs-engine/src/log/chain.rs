//! Following the chain of logs: from one log to the next, and from one segment into the one that
//! its logs name. What a log means is the caller's affair; the checker follows the chain by itself.

use nilfs_ondisk::summary::LogHeader;
use nilfs_ondisk::{BlockNr, Geometry, SegNum, Seq};

use super::reader::{self, LogKind, Skimmed};
use crate::error::{Error, Result};
use crate::store::Store;

/// A log in the chain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChainedLog {
    pub(crate) start: BlockNr,
    pub(crate) header: LogHeader,
    pub(crate) segment: SegNum,
    /// The segment set aside for when this one is full; none if the log names a bad one.
    pub(crate) next: Option<SegNum>,
    pub(crate) kind: LogKind,
    /// Whether every byte of it has been checked, and not only its summary.
    pub(crate) checked: bool,
}

impl ChainedLog {
    pub(crate) fn new(
        geometry: Geometry,
        start: BlockNr,
        header: LogHeader,
        kind: LogKind,
        checked: bool,
    ) -> Self {
        let segment = geometry.segment_of(start);
        let next = Some(geometry.segment_of(header.next)).filter(|it| geometry.has_segment(*it));
        Self { start, header, segment, next, kind, checked }
    }

    /// The block after the log.
    pub(crate) fn end(&self) -> BlockNr {
        self.start.plus(self.header.nblocks.into())
    }

    /// Whether it completes a checkpoint.
    pub(crate) fn is_checkpoint(&self) -> bool {
        matches!(self.kind, LogKind::Checkpoint { .. })
    }
}

/// A place where a log of the chain could be, and no whole one is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gap {
    pub(crate) at: BlockNr,
    pub(crate) seq: Seq,
    /// The log that ends there.
    pub(crate) after: Option<ChainedLog>,
}

impl Gap {
    /// Whether it comes after a log.
    pub(crate) fn is_after(&self, log: &ChainedLog) -> bool {
        (self.seq, self.at) > (log.header.seq, log.start)
    }
}

/// The whole logs from one of them on. The chain ends at the first that is torn or missing, unless
/// the next segment begins with one: the writer may have left a segment early, after an error.
pub(crate) struct Chain<'a> {
    store: &'a Store,
    at: BlockNr,
    /// The sequence number of all logs of the segment.
    seq: Seq,
    segment: SegNum,
    next: Option<SegNum>,
    /// The log before, if that is in the segment.
    before: Option<ChainedLog>,
    /// Only summaries and super roots are checked.
    skims: bool,
    gaps: Vec<Gap>,
    unreadable: Option<(Gap, Error)>,
}

impl<'a> Chain<'a> {
    /// The chain from the log at `start` on, in a segment that was written under `seq`.
    pub(crate) fn from(store: &'a Store, start: BlockNr, seq: Seq) -> Self {
        Self {
            store,
            at: start,
            seq,
            segment: store.geometry().segment_of(start),
            next: None,
            before: None,
            skims: false,
            gaps: Vec::new(),
            unreadable: None,
        }
    }

    /// The chain after a log.
    pub(crate) fn after(store: &'a Store, log: &ChainedLog) -> Self {
        let ChainedLog { header, segment, next, .. } = *log;
        let begun = Self::from(store, log.start, header.seq);
        Self { at: log.end(), segment, next, before: Some(*log), ..begun }
    }

    /// Returns this chain with only summaries and super roots read. It can go on after a log that is torn, or that
    /// cannot be read.
    pub(crate) fn skimming(self) -> Self {
        Self { skims: true, ..self }
    }

    /// Where it has found no whole log: the gaps that it has passed over, and where it has ended; and the last of
    /// these that could not be read.
    pub(crate) fn gaps(self) -> (Vec<Gap>, Option<(Gap, Error)>) {
        (self.gaps, self.unreadable)
    }

    fn read(&self) -> Result<Option<Skimmed>> {
        let Some(found) = reader::skimmed(self.store, self.at, self.seq)? else { return Ok(None) };
        if self.skims || found.is_whole {
            return Ok(Some(found));
        }
        let is_whole = reader::is_whole(self.store, self.at, &found.header)?;
        Ok(is_whole.then_some(Skimmed { is_whole, ..found }))
    }

    /// The next log, every byte of which is as it was written, as far as that is asked; `None` at the
    /// end of the chain.
    pub(crate) fn next(&mut self) -> Result<Option<ChainedLog>> {
        loop {
            let geometry = self.store.geometry();
            let has_room = self.at.plus(1) < geometry.segment_end(self.segment);
            if has_room {
                let gap = Gap { at: self.at, seq: self.seq, after: self.before };
                match self.read() {
                    Ok(Some(Skimmed { header, kind, is_whole })) => {
                        let log = ChainedLog::new(geometry, self.at, header, kind, is_whole);
                        (self.at, self.next, self.before) = (log.end(), log.next, Some(log));
                        return Ok(Some(log));
                    }
                    Ok(None) => {}
                    Err(error @ Error::Device { .. }) if self.skims => {
                        self.unreadable = Some((gap, error));
                    }
                    Err(error) => return Err(error),
                }
                self.gaps.push(gap);
            }
            if self.before.take().is_none() {
                return Ok(None);
            }
            let Some(next) = self.next else { return Ok(None) };
            self.segment = next;
            self.seq = self.seq.plus(1);
            self.at = geometry.segment_start(next);
        }
    }
}

#[cfg(test)]
mod tests;

//! The opposite of keeping the past: taking away all that the past has of a file, or of a directory and
//! what was ever below it, down to the bytes on the device.
//!
//! 1. What there is of it is found (`traces`): all versions, wherever the files were moved, the blocks of
//!    these, and the checkpoints in which these blocks live. Those checkpoints are deleted, all but the newest.
//! 2. Every segment into which a block of one of the files was ever written, as its summaries say, is
//!    emptied: what checkpoints still have is moved. That takes along what sync logs have, and what was
//!    written and replaced between two checkpoints.
//! 3. Whatever is unused is wiped, not only these segments: blocks that the cleaner has moved long ago
//!    may still lie in what has been clean since, beyond the last log of a segment, and in the holes of
//!    logs.
//!
//! Each of these is whole or can be done again, and takes nothing that anybody needs.

mod traces;

use std::collections::BTreeSet;
use std::io::{ErrorKind, IoSlice};
use std::ops::Range;

use nilfs_ondisk::{BlockNr, Cno, SegNum};
use serde::{Deserialize, Serialize};

use self::traces::{Files, Traces};
use super::Filesystem;
use crate::checkpoints::CheckpointInfo;
use crate::commit::MetadataChanges;
use crate::error::{Error, Result};
use crate::log::reader::{self, Log};
use crate::log::segment_reader::merged;
use crate::log::segment_writer::SegmentWriter;

/// Bytes that are wiped at a time.
const WIPED_AT_ONCE: u64 = 1 << 20;

/// What has blocks of a file, or of a directory and of what was ever below it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Holders {
    /// The checkpoints, ascending, without the newest.
    pub checkpoints: Vec<CheckpointInfo>,
    /// Versions that were found, of all files together.
    pub versions: u64,
    /// Bytes of them that the present has, under the same names or others: a purge leaves them.
    pub present_bytes: u64,
    /// Where files were last that were moved to paths elsewhere. All that they were there is among the
    /// versions.
    #[serde(default)]
    pub moved: Vec<Moved>,
}

/// Where a file was last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// Its path, from the root of the volume.
    pub path: Vec<u8>,
    /// Whether the present has it there.
    pub is_present: bool,
}

/// How bytes are taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wiping {
    /// They are discarded, and overwritten where the device does not do that, or still returns them.
    Discard,
    /// They are overwritten with zeros.
    Overwrite,
}

/// What a purge may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PurgeOptions {
    /// Snapshots stay, with what they have of the file.
    pub keep_snapshots: bool,
    /// How bytes are taken away.
    pub wiping: Wiping,
}

/// How far a purge has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PurgeProgress {
    /// Segments that are done, of those to be emptied, or to be wiped.
    pub done: u64,
    /// All of them.
    pub of: u64,
}

/// What a purge has done, and what it could not reach.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Purged {
    /// Checkpoints that were deleted.
    pub deleted: u64,
    /// Snapshots that still have the file.
    pub snapshots: Vec<Cno>,
    /// Checkpoints that somebody is reading: they are deleted, but what they have is kept until then.
    pub read: Vec<Cno>,
    /// Segments that were emptied.
    pub emptied: u64,
    /// Segments that could not be emptied or wiped, because they are damaged, somebody reads what was in
    /// them, or there was no room.
    pub left: u64,
    /// Bytes that were discarded.
    pub discarded_bytes: u64,
    /// Bytes that were overwritten.
    pub overwritten_bytes: u64,
    /// Bytes of the file that the present has.
    pub present_bytes: u64,
}

impl Filesystem {
    /// What has blocks of the file at a path, which need not be there any more: of all versions of it,
    /// also under the names that it had before and later, and of all that was ever below it. There are no versions if no checkpoint has the path.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is the path of the root directory, damage, a device error.
    pub fn holders(&self, path: &[u8]) -> Result<Holders> {
        self.commit()?;
        match Traces::of(self, path) {
            Err(Error::NotFound) => Ok(Holders::default()),
            traces => Ok(traces?.holders),
        }
    }

    /// Takes away all that the past has of what is or was at a path, and below it; without a path,
    /// completes what an earlier call has begun, by cleaning all that can be cleaned. Calls `progress` now and then.
    ///
    /// # Errors
    /// As [`Filesystem::holders`]; [`Error::NotFound`] if no checkpoint has the path; [`Error::Busy`],
    /// [`Error::ReadOnly`]. What was done stays done, and can be completed.
    pub fn purge(
        &self,
        path: Option<&[u8]>,
        options: PurgeOptions,
        progress: &mut dyn FnMut(PurgeProgress),
    ) -> Result<Purged> {
        let Some(_alone) = self.remaking.try_lock() else { return Err(Error::Busy) };
        self.sync()?;
        let mut purged = Purged::default();
        let traces = path.map(|path| Traces::of(self, path)).transpose()?;
        if let Some(traces) = &traces {
            purged.present_bytes = traces.holders.present_bytes;
            self.delete_holders(&traces.holders, options, &mut purged)?;
        }
        let segments = self.segments_of(traces.as_ref().map(|traces| &traces.files))?;
        let of = segments.len() as u64;
        let mut left = self.evacuate(segments.clone(), &mut |left| {
            purged.emptied = of - left;
            progress(PurgeProgress { done: purged.emptied, of });
        })?;
        // What somebody reads is not wiped, though it is clean.
        let kept = self.wipe_unused(options.wiping, &mut purged, progress)?;
        left.extend(kept.intersection(&segments));
        purged.left = left.len() as u64;
        Ok(purged)
    }

    /// Deletes the checkpoints, as one change.
    fn delete_holders(
        &self,
        holders: &Holders,
        options: PurgeOptions,
        purged: &mut Purged,
    ) -> Result<()> {
        let kept = |it: &&CheckpointInfo| it.snapshot && options.keep_snapshots;
        purged.snapshots = holders.checkpoints.iter().filter(kept).map(|it| it.cno).collect();
        let doomed: Vec<_> = holders.checkpoints.iter().filter(|it| !kept(it)).collect();
        if doomed.is_empty() {
            return Ok(());
        }
        let snapshots = doomed.iter().filter(|it| it.snapshot).map(|it| (it.cno, false)).collect();
        let delete = merged(doomed.iter().map(|it| it.cno..it.cno.plus(1)).collect());
        let changes = MetadataChanges { snapshots, delete, ..MetadataChanges::default() };
        purged.deleted = self.change_checkpoints(&changes)?;
        purged.read = self.writer.trees.kept();
        purged.read.retain(|cno| doomed.iter().any(|it| it.cno == *cno));
        Ok(())
    }

    /// The segments in use into which one of these files was ever written; without files, all.
    fn segments_of(&self, files: Option<&Files>) -> Result<BTreeSet<SegNum>> {
        let (usages, _view) = {
            let session = self.writing().session()?;
            // No segment that is looked at may be written anew meanwhile.
            (session.segment_usages()?, session.view())
        };
        let mut segments = BTreeSet::new();
        for (segment, usage) in usages {
            let is_wanted = usage.is_dirty()
                && match files {
                    Some(files) => {
                        let logs = reader::logs_of(&self.store, segment)?;
                        logs.iter().any(|log| files.are_in(log, &self.store))
                    }
                    None => true,
                };
            segments.extend(is_wanted.then_some(segment));
        }
        Ok(segments)
    }

    /// Wipes clean segments, and of others the holes and what lies beyond their last log. Returns those
    /// that could not be wiped, because somebody may be reading them.
    fn wipe_unused(
        &self,
        wiping: Wiping,
        purged: &mut Purged,
        progress: &mut dyn FnMut(PurgeProgress),
    ) -> Result<BTreeSet<SegNum>> {
        let mut kept = BTreeSet::new();
        let of = self.store.geometry().nsegments;
        for nth in 0..of {
            // An fsync waits for one segment at most, and so does a writer that has to clean. What a step
            // of the cleaner moves is written without the log.
            let _between_steps = self.cleaner.pause();
            let mut session = self.writing().session()?;
            if nth == 0 {
                // Nothing that the log could fall back to is given up.
                session.flush()?;
                session.write_superblocks()?;
            }
            session.release_freed();
            let segment = SegNum(nth);
            if session.is_withheld(segment) {
                kept.insert(segment);
                continue;
            }
            for blocks in self.unused_blocks(&session, segment)? {
                let wiped = self.wipe(blocks, wiping, purged);
                session.noting(wiped)?;
            }
            progress(PurgeProgress { done: nth + 1, of });
        }
        self.store.flush()?;
        Ok(kept)
    }

    /// The blocks of a segment that nobody needs.
    fn unused_blocks(&self, log: &SegmentWriter, segment: SegNum) -> Result<Vec<Range<BlockNr>>> {
        let geometry = self.store.geometry();
        let (start, end) = (geometry.segment_start(segment), geometry.segment_end(segment));
        let position = log.base().position;
        if segment == position.segment {
            return self.unused_around_logs(segment, position.block);
        }
        if segment == position.next {
            return Ok(vec![start..end]);
        }
        let usage = log.segment_usage(segment)?;
        if usage.is_clean() {
            return Ok(if log.may_write(segment) { vec![start..end] } else { Vec::new() });
        }
        if !usage.is_dirty() || usage.is_bad() || log.is_busy(segment) {
            return Ok(Vec::new());
        }
        let logs_end = start.0.saturating_add(usage.su_nblocks.get().into()).min(end.0);
        self.unused_around_logs(segment, BlockNr(logs_end))
    }

    /// The blocks of a segment in use that are in no log, or that a log need not have written.
    fn unused_around_logs(
        &self,
        segment: SegNum,
        logs_end: BlockNr,
    ) -> Result<Vec<Range<BlockNr>>> {
        let block_size = self.store.block_size();
        let hole = |log: &Log| {
            let described = log.start.plus(log.header.described_blocks(block_size));
            described..log.start.plus(log.header.nblocks.into())
        };
        let logs = reader::logs_of(&self.store, segment)?;
        let holes = logs.iter().map(hole).filter(|hole| !hole.is_empty() && hole.end <= logs_end);
        let rest = logs_end..self.store.geometry().segment_end(segment);
        Ok(holes.chain([rest]).collect())
    }

    fn wipe(&self, unused: Range<BlockNr>, wiping: Wiping, purged: &mut Purged) -> Result<()> {
        let block = self.store.block_size().bytes64();
        let bytes = (unused.end.0 - unused.start.0) * block;
        if bytes == 0 {
            return Ok(());
        }
        if wiping == Wiping::Discard {
            match self.store.discard(unused.start.0 * block, bytes) {
                Err(Error::Device { source, .. })
                    if matches!(
                        source.kind(),
                        ErrorKind::Unsupported | ErrorKind::InvalidInput
                    ) => {}
                discarded => discarded?,
            }
        }
        let at_once = (WIPED_AT_ONCE / block).max(1);
        let zeros = vec![0; (at_once * block) as usize];
        let mut found = zeros.clone();
        let mut at = unused.start;
        while at < unused.end {
            let count = at_once.min(unused.end.0 - at.0);
            let length = (count * block) as usize;
            // A device may ignore a discard, or return what was there all the same.
            let is_gone = wiping == Wiping::Discard && {
                self.store.read_run(at, &mut found[..length])?;
                found[..length].iter().all(|byte| *byte == 0)
            };
            match is_gone {
                true => purged.discarded_bytes += length as u64,
                false => {
                    self.store.write_run(at, &[IoSlice::new(&zeros[..length])])?;
                    purged.overwritten_bytes += length as u64;
                }
            }
            at = at.plus(count);
        }
        Ok(())
    }
}

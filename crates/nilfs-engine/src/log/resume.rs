//! Where the log goes on when a volume is mounted to be written, above all after an unclean end. It
//! knows nothing of what the next log will hold.
//!
//! # What must not happen after an unclean end
//!
//! Lost logs lie after the newest checkpoint: torn ones, whole ones after these, and the checkpoint of
//! a recovery that was itself cut off. Two things must hold until a superblock names the checkpoint
//! that completes this recovery, and after it:
//!
//! * **What a recovery needs is not written over**: the newest checkpoint, and every log up to the
//!   last data-sync log that was salvaged. The next recovery may have to start all over.
//! * **No lost log joins the chain.** A whole log whose sequence number fits would be taken for the
//!   successor of a new log that happens to end where it starts.
//!
//! A *fresh segment* under a sequence number that no log on the volume has keeps both promises without
//! a look at what was lost. But it costs a segment at every crash: the rest of the one before cannot
//! be written until it has been cleaned. Where few are clean, the log *goes on in its own segment*
//! after the last log that is needed. Lost logs can only be in that segment, in the one that was set
//! aside for it, and in those that were clean: so few that all of them are looked through, and every
//! log in them that could join the chain is destroyed.

use std::cell::RefCell;

use nilfs_device::IoSlice;
use nilfs_ondisk::summary::LogHeader;
use nilfs_ondisk::{BlockNr, Geometry, SegNum, Seq};

use super::chain::ChainedLog;
use super::layout::LogPosition;
use super::reader;
use super::withheld::Withheld;
use crate::error::{Error, Result};
use crate::segments::SufileEdit;
use crate::store::Store;
use crate::volume::Volume;

/// Clean segments that are looked through for lost logs at most. With more of them, a volume can
/// afford a segment for a crash.
const MOST_SEARCHED: u64 = 8;

/// The position right after a log, in its own segment.
pub(crate) fn after(log: &ChainedLog) -> Result<LogPosition> {
    let next = log.next.ok_or_else(|| {
        Error::Inconsistent(format!(
            "the log in block {} names a next segment that the volume does not have",
            log.start
        ))
    })?;
    Ok(LogPosition { segment: log.segment, block: log.end(), next, seq: log.header.seq })
}

/// Whether the segment that a log names as the next is the one that was set aside for it: so says the
/// sufile. Any other may be in use, and what is in this one is looked at before the log enters it.
pub(crate) fn names_a_free_segment(
    volume: &Volume,
    sufile: &SufileEdit,
    position: &LogPosition,
) -> Result<bool> {
    Ok(position.next != position.segment && is_set_aside(volume, sufile, position.next)?)
}

/// Whether a segment was set aside, and none of the logs is there that lead to the newest checkpoint.
fn is_set_aside(volume: &Volume, sufile: &SufileEdit, next: SegNum) -> Result<bool> {
    Ok(!volume.found.chain.contains(&next) && sufile.is_set_aside(volume.source(), next)?)
}

/// Where the log goes on after an unclean end. `sufile` says already that the segments with the logs
/// that it needs are in use: no other log is written there, except after the last of them.
pub(crate) fn position(
    volume: &Volume,
    sufile: &mut SufileEdit,
    withheld: &Withheld,
    salvaged: bool,
) -> Result<LogPosition> {
    if sufile.clean_segments(volume.source())? <= MOST_SEARCHED
        && let Some(position) = in_own_segment(volume, sufile, withheld, salvaged)?
    {
        return Ok(position);
    }
    in_fresh_segment(volume, sufile, withheld).map_err(|error| withheld.cause(error))
}

/// A position at which nothing can be written.
pub(crate) fn nowhere(volume: &Volume) -> LogPosition {
    let ChainedLog { segment, header, .. } = volume.found.newest;
    let block = volume.geometry().segment_end(segment);
    LogPosition { segment, block, next: segment, seq: header.seq }
}

/// Goes on right after the last log that is needed; `None` if its next segment is not free, or if it cannot be read
/// where lost logs are.
fn in_own_segment(
    volume: &Volume,
    sufile: &SufileEdit,
    withheld: &Withheld,
    salvaged: bool,
) -> Result<Option<LogPosition>> {
    let (store, source) = (&volume.store, volume.source());
    let last = volume.found.last_needed(salvaged);
    let position = match after(&last) {
        Ok(position) if names_a_free_segment(volume, sufile, &position)? => position,
        _ => return Ok(None),
    };
    let clean = sufile.clean(source)?;
    let allows = |segment: &SegNum| withheld.allows(store, &volume.dat, *segment);
    // Nothing that is needed is destroyed, even if the sufile calls it free.
    if !clean.iter().chain([&position.next]).all(allows) {
        return Ok(None);
    }
    let geometry = store.geometry();
    let whole = |segment| (geometry.segment_start(segment), geometry.segment_end(segment));
    let rest = (position.block, geometry.segment_end(position.segment));
    let clean = clean.into_iter().map(whole);
    let mut found = false;
    for (from, end) in [rest, whole(position.next)].into_iter().chain(clean) {
        match destroy_logs(store, from, end, position.seq)? {
            Some(destroyed) => found |= destroyed,
            None => return Ok(None),
        }
    }
    if found {
        // They must be gone before a new log is there that one of them could follow.
        store.flush()?;
    }
    Ok(Some(position))
}

/// Destroys the header of every log from `seq` on in a range of blocks. Returns whether there was
/// one; `None` if some of them cannot be read.
fn destroy_logs(store: &Store, from: BlockNr, end: BlockNr, seq: Seq) -> Result<Option<bool>> {
    let Geometry { block_size, blocks_per_segment, .. } = store.geometry();
    let mut block = vec![0; block_size.bytes()];
    let zeros = vec![0; block_size.bytes()];
    let mut found = false;
    for at in (from.0..end.0).map(BlockNr) {
        if store.read_run(at, &mut block).is_err() {
            return Ok(None);
        }
        let header = LogHeader::parse(&block, block_size, blocks_per_segment);
        if header.is_ok_and(|header| header.seq >= seq) {
            store.write_run(at, &[IoSlice::new(&zeros)])?;
            found = true;
        }
    }
    Ok(Some(found))
}

/// Takes the segment that was set aside for the log, or another clean one, and one to follow.
fn in_fresh_segment(
    volume: &Volume,
    sufile: &mut SufileEdit,
    withheld: &Withheld,
) -> Result<LogPosition> {
    let (store, source, newest) = (&volume.store, volume.source(), &volume.found.newest);
    // A lost log may have begun where nothing can be read.
    let unreadable = RefCell::new(None);
    let allows = |segment| match reader::header(store, store.geometry().segment_start(segment)) {
        Ok(_) => withheld.allows(store, &volume.dat, segment),
        Err(error) => {
            unreadable.replace(Some(error));
            false
        }
    };
    // A device that cannot be read has room, for all that is known.
    let cause = |error| unreadable.take().unwrap_or(error);
    let set_aside = match newest.next.filter(|next| *next != newest.segment) {
        Some(next) if is_set_aside(volume, sufile, next)? && allows(next) => Some(next),
        _ => None,
    };
    let segment = match set_aside {
        Some(next) => next,
        None => sufile.allocate(source, &allows).map_err(cause)?,
    };
    let next = sufile.allocate(source, &allows).map_err(cause)?;
    let block = store.geometry().segment_start(segment);
    Ok(LogPosition { segment, block, next, seq: unused_seq(volume, [segment, next])? })
}

/// A sequence number that no lost log has: more segments than there are cannot have been lost, and a
/// recovery that was cut off has begun to write in these segments, too.
fn unused_seq(volume: &Volume, segments: [SegNum; 2]) -> Result<Seq> {
    let store = &volume.store;
    let most_lost = store.geometry().nsegments + 2;
    let mut seq = volume.found.last_valid.header.seq.plus(most_lost);
    for segment in segments {
        let start = store.geometry().segment_start(segment);
        let Some(header) = reader::header(store, start)? else { continue };
        // What an older volume on the same device has left fails this volume's checksum.
        match reader::read(store, start, header) {
            Ok(log) => seq = seq.max(log.header.seq.plus(most_lost)),
            Err(Error::Corrupt { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(seq)
}

#[cfg(test)]
mod tests;

//! Making a volume larger or smaller while it is in use (docs/format.md §24). The superblocks say
//! that it is under way, so that a mount after a power cut counts the segments anew.

use std::cmp::Ordering::{Equal, Greater, Less};

use nilfs_ondisk::SegNum;
use nilfs_ondisk::geometry::secondary_superblock;
use serde::{Deserialize, Serialize};

use super::Filesystem;
use crate::cleaner::Evacuated;
use crate::commit::MetadataChanges;
use crate::error::{Error, Result};
use crate::log::segment_writer::SegmentWriter;
use crate::log::withheld::NewEnd;

/// How often a segment that does not come free is tried.
const ATTEMPTS: u32 = 8;
/// Segments without which a volume cannot even be deleted from.
const FEWEST_SEGMENTS: u64 = 8;

/// How far a resize has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResizeProgress {
    /// Segments that had to be emptied and are.
    pub emptied: u64,
    /// Segments that have to be emptied.
    pub to_empty: u64,
}

impl Filesystem {
    /// Gives the volume as many segments as fit into `bytes` of the device. Calls `progress` now
    /// and then. Programs go on meanwhile.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the size is out of range, [`Error::NoRoomToShrink`],
    /// [`Error::ReadOnly`], damage, a device error.
    pub fn resize(&self, bytes: u64, progress: &mut dyn FnMut(ResizeProgress)) -> Result<()> {
        let _one_at_a_time = self.remaking.lock();
        self.check_writable()?;
        self.grow_device(bytes)?;
        let geometry = self.store.geometry();
        let usable = secondary_superblock(bytes).unwrap_or(0);
        let count = usable / geometry.block_size.bytes64() / u64::from(geometry.blocks_per_segment);
        if count < FEWEST_SEGMENTS {
            return Err(Error::Invalid("a volume must have at least 8 segments"));
        }
        match count.cmp(&geometry.nsegments) {
            Less => {
                let shrunk = self.shrink(count, bytes, progress);
                match shrunk {
                    Ok(()) => self.shrink_device(bytes),
                    Err(_) => self.allow_all(),
                }
                shrunk
            }
            Equal => self.finish_resize(count, bytes, MetadataChanges::default()),
            Greater => {
                let changes =
                    MetadataChanges { segments: Some(count), ..MetadataChanges::default() };
                self.finish_resize(count, bytes, changes)
            }
        }
    }

    fn grow_device(&self, bytes: u64) -> Result<()> {
        let device = self.store.device();
        if bytes <= device.size() {
            return Ok(());
        }
        match device.resize(bytes) {
            Ok(()) => Ok(()),
            Err(_) if device.size() >= bytes => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::Unsupported => {
                Err(Error::Invalid("the device is smaller than that"))
            }
            Err(source) => Err(Error::Device { what: format!("grow to {bytes} bytes"), source }),
        }
    }

    /// An image file ends where its volume ends.
    fn shrink_device(&self, bytes: u64) {
        match self.store.device().resize(bytes) {
            Err(error) if error.kind() != std::io::ErrorKind::Unsupported => {
                tracing::warn!("the volume is smaller now, but its image is not: {error}");
            }
            Ok(()) | Err(_) => {}
        }
    }

    fn shrink(
        &self,
        count: u64,
        bytes: u64,
        progress: &mut dyn FnMut(ResizeProgress),
    ) -> Result<()> {
        let end = SegNum(count);
        self.refuse_other_readers()?;
        self.cleaning().gather_live_blocks()?;
        let to_empty = self.leave_segments(end)?;
        self.cleaner.leave_segments_from(end);
        let mut failures = 0;
        loop {
            let left = self.occupied_from(end)?;
            progress(ResizeProgress { emptied: to_empty.saturating_sub(left), to_empty });
            if left == 0 {
                break;
            }
            let freed = match self.cleaning().evacuate(Evacuated::From(end)) {
                Err(Error::NoSpace) => 0,
                freed => freed?,
            };
            failures = if freed == 0 { failures + 1 } else { 0 };
            if failures == ATTEMPTS {
                self.refuse_other_readers()?;
                return Err(Error::NoRoomToShrink { segments: left });
            }
            if freed == 0 {
                // The superblocks may still need a segment.
                self.sync()?;
                self.cleaning().gather_live_blocks()?;
            }
        }
        self.refuse_other_readers()?;
        let changes = MetadataChanges { segments: Some(count), ..MetadataChanges::default() };
        self.finish_resize(count, bytes, changes)
    }

    /// Fails if another process reads the volume: it may need what is to be cut off.
    fn refuse_other_readers(&self) -> Result<()> {
        match self.cleaning().other_readers_leave() {
            true => Ok(()),
            false => Err(Error::Invalid(
                "another process reads the volume, such as a mount of the past: unmount it first",
            )),
        }
    }

    /// Lets the log go on before `end` only. Returns the number of segments in use from there on.
    fn leave_segments(&self, end: SegNum) -> Result<u64> {
        let mut session = self.writing().write_ahead()?;
        let usages = session.segment_usages()?;
        let beyond = usages.iter().filter(|(segment, _)| *segment >= end);
        let clean_beyond = beyond.clone().filter(|(_, usage)| usage.is_clean()).count() as u64;
        for (segment, _) in beyond.clone().filter(|(_, usage)| usage.is_clean()) {
            if let Some(refusal) = session.refusal(*segment) {
                return Err(Error::Inconsistent(format!(
                    "segment {segment} is not cut off: {refusal}"
                )));
            }
        }
        let in_use = beyond.count() as u64 - clean_beyond;
        self.check_room(&session, end, clean_beyond)?;
        session.set_end(Some(NewEnd { segment: end, clean: clean_beyond }));
        session.flush()?;
        while session.reaches(end) {
            session.skip_rest_of_segment();
            let changes = MetadataChanges { checkpoint: true, ..MetadataChanges::default() };
            match session.commit(&changes)?.refused {
                None => session.flush()?,
                Some(Error::NoSpace) => return Err(Error::NoRoomToShrink { segments: in_use }),
                Some(error) => return Err(error),
            }
        }
        session.write_superblocks()?;
        Ok(in_use)
    }

    /// Fails if the live blocks beyond `end` do not fit into the clean segments before it.
    fn check_room(&self, log: &SegmentWriter, end: SegNum, clean_beyond: u64) -> Result<()> {
        let geometry = self.store.geometry();
        let per_segment = u64::from(geometry.blocks_per_segment);
        let clean = log.base().clean_segments.saturating_sub(clean_beyond);
        let Some(live) = self.cleaner.live_blocks_from(end, &geometry) else { return Ok(()) };
        let kept = self.writer.space.reserved_blocks().div_ceil(per_segment);
        let needed = (live + live / 48).div_ceil(per_segment) + kept;
        match needed.checked_sub(clean) {
            None | Some(0) => Ok(()),
            Some(segments) => Err(Error::NoRoomToShrink { segments }),
        }
    }

    /// Segments in use from `end` on.
    fn occupied_from(&self, end: SegNum) -> Result<u64> {
        let mut session = self.writing().session()?;
        let usages = session.segment_usages()?;
        let beyond = usages.iter().filter(|(segment, _)| *segment >= end);
        let clean = beyond.clone().filter(|(_, usage)| usage.is_clean()).count() as u64;
        session.set_end(Some(NewEnd { segment: end, clean }));
        Ok(beyond.count() as u64 - clean)
    }

    /// Takes over the new number of segments: the sufile, then the superblocks, the one that has to
    /// move first.
    fn finish_resize(&self, count: u64, bytes: u64, changes: MetadataChanges) -> Result<()> {
        self.cleaning().wait_for_readers();
        let mut session = self.writing().write_ahead()?;
        session.flush()?;
        let before = self.store.geometry().nsegments;
        session.begin_resize(count)?;
        if !changes.is_empty() {
            let refused = session.commit(&changes)?.refused;
            session.flush()?;
            if let Some(error) = refused {
                session.give_up_resize(before)?;
                return Err(error);
            }
        }
        session.finish_resize(count, bytes)?;
        let geometry = self.store.geometry();
        self.cleaner.resized(&geometry);
        session.refresh();
        Ok(())
    }

    /// Gives up shrinking.
    fn allow_all(&self) {
        self.writing().lock().set_end(None);
    }
}

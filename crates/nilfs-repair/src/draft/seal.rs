//! Checksums of the logs in a draft: right for what was corrected, and as they were recorded for what was
//! not, so that damage to content stays known.

use std::io;

use nilfs_check::Position;
use nilfs_device::{Device, IoSlice};
use nilfs_ondisk::crc::{BlockSum, Crc, crc32_le};
use nilfs_ondisk::summary::{
    FileInfo, GC, Items, LogHeader, NewLog, SR, encode_summary, parse_items, seal_again,
};
use nilfs_ondisk::superblock::{LogCursor, Superblock};
use nilfs_ondisk::{BlockNr, BlockSize, Geometry, SegNum, Seq};

use super::Draft;
use crate::stage::Stage;
use crate::{dat, evidence, superblocks};

impl Draft {
    /// The summary of a log whose other blocks are there, given its files and its records; `None` if it takes more
    /// blocks than it may.
    pub(crate) fn summary(
        &self,
        at: BlockNr,
        header: &NewLog,
        (files, records): (&[FileInfo], &[u8]),
        payload: u64,
    ) -> io::Result<Option<Vec<u8>>> {
        let superblock = superblocks::best(&*self.device).map_err(io::Error::other)?;
        let geometry = superblock.geometry();
        let first = at.plus(header.summary_blocks);
        let (size, seed) = (geometry.block_size, superblock.crc_seed());
        // The checksum over what cannot be read will be right when that is zeros.
        let zeros = BlockSum::of(&vec![0; size.bytes()]);
        let sum =
            |nth| dat::read(&*self.device, &geometry, first.plus(nth)).as_deref().map(BlockSum::of);
        let found: Vec<Option<BlockSum>> = (0..payload).map(sum).collect();
        let mut payload: Vec<_> = found.iter().map(|sum| sum.unwrap_or(zeros)).collect();
        let mut is_lost = false;
        if !is_walked(&superblock, at, header.seq, header.flags) {
            let contents = files.iter().flat_map(evidence::contents);
            let unknown = payload.iter_mut().zip(&found).zip(contents).filter(|(_, it)| *it);
            for ((sum, found), _) in unknown {
                is_lost |= found.is_none();
                *sum = found.map_or(zeros.of_something_else(), BlockSum::unverified);
            }
        }
        let fits = |bytes: &Vec<u8>| bytes.len() as u64 == header.summary_blocks * size.bytes64();
        let encode = |header: &NewLog| encode_summary(header, files, records, &payload, size, seed);
        // Zeros in place of content that is lost are known to be wrong, if there is room to say so.
        let with_sums = is_lost.then(|| encode(&NewLog { block_sums: true, ..*header }));
        Ok(with_sums.filter(fits).or_else(|| Some(encode(header)).filter(fits)))
    }

    /// Makes sure that no mount comes by a log that is before the newest checkpoint: else its checksum would
    /// have to be right for what is there. The superblocks name that checkpoint then.
    pub(super) fn pass_by(
        &mut self,
        (log, seq, flags): (BlockNr, Seq, u16),
        newest: LogCursor,
    ) -> io::Result<()> {
        let superblock = superblocks::best(&*self.device).map_err(io::Error::other)?;
        // Its own number may have been corrected.
        let header = self.header(&superblock.geometry(), newest.block);
        let newest = LogCursor { seq: header.map_or(newest.seq, |header| header.seq), ..newest };
        let is_before = (seq, log) < (newest.seq, newest.block);
        match is_before && is_walked(&superblock, log, seq, flags) {
            true => superblocks::go_on_from(self, newest),
            false => Ok(()),
        }
    }

    /// Makes the checksums right of the logs that have these blocks, given in order.
    pub(crate) fn seal_logs(
        &mut self,
        superblock: &Superblock,
        blocks: &[BlockNr],
        newest: LogCursor,
    ) -> io::Result<()> {
        let geometry = superblock.geometry();
        let mut rest = blocks;
        while let Some(first) = rest.first() {
            let segment = geometry.segment_of(*first);
            let here = rest.iter().take_while(|block| geometry.segment_of(**block) == segment);
            let (these, others) = rest.split_at(here.count());
            rest = others;
            self.segments.insert(segment);
            for (at, header) in self.logs_of(&geometry, segment, superblock.crc_seed()) {
                let next = at.plus(header.nblocks.into());
                let is_concerned = these.iter().any(|block| (at..next).contains(block));
                // A right checksum would have noise taken for what the blocks of the log are. But the newest log
                // is needed until there is a newer one.
                let is_described = at == newest.block
                    || self.has_own_summary(&geometry, superblock.crc_seed(), at);
                if is_concerned && is_described {
                    self.pass_by((at, header.seq, header.flags), newest)?;
                    self.seal(&geometry, superblock.crc_seed(), at, &header)?;
                    let start = Position { block: at, offset: 0 };
                    let mut stages = [Stage::Summaries, Stage::LastSummaries].into_iter();
                    // It has lost the checksum of what was written with its summary.
                    if !stages.any(|stage| self.made.contains_key(&(start, stage, None))) {
                        self.sealed.insert(at, header);
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the logs of a segment: one after the other, and those beyond a gap that a scan finds.
    fn logs_of(
        &mut self,
        geometry: &Geometry,
        segment: SegNum,
        seed: u32,
    ) -> Vec<(BlockNr, LogHeader)> {
        let mut logs = Vec::new();
        let (mut at, end) = (geometry.segment_start(segment), geometry.segment_end(segment));
        while at < end
            && let Some(header) = self.header(geometry, at)
        {
            logs.push((at, header));
            at = at.plus(header.nblocks.into());
        }
        if at < end && self.scan.is_none() {
            self.scan = self.observer.scan(&*self.device).ok();
        }
        let beyond = self.scan.iter().flat_map(|scan| &scan.logs);
        let beyond: Vec<BlockNr> =
            beyond.map(|log| log.start).filter(|start| (at..end).contains(start)).collect();
        for start in beyond {
            if start >= at
                && self.has_summary(geometry, seed, start)
                && let Some(header) = self.header(geometry, start)
            {
                logs.push((start, header));
                at = start.plus(header.nblocks.into());
            }
        }
        logs
    }

    /// The checksums that a log has of its blocks on the device: in the draft, they may be those of something
    /// that was corrected once more since.
    fn recorded(
        &self,
        geometry: &Geometry,
        seed: u32,
        (at, header): (BlockNr, &LogHeader),
    ) -> Option<Vec<BlockSum>> {
        let size = geometry.block_size;
        let mut summary = vec![0; header.summary_blocks(size) as usize * size.bytes()];
        self.below.read_at(at.0 * size.bytes64(), &mut summary).ok()?;
        let found = LogHeader::parse(&summary, size, geometry.blocks_per_segment).ok()?;
        found.verify_summary(&summary, seed).ok()?;
        let is_same = (found.sumbytes, found.nblocks) == (header.sumbytes, header.nblocks);
        parse_items(&found, &summary, size).ok().filter(|_| is_same)?.sums
    }

    fn is_walked(&self, at: BlockNr, header: &LogHeader) -> io::Result<bool> {
        let superblock = superblocks::best(&*self.device).map_err(io::Error::other)?;
        Ok(is_walked(&superblock, at, header.seq, header.flags))
    }

    /// The header of the log that begins in a block, if there is one. What cannot be read is none: that
    /// must end no repair of what else there is.
    pub(crate) fn header(&self, geometry: &Geometry, at: BlockNr) -> Option<LogHeader> {
        let block = dat::read(&*self.device, geometry, at)?;
        let header = LogHeader::parse(&block, geometry.block_size, geometry.blocks_per_segment);
        let end = geometry.segment_end(geometry.segment_of(at));
        header.ok().filter(|header| at.0 + u64::from(header.nblocks) <= end.0)
    }

    /// Whether the summary of a log begins in a block, and is what was written.
    pub(crate) fn has_summary(&self, geometry: &Geometry, seed: u32, at: BlockNr) -> bool {
        let Some(header) = self.header(geometry, at) else { return false };
        let size = geometry.block_size;
        let mut summary = vec![0; header.summary_blocks(size) as usize * size.bytes()];
        self.device.read_at(at.0 * size.bytes64(), &mut summary).is_ok()
            && header.verify_summary(&summary, seed).is_ok()
    }

    /// Whether a log has the summary that was written, or one that was corrected.
    fn has_own_summary(&self, geometry: &Geometry, seed: u32, at: BlockNr) -> bool {
        let Some(header) = self.header(geometry, at) else { return false };
        let size = geometry.block_size;
        let read = |device: &dyn Device| {
            let mut summary = vec![0; header.summary_blocks(size) as usize * size.bytes()];
            device.read_at(at.0 * size.bytes64(), &mut summary).ok().map(|()| summary)
        };
        self.has_summary(geometry, seed, at) || read(&*self.device) != read(&*self.below)
    }

    /// Reads a log, the blocks of metadata in it that are not what was written as they were found. Returns
    /// whether it can be read.
    fn read_for_seal(&self, offset: u64, log: &mut [u8], size: usize) -> bool {
        if self.device.read_at(offset, log).is_ok() {
            return true;
        }
        (offset..).step_by(size).zip(log.chunks_mut(size)).all(|(at, block)| {
            let is_distrusted = self.distrusted.contains(&BlockNr(at / size as u64));
            self.device.read_at(at, block).is_ok()
                || is_distrusted && self.below.read_at(at, block).is_ok()
        })
    }

    /// Whether a block that was not what was written has been made anew: it may have become what was found, which
    /// was an older version.
    fn is_made_anew(&self, block: BlockNr, size: usize) -> bool {
        let mut bytes = vec![0; size];
        self.distrusted.contains(&block)
            && self.device.read_at(block.0 * size as u64, &mut bytes).is_ok()
    }

    /// Makes the checksums of a log right: of its super root, of the blocks that were corrected, and of its
    /// summary. That of all of it is right where it was, where the corrections explain that it was not, and
    /// where what is there is accepted. Else the checksums of the other blocks stay as they are, and content
    /// of which the log has none becomes unverified: what has been damaged there remains known.
    pub(crate) fn seal(
        &self,
        geometry: &Geometry,
        seed: u32,
        at: BlockNr,
        header: &LogHeader,
    ) -> io::Result<()> {
        let (block_size, size) = (geometry.block_size, geometry.block_size.bytes());
        let offset = at.0 * size as u64;
        let mut log = vec![0; header.described_blocks(block_size) as usize * size];
        if !self.read_for_seal(offset, &mut log, size) {
            // Other blocks of it cannot be read, so there is no checksum that could be right.
            return Ok(());
        }
        let mut found = vec![0; log.len()];
        let is_readable = self.below.read_at(offset, &mut found).is_ok();
        let written = LogHeader::parse(&found, block_size, geometry.blocks_per_segment);
        let is_proved = self.accepted.contains(&at)
            || written.is_ok_and(|written| {
                is_readable && is_whole(&found, &written, block_size, seed)
                    || is_whole(&log, &written, block_size, seed)
            });
        let root = log.len() - size;
        if header.has(SR) {
            let covered = usize::from(u16::from_le_bytes([log[root + 4], log[root + 5]]));
            let sum = crc32_le(seed, &log[root + 4..root + covered.clamp(4, size)]);
            log[root..root + 4].copy_from_slice(&sum.to_le_bytes());
        }
        let (summary, payload) =
            log.split_at_mut(header.summary_blocks(block_size) as usize * size);
        let mut sums: Vec<BlockSum> = payload.chunks(size).map(BlockSum::of).collect();
        let items = parse_items(header, summary, block_size).ok().filter(|_| !is_proved);
        if let Some(Items { files, sums: latest, .. }) = items {
            let recorded = self.recorded(geometry, seed, (at, header)).or(latest);
            let first = at.plus(header.summary_blocks(block_size));
            let is_walked = self.is_walked(at, header)?;
            let mut contents = files.iter().flat_map(evidence::contents);
            for (nth, block) in payload.chunks(size).enumerate() {
                let is_content = contents.next().unwrap_or(false);
                let place = first.plus(nth as u64);
                let is_as_found = || {
                    let mut found = vec![0; size];
                    self.below.read_at(place.0 * size as u64, &mut found).is_ok() && found == block
                };
                let is_made_up = self.made_up.contains(&place);
                if !is_made_up && (self.is_made_anew(place, size) || !is_as_found()) {
                    continue;
                }
                match recorded.as_ref().and_then(|sums| sums.get(nth)) {
                    Some(recorded) => sums[nth] = *recorded,
                    None if is_content && !is_walked && self.made_up.contains(&place) => {
                        sums[nth] = sums[nth].of_something_else();
                    }
                    None if is_content && !is_walked => sums[nth] = sums[nth].unverified(),
                    None => {}
                }
            }
        }
        seal_again(summary, header, &sums, block_size, seed);
        if header.has(SR) {
            let root = payload.len() - size;
            let sum = &payload[root..root + 4];
            self.device.write_at(offset + (summary.len() + root) as u64, &[IoSlice::new(sum)])?;
        }
        self.device.write_at(offset, &[IoSlice::new(summary)])
    }
}

/// Whether a mount comes by a log on its way to the newest checkpoint and beyond: it goes on only if the
/// checksum of the log is right.
pub(super) fn is_walked(superblock: &Superblock, log: BlockNr, seq: Seq, flags: u16) -> bool {
    let from = superblock.last_log();
    flags & GC == 0 && (seq, log) >= (from.seq, from.block)
}

/// Whether a log is as its header says, given the blocks that it describes.
pub(crate) fn is_whole(log: &[u8], header: &LogHeader, block_size: BlockSize, seed: u32) -> bool {
    let mut crc = Crc::new(seed);
    crc.update(&log[4..]);
    header.verify_log(crc, block_size).is_ok()
}

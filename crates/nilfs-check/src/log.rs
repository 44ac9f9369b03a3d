//! Reading logs in large pieces: their headers, summaries and checksums. It checks one log at a
//! time and knows nothing of segments' usage or of the order of logs.

use std::io;
use std::ops::Range;

use nilfs_ondisk::crc::{BlockSum, Crc, Verdict};
use nilfs_ondisk::roll_forward::Records;
use nilfs_ondisk::summary::{FileInfo, Items, LogHeader, parse_items};
use nilfs_ondisk::{BlockNr, FormatError, SegNum, Seq};
use thiserror::Error;

use crate::volume::{ReadBlock, Volume};

/// Bytes that one read takes at most, unless a single summary is longer.
const CHUNK: usize = 1 << 20;
/// Bytes that one read takes at least.
const LEAST: usize = 64 << 10;
/// Between summaries that are so near to each other, everything is read: most of what lies in small
/// logs is metadata, which will be asked for.
const NEAR: usize = 128 << 10;

/// What is wrong with a log.
#[derive(Debug, Error)]
pub(crate) enum LogFault {
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Format(#[from] FormatError),
    #[error("its {blocks} blocks end beyond the segment, which has {room} left")]
    TooLong { blocks: u32, room: u64 },
    #[error("its sequence number is {found}, expected {expected}")]
    Sequence { found: Seq, expected: Seq },
    #[error("it has no super root")]
    NoSuperRoot,
    #[error("its super root in block {block} is whole, but not the one that was written there")]
    OtherSuperRoot { block: BlockNr },
}

/// A reader of logs with one buffer, which serves many small logs with one read.
pub(crate) struct LogReader<'v, 'd> {
    volume: &'v Volume<'d>,
    buffer: Vec<u8>,
    first: BlockNr,
    /// Bytes that the next read takes: as many as the last summary, because the next one is likely to
    /// be as long.
    chunk: usize,
    /// Whether all blocks are read.
    whole: bool,
}

/// Blocks of a log that are not known to be what was written, in ranges.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    /// These are not.
    pub(crate) wrong: Vec<Range<BlockNr>>,
    /// The proof of these was lost.
    pub(crate) unverified: Vec<Range<BlockNr>>,
}

impl<'v, 'd> LogReader<'v, 'd> {
    /// `whole`: whether logs will be read from their beginning to their end.
    pub(crate) fn new(volume: &'v Volume<'d>, whole: bool) -> Self {
        let chunk = if whole { CHUNK } else { LEAST };
        Self { volume, buffer: Vec::new(), first: BlockNr(0), chunk, whole }
    }

    /// The header of the log at `at`, whose blocks all lie within the segment.
    pub(crate) fn header(&mut self, at: BlockNr) -> Result<LogHeader, LogFault> {
        let geometry = &self.volume.geometry;
        let (size, per_segment) = (geometry.block_size, geometry.blocks_per_segment);
        let room = self.end_of_segment(at).saturating_sub(at.0);
        let header = LogHeader::parse(self.blocks(at, 1)?, size, per_segment)?;
        if u64::from(header.nblocks) > room {
            return Err(LogFault::TooLong { blocks: header.nblocks, room });
        }
        Ok(header)
    }

    /// What the blocks of the log are; the summary's checksum is right.
    pub(crate) fn items(
        &mut self,
        at: BlockNr,
        header: &LogHeader,
    ) -> Result<Vec<FileInfo>, LogFault> {
        Ok(self.summary(at, header)?.0)
    }

    /// What the blocks of the log are, and its roll-forward records. Nobody needs to know those of a
    /// log that a checkpoint has come after.
    pub(crate) fn content(
        &mut self,
        at: BlockNr,
        header: &LogHeader,
    ) -> Result<(Vec<FileInfo>, Option<Records>), LogFault> {
        let (files, rest) = self.summary(at, header)?;
        Ok((files, Records::parse(rest)?))
    }

    /// The items of the summary, and the bytes after them.
    fn summary(
        &mut self,
        at: BlockNr,
        header: &LogHeader,
    ) -> Result<(Vec<FileInfo>, &[u8]), LogFault> {
        let (size, seed) = (self.volume.block_size(), self.volume.seed);
        let blocks = header.summary_blocks(size);
        self.chunk = LEAST.max(blocks.min(CHUNK as u64) as usize * size.bytes()).min(CHUNK);
        let summary = self.blocks(at, blocks)?;
        header.verify_summary(summary, seed)?;
        let Items { files, end, .. } = parse_items(header, summary, size)?;
        let rest = summary.get(end..header.sumbytes as usize).unwrap_or_default();
        Ok((files, rest))
    }

    /// Whether the log lies in the hole of one that was written later: that has left the first block as
    /// it was, and the next log, of the same later use of the segment, begins in the second.
    pub(crate) fn is_in_hole(&mut self, at: BlockNr, found: &LogHeader) -> bool {
        let next = at.plus(1);
        let header = self.header(next).ok().filter(|header| header.seq > found.seq);
        header.is_some_and(|header| self.items(next, &header).is_ok())
    }

    /// Checks the checksum over the whole log.
    pub(crate) fn verify(&mut self, at: BlockNr, header: &LogHeader) -> Result<(), LogFault> {
        let per_read = (CHUNK / self.volume.block_size().bytes()) as u64;
        let mut crc = Crc::new(self.volume.seed);
        let mut skip = 4;
        let mut done = 0;
        let described = header.described_blocks(self.volume.block_size());
        while done < described {
            let count = per_read.min(described - done);
            crc.update(&self.blocks(at.plus(done), count)?[skip..]);
            skip = 0;
            done += count;
        }
        Ok(header.verify_log(crc, self.volume.block_size())?)
    }

    /// Returns the blocks of a log, in ranges, that are not known to be what was written. `None`: its summary
    /// does not tell, because the log was written without checksums of its blocks.
    pub(crate) fn changed(
        &mut self,
        at: BlockNr,
        header: &LogHeader,
    ) -> Result<Option<Changed>, LogFault> {
        let size = self.volume.block_size();
        let blocks = header.summary_blocks(size);
        let items = parse_items(header, self.blocks(at, blocks)?, size)?;
        let Some(sums) = items.sums else { return Ok(None) };
        let mut changed = Changed::default();
        for (block, sum) in (at.0 + blocks..).map(BlockNr).zip(sums) {
            let ranges = match sum.judge(self.blocks(block, 1)?) {
                Verdict::Right => continue,
                Verdict::Unverified => &mut changed.unverified,
                Verdict::Wrong => &mut changed.wrong,
            };
            match ranges.last_mut() {
                Some(last) if last.end == block => last.end = block.plus(1),
                _ => ranges.push(block..block.plus(1)),
            }
        }
        Ok(Some(changed))
    }

    /// Whether something after the summary of a log is what this says, as far as it tells.
    pub(crate) fn has_own_block(&mut self, at: BlockNr, header: &LogHeader) -> bool {
        let size = self.volume.block_size();
        let payload = at.plus(header.summary_blocks(size))..at.plus(header.described_blocks(size));
        match self.changed(at, header) {
            Ok(Some(Changed { wrong, .. })) => payload.is_empty() || wrong != [payload],
            Ok(None) => false,
            // What cannot be read contradicts nothing.
            Err(_) => true,
        }
    }

    /// Returns which of these blocks of a log are not what was written, with the checksums of that, as far as the
    /// log tells.
    pub(crate) fn changed_among(
        &mut self,
        at: BlockNr,
        header: &LogHeader,
        found: &[ReadBlock],
    ) -> Result<Vec<(ReadBlock, BlockSum)>, LogFault> {
        let size = self.volume.block_size();
        let blocks = header.summary_blocks(size);
        let items = parse_items(header, self.blocks(at, blocks)?, size)?;
        let Some(sums) = items.sums else { return Ok(Vec::new()) };
        let changed = |found: &ReadBlock| {
            let nth =
                found.block.0.checked_sub(at.0 + blocks).and_then(|it| usize::try_from(it).ok());
            let sum = sums.get(nth?)?;
            let is_wrong = sum.judge_found(found.sum) == Verdict::Wrong;
            is_wrong.then_some((*found, *sum))
        };
        Ok(found.iter().filter_map(changed).collect())
    }

    /// Whether the checksum of a log follows from those that it has of its blocks.
    pub(crate) fn sums_agree(&mut self, at: BlockNr, header: &LogHeader) -> Result<bool, LogFault> {
        let (size, seed) = (self.volume.block_size(), self.volume.seed);
        let summary = self.blocks(at, header.summary_blocks(size))?;
        let Some(sums) = parse_items(header, summary, size)?.sums else { return Ok(false) };
        Ok(header.sum_from(summary, &sums, size, seed) == header.datasum)
    }

    /// The block at `at`, which is the super root of a log.
    pub(crate) fn block(&mut self, at: BlockNr) -> Result<&[u8], LogFault> {
        Ok(self.blocks(at, 1)?)
    }

    /// The segment of a block.
    pub(crate) fn segment_of(&self, block: BlockNr) -> SegNum {
        self.volume.geometry.segment_of(block)
    }

    fn end_of_segment(&self, at: BlockNr) -> u64 {
        let geometry = &self.volume.geometry;
        geometry.segment_end(geometry.segment_of(at)).0
    }

    /// Whether a read at `at` follows one of `held` blocks.
    fn goes_on(&self, at: BlockNr, held: u64) -> bool {
        let near = (NEAR / self.volume.block_size().bytes()) as u64;
        self.first < at && at.0 <= self.first.0.saturating_add(held + near)
    }

    /// Bytes that a read takes.
    fn next_chunk(&self, goes_on: bool) -> usize {
        match (self.whole, goes_on) {
            (true, _) => CHUNK,
            (false, true) => CHUNK.min(2 * self.buffer.len()),
            (false, false) => self.chunk,
        }
    }

    /// `count` blocks, all in one segment. What follows them in the segment is read along.
    fn blocks(&mut self, at: BlockNr, count: u64) -> io::Result<&[u8]> {
        let size = self.volume.block_size().bytes();
        let held = (self.buffer.len() / size) as u64;
        if at < self.first || at.0.saturating_add(count) > self.first.0 + held {
            let goes_on = self.goes_on(at, held);
            let chunk = self.next_chunk(goes_on);
            let room = self.end_of_segment(at).saturating_sub(at.0);
            let wanted = count.max((chunk / size) as u64).min(room.max(count));
            self.buffer.resize(wanted as usize * size, 0);
            let mut read = self.volume.read(at, &mut self.buffer);
            if read.is_err() && wanted > count {
                // Only what follows may be unreadable.
                self.chunk = LEAST;
                self.buffer.truncate(count as usize * size);
                read = self.volume.read(at, &mut self.buffer);
            }
            if let Err(error) = read {
                self.buffer.clear();
                return Err(error);
            }
            self.first = at;
            if goes_on {
                // The device reads on while these blocks are judged.
                let next = at.plus(wanted).0;
                self.volume.ask_for_run(next..next + wanted.min(room.saturating_sub(wanted)));
            }
        }
        let start = (at.0 - self.first.0) as usize * size;
        Ok(&self.buffer[start..start + count as usize * size])
    }
}

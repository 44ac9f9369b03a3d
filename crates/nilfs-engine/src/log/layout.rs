//! Dealing the blocks of a commit out to logs: which block goes to which address.
//!
//! A log ends where its segment ends; the next log starts in the next segment. The size of a
//! summary depends on what it describes, so the addresses of a log's blocks are known when the
//! last of them is.
//!
//! Logs end where a page of flash does: the format has no gaps between logs, so the summary takes the
//! rest. A page that two flushes write would be programmed twice, and a card would have to copy the
//! allocation unit in which that happens. A checkpoint does so only if it costs little, because
//! another log may follow it before the next flush. A sync log is followed by a flush.
//!
//! A log without blocks needs one all the same: nilfs-utils 2.3 refuses a summary that takes all blocks
//! of its log ("too big summary info"), and then does not clean its segment. Where the summary ends with
//! a page of flash, that block is claimed and not written: a *hole*, in which anything may lie.

use std::ops::Range;

use nilfs_ondisk::summary::{FINFO_SIZE, FileInfo, Placement};
use nilfs_ondisk::{BlockNr, BlockSize, ByteCount, Geometry, SegNum, Seq, block_sums};

/// Bytes of a log that may end with a super root. After more, it gets a log of its own: the next mount
/// reads the newest log with a super root from end to end, for its checksum.
const BEFORE_SUPER_ROOT: u64 = 256 << 10;

/// Blocks of a log with nothing but a super root.
const SUPER_ROOT_LOG: u64 = 2;

/// Where the log goes on: in one segment, and then in the one that was set aside for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogPosition {
    pub(crate) segment: SegNum,
    /// First free block of the segment.
    pub(crate) block: BlockNr,
    pub(crate) next: SegNum,
    pub(crate) seq: Seq,
}

/// A log to be written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PlannedLog {
    pub(crate) start: BlockNr,
    pub(crate) seq: Seq,
    pub(crate) segment: SegNum,
    pub(crate) next: SegNum,
    pub(crate) summary_blocks: u64,
    /// Bytes of the summary that nothing needs: after its records, before the checksums of the blocks.
    pub(crate) unused: usize,
    /// The blocks, as ranges of files.
    pub(crate) parts: Vec<(usize, Range<usize>)>,
    pub(crate) super_root: bool,
    /// Blocks of zeros after all of these.
    pub(crate) empty: u64,
    /// Blocks after these that are not written.
    pub(crate) hole: u64,
}

impl PlannedLog {
    fn payload(&self) -> u64 {
        self.parts.iter().map(|(_, range)| range.len() as u64).sum()
    }

    /// The block after the log.
    pub(crate) fn end(&self) -> BlockNr {
        let super_root = u64::from(self.super_root);
        let nothing = self.empty + self.hole;
        self.start.plus(self.summary_blocks + self.payload() + super_root + nothing)
    }
}

/// All logs of a commit.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) logs: Vec<PlannedLog>,
    /// The address of every block, by file.
    pub(crate) addresses: Vec<Vec<BlockNr>>,
    /// Where the log goes on afterwards.
    pub(crate) position: LogPosition,
}

/// Lays out `files`, and after them a super root if there is to be one, from `position` on.
/// `flash_page` is what flash programs at once.
/// `extra` are the segments after `position.next`. `records` are bytes after the items of a summary,
/// for a log that is alone.
///
/// If they do not suffice, returns the number of blocks (at least 1) for which there was no room.
pub(crate) fn plan(
    geometry: &Geometry,
    flash_page: ByteCount,
    position: LogPosition,
    extra: &[SegNum],
    files: &[&FileInfo],
    records: usize,
    super_root: bool,
) -> Result<Plan, u64> {
    let segment = geometry.segment_start(position.segment)..=geometry.segment_end(position.segment);
    assert!(segment.contains(&position.block), "the log is not in its segment: {position:?}");
    let mut planner = Planner::new(geometry, flash_page, position, extra, records);
    if records > 0 && planner.room() <= planner.log.summary_blocks(0) {
        return Err(1);
    }
    for (nth, file) in files.iter().enumerate() {
        for (index, info) in file.blocks.iter().enumerate() {
            if !planner.add(nth, index, info.size()) {
                let rest = files[nth + 1..].iter().map(|file| file.blocks.len()).sum::<usize>();
                return Err((file.blocks.len() - index + rest) as u64);
            }
        }
    }
    if super_root && !planner.add_super_root() {
        return Err(1);
    }
    planner.close();
    let (logs, position) = (planner.logs, planner.position);
    let mut addresses: Vec<Vec<BlockNr>> =
        files.iter().map(|file| Vec::with_capacity(file.blocks.len())).collect();
    for log in &logs {
        let mut at = log.start.plus(log.summary_blocks);
        for (file, range) in &log.parts {
            for _ in range.clone() {
                addresses[*file].push(at);
                at = at.plus(1);
            }
        }
    }
    Ok(Plan { logs, addresses, position })
}

/// A log while it is being filled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Filling {
    summary: Placement,
    payload: u64,
    /// Bytes of records in the summary.
    records: usize,
}

impl Filling {
    /// A log without blocks.
    pub(crate) fn new(block_size: BlockSize, records: usize) -> Self {
        Self { summary: Placement::new(block_size), payload: 0, records }
    }

    /// Blocks of the summary, if as many more blocks are described than were added.
    fn summary_blocks(&self, more: u64) -> u64 {
        self.summary.blocks_with(self.after_items(more))
    }

    /// Bytes that the summary needs then.
    fn summary_bytes(&self, more: u64) -> usize {
        self.summary.bytes() + self.after_items(more)
    }

    /// Bytes of that after its items.
    fn after_items(&self, more: u64) -> usize {
        self.records + block_sums::size(self.payload + more)
    }

    /// Adds a block, unless the log would then take more than `room` blocks. Returns whether it was
    /// added.
    pub(crate) fn add(&mut self, begins_file: bool, binfo_size: usize, room: u64) -> bool {
        let mut with = *self;
        if begins_file {
            with.summary.place(FINFO_SIZE);
        }
        with.summary.place(binfo_size);
        with.payload += 1;
        let fits = with.summary_blocks(0) + with.payload <= room;
        if fits {
            *self = with;
        }
        fits
    }
}

struct Planner<'a> {
    geometry: &'a Geometry,
    /// Blocks of a page of flash.
    page_blocks: u64,
    /// After `position.next`, in the order in which they will be used.
    extra: std::slice::Iter<'a, SegNum>,
    position: LogPosition,
    logs: Vec<PlannedLog>,
    empty: Filling,
    /// The log being filled, and its parts.
    log: Filling,
    parts: Vec<(usize, Range<usize>)>,
}

impl<'a> Planner<'a> {
    fn new(
        geometry: &'a Geometry,
        flash_page: ByteCount,
        position: LogPosition,
        extra: &'a [SegNum],
        records: usize,
    ) -> Self {
        let empty = Filling::new(geometry.block_size, records);
        Self {
            geometry,
            page_blocks: (flash_page.0 / geometry.block_size.bytes64()).max(1),
            extra: extra.iter(),
            position,
            logs: Vec::new(),
            empty,
            log: empty,
            parts: Vec::new(),
        }
    }

    fn room(&self) -> u64 {
        self.geometry.segment_end(self.position.segment).0 - self.position.block.0
    }

    /// Adds a block to the log, in a new segment if it must be. False if there is none.
    fn add(&mut self, file: usize, index: usize, binfo_size: usize) -> bool {
        loop {
            let same_file = self.parts.last().is_some_and(|(last, _)| *last == file);
            if self.log.add(!same_file, binfo_size, self.room()) {
                match self.parts.last_mut() {
                    Some((_, range)) if same_file => range.end = index + 1,
                    _ => self.parts.push((file, index..index + 1)),
                }
                return true;
            }
            if !self.advance() {
                return false;
            }
        }
    }

    fn add_super_root(&mut self) -> bool {
        if self.log.payload * self.geometry.block_size.bytes64() > BEFORE_SUPER_ROOT {
            self.push(false, SUPER_ROOT_LOG);
        }
        if self.log.summary_blocks(1) + self.log.payload >= self.room() && !self.advance() {
            return false;
        }
        self.push(true, 0);
        true
    }

    /// Ends the current log, if there is one, and goes to the next segment.
    fn advance(&mut self) -> bool {
        self.close();
        let Some(&next) = self.extra.next() else {
            return false;
        };
        self.position = LogPosition {
            segment: self.position.next,
            block: self.geometry.segment_start(self.position.next),
            next,
            seq: self.position.seq.plus(1),
        };
        true
    }

    fn close(&mut self) {
        if self.log.payload > 0 || self.log.records > 0 {
            self.push(false, 0);
        }
    }

    /// Ends the current log, after which `following` more blocks will be written at once.
    fn push(&mut self, super_root: bool, following: u64) {
        let mut log = PlannedLog {
            start: self.position.block,
            seq: self.position.seq,
            segment: self.position.segment,
            next: self.position.next,
            summary_blocks: self.log.summary_blocks(super_root.into()),
            unused: 0,
            parts: std::mem::take(&mut self.parts),
            super_root,
            empty: 0,
            hole: 0,
        };
        let padding = self.padding(&log, following);
        match log.payload() == 0 && !super_root {
            true => (log.empty, log.hole) = (padding, u64::from(padding == 0)),
            false => log.summary_blocks += padding,
        }
        log.unused = log.summary_blocks as usize * self.geometry.block_size.bytes()
            - self.log.summary_bytes(super_root.into());
        let segment_end = self.geometry.segment_end(log.segment);
        assert!(log.end() <= segment_end, "a log goes beyond the end of its segment: {log:?}");
        self.position.block = log.end();
        self.logs.push(log);
        self.log = self.empty;
    }

    /// Blocks from the end of a log, and of what comes after it, to the end of the page of flash; none
    /// if they would be more than half of what a checkpoint's log has.
    fn padding(&self, log: &PlannedLog, following: u64) -> u64 {
        let end = log.end().0 + following;
        let padding = end.next_multiple_of(self.page_blocks) - end;
        let fits = end + padding <= self.geometry.segment_end(log.segment).0;
        let worth_it = self.log.records > 0 || padding * 2 <= end - log.start.0;
        if fits && worth_it { padding } else { 0 }
    }
}

#[cfg(test)]
mod tests;

//! What a device says of its volume by its logs alone: where they are, which of them have a super
//! root, and how the volume is laid out. For volumes to which no superblock leads any more.
//!
//! The device is read from its beginning to its end. A valid summary says how long its log is, so
//! the blocks of a log are passed over; everywhere else each block is looked at, because a log may
//! begin there. So stale logs are found as well, parts of the device may be unreadable, and no
//! content can make the scan read more than the device has, apart from summaries.
//!
//! Where no superblock is valid, the layout comes from the logs: the seed of the checksums is
//! computed backwards from one checksum of a log and proved by another, that of its super root,
//! which also is where it should be for one block size only. Segments begin where logs say that the
//! next one begins, and there are as many as the device has room for. The image of a volume that
//! lies in a file has logs as well, but not where they say.
//!
//! Nothing here follows the chain of logs: whether a log is the newest that a mount would come to
//! is not known. The newest super root by number may follow a log that a power cut has torn.

use std::ops::Range;

use nilfs_device::Device;
use nilfs_ondisk::crc::{Crc, seed_of};
use nilfs_ondisk::geometry::{MIN_BLOCKS_PER_SEGMENT, PRIMARY_SUPERBLOCK, secondary_superblock};
use nilfs_ondisk::roll_forward::Records;
use nilfs_ondisk::summary::{Items, LogHeader, SR, parse_items};
use nilfs_ondisk::super_root::SuperRoot;
use nilfs_ondisk::superblock::{
    FEATURE_ROLL_FORWARD, LogCursor, RawSuperblock, SUPERBLOCK_SIZE, Superblock,
};
use nilfs_ondisk::{BlockNr, BlockSize, Cno, Geometry, Ino, summary};
use zerocopy::little_endian::U64;

use crate::error::{Error, Result};

/// Bytes read at a time.
const READ_BYTES: u64 = 1 << 20;

/// Bytes of a summary that are believed: more than a segment of the largest usual size needs.
const MOST_SUMMARY_BYTES: u32 = 1 << 20;

/// The smallest block, at multiples of which any log begins.
const SMALLEST_BLOCK: u64 = 1024;

/// Exponents of block sizes, as superblocks have them.
const BLOCK_SIZES: Range<u32> = 0..7;

/// Percentage of the segments that is kept back, if nobody says otherwise.
const RESERVED_PERCENT: u32 = 5;

/// Layouts that are tried, if there is no superblock. Each of them takes a scan.
const MOST_LAYOUTS: usize = 8;

/// What a scan found.
#[derive(Debug)]
pub struct Scan {
    /// The layout of the volume, which its logs agree with. If they are all that is known, it is the
    /// one with the largest segments.
    pub geometry: Geometry,
    /// Other layouts that no log contradicts, with smaller segments, the largest first. There are
    /// none if a superblock tells the layout.
    pub alternatives: Vec<Geometry>,
    /// The seed of every checksum on the volume.
    pub crc_seed: u32,
    /// The copy of the superblock that says so; `None` if no copy is valid and true. It need not
    /// fit the device, which may have been cut short, and its log need not be there.
    pub superblock: Option<Superblock>,
    /// The logs that complete a checkpoint, the newest first.
    pub super_roots: Vec<SuperRootLog>,
    /// All logs, by ascending address. None overlaps another.
    pub logs: Vec<FoundLog>,
}

/// A log whose summary is valid. Of its content, nothing is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundLog {
    /// Its first block.
    pub start: BlockNr,
    /// Its header.
    pub header: LogHeader,
}

impl FoundLog {
    /// The block after the log.
    #[must_use]
    pub fn end(&self) -> BlockNr {
        self.start.plus(self.header.nblocks.into())
    }

    /// Where it is, and its checkpoint.
    #[must_use]
    pub fn cursor(&self) -> LogCursor {
        LogCursor { block: self.start, seq: self.header.seq, cno: self.header.cno }
    }
}

/// A log with a valid summary and a valid super root.
#[derive(Debug, Clone, Copy)]
pub struct SuperRootLog {
    /// Where it is, and its checkpoint.
    pub cursor: LogCursor,
    /// Its header.
    pub header: LogHeader,
    /// Its super root.
    pub super_root: SuperRoot,
}

impl SuperRootLog {
    /// The log that a superblock names; `None` unless every byte of it is as it was written.
    #[must_use]
    pub fn named_by(device: &dyn Device, superblock: &Superblock) -> Option<Self> {
        let layout = Layout::of(superblock);
        let (named, geometry) = (superblock.last_log(), superblock.geometry());
        let log = layout.log(device, named.block)?;
        let last = log.end().0.checked_sub(1).map(BlockNr)?;
        let is_named = log.header.seq == named.seq
            && geometry.segment_of(log.start) == geometry.segment_of(last)
            && layout.is_whole(device, &log);
        layout.super_root_of(device, &log).filter(|_| is_named)
    }
}

impl Scan {
    /// Scans a device. `progress` is told how many bytes have been gone through; all of them at the
    /// end, after which it may begin again with another layout.
    ///
    /// # Errors
    /// [`Error::NotAVolume`] if there is no log with a super root.
    pub fn run(device: &dyn Device, progress: &dyn Fn(u64)) -> Result<Self> {
        for superblock in superblocks(device) {
            let found = Found::scan(device, Layout::of(&superblock), progress);
            // A superblock may be nonsense although its checksum is right.
            if !found.super_roots.is_empty() && found.agrees_with(&superblock.geometry()) {
                return Ok(found.into_scan(superblock.geometry(), Vec::new(), Some(superblock)));
            }
        }
        let nothing =
            || Error::NotAVolume("no superblock and no checkpoint was found on it".into());
        let found = Found::without_superblock(device, progress).ok_or_else(nothing)?;
        let mut geometries = found.geometries(device.size()).into_iter();
        let geometry = geometries.next().ok_or_else(nothing)?;
        Ok(found.into_scan(geometry, geometries.collect(), None))
    }

    /// A superblock for the volume that names the log of a super root: the copy that was found, or
    /// one that is made from nothing.
    ///
    /// # Errors
    /// The volume as it was found does not fit the format.
    pub fn superblock_for(&self, log: &SuperRootLog) -> Result<Superblock> {
        let bad =
            |source| Error::Corrupt { what: "layout of the volume".into(), block: None, source };
        let mut superblock = match self.superblock {
            Some(superblock) => superblock,
            None => {
                Superblock::from_raw(self.made_superblock(&self.geometry), u64::MAX).map_err(bad)?
            }
        };
        superblock.set_last_log(log.cursor);
        Ok(superblock)
    }

    /// A superblock for one of the layouts, made from nothing. It has no UUID, no label and no
    /// times, names no log, and calls the volume in use.
    #[must_use]
    pub fn made_superblock(&self, geometry: &Geometry) -> RawSuperblock {
        RawSuperblock {
            // Whether fsync has left records is not known; the next mount finds out.
            s_feature_compat_ro: U64::new(FEATURE_ROLL_FORWARD),
            ..RawSuperblock::of(geometry, self.crc_seed)
        }
    }

    /// Whether every byte of a log is as it was written.
    #[must_use]
    pub fn is_whole(&self, device: &dyn Device, log: &SuperRootLog) -> bool {
        self.layout().is_whole(device, &FoundLog { start: log.cursor.block, header: log.header })
    }

    /// What the summary of a log says about its blocks, if it can be read.
    #[must_use]
    pub fn items_of(&self, device: &dyn Device, log: &FoundLog) -> Option<Items> {
        let summary = self.summary_of(device, log)?;
        parse_items(&log.header, &summary, self.geometry.block_size).ok()
    }

    /// The roll-forward records of a log, if it has any that can be read.
    #[must_use]
    pub fn records_of(&self, device: &dyn Device, log: &FoundLog) -> Option<Records> {
        let summary = self.summary_of(device, log)?;
        let items = parse_items(&log.header, &summary, self.geometry.block_size).ok()?;
        Records::parse(summary.get(items.end..)?).ok()?
    }

    fn summary_of(&self, device: &dyn Device, log: &FoundLog) -> Option<Vec<u8>> {
        let block_size = self.geometry.block_size;
        let blocks = log.header.summary_blocks(block_size) as usize;
        let mut summary = vec![0; blocks * block_size.bytes()];
        device.read_at(block_size.address_of(log.start)?, &mut summary).ok()?;
        Some(summary)
    }

    /// The files of which a log has blocks, as far as its summary can be read.
    #[must_use]
    pub fn files_in(&self, device: &dyn Device, log: &FoundLog) -> Vec<Ino> {
        let files = self.items_of(device, log).into_iter().flat_map(|items| items.files);
        files.map(|file| file.ino).collect()
    }

    /// The bytes of the device that no log covers which was written for this checkpoint or before:
    /// what may have been written since, and what nothing tells of.
    #[must_use]
    pub fn not_written_by(&self, cno: Cno) -> Vec<Range<u64>> {
        let block_size = self.geometry.block_size.bytes64();
        let mut gaps = Vec::new();
        let mut end = 0;
        for log in self.logs.iter().filter(|log| log.header.cno <= cno) {
            gaps.push(end..log.start.0 * block_size);
            end = log.end().0 * block_size;
        }
        gaps.push(end..u64::MAX);
        gaps
    }

    fn layout(&self) -> Layout {
        let Geometry { block_size, inode_size, .. } = self.geometry;
        Layout { block_size, seed: self.crc_seed, inode_size }
    }
}

/// The valid copies of the superblock, whether or not their volume fits the device.
fn superblocks(device: &dyn Device) -> Vec<Superblock> {
    let places = std::iter::once(PRIMARY_SUPERBLOCK).chain(secondary_superblock(device.size()));
    let copy = |offset| {
        let mut bytes = [0; SUPERBLOCK_SIZE];
        device.read_at(offset, &mut bytes).ok()?;
        let copy = Superblock::parse(&bytes, u64::MAX).ok()?;
        copy.refuse_unknown_features(false).is_ok().then_some(copy)
    };
    let mut copies: Vec<_> = places.filter_map(copy).collect();
    copies.sort_by_key(|copy| std::cmp::Reverse(copy.last_log().cno));
    copies
}

/// What it takes to recognise logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    block_size: BlockSize,
    seed: u32,
    inode_size: usize,
}

impl Layout {
    fn of(superblock: &Superblock) -> Self {
        let Geometry { block_size, inode_size, .. } = superblock.geometry();
        Self { block_size, seed: superblock.crc_seed(), inode_size }
    }

    /// The layout for which the log at a byte has a super root.
    fn of_log(device: &dyn Device, at: u64) -> Option<Self> {
        BLOCK_SIZES.filter_map(|exponent| BlockSize::from_exponent(exponent).ok()).find_map(
            |block_size| {
                let mut block = vec![0; block_size.bytes()];
                device.read_at(at, &mut block).ok()?;
                let header = LogHeader::parse(&block, block_size, u32::MAX).ok()?;
                if !at.is_multiple_of(block_size.bytes64()) || !header.has(SR) {
                    return None;
                }
                let summary = summary_bytes(device, at, &header)?;
                let seed = seed_of(summary.get(8..)?, header.sumsum);
                let super_root = last_block(device, at, &header, block_size)?;
                let bytes = usize::from(u16::from_le_bytes([super_root[4], super_root[5]]));
                let inode_size = bytes.checked_sub(16)? / 3;
                let layout = Self { block_size, seed, inode_size };
                layout.super_root(&super_root).map(|_| layout)
            },
        )
    }

    fn super_root(&self, block: &[u8]) -> Option<SuperRoot> {
        // The parser asks the geometry for nothing but the size of inodes.
        SuperRoot::parse(block, &self.geometry(u32::MAX, 1), self.seed).ok()
    }

    fn geometry(&self, blocks_per_segment: u32, nsegments: u64) -> Geometry {
        Geometry {
            block_size: self.block_size,
            blocks_per_segment,
            nsegments,
            first_data_block: Geometry::first_data_block_for(self.block_size),
            reserved_percent: RESERVED_PERCENT,
            inode_size: self.inode_size,
            dat_entry_size: nilfs_ondisk::dat::DAT_ENTRY_SIZE,
            checkpoint_size: nilfs_ondisk::checkpoint::CHECKPOINT_SIZE,
            segment_usage_size: nilfs_ondisk::segment_usage::SEGMENT_USAGE_SIZE,
        }
    }

    /// The log that begins at a block.
    fn log(&self, device: &dyn Device, start: BlockNr) -> Option<FoundLog> {
        let mut block = vec![0; self.block_size.bytes()];
        device.read_at(self.block_size.address_of(start)?, &mut block).ok()?;
        self.log_of(device, start, &block)
    }

    /// The log that begins at a block with this content.
    fn log_of(&self, device: &dyn Device, start: BlockNr, block: &[u8]) -> Option<FoundLog> {
        let at = self.block_size.address_of(start)?;
        let header = LogHeader::parse(block, self.block_size, u32::MAX).ok()?;
        let end = at.checked_add(u64::from(header.nblocks) * self.block_size.bytes64())?;
        let summary = summary_bytes(device, at, &header).filter(|_| end <= device.size())?;
        header.verify_summary(&summary, self.seed).ok()?;
        Some(FoundLog { start, header })
    }

    /// Whether a log lies in the hole of one that was written later, and is damaged: that has left the
    /// first block as it was, and the next log begins in the second.
    fn is_in_hole(&self, device: &dyn Device, found: &FoundLog) -> bool {
        let next = self.log(device, found.start.plus(1));
        next.is_some_and(|next| next.header.seq > found.header.seq)
    }

    /// A log with its super root, if it has one.
    fn super_root_of(&self, device: &dyn Device, log: &FoundLog) -> Option<SuperRootLog> {
        let at = self.block_size.address_of(log.start).filter(|_| log.header.has(SR))?;
        let block = last_block(device, at, &log.header, self.block_size)?;
        let super_root = self.super_root(&block)?;
        Some(SuperRootLog { cursor: log.cursor(), header: log.header, super_root })
    }

    fn is_whole(&self, device: &dyn Device, log: &FoundLog) -> bool {
        let Some(start) = self.block_size.address_of(log.start) else { return false };
        let described = log.header.described_blocks(self.block_size);
        let end = start.saturating_add(described * self.block_size.bytes64());
        let (mut crc, mut at) = (Crc::new(self.seed), start + 4);
        let mut buffer = vec![0; READ_BYTES as usize];
        while at < end {
            let piece = &mut buffer[..(end - at).min(READ_BYTES) as usize];
            if device.read_at(at, piece).is_err() {
                return false;
            }
            crc.update(piece);
            at += piece.len() as u64;
        }
        log.header.verify_log(crc, self.block_size).is_ok()
    }
}

/// The layouts that super roots prove, in the order in which they are on a device.
struct Layouts<'a> {
    device: &'a dyn Device,
    window: Window<'a>,
    at: u64,
    seen: Vec<Layout>,
}

impl<'a> Layouts<'a> {
    fn on(device: &'a dyn Device) -> Self {
        Self { device, window: Window::new(device, SMALLEST_BLOCK), at: 0, seen: Vec::new() }
    }
}

impl Iterator for Layouts<'_> {
    type Item = Layout;

    fn next(&mut self) -> Option<Layout> {
        while self.at < self.device.size() {
            let at = self.at;
            self.at += SMALLEST_BLOCK;
            if self.window.block(at).is_some_and(has_magic)
                && let Some(layout) = Layout::of_log(self.device, at)
                && !self.seen.contains(&layout)
            {
                self.seen.push(layout);
                return Some(layout);
            }
        }
        None
    }
}

/// Whether there are logs in the first part of a device, so that it was a volume once. Little is read.
pub(crate) fn begins_with_logs(device: &dyn Device) -> bool {
    let mut window = Window::new(device, SMALLEST_BLOCK);
    let mut places = (0..READ_BYTES.min(device.size())).step_by(SMALLEST_BLOCK as usize);
    places.any(|at| window.block(at).is_some_and(has_magic) && Layout::of_log(device, at).is_some())
}

/// Whether a block begins as a summary does.
fn has_magic(block: &[u8]) -> bool {
    block.get(8..12) == Some(&summary::MAGIC.to_le_bytes())
}

/// The bytes that the summary of the log at a byte has.
fn summary_bytes(device: &dyn Device, at: u64, header: &LogHeader) -> Option<Vec<u8>> {
    if header.sumbytes > MOST_SUMMARY_BYTES {
        return None;
    }
    let mut bytes = vec![0; header.sumbytes as usize];
    device.read_at(at, &mut bytes).ok()?;
    Some(bytes)
}

/// The last block of the log at a byte: where its super root is, if it has one.
fn last_block(
    device: &dyn Device,
    at: u64,
    header: &LogHeader,
    block_size: BlockSize,
) -> Option<Vec<u8>> {
    let skip = u64::from(header.nblocks - 1).checked_mul(block_size.bytes64())?;
    let mut block = vec![0; block_size.bytes()];
    device.read_at(at.checked_add(skip)?, &mut block).ok()?;
    Some(block)
}

/// The logs of a device.
struct Found {
    layout: Layout,
    logs: Vec<FoundLog>,
    super_roots: Vec<SuperRootLog>,
    /// Where logs say that the next segment begins, taken together: what all of these blocks are
    /// multiples of.
    next: u64,
}

impl Found {
    fn scan(device: &dyn Device, layout: Layout, progress: &dyn Fn(u64)) -> Self {
        let block_size = layout.block_size;
        let first = Geometry::first_data_block_for(block_size);
        let mut found = Self { layout, logs: Vec::new(), super_roots: Vec::new(), next: 0 };
        let mut window = Window::new(device, block_size.bytes64());
        let mut at = first;
        while let Some(byte) = block_size.address_of(at).filter(|byte| *byte < device.size()) {
            progress(byte);
            let block = window.block(byte).filter(|block| has_magic(block));
            let log = block.and_then(|block| layout.log_of(device, at, block));
            let Some(log) = log.filter(|log| !layout.is_in_hole(device, log)) else {
                at = at.plus(1);
                continue;
            };
            found.add(device, log);
            at = log.end();
        }
        progress(device.size());
        found.super_roots.sort_by_key(|log| std::cmp::Reverse((log.cursor.seq, log.cursor.block)));
        found
    }

    /// The logs of the first volume that has them where they say; of the first volume at all if there
    /// is no such.
    fn without_superblock(device: &dyn Device, progress: &dyn Fn(u64)) -> Option<Self> {
        let mut first = None;
        for layout in Layouts::on(device).take(MOST_LAYOUTS) {
            let found = Self::scan(device, layout, progress);
            if found.is_in_place() {
                return Some(found);
            }
            first = first.or(Some(found));
        }
        first
    }

    fn add(&mut self, device: &dyn Device, log: FoundLog) {
        let next = log.header.next.0;
        self.logs.push(log);
        // Segment 0 does not begin at a multiple.
        if next >= u64::from(MIN_BLOCKS_PER_SEGMENT) {
            self.next = greatest_common_divisor(self.next, next);
        }
        self.super_roots.extend(self.layout.super_root_of(device, &log));
    }

    /// Whether a log begins where a segment does: the first, or one that a log names.
    fn is_in_place(&self) -> bool {
        let first = Geometry::first_data_block_for(self.layout.block_size);
        let is_at = |block| self.logs.binary_search_by_key(&block, |log| log.start).is_ok();
        is_at(first) || self.logs.iter().any(|log| is_at(log.header.next))
    }

    /// Whether segments may be as a superblock says.
    fn agrees_with(&self, geometry: &Geometry) -> bool {
        self.next.is_multiple_of(geometry.blocks_per_segment.into())
    }

    /// The layouts that are possible as far as logs tell, the one with the largest segments first.
    /// Segments have a power of two of blocks, as every mkfs makes them.
    fn geometries(&self, device_size: u64) -> Vec<Geometry> {
        if self.next == 0 {
            return Vec::new();
        }
        let largest = self.next.trailing_zeros().min(u32::BITS - 1);
        (MIN_BLOCKS_PER_SEGMENT.trailing_zeros()..=largest)
            .rev()
            .map(|exponent| self.geometry(1 << exponent, device_size))
            .filter(|geometry| geometry.validate().is_ok())
            .filter(|it| it.blocks_per_segment == 1 << largest || self.is_within_segments(it))
            .collect()
    }

    fn geometry(&self, blocks_per_segment: u32, device_size: u64) -> Geometry {
        let one = self.layout.geometry(blocks_per_segment, 1);
        let logs_end = self.logs.last().map_or(0, |log| log.end().0);
        let room = secondary_superblock(device_size).unwrap_or(0) / one.segment_bytes();
        let used = logs_end.div_ceil(blocks_per_segment.into());
        self.layout.geometry(blocks_per_segment, room.max(used))
    }

    /// Whether no log goes beyond the end of its segment.
    fn is_within_segments(&self, geometry: &Geometry) -> bool {
        let segment = |block| geometry.segment_of(BlockNr(block));
        self.logs.iter().all(|log| segment(log.start.0) == segment(log.end().0 - 1))
    }

    fn into_scan(
        self,
        geometry: Geometry,
        alternatives: Vec<Geometry>,
        superblock: Option<Superblock>,
    ) -> Scan {
        let Self { layout, logs, super_roots, .. } = self;
        Scan { geometry, alternatives, crc_seed: layout.seed, superblock, super_roots, logs }
    }
}

fn greatest_common_divisor(one: u64, other: u64) -> u64 {
    let (mut one, mut other) = (one, other);
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

/// Reads a device ahead of somebody who goes through its blocks.
pub(crate) struct Window<'a> {
    device: &'a dyn Device,
    block_bytes: u64,
    start: u64,
    /// As many blocks as there are; empty before the first is asked for.
    content: Vec<u8>,
    /// Whether all of it could be read together. If not, each block is read by itself.
    whole: bool,
}

impl<'a> Window<'a> {
    pub(crate) fn new(device: &'a dyn Device, block_bytes: u64) -> Self {
        Self { device, block_bytes, start: 0, content: Vec::new(), whole: true }
    }

    /// The block at a byte, if it can be read.
    pub(crate) fn block(&mut self, at: u64) -> Option<&[u8]> {
        let is_in = at >= self.start && at < self.start + self.content.len() as u64;
        if !is_in {
            let left = self.device.size().saturating_sub(at) / self.block_bytes * self.block_bytes;
            self.start = at;
            self.content.resize(left.min(READ_BYTES) as usize, 0);
            self.whole = self.device.read_at(at, &mut self.content).is_ok();
        }
        let from = (at - self.start) as usize;
        let block = self.content.get_mut(from..from + self.block_bytes as usize)?;
        if !self.whole {
            self.device.read_at(at, block).ok()?;
        }
        Some(block)
    }
}

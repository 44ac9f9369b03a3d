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
//! next one begins, and there are as many as the device has room for.
//!
//! Nothing here follows the chain of logs: whether a log is the newest that a mount would come to
//! is not known. The newest super root by number may follow a log that a power cut has torn.

use std::ops::Range;

use nilfs_device::Device;
use nilfs_ondisk::crc::{Crc, seed_of};
use nilfs_ondisk::geometry::{MIN_BLOCKS_PER_SEGMENT, PRIMARY_SUPERBLOCK, secondary_superblock};
use nilfs_ondisk::summary::{LogHeader, SR};
use nilfs_ondisk::super_root::SuperRoot;
use nilfs_ondisk::superblock::{
    CHECKED_BYTES, FEATURE_BLOCK_COUNT, LogCursor, MAGIC, RawSuperblock, SUPERBLOCK_SIZE,
    Superblock,
};
use nilfs_ondisk::{BlockNr, BlockSize, Cno, Geometry, Ino, summary};
use zerocopy::FromZeros;
use zerocopy::little_endian::{U16, U32, U64};

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

/// What a scan found.
#[derive(Debug)]
pub struct Scan {
    /// The layout of the volume, which its logs agree with.
    pub geometry: Geometry,
    /// The seed of every checksum on the volume.
    pub crc_seed: u32,
    /// The copy of the superblock that says so; `None` if no copy is valid and true. It need not
    /// fit the device, which may have been cut short, and its log need not be there.
    pub superblock: Option<Superblock>,
    /// The logs that complete a checkpoint, the newest first.
    pub super_roots: Vec<SuperRootLog>,
    /// All logs, by ascending address. None overlaps another.
    pub logs: Vec<LogExtent>,
}

/// A log whose summary is valid. Of its content, nothing is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogExtent {
    /// Its first block.
    pub start: BlockNr,
    /// Its blocks.
    pub blocks: u32,
    /// The checkpoint under construction when it was written.
    pub cno: Cno,
}

impl LogExtent {
    /// The block after the log.
    #[must_use]
    pub fn end(&self) -> BlockNr {
        self.start.plus(self.blocks.into())
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

impl Scan {
    /// Scans a device. `progress` is told how many bytes have been gone through; all of them at the
    /// end, after which it may begin again with another layout.
    ///
    /// # Errors
    /// [`Error::NotAVolume`] if there is no log with a super root.
    pub fn run(device: &dyn Device, progress: &dyn Fn(u64)) -> Result<Self> {
        for superblock in superblocks(device) {
            let layout = Layout {
                block_size: superblock.geometry().block_size,
                seed: superblock.crc_seed(),
                inode_size: superblock.geometry().inode_size,
            };
            let found = Found::scan(device, layout, progress);
            // A superblock may be nonsense although its checksum is right.
            if !found.super_roots.is_empty() && found.agrees_with(&superblock.geometry()) {
                return Ok(found.into_scan(superblock.geometry(), Some(superblock)));
            }
        }
        let nothing =
            || Error::NotAVolume("no superblock and no checkpoint was found on it".into());
        let layout = Layout::find(device).ok_or_else(nothing)?;
        let found = Found::scan(device, layout, progress);
        let geometry = found.geometry(device.size()).ok_or_else(nothing)?;
        Ok(found.into_scan(geometry, None))
    }

    /// A superblock for the volume that names the log of a super root: the copy that was found, or
    /// one that is made from nothing. That has no UUID, no label and no times, and calls the volume
    /// in use.
    ///
    /// # Errors
    /// The volume as it was found does not fit the format.
    pub fn superblock_for(&self, log: &SuperRootLog) -> Result<Superblock> {
        let mut superblock = match self.superblock {
            Some(superblock) => superblock,
            None => self.made_superblock(log.cursor.block)?,
        };
        superblock.set_last_log(log.cursor);
        Ok(superblock)
    }

    fn made_superblock(&self, log: BlockNr) -> Result<Superblock> {
        let geometry = &self.geometry;
        let bytes = geometry.nsegments.saturating_mul(geometry.segment_bytes());
        let raw = RawSuperblock {
            s_rev_level: U32::new(2),
            s_magic: U16::new(MAGIC),
            s_bytes: U16::new(CHECKED_BYTES),
            s_crc_seed: U32::new(self.crc_seed),
            s_log_block_size: U32::new(geometry.block_size.exponent()),
            s_nsegments: U64::new(geometry.nsegments),
            s_dev_size: U64::new(bytes),
            s_first_data_block: U64::new(geometry.first_data_block.0),
            s_blocks_per_segment: U32::new(geometry.blocks_per_segment),
            s_r_segments_percentage: U32::new(geometry.reserved_percent),
            s_last_pseg: U64::new(log.0),
            s_first_ino: U32::new(Ino::FIRST_USER.0 as u32),
            s_inode_size: U16::new(geometry.inode_size as u16),
            s_dat_entry_size: U16::new(geometry.dat_entry_size as u16),
            s_checkpoint_size: U16::new(geometry.checkpoint_size as u16),
            s_segment_usage_size: U16::new(geometry.segment_usage_size as u16),
            s_feature_compat_ro: U64::new(FEATURE_BLOCK_COUNT),
            ..RawSuperblock::new_zeroed()
        };
        let bad =
            |source| Error::Corrupt { what: "layout of the volume".into(), block: None, source };
        Superblock::from_raw(raw, u64::MAX).map_err(bad)
    }

    /// Whether every byte of a log is as it was written.
    #[must_use]
    pub fn is_whole(&self, device: &dyn Device, log: &SuperRootLog) -> bool {
        let block_size = self.geometry.block_size;
        let Some(start) = block_size.address_of(log.cursor.block) else { return false };
        let end = start.saturating_add(u64::from(log.header.nblocks) * block_size.bytes64());
        let (mut crc, mut at) = (Crc::new(self.crc_seed), start + 4);
        let mut buffer = vec![0; READ_BYTES as usize];
        while at < end {
            let piece = &mut buffer[..(end - at).min(READ_BYTES) as usize];
            if device.read_at(at, piece).is_err() {
                return false;
            }
            crc.update(piece);
            at += piece.len() as u64;
        }
        crc.value() == log.header.datasum
    }

    /// The bytes of the device that no log covers which was written for this checkpoint or before:
    /// what may have been written since, and what nothing tells of.
    #[must_use]
    pub fn not_written_by(&self, cno: Cno) -> Vec<Range<u64>> {
        let block_size = self.geometry.block_size.bytes64();
        let mut gaps = Vec::new();
        let mut end = 0;
        for log in self.logs.iter().filter(|log| log.cno <= cno) {
            gaps.push(end..log.start.0 * block_size);
            end = log.end().0 * block_size;
        }
        gaps.push(end..u64::MAX);
        gaps
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
#[derive(Debug, Clone, Copy)]
struct Layout {
    block_size: BlockSize,
    seed: u32,
    inode_size: usize,
}

impl Layout {
    /// Finds the first log whose super root proves what its summary suggests.
    fn find(device: &dyn Device) -> Option<Self> {
        let mut window = Window::new(device, SMALLEST_BLOCK);
        let mut at = 0;
        while at < device.size() {
            let is_log = window.block(at).is_some_and(has_magic);
            if is_log && let Some(found) = Self::of_log(device, at) {
                return Some(found);
            }
            at += SMALLEST_BLOCK;
        }
        None
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

    /// The log at a byte, of which `block` is the first block.
    fn log(&self, device: &dyn Device, at: u64, block: &[u8]) -> Option<LogHeader> {
        let header = LogHeader::parse(block, self.block_size, u32::MAX).ok()?;
        let end = at.checked_add(u64::from(header.nblocks) * self.block_size.bytes64())?;
        let summary = summary_bytes(device, at, &header).filter(|_| end <= device.size())?;
        header.verify_summary(&summary, self.seed).ok()?;
        Some(header)
    }
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
    logs: Vec<LogExtent>,
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
            let header = block.and_then(|block| layout.log(device, byte, block));
            let Some(header) = header else {
                at = at.plus(1);
                continue;
            };
            found.add(device, at, byte, header);
            at = at.plus(header.nblocks.into());
        }
        progress(device.size());
        found.super_roots.sort_by_key(|log| std::cmp::Reverse((log.cursor.seq, log.cursor.block)));
        found
    }

    fn add(&mut self, device: &dyn Device, start: BlockNr, byte: u64, header: LogHeader) {
        self.logs.push(LogExtent { start, blocks: header.nblocks, cno: header.cno });
        // Segment 0 does not begin at a multiple.
        if header.next.0 >= u64::from(MIN_BLOCKS_PER_SEGMENT) {
            self.next = greatest_common_divisor(self.next, header.next.0);
        }
        if header.has(SR)
            && let Some(block) = last_block(device, byte, &header, self.layout.block_size)
            && let Some(super_root) = self.layout.super_root(&block)
        {
            let cursor = LogCursor { block: start, seq: header.seq, cno: header.cno };
            self.super_roots.push(SuperRootLog { cursor, header, super_root });
        }
    }

    /// Whether segments may be as a superblock says.
    fn agrees_with(&self, geometry: &Geometry) -> bool {
        self.next.is_multiple_of(geometry.blocks_per_segment.into())
    }

    /// The layout as far as logs tell. Segments have a power of two of blocks, as every mkfs makes
    /// them.
    fn geometry(&self, device_size: u64) -> Option<Geometry> {
        let blocks_per_segment = 1_u64.checked_shl(self.next.trailing_zeros())?;
        let blocks_per_segment = u32::try_from(blocks_per_segment).ok()?;
        let one = self.layout.geometry(blocks_per_segment, 1);
        let logs_end = self.logs.last().map_or(0, |log| log.end().0);
        let room = secondary_superblock(device_size).unwrap_or(0) / one.segment_bytes();
        let used = logs_end.div_ceil(blocks_per_segment.into());
        let geometry = self.layout.geometry(blocks_per_segment, room.max(used));
        geometry.validate().is_ok().then_some(geometry)
    }

    fn into_scan(self, geometry: Geometry, superblock: Option<Superblock>) -> Scan {
        let Self { layout, logs, super_roots, .. } = self;
        Scan { geometry, crc_seed: layout.seed, superblock, super_roots, logs }
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
struct Window<'a> {
    device: &'a dyn Device,
    block_bytes: u64,
    start: u64,
    /// As many blocks as there are; empty before the first is asked for.
    content: Vec<u8>,
    /// Whether all of it could be read together. If not, each block is read by itself.
    whole: bool,
}

impl<'a> Window<'a> {
    fn new(device: &'a dyn Device, block_bytes: u64) -> Self {
        Self { device, block_bytes, start: 0, content: Vec::new(), whole: true }
    }

    /// The block at a byte, if it can be read.
    fn block(&mut self, at: u64) -> Option<&[u8]> {
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

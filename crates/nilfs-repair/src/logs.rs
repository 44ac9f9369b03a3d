//! Logs found by looking for them everywhere, because nothing leads to them any more.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use nilfs_device::Device;
use nilfs_ondisk::crc::{Crc, seed_of};
use nilfs_ondisk::geometry::{MIN_BLOCKS_PER_SEGMENT, secondary_superblock};
use nilfs_ondisk::summary::{LogHeader, MAGIC, SR, parse_items};
use nilfs_ondisk::super_root::SuperRoot;
use nilfs_ondisk::superblock::{LogCursor, Superblock};
use nilfs_ondisk::{BlockNr, BlockSize, Geometry, Ino, SegNum};

use crate::RepairError;

/// The greatest exponent of a block size: 64 KiB.
const EXPONENT_MAX: u32 = 6;
/// Segments of up to this many blocks are tried.
const BLOCKS_PER_SEGMENT_MAX: u32 = 1 << 20;
/// Logs from which the geometry is told.
const WITNESSES: usize = 4096;
/// Bytes that are read at a time.
const CHUNK: usize = 1 << 20;

/// A log whose summary is whole.
#[derive(Debug, Clone)]
pub(crate) struct FoundLog {
    pub(crate) block: BlockNr,
    pub(crate) header: LogHeader,
    /// The users' files of which it has blocks.
    pub(crate) files: BTreeSet<Ino>,
    /// Whether all of it is whole.
    pub(crate) whole: bool,
    /// Whether it ends with a super root that can be read.
    pub(crate) has_super_root: bool,
}

impl FoundLog {
    pub(crate) fn cursor(&self) -> LogCursor {
        LogCursor { block: self.block, seq: self.header.seq, cno: self.header.cno }
    }
}

/// All logs of a volume, in the order in which they were written, those of earlier uses of a
/// segment among them.
pub(crate) fn all(
    device: &dyn Device,
    geometry: &Geometry,
    seed: u32,
) -> Result<Vec<FoundLog>, RepairError> {
    let mut found = Vec::new();
    for segment in (0..geometry.nsegments).map(SegNum) {
        let (mut at, end) = (geometry.segment_start(segment), geometry.segment_end(segment));
        while at < end {
            match log_at(device, geometry, seed, at)? {
                Some(log) => {
                    at = at.plus(log.header.nblocks.into());
                    found.push(log);
                }
                None => at = next_magic(device, geometry, at.plus(1), end)?,
            }
        }
    }
    found.sort_by_key(|log| (log.header.seq, log.block));
    Ok(found)
}

/// The first block from `at` on that begins as a log does; `end` if there is none.
fn next_magic(
    device: &dyn Device,
    geometry: &Geometry,
    mut at: BlockNr,
    end: BlockNr,
) -> io::Result<BlockNr> {
    let size = geometry.block_size.bytes();
    while at < end {
        let count = ((CHUNK / size) as u64).min(end.0 - at.0);
        let mut blocks = vec![0; count as usize * size];
        if device.read_at(at.0 * size as u64, &mut blocks).is_ok() {
            let nth =
                blocks.chunks_exact(size).position(|block| block[8..12] == MAGIC.to_le_bytes());
            if let Some(nth) = nth {
                return Ok(at.plus(nth as u64));
            }
        }
        at = at.plus(count);
    }
    Ok(end)
}

/// The log that begins at a block, if there is one.
fn log_at(
    device: &dyn Device,
    geometry: &Geometry,
    seed: u32,
    at: BlockNr,
) -> io::Result<Option<FoundLog>> {
    let block_size = geometry.block_size;
    let size = block_size.bytes();
    let mut first = vec![0; size];
    if device.read_at(at.0 * size as u64, &mut first).is_err() {
        return Ok(None);
    }
    let Ok(header) = LogHeader::parse(&first, block_size, geometry.blocks_per_segment) else {
        return Ok(None);
    };
    let end = at.0 + u64::from(header.nblocks);
    if end > geometry.segment_end(geometry.segment_of(at)).0 {
        return Ok(None);
    }
    let mut bytes = vec![0; header.nblocks as usize * size];
    if device.read_at(at.0 * size as u64, &mut bytes).is_err() {
        return Ok(None);
    }
    let summary = &bytes[..header.summary_blocks(block_size) as usize * size];
    if header.verify_summary(summary, seed).is_err() {
        return Ok(None);
    }
    let whole = header.verify_log([&bytes[..]], seed).is_ok();
    let files = parse_items(&header, summary, block_size).map_or_else(
        |_| BTreeSet::new(),
        |items| items.files.iter().map(|file| file.ino).collect(),
    );
    let is_users = |ino: &Ino| *ino == Ino::ROOT || *ino >= Ino::FIRST_USER;
    let root = &bytes[bytes.len() - size..];
    let has_super_root = whole && header.has(SR) && SuperRoot::parse(root, geometry, seed).is_ok();
    let files = files.into_iter().filter(is_users).collect();
    Ok(Some(FoundLog { block: at, header, files, whole, has_super_root }))
}

/// The log that a cursor names, if it is whole and has a super root.
pub(crate) fn super_root_at(
    device: &dyn Device,
    superblock: &Superblock,
    cursor: LogCursor,
) -> Option<FoundLog> {
    let log =
        log_at(device, &superblock.geometry(), superblock.crc_seed(), cursor.block).ok()??;
    (log.header.seq == cursor.seq && log.has_super_root).then_some(log)
}

/// What the logs tell of a volume whose superblocks are gone.
pub(crate) struct Discovered {
    pub(crate) seed: u32,
    /// What the volume may be like; more than one where the logs do not tell two sizes of segments
    /// apart.
    pub(crate) geometries: Vec<Geometry>,
}

/// A log that was found without knowing anything of the volume.
struct Witness {
    at: u64,
    header: LogHeader,
}

/// Finds out about a volume by looking at everything that begins as a log does.
pub(crate) fn discover(device: &dyn Device) -> Result<Discovered, RepairError> {
    let mut by_volume: BTreeMap<(u32, u32), Vec<Witness>> = BTreeMap::new();
    let mut count = 0;
    let mut offset = 0;
    while offset < device.size() && count < WITNESSES {
        let length = (device.size() - offset).min(CHUNK as u64) as usize;
        let mut chunk = vec![0; length];
        if device.read_at(offset, &mut chunk).is_ok() {
            for nth in 0..length / 1024 {
                let head = &chunk[nth * 1024..];
                if head[8..12] != MAGIC.to_le_bytes() {
                    continue;
                }
                let at = offset + nth as u64 * 1024;
                if let Some((seed, exponent, header)) = witness(device, at) {
                    count += 1;
                    by_volume.entry((seed, exponent)).or_default().push(Witness { at, header });
                }
            }
        }
        offset += length as u64;
    }
    // Images of other volumes may lie in files.
    let most = by_volume.into_iter().max_by_key(|(_, logs)| logs.len());
    let Some(((seed, exponent), logs)) = most else { return Err(RepairError::NoLog) };
    let block_size = BlockSize::from_exponent(exponent)?;
    let geometries = geometries(device.size(), block_size, &logs);
    if geometries.is_empty() {
        return Err(RepairError::NoLog);
    }
    Ok(Discovered { seed, geometries })
}

/// The log at a byte, with the only seed and block size with which both of its checksums are right.
fn witness(device: &dyn Device, at: u64) -> Option<(u32, u32, LogHeader)> {
    let mut head = [0; 1024];
    device.read_at(at, &mut head).ok()?;
    for exponent in 0..=EXPONENT_MAX {
        let block_size = BlockSize::from_exponent(exponent).ok()?;
        if !at.is_multiple_of(block_size.bytes64()) {
            break;
        }
        let Ok(header) = LogHeader::parse(&head, block_size, BLOCKS_PER_SEGMENT_MAX) else {
            continue;
        };
        let mut summary = vec![0; header.sumbytes as usize];
        if device.read_at(at, &mut summary).is_err() {
            continue;
        }
        let seed = seed_of(summary.get(8..)?, header.sumsum);
        let mut crc = Crc::new(seed);
        let end = at.checked_add(u64::from(header.nblocks) * block_size.bytes64())?;
        let mut next = at + 4;
        let mut buffer = vec![0; CHUNK];
        while next < end {
            let piece = &mut buffer[..((end - next).min(CHUNK as u64)) as usize];
            if device.read_at(next, piece).is_err() {
                break;
            }
            crc.update(piece);
            next += piece.len() as u64;
        }
        if next == end && crc.value() == header.datasum {
            return Some((seed, exponent, header));
        }
    }
    None
}

/// The sizes of segments that no log contradicts, the largest first: parts of what is a segment could
/// be segments, too, as far as logs can tell.
fn geometries(device_size: u64, block_size: BlockSize, logs: &[Witness]) -> Vec<Geometry> {
    let first_data_block = Geometry::first_data_block_for(block_size);
    let room = secondary_superblock(device_size).unwrap_or(0) / block_size.bytes64();
    let exponents =
        MIN_BLOCKS_PER_SEGMENT.trailing_zeros()..=BLOCKS_PER_SEGMENT_MAX.trailing_zeros();
    exponents
        .rev()
        .map(|exponent| Geometry {
            block_size,
            blocks_per_segment: 1 << exponent,
            nsegments: room >> exponent,
            first_data_block,
            reserved_percent: 5,
            inode_size: nilfs_ondisk::inode::INODE_SIZE,
            dat_entry_size: nilfs_ondisk::dat::DAT_ENTRY_SIZE,
            checkpoint_size: nilfs_ondisk::checkpoint::CHECKPOINT_SIZE,
            segment_usage_size: nilfs_ondisk::segment_usage::SEGMENT_USAGE_SIZE,
        })
        .filter(|geometry| geometry.validate().is_ok() && fits(geometry, logs))
        .collect()
}

/// Whether logs can lie as they do: each within a segment, each naming the start of one.
fn fits(geometry: &Geometry, logs: &[Witness]) -> bool {
    logs.iter().all(|log| {
        let first = BlockNr(log.at / geometry.block_size.bytes64());
        let last = first.plus(u64::from(log.header.nblocks) - 1);
        let next = geometry.segment_of(log.header.next);
        geometry.segment_of(first) == geometry.segment_of(last)
            && geometry.segment_start(next) == log.header.next
    })
}

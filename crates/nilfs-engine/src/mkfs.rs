//! Makes a new volume: one log with an empty root directory, and both superblocks (docs/format.md
//! §14).
//!
//! ```text
//! fdb       +1     +2 …                                                          +log-1
//! | summary | root | ifile … | cpfile | sufile | DAT descriptor, bitmap, entries | super root |
//! ```
//!
//! The bytes are those of mkfs.nilfs2 for the same parameters. The module knows the first log
//! only; it shares nothing with the writer of later ones.

use std::fmt;
use std::io;

use nilfs_device::{Device, IoSlice};
use nilfs_ondisk::bmap::{DIRECT_POINTERS, Root};
use nilfs_ondisk::checkpoint::{self, CHECKPOINT_SIZE, CpfileLayout, RawCheckpoint};
use nilfs_ondisk::crc::BlockSum;
use nilfs_ondisk::dat::{DAT_ENTRY_SIZE, DatEntry};
use nilfs_ondisk::geometry::{
    MIN_BLOCKS_PER_SEGMENT, MIN_RESERVED_SEGMENTS, PRIMARY_SUPERBLOCK, secondary_superblock,
};
use nilfs_ondisk::inode::{FileType, INODE_SIZE, RawInode, S_IFDIR, S_IFREG};
use nilfs_ondisk::palloc::{Palloc, SlotPosition, set_bit};
use nilfs_ondisk::segment_usage::{
    self, RawSegmentUsage, RawSufileHeader, SEGMENT_USAGE_SIZE, SufileLayout,
};
use nilfs_ondisk::summary::{self, BlockInfo, FileInfo, NewLog, encode_summary};
use nilfs_ondisk::super_root::SuperRoot;
use nilfs_ondisk::superblock::{self, RawSuperblock, Superblock};
use nilfs_ondisk::{
    BlockNr, BlockSize, ByteCount, Cno, FileBlock, FormatError, Geometry, Ino, SegNum, Seq,
    VBlockNr, dirent,
};
use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

/// The default number of blocks in a segment.
pub const DEFAULT_BLOCKS_PER_SEGMENT: u32 = 2048;
/// The default percentage of segments that is kept back.
pub const DEFAULT_RESERVED_PERCENT: u32 = 5;
/// Longest label in bytes.
pub const LABEL_MAX: usize = 80;

/// The greatest block size that Linux can mount on every machine.
const LARGEST_BLOCK: usize = 4096;
/// The smallest block size of the format.
const SMALLEST_BLOCK: u64 = 1024;
/// Segments that a new volume must have besides the reserved ones.
const MIN_USABLE_SEGMENTS: u64 = 8;
/// Blocks of the summary: its five files fit into one block of any size.
const SUMMARY_BLOCKS: u64 = 1;
/// What is cleared at either end of the device, so that nothing takes the new volume for the old
/// content.
const CLEARED_BYTES: u64 = 1 << 20;
/// What the secondary superblock takes at the end of the device, in bytes.
const SUPERBLOCK_AREA: u64 = 4096;
/// How a boot sector ends: bytes 0..1024 of such a device are kept.
const BOOT_SIGNATURE: [u8; 4] = [0x55, 0xaa, 0, 0];
/// Where that signature is.
const BOOT_SIGNATURE_AT: usize = 0x1fe;
/// Seconds between checks that the superblock proposes and nobody obeys: 180 days.
const CHECK_INTERVAL: u32 = 15_552_000;
/// Inodes that every ifile has besides the root: placeholders of the format.
const PLACEHOLDER_INODES: [u64; 5] = [1, 7, 8, 9, 10];
/// The file `/.nilfs` of [`Generation::V2_2`].
const DOT_NILFS: Ino = Ino::FIRST_USER;

/// Which generation of nilfs-utils the new volume resembles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Generation {
    /// Up to 2.2: there is a file `/.nilfs`, and no feature bit is set.
    V2_2,
    /// From 2.3 on: an empty root directory, and the feature `block_count`.
    #[default]
    V2_3,
}

/// What a new volume is to be. There will be more fields: take those that you do not name from
/// [`Parameters::new`].
#[derive(Debug, Clone)]
pub struct Parameters {
    /// Size of a block.
    pub block_size: BlockSize,
    /// Blocks in a segment: a power of two.
    pub blocks_per_segment: u32,
    /// Percentage of the segments that is kept back for the cleaner, 1 to 99.
    pub reserved_percent: u32,
    /// Label: at most [`LABEL_MAX`] bytes.
    pub label: Vec<u8>,
    /// Identity of the volume, in the order in which it is printed.
    pub uuid: [u8; 16],
    /// Seed of every checksum.
    pub crc_seed: u32,
    /// Time of creation (s).
    pub created: u64,
    /// User and group that own the root directory.
    pub owner: (u32, u32),
    /// Which nilfs-utils to follow.
    pub generation: Generation,
    /// Tell the device first that it needs to keep nothing.
    pub discard: bool,
}

impl Parameters {
    /// The defaults of mkfs.nilfs2 for a volume of this identity.
    #[must_use]
    pub fn new(uuid: [u8; 16], crc_seed: u32, created: u64) -> Self {
        Self {
            block_size: BlockSize::DEFAULT,
            blocks_per_segment: DEFAULT_BLOCKS_PER_SEGMENT,
            reserved_percent: DEFAULT_RESERVED_PERCENT,
            label: Vec::new(),
            uuid,
            crc_seed,
            created,
            owner: (0, 0),
            generation: Generation::default(),
            discard: true,
        }
    }
}

/// Why no volume could be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MkfsError {
    /// A block size that Linux could not mount.
    #[error("a block size of {0} bytes is too large: 1024, 2048 and 4096 are possible")]
    BlockSize(BlockSize),
    /// A segment size that is not possible.
    #[error(
        "{0} blocks per segment are not possible: take a power of two, at least \
         {MIN_BLOCKS_PER_SEGMENT}"
    )]
    BlocksPerSegment(u32),
    /// A percentage out of range.
    #[error("{0} % of reserved segments is out of range: 1 to 99 are possible")]
    ReservedPercent(u32),
    /// A label that does not fit.
    #[error("the label has {0} bytes, but at most {LABEL_MAX} fit")]
    Label(usize),
    /// A device that is too small for the parameters.
    #[error(
        "{} is too small: with segments of {} a volume needs at least {} KiB; {fit}",
        ByteCount(*size),
        ByteCount(*segment_bytes),
        least.div_ceil(1024)
    )]
    TooSmall {
        /// Bytes of the device.
        size: u64,
        /// Bytes of a segment.
        segment_bytes: u64,
        /// Bytes needed.
        least: u64,
        /// Advice about what would fit.
        fit: Fit,
    },
    /// The parameters give a superblock that no reader would accept.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The device failed.
    #[error("the device failed to {doing}: {source}")]
    Device {
        /// What it should have done.
        doing: &'static str,
        /// What it said.
        source: io::Error,
    },
}

/// Advice about what fits on a device that is too small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// Segments of so many blocks, or fewer.
    BlocksPerSegment(u32),
    /// Nothing on a device of fewer bytes than these, and there the smallest segments of the smallest
    /// blocks.
    Smallest(u64),
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BlocksPerSegment(blocks) => write!(f, "-B {blocks} makes segments that fit"),
            Self::Smallest(bytes) => write!(
                f,
                "the smallest volume, with -b 1024 -B {MIN_BLOCKS_PER_SEGMENT}, needs {} KiB",
                bytes.div_ceil(1024)
            ),
        }
    }
}

impl Fit {
    /// Returns what fits on a device of so many bytes, where a volume needs at least `segments`.
    fn on(device_size: u64, block_size: BlockSize, segments: u64) -> Self {
        let room = secondary_superblock(device_size).unwrap_or(0) / segments;
        let blocks = (room / block_size.bytes64()).checked_ilog2().map_or(0, |bits| 1 << bits);
        match blocks >= MIN_BLOCKS_PER_SEGMENT {
            true => Self::BlocksPerSegment(blocks),
            false => {
                let segment = u64::from(MIN_BLOCKS_PER_SEGMENT) * SMALLEST_BLOCK;
                Self::Smallest(segments * segment + SUPERBLOCK_AREA)
            }
        }
    }
}

/// Makes a volume on the device. Everything that was on it is lost.
///
/// The log is durable before the superblocks name it.
///
/// # Errors
/// Parameters that are not possible (nothing is written then), or a failure of the device.
pub fn format(device: &dyn Device, parameters: &Parameters) -> Result<Superblock, MkfsError> {
    let first = FirstLog::new(device.size(), parameters)?;
    let superblock = first.superblock()?;
    let failed = |doing| move |source| MkfsError::Device { doing, source };
    clear(device, parameters.discard).map_err(failed("clear its ends"))?;
    let at = first.start() * first.geometry.block_size.bytes64();
    let write = |at, bytes: &[u8]| device.write_at(at, &[IoSlice::new(bytes)]);
    write(at, &first.encode()).map_err(failed("write the first log"))?;
    device.flush().map_err(failed("flush the first log"))?;
    let copy = superblock.encode();
    for at in [Some(PRIMARY_SUPERBLOCK), secondary_superblock(device.size())].into_iter().flatten()
    {
        write(at, &copy).map_err(failed("write a superblock"))?;
    }
    device.flush().map_err(failed("flush the superblocks"))?;
    Ok(superblock)
}

/// The superblock that [`format()`] would write to a device of `device_size` bytes.
///
/// # Errors
/// Parameters that are not possible.
pub fn plan(device_size: u64, parameters: &Parameters) -> Result<Superblock, MkfsError> {
    FirstLog::new(device_size, parameters)?.superblock()
}

/// Wipes what could be mistaken for the content of the device.
fn clear(device: &dyn Device, discard: bool) -> io::Result<()> {
    let mut boot = [0; PRIMARY_SUPERBLOCK as usize];
    device.read_at(0, &mut boot)?;
    let keeps_boot = boot[BOOT_SIGNATURE_AT..].starts_with(&BOOT_SIGNATURE);
    let size = device.size();
    if discard {
        // Discards come in whole blocks of the device, 4096 bytes at most.
        let start = if keeps_boot { 4096 } else { 0 };
        // It saves wear and space where it works, and nothing depends on it.
        let _ = device.discard(start, size - start);
    }
    let start = if keeps_boot { PRIMARY_SUPERBLOCK } else { 0 };
    let zeros = vec![0; CLEARED_BYTES.min(size) as usize];
    let head = &zeros[start as usize..];
    device.write_at(start, &[IoSlice::new(head)])?;
    let tail = size.saturating_sub(CLEARED_BYTES).max(start);
    device.write_at(tail, &[IoSlice::new(&zeros[..(size - tail) as usize])])
}

/// A file of the first log. Its blocks are contiguous, and so are its pointers.
#[derive(Debug, Clone, Copy)]
struct Extent {
    ino: Ino,
    /// The first pointer: virtual, or physical for the DAT.
    first: u64,
    blocks: u64,
}

impl Extent {
    fn info(&self) -> FileInfo {
        let blocks = (0..self.blocks).map(|nth| {
            let offset = FileBlock(nth);
            if self.ino == Ino::DAT {
                return BlockInfo::DatData { offset };
            }
            let vblocknr = VBlockNr(self.first + nth);
            BlockInfo::Data { vblocknr, offset }
        });
        FileInfo { ino: self.ino, cno: Cno::MIN, blocks: blocks.collect() }
    }

    /// An inode over the blocks, as mkfs.nilfs2 writes it: `i_blocks` counts blocks, not sectors.
    fn inode(&self, mode: u16, links: u16, time: u64) -> RawInode {
        let mut pointers = [0; DIRECT_POINTERS];
        for (pointer, number) in pointers.iter_mut().zip(self.first..).take(self.blocks as usize) {
            *pointer = number;
        }
        RawInode {
            i_blocks: U64::new(self.blocks),
            i_bmap: Root::Direct(pointers).encode(),
            ..plain_inode(mode, links, time)
        }
    }
}

/// An inode without blocks.
fn plain_inode(mode: u16, links: u16, time: u64) -> RawInode {
    RawInode {
        i_ctime: U64::new(time),
        i_mtime: U64::new(time),
        i_mode: U16::new(mode),
        i_links_count: U16::new(links),
        ..RawInode::zeroed()
    }
}

/// The first log of a volume: where everything in it goes.
struct FirstLog<'a> {
    parameters: &'a Parameters,
    device_size: u64,
    geometry: Geometry,
    ifile_layout: Palloc,
    dat_layout: Palloc,
    root: Extent,
    ifile: Extent,
    cpfile: Extent,
    sufile: Extent,
    dat: Extent,
}

impl<'a> FirstLog<'a> {
    /// Checks the parameters and lays the log out. It fits into the smallest segment.
    fn new(device_size: u64, parameters: &'a Parameters) -> Result<Self, MkfsError> {
        let geometry = geometry_for(device_size, parameters)?;
        let bs = geometry.block_size;
        let ifile_layout = Palloc::new(bs, geometry.inode_size);
        let dat_layout = Palloc::new(bs, geometry.dat_entry_size);
        let mut next = 1;
        let mut virtual_file = |ino, blocks| {
            let first = next;
            next += blocks;
            Extent { ino, first, blocks }
        };
        let used_inodes = first_free_ino(parameters.generation).0;
        let root = virtual_file(Ino::ROOT, 1);
        let ifile =
            virtual_file(Ino::IFILE, 2 + used_inodes.div_ceil(ifile_layout.entries_per_block));
        let cpfile = virtual_file(Ino::CPFILE, 1);
        let sufile = virtual_file(Ino::SUFILE, 1);
        let dat = Extent {
            ino: Ino::DAT,
            first: geometry.first_data_block.0 + SUMMARY_BLOCKS + next - 1,
            blocks: 2 + next.div_ceil(dat_layout.entries_per_block),
        };
        Ok(Self {
            parameters,
            device_size,
            geometry,
            ifile_layout,
            dat_layout,
            root,
            ifile,
            cpfile,
            sufile,
            dat,
        })
    }

    /// The files in the order of the log.
    fn files(&self) -> [Extent; 5] {
        [self.root, self.ifile, self.cpfile, self.sufile, self.dat]
    }

    /// Its first block.
    fn start(&self) -> u64 {
        self.geometry.first_data_block.0
    }

    /// Its blocks.
    fn blocks(&self) -> u64 {
        let payload: u64 = self.files().iter().map(|file| file.blocks).sum();
        SUMMARY_BLOCKS + payload + 1
    }

    /// One more than the greatest virtual block number.
    fn virtual_end(&self) -> u64 {
        self.sufile.first + self.sufile.blocks
    }

    fn empty_blocks(&self, count: u64) -> Vec<u8> {
        vec![0; count as usize * self.geometry.block_size.bytes()]
    }

    /// The bytes of the whole log.
    fn encode(&self) -> Vec<u8> {
        let payload = [
            self.root_directory(),
            self.ifile(),
            self.cpfile(),
            self.sufile(),
            self.dat(),
            self.super_root(),
        ]
        .concat();
        let log = NewLog {
            flags: summary::LOGBGN | summary::LOGEND | summary::SR,
            seq: Seq(0),
            create: self.parameters.created,
            next: self.geometry.segment_start(SegNum(1)),
            cno: Cno::MIN,
            summary_blocks: 0,
            block_sums: false,
        };
        let bs = self.geometry.block_size;
        let mut bytes = encode_summary(
            &log,
            &self.files().map(|file| file.info()),
            &[],
            &payload.chunks(bs.bytes()).map(BlockSum::of).collect::<Vec<_>>(),
            bs,
            self.parameters.crc_seed,
        );
        assert_eq!(bytes.len() as u64, SUMMARY_BLOCKS * bs.bytes64());
        bytes.extend(payload);
        bytes
    }

    fn root_directory(&self) -> Vec<u8> {
        let mut block = self.empty_blocks(1);
        dirent::format_first(&mut block, Ino::ROOT, Ino::ROOT);
        if self.parameters.generation == Generation::V2_2 {
            let rest = 16 + dirent::needed("..".len());
            dirent::set_len(&mut block, 16, rest - 16);
            dirent::write_record(
                &mut block,
                rest,
                self.geometry.block_size.bytes() - rest,
                DOT_NILFS,
                b".nilfs",
                Some(FileType::Regular),
            );
        }
        block
    }

    fn ifile(&self) -> Vec<u8> {
        let time = self.parameters.created;
        let used = first_free_ino(self.parameters.generation).0;
        let mut bytes = self.object_file(&self.ifile_layout, self.ifile.blocks, used);
        let mut put = |ino: u64, inode: RawInode| {
            let at = self.offset_of(self.ifile_layout.entry(ino));
            bytes[at..at + INODE_SIZE].copy_from_slice(inode.as_bytes());
        };
        for ino in PLACEHOLDER_INODES {
            put(ino, plain_inode(S_IFREG, 1, time));
        }
        let (uid, gid) = self.parameters.owner;
        let root = RawInode {
            i_size: U64::new(self.geometry.block_size.bytes64()),
            i_uid: U32::new(uid),
            i_gid: U32::new(gid),
            ..self.root.inode(S_IFDIR | 0o755, 2, time)
        };
        put(Ino::ROOT.0, root);
        if self.parameters.generation == Generation::V2_2 {
            put(DOT_NILFS.0, plain_inode(S_IFREG | 0o644, 1, time));
        }
        bytes
    }

    fn cpfile(&self) -> Vec<u8> {
        let time = self.parameters.created;
        let mut block = self.empty_blocks(1);
        block[..8].copy_from_slice(&1u64.to_le_bytes());
        let files = first_free_ino(self.parameters.generation).0 - Ino::FIRST_USER.0;
        let first = RawCheckpoint {
            cp_cno: U64::new(Cno::MIN.0),
            cp_create: U64::new(time),
            cp_nblk_inc: U64::new(self.blocks()),
            cp_inodes_count: U64::new(1 + files),
            cp_blocks_count: U64::new(self.root.blocks + self.ifile.blocks),
            cp_ifile_inode: self.ifile.inode(S_IFREG, 1, time),
            ..RawCheckpoint::new_zeroed()
        };
        for (cno, at) in CpfileLayout::new(&self.geometry).slots_of(FileBlock(0)) {
            let entry = if cno == Cno::MIN {
                first
            } else {
                RawCheckpoint {
                    cp_flags: U32::new(checkpoint::INVALID),
                    cp_cno: U64::new(cno.0),
                    ..RawCheckpoint::new_zeroed()
                }
            };
            block[at..at + CHECKPOINT_SIZE].copy_from_slice(entry.as_bytes());
        }
        block
    }

    fn sufile(&self) -> Vec<u8> {
        let mut block = self.empty_blocks(1);
        let nsegments = self.geometry.nsegments;
        let header = RawSufileHeader {
            sh_ncleansegs: U64::new(nsegments - 2),
            sh_ndirtysegs: U64::new(2),
            sh_last_alloc: U64::new(nsegments - 1),
        };
        block[..segment_usage::HEADER_SIZE].copy_from_slice(header.as_bytes());
        let taken = RawSegmentUsage {
            su_flags: U32::new(segment_usage::ACTIVE | segment_usage::DIRTY),
            ..RawSegmentUsage::CLEAN
        };
        let written = RawSegmentUsage {
            su_lastmod: U64::new(self.parameters.created),
            su_nblocks: U32::new(self.blocks() as u32),
            ..taken
        };
        let layout = SufileLayout::new(&self.geometry);
        for (segment, usage) in [(SegNum(0), written), (SegNum(1), taken)] {
            let at = layout.slot(segment).offset;
            block[at..at + SEGMENT_USAGE_SIZE].copy_from_slice(usage.as_bytes());
        }
        block
    }

    fn dat(&self) -> Vec<u8> {
        let mut bytes = self.object_file(&self.dat_layout, self.dat.blocks, self.virtual_end());
        for vblocknr in 1..self.virtual_end() {
            let at = self.offset_of(self.dat_layout.entry(vblocknr));
            let entry = DatEntry {
                block: BlockNr(self.start() + SUMMARY_BLOCKS + vblocknr - 1),
                start: Cno::MIN,
                end: Cno::MAX,
            };
            entry.encode(&mut bytes[at..at + DAT_ENTRY_SIZE]);
        }
        bytes
    }

    fn super_root(&self) -> Vec<u8> {
        let time = self.parameters.created;
        let mut block = self.empty_blocks(1);
        let super_root = SuperRoot {
            nongc_ctime: time,
            durable_before: false,
            dat: self.dat.inode(S_IFREG, 1, time),
            cpfile: self.cpfile.inode(S_IFREG, 1, time),
            sufile: self.sufile.inode(S_IFREG, 1, time),
        };
        super_root.encode(&mut block, &self.geometry, self.parameters.crc_seed);
        block
    }

    /// A persistent object file whose first `used` entries are taken, with room for them.
    fn object_file(&self, layout: &Palloc, blocks: u64, used: u64) -> Vec<u8> {
        let mut bytes = self.empty_blocks(blocks);
        for group in 0..layout.groups_per_descriptor {
            let taken = if group == 0 { used } else { 0 };
            let free = (layout.entries_per_group - taken) as u32;
            let at = self.offset_of(layout.descriptor(group));
            bytes[at..at + 4].copy_from_slice(&free.to_le_bytes());
        }
        let at = layout.bitmap(0).0 as usize * self.geometry.block_size.bytes();
        for bit in 0..used {
            set_bit(&mut bytes[at..], bit as usize);
        }
        bytes
    }

    /// The place of a slot in the bytes of its file.
    fn offset_of(&self, slot: SlotPosition) -> usize {
        slot.block.0 as usize * self.geometry.block_size.bytes() + slot.offset
    }

    fn superblock(&self) -> Result<Superblock, MkfsError> {
        let (geometry, parameters) = (&self.geometry, self.parameters);
        let time = U64::new(parameters.created);
        let bps = u64::from(geometry.blocks_per_segment);
        let features = match parameters.generation {
            Generation::V2_2 => 0,
            Generation::V2_3 => superblock::FEATURE_BLOCK_COUNT,
        };
        let mut raw = RawSuperblock {
            s_dev_size: U64::new(self.device_size),
            s_last_cno: U64::new(Cno::MIN.0),
            s_last_pseg: U64::new(self.start()),
            // mkfs.nilfs2 does not count segment 1, although the sufile calls it taken.
            s_free_blocks_count: U64::new((geometry.nsegments - 1) * bps),
            s_ctime: time,
            s_wtime: time,
            s_state: U16::new(superblock::STATE_VALID),
            s_lastcheck: time,
            s_checkinterval: U32::new(CHECK_INTERVAL),
            s_uuid: parameters.uuid,
            s_feature_compat_ro: U64::new(features),
            ..RawSuperblock::of(geometry, parameters.crc_seed)
        };
        raw.s_volume_name[..parameters.label.len()].copy_from_slice(&parameters.label);
        Ok(Superblock::from_raw(raw, self.device_size)?)
    }
}

/// The first inode number that is not in use.
fn first_free_ino(generation: Generation) -> Ino {
    match generation {
        Generation::V2_2 => DOT_NILFS.plus(1),
        Generation::V2_3 => Ino::FIRST_USER,
    }
}

/// Checks the parameters against the device and returns the layout of the volume.
fn geometry_for(device_size: u64, parameters: &Parameters) -> Result<Geometry, MkfsError> {
    let bs = parameters.block_size;
    if bs.bytes() > LARGEST_BLOCK {
        return Err(MkfsError::BlockSize(bs));
    }
    let (bps, percent) = (parameters.blocks_per_segment, parameters.reserved_percent);
    if !bps.is_power_of_two() || bps < MIN_BLOCKS_PER_SEGMENT {
        return Err(MkfsError::BlocksPerSegment(bps));
    }
    if !(1..=99).contains(&percent) {
        return Err(MkfsError::ReservedPercent(percent));
    }
    if parameters.label.len() > LABEL_MAX {
        return Err(MkfsError::Label(parameters.label.len()));
    }
    let segment_bytes = u64::from(bps) * bs.bytes64();
    // The reserved segments, at least 8 of them, leave 8 more.
    let enough = (100 * MIN_USABLE_SEGMENTS).div_ceil(100 - u64::from(percent));
    let enough = enough.max(MIN_RESERVED_SEGMENTS + MIN_USABLE_SEGMENTS);
    let nsegments = secondary_superblock(device_size).unwrap_or(0) / segment_bytes;
    if nsegments < enough {
        return Err(MkfsError::TooSmall {
            size: device_size,
            segment_bytes,
            least: enough * segment_bytes + SUPERBLOCK_AREA,
            fit: Fit::on(device_size, bs, enough),
        });
    }
    Ok(Geometry {
        block_size: bs,
        blocks_per_segment: bps,
        nsegments,
        first_data_block: Geometry::first_data_block_for(bs),
        reserved_percent: percent,
        inode_size: INODE_SIZE,
        dat_entry_size: DAT_ENTRY_SIZE,
        checkpoint_size: CHECKPOINT_SIZE,
        segment_usage_size: SEGMENT_USAGE_SIZE,
    })
}

#[cfg(test)]
mod tests;

//! Segment summaries: the head of a log (partial segment), which says what its blocks are
//! (docs/format.md §4).
//!
//! ```text
//! | header (64) | finfo | binfo … | finfo | binfo … | rest | payload blocks …   super root? |
//! ```
//!
//! An item never crosses a block boundary: one that would starts at the next block instead. Readers do not
//! look at the rest, up to `ss_sumbytes`: there we keep [roll-forward records](crate::roll_forward) and
//! [checksums of the blocks](crate::block_sums).

use std::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::block_sums;
use crate::crc::{BlockSum, Crc, WrongBit, crc32_le};
use crate::{BlockNr, BlockSize, Cno, FileBlock, FormatError, Ino, Seq, VBlockNr};

const STRUCTURE: &str = "segment summary";

/// `ss_magic`.
pub const MAGIC: u32 = 0x1eaf_fa11;
/// Bytes of the header.
pub const HEADER_SIZE: usize = 64;
/// Bytes of a finfo.
pub const FINFO_SIZE: usize = 24;
/// Where in the header the sequence number of the segment is.
pub const SEQ: usize = offset_of!(RawHeader, ss_seq);
/// Where in the header the start of the segment is that follows.
pub const NEXT: usize = offset_of!(RawHeader, ss_next);

/// `ss_flags`: first log of a logical segment.
pub const LOGBGN: u16 = 0x01;
/// `ss_flags`: last log of a logical segment.
pub const LOGEND: u16 = 0x02;
/// `ss_flags`: ends with a super root.
pub const SR: u16 = 0x04;
/// `ss_flags`: data-sync log.
pub const SYNDT: u16 = 0x08;
/// `ss_flags`: written by the cleaner.
pub const GC: u16 = 0x10;

/// A block of the largest size that holds nothing.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The header as it lies on disk.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    ss_datasum: U32,
    ss_sumsum: U32,
    ss_magic: U32,
    ss_bytes: U16,
    ss_flags: U16,
    ss_seq: U64,
    ss_create: U64,
    ss_next: U64,
    ss_nblocks: U32,
    ss_nfinfo: U32,
    ss_sumbytes: U32,
    ss_pad: U32,
    ss_cno: U64,
}

const _: () = assert!(size_of::<RawHeader>() == HEADER_SIZE);

/// A finfo as it lies on disk.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawFinfo {
    fi_ino: U64,
    fi_cno: U64,
    fi_nblocks: U32,
    fi_ndatablk: U32,
}

const _: () = assert!(size_of::<RawFinfo>() == FINFO_SIZE);

/// The header of a log whose fields are consistent with each other. Its checksums are checked
/// apart, because they need the summary or the whole log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogHeader {
    /// Checksum of the whole log.
    pub datasum: u32,
    /// Checksum of the summary.
    pub sumsum: u32,
    /// `LOGBGN`, `LOGEND`, `SR`, `SYNDT`, `GC`.
    pub flags: u16,
    /// Sequence number of the segment.
    pub seq: Seq,
    /// Creation time (s).
    pub create: u64,
    /// First block of the next segment.
    pub next: BlockNr,
    /// Blocks of the log, with its summary.
    pub nblocks: u32,
    /// Number of finfos.
    pub nfinfo: u32,
    /// Bytes of the summary.
    pub sumbytes: u32,
    /// The checkpoint under construction.
    pub cno: Cno,
    /// Bytes of the header; the first item follows.
    header_bytes: u16,
}

/// Returns the bit that is wrong in a summary, given the first blocks of a log, all of the summary among
/// them; if it is only one, and not of `ss_datasum`.
#[must_use]
pub fn wrong_bit(
    blocks: &[u8],
    block_size: BlockSize,
    blocks_per_segment: u32,
    seed: u32,
) -> Option<WrongBit> {
    let header = |bytes: &[u8]| LogHeader::parse(bytes, block_size, blocks_per_segment).ok();
    let is_right = |bytes: &[u8]| {
        header(bytes).is_some_and(|header| header.verify_summary(bytes, seed).is_ok())
    };
    // The header says how long the summary is.
    let (mut bytes, of_header) = (blocks.to_vec(), 32..8 * HEADER_SIZE.min(blocks.len()));
    WrongBit::without_which(&mut bytes, of_header, is_right).or_else(|| {
        let header = header(blocks)?;
        let covered = blocks.get(8..header.sumbytes as usize)?;
        let found = crc32_le(seed, covered);
        WrongBit::between(covered.len(), found, header.sumsum).map(|bit| bit.after(8))
    })
}

/// Whether a log is as it was written but for one bit, given its blocks: then no power cut has torn it. Only
/// the checksums of its blocks tell that.
#[must_use]
pub fn lacks_a_bit(log: &[u8], block_size: BlockSize, blocks_per_segment: u32, seed: u32) -> bool {
    let mut bytes = log.to_vec();
    let in_summary = wrong_bit(log, block_size, blocks_per_segment, seed);
    if let Some(bit) = in_summary {
        bit.flip(&mut bytes);
    }
    let Ok(header) = LogHeader::parse(&bytes, block_size, blocks_per_segment) else { return false };
    let size = block_size.bytes();
    let Some((summary, blocks)) =
        bytes.split_at_checked(header.summary_blocks(block_size) as usize * size)
    else {
        return false;
    };
    let sums = header
        .verify_summary(summary, seed)
        .and_then(|()| parse_items(&header, summary, block_size))
        .map(|items| items.sums);
    let Ok(Some(sums)) = sums else { return false };
    let is_there = blocks.len() / size >= sums.len();
    let expected = header.sum_from(summary, &sums, block_size, seed);
    let mut wrong = u32::from(in_summary.is_some()) + (expected ^ header.datasum).count_ones();
    for (sum, block) in sums.iter().zip(blocks.chunks_exact(size)) {
        if BlockSum::of(block) != *sum {
            // Where there are only zeros, a block with a single bit may just not have been written.
            let is_written = block.iter().any(|byte| *byte != 0);
            wrong += if is_written && sum.wrong_bit(block).is_some() { 1 } else { 2 };
        }
    }
    is_there && wrong == 1
}

/// Whether a block is the first of a log of a use of a segment, even if one bit of it is damaged.
pub fn resembles(block: &[u8], seq: Seq) -> bool {
    let Ok((raw, _)) = RawHeader::read_from_prefix(block) else { return false };
    let wrong_magic = (raw.ss_magic.get() ^ MAGIC).count_ones();
    wrong_magic + (raw.ss_seq.get() ^ seq.0).count_ones() <= 1
}

impl LogHeader {
    /// Reads a header from the first block of a log. `blocks_per_segment` bounds it.
    ///
    /// # Errors
    /// Names the field that is wrong.
    pub fn parse(
        block: &[u8],
        block_size: BlockSize,
        blocks_per_segment: u32,
    ) -> Result<Self, FormatError> {
        let (raw, _) = RawHeader::read_from_prefix(block).map_err(|_| FormatError::Short {
            structure: STRUCTURE,
            have: block.len() as u64,
            need: HEADER_SIZE as u64,
        })?;
        if raw.ss_magic.get() != MAGIC {
            let found = format!("{:#010x}", raw.ss_magic.get());
            return Err(FormatError::field(STRUCTURE, "ss_magic", found, "0x1eaffa11"));
        }
        let nblocks = raw.ss_nblocks.get();
        if !(1..=blocks_per_segment).contains(&nblocks) {
            let expected = format!("1 to {blocks_per_segment}");
            return Err(FormatError::field(STRUCTURE, "ss_nblocks", nblocks, expected));
        }
        let header_bytes = raw.ss_bytes.get();
        let sumbytes = raw.ss_sumbytes.get();
        let most = u64::from(nblocks) * block_size.bytes64();
        if usize::from(header_bytes) < HEADER_SIZE || usize::from(header_bytes) > block_size.bytes()
        {
            return Err(FormatError::field(STRUCTURE, "ss_bytes", header_bytes, HEADER_SIZE));
        }
        if sumbytes < u32::from(header_bytes) || u64::from(sumbytes) > most {
            let expected = format!("{header_bytes} to {most}");
            return Err(FormatError::field(STRUCTURE, "ss_sumbytes", sumbytes, expected));
        }
        Ok(Self {
            datasum: raw.ss_datasum.get(),
            sumsum: raw.ss_sumsum.get(),
            flags: raw.ss_flags.get(),
            seq: Seq(raw.ss_seq.get()),
            create: raw.ss_create.get(),
            next: BlockNr(raw.ss_next.get()),
            nblocks,
            nfinfo: raw.ss_nfinfo.get(),
            sumbytes,
            cno: Cno(raw.ss_cno.get()),
            header_bytes,
        })
    }

    /// Whether a flag is set.
    #[must_use]
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Whether the log was written by our cleaner into a segment of its own, which is no part of
    /// the chain of logs: no recovery looks at it, and its number says only how old it is. In the
    /// chain, no log has these flags together.
    #[must_use]
    pub fn is_off_chain(&self) -> bool {
        self.has(GC) && self.has(LOGBGN) && !self.has(SR)
    }

    /// Blocks that the summary takes.
    #[must_use]
    pub fn summary_blocks(&self, block_size: BlockSize) -> u64 {
        block_size.blocks_for(self.sumbytes.into())
    }

    /// Blocks of the log that mean something: those of its summary, and those that this describes. Others,
    /// which only a log without items and without a super root has, hold nothing, whatever lies there:
    /// they need not have been written.
    #[must_use]
    pub fn described_blocks(&self, block_size: BlockSize) -> u64 {
        match self.nfinfo == 0 && !self.has(SR) {
            true => self.summary_blocks(block_size),
            false => self.nblocks.into(),
        }
    }

    /// What `ss_datasum` should be, given the running checksum of the described blocks from byte 4 on:
    /// the others count as zeros.
    #[must_use]
    pub fn sum_of_log(&self, mut described: Crc, block_size: BlockSize) -> u32 {
        let others = u64::from(self.nblocks).saturating_sub(self.described_blocks(block_size));
        (0..others).for_each(|_| described.update(&ZEROS[..block_size.bytes()]));
        described.value()
    }

    /// Returns what `ss_datasum` should be, given the blocks of the summary and the checksums of those that it
    /// describes.
    #[must_use]
    pub fn sum_from(
        &self,
        summary: &[u8],
        sums: &[BlockSum],
        block_size: BlockSize,
        seed: u32,
    ) -> u32 {
        let mut crc = Crc::new(seed);
        crc.update(summary.get(4..).unwrap_or_default());
        sums.iter().for_each(|sum| crc.append(*sum, block_size.bytes()));
        self.sum_of_log(crc, block_size)
    }

    /// Checks the checksum of the summary, given its blocks.
    ///
    /// # Errors
    /// [`FormatError::Checksum`], or too few bytes.
    pub fn verify_summary(&self, summary: &[u8], seed: u32) -> Result<(), FormatError> {
        let covered = summary.get(8..self.sumbytes as usize).ok_or(FormatError::Short {
            structure: STRUCTURE,
            have: summary.len() as u64,
            need: self.sumbytes.into(),
        })?;
        let computed = crc32_le(seed, covered);
        if computed != self.sumsum {
            return Err(FormatError::Checksum {
                structure: STRUCTURE,
                field: "ss_sumsum",
                stored: self.sumsum,
                computed,
            });
        }
        Ok(())
    }

    /// Checks the checksum of the whole log, given the running one as for
    /// [`LogHeader::sum_of_log`].
    ///
    /// # Errors
    /// [`FormatError::Checksum`].
    pub fn verify_log(&self, described: Crc, block_size: BlockSize) -> Result<(), FormatError> {
        let computed = self.sum_of_log(described, block_size);
        if computed != self.datasum {
            return Err(FormatError::Checksum {
                structure: "log",
                field: "ss_datasum",
                stored: self.datasum,
                computed,
            });
        }
        Ok(())
    }
}

/// What one payload block of a log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockInfo {
    /// A data block of any file but the DAT.
    Data {
        /// Its virtual block number.
        vblocknr: VBlockNr,
        /// Its place in the file.
        offset: FileBlock,
    },
    /// A B-tree node of any file but the DAT.
    Node {
        /// Its virtual block number.
        vblocknr: VBlockNr,
    },
    /// A data block of the DAT.
    DatData {
        /// Its place in the file.
        offset: FileBlock,
    },
    /// A B-tree node of the DAT.
    DatNode {
        /// Its first key.
        key: u64,
        /// Its level.
        level: u8,
    },
}

impl BlockInfo {
    /// Bytes of the binfo.
    #[must_use]
    pub fn size(&self) -> usize {
        match self {
            Self::Data { .. } | Self::DatNode { .. } => 16,
            Self::Node { .. } | Self::DatData { .. } => 8,
        }
    }

    /// Whether it is a B-tree node.
    #[must_use]
    pub fn is_node(&self) -> bool {
        matches!(self, Self::Node { .. } | Self::DatNode { .. })
    }

    /// The virtual block number; the DAT's blocks have none.
    #[must_use]
    pub fn vblock(&self) -> Option<VBlockNr> {
        match self {
            Self::Data { vblocknr, .. } | Self::Node { vblocknr } => Some(*vblocknr),
            Self::DatData { .. } | Self::DatNode { .. } => None,
        }
    }

    fn parse(dat: bool, node: bool, bytes: &[u8]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        match (dat, node) {
            (false, false) => {
                Self::Data { vblocknr: VBlockNr(word(0)), offset: FileBlock(word(8)) }
            }
            (false, true) => Self::Node { vblocknr: VBlockNr(word(0)) },
            (true, false) => Self::DatData { offset: FileBlock(word(0)) },
            (true, true) => Self::DatNode { key: word(0), level: bytes[8] },
        }
    }

    fn encode(&self, bytes: &mut [u8]) {
        match self {
            Self::Data { vblocknr, offset } => {
                bytes[..8].copy_from_slice(&vblocknr.0.to_le_bytes());
                bytes[8..16].copy_from_slice(&offset.0.to_le_bytes());
            }
            Self::Node { vblocknr } => bytes[..8].copy_from_slice(&vblocknr.0.to_le_bytes()),
            Self::DatData { offset } => bytes[..8].copy_from_slice(&offset.0.to_le_bytes()),
            Self::DatNode { key, level } => {
                bytes[..8].copy_from_slice(&key.to_le_bytes());
                bytes[8] = *level;
            }
        }
    }
}

/// The blocks of one file in a log: data blocks first, then nodes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FileInfo {
    /// The file.
    pub ino: Ino,
    /// The checkpoint in which the blocks were written first; 0 for metadata files.
    pub cno: Cno,
    /// Its blocks, in the order of the payload.
    pub blocks: Vec<BlockInfo>,
}

/// The running place of summary items: the one rule of docs/format.md §4.2.
#[derive(Debug, Clone, Copy)]
pub struct Placement {
    block_size: usize,
    offset: usize,
}

impl Placement {
    /// After the header.
    #[must_use]
    pub fn new(block_size: BlockSize) -> Self {
        Self { block_size: block_size.bytes(), offset: HEADER_SIZE }
    }

    /// Places an item of `size` bytes; returns its byte offset from the start of the log.
    pub fn place(&mut self, size: usize) -> usize {
        if self.offset % self.block_size + size > self.block_size {
            self.offset = self.offset.next_multiple_of(self.block_size);
        }
        let at = self.offset;
        self.offset += size;
        at
    }

    /// Bytes of the summary so far (`ss_sumbytes`).
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.offset
    }

    /// Blocks of the summary so far, with as many bytes after the items.
    #[must_use]
    pub fn blocks_with(&self, rest: usize) -> u64 {
        (self.offset + rest).div_ceil(self.block_size) as u64
    }
}

/// What a summary says of the blocks of its log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Items {
    /// The blocks by file, in the order of the payload.
    pub files: Vec<FileInfo>,
    /// Bytes from the start of the summary to the end of the items. What follows up to `ss_sumbytes`
    /// is no matter of the format; see [`roll_forward`](crate::roll_forward).
    pub end: usize,
    /// Checksums of the blocks that the summary describes, in their order, of a log that has them.
    pub sums: Option<Vec<BlockSum>>,
}

/// Reads the items of a summary, given all its blocks.
///
/// # Errors
/// Items that do not end at `ss_sumbytes`, unless that is the end of a block; counts that
/// contradict each other, or a number of blocks that is not that of the log (docs/format.md §15).
pub fn parse_items(
    header: &LogHeader,
    summary: &[u8],
    block_size: BlockSize,
) -> Result<Items, FormatError> {
    let end = (header.sumbytes as usize).min(summary.len());
    let mut place =
        Placement { block_size: block_size.bytes(), offset: header.header_bytes.into() };
    let mut item = |size: usize, field| {
        let at = place.place(size);
        summary.get(at..at + size).filter(|_| at + size <= end).ok_or_else(|| {
            FormatError::field(STRUCTURE, field, "an item after ss_sumbytes", "none")
        })
    };
    let mut files = Vec::new();
    let mut payload = 0u64;
    for _ in 0..header.nfinfo {
        let (finfo, _) = RawFinfo::read_from_prefix(item(FINFO_SIZE, "ss_nfinfo")?)
            .map_err(|_| FormatError::field(STRUCTURE, "finfo", "truncated", "24 bytes"))?;
        let ino = Ino(finfo.fi_ino.get());
        let (nblocks, ndata) = (finfo.fi_nblocks.get(), finfo.fi_ndatablk.get());
        if ndata > nblocks {
            return Err(FormatError::field(
                STRUCTURE,
                "fi_ndatablk",
                ndata,
                format!("0 to {nblocks}"),
            ));
        }
        payload += u64::from(nblocks);
        if payload > u64::from(header.nblocks) {
            return Err(FormatError::field(STRUCTURE, "fi_nblocks", payload, header.nblocks));
        }
        let dat = ino == Ino::DAT;
        let mut blocks = Vec::with_capacity(nblocks as usize);
        for nth in 0..nblocks {
            let node = nth >= ndata;
            let size = if dat == node { 16 } else { 8 };
            blocks.push(BlockInfo::parse(dat, node, item(size, "fi_nblocks")?));
        }
        files.push(FileInfo { ino, cno: Cno(finfo.fi_cno.get()), blocks });
    }
    let whole = u64::from(header.sumbytes).is_multiple_of(block_size.bytes64());
    // A summary may go on to the end of a block, with records, or so that the log after it begins at
    // a good place.
    if place.bytes() != header.sumbytes as usize && !(whole && place.bytes() <= end) {
        return Err(FormatError::field(STRUCTURE, "ss_sumbytes", header.sumbytes, place.bytes()));
    }
    let super_root = u64::from(header.has(SR));
    let expected = header.summary_blocks(block_size) + payload + super_root;
    if expected != header.described_blocks(block_size) {
        return Err(FormatError::field(STRUCTURE, "ss_nblocks", header.nblocks, expected));
    }
    let rest = summary.get(place.bytes()..end).unwrap_or_default();
    let sums = block_sums::parse(rest, payload + super_root);
    Ok(Items { files, end: place.bytes(), sums })
}

/// What the writer of a log decides about its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NewLog {
    /// `LOGBGN`, `LOGEND`, `SR`, `SYNDT`, `GC`.
    pub flags: u16,
    /// Sequence number of the segment.
    pub seq: Seq,
    /// Creation time (s).
    pub create: u64,
    /// First block of the next segment.
    pub next: BlockNr,
    /// The checkpoint under construction.
    pub cno: Cno,
    /// Blocks of the summary, as many as its items take at least. The rest is zeros.
    pub summary_blocks: u64,
    /// Whether it has a checksum for each block that it describes.
    pub block_sums: bool,
}

/// Builds the summary blocks of a log and seals them with both checksums, given the checksums of the
/// blocks after it, in their order and with the super root if there is one. `records` go after the items.
/// Of a log without files and super root, the `payload` only says how many blocks it claims.
pub fn encode_summary(
    log: &NewLog,
    files: &[FileInfo],
    records: &[u8],
    payload: &[BlockSum],
    block_size: BlockSize,
    seed: u32,
) -> Vec<u8> {
    let is_described = !files.is_empty() || log.flags & SR != 0;
    let kept = if log.block_sums && is_described { payload } else { &[] };
    let mut place = Placement::new(block_size);
    let mut bytes = vec![0; block_size.bytes()];
    let mut put = |place: &mut Placement, size: usize| {
        let at = place.place(size);
        bytes.resize(place.blocks_with(0) as usize * block_size.bytes(), 0);
        at..at + size
    };
    let mut items: Vec<(std::ops::Range<usize>, [u8; FINFO_SIZE])> = Vec::new();
    for file in files {
        let ndata = file.blocks.iter().filter(|block| !block.is_node()).count();
        let finfo = RawFinfo {
            fi_ino: U64::new(file.ino.0),
            fi_cno: U64::new(file.cno.0),
            fi_nblocks: U32::new(file.blocks.len() as u32),
            fi_ndatablk: U32::new(ndata as u32),
        };
        items.push((put(&mut place, FINFO_SIZE), zerocopy::transmute!(finfo)));
        for block in &file.blocks {
            let mut binfo = [0; FINFO_SIZE];
            block.encode(&mut binfo);
            items.push((put(&mut place, block.size()), binfo));
        }
    }
    for (range, item) in items {
        let size = range.len();
        bytes[range].copy_from_slice(&item[..size]);
    }
    let rest = records.len() + block_sums::size(kept.len() as u64);
    let blocks = place.blocks_with(rest).max(log.summary_blocks);
    let sumbytes = match rest == 0 && blocks == place.blocks_with(0) {
        true => place.bytes(),
        false => blocks as usize * block_size.bytes(),
    };
    bytes.resize(blocks as usize * block_size.bytes(), 0);
    bytes[place.bytes()..][..records.len()].copy_from_slice(records);
    let header = RawHeader {
        ss_datasum: U32::ZERO,
        ss_sumsum: U32::ZERO,
        ss_magic: U32::new(MAGIC),
        ss_bytes: U16::new(HEADER_SIZE as u16),
        ss_flags: U16::new(log.flags),
        ss_seq: U64::new(log.seq.0),
        ss_create: U64::new(log.create),
        ss_next: U64::new(log.next.0),
        ss_nblocks: U32::new((blocks + payload.len() as u64) as u32),
        ss_nfinfo: U32::new(files.len() as u32),
        ss_sumbytes: U32::new(sumbytes as u32),
        ss_pad: U32::ZERO,
        ss_cno: U64::new(log.cno.0),
    };
    bytes[..HEADER_SIZE].copy_from_slice(header.as_bytes());
    block_sums::put(&mut bytes[..sumbytes], kept);
    let nothing = BlockSum::of(&ZEROS[..block_size.bytes()]);
    let sum = |sum: &BlockSum| if is_described { *sum } else { nothing };
    seal(&mut bytes, sumbytes, payload.iter().map(sum), block_size, seed);
    bytes
}

/// Sets the checksums of a log that has changed, given the blocks of its summary and the checksum of each
/// block that this describes. Those of the blocks are kept in the summary if it had some.
pub fn seal_again(
    summary: &mut [u8],
    header: &LogHeader,
    described: &[BlockSum],
    block_size: BlockSize,
    seed: u32,
) {
    let sumbytes = (header.sumbytes as usize).clamp(HEADER_SIZE, summary.len());
    if parse_items(header, summary, block_size).is_ok_and(|items| items.sums.is_some()) {
        block_sums::put(&mut summary[..sumbytes], described);
    }
    let others = u64::from(header.nblocks).saturating_sub(header.described_blocks(block_size));
    let nothing = BlockSum::of(&ZEROS[..block_size.bytes()]);
    let all = described.iter().copied().chain((0..others).map(|_| nothing));
    seal(summary, sumbytes, all, block_size, seed);
}

/// Writes both checksums into a summary.
fn seal(
    summary: &mut [u8],
    sumbytes: usize,
    payload: impl Iterator<Item = BlockSum>,
    block_size: BlockSize,
    seed: u32,
) {
    let sum = crc32_le(seed, &summary[8..sumbytes]);
    summary[4..8].copy_from_slice(&sum.to_le_bytes());
    let mut crc = Crc::new(seed);
    crc.update(&summary[4..]);
    payload.for_each(|sum| crc.append(sum, block_size.bytes()));
    let sum = crc.value();
    summary[..4].copy_from_slice(&sum.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<FileInfo> {
        let data = |n: u64| BlockInfo::Data { vblocknr: VBlockNr(n), offset: FileBlock(n) };
        vec![
            FileInfo { ino: Ino(12), cno: Cno(7), blocks: (0..130).map(data).collect() },
            FileInfo {
                ino: Ino(13),
                cno: Cno(7),
                blocks: vec![data(1), BlockInfo::Node { vblocknr: VBlockNr(9) }],
            },
            FileInfo {
                ino: Ino::DAT,
                cno: Cno(0),
                blocks: vec![
                    BlockInfo::DatData { offset: FileBlock(5) },
                    BlockInfo::DatNode { key: 3, level: 1 },
                ],
            },
        ]
    }

    #[test]
    fn a_summary_over_several_blocks_reads_back_as_written() {
        let size = BlockSize::from_bytes(1024).unwrap();
        let payload: Vec<Vec<u8>> = (0..134).map(|nth| vec![nth; 1024]).collect();
        let pieces = || payload.iter().map(Vec::as_slice);
        let sums: Vec<BlockSum> = pieces().map(BlockSum::of).collect();
        let mut lengths = Vec::new();
        for (summary_blocks, records, block_sums) in [
            (0, vec![], false),
            (9, vec![], false),
            (0, vec![5; 2000], false),
            (0, vec![], true),
            (9, vec![], true),
            (0, vec![5; 2000], true),
        ] {
            let log = NewLog {
                flags: LOGBGN | LOGEND,
                seq: Seq(4),
                create: 99,
                next: BlockNr(64),
                cno: Cno(7),
                summary_blocks,
                block_sums,
            };
            let summary = encode_summary(&log, &sample(), &records, &sums, size, 77);
            let header = LogHeader::parse(&summary, size, 2048).unwrap();
            header.verify_summary(&summary, 77).unwrap();
            let mut crc = Crc::new(77);
            crc.update(&summary[4..]);
            pieces().for_each(|block| crc.update(block));
            header.verify_log(crc, size).unwrap();
            let Items { files, end, sums: found } = parse_items(&header, &summary, size).unwrap();
            assert_eq!(files, sample());
            assert_eq!(found, block_sums.then(|| sums.clone()));
            assert_eq!(header.sum_from(&summary, &sums, size, 77), header.datasum);
            let wrong = [&sums[1..], &sums[..1]].concat();
            assert_ne!(header.sum_from(&summary, &wrong, size, 77), header.datasum);
            assert_eq!(summary[end..][..records.len()], records);
            assert_eq!((header.seq, header.cno, header.next), (Seq(4), Cno(7), BlockNr(64)));
            assert_eq!(header.summary_blocks(size) * 1024, summary.len() as u64);
            lengths.push(summary.len() / 1024);
        }
        assert!(lengths[0] < 9, "the items take no more than they need");
        assert_eq!((lengths[1], lengths[4]), (9, 9), "what was asked for is added");
    }

    #[test]
    fn a_log_that_lacks_a_bit_is_told_from_one_that_is_torn() {
        let size = BlockSize::from_bytes(1024).unwrap();
        let payload: Vec<Vec<u8>> = (0..134).map(|nth| vec![nth; 1024]).collect();
        let sums: Vec<BlockSum> = payload.iter().map(|it| BlockSum::of(it)).collect();
        let (seq, create, next, cno) = (Seq(4), 99, BlockNr(64), Cno(7));
        let (flags, summary_blocks, block_sums) = (LOGBGN | LOGEND, 0, true);
        let new = NewLog { flags, seq, create, next, cno, summary_blocks, block_sums };
        let summary = encode_summary(&new, &sample(), &[], &sums, size, 77);
        let log = [summary.clone(), payload.concat()].concat();
        let lacks = |log: &[u8]| lacks_a_bit(log, size, 2048, 77);
        assert!(!lacks(&log), "it lacks none");
        for byte in [0, 4, 17, 70, summary.len() + 5, log.len() - 1] {
            let mut damaged = log.clone();
            damaged[byte] ^= 4;
            assert!(lacks(&damaged), "byte {byte}");
            damaged[log.len() - 2000] ^= 1;
            assert!(!lacks(&damaged), "byte {byte} and another");
        }
        let mut torn = log.clone();
        torn[log.len() - 1024..].fill(0);
        assert!(!lacks(&torn));
        let payload = [vec![0; 1023], vec![b'@']].concat();
        let sums = [vec![BlockSum::of(&payload)], sums[1..].to_vec()].concat();
        let summary = encode_summary(&new, &sample(), &[], &sums, size, 77);
        let torn = [summary, vec![0; 1024], log[log.len() - 133 * 1024..].to_vec()].concat();
        assert!(!lacks(&torn), "a block with a single bit has not been written");
        assert!(!lacks(&log[..log.len() - 1024]));
    }

    /// They need not have been written, so they may hold anything.
    #[test]
    fn blocks_that_a_summary_does_not_describe_hold_nothing() {
        let size = BlockSize::from_bytes(1024).unwrap();
        let whatever = [BlockSum(7); 3];
        let of = |flags, files: &[FileInfo], records: &[u8]| {
            let (seq, create, next, cno) = (Seq(4), 99, BlockNr(64), Cno(7));
            let (summary_blocks, block_sums) = (0, false);
            let log = NewLog { flags, seq, create, next, cno, summary_blocks, block_sums };
            let summary = encode_summary(&log, files, records, &whatever, size, 77);
            (LogHeader::parse(&summary, size, 2048).unwrap(), summary)
        };
        let (header, summary) = of(LOGBGN | LOGEND, &[], &[5; 900]);
        assert_eq!((header.nblocks, header.described_blocks(size)), (4, 1));
        parse_items(&header, &summary, size).unwrap();
        let mut crc = Crc::new(77);
        crc.update(&summary[4..]);
        header.verify_log(crc.clone(), size).unwrap();
        (0..3).for_each(|_| crc.update(&[0; 1024]));
        assert_eq!(crc.value(), header.datasum, "as if zeros had been written");

        let one = FileInfo { ino: Ino(12), cno: Cno(7), blocks: Vec::new() };
        for (header, summary) in [of(SR | LOGEND, &[], &[]), of(0, &[one], &[])] {
            assert_eq!(header.described_blocks(size), 4, "something is said of them");
            assert!(parse_items(&header, &summary, size).is_err(), "but not enough");
        }
    }

    #[test]
    fn any_flipped_bit_of_a_summary_is_seen_and_found() {
        let size = BlockSize::from_bytes(1024).unwrap();
        let log = NewLog {
            flags: 0,
            seq: Seq(4),
            create: 99,
            next: BlockNr(64),
            cno: Cno(7),
            summary_blocks: 0,
            block_sums: true,
        };
        let payload = [BlockSum::of(&[0; 1024]); 2];
        let summary = encode_summary(&log, &sample()[1..2], &[], &payload, size, 77);
        let used = LogHeader::parse(&summary, size, 2048).unwrap().sumbytes as usize;
        assert_eq!(wrong_bit(&summary, size, 2048, 77), None);
        for at in 4..used {
            let mut broken = summary.clone();
            broken[at] ^= 0x40;
            let seen = LogHeader::parse(&broken, size, 2048)
                .and_then(|header| header.verify_summary(&broken, 77));
            assert!(seen.is_err(), "byte {at}");
            let wrong = wrong_bit(&broken, size, 2048, 77);
            assert_eq!(wrong, Some(WrongBit { byte: at, bit: 6 }));
        }
    }
}

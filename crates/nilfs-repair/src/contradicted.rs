//! Summaries that are contradicted by a block map and the DAT together. If nothing else in the logs is
//! what these lead to, it is the summary that says something wrong of a block, and it is set right.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use nilfs_check::{Part, Position, Report, Rule, Unclaimed};
use nilfs_ondisk::bmap::{Entry, Node};
use nilfs_ondisk::crc::{BlockSum, Crc, Verdict};
use nilfs_ondisk::dat::DatEntry;
use nilfs_ondisk::palloc::{BlockRole, Palloc};
use nilfs_ondisk::summary::{BlockInfo, FileInfo, LogHeader, NewLog, encode_summary, parse_items};
use nilfs_ondisk::{BlockNr, BlockSize, Cno, FileBlock, Ino, VBlockNr, block_sums};

use crate::Risk;
use crate::anew::{Anew, Replacement};

/// Which pointers contradict the logs.
#[derive(Debug, Default)]
pub(crate) struct Disputed {
    /// Where a virtual block was reached that is another one, or another file's, by its log.
    reached: HashMap<VBlockNr, (Ino, FileBlock)>,
    /// Virtual blocks that were reached twice. One of the pointers is wrong.
    shared: HashSet<VBlockNr>,
    /// Virtual blocks that do not live as long as they are needed.
    short_lived: HashSet<VBlockNr>,
    /// Blocks of which the DAT alone tells.
    unclaimed: BTreeMap<BlockNr, Unclaimed>,
}

impl Disputed {
    pub(crate) fn of(report: &Report) -> Self {
        let mut disputed = Self { unclaimed: report.unclaimed.clone(), ..Self::default() };
        for finding in &report.findings {
            let Some(vblock) = finding.place.vblock else { continue };
            match (finding.rule, finding.place.ino, finding.place.file_block) {
                (Rule::Owner, Some(ino), Some(key)) => {
                    disputed.reached.entry(vblock).or_insert((ino, key));
                }
                (Rule::SharedBlock, ..) => _ = disputed.shared.insert(vblock),
                (Rule::Lifetime, ..) => _ = disputed.short_lived.insert(vblock),
                _ => {}
            }
        }
        disputed
    }

    /// Whether a virtual block was reached twice.
    pub(crate) fn is_shared(&self, vblock: VBlockNr) -> bool {
        self.shared.contains(&vblock)
    }
}

impl Anew<'_> {
    /// The summary of the log of a block with another virtual number there: the one by which a file and
    /// the DAT lead to the block, and under which no log has one.
    pub(crate) fn renumbered(&mut self, vblock: VBlockNr) -> Option<Replacement> {
        let (ino, key) = *self.disputed.reached.get(&vblock)?;
        let block = self.dat.as_mut()?.entry(vblock)?.block;
        let (found, since, info) = self.described(block)?;
        let other = match info {
            BlockInfo::Data { vblocknr, offset } if offset == key => vblocknr,
            BlockInfo::Node { vblocknr } => vblocknr,
            _ => return None,
        };
        let is_others = self.dat.as_mut()?.entry(other).is_some_and(|it| it.block == block);
        let right = match info {
            BlockInfo::Node { .. } => BlockInfo::Node { vblocknr: vblock },
            _ => BlockInfo::Data { vblocknr: vblock, offset: key },
        };
        (found == ino && !is_others).then(|| self.with_description(block, (ino, since, right)))?
    }

    /// The summary of the log of a block, to which a pointer leads, with the file and the place there to
    /// which the pointer belongs. `known` is what the logs say of that place.
    pub(crate) fn owned(
        &mut self,
        part: &Part,
        pointer: u64,
        known: Option<Entry>,
    ) -> Option<Replacement> {
        if part.ino == Ino::DAT {
            return self.owned_by_dat(part, BlockNr(pointer), known);
        }
        let vblock = VBlockNr(pointer);
        if known.is_some() || self.disputed.is_shared(vblock) {
            return None;
        }
        let entry = self.dat.as_mut()?.entry(vblock)?;
        let lives = entry.start <= part.life.start && entry.end >= part.life.end;
        let (_, since, info) = self.described(entry.block).filter(|_| lives)?;
        let right = match part.level {
            0 => BlockInfo::Data { vblocknr: vblock, offset: FileBlock(part.key) },
            _ => BlockInfo::Node { vblocknr: vblock },
        };
        let is_it = info.vblock() == Some(vblock);
        is_it.then(|| self.with_description(entry.block, (part.ino, since, right)))?
    }

    /// The same for a block of the DAT. These have no lives, so the logs may know an older version of
    /// it: the block is the right one if it was written after that, and if what it holds belongs there.
    fn owned_by_dat(
        &self,
        part: &Part,
        block: BlockNr,
        known: Option<Entry>,
    ) -> Option<Replacement> {
        // A damaged map may have keys for which there are no virtual blocks.
        if part.key >= self.end_of(Ino::DAT) {
            return None;
        }
        let written = |block| self.log_of(block).map(|log| (log.header.seq, block));
        let before = known.and_then(|(_, older)| written(BlockNr(older)));
        if written(block) <= before || !self.is_confirmed(part, block) {
            return None;
        }
        let (_, since, _) = self.described(block)?;
        let right = of_dat(part.level, part.key);
        self.with_description(block, (Ino::DAT, since, right))
    }

    /// Whether the logs confirm a block as a part of the DAT: something that it leads to is, by its own
    /// log, what it would be below that part.
    fn is_confirmed(&self, part: &Part, block: BlockNr) -> bool {
        let Some(bytes) = self.read(block) else { return false };
        match part.level {
            0 => self.has_confirmed_entry(&bytes, FileBlock(part.key)),
            level => self.has_confirmed_child(&bytes, level, part.key),
        }
    }

    fn has_confirmed_entry(&self, bytes: &[u8], key: FileBlock) -> bool {
        let layout = Palloc::new(self.geometry.block_size, self.geometry.dat_entry_size);
        let BlockRole::Entries { first_entry } = layout.role_of(key) else { return false };
        let slots = bytes.chunks_exact(self.geometry.dat_entry_size).map(DatEntry::parse);
        (first_entry..).map(VBlockNr).zip(slots).any(|(vblock, entry)| {
            let found = entry.ok().and_then(|entry| self.described(entry.block));
            found.is_some_and(|(_, _, info)| info.vblock() == Some(vblock))
        })
    }

    fn has_confirmed_child(&self, bytes: &[u8], level: u8, key: u64) -> bool {
        let node = Node::parse(bytes, level).ok();
        let node = node.filter(|node| node.validate(Some(key)).is_ok());
        node.is_some_and(|node| {
            node.entries().any(|(key, child)| {
                let found = self.described(BlockNr(child));
                found.is_some_and(|(_, _, info)| info == of_dat(level - 1, key))
            })
        })
    }

    /// The first checkpoint of a block is what the DAT says, or what its log says: that of the log, unless
    /// the cleaner has moved the block.
    pub(crate) fn start(
        &mut self,
        at: Position,
        vblock: VBlockNr,
        written: Cno,
    ) -> Option<Replacement> {
        let entry = self.dat.as_mut()?.entry(vblock)?;
        let log = self.log_of(entry.block)?;
        let nth = (entry.block.0 - log.payload.0) as usize;
        let (ino, _, info) = *log.blocks.get(nth)?;
        let own = log.header.cno;
        let is_possible = written.0 > 0 && written <= own.min(entry.end);
        // Of a block that was moved, a number that is too small does no harm, and one that is too great
        // would be missed.
        let is_moved = written != own;
        let is_early = is_moved && !self.disputed.short_lived.contains(&vblock);
        let dat_is_right = entry.start == own || is_early;
        if !is_possible || dat_is_right {
            return self.with_description(entry.block, (ino, entry.start, info));
        }
        let action = format!("set it to {written}, as the log says");
        Some(Replacement::new(at, written.0.to_le_bytes().to_vec(), Risk::Safe, action))
    }

    /// Returns blocks of which the DAT alone tells, and which all checkpoints of a part have.
    pub(crate) fn unclaimed(&self, part: &Part) -> BTreeMap<BlockNr, VBlockNr> {
        let all = self.disputed.unclaimed.iter();
        let living =
            all.filter(|(_, it)| it.life.start <= part.life.start && it.life.end >= part.life.end);
        living.map(|(block, it)| (*block, it.vblock)).collect()
    }

    /// Returns those of a part of a file that lie right before its nodes: a log has the nodes of a file after its
    /// data (docs/format.md §4.2), and lower ones first.
    pub(crate) fn unclaimed_before(
        &self,
        nodes: &BTreeSet<BlockNr>,
        part: &Part,
    ) -> BTreeMap<BlockNr, VBlockNr> {
        let unclaimed = self.unclaimed(part);
        let mut found = BTreeMap::new();
        for node in nodes {
            for block in (0..node.0).rev().map(BlockNr) {
                match unclaimed.get(&block) {
                    Some(vblock) => _ = found.insert(block, *vblock),
                    None if nodes.contains(&block) => {}
                    None => break,
                }
            }
        }
        found
    }

    /// What the summary of its log says of a block.
    pub(crate) fn described(&self, block: BlockNr) -> Option<(Ino, Cno, BlockInfo)> {
        let log = self.log_of(block)?;
        log.blocks.into_iter().nth((block.0 - log.payload.0) as usize)
    }

    /// The summary of its log with something else about a block.
    fn with_description(
        &self,
        block: BlockNr,
        right: (Ino, Cno, BlockInfo),
    ) -> Option<Replacement> {
        let mut log = self.log_of(block)?;
        *log.blocks.get_mut((block.0 - log.payload.0) as usize)? = right;
        let size = self.geometry.block_size;
        let seed = crate::superblocks::best(self.device).ok()?.crc_seed();
        let all = log.header.described_blocks(size) - log.header.summary_blocks(size);
        let blocks: Option<Vec<_>> = (0..all).map(|nth| self.read(log.payload.plus(nth))).collect();
        let block_sums = log.sums.is_some();
        let is_whole = blocks.as_ref().is_some_and(|blocks| log.is_whole(blocks, size, seed));
        let payload: Vec<BlockSum> = match log.sums {
            Some(sums) if !is_whole => sums,
            // Where they are whole, an older version of fsck may have corrected them, but not these.
            _ => blocks?.iter().map(|block| BlockSum::of(block)).collect(),
        };
        let LogHeader { flags, seq, create, next, cno, .. } = log.header;
        let summary_blocks = log.header.summary_blocks(size);
        let header = NewLog { flags, seq, create, next, cno, summary_blocks, block_sums };
        let files = by_file(&log.blocks);
        let bytes = encode_summary(&header, &files, &log.records, &payload, size, seed);
        let action = "set what the summary of the log says of the block to what the block map and \
                      the DAT say";
        let at = Position { block: log.start, offset: 0 };
        (bytes.len() as u64 == summary_blocks * size.bytes64()).then(|| Replacement {
            describes: true,
            ..Replacement::new(at, bytes, Risk::Safe, action)
        })
    }

    /// Reads a block, unless its log has a checksum of it that is another one.
    pub(crate) fn read_as_written(&self, block: BlockNr) -> Option<Vec<u8>> {
        let bytes = self.read(block)?;
        let sum = self.sum_of(block);
        sum.is_none_or(|sum| sum.judge(&bytes) != Verdict::Wrong).then_some(bytes)
    }

    /// Whether a block is known to be what was written.
    pub(crate) fn is_as_written(&self, block: BlockNr) -> bool {
        let bytes = self.read(block);
        let judged = self.sum_of(block).zip(bytes).map(|(sum, bytes)| sum.judge(&bytes));
        judged == Some(Verdict::Right)
    }

    /// The checksum that its log has of a block.
    fn sum_of(&self, block: BlockNr) -> Option<BlockSum> {
        let log = self.log_of(block)?;
        let nth = usize::try_from(block.0.checked_sub(log.payload.0)?).ok()?;
        log.sums?.get(nth).copied()
    }

    /// Whether its log says of a block that it is something else of its file, or of another.
    pub(crate) fn is_anothers(&self, block: BlockNr, part: &Part) -> bool {
        self.described(block).is_some_and(|(ino, _, info)| {
            let offset = match info {
                BlockInfo::Data { offset, .. } | BlockInfo::DatData { offset } => Some(offset.0),
                BlockInfo::Node { .. } | BlockInfo::DatNode { .. } => None,
            };
            (ino, offset) != (part.ino, Some(part.key))
        })
    }

    /// The log that has a block after its summary.
    fn log_of(&self, block: BlockNr) -> Option<Described> {
        let scan = self.scan?;
        let after = scan.logs.partition_point(|log| log.start <= block);
        let start = scan.logs[..after].last()?.start;
        let size = self.geometry.block_size;
        // It may have been set right since it was found.
        let first = self.read(start)?;
        let header = LogHeader::parse(&first, size, self.geometry.blocks_per_segment).ok()?;
        let payload = start.plus(header.summary_blocks(size));
        if !(payload..start.plus(header.nblocks.into())).contains(&block) {
            return None;
        }
        let mut summary = Vec::new();
        for nth in start.0..payload.0 {
            summary.extend(self.read(BlockNr(nth))?);
        }
        let items = parse_items(&header, &summary, size).ok()?;
        let rest = summary.get(items.end..header.sumbytes as usize).unwrap_or_default();
        let described = header.described_blocks(size) - header.summary_blocks(size);
        let sums = items.sums.as_ref().map_or(0, |_| block_sums::size(described));
        // The zeros after them come back with the block that they fill.
        let used = rest[..rest.len() - sums].iter().rposition(|byte| *byte != 0);
        let records = &rest[..used.map_or(0, |last| last + 1)];
        let of_file = |file: FileInfo| {
            let (ino, cno) = (file.ino, file.cno);
            file.blocks.into_iter().map(move |info| (ino, cno, info))
        };
        Some(Described {
            start,
            header,
            payload,
            records: records.to_vec(),
            summary,
            sums: items.sums,
            blocks: items.files.into_iter().flat_map(of_file).collect(),
        })
    }
}

/// What a log says of a part of the DAT.
fn of_dat(level: u8, key: u64) -> BlockInfo {
    match level {
        0 => BlockInfo::DatData { offset: FileBlock(key) },
        level => BlockInfo::DatNode { key, level },
    }
}

/// A log, taken apart.
struct Described {
    start: BlockNr,
    header: LogHeader,
    /// The first block after the summary.
    payload: BlockNr,
    summary: Vec<u8>,
    /// Roll-forward records.
    records: Vec<u8>,
    /// The checksums of its blocks, if it has them.
    sums: Option<Vec<BlockSum>>,
    blocks: Vec<(Ino, Cno, BlockInfo)>,
}

impl Described {
    /// Whether everything is as it was written, given the blocks after the summary.
    fn is_whole(&self, blocks: &[Vec<u8>], block_size: BlockSize, seed: u32) -> bool {
        let mut crc = Crc::new(seed);
        crc.update(&self.summary[4..]);
        blocks.iter().for_each(|block| crc.update(block));
        self.header.verify_log(crc, block_size).is_ok()
    }
}

/// The blocks of a log by files, as a summary has them.
fn by_file(blocks: &[(Ino, Cno, BlockInfo)]) -> Vec<FileInfo> {
    let mut files: Vec<FileInfo> = Vec::new();
    for (ino, cno, info) in blocks {
        match files.last_mut().filter(|file| (file.ino, file.cno) == (*ino, *cno)) {
            Some(file) if info.is_node() || !file.blocks.iter().any(BlockInfo::is_node) => {
                file.blocks.push(*info);
            }
            _ => files.push(FileInfo { ino: *ino, cno: *cno, blocks: vec![*info] }),
        }
    }
    files
}

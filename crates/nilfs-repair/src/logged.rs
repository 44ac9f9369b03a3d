//! What the logs say about the blocks of files: which block of which file lies where, and when it was
//! written. It is what a map, a DAT entry or an inode is made anew from.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use nilfs_check::{Report, Unclaimed};
use nilfs_device::Device;
use nilfs_engine::scan::{FoundLog, Scan};
use nilfs_ondisk::bmap::{Entry, LEVEL_MAX, Node};
use nilfs_ondisk::roll_forward::{InodeRecord, Record};
use nilfs_ondisk::summary::BlockInfo;
use nilfs_ondisk::superblock::LogCursor;
use nilfs_ondisk::{BlockNr, Cno, FileBlock, Ino, Seq, VBlockNr};

use crate::dat::read;
use crate::file_type::is_first_of_directory;

/// A block as its log describes it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Logged {
    pub(crate) block: BlockNr,
    pub(crate) info: BlockInfo,
    /// The first checkpoint that has the block.
    pub(crate) since: Cno,
    /// When it was written, among others.
    pub(crate) written: (Seq, BlockNr),
    /// When its log was written, in seconds.
    pub(crate) time: u64,
}

impl Logged {
    /// Which block of data of its file it is, if it is one.
    pub(crate) fn offset(&self) -> Option<u64> {
        match self.info {
            BlockInfo::Data { offset, .. } | BlockInfo::DatData { offset } => Some(offset.0),
            BlockInfo::Node { .. } | BlockInfo::DatNode { .. } => None,
        }
    }
}

/// What is asked about.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) files: BTreeSet<Ino>,
    pub(crate) vblocks: BTreeSet<VBlockNr>,
}

impl Wanted {
    fn contains(&self, other: &Self) -> bool {
        self.files.is_superset(&other.files) && self.vblocks.is_superset(&other.vblocks)
    }
}

/// The blocks that are asked about, as the logs describe them.
#[derive(Debug, Default)]
pub(crate) struct LoggedBlocks {
    wanted: Wanted,
    files: HashMap<Ino, Vec<Logged>>,
    vblocks: HashMap<VBlockNr, Logged>,
    /// Generations of files as the first log of an fsync after the newest checkpoint names them.
    generations: HashMap<Ino, u32>,
    /// Inodes of these files as the first such log has them.
    inodes: HashMap<Ino, InodeRecord>,
    /// Blocks of logs without a summary.
    unclaimed: BTreeMap<BlockNr, Unclaimed>,
}

impl LoggedBlocks {
    /// Reads the summaries of all logs up to the newest one of a report, unless that is known which is wanted.
    pub(crate) fn load(
        &mut self,
        wanted: &Wanted,
        (scan, device): (&Scan, &dyn Device),
        report: &Report,
    ) {
        let newest = report.newest_log;
        let is_known = |(block, it): (&BlockNr, &Unclaimed)| self.unclaimed.get(block) == Some(it);
        if self.wanted.contains(wanted) && report.unclaimed.iter().all(is_known) {
            return;
        }
        self.unclaimed.clone_from(&report.unclaimed);
        self.wanted.files.extend(&wanted.files);
        self.wanted.vblocks.extend(&wanted.vblocks);
        (self.files, self.vblocks) = Default::default();
        (self.generations, self.inodes) = Default::default();
        for log in scan.logs.iter().filter(|log| log.header.cno <= newest.cno) {
            blocks_of(scan, device, log, &mut |ino, logged| self.add(ino, logged));
        }
        self.recognize(scan, device);
        self.add_generations((scan, device), newest);
        for blocks in self.files.values_mut() {
            // The cleaner may have written an older version last.
            blocks.sort_by_key(|it| (it.offset(), Reverse((it.since, it.written))));
        }
    }

    fn add(&mut self, ino: Ino, logged: Logged) {
        if self.wanted.files.contains(&ino) {
            self.files.entry(ino).or_default().push(logged);
        }
        if let Some(vblock) =
            logged.info.vblock().filter(|vblock| self.wanted.vblocks.contains(vblock))
        {
            let known = self.vblocks.entry(vblock).or_insert(logged);
            if (logged.since, logged.written) > (known.since, known.written) {
                *known = logged;
            }
        }
    }

    /// Adds blocks of logs without a summary that tell by themselves whose they are: first blocks of directories, and
    /// nodes with entries that logs describe.
    fn recognize(&mut self, scan: &Scan, device: &dyn Device) {
        let unclaimed = std::mem::take(&mut self.unclaimed);
        for (block, it) in &unclaimed {
            let Some(bytes) = read(device, &scan.geometry, *block) else { continue };
            let own = |ino: &&Ino| is_first_of_directory(&bytes, **ino);
            if let Some(ino) = self.wanted.files.iter().find(own).copied() {
                let info = BlockInfo::Data { vblocknr: it.vblock, offset: FileBlock(0) };
                self.add(ino, of_no_log(*block, it, info));
            }
        }
        for level in 1..LEVEL_MAX {
            let owners = self.owners();
            let mut nodes = Vec::new();
            for (block, it) in &unclaimed {
                let Some(bytes) = read(device, &scan.geometry, *block) else { continue };
                let owner = |(key, pointer): Entry| {
                    let (ino, offset) = *owners.get(&VBlockNr(pointer))?;
                    (offset.is_none_or(|offset| offset == key)).then_some(ino)
                };
                let node = Node::parse(&bytes, level).ok().filter(|it| it.validate(None).is_ok());
                let inos: Option<BTreeSet<Ino>> =
                    node.map(|node| node.entries().filter_map(owner).collect());
                if let Some([ino]) = inos.map(Vec::from_iter).as_deref() {
                    let info = BlockInfo::Node { vblocknr: it.vblock };
                    nodes.push((*ino, of_no_log(*block, it, info)));
                }
            }
            if nodes.is_empty() {
                break;
            }
            nodes.into_iter().for_each(|(ino, logged)| self.add(ino, logged));
        }
        self.unclaimed = unclaimed;
    }

    /// The files of blocks with virtual numbers, and the places of those that are data.
    fn owners(&self) -> HashMap<VBlockNr, (Ino, Option<u64>)> {
        let all = self.files.iter().flat_map(|(ino, blocks)| blocks.iter().map(|it| (*ino, it)));
        all.filter_map(|(ino, it)| Some((it.info.vblock()?, (ino, it.offset())))).collect()
    }

    fn add_generations(&mut self, (scan, device): (&Scan, &dyn Device), newest: LogCursor) {
        let later = scan.logs.iter().filter(|log| log.header.cno > newest.cno);
        let records = later.filter_map(|log| scan.records_of(device, log));
        let mut synced: Vec<_> = records.filter(|records| records.base == newest.cno).collect();
        synced.sort_by_key(|records| records.number);
        for record in synced.iter().flat_map(|records| &records.records) {
            let (ino, generation) = match record {
                Record::Inode(record) => (record.ino, record.generation),
                Record::Content(record) => (record.ino, record.generation),
                _ => continue,
            };
            let first = *self.generations.entry(ino).or_insert(generation);
            if let Record::Inode(record) = record
                && record.generation == first
            {
                self.inodes.entry(ino).or_insert(*record);
            }
        }
    }

    /// The generation that a file of the newest checkpoint had, if an fsync after it tells.
    pub(crate) fn generation(&self, ino: Ino) -> Option<u32> {
        self.generations.get(&ino).copied()
    }

    /// The inode of a file of the newest checkpoint, as an fsync after it has changed it.
    pub(crate) fn synced_inode(&self, ino: Ino) -> Option<&InodeRecord> {
        self.inodes.get(&ino)
    }

    /// The nodes of a file, those first that are of the latest checkpoints. Some blocks, of nodes and of data, may
    /// have been written over, and some belong to files that had the number before.
    pub(crate) fn nodes(&self, ino: Ino) -> &[Logged] {
        let all = self.of(ino);
        &all[..all.partition_point(|it| it.offset().is_none())]
    }

    /// The blocks of data of a file from one on, up to before another, by place; of each place, those
    /// first that are of the latest checkpoints.
    pub(crate) fn data(&self, ino: Ino, from: u64, to: Option<u64>) -> &[Logged] {
        let all = self.of(ino);
        let before = |end: u64| all.partition_point(|it| it.offset() < Some(end));
        let end = to.map_or(all.len(), before);
        &all[before(from).min(end)..end]
    }

    /// When blocks of a file were written last, in seconds.
    pub(crate) fn last_written(&self, ino: Ino) -> u64 {
        self.of(ino).iter().max_by_key(|it| it.written).map_or(0, |it| it.time)
    }

    /// All blocks of a file.
    pub(crate) fn of(&self, ino: Ino) -> &[Logged] {
        self.files.get(&ino).map_or(&[], |blocks| blocks)
    }

    /// The newest block with a virtual number.
    pub(crate) fn with(&self, vblock: VBlockNr) -> Option<&Logged> {
        self.vblocks.get(&vblock)
    }
}

/// A block of which no log tells, and which was written before all others.
fn of_no_log(block: BlockNr, it: &Unclaimed, info: BlockInfo) -> Logged {
    Logged { block, info, since: it.life.start, written: (Seq(0), block), time: 0 }
}

/// Calls `visit` with every block that a log describes, and its file.
pub(crate) fn blocks_of(
    scan: &Scan,
    device: &dyn Device,
    log: &FoundLog,
    visit: &mut dyn FnMut(Ino, Logged),
) {
    let Some(items) = scan.items_of(device, log) else { return };
    let mut block = log.start.plus(log.header.summary_blocks(scan.geometry.block_size));
    for file in &items.files {
        // Files without history may have 0, and are never moved as an older version.
        let since = if file.cno.0 == 0 { log.header.cno } else { file.cno };
        for info in &file.blocks {
            let written = (log.header.seq, block);
            let time = log.header.create;
            visit(file.ino, Logged { block, info: *info, since, written, time });
            block = block.plus(1);
        }
    }
}

/// The user's file whose content lies in a block, and which block of the file it is.
pub(crate) fn content_at(
    scan: &Scan,
    device: &dyn Device,
    block: BlockNr,
    newest: LogCursor,
) -> Option<(Ino, u64)> {
    let mut found = None;
    let after = scan.logs.partition_point(|log| log.start <= block);
    let log = scan.logs[..after].last().filter(|log| log.header.cno <= newest.cno)?;
    blocks_of(scan, device, log, &mut |ino, logged| {
        if logged.block == block && ino >= Ino::FIRST_USER {
            found = logged.offset().map(|offset| (ino, offset));
        }
    });
    found
}

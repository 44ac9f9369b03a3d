//! The checker: what is known of the volume so far, and the order in which more becomes known.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashMap;
use nilfs_ondisk::crc::BlockSum;
use nilfs_ondisk::dat::DatEntry;
use nilfs_ondisk::inode::RawInode;
use nilfs_ondisk::palloc::Palloc;
use nilfs_ondisk::summary::BlockInfo;
use nilfs_ondisk::superblock::Superblock;
use nilfs_ondisk::{BlockNr, Cno, Ino, SegNum, VBlockNr};

use crate::Options;
use crate::bits::Bits;
use crate::block_map::{Leaf, Subtree};
use crate::checkpoints::{CheckpointTable, Selection};
use crate::correction::{Correction, Part, Position};
use crate::dat::Dat;
use crate::files::Files;
use crate::owners::{Owner, Owners, Ownership};
use crate::progress::Step;
use crate::reached::Reached;
use crate::recovery::Newest;
use crate::report::{Added, Counts, Findings, Location, Report, Rule, Severity, counted};
use crate::segment_usage::UsageTable;
use crate::segments::Unproved;
use crate::summaries::Undescribed;
use crate::volume::Volume;

/// Everything that is known while a volume is checked. Each phase is an `impl` block in the module
/// named after what it checks.
pub(crate) struct Checker<'v, 'd> {
    pub(crate) volume: &'v Volume<'d>,
    pub(crate) superblock: &'v Superblock,
    pub(crate) newest: &'v Newest,
    pub(crate) options: &'v Options,
    pub(crate) findings: Findings,
    pub(crate) counts: Counts,
    /// The DAT; empty until it is loaded.
    pub(crate) dat: Arc<Dat>,
    /// Which of its entries the present has reached.
    pub(crate) reached: Reached,
    /// The segments in use; none until all logs are read.
    pub(crate) usage: Arc<UsageTable>,
    /// The start of the segment to write next, if the newest log does not say so itself.
    pub(crate) next: Option<BlockNr>,
    /// How far segments are filled with logs that follow each other, where that was asked.
    pub(crate) filled: HashMap<SegNum, u64>,
    /// Whose the blocks are, by the logs; `None` until all logs are read.
    pub(crate) owners: Option<Arc<Owners>>,
    /// Where among them the last block was found.
    pub(crate) near_run: usize,
    /// What no summary describes, until it is reported; and whose the blocks there are that were
    /// reached.
    pub(crate) undescribed: Vec<Undescribed>,
    /// Where summaries are of logs that were written elsewhere.
    pub(crate) foreign: BTreeSet<BlockNr>,
    pub(crate) undescribed_owners: HashMap<BlockNr, Owner>,
    /// The blocks of each log.
    pub(crate) logs: Vec<Range<BlockNr>>,
    /// Blocks of metadata that are not what was written, with the checksums of that.
    pub(crate) changed_metadata: BTreeMap<BlockNr, BlockSum>,
    /// Logs of which the checksum over the content is wrong, until they are reported.
    pub(crate) unproved: Vec<Unproved>,
    /// Blocks reached before the logs are read, to be compared with them then.
    pub(crate) unowned: Vec<(BlockNr, Owner, Location, Option<Correction>)>,
    /// What is below the nodes of regular files, by virtual block.
    pub(crate) subtrees: HashMap<VBlockNr, Subtree>,
    /// Blocks of directories that cannot be read or are malformed.
    pub(crate) unsound_directory_blocks: HashSet<VBlockNr>,
    /// Whether all of the present was reached, so that what was not reached is leaked.
    pub(crate) present_is_whole: bool,
    /// Checkpoints of which damage hides files or names.
    pub(crate) partly_seen: BTreeSet<Cno>,
}

impl<'v, 'd> Checker<'v, 'd> {
    pub(crate) fn new(
        volume: &'v Volume<'d>,
        superblock: &'v Superblock,
        newest: &'v Newest,
        findings: Findings,
        options: &'v Options,
    ) -> Self {
        Self {
            volume,
            superblock,
            newest,
            options,
            findings,
            counts: Counts::default(),
            dat: Arc::default(),
            reached: Reached::Present(Bits::default()),
            usage: Arc::default(),
            next: None,
            filled: HashMap::new(),
            owners: None,
            near_run: 0,
            undescribed: Vec::new(),
            foreign: BTreeSet::new(),
            undescribed_owners: HashMap::new(),
            logs: Vec::new(),
            changed_metadata: BTreeMap::new(),
            unproved: Vec::new(),
            unowned: Vec::new(),
            subtrees: HashMap::new(),
            unsound_directory_blocks: HashSet::new(),
            present_is_whole: true,
            partly_seen: BTreeSet::new(),
        }
    }

    /// Checks the volume.
    pub(crate) fn run(mut self) -> Report {
        self.load_dat();
        let usage = self.load_segment_usage();
        self.read_logs(&usage);
        self.load_dat_entries();
        self.pass_over_stale_summaries();
        self.check_segment_usage(&usage);
        self.usage = Arc::new(usage);
        self.extend_segments(|entry| entry.end == Cno::MAX);
        self.compare_unowned();
        let checkpoints = self.load_checkpoints();
        self.extend_segments(|entry| checkpoints.any_in(entry.start, entry.end));
        let Selection { walked, left_out } = checkpoints.select(self.newest.cno, self.options);
        if left_out > 0 {
            self.note(Rule::NotChecked, Location::VOLUME, || {
                format!("not walked: the trees of {}", counted(left_out, "checkpoint"))
            });
        }
        let geometry = &self.volume.geometry;
        let mut files = Files::new(Palloc::new(geometry.block_size, geometry.inode_size));
        let volume = self.volume;
        let (newest, past) = walked
            .split_at(usize::from(walked.first().is_some_and(|(cno, _)| *cno == self.newest.cno)));
        volume.reading_ahead(self.blocks_of_inodes(&files.layout), || {
            self.check_dat_entries(&checkpoints);
            for (cno, entry) in newest {
                self.check_checkpoint(&mut files, *cno, entry, &checkpoints);
            }
        });
        volume.reading_ahead(self.blocks_of_past(&files, &checkpoints), || {
            for (nth, (cno, entry)) in (0..).zip(past) {
                self.options.observer.observe(Step::Checkpoints, nth, past.len() as u64);
                self.check_checkpoint(&mut files, *cno, entry, &checkpoints);
            }
        });
        let all = past.len() as u64;
        self.options.observer.observe(Step::Checkpoints, all, all);
        self.find_leaks();
        self.find_changed_metadata();
        self.report_unproved(&checkpoints, left_out == 0);
        let unclaimed = self.report_undescribed(&checkpoints, left_out == 0);
        let past = checkpoints.all_past(self.newest.cno);
        let report = self.findings.into_report(self.newest.cursor(), self.counts, &past);
        Report {
            changed_metadata: self.changed_metadata,
            partly_seen: self.partly_seen,
            unclaimed,
            ..report
        }
    }

    /// The blocks of the newest checkpoint's ifile and of all nodes, about as its inodes lead to them.
    fn blocks_of_inodes(&self, layout: &Palloc) -> Vec<BlockNr> {
        let inode = |owner: &Owner| match owner.info {
            BlockInfo::Data { offset, .. } => offset.0.saturating_mul(layout.entries_per_block),
            _ => owner.ino.0,
        };
        self.blocks_in_order(
            |owner| owner.ino == Ino::IFILE || owner.info.is_node(),
            |owner, entry| (entry.end == Cno::MAX).then(|| inode(owner)),
        )
    }

    /// The blocks of ifiles, nodes and directories that the newest checkpoint has no more, as one comes
    /// from each checkpoint to the one before it.
    pub(crate) fn blocks_of_past(
        &self,
        files: &Files,
        checkpoints: &CheckpointTable,
    ) -> Vec<BlockNr> {
        self.blocks_in_order(
            |owner| {
                owner.ino == Ino::IFILE
                    || owner.info.is_node()
                    || files.inode(owner.ino).is_directory()
            },
            |_, entry| checkpoints.any_in(entry.start, entry.end).then_some(Reverse(entry.end)),
        )
    }

    /// The blocks of such owners that have a place in an order.
    fn blocks_in_order<Order: Ord>(
        &self,
        is_wanted: impl Fn(&Owner) -> bool,
        order: impl Fn(&Owner, DatEntry) -> Option<Order>,
    ) -> Vec<BlockNr> {
        let all = self.owners.iter().flat_map(|owners| owners.blocks(&is_wanted));
        let place = |(block, owner): (BlockNr, Owner)| {
            let entry =
                self.dat.entry(owner.info.vblock()?).filter(|entry| entry.block == block)?;
            Some((order(&owner, entry)?, block))
        };
        let mut blocks: Vec<_> = all.filter_map(place).collect();
        blocks.sort_unstable();
        blocks.into_iter().map(|(_, block)| block).collect()
    }

    /// Reports a broken rule.
    pub(crate) fn error(
        &mut self,
        rule: Rule,
        place: Location,
        message: impl FnOnce() -> String,
    ) -> Added<'_> {
        self.findings.add(Severity::Error, rule, place, message)
    }

    /// Reports something unusual.
    pub(crate) fn warning(
        &mut self,
        rule: Rule,
        place: Location,
        message: impl FnOnce() -> String,
    ) -> Added<'_> {
        self.findings.add(Severity::Warning, rule, place, message)
    }

    /// Reports something worth knowing.
    pub(crate) fn note(&mut self, rule: Rule, place: Location, message: impl FnOnce() -> String) {
        self.findings.add(Severity::Note, rule, place, message);
    }

    /// Reads a block of data, all of which is metadata, or reports that it cannot be read.
    pub(crate) fn read_leaf(&mut self, file: FileAt, leaf: &Leaf) -> Option<Vec<u8>> {
        let place = file.place().file_block(leaf.key).block(leaf.block);
        match self.volume.block(leaf.block) {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                let anew = self.anew(file, leaf);
                self.error(Rule::Readable, place, || error.to_string()).corrected_by([anew]);
                None
            }
        }
    }

    /// What makes a block of data anew.
    pub(crate) fn anew(&self, file: FileAt, leaf: &Leaf) -> Correction {
        let Leaf { key, vblock, block } = *leaf;
        let limit = key.checked_add(1);
        Correction::Block {
            block,
            part: Part { ino: file.ino, level: 0, key, limit, life: self.dat.life_of(vblock) },
        }
    }

    /// Where the inodes of the DAT (0), the cpfile (1) and the sufile (2) are in the super root.
    pub(crate) fn in_super_root(&self, nth: usize) -> Position {
        let last = self.newest.log.plus(u64::from(self.newest.header.nblocks) - 1);
        Position::new(last, 16 + nth * self.volume.geometry.inode_size)
    }

    /// Reads a block, or reports that it cannot be read.
    pub(crate) fn read(&mut self, block: BlockNr, place: Location) -> Option<Vec<u8>> {
        match self.volume.block(block) {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                self.error(Rule::Readable, place.block(block), || error.to_string());
                None
            }
        }
    }

    /// Compares what reached a block with what the log says about it. `false` if they disagree,
    /// so that nothing below the block can be trusted. `cure` puts right what has led here.
    pub(crate) fn belongs(
        &mut self,
        block: BlockNr,
        owner: Owner,
        place: Location,
        cure: Option<Correction>,
    ) -> bool {
        let Some(owners) = &self.owners else {
            self.unowned.push((block, owner, place, cure));
            return true;
        };
        match owners.written(block, &mut self.near_run).0 {
            Ownership::Of(found) if found == owner => true,
            // The log that describes the block is damaged, which is reported there.
            Ownership::Unknown => {
                self.undescribed_owners.entry(block).or_insert(owner);
                true
            }
            other => {
                let corrections = match other {
                    Ownership::Nobody(_) => self.in_use_up_to(block),
                    _ => Vec::new(),
                };
                self.error(Rule::Owner, place.block(block), || {
                    format!("reached as {owner}, but {other}")
                })
                .corrected_by(corrections.into_iter().chain(cure));
                false
            }
        }
    }

    /// Compares the blocks that were reached before the logs were read.
    fn compare_unowned(&mut self) {
        for (block, owner, place, cure) in std::mem::take(&mut self.unowned) {
            self.present_is_whole &= self.belongs(block, owner, place, cure);
        }
    }
}

/// The owner of a block of any file but the DAT, as a block map claims it.
pub(crate) fn virtual_owner(ino: Ino, vblocknr: VBlockNr, key: u64, level: u8) -> Owner {
    let info = if level == 0 {
        BlockInfo::Data { vblocknr, offset: nilfs_ondisk::FileBlock(key) }
    } else {
        BlockInfo::Node { vblocknr }
    };
    Owner { ino, info }
}

/// The file whose block map is walked, and for which checkpoint.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileAt {
    pub(crate) ino: Ino,
    pub(crate) cno: Cno,
    /// Whether the file is part of the present: of the newest checkpoint or a metadata file.
    pub(crate) present: bool,
    /// Where its inode is, if that is known.
    pub(crate) inode_at: Option<Position>,
}

impl FileAt {
    /// The checkpoints that are known to have what the inode has.
    pub(crate) fn life(&self) -> Range<Cno> {
        self.cno..if self.present { Cno::MAX } else { self.cno.plus(1) }
    }

    /// All of the file, of which no level is known.
    pub(crate) fn whole(&self) -> Part {
        Part { ino: self.ino, level: 0, key: 0, limit: None, life: self.life() }
    }

    /// What finds blocks that the map has lost, given where the inode is.
    pub(crate) fn unmapped(&self, inode_at: Position) -> Correction {
        let root = inode_at.plus(offset_of!(RawInode, i_bmap));
        Correction::Unmapped { root, part: self.whole() }
    }

    /// Where it is: for users' files and the ifile also in which checkpoint.
    pub(crate) fn place(&self) -> Location {
        let place = Location::file(self.ino);
        if matches!(self.ino, Ino::DAT | Ino::CPFILE | Ino::SUFILE) {
            return place;
        }
        Location { checkpoint: Some(self.cno), ..place }
    }
}

//! Whose the blocks are, by what the logs say: the map against which every pointer is compared.

use std::fmt;
use std::ops::Range;

use hashbrown::HashMap;
use nilfs_ondisk::summary::{BlockInfo, FileInfo, LogHeader, SR};
use nilfs_ondisk::{BlockNr, Cno, Geometry, Ino, SegNum};

/// The file that a block was written for, and its place there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) ino: Ino,
    pub(crate) info: BlockInfo,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ino = self.ino;
        match self.info {
            BlockInfo::Data { vblocknr, offset } => {
                write!(f, "block {offset} of inode {ino} (virtual block {vblocknr})")
            }
            BlockInfo::Node { vblocknr } => {
                write!(f, "a B-tree node of inode {ino} (virtual block {vblocknr})")
            }
            BlockInfo::DatData { offset } => write!(f, "block {offset} of the DAT"),
            BlockInfo::DatNode { key, level } => {
                write!(f, "a B-tree node of the DAT (level {level}, key {key})")
            }
        }
    }
}

/// What the logs say about a block.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ownership {
    /// It was written for a file.
    Of(Owner),
    /// It belongs to no file, and why.
    Nobody(&'static str),
    /// No summary that can be used describes it.
    Unknown,
}

impl fmt::Display for Ownership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Of(owner) => write!(f, "its log says it is {owner}"),
            Self::Nobody(why) => f.write_str(why),
            Self::Unknown => f.write_str("its log is damaged"),
        }
    }
}

/// The owners of all blocks in use.
pub(crate) struct Owners {
    geometry: Geometry,
    segments: HashMap<SegNum, SegmentOwners>,
}

/// The owners of the blocks of a segment, from its first block on.
pub(crate) struct SegmentOwners {
    /// The file and `fi_cno` of each finfo of the segment.
    files: Vec<(Ino, Cno)>,
    /// Most blocks follow the one before in the file, too, so that only every now and then one has
    /// to be kept. The first block of each run, counted from the start of the segment, stands by
    /// itself: all of them are looked through for each block.
    firsts: Vec<u32>,
    runs: Vec<Run>,
    /// Blocks that are described, or passed over.
    described: u32,
    /// Those that were passed over.
    gaps: Vec<Range<u32>>,
    /// Blocks in use by `su_nblocks`; more than are described if a log is damaged.
    in_use: u64,
}

/// Blocks of a segment that follow each other in their file.
#[derive(Debug, Clone, Copy)]
struct Run {
    /// The place in `files`.
    file: u32,
    /// What the first block is in the file; `None` for blocks of summaries and super roots.
    info: Option<BlockInfo>,
}

impl Run {
    /// The owner of a block of the run, counted from its first.
    fn owner_of(&self, nth: u32) -> Option<(u32, BlockInfo)> {
        let nth = u64::from(nth);
        let info = match self.info? {
            BlockInfo::Data { vblocknr, offset } => {
                BlockInfo::Data { vblocknr: vblocknr.plus(nth), offset: offset.plus(nth) }
            }
            BlockInfo::Node { vblocknr } => BlockInfo::Node { vblocknr: vblocknr.plus(nth) },
            BlockInfo::DatData { offset } => BlockInfo::DatData { offset: offset.plus(nth) },
            node @ BlockInfo::DatNode { .. } => node,
        };
        Some((self.file, info))
    }
}

impl SegmentOwners {
    /// For a segment with `in_use` blocks, none of them described so far.
    pub(crate) fn new(in_use: u64) -> Self {
        Self {
            files: Vec::new(),
            firsts: Vec::new(),
            runs: Vec::new(),
            described: 0,
            gaps: Vec::new(),
            in_use,
        }
    }

    /// Blocks in use, from the start of the segment on.
    pub(crate) fn in_use(&self) -> u64 {
        self.in_use
    }

    /// Blocks in use that are not described yet, given the first of the segment.
    pub(crate) fn undescribed(&self, start: BlockNr) -> Range<BlockNr> {
        start.plus(self.described.into())..start.plus(self.in_use)
    }

    /// Counts as many blocks as in use.
    pub(crate) fn extend(&mut self, in_use: u64) {
        self.in_use = in_use;
    }

    /// Passes over the next blocks, of which no summary says whose they are.
    pub(crate) fn pass_over(&mut self, count: u32) {
        let first = self.described;
        self.add_blocks(count, None);
        self.gaps.push(first..self.described);
    }

    /// Takes back whose these blocks are, counted from the start of the segment.
    pub(crate) fn forget(&mut self, blocks: Range<u32>) {
        let known = std::mem::replace(self, Self::new(self.in_use));
        for (run, range) in known.runs() {
            for block in range.clone() {
                let owner = run.owner_of(block - range.start);
                self.add_blocks(1, owner.filter(|_| !blocks.contains(&block)));
            }
        }
        (self.files, self.gaps) = (known.files, known.gaps);
        self.gaps.push(blocks);
    }

    fn is_in_gap(&self, block: u32) -> bool {
        self.gaps.iter().any(|gap| gap.contains(&block))
    }

    /// Adds the blocks of the next log, whose counts are known to be consistent.
    pub(crate) fn add(&mut self, header: &LogHeader, files: &[FileInfo]) {
        let payload: usize = files.iter().map(|file| file.blocks.len()).sum();
        let summary = header.nblocks - payload as u32 - u32::from(header.has(SR));
        self.add_blocks(summary, None);
        for file in files {
            let nth = self.files.len() as u32;
            self.files.push((file.ino, file.cno));
            for info in &file.blocks {
                self.add_blocks(1, Some((nth, *info)));
            }
        }
        self.add_blocks(u32::from(header.has(SR)), None);
    }

    /// Gives back the memory for what might have been added.
    fn shrink(&mut self) {
        self.files.shrink_to_fit();
        self.firsts.shrink_to_fit();
        self.runs.shrink_to_fit();
    }

    fn add_blocks(&mut self, count: u32, owner: Option<(u32, BlockInfo)>) {
        let first = self.described;
        let last = self.runs.last().zip(self.firsts.last());
        let follows = last.is_some_and(|(run, start)| match run.info {
            // A node of the DAT follows nothing: it has no number.
            Some(BlockInfo::DatNode { .. }) => false,
            _ => run.owner_of(first - start) == owner,
        });
        if count > 0 && !follows {
            let (file, info) = owner.unzip();
            self.firsts.push(first);
            self.runs.push(Run { file: file.unwrap_or(0), info });
        }
        self.described += count;
    }

    /// All runs, and which blocks they are, counted from the start of the segment.
    fn runs(&self) -> impl Iterator<Item = (&Run, Range<u32>)> {
        let ends = self.firsts.iter().skip(1).copied().chain([self.described]);
        self.runs.iter().zip(self.firsts.iter().zip(ends).map(|(first, end)| *first..end))
    }

    /// The owner of a block that is described; `None` for blocks of summaries and super roots.
    fn owner_of(&self, block: u32, near: &mut usize) -> Option<(u32, BlockInfo)> {
        let begins = |nth: usize| self.firsts.get(nth).is_some_and(|first| *first <= block);
        let nth = [*near, *near + 1].into_iter().find(|nth| begins(*nth) && !begins(*nth + 1));
        let search = || self.firsts.partition_point(|first| *first <= block).checked_sub(1);
        *near = nth.or_else(search)?;
        self.runs[*near].owner_of(block - self.firsts[*near])
    }
}

impl Owners {
    pub(crate) fn new(geometry: Geometry) -> Self {
        Self { geometry, segments: HashMap::new() }
    }

    pub(crate) fn insert(&mut self, segment: SegNum, mut owners: SegmentOwners) {
        owners.shrink();
        self.segments.insert(segment, owners);
    }

    /// The owners of the blocks of a segment in use.
    pub(crate) fn segment_mut(&mut self, segment: SegNum) -> Option<&mut SegmentOwners> {
        self.segments.get_mut(&segment)
    }

    /// The blocks of such files in segments in use. Blocks that follow each other, of the same kind and
    /// file, are asked for once.
    pub(crate) fn blocks(
        &self,
        is_wanted: impl Fn(&Owner) -> bool,
    ) -> impl Iterator<Item = (BlockNr, Owner)> {
        let segments = self.segments.iter();
        let runs = segments.flat_map(|(segment, owners)| {
            let start = self.geometry.segment_start(*segment);
            owners.runs().map(move |(run, blocks)| (start, owners, run, blocks))
        });
        let owner = |owners: &SegmentOwners, run: &Run, nth| {
            let (file, info) = run.owner_of(nth)?;
            Some(Owner { ino: owners.files[file as usize].0, info })
        };
        let wanted = runs.filter(move |(_, owners, run, _)| {
            owner(owners, run, 0).is_some_and(|owner| is_wanted(&owner))
        });
        wanted.flat_map(move |(start, owners, run, blocks)| {
            let first = blocks.start;
            blocks.filter_map(move |block| {
                Some((start.plus(block.into()), owner(owners, run, block - first)?))
            })
        })
    }

    /// Whose a block is.
    pub(crate) fn of(&self, block: BlockNr) -> Ownership {
        self.written(block, &mut 0).0
    }

    /// Whose a block is, and in which checkpoint it was written first (`fi_cno`). `near` is the run of
    /// the block that was asked for before: most often, the next one lies there or in the run after it.
    pub(crate) fn written(&self, block: BlockNr, near: &mut usize) -> (Ownership, Cno) {
        let nobody = |why| (Ownership::Nobody(why), Cno(0));
        let segment = self.geometry.segment_of(block);
        if !self.geometry.has_block(block) {
            return nobody("the block lies outside of all segments");
        }
        let Some(owners) = self.segments.get(&segment) else {
            return nobody("the segment of the block is not in use");
        };
        let nth = block.0 - self.geometry.segment_start(segment).0;
        let described = u32::try_from(nth).ok().filter(|nth| *nth < owners.described);
        if described.is_some_and(|nth| owners.is_in_gap(nth)) {
            return (Ownership::Unknown, Cno(0));
        }
        match described.map(|nth| owners.owner_of(nth, near)) {
            Some(Some((file, info))) => {
                let (ino, cno) = owners.files[file as usize];
                (Ownership::Of(Owner { ino, info }), cno)
            }
            Some(None) => nobody("the block is a segment summary or a super root"),
            None if nth < owners.in_use => (Ownership::Unknown, Cno(0)),
            None => nobody("the block lies after the last log of its segment"),
        }
    }
}

//! Whose the blocks are, by what the logs say: the map against which every pointer is compared.

use std::collections::HashMap;
use std::fmt;

use nilfs_ondisk::summary::{BlockInfo, FileInfo, LogHeader, SR};
use nilfs_ondisk::{BlockNr, Cno, Geometry, Ino, SegNum, VBlockNr};

/// The file that a block was written for, and its place there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) ino: Ino,
    pub(crate) info: BlockInfo,
}

impl Owner {
    /// The virtual block, unless the block is the DAT's.
    pub(crate) fn vblock(&self) -> Option<VBlockNr> {
        match self.info {
            BlockInfo::Data { vblocknr, .. } | BlockInfo::Node { vblocknr } => Some(vblocknr),
            BlockInfo::DatData { .. } | BlockInfo::DatNode { .. } => None,
        }
    }
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
    /// It lies after a damaged log.
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
    /// Location in `files` and the block there; `None` for blocks of summaries and super roots.
    blocks: Vec<Option<(u32, BlockInfo)>>,
    /// Blocks in use by `su_nblocks`; more than are described if a log is damaged.
    in_use: u64,
}

impl SegmentOwners {
    /// For a segment with `in_use` blocks, none of them described so far.
    pub(crate) fn new(in_use: u64) -> Self {
        Self { files: Vec::new(), blocks: Vec::new(), in_use }
    }

    /// Adds the blocks of the next log, whose counts are known to be consistent.
    pub(crate) fn add(&mut self, header: &LogHeader, files: &[FileInfo]) {
        let end = self.blocks.len() + header.nblocks as usize;
        let payload: usize = files.iter().map(|file| file.blocks.len()).sum();
        let summary = header.nblocks as usize - payload - usize::from(header.has(SR));
        self.blocks.resize(self.blocks.len() + summary, None);
        for file in files {
            let nth = self.files.len() as u32;
            self.files.push((file.ino, file.cno));
            self.blocks.extend(file.blocks.iter().map(|info| Some((nth, *info))));
        }
        self.blocks.resize(end, None);
    }
}

impl Owners {
    pub(crate) fn new(geometry: Geometry) -> Self {
        Self { geometry, segments: HashMap::new() }
    }

    pub(crate) fn insert(&mut self, segment: SegNum, owners: SegmentOwners) {
        self.segments.insert(segment, owners);
    }

    /// Whose a block is.
    pub(crate) fn of(&self, block: BlockNr) -> Ownership {
        self.written(block).0
    }

    /// Whose a block is, and in which checkpoint it was written first (`fi_cno`).
    pub(crate) fn written(&self, block: BlockNr) -> (Ownership, Cno) {
        let nobody = |why| (Ownership::Nobody(why), Cno(0));
        let segment = self.geometry.segment_of(block);
        if !self.geometry.has_block(block) {
            return nobody("the block lies outside of all segments");
        }
        let Some(owners) = self.segments.get(&segment) else {
            return nobody("the segment of the block is not in use");
        };
        let nth = block.0 - self.geometry.segment_start(segment).0;
        match usize::try_from(nth).ok().and_then(|nth| owners.blocks.get(nth)) {
            Some(Some((file, info))) => {
                let (ino, cno) = owners.files[*file as usize];
                (Ownership::Of(Owner { ino, info: *info }), cno)
            }
            Some(None) => nobody("the block is a segment summary or a super root"),
            None if nth < owners.in_use => (Ownership::Unknown, Cno(0)),
            None => nobody("the block lies after the last log of its segment"),
        }
    }
}

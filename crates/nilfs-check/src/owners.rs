//! Whose the blocks are, by what the logs say: the map against which every pointer is compared.

use std::collections::HashMap;
use std::fmt;

use nilfs_ondisk::summary::BlockInfo;
use nilfs_ondisk::{BlockNr, Geometry, Ino, SegNum, VBlockNr};

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
                write!(
                    f,
                    "block {offset} of inode {ino} (virtual block {vblocknr})"
                )
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
    /// It lies behind a damaged log.
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
#[derive(Default)]
pub(crate) struct SegmentOwners {
    /// `None` for blocks of summaries and super roots.
    pub(crate) blocks: Vec<Option<Owner>>,
    /// Blocks in use by `su_nblocks`; more than are described if a log is damaged.
    pub(crate) in_use: u64,
}

impl Owners {
    pub(crate) fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            segments: HashMap::new(),
        }
    }

    pub(crate) fn insert(&mut self, segment: SegNum, owners: SegmentOwners) {
        self.segments.insert(segment, owners);
    }

    /// Whose a block is.
    pub(crate) fn of(&self, block: BlockNr) -> Ownership {
        let segment = self.geometry.segment_of(block);
        if !self.geometry.has_block(block) {
            return Ownership::Nobody("the block lies outside of all segments");
        }
        let Some(owners) = self.segments.get(&segment) else {
            return Ownership::Nobody("the segment of the block is not in use");
        };
        let nth = block.0 - self.geometry.segment_start(segment).0;
        match usize::try_from(nth)
            .ok()
            .and_then(|nth| owners.blocks.get(nth))
        {
            Some(Some(owner)) => Ownership::Of(*owner),
            Some(None) => Ownership::Nobody("the block is a segment summary or a super root"),
            None if nth < owners.in_use => Ownership::Unknown,
            None => Ownership::Nobody("the block lies behind the last log of its segment"),
        }
    }
}

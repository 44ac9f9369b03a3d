//! What would put a fault right, where that follows from the rest of the volume. Nothing is
//! written here, and nothing is known of how a volume is repaired.

use std::fmt;
use std::ops::Range;

use nilfs_ondisk::inode::FileType;
use nilfs_ondisk::summary::{FileInfo, NewLog};
use nilfs_ondisk::{BlockNr, Cno, Ino, SegNum, Seq, VBlockNr};

/// A change after which the volume keeps the rule that a finding is about.
///
/// Blocks of the log are never written in place. A correction says what a block should be, so that
/// it can be written so to another place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Correction {
    /// Both copies of the superblock are written anew, from the one that counts: with the newest
    /// log, and without the mark of an error.
    Superblocks,
    /// A bit of `s_feature_compat_ro` is set or cleared, in both copies of the superblock.
    Feature {
        /// The bit.
        bit: u64,
        /// Whether it should be set.
        set: bool,
    },
    /// Logs after the newest checkpoint cannot be rolled forward: a mount would fail. What fsyncs have
    /// made durable by them is to be given up.
    SyncLogs {
        /// The first block of the log that was found wrong.
        log: BlockNr,
    },
    /// Bytes of a block are replaced.
    Bytes {
        /// Where they are.
        at: Position,
        /// What they should be.
        bytes: Vec<u8>,
    },
    /// A number that only counts or repeats what is said elsewhere is replaced. It is to be corrected
    /// after that.
    Count {
        /// Where it is.
        at: Position,
        /// What it should be, as it is stored.
        bytes: Vec<u8>,
    },
    /// A bit of a bitmap is set or cleared.
    Bit {
        /// The byte with the bit.
        at: Position,
        /// Which of its bits, from the least significant.
        bit: u8,
        /// Whether it should be set.
        set: bool,
    },
    /// The summary of a log cannot be used. It is to be written anew.
    Summary {
        /// Where the log begins.
        at: BlockNr,
        /// What its header says.
        header: NewLog,
        /// What its blocks are.
        files: Vec<FileInfo>,
        /// Blocks after the summary.
        payload: u64,
        /// Whether it is known of all that lives there whose it is. If not, it may come to light when other
        /// things are corrected, and nothing else is lost by waiting for that.
        is_complete: bool,
    },
    /// What lives in a segment is to be moved elsewhere, so that it becomes clean: its logs contradict
    /// others, and nothing is wrong with their blocks.
    Segment {
        /// The segment.
        segment: SegNum,
    },
    /// The newest log says something else about its segment than the logs before it there. It is to be
    /// set to what these say, and superblocks that name the log with it.
    Succession {
        /// The first block of the log.
        log: BlockNr,
        /// The sequence number of the segment.
        seq: Seq,
        /// The start of the segment that follows.
        next: BlockNr,
    },
    /// Blocks of a log are not known to be what was written, and checkpoints need them. What is there is to
    /// count as right from now on, which only the owner of the volume can decide.
    Accept {
        /// The first block of the log.
        log: BlockNr,
    },
    /// A block cannot be used as it is. It is to be made anew from what the logs and the rest of the
    /// volume say.
    Block {
        /// The block.
        block: BlockNr,
        /// What it is.
        part: Part,
    },
    /// A DAT entry does not lead to its virtual block. It is to be what the logs say, or free if they
    /// say nothing.
    DatEntry {
        /// Where it is.
        at: Position,
        /// The virtual block.
        vblock: VBlockNr,
        /// The byte of the bitmap that says whether it is in use, and which bit of that.
        bit: (Position, u8),
    },
    /// A DAT entry and the log of its block name different checkpoints as the first that has the block.
    /// The one that contradicts the rest of the log is to be set to the other.
    Start {
        /// Where the entry says so.
        at: Position,
        /// The virtual block.
        vblock: VBlockNr,
        /// What the log says.
        written: Cno,
    },
    /// A checkpoint of the past cannot be used. It is to be given up.
    Checkpoint {
        /// Where its flags are.
        at: Position,
    },
    /// A pointer of a block map is wrong. It is to lead to what the logs say is there, or to go.
    Pointer {
        /// What has the pointer.
        holder: Holder,
        /// What it should lead to.
        part: Part,
    },
    /// A block map may have lost blocks that are there. Those that the logs have for the file, and that
    /// live as long as it does, are to be put where nothing is.
    Unmapped {
        /// Where the root of the map is.
        root: Position,
        /// All of the file; the level is unknown.
        part: Part,
    },
    /// The root of a block map is nonsense. It is to be made anew from what the logs say.
    Root {
        /// Where the root is.
        at: Position,
        /// All of the file; the level is unknown.
        part: Part,
    },
    /// An inode is nonsense. It is to be made anew from what the logs say.
    Inode {
        /// Where the inode is.
        at: Position,
        /// All of the file; the level is unknown.
        part: Part,
    },
    /// An inode has another type than it should have by its name, or as the root directory. The one
    /// that contradicts more of the rest is to be set to the other.
    FileType {
        /// Where the inode is.
        inode: Position,
        /// All of the file; the level is unknown.
        part: Part,
        /// The type that it should have.
        claimed: FileType,
        /// The reason for it.
        claim: TypeClaim,
    },
}

impl Correction {
    /// Returns the part of a file that is to be made anew, or to which something leads anew.
    #[must_use]
    pub fn part(&self) -> Option<&Part> {
        match self {
            Self::Block { part, .. }
            | Self::Pointer { part, .. }
            | Self::Unmapped { part, .. }
            | Self::Root { part, .. }
            | Self::Inode { part, .. }
            | Self::FileType { part, .. } => Some(part),
            _ => None,
        }
    }
}

/// Claim that an inode has a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TypeClaim {
    /// The format: it is the root directory.
    Root,
    /// A name that leads to it.
    Name {
        /// Where its record has the type.
        at: Position,
        /// How many names lead to the inode.
        names: u32,
        /// Whether all of them claim the same type.
        agreed: bool,
    },
}

/// A part of a file, by its place in the block map.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Part {
    /// The file.
    pub ino: Ino,
    /// The level of the B-tree node; 0 for data.
    pub level: u8,
    /// The first block of the file that is part of it; of data, the only one.
    pub key: u64,
    /// The first block of the file that is no part of it any more.
    pub limit: Option<u64>,
    /// The checkpoints that have it. Of the DAT, they mean nothing.
    pub life: Range<Cno>,
}

/// What has the pointers of a block map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Holder {
    /// The root, which is in an inode.
    Root(Position),
    /// A node.
    Node(BlockNr),
}

/// A byte of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The block.
    pub block: BlockNr,
    /// Bytes from its start.
    pub offset: usize,
}

impl Position {
    pub(crate) fn new(block: BlockNr, offset: usize) -> Self {
        Self { block, offset }
    }

    /// The position some bytes further on in the block.
    pub(crate) fn plus(self, bytes: usize) -> Self {
        Self { offset: self.offset + bytes, ..self }
    }
}

impl Correction {
    /// A count of two bytes should have this value.
    pub(crate) fn count_u16(at: Position, value: u16) -> Self {
        Self::Count { at, bytes: value.to_le_bytes().to_vec() }
    }

    /// A field of four bytes should have this value.
    pub(crate) fn u32(at: Position, value: u32) -> Self {
        Self::Bytes { at, bytes: value.to_le_bytes().to_vec() }
    }

    /// A field of eight bytes should have this value.
    pub(crate) fn u64(at: Position, value: u64) -> Self {
        Self::Bytes { at, bytes: value.to_le_bytes().to_vec() }
    }

    /// A count of four bytes should have this value.
    pub(crate) fn count_u32(at: Position, value: u32) -> Self {
        Self::Count { at, bytes: value.to_le_bytes().to_vec() }
    }

    /// A count of eight bytes should have this value.
    pub(crate) fn count_u64(at: Position, value: u64) -> Self {
        Self::Count { at, bytes: value.to_le_bytes().to_vec() }
    }

    /// A bit of a bitmap that begins at a position should be set or not.
    pub(crate) fn bit(bitmap: Position, bit: usize, set: bool) -> Self {
        Self::Bit { at: bitmap.plus(bit / 8), bit: (bit % 8) as u8, set }
    }
}

impl fmt::Display for Correction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Superblocks => f.write_str("write both superblocks anew"),
            Self::Feature { set: true, .. } => f.write_str("set the bit in both superblocks"),
            Self::Feature { set: false, .. } => f.write_str("clear the bit in both superblocks"),
            Self::SyncLogs { .. } => f.write_str("give up what cannot be rolled forward"),
            Self::Bytes { bytes, .. } | Self::Count { bytes, .. } => match bytes[..] {
                // Numbers of the format have these sizes.
                [_] | [_, _] | [_, _, _, _] | [_, _, _, _, _, _, _, _] => {
                    let number =
                        bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
                    write!(f, "set it to {number}")
                }
                _ => write!(f, "replace {} bytes", bytes.len()),
            },
            Self::Summary { .. } => {
                f.write_str("make the summary anew from what leads to the blocks of the log")
            }
            Self::Segment { segment } => {
                write!(f, "move what lives in segment {segment} elsewhere")
            }
            Self::Succession { seq, next, .. } => {
                write!(f, "set ss_seq to {seq} and ss_next to {next}, as before in the segment")
            }
            Self::Accept { .. } => f.write_str("take what is there for what was written"),
            Self::Block { .. } => f.write_str("make the block anew from what the logs say"),
            Self::DatEntry { .. } => f.write_str("set the entry to what the logs say"),
            Self::Start { .. } => f.write_str("set it to what the rest of the log says"),
            Self::Checkpoint { .. } => f.write_str("give up the checkpoint"),
            Self::Pointer { .. } => f.write_str("set the pointer to what the logs say"),
            Self::Unmapped { .. } => {
                f.write_str("put blocks into the map that the logs have for it")
            }
            Self::Root { .. } => f.write_str("make the root anew from what the logs say"),
            Self::FileType { .. } => f.write_str("set the type to the one that the rest confirms"),
            Self::Inode { .. } => f.write_str("make the inode anew from what the logs say"),
            Self::Bit { set: true, .. } => f.write_str("mark it as allocated"),
            Self::Bit { set: false, .. } => f.write_str("mark it as free"),
        }
    }
}

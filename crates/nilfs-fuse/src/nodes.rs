//! The numbers by which the kernel knows files.

use nilfs_ondisk::Ino;

/// A file as the kernel names it: a file of the present by its inode number, except for the root,
/// which FUSE calls 1; a file of the past by a number that was handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct NodeId(pub u64);

/// No inode of a volume has a number as large.
const PAST: u64 = 1 << 63;

impl NodeId {
    /// The root directory.
    pub const ROOT: NodeId = NodeId(1);

    /// A file of the past.
    pub fn past(number: u64) -> Self {
        Self(PAST | number)
    }

    /// Whether this is a file of the past.
    pub fn is_past(self) -> bool {
        self.0 & PAST != 0
    }

    /// The inode number on the volume, of a file of the present.
    pub fn ino(self) -> Ino {
        if self == Self::ROOT { Ino::ROOT } else { Ino(self.0) }
    }
}

impl From<Ino> for NodeId {
    fn from(ino: Ino) -> Self {
        if ino == Ino::ROOT { Self::ROOT } else { Self(ino.0) }
    }
}

//! The numbers by which the kernel knows inodes.

use nilfs_ondisk::Ino;

/// An inode as the kernel names it: the inode number, except for the root, which FUSE calls 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeId(pub u64);

impl NodeId {
    /// The root directory.
    pub const ROOT: NodeId = NodeId(1);

    /// The inode number on the volume.
    pub fn ino(self) -> Ino {
        if self == Self::ROOT { Ino::ROOT } else { Ino(self.0) }
    }
}

impl From<Ino> for NodeId {
    fn from(ino: Ino) -> Self {
        if ino == Ino::ROOT { Self::ROOT } else { Self(ino.0) }
    }
}

//! The numbers by which the kernel knows files.

use nilfs_ondisk::Ino;

/// A file as the kernel names it: a file of the present by its inode number, except for the root,
/// which FUSE calls 1; a file of the past by its inode number and a number that says where in the
/// past it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeId(pub u64);

/// Says where in the past a file is. At most [`PastNr::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PastNr(pub u32);

impl PastNr {
    /// The largest one.
    pub const MAX: u32 = u32::MAX >> 1;
}

/// No inode of a volume has a number as large.
const PAST: u64 = 1 << 63;

impl NodeId {
    /// The root directory.
    pub const ROOT: NodeId = NodeId(1);

    /// A file of the past.
    pub(crate) fn past(nr: PastNr, ino: u32) -> Self {
        Self(PAST | u64::from(nr.0) << 32 | u64::from(ino))
    }

    /// Whether this is a file of the past.
    pub(crate) fn is_past(self) -> bool {
        self.0 & PAST != 0
    }

    /// Where a file of the past is, and its inode number.
    pub(crate) fn in_past(self) -> (PastNr, Ino) {
        let nr = (self.0 & !PAST) >> 32;
        (PastNr(nr as u32), Ino(self.0 & u64::from(u32::MAX)))
    }

    /// The inode number on the volume, of a file of the present.
    #[must_use]
    pub fn ino(self) -> Ino {
        if self == Self::ROOT { Ino::ROOT } else { Ino(self.0) }
    }
}

impl From<Ino> for NodeId {
    fn from(ino: Ino) -> Self {
        if ino == Ino::ROOT { Self::ROOT } else { Self(ino.0) }
    }
}

//! The inodes that the kernel holds, under the numbers by which it knows them.
//!
//! The kernel counts how often it was given an inode and gives the count back with `FORGET`.
//! Until then the inode must stay, also when its last name is gone: a process may have it open.

use std::collections::HashMap;
use std::collections::hash_map;

use nilfs_engine::InodeRef;
use nilfs_ondisk::Ino;
use parking_lot::Mutex;

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

/// More than there are reader threads, so that they seldom meet.
const SHARDS: usize = 16;

/// All inodes that the kernel holds.
pub(crate) struct Nodes {
    shards: [Mutex<HashMap<Ino, Node>>; SHARDS],
}

struct Node {
    inode: InodeRef,
    lookups: u64,
}

impl Nodes {
    pub fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }

    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, Node>> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// An inode that the kernel holds.
    pub fn get(&self, ino: Ino) -> Option<InodeRef> {
        self.shard(ino).lock().get(&ino).map(|node| InodeRef::clone(&node.inode))
    }

    /// Notes that the kernel is given `inode` once more.
    pub fn hold(&self, inode: &InodeRef) {
        let ino = inode.ino();
        let mut nodes = self.shard(ino).lock();
        nodes
            .entry(ino)
            .or_insert_with(|| Node { inode: InodeRef::clone(inode), lookups: 0 })
            .lookups += 1;
    }

    /// Notes that the kernel lets go of what it was given `lookups` times.
    pub fn forget(&self, ino: Ino, lookups: u64) {
        let mut nodes = self.shard(ino).lock();
        let hash_map::Entry::Occupied(mut node) = nodes.entry(ino) else {
            return;
        };
        node.get_mut().lookups = node.get().lookups.saturating_sub(lookups);
        if node.get().lookups == 0 {
            let node = node.remove();
            // The last reference to an unlinked inode frees its blocks, which takes a while.
            drop(nodes);
            drop(node);
        }
    }
}

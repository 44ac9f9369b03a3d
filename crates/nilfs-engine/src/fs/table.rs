//! The inodes in memory.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use nilfs_ondisk::Ino;

use super::inode::InodeRef;

/// Inodes that are kept although nobody refers to them.
const CACHED: usize = 16384;

/// Every inode in memory, and which of them a commit has to look at.
#[derive(Debug, Default)]
pub(super) struct Table {
    inodes: HashMap<Ino, InodeRef>,
    /// Changed since the last freeze.
    pub(super) dirty: BTreeMap<Ino, InodeRef>,
    /// Without a name; deleted by the first freeze that finds nobody referring to them.
    pub(super) orphans: BTreeSet<Ino>,
}

impl Table {
    pub(super) fn get(&self, ino: Ino) -> Option<InodeRef> {
        self.inodes.get(&ino).cloned()
    }

    pub(super) fn insert(&mut self, inode: InodeRef) {
        self.inodes.insert(inode.ino(), inode);
    }

    /// Takes out the orphans that nobody refers to any more.
    pub(super) fn take_abandoned(&mut self) -> Vec<InodeRef> {
        let abandoned: Vec<InodeRef> = (self.orphans.iter())
            .filter_map(|ino| self.inodes.get(ino))
            .filter(|inode| self.is_abandoned(inode))
            .cloned()
            .collect();
        for inode in &abandoned {
            self.orphans.remove(&inode.ino());
            self.inodes.remove(&inode.ino());
            self.dirty.remove(&inode.ino());
        }
        abandoned
    }

    /// Whether a commit would delete something.
    pub(super) fn has_abandoned(&self) -> bool {
        self.orphans.iter().any(|ino| self.inodes.get(ino).is_some_and(|it| self.is_abandoned(it)))
    }

    /// Whether only the table refers to an inode.
    fn is_abandoned(&self, inode: &InodeRef) -> bool {
        let own = 1 + usize::from(self.dirty.contains_key(&inode.ino()));
        Arc::strong_count(inode) <= own
    }

    /// Forgets inodes that nobody refers to, if there are many.
    pub(super) fn shrink(&mut self) {
        if self.inodes.len() > CACHED {
            // An orphan must be found again when it is abandoned.
            let orphans = &self.orphans;
            self.inodes.retain(|ino, inode| Arc::strong_count(inode) > 1 || orphans.contains(ino));
        }
    }
}

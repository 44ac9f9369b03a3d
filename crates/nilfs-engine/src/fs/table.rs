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
        let mut abandoned = Vec::new();
        self.orphans.retain(|ino| {
            let Some(inode) = self.inodes.get(ino) else {
                return false;
            };
            let own = 1 + usize::from(self.dirty.contains_key(ino));
            if Arc::strong_count(inode) > own {
                return true;
            }
            abandoned.extend(self.inodes.remove(ino));
            self.dirty.remove(ino);
            false
        });
        abandoned
    }

    /// Forgets inodes that nobody refers to, if there are many.
    pub(super) fn shrink(&mut self) {
        if self.inodes.len() > CACHED {
            // An orphan must be found again when it is abandoned.
            let orphans = &self.orphans;
            self.inodes
                .retain(|ino, inode| Arc::strong_count(inode) > 1 || orphans.contains(ino));
        }
    }
}

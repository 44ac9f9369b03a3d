//! In which blocks two versions of a file differ. What both have by the same virtual block is the
//! same, so the comparison reads nothing below it. It reports nothing: that is for the walk, and only
//! nodes that the walk has found to be sound are entered.

use std::collections::BTreeSet;

use nilfs_ondisk::bmap::{Node, Root};
use nilfs_ondisk::inode::RawInode;
use nilfs_ondisk::{Ino, VBlockNr};

use crate::block_map::Leaf;
use crate::checker::{Checker, virtual_owner};
use crate::owners::Ownership;

/// Level, key and virtual block of a pointer; data are at level 0.
type Pointer = (u8, u64, u64);

impl Checker<'_, '_> {
    /// The data blocks that only the one, and those that only the other version of a file has, each
    /// in order. Both must have been walked.
    pub(crate) fn difference(
        &self,
        ino: Ino,
        old: Option<&RawInode>,
        new: Option<&RawInode>,
    ) -> (Vec<Leaf>, Vec<Leaf>) {
        let (mut old, mut new) = (pointers_of(old), pointers_of(new));
        loop {
            let highest = old.last().max(new.last()).map_or(0, |(level, ..)| *level);
            if highest == 0 {
                break;
            }
            let of_level = |side: &mut BTreeSet<Pointer>| side.split_off(&(highest, 0, 0));
            let (old_here, new_here) = (of_level(&mut old), of_level(&mut new));
            for pointer in old_here.difference(&new_here) {
                self.enter(ino, *pointer, &mut old);
            }
            for pointer in new_here.difference(&old_here) {
                self.enter(ino, *pointer, &mut new);
            }
        }
        let leaves = |side: &BTreeSet<Pointer>, other| {
            side.difference(other).filter_map(|pointer| self.leaf(ino, *pointer)).collect()
        };
        (leaves(&old, &new), leaves(&new, &old))
    }

    /// All data blocks of a file that was walked, in order.
    pub(crate) fn leaves(&self, ino: Ino, inode: &RawInode) -> Vec<Leaf> {
        self.difference(ino, None, Some(inode)).1
    }

    /// Adds the children of a node.
    fn enter(&self, ino: Ino, (level, key, vblock): Pointer, children: &mut BTreeSet<Pointer>) {
        let is_sound = |vblock| {
            self.subtrees.get(&vblock).is_some_and(|subtree| subtree.node == (ino, level, key))
        };
        let vblock = VBlockNr(vblock);
        if is_sound(vblock)
            && let Some(entry) = self.dat.entry(vblock)
            && let Ok(bytes) = self.volume.block(entry.block)
            && let Ok(node) = Node::parse(&bytes, level)
        {
            children.extend(node.entries().map(|(key, pointer)| (level - 1, key, pointer)));
        }
    }

    fn leaf(&self, ino: Ino, (_, key, pointer): Pointer) -> Option<Leaf> {
        let vblock = VBlockNr(pointer);
        let block = self.dat.entry(vblock)?.block;
        let is_its_own = match self.owners.as_ref()?.of(block) {
            Ownership::Of(owner) => owner == virtual_owner(ino, vblock, key, 0),
            Ownership::Unknown => true,
            Ownership::Nobody(_) => false,
        };
        is_its_own.then_some(Leaf { key, vblock, block })
    }
}

fn pointers_of(inode: Option<&RawInode>) -> BTreeSet<Pointer> {
    match inode.and_then(|inode| Root::parse(&inode.i_bmap).ok()) {
        None => BTreeSet::new(),
        Some(Root::Direct(pointers)) => (0..)
            .zip(pointers)
            .filter(|(_, pointer)| *pointer != 0)
            .map(|(key, pointer)| (0, key, pointer))
            .collect(),
        Some(Root::Tree { level, entries }) => {
            entries.into_iter().map(|(key, pointer)| (level - 1, key, pointer)).collect()
        }
    }
}

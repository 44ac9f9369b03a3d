//! In which blocks two versions of a file differ. What both have by the same virtual block is the
//! same, so the comparison reads nothing below it. It reports nothing: that is for the walk, and only
//! nodes that the walk has found to be sound are entered.

use nilfs_ondisk::bmap::{Entry, Node, Root};
use nilfs_ondisk::inode::RawInode;
use nilfs_ondisk::{Ino, VBlockNr};

use crate::block_map::Leaf;
use crate::checker::{Checker, virtual_owner};
use crate::owners::Ownership;

/// What may differ of a version of a file, as pointers to one level of its block map, in order.
#[derive(Default)]
struct Frontier {
    /// 0 is data.
    level: u8,
    pointers: Vec<Entry>,
}

impl Checker<'_, '_> {
    /// The data blocks that only the one, and those that only the other version of a file has, each
    /// in order. Both must have been walked.
    pub(crate) fn difference(
        &self,
        ino: Ino,
        old: Option<&RawInode>,
        new: Option<&RawInode>,
    ) -> (Vec<Leaf>, Vec<Leaf>) {
        let (mut old, mut new) = (Frontier::of(old), Frontier::of(new));
        loop {
            // The other version may have no nodes of this level.
            let level = old.level.max(new.level);
            if old.level == new.level {
                let before = old.pointers.clone();
                old.drop_shared(&new.pointers);
                new.drop_shared(&before);
            }
            if level == 0 {
                break;
            }
            for side in [&mut old, &mut new] {
                if side.level == level {
                    self.descend(ino, side);
                }
            }
        }
        let leaves = |side: Frontier| {
            side.pointers.into_iter().filter_map(|pointer| self.leaf(ino, pointer)).collect()
        };
        (leaves(old), leaves(new))
    }

    /// All data blocks of a file that was walked, in order.
    pub(crate) fn leaves(&self, ino: Ino, inode: &RawInode) -> Vec<Leaf> {
        self.difference(ino, None, Some(inode)).1
    }

    /// Goes from nodes to their children.
    fn descend(&self, ino: Ino, side: &mut Frontier) {
        let level = side.level;
        let mut children = Vec::new();
        for (key, pointer) in &side.pointers {
            let vblock = VBlockNr(*pointer);
            let known = self.subtrees.get(&vblock);
            if known.is_some_and(|subtree| subtree.node == (ino, level, *key))
                && let Some(entry) = self.dat.entry(vblock)
                && let Ok(bytes) = self.volume.block(entry.block)
                && let Ok(node) = Node::parse(&bytes, level)
            {
                children.extend(node.entries());
            }
        }
        // On a damaged volume, two nodes may have a child in common.
        children.sort_unstable();
        children.dedup();
        *side = Frontier { level: level - 1, pointers: children };
    }

    fn leaf(&self, ino: Ino, (key, pointer): Entry) -> Option<Leaf> {
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

impl Frontier {
    /// What the root has.
    fn of(inode: Option<&RawInode>) -> Self {
        match inode.and_then(|inode| Root::parse(&inode.i_bmap).ok()) {
            None => Self::default(),
            Some(Root::Direct(pointers)) => {
                let mapped = (0..).zip(pointers).filter(|(_, pointer)| *pointer != 0);
                Self { level: 0, pointers: mapped.collect() }
            }
            Some(Root::Tree { level, entries }) => Self { level: level - 1, pointers: entries },
        }
    }

    /// Takes out what is among the others as well.
    fn drop_shared(&mut self, others: &[Entry]) {
        let mut others = others.iter().peekable();
        self.pointers.retain(|pointer| {
            while others.next_if(|other| *other < pointer).is_some() {}
            others.peek() != Some(&pointer)
        });
    }
}

//! Walking the block map of a file: shape of the B-tree, every pointer, every block's life.
//!
//! The walk ends on any image: a node is entered only at the level and below the key by which its
//! parent names it and with keys inside the parent's range, so one walk enters no node twice.

use nilfs_ondisk::bmap::{Entry, Node, Root};
use nilfs_ondisk::inode::RawInode;
use nilfs_ondisk::summary::BlockInfo;
use nilfs_ondisk::{BlockNr, Cno, FileBlock, Ino, VBlockNr};

use crate::checker::{Checker, FileAt, virtual_owner};
use crate::owners::Owner;
use crate::report::Rule;

/// The checkpoints in which all blocks of a tree live, and the blocks that set the limits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Life {
    pub(crate) start: (Cno, VBlockNr),
    end: (Cno, VBlockNr),
}

impl Life {
    /// The life of no block: all checkpoints.
    pub(crate) const ALWAYS: Life =
        Life { start: (Cno(0), VBlockNr(0)), end: (Cno::MAX, VBlockNr(0)) };

    fn shared_with(self, other: Self) -> Self {
        Self { start: self.start.max(other.start), end: self.end.min(other.end) }
    }

    /// The virtual block that is not part of a checkpoint, if there is one.
    pub(crate) fn culprit(&self, cno: Cno) -> Option<VBlockNr> {
        if cno < self.start.0 {
            return Some(self.start.1);
        }
        (cno >= self.end.0 && self.end.0 != Cno::MAX).then_some(self.end.1)
    }
}

/// What is at a place of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leaf {
    /// The place.
    pub(crate) key: u64,
    /// The pointer's virtual block; 0 in the DAT, which has none.
    pub(crate) vblock: VBlockNr,
    /// Where the block is.
    pub(crate) block: BlockNr,
}

/// What was found below a pointer or in a whole map.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subtree {
    /// Data blocks and nodes.
    pub(crate) blocks: u64,
    /// Data blocks.
    pub(crate) data_blocks: u64,
    pub(crate) life: Life,
    /// The data block with the greatest key.
    pub(crate) last: Option<Leaf>,
    /// Whether every pointer could be followed.
    pub(crate) whole: bool,
    /// File, level and first key of the node, by which another reference is compared.
    pub(crate) node: (Ino, u8, u64),
}

impl Subtree {
    const NOTHING: Subtree = Subtree {
        blocks: 0,
        data_blocks: 0,
        life: Life::ALWAYS,
        last: None,
        whole: true,
        node: (Ino(0), 0, 0),
    };

    const BROKEN: Subtree = Subtree { whole: false, ..Self::NOTHING };

    fn add(&mut self, other: Self) {
        self.blocks = self.blocks.saturating_add(other.blocks);
        self.data_blocks = self.data_blocks.saturating_add(other.data_blocks);
        self.life = self.life.shared_with(other.life);
        self.last = other.last.or(self.last);
        self.whole &= other.whole;
    }
}

impl Checker<'_, '_> {
    /// Walks the block map of a file whose blocks are all of interest; returns them in order.
    pub(crate) fn walk_all(&mut self, file: FileAt, inode: &RawInode) -> (Subtree, Vec<Leaf>) {
        let mut leaves = Vec::new();
        let tree = self.walk(file, inode, Some(&mut leaves));
        (tree, leaves)
    }

    /// Walks the block map of a file; subtrees that were walked before are taken as found then.
    pub(crate) fn walk_shared(&mut self, file: FileAt, inode: &RawInode) -> Subtree {
        self.walk(file, inode, None)
    }

    fn walk(&mut self, file: FileAt, inode: &RawInode, leaves: Option<&mut Vec<Leaf>>) -> Subtree {
        let root = match Root::parse(&inode.i_bmap) {
            Ok(root) => root,
            Err(error) => {
                self.error(Rule::BlockMap, file.place(), || error.to_string());
                return Subtree::BROKEN;
            }
        };
        let mut walk = Walk { checker: self, file, leaves };
        match root {
            Root::Direct(pointers) => {
                let mapped: Vec<Entry> =
                    (0..).zip(pointers).filter(|(_, pointer)| *pointer != 0).collect();
                walk.children(mapped.into_iter(), 0, None)
            }
            Root::Tree { level, entries } => walk.children(entries.into_iter(), level - 1, None),
        }
    }
}

struct Walk<'w, 'v, 'd> {
    checker: &'w mut Checker<'v, 'd>,
    file: FileAt,
    leaves: Option<&'w mut Vec<Leaf>>,
}

impl Walk<'_, '_, '_> {
    /// Walks the children of a node, which are of the given level and whose keys stay below
    /// `limit`.
    fn children(
        &mut self,
        entries: impl Iterator<Item = Entry>,
        level: u8,
        limit: Option<u64>,
    ) -> Subtree {
        let mut sum = Subtree::NOTHING;
        let mut entries = entries.peekable();
        while let Some((key, pointer)) = entries.next() {
            let next = entries.peek().map(|(key, _)| *key).or(limit);
            sum.add(if level == 0 {
                self.data(key, pointer)
            } else {
                self.node(key, pointer, level, next)
            });
        }
        sum
    }

    fn data(&mut self, key: u64, pointer: u64) -> Subtree {
        let Some((block, life)) = self.locate(key, pointer, 0) else {
            return Subtree::BROKEN;
        };
        let leaf = Leaf { key, vblock: self.vblock(pointer), block };
        if let Some(leaves) = &mut self.leaves {
            leaves.push(leaf);
        }
        Subtree { blocks: 1, data_blocks: 1, life, last: Some(leaf), ..Subtree::NOTHING }
    }

    fn node(&mut self, key: u64, pointer: u64, level: u8, limit: Option<u64>) -> Subtree {
        let vblock = self.vblock(pointer);
        let place = self.file.place().file_block(key);
        if self.leaves.is_none()
            && let Some(known) = self.checker.subtrees.get(&vblock).copied()
        {
            return self.known(known, key, vblock, level, limit);
        }
        let Some((block, life)) = self.locate(key, pointer, level) else {
            return Subtree::BROKEN;
        };
        let Some(bytes) = self.checker.read(block, place) else {
            return Subtree::BROKEN;
        };
        let parsed = Node::parse(&bytes, level).and_then(|node| {
            node.validate(Some(key))?;
            Ok(node)
        });
        let node = match parsed {
            Ok(node) => node,
            Err(error) => {
                let place = place.block(block);
                self.checker.error(Rule::BlockMap, place, || error.to_string());
                return Subtree::BROKEN;
            }
        };
        let last = node.key(node.children() - 1);
        if limit.is_some_and(|limit| last >= limit) {
            self.checker.error(Rule::BlockMap, place.block(block), || {
                format!("the last key of the node is {last}, but the next node begins at {limit:?}")
            });
            return Subtree::BROKEN;
        }
        let mut sum = Subtree { blocks: 1, life, ..Subtree::NOTHING };
        sum.add(self.children(node.entries(), level - 1, limit));
        sum.node = (self.file.ino, level, key);
        // Nodes of the DAT have no virtual blocks, and are of one version only.
        if vblock.0 != 0 {
            self.checker.subtrees.insert(vblock, sum);
        }
        sum
    }

    /// A node that was walked before, for another checkpoint.
    fn known(
        &mut self,
        known: Subtree,
        key: u64,
        vblock: VBlockNr,
        level: u8,
        limit: Option<u64>,
    ) -> Subtree {
        let place = self.file.place().file_block(key).vblock(vblock);
        let fits = known.last.zip(limit).is_none_or(|(last, limit)| last.key < limit);
        // The present is walked first, so that it finds nothing known that is not its own.
        if known.node != (self.file.ino, level, key) || !fits || self.file.present {
            self.checker.error(Rule::SharedBlock, place, || {
                let (ino, level, key) = known.node;
                format!("the node is also used by inode {ino}, at level {level} and key {key}")
            });
            return Subtree::BROKEN;
        }
        if let Some(culprit) = known.life.culprit(self.file.cno) {
            self.checker.not_alive(self.file, culprit);
        }
        known
    }

    fn vblock(&self, pointer: u64) -> VBlockNr {
        VBlockNr(if self.file.ino == Ino::DAT { 0 } else { pointer })
    }

    /// Follows a pointer to a block that exists, is part of the checkpoint and belongs to the
    /// file.
    fn locate(&mut self, key: u64, pointer: u64, level: u8) -> Option<(BlockNr, Life)> {
        let place = self.file.place().file_block(key);
        if pointer == 0 {
            self.checker.error(Rule::Pointer, place, || {
                format!("the pointer of key {key} at level {} is 0", level + 1)
            });
            return None;
        }
        if self.file.ino == Ino::DAT {
            let block = BlockNr(pointer);
            let info = if level == 0 {
                BlockInfo::DatData { offset: FileBlock(key) }
            } else {
                BlockInfo::DatNode { key, level }
            };
            if !self.checker.volume.geometry.has_block(block) {
                self.checker.error(Rule::Pointer, place.block(block), || {
                    "the block lies outside of all segments".into()
                });
                return None;
            }
            if !self.checker.dat.blocks.insert(block) {
                self.checker.error(Rule::SharedBlock, place.block(block), || {
                    "the DAT uses the block twice".into()
                });
                return None;
            }
            let owned = self.checker.belongs(block, Owner { ino: Ino::DAT, info }, place);
            return owned.then_some((block, Life::ALWAYS));
        }
        let vblock = VBlockNr(pointer);
        let (block, start, end) = self.checker.translate(self.file, vblock, place)?;
        let owner = virtual_owner(self.file.ino, vblock, key, level);
        let life = Life { start: (start, vblock), end: (end, vblock) };
        self.checker.belongs(block, owner, place.vblock(vblock)).then_some((block, life))
    }
}

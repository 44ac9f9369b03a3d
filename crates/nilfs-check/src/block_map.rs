//! Walking the block map of a file: shape of the B-tree, every pointer, every block's life.
//!
//! The walk ends on any image: a node is entered only at the level and below the key by which its
//! parent names it and with keys inside the parent's range, so one walk enters no node twice.

use std::mem::offset_of;

use nilfs_ondisk::bmap::{Entry, Node, Root};
use nilfs_ondisk::inode::RawInode;
use nilfs_ondisk::summary::BlockInfo;
use nilfs_ondisk::{BlockNr, Cno, FileBlock, Ino, VBlockNr};

use crate::checker::{Checker, FileAt, virtual_owner};
use crate::correction::{Correction, Holder, Part};
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
        let root_at = file.inode_at.map(|at| at.plus(offset_of!(RawInode, i_bmap)));
        let root = match Root::parse(&inode.i_bmap) {
            Ok(root) => root,
            Err(error) => {
                let anew = root_at.map(|at| Correction::Root { at, part: file.whole() });
                self.error(Rule::BlockMap, file.place(), || error.to_string()).corrected_by(anew);
                return Subtree::BROKEN;
            }
        };
        let mut walk = Walk { checker: self, file, leaves };
        let above =
            Above { holder: root_at.map(Holder::Root), life: (file.life().start, file.life().end) };
        match root {
            Root::Direct(pointers) => {
                let mapped: Vec<Entry> =
                    (0..).zip(pointers).filter(|(_, pointer)| *pointer != 0).collect();
                walk.children(mapped.into_iter(), 0, None, above)
            }
            Root::Tree { level, entries } => {
                walk.children(entries.into_iter(), level - 1, None, above)
            }
        }
    }
}

/// What has the pointers that are followed, and the checkpoints that have it.
#[derive(Clone, Copy)]
struct Above {
    holder: Option<Holder>,
    life: (Cno, Cno),
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
        above: Above,
    ) -> Subtree {
        let mut sum = Subtree::NOTHING;
        let mut entries = entries.peekable();
        while !self.checker.has_given_up()
            && let Some((key, pointer)) = entries.next()
        {
            let next = entries.peek().map(|(key, _)| *key).or(limit);
            sum.add(if level == 0 {
                self.data(key, pointer, above)
            } else {
                self.node(key, pointer, level, next, above)
            });
        }
        sum
    }

    fn data(&mut self, key: u64, pointer: u64, above: Above) -> Subtree {
        let cure = self.cure(0, key, key.checked_add(1), above);
        let Some((block, life)) = self.locate(key, pointer, 0, cure) else {
            return Subtree::BROKEN;
        };
        let leaf = Leaf { key, vblock: self.vblock(pointer), block };
        if let Some(leaves) = &mut self.leaves {
            leaves.push(leaf);
        }
        Subtree { blocks: 1, data_blocks: 1, life, last: Some(leaf), ..Subtree::NOTHING }
    }

    /// What puts a pointer right, or takes it out.
    fn cure(&self, level: u8, key: u64, limit: Option<u64>, above: Above) -> Option<Correction> {
        let life = above.life.0..above.life.1;
        let part = Part { ino: self.file.ino, level, key, limit, life };
        above.holder.map(|holder| Correction::Pointer { holder, part })
    }

    fn node(
        &mut self,
        key: u64,
        pointer: u64,
        level: u8,
        limit: Option<u64>,
        above: Above,
    ) -> Subtree {
        let vblock = self.vblock(pointer);
        let place = self.file.place().file_block(key);
        if self.leaves.is_none()
            && let Some(known) = self.checker.subtrees.get(&vblock).copied()
        {
            let cure = self.cure(level, key, limit, above);
            return self.known(known, key, vblock, level, limit, cure);
        }
        let cure = self.cure(level, key, limit, above);
        let Some((block, life)) = self.locate(key, pointer, level, cure.clone()) else {
            return Subtree::BROKEN;
        };
        let lives = (life.start.0, life.end.0);
        let part = Part { ino: self.file.ino, level, key, limit, life: lives.0..lives.1 };
        let anew = std::iter::once(Correction::Block { block, part }).chain(cure);
        let read = self.checker.volume.block(block);
        let parsed = read.as_deref().map_err(|error| (Rule::Readable, error.to_string()));
        let parsed = parsed.and_then(|bytes| {
            whole_node(bytes, level, key, limit).map_err(|fault| (Rule::BlockMap, fault))
        });
        let node = match parsed {
            Ok(node) => node,
            Err((rule, fault)) => {
                let place = place.block(block);
                self.checker.error(rule, place, || fault).corrected_by(anew);
                return Subtree::BROKEN;
            }
        };
        let below = Above { holder: Some(Holder::Node(block)), life: lives };
        let mut sum = Subtree { blocks: 1, life, ..Subtree::NOTHING };
        sum.add(self.children(node.entries(), level - 1, limit, below));
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
        cure: Option<Correction>,
    ) -> Subtree {
        let place = self.file.place().file_block(key).vblock(vblock);
        let fits = known.last.zip(limit).is_none_or(|(last, limit)| last.key < limit);
        // The present is walked first, so that it finds nothing known that is not its own.
        if known.node != (self.file.ino, level, key) || !fits || self.file.present {
            self.checker
                .error(Rule::SharedBlock, place, || {
                    let (ino, level, key) = known.node;
                    format!("the node is also used by inode {ino}, at level {level} and key {key}")
                })
                .corrected_by(cure);
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
    fn locate(
        &mut self,
        key: u64,
        pointer: u64,
        level: u8,
        cure: Option<Correction>,
    ) -> Option<(BlockNr, Life)> {
        let place = self.file.place().file_block(key);
        if pointer == 0 {
            self.checker
                .error(Rule::Pointer, place, || {
                    format!("the pointer of key {key} at level {} is 0", level + 1)
                })
                .corrected_by(cure);
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
                self.checker
                    .error(Rule::Pointer, place.block(block), || {
                        "the block lies outside of all segments".into()
                    })
                    .corrected_by(cure);
                return None;
            }
            if !self.checker.dat_mut().blocks.insert(block) {
                self.checker
                    .error(Rule::SharedBlock, place.block(block), || {
                        "the DAT uses the block twice".into()
                    })
                    .corrected_by(cure);
                return None;
            }
            let owned = self.checker.belongs(block, Owner { ino: Ino::DAT, info }, place, cure);
            return owned.then_some((block, Life::ALWAYS));
        }
        let vblock = VBlockNr(pointer);
        let (block, start, end) =
            self.checker.translate(self.file, vblock, place, cure.as_ref())?;
        let owner = virtual_owner(self.file.ino, vblock, key, level);
        let life = Life { start: (start, vblock), end: (end, vblock) };
        if !self.checker.belongs(block, owner, place.vblock(vblock), cure) {
            return None;
        }
        let cno = self.file.cno;
        if !(start <= cno && cno < end) || (self.file.present && end != Cno::MAX) {
            self.checker.not_alive(self.file, vblock);
        }
        Some((block, life))
    }
}

/// A node with all keys in order, from the one by which its parent knows it to below the next node.
fn whole_node(bytes: &[u8], level: u8, key: u64, limit: Option<u64>) -> Result<Node<'_>, String> {
    let node = Node::parse(bytes, level).map_err(|error| error.to_string())?;
    node.validate(Some(key)).map_err(|error| error.to_string())?;
    let last = node.key(node.children() - 1);
    match limit.filter(|limit| last >= *limit) {
        Some(limit) => {
            Err(format!("the last key of the node is {last}, but the next node begins at {limit}"))
        }
        None => Ok(node),
    }
}

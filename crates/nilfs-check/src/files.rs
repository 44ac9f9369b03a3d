//! The files of one checkpoint: what is known of each inode, and going on from there to another
//! checkpoint at the cost of what differs. Nothing is judged here.

use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;

use hashbrown::HashMap;
use nilfs_ondisk::inode::{FileType, RawInode};
use nilfs_ondisk::palloc::Palloc;
use nilfs_ondisk::{Cno, Ino};

use crate::allocation::{AllocationChanges, Groups, allocated_from};
use crate::block_map::Leaf;
use crate::checker::Checker;
use crate::correction::Position;
use crate::directory::Directory;
use crate::inode::InodeFacts;
use crate::namespace::{ChangedNames, Tally};

/// Inodes that are kept next to each other.
const PAGE: u64 = 16;

/// What is known of a number.
#[derive(Debug, Clone, Default)]
pub(crate) struct Inode {
    /// The inode, if the number is in use.
    pub(crate) facts: Option<InodeFacts>,
    pub(crate) tally: Tally,
}

impl Inode {
    const UNUSED: &Inode = &Inode { facts: None, tally: Tally::NONE };

    pub(crate) fn is_directory(&self) -> bool {
        let file_type = self.facts.as_ref().and_then(|facts| facts.file_type);
        file_type == Some(FileType::Directory)
    }
}

/// The files of a checkpoint.
pub(crate) struct Files {
    pub(crate) cno: Cno,
    /// The ifile; `None` before the first checkpoint.
    pub(crate) ifile: Option<RawInode>,
    pub(crate) layout: Palloc,
    pub(crate) groups: Arc<Groups>,
    pages: HashMap<u64, Box<[Inode; PAGE as usize]>>,
    /// Numbers that are in use, whose inodes cannot be read.
    pub(crate) unreadable: BTreeSet<Ino>,
    /// Files of which some block cannot be reached.
    pub(crate) broken: BTreeSet<Ino>,
    /// Directories of which some names are not known.
    pub(crate) torn: BTreeSet<Ino>,
    /// Inodes of users.
    pub(crate) users: u64,
    /// Blocks of all files.
    pub(crate) blocks: u64,
    /// With which checkpoint the youngest block of an inode starts; also of inodes that are other
    /// now.
    starts: BinaryHeap<(Cno, Ino)>,
    /// Inodes whose names could not be judged so far.
    pub(crate) waiting: Vec<Ino>,
    /// What sync logs have made of names, while these are looked at.
    pub(crate) changed_names: ChangedNames,
}

/// What is in a slot of the ifile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Slot {
    Free,
    Unreadable,
    Inode(RawInode, Position),
}

impl Slot {
    /// Where the inode is.
    pub(crate) fn position(&self) -> Option<Position> {
        match self {
            Self::Inode(_, at) => Some(*at),
            Self::Free | Self::Unreadable => None,
        }
    }
}

/// An inode that is not the same in two checkpoints.
pub(crate) struct ChangedInode {
    pub(crate) ino: Ino,
    pub(crate) old: Slot,
    pub(crate) new: Slot,
}

/// A block of the ifile in which something differs.
pub(crate) struct ChangedBlock {
    first: u64,
    old: Option<Leaf>,
    pub(crate) new: Option<Leaf>,
}

impl Files {
    /// Those of no checkpoint.
    pub(crate) fn new(layout: Palloc) -> Self {
        Self {
            cno: Cno(0),
            ifile: None,
            layout,
            groups: Arc::new(Groups::new(layout)),
            pages: HashMap::new(),
            unreadable: BTreeSet::new(),
            broken: BTreeSet::new(),
            torn: BTreeSet::new(),
            users: 0,
            blocks: 0,
            starts: BinaryHeap::new(),
            waiting: Vec::new(),
            changed_names: ChangedNames::new(),
        }
    }

    /// What is known of a number.
    pub(crate) fn inode(&self, ino: Ino) -> &Inode {
        let page = self.pages.get(&(ino.0 / PAGE));
        page.map_or(Inode::UNUSED, |page| &page[(ino.0 % PAGE) as usize])
    }

    pub(crate) fn inode_mut(&mut self, ino: Ino) -> &mut Inode {
        let page = self.pages.entry(ino.0 / PAGE).or_default();
        &mut page[(ino.0 % PAGE) as usize]
    }

    /// Whether an inode that is in use is missing, because it cannot be read.
    pub(crate) fn is_incomplete(&self) -> bool {
        !self.groups.whole() || !self.unreadable.is_empty()
    }

    /// All directories, in order.
    pub(crate) fn directories(&self) -> impl Iterator<Item = Ino> + use<> {
        let pages = self.pages.iter().flat_map(|(page, inodes)| {
            (page * PAGE..=u64::MAX)
                .zip(&**inodes)
                .filter(|(_, it)| it.is_directory())
                .map(|(n, _)| Ino(n))
        });
        BTreeSet::from_iter(pages).into_iter()
    }

    /// A number is in use for something else now, or for nothing.
    pub(crate) fn change_inode(
        &mut self,
        ino: Ino,
        facts: Option<InodeFacts>,
        is_unreadable: bool,
    ) {
        set_membership(&mut self.unreadable, ino, is_unreadable);
        self.set_facts(ino, facts);
    }

    /// A number is in use for this now, or for nothing.
    pub(crate) fn set_facts(&mut self, ino: Ino, facts: Option<InodeFacts>) {
        let inode = self.inode_mut(ino);
        let was_directory = inode.is_directory();
        let old = std::mem::replace(&mut inode.facts, facts);
        let is_directory = inode.is_directory();
        let tally = inode.tally;
        let (blocks, start, whole, torn) = match &inode.facts {
            Some(facts) => {
                let torn = facts.directory.as_ref().is_some_and(|directory| !directory.is_whole());
                (facts.blocks, Some(facts.start.0), facts.whole, torn)
            }
            None => (0, None, true, false),
        };
        let is_user = u64::from(ino >= Ino::FIRST_USER);
        self.users += is_user * u64::from(start.is_some());
        self.users -= is_user * u64::from(old.is_some());
        // A damaged volume may claim any number of blocks.
        let before = old.map_or(0, |old| old.blocks);
        self.blocks = self.blocks.wrapping_sub(before).wrapping_add(blocks);
        set_membership(&mut self.broken, ino, !whole);
        set_membership(&mut self.torn, ino, torn);
        self.starts.extend(start.filter(|start| *start > Cno(0)).map(|start| (start, ino)));
        if was_directory != is_directory && tally.names > 0 {
            let above = &mut self.inode_mut(tally.named_in).tally.subdirectories;
            *above = match is_directory {
                true => above.saturating_add(tally.names),
                false => above.saturating_sub(tally.names),
            };
        }
    }

    fn directory_mut(&mut self, ino: Ino) -> Option<&mut Directory> {
        self.inode_mut(ino).facts.as_mut()?.directory.as_deref_mut()
    }

    /// A directory in which `unsound` blocks cannot be used.
    pub(crate) fn set_unsound_blocks(&mut self, ino: Ino, unsound: u32) {
        if let Some(directory) = self.directory_mut(ino) {
            directory.unsound_blocks = unsound;
            let torn = !directory.is_whole();
            set_membership(&mut self.torn, ino, torn);
        }
    }

    /// A directory of which ".." names this, in a record there.
    pub(crate) fn set_parent(&mut self, ino: Ino, parent: Option<(Ino, Position)>) {
        if let Some(directory) = self.directory_mut(ino) {
            (directory.parent, directory.parent_at) = parent.unzip();
        }
    }

    /// The inodes that have a block which starts after this checkpoint.
    pub(crate) fn too_young(&mut self) -> Vec<Ino> {
        let mut found = Vec::new();
        while self.starts.peek().is_some_and(|(start, _)| *start > self.cno) {
            let Some((_, ino)) = self.starts.pop() else { break };
            let facts = &self.inode(ino).facts;
            if facts.as_ref().is_some_and(|facts| facts.start.0 > self.cno) {
                found.push(ino);
            }
        }
        found
    }

    /// The blocks of the ifile in which an inode may differ from what is known, which is how it was
    /// before these changes.
    pub(crate) fn changed_blocks(&self, changes: &AllocationChanges) -> Vec<ChangedBlock> {
        let mut firsts: BTreeSet<u64> = changes.entry_blocks.keys().copied().collect();
        for (group, old) in &changes.bitmaps {
            let new = self.groups.bits(*group);
            for bytes in (0..old.len().max(new.len())).filter(|at| old.get(*at) != new.get(*at)) {
                for bit in [0, 7] {
                    let entry = self.layout.first_of_group(*group) + bytes as u64 * 8 + bit;
                    let in_group = entry % self.layout.entries_per_group;
                    firsts.insert(entry - in_group % self.layout.entries_per_block);
                }
            }
        }
        let change = |first| {
            let new = self.groups.entry_blocks.get(&first).copied();
            let old = changes.entry_blocks.get(&first).copied().unwrap_or(new);
            ChangedBlock { first, old, new }
        };
        // Bitmaps have room for far more than there is.
        let is_there = |block: &ChangedBlock| {
            let group = self.layout.group_of(block.first);
            let old_bits = changes.bitmaps.get(&group).map_or(&[][..], Vec::as_slice);
            let has_any = |bits| allocated_from(&self.layout, bits, block.first).next().is_some();
            block.old.is_some()
                || block.new.is_some()
                || has_any(old_bits)
                || has_any(self.groups.bits(group))
        };
        firsts.into_iter().map(change).filter(is_there).collect()
    }
}

fn set_membership(set: &mut BTreeSet<Ino>, ino: Ino, is_member: bool) {
    if is_member {
        set.insert(ino);
    } else {
        set.remove(&ino);
    }
}

impl Checker<'_, '_> {
    /// The inodes in a block that differ.
    pub(crate) fn changed_inodes(
        &self,
        groups: &Groups,
        changes: &AllocationChanges,
        block: &ChangedBlock,
    ) -> Vec<ChangedInode> {
        let layout = &groups.layout;
        let group = layout.group_of(block.first);
        let new_bits = groups.bits(group);
        let old_bits = changes.bitmaps.get(&group).map_or(new_bits, Vec::as_slice);
        let bytes_of = |leaf: &Leaf| self.volume.block(leaf.block).ok();
        let old = block.old.as_ref().and_then(bytes_of);
        let same = block.old.map(|leaf| leaf.vblock) == block.new.map(|leaf| leaf.vblock);
        let other = if same { None } else { block.new.as_ref().and_then(bytes_of) };
        let new = if same { old.as_deref() } else { other.as_deref() };
        let size = self.volume.geometry.inode_size;
        let slot = |allocated: bool, leaf: Option<Leaf>, bytes: Option<&[u8]>, nth: usize| {
            let start = nth * size;
            let inode = bytes.and_then(|bytes| bytes.get(start..));
            let inode = inode.and_then(|bytes| RawInode::parse(bytes).ok());
            match (allocated, inode, leaf) {
                (false, ..) => Slot::Free,
                (true, Some(inode), Some(leaf)) => {
                    Slot::Inode(inode, Position::new(leaf.block, start))
                }
                _ => Slot::Unreadable,
            }
        };
        let mut inos: Vec<u64> = allocated_from(layout, old_bits, block.first)
            .chain(allocated_from(layout, new_bits, block.first))
            .filter(|ino| !matches!(ino, 0 | 3..=6))
            .collect();
        inos.sort_unstable();
        inos.dedup();
        let bit = |bits: &[u8], ino: u64| {
            let bit = layout.bit(ino).bit;
            bits.get(bit / 8).is_some_and(|byte| byte & 1 << (bit % 8) != 0)
        };
        let changed = |ino: u64| {
            let nth = (ino - block.first) as usize;
            let old = slot(bit(old_bits, ino), block.old, old.as_deref(), nth);
            let new = slot(bit(new_bits, ino), block.new, new, nth);
            let is_same = match (&old, &new) {
                (Slot::Inode(old, _), Slot::Inode(new, _)) => old == new,
                (old, new) => old == new,
            };
            (!is_same).then_some(ChangedInode { ino: Ino(ino), old, new })
        };
        inos.into_iter().filter_map(changed).collect()
    }

    /// The inodes of files in a block that have links, and numbers that are not in use.
    pub(crate) fn forgotten_inodes(&self, groups: &Groups, block: &ChangedBlock) -> Vec<Ino> {
        let size = self.volume.geometry.inode_size;
        let numbers =
            (block.first..=u64::MAX).take(groups.layout.entries_per_block as usize).map(Ino);
        let is_free = |ino: &Ino| *ino >= Ino::FIRST_USER && !groups.is_allocated(ino.0);
        let mut free = numbers.filter(is_free).peekable();
        // Most blocks are full, and need not be read again.
        let leaf = block.new.filter(|_| free.peek().is_some());
        let Some(bytes) = leaf.and_then(|leaf| self.volume.block(leaf.block).ok()) else {
            return Vec::new();
        };
        let is_forgotten = |ino: &Ino| {
            let slot = bytes.get((ino.0 - block.first) as usize * size..);
            let inode = slot.and_then(|slot| RawInode::parse(slot).ok());
            inode.is_some_and(|it| it.i_links_count.get() > 0 && it.file_type().is_ok())
        };
        free.filter(is_forgotten).collect()
    }

    /// Where the inode of a number is, or was.
    pub(crate) fn inode_at(&self, files: &Files, ino: Ino) -> Option<Position> {
        let (block, nth) = files.groups.entry_block(ino.0)?;
        Some(Position::new(block, nth * self.volume.geometry.inode_size))
    }

    /// What is in the slot of a number, in use or not.
    pub(crate) fn raw_inode(&self, files: &Files, ino: Ino) -> Option<RawInode> {
        let at = self.inode_at(files, ino)?;
        let bytes = self.volume.block(at.block).ok()?;
        RawInode::parse(bytes.get(at.offset..)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use nilfs_ondisk::{BlockSize, VBlockNr};

    use super::*;

    /// A damaged name or bitmap may speak of any number.
    #[test]
    fn a_directory_may_have_the_last_number_that_there_is() {
        let mut files = Files::new(Palloc::new(BlockSize::DEFAULT, 128));
        let directory = InodeFacts {
            file_type: Some(FileType::Directory),
            links: 2,
            whole: true,
            blocks: 0,
            start: (Cno(1), VBlockNr(1)),
            directory: None,
        };
        files.set_facts(Ino(u64::MAX), Some(directory));
        assert!(files.directories().eq([Ino(u64::MAX)]));
    }
}

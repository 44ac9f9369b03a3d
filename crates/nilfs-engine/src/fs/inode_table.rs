//! The inodes in memory.
//!
//! An inode whose changes are not committed, that somebody refers to, or that has lost its last
//! name, is there for as long as that lasts. All others are a cache of the newest checkpoint: they
//! go when there are too many, and come back from the ifile when somebody asks. Of a file that a
//! front end knows by its number, nothing else need be in memory.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use indexmap::IndexMap;
use nilfs_ondisk::Ino;

use super::inode::{INODE_BYTES, Inode, InodeRef};
use crate::host::NumberState;

/// Inodes that are looked at, when one is added, for one that can go.
const LOOKS: usize = 16;

/// Every inode in memory, and which of them a commit has to look at.
#[derive(Debug)]
pub(super) struct Table {
    inodes: IndexMap<Ino, InodeRef, NumberState>,
    /// Bytes of these, as far as they are counted in them, and how many they should be at most.
    bytes: usize,
    limit: usize,
    /// Where the search for inodes that can go has come to.
    hand: usize,
    /// Files that the kernel knows by their number, and how often the number was given out.
    held: HashMap<Ino, u64, NumberState>,
    /// How often that is still to be taken back for files that nobody holds any more.
    owed: HashMap<Ino, u64, NumberState>,
    /// Changed since the last freeze.
    pub(super) dirty: BTreeMap<Ino, InodeRef>,
    /// Without a name, with the blocks that they have in the newest checkpoint; deleted by the
    /// first freeze that finds nobody referring to them.
    pub(super) orphans: BTreeMap<Ino, u64>,
    /// Files of which a rollback that is under way takes the numbers away. Nobody refers to them, and
    /// until that is over, nobody gets a reference.
    leaving: BTreeSet<Ino>,
}

impl Table {
    /// A table that keeps what nobody needs as long as it has `limit` bytes at most.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            inodes: IndexMap::default(),
            bytes: 0,
            limit,
            hand: 0,
            held: HashMap::default(),
            owed: HashMap::default(),
            dirty: BTreeMap::new(),
            orphans: BTreeMap::new(),
            leaving: BTreeSet::new(),
        }
    }

    pub(super) fn get(&self, ino: Ino) -> Option<InodeRef> {
        self.inodes.get(&ino).map(|inode| {
            inode.residence.mark_used();
            Arc::clone(inode)
        })
    }

    pub(super) fn insert(&mut self, inode: InodeRef) {
        self.bytes += inode.residence.counted();
        self.inodes.insert(inode.ino(), inode);
        self.evict(LOOKS);
    }

    /// Takes note of what an inode in the table now needs besides itself.
    pub(super) fn recount(&mut self, inode: &Inode, more: usize) {
        if self.inodes.contains_key(&inode.ino()) {
            let (old, new) = inode.residence.recount(more);
            self.bytes = self.bytes - old + new;
            self.evict(LOOKS);
        }
    }

    /// Forgets inodes that nobody needs while there are too many: in the order in which they come,
    /// but at the first time round only those that were not used since the last. Looks at `most`.
    pub(super) fn evict(&mut self, most: usize) {
        for _ in 0..most {
            if self.bytes <= self.limit {
                return;
            }
            if self.hand >= self.inodes.len() {
                self.hand = 0;
            }
            let Some((&ino, inode)) = self.inodes.get_index(self.hand) else { return };
            if inode.residence.was_used() || !self.is_unneeded(ino, inode) {
                self.hand += 1;
            } else {
                self.remove(ino);
            }
        }
    }

    /// Forgets inodes that nobody needs and that are read again at once: not directories whose
    /// names are known.
    pub(super) fn evict_idle(&mut self) {
        let cheap = |inode: &InodeRef| inode.residence.counted() == INODE_BYTES;
        let unneeded =
            |(ino, inode): &(&Ino, &InodeRef)| cheap(inode) && self.is_unneeded(**ino, inode);
        let unneeded: Vec<Ino> = self.inodes.iter().filter(unneeded).map(|(ino, _)| *ino).collect();
        unneeded.into_iter().for_each(|ino| self.remove(ino));
    }

    /// Whether nobody refers to an inode, and the newest checkpoint has it.
    fn is_unneeded(&self, ino: Ino, inode: &InodeRef) -> bool {
        Arc::strong_count(inode) == 1 && !self.orphans.contains_key(&ino) && inode.is_committed()
    }

    fn remove(&mut self, ino: Ino) {
        if let Some(inode) = self.inodes.swap_remove(&ino) {
            self.bytes -= inode.residence.counted();
            if self.inodes.capacity() / 8 > self.inodes.len().max(1024) {
                self.inodes.shrink_to(self.inodes.len() * 2);
            }
        }
    }

    /// How many inodes are in memory.
    pub(super) fn len(&self) -> usize {
        self.inodes.len()
    }

    /// Notes that the number of a file was given to somebody once more.
    pub(super) fn hold(&mut self, ino: Ino) {
        *self.held.entry(ino).or_default() += 1;
    }

    /// Notes that a number that was given out is forgotten, `times` times. Returns whether that may have
    /// been the end of the file: it has no name, and nobody holds it any more.
    pub(super) fn let_go(&mut self, ino: Ino, mut times: u64) -> bool {
        if let Some(owed) = self.owed.get_mut(&ino) {
            let paid = times.min(*owed);
            *owed -= paid;
            times -= paid;
            if *owed == 0 {
                self.owed.remove(&ino);
            }
        }
        let Some(held) = self.held.get_mut(&ino) else { return false };
        *held = held.saturating_sub(times);
        if *held > 0 {
            return false;
        }
        self.held.remove(&ino);
        if self.held.capacity() / 8 > self.held.len().max(1024) {
            self.held.shrink_to(self.held.len() * 2);
        }
        self.orphans.contains_key(&ino)
    }

    /// A file without a name, if nobody refers to it any more.
    pub(super) fn abandoned_file(&self, ino: Ino) -> Option<InodeRef> {
        let inode = self.inodes.get(&ino).filter(|_| self.orphans.contains_key(&ino))?;
        self.is_abandoned(inode).then(|| Arc::clone(inode))
    }

    /// Notes that nobody knows any number any more.
    pub(super) fn let_go_of_all(&mut self) {
        self.held = HashMap::default();
        self.owed = HashMap::default();
    }

    /// Files without a name that would be deleted if nobody knew their number.
    pub(super) fn held_orphans(&self) -> Vec<Ino> {
        self.orphans.keys().filter(|ino| self.held.contains_key(ino)).copied().collect()
    }

    /// Notes that nobody holds a file without a name any more, before [`Table::let_go`] says how often
    /// it was held. Its number may belong to another file by then, and even now, if that has been said
    /// meanwhile.
    pub(super) fn expect_let_go(&mut self, ino: Ino) {
        if !self.orphans.contains_key(&ino) {
            return;
        }
        if let Some(times) = self.held.remove(&ino) {
            *self.owed.entry(ino).or_default() += times;
        }
    }

    /// How many files somebody knows by their number.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// Takes out the orphans that nobody refers to any more and that `fit`.
    pub(super) fn take_abandoned(&mut self, mut fits: impl FnMut(&Inode) -> bool) -> Vec<InodeRef> {
        let fitting = self.abandoned().filter(|(inode, _)| fits(inode));
        let abandoned: Vec<InodeRef> = fitting.map(|(inode, _)| Arc::clone(inode)).collect();
        for inode in &abandoned {
            self.orphans.remove(&inode.ino());
            self.remove(inode.ino());
            self.dirty.remove(&inode.ino());
        }
        abandoned
    }

    /// Puts back an orphan that was taken out, with this many blocks.
    pub(super) fn put_back(&mut self, orphan: InodeRef, blocks: u64) {
        self.orphans.insert(orphan.ino(), blocks);
        self.insert(orphan);
    }

    /// Whether a commit would delete something.
    pub(super) fn has_abandoned(&self) -> bool {
        self.abandoned().next().is_some()
    }

    /// Blocks of the newest checkpoint that a commit would delete with the files that nobody refers
    /// to any more.
    pub(super) fn abandoned_blocks(&self) -> u64 {
        self.abandoned().map(|(_, blocks)| blocks).fold(0, u64::saturating_add)
    }

    /// Files that the next commit would delete and that have blocks in the newest checkpoint: how many.
    pub(super) fn abandoned_files(&self) -> Vec<(Ino, u64)> {
        let abandoned = self.abandoned().map(|(inode, blocks)| (inode.ino(), blocks));
        abandoned.filter(|(_, blocks)| *blocks > 0).collect()
    }

    /// Takes note of how many blocks the newest checkpoint has of a file, if that has no name.
    pub(super) fn orphan_committed(&mut self, ino: Ino, blocks: u64) {
        if let Some(orphan) = self.orphans.get_mut(&ino) {
            *orphan = blocks;
        }
    }

    /// The orphans that nobody refers to, with their blocks.
    fn abandoned(&self) -> impl Iterator<Item = (&InodeRef, u64)> {
        let known = |(ino, blocks): (&Ino, &u64)| Some((self.inodes.get(ino)?, *blocks));
        self.orphans.iter().filter_map(known).filter(|(inode, _)| self.is_abandoned(inode))
    }

    /// Lets nobody have this file any more, until [`Table::end_leaving`], unless somebody refers to it.
    /// Returns whether nobody does.
    pub(super) fn leave(&mut self, ino: Ino) -> bool {
        let is_used = match self.inodes.get(&ino) {
            Some(inode) => !self.is_abandoned(inode),
            None => self.held.contains_key(&ino),
        };
        if !is_used && !self.orphans.contains_key(&ino) {
            self.remove(ino);
            return self.leaving.insert(ino);
        }
        false
    }

    /// Whether a file [leaves](Table::leave).
    pub(super) fn is_leaving(&self, ino: Ino) -> bool {
        self.leaving.contains(&ino)
    }

    /// Everybody can have again what has the numbers now.
    pub(super) fn end_leaving(&mut self) {
        self.leaving.clear();
    }

    /// Whether only the table refers to an inode.
    fn is_abandoned(&self, inode: &InodeRef) -> bool {
        let own = 1 + usize::from(self.dirty.contains_key(&inode.ino()));
        Arc::strong_count(inode) <= own && !self.held.contains_key(&inode.ino())
    }
}

//! Inode numbers: the lowest free one is the next (docs/format.md §10).
//!
//! The bitmap is not believed alone. Where it has lost a bit, a new file would be written over a file that
//! is in use, so the inodes of a block are looked at before one of them is given away, or called free: one
//! with links is in use. No number is given away of a block that cannot be read, either: with a file there, no
//! checkpoint could be made. The next checkpoint reads and writes that block anyway, so looking costs nothing.
//! And none of a group whose bitmap cannot be read, where each number may be in use.

use std::collections::{BTreeMap, HashMap, HashSet, btree_map, hash_map};

use nilfs_ondisk::palloc::{clear_bit, next_clear_bit, set_bit, test_bit};
use nilfs_ondisk::{FileBlock, Ino};

use crate::error::{Error, Result};
use crate::host::NumberState;
use crate::tree::View;

/// Which inode numbers are in use, with everything that is not committed yet.
#[derive(Debug, Clone)]
pub(super) struct InodeNumbers {
    /// The bitmaps of groups that were looked at; `None` for one that cannot be read.
    bitmaps: HashMap<u64, Option<Vec<u8>>, NumberState>,
    /// Taken (true) and given back since the last freeze.
    changes: BTreeMap<Ino, bool>,
    /// Blocks of inodes that were looked at.
    examined: HashSet<FileBlock, NumberState>,
    /// No number below is free.
    lowest: u64,
    /// The first number for user files.
    first: u64,
}

impl InodeNumbers {
    pub(super) fn new(first: Ino) -> Self {
        let first = first.0.max(Ino::FIRST_USER.0);
        let (bitmaps, examined) = (HashMap::default(), HashSet::default());
        Self { bitmaps, changes: BTreeMap::new(), examined, lowest: first, first }
    }

    /// Takes the lowest free number.
    pub(super) fn take(&mut self, view: &View) -> Result<Ino> {
        let layout = view.ifile_layout();
        let mut from = self.lowest.max(self.first);
        loop {
            let group = layout.group_of(from);
            if group + 1 >= layout.max_groups() {
                return Err(Error::NoSpace);
            }
            let bit = (from % layout.entries_per_group) as usize;
            let bitmap = self.bitmap(view, group)?;
            let Some(bit) = bitmap.and_then(|bitmap| next_clear_bit(bitmap, bit)) else {
                from = layout.first_of_group(group + 1);
                continue;
            };
            let ino = Ino(layout.first_of_group(group) + bit as u64);
            if self.examine(view, ino)? {
                from = ino.0;
                continue;
            }
            self.bitmap(view, group)?.map(|bitmap| set_bit(bitmap, bit));
            self.lowest = ino.0 + 1;
            self.change(ino, true);
            return Ok(ino);
        }
    }

    /// Takes this number, which must be free as far as the bitmap can be read.
    pub(super) fn take_exactly(&mut self, view: &View, ino: Ino) -> Result<()> {
        let layout = view.ifile_layout();
        let group = layout.group_of(ino.0);
        if group >= layout.max_groups() {
            return Err(Error::Inconsistent(format!(
                "inode {ino} is beyond what an ifile can have"
            )));
        }
        let bit = (ino.0 % layout.entries_per_group) as usize;
        if self.bitmap(view, group)?.is_some_and(|bitmap| !set_bit(bitmap, bit)) {
            return Err(Error::Inconsistent(format!("inode {ino} is in use already")));
        }
        self.change(ino, true);
        Ok(())
    }

    /// Takes a number back. A bitmap that calls it free already has lost a bit, and is right from now on. The
    /// number of an inode that cannot be read stays in use, because that cannot be changed.
    pub(super) fn give_back(&mut self, view: &View, ino: Ino) -> Result<()> {
        let layout = view.ifile_layout();
        // It may have been lost since it was looked at.
        let is_lost = view.raw_inode(ino).is_err_and(|error| error.is_of_block());
        if is_lost {
            self.examined.remove(&layout.entry(ino.0).block);
        }
        // From now on, the inode of the newest checkpoint has links although its number is free.
        self.examine(view, ino)?;
        if is_lost {
            return Ok(());
        }
        let bit = (ino.0 % layout.entries_per_group) as usize;
        let bitmap = self.bitmap(view, layout.group_of(ino.0))?;
        if bitmap.is_some_and(|bitmap| !clear_bit(bitmap, bit)) {
            tracing::error!("the bitmap of the ifile called inode {ino} free, which was in use");
        }
        self.lowest = self.lowest.min(ino.0);
        self.change(ino, false);
        Ok(())
    }

    /// Whether a number is in use, or may be, because the bitmap cannot be read.
    pub(super) fn is_taken(&mut self, view: &View, ino: Ino) -> Result<bool> {
        let layout = view.ifile_layout();
        let group = layout.group_of(ino.0);
        if !self.bitmaps.contains_key(&group)
            && view.source().lookup(&view.tree.ifile, layout.bitmap(group))?.is_none()
        {
            return Ok(false);
        }
        let bit = (ino.0 % layout.entries_per_group) as usize;
        // Where it cannot be read, the inode alone tells.
        let is_set = |bitmap: Option<&mut Vec<u8>>| bitmap.is_none_or(|it| test_bit(it, bit));
        if is_set(self.bitmap(view, group)?) {
            return Ok(true);
        }
        self.examine(view, ino)?;
        Ok(is_set(self.bitmap(view, group)?))
    }

    /// What has changed since the last call.
    pub(super) fn freeze(&mut self) -> BTreeMap<Ino, bool> {
        std::mem::take(&mut self.changes)
    }

    /// Looks at the block of an inode, if that has not been done, and marks what its bitmap calls free by
    /// mistake. Returns whether it has been done now.
    fn examine(&mut self, view: &View, ino: Ino) -> Result<bool> {
        let layout = view.ifile_layout();
        let block = layout.entry(ino.0).block;
        if self.examined.contains(&block) {
            return Ok(false);
        }
        let (used, reason) = match view.linked_beside(ino) {
            Ok(linked) => (linked, "the bitmap of the ifile calls files in use free".to_owned()),
            Err(error) if !error.is_fault() => return Err(error),
            Err(error) => {
                let all = layout.entries_of_block(layout.nth_entry_block(ino.0));
                (all.map(Ino).collect(), error.to_string())
            }
        };
        self.examined.insert(block);
        let Some(bitmap) = self.bitmap(view, layout.group_of(ino.0))? else { return Ok(true) };
        let mark = |ino: &&Ino| set_bit(bitmap, (ino.0 % layout.entries_per_group) as usize);
        let marked = used.iter().filter(mark).count();
        if marked > 0 {
            tracing::error!(
                "{marked} inode numbers near {ino} are not given to new files; nilfs fsck can repair \
                 that: {reason}"
            );
        }
        Ok(true)
    }

    /// A number that was taken and given back (or the other way round) has not changed.
    fn change(&mut self, ino: Ino, taken: bool) {
        match self.changes.entry(ino) {
            btree_map::Entry::Occupied(opposite) => _ = opposite.remove(),
            btree_map::Entry::Vacant(unchanged) => _ = unchanged.insert(taken),
        }
    }

    /// The bitmap of a group, if it can be read.
    fn bitmap(&mut self, view: &View, group: u64) -> Result<Option<&mut Vec<u8>>> {
        let place = match self.bitmaps.entry(group) {
            hash_map::Entry::Occupied(known) => return Ok(known.into_mut().as_mut()),
            hash_map::Entry::Vacant(place) => place,
        };
        let block = view.source().block(&view.tree.ifile, view.ifile_layout().bitmap(group));
        let bitmap = match block {
            Ok(Some(block)) => Some(block.to_vec()),
            Ok(None) => Some(vec![0; view.store.block_size().bytes()]),
            Err(error) if error.is_fault() => {
                tracing::error!(
                    "no inode number is given to a new file where the bitmap of the ifile cannot be read; \
                     nilfs fsck can repair that: {error}"
                );
                None
            }
            Err(error) => return Err(error),
        };
        Ok(place.insert(bitmap).as_mut())
    }
}

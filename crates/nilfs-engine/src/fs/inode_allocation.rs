//! Inode numbers: the lowest free one is the next (docs/format.md §10).

use std::collections::{BTreeMap, HashMap, btree_map, hash_map};

use nilfs_ondisk::Ino;
use nilfs_ondisk::palloc::{clear_bit, next_clear_bit, set_bit, test_bit};

use crate::error::{Error, Result};
use crate::host::NumberState;
use crate::tree::View;

/// Which inode numbers are in use, with everything that is not committed yet.
#[derive(Debug, Clone)]
pub(super) struct InodeNumbers {
    /// The bitmaps of groups that were looked at.
    bitmaps: HashMap<u64, Vec<u8>, NumberState>,
    /// Taken (true) and given back since the last freeze.
    changes: BTreeMap<Ino, bool>,
    /// No number below is free.
    lowest: u64,
    /// The first number for user files.
    first: u64,
}

impl InodeNumbers {
    pub(super) fn new(first: Ino) -> Self {
        let first = first.0.max(Ino::FIRST_USER.0);
        Self { bitmaps: HashMap::default(), changes: BTreeMap::new(), lowest: first, first }
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
            if let Some(bit) = next_clear_bit(bitmap, bit) {
                set_bit(bitmap, bit);
                let ino = Ino(layout.first_of_group(group) + bit as u64);
                self.lowest = ino.0 + 1;
                self.change(ino, true);
                return Ok(ino);
            }
            from = layout.first_of_group(group + 1);
        }
    }

    /// Takes this number, which must be free.
    pub(super) fn take_exactly(&mut self, view: &View, ino: Ino) -> Result<()> {
        let layout = view.ifile_layout();
        let group = layout.group_of(ino.0);
        if group >= layout.max_groups() {
            return Err(Error::Inconsistent(format!(
                "inode {ino} is beyond what an ifile can have"
            )));
        }
        let bitmap = self.bitmap(view, group)?;
        if !set_bit(bitmap, (ino.0 % layout.entries_per_group) as usize) {
            return Err(Error::Inconsistent(format!("inode {ino} is in use already")));
        }
        self.change(ino, true);
        Ok(())
    }

    /// Gives a number back.
    pub(super) fn give_back(&mut self, view: &View, ino: Ino) -> Result<()> {
        let layout = view.ifile_layout();
        let bitmap = self.bitmap(view, layout.group_of(ino.0))?;
        if !clear_bit(bitmap, (ino.0 % layout.entries_per_group) as usize) {
            return Err(Error::Inconsistent(format!("inode {ino} is in no bitmap")));
        }
        self.lowest = self.lowest.min(ino.0);
        self.change(ino, false);
        Ok(())
    }

    /// Whether a number is in use.
    pub(super) fn is_taken(&mut self, view: &View, ino: Ino) -> Result<bool> {
        let layout = view.ifile_layout();
        let group = layout.group_of(ino.0);
        if !self.bitmaps.contains_key(&group)
            && view.source().lookup(&view.tree.ifile, layout.bitmap(group))?.is_none()
        {
            return Ok(false);
        }
        let bitmap = self.bitmap(view, group)?;
        Ok(test_bit(bitmap, (ino.0 % layout.entries_per_group) as usize))
    }

    /// What has changed since the last call.
    pub(super) fn freeze(&mut self) -> BTreeMap<Ino, bool> {
        std::mem::take(&mut self.changes)
    }

    /// A number that was taken and given back (or the other way round) has not changed.
    fn change(&mut self, ino: Ino, taken: bool) {
        match self.changes.entry(ino) {
            btree_map::Entry::Occupied(opposite) => _ = opposite.remove(),
            btree_map::Entry::Vacant(unchanged) => _ = unchanged.insert(taken),
        }
    }

    fn bitmap(&mut self, view: &View, group: u64) -> Result<&mut Vec<u8>> {
        match self.bitmaps.entry(group) {
            hash_map::Entry::Occupied(known) => Ok(known.into_mut()),
            hash_map::Entry::Vacant(place) => {
                let key = view.ifile_layout().bitmap(group);
                let block = view.source().block(&view.tree.ifile, key)?;
                let empty = || vec![0; view.store.block_size().bytes()];
                Ok(place.insert(block.map_or_else(empty, |block| block.to_vec())))
            }
        }
    }
}

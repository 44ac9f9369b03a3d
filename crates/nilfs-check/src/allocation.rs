//! Persistent object files (docs/format.md §9): descriptors against bitmaps against entry blocks,
//! for the DAT and for the ifile of each checkpoint.

use std::collections::BTreeMap;

use nilfs_ondisk::palloc::{BlockRole, Palloc, count_set, test_bit};
use nilfs_ondisk::{BlockNr, FileBlock, Ino, VBlockNr};

use crate::block_map::Leaf;
use crate::checker::{Checker, FileAt};
use crate::correction::{Correction, Position};
use crate::report::Rule;

/// What of a persistent object file is in use.
pub(crate) struct Groups {
    layout: Palloc,
    bitmaps: BTreeMap<u64, Vec<u8>>,
    /// Where the bitmaps are.
    places: BTreeMap<u64, BlockNr>,
    /// The first entry of each entry block, ascending, and where the block is.
    pub(crate) entry_blocks: Vec<(u64, Leaf)>,
    /// Whether everything could be read.
    pub(crate) whole: bool,
}

impl Groups {
    /// Whether an entry is in use.
    pub(crate) fn is_allocated(&self, entry: u64) -> bool {
        let bit = self.layout.bit(entry).bit;
        self.bitmaps.get(&self.layout.group_of(entry)).is_some_and(|bitmap| test_bit(bitmap, bit))
    }

    /// The entries in use whose block begins with entry `first`, ascending.
    pub(crate) fn allocated_from(&self, first: u64) -> impl Iterator<Item = u64> {
        let in_group = self.layout.bit(first).bit as u64;
        let end = (in_group + self.layout.entries_per_block).min(self.layout.entries_per_group);
        let bitmap = self.bitmaps.get(&self.layout.group_of(first));
        (in_group..end)
            .filter(move |bit| bitmap.is_some_and(|bitmap| test_bit(bitmap, *bit as usize)))
            .map(move |bit| first + (bit - in_group))
    }

    /// What marks an entry as in use or free. The counter of its group follows when it is found to
    /// be wrong.
    pub(crate) fn set_allocated(&self, entry: u64, allocated: bool) -> Option<Correction> {
        let bitmap = self.places.get(&self.layout.group_of(entry))?;
        Some(Correction::bit(Position::new(*bitmap, 0), self.layout.bit(entry).bit, allocated))
    }

    /// The block that has an entry, and which of the block it is.
    pub(crate) fn entry_block(&self, entry: u64) -> Option<(BlockNr, usize)> {
        let in_group = self.layout.bit(entry).bit as u64;
        let nth = in_group % self.layout.entries_per_block;
        let at =
            self.entry_blocks.binary_search_by_key(&(entry - nth), |(first, _)| *first).ok()?;
        Some((self.entry_blocks[at].1.block, nth as usize))
    }

    /// How many entries are in use.
    fn allocated_count(&self) -> u64 {
        self.bitmaps.values().map(|bitmap| count_set(bitmap)).sum()
    }

    /// Entries in use whose block does not exist.
    fn without_block(&self) -> impl Iterator<Item = u64> {
        let layout = &self.layout;
        let blocks = (0..layout.entries_per_group).step_by(layout.entries_per_block as usize);
        self.bitmaps
            .keys()
            .flat_map(move |group| blocks.clone().map(|nth| layout.first_of_group(*group) + nth))
            .filter(|first| self.entry_blocks.binary_search_by_key(first, |(f, _)| *f).is_err())
            .flat_map(|first| self.allocated_from(first))
    }
}

impl Checker<'_, '_> {
    /// Reads descriptors and bitmaps of a persistent object file and checks that they agree, if
    /// `whole` of the file was found. Else what seems to be missing may be there.
    pub(crate) fn check_allocation(
        &mut self,
        file: FileAt,
        layout: Palloc,
        leaves: &[Leaf],
        whole: bool,
    ) -> Groups {
        let mut groups = Groups {
            layout,
            bitmaps: BTreeMap::new(),
            places: BTreeMap::new(),
            entry_blocks: Vec::new(),
            whole,
        };
        let mut descriptors = BTreeMap::new();
        // Beyond this block, numbers of entries would need more than 64 bits.
        let end = layout.bitmap(layout.max_groups());
        for leaf in leaves {
            let place = file.place().file_block(leaf.key);
            if leaf.key >= end.0 {
                self.error(Rule::Allocation, place, || {
                    "the block lies after the last possible group".into()
                });
                groups.whole = false;
                continue;
            }
            match layout.role_of(FileBlock(leaf.key)) {
                BlockRole::Entries { first_entry } => {
                    groups.entry_blocks.push((first_entry, *leaf));
                }
                BlockRole::Bitmap { group } => match self.read(leaf.block, place) {
                    Some(bitmap) => {
                        groups.bitmaps.insert(group, bitmap);
                        groups.places.insert(group, leaf.block);
                    }
                    None => groups.whole = false,
                },
                BlockRole::Descriptor { first_group } => match self.read(leaf.block, place) {
                    Some(counters) => {
                        descriptors.insert(first_group, (leaf.block, counters));
                    }
                    None => groups.whole = false,
                },
            }
        }
        if groups.whole {
            self.compare_counters(file, &groups, &descriptors);
            self.find_missing_entries(file, &groups);
        }
        groups
    }

    fn compare_counters(
        &mut self,
        file: FileAt,
        groups: &Groups,
        descriptors: &BTreeMap<u64, (BlockNr, Vec<u8>)>,
    ) {
        let layout = &groups.layout;
        let full = layout.entries_per_group;
        for (first, (block, counters)) in descriptors {
            for (group, counter) in (*first..).zip(counters.chunks_exact(4)) {
                let free = counter.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
                let used = groups.bitmaps.get(&group).map_or(0, |bitmap| count_set(bitmap));
                if free != full - used.min(full) {
                    let place = file.place().file_block(layout.descriptor(group).block.0);
                    self.error(Rule::Allocation, place, || {
                        format!(
                            "the counter of free entries of group {group} is {free}, but its \
                             bitmap leaves {}",
                            full - used.min(full)
                        )
                    })
                    .corrected_by([Correction::count_u32(
                        Position::new(*block, layout.descriptor(group).offset),
                        (full - used.min(full)) as u32,
                    )]);
                }
            }
        }
        for group in groups.bitmaps.keys() {
            let first = group - group % layout.groups_per_descriptor;
            if !descriptors.contains_key(&first) {
                let place = file.place().file_block(layout.bitmap(*group).0);
                self.error(Rule::Allocation, place, || {
                    format!("group {group} has a bitmap, but no descriptor block")
                });
            }
        }
    }

    fn find_missing_entries(&mut self, file: FileAt, groups: &Groups) {
        let found: usize = groups
            .entry_blocks
            .iter()
            .map(|(first, _)| groups.allocated_from(*first).count())
            .sum();
        if found as u64 == groups.allocated_count() {
            return;
        }
        for entry in groups.without_block() {
            let place = if file.ino == Ino::DAT {
                file.place().vblock(VBlockNr(entry))
            } else {
                file.place()
            };
            self.error(Rule::Allocation, place, || {
                format!("entry {entry} is allocated, but its block does not exist")
            })
            .corrected_by(groups.set_allocated(entry, false));
        }
    }
}

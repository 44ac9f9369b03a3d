//! Persistent object files (format spec §9): descriptors against bitmaps against entry blocks,
//! for the DAT and for the ifile of each checkpoint.

use std::collections::BTreeMap;

use nilfs_ondisk::palloc::{BlockRole, Palloc, count_set, test_bit};
use nilfs_ondisk::{FileBlock, VBlockNr};

use crate::block_map::Leaf;
use crate::judge::{FileAt, Judge};
use crate::report::{Place, Rule};

/// What of a persistent object file is in use.
pub(crate) struct Groups {
    layout: Palloc,
    bitmaps: BTreeMap<u64, Vec<u8>>,
    /// The first entry of each entry block, ascending, and where the block is.
    pub(crate) entry_blocks: Vec<(u64, Leaf)>,
    /// Whether everything could be read.
    pub(crate) whole: bool,
}

impl Groups {
    /// Whether an entry is in use.
    pub(crate) fn is_allocated(&self, entry: u64) -> bool {
        let bit = self.layout.bit(entry).bit;
        self.bitmaps
            .get(&self.layout.group_of(entry))
            .is_some_and(|bitmap| test_bit(bitmap, bit))
    }

    /// All entries in use, ascending.
    pub(crate) fn allocated(&self) -> impl Iterator<Item = u64> {
        self.bitmaps.iter().flat_map(|(group, bitmap)| {
            let first = self.layout.first_of_group(*group);
            let used = bitmap.iter().enumerate().filter(|(_, byte)| **byte != 0);
            used.flat_map(move |(at, byte)| {
                (0..8)
                    .filter(move |bit| byte & (1 << bit) != 0)
                    .map(move |bit| at as u64 * 8 + bit)
            })
            .map(move |bit| first + bit)
        })
    }

    /// The block that holds an entry, with the number of its first entry.
    pub(crate) fn block_of(&self, entry: u64) -> Option<&(u64, Leaf)> {
        let in_group = entry % self.layout.entries_per_group;
        let first = entry - in_group % self.layout.entries_per_block;
        let at = self
            .entry_blocks
            .binary_search_by_key(&first, |(first, _)| *first)
            .ok()?;
        self.entry_blocks.get(at)
    }
}

impl Judge<'_, '_> {
    /// Reads descriptors and bitmaps of a persistent object file and judges that they agree.
    pub(crate) fn judge_allocation(
        &mut self,
        file: FileAt,
        layout: Palloc,
        leaves: &[Leaf],
    ) -> Groups {
        let mut groups = Groups {
            layout,
            bitmaps: BTreeMap::new(),
            entry_blocks: Vec::new(),
            whole: true,
        };
        let mut descriptors = BTreeMap::new();
        // Behind this block, numbers of entries would need more than 64 bits.
        let end = layout.bitmap(layout.max_groups());
        for leaf in leaves {
            let place = file.place().file_block(leaf.key);
            if leaf.key >= end.0 {
                self.findings.error(Rule::Allocation, place, || {
                    "the block lies behind the last possible group".into()
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
                    }
                    None => groups.whole = false,
                },
                BlockRole::Descriptor { first_group } => match self.read(leaf.block, place) {
                    Some(counters) => {
                        descriptors.insert(first_group, counters);
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
        descriptors: &BTreeMap<u64, Vec<u8>>,
    ) {
        let layout = &groups.layout;
        let full = layout.entries_per_group;
        for (first, counters) in descriptors {
            for (group, counter) in (*first..).zip(counters.chunks_exact(4)) {
                let free = counter
                    .iter()
                    .rev()
                    .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
                let used = groups
                    .bitmaps
                    .get(&group)
                    .map_or(0, |bitmap| count_set(bitmap));
                if free != full - used.min(full) {
                    let place = file.place().file_block(layout.descriptor(group).block.0);
                    self.findings.error(Rule::Allocation, place, || {
                        format!(
                            "the counter of free entries of group {group} is {free}, but its \
                             bitmap leaves {}",
                            full - used.min(full)
                        )
                    });
                }
            }
        }
        for group in groups.bitmaps.keys() {
            let first = group - group % layout.groups_per_descriptor;
            if !descriptors.contains_key(&first) {
                let place = file.place().file_block(layout.bitmap(*group).0);
                self.findings.error(Rule::Allocation, place, || {
                    format!("group {group} has a bitmap, but no descriptor block")
                });
            }
        }
    }

    fn find_missing_entries(&mut self, file: FileAt, groups: &Groups) {
        for entry in groups.allocated() {
            // Entry 0 of the DAT is reserved and need not be stored.
            if entry != 0 && groups.block_of(entry).is_none() {
                let place = entry_place(file, entry);
                self.findings.error(Rule::Allocation, place, || {
                    format!("entry {entry} is allocated, but its block does not exist")
                });
            }
        }
    }
}

fn entry_place(file: FileAt, entry: u64) -> Place {
    if file.ino == nilfs_ondisk::Ino::DAT {
        return file.place().vblock(VBlockNr(entry));
    }
    file.place()
}

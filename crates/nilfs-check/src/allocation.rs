//! Persistent object files (docs/format.md §9): descriptors against bitmaps against entry blocks,
//! for the DAT and for the ifile of each checkpoint.

use std::collections::{BTreeMap, BTreeSet};

use nilfs_ondisk::palloc::{BlockRole, Palloc, count_set, test_bit};
use nilfs_ondisk::{BlockNr, FileBlock, Ino, VBlockNr};

use crate::block_map::Leaf;
use crate::checker::{Checker, FileAt};
use crate::correction::{Correction, Position};
use crate::report::Rule;

/// Entries of blocks that do not exist, up to which their bits are wrong, and not the whole bitmap.
const MOST_STRAY_BITS: usize = 64;

/// What of a persistent object file is in use.
#[derive(Clone)]
pub(crate) struct Groups {
    pub(crate) layout: Palloc,
    bitmaps: BTreeMap<u64, Bitmap>,
    /// The counters, by the first group that they count.
    descriptors: BTreeMap<u64, (BlockNr, Vec<u8>)>,
    /// The first entry of each entry block, and where the block is.
    pub(crate) entry_blocks: BTreeMap<u64, Leaf>,
    /// Blocks of the file that cannot be used.
    unusable: BTreeSet<u64>,
    /// Whether the block map could be followed to its end.
    mapped: bool,
}

/// Which entries of a group are in use.
#[derive(Clone)]
struct Bitmap {
    leaf: Leaf,
    bits: Vec<u8>,
    used: u64,
}

/// How a persistent object file differs from what it was before.
#[derive(Default)]
pub(crate) struct AllocationChanges {
    /// The bitmaps that were there before, of groups in which something has changed. Empty where
    /// there was none.
    pub(crate) bitmaps: BTreeMap<u64, Vec<u8>>,
    /// The entry blocks that were there before, where another one is now or none.
    pub(crate) entry_blocks: BTreeMap<u64, Option<Leaf>>,
    descriptors: BTreeSet<u64>,
}

impl Groups {
    /// Those of a file without blocks.
    pub(crate) fn new(layout: Palloc) -> Self {
        Self {
            layout,
            bitmaps: BTreeMap::new(),
            descriptors: BTreeMap::new(),
            entry_blocks: BTreeMap::new(),
            unusable: BTreeSet::new(),
            mapped: true,
        }
    }

    /// Whether everything could be read.
    pub(crate) fn whole(&self) -> bool {
        self.mapped && self.unusable.is_empty()
    }

    /// Whether an entry is in use.
    pub(crate) fn is_allocated(&self, entry: u64) -> bool {
        let bit = self.layout.bit(entry).bit;
        let bitmap = self.bitmaps.get(&self.layout.group_of(entry));
        bitmap.is_some_and(|bitmap| test_bit(&bitmap.bits, bit))
    }

    /// The first bitmap of a file in which the entries before `first_free` are always in use, if none of them is: it
    /// is not what was written there.
    pub(crate) fn lost_bitmap(&self, first_free: u64) -> Option<Leaf> {
        let is_lost = (0..first_free).all(|entry| !self.is_allocated(entry));
        self.bitmaps.get(&0).filter(|_| is_lost).map(|bitmap| bitmap.leaf)
    }

    /// The bits of a group; none if it has no bitmap.
    pub(crate) fn bits(&self, group: u64) -> &[u8] {
        self.bitmaps.get(&group).map_or(&[], |bitmap| &bitmap.bits)
    }

    /// What marks an entry as in use or free. The counter of its group follows when it is found to
    /// be wrong.
    pub(crate) fn set_allocated(&self, entry: u64, allocated: bool) -> Option<Correction> {
        let bitmap = self.bitmaps.get(&self.layout.group_of(entry))?;
        let at = Position::new(bitmap.leaf.block, 0);
        Some(Correction::bit(at, self.layout.bit(entry).bit, allocated))
    }

    /// Where the bit of an entry is: its byte, and which of that.
    pub(crate) fn bit(&self, entry: u64) -> Option<(Position, u8)> {
        let bitmap = self.bitmaps.get(&self.layout.group_of(entry))?;
        let bit = self.layout.bit(entry).bit;
        Some((Position::new(bitmap.leaf.block, bit / 8), (bit % 8) as u8))
    }

    /// The block that has an entry, and which of the block it is.
    pub(crate) fn entry_block(&self, entry: u64) -> Option<(BlockNr, usize)> {
        let in_group = self.layout.bit(entry).bit as u64;
        let nth = in_group % self.layout.entries_per_block;
        Some((self.entry_blocks.get(&(entry - nth))?.block, nth as usize))
    }

    /// The first entries of those blocks of a group that do not exist.
    fn missing_blocks(&self, group: u64) -> impl Iterator<Item = u64> {
        let Palloc { entries_per_group, entries_per_block, .. } = self.layout;
        let start = self.layout.first_of_group(group);
        let all = (0..entries_per_group).step_by(entries_per_block as usize);
        let mut there = self.entry_blocks.range(start..).map(|(first, _)| *first).peekable();
        all.map(move |nth| start + nth).filter(move |first| there.next_if_eq(first).is_none())
    }

    /// Takes a block out; notes what that changes.
    fn remove(&mut self, leaf: &Leaf, changes: &mut AllocationChanges) {
        self.unusable.remove(&leaf.key);
        match self.layout.role_of(FileBlock(leaf.key)) {
            BlockRole::Entries { first_entry } => {
                let old = self.entry_blocks.remove(&first_entry);
                changes.entry_blocks.entry(first_entry).or_insert(old);
            }
            BlockRole::Bitmap { group } => {
                let old = self.bitmaps.remove(&group).map_or(Vec::new(), |bitmap| bitmap.bits);
                changes.bitmaps.entry(group).or_insert(old);
            }
            BlockRole::Descriptor { first_group } => {
                self.descriptors.remove(&first_group);
                changes.descriptors.insert(first_group);
            }
        }
    }
}

/// The entries of a bitmap that are in use and whose block begins with entry `first`, ascending.
pub(crate) fn allocated_from(
    layout: &Palloc,
    bits: &[u8],
    first: u64,
) -> impl Iterator<Item = u64> {
    let in_group = layout.bit(first).bit as u64;
    let end = (in_group + layout.entries_per_block).min(layout.entries_per_group);
    // Most blocks of a group of which little is in use have nothing.
    let bytes = bits.get((in_group / 8) as usize..end.div_ceil(8) as usize);
    let any = bytes.is_some_and(|bytes| bytes.iter().any(|byte| *byte != 0));
    (in_group..if any { end } else { in_group })
        .filter(move |bit| test_bit(bits, *bit as usize))
        .map(move |bit| first + (bit - in_group))
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
        let mut groups = Groups::new(layout);
        self.change_allocation(file, &mut groups, (&[], leaves), whole);
        groups
    }

    /// Goes on to a version of the file with some blocks less and others more, and checks what is
    /// other there.
    pub(crate) fn change_allocation(
        &mut self,
        file: FileAt,
        groups: &mut Groups,
        (removed, added): (&[Leaf], &[Leaf]),
        mapped: bool,
    ) -> AllocationChanges {
        let mut changes = AllocationChanges::default();
        groups.mapped = mapped;
        for leaf in removed {
            groups.remove(leaf, &mut changes);
        }
        for leaf in added {
            if !self.add_block(file, groups, leaf, &mut changes) {
                groups.unusable.insert(leaf.key);
            }
        }
        if groups.whole() {
            self.compare_counters(file, groups, &changes);
            self.find_missing_entries(file, groups, &changes);
        }
        changes
    }

    /// Adds a block of the file. `false` if it cannot be used.
    fn add_block(
        &mut self,
        file: FileAt,
        groups: &mut Groups,
        leaf: &Leaf,
        changes: &mut AllocationChanges,
    ) -> bool {
        let layout = groups.layout;
        let place = file.place().file_block(leaf.key);
        // Beyond this block, numbers of entries would need more than 64 bits.
        if leaf.key >= layout.bitmap(layout.max_groups()).0 {
            self.error(Rule::Allocation, place, || {
                "the block lies after the last possible group".into()
            });
            return false;
        }
        match layout.role_of(FileBlock(leaf.key)) {
            BlockRole::Entries { first_entry } => {
                groups.entry_blocks.insert(first_entry, *leaf);
                changes.entry_blocks.entry(first_entry).or_insert(None);
            }
            BlockRole::Bitmap { group } => {
                let Some(bits) = self.read_leaf(file, leaf) else { return false };
                changes.bitmaps.entry(group).or_default();
                let used = count_set(&bits);
                groups.bitmaps.insert(group, Bitmap { leaf: *leaf, bits, used });
            }
            BlockRole::Descriptor { first_group } => {
                let Some(counters) = self.read_leaf(file, leaf) else { return false };
                changes.descriptors.insert(first_group);
                groups.descriptors.insert(first_group, (leaf.block, counters));
            }
        }
        true
    }

    fn compare_counters(&mut self, file: FileAt, groups: &Groups, changes: &AllocationChanges) {
        let layout = &groups.layout;
        let first_of = |group: &u64| group - group % layout.groups_per_descriptor;
        let mut concerned = changes.descriptors.clone();
        concerned.extend(changes.bitmaps.keys().map(first_of));
        let full = layout.entries_per_group;
        for first in concerned {
            let Some((block, counters)) = groups.descriptors.get(&first) else { continue };
            for (group, counter) in (first..).zip(counters.chunks_exact(4)) {
                let free = counter.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
                let used = groups.bitmaps.get(&group).map_or(0, |bitmap| bitmap.used);
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
            let first = first_of(group);
            let concerned =
                changes.bitmaps.contains_key(group) || changes.descriptors.contains(&first);
            if concerned && !groups.descriptors.contains_key(&first) {
                let place = file.place().file_block(layout.bitmap(*group).0);
                self.error(Rule::Allocation, place, || {
                    format!("group {group} has a bitmap, but no descriptor block")
                })
                .corrected_by(file.inode_at.map(|at| file.unmapped(at)));
            }
        }
    }

    /// Reports entries in use whose block does not exist.
    fn find_missing_entries(&mut self, file: FileAt, groups: &Groups, changes: &AllocationChanges) {
        let layout = &groups.layout;
        let of_bitmaps = changes.bitmaps.keys().flat_map(|group| groups.missing_blocks(*group));
        let is_missing = |first: &&u64| !groups.entry_blocks.contains_key(first);
        let gone = changes.entry_blocks.keys().filter(is_missing).copied();
        let firsts: BTreeSet<u64> = of_bitmaps.chain(gone).collect();
        let mut missing = BTreeMap::<u64, Vec<u64>>::new();
        for first in firsts {
            let group = layout.group_of(first);
            let entries = allocated_from(layout, groups.bits(group), first);
            missing.entry(group).or_default().extend(entries);
        }
        for (group, entries) in missing {
            if entries.len() > MOST_STRAY_BITS
                && let Some(leaf) = groups.bitmaps.get(&group).map(|bitmap| bitmap.leaf)
            {
                let anew = self.anew(file, &leaf);
                let place = file.place().file_block(leaf.key).block(leaf.block);
                self.error(Rule::Allocation, place, || {
                    let count = entries.len();
                    format!("the bitmap has {count} entries of blocks that do not exist")
                })
                .corrected_by(file.inode_at.map(|at| file.unmapped(at)).into_iter().chain([anew]));
                continue;
            }
            for entry in entries {
                let unmapped = file.inode_at.map(|at| file.unmapped(at));
                let place = if file.ino == Ino::DAT {
                    file.place().vblock(VBlockNr(entry))
                } else {
                    file.place()
                };
                self.error(Rule::Allocation, place, || {
                    format!("entry {entry} is allocated, but its block does not exist")
                })
                .corrected_by(unmapped.into_iter().chain(groups.set_allocated(entry, false)));
            }
        }
    }
}

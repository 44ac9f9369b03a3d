//! The DAT (docs/format.md §8): loading its entries, translating through them, and checking them
//! against the logs and against what was reached.

use std::collections::{BTreeMap, HashSet};
use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashMap;
use nilfs_ondisk::dat::{DatEntry, RawDatEntry};
use nilfs_ondisk::palloc::{BlockRole, Palloc};
use nilfs_ondisk::{BlockNr, Cno, FileBlock, Ino, VBlockNr};

use crate::allocation::Groups;
use crate::bits::Bits;
use crate::block_map::Leaf;
use crate::checker::{Checker, FileAt};
use crate::checkpoints::CheckpointTable;
use crate::correction::{Correction, Position};
use crate::owners::Ownership;
use crate::report::{Location, Rule};

/// The allocated entries of the DAT.
#[derive(Clone, Default)]
pub(crate) struct Dat {
    /// Entry blocks that nobody has asked for so far, by their first entries.
    waiting: BTreeMap<VBlockNr, Leaf>,
    /// The place in `entries` of the first entry of each entry block, and where the block is.
    blocks_of_entries: HashMap<VBlockNr, (usize, BlockNr)>,
    /// Which entries are allocated.
    groups: Option<Groups>,
    layout: Option<Palloc>,
    entry_size: usize,
    entries: Vec<DatEntry>,
    /// Which of these are allocated.
    allocated: Bits,
    /// Where these and the DAT's own blocks are, in order, once something on the volume is so damaged
    /// that it matters.
    pub(crate) used: Option<Vec<BlockNr>>,
    /// The DAT's own blocks.
    pub(crate) blocks: HashSet<BlockNr>,
}

impl Dat {
    /// The first entry of the block that has an entry, and which of the block it is.
    fn block_of(&self, vblock: VBlockNr) -> Option<(VBlockNr, usize)> {
        let layout = self.layout.as_ref()?;
        let in_group = vblock.0 % layout.entries_per_group;
        let nth = in_group % layout.entries_per_block;
        Some((VBlockNr(vblock.0 - nth), nth as usize))
    }

    fn position(&self, vblock: VBlockNr) -> Option<usize> {
        let (first, nth) = self.block_of(vblock)?;
        let position = self.blocks_of_entries.get(&first)?.0 + nth;
        self.allocated.get(position).then_some(position)
    }

    /// The entry of an allocated virtual block.
    pub(crate) fn entry(&self, vblock: VBlockNr) -> Option<DatEntry> {
        self.position(vblock).map(|at| self.entries[at])
    }

    /// The checkpoints that have a virtual block; all if that is not known.
    pub(crate) fn life_of(&self, vblock: VBlockNr) -> Range<Cno> {
        self.entry(vblock).map_or(Cno(0)..Cno::MAX, |entry| entry.start..entry.end)
    }

    /// What sets an entry to what the logs say.
    fn by_logs(&self, vblock: VBlockNr) -> Option<Correction> {
        let (first, nth) = self.block_of(vblock)?;
        let at = Position::new(self.blocks_of_entries.get(&first)?.1, nth * self.entry_size);
        let bit = self.groups.as_ref()?.bit(vblock.0)?;
        Some(Correction::DatEntry { at, vblock, bit })
    }

    /// Where a field of an entry is.
    fn position_of(&self, vblock: VBlockNr, field: usize) -> Option<Position> {
        let (first, nth) = self.block_of(vblock)?;
        let block = self.blocks_of_entries.get(&first)?.1;
        Some(Position::new(block, nth * self.entry_size + field))
    }

    /// What gives a field of an entry another value.
    fn set(&self, vblock: VBlockNr, field: usize, value: u64) -> Option<Correction> {
        Some(Correction::u64(self.position_of(vblock, field)?, value))
    }

    /// The entry of a virtual block that is not allocated, if it has a block to be in.
    fn unallocated(&self, vblock: VBlockNr) -> Option<DatEntry> {
        let (first, nth) = self.block_of(vblock)?;
        self.entries.get(self.blocks_of_entries.get(&first)?.0 + nth).copied()
    }

    /// What marks an entry as allocated or free.
    fn set_allocated(&self, vblock: VBlockNr, allocated: bool) -> Option<Correction> {
        self.groups.as_ref()?.set_allocated(vblock.0, allocated)
    }

    /// The first entry of every entry block in order, with its place in `entries`.
    fn in_order(&self) -> Vec<(VBlockNr, usize)> {
        let blocks = self.blocks_of_entries.iter();
        let mut blocks: Vec<_> = blocks.map(|(first, (at, _))| (*first, *at)).collect();
        blocks.sort_unstable();
        blocks
    }
}

impl Checker<'_, '_> {
    /// Checks the allocation of the DAT. Its entries are loaded when one of their block is asked for: most
    /// of these blocks lie in small logs, with others between them, and are in the system's memory once
    /// the logs have been read.
    pub(crate) fn load_dat(&mut self) {
        let inode = self.newest.super_root.dat;
        let file = self.dat_file();
        let (tree, leaves) = self.walk_all(file, &inode);
        self.present_is_whole &= tree.whole;
        self.check_metadata_inode(file, &inode, &tree);
        let geometry = &self.volume.geometry;
        let layout = Palloc::new(geometry.block_size, geometry.dat_entry_size);
        let is_entries =
            |leaf: &&Leaf| matches!(layout.role_of(FileBlock(leaf.key)), BlockRole::Entries { .. });
        let (entries, others): (Vec<&Leaf>, Vec<_>) = leaves.iter().partition(is_entries);
        let volume = self.volume;
        let groups = volume.reading_ahead(others.iter().map(|leaf| leaf.block).collect(), || {
            self.check_allocation(file, layout, &leaves, tree.whole)
        });
        if !groups.is_allocated(0) {
            self.error(Rule::Allocation, file.place().vblock(VBlockNr(0)), || {
                "the reserved virtual block 0 is not allocated".into()
            })
            .corrected_by(groups.set_allocated(0, true));
        }
        let entry_size = geometry.dat_entry_size;
        let dat = self.dat_mut();
        // Growing step by step would need twice as much at the end.
        dat.entries.reserve_exact(entries.len() * layout.entries_per_block as usize);
        let waiting = groups.entry_blocks.iter().map(|(first, leaf)| (VBlockNr(*first), *leaf));
        dat.waiting = waiting.collect();
        dat.layout = Some(layout);
        dat.entry_size = entry_size;
        dat.groups = Some(groups);
    }

    /// The DAT while it is loaded. Nobody else has it then, so that it is not copied.
    pub(crate) fn dat_mut(&mut self) -> &mut Dat {
        Arc::make_mut(&mut self.dat)
    }

    fn dat_file(&self) -> FileAt {
        let inode_at = Some(self.in_super_root(0));
        FileAt { ino: Ino::DAT, cno: self.newest.cno, present: true, inode_at }
    }

    /// Loads all entries that nobody has asked for so far.
    pub(crate) fn load_dat_entries(&mut self) {
        if self.dat.waiting.is_empty() {
            return;
        }
        let waiting = std::mem::take(&mut self.dat_mut().waiting);
        let volume = self.volume;
        volume.reading_ahead(waiting.values().map(|leaf| leaf.block).collect(), || {
            for (first, leaf) in &waiting {
                self.load_entry_block(*first, leaf);
            }
        });
    }

    fn load_entry_block(&mut self, first: VBlockNr, leaf: &Leaf) {
        let Some(bytes) = self.read_leaf(self.dat_file(), leaf) else {
            self.present_is_whole = false;
            return;
        };
        let dat = Arc::make_mut(&mut self.dat);
        let (Some(layout), Some(groups)) = (dat.layout, &dat.groups) else {
            return;
        };
        dat.blocks_of_entries.insert(first, (dat.entries.len(), leaf.block));
        for (nth, bytes) in (0..).zip(bytes.chunks_exact(dat.entry_size)) {
            // The last block of a group can have room for more entries than the group.
            let number = first.0.checked_add(nth);
            let in_group = number.filter(|n| layout.group_of(*n) == layout.group_of(first.0));
            let entry = DatEntry::parse(bytes).ok();
            let allocated = in_group.is_some_and(|n| groups.is_allocated(n)) && entry.is_some();
            let entry = entry.unwrap_or(DatEntry { block: BlockNr(0), start: Cno(0), end: Cno(0) });
            dat.entries.push(entry);
            dat.allocated.push(allocated);
            self.reached.grow();
        }
    }

    /// The place of an allocated virtual block among the entries.
    fn position_in_dat(&mut self, vblock: VBlockNr) -> Option<usize> {
        let (first, _) = self.dat.block_of(vblock)?;
        if self.dat.waiting.contains_key(&first)
            && let Some(leaf) = self.dat_mut().waiting.remove(&first)
        {
            self.load_entry_block(first, &leaf);
        }
        self.dat.position(vblock)
    }

    /// Where a virtual block is and when it lives. Reports a block that does not exist, or that the
    /// present uses twice. `cure` puts right what has led here.
    pub(crate) fn translate(
        &mut self,
        file: FileAt,
        vblock: VBlockNr,
        place: Location,
        cure: Option<&Correction>,
    ) -> Option<(BlockNr, Cno, Cno)> {
        let place = place.vblock(vblock);
        let Some(at) = self.position_in_dat(vblock) else {
            // Its bit may have been lost; or the pointer is wrong, and then nothing is there.
            let newest = self.newest.cno;
            let is_there = |it: &DatEntry| is_possible(it, newest) && it.contains(file.cno);
            let there = self.dat.unallocated(vblock).filter(is_there);
            let allocate = there.and_then(|_| self.dat.set_allocated(vblock, true));
            self.error(Rule::Pointer, place, || {
                "the virtual block is not allocated in the DAT".into()
            })
            .corrected_by(allocate.into_iter().chain(cure.cloned()));
            return None;
        };
        let entry = self.dat.entries[at];
        if !self.volume.geometry.has_block(entry.block) {
            self.error(Rule::Pointer, place.block(entry.block), || {
                "the DAT puts the virtual block outside of all segments".into()
            })
            .corrected_by(cure.cloned());
            return None;
        }
        if file.present {
            if !self.reached.add(at) {
                self.error(Rule::SharedBlock, place, || {
                    "the virtual block is used twice in the present".into()
                })
                .corrected_by(cure.cloned());
                return None;
            }
            self.counts.live_blocks += 1;
        }
        Some((entry.block, entry.start, entry.end))
    }

    /// Reports a block that a checkpoint reaches but does not contain.
    pub(crate) fn not_alive(&mut self, file: FileAt, vblock: VBlockNr) {
        let Some(entry) = self.dat.entry(vblock) else {
            return;
        };
        // The present has it. What a checkpoint of the past has is not told by the end alone.
        let alive = match file.present && entry.start <= file.cno {
            true => self.dat.set(vblock, offset_of!(RawDatEntry, de_end), Cno::MAX.0),
            false => None,
        };
        self.error(Rule::Lifetime, file.place().vblock(vblock), || {
            let wanted = if file.present {
                "the present".into()
            } else {
                format!("checkpoint {}", file.cno)
            };
            format!(
                "the virtual block lives from checkpoint {} to {}, but {wanted} needs it",
                entry.start,
                end_in_words(entry.end)
            )
        })
        .corrected_by(alive);
    }

    /// Does something with every allocated entry, in order, and its place among the entries.
    pub(crate) fn for_all_entries(
        &mut self,
        mut work: impl FnMut(&mut Self, VBlockNr, (DatEntry, usize)),
    ) {
        let per_block = self.dat.layout.map_or(0, |layout| layout.entries_per_block);
        for (first, at) in self.dat.in_order() {
            for (nth, at) in (0..per_block).zip(at..) {
                let vblock = first.plus(nth);
                if self.dat.allocated.get(at)
                    && vblock.0 != 0
                    && let Some(entry) = self.dat.entries.get(at).copied()
                {
                    work(self, vblock, (entry, at));
                }
            }
        }
    }

    /// Checks every allocated entry.
    pub(crate) fn check_dat_entries(&mut self, checkpoints: &CheckpointTable) {
        self.for_all_entries(|checker, vblock, (entry, _)| {
            checker.check_dat_entry(vblock, entry, checkpoints);
            checker.count_past(entry, checkpoints);
        });
        self.counts.live_blocks += self.dat.blocks.len() as u64;
    }

    /// Reports what counts as part of the present, but was not reached there.
    pub(crate) fn find_leaks(&mut self) {
        if !self.present_is_whole {
            self.note(Rule::NotChecked, Location::VOLUME, || {
                "leaked blocks were not looked for, because damage hides part of the present".into()
            });
            return;
        }
        let newest = self.newest.cno;
        self.for_all_entries(|checker, vblock, (entry, at)| {
            if entry.end == Cno::MAX && !checker.reached.has(at) && is_possible(&entry, newest) {
                checker.report_leak(vblock, entry);
            }
        });
    }

    fn report_leak(&mut self, vblock: VBlockNr, entry: DatEntry) {
        // Older checkpoints may have it.
        let ended = self.dat.position_of(vblock, offset_of!(RawDatEntry, de_end));
        let ended = ended.map(|at| Correction::count_u64(at, self.newest.cno.0));
        let place = Location::file(Ino::DAT).vblock(vblock).block(entry.block);
        self.error(Rule::Leak, place, || {
            let start = entry.start;
            format!(
                "the virtual block (from checkpoint {start} on) is counted as part of the \
                 present, but nothing uses it"
            )
        })
        .corrected_by(ended);
    }

    /// Counts a block that the present has no more, by what keeps it.
    fn count_past(&mut self, entry: DatEntry, checkpoints: &CheckpointTable) {
        if entry.end == Cno::MAX || entry.start >= entry.end {
            return;
        }
        if checkpoints.any_snapshot_in(entry.start, entry.end) {
            self.counts.snapshot_blocks += 1;
        } else if entry.end > self.options.protected_from {
            self.counts.protected_blocks += 1;
        }
    }

    fn check_dat_entry(
        &mut self,
        vblock: VBlockNr,
        entry: DatEntry,
        checkpoints: &CheckpointTable,
    ) {
        let place = Location::file(Ino::DAT).vblock(vblock).block(entry.block);
        let newest = self.newest.cno;
        if !is_possible(&entry, newest) {
            let by_logs = self.dat.by_logs(vblock);
            self.error(Rule::DatEntry, place, || {
                format!(
                    "the entry has block {}, start {} and end {}, which cannot be at \
                     checkpoint {newest}",
                    entry.block,
                    entry.start,
                    end_in_words(entry.end)
                )
            })
            .corrected_by(by_logs);
            return;
        }
        let needed = entry.end == Cno::MAX || checkpoints.any_in(entry.start, entry.end);
        self.check_address(vblock, entry, needed, place);
    }

    /// Whether the block at the entry's address is this virtual block, and no other's.
    fn check_address(&mut self, vblock: VBlockNr, entry: DatEntry, needed: bool, place: Location) {
        let Some(owners) = &self.owners else {
            return;
        };
        let (ownership, written) = owners.written(entry.block, &mut self.near_run);
        let wrong = match ownership {
            Ownership::Of(owner) if owner.info.vblock() == Some(vblock) => {
                self.check_written(vblock, (owner.ino, written), entry, place);
                false
            }
            Ownership::Unknown => false,
            _ if needed => true,
            // The block of a dead entry may be gone, but must not have become another's.
            Ownership::Of(owner) => match owner.info.vblock() {
                Some(other) => self.dat.entry(other).is_some_and(|o| o.block == entry.block),
                None => self.dat.blocks.contains(&entry.block),
            },
            Ownership::Nobody(_) => false,
        };
        if wrong {
            let mut corrections = match ownership {
                Ownership::Nobody(_) if needed => self.in_use_up_to(entry.block),
                _ => Vec::new(),
            };
            corrections.extend(self.dat.by_logs(vblock));
            self.error(Rule::DatEntry, place, || {
                let need = if needed { "needed" } else { "dead, but allocated" };
                format!(
                    "the virtual block (from checkpoint {} to {}, {need}) is not at its address: \
                     {ownership}",
                    entry.start,
                    end_in_words(entry.end)
                )
            })
            .corrected_by(corrections);
        }
    }

    /// The blocks in a range that are the DAT's, or to which an entry of it leads, in order.
    pub(crate) fn used_blocks(&mut self, blocks: Range<BlockNr>) -> &[BlockNr] {
        self.load_dat_entries();
        let dat = self.dat_mut();
        let used = dat.used.get_or_insert_with(|| {
            let entries = dat.entries.iter().enumerate();
            let allocated = entries.filter(|(at, _)| dat.allocated.get(*at));
            let all = allocated.map(|(_, entry)| entry.block).chain(dat.blocks.iter().copied());
            let mut used: Vec<BlockNr> = all.collect();
            used.sort_unstable();
            used
        });
        let before = |end: BlockNr| used.partition_point(|block| *block < end);
        &used[before(blocks.start)..before(blocks.end)]
    }

    /// The cleaner tells by `fi_cno` whether a block was overwritten in the checkpoint that wrote
    /// it, so it must be the block's first; files without history may have 0.
    fn check_written(
        &mut self,
        vblock: VBlockNr,
        (ino, written): (Ino, Cno),
        entry: DatEntry,
        place: Location,
    ) {
        let has_history = !matches!(ino, Ino::CPFILE | Ino::SUFILE);
        if written != entry.start && (has_history || written.0 != 0) {
            let at = self.dat.position_of(vblock, offset_of!(RawDatEntry, de_start));
            let start = at.map(|at| Correction::Start { at, vblock, written });
            self.error(Rule::DatEntry, place, || {
                let start = entry.start;
                format!("the block starts with checkpoint {start}, but its fi_cno is {written}")
            })
            .corrected_by(start);
        }
    }
}

/// Whether there can be such an entry of a virtual block that is allocated.
fn is_possible(entry: &DatEntry, newest: Cno) -> bool {
    entry.block.0 != 0
        && entry.start.0 != 0
        && entry.start <= entry.end
        && entry.start <= newest
        && (entry.end <= newest || entry.end == Cno::MAX)
}

fn end_in_words(end: Cno) -> String {
    if end == Cno::MAX { "now".into() } else { end.to_string() }
}

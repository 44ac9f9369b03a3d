//! The cpfile (docs/format.md §11): checkpoint entries, their counters, and the list of snapshots.

use std::collections::BTreeMap;
use std::mem::offset_of;

use nilfs_ondisk::checkpoint::{
    CpfileLayout, INVALID, MINOR, RawCheckpoint, RawCpfileHeader, SNAPSHOT,
};
use nilfs_ondisk::{BlockNr, Cno, FileBlock, Ino};

use crate::block_map::Leaf;
use crate::checker::{Checker, FileAt};
use crate::correction::{Correction, Position};
use crate::report::{Location, PastCheckpoint, Rule};
use crate::{Checkpoints, Options};

/// `cp_flags`: reserved by the format, never set.
const SKETCH: u32 = 4;

/// The valid checkpoints, by number.
pub(crate) struct CheckpointTable {
    entries: BTreeMap<Cno, RawCheckpoint>,
    /// Where the blocks of the file are.
    blocks: BTreeMap<FileBlock, BlockNr>,
    layout: CpfileLayout,
}

/// The checkpoints whose trees are walked, newest first, and how many are not.
pub(crate) struct Selection {
    pub(crate) walked: Vec<(Cno, RawCheckpoint)>,
    pub(crate) left_out: u64,
}

impl CheckpointTable {
    /// Whether a checkpoint c with `start <= c < end` exists.
    pub(crate) fn any_in(&self, start: Cno, end: Cno) -> bool {
        start < end && self.entries.range(start..end).next().is_some()
    }

    /// Whether a snapshot c with `start <= c < end` exists.
    pub(crate) fn any_snapshot_in(&self, start: Cno, end: Cno) -> bool {
        start < end && self.entries.range(start..end).any(|(_, entry)| entry.is_snapshot())
    }

    /// Where the entry of a checkpoint is, if its block is there.
    pub(crate) fn position(&self, cno: Cno) -> Option<Position> {
        let slot = self.layout.slot(cno);
        Some(Position::new(*self.blocks.get(&slot.block)?, slot.offset))
    }

    /// The checkpoint with this number, if it is valid, and older than the newest.
    pub(crate) fn past(&self, cno: Cno, newest: Cno) -> Option<PastCheckpoint> {
        let entry = self.entries.get(&cno).filter(|_| cno < newest)?;
        let flags = self.position(cno)?.plus(offset_of!(RawCheckpoint, cp_flags));
        Some(PastCheckpoint { flags, is_snapshot: entry.is_snapshot() })
    }

    /// The valid checkpoints that are older than the newest.
    pub(crate) fn all_past(&self, newest: Cno) -> BTreeMap<Cno, PastCheckpoint> {
        let numbers = self.entries.keys();
        numbers.filter_map(|cno| Some((*cno, self.past(*cno, newest)?))).collect()
    }

    fn snapshots(&self) -> impl Iterator<Item = (Cno, &RawCheckpoint)> {
        self.entries.iter().filter(|(_, entry)| entry.is_snapshot()).map(|(cno, e)| (*cno, e))
    }

    /// Picks the checkpoints to walk.
    pub(crate) fn select(&self, newest: Cno, options: &Options) -> Selection {
        let is_picked = |cno: &Cno| match &options.checkpoints {
            Checkpoints::All => true,
            Checkpoints::List(list) => *cno == newest || list.contains(cno),
        };
        let picked = self.entries.iter().rev().filter(|(cno, _)| is_picked(cno));
        let walked: Vec<_> = picked.map(|(cno, entry)| (*cno, *entry)).collect();
        Selection { left_out: (self.entries.len() - walked.len()) as u64, walked }
    }
}

impl Checker<'_, '_> {
    /// Loads the cpfile and checks everything in it but the trees.
    pub(crate) fn load_checkpoints(&mut self) -> CheckpointTable {
        let inode = self.newest.super_root.cpfile;
        let inode_at = Some(self.in_super_root(1));
        let file = FileAt { ino: Ino::CPFILE, cno: self.newest.cno, present: true, inode_at };
        let (tree, leaves) = self.walk_all(file, &inode);
        self.present_is_whole &= tree.whole;
        self.check_metadata_inode(file, &inode, &tree);
        let layout = CpfileLayout::new(&self.volume.geometry);
        let last = layout.slot(self.newest.cno).block;
        let (leaves, beyond): (Vec<Leaf>, Vec<Leaf>) =
            leaves.into_iter().partition(|leaf| leaf.key <= last.0);
        for leaf in beyond {
            self.error(Rule::Checkpoint, file.place().file_block(leaf.key), || {
                "the block lies after the entry of the newest checkpoint".into()
            });
        }
        let mut table =
            CheckpointTable { entries: BTreeMap::new(), blocks: BTreeMap::new(), layout };
        let mut header = None;
        let mut whole = tree.whole;
        let volume = self.volume;
        volume.reading_ahead(leaves.iter().map(|leaf| leaf.block).collect(), || {
            for leaf in leaves {
                let bytes = self.read_leaf(file, &leaf);
                if let Some(bytes) = bytes.as_ref().filter(|_| leaf.key == 0) {
                    header = RawCpfileHeader::parse(bytes).ok();
                }
                let Some(bytes) = bytes.filter(|it| self.has_entries(file, &leaf, it, &layout))
                else {
                    whole = false;
                    continue;
                };
                table.blocks.insert(FileBlock(leaf.key), leaf.block);
                self.load_checkpoint_block(leaf, &bytes, &mut table);
            }
        });
        self.counts.checkpoints = table.entries.len() as u64;
        self.counts.snapshots = table.snapshots().count() as u64;
        match header {
            Some(header) if whole => self.check_cpfile_header(&header, &table),
            Some(_) => {}
            None => {
                self.error(Rule::Checkpoint, file.place(), || "no header".into());
            }
        }
        if !table.entries.contains_key(&self.newest.cno) {
            self.present_is_whole = false;
            let cno = self.newest.cno;
            self.error(Rule::Checkpoint, Location::checkpoint(cno), || {
                "the newest checkpoint has no valid entry in the cpfile".into()
            })
            .corrected_by(
                table
                    .position(cno)
                    .map(|at| Correction::u32(at.plus(offset_of!(RawCheckpoint, cp_flags)), 0)),
            );
        }
        table
    }

    /// Whether a block can be one with entries. Reports one that cannot.
    fn has_entries(
        &mut self,
        file: FileAt,
        leaf: &Leaf,
        bytes: &[u8],
        layout: &CpfileLayout,
    ) -> bool {
        if has_checkpoints(bytes, layout, leaf.key) {
            return true;
        }
        let anew = self.anew(file, leaf);
        let place = file.place().file_block(leaf.key).block(leaf.block);
        self.error(Rule::Checkpoint, place, || "no entry of the block can be one".into())
            .corrected_by([anew]);
        false
    }

    fn load_checkpoint_block(&mut self, leaf: Leaf, bytes: &[u8], table: &mut CheckpointTable) {
        let key = leaf.key;
        let flags_at =
            |offset| Position::new(leaf.block, offset).plus(offset_of!(RawCheckpoint, cp_flags));
        let mut valid = 0u32;
        let mut stored = None;
        for (cno, offset) in table.layout.slots_of(FileBlock(key)) {
            let Ok(entry) = RawCheckpoint::parse(&bytes[offset..]) else {
                continue;
            };
            if offset == 0 {
                stored = Some(entry.cp_checkpoints_count.get());
            }
            let flags = entry.cp_flags.get();
            if flags & INVALID != 0 {
                if flags & SNAPSHOT != 0 {
                    self.error(Rule::Checkpoint, Location::checkpoint(cno), || {
                        "the entry is a snapshot, but not valid".into()
                    })
                    .corrected_by([Correction::u32(flags_at(offset), flags & !SNAPSHOT)]);
                }
                continue;
            }
            valid += 1;
            let place = Location::checkpoint(cno);
            if entry.cp_cno.get() != cno.0 {
                self.error(Rule::Checkpoint, place, || {
                    format!("cp_cno is {}, expected {cno}", entry.cp_cno)
                })
                .corrected_by([Correction::u64(
                    Position::new(leaf.block, offset).plus(offset_of!(RawCheckpoint, cp_cno)),
                    cno.0,
                )]);
            }
            if cno > self.newest.cno {
                self.error(Rule::Checkpoint, place, || {
                    format!("the entry is valid, but the newest checkpoint is {}", self.newest.cno)
                })
                .corrected_by([Correction::u32(flags_at(offset), INVALID)]);
                continue;
            }
            if flags & !(SNAPSHOT | INVALID | SKETCH | MINOR) != 0 {
                self.warning(Rule::Checkpoint, place, || {
                    format!("cp_flags has unknown bits: {flags:#x}")
                });
            }
            table.entries.insert(cno, entry);
        }
        // In the first block the counter would lie in the header.
        if let Some(stored) = stored.filter(|stored| key > 0 && *stored != valid) {
            let place = Location::file(Ino::CPFILE).file_block(key);
            self.error(Rule::Checkpoint, place, || {
                format!("cp_checkpoints_count is {stored}, but the block has {valid} checkpoints")
            })
            .corrected_by([Correction::count_u32(
                Position::new(leaf.block, offset_of!(RawCheckpoint, cp_checkpoints_count)),
                valid,
            )]);
        }
    }

    fn check_cpfile_header(&mut self, header: &RawCpfileHeader, table: &CheckpointTable) {
        let place = Location::file(Ino::CPFILE);
        let snapshots: Vec<Cno> = table.snapshots().map(|(cno, _)| cno).collect();
        let header_at = table.blocks.get(&FileBlock(0)).map(|block| Position::new(*block, 0));
        let in_header = |offset| header_at.map(|at| at.plus(offset));
        for (field, offset, found, expected) in [
            (
                "ch_ncheckpoints",
                offset_of!(RawCpfileHeader, ch_ncheckpoints),
                header.ch_ncheckpoints.get(),
                table.entries.len() as u64,
            ),
            (
                "ch_nsnapshots",
                offset_of!(RawCpfileHeader, ch_nsnapshots),
                header.ch_nsnapshots.get(),
                snapshots.len() as u64,
            ),
        ] {
            if found != expected {
                self.error(Rule::Checkpoint, place, || {
                    format!("{field} is {found}, but the entries give {expected}")
                })
                .corrected_by(in_header(offset).map(|at| Correction::count_u64(at, expected)));
            }
        }
        // The list is in order of numbers, so each of its links is known from the flags.
        let link = |at: Option<usize>| at.and_then(|at| snapshots.get(at)).map_or(0, |cno| cno.0);
        let mut expect =
            |place: Location, (field, at): (&str, Option<Position>), found: u64, expected: u64| {
                if found != expected {
                    self.error(Rule::SnapshotList, place, || {
                        format!("{field} is {found}, but by the flags it should be {expected}")
                    })
                    .corrected_by(at.map(|at| Correction::count_u64(at, expected)));
                }
            };
        let next = in_header(offset_of!(RawCpfileHeader, ch_snapshot_next));
        let field = ("ch_snapshot_list.next", next);
        expect(place, field, header.ch_snapshot_next.get(), link(Some(0)));
        let previous = in_header(offset_of!(RawCpfileHeader, ch_snapshot_prev));
        let field = ("ch_snapshot_list.prev", previous);
        let last = snapshots.len().checked_sub(1);
        expect(place, field, header.ch_snapshot_prev.get(), link(last));
        for (nth, (cno, entry)) in table.snapshots().enumerate() {
            let place = Location::checkpoint(cno);
            let in_entry = |offset| table.position(cno).map(|at| at.plus(offset));
            let next = in_entry(offset_of!(RawCheckpoint, cp_snapshot_next));
            let after = link(Some(nth + 1));
            expect(place, ("ssl_next", next), entry.cp_snapshot_next.get(), after);
            let previous = in_entry(offset_of!(RawCheckpoint, cp_snapshot_prev));
            let before = link(nth.checked_sub(1));
            expect(place, ("ssl_prev", previous), entry.cp_snapshot_prev.get(), before);
        }
    }
}

/// Whether any entry of a block of the cpfile can be one: with its own number, or free.
fn has_checkpoints(bytes: &[u8], layout: &CpfileLayout, key: u64) -> bool {
    layout.slots_of(FileBlock(key)).any(|(cno, at)| {
        let entry = bytes.get(at..).and_then(|slot| RawCheckpoint::parse(slot).ok());
        entry.is_some_and(|entry| {
            let flags = entry.cp_flags.get();
            let known = flags & !(SNAPSHOT | INVALID | SKETCH | MINOR) == 0;
            known && (flags & INVALID != 0 || entry.cp_cno.get() == cno.0)
        })
    })
}

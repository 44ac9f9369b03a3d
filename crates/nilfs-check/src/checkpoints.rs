//! The cpfile (docs/format.md §11): checkpoint entries, their counters, and the list of snapshots.

use std::collections::BTreeMap;

use nilfs_ondisk::checkpoint::{
    CpfileLayout, INVALID, MINOR, RawCheckpoint, RawCpfileHeader, SNAPSHOT,
};
use nilfs_ondisk::{Cno, FileBlock, Ino};

use crate::checker::{Checker, FileAt};
use crate::report::{Location, Rule};
use crate::{Checkpoints, Options};

/// `cp_flags`: reserved by the format, never set.
const SKETCH: u32 = 4;

/// The valid checkpoints, by number.
pub(crate) struct CheckpointTable {
    entries: BTreeMap<Cno, RawCheckpoint>,
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

    fn snapshots(&self) -> impl Iterator<Item = (Cno, &RawCheckpoint)> {
        self.entries.iter().filter(|(_, entry)| entry.is_snapshot()).map(|(cno, e)| (*cno, e))
    }

    /// Picks the checkpoints to walk.
    pub(crate) fn select(&self, newest: Cno, options: &Options) -> Selection {
        let mut picked: BTreeMap<Cno, RawCheckpoint> = BTreeMap::new();
        let mut pick = |cno: Cno, most: usize| {
            if picked.len() < most
                && let Some(entry) = self.entries.get(&cno)
            {
                picked.insert(cno, *entry);
            }
        };
        pick(newest, 1);
        match &options.checkpoints {
            Checkpoints::Newest => {}
            Checkpoints::All => self.entries.keys().for_each(|cno| pick(*cno, usize::MAX)),
            Checkpoints::List(list) => list.iter().for_each(|cno| pick(*cno, usize::MAX)),
            Checkpoints::Sample(most) => {
                self.snapshots().for_each(|(cno, _)| pick(cno, *most));
                let step = self.entries.len().div_ceil((*most).max(1)).max(1);
                self.entries.keys().rev().step_by(step).for_each(|cno| pick(*cno, *most));
            }
        }
        Selection {
            left_out: (self.entries.len() - picked.len()) as u64,
            walked: picked.into_iter().rev().collect(),
        }
    }
}

impl Checker<'_, '_> {
    /// Loads the cpfile and checks everything in it but the trees.
    pub(crate) fn load_checkpoints(&mut self) -> CheckpointTable {
        let inode = self.newest.super_root.cpfile;
        let file = FileAt { ino: Ino::CPFILE, cno: self.newest.cno, present: true };
        let (tree, leaves) = self.walk_all(file, &inode);
        self.present_is_whole &= tree.whole;
        self.check_metadata_inode(file, &inode, &tree);
        let layout = CpfileLayout::new(&self.volume.geometry);
        let last = layout.slot(self.newest.cno).block;
        let mut table = CheckpointTable { entries: BTreeMap::new() };
        let mut header = None;
        let mut whole = tree.whole;
        for leaf in leaves {
            let place = file.place().file_block(leaf.key);
            if leaf.key > last.0 {
                self.error(Rule::Checkpoint, place, || {
                    "the block lies after the entry of the newest checkpoint".into()
                });
                continue;
            }
            let Some(bytes) = self.read(leaf.block, place) else {
                whole = false;
                continue;
            };
            if leaf.key == 0 {
                header = RawCpfileHeader::parse(&bytes).ok();
            }
            self.load_checkpoint_block(leaf.key, &bytes, &layout, &mut table);
        }
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
            self.error(Rule::Checkpoint, Location::checkpoint(self.newest.cno), || {
                "the newest checkpoint has no valid entry in the cpfile".into()
            });
        }
        table
    }

    fn load_checkpoint_block(
        &mut self,
        key: u64,
        bytes: &[u8],
        layout: &CpfileLayout,
        table: &mut CheckpointTable,
    ) {
        let mut valid = 0u32;
        let mut stored = None;
        for (cno, offset) in layout.slots_of(FileBlock(key)) {
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
                    });
                }
                continue;
            }
            valid += 1;
            let place = Location::checkpoint(cno);
            if entry.cp_cno.get() != cno.0 {
                self.error(Rule::Checkpoint, place, || {
                    format!("cp_cno is {}, expected {cno}", entry.cp_cno)
                });
            }
            if cno > self.newest.cno {
                self.error(Rule::Checkpoint, place, || {
                    format!("the entry is valid, but the newest checkpoint is {}", self.newest.cno)
                });
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
            });
        }
    }

    fn check_cpfile_header(&mut self, header: &RawCpfileHeader, table: &CheckpointTable) {
        let place = Location::file(Ino::CPFILE);
        let snapshots: Vec<Cno> = table.snapshots().map(|(cno, _)| cno).collect();
        for (field, found, expected) in [
            ("ch_ncheckpoints", header.ch_ncheckpoints.get(), table.entries.len() as u64),
            ("ch_nsnapshots", header.ch_nsnapshots.get(), snapshots.len() as u64),
        ] {
            if found != expected {
                self.error(Rule::Checkpoint, place, || {
                    format!("{field} is {found}, but the entries give {expected}")
                });
            }
        }
        // The list is in order of numbers, so each of its links is known from the flags.
        let link = |at: Option<usize>| at.and_then(|at| snapshots.get(at)).map_or(0, |cno| cno.0);
        let mut expect = |place: Location, field: &str, found: u64, expected: u64| {
            if found != expected {
                self.error(Rule::SnapshotList, place, || {
                    format!("{field} is {found}, but by the flags it should be {expected}")
                });
            }
        };
        expect(place, "ch_snapshot_list.next", header.ch_snapshot_next.get(), link(Some(0)));
        let last = snapshots.len().checked_sub(1);
        expect(place, "ch_snapshot_list.prev", header.ch_snapshot_prev.get(), link(last));
        for (nth, (cno, entry)) in table.snapshots().enumerate() {
            let place = Location::checkpoint(cno);
            expect(place, "ssl_next", entry.cp_snapshot_next.get(), link(Some(nth + 1)));
            let before = link(nth.checked_sub(1));
            expect(place, "ssl_prev", entry.cp_snapshot_prev.get(), before);
        }
    }
}

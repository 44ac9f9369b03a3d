//! One checkpoint: its ifile, all inodes in it, and its counts (docs/format.md §10, §11).

use std::mem::offset_of;
use std::rc::Rc;

use nilfs_ondisk::checkpoint::RawCheckpoint;
use nilfs_ondisk::inode::RawInode;
use nilfs_ondisk::palloc::Palloc;
use nilfs_ondisk::superblock::FEATURE_BLOCK_COUNT;
use nilfs_ondisk::{Cno, Ino};

use crate::block_map::Leaf;
use crate::checker::{Checker, FileAt};
use crate::checkpoints::CheckpointTable;
use crate::correction::{Correction, Position};
use crate::inode::InodeFacts;
use crate::namespace::InodeTable;
use crate::report::{Location, Rule, Severity};

/// What is known of the inodes in one block of the ifile, slot by slot.
pub(crate) type InodeBlock = Vec<Option<Rc<InodeFacts>>>;

impl Checker<'_, '_> {
    /// Checks a checkpoint: every inode of it, every block below, and the names.
    pub(crate) fn check_checkpoint(
        &mut self,
        cno: Cno,
        entry: &RawCheckpoint,
        checkpoints: &CheckpointTable,
    ) {
        let present = cno == self.newest.cno;
        let file = FileAt { ino: Ino::IFILE, cno, present };
        self.counts.checkpoints_walked += 1;
        let inode = entry.cp_ifile_inode;
        let (tree, leaves) = self.walk_all(file, &inode);
        self.check_metadata_inode(file, &inode, &tree);
        let geometry = &self.volume.geometry;
        let layout = Palloc::new(geometry.block_size, geometry.inode_size);
        let groups = self.check_allocation(file, layout, &leaves, tree.whole);
        for reserved in (0..Ino::FIRST_USER.0).filter(|ino| !groups.is_allocated(*ino)) {
            self.error(Rule::Allocation, file.place(), || {
                format!("the reserved inode {reserved} is not allocated")
            })
            .corrected_by(groups.set_allocated(reserved, true));
        }
        let mut table = InodeTable::new(!(tree.whole && groups.whole));
        for (first, leaf) in &groups.entry_blocks {
            self.check_inode_block(file, leaf, *first, groups.allocated_from(*first), &mut table);
        }
        let mut blocks = tree.blocks;
        let mut users = 0;
        let mut whole = !table.incomplete;
        for (ino, facts) in table.iter() {
            users += u64::from(ino >= Ino::FIRST_USER);
            blocks += facts.blocks;
            whole &= facts.whole;
            if let Some(culprit) = facts.life.culprit(cno) {
                self.not_alive(FileAt { ino, ..file }, culprit);
            }
        }
        if present {
            self.present_is_whole &= whole;
            self.counts.inodes = users + 1;
            self.check_sync_logs(&table);
        }
        if whole {
            self.check_counts(cno, entry, checkpoints.position(cno), [users + 1, blocks]);
        }
        table.groups = Some(groups);
        self.check_names(cno, &table);
    }

    /// Adds the inodes of a block of the ifile to the table. The block is the same in every
    /// checkpoint that shares it, so each of its inodes is checked once.
    fn check_inode_block(
        &mut self,
        ifile: FileAt,
        leaf: &Leaf,
        first: u64,
        allocated: impl Iterator<Item = u64>,
        table: &mut InodeTable,
    ) {
        let mut known = self.inode_blocks.remove(&leaf.vblock).unwrap_or_default();
        let mut bytes = None;
        for ino in allocated.map(Ino).filter(|ino| !matches!(ino.0, 0 | 3..=6)) {
            let slot = (ino.0 - first) as usize;
            if known.len() <= slot {
                known.resize(slot + 1, None);
            }
            if known[slot].is_none() {
                if bytes.is_none() {
                    bytes = self.read(leaf.block, ifile.place().file_block(leaf.key));
                }
                let start = slot * self.volume.geometry.inode_size;
                let at = Position::new(leaf.block, start);
                let entry = bytes.as_deref().and_then(|bytes| bytes.get(start..));
                if let Some(inode) = entry.and_then(|entry| RawInode::parse(entry).ok()) {
                    let file = FileAt { ino, ..ifile };
                    known[slot] = Some(Rc::new(self.check_inode(file, &inode, at)));
                }
            }
            match &known[slot] {
                Some(facts) => table.push(ino, Rc::clone(facts)),
                None => table.incomplete = true,
            }
        }
        self.inode_blocks.insert(leaf.vblock, known);
    }

    fn check_counts(
        &mut self,
        cno: Cno,
        entry: &RawCheckpoint,
        at: Option<Position>,
        [inodes, blocks]: [u64; 2],
    ) {
        // Without the feature bit, an old writer may have left the counters wrong.
        let features = self.superblock.raw().s_feature_compat_ro.get();
        let severity =
            if features & FEATURE_BLOCK_COUNT != 0 { Severity::Error } else { Severity::Warning };
        let place = Location::checkpoint(cno);
        for (field, offset, found, expected) in [
            (
                "cp_inodes_count",
                offset_of!(RawCheckpoint, cp_inodes_count),
                entry.cp_inodes_count.get(),
                inodes,
            ),
            (
                "cp_blocks_count",
                offset_of!(RawCheckpoint, cp_blocks_count),
                entry.cp_blocks_count.get(),
                blocks,
            ),
        ] {
            if found != expected {
                // What nobody may rely on is not worth a repair.
                let wrong = at.filter(|_| severity == Severity::Error);
                self.findings
                    .add(severity, Rule::CheckpointCounts, place, || {
                        format!("{field} is {found}, but there are {expected}")
                    })
                    .corrected_by(wrong.map(|at| Correction::count_u64(at.plus(offset), expected)));
            }
        }
    }
}

//! One checkpoint: its ifile, all inodes in it, and its counts (format spec §10, §11).

use std::rc::Rc;

use nilfs_ondisk::checkpoint::RawCheckpoint;
use nilfs_ondisk::inode::RawInode;
use nilfs_ondisk::palloc::Palloc;
use nilfs_ondisk::superblock::FEATURE_BLOCK_COUNT;
use nilfs_ondisk::{Cno, Ino};

use crate::block_map::Leaf;
use crate::inode::InodeFacts;
use crate::judge::{FileAt, Judge};
use crate::namespace::InodeTable;
use crate::report::{Place, Rule, Severity};

/// What is known of the inodes in one block of the ifile, slot by slot.
pub(crate) type InodeBlock = Vec<Option<Rc<InodeFacts>>>;

impl Judge<'_, '_> {
    /// Judges a checkpoint: every inode of it, every block below, and the names.
    pub(crate) fn judge_checkpoint(&mut self, entry: &RawCheckpoint) {
        let cno = Cno(entry.cp_cno.get());
        let present = cno == self.newest.cno;
        let file = FileAt {
            ino: Ino::IFILE,
            cno,
            present,
        };
        self.counts.checkpoints_walked += 1;
        let inode = entry.cp_ifile_inode;
        let (tree, leaves) = self.walk_all(file, &inode);
        self.judge_metadata_inode(file, &inode, &tree);
        let geometry = &self.volume.geometry;
        let layout = Palloc::new(geometry.block_size, geometry.inode_size);
        let groups = self.judge_allocation(file, layout, &leaves);
        let mut whole = true;
        let mut blocks = tree.blocks;
        let mut users = 0;
        let mut table = InodeTable::new(!(tree.whole && groups.whole));
        for reserved in (0..Ino::FIRST_USER.0).filter(|ino| !groups.is_allocated(*ino)) {
            self.findings.error(Rule::Allocation, file.place(), || {
                format!("the reserved inode {reserved} is not allocated")
            });
        }
        for (first, leaf) in &groups.entry_blocks {
            // What is known of the block's inodes holds in every checkpoint that shares it.
            let mut known = self.inode_blocks.remove(&leaf.vblock).unwrap_or_default();
            for ino in groups.allocated_from(*first).map(Ino) {
                users += u64::from(ino >= Ino::FIRST_USER);
                if matches!(ino.0, 0 | 3..=6) {
                    continue;
                }
                let file = FileAt { ino, ..file };
                let Some(facts) = self.facts(file, (ino.0 - first) as usize, leaf, &mut known)
                else {
                    table.incomplete = true;
                    continue;
                };
                blocks += facts.blocks;
                whole &= facts.whole;
                if let Some(culprit) = facts.life.culprit(cno) {
                    self.not_alive(file, culprit);
                }
                table.push(ino, facts);
            }
            self.inode_blocks.insert(leaf.vblock, known);
        }
        whole &= !table.incomplete;
        if present {
            self.present_is_whole &= whole;
            self.counts.inodes = users + 1;
            self.judge_rolled_forward(&table);
        }
        if whole {
            self.judge_counts(entry, users + 1, blocks);
        }
        self.judge_names(cno, &table);
    }

    /// What is known of the inode in a slot of a block of the ifile; judged if nothing is known.
    fn facts(
        &mut self,
        file: FileAt,
        slot: usize,
        leaf: &Leaf,
        known: &mut InodeBlock,
    ) -> Option<Rc<InodeFacts>> {
        if let Some(facts) = known.slots.get(slot)? {
            return Some(Rc::clone(facts));
        }
        if known.bytes.is_empty() {
            
        }
    }

    fn judge_counts(&mut self, entry: &RawCheckpoint, inodes: u64, blocks: u64) {
        // Without the feature bit, an old writer may have left the counters wrong.
        let features = self.superblock.raw().s_feature_compat_ro.get();
        let severity = if features & FEATURE_BLOCK_COUNT != 0 {
            Severity::Error
        } else {
            Severity::Warning
        };
        let place = Place::checkpoint(Cno(entry.cp_cno.get()));
        for (field, found, expected) in [
            ("cp_inodes_count", entry.cp_inodes_count.get(), inodes),
            ("cp_blocks_count", entry.cp_blocks_count.get(), blocks),
        ] {
            if found != expected {
                self.findings
                    .add(severity, Rule::CheckpointCounts, place, || {
                        format!("{field} is {found}, but there are {expected}")
                    });
            }
        }
    }

    /// A data-sync log can only be applied to a file that exists.
    fn judge_rolled_forward(&mut self, table: &InodeTable) {
        for ino in &self.newest.rolled_forward {
            if !table.has(*ino) {
                let place = Place::checkpoint(self.newest.cno).ino(*ino);
                self.findings.error(Rule::RollForward, place, || {
                    "a data-sync log is for this inode, which does not exist: a mount would fail"
                        .into()
                });
            }
        }
    }
}

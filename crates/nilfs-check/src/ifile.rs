//! One checkpoint after the other: its ifile, the inodes in it, and its counts (docs/format.md §10,
//! §11). Of each checkpoint only what differs from the one before is looked at.

use std::collections::HashMap;
use std::mem::offset_of;
use std::sync::Arc;

use nilfs_ondisk::checkpoint::RawCheckpoint;
use nilfs_ondisk::superblock::FEATURE_BLOCK_COUNT;
use nilfs_ondisk::{BlockNr, Cno, Ino};

use crate::allocation::{AllocationChanges, Groups};
use crate::checker::{Checker, FileAt};
use crate::checkpoints::CheckpointTable;
use crate::correction::{Correction, Position};
use crate::directory::DirectoryChange;
use crate::files::{ChangedBlock, ChangedInode, Files, Slot};
use crate::inode::{Content, InodeFacts};
use crate::progress::Step;
use crate::report::{Location, Rule, Severity};

/// Blocks of the ifile in a piece.
const BLOCKS_OF_PIECE: usize = 8;
/// Directories and symbolic links in a piece.
const FILES_OF_PIECE: usize = 8;

/// How an ifile differs from what is known.
struct ChangedInodes {
    file: FileAt,
    changes: AllocationChanges,
    groups: Arc<Groups>,
    directories: HashMap<Ino, DirectoryChange>,
}

/// An inode that is known again, and what is to be looked at of its content.
struct JudgedInode {
    ino: Ino,
    facts: Option<InodeFacts>,
    content: Option<Content>,
    is_unreadable: bool,
}

impl Checker<'_, '_> {
    /// Checks a checkpoint: every inode of it, every block below, and the names. `files` are those
    /// of the one that was checked before, which is newer.
    pub(crate) fn check_checkpoint(
        &mut self,
        files: &mut Files,
        cno: Cno,
        entry: &RawCheckpoint,
        checkpoints: &CheckpointTable,
    ) {
        let present = cno == self.newest.cno;
        let inode_at =
            checkpoints.position(cno).map(|at| at.plus(offset_of!(RawCheckpoint, cp_ifile_inode)));
        let file = FileAt { ino: Ino::IFILE, cno, present, inode_at };
        self.counts.checkpoints_walked += 1;
        files.cno = cno;
        let inode = entry.cp_ifile_inode;
        let (tree, removed, added) = match files.ifile.replace(inode) {
            None => {
                let (tree, leaves) = self.walk_all(file, &inode);
                (tree, Vec::new(), leaves)
            }
            Some(before) => {
                let tree = self.walk_shared(file, &inode);
                let (removed, added) = self.difference(Ino::IFILE, Some(&before), Some(&inode));
                (tree, removed, added)
            }
        };
        self.check_metadata_inode(file, &inode, &tree);
        if tree.blocks == 0 && !present {
            let at = checkpoints.past(cno, self.newest.cno).map(|past| past.flags);
            self.error(Rule::Checkpoint, Location::checkpoint(cno), || {
                "no block of its ifile is there, so there is nothing in it".into()
            })
            .corrected_by(at.map(|at| Correction::Checkpoint { at }));
        }
        let leaves = (&removed[..], &added[..]);
        let changes =
            self.change_allocation(file, Arc::make_mut(&mut files.groups), leaves, tree.whole);
        if changes.bitmaps.contains_key(&0) || present {
            self.check_reserved(file, &files.groups);
        }
        let blocks = files.changed_blocks(&changes);
        let mut touched = Vec::new();
        let mut directories = HashMap::new();
        // Names go before the inodes change to which they lead, and others come afterwards.
        if !present {
            for block in &blocks {
                for changed in self.changed_inodes(&files.groups, &changes, block) {
                    if let Some(change) = self.forget_names(files, file, &changed, &mut touched) {
                        directories.insert(changed.ino, change);
                    }
                }
            }
        }
        // What is below the inodes of the past is known for the most part, and little is new.
        let threads = if present { self.options.threads } else { 1 };
        let groups = Arc::clone(&files.groups);
        let changed = ChangedInodes { file, changes, groups, directories };
        let judge = |it: &mut Self, block: &ChangedBlock| it.judge_block(&changed, block);
        let mut contents = Vec::new();
        let mut done = 0;
        self.judge_in_pieces(threads, (&blocks, BLOCKS_OF_PIECE), judge, |checker, inodes| {
            checker.observe_present(file, Step::Inodes, done, blocks.len());
            done += 1;
            for JudgedInode { ino, facts, content, is_unreadable } in inodes {
                touched.push(ino);
                files.change_inode(ino, facts, is_unreadable);
                contents.extend(content.map(|content| (ino, content)));
            }
        });
        let ahead = match present {
            true => self.blocks_of_contents(files, &contents, checkpoints),
            false => Vec::new(),
        };
        self.volume.reading_ahead(ahead, || {
            self.check_contents(files, (file, threads), &contents, &mut touched);
        });
        if !present {
            for ino in files.too_young() {
                if let Some(facts) = &files.inode(ino).facts {
                    self.not_alive(FileAt { ino, inode_at: None, ..file }, facts.start.1);
                }
            }
        }
        self.check_names(files, touched);
        let whole = !files.is_incomplete() && files.broken.is_empty();
        if !whole || !tree.whole || !files.all_names_are_known() {
            self.partly_seen.insert(cno);
        }
        if present {
            self.present_is_whole &= whole;
            self.counts.inodes = files.users + 1;
            self.check_sync_logs(files);
        }
        if whole {
            let blocks = files.blocks.wrapping_add(tree.blocks);
            self.check_counts(cno, entry, checkpoints.position(cno), [files.users + 1, blocks]);
        }
    }

    /// The blocks of directories and of targets of links, and those that will be asked for after them,
    /// which often lie near to these.
    fn blocks_of_contents(
        &self,
        files: &Files,
        contents: &[(Ino, Content)],
        checkpoints: &CheckpointTable,
    ) -> Vec<BlockNr> {
        let contents = contents.iter().flat_map(|(_, content)| content.blocks());
        contents.chain(self.blocks_of_past(files, checkpoints)).collect()
    }

    /// Looks at what files have in their blocks, as far as that is metadata.
    fn check_contents(
        &mut self,
        files: &mut Files,
        (ifile, threads): (FileAt, usize),
        contents: &[(Ino, Content)],
        touched: &mut Vec<Ino>,
    ) {
        let judge = |checker: &mut Self, (ino, content): &(Ino, Content)| {
            let file = FileAt { ino: *ino, inode_at: None, ..ifile };
            match content {
                Content::Names(change) => Some((*ino, checker.read_names(file, change))),
                Content::Target { leaf, size, at } => {
                    checker.check_target(file, leaf, (*size, *at));
                    None
                }
            }
        };
        let mut done = 0;
        self.judge_in_pieces(threads, (contents, FILES_OF_PIECE), judge, |checker, names| {
            checker.observe_present(ifile, Step::Names, done, contents.len());
            done += 1;
            if let Some((ino, names)) = names {
                files.learn_names((ino, ifile.present), names, touched);
            }
        });
    }

    fn observe_present(&self, file: FileAt, step: Step, done: u64, all: usize) {
        if file.present {
            self.options.observer.observe(step, done, all as u64);
        }
    }

    /// Whether the numbers are in use that always are.
    fn check_reserved(&mut self, ifile: FileAt, groups: &Groups) {
        if let Some(bitmap) = groups.lost_bitmap(Ino::FIRST_USER.0) {
            let anew = self.anew(ifile, &bitmap);
            let place = ifile.place().file_block(bitmap.key).block(bitmap.block);
            self.error(Rule::Allocation, place, || {
                "the bitmap has none of the bits that are always set: it is not what was written"
                    .into()
            })
            .corrected_by([anew]);
            return;
        }
        for reserved in (0..Ino::FIRST_USER.0).filter(|ino| !groups.is_allocated(*ino)) {
            self.error(Rule::Allocation, ifile.place(), || {
                format!("the reserved inode {reserved} is not allocated")
            })
            .corrected_by(match groups.set_allocated(reserved, true) {
                None => ifile.inode_at.map(|at| ifile.unmapped(at)),
                allocated => allocated,
            });
        }
    }

    /// Judges the inodes in a block that differ.
    fn judge_block(&mut self, changed: &ChangedInodes, block: &ChangedBlock) -> Vec<JudgedInode> {
        let inodes = self.changed_inodes(&changed.groups, &changed.changes, block);
        // A block of which no inode is in use is there all the same.
        if let Some(leaf) = &block.new
            && inodes.iter().all(|inode| matches!(inode.new, Slot::Unreadable | Slot::Free))
        {
            self.read_leaf(changed.file, leaf);
        }
        if changed.file.present && changed.groups.lost_bitmap(Ino::FIRST_USER.0).is_none() {
            self.check_forgotten(changed.file, &changed.groups, block);
        }
        let judge = |ChangedInode { ino, new, .. }| {
            let change = changed.directories.get(&ino).cloned().unwrap_or_default();
            let file = FileAt { ino, inode_at: new.position(), ..changed.file };
            let is_unreadable = new == Slot::Unreadable;
            let (facts, content) = match new {
                Slot::Inode(inode, at) => {
                    let (facts, content) = self.check_inode(file, &inode, at, change);
                    (Some(facts), content)
                }
                Slot::Free | Slot::Unreadable => (None, None),
            };
            JudgedInode { ino, facts, content, is_unreadable }
        };
        inodes.into_iter().map(judge).collect()
    }

    /// Finds the files of the present in a block that are there by their links, but not by the bits of their numbers.
    fn check_forgotten(&mut self, ifile: FileAt, groups: &Groups, block: &ChangedBlock) {
        for ino in self.forgotten_inodes(groups, block) {
            self.error(Rule::Allocation, ifile.place(), || {
                format!("inode {ino} has links, but its number is not in use")
            })
            .corrected_by(groups.set_allocated(ino.0, true));
        }
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

//! The names of a checkpoint: from the root directory to every file, and back from every inode to
//! its names.

use std::mem::offset_of;
use std::rc::Rc;

use nilfs_ondisk::inode::{FileType, RawInode};
use nilfs_ondisk::{Cno, Ino};

use crate::allocation::Groups;
use crate::checker::Checker;
use crate::correction::Correction;
use crate::directory::Name;
use crate::inode::InodeFacts;
use crate::report::{Location, Rule};

/// Where in a directory's record the type of the file is.
const TYPE_IN_RECORD: usize = 11;

/// The inodes of a checkpoint by number.
pub(crate) struct InodeTable {
    inodes: Vec<(Ino, Rc<InodeFacts>)>,
    /// Whether an inode that is in use is missing, because it cannot be read.
    pub(crate) incomplete: bool,
    /// Which numbers are in use, once all inodes are there.
    pub(crate) groups: Option<Groups>,
}

impl InodeTable {
    /// A table without inodes so far.
    pub(crate) fn new(incomplete: bool) -> Self {
        Self { inodes: Vec::new(), incomplete, groups: None }
    }

    /// Adds the next inode; numbers ascend.
    pub(crate) fn push(&mut self, ino: Ino, facts: Rc<InodeFacts>) {
        self.inodes.push((ino, facts));
    }

    /// An inode, if it is in use.
    pub(crate) fn get(&self, ino: Ino) -> Option<&InodeFacts> {
        Some(&self.inodes[self.position(ino)?].1)
    }

    /// All inodes in order, to be shared with another table.
    pub(crate) fn shared(&self) -> impl Iterator<Item = (Ino, Rc<InodeFacts>)> {
        self.inodes.iter().map(|(ino, facts)| (*ino, Rc::clone(facts)))
    }

    /// All inodes in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Ino, &InodeFacts)> {
        self.inodes.iter().map(|(ino, facts)| (*ino, &**facts))
    }

    /// Numbers are distinct and seldom missing, so the place of one lies at most as far before
    /// its number as numbers are missing at all.
    fn position(&self, ino: Ino) -> Option<usize> {
        let numbers = self.inodes.last()?.0.0.saturating_add(1);
        let missing = numbers - self.inodes.len() as u64;
        let low = usize::try_from(ino.0.saturating_sub(missing)).ok()?;
        let high = usize::try_from(ino.0.saturating_add(1)).ok()?.min(self.inodes.len());
        let near = self.inodes.get(low..high)?;
        let at = near.binary_search_by_key(&ino, |(ino, _)| *ino).ok()?;
        Some(low + at)
    }
}

/// What was counted for an inode on the way from the root.
#[derive(Clone, Copy, Default)]
struct Tally {
    /// Names that lead to it, without "." and "..".
    names: u64,
    /// Directories in it.
    subdirectories: u64,
}

impl Checker<'_, '_> {
    /// Follows all names of a checkpoint from the root directory, each directory once.
    pub(crate) fn check_names(&mut self, cno: Cno, table: &InodeTable) {
        let root = table
            .position(Ino::ROOT)
            .filter(|at| table.inodes[*at].1.file_type == Some(FileType::Directory));
        let Some(root) = root else {
            self.error(Rule::Directory, Location::checkpoint(cno).ino(Ino::ROOT), || {
                "the root directory is missing or no directory".into()
            });
            return;
        };
        let mut tallies = vec![Tally::default(); table.inodes.len()];
        let mut whole = !table.incomplete;
        let mut waiting = vec![(root, Ino::ROOT)];
        while let Some((at, parent)) = waiting.pop() {
            let (ino, facts) = &table.inodes[at];
            let Some(directory) = &facts.directory else {
                continue;
            };
            whole &= directory.whole;
            if let Some(found) = directory.parent.filter(|found| *found != parent) {
                let right = directory.parent_at.map(|at| Correction::u64(at, parent.0));
                self.error(Rule::Directory, Location::checkpoint(cno).ino(*ino), || {
                    format!("\"..\" names inode {found}, but the directory is in inode {parent}")
                })
                .corrected_by(right);
            }
            for name in directory.names() {
                let Some(child) = self.check_name(cno, *ino, &name, table) else {
                    continue;
                };
                tallies[child].names += 1;
                if table.inodes[child].1.file_type == Some(FileType::Directory) {
                    tallies[at].subdirectories += 1;
                    if tallies[child].names == 1 && child != root {
                        waiting.push((child, *ino));
                    }
                }
            }
        }
        if whole {
            self.check_links(cno, table, &tallies);
        }
    }

    /// Checks where a name leads; returns the place of the inode in the table.
    fn check_name(
        &mut self,
        cno: Cno,
        directory: Ino,
        entry: &Name<'_>,
        table: &InodeTable,
    ) -> Option<usize> {
        let place = Location::checkpoint(cno).ino(directory);
        let name = || String::from_utf8_lossy(entry.name).into_owned();
        let Some(at) = table.position(entry.ino) else {
            if !table.incomplete {
                let corrections = self.found_or_forgotten(entry, table);
                self.error(Rule::DirectoryEntry, place, || {
                    format!("{:?} names inode {}, which is not in use", name(), entry.ino)
                })
                .corrected_by(corrections);
            }
            return None;
        };
        let facts = &table.inodes[at].1;
        if facts.links == 0 {
            self.error(Rule::DirectoryEntry, place, || {
                format!("{:?} names inode {}, which is deleted (0 links)", name(), entry.ino)
            });
        }
        if let (Some(claimed), Some(found)) = (entry.file_type, facts.file_type)
            && claimed != found
        {
            self.error(Rule::DirectoryEntry, place, || {
                format!(
                    "{:?} claims type {claimed:?}, but inode {} is of type {found:?}",
                    name(),
                    entry.ino
                )
            })
            .corrected_by(entry.at.map(|at| Correction::Bytes {
                at: at.plus(TYPE_IN_RECORD),
                bytes: vec![found.dirent_code()],
            }));
        }
        Some(at)
    }

    /// What makes a name right that leads to a number that is not in use: the number is in use, if
    /// an inode is still there, with links; else the name goes.
    fn found_or_forgotten(&mut self, entry: &Name<'_>, table: &InodeTable) -> Option<Correction> {
        let ino = entry.ino;
        if let Some(groups) = &table.groups
            && ino >= Ino::FIRST_USER
            && let Some((block, slot)) = groups.entry_block(ino.0)
            && let Ok(bytes) = self.volume.block(block)
            && let Some(bytes) = bytes.get(slot * self.volume.geometry.inode_size..)
            && let Ok(inode) = RawInode::parse(bytes)
            && inode.i_links_count.get() > 0
            && inode.file_type().is_ok_and(|it| entry.file_type.is_none_or(|type_| type_ == it))
        {
            return groups.set_allocated(ino.0, true);
        }
        entry.at.map(|at| Correction::u64(at, 0))
    }

    /// Compares the links of all inodes with the names that were found.
    fn check_links(&mut self, cno: Cno, table: &InodeTable, tallies: &[Tally]) {
        for ((ino, facts), tally) in table.inodes.iter().zip(tallies) {
            let place = Location::checkpoint(cno).ino(*ino);
            let is_root = *ino == Ino::ROOT;
            let is_directory = facts.file_type == Some(FileType::Directory);
            if is_directory && tally.names > u64::from(!is_root) {
                self.error(Rule::LinkCount, place, || {
                    format!("{} names lead to the directory", tally.names)
                });
            }
            let is_orphan = facts.links == 0 && tally.names == 0;
            if !is_root && (*ino < Ino::FIRST_USER || is_orphan) {
                continue;
            }
            if !is_root && tally.names == 0 {
                self.error(Rule::Unreachable, place, || {
                    format!("no name leads to the inode, which has {} links", facts.links)
                });
                continue;
            }
            let expected = if is_directory { 2 + tally.subdirectories } else { tally.names };
            if u64::from(facts.links) != expected {
                let links_at = facts.at.map(|at| at.plus(offset_of!(RawInode, i_links_count)));
                let right = links_at
                    .zip(u16::try_from(expected).ok())
                    .map(|(at, expected)| Correction::count_u16(at, expected));
                self.error(Rule::LinkCount, place, || {
                    format!("i_links_count is {}, but there are {expected} links", facts.links)
                })
                .corrected_by(right);
            }
        }
    }
}

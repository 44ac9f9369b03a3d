//! The names of a checkpoint: from the root directory to every file, and back from every inode to
//! its names.

use std::rc::Rc;

use nilfs_ondisk::inode::FileType;
use nilfs_ondisk::{Cno, Ino};

use crate::checker::Checker;
use crate::directory::Name;
use crate::inode::InodeFacts;
use crate::report::{Location, Rule};

/// The inodes of a checkpoint by number.
pub(crate) struct InodeTable {
    inodes: Vec<(Ino, Rc<InodeFacts>)>,
    /// Whether an inode that is in use is missing, because it cannot be read.
    pub(crate) incomplete: bool,
}

impl InodeTable {
    /// A table without inodes so far.
    pub(crate) fn new(incomplete: bool) -> Self {
        Self { inodes: Vec::new(), incomplete }
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
                self.error(Rule::Directory, Location::checkpoint(cno).ino(*ino), || {
                    format!("\"..\" names inode {found}, but the directory is in inode {parent}")
                });
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
                self.error(Rule::DirectoryEntry, place, || {
                    format!("{:?} names inode {}, which is not in use", name(), entry.ino)
                });
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
            });
        }
        Some(at)
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
            if !is_root && (*ino < Ino::FIRST_USER || facts.links == 0) {
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
                self.error(Rule::LinkCount, place, || {
                    format!("i_links_count is {}, but there are {expected} links", facts.links)
                });
            }
        }
    }
}

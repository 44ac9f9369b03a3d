//! What has changed on the volume, besides the content of files, since the last checkpoint or sync log:
//! names, and which inodes have other attributes. The next sync log says all of it.
//!
//! It knows no inodes, only their numbers: how they are is asked when the log is made, so what was
//! changed back, or was made and is gone again, takes no room.

use std::collections::BTreeSet;

use indexmap::map::Entry;
use indexmap::{IndexMap, IndexSet};
use nilfs_ondisk::Ino;
use nilfs_ondisk::inode::FileType;
use nilfs_ondisk::roll_forward::NameRecord;

use crate::host::{NumberState, RandomState};

/// Bytes that a record takes in a log: of a name, besides it, and of an inode.
const NAME_BYTES: usize = 36;
const INODE_BYTES: usize = 80;

/// Changes that no log has.
#[derive(Debug, Default)]
pub(super) struct Journal {
    names: IndexMap<(Ino, Vec<u8>), Name, RandomState>,
    /// Bytes of these names.
    name_bytes: usize,
    inodes: IndexSet<Ino, NumberState>,
    contents: BTreeSet<Ino>,
}

/// A name that is no more what it was.
#[derive(Debug)]
struct Name {
    /// It led to no file before.
    new: bool,
    target: Option<(Ino, FileType)>,
}

impl Journal {
    /// A name that was not there leads to a file.
    pub(super) fn name_added(&mut self, dir: Ino, name: &[u8], target: (Ino, FileType)) {
        self.set_name(dir, name, Name { new: true, target: Some(target) });
    }

    /// A name leads to another file.
    pub(super) fn name_changed(&mut self, dir: Ino, name: &[u8], target: (Ino, FileType)) {
        self.set_name(dir, name, Name { new: false, target: Some(target) });
    }

    /// A name is gone.
    pub(super) fn name_removed(&mut self, dir: Ino, name: &[u8]) {
        self.set_name(dir, name, Name { new: false, target: None });
    }

    fn set_name(&mut self, dir: Ino, name: &[u8], now: Name) {
        match self.names.entry((dir, name.to_vec())) {
            Entry::Occupied(known) if known.get().new && now.target.is_none() => {
                known.swap_remove();
                self.name_bytes -= name.len();
            }
            Entry::Occupied(mut known) => known.get_mut().target = now.target,
            Entry::Vacant(unknown) => {
                unknown.insert(now);
                self.name_bytes += name.len();
            }
        }
    }

    /// An inode has other attributes.
    pub(super) fn inode_changed(&mut self, ino: Ino) {
        self.inodes.insert(ino);
    }

    /// The content of a file has to become durable with the names: it is the target of a symbolic link,
    /// or has taken the place of another file.
    pub(super) fn needs_content(&mut self, ino: Ino) {
        self.contents.insert(ino);
    }

    /// Bytes that the records of all this take in a log, about.
    pub(super) fn bytes(&self) -> usize {
        self.name_bytes + self.names.len() * NAME_BYTES + self.inodes.len() * INODE_BYTES
    }

    /// Inodes whose attributes have changed.
    pub(super) fn inodes(&self) -> impl Iterator<Item = Ino> {
        self.inodes.iter().copied()
    }

    /// Files whose content has to become durable with the names.
    pub(super) fn contents(&self) -> impl Iterator<Item = Ino> {
        self.contents.iter().copied()
    }

    /// The names, as records.
    pub(super) fn into_names(self) -> impl Iterator<Item = NameRecord> {
        self.names.into_iter().map(|((directory, name), Name { target, .. })| NameRecord {
            directory,
            name,
            target,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: Ino = Ino(2);
    const FILE: (Ino, FileType) = (Ino(12), FileType::Regular);

    fn names(change: impl FnOnce(&mut Journal)) -> Vec<NameRecord> {
        let mut journal = Journal::default();
        change(&mut journal);
        journal.into_names().collect()
    }

    fn record(name: &[u8], target: Option<(Ino, FileType)>) -> NameRecord {
        NameRecord { directory: DIR, name: name.to_vec(), target }
    }

    #[test]
    fn a_temporary_name_leaves_nothing() {
        let left = names(|journal| {
            journal.name_added(DIR, b"x.tmp", FILE);
            journal.name_removed(DIR, b"x.tmp");
            journal.name_changed(DIR, b"x", FILE);
        });
        assert_eq!(left, [record(b"x", Some(FILE))]);
    }

    #[test]
    fn a_name_that_was_there_before_is_removed_though_it_came_back_in_between() {
        let left = names(|journal| {
            journal.name_removed(DIR, b"x");
            journal.name_added(DIR, b"x", FILE);
            journal.name_removed(DIR, b"x");
        });
        assert_eq!(left, [record(b"x", None)]);
    }
}

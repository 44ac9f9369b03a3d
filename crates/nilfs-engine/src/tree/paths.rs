//! Paths of some files, by one walk from the root directory, as far as the directories can be read.

use std::collections::{BTreeMap, BTreeSet};

use nilfs_ondisk::Ino;
use nilfs_ondisk::inode::FileType;

use super::Tree;
use crate::types::DirEntry;

impl Tree {
    /// A path of each of these files, relative to the root directory, whose own is empty. What no name
    /// leads to that can be read has none. Takes no longer than it takes to find all of them.
    #[must_use]
    pub fn paths(&self, mut files: BTreeSet<Ino>) -> BTreeMap<Ino, Vec<u8>> {
        let mut paths = BTreeMap::new();
        if files.remove(&Ino::ROOT) {
            paths.insert(Ino::ROOT, Vec::new());
        }
        let mut directories = vec![(Ino::ROOT, Vec::new())];
        let mut entered = BTreeSet::from([Ino::ROOT]);
        while let Some((dir, path)) = directories.pop().filter(|_| !files.is_empty()) {
            let mut entries = Vec::new();
            let mut add = |entry: DirEntry<'_>| {
                if !matches!(entry.name, b"." | b"..") {
                    let below =
                        if path.is_empty() { Vec::new() } else { [&path[..], b"/"].concat() };
                    let path = [&below[..], entry.name].concat();
                    entries.push((entry.ino, entry.file_type, path));
                }
                true
            };
            // As far as it can be read.
            let _ = self.file(dir).and_then(|dir| self.read_dir(&dir, 0, &mut add));
            for (ino, file_type, path) in entries {
                if files.remove(&ino) {
                    paths.insert(ino, path.clone());
                }
                let may_be_directory = file_type.is_none_or(|it| it == FileType::Directory);
                // On a damaged volume a directory may have two names.
                if may_be_directory && entered.insert(ino) {
                    directories.push((ino, path));
                }
            }
        }
        paths
    }
}

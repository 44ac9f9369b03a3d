//! What two trees differ in, as users see it: files with their paths.
//!
//! Which files differ is found by [`Tree::changed_files`]; which names, in the blocks of directories that
//! differ. A file of which only the content or the attributes have changed has its names in directories
//! that did not, so where it is must be known from elsewhere: from [`Parents`].

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use nilfs_ondisk::Ino;
use nilfs_ondisk::inode::FileType;

use super::parents::{ChangedNames, DirectoryPaths, Link, Parents, changed_names};
use super::{File, Tree};
use crate::error::Result;
use crate::types::Attr;

/// A file as one of two trees has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileAt {
    /// From the root of the volume, without a slash at the beginning.
    pub path: Vec<u8>,
    /// Its attributes.
    pub attr: Attr,
}

/// A name that is not in both of two trees, or leads to something else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// In the first tree; `None` if it was added.
    pub before: Option<FileAt>,
    /// In the second tree; `None` if it was removed. With another path, it was renamed.
    pub after: Option<FileAt>,
    /// Bytes of the content that are not shared by the two, in whole blocks but at the end of a file.
    /// They may still be equal. All of a file that is in one tree alone.
    pub changed_bytes: u64,
}

/// What is known of an inode that is not the same in both.
struct Changed {
    before: Option<Attr>,
    after: Option<Attr>,
    changed_bytes: u64,
}

impl Changed {
    /// Whether it is one file in both trees.
    fn is_one_file(&self) -> bool {
        let generations = (self.before.map(identity), self.after.map(identity));
        matches!(generations, (Some(before), Some(after)) if before == after)
    }

    /// How many names the file has in the second tree.
    fn names_after(&self) -> usize {
        match self.after {
            Some(attr) if attr.file_type == FileType::Directory => 1,
            Some(attr) => attr.nlink as usize,
            None => 0,
        }
    }

    /// Whether a user would call the file itself changed, and not only its names.
    fn is_modified(&self) -> bool {
        let (Some(before), Some(after)) = (self.before, self.after) else { return false };
        let is_directory = after.file_type == FileType::Directory;
        let attributes = |attr: Attr| (attr.mode, attr.uid, attr.gid, attr.flags);
        let content = |attr: Attr| (attr.size, attr.mtime);
        !self.is_one_file()
            || attributes(before) != attributes(after)
            // That of a directory is told by the names in it.
            || !is_directory && (self.changed_bytes > 0 || content(before) != content(after))
    }
}

/// What makes an inode the same file in two trees.
fn identity(attr: Attr) -> (u32, FileType) {
    (attr.generation, attr.file_type)
}

/// The names of each file that are in one tree alone.
#[derive(Default)]
struct Names {
    before: BTreeMap<Ino, Vec<Link>>,
    after: BTreeMap<Ino, Vec<Link>>,
}

impl Tree {
    /// What has changed from this tree to `after`, sorted by path. A name that leads to another file of
    /// the same type than before is one change, as if the file had been written: so programs save files
    /// that write a new one and put it in the place of the old one. Otherwise, a file that has another
    /// name was renamed: it is the same file if inode number and generation are. Every name that is gone
    /// or new is told, also those below a directory that is gone or new. Of what is below a directory that
    /// was renamed, only files that have changed are told, and these as renamed, too.
    ///
    /// Only checkpoints are compared, not what was synced after one.
    ///
    /// `parents` is asked for those of `after` if there is a file of which only the content or the
    /// attributes have changed.
    ///
    /// # Errors
    /// Damage, a device error.
    ///
    /// # Panics
    /// The trees are of two volumes.
    pub fn changes(
        &self,
        after: &Tree,
        parents: impl FnOnce() -> Result<Arc<Parents>>,
    ) -> Result<Vec<Change>> {
        let mut changed = BTreeMap::new();
        self.changed_files(after, &mut |file| {
            let attr = |file: Option<File>| file.map(|file| file.attr());
            let (before, after) = (attr(file.before), attr(file.after));
            changed.insert(file.ino, Changed { before, after, changed_bytes: 0 });
            Ok(ControlFlow::Continue(()))
        })?;
        let comparison = Comparison { before: self, after };
        let mut names = Names::default();
        for (&ino, file) in &mut changed {
            file.changed_bytes = comparison.changed_bytes(ino, file)?;
            comparison.changed_names(ino, file, &mut names)?;
        }
        let is_in_place = |&(ino, file): &(&Ino, &Changed)| {
            let new_names = names.after.get(ino).map_or(0, Vec::len);
            file.is_modified() && new_names < file.names_after()
        };
        let mut in_place: BTreeSet<Ino> =
            changed.iter().filter(is_in_place).map(|(ino, _)| *ino).collect();
        let root = in_place.remove(&Ino::ROOT);
        let mut unmoved = match in_place.is_empty() {
            true => BTreeMap::new(),
            false => parents()?.links(after, &in_place)?,
        };
        for (ino, links) in &mut unmoved {
            let new = names.after.get(ino).map_or(&[][..], Vec::as_slice);
            links.retain(|link| !new.contains(link));
        }
        comparison.report(&changed, &names, &unmoved, root)
    }
}

struct Comparison<'a> {
    before: &'a Tree,
    after: &'a Tree,
}

impl Comparison<'_> {
    /// Both versions of a file, as far as there are any.
    fn files(&self, ino: Ino, file: &Changed) -> Result<(Option<File>, Option<File>)> {
        let before = file.before.map(|_| self.before.file(ino)).transpose()?;
        let after = file.after.map(|_| self.after.file(ino)).transpose()?;
        Ok((before, after))
    }

    fn changed_bytes(&self, ino: Ino, file: &Changed) -> Result<u64> {
        let size = |attr: Option<Attr>| {
            attr.filter(|attr| attr.file_type == FileType::Regular).map_or(0, |attr| attr.size)
        };
        let (before, after) = (size(file.before), size(file.after));
        if !file.is_one_file() || before == 0 || after == 0 {
            return Ok(before.max(after));
        }
        let (Some(old), Some(new)) = self.files(ino, file)? else { return Ok(0) };
        let mut bytes = 0;
        self.before.changed_extents(&old, self.after, &new, &mut |extent| {
            bytes += extent.length;
            ControlFlow::Continue(())
        })?;
        Ok(bytes)
    }

    /// Notes the names that only one version of a directory has.
    fn changed_names(&self, ino: Ino, file: &Changed, names: &mut Names) -> Result<()> {
        let is_directory = |attr: &Attr| attr.file_type == FileType::Directory;
        if !file.before.iter().chain(&file.after).any(is_directory) {
            return Ok(());
        }
        let (old, new) = self.files(ino, file)?;
        let is_directory = |file: &File| file.file_type() == FileType::Directory;
        let (old, new) = (old.filter(is_directory), new.filter(is_directory));
        let mut note = |changed: ChangedNames| {
            for (name, child) in changed.before {
                names.before.entry(child).or_default().push((ino, name));
            }
            for (name, child) in changed.after {
                names.after.entry(child).or_default().push((ino, name));
            }
        };
        match file.is_one_file() {
            true => {
                let both = ((self.before, old.as_ref()), (self.after, new.as_ref()));
                note(changed_names(both.0, both.1)?);
            }
            false => {
                note(changed_names((self.before, old.as_ref()), (self.after, None))?);
                note(changed_names((self.before, None), (self.after, new.as_ref()))?);
            }
        }
        Ok(())
    }

    /// Puts inodes and names together. `unmoved` are names that files have in both trees and that are
    /// to be told because the files have changed; so has the root directory, if `root`.
    fn report(
        &self,
        changed: &BTreeMap<Ino, Changed>,
        names: &Names,
        unmoved: &BTreeMap<Ino, Vec<Link>>,
        root: bool,
    ) -> Result<Vec<Change>> {
        let paths = self.paths(names, unmoved)?;
        let mut changes = Vec::new();
        let inodes: BTreeSet<Ino> =
            names.before.keys().chain(names.after.keys()).copied().collect();
        for ino in inodes {
            let (gone, new) = (names.before.get(&ino), names.after.get(&ino));
            let told = match changed.get(&ino) {
                Some(file) => paths.of_names(file, gone, new)?,
                // Its names alone have changed.
                None => paths.of_names(&self.unchanged(ino)?, gone, new)?,
            };
            changes.extend(told);
        }
        for (ino, links) in unmoved {
            if let Some(file) = changed.get(ino) {
                changes.extend(paths.of_unmoved(file, links)?);
            }
        }
        if let Some(of_root) = changed.get(&Ino::ROOT).filter(|_| root) {
            let root = |attr: Option<Attr>| attr.map(|attr| FileAt { path: Vec::new(), attr });
            let (before, after) = (root(of_root.before), root(of_root.after));
            changes.push(Change { before, after, changed_bytes: 0 });
        }
        Ok(replaced_in_one(changes))
    }

    /// The paths of all directories in which there is something to be told.
    fn paths(&self, names: &Names, unmoved: &BTreeMap<Ino, Vec<Link>>) -> Result<Paths<'_>> {
        let directories = |names: &BTreeMap<Ino, Vec<Link>>| -> BTreeSet<Ino> {
            names.values().flatten().map(|(dir, _)| *dir).collect()
        };
        let find = |tree, names| {
            let mut paths = DirectoryPaths::new(tree);
            paths.find(directories(names).union(&directories(unmoved)).copied())?;
            Ok(paths)
        };
        let (before, after) = (find(self.before, &names.before), find(self.after, &names.after));
        Ok(Paths { before: before?, after: after? })
    }

    /// An inode that is the same in both trees.
    fn unchanged(&self, ino: Ino) -> Result<Changed> {
        let (before, after) = (self.before.file(ino)?.attr(), self.after.file(ino)?.attr());
        Ok(Changed { before: Some(before), after: Some(after), changed_bytes: 0 })
    }
}

/// Paths in both trees.
struct Paths<'a> {
    before: DirectoryPaths<'a>,
    after: DirectoryPaths<'a>,
}

impl Paths<'_> {
    /// What is told of a file of which some names are gone, and some are new.
    fn of_names(
        &self,
        file: &Changed,
        gone: Option<&Vec<Link>>,
        new: Option<&Vec<Link>>,
    ) -> Result<Vec<Change>> {
        let mut gone = files_at(file.before, gone, &self.before)?.into_iter();
        let mut new = files_at(file.after, new, &self.after)?.into_iter();
        let mut changes = Vec::new();
        // Another name of the same file takes the place of one that is gone.
        let renamed = if file.is_one_file() { gone.len().min(new.len()) } else { 0 };
        for (before, after) in gone.by_ref().take(renamed).zip(new.by_ref().take(renamed)) {
            let (before, after) = (Some(before), Some(after));
            changes.push(Change { before, after, changed_bytes: file.changed_bytes });
        }
        changes.extend(gone.map(|only| Change::of_one(Some(only), None)));
        changes.extend(new.map(|only| Change::of_one(None, Some(only))));
        Ok(changes)
    }

    /// What is told of a file that has changed under the names that it has in both trees.
    fn of_unmoved(&self, file: &Changed, links: &[Link]) -> Result<Vec<Change>> {
        let (Some(old), Some(new)) = (file.before, file.after) else { return Ok(Vec::new()) };
        let mut changes = Vec::new();
        for link in links {
            // A directory above may have another name.
            let before = Some(FileAt { path: self.before.path(link)?, attr: old });
            let after = Some(FileAt { path: self.after.path(link)?, attr: new });
            if old.file_type == new.file_type {
                changes.push(Change { before, after, changed_bytes: file.changed_bytes });
            } else {
                changes.extend([Change::of_one(before, None), Change::of_one(None, after)]);
            }
        }
        Ok(changes)
    }
}

/// Makes one change of a name that is gone and the same name that is new, if both files are of one
/// type. Returns all changes, sorted by path.
fn replaced_in_one(changes: Vec<Change>) -> Vec<Change> {
    let mut by_name: BTreeMap<(Vec<u8>, u16), Change> = BTreeMap::new();
    let mut others = Vec::new();
    for change in changes {
        let only = match (&change.before, &change.after) {
            (Some(only), None) | (None, Some(only)) => only,
            _ => {
                others.push(change);
                continue;
            }
        };
        match by_name.entry((only.path.clone(), only.attr.file_type.mode_bits())) {
            Entry::Vacant(free) => _ = free.insert(change),
            Entry::Occupied(mut counterpart) => {
                let both = counterpart.get_mut();
                both.changed_bytes = both.changed_bytes.max(change.changed_bytes);
                both.before = both.before.take().or(change.before);
                both.after = both.after.take().or(change.after);
            }
        }
    }
    let mut changes: Vec<Change> = by_name.into_values().chain(others).collect();
    changes.sort_by(|a, b| a.path().cmp(b.path()));
    changes
}

impl Change {
    /// A change of a file that is in one tree alone.
    fn of_one(before: Option<FileAt>, after: Option<FileAt>) -> Self {
        let only = before.as_ref().or(after.as_ref());
        Self { changed_bytes: only.map_or(0, |only| whole(&only.attr)), before, after }
    }

    /// The path in the second tree; in the first one, if it was removed.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        let newest = self.after.as_ref().or(self.before.as_ref());
        newest.map_or(&[], |file| &file.path)
    }
}

/// The bytes of a file that is not compared with another one.
fn whole(attr: &Attr) -> u64 {
    if attr.file_type == FileType::Regular { attr.size } else { 0 }
}

/// A file under each of these names, sorted by path.
fn files_at(
    attr: Option<Attr>,
    links: Option<&Vec<Link>>,
    paths: &DirectoryPaths<'_>,
) -> Result<Vec<FileAt>> {
    // A name that leads to no inode is damage that the checker tells of.
    let Some(attr) = attr else { return Ok(Vec::new()) };
    let links = links.map_or(&[][..], Vec::as_slice);
    let files = links.iter().map(|link| Ok(FileAt { path: paths.path(link)?, attr }));
    let mut files = files.collect::<Result<Vec<_>>>()?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

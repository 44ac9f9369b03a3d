//! Where files are: from an inode to its paths. The format has no way from a file back to its names,
//! only from a directory to the one above.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::ControlFlow;

use nilfs_ondisk::inode::FileType;
use nilfs_ondisk::{Cno, FileBlock, Ino};

use super::names::names_of_block;
use super::{File, Tree};
use crate::error::{Error, Result};

/// The directories in which the files of a tree have their names. This is made by one pass over all
/// blocks of directories, and brought from one tree to another at the cost of the blocks that differ.
///
/// It may name a directory in which a file had a name once, so names are looked for there, and not
/// taken for granted.
#[derive(Debug, Clone)]
pub struct Parents {
    cno: Cno,
    created: u64,
    /// One directory of each file.
    first: HashMap<Ino, Ino>,
    /// The others, of files that have or had several.
    more: BTreeSet<(Ino, Ino)>,
}

/// A name of a file: the directory that has it, and the name itself.
pub(super) type Link = (Ino, Vec<u8>);

impl Parents {
    /// Looks through all directories of a tree.
    ///
    /// # Errors
    /// Damage, a device error.
    pub fn of(tree: &Tree) -> Result<Self> {
        let (cno, created) = (tree.cno(), tree.created());
        let mut parents = Self { cno, created, first: HashMap::new(), more: BTreeSet::new() };
        let mut directories = VecDeque::from([Ino::ROOT]);
        while let Some(dir) = directories.pop_front() {
            let mut children = Vec::new();
            tree.read_dir(&tree.file(dir)?, 0, &mut |entry| {
                if !is_dots(entry.name) {
                    children.push((entry.ino, entry.file_type));
                }
                true
            })?;
            for (child, file_type) in children {
                let is_directory = match file_type {
                    Some(file_type) => file_type == FileType::Directory,
                    None => tree.file(child)?.file_type() == FileType::Directory,
                };
                // On a damaged volume a directory may have two names, and is entered once.
                if parents.add(child, dir) && is_directory {
                    directories.push_back(child);
                }
            }
        }
        Ok(parents)
    }

    /// The checkpoint of the tree, and when it was made.
    #[must_use]
    pub fn checkpoint(&self) -> (Cno, u64) {
        (self.cno, self.created)
    }

    /// Number of files.
    #[must_use]
    pub fn files(&self) -> usize {
        self.first.len()
    }

    /// Brings it from its tree, `from`, to another one of the volume. The checkpoints of both must
    /// exist.
    ///
    /// # Errors
    /// Damage, a device error.
    pub fn carry(&mut self, from: &Tree, to: &Tree) -> Result<()> {
        let mut directories = Vec::new();
        from.changed_files(to, &mut |changed| {
            let before = changed.before.filter(|old| old.is_same_as(changed.after.as_ref()));
            // Another file of this number may have the very name of the one before.
            if changed.after.is_none() {
                self.forget(changed.ino);
            }
            if let Some(after) = changed.after.filter(|new| new.file_type() == FileType::Directory)
            {
                directories.push((before, after));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        for (before, after) in directories {
            let names = changed_names((from, before.as_ref()), (to, Some(&after)))?;
            names.after.into_iter().for_each(|(_, child)| _ = self.add(child, after.ino()));
        }
        (self.cno, self.created) = (to.cno(), to.created());
        Ok(())
    }

    /// Notes a name. Returns whether it is the first of the file.
    fn add(&mut self, child: Ino, dir: Ino) -> bool {
        let first = *self.first.entry(child).or_insert(dir);
        if first != dir {
            self.more.insert((child, dir));
            return false;
        }
        true
    }

    fn forget(&mut self, child: Ino) {
        self.first.remove(&child);
        let more = self.more.range((child, Ino(0))..=(child, Ino(u64::MAX)));
        let more: Vec<_> = more.copied().collect();
        more.iter().for_each(|pair| _ = self.more.remove(pair));
    }

    /// The paths of a file of the tree.
    pub(crate) fn paths(&self, tree: &Tree, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let mut paths = DirectoryPaths::new(tree);
        let links = self.links(tree, &BTreeSet::from([ino]))?.remove(&ino).unwrap_or_default();
        paths.find(links.iter().map(|(dir, _)| *dir))?;
        links.iter().map(|link| paths.path(link)).collect()
    }

    /// The names of files of the tree.
    pub(super) fn links(
        &self,
        tree: &Tree,
        files: &BTreeSet<Ino>,
    ) -> Result<BTreeMap<Ino, Vec<Link>>> {
        let mut by_directory: BTreeMap<Ino, BTreeSet<Ino>> = BTreeMap::new();
        for &file in files {
            let more = self.more.range((file, Ino(0))..=(file, Ino(u64::MAX)));
            let all = self.first.get(&file).copied().into_iter().chain(more.map(|(_, dir)| *dir));
            all.for_each(|dir| _ = by_directory.entry(dir).or_default().insert(file));
        }
        let mut links: BTreeMap<Ino, Vec<Link>> = BTreeMap::new();
        for (dir, wanted) in by_directory {
            let found = match tree.file(dir) {
                Err(Error::Stale) => continue,
                found => found?,
            };
            if found.file_type() == FileType::Directory {
                for_names_of(tree, &found, &wanted, &mut |name, file| {
                    links.entry(file).or_default().push((dir, name.to_vec()));
                })?;
            }
        }
        Ok(links)
    }
}

/// Calls `visit` with the names in a directory that lead to some files.
fn for_names_of(
    tree: &Tree,
    dir: &File,
    files: &BTreeSet<Ino>,
    visit: &mut dyn FnMut(&[u8], Ino),
) -> Result<()> {
    tree.read_dir(dir, 0, &mut |entry| {
        if files.contains(&entry.ino) && !is_dots(entry.name) {
            visit(entry.name, entry.ino);
        }
        true
    })
}

/// Paths of directories, which are found by going up: what was found is kept.
pub(super) struct DirectoryPaths<'a> {
    tree: &'a Tree,
    /// The name of each directory and where it is.
    links: HashMap<Ino, Link>,
}

impl<'a> DirectoryPaths<'a> {
    pub(super) fn new(tree: &'a Tree) -> Self {
        Self { tree, links: HashMap::new() }
    }

    /// Finds what it takes for the paths of these directories. Each directory above them is looked
    /// through once.
    pub(super) fn find(&mut self, directories: impl IntoIterator<Item = Ino>) -> Result<()> {
        let mut above: BTreeMap<Ino, BTreeSet<Ino>> = BTreeMap::new();
        let mut left: Vec<Ino> = directories.into_iter().collect();
        let mut seen = BTreeSet::new();
        while let Some(dir) = left.pop() {
            if dir == Ino::ROOT || self.links.contains_key(&dir) || !seen.insert(dir) {
                continue;
            }
            let parent = self.parent(dir)?;
            above.entry(parent).or_default().insert(dir);
            left.push(parent);
        }
        for (parent, children) in above {
            let links = &mut self.links;
            let dir = self.tree.file(parent)?;
            for_names_of(self.tree, &dir, &children, &mut |name, child| {
                links.insert(child, (parent, name.to_vec()));
            })?;
            if let Some(child) = children.iter().find(|child| !links.contains_key(child)) {
                return Err(Error::Inconsistent(format!(
                    "directory {child} says that it is in directory {parent}, which has no name for it"
                )));
            }
        }
        Ok(())
    }

    /// The directory above one.
    fn parent(&self, dir: Ino) -> Result<Ino> {
        let mut parent = None;
        self.tree.read_dir(&self.tree.file(dir)?, 0, &mut |entry| {
            if entry.name == b".." {
                parent = Some(entry.ino);
            }
            parent.is_none()
        })?;
        parent.ok_or_else(|| Error::missing(format_args!("\"..\" of directory {dir}")))
    }

    /// The path of a file, from its name in a directory that was found.
    pub(super) fn path(&self, (dir, name): &Link) -> Result<Vec<u8>> {
        let mut names = vec![name];
        let mut here = *dir;
        while here != Ino::ROOT {
            let (above, name) = self.links.get(&here).ok_or(Error::Stale)?;
            names.push(name);
            if names.len() > self.links.len() + 1 {
                return Err(Error::Inconsistent(format!("directory {dir} is below itself")));
            }
            here = *above;
        }
        let names: Vec<&[u8]> = names.iter().rev().map(|name| name.as_slice()).collect();
        Ok(names.join(&b'/'))
    }
}

/// Names that two versions of a directory do not have in common, with the files that they lead to.
#[derive(Debug, Default)]
pub(crate) struct ChangedNames {
    pub(crate) before: BTreeSet<(Vec<u8>, Ino)>,
    pub(crate) after: BTreeSet<(Vec<u8>, Ino)>,
}

/// Compares two versions of a directory, of which one need not exist. Blocks that they share are not
/// read.
pub(crate) fn changed_names(
    (before, old): (&Tree, Option<&File>),
    (after, new): (&Tree, Option<&File>),
) -> Result<ChangedNames> {
    let block_size = before.view().store.block_size();
    let blocks = |dir: Option<&File>| dir.map_or(0, |dir| block_size.blocks_for(dir.size()));
    let mut differing = Vec::new();
    if let (Some(old), Some(new)) = (old, new) {
        before.view().source().differences(&old.map, &new.map, &mut |differs| {
            differing.push(differs.key);
            Ok(ControlFlow::Continue(()))
        })?;
    }
    let names = |tree: &Tree, dir: Option<&File>, is_alone: bool| {
        let Some(dir) = dir else { return Ok(BTreeSet::new()) };
        let mut names = BTreeSet::new();
        let mut note = |name: &[u8], ino| {
            if !is_dots(name) {
                names.insert((name.to_vec(), ino));
            }
        };
        if is_alone {
            tree.read_dir(dir, 0, &mut |entry| {
                note(entry.name, entry.ino);
                true
            })?;
        } else {
            let view = tree.view();
            for key in differing.iter().filter(|key| key.0 < blocks(Some(dir))) {
                names_of_block(dir, &view, FileBlock(key.0), &mut note)?;
            }
        }
        Ok::<_, Error>(names)
    };
    let old_names = names(before, old, new.is_none())?;
    let new_names = names(after, new, old.is_none())?;
    Ok(ChangedNames {
        before: old_names.difference(&new_names).cloned().collect(),
        after: new_names.difference(&old_names).cloned().collect(),
    })
}

fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

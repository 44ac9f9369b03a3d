//! Finding files of a volume by path, and going through directories. Where the files come from is
//! no matter here.

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, bail};
use nilfs_engine::{Attr, FileType, Files, Ino, Seek};

use crate::output::printable;

/// Symbolic links that a path may lead through, as in Linux.
const MAX_SYMLINKS: usize = 40;

/// What to do with a symbolic link at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastLink {
    /// Take what it names.
    Follow,
    /// Take the link itself.
    Keep,
}

/// A file that is held for as long as this is there.
pub struct Entry {
    files: Arc<dyn Files>,
    /// Its attributes.
    pub attr: Attr,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.files.let_go(self.attr.ino, 1);
    }
}

impl Entry {
    pub(super) fn root(files: &Arc<dyn Files>) -> anyhow::Result<Self> {
        Ok(Self::hold(files, Ino::ROOT)?)
    }

    /// A file by its number.
    pub fn hold(files: &Arc<dyn Files>, ino: Ino) -> nilfs_engine::Result<Self> {
        Ok(Self { files: Arc::clone(files), attr: files.hold(ino)? })
    }

    pub(super) fn lookup(&self, name: &[u8]) -> anyhow::Result<Self> {
        let attr = self.files.lookup(self.attr.ino, name)?;
        Ok(Self { files: Arc::clone(&self.files), attr })
    }

    /// Reads into `buffer`. Returns the number of bytes; 0 at the end of the file.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> nilfs_engine::Result<usize> {
        self.files.read(self.attr.ino, offset, buffer)
    }

    /// The target of a symbolic link.
    pub fn read_link(&self) -> nilfs_engine::Result<Vec<u8>> {
        self.files.read_link(self.attr.ino)
    }

    /// The next data or hole at or after `offset`.
    pub fn seek(&self, offset: u64, what: Seek) -> nilfs_engine::Result<u64> {
        self.files.seek(self.attr.ino, offset, what)
    }

    /// The names in a directory but "." and "..", sorted.
    pub(super) fn names(&self) -> anyhow::Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        self.files.read_dir(self.attr.ino, 0, &mut |entry| {
            if !matches!(entry.name, b"." | b"..") {
                names.push(entry.name.to_vec());
            }
            true
        })?;
        names.sort_unstable();
        Ok(names)
    }
}

/// Finds a file by its path, which starts at the root of the volume with or without a slash.
pub fn find(files: &Arc<dyn Files>, path: &[u8], last: LastLink) -> anyhow::Result<Entry> {
    walk(files, path, last).with_context(|| printable(path))
}

fn walk(files: &Arc<dyn Files>, path: &[u8], last: LastLink) -> anyhow::Result<Entry> {
    let mut here = Entry::root(files)?;
    // The components still to go, in reverse order.
    let mut names = components(path);
    let mut links = 0;
    while let Some(name) = names.pop() {
        let next = here.lookup(&name)?;
        let follow = last == LastLink::Follow || !names.is_empty();
        if next.attr.file_type != FileType::Symlink || !follow {
            here = next;
            continue;
        }
        links += 1;
        if links > MAX_SYMLINKS {
            bail!("too many symbolic links");
        }
        let target = next.read_link()?;
        if target.first() == Some(&b'/') {
            here = Entry::root(files)?;
        }
        names.extend(components(&target));
    }
    Ok(here)
}

fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    names.rev().map(<[u8]>::to_vec).collect()
}

/// A file below a directory, with its path from there.
pub struct WalkEntry {
    /// Names with slashes between them; empty for the directory itself.
    pub path: Vec<u8>,
    /// The file, or why it or what is in it cannot be read.
    pub entry: anyhow::Result<Rc<Entry>>,
}

/// Goes through a directory, name by name in order, and through those below if asked to: each
/// directory comes before what is in it. Ends on any volume, however damaged.
pub struct Walk {
    recursive: bool,
    /// The directory to be entered next.
    next: Option<(Vec<u8>, Rc<Entry>)>,
    levels: Vec<Level>,
    /// Directories entered so far: none can have two names, unless the volume is damaged.
    seen: HashSet<Ino>,
}

/// A directory being gone through.
struct Level {
    path: Vec<u8>,
    directory: Rc<Entry>,
    names: std::vec::IntoIter<Vec<u8>>,
}

impl Walk {
    /// Starts at a directory.
    pub fn new(directory: Rc<Entry>, recursive: bool) -> Self {
        Self {
            recursive,
            next: Some((Vec::new(), directory)),
            levels: Vec::new(),
            seen: HashSet::new(),
        }
    }

    /// Does not enter the directory that came last.
    pub fn pass_by(&mut self) {
        self.next = None;
    }

    fn enter(&mut self, path: Vec<u8>, directory: Rc<Entry>) -> anyhow::Result<()> {
        let ino = directory.attr.ino;
        if !self.seen.insert(ino) {
            bail!("directory {ino} has two names: the volume is damaged");
        }
        let names = directory.names()?.into_iter();
        self.levels.push(Level { path, directory, names });
        Ok(())
    }
}

impl Iterator for Walk {
    type Item = WalkEntry;

    fn next(&mut self) -> Option<WalkEntry> {
        if let Some((path, directory)) = self.next.take()
            && let Err(error) = self.enter(path.clone(), directory)
        {
            let entry = Err(error);
            return Some(WalkEntry { path, entry });
        }
        let (level, name) = loop {
            let level = self.levels.last_mut()?;
            match level.names.next() {
                Some(name) => break (level, name),
                None => self.levels.pop(),
            };
        };
        let mut path = level.path.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend(&name);
        let entry = level.directory.lookup(&name).map(Rc::new);
        if let Ok(entry) = &entry
            && self.recursive
            && entry.attr.file_type == FileType::Directory
        {
            self.next = Some((path.clone(), Rc::clone(entry)));
        }
        Some(WalkEntry { path, entry })
    }
}

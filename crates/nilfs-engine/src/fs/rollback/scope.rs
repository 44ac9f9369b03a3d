//! What a rollback is about: the whole volume, or what is below a path, now and then.

use std::collections::BTreeMap;

use nilfs_ondisk::Ino;
use nilfs_ondisk::inode::{FileType, RawInode};

use crate::error::{Error, Result};
use crate::tree::{File, Tree};

/// What a rollback is about.
pub(super) enum Scope {
    Everything,
    Below(Box<Subtree>),
}

/// A file or directory, and everything below it.
pub(super) struct Subtree {
    /// The directory that has its name in the present.
    pub(super) directory: File,
    pub(super) name: Vec<u8>,
    /// What the name leads to in the present, and what the path led to then.
    pub(super) present: Option<File>,
    pub(super) past: File,
    /// The directory that had the name then.
    pub(super) past_directory: Ino,
    /// How many names of each file are below the path, in the present and then.
    pub(super) names_now: BTreeMap<Ino, u32>,
    pub(super) names_then: BTreeMap<Ino, u32>,
}

impl Scope {
    /// What is below a path, which begins at the root of the volume; no path stands for everything.
    ///
    /// # Errors
    /// [`Error::NotInCheckpoint`], [`Error::NoDirectoryNow`], damage, a device error.
    pub(super) fn new(present: &Tree, past: &Tree, path: &[u8]) -> Result<Self> {
        let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        let names: Vec<&[u8]> = names.collect();
        let Some((name, above)) = names.split_last() else { return Ok(Self::Everything) };
        let not_then = |error| match error {
            Error::NotFound | Error::NotDirectory => Error::NotInCheckpoint(past.cno()),
            other => other,
        };
        let past_directory = resolve(past, above).map_err(not_then)?;
        let then = past.lookup(&past_directory, name).map_err(not_then)?;
        let directory = resolve(present, above).map_err(|error| match error {
            Error::NotFound | Error::NotDirectory => Error::NoDirectoryNow,
            other => other,
        })?;
        let now = match present.lookup(&directory, name) {
            Ok(found) => Some(found),
            Err(Error::NotFound) => None,
            Err(Error::NotDirectory) => return Err(Error::NoDirectoryNow),
            Err(error) => return Err(error),
        };
        Ok(Self::Below(Box::new(Subtree {
            names_now: now.as_ref().map_or(Ok(BTreeMap::new()), |top| names_below(present, top))?,
            names_then: names_below(past, &then)?,
            directory,
            name: name.to_vec(),
            present: now,
            past: then,
            past_directory: past_directory.ino(),
        })))
    }

    pub(super) fn subtree(&self) -> Option<&Subtree> {
        match self {
            Self::Everything => None,
            Self::Below(subtree) => Some(subtree),
        }
    }

    /// Names of a file of the present that the rollback takes away, or keeps as they are.
    pub(super) fn names_now(&self, ino: Ino, raw: &RawInode) -> u32 {
        match self {
            Self::Everything => raw.i_links_count.get().into(),
            Self::Below(subtree) => subtree.names_now.get(&ino).copied().unwrap_or(0),
        }
    }

    /// Whether all names of a file of the present are below the path, or it has none.
    pub(super) fn has_all_names(&self, ino: Ino, raw: &RawInode) -> bool {
        let links = raw.i_links_count.get();
        let names = self.names_now(ino, raw);
        links == 0 || names >= links.into() || names > 0 && is_directory(raw)
    }

    /// How many links a file has after the rollback.
    pub(super) fn links_then(&self, file: &File) -> u16 {
        let links = file.raw.i_links_count.get();
        match self {
            Self::Below(subtree) if file.file_type() != FileType::Directory => {
                subtree.names_then.get(&file.ino()).map_or(links, |names| *names as u16)
            }
            _ => links,
        }
    }
}

fn is_directory(raw: &RawInode) -> bool {
    FileType::from_mode(raw.i_mode.get()) == Some(FileType::Directory)
}

/// The file that a path leads to.
fn resolve(tree: &Tree, names: &[&[u8]]) -> Result<File> {
    names.iter().try_fold(tree.root()?, |dir, name| match *name {
        b"." | b".." => Err(Error::NotFound),
        name => tree.lookup(&dir, name),
    })
}

/// How many names each file has at a path and below it.
fn names_below(tree: &Tree, top: &File) -> Result<BTreeMap<Ino, u32>> {
    let mut names = BTreeMap::from([(top.ino(), 1)]);
    let mut directories = Vec::new();
    if top.file_type() == FileType::Directory {
        directories.push(top.clone());
    }
    while let Some(dir) = directories.pop() {
        let mut children = Vec::new();
        tree.read_dir(&dir, 0, &mut |entry| {
            if !matches!(entry.name, b"." | b"..") {
                children.push(entry.ino);
            }
            true
        })?;
        for child in children {
            let count = names.entry(child).or_default();
            *count += 1;
            if *count > 1 {
                continue;
            }
            let file = tree.file(child)?;
            if file.file_type() == FileType::Directory {
                directories.push(file);
            }
        }
    }
    Ok(names)
}

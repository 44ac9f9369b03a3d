//! What a volume has of a file, or of a directory and all that was ever in it.

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};

use nilfs_ondisk::inode::FileType;
use nilfs_ondisk::roll_forward::Record;
use nilfs_ondisk::{Cno, FileBlock, Ino, VBlockNr};

use super::Holders;
use crate::cleaner::victim::merged;
use crate::error::{Error, Result};
use crate::files::Checkpoints;
use crate::fs::Filesystem;
use crate::log::reader::Log;
use crate::tree::{Cause, File, Tree, Version, changed_names, versions};

/// Lives of blocks that are collected before those that overlap are joined.
const MOST_LIVES: usize = 1 << 16;

/// What is known of a file that is to be purged, or of several.
pub(super) struct Traces {
    pub(super) files: Files,
    pub(super) holders: Holders,
}

/// Files by what logs call them.
#[derive(Default)]
pub(super) struct Files {
    inos: BTreeSet<Ino>,
    /// The directories among them.
    directories: BTreeSet<Ino>,
    /// Names that led to one of them, and the directories that had these names.
    names: BTreeSet<(Ino, Vec<u8>)>,
}

impl Files {
    /// Whether a log has, or may have, something of what is in them. Of a file that was replaced or deleted
    /// before there was a checkpoint, a log of its segment has the name.
    pub(super) fn are_in(&self, log: &Log) -> bool {
        let has = |ino: &Ino| self.inos.contains(ino);
        if log.files.iter().any(|file| has(&file.ino)) {
            return true;
        }
        match log.records() {
            Ok(None) => false,
            Ok(Some(records)) => records.records.iter().any(|record| match record {
                Record::Bytes(record) => has(&record.ino),
                Record::Name(record) => {
                    self.directories.contains(&record.directory)
                        || self.names.contains(&(record.directory, record.name.clone()))
                }
                _ => false,
            }),
            // Records that nobody can read may be anything.
            Err(_) => true,
        }
    }
}

impl Traces {
    /// Those of a path, of all that it ever led to, and of all that was ever below it.
    ///
    /// # Errors
    /// [`Error::NotFound`] if no checkpoint has the path, [`Error::Invalid`] if it is that of the root
    /// directory, damage, a device error.
    pub(super) fn of(fs: &Filesystem, path: &[u8]) -> Result<Self> {
        let names: Vec<&[u8]> = path.split(|it| *it == b'/').filter(|it| !it.is_empty()).collect();
        if names.is_empty() {
            return Err(Error::Invalid(
                "the past of a whole volume cannot be purged; make a new volume (nilfs mkfs)",
            ));
        }
        let mut search = Search::new(fs);
        search.left.push(Trail { path: names.join(&b'/'), at: None, is_top: true });
        while let Some(trail) = search.left.pop() {
            search.follow(trail)?;
        }
        search.result()
    }
}

/// A path that is to be followed into the past.
struct Trail {
    path: Vec<u8>,
    /// From this checkpoint on, or from the newest.
    at: Option<Cno>,
    /// It was asked for, and not found in a directory.
    is_top: bool,
}

struct Search<'a> {
    fs: &'a Filesystem,
    files: Files,
    /// Checkpoints that have a block of the files.
    lives: Vec<Range<Cno>>,
    /// Blocks that the newest checkpoint has.
    present: BTreeSet<u64>,
    /// Versions that were found, by path and first checkpoint.
    seen: BTreeSet<(Vec<u8>, Cno)>,
    left: Vec<Trail>,
}

/// A directory as it was in one version.
struct Listed {
    path: Vec<u8>,
    tree: Tree,
    dir: File,
}

impl<'a> Search<'a> {
    fn new(fs: &'a Filesystem) -> Self {
        Self {
            fs,
            files: Files::default(),
            lives: Vec::new(),
            present: BTreeSet::new(),
            seen: BTreeSet::new(),
            left: Vec::new(),
        }
    }

    /// Finds all versions of a path, and the names that are to be followed in the directories among them.
    fn follow(&mut self, trail: Trail) -> Result<()> {
        let (mut newer, mut result) = (None, Ok(()));
        versions(self.fs, &trail.path, trail.at, &mut |version| {
            if version.cause == Cause::Deleted {
                newer = None;
                return ControlFlow::Continue(());
            }
            if !self.seen.insert((version.path.clone(), version.first.cno)) {
                return ControlFlow::Break(());
            }
            result = self.note(&version, &mut newer, trail.is_top);
            if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        result
    }

    /// Notes a version. `newer` is the directory as it was after that, if it is one.
    fn note(&mut self, version: &Version, newer: &mut Option<Listed>, is_top: bool) -> Result<()> {
        let ino = version.attr.ino;
        self.files.inos.insert(ino);
        let Some(tree) = self.tree_of(version)? else { return Ok(()) };
        let file = tree.file(ino)?;
        self.note_blocks(&tree, &file)?;
        if is_top {
            self.note_name(&tree, &version.path)?;
        }
        if version.attr.file_type != FileType::Directory {
            *newer = None;
            return Ok(());
        }
        self.files.directories.insert(ino);
        let here = Listed { path: version.path.clone(), tree, dir: file };
        let is_known =
            |newer: &&Listed| newer.path == here.path && newer.dir.is_same_file(&here.dir);
        // Names that lead to the same files in both are followed from the newer one on.
        let after = newer.as_ref().filter(is_known);
        let after = after.map_or((&here.tree, None), |newer| (&newer.tree, Some(&newer.dir)));
        let names = changed_names((&here.tree, Some(&here.dir)), after)?.before;
        for (name, _) in names {
            let path = [&here.path[..], &name[..]].join(&b'/');
            self.left.push(Trail { path, at: Some(here.tree.cno()), is_top: false });
        }
        *newer = Some(here);
        Ok(())
    }

    /// A tree that has a version; `None` if the cleaner has just taken all of them.
    fn tree_of(&self, version: &Version) -> Result<Option<Tree>> {
        let mut end = version.last.plus(1);
        while let Some(found) = self.fs.newest_below(end)?.filter(|it| it.cno >= version.first.cno)
        {
            match self.fs.tree(Some(found.cno)) {
                Err(Error::NoCheckpoint(_)) => end = found.cno,
                tree => return tree.map(Some),
            }
        }
        Ok(None)
    }

    fn note_blocks(&mut self, tree: &Tree, file: &File) -> Result<()> {
        let view = tree.view();
        let mut translator = view.dat.translator(&view.store);
        view.source().scan(&file.map, FileBlock(0), &mut |_, pointer| {
            let entry = translator.entry(VBlockNr(pointer))?;
            if entry.end == Cno::MAX {
                self.present.insert(pointer);
            }
            self.lives.push(entry.start..entry.end);
            Ok(ControlFlow::Continue(()))
        })?;
        self.lives.push(tree.cno()..tree.cno().plus(1));
        if self.lives.len() > MOST_LIVES {
            self.lives = merged(std::mem::take(&mut self.lives));
        }
        Ok(())
    }

    /// Notes the directory that has the last name of a path.
    fn note_name(&mut self, tree: &Tree, path: &[u8]) -> Result<()> {
        let mut names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        let Some(last) = names.pop() else { return Ok(()) };
        let mut dir = tree.root()?;
        for name in names {
            dir = tree.lookup(&dir, name)?;
        }
        self.files.names.insert((dir.ino(), last.to_vec()));
        Ok(())
    }

    fn result(self) -> Result<Traces> {
        let lives = merged(self.lives);
        let has = |cno: Cno| {
            let nth = lives.partition_point(|life| life.end <= cno);
            lives.get(nth).is_some_and(|life| life.contains(&cno))
        };
        let newest = self.fs.view().tree.cno;
        let mut checkpoints = self.fs.checkpoints(Cno::MIN, usize::MAX)?;
        checkpoints.retain(|it| it.cno < newest && has(it.cno));
        let present_bytes = self.present.len() as u64 * self.fs.store.block_size().bytes64();
        let versions = self.seen.len() as u64;
        Ok(Traces { files: self.files, holders: Holders { checkpoints, versions, present_bytes } })
    }
}

//! What a volume has of a file, or of a directory and all that was ever in it.
//!
//! A file is one wherever it is: what it was given after it had been moved elsewhere belongs to it. So
//! a path is followed into the past, and each file that was found there to the place where it was last.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{ControlFlow, Range};

use nilfs_ondisk::inode::FileType;
use nilfs_ondisk::roll_forward::Record;
use nilfs_ondisk::{Cno, FileBlock, Ino, VBlockNr};

use super::{Holders, Moved};
use crate::cleaner::victim::merged;
use crate::error::{Error, Result};
use crate::files::Checkpoints;
use crate::fs::Filesystem;
use crate::log::reader::Log;
use crate::tree::{Cause, File, Parents, Tree, Version, changed_names, older_tree, versions};

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
        loop {
            while let Some(trail) = search.left.pop() {
                search.follow(trail)?;
            }
            // A directory comes before what was found in it, which moves with it.
            let Some(ino) = search.found.pop_front() else { break };
            search.look_elsewhere(ino)?;
        }
        search.result()
    }
}

/// A path that is to be followed into the past.
struct Trail {
    path: Vec<u8>,
    /// From this checkpoint on, or from the newest.
    at: Option<Cno>,
    /// It is not that of a name in a directory which is to be purged, too.
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
    /// Each file with the newest checkpoint in which it was found, and as it was there.
    last: BTreeMap<Identity, (Cno, File)>,
    /// Those that may have been elsewhere later.
    found: VecDeque<Identity>,
    moved: Vec<Moved>,
    /// Where all files of a tree are, of the one that was looked through last.
    parents: Option<(Tree, Parents)>,
}

/// A number leads to other files at other times.
type Identity = (Ino, u32);

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
            last: BTreeMap::new(),
            found: VecDeque::new(),
            moved: Vec::new(),
            parents: None,
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
        self.note_file(&tree, &file);
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

    /// Notes in which checkpoint a file was found.
    fn note_file(&mut self, tree: &Tree, file: &File) {
        let identity = (file.ino(), file.attr().generation);
        let here = (tree.cno(), file.clone());
        match self.last.get_mut(&identity) {
            None => {
                self.last.insert(identity, here);
                self.found.push_back(identity);
            }
            Some(last) if last.0 < here.0 => *last = here,
            Some(_) => {}
        }
    }

    /// Looks whether a file was still there after it was found last. If so, its names of later are
    /// followed.
    fn look_elsewhere(&mut self, identity: Identity) -> Result<()> {
        let Some((known, file)) = self.last.get(&identity).cloned() else { return Ok(()) };
        let Some(tree) = self.last_with(&file, known)? else { return Ok(()) };
        let parents = match self.parents.take() {
            Some((from, mut parents)) => {
                parents.carry(&from, &tree)?;
                parents
            }
            None => Parents::of(&tree)?,
        };
        let is_present = tree.cno() == self.fs.newest();
        for path in parents.paths(&tree, file.ino())? {
            self.moved.push(Moved { path: path.clone(), is_present });
            self.left.push(Trail { path, at: Some(tree.cno()), is_top: true });
        }
        self.parents = Some((tree, parents));
        Ok(())
    }

    /// The newest checkpoint beyond `known` that has a file, unless the one next to that has it no more:
    /// it was deleted then, for a file that moves is in both.
    fn last_with(&self, file: &File, known: Cno) -> Result<Option<Tree>> {
        let has = |tree: &Tree| match tree.file(file.ino()) {
            Ok(other) => Ok(other.is_same_file(file)),
            Err(Error::Stale) => Ok(false),
            Err(error) => Err(error),
        };
        let Some(next) = self.fs.checkpoints(known.plus(1), 1)?.first().copied() else {
            return Ok(None);
        };
        match self.fs.tree(Some(next.cno)) {
            Ok(tree) if !has(&tree)? => return Ok(None),
            // The cleaner has just given it up.
            Ok(_) | Err(Error::NoCheckpoint(_)) => {}
            Err(error) => return Err(error),
        }
        let mut end = self.fs.newest().plus(1);
        while let Some(tree) = older_tree(self.fs, end)?.filter(|tree| tree.cno() > known) {
            if has(&tree)? {
                return Ok(Some(tree));
            }
            end = tree.same_file_during(file.ino())?.start;
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
        let (versions, moved) = (self.seen.len() as u64, self.moved);
        let holders = Holders { checkpoints, versions, present_bytes, moved };
        Ok(Traces { files: self.files, holders })
    }
}

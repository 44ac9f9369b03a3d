//! What a volume has of a file, or of a directory and all that was ever in it.
//!
//! A file is one wherever it is: what it was before it got a name belongs to it, and what it was given
//! after it had been moved elsewhere. So the files are found that a path ever led to, and each of them is
//! followed from the place where it was last, under whatever name.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{ControlFlow, Range};

use nilfs_ondisk::inode::FileType;
use nilfs_ondisk::roll_forward::Record;
use nilfs_ondisk::{Cno, FileBlock, Ino, VBlockNr};

use super::{Holders, Moved};
use crate::error::{Error, Result};
use crate::fs::Filesystem;
use crate::log::reader::{self, Log};
use crate::log::segment_reader::merged;
use crate::store::Store;
use crate::tree::Checkpoints;
use crate::tree::{
    Cause, File, Parents, Tree, Version, changed_names, older_tree, tree_of, versions_of_all_at,
    versions_of_file,
};
use crate::types::Attr;

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
    pub(super) fn are_in(&self, log: &Log, store: &Store) -> bool {
        self.are_described_by(log)
            || log.summary_copies().iter().any(|copy| {
                // A copy that cannot be read may be of anything.
                reader::copied(store, copy).is_none_or(|log| self.are_described_by(&log))
            })
    }

    fn are_described_by(&self, log: &Log) -> bool {
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
        search.find(&names.join(&b'/'))?;
        // A directory comes before what was found in it, which moves with it.
        while let Some(identity) = search.left.pop_front() {
            search.follow(identity)?;
        }
        search.result()
    }
}

/// What makes a file one: its number leads to others at other times.
type Identity = (Ino, u32, u16);

fn identity(attr: Attr) -> Identity {
    (attr.ino, attr.generation, attr.file_type.mode_bits())
}

/// Where a file was found.
#[derive(Clone)]
struct Place {
    cno: Cno,
    path: Vec<u8>,
    /// It is a name in a directory that is to be purged, too.
    is_below: bool,
}

struct Search<'a> {
    fs: &'a Filesystem,
    files: Files,
    versions: u64,
    /// Checkpoints that have a block of the files.
    lives: Vec<Range<Cno>>,
    /// Blocks that the newest checkpoint has.
    present: BTreeSet<u64>,
    /// Each file, and the newest place where it was found.
    found: BTreeMap<Identity, Place>,
    /// Those that are to be followed through all checkpoints.
    left: VecDeque<Identity>,
    moved: Vec<Moved>,
    /// Where all files of a tree are, of the one that was looked through last.
    parents: Option<(Tree, Parents)>,
}

impl<'a> Search<'a> {
    fn new(fs: &'a Filesystem) -> Self {
        Self {
            fs,
            files: Files::default(),
            versions: 0,
            lives: Vec::new(),
            present: BTreeSet::new(),
            found: BTreeMap::new(),
            left: VecDeque::new(),
            moved: Vec::new(),
            parents: None,
        }
    }

    /// Finds all files that ever had a path.
    fn find(&mut self, path: &[u8]) -> Result<()> {
        versions_of_all_at(self.fs, path, &mut |version| {
            if version.cause != Cause::Deleted && version.path == path {
                let place = Place { cno: version.last, path: version.path, is_below: false };
                self.note_place(identity(version.attr), place);
            }
            ControlFlow::Continue(())
        })
    }

    fn note_place(&mut self, identity: Identity, place: Place) {
        match self.found.get_mut(&identity) {
            None => {
                self.found.insert(identity, place);
                self.left.push_back(identity);
            }
            Some(known) if known.cno < place.cno => *known = place,
            Some(_) => {}
        }
    }

    /// Notes all versions of a file, from the last place where it was, and what was in it, if it is a
    /// directory.
    fn follow(&mut self, identity: Identity) -> Result<()> {
        let Some(place) = self.found.get(&identity).cloned() else { return Ok(()) };
        let (mut path, mut at) = (place.path.clone(), place.cno);
        if let Some(tree) = self.last_with(identity, place.cno)? {
            let is_present = tree.cno() == self.fs.newest();
            for later in self.paths(&tree, identity.0)? {
                (path, at) = (later.clone(), tree.cno());
                self.moved.push(Moved { path: later, is_present });
            }
        }
        let (mut newer, mut result) = (None, Ok(()));
        let found = versions_of_file(self.fs, &path, at, &mut |version| {
            // The cleaner may have just taken the checkpoint in which this was the file.
            if identity == self::identity(version.attr) && version.cause != Cause::Deleted {
                let is_known = place.is_below && version.path == place.path;
                result = self.note(&version, &mut newer, is_known);
            }
            if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        match found {
            Err(Error::NotFound | Error::NoCheckpoint(_)) => {}
            found => found?,
        }
        result
    }

    /// The newest checkpoint beyond `known` that has a file, unless the one next to that has it no more:
    /// it was deleted then, for a file that moves is in both.
    fn last_with(&self, file: Identity, known: Cno) -> Result<Option<Tree>> {
        let (ino, ..) = file;
        let has = |tree: &Tree| match tree.file(ino) {
            Ok(found) => Ok(identity(found.attr()) == file),
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
            end = tree.same_file_during(ino)?.start;
        }
        Ok(None)
    }

    /// The paths of a file in a tree.
    fn paths(&mut self, tree: &Tree, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let parents = match self.parents.take() {
            Some((from, mut parents)) => {
                parents.carry(&from, tree)?;
                parents
            }
            None => Parents::of(tree)?,
        };
        let paths = parents.paths(tree, ino)?;
        self.parents = Some((tree.clone(), parents));
        Ok(paths)
    }

    /// Notes a version. `newer` is the file as it was after that; `is_known`: the directory that has its
    /// name is to be purged, too.
    fn note(
        &mut self,
        version: &Version,
        newer: &mut Option<(Tree, File)>,
        is_known: bool,
    ) -> Result<()> {
        let ino = version.attr.ino;
        self.versions += 1;
        self.files.inos.insert(ino);
        let Some(tree) = tree_of(self.fs, version)? else { return Ok(()) };
        let file = tree.file(ino)?;
        self.note_blocks(&tree, &file)?;
        if !is_known {
            self.note_name(&tree, &version.path)?;
        }
        if version.attr.file_type != FileType::Directory {
            return Ok(());
        }
        self.files.directories.insert(ino);
        // Names that lead to the same files in both were found in the newer one.
        let after = newer.as_ref().map_or((&tree, None), |(tree, newer)| (tree, Some(newer)));
        for (name, child) in changed_names((&tree, Some(&file)), after)?.before {
            let path = [&version.path[..], &name[..]].join(&b'/');
            let place = Place { cno: tree.cno(), path, is_below: true };
            self.note_place(identity(tree.file(child)?.attr()), place);
        }
        *newer = Some((tree, file));
        Ok(())
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
        let (versions, moved) = (self.versions, self.moved);
        let holders = Holders { checkpoints, versions, present_bytes, moved };
        Ok(Traces { files: self.files, holders })
    }
}

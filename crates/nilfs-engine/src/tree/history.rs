//! The versions of a file, from the lifetimes of blocks.
//!
//! The DAT says since which checkpoint a block is there. All checkpoints from there on to the one that is
//! looked at agree on what is in it: an inode, if it is a block of the ifile; the names that lead to it,
//! if these are blocks of the directories along its path. So none of these checkpoints is opened: the
//! next one that is looked at is the newest before.
//!
//! An inode has neighbours in its block, and one of them may change all the time. But if an inode is the
//! same in two checkpoints, to the last bit of the time of its last change, then it is in all between
//! them: a rollback, too, gives what it changes another time. So the first of these is searched for by halves.
//!
//! What a path leads to comes first, then the file: if the path led to another file before, that one is
//! an older version, as with editors that write a new file and put it in the place of the old one. Only
//! if it led to nothing is the file looked for under another name.

use std::ops::{ControlFlow, Range};

use nilfs_ondisk::bmap::Root;
use nilfs_ondisk::dat::DatEntry;
use nilfs_ondisk::inode::FileType;
use nilfs_ondisk::{Cno, FileBlock, Ino, VBlockNr};
use serde::{Deserialize, Serialize};

use super::parents::{DirectoryPaths, Parents, changed_names};
use super::{File, Tree, View, names};
use crate::checkpoints::CheckpointInfo;
use crate::error::{Error, Result};
use crate::tree::Checkpoints;
use crate::types::Attr;

/// What made a version of a file another one than the version before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// There was none before, or it is another name of a file that has kept its own.
    Created,
    /// Its content has changed.
    Content,
    /// Its content is the same, but something else has changed.
    Metadata,
    /// Another file has taken the place of the one before, as when a program saves a file by writing a
    /// new one.
    Replaced,
    /// Nothing was there for a while, but something was before: another file, or the same one, which had
    /// another name meanwhile that it has kept.
    Recreated,
    /// It had another path.
    Renamed,
    /// It is gone.
    Deleted,
    /// It is not known: there is no older checkpoint.
    Unknown,
}

/// A file as it was for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// What made it another one than the version before, which is the next that is reported.
    pub cause: Cause,
    /// The oldest checkpoint that has it.
    pub first: CheckpointInfo,
    /// The newest checkpoint that has it, of those that were asked for.
    pub last: Cno,
    /// Its path then, or, if it was deleted, before.
    pub path: Vec<u8>,
    /// What it was; if it was deleted, before.
    pub attr: Attr,
    /// Bytes of its content that are not shared with the version before, as
    /// [`Change::changed_bytes`](super::Change::changed_bytes); 0 unless that is known to be the same
    /// file.
    pub changed_bytes: u64,
}

/// A file, found by a path in a tree.
struct Found {
    tree: Tree,
    file: File,
    path: Vec<Vec<u8>>,
    /// For each component of the path, the directory and the block of it that has the name.
    places: Vec<(Ino, FileBlock)>,
    /// The first checkpoint since which the path leads to it for sure.
    path_since: Cno,
    /// The first checkpoint since which that is so and its inode is as it is.
    since: Cno,
}

/// Calls `visit` with the versions of what a path leads to, the newest first, until it breaks: from the
/// newest checkpoint on, or from the newest that is not later than `at`. A path begins at the root of the volume; "." and ".." are names
/// of nothing in it, and symbolic links are not followed.
///
/// # Errors
/// [`Error::NotFound`] if no checkpoint has the path, damage, a device error.
pub fn versions(
    past: &dyn Checkpoints,
    path: &[u8],
    at: Option<Cno>,
    visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
) -> Result<()> {
    versions_of(Followed::Path, past, path, at, visit)
}

/// As [`versions`], but of the file that has the path in a checkpoint, and of no other that had it
/// before.
pub(crate) fn versions_of_file(
    past: &dyn Checkpoints,
    path: &[u8],
    at: Cno,
    visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
) -> Result<()> {
    versions_of(Followed::File, past, path, Some(at), visit)
}

/// As [`versions`], and with all that the path led to before a file was renamed to it.
pub(crate) fn versions_of_all_at(
    past: &dyn Checkpoints,
    path: &[u8],
    visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
) -> Result<()> {
    let mut left = vec![(path.to_vec(), None)];
    while let Some((path, at)) = left.pop() {
        let found = versions(past, &path, at, &mut |version| {
            if version.cause == Cause::Renamed && version.path == path {
                left.push((version.path.clone(), Some(Cno(version.first.cno.0 - 1))));
            }
            visit(version)
        });
        match found {
            Err(Error::NotFound | Error::NoCheckpoint(_)) if at.is_some() => {}
            found => found?,
        }
    }
    Ok(())
}

/// What comes first: a path, or the file that it leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Followed {
    Path,
    File,
}

fn versions_of(
    followed: Followed,
    past: &dyn Checkpoints,
    path: &[u8],
    at: Option<Cno>,
    visit: &mut dyn FnMut(Version) -> ControlFlow<()>,
) -> Result<()> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    let path: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
    let tree = match at {
        None => past.tree(None)?,
        Some(at) => {
            older_tree(past, Cno(at.0.saturating_add(1)))?.ok_or(Error::NoCheckpoint(at))?
        }
    };
    let mut here = match find(&tree, &path, &[])? {
        Some(found) => found,
        None => {
            let found = find_before(past, &tree, &path)?.ok_or(Error::NotFound)?;
            if visit(deleted(past, &found, tree.cno())?).is_break() {
                return Ok(());
            }
            found
        }
    };
    loop {
        let Step { cause, older, gone_until } = here.step(past, followed)?;
        if visit(here.version(past, cause, older.as_ref())?).is_break() {
            return Ok(());
        }
        let Some(older) = older else { return Ok(()) };
        if let Some(last) = gone_until
            && visit(deleted(past, &older, last)?).is_break()
        {
            return Ok(());
        }
        here = older;
    }
}

/// From one version to the one before.
struct Step {
    cause: Cause,
    older: Option<Found>,
    /// There was nothing between the two until this checkpoint.
    gone_until: Option<Cno>,
}

/// That a file is gone, in the checkpoint `last` and those before that do not have it.
fn deleted(past: &dyn Checkpoints, was: &Found, last: Cno) -> Result<Version> {
    let first = oldest_from(past, Cno(was.tree.cno().0 + 1))?;
    Ok(Version {
        cause: Cause::Deleted,
        first,
        last,
        path: was.path.join(&b'/'),
        attr: was.file.attr(),
        changed_bytes: 0,
    })
}

/// The oldest checkpoint from a number on.
fn oldest_from(past: &dyn Checkpoints, cno: Cno) -> Result<CheckpointInfo> {
    past.checkpoints(cno, 1)?.first().copied().ok_or(Error::NoCheckpoint(cno))
}

/// The tree of the newest checkpoint below a number.
pub(crate) fn older_tree(past: &dyn Checkpoints, mut end: Cno) -> Result<Option<Tree>> {
    while let Some(found) = past.newest_below(end)? {
        match past.tree(Some(found.cno)) {
            // The cleaner has just given it up.
            Err(Error::NoCheckpoint(_)) => end = found.cno,
            tree => return tree.map(Some),
        }
    }
    Ok(None)
}

/// The newest tree that has a version; `None` if the cleaner has just taken all of them.
pub(crate) fn tree_of(past: &dyn Checkpoints, version: &Version) -> Result<Option<Tree>> {
    let tree = older_tree(past, version.last.plus(1))?;
    Ok(tree.filter(|tree| tree.cno() >= version.first.cno))
}

/// The newest checkpoint before that of a tree, which does not have a path, that has it.
fn find_before(past: &dyn Checkpoints, tree: &Tree, path: &[Vec<u8>]) -> Result<Option<Found>> {
    let mut way = walk(tree, path, &[], None)?;
    loop {
        let missing_since = way.path_since.max(way.end_unchanged_since()?);
        let Some(tree) = older_tree(past, missing_since)? else { return Ok(None) };
        way = walk(&tree, path, &way.places, Some(&way.end))?;
        if way.places.len() == path.len() {
            return way.found(path).map(Some);
        }
    }
}

/// As much of a path as there is in a tree.
struct Way {
    tree: Tree,
    /// Where it ends.
    end: File,
    /// For each component, the directory and the block of it that has the name.
    places: Vec<(Ino, FileBlock)>,
    /// The first checkpoint since which all of these blocks are there.
    path_since: Cno,
}

/// Follows a path in a tree. In a newer tree its names were in `places`, which is where they are looked
/// for first, and the next name was not in the directory `without`.
fn walk(
    tree: &Tree,
    path: &[Vec<u8>],
    places: &[(Ino, FileBlock)],
    without: Option<&File>,
) -> Result<Way> {
    let (end, tree) = (tree.root()?, tree.clone());
    let mut way = Way { end, tree, places: Vec::new(), path_since: Cno::MIN };
    for (nth, name) in path.iter().enumerate() {
        let dir = &way.end;
        if dir.file_type() != FileType::Directory {
            break;
        }
        let hint = match places.get(nth) {
            Some((known, block)) if *known == dir.ino() => Hint::Perhaps(*block),
            None if nth == places.len() => {
                match without.filter(|other| dir.is_same_as(Some(other))) {
                    Some(other) => Hint::NotIn(other),
                    None => Hint::None,
                }
            }
            _ => Hint::None,
        };
        let Some((ino, block)) = look_up(&way.tree, dir, name, &hint)? else { break };
        way.path_since = way.path_since.max(way.tree.there_since(&dir.map, block)?);
        way.places.push((dir.ino(), block));
        way.end = way.tree.file(ino)?;
    }
    Ok(way)
}

impl Way {
    /// What the whole path leads to.
    fn found(self, path: &[Vec<u8>]) -> Result<Found> {
        let since = self.path_since.max(self.end_unchanged_since()?);
        let Self { tree, end, places, path_since } = self;
        Ok(Found { tree, file: end, path: path.to_vec(), places, path_since, since })
    }

    /// The first checkpoint since which the inode at the end is as it is, as far as one block tells.
    fn end_unchanged_since(&self) -> Result<Cno> {
        self.tree.inode_there_since(self.end.ino())
    }
}

/// What a path leads to in a tree; `places` as for [`walk`].
fn find(tree: &Tree, path: &[Vec<u8>], places: &[(Ino, FileBlock)]) -> Result<Option<Found>> {
    let way = walk(tree, path, places, None)?;
    match way.places.len() == path.len() {
        true => way.found(path).map(Some),
        false => Ok(None),
    }
}

/// What is known of a name in a directory.
enum Hint<'a> {
    None,
    /// It may be in this block.
    Perhaps(FileBlock),
    /// It is not in this other version of the directory.
    NotIn(&'a File),
}

/// Looks for a name in a directory, first where it should be. Blocks in which it cannot be are not read.
fn look_up(
    tree: &Tree,
    dir: &File,
    name: &[u8],
    hint: &Hint<'_>,
) -> Result<Option<(Ino, FileBlock)>> {
    let view = tree.view();
    let in_block = |block| {
        let mut found = None;
        names::names_of_block(dir, &view, block, &mut |other, ino| {
            if other == name {
                found = Some((ino, block));
            }
        })?;
        Ok::<_, Error>(found)
    };
    match hint {
        Hint::Perhaps(block) if names::has_block(dir, &view, *block) => {
            if let Some(found) = in_block(*block)? {
                return Ok(Some(found));
            }
        }
        Hint::NotIn(other) => {
            let mut differing = Vec::new();
            view.source().differences(&dir.map, &other.map, &mut |differs| {
                differing.push(differs.key);
                Ok(ControlFlow::Continue(()))
            })?;
            differing.retain(|block| names::has_block(dir, &view, *block));
            return differing.into_iter().find_map(|block| in_block(block).transpose()).transpose();
        }
        Hint::Perhaps(_) | Hint::None => {}
    }
    let found = names::find(dir, &view, None, name)?;
    Ok(found.map(|found| (found.ino, found.block)))
}

impl Found {
    /// Looks for the version before this one.
    fn step(&mut self, past: &dyn Checkpoints, followed: Followed) -> Result<Step> {
        let at_once = |cause, older| Step { cause, older, gone_until: None };
        let tree = loop {
            self.extend(past)?;
            let Some(tree) = older_tree(past, self.since)? else {
                return Ok(at_once(Cause::Unknown, None));
            };
            match find(&tree, &self.path, &self.places)? {
                // A block on the way was written for another name or inode.
                Some(older) if older.file.has_same_inode(&self.file) => {
                    (self.since, self.path_since) = (older.since, older.path_since);
                }
                Some(older)
                    if followed == Followed::Path || older.file.is_same_file(&self.file) =>
                {
                    return Ok(at_once(self.cause_after(&older), Some(older)));
                }
                _ => break tree,
            }
        };
        if let Some(older) = self.under_another_name(past, &tree, followed)? {
            return Ok(at_once(Cause::Renamed, Some(older)));
        }
        if followed == Followed::File {
            return Ok(at_once(Cause::Created, None));
        }
        Ok(match find_before(past, &tree, &self.path)? {
            None => at_once(Cause::Created, None),
            older => Step { cause: Cause::Recreated, older, gone_until: Some(tree.cno()) },
        })
    }

    /// Finds the first checkpoint that has the inode as it is, of those in which the path leads to it for
    /// sure: by steps of double length, and then by halves.
    fn extend(&mut self, past: &dyn Checkpoints) -> Result<()> {
        // Up to this number the inode is another one, or the path may lead elsewhere.
        let mut low = self.path_since.0.saturating_sub(1);
        let mut step = Some(1);
        while self.since.0 - low > 1 {
            let target = match step {
                Some(length) => self.since.0.saturating_sub(length).max(low + 1),
                None => low + (self.since.0 - low) / 2,
            };
            let tree = older_tree(past, Cno(target + 1))?.filter(|tree| tree.cno().0 > low);
            match tree {
                None => (low, step) = (target, None),
                Some(tree) if self.has_same_inode_in(&tree)? => {
                    self.since = tree.inode_there_since(self.file.ino())?.max(Cno(low + 1));
                    step = step.map(|length: u64| length.saturating_mul(2));
                }
                Some(tree) => (low, step) = (tree.cno().0, None),
            }
        }
        Ok(())
    }

    fn has_same_inode_in(&self, tree: &Tree) -> Result<bool> {
        match tree.file(self.file.ino()) {
            Ok(file) => Ok(file.has_same_inode(&self.file)),
            Err(Error::Stale) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What made this version another one than an older one of the same path.
    fn cause_after(&self, older: &Self) -> Cause {
        let (new, old) = (self.file.attr(), older.file.attr());
        match self.file.is_same_as(Some(&older.file)) {
            false => Cause::Replaced,
            true if (new.size, new.mtime) != (old.size, old.mtime) => Cause::Content,
            true => Cause::Metadata,
        }
    }

    fn changed_bytes(&self, older: &Self) -> Result<u64> {
        let is_regular = self.file.file_type() == FileType::Regular;
        if !is_regular || !self.file.is_same_as(Some(&older.file)) {
            return Ok(0);
        }
        let mut bytes = 0;
        older.tree.changed_extents(&older.file, &self.tree, &self.file, &mut |extent| {
            bytes += extent.length;
            ControlFlow::Continue(())
        })?;
        Ok(bytes)
    }

    fn version(
        &self,
        past: &dyn Checkpoints,
        cause: Cause,
        older: Option<&Self>,
    ) -> Result<Version> {
        Ok(Version {
            cause,
            first: oldest_from(past, self.since)?,
            last: self.tree.cno(),
            path: self.path.join(&b'/'),
            attr: self.file.attr(),
            changed_bytes: older.map_or(Ok(0), |older| self.changed_bytes(older))?,
        })
    }

    /// The same file in an older tree, where its path does not lead to it. Names that the file has kept are
    /// no older ones, unless the file is followed.
    fn under_another_name(
        &self,
        past: &dyn Checkpoints,
        older: &Tree,
        followed: Followed,
    ) -> Result<Option<Self>> {
        let ino = self.file.ino();
        match older.file(ino) {
            Ok(file) if file.is_same_as(Some(&self.file)) => {}
            Ok(_) | Err(Error::Stale) => return Ok(None),
            Err(error) => return Err(error),
        }
        let path = match self.old_name(past, older)? {
            Some((dir, name)) => {
                let mut paths = DirectoryPaths::new(older);
                paths.find([dir])?;
                paths.path(&(dir, name))?
            }
            None if followed == Followed::Path => return Ok(None),
            None => match Parents::of(older)?.paths(older, ino)?.into_iter().next() {
                Some(path) => path,
                None => return Ok(None),
            },
        };
        let path: Vec<Vec<u8>> = path.split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect();
        find(older, &path, &[])
    }

    /// A name that the file has in an older tree: that of now, if a directory above has another name; or
    /// one that a directory has lost since.
    fn old_name(&self, past: &dyn Checkpoints, older: &Tree) -> Result<Option<(Ino, Vec<u8>)>> {
        let ino = self.file.ino();
        if let (Some((dir, _)), Some(name)) = (self.places.last(), self.path.last()) {
            let found = match older.file(*dir) {
                Ok(dir) if dir.file_type() == FileType::Directory => {
                    look_up(older, &dir, name, &Hint::None)?
                }
                Ok(_) | Err(Error::Stale) => None,
                Err(error) => return Err(error),
            };
            if found.is_some_and(|(found, _)| found == ino) {
                return Ok(Some((*dir, name.clone())));
            }
        }
        // It has had the new one since its inode is as it is.
        let newer = match past.tree(Some(oldest_from(past, self.since)?.cno)) {
            Err(Error::NoCheckpoint(_)) => self.tree.clone(),
            tree => tree?,
        };
        let mut directories = Vec::new();
        older.changed_files(&newer, &mut |changed| {
            let is_directory = |file: &File| file.file_type() == FileType::Directory;
            if let Some(before) = changed.before.filter(is_directory) {
                let after = changed.after.filter(|after| after.is_same_as(Some(&before)));
                directories.push((before, after));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        for (before, after) in directories {
            let names = changed_names((older, Some(&before)), (&newer, after.as_ref()))?;
            if let Some((name, _)) = names.before.into_iter().find(|(_, child)| *child == ino) {
                return Ok(Some((before.ino(), name)));
            }
        }
        Ok(None)
    }
}

impl Tree {
    /// The first checkpoint since which an inode is as it is, as far as its block tells.
    fn inode_there_since(&self, ino: Ino) -> Result<Cno> {
        let view = self.view();
        let slot = view.ifile_layout().entry(ino.0);
        self.there_since(&view.tree.ifile, slot.block)
    }

    /// Checkpoints that have the same file under an inode number, or none, as this one, which is among
    /// them; of the file, anything may have changed. All checkpoints between are meant, as far as they
    /// are there, and there may be more.
    ///
    /// Whether a number is taken is told by a block of the ifile of its own, which is written anew when
    /// another file takes the number. So that holds for as long as this block lives, and for as long as
    /// that of the inode does.
    ///
    /// # Errors
    /// Damage, a device error.
    pub fn same_file_during(&self, ino: Ino) -> Result<Range<Cno>> {
        let view = self.view();
        let layout = view.ifile_layout();
        let ifile = &view.tree.ifile;
        let mut during = self.cno()..self.cno().plus(1);
        for key in [layout.bit(ino.0).block, layout.entry(ino.0).block] {
            if let Some(block) = view.source().lookup(ifile, key)? {
                let life = self.life(&view, VBlockNr(block))?;
                during = during.start.min(life.start)..during.end.max(life.end);
            }
        }
        Ok(during)
    }

    /// The first checkpoint since which a block of a map of this tree is there. Reads the way to the
    /// block and not the block.
    fn there_since(&self, map: &Root, key: FileBlock) -> Result<Cno> {
        let view = self.view();
        let missing = || Error::missing(format_args!("block {key} of a file"));
        let block = VBlockNr(view.source().lookup(map, key)?.ok_or_else(missing)?);
        Ok(self.life(&view, block)?.start)
    }

    /// The life of a block that this tree has.
    fn life(&self, view: &View, block: VBlockNr) -> Result<DatEntry> {
        let unborn =
            || Error::Inconsistent(format!("virtual block {block} is in use, but has no life"));
        let life = view.dat.life(&view.store, block)?.ok_or_else(unborn)?;
        if life.start > self.cno() || life.end <= self.cno() {
            return Err(Error::Inconsistent(format!(
                "checkpoint {} has virtual block {block}, which lives from checkpoint {} to before {}",
                self.cno(),
                life.start,
                life.end
            )));
        }
        Ok(life)
    }
}

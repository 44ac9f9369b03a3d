//! The past of a mounted volume: in every directory the *door*, a directory that is not listed and
//! whose entries are the directory as it was at each checkpoint.
//!
//! A door's entries have canonical names, `2026-11-20T19.34.18Z+cp3` (UTC), and what lies below one
//! is read from the [`Tree`] of its checkpoint, which is open for as long as the kernel knows a
//! file in it. A directory is found by its number and generation, so it keeps its past when it is
//! renamed.
//!
//! # Numbers
//! The kernel knows a file of the past by a number that is handed out when it is first looked up,
//! and that also says through which door: it does not like a directory to have two places. `st_ino`
//! is another number, which is the same wherever the file is met, and no number of a present file.
//!
//! Nothing of the past can be changed, and nothing in it is more than content: set-id bits and
//! device nodes have no power.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use nilfs_engine::tree::File;
use nilfs_engine::{
    Attr, CheckpointInfo, Checkpoints, Cno, DeviceCode, Error, FileType, Files, Ino, Result, Seek,
    Tree,
};
use parking_lot::Mutex;

use crate::nodes::NodeId;
use crate::operations::{Caller, Given, Listed, Validity};

/// The name of the door to a directory's past.
pub const DOOR: &[u8] = b".checkpoints";

/// Checkpoints that are looked at when a door is listed, at a time.
const AT_ONCE: usize = 64;

/// Bits of `st_ino` that no number of a present file has, because no volume is so large.
const PAST: u64 = 1 << 63;
const OF_DOOR: u64 = PAST | 1 << 62;
const OF_ALIAS: u64 = OF_DOOR | 1 << 61;

/// Set-user-ID and set-group-ID.
const SET_ID: u16 = 0o6000;

/// The past of a volume, as the kernel knows it.
pub(crate) struct Past {
    /// The present.
    files: Arc<dyn Files>,
    checkpoints: Arc<dyn Checkpoints>,
    /// The user whose mount it is.
    owner: u32,
    known: Mutex<Known>,
}

/// A place in the past.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    /// The door of a directory.
    Door(Ino),
    /// Another name of a checkpoint in it: a symbolic link to the canonical one.
    Alias { door: Ino, cno: Cno },
    /// A file of a checkpoint, reached through the door of a directory.
    File { door: Ino, cno: Cno, ino: Ino },
}

/// What the kernel knows of the past.
#[derive(Default)]
struct Known {
    nodes: HashMap<NodeId, (Place, u64)>,
    ids: HashMap<Place, NodeId>,
    /// The trees of these nodes, and how many nodes each of them has.
    trees: HashMap<Cno, (Tree, usize)>,
    handed_out: u64,
}

impl Past {
    /// The past of a volume that `owner` has mounted.
    pub fn new(files: Arc<dyn Files>, checkpoints: Arc<dyn Checkpoints>, owner: u32) -> Self {
        Self { files, checkpoints, owner, known: Mutex::default() }
    }

    /// The door of a directory of the present, if the caller may know of it: what others could read
    /// once is not shown to them now.
    pub fn door(&self, caller: Caller, dir: Ino) -> Result<Given> {
        if caller.uid != 0 && caller.uid != self.owner {
            return Err(Error::NotFound);
        }
        let attr = self.door_attr(dir)?;
        let node = self.known.lock().hold(Place::Door(dir), None);
        Ok(Given { node, attr, validity: Validity::Never })
    }

    /// A door looks like its directory, but cannot be written to.
    fn door_attr(&self, dir: Ino) -> Result<Attr> {
        let attr = self.files.attr(dir)?;
        match attr.file_type {
            FileType::Directory => {
                let ino = Ino(OF_DOOR | dir.0);
                Ok(Attr { ino, nlink: 2, mode: attr.mode & 0o555, ..attr })
            }
            _ => Err(Error::NotDirectory),
        }
    }

    pub fn lookup(&self, node: NodeId, name: &[u8]) -> Result<Given> {
        match self.place(node)? {
            Place::Door(dir) => {
                let cno = cno_of(name).ok_or(Error::NotFound)?;
                let checkpoint = self.checkpoint(cno)?;
                let tree = match self.checkpoints.tree(Some(cno)) {
                    Err(Error::NoCheckpoint(_)) => return Err(Error::NotFound),
                    tree => tree?,
                };
                let file = self.directory_in(&tree, dir)?.ok_or(Error::NotFound)?;
                if canonical_name(&checkpoint).as_bytes() != name {
                    return match name.contains(&b'+') {
                        true => Err(Error::NotFound),
                        false => self.alias(dir, &checkpoint),
                    };
                }
                let place = Place::File { door: dir, cno, ino: dir };
                Ok(self.give(place, &tree, &file, Validity::Never))
            }
            Place::Alias { .. } => Err(Error::NotDirectory),
            Place::File { door, cno, ino } => {
                let tree = self.tree(cno)?;
                let file = tree.lookup(&tree.file(ino)?, name)?;
                let place = Place::File { door, cno, ino: file.ino() };
                Ok(self.give(place, &tree, &file, Validity::Always))
            }
        }
    }

    fn checkpoint(&self, cno: Cno) -> Result<CheckpointInfo> {
        let found = self.checkpoints.checkpoints(cno, 1)?;
        found.first().copied().filter(|found| found.cno == cno).ok_or(Error::NotFound)
    }

    fn alias(&self, dir: Ino, checkpoint: &CheckpointInfo) -> Result<Given> {
        let attr = self.alias_attr(dir, checkpoint)?;
        let node = self.known.lock().hold(Place::Alias { door: dir, cno: checkpoint.cno }, None);
        Ok(Given { node, attr, validity: Validity::Never })
    }

    fn alias_attr(&self, dir: Ino, checkpoint: &CheckpointInfo) -> Result<Attr> {
        let ino = Ino(OF_ALIAS | checkpoint.cno.0);
        let size = canonical_name(checkpoint).len() as u64;
        let attr = self.door_attr(dir)?;
        Ok(Attr { ino, file_type: FileType::Symlink, mode: 0o777, nlink: 1, size, ..attr })
    }

    /// The directory as a checkpoint has it, unless it has none or another one with this number.
    fn directory_in(&self, tree: &Tree, dir: Ino) -> Result<Option<File>> {
        let generation = self.files.attr(dir)?.generation;
        match tree.file(dir) {
            Ok(file) => {
                let same =
                    file.attr().generation == generation && file.file_type() == FileType::Directory;
                Ok(same.then_some(file))
            }
            Err(Error::Stale) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn give(&self, place: Place, tree: &Tree, file: &File, validity: Validity) -> Given {
        let node = self.known.lock().hold(place, Some(tree));
        Given { node, attr: past_attr(tree.cno(), file), validity }
    }

    pub fn forget(&self, node: NodeId, lookups: u64) {
        self.known.lock().let_go(node, lookups);
    }

    pub fn attr(&self, node: NodeId) -> Result<Given> {
        let (attr, validity) = match self.place(node)? {
            Place::Door(dir) => (self.door_attr(dir)?, Validity::Never),
            Place::Alias { door, cno } => {
                (self.alias_attr(door, &self.checkpoint(cno)?)?, Validity::Never)
            }
            Place::File { cno, ino, .. } => {
                (past_attr(cno, &self.tree(cno)?.file(ino)?), Validity::Always)
            }
        };
        Ok(Given { node, attr, validity })
    }

    pub fn read(&self, node: NodeId, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let (tree, file) = self.file(node)?;
        tree.read(&file, offset, buffer)
    }

    pub fn read_link(&self, node: NodeId) -> Result<Vec<u8>> {
        if let Place::Alias { cno, .. } = self.place(node)? {
            return Ok(canonical_name(&self.checkpoint(cno)?).into_bytes());
        }
        let (tree, file) = self.file(node)?;
        tree.read_link(&file)
    }

    pub fn seek(&self, node: NodeId, offset: u64, what: Seek) -> Result<u64> {
        let (tree, file) = self.file(node)?;
        tree.seek(&file, offset, what)
    }

    /// Some entries from `cookie` on; none at the end.
    pub fn list(&self, node: NodeId, cookie: u64, limit: usize) -> Result<Vec<Listed>> {
        let mut listed = Vec::new();
        match self.place(node)? {
            Place::Door(dir) => self.list_door(dir, cookie, limit, &mut listed)?,
            Place::Alias { .. } => return Err(Error::NotDirectory),
            Place::File { door, cno, ino } => {
                let tree = self.tree(cno)?;
                let is_top = ino == door;
                tree.read_dir(&tree.file(ino)?, cookie, &mut |entry| {
                    let above_top = is_top && entry.name == b"..";
                    let ino = match above_top {
                        true => Ino(OF_DOOR | door.0),
                        false => past_ino(cno, entry.ino),
                    };
                    listed.push(Listed {
                        ino,
                        name: entry.name.to_vec(),
                        next: entry.next,
                        file_type: entry.file_type,
                    });
                    listed.len() < limit
                })?;
            }
        }
        Ok(listed)
    }

    /// The checkpoints that have the directory; a cookie is the number of the last one listed.
    fn list_door(
        &self,
        dir: Ino,
        mut cookie: u64,
        limit: usize,
        listed: &mut Vec<Listed>,
    ) -> Result<()> {
        while listed.len() < limit {
            let checkpoints =
                self.checkpoints.checkpoints(Cno(cookie.saturating_add(1)), AT_ONCE)?;
            let Some(last) = checkpoints.last() else { return Ok(()) };
            cookie = last.cno.0;
            for checkpoint in checkpoints.iter().filter(|checkpoint| !checkpoint.minor) {
                let cno = checkpoint.cno;
                let tree = match self.checkpoints.tree(Some(cno)) {
                    // It has just been deleted.
                    Err(Error::NoCheckpoint(_)) => continue,
                    tree => tree?,
                };
                if self.directory_in(&tree, dir)?.is_some() {
                    listed.push(Listed {
                        ino: past_ino(cno, dir),
                        name: canonical_name(checkpoint).into_bytes(),
                        next: cno.0,
                        file_type: Some(FileType::Directory),
                    });
                }
            }
        }
        Ok(())
    }

    fn file(&self, node: NodeId) -> Result<(Tree, File)> {
        match self.place(node)? {
            Place::Door(_) => Err(Error::IsDirectory),
            Place::Alias { .. } => Err(Error::Invalid("a symbolic link has no content")),
            Place::File { cno, ino, .. } => {
                let tree = self.tree(cno)?;
                let file = tree.file(ino)?;
                Ok((tree, file))
            }
        }
    }

    fn place(&self, node: NodeId) -> Result<Place> {
        let known = self.known.lock();
        known.nodes.get(&node).map(|(place, _)| *place).ok_or(Error::Stale)
    }

    fn tree(&self, cno: Cno) -> Result<Tree> {
        let known = self.known.lock();
        known.trees.get(&cno).map(|(tree, _)| tree.clone()).ok_or(Error::Stale)
    }
}

impl Known {
    /// The number of a place, which the kernel is given once more.
    fn hold(&mut self, place: Place, tree: Option<&Tree>) -> NodeId {
        if let Some(node) = self.ids.get(&place)
            && let Some((_, lookups)) = self.nodes.get_mut(node)
        {
            *lookups += 1;
            return *node;
        }
        self.handed_out += 1;
        let node = NodeId::past(self.handed_out);
        self.nodes.insert(node, (place, 1));
        self.ids.insert(place, node);
        if let Some(tree) = tree {
            self.trees.entry(tree.cno()).or_insert_with(|| (tree.clone(), 0)).1 += 1;
        }
        node
    }

    /// Notes that the kernel has forgotten a number that it was given `lookups` times.
    fn let_go(&mut self, node: NodeId, lookups: u64) {
        let Some((place, held)) = self.nodes.get_mut(&node) else { return };
        *held = held.saturating_sub(lookups);
        if *held > 0 {
            return;
        }
        let place = *place;
        self.nodes.remove(&node);
        self.ids.remove(&place);
        if let Place::File { cno, .. } = place
            && let Some((_, nodes)) = self.trees.get_mut(&cno)
        {
            *nodes -= 1;
            if *nodes == 0 {
                self.trees.remove(&cno);
            }
        }
    }
}

/// The `st_ino` of a file of a checkpoint.
fn past_ino(cno: Cno, ino: Ino) -> Ino {
    Ino(PAST | (cno.0 & 0x3fff_ffff) << 32 | ino.0 & 0xffff_ffff)
}

/// The inode number of a file of the past on the volume, by its `st_ino`.
#[must_use]
pub fn ino_of_past(st_ino: u64) -> Ino {
    Ino(st_ino & 0xffff_ffff)
}

fn past_attr(cno: Cno, file: &File) -> Attr {
    let attr = file.attr();
    Attr {
        ino: past_ino(cno, file.ino()),
        mode: attr.mode & !SET_ID,
        rdev: DeviceCode::default(),
        ..attr
    }
}

/// The name of a checkpoint in a door.
fn canonical_name(checkpoint: &CheckpointInfo) -> String {
    let created = i64::try_from(checkpoint.created).unwrap_or(i64::MAX);
    let created = Timestamp::from_second(created).unwrap_or(Timestamp::MAX);
    // No colons: neither rsync nor Windows would take them for a part of a name.
    format!("{}+cp{}", created.strftime("%Y-%m-%dT%H.%M.%SZ"), checkpoint.cno)
}

/// The checkpoint that a name in a door means: the end of a canonical one, `cp3`, is enough.
fn cno_of(name: &[u8]) -> Option<Cno> {
    let name = std::str::from_utf8(name).ok()?;
    let name = name.rsplit_once('+').map_or(name, |(_, end)| end);
    name.strip_prefix("cp")?.parse().ok().map(Cno)
}

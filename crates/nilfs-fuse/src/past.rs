//! The past of a mounted volume: in every directory the *door*, a directory that is not listed and
//! whose entries are the directory as it was at each checkpoint.
//!
//! A door's entries have canonical names, `2026-11-20T19.34.18Z+cp3` (UTC), and what lies below one is
//! read from the [`Tree`] of its checkpoint, which is open for as long as the kernel knows a file in it.
//! Every other way to name a moment, `yesterday`, is a symbolic link to such an entry, and is looked up
//! each time anew. A directory is found by its number and generation, so it keeps its past when it is
//! renamed.
//!
//! Who may enter a door is said by its mode and its owner, so that the kernel sees to it.
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
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Zoned;
use nilfs_engine::tree::File;
use nilfs_engine::{
    Attr, CheckpointInfo, Checkpoints, Cno, DeviceCode, Error, FileType, Files, Ino, Result, Seek,
    Tree,
};
use parking_lot::Mutex;

use crate::nodes::NodeId;
use crate::operations::{Given, Listed, Validity};
use crate::when::{When, WhenError, canonical_name};

/// How a mount shows its past.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastSettings {
    /// The name of the door in every directory.
    pub name: String,
    /// Who may enter it.
    pub access: PastAccess,
}

impl Default for PastSettings {
    fn default() -> Self {
        Self { name: ".checkpoints".to_owned(), access: PastAccess::Owner }
    }
}

/// Who may look into the past of a directory that he may enter now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PastAccess {
    /// Everybody, as far as the permissions of then allow it.
    All,
    /// The superuser and the user whose mount it is.
    Owner,
    /// The superuser.
    Root,
}

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
    settings: PastSettings,
    /// The user whose mount it is.
    owner: u32,
    /// Whether anybody was told of a file that hides a door.
    warned: AtomicBool,
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
    pub fn new(
        files: Arc<dyn Files>,
        checkpoints: Arc<dyn Checkpoints>,
        settings: PastSettings,
        owner: u32,
    ) -> Self {
        let (warned, known) = (AtomicBool::new(false), Mutex::default());
        Self { files, checkpoints, settings, owner, warned, known }
    }

    /// Whether a name is that of the door.
    pub fn is_door(&self, name: &[u8]) -> bool {
        name == self.settings.name.as_bytes()
    }

    /// Whether a node is a door.
    pub fn is_node_of_door(&self, node: NodeId) -> bool {
        matches!(self.place(node), Ok(Place::Door(_)))
    }

    /// Says once that a file of the door's name hides the door of a directory.
    pub fn warn_of_namesake(&self, dir: Ino) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            let name = &self.settings.name;
            tracing::warn!(
                "directory {dir} has a file of its own that is called {name}, which hides its past; \
                 the mount option past-name gives the past another name"
            );
        }
    }

    /// The door of a directory of the present.
    pub fn door(&self, dir: Ino) -> Result<Given> {
        let attr = self.door_attr(dir)?;
        let node = self.known.lock().hold(Place::Door(dir), None);
        Ok(Given { node, attr, validity: Validity::Never })
    }

    /// A door is like its directory, but cannot be written to, and not everybody may enter: what others
    /// could read once is not shown to them now.
    fn door_attr(&self, dir: Ino) -> Result<Attr> {
        let attr = self.files.attr(dir)?;
        if attr.file_type != FileType::Directory {
            return Err(Error::NotDirectory);
        }
        let (uid, mode) = match self.settings.access {
            PastAccess::All => (attr.uid, attr.mode & 0o555),
            PastAccess::Owner => (self.owner, 0o500),
            PastAccess::Root => (0, 0o500),
        };
        Ok(Attr { ino: Ino(OF_DOOR | dir.0), nlink: 2, uid, mode, ..attr })
    }

    pub fn lookup(&self, node: NodeId, name: &[u8]) -> Result<Given> {
        match self.place(node)? {
            Place::Door(dir) => {
                let checkpoint = self.checkpoint_at(name)?;
                let cno = checkpoint.cno;
                let tree = match self.checkpoints.tree(Some(cno)) {
                    Err(Error::NoCheckpoint(_)) => return Err(Error::NotFound),
                    tree => tree?,
                };
                let file = self.directory_in(&tree, dir)?.ok_or(Error::NotFound)?;
                if canonical_name(&checkpoint).as_bytes() != name {
                    return self.alias(dir, &checkpoint);
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

    /// The checkpoint that a name in a door means.
    fn checkpoint_at(&self, name: &[u8]) -> Result<CheckpointInfo> {
        let words = str::from_utf8(name).map_err(|_| Error::NotFound)?;
        let when: When = words.parse().map_err(|_| Error::NotFound)?;
        let list = |from, limit| self.checkpoints.checkpoints(from, limit);
        when.find(&Zoned::now(), self.checkpoints.newest(), &list).map_err(|error| match error {
            WhenError::Unreadable(error) => error,
            _ => Error::NotFound,
        })
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

/// Whether a file, by its `st_ino`, is one of the past, or a door to that.
#[must_use]
pub fn is_of_past(st_ino: u64) -> bool {
    st_ino & PAST != 0
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

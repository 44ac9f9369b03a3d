//! The past of a mounted volume: in every directory the *door*, a directory that is not listed and
//! whose entries are the directory as it was at each checkpoint.
//!
//! A door's entries have canonical names, `2026-11-20T19.34.18Z+cp3` (UTC), and what lies below one is
//! read from the [`Tree`] of its checkpoint. Every other way to name a moment, `yesterday`, is a
//! symbolic link to such an entry, and is looked up each time anew. For Samba there is a second list
//! of the newest entries, `gmt`, under names that it knows. A directory is found by its number and
//! generation, so it keeps its past when it is renamed.
//!
//! Access to a door follows from its mode and its owner, so that the kernel sees to it.
//!
//! | module | what it knows |
//! |---|---|
//! | `door` | what is in a door, and in `gmt` |
//! | `entries` | the entries that the kernel has, and the trees that are kept for them |
//! | `numbers` | `st_ino` in the past |
//!
//! # Numbers
//! The kernel knows a file of the past by the number of the entry below which it is, and by its inode
//! number. So nothing needs to be remembered of it, and a directory that is reached through two doors
//! is two for the kernel, which does not like one to have two places. `st_ino` is another number.
//!
//! # What is kept
//! The checkpoint of an entry is kept for [`PastSettings::hold`] after the last request, or, if it is no
//! snapshot, until a writer finds no room. While a command copies out of the past, neither ends it: the
//! writes of `restore` would else take away what `restore` reads. A thread of its own tells the kernel to forget what is not
//! kept any more: the kernel waits for requests meanwhile, so no thread that answers them may do so.
//!
//! Nothing of the past can be changed, and nothing in it is more than content: set-id bits and
//! device nodes have no power.

mod door;
mod entries;
mod numbers;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::time::{Duration, Instant};

use nilfs_engine::tree::File;
use nilfs_engine::{
    Attr, CheckpointInfo, Checkpoints, Cno, DeviceCode, Error, FileType, Files, Ino, Result, Seek,
    Tree,
};
use parking_lot::Mutex;

use self::entries::{Entries, Entry, LetGo, List};
pub use self::numbers::{ino_of_past, is_of_past};
use crate::nodes::{NodeId, PastNr};
use crate::operations::Listed;
use crate::serve::{Given, Validity};
use crate::transport::Connection;
use crate::when::{canonical_name, gmt_name};

/// How a mount shows its past.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastSettings {
    /// The name of the door in every directory.
    pub name: String,
    /// Who may enter it.
    pub access: PastAccess,
    /// How long a checkpoint is kept after somebody has looked at it.
    pub hold: Duration,
}

impl Default for PastSettings {
    fn default() -> Self {
        Self {
            name: ".checkpoints".to_owned(),
            access: PastAccess::Owner,
            hold: Duration::from_secs(600),
        }
    }
}

/// Users who may look into the past of a directory that they may enter now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PastAccess {
    /// Everybody, as far as the permissions of then allow it.
    All,
    /// The superuser and the user whose mount it is.
    Owner,
    /// The superuser.
    Root,
}

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
    entries: Mutex<Entries>,
    told: Mutex<ToldOfDoors>,
    /// Until when each of the commands that copy out of the past needs what is kept.
    copies: Mutex<HashMap<CopyNr, Instant>>,
    keeper: mpsc::Sender<Message>,
}

/// A number that a command which copies out of the past has drawn, so that no other can speak for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CopyNr(pub u64);

/// Commands that may copy out of the past at a time. For more, the past is kept as long as there is room.
const MOST_COPIES: usize = 256;

/// Doors of which the kernel was told since there was this newest checkpoint.
#[derive(Default)]
struct ToldOfDoors {
    newest: Cno,
    nodes: HashSet<NodeId>,
}

/// Doors that are remembered that way, at most. The kernel has to ask for others each time.
const MOST_DOORS: usize = 1024;

/// What the thread is told that lets the kernel forget.
enum Message {
    /// Something is kept, after nothing was, or no command needs any more what is kept.
    Held,
    /// The kernel shall forget this.
    LetGo(Vec<LetGo>),
}

/// What the thread needs that lets the kernel forget.
pub(crate) struct Keeper {
    past: Weak<Past>,
    messages: mpsc::Receiver<Message>,
}

/// A place in the past.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The door of a directory.
    Door(Ino),
    /// The directory in a door that is for Samba.
    Gmt(Ino),
    /// Another name of an entry: a symbolic link to the canonical one.
    Alias(PastNr),
    /// A file below an entry.
    File(PastNr, Ino),
}

/// The numbers of places that are not below an entry.
const DOOR: PastNr = PastNr(0);
const GMT: PastNr = PastNr(1);

/// No file has this inode number.
const ALIAS: u32 = 0;

impl From<NodeId> for Place {
    fn from(node: NodeId) -> Self {
        match node.in_past() {
            (DOOR, dir) => Self::Door(dir),
            (GMT, dir) => Self::Gmt(dir),
            (nr, Ino(0)) => Self::Alias(nr),
            (nr, ino) => Self::File(nr, ino),
        }
    }
}

impl Past {
    /// The past of a volume that `owner` has mounted; and what has to run in a thread of its own.
    pub fn new(
        files: Arc<dyn Files>,
        checkpoints: Arc<dyn Checkpoints>,
        settings: PastSettings,
        owner: u32,
    ) -> (Arc<Self>, Keeper) {
        let (keeper, messages) = mpsc::channel();
        let past = Arc::new(Self {
            files,
            checkpoints,
            settings,
            owner,
            warned: AtomicBool::new(false),
            entries: Mutex::default(),
            told: Mutex::default(),
            copies: Mutex::default(),
            keeper,
        });
        let keeper = Keeper { past: Arc::downgrade(&past), messages };
        (past, keeper)
    }

    /// Whether a name is that of the door.
    pub fn is_door(&self, name: &[u8]) -> bool {
        name == self.settings.name.as_bytes()
    }

    /// Whether a node is a door or `gmt`, in which other names may be there in the next moment.
    pub fn is_node_of_door(&self, node: NodeId) -> bool {
        node.is_past() && matches!(Place::from(node), Place::Door(_) | Place::Gmt(_))
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

    pub fn lookup(&self, node: NodeId, name: &[u8]) -> Result<Given> {
        match Place::from(node) {
            Place::Door(dir) => self.lookup_in_door(dir, name),
            Place::Gmt(dir) => self.lookup_in_gmt(dir, name),
            Place::Alias(_) => Err(Error::NotDirectory),
            Place::File(nr, ino) => {
                let (entry, tree) = self.tree(nr)?;
                if name == b".." && ino == entry.dir {
                    return match entry.list {
                        List::Door => self.door(entry.dir),
                        List::Gmt => self.gmt(entry.dir),
                    };
                }
                let file = tree.lookup(&tree.file(ino)?, name)?;
                self.give(entry, tree, &file, Validity::Always)
            }
        }
    }

    /// Hands a file to the kernel that was listed in a directory.
    pub fn give_listed(&self, dir: NodeId, listed: &Listed) -> Result<Given> {
        let Place::File(nr, _) = Place::from(dir) else { return self.lookup(dir, &listed.name) };
        let (entry, tree) = self.tree(nr)?;
        let file = tree.file(ino_of_past(listed.ino.0))?;
        self.give(entry, tree, &file, Validity::Always)
    }

    /// How long the kernel may keep a door, of which it is about to be told what was so while there was
    /// this newest checkpoint.
    fn note_told(&self, door: NodeId, newest: Cno) -> Validity {
        let mut told = self.told.lock();
        if told.nodes.is_empty() {
            told.newest = newest;
        }
        told.newest = told.newest.min(newest);
        if told.nodes.contains(&door) || told.nodes.len() < MOST_DOORS {
            told.nodes.insert(door);
            return Validity::Shortly;
        }
        Validity::Never
    }

    /// The doors of which the kernel was told before the newest checkpoint was made.
    pub fn take_outdated(&self) -> HashSet<NodeId> {
        let newest = self.checkpoints.newest();
        let mut told = self.told.lock();
        if told.newest == newest { HashSet::new() } else { std::mem::take(&mut told.nodes) }
    }

    /// Hands a file below an entry, or the entry itself, to the kernel.
    fn give(&self, entry: Entry, tree: Tree, file: &File, validity: Validity) -> Result<Given> {
        let ino = numbers::short(file.ino())?;
        let nr = self.note_given(entry, tree);
        Ok(Given { node: NodeId::past(nr, ino), attr: past_attr(entry.cno, file), validity })
    }

    fn note_given(&self, entry: Entry, tree: Tree) -> PastNr {
        let mut entries = self.entries.lock();
        let was_held = entries.is_any_held();
        let (nr, gone) = entries.give(entry, tree);
        drop(entries);
        self.note_kept(was_held, gone);
        nr
    }

    fn note_kept(&self, was_held: bool, gone: Vec<LetGo>) {
        // After the end of the session nobody listens, and nobody needs to.
        if !was_held {
            let _ = self.keeper.send(Message::Held);
        }
        if !gone.is_empty() {
            let _ = self.keeper.send(Message::LetGo(gone));
        }
    }

    /// An entry and its tree, which it may have had to be given again.
    fn tree(&self, nr: PastNr) -> Result<(Entry, Tree)> {
        let (entry, tree) = self.entries.lock().find(nr)?;
        if let Some(tree) = tree {
            return Ok((entry, tree));
        }
        match self.checkpoints.tree(Some(entry.cno)) {
            Err(Error::NoCheckpoint(cno)) => {
                if self.entries.lock().give_up(nr) {
                    tracing::info!(
                        "checkpoint {cno} is gone, and whatever still reads it gets ESTALE"
                    );
                }
                Err(Error::Stale)
            }
            tree => {
                let tree = tree?;
                let mut entries = self.entries.lock();
                let was_held = entries.is_any_held();
                let gone = entries.keep(nr, tree.clone());
                drop(entries);
                self.note_kept(was_held, gone);
                Ok((entry, tree))
            }
        }
    }

    /// Lets go of all that is kept. Whatever still reads it gets `ESTALE`. Returns which checkpoints that
    /// were, for people, if there were any.
    pub fn give_up(&self) -> Option<String> {
        self.give_up_held(|_| true)
    }

    /// Keeps everything that is kept `for_now`, for a command that copies out of the past and says so again
    /// as long as it goes on. No time at all ends it.
    pub fn keep_for_copy(&self, copy: CopyNr, for_now: Duration) {
        let mut copies = self.copies.lock();
        copies.remove(&copy);
        if !for_now.is_zero() && copies.len() < MOST_COPIES {
            copies.insert(copy, Instant::now() + for_now);
        }
        let was_last = copies.is_empty();
        drop(copies);
        if was_last {
            let _ = self.keeper.send(Message::Held);
        }
    }

    /// For how long commands that copy out of the past need what is kept, if there are any.
    fn needed_by_copies(&self) -> Option<Duration> {
        let now = Instant::now();
        let mut copies = self.copies.lock();
        copies.retain(|_, until| *until > now);
        copies.values().max().map(|until| *until - now)
    }

    /// Lets go of what takes room because it is kept, as [`Past::give_up`] does: not of snapshots, which
    /// would stay all the same, and of nothing while a command copies out of the past.
    pub fn give_up_for_room(&self) -> Option<String> {
        if self.needed_by_copies().is_some() {
            return None;
        }
        self.give_up_held(|cno| match self.checkpoints.checkpoints(cno, 1) {
            Ok(found) => !found.first().is_some_and(|it| it.cno == cno && it.snapshot),
            // A checkpoint that cannot be looked up is no reason to take anything from a program.
            Err(_) => false,
        })
    }

    fn give_up_held(&self, goes: impl Fn(Cno) -> bool) -> Option<String> {
        let mut cnos = self.entries.lock().held();
        cnos.retain(|cno| goes(*cno));
        let gone = self.entries.lock().give_up_all(&cnos);
        if gone.is_empty() {
            return None;
        }
        let named: Vec<String> = cnos.iter().take(NAMED).map(ToString::to_string).collect();
        let more = if cnos.len() > NAMED { " and others" } else { "" };
        let gone: Vec<LetGo> = gone.into_iter().map(LetGo::without_tree).collect();
        let _ = self.keeper.send(Message::LetGo(gone));
        Some(format!("{}{more}", named.join(", ")))
    }

    pub fn forget(&self, node: NodeId, lookups: u64) {
        let (nr, _) = node.in_past();
        self.entries.lock().forget(nr, lookups);
    }

    pub fn attr(&self, node: NodeId) -> Result<Given> {
        let (attr, validity) = match Place::from(node) {
            Place::Door(dir) => return self.door(dir),
            Place::Gmt(dir) => return self.gmt(dir),
            Place::Alias(nr) => {
                let (entry, tree) = self.tree(nr)?;
                (self.alias_attr(entry, &tree)?, Validity::Never)
            }
            Place::File(nr, ino) => {
                let (entry, tree) = self.tree(nr)?;
                (past_attr(entry.cno, &tree.file(ino)?), Validity::Always)
            }
        };
        Ok(Given { node, attr, validity })
    }

    pub fn read(&self, node: NodeId, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let (tree, file) = self.file(node)?;
        tree.read(&file, offset, buffer)
    }

    pub fn read_link(&self, node: NodeId) -> Result<Vec<u8>> {
        if let Place::Alias(nr) = Place::from(node) {
            let (entry, tree) = self.tree(nr)?;
            return Ok(canonical_name(entry.cno, tree.created()).into_bytes());
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
        match Place::from(node) {
            Place::Door(dir) => self.list_door(dir, cookie, limit),
            Place::Gmt(dir) => self.list_gmt(dir, cookie, limit),
            Place::Alias(_) => Err(Error::NotDirectory),
            Place::File(nr, ino) => {
                let (entry, tree) = self.tree(nr)?;
                let above = match entry.list {
                    List::Door => numbers::of_door(entry.dir),
                    List::Gmt => numbers::of_gmt(entry.dir),
                };
                let dir = tree.file(ino)?;
                let mut listed = Listed::some(limit, |emit| tree.read_dir(&dir, cookie, emit))?;
                for found in &mut listed {
                    let is_above = ino == entry.dir && found.name == b"..";
                    found.ino =
                        if is_above { above } else { numbers::of_file(entry.cno, found.ino) };
                }
                Ok(listed)
            }
        }
    }

    /// Notes that somebody uses a file, and fails if it is there no more.
    pub fn touch(&self, node: NodeId) -> Result<()> {
        self.attr(node).map(drop)
    }

    fn file(&self, node: NodeId) -> Result<(Tree, File)> {
        match Place::from(node) {
            Place::Door(_) | Place::Gmt(_) => Err(Error::IsDirectory),
            Place::Alias(_) => Err(Error::Invalid("a symbolic link has no content")),
            Place::File(nr, ino) => {
                let (_, tree) = self.tree(nr)?;
                let file = tree.file(ino)?;
                Ok((tree, file))
            }
        }
    }
}

/// Checkpoints that are named in a message, at most.
const NAMED: usize = 20;

impl Keeper {
    /// Lets go of what nobody has asked for in a while, and tells the kernel what to forget, until
    /// the past is there no more.
    pub fn run(self, kernel: &Connection) {
        let mut wait = None;
        loop {
            let message = match wait {
                None => self.messages.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected),
                Some(wait) => self.messages.recv_timeout(wait),
            };
            match message {
                Ok(Message::LetGo(gone)) => forget(kernel, gone),
                Ok(Message::Held) | Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
            let Some(past) = self.past.upgrade() else { return };
            if let Some(needed) = past.needed_by_copies() {
                wait = Some(needed);
                continue;
            }
            let (due, next) = past.entries.lock().let_go_unused(past.settings.hold);
            drop(past);
            forget(kernel, due);
            wait = next;
        }
    }
}

/// Tells the kernel to forget entries, and then lets the cleaner have their checkpoints.
fn forget(kernel: &Connection, gone: Vec<LetGo>) {
    for LetGo { entry, created, .. } in &gone {
        let (parent, name) = match entry.list {
            List::Door => (DOOR, canonical_name(entry.cno, *created)),
            List::Gmt => (GMT, gmt_name(*created)),
        };
        if let Ok(dir) = numbers::short(entry.dir) {
            kernel.forget_name(NodeId::past(parent, dir), name.as_bytes());
        }
    }
}

fn past_attr(cno: Cno, file: &File) -> Attr {
    let attr = file.attr();
    Attr {
        ino: numbers::of_file(cno, file.ino()),
        mode: attr.mode & !SET_ID,
        rdev: DeviceCode::default(),
        ..attr
    }
}

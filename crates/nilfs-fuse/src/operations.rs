//! A volume as the kernel sees it.
//!
//! Requests and answers are in terms of the engine and of `serve`; how they travel is the
//! transport's affair.

mod requests;

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nilfs_engine::{Attr, DirEntry, Error, FileType, Files, Filesystem, InodeRef, SetAttr, Stale};
use nilfs_ondisk::Ino;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::content::Content;
use crate::control::Handler;
use crate::damage::Damage;
use crate::fault::Faults;
use crate::losses::Losses;
use crate::mountpoint::MountError;
use crate::nodes::NodeId;
use crate::past::{CopyNr, Past};
use crate::serve::{Answer, Given, Serve, WOULD_WAIT};
use crate::shortage::Dispensable;
use crate::transport::Connection;

/// A directory entry that was copied out of the engine.
#[derive(Debug)]
pub(crate) struct Listed {
    /// Its `st_ino`.
    pub ino: Ino,
    pub name: Vec<u8>,
    /// Where the next entry is.
    pub next: u64,
    /// Its type, if the directory says.
    pub file_type: Option<FileType>,
}

impl Listed {
    /// Whether this is "." or "..", which the kernel does not count as given to it.
    pub fn is_dots(&self) -> bool {
        matches!(self.name.as_slice(), b"." | b"..")
    }

    /// Copies some entries of a directory out of the engine. What comes before an error counts: it is met
    /// again behind it.
    pub fn some(
        limit: usize,
        read: impl FnOnce(&mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<(), Error>,
    ) -> Result<Vec<Self>, Error> {
        let mut listed = Vec::with_capacity(limit);
        let done = read(&mut |entry| {
            listed.push(Self {
                ino: entry.ino,
                name: entry.name.to_vec(),
                next: entry.next,
                file_type: entry.file_type,
            });
            listed.len() < limit
        });
        match done {
            Err(error) if listed.is_empty() || matches!(error, Error::WouldWait) => Err(error),
            _ => Ok(listed),
        }
    }

    /// The same with a type that is known otherwise.
    fn entry(&self, file_type: Option<FileType>) -> DirEntry<'_> {
        DirEntry { ino: self.ino, name: &self.name, next: self.next, file_type }
    }
}

/// The set-user-ID and set-group-ID bits of a mode.
const SET_ID: u16 = 0o6000;

/// Entries copied out of a directory at a time.
const LISTED_AT_ONCE: usize = 64;

/// Handle for the checkpoints that are kept only because programs look at them.
pub struct HeldPast(Option<Arc<Past>>);

impl HeldPast {
    /// Lets go of the checkpoints. A program that still reads one of them gets `ESTALE`.
    pub fn end(&self) {
        if let Some(cnos) = self.0.as_ref().and_then(|past| past.give_up()) {
            tracing::info!("whatever still reads one of these checkpoints gets ESTALE: {cnos}");
        }
    }

    /// Keeps the checkpoints `for_now`, however short of room the volume is: until the command that copies
    /// out of the past asks again. No time at all says that the command has ended.
    pub fn keep_for_copy(&self, copy: CopyNr, for_now: Duration) {
        if let Some(past) = &self.0 {
            past.keep_for_copy(copy, for_now);
        }
    }
}

/// The file system as the kernel sees it.
pub struct Operations {
    /// What is read.
    files: Arc<dyn Files>,
    /// What is changed, where anything can be.
    writer: Option<Arc<Filesystem>>,
    past: Option<Arc<Past>>,
    /// Changes are durable when they are answered.
    synchronous: bool,
    control: Option<Handler>,
    faults: Faults,
    kernel: Connection,
    dispensable: Arc<Dispensable>,
    losses: Arc<Losses>,
    damage: Arc<Damage>,
}

impl fmt::Debug for Operations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operations").field("writer", &self.writer).finish_non_exhaustive()
    }
}

impl Operations {
    /// Prepares to answer the requests that come through `kernel`.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn new(content: Content, kernel: &Connection) -> Result<Arc<Self>, MountError> {
        let Content { files, checkpoints, writer, past, synchronous, control } = content;
        let owner = rustix::process::geteuid().as_raw();
        let past = match checkpoints.zip(past) {
            None => None,
            Some((checkpoints, settings)) => {
                let (past, keeper) = Past::new(Arc::clone(&files), checkpoints, settings, owner);
                let kernel = kernel.clone();
                let keep = move || keeper.run(&kernel);
                let started = thread::Builder::new().name("past".to_owned()).spawn(keep);
                started.map_err(|error| MountError::system("start a thread", error))?;
                Some(past)
            }
        };
        let dispensable = Arc::new(Dispensable::new(kernel.clone(), past.clone()));
        if let Some(writer) = &writer {
            let kernel = kernel.clone();
            writer.tell_of_rollbacks(move |stale| forget(&kernel, stale));
            let dispensable = Arc::clone(&dispensable);
            writer.tell_of_shortage(move |writer| dispensable.let_go(writer));
        }
        let (losses, kernel) = (Arc::default(), kernel.clone());
        let damage = Damage::new(Arc::clone(&files));
        let faults = Faults::new(Arc::clone(&damage));
        Ok(Arc::new(Self {
            files,
            writer,
            past,
            synchronous,
            control,
            faults,
            kernel,
            dispensable,
            losses,
            damage,
        }))
    }

    /// Returns the handle for the checkpoints that are kept only because programs look at them.
    #[must_use]
    pub fn held_past(&self) -> HeldPast {
        HeldPast(self.past.clone())
    }

    /// Lets the kernel ask for doors again, if there is another checkpoint than when it was told of
    /// them. To be done before somebody is told that a checkpoint was made or deleted.
    fn renew_doors(&self) {
        let Some(past) = &self.past else { return };
        past.take_outdated().into_iter().for_each(|node| self.kernel.outdate_attributes(node));
    }

    fn answer<T>(&self, result: Result<T, Error>) -> Answer<T> {
        result.map_err(|error| self.faults.answer(self.writer.as_deref(), None, &error))
    }

    /// As [`Operations::answer`], to what was asked of a file, which the log names if it is damaged. Where a
    /// file of the past was is not looked for.
    fn answer_of<T>(&self, node: NodeId, result: Result<T, Error>) -> Answer<T> {
        let file = (!node.is_past()).then(|| node.ino());
        result.map_err(|error| self.faults.answer(self.writer.as_deref(), file, &error))
    }

    /// Ends a change of a file, or of a name in a directory, with its answer.
    fn changed<T>(
        &self,
        writer: &Filesystem,
        inode: &InodeRef,
        result: Result<T, Error>,
    ) -> Answer<T> {
        let done = self.answer_of(NodeId::from(inode.ino()), result)?;
        if self.synchronous {
            self.answer(writer.sync_file(inode))?;
        }
        Ok(done)
    }

    /// What can be changed, and the file in it that the kernel means. The kernel need not hold it:
    /// an NFS client can come back with a handle after years.
    fn changeable(&self, node: NodeId) -> Answer<(&Filesystem, InodeRef)> {
        let writer = self.writer.as_deref().filter(|_| !node.is_past()).ok_or(Errno::ROFS)?;
        Ok((writer, self.answer(writer.by_number(node.ino()))?))
    }

    /// The past, of which the kernel has a node.
    fn past(&self) -> Answer<&Past> {
        self.past.as_deref().ok_or(Errno::STALE)
    }

    /// Gives a file that was made, or has another name, to the kernel.
    fn give(writer: &Filesystem, inode: &InodeRef, attr: Attr) -> Given {
        writer.hold(inode);
        Given::present(attr)
    }

    /// Looks up a name in a directory of the present.
    fn lookup_now(&self, dir: Ino, name: &[u8]) -> Result<Given, Error> {
        let found = self.files.lookup(dir, name);
        let Some(past) = self.past.as_deref().filter(|past| past.is_door(name)) else {
            return found.map(Given::present);
        };
        match found {
            // A block of the directory that cannot be read would hardly have that name, and the past is
            // where the names in it still are.
            Err(error) if error.is_fault() || matches!(error, Error::NotFound) => past.door(dir),
            found => {
                // It comes first, because the volume is the user's.
                if found.is_ok() {
                    past.warn_of_namesake(dir);
                }
                found.map(Given::present)
            }
        }
    }

    /// Whether a node is a door, in which there may be another name in the next moment, and very many
    /// of them.
    fn is_door(&self, node: NodeId) -> bool {
        self.past.as_ref().is_some_and(|past| past.is_node_of_door(node))
    }

    /// Takes set-id bits away, for a request whose answer has no attributes.
    fn clear_set_id(&self, writer: &Filesystem, inode: &InodeRef, asked: bool) -> Answer<()> {
        if asked && self.answer(writer.attr(inode))?.mode & SET_ID != 0 {
            let cleared = SetAttr { clear_set_id: true, ..SetAttr::default() };
            self.answer(writer.set_attr(inode, &cleared))?;
            self.kernel.outdate_attributes(NodeId::from(inode.ino()));
        }
        Ok(())
    }

    fn write_now(
        &self,
        node: NodeId,
        offset: u64,
        data: &[u8],
        flags: Option<OFlags>,
        clear_set_id: bool,
    ) -> Answer<usize> {
        let (writer, inode) = self.changeable(node)?;
        self.clear_set_id(writer, &inode, clear_set_id)?;
        let Some(flags) = flags else {
            self.answer_of(node, writer.write(&inode, offset, data))?;
            return Ok(data.len());
        };
        let written = self.answer_of(node, writer.write_some(&inode, offset, data))?;
        if flags.contains(OFlags::DSYNC) {
            // O_SYNC is O_DSYNC and one more bit.
            self.answer(writer.sync_file(&inode))?;
        }
        Ok(written)
    }

    /// Fails if a new name is the door's, which it would hide.
    fn check_new_name(&self, name: &[u8]) -> Answer<()> {
        if self.is_name_of_door(name) { Err(Errno::EXIST) } else { Ok(()) }
    }

    fn is_name_of_door(&self, name: &[u8]) -> bool {
        self.past.as_ref().is_some_and(|past| past.is_door(name))
    }

    /// The error for a name that is to be taken away: the door stays.
    fn kept_door(&self, name: &[u8], errno: Errno) -> Errno {
        let is_door = self.is_name_of_door(name);
        if is_door && errno == Errno::NOENT { Errno::ROFS } else { errno }
    }

    fn read_now_or_then(&self, node: NodeId, offset: u64, buffer: &mut [u8]) -> Answer<usize> {
        match node.is_past() {
            true => self.answer(self.past()?.read(node, offset, buffer)),
            false => self.answer_of(node, self.files.read(node.ino(), offset, buffer)),
        }
    }

    /// Some entries from `cookie` on; none at the end.
    fn some_entries(&self, dir: NodeId, cookie: u64) -> Answer<Vec<Listed>> {
        if dir.is_past() {
            return self.answer(self.past()?.list(dir, cookie, LISTED_AT_ONCE));
        }
        let read = |emit: &mut dyn FnMut(DirEntry<'_>) -> bool| {
            self.files.read_dir(dir.ino(), cookie, emit)
        };
        self.answer_of(dir, Listed::some(LISTED_AT_ONCE, read))
    }

    /// The type of a listed entry, which need not say it.
    fn type_of(&self, dir: NodeId, listed: &Listed) -> Answer<FileType> {
        match listed.file_type {
            Some(file_type) => Ok(file_type),
            None => {
                let given = self.give_listed(dir, listed)?;
                self.forget(given.node, 1);
                Ok(given.attr.file_type)
            }
        }
    }

    /// Hands a listed entry to the kernel.
    fn give_listed(&self, dir: NodeId, listed: &Listed) -> Answer<Given> {
        match dir.is_past() {
            true => self.answer(self.past()?.give_listed(dir, listed)),
            false => self.answer(self.files.hold(listed.ino)).map(Given::present),
        }
    }
}

/// What an entry is listed without if it is damaged, but not if it takes time to read.
fn unless_damaged<T>(found: Answer<T>) -> Answer<Option<T>> {
    match found {
        Err(WOULD_WAIT) => Err(WOULD_WAIT),
        found => Ok(found.ok()),
    }
}

/// Lets the kernel forget what a rollback has changed.
fn forget(kernel: &Connection, stale: &Stale) {
    // Names first: a file that nobody finds any more, and has not open, goes with its last one.
    for (dir, name) in &stale.names {
        kernel.forget_name(NodeId::from(*dir), name);
    }
    stale.inodes.iter().for_each(|ino| kernel.outdate_content(NodeId::from(*ino)));
}

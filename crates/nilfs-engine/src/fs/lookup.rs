//! From a name to its file.

use std::sync::Arc;

use nilfs_ondisk::Ino;

use super::inode::InodeRef;
use super::{Entry, Filesystem, directory};
use crate::error::{Error, Result};
use crate::tree::{File, names};
use crate::types::Attr;

/// A file that somebody has found by its name.
enum Found {
    /// It is kept by this reference.
    InMemory(InodeRef),
    /// It is held, and as the newest checkpoint has it.
    OnDevice(Attr),
}

impl Filesystem {
    /// The file that a name leads to; "." and ".." work too.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::NameTooLong`], damage.
    pub fn lookup(&self, dir: &InodeRef, name: &[u8]) -> Result<Entry> {
        self.entry(self.look_up(dir, name, &|ino| self.get(ino))?)
    }

    /// As [`Filesystem::lookup`], for somebody who [holds](Filesystem::hold) the file from then on. Most
    /// files are asked for nothing but their attributes, so one that is not in memory stays on the
    /// device.
    ///
    /// # Errors
    /// As [`Filesystem::lookup`].
    pub fn lookup_and_hold(&self, dir: &InodeRef, name: &[u8]) -> Result<Attr> {
        match self.look_up(dir, name, &|ino| self.find_and_hold(ino))? {
            Found::OnDevice(attr) => Ok(attr),
            Found::InMemory(inode) => {
                self.hold(&inode);
                self.attr(&inode)
            }
        }
    }

    /// What there is of the file that a name leads to.
    fn look_up<T>(&self, dir: &InodeRef, name: &[u8], get: &dyn Fn(Ino) -> Result<T>) -> Result<T> {
        names::check(name)?;
        let found = match self.find_now(dir, name, get) {
            // A rollback takes the name away, or the file: it is one transaction.
            Err(Error::Stale) => {
                let _transaction = self.writer.transaction();
                self.find_settled(dir, name, get)
            }
            found => found,
        };
        self.noting(found)?.ok_or(Error::NotFound)
    }

    /// The file that a name leads to, for a transaction.
    pub(super) fn find(&self, dir: &InodeRef, name: &[u8]) -> Result<Option<InodeRef>> {
        self.find_settled(dir, name, &|ino| self.get(ino))
    }

    /// The directory that has a directory, for a transaction. Of what it has, the first block is read.
    pub(super) fn parent(&self, dir: &InodeRef) -> Result<InodeRef> {
        let ino = directory::parent(&dir.state.read(), &self.view())?;
        self.get(ino).map_err(stale_name(dir))
    }

    fn find_settled<T>(
        &self,
        dir: &InodeRef,
        name: &[u8],
        get: &dyn Fn(Ino) -> Result<T>,
    ) -> Result<Option<T>> {
        self.find_now(dir, name, get).map_err(stale_name(dir))
    }

    /// What there is of the file that a name leads to. The directory stays locked until the file is in
    /// hand: a name that exists keeps its file from being deleted. [`Error::Stale`] if there is no such
    /// file, which can only be while a rollback is under way.
    fn find_now<T>(
        &self,
        dir: &InodeRef,
        name: &[u8],
        get: &dyn Fn(Ino) -> Result<T>,
    ) -> Result<Option<T>> {
        dir.require_directory()?;
        {
            let state = dir.state.read();
            let view = self.view();
            if let Some(found) = directory::lookup_known(&state, &view, name) {
                return found?.map(get).transpose();
            }
        }
        let mut state = dir.state.write();
        let found = directory::lookup(&mut state, &self.context(), name)?;
        self.recount(dir, &state);
        found.map(|position| get(position.ino)).transpose()
    }

    /// A file from memory; or its attributes from the newest checkpoint, and from then on it is held.
    fn find_and_hold(&self, ino: Ino) -> Result<Found> {
        loop {
            if let Some(inode) = self.table.lock().get(ino) {
                return Ok(Found::InMemory(inode));
            }
            let view = self.view();
            let file = File::new(ino, view.inode(ino)?)?;
            let mut table = self.table.lock();
            if let Some(inode) = table.get(ino) {
                return Ok(Found::InMemory(inode));
            }
            if table.is_leaving(ino) {
                return Err(Error::Stale);
            }
            // As in `get`, a commit in between may have changed the inode.
            if Arc::ptr_eq(&view.tree, &self.view().tree) {
                table.hold(ino);
                return Ok(Found::OnDevice(file.attr()));
            }
        }
    }
}

/// The error for a name of a directory that leads to no file.
fn stale_name(dir: &InodeRef) -> impl Fn(Error) -> Error {
    move |error| match error {
        Error::Stale => Error::missing(format_args!("a file of directory {}", dir.ino())),
        other => other,
    }
}

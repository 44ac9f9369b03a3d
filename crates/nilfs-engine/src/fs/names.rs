//! Operations that change names: create, link, unlink; rename has a file of its own. Whatever can fail is
//! over before any of them changes anything ([`blocks`](super::blocks)).
//!
//! They lock one inode at a time. Those that are about one directory and one file in it (create,
//! symlink, unlink) are held together by the lock of the directory, and share another lock, `names`;
//! those that are about more (link, rename, rmdir) have it to themselves. A commit cannot come in
//! between, because each is a transaction.

use std::sync::Arc;

use nilfs_ondisk::inode::{FileType, LINK_MAX, RawInode};
use nilfs_ondisk::{Ino, dirent};
use zerocopy::little_endian::{U16, U32};

use super::attributes::{
    SET_GID, check_changeable, check_directory_changeable, check_directory_grows, inherited_flags,
};
use super::blocks::Ready;
use super::directory::{self, Addition, Redirection, Removal, check_new_name};
use super::inode::{Context, Inode, InodeRef, State};
use super::{Entry, Filesystem};
use crate::block::bytes_mut;
use crate::error::{Error, Result};
use crate::host::atomic::Ordering;
use crate::tree::content::Content;
use crate::tree::{File, names};
use crate::types::{Attr, DirEntry, NewInode};
use crate::writer::space::{Cost, Effect};

/// Making or removing a name: a directory block or two, and the inodes of the file, of its
/// directory, and of a target.
pub(super) const NAME: Cost = Cost { pages: 3, inodes: 3, effect: Effect::Grows };

impl Filesystem {
    /// Calls `emit` with the entries of a directory from `cookie` on (0 = the first, else the
    /// [`DirEntry::next`] of an entry) until it returns false.
    ///
    /// Names that exist all the time are neither skipped nor repeated, whatever changes meanwhile.
    ///
    /// # Errors
    /// [`Error::NotDirectory`], damage, a device error.
    pub fn read_dir(
        &self,
        dir: &InodeRef,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        dir.require_directory()?;
        let state = dir.state.read();
        let view = self.view();
        self.noting(names::read(&*state, &view, cookie, emit))
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is no link, damage, a device error.
    pub fn read_link(&self, inode: &InodeRef) -> Result<Vec<u8>> {
        let state = inode.state.read();
        let view = self.view();
        self.noting(state.link_target(&view))
    }

    /// Makes a file of any type but a symbolic link.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NoSpace`], [`Error::TooManyLinks`], [`Error::NameTooLong`],
    /// [`Error::NotPermitted`], [`Error::NotFound`] if the directory is deleted already,
    /// [`Error::Invalid`] for another type.
    pub fn create(&self, dir: &InodeRef, name: &[u8], new: &NewInode) -> Result<Entry> {
        if FileType::from_mode(new.mode) == Some(FileType::Symlink) {
            return Err(Error::Invalid("a symbolic link is made together with its target"));
        }
        self.make(dir, name, new, None)
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As [`Filesystem::create`]; [`Error::NameTooLong`] also for a target that does not fit into
    /// a block.
    pub fn symlink(
        &self,
        dir: &InodeRef,
        name: &[u8],
        target: &[u8],
        uid: u32,
        gid: u32,
    ) -> Result<Entry> {
        if target.is_empty() {
            return Err(Error::NotFound);
        }
        if target.len() >= self.store.block_size().bytes() {
            return Err(Error::NameTooLong);
        }
        let mode = FileType::Symlink.mode_bits() | 0o777;
        let new = NewInode { mode, uid, gid, rdev: Default::default() };
        self.make(dir, name, &new, Some(target))
    }

    fn make(
        &self,
        dir: &InodeRef,
        name: &[u8],
        new: &NewInode,
        target: Option<&[u8]>,
    ) -> Result<Entry> {
        check_new_name(name)?;
        let file_type = FileType::from_mode(new.mode).ok_or(Error::Invalid("no such file type"))?;
        dir.require_directory()?;
        let inode = self.change(NAME, || {
            let _names = self.names.read();
            let mut parent = dir.state.write();
            let context = self.context();
            check_addition(&mut parent, &context, name)?;
            if file_type == FileType::Directory && parent.links() >= LINK_MAX {
                return Err(Error::TooManyLinks);
            }
            let addition = Addition::prepare(&mut parent, &context, name)?;
            let ino = self.numbers.lock().take(&context.view)?;
            let inode = self.new_inode(ino, &parent, new, file_type);
            self.apply_birth(&inode, &context, dir.ino(), target);
            let subdirectories = u16::from(file_type == FileType::Directory);
            self.apply_addition(dir, &mut parent, &context, addition, &inode, subdirectories);
            Ok(inode)
        })?;
        self.entry(inode)
    }

    /// Makes a regular file without a name, for somebody who may [give it one](Filesystem::link). It
    /// goes when nobody refers to it, as a file does that has lost its last name. The directory hands
    /// down what it does to its files.
    ///
    /// # Errors
    /// As [`Filesystem::create`].
    pub fn create_nameless(&self, dir: &InodeRef, new: &NewInode) -> Result<Entry> {
        if FileType::from_mode(new.mode) != Some(FileType::Regular) {
            return Err(Error::Invalid("only a regular file is made without a name"));
        }
        dir.require_directory()?;
        let inode = self.change(Cost { pages: 0, ..NAME }, || {
            let _names = self.names.read();
            let parent = dir.state.read();
            if parent.links() == 0 {
                return Err(Error::NotFound);
            }
            check_directory_grows(&parent)?;
            let ino = self.numbers.lock().take(&self.view())?;
            let inode = self.new_inode(ino, &parent, new, FileType::Regular);
            inode.unshared().set_links(0);
            self.attributes_changed(&inode, &mut inode.unshared(), true);
            let mut table = self.table.lock();
            table.insert(Arc::clone(&inode));
            table.orphans.insert(ino, 0);
            Ok(Arc::clone(&inode))
        })?;
        self.entry(inode)
    }

    /// A new inode, with what the directory hands down.
    fn new_inode(&self, ino: Ino, parent: &State, new: &NewInode, file_type: FileType) -> InodeRef {
        let mut raw = RawInode::zeroed();
        let mut mode = file_type.mode_bits() | new.mode & 0o7777;
        let mut gid = new.gid;
        if parent.file.raw.i_mode.get() & SET_GID != 0 {
            gid = parent.file.raw.i_gid.get();
            if file_type == FileType::Directory {
                mode |= SET_GID;
            }
        }
        raw.i_flags = U32::new(inherited_flags(parent, file_type));
        raw.i_mode = U16::new(mode);
        raw.i_uid = U32::new(new.uid);
        raw.i_gid = U32::new(gid);
        raw.i_links_count = U16::new(if file_type == FileType::Directory { 2 } else { 1 });
        raw.i_generation = U32::new(self.generation.fetch_add(1, Ordering::Relaxed));
        if matches!(file_type, FileType::CharDevice | FileType::BlockDevice) {
            raw.i_bmap[..8].copy_from_slice(&new.rdev.encode().to_le_bytes());
        }
        let now = self.now();
        raw.i_mtime = (now.seconds as u64).into();
        raw.i_mtime_nsec = now.nanoseconds.into();
        raw.i_ctime = raw.i_mtime;
        raw.i_ctime_nsec = raw.i_mtime_nsec;
        Arc::new(Inode::of(File::fresh(ino, file_type, raw), true))
    }

    /// Makes a new file known, with the content that it begins with.
    fn apply_birth(
        &self,
        inode: &InodeRef,
        context: &Context<'_>,
        parent: Ino,
        target: Option<&[u8]>,
    ) {
        let mut state = inode.unshared();
        if inode.file_type() == FileType::Directory {
            let mut block = self.pool.zeroed();
            dirent::format_first(bytes_mut(&mut block), inode.ino(), parent);
            state.set_size(block.len() as u64);
            state.apply_whole(context, Ready::first(block));
        }
        if let Some(target) = target {
            let mut block = self.pool.zeroed();
            bytes_mut(&mut block)[..target.len()].copy_from_slice(target);
            state.set_size(target.len() as u64);
            state.apply_whole(context, Ready::first(block));
            self.journal.lock().needs_content(inode.ino());
        }
        self.attributes_changed(inode, &mut state, true);
        drop(state);
        self.table.lock().insert(Arc::clone(inode));
    }

    /// Gives a file one more name. One that has none stays, with all that was written to it.
    ///
    /// # Errors
    /// As [`Filesystem::create`]; directories cannot have a second name.
    pub fn link(&self, inode: &InodeRef, dir: &InodeRef, name: &[u8]) -> Result<Attr> {
        check_new_name(name)?;
        if inode.file_type() == FileType::Directory {
            return Err(Error::NotPermitted("a directory cannot have a second name"));
        }
        dir.require_directory()?;
        self.change(NAME, || {
            let _names = self.names.write();
            let links = {
                let state = inode.state.read();
                check_changeable(&state)?;
                state.links()
            };
            if links >= LINK_MAX {
                return Err(Error::TooManyLinks);
            }
            {
                let mut parent = dir.state.write();
                let context = self.context();
                check_addition(&mut parent, &context, name)?;
                let addition = Addition::prepare(&mut parent, &context, name)?;
                self.apply_addition(dir, &mut parent, &context, addition, inode, 0);
            }
            self.apply_link(inode, links + 1);
            Ok(())
        })?;
        self.attr(inode)
    }

    /// Takes note that a file has a name more.
    fn apply_link(&self, inode: &InodeRef, links: u16) {
        let mut state = inode.state.write();
        state.set_links(links);
        self.name_changed(inode, &mut state);
        drop(state);
        if links == 1 {
            self.is_found(inode);
        }
    }

    /// Takes note that a file has a name which had none: logs have left out what was fsynced of it, so
    /// all of it has to become durable with the name.
    fn is_found(&self, inode: &InodeRef) {
        self.attributes_changed(inode, &mut inode.state.write(), true);
        self.journal.lock().needs_content(inode.ino());
        self.table.lock().orphans.remove(&inode.ino());
        self.has_replaced(inode);
    }

    /// Removes a name that does not lead to a directory. The file goes when its last name is gone
    /// and nobody refers to it.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsDirectory`], [`Error::NotPermitted`], damage.
    pub fn unlink(&self, dir: &InodeRef, name: &[u8]) -> Result<()> {
        self.remove(dir, name, false)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::NotEmpty`], [`Error::NotPermitted`],
    /// damage.
    pub fn rmdir(&self, dir: &InodeRef, name: &[u8]) -> Result<()> {
        match name {
            b"." => Err(Error::Invalid("\".\" cannot be removed")),
            b".." => Err(Error::NotEmpty),
            _ => self.remove(dir, name, true),
        }
    }

    fn remove(&self, dir: &InodeRef, name: &[u8], directory: bool) -> Result<()> {
        check_new_name(name)?;
        dir.require_directory()?;
        self.change(Cost { effect: Effect::Frees, ..NAME }, || {
            // Nobody may add a name to the directory that goes.
            let (_alone, _among_others) = match directory {
                true => (Some(self.names.write()), None),
                false => (None, Some(self.names.read())),
            };
            let inode = self.find(dir, name)?.ok_or(Error::NotFound)?;
            check_directory_changeable(&dir.state.read())?;
            check_changeable(&inode.state.read())?;
            self.check_removable(&inode, directory)?;
            let mut parent = dir.state.write();
            let context = self.context();
            // Somebody else may have removed it first.
            let found = directory::lookup(&mut parent, &context, name)?;
            let at = found.filter(|at| at.ino == inode.ino()).ok_or(Error::NotFound)?;
            let removal = Removal::prepare(&parent, &context, name, at, None)?;
            self.apply_removal(dir, &mut parent, &context, removal, u16::from(directory));
            drop(parent);
            self.drop_link(&inode);
            Ok(())
        })
    }

    /// Fails unless the file may lose its name as what the caller takes it for, and its inode can be changed: the
    /// next checkpoint writes the others of the block with it.
    pub(super) fn check_removable(&self, inode: &InodeRef, directory: bool) -> Result<()> {
        if !inode.state.read().fresh {
            self.view().raw_inode(inode.ino())?;
        }
        match (directory, inode.file_type() == FileType::Directory) {
            (true, false) => Err(Error::NotDirectory),
            (false, true) => Err(Error::IsDirectory),
            (false, false) => Ok(()),
            // No volume can be mounted without it.
            (true, true) if inode.ino() == Ino::ROOT => {
                Err(Error::Inconsistent("a name leads to the root directory".into()))
            }
            (true, true) => {
                let state = inode.state.read();
                let view = self.view();
                match names::is_empty(&*state, &view)? {
                    true => Ok(()),
                    false => Err(Error::NotEmpty),
                }
            }
        }
    }

    /// Takes note that a file has a name less; a directory has none left then.
    pub(super) fn drop_link(&self, inode: &InodeRef) {
        let mut state = inode.state.write();
        let gone = inode.file_type() == FileType::Directory;
        let links = if gone { 0 } else { state.links().saturating_sub(1) };
        state.set_links(links);
        self.name_changed(inode, &mut state);
        if links == 0 {
            let blocks = state.file.raw.i_blocks.get() / self.store.block_size().sectors();
            self.table.lock().orphans.insert(inode.ino(), blocks);
        }
    }

    /// Adds a name that leads to a file, and this many subdirectories with it.
    pub(super) fn apply_addition(
        &self,
        dir: &InodeRef,
        state: &mut State,
        context: &Context<'_>,
        addition: Addition<'_>,
        to: &Inode,
        subdirectories: u16,
    ) {
        let (name, target) = (addition.name, (to.ino(), to.file_type()));
        addition.apply(state, context, target);
        self.journal.lock().name_added(dir.ino(), name, target);
        let links = state.links().saturating_add(subdirectories);
        state.set_links(links);
        self.directory_changed(dir, state);
    }

    /// Lets a name that is there lead to another file; so there are subdirectories more and less. What the
    /// file is must not be lost when the other one is gone.
    pub(super) fn apply_redirection(
        &self,
        dir: &InodeRef,
        state: &mut State,
        context: &Context<'_>,
        redirection: Redirection<'_>,
        to: &Inode,
        (more, less): (u16, u16),
    ) {
        let (name, target) = (redirection.name, (to.ino(), to.file_type()));
        redirection.apply(state, context, target);
        {
            let mut journal = self.journal.lock();
            journal.name_changed(dir.ino(), name, target);
            if to.file_type() == FileType::Regular {
                journal.needs_content(to.ino());
            }
        }
        let links = state.links().saturating_add(more).saturating_sub(less);
        state.set_links(links);
        self.directory_changed(dir, state);
    }

    /// Removes a name, and this many subdirectories with it.
    pub(super) fn apply_removal(
        &self,
        dir: &InodeRef,
        state: &mut State,
        context: &Context<'_>,
        removal: Removal<'_>,
        subdirectories: u16,
    ) {
        let name = removal.name;
        removal.apply(state, context);
        self.journal.lock().name_removed(dir.ino(), name);
        let links = state.links().saturating_sub(subdirectories);
        state.set_links(links);
        self.directory_changed(dir, state);
    }
}

/// Fails unless the name can be added to the directory.
pub(super) fn check_addition(parent: &mut State, context: &Context<'_>, name: &[u8]) -> Result<()> {
    if parent.links() == 0 {
        return Err(Error::NotFound);
    }
    check_directory_grows(parent)?;
    match directory::lookup(parent, context, name)? {
        Some(_) => Err(Error::Exists),
        None => Ok(()),
    }
}

//! Operations that change names and attributes: create, link, unlink, rename, setattr.
//!
//! They lock one inode at a time. Those that are about one directory and one file in it (create,
//! symlink, unlink) are held together by the lock of the directory, and share another lock, `names`;
//! those that are about more (link, rename, rmdir) have it to themselves. A commit cannot come in
//! between, because each is a transaction.

use std::sync::Arc;

use nilfs_ondisk::inode::{FileType, LINK_MAX, RawInode};
use nilfs_ondisk::{FileBlock, Ino, dirent};
use zerocopy::little_endian::{U16, U32};

use super::directory::{self, check_new_name};
use super::inode::{Context, INODE_BYTES, Inode, InodeRef, State};
use super::space::{Cost, Effect};
use super::types::{Attr, DirEntry, NewInode, RenameMode, SetAttr};
use super::{Entry, Filesystem};
use crate::block::bytes_mut;
use crate::error::{Error, Result};
use crate::host::Timestamp;
use crate::host::atomic::Ordering;
use crate::tree::content::Content;
use crate::tree::names::{self, Position};

/// The inode flags that mean something here (`FS_*_FL`).
mod flags {
    /// Nothing about the file can change.
    pub(super) const IMMUTABLE: u32 = 0x10;
    /// The file can only grow at its end.
    pub(super) const APPEND: u32 = 0x20;
    /// What a new file takes over from its directory (docs/format.md §13), but for the two above:
    /// ext4 does not hand those down either, and a directory that only grows should not fill with
    /// files that nobody can ever delete.
    pub(super) const INHERITED: u32 =
        0x1 | 0x2 | 0x4 | 0x8 | 0x40 | 0x80 | 0x200 | 0x400 | 0x8000 | 0x1_0000;
    /// What only a directory keeps of them.
    pub(super) const DIRECTORY_ONLY: u32 = 0x1_0000;
    /// What files that are neither regular nor directories keep of them.
    pub(super) const ANY_FILE: u32 = 0x40 | 0x80;
    /// Flags that a user may set: immutable, append-only, no dump, no atime, not compressed, no tail
    /// merging. The first two are heeded here, the third is for others to read, and no file has what the
    /// rest rules out. The format has more flags, and Linux heeds two of them, for synchronous writes
    /// and directories. Nothing is done for those here, so they are only kept where they are.
    pub(super) const DONE: u32 = IMMUTABLE | APPEND | 0x40 | 0x80 | 0x400 | 0x8000;
}

const SET_UID: u16 = 0o4000;
const SET_GID: u16 = 0o2000;
const GROUP_EXECUTES: u16 = 0o010;

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
            let ino = self.numbers.lock().take(&context.view)?;
            if let Err(error) = self.add_name(dir, &mut parent, &context, name, ino, file_type) {
                self.numbers.lock().give_back(&context.view, ino)?;
                return Err(error);
            }
            let raw = self.new_inode(&parent, new, file_type);
            let inode = Arc::new(Inode::new(ino, raw, true)?);
            {
                let mut state = inode.unshared();
                match (file_type, target) {
                    (FileType::Directory, _) => {
                        self.format_directory(&inode, &mut state, dir.ino())?;
                    }
                    (_, Some(target)) => self.put_target(&inode, &mut state, target)?,
                    _ => {}
                }
                self.attributes_changed(&inode, &mut state, true);
            }
            self.table.lock().insert(Arc::clone(&inode));
            if file_type == FileType::Directory {
                let links = parent.links();
                parent.set_links(links + 1);
            }
            self.directory_changed(dir, &mut parent);
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
            let mut raw = self.new_inode(&parent, new, FileType::Regular);
            raw.i_links_count = U16::new(0);
            let inode = Arc::new(Inode::new(ino, raw, true)?);
            self.attributes_changed(&inode, &mut inode.unshared(), true);
            let mut table = self.table.lock();
            table.insert(Arc::clone(&inode));
            table.orphans.insert(ino, 0);
            Ok(Arc::clone(&inode))
        })?;
        self.entry(inode)
    }

    /// The fields of a new inode, with what the directory hands down.
    fn new_inode(&self, parent: &State, new: &NewInode, file_type: FileType) -> RawInode {
        let mut raw = RawInode::zeroed();
        let mut mode = file_type.mode_bits() | new.mode & 0o7777;
        let mut gid = new.gid;
        if parent.file.raw.i_mode.get() & SET_GID != 0 {
            gid = parent.file.raw.i_gid.get();
            if file_type == FileType::Directory {
                mode |= SET_GID;
            }
        }
        let inherited = parent.file.raw.i_flags.get() & flags::INHERITED;
        raw.i_flags = U32::new(match file_type {
            FileType::Directory => inherited,
            FileType::Regular => inherited & !flags::DIRECTORY_ONLY,
            _ => inherited & flags::ANY_FILE,
        });
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
        raw
    }

    fn format_directory(&self, inode: &Inode, state: &mut State, parent: Ino) -> Result<()> {
        let mut block = self.pool.zeroed();
        dirent::format_first(bytes_mut(&mut block), inode.ino(), parent);
        inode.set_block(state, &self.context(), FileBlock(0), block)?;
        state.set_size(self.store.block_size().bytes64());
        Ok(())
    }

    fn put_target(&self, inode: &Inode, state: &mut State, target: &[u8]) -> Result<()> {
        let mut block = self.pool.zeroed();
        bytes_mut(&mut block)[..target.len()].copy_from_slice(target);
        inode.set_block(state, &self.context(), FileBlock(0), block)?;
        state.set_size(target.len() as u64);
        self.journal.lock().needs_content(inode.ino());
        Ok(())
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
                let (context, ino) = (self.context(), inode.ino());
                check_addition(&mut parent, &context, name)?;
                self.add_name(dir, &mut parent, &context, name, ino, inode.file_type())?;
                self.directory_changed(dir, &mut parent);
            }
            let mut state = inode.state.write();
            state.set_links(links + 1);
            self.name_changed(inode, &mut state);
            drop(state);
            if links == 0 {
                self.is_found(inode);
            }
            Ok(())
        })?;
        self.attr(inode)
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
            self.remove_name(dir, &mut parent, &context, name, at)?;
            if directory {
                let links = parent.links();
                parent.set_links(links.saturating_sub(1));
            }
            self.directory_changed(dir, &mut parent);
            drop(parent);
            self.drop_link(&inode);
            Ok(())
        })
    }

    /// Fails unless the file may lose its name as what the caller takes it for, and its inode can be changed: the
    /// next checkpoint writes the others of the block with it.
    fn check_removable(&self, inode: &InodeRef, directory: bool) -> Result<()> {
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
    fn drop_link(&self, inode: &InodeRef) {
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

    /// Renames a file.
    ///
    /// # Errors
    /// As [`Filesystem::create`] and [`Filesystem::unlink`]; [`Error::Invalid`] if a directory
    /// would become its own ancestor.
    pub fn rename(
        &self,
        dir: &InodeRef,
        name: &[u8],
        to_dir: &InodeRef,
        to_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        check_new_name(name)?;
        check_new_name(to_name)?;
        dir.require_directory()?;
        to_dir.require_directory()?;
        let cost = Cost { pages: 6, inodes: 4, effect: Effect::Grows };
        self.change(cost, || {
            let _names = self.names.write();
            let inode = self.find(dir, name)?.ok_or(Error::NotFound)?;
            let target = self.find(to_dir, to_name)?;
            for directory in [dir, to_dir] {
                if directory.state.read().links() == 0 {
                    return Err(Error::NotFound);
                }
            }
            check_directory_changeable(&dir.state.read())?;
            match target {
                Some(_) => check_directory_changeable(&to_dir.state.read())?,
                None => check_directory_grows(&to_dir.state.read())?,
            }
            for file in [Some(&inode), target.as_ref()].into_iter().flatten() {
                check_changeable(&file.state.read())?;
            }
            match (target, mode) {
                (Some(_), RenameMode::NoReplace) => Err(Error::Exists),
                (None, RenameMode::Exchange) => Err(Error::NotFound),
                (Some(target), _) if target.ino() == inode.ino() => Ok(()),
                (Some(target), RenameMode::Exchange) => {
                    self.exchange((dir, name, &inode), (to_dir, to_name, &target))
                }
                (target, _) => self.move_to(dir, name, &inode, to_dir, to_name, target.as_ref()),
            }
        })
    }

    fn move_to(
        &self,
        dir: &InodeRef,
        name: &[u8],
        inode: &InodeRef,
        to_dir: &InodeRef,
        to_name: &[u8],
        target: Option<&InodeRef>,
    ) -> Result<()> {
        let directory = inode.file_type() == FileType::Directory;
        if let Some(target) = target {
            self.check_removable(target, directory)?;
        }
        let moves = dir.ino() != to_dir.ino();
        if directory && moves {
            self.check_movable(inode, to_dir)?;
            if target.is_none() && to_dir.state.read().links() >= LINK_MAX {
                return Err(Error::TooManyLinks);
            }
        }
        {
            let mut state = to_dir.state.write();
            let context = self.context();
            let (ino, file_type) = (inode.ino(), inode.file_type());
            match target {
                Some(_) => self.change_name(to_dir, &mut state, &context, to_name, inode)?,
                None => self.add_name(to_dir, &mut state, &context, to_name, ino, file_type)?,
            }
            let gained = u16::from(directory && moves);
            let lost = u16::from(directory && target.is_some());
            if gained != lost {
                let links = state.links().saturating_add(gained).saturating_sub(lost);
                state.set_links(links);
            }
            self.directory_changed(to_dir, &mut state);
        }
        {
            let mut state = dir.state.write();
            let context = self.context();
            let at = directory::lookup(&mut state, &context, name)?.ok_or(Error::NotFound)?;
            self.remove_name(dir, &mut state, &context, name, at)?;
            if directory && moves {
                let links = state.links();
                state.set_links(links.saturating_sub(1));
            }
            self.directory_changed(dir, &mut state);
        }
        self.moved(inode, moves.then_some(to_dir))?;
        if let Some(target) = target {
            self.drop_link(target);
            self.has_replaced(inode);
        }
        Ok(())
    }

    fn exchange(
        &self,
        one: (&InodeRef, &[u8], &InodeRef),
        other: (&InodeRef, &[u8], &InodeRef),
    ) -> Result<()> {
        let moves = one.0.ino() != other.0.ino();
        for ((_, _, inode), (to_dir, _, _)) in [(one, other), (other, one)] {
            if moves && inode.file_type() == FileType::Directory {
                self.check_movable(inode, to_dir)?;
            }
        }
        for ((dir, name, old), (_, _, new)) in [(one, other), (other, one)] {
            let mut state = dir.state.write();
            self.change_name(dir, &mut state, &self.context(), name, new)?;
            if moves {
                let count = |inode: &InodeRef| u16::from(inode.file_type() == FileType::Directory);
                let links = state.links().saturating_add(count(new));
                state.set_links(links.saturating_sub(count(old)));
            }
            self.directory_changed(dir, &mut state);
        }
        self.moved(one.2, moves.then_some(other.0))?;
        self.moved(other.2, moves.then_some(one.0))?;
        self.has_replaced(one.2);
        self.has_replaced(other.2);
        Ok(())
    }

    /// Takes note that a file has another name; a directory also has another "..", if it has
    /// another parent.
    pub(super) fn moved(&self, inode: &InodeRef, parent: Option<&InodeRef>) -> Result<()> {
        let mut state = inode.state.write();
        let context = self.context();
        if let Some(parent) = parent
            && inode.file_type() == FileType::Directory
        {
            let parent = parent.ino();
            directory::replace(inode, &mut state, &context, b"..", parent, FileType::Directory)?;
        }
        self.name_changed(inode, &mut state);
        Ok(())
    }

    /// Fails unless a directory can get another parent: the parent does not lie in it, and its ".." can be
    /// read, which is changed last.
    fn check_movable(&self, inode: &InodeRef, to_dir: &InodeRef) -> Result<()> {
        self.check_not_inside(inode, to_dir)?;
        let parent = directory::lookup(&mut inode.state.write(), &self.context(), b"..")?;
        parent.map(drop).ok_or_else(|| Error::missing("a \"..\" entry"))
    }

    /// Fails if `dir` is `inode` or lies below it.
    fn check_not_inside(&self, inode: &InodeRef, dir: &InodeRef) -> Result<()> {
        let mut at = Arc::clone(dir);
        // A damaged volume could have a ring of directories; no path has more than this many.
        for _ in 0..65536 {
            if at.ino() == inode.ino() {
                return Err(Error::Invalid("a directory cannot be moved into itself"));
            }
            if at.ino() == Ino::ROOT {
                return Ok(());
            }
            at = self.find(&at, b"..")?.ok_or_else(|| Error::missing("a \"..\" entry"))?;
        }
        Err(Error::Inconsistent("directories form a ring".into()))
    }

    /// Changes attributes; a new size only of regular files.
    ///
    /// # Errors
    /// [`Error::NotPermitted`], [`Error::FileTooLarge`], [`Error::NoSpace`], [`Error::IsDirectory`],
    /// damage; [`Error::Unsupported`] for an access time alone, unless it is the one that is shown.
    pub fn set_attr(&self, inode: &InodeRef, changes: &SetAttr) -> Result<Attr> {
        if changes.size.is_some() && inode.file_type() != FileType::Regular {
            return Err(match inode.file_type() {
                FileType::Directory => Error::IsDirectory,
                _ => Error::Invalid("only a regular file has a size that can be set"),
            });
        }
        // A file that becomes longer gets a hole.
        let shrinks = changes.size.is_some_and(|size| size < inode.state.read().size());
        let effect = if shrinks { Effect::Frees } else { Effect::Changes };
        let check = |state: &State| {
            check_changeable_attributes(state, changes)?;
            self.check_access_time(state, changes)
        };
        if let Some(size) = changes.size.filter(|_| shrinks) {
            self.shorten_in_parts(inode, size, check)?;
        }
        self.change(Cost { pages: 1, inodes: 1, effect }, || {
            let mut state = inode.state.write();
            check(&state)?;
            let now = self.now();
            if let Some(size) = changes.size {
                let grows = size != state.size();
                self.resize_file(inode, &mut state, &self.context(), size)?;
                if grows || changes.mtime.is_none() {
                    state.written(now);
                }
            }
            let mode = state.file.raw.i_mode;
            apply_changes(&mut state, changes, now);
            match changes.only_size() && state.file.raw.i_mode == mode {
                true => self.mark_dirty(inode, &mut state),
                false => self.attributes_changed(inode, &mut state, changes.mtime.is_some()),
            }
            Ok(())
        })?;
        self.attr(inode)
    }

    /// Fails if the change sets an access time that would not read back. Together with the mtime it is
    /// accepted, because `cp -p`, tar and rsync set both in one call and need the other.
    fn check_access_time(&self, state: &State, changes: &SetAttr) -> Result<()> {
        let alone = changes.atime.filter(|_| changes.mtime.is_none());
        match alone.is_some_and(|atime| atime.at(self.now()) != state.file.modified()) {
            true => Err(Error::Unsupported("the format keeps no access times")),
            false => Ok(()),
        }
    }

    /// Fails unless a file may be opened for writing; `appends`: at its end alone.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] because of a flag of the file.
    pub fn check_opened_for_writing(&self, inode: &InodeRef, appends: bool) -> Result<()> {
        check_written(&inode.state.read(), appends)
    }

    /// Sets the flags of an inode (`FS_*_FL`).
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a flag that is not heeded here, unless the inode has it already.
    pub fn set_flags(&self, inode: &InodeRef, new: u32) -> Result<Attr> {
        self.change(Cost { pages: 0, inodes: 1, effect: Effect::Changes }, || {
            let mut state = inode.state.write();
            if new & !state.file.raw.i_flags.get() & !flags::DONE != 0 {
                return Err(Error::Unsupported("one of these flags would have no effect"));
            }
            state.file.raw.i_flags = U32::new(new);
            state.file.set_ctime(self.now());
            self.attributes_changed(inode, &mut state, false);
            Ok(())
        })?;
        self.attr(inode)
    }

    /// Adds a name that is not there.
    pub(super) fn add_name(
        &self,
        dir: &InodeRef,
        state: &mut State,
        context: &Context<'_>,
        name: &[u8],
        ino: Ino,
        file_type: FileType,
    ) -> Result<()> {
        directory::insert(dir, state, context, name, ino, file_type)?;
        self.journal.lock().name_added(dir.ino(), name, (ino, file_type));
        Ok(())
    }

    /// Lets a name that is there lead to another file. What that file is must not be lost when the
    /// other one is gone.
    fn change_name(
        &self,
        dir: &InodeRef,
        state: &mut State,
        context: &Context<'_>,
        name: &[u8],
        to: &InodeRef,
    ) -> Result<()> {
        directory::replace(dir, state, context, name, to.ino(), to.file_type())?;
        let mut journal = self.journal.lock();
        journal.name_changed(dir.ino(), name, (to.ino(), to.file_type()));
        if to.file_type() == FileType::Regular {
            journal.needs_content(to.ino());
        }
        Ok(())
    }

    fn remove_name(
        &self,
        dir: &InodeRef,
        state: &mut State,
        context: &Context<'_>,
        name: &[u8],
        at: Position,
    ) -> Result<()> {
        directory::remove(dir, state, context, name, at)?;
        self.journal.lock().name_removed(dir.ino(), name);
        Ok(())
    }

    pub(super) fn directory_changed(&self, dir: &InodeRef, state: &mut State) {
        let now = self.now();
        state.file.set_mtime(now);
        state.file.set_ctime(now);
        self.attributes_changed(dir, state, true);
        self.recount(dir, state);
    }

    /// Takes note of what the names of a directory take in memory.
    pub(super) fn recount(&self, dir: &Inode, state: &State) {
        let bytes = state.names.bytes();
        if dir.residence.counted() != INODE_BYTES + bytes {
            self.table.lock().recount(dir, bytes);
        }
    }

    pub(super) fn name_changed(&self, inode: &InodeRef, state: &mut State) {
        state.file.set_ctime(self.now());
        self.attributes_changed(inode, state, false);
    }

    /// Takes note that attributes have changed. `chosen`: also the mtime, and not by writing.
    fn attributes_changed(&self, inode: &InodeRef, state: &mut State, chosen: bool) {
        state.attributes_changed(chosen);
        self.journal.lock().inode_changed(inode.ino());
        self.mark_dirty(inode, state);
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

fn check_not_immutable(state: &State) -> Result<()> {
    match state.has_flag(flags::IMMUTABLE) {
        true => Err(Error::NotPermitted("the file is immutable")),
        false => Ok(()),
    }
}

fn check_changeable(state: &State) -> Result<()> {
    check_not_immutable(state)?;
    if state.has_flag(flags::APPEND) {
        return Err(Error::NotPermitted("the file can only be appended to"));
    }
    Ok(())
}

/// Fails unless the content can be changed, which only grows if what is written `appends` to it.
pub(super) fn check_written(state: &State, appends: bool) -> Result<()> {
    if appends { check_not_immutable(state) } else { check_changeable(state) }
}

/// Names can be added to a directory that only grows.
fn check_directory_grows(state: &State) -> Result<()> {
    if state.has_flag(flags::IMMUTABLE) {
        return Err(Error::NotPermitted("the directory is immutable"));
    }
    Ok(())
}

/// Names cannot be taken out of an immutable directory or one that only grows.
fn check_directory_changeable(state: &State) -> Result<()> {
    match check_changeable(state) {
        Err(Error::NotPermitted(_)) => {
            Err(Error::NotPermitted("the directory is immutable or can only be added to"))
        }
        other => other,
    }
}

fn apply_changes(state: &mut State, changes: &SetAttr, now: Timestamp) {
    if let Some(mode) = changes.mode {
        let kept = state.file.raw.i_mode.get() & !0o7777;
        state.file.raw.i_mode = U16::new(kept | mode & 0o7777);
    }
    if let Some(uid) = changes.uid {
        state.file.raw.i_uid = U32::new(uid);
    }
    if let Some(gid) = changes.gid {
        state.file.raw.i_gid = U32::new(gid);
    }
    if changes.clear_set_id {
        let mode = state.file.raw.i_mode.get();
        state.file.raw.i_mode = U16::new(mode & !set_id_bits(mode));
    }
    if let Some(mtime) = changes.mtime {
        state.file.set_mtime(mtime.at(now));
    }
    state.file.set_ctime(changes.ctime.unwrap_or(now));
}

/// The bits of a mode that a change by somebody else takes away. Without the right to execute,
/// set-group-ID says how the file is locked; of a directory, who owns what is made there.
fn set_id_bits(mode: u16) -> u16 {
    let set_gid = if mode & GROUP_EXECUTES != 0 { SET_GID } else { 0 };
    match FileType::from_mode(mode) {
        Some(FileType::Directory) => 0,
        _ => mode & (SET_UID | set_gid),
    }
}

fn check_changeable_attributes(state: &State, changes: &SetAttr) -> Result<()> {
    check_not_immutable(state)?;
    let more_than_touched = changes.mode.is_some()
        || changes.uid.is_some()
        || changes.gid.is_some()
        || changes.size.is_some()
        || changes.chooses_times();
    if state.has_flag(flags::APPEND) && more_than_touched {
        return Err(Error::NotPermitted("the file can only be appended to"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{empty_volume, make_file, mount};

    /// Linux sets more flags than have an effect here.
    #[test]
    fn a_flag_that_would_have_no_effect_is_kept_and_can_be_taken_away_but_not_set() {
        const SYNC: u32 = 0x8;
        const NO_DUMP: u32 = 0x40;
        let fs = mount(&empty_volume(16));
        let file = make_file(&fs);
        let set = |flags| fs.set_flags(&file, flags).map(|attr| attr.flags);
        assert!(matches!(set(SYNC), Err(Error::Unsupported(_))));
        file.state.write().file.raw.i_flags = U32::new(SYNC);
        assert_eq!(set(SYNC | NO_DUMP).unwrap(), SYNC | NO_DUMP);
        assert_eq!(set(NO_DUMP).unwrap(), NO_DUMP);
        assert!(matches!(set(SYNC | NO_DUMP), Err(Error::Unsupported(_))));
    }
}

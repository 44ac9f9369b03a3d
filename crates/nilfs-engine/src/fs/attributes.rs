//! Attributes: changing them, what flags of a file forbid, and noting what has changed.

use nilfs_ondisk::inode::FileType;
use zerocopy::little_endian::{U16, U32};

use super::Filesystem;
use super::data::Resize;
use super::inode::{INODE_BYTES, Inode, InodeRef, State};
use crate::error::{Error, Result};
use crate::host::Timestamp;
use crate::types::{Attr, SetAttr};
use crate::writer::space::{Cost, Effect};

/// The inode flags that mean something here (`FS_*_FL`).
mod flags {
    /// Nothing about the file can change.
    pub(super) const IMMUTABLE: u32 = 0x10;
    /// The file can only grow at its end.
    pub(super) const APPEND: u32 = 0x20;
    /// Flags that a new file takes over from its directory (docs/format.md §13). The two above are not among
    /// them: ext4 does not hand those down either, and a directory that only grows should not fill with
    /// files that can never be deleted.
    pub(super) const INHERITED: u32 =
        0x1 | 0x2 | 0x4 | 0x8 | 0x40 | 0x80 | 0x200 | 0x400 | 0x8000 | 0x1_0000;
    /// The one of them that only a directory keeps.
    pub(super) const DIRECTORY_ONLY: u32 = 0x1_0000;
    /// Flags among them that a file keeps which is neither regular nor a directory.
    pub(super) const ANY_FILE: u32 = 0x40 | 0x80;
    /// Flags that a user may set: immutable, append-only, no dump, no atime, not compressed, no tail
    /// merging. The first two are heeded here, the third is for others to read, and no file has what the
    /// rest rules out. The format has more flags, and Linux heeds two of them, for synchronous writes
    /// and directories. Nothing is done for those here, so they are only kept where they are.
    pub(super) const DONE: u32 = IMMUTABLE | APPEND | 0x40 | 0x80 | 0x400 | 0x8000;
}

const SET_UID: u16 = 0o4000;
pub(super) const SET_GID: u16 = 0o2000;
const GROUP_EXECUTES: u16 = 0o010;

impl Filesystem {
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
            let context = self.context();
            let resize = changes.size.map(|size| Resize::prepare(&state, &context, size));
            if let Some(resize) = resize.transpose()? {
                let before = state.size();
                resize.apply(&mut state, &context);
                if state.size() != before || changes.mtime.is_none() {
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
    pub(super) fn attributes_changed(&self, inode: &InodeRef, state: &mut State, chosen: bool) {
        state.attributes_changed(chosen);
        self.journal.lock().inode_changed(inode.ino());
        self.mark_dirty(inode, state);
    }
}

/// The flags that a new file takes over from its directory.
pub(super) fn inherited_flags(parent: &State, file_type: FileType) -> u32 {
    let inherited = parent.file.raw.i_flags.get() & flags::INHERITED;
    match file_type {
        FileType::Directory => inherited,
        FileType::Regular => inherited & !flags::DIRECTORY_ONLY,
        _ => inherited & flags::ANY_FILE,
    }
}

fn check_not_immutable(state: &State) -> Result<()> {
    match state.has_flag(flags::IMMUTABLE) {
        true => Err(Error::NotPermitted("the file is immutable")),
        false => Ok(()),
    }
}

pub(super) fn check_changeable(state: &State) -> Result<()> {
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
pub(super) fn check_directory_grows(state: &State) -> Result<()> {
    if state.has_flag(flags::IMMUTABLE) {
        return Err(Error::NotPermitted("the directory is immutable"));
    }
    Ok(())
}

/// Names cannot be taken out of an immutable directory or one that only grows.
pub(super) fn check_directory_changeable(state: &State) -> Result<()> {
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

/// The bits of a mode that are taken away when another user changes the file. Without the right to execute,
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

//! Renaming files.

use std::sync::Arc;

use nilfs_ondisk::Ino;
use nilfs_ondisk::inode::{FileType, LINK_MAX};

use super::Filesystem;
use super::attributes::{check_changeable, check_directory_changeable, check_directory_grows};
use super::directory::{self, check_new_name};
use super::inode::InodeRef;
use super::space::{Cost, Effect};
use super::types::RenameMode;
use crate::error::{Error, Result};

impl Filesystem {
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
}

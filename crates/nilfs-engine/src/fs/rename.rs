//! Renaming files. A rename is prepared, which may fail, and then applied ([`blocks`](super::blocks)).

use std::sync::Arc;

use nilfs_ondisk::Ino;
use nilfs_ondisk::inode::{FileType, LINK_MAX};

use super::Filesystem;
use super::attributes::{check_changeable, check_directory_changeable, check_directory_grows};
use super::directory::{self, Addition, Redirection, Removal, check_new_name};
use super::inode::InodeRef;
use crate::error::{Error, Result};
use crate::types::RenameMode;
use crate::writer::space::{Cost, Effect};

/// A name in a directory.
#[derive(Clone, Copy)]
struct Name<'a> {
    dir: &'a InodeRef,
    name: &'a [u8],
}

/// A move of a file of which everything is in memory that it changes.
struct Move<'a> {
    arrival: Arrival<'a>,
    removal: Removal<'a>,
    /// Of a directory that gets another one.
    parent: Option<NewParent<'a>>,
}

/// How a file gets its new name.
enum Arrival<'a> {
    New(Addition<'a>),
    /// It takes the place of a file.
    Over(Redirection<'a>, &'a InodeRef),
}

/// Another parent of a directory.
pub(super) struct NewParent<'a> {
    /// The entry "..".
    entry: Redirection<'a>,
    ino: Ino,
}

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
            let (from, to) = (Name { dir, name }, Name { dir: to_dir, name: to_name });
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
                    self.exchange((from, &inode), (to, &target))
                }
                (target, _) => self.move_to(from, to, &inode, target.as_ref()),
            }
        })
    }

    /// Moves a file to another name, perhaps in the place of a `target`.
    fn move_to(
        &self,
        from: Name<'_>,
        to: Name<'_>,
        inode: &InodeRef,
        target: Option<&InodeRef>,
    ) -> Result<()> {
        let prepared = self.prepare_move(from, to, inode, target)?;
        self.apply_move(from.dir, to.dir, inode, prepared);
        Ok(())
    }

    fn prepare_move<'a>(
        &self,
        from: Name<'a>,
        to: Name<'a>,
        inode: &InodeRef,
        target: Option<&'a InodeRef>,
    ) -> Result<Move<'a>> {
        let directory = inode.file_type() == FileType::Directory;
        if let Some(target) = target {
            self.check_removable(target, directory)?;
        }
        let moves = from.dir.ino() != to.dir.ino();
        let parent = self.prepare_parent(inode, moves.then_some(to.dir))?;
        let gains_link = parent.is_some() && target.is_none();
        if gains_link && to.dir.state.read().links() >= LINK_MAX {
            return Err(Error::TooManyLinks);
        }
        let arrival = {
            let mut state = to.dir.state.write();
            let context = self.context();
            match target {
                Some(target) => {
                    let redirection = Redirection::prepare(&mut state, &context, to.name)?;
                    Arrival::Over(redirection, target)
                }
                None => Arrival::New(Addition::prepare(&mut state, &context, to.name)?),
            }
        };
        let mut state = from.dir.state.write();
        let context = self.context();
        let at = directory::lookup(&mut state, &context, from.name)?.ok_or(Error::NotFound)?;
        let added = match &arrival {
            Arrival::New(addition) if !moves => Some(addition),
            _ => None,
        };
        let removal = Removal::prepare(&state, &context, from.name, at, added)?;
        Ok(Move { arrival, removal, parent })
    }

    fn apply_move(&self, dir: &InodeRef, to_dir: &InodeRef, inode: &InodeRef, prepared: Move<'_>) {
        let Move { arrival, removal, parent } = prepared;
        let (context, moves) = (self.context(), u16::from(parent.is_some()));
        let target = {
            let mut state = to_dir.state.write();
            match arrival {
                Arrival::New(addition) => {
                    self.apply_addition(to_dir, &mut state, &context, addition, inode, moves);
                    None
                }
                Arrival::Over(redirection, target) => {
                    let less = u16::from(inode.file_type() == FileType::Directory);
                    let counts = (moves, less);
                    self.apply_redirection(
                        to_dir,
                        &mut state,
                        &context,
                        redirection,
                        inode,
                        counts,
                    );
                    Some(target)
                }
            }
        };
        self.apply_removal(dir, &mut dir.state.write(), &context, removal, moves);
        self.apply_moved(inode, parent);
        if let Some(target) = target {
            self.drop_link(target);
            self.has_replaced(inode);
        }
    }

    /// Lets two files change places.
    fn exchange(&self, one: (Name<'_>, &InodeRef), other: (Name<'_>, &InodeRef)) -> Result<()> {
        let moves = one.0.dir.ino() != other.0.dir.ino();
        let one_parent = self.prepare_parent(one.1, moves.then_some(other.0.dir))?;
        let other_parent = self.prepare_parent(other.1, moves.then_some(one.0.dir))?;
        let names = [self.prepare_redirection(one.0)?, self.prepare_redirection(other.0)?];
        self.apply_exchange([one, other], names, [one_parent, other_parent]);
        Ok(())
    }

    fn apply_exchange(
        &self,
        [one, other]: [(Name<'_>, &InodeRef); 2],
        [one_name, other_name]: [Redirection<'_>; 2],
        [one_parent, other_parent]: [Option<NewParent<'_>>; 2],
    ) {
        self.apply_arrival(one.0.dir, one_name, one.1, other.1);
        self.apply_arrival(other.0.dir, other_name, other.1, one.1);
        self.apply_moved(one.1, one_parent);
        self.apply_moved(other.1, other_parent);
        self.has_replaced(one.1);
        self.has_replaced(other.1);
    }

    fn prepare_redirection<'a>(&self, name: Name<'a>) -> Result<Redirection<'a>> {
        Redirection::prepare(&mut name.dir.state.write(), &self.context(), name.name)
    }

    /// Lets a name lead to a file that takes the place of another one.
    fn apply_arrival(
        &self,
        dir: &InodeRef,
        redirection: Redirection<'_>,
        old: &InodeRef,
        new: &InodeRef,
    ) {
        let count = |inode: &InodeRef| u16::from(inode.file_type() == FileType::Directory);
        let counts = (count(new), count(old));
        let mut state = dir.state.write();
        self.apply_redirection(dir, &mut state, &self.context(), redirection, new, counts);
    }

    /// The other parent of a file that moves to one, if it is a directory: it must not lie in that.
    fn prepare_parent<'a>(
        &self,
        inode: &InodeRef,
        parent: Option<&InodeRef>,
    ) -> Result<Option<NewParent<'a>>> {
        match parent {
            Some(parent) if inode.file_type() == FileType::Directory => {
                self.check_not_inside(inode, parent)?;
                self.prepare_parent_entry(inode, parent).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// The other parent of a directory, wherever that lies.
    pub(super) fn prepare_parent_entry<'a>(
        &self,
        inode: &InodeRef,
        parent: &InodeRef,
    ) -> Result<NewParent<'a>> {
        let state = inode.state.read();
        let entry = Redirection::prepare_parent(&state, &self.context())?;
        Ok(NewParent { entry, ino: parent.ino() })
    }

    /// Takes note that a file has another name; a directory perhaps also has another parent.
    pub(super) fn apply_moved(&self, inode: &InodeRef, parent: Option<NewParent<'_>>) {
        let mut state = inode.state.write();
        if let Some(NewParent { entry, ino }) = parent {
            entry.apply(&mut state, &self.context(), (ino, FileType::Directory));
        }
        self.name_changed(inode, &mut state);
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
            at = self.parent(&at)?;
        }
        Err(Error::Inconsistent("directories form a ring".into()))
    }
}

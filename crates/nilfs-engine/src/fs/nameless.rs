//! Putting names right that a damaged volume has lost. What fsck finds, it has done here, on a volume
//! that is sound but for that.

use nilfs_ondisk::inode::{FileType, LINK_MAX};
use nilfs_ondisk::{FileBlock, Ino, dirent};

use super::Filesystem;
use super::directory::{self, Addition};
use super::inode::InodeRef;
use super::names::{NAME, check_addition};
use crate::block::{bytes_mut, zeroed};
use crate::error::{Error, Result};
use crate::tree::content::Content;
use crate::writer::space::{Cost, Effect};

impl Filesystem {
    /// Gives a file a name to which none leads. A file has one link then; a directory has its ".." set,
    /// and the links that it had.
    ///
    /// # Errors
    /// As [`Filesystem::create`]; [`Error::Stale`] if there is no such file.
    pub fn adopt(&self, ino: Ino, dir: &InodeRef, name: &[u8]) -> Result<()> {
        directory::check_new_name(name)?;
        dir.require_directory()?;
        let inode = self.by_number(ino)?;
        let is_directory = inode.file_type() == FileType::Directory;
        self.change(NAME, || {
            let _names = self.names.write();
            let new_parent = match is_directory {
                true => Some(self.prepare_parent_entry(&inode, dir)?),
                false => None,
            };
            {
                let mut parent = dir.state.write();
                let context = self.context();
                check_addition(&mut parent, &context, name)?;
                if is_directory && parent.links() >= LINK_MAX {
                    return Err(Error::TooManyLinks);
                }
                let addition = Addition::prepare(&mut parent, &context, name)?;
                self.apply_addition(
                    dir,
                    &mut parent,
                    &context,
                    addition,
                    &inode,
                    u16::from(is_directory),
                );
            }
            if !is_directory {
                inode.state.write().set_links(1);
            }
            self.apply_moved(&inode, new_parent);
            Ok(())
        })
    }

    /// Sets the number of links of a file to that of the names that were found.
    ///
    /// # Errors
    /// As [`Filesystem::set_attr`]; [`Error::Stale`] if there is no such file.
    pub fn set_links(&self, ino: Ino, links: u16) -> Result<()> {
        let inode = self.by_number(ino)?;
        self.change(Cost { pages: 0, inodes: 1, effect: Effect::Changes }, || {
            let mut state = inode.state.write();
            state.set_links(links);
            self.name_changed(&inode, &mut state);
            Ok(())
        })
    }

    /// Deletes a file that has no links, and that no process has open because the volume was not
    /// mounted. `false` if it has links.
    ///
    /// # Errors
    /// The ifile cannot be read, or nothing can be written.
    pub fn delete_nameless(&self, ino: Ino) -> Result<bool> {
        self.check_writable()?;
        self.release_orphan(&self.view(), ino)
    }

    /// Puts a block without names where a directory has a hole, which it must not have, in `most`
    /// places. Returns how many there were.
    ///
    /// # Errors
    /// As [`Filesystem::create`]; [`Error::Stale`] if there is no such directory.
    pub fn fill_directory(&self, dir: Ino, most: u64) -> Result<u64> {
        let inode = self.by_number(dir)?;
        inode.require_directory()?;
        let block_size = self.store.block_size();
        let mut filled = 0;
        let mut next = FileBlock(0);
        while filled < most {
            let done = self.change(Cost { pages: 1, inodes: 1, effect: Effect::Grows }, || {
                let mut state = inode.state.write();
                let context = self.context();
                let end = FileBlock(block_size.blocks_for(state.size()));
                while next < end && !state.is_hole(&context.view, next)? {
                    next = next.plus(1);
                }
                if next >= end {
                    return Ok(true);
                }
                let mut block = zeroed(block_size);
                match next.0 {
                    0 => dirent::format_first(bytes_mut(&mut block), dir, Ino::ROOT),
                    _ => dirent::format_empty(bytes_mut(&mut block)),
                }
                let ready = state.prepare_whole(&context.view, next, block)?;
                state.apply_whole(&context, ready);
                self.directory_changed(&inode, &mut state);
                Ok(false)
            })?;
            if done {
                break;
            }
            filled += 1;
        }
        Ok(filled)
    }
}

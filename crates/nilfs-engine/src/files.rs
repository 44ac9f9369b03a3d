//! What a front end reads: the files of a checkpoint, or those of the live file system; and the
//! past.

use nilfs_ondisk::notes::Note;
use nilfs_ondisk::{Cno, FileBlock, Ino, dirent};

use crate::checkpoints::CheckpointInfo;
use crate::error::{Error, Result};
use crate::fs::Filesystem;
use crate::times::Times;
use crate::tree::{Checkpoints, Tree, View};
use crate::types::{Attr, DirEntry, Seek, StatFs};
use crate::volume::Volume;
use crate::writer::space;

/// Files that can be read, known by their numbers.
///
/// A caller that gets a number from [`Files::lookup`] or [`Files::hold`] holds the file: it stays,
/// even without a name, until [`Files::let_go`] was called as often.
pub trait Files: Send + Sync {
    /// The file that a name leads to, which is held from now on; "." and ".." work too.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::NameTooLong`], [`Error::Stale`] if
    /// there is no such directory, damage, a device error.
    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr>;

    /// A file by its number, which is held from now on.
    ///
    /// # Errors
    /// [`Error::Stale`] if there is none, damage, a device error.
    fn hold(&self, ino: Ino) -> Result<Attr>;

    /// Ends what `times` calls of [`Files::lookup`] or [`Files::hold`] began.
    fn let_go(&self, ino: Ino, times: u64);

    /// Ends what all of them began.
    fn let_go_of_all(&self);

    /// The attributes of a file.
    ///
    /// # Errors
    /// As [`Files::hold`].
    fn attr(&self, ino: Ino) -> Result<Attr>;

    /// Calls `emit` with the entries of a directory from `cookie` on (0 = the first, else the
    /// [`DirEntry::next`] of an entry) until it returns false.
    ///
    /// # Errors
    /// [`Error::NotDirectory`], and as [`Files::hold`].
    fn read_dir(
        &self,
        dir: Ino,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()>;

    /// Reads into `buffer`. Returns the number of bytes, which is smaller only at the end of the
    /// file.
    ///
    /// # Errors
    /// Not a file with content, and as [`Files::hold`].
    fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize>;

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is no link, and as [`Files::hold`].
    fn read_link(&self, ino: Ino) -> Result<Vec<u8>>;

    /// The next data or hole at or after `offset`.
    ///
    /// # Errors
    /// [`Error::NoData`] if there is none, and as [`Files::hold`].
    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64>;

    /// How full the volume is.
    ///
    /// # Errors
    /// Damage, a device error.
    fn stat_fs(&self) -> Result<StatFs>;
}

impl Checkpoints for Volume {
    fn times(&self) -> &Times {
        &self.times
    }

    fn notes(&self) -> Result<Vec<Note>> {
        self.notes()
    }

    fn newest(&self) -> Cno {
        self.last_log().cno
    }

    fn checkpoints(&self, from: Cno, limit: usize) -> Result<Vec<CheckpointInfo>> {
        self.checkpoints(from, limit)
    }

    fn tree(&self, cno: Option<Cno>) -> Result<Tree> {
        self.tree(cno)
    }
}

impl Checkpoints for Filesystem {
    fn times(&self) -> &Times {
        &self.times
    }

    fn notes(&self) -> Result<Vec<Note>> {
        self.notes()
    }

    fn newest(&self) -> Cno {
        self.view().tree.cno
    }

    fn checkpoints(&self, from: Cno, limit: usize) -> Result<Vec<CheckpointInfo>> {
        self.checkpoints(from, limit)
    }

    fn tree(&self, cno: Option<Cno>) -> Result<Tree> {
        self.tree(cno)
    }
}

/// A checkpoint has all of its files for as long as the tree is there, so holding one takes
/// nothing.
impl Files for Tree {
    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        Ok(self.lookup(&self.file(dir)?, name)?.attr())
    }

    fn hold(&self, ino: Ino) -> Result<Attr> {
        self.attr(ino)
    }

    fn let_go(&self, _ino: Ino, _times: u64) {}

    fn let_go_of_all(&self) {}

    fn attr(&self, ino: Ino) -> Result<Attr> {
        Ok(self.file(ino)?.attr())
    }

    fn read_dir(
        &self,
        dir: Ino,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.read_dir(&self.file(dir)?, cookie, emit)
    }

    fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.read(&self.file(ino)?, offset, buffer)
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        self.read_link(&self.file(ino)?)
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        self.seek(&self.file(ino)?, offset, what)
    }

    /// In use is what the checkpoint has; the rest is free, although nothing can be written.
    fn stat_fs(&self) -> Result<StatFs> {
        let view = self.view();
        let geometry = view.store.geometry();
        let blocks = space::total(&geometry);
        let free = blocks.saturating_sub(view.tree.blocks);
        let files = view.inode_capacity()?;
        Ok(StatFs {
            block_size: geometry.block_size.bytes() as u32,
            blocks,
            free,
            available: free,
            files,
            files_free: files.saturating_sub(view.tree.inodes),
            name_max: dirent::NAME_MAX as u32,
        })
    }
}

impl Files for Filesystem {
    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        if name != b"." {
            return self.lookup_and_hold(&self.by_number(dir)?, name);
        }
        // So a file is asked for of which nothing but the number is known. One without a name is kept
        // only for those who have it open, and they need no name.
        let entry = Some(self.inode(dir)?).filter(|entry| entry.attr.nlink > 0);
        let entry = entry.ok_or(Error::Stale)?;
        self.hold(&entry.inode);
        Ok(entry.attr)
    }

    fn hold(&self, ino: Ino) -> Result<Attr> {
        let entry = self.inode(ino)?;
        self.hold(&entry.inode);
        Ok(entry.attr)
    }

    fn let_go(&self, ino: Ino, times: u64) {
        self.let_go(ino, times);
    }

    fn let_go_of_all(&self) {
        self.let_go_of_all();
    }

    fn attr(&self, ino: Ino) -> Result<Attr> {
        self.attr(&self.by_number(ino)?)
    }

    fn read_dir(
        &self,
        dir: Ino,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.read_dir(&self.by_number(dir)?, cookie, emit)
    }

    fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.read(&self.by_number(ino)?, offset, buffer)
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        self.read_link(&self.by_number(ino)?)
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        self.seek(&self.by_number(ino)?, offset, what)
    }

    fn stat_fs(&self) -> Result<StatFs> {
        self.stat_fs()
    }
}

impl View {
    /// The number of inodes for which the ifile has room without growing by another descriptor.
    pub(crate) fn inode_capacity(&self) -> Result<u64> {
        let layout = self.ifile_layout();
        let last: Option<FileBlock> = self.source().last_mapped(&self.tree.ifile)?;
        let descriptors = last.map_or(1, |last| last.0 / layout.blocks_per_descriptor + 1);
        let per_descriptor = layout.groups_per_descriptor * layout.entries_per_group;
        Ok(descriptors.saturating_mul(per_descriptor))
    }
}

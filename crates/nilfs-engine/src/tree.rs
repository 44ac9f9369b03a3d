//! A checkpoint as a value: the root of its ifile. Opening one, old or new, reads a few blocks and
//! writes none. What changes under an open tree is only where its blocks are, and that is the
//! newest DAT's business.

use std::sync::Arc;

use nilfs_ondisk::bmap::Root;
use nilfs_ondisk::checkpoint::RawCheckpoint;
use nilfs_ondisk::inode::{RawInode, S_IFDIR, S_IFMT};
use nilfs_ondisk::palloc::Palloc;
use nilfs_ondisk::{Cno, Ino};

use crate::bmap::{Pointers, Source};
use crate::dat::Dat;
use crate::error::{Error, Result};
use crate::store::Store;

/// The files of one checkpoint.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    pub(crate) cno: Cno,
    pub(crate) ifile: Root,
    pub(crate) inodes: u64,
    pub(crate) blocks: u64,
}

impl Tree {
    /// The tree that a checkpoint entry describes.
    pub(crate) fn new(entry: &RawCheckpoint) -> Result<Self> {
        let cno = Cno(entry.cp_cno.get());
        let bad =
            |source| Error::Corrupt { what: format!("checkpoint {cno}"), block: None, source };
        entry.cp_ifile_inode.validate_metadata_file("ifile inode").map_err(bad)?;
        Ok(Self {
            cno,
            ifile: Root::parse(&entry.cp_ifile_inode.i_bmap).map_err(bad)?,
            inodes: entry.cp_inodes_count.get(),
            blocks: entry.cp_blocks_count.get(),
        })
    }
}

/// A tree together with what it takes to read it.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) store: Arc<Store>,
    pub(crate) dat: Arc<Dat>,
    pub(crate) tree: Arc<Tree>,
    /// Shared by all views between two moments at which the cleaner moved blocks. While somebody
    /// holds one, the places where the blocks were must not be written.
    pub(crate) era: Arc<Era>,
}

/// The time between two moments at which the cleaner moved blocks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Era(pub(crate) u64);

impl View {
    /// Where the blocks of files come from.
    pub(crate) fn source(&self) -> Source<'_> {
        Source { store: &self.store, pointers: Pointers::Virtual(&self.dat) }
    }

    /// How the ifile is laid out.
    pub(crate) fn ifile_layout(&self) -> Palloc {
        let geometry = self.store.geometry();
        Palloc::new(geometry.block_size, geometry.inode_size)
    }

    /// An inode as it lies on disk, whatever its state.
    pub(crate) fn raw_inode(&self, ino: Ino) -> Result<RawInode> {
        let slot = self.ifile_layout().entry(ino.0);
        let block = self.source().block(&self.tree.ifile, slot.block)?.ok_or(Error::Stale)?;
        RawInode::parse(&block[slot.offset..]).map_err(|source| Error::bad_inode(ino, source))
    }

    /// The inode of a file that exists in this tree.
    pub(crate) fn inode(&self, ino: Ino) -> Result<RawInode> {
        let inode = self.raw_inode(ino)?;
        if inode.i_links_count.get() == 0 {
            return Err(Error::Stale);
        }
        inode.file_type().map_err(|source| Error::bad_inode(ino, source))?;
        Ok(inode)
    }

    /// What every mount demands of the root directory (docs/format.md §6).
    pub(crate) fn check_root(&self) -> Result<()> {
        let root = self.inode(Ino::ROOT)?;
        if root.i_mode.get() & S_IFMT != S_IFDIR || root.i_size.get() == 0 {
            return Err(Error::Inconsistent(
                "the root inode is not a directory with entries".into(),
            ));
        }
        Ok(())
    }
}

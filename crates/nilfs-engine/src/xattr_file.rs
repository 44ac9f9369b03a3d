//! The xattr file: what the format has no room for, in an inode that it reserves (docs/format.md
//! §25). Only the newest checkpoint's counts.
//!
//! It is written as part of checkpoints and in no other way, by the changes of metadata that a
//! commit takes along. So it needs no place in the table of inodes, no sync log has anything of it,
//! and what is noted about a checkpoint is there if and only if the change that it belongs to is.

use std::ops::ControlFlow;
use std::sync::Arc;

use nilfs_ondisk::bmap::Root;
use nilfs_ondisk::inode::{FileType, RawInode};
use nilfs_ondisk::notes::{self, Note};
use nilfs_ondisk::xattr_file::{REGION_SIZE, Region};
use nilfs_ondisk::{FileBlock, FormatError, Ino};
use zerocopy::little_endian::{U32, U64};

use crate::bmap::Source;
use crate::checkpoints;
use crate::error::{Error, Result};
use crate::metafile::FileEdit;
use crate::tree::{File, View};

/// Blocks that a file becomes longer by, or its map: a note has less than one.
const MORE_BLOCKS: u64 = 2;

/// The xattr file of a checkpoint, with what a commit is to change in it.
pub(crate) struct XattrFile {
    inode: RawInode,
    file: FileEdit,
}

impl std::fmt::Debug for XattrFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("XattrFile").field("inode", &self.inode).finish_non_exhaustive()
    }
}

impl XattrFile {
    /// The file as a checkpoint has it.
    fn open(view: &View) -> Result<Self> {
        let file = File::new(Ino::XATTR, view.raw_inode(Ino::XATTR)?)?;
        if file.file_type() != FileType::Regular {
            let inode = Ino::XATTR;
            return Err(Error::Inconsistent(format!("inode {inode} is not a regular file")));
        }
        Ok(Self { inode: file.raw, file: FileEdit::new(file.map) })
    }

    /// The file of a checkpoint, with these notes in the place of those that there are. `now` is the
    /// time of the change (s).
    ///
    /// # Errors
    /// [`Error::TooManyNotes`], damage, a device error.
    pub(crate) fn with_notes(view: &View, notes: &[Note], now: u64) -> Result<Self> {
        let mut file = Self::open(view)?;
        file.set_notes(view.source(), notes)?;
        (file.inode.i_mtime, file.inode.i_mtime_nsec) = (U64::new(now), U32::ZERO);
        (file.inode.i_ctime, file.inode.i_ctime_nsec) = (U64::new(now), U32::ZERO);
        Ok(file)
    }

    /// The inode as it is to be written, but for the map of its blocks and their number.
    pub(crate) fn inode(&self) -> RawInode {
        self.inode
    }

    /// The blocks that change.
    pub(crate) fn edit(&self) -> &FileEdit {
        &self.file
    }

    /// What the region of notes has, without looking at what that means.
    fn read_notes(&self, source: Source<'_>) -> Result<Vec<u8>> {
        let block_size = source.store.block_size();
        let first = block_size.block_of(Region::Notes.offset());
        let block = |nth| -> Result<Vec<u8>> {
            let block = self.file.get(source, first.plus(nth))?;
            Ok(block.map_or_else(|| vec![0; block_size.bytes()], |block| block.to_vec()))
        };
        let mut bytes = block(0)?;
        // What is wrong with the head is found out by those who read it.
        let in_use = notes::bytes_in_use(&bytes).unwrap_or(0);
        for nth in 1..block_size.blocks_for(in_use as u64) {
            bytes.extend(block(nth)?);
        }
        Ok(bytes)
    }

    /// Puts notes in the place of those that there are. Blocks that stay the same are not written.
    fn set_notes(&mut self, source: Source<'_>, notes: &[Note]) -> Result<()> {
        let block_size = source.store.block_size();
        let bytes = match notes {
            [] => Vec::new(),
            notes => notes::encode(notes, source.store.seed()).ok_or(Error::TooManyNotes)?,
        };
        let start = Region::Notes.offset();
        let first = block_size.block_of(start);
        let end = block_size.block_of(start + REGION_SIZE);
        for (key, content) in (first.0..).map(FileBlock).zip(bytes.chunks(block_size.bytes())) {
            let mut new = vec![0; block_size.bytes()];
            new[..content.len()].copy_from_slice(content);
            let old = match self.file.get(source, key) {
                Err(Error::Damaged { .. }) => None,
                old => old?,
            };
            if old.is_none_or(|old| old[..] != new[..]) {
                self.file.replace(key, Arc::new(new.into_boxed_slice()));
            }
        }
        let unused = first.plus(block_size.blocks_for(bytes.len() as u64));
        let mut left_over = Vec::new();
        source.scan(self.file.root(), unused, &mut |key, _| {
            if key >= end {
                return Ok(ControlFlow::Break(()));
            }
            left_over.push(key);
            Ok(ControlFlow::Continue(()))
        })?;
        for key in left_over {
            self.file.remove(source, key)?;
        }
        // What other regions have lies beyond, and stays within the size.
        if self.inode.i_size.get() <= start + REGION_SIZE {
            self.inode.i_size = U64::new(start + bytes.len() as u64);
        }
        Ok(())
    }
}

/// Blocks that a change of the file is expected to write, at most.
pub(crate) fn blocks(view: &View) -> u64 {
    // If the inode cannot be read, nothing is written.
    let sectors = view.raw_inode(Ino::XATTR).map_or(0, |inode| inode.i_blocks.get());
    sectors / view.store.block_size().sectors() + MORE_BLOCKS
}

/// What is noted about snapshots.
#[derive(Debug)]
pub(crate) enum NotesFound {
    /// These, each about a snapshot.
    Whole(Vec<Note>),
    /// What is there cannot be read as notes.
    Damaged(Error),
}

/// The notes of the newest checkpoint, which `view` shows. Those about checkpoints that are gone, or
/// no snapshots any more, are left out.
///
/// # Errors
/// The file cannot be read; or the notes are of a later version, and must be left alone.
pub(crate) fn notes(view: &View, cpfile: &Root) -> Result<NotesFound> {
    let source = view.source();
    let file = XattrFile::open(view)?;
    let read = match file.read_notes(source) {
        Err(error @ Error::Damaged { .. }) => return Ok(NotesFound::Damaged(error)),
        read => read?,
    };
    let mut found = match notes::parse(&read, source.store.seed()) {
        Ok(found) => found,
        Err(error @ FormatError::Version { .. }) => return Err(Error::Feature(error)),
        Err(source) => {
            let what = "xattr file".into();
            return Ok(NotesFound::Damaged(Error::Corrupt { what, block: None, source }));
        }
    };
    let mut kept = Vec::with_capacity(found.len());
    for note in found.drain(..) {
        match checkpoints::checkpoint(source, cpfile, note.cno) {
            Ok(entry) if entry.is_snapshot() && entry.cp_create.get() == note.created => {
                kept.push(note);
            }
            Ok(_) | Err(Error::NoCheckpoint(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(NotesFound::Whole(kept))
}

/// The notes, where nothing is to be changed.
///
/// # Errors
/// Damage, of a later version, a device error.
pub(crate) fn readable_notes(view: &View, cpfile: &Root) -> Result<Vec<Note>> {
    match notes(view, cpfile)? {
        NotesFound::Whole(notes) => Ok(notes),
        NotesFound::Damaged(error) => Err(error),
    }
}

//! The content of files: reading, writing, truncating, seeking.

use nilfs_ondisk::inode::FileType;
use nilfs_ondisk::{FileBlock, Ino};

use super::Filesystem;
use super::attributes::check_written;
use super::blocks::{Cut, Ready};
use super::inode::{Context, Inode, InodeRef, State};
use crate::types::Seek;
use crate::writer::space::{Cost, Effect};

use crate::error::{Error, Result};
use crate::tree::content::Content;

/// Bytes of the largest file.
const MAX_SIZE: u64 = i64::MAX as u64;

/// Blocks that are overwritten together on a volume that has room for nothing but that.
const LITTLE_BLOCKS: u64 = 8;

/// Bytes of memory that a commit needs for each block that it frees.
const FREED_BLOCK_BYTES: u64 = 512;

impl Filesystem {
    /// Reads into `buffer`. Returns the number of bytes, which is smaller only at the end of the
    /// file.
    ///
    /// # Errors
    /// Not a file with content, damage, a device error.
    pub fn read(&self, inode: &InodeRef, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        match inode.file_type() {
            FileType::Regular => {}
            FileType::Directory => return Err(Error::IsDirectory),
            _ => return Err(Error::Invalid("only regular files can be read")),
        }
        let state = inode.state.read();
        let view = self.view();
        self.noting(state.read(&view, offset, buffer))
    }

    /// Writes all of `data`, regardless of the flags of the file: a cache that comes to write only now
    /// has accepted the data before. After an error, nothing is written.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::FileTooLarge`], [`Error::ReadOnly`], damage, a device error.
    pub fn write(&self, inode: &InodeRef, offset: u64, data: &[u8]) -> Result<()> {
        if inode.file_type() != FileType::Regular {
            return Err(Error::Invalid("only regular files can be written"));
        }
        let end = offset.checked_add(data.len() as u64).filter(|&end| end <= MAX_SIZE);
        end.ok_or(Error::FileTooLarge)?;
        if data.is_empty() {
            return Ok(());
        }
        let grows = Cost { pages: self.pages_for(data), inodes: 1, effect: Effect::Grows };
        let overwrites = || self.overwrites(&inode.state.read(), offset, data.len());
        // New content of existing blocks may be written to a full volume.
        if self.writer.space.may_fit(grows) || !self.noting(overwrites())? {
            match self.write_at_once(inode, offset, data, Effect::Grows) {
                Err(Error::NoSpace) if self.noting(overwrites())? => {}
                written => return written,
            }
        }
        self.write_at_once(inode, offset, data, Effect::Changes)
    }

    /// Writes `data` as far as the flags of the file allow it; if there is room for a part only, that.
    /// Returns the number of bytes written, which is 0 only if there are none to be written.
    ///
    /// # Errors
    /// As [`Filesystem::write`]; [`Error::NotPermitted`].
    pub fn write_some(&self, inode: &InodeRef, offset: u64, data: &[u8]) -> Result<usize> {
        {
            let state = inode.state.read();
            check_written(&state, offset >= state.size())?;
        }
        match self.write(inode, offset, data) {
            Err(Error::NoSpace) => {}
            written => return written.map(|()| data.len()),
        }
        let block_size = self.store.block_size().bytes64();
        let most = match self.overwrites(&inode.state.read(), offset, data.len())? {
            true => LITTLE_BLOCKS,
            false => self.writer.space.growing_pages(),
        };
        let mut blocks = most.min(data.len() as u64 / block_size);
        while blocks > 0 {
            // The part ends where a block does.
            let end = (offset / block_size + blocks) * block_size;
            let part = usize::try_from(end - offset).unwrap_or(usize::MAX).min(data.len());
            match self.write(inode, offset, &data[..part]) {
                Err(Error::NoSpace) => blocks /= 2,
                written => return written.map(|()| part),
            }
        }
        Err(Error::NoSpace)
    }

    /// The most blocks that writing `data` can touch.
    fn pages_for(&self, data: &[u8]) -> u64 {
        data.len() as u64 / self.store.block_size().bytes64() + 2
    }

    /// Whether a write would find all of its blocks there.
    fn overwrites(&self, state: &State, offset: u64, length: usize) -> Result<bool> {
        let (block_size, view) = (self.store.block_size(), self.view());
        let (first, end) =
            (block_size.block_of(offset), block_size.blocks_for(offset + length as u64));
        for key in first.0..end {
            if state.is_hole(&view, FileBlock(key))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes all of `data`, or nothing. With [`Effect::Changes`], only if that makes nothing
    /// longer.
    fn write_at_once(
        &self,
        inode: &InodeRef,
        offset: u64,
        data: &[u8],
        effect: Effect,
    ) -> Result<()> {
        self.change(Cost { pages: self.pages_for(data), inodes: 1, effect }, || {
            let mut state = inode.state.write();
            let context = self.context();
            if effect == Effect::Changes && !self.overwrites(&state, offset, data.len())? {
                return Err(Error::NoSpace);
            }
            let write = Write::prepare(&state, &context, offset, data)?;
            self.mark_dirty(inode, &mut state);
            write.apply(&mut state, &context);
            state.written(self.now());
            Ok(())
        })
    }

    /// The next data or hole at or after `offset`.
    ///
    /// # Errors
    /// [`Error::NoData`] if there is none, damage, a device error.
    pub fn seek(&self, inode: &InodeRef, offset: u64, what: Seek) -> Result<u64> {
        let state = inode.state.read();
        let view = self.view();
        self.noting(state.seek(&view, offset, what))
    }

    /// Blocks that a commit may free at most: more would take too much memory.
    pub(super) fn most_freed(&self) -> u64 {
        self.options.dirty_limit / FREED_BLOCK_BYTES
    }

    /// Takes the last blocks from a file, as many as a commit may free, unless that is all that it
    /// has beyond `size`. Returns whether it did.
    pub(super) fn shorten(&self, inode: &Inode, state: &mut State, size: u64) -> Result<bool> {
        let context = self.context();
        let Some(from) = inode.tail(state, &context.view, self.most_freed())? else {
            return Ok(false);
        };
        let end = from.0.saturating_mul(self.store.block_size().bytes64());
        if end <= size {
            return Ok(false);
        }
        let cut = state.prepare_cut(&context.view, from)?;
        state.apply_cut(&context, cut);
        let shorter = state.size().min(end);
        state.set_size(shorter);
        Ok(true)
    }

    /// Drops the content of a file that nobody can reach any more, if no checkpoint has the file.
    /// Otherwise files that live for a moment would fill the memory for changes, and what stays would be
    /// written before its time. Where this would have to wait, it is left to the next commit.
    pub(super) fn drop_content(&self, ino: Ino) {
        // A freeze does not take a file for abandoned while anybody refers to it, so it must not meet the
        // reference below.
        let Some(_transaction) = self.writer.try_transaction() else { return };
        let Some(gone) = self.table.lock().abandoned_file(ino) else { return };
        // Whoever writes ahead refers to files without a transaction, and a commit that meets this writes
        // them: a directory or a symbolic link must have its content then.
        if gone.file_type() != FileType::Regular {
            return;
        }
        let mut state = gone.state.write();
        let is_unborn = state.fresh && state.links() == 0;
        if !is_unborn || state.overlay.pages.is_empty() {
            return;
        }
        let grown = state.overlay.block_delta;
        let context = self.context();
        if let Ok(cut) = state.prepare_cut(&context.view, FileBlock(0)) {
            state.apply_cut(&context, cut);
            state.set_size(0);
            self.writer.space.remove_grown(grown.max(0) as u64);
        }
    }

    /// Makes a file shorter until a single commit can free what it has beyond `size`, with a
    /// checkpoint for each part.
    pub(super) fn shorten_in_parts(
        &self,
        inode: &InodeRef,
        size: u64,
        check: impl Fn(&State) -> Result<()>,
    ) -> Result<()> {
        let one_part = Cost { pages: 1, inodes: 1, effect: Effect::Frees };
        loop {
            let shortened = self.change(one_part, || {
                let mut state = inode.state.write();
                check(&state)?;
                let shortened = self.shorten(inode, &mut state, size)?;
                if shortened {
                    state.written(self.now());
                    self.mark_dirty(inode, &mut state);
                }
                Ok(shortened)
            })?;
            if !shortened {
                return Ok(());
            }
            self.commit()?;
        }
    }
}

/// The bytes after an end of a file in its block that are not zero, as they must be when the file grows
/// over them.
pub(super) struct Tail {
    ready: Ready,
    within: usize,
}

impl Tail {
    pub(super) fn prepare(state: &State, context: &Context<'_>, end: u64) -> Result<Option<Self>> {
        let block_size = context.view.store.block_size();
        let within = (end % block_size.bytes64()) as usize;
        if within == 0 {
            return Ok(None);
        }
        let found = state.prepare_data(&context.view, block_size.block_of(end))?;
        let is_clear = |ready: &Ready| ready.block[within..].iter().all(|&byte| byte == 0);
        Ok(found.filter(|ready| !is_clear(ready)).map(|ready| Self { ready, within }))
    }

    pub(super) fn apply(self, state: &mut State, context: &Context<'_>) {
        let rest = self.within..self.ready.block.len();
        state.apply_part(context, self.ready, rest).fill(0);
    }
}

/// Another size of a file, of which everything is in memory that it changes.
pub(super) struct Resize {
    size: u64,
    tail: Option<Tail>,
    cut: Option<Cut>,
}

impl Resize {
    pub(super) fn prepare(state: &State, context: &Context<'_>, size: u64) -> Result<Self> {
        if size > MAX_SIZE {
            return Err(Error::FileTooLarge);
        }
        let (old, block_size) = (state.size(), context.view.store.block_size());
        let cut = match size < old {
            true => {
                let end = FileBlock(block_size.blocks_for(size));
                Some(state.prepare_cut(&context.view, end)?)
            }
            false => None,
        };
        let tail = match size == old {
            true => None,
            false => Tail::prepare(state, context, size.min(old))?,
        };
        Ok(Self { size, tail, cut })
    }

    pub(super) fn apply(self, state: &mut State, context: &Context<'_>) {
        if let Some(tail) = self.tail {
            tail.apply(state, context);
        }
        if let Some(cut) = self.cut {
            state.apply_cut(context, cut);
        }
        state.set_size(self.size);
    }
}

/// New content for a part of a block.
struct Edge<'a> {
    ready: Ready,
    within: usize,
    data: &'a [u8],
}

/// New content for a part of a file, of which everything is in memory that it changes.
struct Write<'a> {
    end: u64,
    /// The old end, if the file grows from beyond it.
    tail: Option<Tail>,
    /// The blocks of which a part stays: the first and the last.
    edges: [Option<Edge<'a>>; 2],
    /// The blocks between them, from this one on, and how many of them are holes.
    first: FileBlock,
    whole: &'a [u8],
    holes: u64,
}

impl<'a> Write<'a> {
    fn prepare(state: &State, context: &Context<'_>, offset: u64, data: &'a [u8]) -> Result<Self> {
        let block_size = context.view.store.block_size();
        let within = (offset % block_size.bytes64()) as usize;
        // Up to where a block begins.
        let before = if within == 0 { 0 } else { block_size.bytes() - within };
        let (head, rest) = data.split_at(before.min(data.len()));
        let (whole, last) = rest.split_at(rest.len() - rest.len() % block_size.bytes());
        let edge = |offset: u64, data: &'a [u8]| -> Result<Option<Edge<'a>>> {
            if data.is_empty() {
                return Ok(None);
            }
            let ready = state.prepare_part(context, block_size.block_of(offset))?;
            Ok(Some(Edge { ready, within: (offset % block_size.bytes64()) as usize, data }))
        };
        let start = offset + head.len() as u64;
        let end = start + rest.len() as u64;
        let keys = block_size.block_of(start).0..block_size.block_of(start + whole.len() as u64).0;
        let mut holes = 0;
        for key in keys.clone() {
            holes += u64::from(state.is_hole(&context.view, FileBlock(key))?);
        }
        let tail = match offset > state.size() {
            true => Tail::prepare(state, context, state.size())?,
            false => None,
        };
        let edges = [edge(offset, head)?, edge(end - last.len() as u64, last)?];
        Ok(Self { end, tail, edges, first: FileBlock(keys.start), whole, holes })
    }

    fn apply(self, state: &mut State, context: &Context<'_>) {
        if let Some(tail) = self.tail {
            tail.apply(state, context);
        }
        for Edge { ready, within, data } in self.edges.into_iter().flatten() {
            let bytes = within..within + data.len();
            state.apply_part(context, ready, bytes).copy_from_slice(data);
        }
        state.apply_content(context, self.first, self.whole, self.holes);
        let size = state.size().max(self.end);
        state.set_size(size);
    }
}

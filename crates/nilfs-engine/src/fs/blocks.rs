//! Changing the blocks of a file in memory, in two steps. An operation first *prepares* all of its changes:
//! what has to be read is read, and nothing has changed when that fails. Then it *applies* them, of which
//! nothing can fail. So no operation ends halfway.
//!
//! What was prepared is valid as long as nobody else changes the blocks: the inode stays locked, or for a
//! directory the lock of names is held.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use nilfs_ondisk::FileBlock;
use nilfs_ondisk::inode::FileType;

use super::inode::{Context, State};
use super::space::Changes;
use crate::block::{Block, bytes_mut};
use crate::error::Result;
use crate::overlay::{Page, Placed};
use crate::tree::View;
use crate::tree::content::Content;

/// A block that can be changed, because its content is in memory.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) key: FileBlock,
    pub(super) block: Block,
    /// The file has nothing there yet.
    hole: bool,
}

impl Ready {
    /// The first block of a file that has none yet.
    pub(super) fn first(block: Block) -> Self {
        Self { key: FileBlock(0), block, hole: true }
    }
}

/// The end of a file, counted so that it can be cut off.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    from: FileBlock,
    blocks: i64,
}

impl State {
    /// A block of which a part is to be changed, unless it is a hole.
    pub(super) fn prepare_data(&self, view: &View, key: FileBlock) -> Result<Option<Ready>> {
        let found = self.block(view, key)?;
        Ok(found.map(|block| Ready { key, block, hole: false }))
    }

    /// A block of which a part is to be changed; zeros for a hole.
    pub(super) fn prepare_part(&self, context: &Context<'_>, key: FileBlock) -> Result<Ready> {
        let zeros = || Ready { key, block: context.pool.zeroed(), hole: true };
        Ok(self.prepare_data(&context.view, key)?.unwrap_or_else(zeros))
    }

    /// A block that is to be replaced as a whole.
    pub(super) fn prepare_whole(&self, view: &View, key: FileBlock, block: Block) -> Result<Ready> {
        Ok(Ready { key, block, hole: self.is_hole(view, key)? })
    }

    /// The end of the file from `from` on.
    pub(super) fn prepare_cut(&self, view: &View, from: FileBlock) -> Result<Cut> {
        let mut blocks = 0;
        self.scan(view, from, &mut |_| {
            blocks += 1;
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(Cut { from, blocks })
    }

    /// These bytes of a block for changing.
    pub(super) fn apply_part(
        &mut self,
        context: &Context<'_>,
        ready: Ready,
        bytes: Range<usize>,
    ) -> &mut [u8] {
        let Ready { key, block, hole } = ready;
        self.count(context, key, hole);
        self.changed(key, bytes.clone());
        &mut bytes_mut(self.overlay.edit(key, block))[bytes]
    }

    /// Replaces a block.
    pub(super) fn apply_whole(&mut self, context: &Context<'_>, ready: Ready) {
        let Ready { key, block, hole } = ready;
        self.count(context, key, hole);
        self.changed(key, 0..block.len());
        self.overlay.insert(key, Page { data: Some(block), placed: None });
    }

    /// Replaces blocks from `first` on with what is as many blocks long. `holes` of them were holes.
    pub(super) fn apply_content(
        &mut self,
        context: &Context<'_>,
        first: FileBlock,
        content: &[u8],
        holes: u64,
    ) {
        let blocks = content.chunks_exact(context.view.store.block_size().bytes());
        for (nth, content) in (0..).zip(blocks) {
            let key = first.plus(nth);
            self.count(context, key, false);
            self.changed(key, 0..content.len());
            let page = self.overlay.pages.get_mut(&key).filter(|page| page.placed.is_none());
            match page.and_then(|page| Arc::get_mut(page.data.as_mut()?)) {
                Some(own) => own.copy_from_slice(content),
                None => {
                    let data = Some(context.pool.copy_of(content));
                    self.overlay.insert(key, Page { data, placed: None });
                }
            }
        }
        if holes > 0 {
            context.space.add(Changes { grown: holes, ..Changes::default() });
            self.overlay.block_delta += holes as i64;
        }
    }

    /// Makes a hole of the end of the file.
    pub(super) fn apply_cut(&mut self, context: &Context<'_>, cut: Cut) {
        let Cut { from, blocks } = cut;
        self.overlay.block_delta -= blocks;
        if self.overlay.is_empty() {
            context.space.add(Changes { maps: 1, ..Changes::default() });
        }
        let removed = self.overlay.truncate(from);
        let placed = removed.values().filter(|page| page.placed.is_some()).count();
        context.space.remove_pages(removed.len() as u64, placed as u64);
        context.pool.recycle(removed.into_values().filter_map(|page| page.data));
        self.unlogged.cut = Some(self.unlogged.cut.map_or(from, |cut| cut.min(from)));
        self.unlogged.content = true;
    }

    /// Lets a block be one that a sync log has.
    pub(super) fn place(
        &mut self,
        context: &Context<'_>,
        key: FileBlock,
        placed: Placed,
    ) -> Result<()> {
        let hole = self.is_hole(&context.view, key)?;
        self.count(context, key, hole);
        self.overlay.insert(key, Page { data: None, placed: Some(placed) });
        Ok(())
    }

    /// Accounts for a block that is about to be a page that has changed.
    fn count(&mut self, context: &Context<'_>, key: FileBlock, hole: bool) {
        match self.overlay.pages.get(&key) {
            Some(page) if page.placed.is_some() => context.space.remove_placed(1),
            Some(_) => {}
            None => {
                let (grown, maps) = (u64::from(hole), u64::from(self.overlay.is_empty()));
                context.space.add(Changes { pages: 1, grown, maps, ..Changes::default() });
                self.overlay.block_delta += i64::from(hole);
            }
        }
    }

    /// Takes note of changed bytes of a file with content; names are not logged by blocks.
    fn changed(&mut self, key: FileBlock, bytes: Range<usize>) {
        if self.file.file_type() != FileType::Directory {
            self.overlay.changed(key, bytes);
        }
    }
}

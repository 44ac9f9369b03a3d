//! Changing the blocks of a file in memory, in two steps. An operation first *prepares* all of its changes:
//! what has to be read is read, and nothing has changed when that fails. Then it *applies* them, of which
//! nothing can fail. So no operation ends halfway.
//!
//! Changes that were prepared are valid as long as no other thread changes the blocks: the inode stays locked,
//! or for a directory the lock of names is held.

use std::ops::{ControlFlow, Range};

use nilfs_ondisk::FileBlock;
use nilfs_ondisk::inode::FileType;

use super::inode::{Context, State};
use crate::block::{Block, bytes_mut};
use crate::error::Result;
use crate::overlay::{Before, Page, Placed};
use crate::tree::View;
use crate::tree::content::Content;
use crate::writer::space::Changes;

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
        self.changed(key, bytes.clone());
        let is_first = self.overlay.is_empty();
        let (block, before) = self.overlay.edit(key, block, hole);
        account(context, before, hole, is_first);
        &mut bytes_mut(block)[bytes]
    }

    /// Replaces a block.
    pub(super) fn apply_whole(&mut self, context: &Context<'_>, ready: Ready) {
        let Ready { key, block, hole } = ready;
        self.changed(key, 0..block.len());
        self.insert(context, key, Page { data: Some(block), placed: None }, hole);
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
            self.changed(key, 0..content.len());
            match self.overlay.overwrite(key, content) {
                Some(before) => account(context, before, false, false),
                None => {
                    let data = Some(context.pool.copy_of(content));
                    self.insert(context, key, Page { data, placed: None }, false);
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
        self.insert(context, key, Page { data: None, placed: Some(placed) }, hole);
        Ok(())
    }

    fn insert(&mut self, context: &Context<'_>, key: FileBlock, page: Page, hole: bool) {
        let is_first = self.overlay.is_empty();
        let before = self.overlay.insert(key, page, hole);
        account(context, before, hole, is_first);
    }

    /// Takes note of changed bytes of a file with content; names are not logged by blocks.
    fn changed(&mut self, key: FileBlock, bytes: Range<usize>) {
        if self.file.file_type() != FileType::Directory {
            self.overlay.changed(key, bytes);
        }
    }
}

/// Accounts for a page that has changed; `is_first`: nothing else of its file had.
fn account(context: &Context<'_>, before: Before, hole: bool, is_first: bool) {
    match before {
        Before::Nothing => {
            let (grown, maps) = (u64::from(hole), u64::from(is_first));
            context.space.add(Changes { pages: 1, grown, maps, ..Changes::default() });
        }
        Before::Page => {}
        Before::Placed => context.space.remove_placed(1),
    }
}

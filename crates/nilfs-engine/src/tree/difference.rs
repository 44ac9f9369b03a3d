//! What two trees of a volume do not have in common.
//!
//! Both are read through one DAT. While two checkpoints exist, the same virtual block number in
//! both is the same block, wherever the cleaner has moved it. So whole subtrees of the ifile and of
//! files are passed over without being read, and a difference costs what differs.

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use nilfs_ondisk::palloc::{BlockRole, test_bit};
use nilfs_ondisk::{FileBlock, Ino};

use super::{Extent, File, Tree, View};
use crate::block::Block;
use crate::error::{Error, Result};

/// A file that is not the same in two trees.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ChangedFile {
    /// Its number. The two may be different files, one after the other: see
    /// [`Attr::generation`](crate::Attr::generation).
    pub ino: Ino,
    /// The file in the first tree, if it has one.
    pub before: Option<File>,
    /// The file in the second one.
    pub after: Option<File>,
}

impl Tree {
    /// Calls `visit` with every file that is not the same in `after`, ascending by number, until it
    /// breaks. A file is the same if its inode is: every change of its content changes that. Only
    /// checkpoints are compared, not what was synced after one.
    ///
    /// # Errors
    /// Damage, a device error.
    ///
    /// # Panics
    /// The trees are of two volumes.
    pub fn changed_files(
        &self,
        after: &Tree,
        visit: &mut dyn FnMut(ChangedFile) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let mut changes = Changes {
            before: self.view(),
            after: self.view_of(after),
            differing: BTreeSet::new(),
            visit,
        };
        let (before, after) = (changes.before.clone(), changes.after.clone());
        let mut flow = ControlFlow::Continue(());
        before.source().differences(&before.tree.ifile, &after.tree.ifile, &mut |differs| {
            flow = changes.of_block(differs.key)?;
            Ok(flow)
        })?;
        match flow {
            ControlFlow::Continue(()) => changes.report_below(Ino(u64::MAX)).map(drop),
            ControlFlow::Break(()) => Ok(()),
        }
    }

    /// Calls `visit` with each run of blocks that two versions of a file do not share, ascending,
    /// until it breaks: `file` is of this tree, `other` of `tree`. They may still be equal. Only
    /// checkpoints are compared, not what was synced after one.
    ///
    /// # Errors
    /// Damage, a device error.
    ///
    /// # Panics
    /// The trees are of two volumes.
    pub fn changed_extents(
        &self,
        file: &File,
        tree: &Tree,
        other: &File,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        let view = self.view();
        let _same_volume = self.view_of(tree);
        let block = view.store.block_size().bytes64();
        let end = file.size().max(other.size());
        let extent = |run: Range<u64>| {
            let offset = run.start.saturating_mul(block);
            Extent { offset, length: run.end.saturating_mul(block).min(end).saturating_sub(offset) }
        };
        let mut run: Option<Range<u64>> = None;
        let mut flow = ControlFlow::Continue(());
        view.source().differences(&file.map, &other.map, &mut |differs| {
            let key = differs.key.0;
            match &mut run {
                Some(run) if run.end == key => run.end += 1,
                run => {
                    if let Some(done) = run.replace(key..key + 1) {
                        flow = visit(extent(done));
                    }
                }
            }
            Ok(flow)
        })?;
        if let (Some(last), ControlFlow::Continue(())) = (run, flow) {
            let _ = visit(extent(last));
        }
        Ok(())
    }

    /// Another tree of the same volume, seen at the same moment.
    fn view_of(&self, other: &Tree) -> View {
        assert!(
            Arc::ptr_eq(&self.shared, &other.shared),
            "trees of two volumes have no blocks in common"
        );
        other.view()
    }
}

/// Two ifiles being compared.
struct Changes<'a> {
    before: View,
    after: View,
    /// Inodes that are known to differ and were not reported yet. Whether an inode exists is in
    /// another block than the inode, and comes before it.
    differing: BTreeSet<Ino>,
    visit: &'a mut dyn FnMut(ChangedFile) -> Result<ControlFlow<()>>,
}

impl Changes<'_> {
    /// Reports what can be told from a block that is not the same in both.
    fn of_block(&mut self, key: FileBlock) -> Result<ControlFlow<()>> {
        let layout = self.before.ifile_layout();
        match layout.role_of(key) {
            BlockRole::Descriptor { .. } => Ok(ControlFlow::Continue(())),
            BlockRole::Bitmap { group } => {
                let flow = self.report_below(Ino(layout.first_of_group(group)))?;
                let bitmaps = [&self.before, &self.after]
                    .map(|view| view.source().block(&view.tree.ifile, key));
                let [before, after] = bitmaps;
                let (before, after) = (before?, after?);
                let is_set = |bitmap: &Option<Block>, bit| {
                    bitmap.as_ref().is_some_and(|bitmap| test_bit(bitmap, bit))
                };
                let bits = 0..layout.entries_per_group as usize;
                let changed = bits.filter(|&bit| is_set(&before, bit) != is_set(&after, bit));
                let first = layout.first_of_group(group);
                self.differing.extend(changed.map(|bit| Ino(first + bit as u64)));
                Ok(flow)
            }
            BlockRole::Entries { first_entry } => self.of_entries(key, first_entry),
        }
    }

    /// Compares the inodes of a block.
    fn of_entries(&mut self, key: FileBlock, first_entry: u64) -> Result<ControlFlow<()>> {
        let layout = self.before.ifile_layout();
        let size = self.before.store.geometry().inode_size;
        let [before, after] =
            [&self.before, &self.after].map(|view| view.source().block(&view.tree.ifile, key));
        let (before, after) = (before?, after?);
        let end = first_entry.saturating_add(layout.entries_per_block);
        for ino in first_entry..end {
            let slot = layout.entry(ino);
            if slot.block != key {
                break;
            }
            let bytes = |block: &Option<Block>| {
                let block = block.as_ref()?;
                block.get(slot.offset..slot.offset + size).map(<[u8]>::to_vec)
            };
            if bytes(&before) != bytes(&after) {
                self.differing.insert(Ino(ino));
            }
        }
        self.report_below(Ino(end))
    }

    /// Reports the inodes below `end` that are known to differ.
    fn report_below(&mut self, end: Ino) -> Result<ControlFlow<()>> {
        let later = self.differing.split_off(&end);
        for ino in std::mem::replace(&mut self.differing, later) {
            let (before, after) = (file_of(&self.before, ino)?, file_of(&self.after, ino)?);
            let exists = before.is_some() || after.is_some();
            if exists && (self.visit)(ChangedFile { ino, before, after })?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// A user's file, if a tree has it.
fn file_of(view: &View, ino: Ino) -> Result<Option<File>> {
    match view.inode(ino) {
        Ok(raw) => File::new(ino, raw).map(Some),
        Err(Error::Stale) => Ok(None),
        Err(error) => Err(error),
    }
}

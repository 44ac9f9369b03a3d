//! Block maps: reading them here, rewriting them in [`edit`] (docs/format.md §7).
//!
//! A map leads from a block of a file to a pointer. What a pointer means depends on the file:
//! [`Pointers`] turns it into a block address.

mod difference;
pub(crate) mod edit;
#[cfg(test)]
mod tests;

use std::ops::{ControlFlow, Range};

use nilfs_ondisk::bmap::{Entry, Node, Root};
use nilfs_ondisk::{BlockNr, FileBlock, VBlockNr};

use crate::block::Block;
use crate::dat::Dat;
use crate::error::{Error, Locate, Result};
use crate::store::Store;

/// What the pointers of a map are.
#[derive(Clone, Copy)]
pub(crate) enum Pointers<'a> {
    /// Block addresses: only the DAT itself.
    Physical,
    /// Virtual block numbers, to be translated by this DAT.
    Virtual(&'a Dat),
}

/// Is told which keys lie below a node that cannot be read, and why.
pub(crate) type Lost<'a> = dyn FnMut(Range<u64>, Error) -> Result<()> + 'a;

/// Where a map's nodes and data come from.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) store: &'a Store,
    pub(crate) pointers: Pointers<'a>,
}

impl Source<'_> {
    /// The address of what a pointer leads to.
    pub(crate) fn locate(&self, pointer: u64) -> Result<BlockNr> {
        match self.pointers {
            Pointers::Physical => Ok(BlockNr(pointer)),
            Pointers::Virtual(dat) => dat.translate(self.store, VBlockNr(pointer)),
        }
    }

    /// The node that an entry of its parent leads to. Its keys must be below `end`, the key of the
    /// next entry: so no node can be met twice on one way through a map.
    pub(crate) fn node(&self, (key, pointer): Entry, level: u8, end: Option<u64>) -> Result<Block> {
        let address = self.locate(pointer)?;
        let what = || format!("B-tree node of level {level}");
        let block = self.store.read_checked(address, |bytes| {
            let node = Node::parse(bytes, level).at(what, address)?;
            node.validate(Some(key)).at(what, address)
        })?;
        // A cached block may have come in as something else.
        let node = Node::parse(&block, level).at(what, address)?;
        let (first, last) = (node.key(0), node.key(node.children() - 1));
        if first != key || end.is_some_and(|end| last >= end) {
            let end = end.map_or("the end".into(), |end| end.to_string());
            return Err(Error::Inconsistent(format!(
                "the B-tree node in block {address} has keys from {first} to {last}, its parent \
                 says from {key} to below {end}"
            )));
        }
        Ok(block)
    }

    /// The data block of a metadata file, if it is not a hole.
    pub(crate) fn block(&self, root: &Root, key: FileBlock) -> Result<Option<Block>> {
        match self.lookup(root, key)? {
            Some(pointer) => self.store.read(self.locate(pointer)?).map(Some),
            None => Ok(None),
        }
    }

    /// The pointer of a block, if it is not a hole.
    pub(crate) fn lookup(&self, root: &Root, key: FileBlock) -> Result<Option<u64>> {
        let (mut level, entries) = match root {
            Root::Direct(pointers) => {
                let pointer = usize::try_from(key.0).ok().and_then(|nth| pointers.get(nth));
                return Ok(pointer.copied().filter(|&pointer| pointer != 0));
            }
            Root::Tree { level, entries } => (*level, entries),
        };
        let rank = entries.partition_point(|&(first, _)| first <= key.0);
        let Some(mut entry) = rank.checked_sub(1).map(|nth| entries[nth]) else {
            return Ok(None);
        };
        while level > 1 {
            level -= 1;
            let block = self.node(entry, level, None)?;
            let node = parse(&block, level)?;
            let Some(nth) = node.rank(key.0).checked_sub(1) else {
                return Ok(None);
            };
            entry = (node.key(nth), node.pointer(nth));
        }
        Ok((entry.0 == key.0 && entry.1 != 0).then_some(entry.1))
    }

    /// Calls `visit` with every mapped block from `from` on, ascending, until it breaks.
    pub(crate) fn scan(
        &self,
        root: &Root,
        from: FileBlock,
        visit: &mut dyn FnMut(FileBlock, u64) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        self.scan_around(root, from, visit, &mut |_, error| Err(error))
    }

    /// As [`Source::scan`]; what lies below a node that cannot be read is left to `lost`.
    pub(crate) fn scan_around(
        &self,
        root: &Root,
        from: FileBlock,
        visit: &mut dyn FnMut(FileBlock, u64) -> Result<ControlFlow<()>>,
        lost: &mut Lost<'_>,
    ) -> Result<()> {
        match root {
            Root::Direct(pointers) => {
                for (nth, &pointer) in pointers.iter().enumerate() {
                    let key = FileBlock(nth as u64);
                    if key >= from && pointer != 0 && visit(key, pointer)?.is_break() {
                        break;
                    }
                }
                Ok(())
            }
            Root::Tree { level, entries } => {
                let entries = entries.iter().copied();
                self.scan_entries(*level, entries, from, None, visit, lost).map(|_| ())
            }
        }
    }

    /// As [`Source::scan_around`], for the entries of one node; all keys are below `end`.
    fn scan_entries(
        &self,
        level: u8,
        entries: impl Iterator<Item = Entry>,
        from: FileBlock,
        end: Option<u64>,
        visit: &mut dyn FnMut(FileBlock, u64) -> Result<ControlFlow<()>>,
        lost: &mut Lost<'_>,
    ) -> Result<ControlFlow<()>> {
        let mut entries = entries.peekable();
        while let Some(entry) = entries.next() {
            let flow = if level == 1 {
                if entry.0 < from.0 || entry.1 == 0 {
                    continue;
                }
                visit(FileBlock(entry.0), entry.1)?
            } else {
                // A child ends before the first key of the next one.
                if entries.peek().is_some_and(|next| next.0 <= from.0) {
                    continue;
                }
                let end = entries.peek().map(|next| next.0).or(end);
                let block = match self.node(entry, level - 1, end) {
                    Ok(block) => block,
                    Err(error) => {
                        lost(entry.0.max(from.0)..end.unwrap_or(u64::MAX), error)?;
                        continue;
                    }
                };
                let node = parse(&block, level - 1)?;
                let skip = node.rank(from.0).saturating_sub(1);
                self.scan_entries(level - 1, node.entries().skip(skip), from, end, visit, lost)?
            };
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Calls `visit` with every block of a map with physical pointers: its address, its level (0
    /// for data) and its first key. A node comes before what lies below it.
    pub(crate) fn scan_all(
        &self,
        root: &Root,
        visit: &mut dyn FnMut(BlockNr, u8, FileBlock) -> Result<()>,
    ) -> Result<()> {
        match root {
            Root::Direct(pointers) => {
                let mapped = (0..).zip(pointers).filter(|(_, pointer)| **pointer != 0);
                for (key, &pointer) in mapped {
                    visit(BlockNr(pointer), 0, FileBlock(key))?;
                }
                Ok(())
            }
            Root::Tree { level, entries } => {
                self.scan_all_entries(*level, entries.iter().copied(), None, visit)
            }
        }
    }

    fn scan_all_entries(
        &self,
        level: u8,
        entries: impl Iterator<Item = Entry>,
        end: Option<u64>,
        visit: &mut dyn FnMut(BlockNr, u8, FileBlock) -> Result<()>,
    ) -> Result<()> {
        let mut entries = entries.peekable();
        while let Some(entry) = entries.next() {
            visit(BlockNr(entry.1), level - 1, FileBlock(entry.0))?;
            if level > 1 {
                let end = entries.peek().map(|next| next.0).or(end);
                let block = self.node(entry, level - 1, end)?;
                let node = parse(&block, level - 1)?;
                self.scan_all_entries(level - 1, node.entries(), end, visit)?;
            }
        }
        Ok(())
    }

    /// Whether a map has a node with this level, first key and pointer.
    pub(crate) fn has_node(&self, root: &Root, key: u64, level: u8, pointer: u64) -> Result<bool> {
        let Root::Tree { level: top, entries } = root else {
            return Ok(false);
        };
        let mut above = *top;
        let rank = entries.partition_point(|&(first, _)| first <= key);
        let Some(mut entry) = rank.checked_sub(1).map(|nth| entries[nth]) else {
            return Ok(false);
        };
        while above > level + 1 {
            above -= 1;
            let block = self.node(entry, above, None)?;
            let node = parse(&block, above)?;
            let Some(nth) = node.rank(key).checked_sub(1) else {
                return Ok(false);
            };
            entry = (node.key(nth), node.pointer(nth));
        }
        Ok(above == level + 1 && entry == (key, pointer))
    }

    /// The last mapped block.
    pub(crate) fn last_mapped(&self, root: &Root) -> Result<Option<FileBlock>> {
        let (mut level, entries) = match root {
            Root::Direct(pointers) => {
                let nth = pointers.iter().rposition(|&pointer| pointer != 0);
                return Ok(nth.map(|nth| FileBlock(nth as u64)));
            }
            Root::Tree { level, entries } => (*level, entries),
        };
        let Some(mut entry) = entries.last().copied() else {
            return Ok(None);
        };
        while level > 1 {
            level -= 1;
            let block = self.node(entry, level, None)?;
            let node = parse(&block, level)?;
            let nth = node.children() - 1;
            entry = (node.key(nth), node.pointer(nth));
        }
        Ok(Some(FileBlock(entry.0)))
    }
}

/// A node of a block that [`Source::node`] has read.
pub(crate) fn parse(block: &Block, level: u8) -> Result<Node<'_>> {
    Node::parse(block, level).map_err(|source| Error::Corrupt {
        what: "B-tree node".into(),
        block: None,
        source,
    })
}

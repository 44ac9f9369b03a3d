//! Blocks and nodes of the DAT that are in use. The DAT keeps no lifetimes of its own blocks: what one log has written,
//! a later one may have written again, with another first key, or as a part of a neighbour.
//!
//! Nodes of one level that are in use at the same time share no key. So of two that do, the one counts that was
//! written last.

use std::collections::BTreeMap;

use nilfs_check::Part;
use nilfs_ondisk::bmap::{Entry, Node};
use nilfs_ondisk::palloc::{BlockRole, Palloc, test_bit};
use nilfs_ondisk::{BlockNr, FileBlock, Ino};

use crate::anew::Anew;
use crate::logged::Logged;

impl Anew<'_> {
    /// The nodes of the DAT one level below a part of it, by first keys.
    pub(crate) fn dat_nodes(&self, part: &Part) -> Vec<Entry> {
        let level = part.level - 1;
        let end = self.end_of(Ino::DAT).min(part.limit.unwrap_or(u64::MAX));
        // The last keys below nodes, and where these are, by first keys.
        let mut found = BTreeMap::<u64, (u64, BlockNr)>::new();
        let logged = self.logged;
        // Those that were written last come first.
        for node in logged.nodes(Ino::DAT) {
            let key = self.key_of(node, level);
            let Some(first) = key.filter(|key| (part.key..end).contains(key)) else { continue };
            let begins_before = |key: u64| found.range(..=key).next_back();
            let shares = |last: u64| begins_before(last).is_some_and(|(_, it)| it.0 >= first);
            // Most versions begin with the same key, and need not be read.
            if shares(first) {
                continue;
            }
            let last = self.last_below(node.block, (level, first));
            if last < end && !shares(last) && self.may_be_in_use(node, (level, first)) {
                found.insert(first, (last, node.block));
            }
        }
        found.into_iter().map(|(key, (_, block))| (key, block.0)).collect()
    }

    /// Whether no entry is in use of which a block of the DAT says something: then it has been taken out.
    pub(crate) fn is_dat_hole(&self, key: u64) -> bool {
        let layout = Palloc::new(self.geometry.block_size, self.geometry.dat_entry_size);
        let (group, entries) = match layout.role_of(FileBlock(key)) {
            BlockRole::Entries { first_entry } => {
                (layout.group_of(first_entry), Some(layout.bit(first_entry)))
            }
            BlockRole::Bitmap { group } => (group, None),
            BlockRole::Descriptor { .. } => return false,
        };
        // Of a group without entries, the bitmap is taken out as well, and what it said last may be otherwise.
        if self.is_free_group(&layout, group) {
            return true;
        }
        let Some(first) = entries else { return false };
        let bitmap = self.newest_of_dat(first.block);
        let mut bits = first.bit..first.bit + layout.entries_per_block as usize;
        bitmap.is_some_and(|bitmap| {
            bits.all(|bit| bit >= bitmap.len() * 8 || !test_bit(&bitmap, bit))
        })
    }

    fn is_free_group(&self, layout: &Palloc, group: u64) -> bool {
        let counter = layout.descriptor(group);
        let counters = self.newest_of_dat(counter.block);
        counters.is_some_and(|bytes| {
            let counter = bytes.get(counter.offset..).and_then(<[u8]>::first_chunk);
            counter.is_some_and(|it| u64::from(u32::from_le_bytes(*it)) == layout.entries_per_group)
        })
    }

    /// A block of the DAT as it was written last.
    fn newest_of_dat(&self, block: FileBlock) -> Option<Vec<u8>> {
        let versions = self.logged.data(Ino::DAT, block.0, block.0.checked_add(1));
        self.read(versions.first()?.block)
    }

    /// The last block of the DAT below a node of it, as far as that can be read.
    fn last_below(&self, mut block: BlockNr, (level, mut key): (u8, u64)) -> u64 {
        for level in (1..=level).rev() {
            let Some(bytes) = self.read(block) else { break };
            let node = Node::parse(&bytes, level).ok();
            let Some(node) = node.filter(|it| it.validate(Some(key)).is_ok()) else { break };
            let last = node.children() - 1;
            (key, block) = (node.key(last), BlockNr(node.pointer(last)));
        }
        key
    }

    /// Whether nothing of what lies below a node was written after it, and not all of that has been taken out.
    fn may_be_in_use(&self, node: &Logged, (level, first): (u8, u64)) -> bool {
        let bytes = self.read(node.block);
        let is_node = |it: &Node<'_>| it.validate(Some(first)).is_ok();
        let Some(found) =
            bytes.as_ref().and_then(|bytes| Node::parse(bytes, level).ok()).filter(is_node)
        else {
            return !self.is_dat_hole(first);
        };
        if level > 1 {
            return true;
        }
        let is_replaced = |(key, pointer): Entry| {
            let versions = self.logged.data(Ino::DAT, key, key.checked_add(1));
            let newest = versions.first().filter(|it| it.written > node.written);
            newest.is_some_and(|it| it.block.0 != pointer)
        };
        !found.entries().any(is_replaced) && !found.entries().all(|(key, _)| self.is_dat_hole(key))
    }
}

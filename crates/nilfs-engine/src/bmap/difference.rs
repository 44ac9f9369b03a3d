//! What two maps do not have in common.
//!
//! Both maps are gone through in the order of their keys. Where both have the same node it is
//! passed over unread, with everything below it; so maps of different heights can be compared as
//! well.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use nilfs_ondisk::FileBlock;
use nilfs_ondisk::bmap::Root;

use super::{Source, parse};
use crate::error::Result;

/// A block that is not the same in two maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Differs {
    pub(crate) key: FileBlock,
    /// The pointers of the first map and of the second, where they have the block.
    pub(crate) pointers: [Option<u64>; 2],
}

/// A node, or a data block (level 0), that is to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Item {
    key: u64,
    level: u8,
    pointer: u64,
}

/// What is left of a map, the next item last.
struct Rest<'a> {
    source: &'a Source<'a>,
    items: Vec<Item>,
}

impl Source<'_> {
    /// Calls `visit` with every block that is not the same in two maps, ascending, until it breaks.
    /// A block is the same if its pointer is.
    pub(crate) fn differences(
        &self,
        one: &Root,
        other: &Root,
        visit: &mut dyn FnMut(Differs) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let (mut one, mut other) = (Rest::new(self, one), Rest::new(self, other));
        loop {
            let (a, b) = (one.next(), other.next());
            let (Some(key), order) = (a.or(b).map(|item| item.key), order(a, b)) else {
                return Ok(());
            };
            match (a, b, order) {
                (Some(a), Some(b), Ordering::Equal) if a == b => {
                    one.pass();
                    other.pass();
                }
                (Some(a), Some(b), Ordering::Equal) if a.level > 0 || b.level > 0 => {
                    if a.level >= b.level { one.enter(a)? } else { other.enter(b)? }
                }
                (Some(a), Some(b), Ordering::Equal) => {
                    one.pass();
                    other.pass();
                    let pointers = [Some(a.pointer), Some(b.pointer)];
                    if visit(Differs { key: FileBlock(key), pointers })?.is_break() {
                        return Ok(());
                    }
                }
                (Some(a), _, Ordering::Less) if a.level > 0 => one.enter(a)?,
                (_, Some(b), Ordering::Greater) if b.level > 0 => other.enter(b)?,
                (a, b, order) => {
                    let first = order == Ordering::Less;
                    let item = if first {
                        one.pass();
                        a
                    } else {
                        other.pass();
                        b
                    };
                    let Some(item) = item else { return Ok(()) };
                    let pointer = Some(item.pointer);
                    let pointers = if first { [pointer, None] } else { [None, pointer] };
                    if visit(Differs { key: FileBlock(item.key), pointers })?.is_break() {
                        return Ok(());
                    }
                }
            }
        }
    }
}

/// Which of two maps has the next item.
fn order(one: Option<Item>, other: Option<Item>) -> Ordering {
    match (one, other) {
        (Some(one), Some(other)) => one.key.cmp(&other.key),
        (Some(_), None) => Ordering::Less,
        _ => Ordering::Greater,
    }
}

impl<'a> Rest<'a> {
    fn new(source: &'a Source<'a>, root: &Root) -> Self {
        let items = match root {
            Root::Direct(pointers) => {
                let items =
                    (0..).zip(pointers).map(|(key, &pointer)| Item { key, level: 0, pointer });
                let mut items: Vec<Item> = items.filter(|item| item.pointer != 0).collect();
                items.reverse();
                items
            }
            Root::Tree { level, entries } => {
                let item = |&(key, pointer)| Item { key, level: level - 1, pointer };
                entries.iter().rev().map(item).collect()
            }
        };
        Self { source, items }
    }

    fn next(&self) -> Option<Item> {
        self.items.last().copied()
    }

    /// Goes on after the next item.
    fn pass(&mut self) {
        self.items.pop();
    }

    /// Puts what is below the next item, a node, in its place.
    fn enter(&mut self, item: Item) -> Result<()> {
        self.items.pop();
        let end = self.next().map(|item| item.key);
        let block = self.source.node((item.key, item.pointer), item.level, end)?;
        let node = parse(&block, item.level)?;
        let mut below: Vec<Item> = node
            .entries()
            .map(|(key, pointer)| Item { key, level: item.level - 1, pointer })
            .filter(|item| item.pointer != 0)
            .collect();
        below.reverse();
        self.items.append(&mut below);
        Ok(())
    }
}

//! Rewriting a block map: from an old root and a sorted run of changes to a new root and the new
//! nodes. The old map stays as it is; nothing is written here.
//!
//! Every node on the way to a change is made anew, once, whatever the number of changes below it.
//! Neighbours that are both new are filled up together, so splitting, borrowing and merging are one
//! step: gather the entries, deal them out to as many nodes as they need.
//!
//! The addresses of new blocks are not known yet when the map is rewritten. Pointers to them are
//! *provisional*: [`PROVISIONAL_NODE`] or [`PROVISIONAL_DATA`] and an index, replaced by
//! [`Rewritten::resolve`] when the real pointers are known.

use nilfs_ondisk::FileBlock;
use nilfs_ondisk::bmap::{
    DIRECT_POINTERS, Entry, LEVEL_MAX, ROOT_MAX_CHILDREN, Root, max_children,
};

use super::{Source, parse};
use crate::error::{Error, Result};

/// Marks a pointer to a new node; the other bits are its index in [`Rewritten::nodes`].
pub(crate) const PROVISIONAL_NODE: u64 = 1 << 63;
/// Marks a pointer to a new data block whose pointer is not known yet; the meaning of the other
/// bits is the caller's.
pub(crate) const PROVISIONAL_DATA: u64 = 1 << 62;

/// A change of one block: its new pointer, or `None` to make it a hole.
pub(crate) type Update = (FileBlock, Option<u64>);

/// A node that is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewNode {
    pub(crate) level: u8,
    pub(crate) entries: Vec<Entry>,
}

/// A rewritten map.
#[derive(Debug, Default)]
pub(crate) struct Rewritten {
    pub(crate) root: Root,
    /// The new nodes, by ascending level and within a level by first key.
    pub(crate) nodes: Vec<NewNode>,
    /// Pointers of blocks, data and nodes, that the new map has no more.
    pub(crate) dead: Vec<u64>,
    /// How many data and node blocks the new map has more than the old one.
    pub(crate) block_delta: i64,
}

impl Rewritten {
    /// Replaces every provisional pointer, in the root and in the nodes. `node` gives the pointer of
    /// the nth new node, `data` that of a provisional data pointer (without its mark).
    pub(crate) fn resolve(&mut self, node: impl Fn(usize) -> u64, data: impl Fn(u64) -> u64) {
        let real = |pointer: u64| {
            if pointer & PROVISIONAL_NODE != 0 {
                node((pointer & !PROVISIONAL_NODE) as usize)
            } else if pointer & PROVISIONAL_DATA != 0 {
                data(pointer & !PROVISIONAL_DATA)
            } else {
                pointer
            }
        };
        let entries = self
            .nodes
            .iter_mut()
            .flat_map(|node| node.entries.iter_mut());
        entries.for_each(|(_, pointer)| *pointer = real(*pointer));
        match &mut self.root {
            Root::Direct(pointers) => pointers.iter_mut().for_each(|p| *p = real(*p)),
            Root::Tree { entries, .. } => entries.iter_mut().for_each(|e| e.1 = real(e.1)),
        }
    }
}

/// Makes a new map out of `root`: first all blocks from `cut` on become holes, then `updates` (by
/// ascending block) are applied.
pub(crate) fn rewrite(
    source: Source<'_>,
    root: &Root,
    cut: Option<FileBlock>,
    updates: &[Update],
) -> Result<Rewritten> {
    debug_assert!(updates.is_sorted_by(|a, b| a.0 < b.0), "updates ascend");
    let most = max_children(source.store.block_size());
    let mut rewrite = Rewrite {
        source,
        cut: cut.map(|cut| cut.0),
        most,
        out: Output::default(),
    };
    let (level, old) = match root {
        Root::Direct(pointers) => {
            let mapped = pointers
                .iter()
                .enumerate()
                .filter(|(_, pointer)| **pointer != 0);
            (
                1,
                mapped
                    .map(|(nth, pointer)| (nth as u64, *pointer))
                    .collect(),
            )
        }
        Root::Tree { level, entries } => (*level, entries.clone()),
    };
    let entries = rewrite.entries(level, &old, updates, None)?;
    let root = rewrite.top(level, entries)?;
    Ok(rewrite.out.finish(root))
}

#[derive(Default)]
struct Output {
    /// `None` where a node was taken up into the root again.
    nodes: Vec<Option<NewNode>>,
    dead: Vec<u64>,
    block_delta: i64,
}

impl Output {
    fn add(&mut self, level: u8, entries: Vec<Entry>) -> Entry {
        let entry = (entries[0].0, PROVISIONAL_NODE | self.nodes.len() as u64);
        self.nodes.push(Some(NewNode { level, entries }));
        self.block_delta += 1;
        entry
    }

    fn kill(&mut self, pointer: u64) {
        self.dead.push(pointer);
        self.block_delta -= 1;
    }

    /// Brings the nodes into the order in which they are written.
    fn finish(self, root: Root) -> Rewritten {
        let mut order: Vec<usize> = (0..self.nodes.len())
            .filter(|&nth| self.nodes[nth].is_some())
            .collect();
        order.sort_by_key(|&nth| {
            self.nodes[nth]
                .as_ref()
                .map(|node| (node.level, node.entries[0].0))
        });
        let mut place = vec![0; self.nodes.len()];
        for (new, &old) in order.iter().enumerate() {
            place[old] = new;
        }
        let mut nodes = self.nodes;
        let nodes = order.iter().filter_map(|&old| nodes[old].take()).collect();
        let mut result = Rewritten {
            root,
            nodes,
            dead: self.dead,
            block_delta: self.block_delta,
        };
        result.resolve(
            |old| PROVISIONAL_NODE | place[old] as u64,
            |data| PROVISIONAL_DATA | data,
        );
        result
    }
}

/// A child while its parent is made anew.
enum Child {
    /// As it was.
    Kept(Entry),
    /// The entries that it, and new neighbours with it, will have.
    New(Vec<Entry>),
}

struct Rewrite<'a> {
    source: Source<'a>,
    cut: Option<u64>,
    most: usize,
    out: Output,
}

impl Rewrite<'_> {
    /// The new entries of a node of `level`; all keys are below `end`, if there is one.
    fn entries(
        &mut self,
        level: u8,
        old: &[Entry],
        updates: &[Update],
        end: Option<u64>,
    ) -> Result<Vec<Entry>> {
        if level == 1 {
            return Ok(self.leaf(old, updates));
        }
        let mut children: Vec<Child> = Vec::new();
        let mut rest = updates;
        for (nth, &entry) in old.iter().enumerate() {
            let child_end = old.get(nth + 1).map(|next| next.0).or(end);
            let count = old.get(nth + 1).map_or(rest.len(), |next| {
                rest.partition_point(|update| update.0.0 < next.0)
            });
            let (own, others) = rest.split_at(count);
            rest = others;
            match self.child(level - 1, entry, own, child_end)? {
                Child::New(entries) if entries.is_empty() => {}
                child => children.push(child),
            }
        }
        join_neighbours(&mut children);
        self.fill_up(level - 1, &mut children)?;
        Ok(self.deal_out_all(level - 1, children, end.is_none()))
    }

    fn leaf(&mut self, old: &[Entry], updates: &[Update]) -> Vec<Entry> {
        let mut entries = Vec::with_capacity(old.len() + updates.len());
        let mut old = old.iter().copied().peekable();
        let mut updates = updates.iter().copied().peekable();
        loop {
            let before = match (old.peek(), updates.peek()) {
                (None, None) => return entries,
                (Some(entry), Some(update)) => entry.0 < update.0.0,
                (entry, _) => entry.is_some(),
            };
            if before {
                let Some(entry) = old.next() else {
                    return entries;
                };
                if self.cut.is_some_and(|cut| entry.0 >= cut) {
                    self.out.kill(entry.1);
                } else {
                    entries.push(entry);
                }
                continue;
            }
            let Some((key, pointer)) = updates.next() else {
                return entries;
            };
            if let Some(replaced) = old.next_if(|entry| entry.0 == key.0) {
                self.out.kill(replaced.1);
            }
            if let Some(pointer) = pointer {
                entries.push((key.0, pointer));
                self.out.block_delta += 1;
            }
        }
    }

    fn child(
        &mut self,
        level: u8,
        entry: Entry,
        updates: &[Update],
        end: Option<u64>,
    ) -> Result<Child> {
        let reaches_cut = self.cut.is_some_and(|cut| end.is_none_or(|end| cut < end));
        if updates.is_empty() && !reaches_cut {
            return Ok(Child::Kept(entry));
        }
        let old = self.take(level, entry)?;
        Ok(Child::New(self.entries(level, &old, updates, end)?))
    }

    /// The entries of an old node that will not exist any more.
    fn take(&mut self, level: u8, entry: Entry) -> Result<Vec<Entry>> {
        let block = self.source.node(entry, level)?;
        self.out.kill(entry.1);
        Ok(parse(&block, level)?.entries().collect())
    }

    /// Lets new children that are much too small take in a neighbour.
    fn fill_up(&mut self, level: u8, children: &mut Vec<Child>) -> Result<()> {
        let mut nth = 0;
        while nth < children.len() {
            let small = matches!(&children[nth], Child::New(e) if e.len() < self.most / 4);
            if !small || children.len() == 1 {
                nth += 1;
                continue;
            }
            let neighbour = if nth > 0 { nth - 1 } else { 1 };
            if let Child::Kept(entry) = children[neighbour] {
                children[neighbour] = Child::New(self.take(level, entry)?);
            }
            join_neighbours(children);
            nth = nth.saturating_sub(1);
        }
        Ok(())
    }

    fn deal_out_all(&mut self, level: u8, children: Vec<Child>, at_end: bool) -> Vec<Entry> {
        let last = children.len().saturating_sub(1);
        let mut entries = Vec::with_capacity(children.len());
        for (nth, child) in children.into_iter().enumerate() {
            match child {
                Child::Kept(entry) => entries.push(entry),
                Child::New(own) => entries.extend(self.deal_out(level, own, at_end && nth == last)),
            }
        }
        entries
    }

    /// Makes nodes of the entries: full ones at the end of the file, where more will be appended,
    /// evenly filled ones elsewhere.
    fn deal_out(&mut self, level: u8, entries: Vec<Entry>, at_end: bool) -> Vec<Entry> {
        let nodes = entries.len().div_ceil(self.most).max(1);
        let size = if at_end {
            self.most
        } else {
            entries.len().div_ceil(nodes)
        };
        entries
            .chunks(size.max(1))
            .map(|part| self.out.add(level, part.to_vec()))
            .collect()
    }

    /// The root over the entries of the topmost level: higher if they are too many, lower if a
    /// single new node below could be the root itself.
    fn top(&mut self, mut level: u8, mut entries: Vec<Entry>) -> Result<Root> {
        while level > 1 && entries.len() == 1 && entries[0].1 & PROVISIONAL_NODE != 0 {
            let nth = (entries[0].1 & !PROVISIONAL_NODE) as usize;
            let fits = self.out.nodes[nth].as_ref().is_some_and(|node| {
                node.entries.len() <= ROOT_MAX_CHILDREN || fits_direct(level - 1, &node.entries)
            });
            let Some(node) = self.out.nodes[nth].take_if(|_| fits) else {
                break;
            };
            self.out.block_delta -= 1;
            (level, entries) = (level - 1, node.entries);
        }
        if entries.is_empty() {
            return Ok(Root::default());
        }
        if fits_direct(level, &entries) {
            let mut pointers = [0; DIRECT_POINTERS];
            entries
                .iter()
                .for_each(|&(key, pointer)| pointers[key as usize] = pointer);
            return Ok(Root::Direct(pointers));
        }
        while entries.len() > ROOT_MAX_CHILDREN {
            entries = self.deal_out(level, entries, true);
            level += 1;
        }
        if level >= LEVEL_MAX {
            return Err(Error::FileTooLarge);
        }
        Ok(Root::Tree { level, entries })
    }
}

fn fits_direct(level: u8, entries: &[Entry]) -> bool {
    level == 1
        && entries
            .last()
            .is_none_or(|last| last.0 < DIRECT_POINTERS as u64)
}

/// Makes one child of new ones that are neighbours.
fn join_neighbours(children: &mut Vec<Child>) {
    let mut joined: Vec<Child> = Vec::with_capacity(children.len());
    for child in children.drain(..) {
        match (joined.last_mut(), child) {
            (Some(Child::New(before)), Child::New(more)) => before.extend(more),
            (_, child) => joined.push(child),
        }
    }
    *children = joined;
}

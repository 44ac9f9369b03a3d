//! Rewriting a block map: from an old root and a sorted run of changes to a new root and the new
//! nodes. The old map stays as it is; nothing is written here.
//!
//! Every node on the way to a change is made anew, once, whatever the number of changes below it.
//! First the new nodes are only lists of children ([`Child::New`]); neighbours among them are
//! joined, and one that became much too small takes in an old neighbour. Then, from the leaves
//! upwards, every list is dealt out to as many nodes as it needs. So splitting, borrowing and
//! merging are one step.
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
    /// Replaces every provisional pointer, in the root and in the nodes. `node` gives the pointer
    /// of the nth new node, `data` that of a provisional data pointer (without its mark).
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
        let entries = self.nodes.iter_mut().flat_map(|node| node.entries.iter_mut());
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
    let mut rewrite = Rewrite { source, cut: cut.map(|cut| cut.0), most, out: Output::default() };
    let (level, old) = match root {
        Root::Direct(pointers) => {
            let mapped = pointers.iter().enumerate().filter(|(_, pointer)| **pointer != 0);
            (1, mapped.map(|(nth, pointer)| (nth as u64, *pointer)).collect())
        }
        Root::Tree { level, entries } => (*level, entries.clone()),
    };
    check_pointers(&old)?;
    let mut children = rewrite.children(level, &old, updates, None)?;
    rewrite.fill_up(level, &mut children)?;
    let entries = rewrite.write_out(level, children, true)?;
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
        let mut order: Vec<usize> =
            (0..self.nodes.len()).filter(|&nth| self.nodes[nth].is_some()).collect();
        order.sort_by_key(|&nth| {
            self.nodes[nth].as_ref().map(|node| (node.level, node.entries[0].0))
        });
        let mut place = vec![0; self.nodes.len()];
        for (new, &old) in order.iter().enumerate() {
            place[old] = new;
        }
        let mut nodes = self.nodes;
        let nodes = order.iter().filter_map(|&old| nodes[old].take()).collect();
        let mut result = Rewritten { root, nodes, dead: self.dead, block_delta: self.block_delta };
        result.resolve(|old| PROVISIONAL_NODE | place[old] as u64, |data| PROVISIONAL_DATA | data);
        result
    }
}

/// A child while its parent is made anew. Data blocks are children too: of leaves.
enum Child {
    /// As it was, or a data block.
    Kept(Entry),
    /// A node to be made, with its children; more than fit into one, perhaps.
    New(Vec<Child>),
}

struct Rewrite<'a> {
    source: Source<'a>,
    cut: Option<u64>,
    most: usize,
    out: Output,
}

impl Rewrite<'_> {
    /// The new children of a node of `level`; all keys are below `end`, if there is one.
    fn children(
        &mut self,
        level: u8,
        old: &[Entry],
        updates: &[Update],
        end: Option<u64>,
    ) -> Result<Vec<Child>> {
        if level == 1 {
            return Ok(self.leaf(old, updates));
        }
        let mut children: Vec<Child> = Vec::with_capacity(old.len());
        let mut rest = updates;
        for (nth, &entry) in old.iter().enumerate() {
            let next = old.get(nth + 1).map(|next| next.0);
            let count =
                next.map_or(rest.len(), |next| rest.partition_point(|update| update.0.0 < next));
            let (own, others) = rest.split_at(count);
            rest = others;
            match self.child(level - 1, entry, own, next.or(end))? {
                Child::New(children) if children.is_empty() => {}
                child => join(&mut children, child),
            }
        }
        Ok(children)
    }

    fn leaf(&mut self, old: &[Entry], updates: &[Update]) -> Vec<Child> {
        let mut entries = Vec::with_capacity(old.len() + updates.len());
        let mut old = old.iter().copied().peekable();
        for &(key, pointer) in updates {
            while let Some(entry) = old.next_if(|entry| entry.0 < key.0) {
                entries.extend(self.uncut(entry));
            }
            if let Some(replaced) = old.next_if(|entry| entry.0 == key.0) {
                self.out.kill(replaced.1);
            }
            if let Some(pointer) = pointer {
                entries.push(Child::Kept((key.0, pointer)));
                self.out.block_delta += 1;
            }
        }
        for entry in old {
            entries.extend(self.uncut(entry));
        }
        entries
    }

    /// A data block that is not overwritten, unless it is cut off.
    fn uncut(&mut self, entry: Entry) -> Option<Child> {
        if self.cut.is_some_and(|cut| entry.0 >= cut) {
            self.out.kill(entry.1);
            return None;
        }
        Some(Child::Kept(entry))
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
        let old = self.take(level, entry, end)?;
        Ok(Child::New(self.children(level, &old, updates, end)?))
    }

    /// The entries of an old node that will not exist any more.
    fn take(&mut self, level: u8, entry: Entry, end: Option<u64>) -> Result<Vec<Entry>> {
        let block = self.source.node(entry, level, end)?;
        self.out.kill(entry.1);
        let entries: Vec<Entry> = parse(&block, level)?.entries().collect();
        check_pointers(&entries)?;
        Ok(entries)
    }

    /// Lets new children of a node of `level` that are much too small take in a neighbour.
    fn fill_up(&mut self, level: u8, children: &mut Vec<Child>) -> Result<()> {
        let mut nth = 0;
        while nth < children.len() && children.len() > 1 {
            if !matches!(&children[nth], Child::New(own) if own.len() < self.most / 4) {
                nth += 1;
                continue;
            }
            let neighbour = if nth > 0 { nth - 1 } else { 1 };
            if let Child::Kept(entry) = children[neighbour] {
                let entries = self.take(level - 1, entry, None)?;
                children[neighbour] = Child::New(entries.into_iter().map(Child::Kept).collect());
            }
            let second = children.remove(nth.max(neighbour));
            let first = children.remove(nth.min(neighbour));
            let mut joined = vec![first];
            join(&mut joined, second);
            nth = nth.min(neighbour);
            children.splice(nth..nth, joined);
        }
        Ok(())
    }

    /// Makes the new nodes below a node of `level`; returns the entries of that node.
    fn write_out(&mut self, level: u8, children: Vec<Child>, at_end: bool) -> Result<Vec<Entry>> {
        let last = children.len().saturating_sub(1);
        let mut entries = Vec::with_capacity(children.len());
        for (nth, child) in children.into_iter().enumerate() {
            match child {
                Child::Kept(entry) => entries.push(entry),
                Child::New(mut own) => {
                    let at_end = at_end && nth == last;
                    self.fill_up(level - 1, &mut own)?;
                    let own = self.write_out(level - 1, own, at_end)?;
                    entries.extend(self.deal_out(level - 1, &own, at_end));
                }
            }
        }
        Ok(entries)
    }

    /// Makes nodes of the entries: full ones at the end of the file, where more will be appended,
    /// evenly filled ones elsewhere. None gets a single child if there are more: Linux cannot
    /// delete from an only child whose parent is not the root.
    fn deal_out(&mut self, level: u8, entries: &[Entry], at_end: bool) -> Vec<Entry> {
        let mut made = Vec::with_capacity(entries.len() / self.most + 1);
        let mut rest = entries;
        let even = entries.len().div_ceil(entries.len().div_ceil(self.most).max(1));
        while !rest.is_empty() {
            let size = match at_end {
                _ if rest.len() <= self.most => rest.len(),
                false => even,
                true => self.most.min(rest.len() - self.most / 4),
            };
            let (part, others) = rest.split_at(size.min(rest.len()));
            made.push(self.out.add(level, part.to_vec()));
            rest = others;
        }
        made
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
            entries.iter().for_each(|&(key, pointer)| pointers[key as usize] = pointer);
            return Ok(Root::Direct(pointers));
        }
        while entries.len() > ROOT_MAX_CHILDREN {
            entries = self.deal_out(level, &entries, true);
            level += 1;
        }
        if level >= LEVEL_MAX {
            return Err(Error::FileTooLarge);
        }
        Ok(Root::Tree { level, entries })
    }
}

fn fits_direct(level: u8, entries: &[Entry]) -> bool {
    level == 1 && entries.iter().all(|entry| entry.0 < DIRECT_POINTERS as u64)
}

/// Appends a child to its elder siblings; new ones that become neighbours are joined, and so are
/// their children at the seam.
fn join(children: &mut Vec<Child>, child: Child) {
    match (children.last_mut(), child) {
        (Some(Child::New(before)), Child::New(more)) => {
            more.into_iter().for_each(|child| join(before, child));
        }
        (_, child) => children.push(child),
    }
}

/// Fails if a pointer from the device could be taken for a provisional one.
/// Whether a block map can lead to a block of this number: it looks like no provisional pointer.
pub(crate) fn is_possible(pointer: u64) -> bool {
    pointer & (PROVISIONAL_NODE | PROVISIONAL_DATA) == 0
}

fn check_pointers(entries: &[Entry]) -> Result<()> {
    match entries.iter().find(|(_, pointer)| !is_possible(*pointer)) {
        Some((key, pointer)) => Err(Error::Inconsistent(format!(
            "a block map leads from block {key} to the impossible block {pointer}"
        ))),
        None => Ok(()),
    }
}

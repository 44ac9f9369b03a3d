//! Blocks that a block map has lost: a node or a root with fewer entries than it had still looks whole.
//! That they are missing follows from what counts them, and where they belong from the logs. What the map
//! has stays as it is.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::mem::offset_of;
use std::ops::Range;

use nilfs_check::{Part, Position};
use nilfs_ondisk::bmap::{
    DIRECT_POINTERS, Entry, LEVEL_MAX, Node, ROOT_MAX_CHILDREN, ROOT_SIZE, Root, encode_node,
    max_children,
};
use nilfs_ondisk::inode::{FileType, RawInode};
use nilfs_ondisk::summary::BlockInfo;
use nilfs_ondisk::{BlockNr, BlockSize, Cno, Ino, VBlockNr};

use crate::Risk;
use crate::anew::{Anew, Replacement};
use crate::logged::Logged;

/// A node of a map, or its root, with its entries.
pub(crate) struct Above {
    /// The block of a node; `None` for the root.
    pub(crate) block: Option<BlockNr>,
    /// What it covers, at its level.
    pub(crate) part: Part,
    pub(crate) entries: Vec<Entry>,
}

/// Pointers that a map has lost, by level and first key.
type Lost = BTreeMap<(u8, u64), u64>;

/// A block map, taken apart.
pub(crate) struct Map {
    root: Position,
    is_direct: bool,
    is_of_directory: bool,
    /// Its root, and the nodes that can be reached from there.
    pub(crate) nodes: Vec<Above>,
}

impl Map {
    /// Takes apart the map with the root in a place. `None` if the root cannot be read.
    pub(crate) fn read(anew: &mut Anew<'_>, at: Position, part: &Part) -> Option<Self> {
        let block = anew.read(at.block)?;
        let found: &[u8; ROOT_SIZE] =
            block.get(at.offset..at.offset + ROOT_SIZE)?.try_into().ok()?;
        let root = Root::parse(found).ok()?;
        let is_direct = matches!(root, Root::Direct(_));
        let (level, entries) = match root {
            Root::Direct(pointers) => {
                (1, (0..).zip(pointers).filter(|(_, pointer)| *pointer != 0).collect())
            }
            Root::Tree { level, entries } => (level, entries),
        };
        let mut nodes = Vec::new();
        anew.walk(None, Part { level, ..part.clone() }, entries, &mut nodes);
        let inode = at.offset.checked_sub(offset_of!(RawInode, i_bmap));
        let inode = inode.and_then(|start| RawInode::parse(block.get(start..)?).ok());
        let file_type = inode.and_then(|inode| inode.file_type().ok());
        let is_of_directory = file_type == Some(FileType::Directory);
        Some(Self { root: at, is_direct, is_of_directory, nodes })
    }

    /// The nodes of the map, without its root.
    pub(crate) fn blocks_of_nodes(&self) -> BTreeSet<BlockNr> {
        self.nodes.iter().filter_map(|it| it.block).collect()
    }

    /// Whether nothing is in it.
    fn is_empty(&self) -> bool {
        self.nodes.iter().all(|node| node.entries.is_empty())
    }

    /// Returns what a node, or the root, is with these entries. `None` if there is no room for them.
    pub(crate) fn with_entries(
        &self,
        node: &Above,
        entries: Vec<Entry>,
        size: BlockSize,
    ) -> Option<(Position, Vec<u8>)> {
        let level = node.part.level;
        match node.block {
            Some(block) if entries.len() <= max_children(size) => {
                let mut bytes = vec![0; size.bytes()];
                encode_node(&mut bytes, level, &entries);
                Some((Position { block, offset: 0 }, bytes))
            }
            None if self.is_direct => {
                let mut pointers = [0; DIRECT_POINTERS];
                for (key, pointer) in entries {
                    *pointers.get_mut(usize::try_from(key).ok()?)? = pointer;
                }
                Some((self.root, Root::Direct(pointers).encode().to_vec()))
            }
            None if entries.len() <= ROOT_MAX_CHILDREN => {
                Some((self.root, Root::Tree { level, entries }.encode().to_vec()))
            }
            _ => None,
        }
    }
}

impl Anew<'_> {
    /// The root, or the highest node, to which entries are added that it has lost.
    pub(crate) fn unmapped(&mut self, at: Position, part: &Part) -> Option<Replacement> {
        let map = Map::read(self, at, part)?;
        let action = "put blocks into the map again that it has lost, as the logs say";
        // What its level was is lost with the entries.
        if map.is_empty() {
            if map.is_of_directory && self.begins_otherwise(part) {
                return None;
            }
            let root = self.root(part)?.encode().to_vec();
            return Some(Replacement::new(at, root, Risk::Safe, action));
        }
        let lost = self.lost(part, &map.nodes);
        // What is below a node that is lost is there again with it.
        let mut highest: Vec<&Above> = map.nodes.iter().collect();
        highest.sort_by_key(|node| Reverse(node.part.level));
        let (above, entries) = highest.into_iter().find_map(|node| {
            let Part { key, limit, level, .. } = node.part;
            let within = lost.range((level - 1, key)..=(level - 1, u64::MAX));
            let within = within.take_while(|((_, key), _)| limit.is_none_or(|end| *key < end));
            let mut entries: BTreeMap<u64, u64> = node.entries.iter().copied().collect();
            let before = entries.len();
            within.for_each(|((_, key), pointer)| _ = entries.entry(*key).or_insert(*pointer));
            (entries.len() > before).then_some((node, entries))
        })?;
        let entries = entries.into_iter().collect();
        let changed = map.with_entries(above, entries, self.geometry.block_size);
        let (at, bytes) = changed.or_else(|| self.with_lost_leaves((&map, part), above, &lost))?;
        Some(Replacement::new(at, bytes, Risk::Safe, action))
    }

    /// The node above a full one, with nodes that are lost for the data that come after those of the full one. The
    /// lost ones will be made anew.
    fn with_lost_leaves(
        &self,
        (map, part): (&Map, &Part),
        full: &Above,
        lost: &Lost,
    ) -> Option<(Position, Vec<u8>)> {
        let last = full.entries.last().filter(|_| full.part.level == 1)?.0;
        let keys = lost.range((0, full.part.key)..=(0, u64::MAX)).map(|((_, key), _)| *key);
        let keys: Vec<u64> =
            keys.take_while(|key| full.part.limit.is_none_or(|end| *key < end)).collect();
        if keys.first().is_none_or(|first| *first < last) {
            return None;
        }
        let most = max_children(self.geometry.block_size);
        let firsts = keys.chunks(most).map(|keys| keys[0]);
        let unclaimed = self.unclaimed_before(&map.blocks_of_nodes(), part);
        let skipped = unclaimed.len().checked_sub(firsts.len())?;
        let nodes = unclaimed.into_values().skip(skipped).map(|vblock| vblock.0);
        let leads_to_full = |it: &&Above| {
            it.part.level == 2 && it.entries.iter().any(|(key, _)| *key == full.part.key)
        };
        let above = map.nodes.iter().find(leads_to_full)?;
        let mut entries: BTreeMap<u64, u64> = above.entries.iter().copied().collect();
        entries.extend(firsts.zip(nodes));
        map.with_entries(above, entries.into_iter().collect(), self.geometry.block_size)
    }

    /// Collects what has the pointers of a map.
    fn walk(
        &mut self,
        block: Option<BlockNr>,
        part: Part,
        entries: Vec<Entry>,
        nodes: &mut Vec<Above>,
    ) {
        let limits = entries.iter().skip(1).map(|(key, _)| Some(*key)).chain([part.limit]);
        let children: Vec<_> = entries.iter().copied().zip(limits).collect();
        nodes.push(Above { block, part: part.clone(), entries });
        if part.level == 1 {
            return;
        }
        for ((key, pointer), limit) in children {
            let below = Part { level: part.level - 1, key, limit, ..part.clone() };
            let Some((block, life)) = self.child(&below, pointer) else { continue };
            let Some(bytes) = self.read(block) else { continue };
            let Ok(node) = Node::parse(&bytes, below.level) else { continue };
            // So no node is entered twice.
            if node.validate(Some(key)).is_ok() {
                let entries = node.entries().collect();
                self.walk(Some(block), Part { life, ..below }, entries, nodes);
            }
        }
    }

    /// Where a pointer leads, and the checkpoints that have it.
    fn child(&mut self, part: &Part, pointer: u64) -> Option<(BlockNr, Range<Cno>)> {
        if part.ino == Ino::DAT {
            return Some((BlockNr(pointer), part.life.clone()));
        }
        let entry = self.dat.as_mut()?.entry(VBlockNr(pointer))?;
        Some((entry.block, entry.start..entry.end))
    }

    /// Pointers to blocks of a file that are there, and to which its map does not lead, by level and first
    /// key. Of two at the same place, the one counts that is younger.
    fn lost(&mut self, part: &Part, nodes: &[Above]) -> Lost {
        let reached: HashSet<u64> =
            nodes.iter().flat_map(|node| &node.entries).map(|(_, pointer)| *pointer).collect();
        let logged = self.logged;
        let mut lost = BTreeMap::<(u8, u64), (_, u64)>::new();
        for logged in logged.of(part.ino) {
            let pointer = logged.info.vblock().map_or(logged.block.0, |vblock| vblock.0);
            if reached.contains(&pointer) || !self.lives(logged, part) {
                continue;
            }
            let end = self.end_of(part.ino);
            let place = self.place_of(logged).filter(|(_, key)| *key < end);
            let Some(place) = place else { continue };
            let age = (logged.since, logged.written);
            let known = lost.entry(place).or_insert((age, pointer));
            *known = (*known).max((age, pointer));
        }
        lost.into_iter().map(|(place, (_, pointer))| (place, pointer)).collect()
    }

    /// The level and the first key of a block.
    fn place_of(&self, logged: &Logged) -> Option<(u8, u64)> {
        match logged.info {
            BlockInfo::Data { offset, .. } | BlockInfo::DatData { offset } => Some((0, offset.0)),
            BlockInfo::DatNode { key, level } => Some((level, key)),
            BlockInfo::Node { .. } => {
                (1..LEVEL_MAX).find_map(|level| Some((level, self.key_of(logged, level)?)))
            }
        }
    }
}

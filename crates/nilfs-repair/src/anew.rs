//! What is damaged beyond use, made anew from what the logs say: nodes and roots of block maps, DAT
//! entries, blocks of metadata files, inodes.
//!
//! A virtual block never changes. So what lies below a node is what was written for its file, at
//! places that it covers, and lives at least as long as the node does: the summaries tell the former
//! and the DAT the latter. The DAT itself has no lives; of its blocks, those count that were written
//! last. Where a block of a metadata file is gone, an older version of it is a beginning: the
//! checker says what else has become other since.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use nilfs_check::{Correction, Holder, Part, Position};
use nilfs_device::Device;
use nilfs_engine::scan::Scan;
use nilfs_ondisk::bmap::{
    DIRECT_POINTERS, Entry, LEVEL_MAX, Node, ROOT_MAX_CHILDREN, ROOT_SIZE, Root, encode_node,
    max_children,
};
use nilfs_ondisk::dat::{DAT_ENTRY_SIZE, DatEntry};
use nilfs_ondisk::inode::{FileType, RawInode};
use nilfs_ondisk::palloc::{BlockRole, Palloc};
use nilfs_ondisk::summary::BlockInfo;
use nilfs_ondisk::superblock::LogCursor;
use nilfs_ondisk::{BlockNr, Cno, FileBlock, Geometry, Ino, VBlockNr, notes};
use zerocopy::little_endian::U16;

use crate::contradicted::Disputed;
use crate::dat::{Dat, read};
use crate::file_type::{begins_directory, is_first_of_directory};
use crate::logged::{Logged, LoggedBlocks, Wanted};
use crate::numbers::RemadeIfile;
use crate::salvage::{LostName, Source};
use crate::{Risk, salvage, superblocks};

/// Bytes that are to be other ones.
pub(crate) struct Replacement {
    pub(crate) at: Position,
    pub(crate) bytes: Vec<u8>,
    /// What that means.
    pub(crate) action: String,
    pub(crate) risk: Risk,
    /// The files that are in the bytes, if they are inodes.
    pub(crate) files: BTreeSet<Ino>,
    /// Whether it is what a log says about its blocks.
    pub(crate) describes: bool,
    /// Names that are not in a directory any more, though they may have been.
    pub(crate) lost_names: Vec<salvage::LostName>,
    /// Whether it stands for content that is lost, and stays known as damaged.
    pub(crate) is_made_up: bool,
}

impl Replacement {
    pub(crate) fn new(at: Position, bytes: Vec<u8>, risk: Risk, action: impl Into<String>) -> Self {
        let (files, describes, lost_names, is_made_up) = Default::default();
        Self { at, bytes, action: action.into(), risk, files, describes, lost_names, is_made_up }
    }
}

/// What has to be known of the logs to make a correction.
pub(crate) fn wanted(correction: &Correction, geometry: &Geometry, wanted: &mut Wanted) {
    let inodes = |wanted: &mut Wanted, key: u64| {
        let layout = Palloc::new(geometry.block_size, geometry.inode_size);
        if let BlockRole::Entries { first_entry } = layout.role_of(FileBlock(key)) {
            let all = first_entry..first_entry.saturating_add(layout.entries_per_block);
            wanted.files.extend(all.map(Ino));
        }
    };
    match correction {
        Correction::Block { part, .. } if part.level == 0 => {
            wanted.files.insert(part.ino);
            match part.ino {
                Ino::IFILE => inodes(wanted, part.key),
                Ino::CPFILE => wanted.files.extend([Ino::IFILE, Ino::XATTR]),
                Ino::DAT => {
                    let layout = Palloc::new(geometry.block_size, geometry.dat_entry_size);
                    if let BlockRole::Entries { first_entry } = layout.role_of(FileBlock(part.key))
                    {
                        let all = first_entry..first_entry.saturating_add(layout.entries_per_block);
                        wanted.vblocks.extend(all.map(VBlockNr));
                    }
                }
                _ => _ = wanted.files.insert(Ino::IFILE),
            }
        }
        Correction::Block { part, .. }
        | Correction::Pointer { part, .. }
        | Correction::Unmapped { part, .. }
        | Correction::Root { part, .. } => wanted.files.extend([Ino::IFILE, part.ino]),
        Correction::Inode { part, .. } | Correction::FileType { part, .. } => {
            wanted.files.extend([Ino::IFILE, part.ino])
        }
        Correction::DatEntry { vblock, .. } | Correction::Start { vblock, .. } => {
            _ = wanted.vblocks.insert(*vblock)
        }
        _ => {}
    }
}

/// A draft, and what the logs say about it.
pub(crate) struct Anew<'a> {
    pub(crate) device: &'a dyn Device,
    /// The device without corrections, where everything can be read that is there.
    pub(crate) as_found: &'a dyn Device,
    pub(crate) geometry: Geometry,
    pub(crate) newest: LogCursor,
    pub(crate) logged: &'a LoggedBlocks,
    pub(crate) scan: Option<&'a Scan>,
    /// What contradicts the logs.
    pub(crate) disputed: &'a Disputed,
    /// Blocks of inodes that were made anew.
    pub(crate) remade_ifile: &'a RemadeIfile,
    /// `None` if no super root leads to it.
    pub(crate) dat: Option<Dat<'a>>,
}

impl Anew<'_> {
    /// What a correction comes to. `None` if nothing is known of it, or nothing would change.
    pub(crate) fn make(&mut self, correction: &Correction) -> Option<Replacement> {
        let new = match correction {
            Correction::Block { block, part } if part.level > 0 => self.node(*block, part),
            Correction::Block { block, part } => self.data(*block, part),
            Correction::Pointer { holder, part } => self.pointer(*holder, part),
            Correction::Root { at, part } => {
                let root = self.root(part)?.encode();
                let action = "make the root of the block map anew from what the logs say";
                Some(Replacement::new(*at, root.to_vec(), Risk::Safe, action))
            }
            Correction::Unmapped { root, part } => self.unmapped(*root, part),
            Correction::DatEntry { at, vblock, bit } => self.dat_entry(*at, *vblock, *bit),
            Correction::Start { at, vblock, written } => self.start(*at, *vblock, *written),
            Correction::Inode { at, part } => self.inode(*at, part),
            Correction::FileType { inode, part, claimed, claim } => {
                self.file_type(*inode, part, (*claimed, *claim))
            }
            _ => None,
        }?;
        let start = self.geometry.block_size.address_of(new.at.block)? + new.at.offset as u64;
        let mut found = vec![0; new.bytes.len()];
        let same = self.device.read_at(start, &mut found).is_ok() && found == new.bytes;
        (!same || !new.lost_names.is_empty()).then_some(new)
    }

    pub(crate) fn read(&self, block: BlockNr) -> Option<Vec<u8>> {
        read(self.device, &self.geometry, block)
    }

    /// Whether a block is there that all of a part's checkpoints have.
    pub(crate) fn lives(&mut self, logged: &Logged, part: &Part) -> bool {
        if logged.info.vblock().is_none() {
            return part.ino == Ino::DAT;
        }
        let life = self.life_of(logged);
        life.is_some_and(|life| life.start <= part.life.start && life.end >= part.life.end)
    }

    /// Returns the checkpoints that have a block, if it is there.
    pub(crate) fn life_of(&mut self, logged: &Logged) -> Option<Range<Cno>> {
        let entry = self.dat.as_mut()?.entry(logged.info.vblock()?)?;
        (entry.block == logged.block).then_some(entry.start..entry.end)
    }

    /// What is one level below a part of a file, by first keys. Of two at the same place, the one
    /// counts that is younger.
    pub(crate) fn children(&mut self, part: &Part) -> Vec<Entry> {
        if part.ino == Ino::DAT && part.level > 1 {
            return self.dat_nodes(part);
        }
        let logged = self.logged;
        let within = |key: &u64| *key >= part.key && part.limit.is_none_or(|limit| *key < limit);
        let mut found = BTreeMap::<u64, ((Cno, _), u64)>::new();
        let end = self.end_of(part.ino);
        let candidates = match part.level {
            1 => logged.data(part.ino, part.key, part.limit),
            _ => logged.nodes(part.ino),
        };
        for logged in candidates {
            let key = self.key_of(logged, part.level - 1).filter(within);
            let Some(key) = key.filter(|key| *key < end) else { continue };
            // Those of the DAT that were written last come first.
            let is_dat = part.ino == Ino::DAT;
            if is_dat && found.contains_key(&key) || !self.lives(logged, part) {
                continue;
            }
            // A node has no room for blocks that have been taken out since. The one with its first key has not.
            if is_dat && key != part.key && self.is_dat_hole(key) {
                continue;
            }
            let pointer = logged.info.vblock().map_or(logged.block.0, |vblock| vblock.0);
            let age = (logged.since, logged.written);
            let known = found.entry(key).or_insert((age, pointer));
            if !is_dat && age > known.0 {
                *known = (age, pointer);
            }
        }
        found.into_iter().map(|(key, (_, pointer))| (key, pointer)).collect()
    }

    /// Before which block a file must end. Blocks of the DAT have no lives, which would tell an old log
    /// that is damaged.
    pub(crate) fn end_of(&self, ino: Ino) -> u64 {
        let layout = Palloc::new(self.geometry.block_size, self.geometry.dat_entry_size);
        match ino {
            Ino::DAT => layout.bitmap(layout.max_groups()).0,
            _ => u64::MAX,
        }
    }

    /// The first key of a block, if it is of that level.
    pub(crate) fn key_of(&self, logged: &Logged, level: u8) -> Option<u64> {
        match logged.info {
            BlockInfo::Data { .. } | BlockInfo::DatData { .. } => {
                logged.offset().filter(|_| level == 0)
            }
            BlockInfo::DatNode { key, level: found } => (found == level).then_some(key),
            BlockInfo::Node { .. } if level > 0 => {
                let bytes = self.read(logged.block)?;
                let node = Node::parse(&bytes, level).ok()?;
                node.validate(None).is_ok().then(|| node.key(0))
            }
            BlockInfo::Node { .. } => None,
        }
    }

    fn node(&mut self, block: BlockNr, part: &Part) -> Option<Replacement> {
        let mut children = self.children(part);
        if part.level > 1 {
            children = self.with_lost_nodes(Some(block), part, children).0;
        } else if children.is_empty() {
            children = self.unclaimed_children(block, part);
        }
        let has_all = |node: &Vec<Entry>| children.iter().all(|child| node.contains(child));
        let is_whole =
            part.ino != Ino::DAT && self.entries_at(block, part).is_some_and(|it| has_all(&it));
        // Where it begins is for the one above to say.
        if is_whole || !(1..=max_children(self.geometry.block_size)).contains(&children.len()) {
            return None;
        }
        let mut bytes = vec![0; self.geometry.block_size.bytes()];
        encode_node(&mut bytes, part.level, &children);
        let action = "make the node anew from what the logs say";
        Some(Replacement::new(Position { block, offset: 0 }, bytes, Risk::Safe, action))
    }

    /// Adds to the nodes one level below a part as many of those that cannot be read as there must be. Which of them
    /// has had what is no matter: each will be made anew. Of the others, those stay that have no older blocks than
    /// there are, because the end of a life is told by the DAT alone. Returns the lost nodes that are left, too.
    fn with_lost_nodes(
        &mut self,
        but_for: Option<BlockNr>,
        part: &Part,
        nodes: Vec<Entry>,
    ) -> (Vec<Entry>, Vec<VBlockNr>) {
        if part.ino == Ino::DAT {
            return (nodes, Vec::new());
        }
        let level = part.level - 1;
        let newest: BTreeMap<_, _> =
            self.children(&Part { level, ..part.clone() }).into_iter().collect();
        let is_newest = |(key, pointer): &Entry| newest.get(key).is_none_or(|it| it == pointer);
        let mut held = BTreeSet::new();
        let mut all = BTreeMap::new();
        for (key, pointer) in &nodes {
            let below = self.entries_of(*pointer, level).unwrap_or_default();
            if below.iter().all(is_newest) {
                held.extend(below);
                all.insert(*key, *pointer);
            }
        }
        let mut lost = self.lost_nodes(but_for, part);
        let most = max_children(self.geometry.block_size);
        let keys = newest.into_iter().filter(|entry| !held.contains(entry)).map(|(key, _)| key);
        let firsts = first_keys(keys, &all, most);
        if firsts.is_empty() || firsts.len() > lost.len() {
            return (nodes, lost);
        }
        let left = lost.split_off(firsts.len());
        all.extend(firsts.into_iter().zip(lost.iter().map(|vblock| vblock.0)));
        (all.into_iter().collect(), left)
    }

    /// The nodes of a file, but for one, that cannot be read, and to which no other one leads.
    fn lost_nodes(&mut self, but_for: Option<BlockNr>, part: &Part) -> Vec<VBlockNr> {
        let (mut lost, mut held) = (Vec::new(), BTreeSet::new());
        for node in self.logged.nodes(part.ino) {
            if Some(node.block) == but_for || !self.lives(node, part) {
                continue;
            }
            let Some(vblock) = node.info.vblock() else { continue };
            let level = (1..LEVEL_MAX).find(|level| self.key_of(node, *level).is_some());
            match level.map(|level| self.entries_of(vblock.0, level).unwrap_or_default()) {
                None => lost.push(vblock),
                Some(entries) if level > Some(1) => {
                    held.extend(entries.into_iter().map(|(_, pointer)| VBlockNr(pointer)));
                }
                Some(_) => {}
            }
        }
        match but_for {
            Some(_) => held.extend(self.held_by_root(part)),
            // Of a file that has lost its inode, too, nothing else tells of nodes of which no summary does.
            None => lost.extend(self.unclaimed_nodes(part)),
        }
        lost.retain(|vblock| !held.contains(vblock));
        lost
    }

    /// Blocks of which the DAT alone tells, and that look like nothing: they may have been nodes of a file.
    fn unclaimed_nodes(&self, part: &Part) -> Vec<VBlockNr> {
        let looks_like_something = |block: BlockNr| {
            let is_node =
                |level| self.read(block).is_some_and(|it| Node::parse(&it, level).is_ok());
            (1..LEVEL_MAX).any(is_node) || self.read(block).is_some_and(|it| begins_directory(&it))
        };
        let unclaimed = self.unclaimed(part).into_iter();
        unclaimed.filter(|(block, _)| !looks_like_something(*block)).map(|(_, it)| it).collect()
    }

    /// The nodes to which the root of a file's map leads, if that is known.
    fn held_by_root(&self, part: &Part) -> Vec<VBlockNr> {
        let inode = self.inode_as_of(part.ino, part.life.start).filter(|_| part.ino.is_of_user());
        match inode.and_then(|inode| Root::parse(&inode.i_bmap).ok()) {
            Some(Root::Tree { entries, .. }) => {
                entries.into_iter().map(|(_, pointer)| VBlockNr(pointer)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The entries of a node with a virtual number.
    fn entries_of(&mut self, vblock: u64, level: u8) -> Option<Vec<Entry>> {
        let entry = self.dat.as_mut()?.entry(VBlockNr(vblock))?;
        let bytes = self.read(entry.block)?;
        Some(Node::parse(&bytes, level).ok()?.entries().collect())
    }

    /// The root of a file's map: above the highest nodes there are, and those that cannot be read.
    pub(crate) fn root(&mut self, part: &Part) -> Option<Root> {
        let data = self.children(&Part { level: 1, ..part.clone() });
        let nodes_of = |this: &mut Self, level| {
            let part = Part { level, ..part.clone() };
            this.children(&part)
        };
        let top = (2..LEVEL_MAX).rev().find(|level| !nodes_of(self, *level).is_empty());
        if top.is_none() && data.iter().all(|(key, _)| *key < DIRECT_POINTERS as u64) {
            let mut pointers = [0; DIRECT_POINTERS];
            data.iter().for_each(|(key, pointer)| pointers[*key as usize] = *pointer);
            return Some(Root::Direct(pointers));
        }
        if top.is_none() && data.len() <= ROOT_MAX_CHILDREN {
            return Some(Root::Tree { level: 1, entries: data });
        }
        let level = top.unwrap_or(2);
        let nodes = nodes_of(self, level);
        let part = Part { level, ..part.clone() };
        let (entries, mut left) = self.with_lost_nodes(None, &part, nodes);
        if (1..=ROOT_MAX_CHILDREN).contains(&entries.len()) {
            return Some(Root::Tree { level, entries });
        }
        let groups = entries.chunks(max_children(self.geometry.block_size));
        let above = groups.map_while(|group| Some((group.first()?.0, left.pop()?.0)));
        let above: Vec<Entry> = above.collect();
        let has_all = above.len() * max_children(self.geometry.block_size) >= entries.len();
        let fits = has_all && (1..=ROOT_MAX_CHILDREN).contains(&above.len());
        fits.then_some(Root::Tree { level: level + 1, entries: above })
    }

    /// A pointer that leads to what belongs there, or that is taken out.
    fn pointer(&mut self, holder: Holder, part: &Part) -> Option<Replacement> {
        let above = Part { level: part.level + 1, ..part.clone() };
        let mut right = self.children(&above).first().copied();
        if let Some(pointer) = self.held(holder, part) {
            if let Some(owned) = self.owned(part, pointer, right) {
                return Some(owned);
            }
            right = right.or_else(|| self.begins_elsewhere(part, pointer));
        }
        let put = |entries: &mut Vec<Entry>| {
            let at = entries.iter().position(|(key, _)| *key == part.key)?;
            match right {
                Some(right) => entries[at] = right,
                None => _ = entries.remove(at),
            }
            entries.is_sorted_by_key(|(key, _)| *key).then_some(())
        };
        let (at, bytes) = match holder {
            Holder::Root(at) => (at, self.changed_root(at, part, right, &put)?),
            Holder::Node(block) => {
                let bytes = self.read(block)?;
                let mut entries: Vec<_> =
                    Node::parse(&bytes, part.level + 1).ok()?.entries().collect();
                put(&mut entries)?;
                let mut bytes = vec![0; bytes.len()];
                // A node without children is none, and will be taken out by the one above.
                if !entries.is_empty() {
                    encode_node(&mut bytes, part.level + 1, &entries);
                }
                (Position { block, offset: 0 }, bytes)
            }
        };
        let size = self.geometry.block_size.bytes64();
        let from = u128::from(part.key) * u128::from(size);
        let (action, risk) = match (right, part.level) {
            (Some(_), _) => ("set the pointer to what the logs say".to_owned(), Risk::Safe),
            (None, 0) => (format!("make a hole of the {size} bytes at byte {from}"), Risk::Loses),
            (None, _) => {
                (format!("make a hole of what the node had, from byte {from} on"), Risk::Loses)
            }
        };
        Some(Replacement::new(at, bytes, risk, action))
    }

    /// The entries of a node, if it is whole and has none of the next one.
    fn entries_at(&self, block: BlockNr, part: &Part) -> Option<Vec<Entry>> {
        let bytes = self.read(block)?;
        let node = Node::parse(&bytes, part.level).ok().filter(|it| it.validate(None).is_ok())?;
        let last = node.key(node.children() - 1);
        part.limit.is_none_or(|limit| last < limit).then(|| node.entries().collect())
    }

    /// Returns the entry of a node to which a pointer leads, if the node begins with another key, because some are
    /// lost or were found again, and no log tells that it is another's.
    fn begins_elsewhere(&mut self, part: &Part, pointer: u64) -> Option<Entry> {
        let vblock = VBlockNr(pointer);
        // A checkpoint of the past shares the node with one in which that has been put right already.
        let is_shared = part.life.end == Cno::MAX && self.disputed.is_shared(vblock);
        if part.level == 0 || part.ino == Ino::DAT || is_shared {
            return None;
        }
        let entry = self.dat.as_mut()?.entry(vblock)?;
        let own = |(ino, _, info): (Ino, Cno, BlockInfo)| {
            ino == part.ino && info == BlockInfo::Node { vblocknr: vblock }
        };
        let lives = entry.start <= part.life.start && entry.end >= part.life.end;
        if !lives || !self.described(entry.block).is_none_or(own) {
            return None;
        }
        let (first, _) = *self.entries_at(entry.block, part)?.first()?;
        (first != part.key).then_some((first, pointer))
    }

    /// The pointer as it is.
    fn held(&self, holder: Holder, part: &Part) -> Option<u64> {
        let entries: Vec<Entry> = match holder {
            Holder::Root(at) => {
                let block = self.read(at.block)?;
                let found = block.get(at.offset..at.offset + ROOT_SIZE)?.try_into().ok()?;
                match Root::parse(found).ok()? {
                    Root::Direct(pointers) => (0..).zip(pointers).collect(),
                    Root::Tree { entries, .. } => entries,
                }
            }
            Holder::Node(block) => {
                let bytes = self.read(block)?;
                Node::parse(&bytes, part.level + 1).ok()?.entries().collect()
            }
        };
        entries.into_iter().find(|(key, _)| *key == part.key).map(|(_, pointer)| pointer)
    }

    fn changed_root(
        &self,
        at: Position,
        part: &Part,
        right: Option<Entry>,
        put: &dyn Fn(&mut Vec<Entry>) -> Option<()>,
    ) -> Option<Vec<u8>> {
        let block = self.read(at.block)?;
        let found: &[u8; ROOT_SIZE] =
            block.get(at.offset..at.offset + ROOT_SIZE)?.try_into().ok()?;
        let root = match Root::parse(found).ok()? {
            Root::Direct(mut pointers) => {
                let pointer = pointers.get_mut(usize::try_from(part.key).ok()?)?;
                *pointer = right.map_or(0, |(_, pointer)| pointer);
                Root::Direct(pointers)
            }
            Root::Tree { level, mut entries } => {
                put(&mut entries)?;
                match entries.is_empty() {
                    true => Root::default(),
                    false => Root::Tree { level, entries },
                }
            }
        };
        Some(root.encode().to_vec())
    }

    fn dat_entry(
        &mut self,
        at: Position,
        vblock: VBlockNr,
        (byte, bit): (Position, u8),
    ) -> Option<Replacement> {
        let Some(logged) = self.logged.with(vblock) else {
            if let Some(renumbered) = self.renumbered(vblock) {
                return Some(renumbered);
            }
            let bits = self.read(byte.block)?.get(byte.offset)? & !(1 << bit);
            let action = "free it, as no log has such a block";
            return Some(Replacement::new(byte, vec![bits], Risk::Safe, action));
        };
        let mut bytes = self.read(at.block)?.get(at.offset..)?.to_vec();
        entry_of(logged, DatEntry::parse(&bytes).ok()?, self.newest.cno).encode(&mut bytes);
        bytes.truncate(DAT_ENTRY_SIZE);
        Some(Replacement::new(at, bytes, Risk::Safe, "set the entry to what the logs say"))
    }

    /// A block of data, all of which is metadata.
    fn data(&mut self, block: BlockNr, part: &Part) -> Option<Replacement> {
        // What led here is wrong, and not the block.
        if self.is_anothers(block, part) {
            return None;
        }
        let at = Position { block, offset: 0 };
        match part.ino {
            Ino::DAT | Ino::CPFILE | Ino::SUFILE | Ino::IFILE => {}
            Ino::XATTR => return self.notes(at, part),
            _ => {
                let newest = part.life.end.min(self.newest.cno);
                let link = self.inode_as_of(part.ino, newest);
                let is_link =
                    |it: &RawInode| it.file_type().is_ok_and(|it| it == FileType::Symlink);
                return match link.filter(is_link) {
                    Some(link) => self.target(at, part, &link),
                    None => self.directory_block(at, part),
                };
            }
        }
        // Which segments are in use follows from the logs.
        let older = self.older(block, part).filter(|_| part.ino != Ino::SUFILE);
        let (older, bytes) = older.unzip();
        let mut bytes = bytes.unwrap_or_else(|| vec![0; self.geometry.block_size.bytes()]);
        let mut lost = Vec::new();
        match part.ino {
            Ino::DAT => self.dat_entries(&mut bytes, part),
            Ino::IFILE => {
                self.inodes(&mut bytes, part, older);
                self.numbers_in_use(&mut bytes, part);
            }
            Ino::CPFILE => lost = self.checkpoints(&mut bytes, part, older.is_some()),
            _ => {}
        }
        let action = match older {
            Some(_) => "make it anew from an older version of the block and from what the logs say",
            None => "make it anew from what the logs say",
        };
        let action = match (lost.first(), lost.last()) {
            (Some(first), Some(last)) if first == last => {
                format!("{action}; checkpoint {first} is lost")
            }
            (Some(first), Some(last)) => {
                format!("{action}; the checkpoints that there were from {first} to {last} are lost")
            }
            _ => action.to_owned(),
        };
        // Counters, bitmaps and usages follow from the rest of the volume.
        let risk = match part.ino {
            Ino::SUFILE => Risk::Safe,
            _ => Risk::Loses,
        };
        let files = match part.ino {
            Ino::IFILE => self.files_in(&bytes, part),
            _ => BTreeSet::new(),
        };
        Some(Replacement { files, ..Replacement::new(at, bytes, risk, action) })
    }

    /// The users' files of which a block of the ifile has the inodes.
    fn files_in(&self, bytes: &[u8], part: &Part) -> BTreeSet<Ino> {
        let inodes = self.inodes_at(part).zip(bytes.chunks_exact(self.geometry.inode_size));
        let is_used = |slot: &[u8]| {
            let inode = RawInode::parse(slot).ok();
            inode.is_some_and(|it| it.file_type().is_ok() && it.i_links_count.get() > 0)
        };
        inodes.filter(|(ino, slot)| ino.is_of_user() && is_used(slot)).map(|(ino, _)| ino).collect()
    }

    /// The numbers of the inodes in a block of the ifile, if it has any.
    pub(crate) fn inodes_at(&self, part: &Part) -> impl Iterator<Item = Ino> + use<> {
        let layout = Palloc::new(self.geometry.block_size, self.geometry.inode_size);
        let first = match layout.role_of(FileBlock(part.key)) {
            BlockRole::Entries { first_entry } => Some(first_entry),
            _ => None,
        };
        first.into_iter().flat_map(|first| (first..=u64::MAX).map(Ino))
    }

    /// Other versions of a block of data, each with the first checkpoint that has it: those before it, the last of
    /// them first, and then those after it.
    pub(crate) fn versions(
        &self,
        block: BlockNr,
        (ino, key): (Ino, u64),
        life: &Range<Cno>,
    ) -> impl Iterator<Item = (Cno, Vec<u8>)> {
        let then = if ino == Ino::DAT { self.newest.cno } else { life.start };
        let all = self.logged.data(ino, key, key.checked_add(1)).iter();
        let (before, mut after): (Vec<&Logged>, Vec<_>) =
            all.filter(|it| it.block != block).partition(|it| it.since <= then);
        after.reverse();
        let all = before.into_iter().chain(after);
        all.filter_map(|it| Some((it.since, self.read_as_written(it.block)?)))
    }

    fn older(&self, block: BlockNr, part: &Part) -> Option<(Cno, Vec<u8>)> {
        self.versions(block, (part.ino, part.key), &part.life).next()
    }

    fn dat_entries(&self, bytes: &mut [u8], part: &Part) {
        let layout = Palloc::new(self.geometry.block_size, self.geometry.dat_entry_size);
        let BlockRole::Entries { first_entry } = layout.role_of(FileBlock(part.key)) else {
            return;
        };
        let slots = bytes.chunks_exact_mut(self.geometry.dat_entry_size);
        for (vblock, slot) in (first_entry..=u64::MAX).map(VBlockNr).zip(slots) {
            if let (Some(logged), Ok(old)) = (self.logged.with(vblock), DatEntry::parse(slot)) {
                entry_of(logged, old, self.newest.cno).encode(slot);
            }
        }
    }

    /// The first block of a file, if that is not known to be another than was written.
    pub(crate) fn first_block(&mut self, part: &Part) -> Option<Vec<u8>> {
        let data = self.children(&Part { level: 1, ..part.clone() });
        let (_, vblock) = data.first().filter(|(key, _)| *key == 0)?;
        let entry = self.dat.as_mut()?.entry(VBlockNr(*vblock))?;
        self.read_as_written(entry.block)
    }

    /// Whether the blocks of a file begin like those of a directory.
    pub(crate) fn has_names(&mut self, part: &Part) -> bool {
        self.first_block(part).is_some_and(|block| is_first_of_directory(&block, part.ino))
    }

    /// An inode as a checkpoint had it.
    pub(crate) fn inode_as_of(&self, ino: Ino, cno: Cno) -> Option<RawInode> {
        let layout = Palloc::new(self.geometry.block_size, self.geometry.inode_size);
        let slot = layout.entry(ino.0);
        RawInode::parse(self.as_of(Ino::IFILE, slot.block.0, cno)?.get(slot.offset..)?).ok()
    }

    /// A block of data as a checkpoint had it.
    fn as_of(&self, ino: Ino, key: u64, cno: Cno) -> Option<Vec<u8>> {
        let versions = self.logged.data(ino, key, key.checked_add(1)).iter();
        let then = versions.filter(|it| it.since <= cno);
        self.read_as_written(then.max_by_key(|it| (it.since, it.written))?.block)
    }

    /// A block of the names and notes of snapshots. The first one says what all of them have: without
    /// a version that is whole by itself, there are none.
    fn notes(&self, at: Position, part: &Part) -> Option<Replacement> {
        let seed = superblocks::best(self.device).ok()?.crc_seed();
        let is_whole = |(_, bytes): &(Cno, Vec<u8>)| {
            part.key == 0 && notes::parse(bytes, seed).is_ok_and(|it| !it.is_empty())
        };
        let older = self.versions(at.block, (part.ino, part.key), &part.life).find(is_whole);
        let action = match older {
            Some(_) => "take the names and notes of snapshots that there were before",
            None => "write it without names and notes of snapshots: these are lost",
        };
        let bytes = older.map(|(_, bytes)| bytes);
        let bytes = bytes.unwrap_or_else(|| vec![0; self.geometry.block_size.bytes()]);
        Some(Replacement::new(at, bytes, Risk::Loses, action))
    }

    /// The target of a symbolic link: another copy of it. Without one, a target that is not known to be what was
    /// written stays as it is, and what can be no target becomes one that is seen to lead nowhere.
    fn target(&self, at: Position, part: &Part, link: &RawInode) -> Option<Replacement> {
        let size = usize::try_from(link.i_size.get()).ok()?;
        let identity = |it: &RawInode| (it.i_generation, it.i_mode, it.i_size);
        let is_target = |bytes: &Vec<u8>| {
            bytes.get(..size).is_some_and(|target| target.iter().all(|byte| *byte != 0))
        };
        let copies = self.logged.data(part.ino, part.key, part.key.checked_add(1)).iter();
        // Another file may have had the number before.
        let copies = copies.filter(|it| {
            let then = self.inode_as_of(part.ino, it.since);
            it.block != at.block && then.is_some_and(|then| identity(&then) == identity(link))
        });
        if let Some(copy) = copies.filter_map(|it| self.read_as_written(it.block)).find(is_target) {
            let action = "take the target of the link from another copy of the block";
            return Some(Replacement::new(at, copy, Risk::Loses, action));
        }
        let found = read(self.as_found, &self.geometry, at.block);
        let mut bytes = match found {
            Some(found) if is_target(&found) => return None,
            found => found.unwrap_or_else(|| vec![0; self.geometry.block_size.bytes()]),
        };
        let target = bytes.get_mut(..size)?;
        let action = match target.iter().all(|byte| *byte == 0) {
            true => "make the link's target question marks: it is lost",
            false => "put a question mark for each byte of the link's target that is lost",
        };
        target.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b'?');
        let made = Replacement::new(at, bytes, Risk::Loses, action);
        Some(Replacement { is_made_up: true, ..made })
    }

    /// Whether anything in a block looks like a name of a directory.
    fn tells_names(&self, block: BlockNr) -> bool {
        self.read(block).is_some_and(|bytes| salvage::has_names(&bytes))
    }

    fn directory_block(&self, at: Position, part: &Part) -> Option<Replacement> {
        // The block is right, and the inode that led here is not.
        if self.remade_ifile.has_inode(part.ino, part.life.start, &self.geometry)
            && self.is_as_written(at.block)
            && !self.tells_names(at.block)
        {
            return None;
        }
        let found = self.read(at.block);
        let is_readable = found.is_some();
        let doubtful = || read(self.as_found, &self.geometry, at.block);
        let doubtful = if is_readable { None } else { doubtful() };
        let others = self.logged.data(part.ino, part.key, part.key.checked_add(1)).iter();
        let others = others.filter(|it| it.block != at.block);
        let older = others.clone().filter(|it| it.since <= part.life.start);
        let older = older.max_by_key(|it| (it.since, it.written));
        let now = part.life.end.min(self.newest.cno);
        // Of those with the same beginning, one was moved, or synced again.
        let newer = others.filter(|it| part.life.end <= now && it.since >= part.life.end);
        let newer = newer.min_by_key(|it| (it.since, Reverse(it.written)));
        let read = |it: &Logged| self.read_as_written(it.block);
        let versions = salvage::Versions {
            found,
            doubtful,
            older: older.and_then(read),
            newer: newer.and_then(read),
        };
        let size = self.geometry.block_size.bytes();
        let salvaged = salvage::directory_block((part, at.block), &versions, size);
        let action = match salvaged.kept {
            0 => "write a block without names".to_owned(),
            1 => "keep the 1 name that can be read".to_owned(),
            kept => format!("keep the {kept} names that can be read"),
        };
        // Another file may have the number now.
        let generation = |ino, cno| Some(self.inode_as_of(ino, cno)?.i_generation.get());
        let is_same = |lost: &LostName| {
            let then = match lost.source {
                Source::Older => older.map_or(Cno(0), |it| it.since),
                Source::Newer => part.life.start,
                Source::Doubtful => now,
            };
            let before = generation(lost.ino, then);
            before.is_some() && before == generation(lost.ino, now)
        };
        let lost_names = salvaged.lost.into_iter().filter(is_same).collect();
        Some(Replacement {
            lost_names,
            ..Replacement::new(at, salvaged.bytes, Risk::Loses, action)
        })
    }
}

/// Returns the first keys of the nodes that these keys take: none reaches beyond the first key of another node.
fn first_keys(
    keys: impl Iterator<Item = u64>,
    others: &BTreeMap<u64, u64>,
    most: usize,
) -> Vec<u64> {
    let mut firsts = Vec::new();
    let (mut before, mut count) = (None, 0);
    for key in keys {
        let goes_on = before.is_some_and(|last| others.range(last..key).next().is_none());
        if !goes_on || count == most {
            firsts.push(key);
            count = 0;
        }
        (before, count) = (Some(key), count + 1);
    }
    firsts
}

pub(crate) fn new_metadata_inode() -> RawInode {
    RawInode {
        i_mode: U16::new(FileType::Regular.mode_bits()),
        i_links_count: U16::new(1),
        ..RawInode::zeroed()
    }
}

/// The entry of a virtual block as its log has it. Its end is known from an old entry, if that was
/// of the same block; else it counts as part of the present until nothing of that uses it.
fn entry_of(logged: &Logged, old: DatEntry, newest: Cno) -> DatEntry {
    let possible = old.start.0 != 0 && old.start <= newest && old.start <= old.end;
    if possible && old.block == logged.block && (old.end <= newest || old.end == Cno::MAX) {
        return old;
    }
    let ends = old.start == logged.since && old.end >= old.start && old.end <= newest;
    let end = if ends { old.end } else { Cno::MAX };
    DatEntry { block: logged.block, start: logged.since, end }
}

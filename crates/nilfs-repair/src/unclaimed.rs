//! Blocks of data that a map has lost together with the summary that told whose they are. Two witnesses are left: the
//! DAT says which checkpoints have them, and an inode counts more blocks than its map has.
//!
//! A log has the blocks of a file one after the other: first those of data, in the order of the file, then its nodes
//! (docs/format.md §4.2). So blocks right before a node are those of its file, if they are as many as the file lacks.

use std::collections::BTreeSet;
use std::mem::offset_of;

use nilfs_check::{Correction, Finding, Part, Position, Report, Rule};
use nilfs_device::{Device, IoSlice};
use nilfs_ondisk::bmap::Entry;
use nilfs_ondisk::inode::{FileType, RawInode};
use nilfs_ondisk::{BlockNr, BlockSize, VBlockNr};

use crate::anew::Anew;
use crate::draft::Draft;
use crate::file_type::begins_directory;
use crate::unmapped::{Above, Map};
use crate::{Concerned, Loss, Repair, RepairError, Risk, superblocks};

/// Blocks of a file that are missing at most.
const MOST_MISSING: u64 = 4096;

/// A map with more blocks than it had.
struct Changes {
    /// These blocks, by virtual number.
    claimed: Vec<VBlockNr>,
    /// The bytes that become others, and their places.
    parts: Vec<(Position, Vec<u8>)>,
}

/// A file whose inode counts more blocks than its map has.
struct Lacking {
    inode: RawInode,
    map: Map,
}

impl Draft {
    /// Puts blocks of which the DAT alone tells into the maps that have lost them. Returns whether there were any.
    ///
    /// # Errors
    /// The corrected blocks cannot be kept.
    pub(crate) fn claim_blocks(&mut self, report: &Report) -> Result<bool, RepairError> {
        if report.unclaimed.is_empty() {
            return Ok(false);
        }
        let found = || report.findings.iter().chain(&report.repeated);
        let lacking = |rule| found().filter(move |it| it.rule == rule).filter_map(lacks_blocks);
        Ok(self.claim(lacking(Rule::InodeBlocks).collect(), report, Lacking::with_all)?
            || self.claim(lacking(Rule::Directory).collect(), report, Lacking::without_holes)?)
    }

    fn claim(
        &mut self,
        lacking: Vec<(&Finding, Position, &Part)>,
        report: &Report,
        complete: impl Fn(&mut Lacking, &mut Anew<'_>, &Part) -> Option<Changes>,
    ) -> Result<bool, RepairError> {
        let superblock = superblocks::best(&*self.device)?;
        let geometry = superblock.geometry();
        let corrections = lacking.iter().flat_map(|(finding, ..)| &finding.corrections);
        self.ask_logs(&geometry, report, corrections, Default::default());
        let (mut touched, mut claimed) = (Vec::new(), BTreeSet::new());
        for (finding, root, part) in lacking {
            let Some(mut anew) = self.logs(report.newest_log) else { break };
            let Some(mut file) = Lacking::of(&mut anew, root, part) else { continue };
            let Some(changes) = complete(&mut file, &mut anew, part) else { continue };
            let mut immovable = changes.parts.iter().map(|(at, _)| self.is_immovable(at.block));
            let is_taken = changes.claimed.iter().any(|vblock| claimed.contains(vblock));
            if is_taken || immovable.any(|why| !matches!(why, Ok(None))) {
                continue;
            }
            for (at, bytes) in changes.parts {
                let offset = at.block.0 * geometry.block_size.bytes64() + at.offset as u64;
                self.device.write_at(offset, &[IoSlice::new(&bytes)])?;
                touched.push(at.block);
            }
            self.repairs.push(repair(finding, changes.claimed.len()));
            claimed.extend(changes.claimed);
        }
        touched.sort_unstable();
        touched.dedup();
        self.seal_logs(&superblock, &touched, report.newest_log)?;
        Ok(!touched.is_empty())
    }
}

/// Returns where the map is of a user's file that lacks blocks, if a finding is of one.
fn lacks_blocks(finding: &Finding) -> Option<(&Finding, Position, &Part)> {
    finding.corrections.iter().find_map(|it| match it {
        Correction::Unmapped { root, part } if part.ino.is_of_user() => {
            Some((finding, *root, part))
        }
        _ => None,
    })
}

impl Anew<'_> {
    /// The entries of a node of which nothing is left: the blocks right before it, if they are as many as the file has
    /// there, without a hole.
    pub(crate) fn unclaimed_children(&self, node: BlockNr, part: &Part) -> Vec<Entry> {
        let blocks = self.unclaimed_before(&BTreeSet::from([node]), part);
        let end = part.key.saturating_add(blocks.len() as u64);
        let fits = |inode: RawInode| {
            let all = inode.i_size.get().div_ceil(self.geometry.block_size.bytes64());
            part.limit.map_or(all, |limit| limit.min(all)) == end
        };
        // The version of then may be lost as well.
        let mut versions = [part.life.start, self.newest.cno].into_iter();
        let is_all = versions.any(|cno| self.inode_as_of(part.ino, cno).is_some_and(fits));
        match is_all && part.ino.is_of_user() {
            true => (part.key..end).zip(blocks.into_values().map(|vblock| vblock.0)).collect(),
            false => Vec::new(),
        }
    }
}

fn repair(finding: &Finding, count: usize) -> Repair {
    let action = match count {
        1 => "put a block into its map of which the DAT alone tells".to_owned(),
        _ => format!("put {count} blocks into its map of which the DAT alone tells"),
    };
    Repair {
        fault: finding.fault(),
        action,
        risk: Risk::Loses,
        concerned: Concerned::new(finding.place.ino, Loss::Content),
    }
}

impl Lacking {
    fn of(anew: &mut Anew<'_>, root: Position, part: &Part) -> Option<Self> {
        let bytes = anew.read(root.block)?;
        let start = root.offset.checked_sub(offset_of!(RawInode, i_bmap))?;
        let inode = RawInode::parse(bytes.get(start..)?).ok()?;
        Some(Self { inode, map: Map::read(anew, root, part)? })
    }

    fn keys(&self) -> BTreeSet<u64> {
        let leaves = self.map.nodes.iter().filter(|it| it.part.level == 1);
        leaves.flat_map(|it| it.entries.iter().map(|(key, _)| *key)).collect()
    }

    /// The map with the blocks right before its nodes, if they are all that the file lacks: it has no hole then.
    fn with_all(&mut self, anew: &mut Anew<'_>, part: &Part) -> Option<Changes> {
        let size = anew.geometry.block_size;
        let nodes = self.map.blocks_of_nodes();
        let blocks = anew.unclaimed_before(&nodes, part);
        let keys = self.keys();
        let counted = self.inode.i_blocks.get() / (size.bytes64() / 512);
        let (mapped, count) = (keys.len() as u64, blocks.len() as u64);
        let missing = self.missing(size);
        let is_all = counted == mapped + nodes.len() as u64 + count
            && missing.len() as u64 == count
            && keys.last().is_none_or(|last| *last < mapped + count);
        match count > 0 && is_all {
            true => self.with(missing, blocks.into_values(), size),
            false => None,
        }
    }

    /// The map of a directory, which has no holes, with any blocks in the place of those that it lacks, if it is not
    /// known which: they are lost, and names are found in older versions of them.
    fn without_holes(&mut self, anew: &mut Anew<'_>, part: &Part) -> Option<Changes> {
        let missing = self.missing(anew.geometry.block_size);
        let is_others =
            |block: &BlockNr| anew.read(*block).is_some_and(|bytes| begins_directory(&bytes));
        let mut unclaimed = anew.unclaimed(part);
        unclaimed.retain(|block, _| !is_others(block));
        if missing.is_empty() || missing.len() > unclaimed.len() {
            return None;
        }
        self.with(missing, unclaimed.into_values(), anew.geometry.block_size)
    }

    /// The blocks of data up to the end of the file that its map does not have. None, if there are more than a
    /// few: the size of the file is nonsense.
    fn missing(&self, size: BlockSize) -> Vec<u64> {
        let keys = self.keys();
        let is_directory = self.inode.file_type().is_ok_and(|it| it == FileType::Directory);
        // A directory has one block at least.
        let least = u64::from(is_directory);
        let all = self.inode.i_size.get().div_ceil(size.bytes64()).max(least);
        if all.saturating_sub(keys.len() as u64) > MOST_MISSING {
            return Vec::new();
        }
        (0..all).filter(|key| !keys.contains(key)).collect()
    }

    /// The parts of the map that become others with blocks in these places.
    fn with(
        &mut self,
        places: Vec<u64>,
        blocks: impl Iterator<Item = VBlockNr>,
        size: BlockSize,
    ) -> Option<Changes> {
        let (mut claimed, mut changed) = (Vec::new(), BTreeSet::new());
        for (key, vblock) in places.into_iter().zip(blocks) {
            self.insert((key, vblock.0), &mut changed)?;
            claimed.push(vblock);
        }
        let changed = changed.into_iter().map(|nth| &self.map.nodes[nth]);
        let parts = changed.map(|node| self.map.with_entries(node, node.entries.clone(), size));
        Some(Changes { claimed, parts: parts.collect::<Option<_>>()? })
    }

    /// Puts a block of data into the node with the keys around its own, and says which nodes have changed. The first
    /// key of a node is that by which those above know it.
    fn insert(&mut self, entry: Entry, changed: &mut BTreeSet<usize>) -> Option<()> {
        let first = |it: &Above| it.entries.first().map_or(0, |(key, _)| *key);
        let leaves = (0..self.map.nodes.len()).filter(|nth| self.map.nodes[*nth].part.level == 1);
        let before = leaves.clone().filter(|nth| first(&self.map.nodes[*nth]) <= entry.0);
        let leaf = before
            .max_by_key(|nth| first(&self.map.nodes[*nth]))
            .or_else(|| leaves.min_by_key(|nth| first(&self.map.nodes[*nth])))?;
        let known_by = first(&self.map.nodes[leaf]);
        let entries = &mut self.map.nodes[leaf].entries;
        entries.insert(entries.partition_point(|(key, _)| *key < entry.0), entry);
        changed.insert(leaf);
        if entry.0 >= known_by {
            return Some(());
        }
        for (nth, above) in
            self.map.nodes.iter_mut().enumerate().filter(|(_, it)| it.part.level > 1)
        {
            for (key, _) in above.entries.iter_mut().filter(|(key, _)| *key == known_by) {
                *key = entry.0;
                changed.insert(nth);
            }
        }
        Some(())
    }
}

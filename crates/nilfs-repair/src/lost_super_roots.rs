//! Super roots that are lost, put together from the one before each. A checkpoint changes three things in it: the
//! block maps of the DAT, the cpfile and the sufile, how many blocks these have, and a time. The summaries tell the
//! blocks that were written of these files, and a checksum of the log whether the result is what was written.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;

use nilfs_device::{Device, IoSlice};
use nilfs_engine::scan::{FoundLog, Scan};
use nilfs_ondisk::bmap::{
    DIRECT_POINTERS, Entry, LEVEL_MAX, Node, ROOT_MAX_CHILDREN, ROOT_SIZE, Root,
};
use nilfs_ondisk::crc::{BlockSum, Crc, Verdict};
use nilfs_ondisk::inode::RawInode;
use nilfs_ondisk::summary::{BlockInfo, LogHeader, SR};
use nilfs_ondisk::super_root::SuperRoot;
use nilfs_ondisk::{BlockNr, BlockSize, Ino, VBlockNr};
use zerocopy::little_endian::U64;

use crate::dat::{Dat, read};
use crate::draft::Draft;
use crate::logged::blocks_of;
use crate::{Concerned, Repair, Risk, superblocks};

/// Blocks that may have been taken out of the DAT if its nodes are damaged: each number is tried.
const MOST_TAKEN_OUT: u64 = 1024;

/// Puts damaged super roots of a draft together, from the log on that a superblock names or, without a superblock,
/// from the newest one that can be read. Returns whether there were any.
///
/// # Errors
/// The corrected blocks cannot be kept.
pub(crate) fn put_together(draft: &mut Draft, scan: &Scan) -> io::Result<bool> {
    let device: &dyn Device = &*draft.device;
    let cursors = superblocks::cursors(device).into_iter().map(|it| (it.seq, it.block));
    let newest = scan.super_roots.first().map(|it| (it.cursor.seq, it.cursor.block));
    let Some(first) = cursors.min().or(newest) else { return Ok(false) };
    let readable: BTreeMap<BlockNr, SuperRoot> =
        scan.super_roots.iter().map(|it| (it.cursor.block, it.super_root)).collect();
    let written = |log: &FoundLog| (log.header.seq, log.start);
    let mut logs: Vec<_> = scan.logs.iter().collect();
    logs.sort_by_key(|log| written(log));
    let (mut before, mut since) = (None, Vec::new());
    let mut found = Vec::new();
    for log in logs {
        since.push(log);
        if !log.header.has(SR) {
            continue;
        }
        let is_early = written(log) < first;
        let here =
            readable.get(&log.start).filter(|_| is_early || is_as_written(device, scan, log));
        if let Some(here) = here {
            (before, since) = (Some(*here), Vec::new());
        } else if let Some(from) = before.filter(|_| !is_early) {
            let next = NextSuperRoot { device, scan, before: from, since: &since };
            if let Some((root, block)) = next.found() {
                found.push((*log, block));
                (before, since) = (Some(root), Vec::new());
            }
        }
    }
    found.iter().try_for_each(|(log, block)| put(draft, scan, log, block))?;
    Ok(!found.is_empty())
}

/// Whether a log has the super root that it was written with, as far as its checksums of blocks tell.
fn is_as_written(device: &dyn Device, scan: &Scan, log: &FoundLog) -> bool {
    let block = || read(device, &scan.geometry, last_of(log));
    sum_of(device, scan, log)
        .is_none_or(|sum| block().is_some_and(|it| sum.judge(&it) == Verdict::Right))
}

/// A checksum that tells which super root a log was written with.
enum Checksum<'a> {
    /// The checksum that the log has of the block.
    OfBlock(BlockSum),
    /// The checksum of the log, and that of its other blocks.
    OfLog { header: &'a LogHeader, others: Crc, block_size: BlockSize },
}

impl<'a> Checksum<'a> {
    fn of(device: &dyn Device, scan: &Scan, log: &'a FoundLog) -> Option<Self> {
        if let Some(sum) = sum_of(device, scan, log) {
            return Some(Self::OfBlock(sum));
        }
        let size = scan.geometry.block_size;
        let mut others = vec![0; (log.header.nblocks as usize - 1) * size.bytes()];
        device.read_at(log.start.0 * size.bytes64(), &mut others).ok()?;
        let mut crc = Crc::new(scan.crc_seed);
        crc.update(others.get(4..)?);
        Some(Self::OfLog { header: &log.header, others: crc, block_size: size })
    }

    /// Whether this is the block of the super root.
    fn fits(&self, block: &[u8]) -> bool {
        match self {
            Self::OfBlock(sum) => sum.judge(block) == Verdict::Right,
            Self::OfLog { header, others, block_size } => {
                let mut crc = others.clone();
                crc.update(block);
                header.verify_log(crc, *block_size).is_ok()
            }
        }
    }
}

/// The checksum that a log has of its super root.
fn sum_of(device: &dyn Device, scan: &Scan, log: &FoundLog) -> Option<BlockSum> {
    scan.items_of(device, log)?.sums?.last().copied()
}

/// Writes the super root of a log into a draft.
fn put(draft: &mut Draft, scan: &Scan, log: &FoundLog, block: &[u8]) -> io::Result<()> {
    let (at, cno) = (last_of(log), log.header.cno);
    draft.device.write_at(at.0 * block.len() as u64, &[IoSlice::new(block)])?;
    draft.segments.insert(scan.geometry.segment_of(at));
    draft.repairs.push(Repair {
        fault: format!(
            "the super root in block {at}, of checkpoint {cno}, is not what was written"
        ),
        action:
            "put it together from the one before and what the logs say; the checksum of the log \
                 tells that it is right"
                .to_owned(),
        risk: Risk::Safe,
        concerned: Concerned::none(),
    });
    Ok(())
}

/// The block of the super root of a log.
fn last_of(log: &FoundLog) -> BlockNr {
    BlockNr(log.end().0 - 1)
}

/// The level of a block of a map, or of data, and its key there.
type Place = (u8, u64);

/// Tells where the block is to which a pointer leads.
type FoundAt<'a> = dyn FnMut(u64) -> Option<BlockNr> + 'a;

/// A block of a map, or of data, that was written after a super root.
struct NewBlock {
    /// 0 is data.
    level: u8,
    /// Its place in the file, or that of the first block below it.
    key: u64,
    pointer: u64,
    block: BlockNr,
}

/// A super root that is to be found from the one before it.
struct NextSuperRoot<'a> {
    device: &'a dyn Device,
    scan: &'a Scan,
    before: SuperRoot,
    /// The logs since then. The last one has the super root.
    since: &'a [&'a FoundLog],
}

impl NextSuperRoot<'_> {
    /// The super root and its block.
    fn found(&self) -> Option<(SuperRoot, Vec<u8>)> {
        let log = *self.since.last()?;
        let checksum = Checksum::of(self.device, self.scan, log)?;
        let written_by = [WrittenBy::Us, WrittenBy::Linux];
        written_by.into_iter().find_map(|it| self.found_as_written(it, (log, &checksum)))
    }

    fn found_as_written(
        &self,
        by: WrittenBy,
        (log, checksum): (&FoundLog, &Checksum<'_>),
    ) -> Option<(SuperRoot, Vec<u8>)> {
        let old = &self.before;
        let mut dat = self.dat(Root::parse(&old.dat.i_bmap).ok()?);
        let mut of_virtual = |inode, ino| {
            let as_it_was = &mut |pointer| Some(dat.entry(VBlockNr(pointer))?.block);
            self.changed(inode, (ino, by), as_it_was)?.first().copied()
        };
        let cpfile = of_virtual(&old.cpfile, Ino::CPFILE)?;
        let sufile = of_virtual(&old.sufile, Ino::SUFILE)?;
        let as_it_was = &mut |pointer| Some(BlockNr(pointer));
        let mut block = vec![0; self.scan.geometry.block_size.bytes()];
        for dat in self.changed(&old.dat, (Ino::DAT, by), as_it_was)? {
            for nongc_ctime in [log.header.create, old.nongc_ctime] {
                for durable_before in [false, true] {
                    let root = SuperRoot { nongc_ctime, durable_before, dat, cpfile, sufile };
                    root.encode(&mut block, &self.scan.geometry, self.scan.crc_seed);
                    if checksum.fits(&block) {
                        return Some((root, block));
                    }
                }
            }
        }
        None
    }

    fn dat(&self, root: Root) -> Dat<'_> {
        Dat::new(self.device, self.scan.geometry, root)
    }

    /// Lists what an inode may have become, the likeliest first. The blocks of its map are where `as_it_was` says.
    fn changed(
        &self,
        inode: &RawInode,
        (ino, by): (Ino, WrittenBy),
        as_it_was: &mut FoundAt<'_>,
    ) -> Option<Vec<RawInode>> {
        let before = Root::parse(&inode.i_bmap).ok()?;
        let blocks = self.new_blocks(ino, (&before, as_it_was))?;
        let after = root_after(&before, &blocks)?;
        let counts = self.counts((&before, &after), &blocks, as_it_was)?;
        let sectors = self.scan.geometry.block_size.sectors();
        // mkfs.nilfs2 counted blocks, so that the number is no multiple.
        let others = inode.i_blocks.get().wrapping_sub(counts.old.wrapping_mul(sectors));
        let with = |(i_bmap, count): ([u8; ROOT_SIZE], u64)| {
            let i_blocks = U64::new(others.wrapping_add(count.wrapping_mul(sectors)));
            RawInode { i_bmap, i_blocks, ..*inode }
        };
        let maps = with_fewer(&after).into_iter().flat_map(|map| {
            let bytes = encoded(&map, &inode.i_bmap, by);
            counts.of(&map).map(move |count| (bytes, count))
        });
        Some(maps.map(with).collect())
    }

    /// Counts the blocks that a map had and may have.
    fn counts(
        &self,
        (before, after): (&Root, &Root),
        new: &[NewBlock],
        as_it_was: &mut FoundAt<'_>,
    ) -> Option<Counts> {
        let mut added: BTreeSet<Place> = new.iter().map(|it| (it.level, it.key)).collect();
        let old = self.count(held(before), as_it_was, &mut |place| _ = added.remove(&place))?;
        let written: HashMap<u64, BlockNr> = new.iter().map(|it| (it.pointer, it.block)).collect();
        let mut as_it_is = |pointer| written.get(&pointer).copied().or_else(|| as_it_was(pointer));
        let (level, entries) = held(after);
        let below = entries.into_iter().map(|entry| {
            let count = self.count((level, vec![entry]), &mut as_it_is, &mut |_| {});
            (entry, count)
        });
        Some(Counts { old, most: old + added.len() as u64, below: below.collect() })
    }

    /// Returns the blocks that were written of a file, in the order of writing, but for a node that is damaged.
    fn new_blocks(
        &self,
        ino: Ino,
        (before, as_it_was): (&Root, &mut FoundAt<'_>),
    ) -> Option<Vec<NewBlock>> {
        let mut found = Vec::new();
        for log in self.since {
            blocks_of(self.scan, self.device, log, &mut |of, logged| {
                if of == ino {
                    found.push((logged.block, logged.info));
                }
            });
        }
        let (mut new, mut lost) = (Vec::new(), None);
        for (block, info) in found {
            match self.new_block(block, info) {
                Some(it) => new.push(it),
                None if lost.is_some() => return None,
                None => lost = Some((block, info.vblock()?)),
            }
        }
        if let Some((block, vblock)) = lost {
            let (level, key) = self.place_of_lost(&new, (before, as_it_was))?;
            new.push(NewBlock { level, key, pointer: vblock.0, block });
        }
        Some(new)
    }

    /// The place of a node that was written and is damaged: the only one above data that was written of which no new
    /// node is there.
    fn place_of_lost(
        &self,
        new: &[NewBlock],
        (before, as_it_was): (&Root, &mut FoundAt<'_>),
    ) -> Option<Place> {
        let mut nodes = BTreeSet::new();
        self.count(held(before), as_it_was, &mut |place| _ = nodes.insert(place))?;
        nodes.retain(|(level, _)| *level > 0);
        let is_above_new = |(level, key): Place| {
            let next = nodes.range((level, key)..=(level, u64::MAX)).nth(1);
            let end = next.map_or(u64::MAX, |(_, key)| *key);
            new.iter().any(|it| it.level == 0 && (key..end).contains(&it.key))
        };
        let is_there = |place: &Place| new.iter().any(|it| (it.level, it.key) == *place);
        let mut places = nodes.iter().copied().filter(|it| !is_there(it) && is_above_new(*it));
        places.next().filter(|_| places.next().is_none())
    }

    fn new_block(&self, block: BlockNr, info: BlockInfo) -> Option<NewBlock> {
        Some(match info {
            BlockInfo::Data { vblocknr, offset } => {
                NewBlock { level: 0, key: offset.0, pointer: vblocknr.0, block }
            }
            BlockInfo::DatData { offset } => {
                NewBlock { level: 0, key: offset.0, pointer: block.0, block }
            }
            BlockInfo::DatNode { key, level } => NewBlock { level, key, pointer: block.0, block },
            BlockInfo::Node { vblocknr } => {
                let bytes = read(self.device, &self.scan.geometry, block)?;
                let level = bytes[1];
                let key = Node::parse(&bytes, level).ok().filter(|_| level > 0)?.key(0);
                NewBlock { level, key, pointer: vblocknr.0, block }
            }
        })
    }

    /// Counts what a root holds, and all below that, in nodes that are where `found_at` says, and tells the place of
    /// each block.
    fn count(
        &self,
        (mut level, mut entries): (u8, Vec<Entry>),
        found_at: &mut FoundAt<'_>,
        visit: &mut dyn FnMut(Place),
    ) -> Option<u64> {
        let geometry = &self.scan.geometry;
        let most = geometry.nsegments * u64::from(geometry.blocks_per_segment);
        let mut count = 0;
        loop {
            count += entries.len() as u64;
            // Damaged nodes may lead in circles.
            if count > most {
                return None;
            }
            entries.iter().for_each(|(key, _)| visit((level, *key)));
            if level == 0 {
                return Some(count);
            }
            let mut below = Vec::new();
            for (key, pointer) in entries {
                let bytes = read(self.device, geometry, found_at(pointer)?)?;
                let node = Node::parse(&bytes, level).ok()?;
                node.validate(Some(key)).ok()?;
                below.extend(node.entries());
            }
            (level, entries) = (level - 1, below);
        }
    }
}

/// Numbers of blocks of a map.
struct Counts {
    /// The number that it had.
    old: u64,
    /// The number with all blocks that were written in other places.
    most: u64,
    /// The number below each thing that its root holds, with that, if no node there is damaged.
    below: HashMap<Entry, Option<u64>>,
}

impl Counts {
    /// The numbers that are possible if this is the root.
    fn of(&self, root: &Root) -> impl Iterator<Item = u64> + use<> {
        let counts = held(root).1.into_iter().map(|entry| self.below.get(&entry).copied()?);
        let possible = match counts.sum::<Option<u64>>() {
            Some(count) => count..=count,
            None => self.most.saturating_sub(MOST_TAKEN_OUT)..=self.most,
        };
        possible.rev()
    }
}

/// Returns what a root holds, and the level of that.
fn held(root: &Root) -> (u8, Vec<Entry>) {
    match root {
        Root::Direct(pointers) => {
            (0, (0..).zip(*pointers).filter(|(_, pointer)| *pointer != 0).collect())
        }
        Root::Tree { level, entries } => (level - 1, entries.clone()),
    }
}

/// Lists roots without some of what one holds, but for the first: no summary tells of what was taken out. The one that
/// lacks least comes first.
fn with_fewer(root: &Root) -> Vec<Root> {
    let Root::Tree { level, entries } = root else { return vec![root.clone()] };
    let others = entries.len().saturating_sub(1).min(ROOT_MAX_CHILDREN);
    let mut left_out: Vec<u32> = (0..1 << others).collect();
    left_out.sort_by_key(|it| it.count_ones());
    let without = |left_out: u32| -> Vec<Entry> {
        let is_kept = |nth: &usize| *nth == 0 || *nth > others || left_out >> (nth - 1) & 1 == 0;
        (0..).zip(entries).filter(|(nth, _)| is_kept(nth)).map(|(_, entry)| *entry).collect()
    };
    let all = left_out.into_iter().map(without).filter(|it| it.len() <= ROOT_MAX_CHILDREN);
    all.map(|entries| Root::Tree { level: *level, entries }).collect()
}

/// The program that has written a super root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WrittenBy {
    /// Places that a changed map does not use are zeros.
    Us,
    /// They have what was there before.
    Linux,
}

/// The bytes of the root of a map, given those that it had before.
fn encoded(root: &Root, before: &[u8; ROOT_SIZE], by: WrittenBy) -> [u8; ROOT_SIZE] {
    let mut bytes = root.encode();
    let is_changed = Root::parse(before).is_ok_and(|before| before != *root);
    if let Root::Tree { entries, .. } = root
        && !(is_changed && by == WrittenBy::Us)
    {
        let places = (8..ROOT_SIZE).step_by(8);
        let is_unused = |at: &usize| (*at - 8) / 8 % ROOT_MAX_CHILDREN >= entries.len();
        for at in places.filter(is_unused) {
            bytes[at..at + 8].copy_from_slice(&before[at..at + 8]);
        }
    }
    bytes
}

/// The root of a map after these blocks were written, if nothing was taken out. It may hold more than a root can.
fn root_after(before: &Root, new: &[NewBlock]) -> Option<Root> {
    let Some(top) = new.iter().map(|it| it.level).max() else { return Some(before.clone()) };
    let with_new = |held: Vec<Entry>, level| {
        let mut all: BTreeMap<u64, u64> = held.into_iter().collect();
        let new = new.iter().filter(|it| it.level == level);
        all.extend(new.map(|it| (it.key, it.pointer)));
        all
    };
    let (level, all) = match before {
        Root::Direct(pointers) if top == 0 => {
            let held = (0..).zip(*pointers).filter(|(_, pointer)| *pointer != 0);
            let all = with_new(held.collect(), 0);
            if all.keys().all(|key| *key < DIRECT_POINTERS as u64) {
                let mut pointers = [0; DIRECT_POINTERS];
                all.iter().for_each(|(key, pointer)| pointers[*key as usize] = *pointer);
                return Some(Root::Direct(pointers));
            }
            (1, all)
        }
        Root::Tree { level, entries } if top < *level => {
            (*level, with_new(entries.clone(), level - 1))
        }
        // The root was split, and everything below the new one was written.
        _ => (top.checked_add(1)?, with_new(Vec::new(), top)),
    };
    let entries = all.into_iter().collect();
    (level < LEVEL_MAX).then_some(Root::Tree { level, entries })
}

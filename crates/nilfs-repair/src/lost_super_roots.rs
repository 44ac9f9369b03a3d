//! Super roots that are lost, put together from the one before each. A checkpoint changes three things in it: the
//! block maps of the DAT, the cpfile and the sufile, how many blocks these have, and a time. The summaries tell the
//! blocks that were written of these files, and a checksum of the log whether the result is what was written.

use std::collections::BTreeMap;
use std::io;

use nilfs_device::{Device, IoSlice};
use nilfs_engine::scan::{FoundLog, Scan};
use nilfs_ondisk::bmap::{
    DIRECT_POINTERS, Entry, LEVEL_MAX, Node, ROOT_MAX_CHILDREN, ROOT_SIZE, Root,
};
use nilfs_ondisk::crc::{BlockSum, Verdict};
use nilfs_ondisk::inode::RawInode;
use nilfs_ondisk::summary::{BlockInfo, LogHeader, SR};
use nilfs_ondisk::super_root::SuperRoot;
use nilfs_ondisk::{BlockNr, Ino, VBlockNr};
use zerocopy::little_endian::U64;

use crate::dat::{Dat, read};
use crate::draft::{Draft, is_whole};
use crate::logged::blocks_of;
use crate::{Concerned, Repair, Risk, superblocks};

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
    /// The checksum of the log, and its other blocks.
    OfLog { scan: &'a Scan, header: &'a LogHeader, others: Vec<u8> },
}

impl<'a> Checksum<'a> {
    fn of(device: &dyn Device, scan: &'a Scan, log: &'a FoundLog) -> Option<Self> {
        if let Some(sum) = sum_of(device, scan, log) {
            return Some(Self::OfBlock(sum));
        }
        let size = scan.geometry.block_size;
        let mut others = vec![0; (log.header.nblocks as usize - 1) * size.bytes()];
        device.read_at(log.start.0 * size.bytes64(), &mut others).ok()?;
        Some(Self::OfLog { scan, header: &log.header, others })
    }

    /// Whether this is the block of the super root.
    fn fits(&self, block: &[u8]) -> bool {
        match self {
            Self::OfBlock(sum) => sum.judge(block) == Verdict::Right,
            Self::OfLog { scan, header, others } => {
                let log = [others, block].concat();
                is_whole(&log, header, scan.geometry.block_size, scan.crc_seed)
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

/// A block of a map, or of data, that was written after a super root.
struct NewBlock {
    /// 0 is data.
    level: u8,
    /// Its place in the file, or that of the first block below it.
    key: u64,
    pointer: u64,
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
        let (old, new) = (&self.before, self.with_its_maps(by)?);
        for nongc_ctime in [log.header.create, old.nongc_ctime] {
            for durable_before in [false, true] {
                let root = SuperRoot { nongc_ctime, durable_before, ..new };
                let mut block = vec![0; self.scan.geometry.block_size.bytes()];
                root.encode(&mut block, &self.scan.geometry, self.scan.crc_seed);
                if checksum.fits(&block) {
                    return Some((root, block));
                }
            }
        }
        None
    }

    /// The super root before, with the maps and counts of blocks as they became.
    fn with_its_maps(&self, by: WrittenBy) -> Option<SuperRoot> {
        let old = &self.before;
        let (old_dat, new_dat) = self.maps(&old.dat, Ino::DAT)?;
        let counts = (self.count(&old_dat, None)?, self.count(&new_dat, None)?);
        let dat = self.changed(&old.dat, (&new_dat, by), counts);
        let mut dats = (self.dat(old_dat), self.dat(new_dat));
        let mut of_virtual = |inode: &RawInode, ino| {
            let (before, after) = self.maps(inode, ino)?;
            let before_count = self.count(&before, Some(&mut dats.0))?;
            let counts = (before_count, self.count(&after, Some(&mut dats.1))?);
            Some(self.changed(inode, (&after, by), counts))
        };
        let cpfile = of_virtual(&old.cpfile, Ino::CPFILE)?;
        let sufile = of_virtual(&old.sufile, Ino::SUFILE)?;
        Some(SuperRoot { dat, cpfile, sufile, ..*old })
    }

    fn dat(&self, root: Root) -> Dat<'_> {
        Dat::new(self.device, self.scan.geometry, root)
    }

    /// The root of a map as it was and as it became.
    fn maps(&self, inode: &RawInode, ino: Ino) -> Option<(Root, Root)> {
        let before = Root::parse(&inode.i_bmap).ok()?;
        let after = root_after(&before, &self.new_blocks(ino)?)?;
        Some((before, after))
    }

    /// An inode with another map.
    fn changed(
        &self,
        inode: &RawInode,
        (map, by): (&Root, WrittenBy),
        (before, after): (u64, u64),
    ) -> RawInode {
        let sectors = self.scan.geometry.block_size.sectors();
        // mkfs.nilfs2 counted blocks, so that the number is no multiple.
        let blocks = inode.i_blocks.get().wrapping_sub(before.wrapping_mul(sectors));
        let i_blocks = U64::new(blocks.wrapping_add(after.wrapping_mul(sectors)));
        RawInode { i_bmap: encoded(map, &inode.i_bmap, by), i_blocks, ..*inode }
    }

    /// Returns the blocks that were written of a file, in the order of writing.
    fn new_blocks(&self, ino: Ino) -> Option<Vec<NewBlock>> {
        let mut found = Vec::new();
        for log in self.since {
            blocks_of(self.scan, self.device, log, &mut |of, logged| {
                if of == ino {
                    found.push((logged.block, logged.info));
                }
            });
        }
        found.into_iter().map(|(block, info)| self.new_block(block, info)).collect()
    }

    fn new_block(&self, block: BlockNr, info: BlockInfo) -> Option<NewBlock> {
        Some(match info {
            BlockInfo::Data { vblocknr, offset } => {
                NewBlock { level: 0, key: offset.0, pointer: vblocknr.0 }
            }
            BlockInfo::DatData { offset } => NewBlock { level: 0, key: offset.0, pointer: block.0 },
            BlockInfo::DatNode { key, level } => NewBlock { level, key, pointer: block.0 },
            BlockInfo::Node { vblocknr } => {
                let bytes = read(self.device, &self.scan.geometry, block)?;
                let level = bytes[1];
                let key = Node::parse(&bytes, level).ok().filter(|_| level > 0)?.key(0);
                NewBlock { level, key, pointer: vblocknr.0 }
            }
        })
    }

    /// Counts the blocks of a map, with its nodes. Without a DAT, it is that of the DAT itself.
    fn count(&self, root: &Root, mut dat: Option<&mut Dat<'_>>) -> Option<u64> {
        let (mut level, mut pointers) = match root {
            Root::Direct(pointers) => (0, pointers.iter().copied().filter(|it| *it != 0).collect()),
            Root::Tree { level, entries } => (level - 1, pointers_of(entries.iter().copied())),
        };
        let geometry = &self.scan.geometry;
        let most = geometry.nsegments * u64::from(geometry.blocks_per_segment);
        let mut count = pointers.len() as u64;
        while level > 0 {
            let mut below: Vec<u64> = Vec::new();
            for pointer in pointers {
                let block = match &mut dat {
                    Some(dat) => dat.entry(VBlockNr(pointer))?.block,
                    None => BlockNr(pointer),
                };
                let bytes = read(self.device, &self.scan.geometry, block)?;
                below.extend(pointers_of(Node::parse(&bytes, level).ok()?.entries()));
                // Damaged nodes may lead in circles.
                if count + below.len() as u64 > most {
                    return None;
                }
            }
            count += below.len() as u64;
            (level, pointers) = (level - 1, below);
        }
        Some(count)
    }
}

fn pointers_of(entries: impl Iterator<Item = Entry>) -> Vec<u64> {
    entries.map(|(_, pointer)| pointer).collect()
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

/// The root of a map after these blocks were written, unless the map has become smaller: no summary tells of that.
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
    let entries: Vec<Entry> = all.into_iter().collect();
    let is_root = level < LEVEL_MAX && entries.len() <= ROOT_MAX_CHILDREN;
    is_root.then_some(Root::Tree { level, entries })
}

//! Numbers of files that are in use, where the bitmap of the ifile is lost that says so: those of inodes with links.
//! Where the inodes are lost as well, it is those of files of which blocks live, and those to which names lead.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use nilfs_check::{Finding, Part, Position};
use nilfs_device::Device;
use nilfs_ondisk::dirent::record_at;
use nilfs_ondisk::inode::RawInode;
use nilfs_ondisk::palloc::{BlockRole, Palloc, set_bit, test_bit};
use nilfs_ondisk::{BlockNr, Cno, FileBlock, Geometry, Ino};

use crate::anew::Anew;
use crate::dat;
use crate::logged::{Logged, blocks_of};

impl Anew<'_> {
    /// Of a bitmap of the ifile, sets the bits of what is in use, and of what the format reserves.
    pub(crate) fn numbers_in_use(&mut self, bytes: &mut [u8], part: &Part) {
        let layout = Palloc::new(self.geometry.block_size, self.geometry.inode_size);
        let BlockRole::Bitmap { group } = layout.role_of(FileBlock(part.key)) else { return };
        bytes.fill(0);
        let first = layout.first_of_group(group);
        let reserved = (first..Ino::FIRST_USER.0).map(|ino| layout.bit(ino).bit);
        reserved.for_each(|bit| _ = set_bit(bytes, bit));
        let blocks = (first..first.saturating_add(layout.entries_per_group))
            .step_by(layout.entries_per_block as usize);
        let (mut found, mut lost) = (Vec::new(), BTreeSet::new());
        for in_block in blocks {
            let key = layout.entry(in_block).block.0;
            let versions = self.logged.data(Ino::IFILE, key, key.checked_add(1)).iter();
            let mut versions = versions.filter(|it| it.since <= part.life.start).peekable();
            let newest = versions.peek().copied();
            if newest.is_some_and(|newest| self.read_as_written(newest.block).is_none()) {
                lost.insert(key);
            }
            // Where the inodes are lost as well, they will be made anew of the version that is left.
            let left = versions.find_map(|it| self.read_as_written(it.block));
            found.extend(left.map(|block| (in_block, key, block)));
        }
        let living = self.with_living_blocks((&layout, &lost), &part.life);
        for (in_block, key, block) in found {
            let slots = block.chunks_exact(self.geometry.inode_size);
            for (ino, slot) in (in_block..=u64::MAX).map(Ino).zip(slots) {
                let inode = RawInode::parse(slot).ok();
                let is_used = |it: &RawInode| {
                    // A file that had blocks, of which none lives, has been deleted since.
                    let is_gone = lost.contains(&key) && it.i_blocks.get() > 0;
                    it.file_type().is_ok()
                        && it.i_links_count.get() > 0
                        && (!is_gone || living.contains(&ino))
                };
                let is_here = ino >= Ino::FIRST_USER && layout.group_of(ino.0) == group;
                if is_here && inode.as_ref().is_some_and(is_used) {
                    set_bit(bytes, layout.bit(ino.0).bit);
                }
            }
        }
        for ino in living {
            set_bit(bytes, layout.bit(ino.0).bit);
        }
    }

    /// The files with inodes in these blocks of the ifile of which blocks live in some of these checkpoints. The
    /// logs are read for it once more: to keep what they say of so many files would take too much memory.
    fn with_living_blocks(
        &mut self,
        (layout, lost): (&Palloc, &BTreeSet<u64>),
        life: &Range<Cno>,
    ) -> BTreeSet<Ino> {
        let mut living = BTreeSet::new();
        let Some(scan) = self.scan.filter(|_| !lost.is_empty()) else { return living };
        let (device, newest) = (self.device, self.newest.cno);
        for log in scan.logs.iter().filter(|log| log.header.cno <= newest) {
            blocks_of(scan, device, log, &mut |ino, logged| {
                if ino >= Ino::FIRST_USER
                    && lost.contains(&layout.entry(ino.0).block.0)
                    && !living.contains(&ino)
                    && self.lives_within(&logged, life)
                {
                    living.insert(ino);
                }
            });
        }
        living
    }

    /// Whether a block is there that one of these checkpoints has.
    fn lives_within(&mut self, logged: &Logged, life: &Range<Cno>) -> bool {
        self.life_of(logged).is_some_and(|it| it.start < life.end && it.end > life.start)
    }
}

/// The blocks of the ifile in a draft that have been made anew, by their places in it, each with the checkpoints
/// that have it.
#[derive(Debug, Default)]
pub(crate) struct RemadeIfile(BTreeMap<u64, BTreeMap<BlockNr, Range<Cno>>>);

impl RemadeIfile {
    /// Adds a block that is made anew.
    pub(crate) fn add(&mut self, block: BlockNr, part: &Part) {
        self.0.entry(part.key).or_default().insert(block, part.life.clone());
    }

    /// Whether the block with an inode of a checkpoint is one of them.
    pub(crate) fn has_inode(&self, ino: Ino, cno: Cno, geometry: &Geometry) -> bool {
        let layout = Palloc::new(geometry.block_size, geometry.inode_size);
        let versions = self.0.get(&layout.entry(ino.0).block.0);
        versions.is_some_and(|it| it.values().any(|life| life.contains(&cno)))
    }

    /// The number of a file of which a name is all that tells, and its bit, which is clear: what would tell
    /// otherwise, bitmap and inode, has been lost.
    pub(crate) fn told_by_name(
        &self,
        (device, geometry): (&dyn Device, &Geometry),
        (at, finding): (Position, &Finding),
    ) -> Option<(Ino, Position, u8)> {
        let cno = finding.place.checkpoint?;
        let block_in = |key: FileBlock| {
            let mut versions = self.0.get(&key.0)?.iter();
            versions.find(|(_, life)| life.contains(&cno)).map(|(block, _)| *block)
        };
        let block = dat::read(device, geometry, at.block)?;
        let ino = record_at(&block, at.offset).ok()?.ino;
        let layout = Palloc::new(geometry.block_size, geometry.inode_size);
        block_in(layout.entry(ino.0).block).filter(|_| ino >= Ino::FIRST_USER)?;
        let bit = layout.bit(ino.0);
        let bitmap = block_in(bit.block)?;
        let is_free = !test_bit(&dat::read(device, geometry, bitmap)?, bit.bit);
        let at = Position { block: bitmap, offset: bit.bit / 8 };
        is_free.then_some((ino, at, (bit.bit % 8) as u8))
    }
}

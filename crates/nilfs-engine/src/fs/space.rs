//! Whether what is promised can be committed: an account of the changes in memory against the room
//! on the device.
//!
//! How many blocks a commit takes is known only when it is built, so changes are charged the most
//! they could cost. When that does not fit, a commit turns estimates into facts, and only if it
//! does not fit then, the volume is full.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};

use nilfs_ondisk::Geometry;
use parking_lot::Mutex;

use crate::commit::Base;

/// Blocks that one changed data block can cost: itself and the node above it. For each of them
/// another block, of the DAT, may change, but no more than the DAT has.
const BLOCKS_PER_PAGE: u64 = 2;
/// Blocks that one changed inode can cost beside its data: its ifile block and the upper nodes of
/// its map; and their DAT blocks.
const BLOCKS_PER_INODE: u64 = 4;
/// Blocks that any commit costs.
const BLOCKS_PER_COMMIT: u64 = 64;
/// Segments that even the cleaner leaves alone, beside room for rewriting the whole DAT: a commit
/// that deletes ends the life of blocks that may be described anywhere in it.
const LAST_SEGMENTS: u64 = 2;
/// Deleting leaves a share of the segments to the cleaner, to move the blocks of others into. The
/// more it can move in one step, the less the commit behind the step weighs; but what has to be
/// clean cannot hold dead blocks, and the fewer these are, the more often live ones are moved.
const CLEANER_SHARE: u64 = 128;
/// The bounds of that share.
const CLEANER_SEGMENTS: RangeInclusive<u64> = 1..=8;
/// The share of the segments that programs have before the next shortage: they write what has changed
/// and the DAT behind it, so the more there is, the less the DAT weighs.
const RUNWAY_SHARE: u64 = 24;
/// The bounds of that share: somebody waits for it.
const RUNWAY_SEGMENTS: RangeInclusive<u64> = 2..=48;

/// Bytes of memory that a changed page takes beside its content, and a changed inode in all, until a
/// commit has taken it.
const BESIDE_PAGE: u64 = 256;
const CHANGED_INODE: u64 = 1024;

/// What an operation may change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    pub(crate) pages: u64,
    pub(crate) inodes: u64,
    /// The operation may use the room that is kept back, because it helps to make room.
    pub(crate) frees: bool,
}

/// The account. All numbers are blocks, pages or inodes, not bytes.
#[derive(Debug, Default)]
pub(crate) struct Space {
    /// Changed and not frozen.
    dirty_pages: AtomicU64,
    dirty_inodes: AtomicU64,
    /// In a commit that is under way.
    frozen_pages: AtomicU64,
    frozen_inodes: AtomicU64,
    /// Claimed by operations that are under way.
    pending_pages: AtomicU64,
    pending_inodes: AtomicU64,
    /// Blocks of the DAT, and some that it may get.
    dat_blocks: AtomicU64,
    /// Room on the device.
    free_blocks: AtomicU64,
    /// What the segments in use could give back when that was last counted; 0 = not known.
    reclaimable_blocks: AtomicU64,
    /// What programs cannot fill: clean, or dead and to be reclaimed.
    reserved_blocks: AtomicU64,
    /// What programs leave clean.
    kept_blocks: AtomicU64,
    /// What programs should have when a shortage is over.
    runway_blocks: AtomicU64,
    /// What deleting leaves alone.
    deleting_blocks: AtomicU64,
    /// What everybody leaves alone.
    last_blocks: AtomicU64,
    claiming: Mutex<()>,
}

/// A claim of an operation that is under way.
pub(crate) struct Claim<'a> {
    space: &'a Space,
    cost: Cost,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.space.pending_pages.fetch_sub(self.cost.pages, Ordering::Relaxed);
        self.space.pending_inodes.fetch_sub(self.cost.inodes, Ordering::Relaxed);
    }
}

impl Space {
    /// Takes over what the device has room for after a commit: `clean` segments can be written.
    pub(crate) fn refresh(&self, geometry: &Geometry, base: &Base, clean: u64) {
        let per_segment = u64::from(geometry.blocks_per_segment);
        let current = geometry.segment_end(base.position.segment).0 - base.position.block.0;
        let next = geometry.segment_blocks(base.position.next);
        let free = clean.saturating_mul(per_segment).saturating_add(current + next);
        let dat = base.super_root.dat.i_blocks.get() / geometry.block_size.sectors();
        // What a commit can cost that deletes, and what the cleaner's can that makes up for it.
        let commit = dat + BLOCKS_PER_COMMIT;
        let last = LAST_SEGMENTS * per_segment + commit;
        let reserved = geometry.reserved_segments().saturating_mul(per_segment);
        self.free_blocks.store(free, Ordering::Relaxed);
        self.dat_blocks.store(commit, Ordering::Relaxed);
        let share = |share: u64, bounds: RangeInclusive<u64>| {
            (geometry.nsegments / share).clamp(*bounds.start(), *bounds.end())
        };
        let cleaner = share(CLEANER_SHARE, CLEANER_SEGMENTS);
        let runway = share(RUNWAY_SHARE, RUNWAY_SEGMENTS);
        let deleting = last + commit + cleaner * per_segment;
        // Who finds the volume full must still be able to delete, a little at a time.
        let blocks = geometry.nsegments.saturating_mul(per_segment);
        let deletes = (8 * BLOCKS_PER_COMMIT).min(blocks / 32);
        let kept = deleting + deletes.max(per_segment).max(2 * BLOCKS_PER_COMMIT);
        self.reserved_blocks.store(reserved.max(kept), Ordering::Relaxed);
        self.kept_blocks.store(kept, Ordering::Relaxed);
        self.deleting_blocks.store(deleting, Ordering::Relaxed);
        self.runway_blocks.store(runway * per_segment, Ordering::Relaxed);
        self.last_blocks.store(last, Ordering::Relaxed);
    }

    /// For a volume that is only read: so many segments are clean.
    pub(crate) fn only_free(&self, geometry: &Geometry, clean: u64) {
        let per_segment = u64::from(geometry.blocks_per_segment);
        let free = clean.saturating_mul(per_segment);
        let reserved = geometry.reserved_segments().saturating_mul(per_segment);
        self.free_blocks.store(free, Ordering::Relaxed);
        self.reserved_blocks.store(reserved, Ordering::Relaxed);
    }

    /// Whether programs can write for a while.
    pub(crate) fn has_runway(&self) -> bool {
        let kept = self.kept_blocks.load(Ordering::Relaxed) + self.needed();
        let runway = self.runway_blocks.load(Ordering::Relaxed);
        self.free_blocks.load(Ordering::Relaxed) >= kept + runway
    }

    /// How much of the runway is used up: 0 = there is room, 1 = the rest is kept clean.
    pub(crate) fn shortage(&self) -> f64 {
        let kept = self.kept_blocks.load(Ordering::Relaxed);
        let left = self.free_blocks.load(Ordering::Relaxed).saturating_sub(kept);
        let runway = self.runway_blocks.load(Ordering::Relaxed);
        if left >= runway { 0.0 } else { 1.0 - left as f64 / runway as f64 }
    }

    /// Blocks that the cleaner can use for moving others.
    pub(crate) fn room_for_moving(&self) -> u64 {
        let _one_at_a_time = self.claiming.lock();
        let kept = self.needed() + self.last_blocks.load(Ordering::Relaxed);
        self.free_blocks.load(Ordering::Relaxed).saturating_sub(kept)
    }

    /// Blocks that programs cannot fill. They may be dead ones that the cleaner can reclaim: a full
    /// volume, too, has some, so that not every overwriting moves a segment of live blocks.
    pub(crate) fn reserved_blocks(&self) -> u64 {
        self.reserved_blocks.load(Ordering::Relaxed)
    }

    /// Blocks that programs leave clean, for deleting and for the cleaner.
    pub(crate) fn kept_blocks(&self) -> u64 {
        self.kept_blocks.load(Ordering::Relaxed)
    }

    /// Takes note of how much the cleaner could reclaim; 0 if that has become unknown.
    pub(crate) fn set_reclaimable(&self, blocks: u64) {
        self.reclaimable_blocks.store(blocks, Ordering::Relaxed);
    }

    /// So much of what could be reclaimed is free now.
    pub(crate) fn reclaimed(&self, blocks: u64) {
        let left = self.reclaimable_blocks().saturating_sub(blocks);
        self.set_reclaimable(left);
    }

    /// Blocks that the cleaner could reclaim, as far as that is known.
    pub(crate) fn reclaimable_blocks(&self) -> u64 {
        self.reclaimable_blocks.load(Ordering::Relaxed)
    }

    /// Claims room for an operation, if there is.
    pub(crate) fn claim(&self, cost: Cost) -> Option<Claim<'_>> {
        // Two claims that each see the other's would both be refused.
        let _one_at_a_time = self.claiming.lock();
        let claim = self.pending(cost);
        let kept = if cost.frees { &self.deleting_blocks } else { &self.kept_blocks };
        let room = self.free_blocks.load(Ordering::Relaxed);
        let needed = self.needed();
        let fits = needed + kept.load(Ordering::Relaxed) <= room;
        (fits && (cost.frees || self.leaves_reserve(needed))).then_some(claim)
    }

    /// Whether an operation could be given room by cleaning, as far as that is known.
    pub(crate) fn may_fit(&self, cost: Cost) -> bool {
        let _one_at_a_time = self.claiming.lock();
        let _claim = self.pending(cost);
        cost.frees || self.leaves_reserve(self.needed())
    }

    fn pending(&self, cost: Cost) -> Claim<'_> {
        self.pending_pages.fetch_add(cost.pages, Ordering::Relaxed);
        self.pending_inodes.fetch_add(cost.inodes, Ordering::Relaxed);
        Claim { space: self, cost }
    }

    fn leaves_reserve(&self, needed: u64) -> bool {
        let unused = self.free_blocks.load(Ordering::Relaxed) + self.reclaimable_blocks();
        needed + self.reserved_blocks() <= unused
    }

    fn needed(&self) -> u64 {
        let sum = |counters: [&AtomicU64; 3]| {
            counters.iter().map(|counter| counter.load(Ordering::Relaxed)).sum::<u64>()
        };
        let pages = sum([&self.dirty_pages, &self.frozen_pages, &self.pending_pages]);
        let inodes = sum([&self.dirty_inodes, &self.frozen_inodes, &self.pending_inodes]);
        let changed = pages * BLOCKS_PER_PAGE + inodes * BLOCKS_PER_INODE;
        changed + changed.min(self.dat_blocks.load(Ordering::Relaxed)) + BLOCKS_PER_COMMIT
    }

    /// Counts pages that became dirty.
    pub(crate) fn add_pages(&self, count: usize) {
        self.dirty_pages.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Counts dirty pages that were thrown away.
    pub(crate) fn remove_pages(&self, count: usize) {
        self.dirty_pages.fetch_sub(count as u64, Ordering::Relaxed);
    }

    /// Counts an inode that became dirty; tells whether it is the first one.
    pub(crate) fn add_inode(&self) -> bool {
        self.dirty_inodes.fetch_add(1, Ordering::Relaxed) == 0
    }

    /// Moves everything dirty to the commit that starts. No operation may be under way.
    pub(crate) fn freeze(&self) {
        let pages = self.dirty_pages.swap(0, Ordering::Relaxed);
        let inodes = self.dirty_inodes.swap(0, Ordering::Relaxed);
        self.frozen_pages.store(pages, Ordering::Relaxed);
        self.frozen_inodes.store(inodes, Ordering::Relaxed);
    }

    /// The commit is done.
    pub(crate) fn thaw(&self) {
        self.frozen_pages.store(0, Ordering::Relaxed);
        self.frozen_inodes.store(0, Ordering::Relaxed);
    }

    /// Pages in memory that are not committed.
    pub(crate) fn uncommitted_pages(&self) -> u64 {
        self.dirty_pages.load(Ordering::Relaxed) + self.frozen_pages.load(Ordering::Relaxed)
    }

    /// Pages that the next commit would take.
    pub(crate) fn dirty_pages(&self) -> u64 {
        self.dirty_pages.load(Ordering::Relaxed)
    }

    /// Bytes of memory that the next commit would take, with pages of so many bytes.
    pub(crate) fn dirty_memory(&self, page: u64) -> u64 {
        memory(page, &self.dirty_pages, &self.dirty_inodes)
    }

    /// The same with what a commit is just taking.
    pub(crate) fn uncommitted_memory(&self, page: u64) -> u64 {
        self.dirty_memory(page) + memory(page, &self.frozen_pages, &self.frozen_inodes)
    }

    /// Free blocks less those that uncommitted data will take.
    pub(crate) fn free_blocks(&self) -> u64 {
        self.free_blocks.load(Ordering::Relaxed).saturating_sub(self.uncommitted_pages())
    }
}

fn memory(page: u64, pages: &AtomicU64, inodes: &AtomicU64) -> u64 {
    // What the allocator has for a page and the count of its owners.
    let page = page * 5 / 4 + BESIDE_PAGE;
    pages.load(Ordering::Relaxed) * page + inodes.load(Ordering::Relaxed) * CHANGED_INODE
}

//! Whether what is promised can be committed: an account of the changes in memory against the space
//! on the device.
//!
//! How many blocks a commit takes is known only when it is built, so changes are charged the most
//! they could cost. When that does not fit, a commit turns estimates into facts, and only if it
//! does not fit then, the volume is full.
//!
//! The account is one value under one lock, and no change is ever missing in it:
//!
//! - An operation claims what it may change before it begins, and its claim ends after what it has
//!   changed was counted. In between, some of it counts twice.
//! - A freeze moves all that has changed to the commit at once, while no operation is under way.
//! - A data block that a log has is charged without itself until it changes again; the free space becomes
//!   what the log has left before.
//! - What is overwritten takes room twice as long as a snapshot, or hard protection, may keep the old
//!   block: which ones it keeps is known when a commit has ended their lives.
//! - What a commit has taken is forgotten in the moment in which the free space becomes what the
//!   commit has left. Only a thread that has the log says how much there is, so it is never out of
//!   date.
//!
//! Some of the clean blocks are kept back, in layers, the lower the more important what they are
//! for:
//!
//! ```text
//! free ─┬─ kept ──────┬─ changing ───┬─ deleting ────┬─ last ──────────────┬─ 0
//!       │ growing     │ overwriting, │ deleting      │ moving blocks:      │ the commits
//!       │ files       │ attributes   │               │ the cleaner's steps │ after all these
//! ```
//!
//! Besides that, growing leaves a *reserve* unused, clean or dead: the cleaner lives on dead
//! blocks.
//!
//! # Why a full volume can be overwritten for ever
//!
//! An overwrite kills as many blocks as it writes, so the unused ones never become fewer than the
//! reserve. When an overwrite finds no space, only what `changing` keeps is clean, and the rest of
//! the reserve is dead. That rest consists of three parts:
//!
//! - Summaries, which no cleaning gives back. They are largest when no two blocks of a segment were
//!   born together, as is the case after random overwrites.
//! - One DAT. A commit rewrites up to all of it, and leaves the old blocks dead. They lie side by
//!   side in the log, so gaining them back costs next to nothing; but until then they are dead.
//! - Blocks that died here and there. Of `blocks` blocks in all, `dead` are such, and a step can
//!   move the `movable` blocks between `changing` and `last`. The emptiest segments have at least
//!   the average of dead blocks, so a step gains `movable × dead / blocks` or more. It pays if that
//!   is more than the blocks that its commit takes besides the DAT. So `dead` has to be at least
//!   [`STEP_BLOCKS`]` × blocks / movable`.

use std::collections::HashSet;
use std::ops::{Add, RangeInclusive};

use nilfs_ondisk::palloc::Palloc;
use nilfs_ondisk::{Cno, FileBlock, Geometry, Ino};

use crate::host::{Mutex, NumberState, Rank};
use crate::log::segment_writer::SegmentWriter;

/// Blocks that one changed data block can cost: itself and the node above it. For each of them
/// another block, of the DAT, may change, but no more than the DAT has.
const BLOCKS_PER_PAGE: u64 = 2;
/// Blocks that a file with changed data blocks can cost besides these: the upper nodes of its map.
const BLOCKS_PER_MAP: u64 = 2;
/// Blocks that one changed block of the ifile can cost: itself and the node above it.
const BLOCKS_PER_IFILE_BLOCK: u64 = 2;
/// Blocks that any commit costs.
const BLOCKS_PER_COMMIT: u64 = 64;
/// Segments that even the cleaner leaves alone, besides those for rewriting the whole DAT: a commit
/// that deletes ends the life of blocks that may be described anywhere in it.
const LAST_SEGMENTS: u64 = 2;
/// Deleting leaves a share of the segments to the cleaner, to move the blocks of others into. The
/// more it can move in one step, the less the commit after the step weighs; but what has to be
/// clean cannot hold dead blocks, and the fewer these are, the more often live ones are moved.
const CLEANER_SHARE: u64 = 128;
/// The bounds of that share.
const CLEANER_SEGMENTS: RangeInclusive<u64> = 1..=8;
/// The share of the segments that are clean ahead of need when a shortage is over: programs write
/// what has changed and the DAT after it, so the more there is, the less the DAT weighs.
const CLEAN_AHEAD_SHARE: u64 = 24;
/// The bounds of that share.
const CLEAN_AHEAD_SEGMENTS: RangeInclusive<u64> = 2..=48;
/// Bytes of it for which somebody waits who finds no room: what a card writes in a second or two.
const WAITED_FOR_BYTES: u64 = 16 << 20;
/// Blocks that the commit after a step of the cleaner takes besides those of the DAT: the super
/// root, blocks of the sufile, the cpfile and their maps, and what fills the last page of flash.
const STEP_BLOCKS: u64 = 16;
/// Bytes of a summary for a block that was born alone: of its file and of itself, and its checksum.
const SUMMARY_BYTES_PER_BLOCK: u64 = 44;
/// Bytes that a block of a file takes elsewhere for good, besides the summary of its log: its
/// entries in the DAT (of which a fifth is free) and in the map of the file.
const BYTES_PER_BLOCK: u64 = 64;

/// What becomes of the volume by an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It has more to keep afterwards.
    Grows,
    /// It has no more to keep than before, when the old state is let go.
    Changes,
    /// It has less.
    Frees,
}

/// Bytes of memory that a changed page takes besides its content, and a changed inode in all, until
/// a commit has taken it.
const PAGE_OVERHEAD: u64 = 256;
const CHANGED_INODE: u64 = 1024;

/// What an operation may change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    pub(crate) pages: u64,
    pub(crate) inodes: u64,
    pub(crate) effect: Effect,
}

/// Changes of which a commit has to take care.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Changes {
    /// Data blocks of files.
    pub(crate) pages: u64,
    /// Those of them that are in a log already, so that a commit need not write them again.
    pub(crate) placed: u64,
    /// Those of them that were holes; they stay counted if they become holes again, unless their file is
    /// gone.
    pub(crate) grown: u64,
    /// Files of which data blocks have changed.
    pub(crate) maps: u64,
    /// Blocks of the ifile.
    pub(crate) ifile_blocks: u64,
}

impl From<Cost> for Changes {
    fn from(cost: Cost) -> Self {
        Self {
            pages: cost.pages,
            placed: 0,
            grown: if cost.effect == Effect::Grows { cost.pages } else { 0 },
            maps: cost.inodes,
            ifile_blocks: cost.inodes,
        }
    }
}

impl Add for Changes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            pages: self.pages + other.pages,
            placed: self.placed + other.placed,
            grown: self.grown + other.grown,
            maps: self.maps + other.maps,
            ifile_blocks: self.ifile_blocks + other.ifile_blocks,
        }
    }
}

impl Changes {
    /// Blocks that they can cost, if the DAT has this many.
    fn blocks(self, dat: u64) -> u64 {
        let changed = self.pages * BLOCKS_PER_PAGE
            + self.maps * BLOCKS_PER_MAP
            + self.ifile_blocks * BLOCKS_PER_IFILE_BLOCK;
        changed.saturating_sub(self.placed) + changed.min(dat)
    }

    /// Data blocks that no log has.
    fn unplaced(&self) -> u64 {
        self.pages.saturating_sub(self.placed)
    }
}

/// Account of what must be kept on the device when there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Needed {
    /// Blocks, those of the newest checkpoint among them.
    pub(crate) blocks: u64,
    /// The last checkpoint that is kept: a block of the newest one that was born by then is needed even
    /// when it is overwritten or deleted. `None`: none is.
    pub(crate) last_kept: Option<Cno>,
}

/// Blocks that are not needed.
#[derive(Debug, Clone, Copy)]
struct Unused {
    /// Free, or to be reclaimed.
    blocks: u64,
    /// As in [`Needed`].
    last_kept: Option<Cno>,
}

/// Fate of the blocks of a deleted file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deleted {
    /// They can be reclaimed.
    Unneeded,
    /// The blocks that were born after this checkpoint can be reclaimed.
    NeededBy(Cno),
    /// It is not known whether they can be reclaimed.
    Unknown,
}

/// What there is on the device, as of the newest checkpoint. All in blocks.
#[derive(Debug, Default)]
struct DeviceSpace {
    /// Of clean segments and of the current one.
    free: u64,
    /// Blocks that are not needed; `None`: it is not known what can be reclaimed.
    unused: Option<Unused>,
    /// Clean segments that are not written, because something in them is needed.
    refused_segments: u64,
    /// Of the DAT, and some that it may get.
    dat: u64,
    /// What growing leaves unused.
    reserved: u64,
    layers: Layers,
    /// What should be clean ahead of need when a shortage is over.
    clean_ahead: u64,
    /// What of that somebody waits for who finds no room.
    waited_for: u64,
}

/// What is left clean, in blocks, the lower the more important what it is left for.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Layers {
    /// By growing.
    kept: u64,
    /// By changing.
    changing: u64,
    /// By deleting.
    deleting: u64,
    /// By everybody.
    last: u64,
}

impl Layers {
    /// The layers of a volume whose DAT has this many blocks.
    fn new(geometry: &Geometry, dat: u64) -> Self {
        let per_segment = u64::from(geometry.blocks_per_segment);
        // What a commit can cost that deletes, and what the cleaner's can that makes up for it.
        let commit = dat + BLOCKS_PER_COMMIT;
        let last = LAST_SEGMENTS * per_segment + commit;
        let deleting = last + commit + share(geometry, CLEANER_SHARE, CLEANER_SEGMENTS);
        // Somebody who finds the volume full must still be able to change and to delete something,
        // a little at a time.
        let little = (8 * BLOCKS_PER_COMMIT).min(blocks(geometry) / 32);
        let little = little.max(per_segment).max(4 * BLOCKS_PER_COMMIT);
        Self { kept: deleting + little, changing: deleting + little / 2, deleting, last }
    }

    fn of(&self, effect: Effect) -> u64 {
        match effect {
            Effect::Grows => self.kept,
            Effect::Changes => self.changing,
            Effect::Frees => self.deleting,
        }
    }

    /// Blocks that a step of the cleaner can move when nothing can be changed without it.
    fn movable(&self) -> u64 {
        self.changing - self.last
    }
}

/// Blocks that a full volume leaves unused (see the head of this module).
fn reserve(geometry: &Geometry, dat: u64) -> u64 {
    let per_segment = u64::from(geometry.blocks_per_segment);
    // A volume becomes no smaller while it is filled: its DAT is counted as it will be.
    let entries = geometry.block_size.bytes64() / geometry.dat_entry_size as u64;
    let dat = dat.max(blocks(geometry) / entries);
    let layers = Layers::new(geometry, dat);
    let summary = geometry.block_size.blocks_for(SUMMARY_BYTES_PER_BLOCK * per_segment);
    let summaries = summary.saturating_mul(geometry.nsegments);
    let dead = (STEP_BLOCKS * blocks(geometry)).div_ceil(layers.movable());
    let by_format = geometry.reserved_segments().saturating_mul(per_segment);
    by_format.max(layers.changing + BLOCKS_PER_COMMIT + summaries + dat + dead)
}

/// A share of the segments, within bounds, in blocks.
fn share(geometry: &Geometry, share: u64, bounds: RangeInclusive<u64>) -> u64 {
    let segments = (geometry.nsegments / share).clamp(*bounds.start(), *bounds.end());
    segments * u64::from(geometry.blocks_per_segment)
}

/// Of `unused` blocks, those that data of files can take, if `reserved` ones are kept back.
pub(crate) fn available(unused: u64, reserved: u64, block_size: u64) -> u64 {
    let left = u128::from(unused.saturating_sub(reserved));
    let available = left * u128::from(block_size) / u128::from(block_size + BYTES_PER_BLOCK);
    available as u64
}

/// Blocks of all segments, as if the first were as large as the others.
fn blocks(geometry: &Geometry) -> u64 {
    geometry.nsegments.saturating_mul(geometry.blocks_per_segment.into())
}

impl DeviceSpace {
    /// Space of a device on which `free` blocks can be written, all blocks can be reclaimed but those
    /// `needed`, as far as these are known, and the DAT has `dat` blocks.
    fn new(geometry: &Geometry, free: u64, needed: Option<Needed>, dat: u64) -> Self {
        let clean_ahead = share(geometry, CLEAN_AHEAD_SHARE, CLEAN_AHEAD_SEGMENTS);
        let unused = |Needed { blocks, last_kept }| Unused {
            blocks: total(geometry).saturating_sub(blocks).max(free),
            last_kept,
        };
        Self {
            free,
            unused: needed.map(unused),
            refused_segments: 0,
            dat: dat + BLOCKS_PER_COMMIT,
            reserved: reserve(geometry, dat),
            layers: Layers::new(geometry, dat),
            clean_ahead,
            waited_for: clean_ahead.min(geometry.block_size.blocks_for(WAITED_FOR_BYTES)),
        }
    }

    /// Space as a commit has left it: of the segments that can be written, and of the rest of those in
    /// which the log is.
    fn after(geometry: &Geometry, log: &SegmentWriter, needed: Option<Needed>) -> Self {
        let base = log.base();
        let per_segment = u64::from(geometry.blocks_per_segment);
        let current = geometry.segment_end(base.position.segment).0 - base.position.block.0;
        let next = geometry.segment_blocks(base.position.next);
        let clean = log.writable_segments().saturating_mul(per_segment);
        let free = clean.saturating_add(current + next);
        // Whatever a damaged inode says.
        let dat = base.super_root.dat.i_blocks.get() / geometry.block_size.sectors();
        let refused_segments = log.refused_segments().len() as u64;
        // The cleaner cannot take what is dead there.
        let needed = needed.map(|needed| {
            let refused = refused_segments.saturating_mul(per_segment);
            Needed { blocks: needed.blocks.saturating_add(refused), ..needed }
        });
        let space = Self::new(geometry, free, needed, dat.min(blocks(geometry)));
        Self { refused_segments, ..space }
    }

    fn unused(&self) -> u64 {
        self.unused.map_or(self.free, |unused| unused.blocks)
    }

    /// Blocks that changes leave fewer unused, with what describes these, at most.
    fn growth(&self, changes: Changes) -> u64 {
        let data = match self.unused {
            // Blocks that are overwritten count as in use for now.
            None => changes.unplaced(),
            // Such blocks stay, unless they were born after the last checkpoint that is kept.
            Some(Unused { last_kept: Some(_), .. }) => changes.pages.max(changes.grown),
            Some(Unused { last_kept: None, .. }) => changes.grown,
        };
        let blocks = data + changes.ifile_blocks;
        blocks + blocks.div_ceil(16)
    }

    /// How much is used up of what is to be clean ahead of need: 0 = nothing, 1 = all; the rest is
    /// kept clean.
    fn shortage(&self) -> f64 {
        let left = self.free.saturating_sub(self.layers.kept);
        if left >= self.clean_ahead { 0.0 } else { 1.0 - left as f64 / self.clean_ahead as f64 }
    }
}

#[derive(Debug, Default)]
struct Account {
    /// Changed and not frozen; the blocks of the ifile are counted by name, because many inodes
    /// share one.
    dirty: Changes,
    dirty_ifile: HashSet<FileBlock, NumberState>,
    dirty_inodes: u64,
    /// In a commit that is under way.
    frozen: Changes,
    frozen_inodes: u64,
    /// Claimed by operations that are under way.
    pending: Changes,
    device: DeviceSpace,
}

impl Account {
    /// All changes, and what else an operation would change.
    fn changes(&self, cost: Option<Cost>) -> Changes {
        let more = cost.map_or(Changes::default(), Changes::from);
        self.dirty() + self.frozen + self.pending + more
    }

    /// What a commit of them can cost.
    fn needed(&self, cost: Option<Cost>) -> u64 {
        self.changes(cost).blocks(self.device.dat) + BLOCKS_PER_COMMIT
    }

    fn dirty(&self) -> Changes {
        Changes { ifile_blocks: self.dirty_ifile.len() as u64, ..self.dirty }
    }

    fn freeze(&mut self) {
        self.frozen = self.dirty();
        self.dirty = Changes::default();
        self.dirty_ifile = HashSet::default();
        self.frozen_inodes = std::mem::take(&mut self.dirty_inodes);
    }

    fn thaw(&mut self) {
        self.frozen = Changes::default();
        self.frozen_inodes = 0;
    }

    /// Takes over the space that a commit of what was frozen has left.
    fn take_over(&mut self, device: DeviceSpace) {
        self.thaw();
        self.device = device;
    }

    /// Whether an operation would leave `more` blocks clean besides those that it has to leave.
    fn fits(&self, cost: Cost, more: u64) -> bool {
        self.needed(Some(cost)) + self.device.layers.of(cost.effect) + more <= self.device.free
    }

    /// Blocks that are missing for an operation, and for having `ahead` others clean after it; but no
    /// more of those than half of what could be gained: the fewer blocks are dead, the more live ones
    /// are moved for each.
    fn missing(&self, cost: Option<Cost>, ahead: u64) -> u64 {
        let effect = cost.map_or(Effect::Grows, |cost| cost.effect);
        let least = self.needed(cost) + self.device.layers.of(effect);
        let ahead = ahead.min(self.device.unused().saturating_sub(least) / 2);
        (least + ahead).saturating_sub(self.device.free)
    }

    fn leaves_reserve(&self, cost: Cost) -> bool {
        cost.effect != Effect::Grows
            || self.growth(Some(cost)) + self.device.reserved <= self.device.unused()
    }

    /// Blocks that all changes, and what else an operation would change, leave fewer unused at most.
    fn growth(&self, cost: Option<Cost>) -> u64 {
        self.device.growth(self.changes(cost))
    }
}

/// How much is used up of what there is for those who change something.
#[derive(Debug)]
pub(crate) struct Pressure {
    /// Of what is to be clean ahead of need: 0 = nothing, 1 = all; the rest is kept clean.
    pub(crate) shortage: f64,
    /// Bytes of memory that the next commit would take.
    pub(crate) dirty: u64,
    /// The same with what a commit is just taking.
    pub(crate) uncommitted: u64,
}

/// The account.
#[derive(Debug)]
pub(crate) struct Space(Mutex<Account>);

impl Default for Space {
    fn default() -> Self {
        Self(Mutex::new(Rank::Space, Account::default()))
    }
}

/// A claim of an operation that is under way.
pub(crate) struct Claim<'a> {
    space: &'a Space,
    cost: Cost,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let pending = &mut self.space.0.lock().pending;
        let claimed = Changes::from(self.cost);
        pending.pages -= claimed.pages;
        pending.grown -= claimed.grown;
        pending.maps -= claimed.maps;
        pending.ifile_blocks -= claimed.ifile_blocks;
    }
}

impl Space {
    /// Takes over the space on the device, as the owner of the log knows it. Of the blocks of all segments,
    /// all but those `needed` can be reclaimed; `None`: that is not known.
    pub(crate) fn refresh(&self, geometry: &Geometry, log: &SegmentWriter, needed: Option<Needed>) {
        let device = DeviceSpace::after(geometry, log, needed);
        self.0.lock().device = device;
    }

    /// The same after a commit, which has taken what was frozen.
    pub(crate) fn committed(
        &self,
        geometry: &Geometry,
        log: &SegmentWriter,
        needed: Option<Needed>,
    ) {
        let device = DeviceSpace::after(geometry, log, needed);
        self.0.lock().take_over(device);
    }

    /// Blocks that the cleaner would have to gain so that there is space for an operation, and for
    /// others after it.
    pub(crate) fn missing(&self, cost: Option<Cost>) -> u64 {
        let account = self.0.lock();
        account.missing(cost, account.device.clean_ahead)
    }

    /// Those of them for which an operation waits that has found no room.
    pub(crate) fn waited_for(&self, cost: Cost) -> u64 {
        let account = self.0.lock();
        account.missing(Some(cost), account.device.waited_for)
    }

    /// Whether less is clean than should be ahead of need.
    pub(crate) fn is_short(&self) -> bool {
        self.0.lock().device.shortage() > 0.0
    }

    /// How much is used up, with pages of this many bytes.
    pub(crate) fn pressure(&self, page: u64) -> Pressure {
        let account = self.0.lock();
        let dirty = memory(page, account.dirty.pages, account.dirty_inodes);
        let frozen = memory(page, account.frozen.pages, account.frozen_inodes);
        Pressure { shortage: account.device.shortage(), dirty, uncommitted: dirty + frozen }
    }

    /// Blocks that the cleaner can use for moving others.
    pub(crate) fn room_for_moving(&self) -> u64 {
        let account = self.0.lock();
        account.device.free.saturating_sub(account.needed(None) + account.device.layers.last)
    }

    /// Blocks that programs cannot fill. They may be dead ones that the cleaner can reclaim: a full
    /// volume, too, has some, so that not every overwriting moves a segment of live blocks.
    pub(crate) fn reserved_blocks(&self) -> u64 {
        self.0.lock().device.reserved
    }

    /// Number of clean segments that are not written, because something in them is needed, as far as that
    /// is known.
    pub(crate) fn refused_segments(&self) -> u64 {
        self.0.lock().device.refused_segments
    }

    /// Blocks that growing files leave clean.
    pub(crate) fn kept_blocks(&self) -> u64 {
        self.0.lock().device.layers.kept
    }

    /// Blocks that nobody needs, with those that the cleaner could reclaim, as far as these are
    /// known, less those that uncommitted changes will take.
    pub(crate) fn unused_blocks(&self) -> u64 {
        let account = self.0.lock();
        account.device.unused().saturating_sub(account.growth(None))
    }

    /// Fate of the blocks of a deleted file.
    pub(crate) fn deleted(&self) -> Deleted {
        match self.0.lock().device.unused {
            None => Deleted::Unknown,
            Some(Unused { last_kept: None, .. }) => Deleted::Unneeded,
            Some(Unused { last_kept: Some(cno), .. }) => Deleted::NeededBy(cno),
        }
    }

    /// Whether it is known what the cleaner could reclaim.
    pub(crate) fn knows_unused(&self) -> bool {
        self.0.lock().device.unused.is_some()
    }

    /// Of `unused` blocks, those that data of files can take.
    pub(crate) fn available(&self, unused: u64, block_size: u64) -> u64 {
        available(unused, self.reserved_blocks(), block_size)
    }

    /// Claims space for an operation, if there is enough.
    pub(crate) fn claim(&self, cost: Cost) -> Option<Claim<'_>> {
        let mut account = self.0.lock();
        let granted = account.fits(cost, 0) && account.leaves_reserve(cost);
        granted.then(|| {
            account.pending = account.pending + Changes::from(cost);
            Claim { space: self, cost }
        })
    }

    /// Data blocks by which a file could grow, if the cleaner helps.
    pub(crate) fn growing_pages(&self) -> u64 {
        let account = self.0.lock();
        let cost = Cost { pages: 0, inodes: 1, effect: Effect::Grows };
        let growth = account.growth(Some(cost));
        let unused = account.device.unused().saturating_sub(account.device.reserved + growth);
        // A write that begins and ends within blocks touches up to two more.
        (unused * 16 / 17).saturating_sub(2)
    }

    /// Blocks that have to be free for an operation, and those that are: clean, or else unused.
    pub(crate) fn needed_and_free(&self, cost: Cost) -> (u64, u64) {
        let account = self.0.lock();
        let device = &account.device;
        match account.leaves_reserve(cost) {
            true => (account.needed(Some(cost)) + device.layers.of(cost.effect), device.free),
            false => (account.growth(Some(cost)) + device.reserved, device.unused()),
        }
    }

    /// Whether there is space for an operation; if it deletes, for a batch of others like it as
    /// well.
    pub(crate) fn fits(&self, cost: Cost) -> bool {
        let account = self.0.lock();
        let batch = match cost.effect {
            Effect::Frees => (account.device.layers.changing - account.device.layers.deleting) / 2,
            Effect::Grows | Effect::Changes => 0,
        };
        account.fits(cost, batch) && account.leaves_reserve(cost)
    }

    /// Whether an operation could be given space by cleaning, as far as that is known.
    pub(crate) fn may_fit(&self, cost: Cost) -> bool {
        self.0.lock().leaves_reserve(cost)
    }

    /// Counts data blocks that became dirty, and files of which one has changed for the first time
    /// since the last freeze.
    pub(crate) fn add(&self, changes: Changes) {
        let mut account = self.0.lock();
        account.dirty = account.dirty + changes;
    }

    /// Whether this many blocks can be written ahead of a commit, although they may have to be written
    /// again: what growing files leave clean must still be clean then.
    pub(crate) fn has_room_ahead(&self, blocks: u64) -> bool {
        let account = self.0.lock();
        account.needed(None) + account.device.layers.kept + blocks <= account.device.free
    }

    /// Counts dirty pages that a log has now.
    pub(crate) fn add_placed(&self, count: u64) {
        self.0.lock().dirty.placed += count;
    }

    /// Counts dirty pages that were thrown away, and those of them that were in a log.
    pub(crate) fn remove_pages(&self, count: u64, placed: u64) {
        let dirty = &mut self.0.lock().dirty;
        dirty.pages = dirty.pages.saturating_sub(count);
        dirty.placed = dirty.placed.saturating_sub(placed);
    }

    /// Counts dirty pages that have changed since a log has taken them.
    pub(crate) fn remove_placed(&self, count: u64) {
        let placed = &mut self.0.lock().dirty.placed;
        *placed = placed.saturating_sub(count);
    }

    /// Forgets the blocks by which a file that is gone had grown since the last freeze.
    pub(crate) fn remove_grown(&self, blocks: u64) {
        let grown = &mut self.0.lock().dirty.grown;
        *grown = grown.saturating_sub(blocks);
    }

    /// Counts an inode that became dirty; tells whether it is the first one.
    pub(crate) fn add_inode(&self, ino: Ino, ifile: &Palloc) -> bool {
        let mut account = self.0.lock();
        let (entry, bit) = (ifile.entry(ino.0).block, ifile.bit(ino.0).block);
        account.dirty_ifile.extend([entry, bit, ifile.descriptor(ifile.group_of(ino.0)).block]);
        account.dirty_inodes += 1;
        account.dirty_inodes == 1
    }

    /// Moves everything dirty to the commit that starts. No operation may be under way.
    pub(crate) fn freeze(&self) {
        self.0.lock().freeze();
    }

    /// The commit had nothing to do.
    pub(crate) fn thaw(&self) {
        self.0.lock().thaw();
    }

    /// Whether anything has changed since the last freeze.
    pub(crate) fn is_dirty(&self) -> bool {
        self.0.lock().dirty_inodes > 0
    }

    /// Pages in memory that are not committed.
    pub(crate) fn uncommitted_pages(&self) -> u64 {
        let account = self.0.lock();
        account.dirty.pages + account.frozen.pages
    }

    /// Pages that the next commit would take.
    pub(crate) fn dirty_pages(&self) -> u64 {
        self.0.lock().dirty.pages
    }

    /// Blocks of clean segments and of the current one.
    pub(crate) fn writable_blocks(&self) -> u64 {
        self.0.lock().device.free
    }

    /// Blocks of clean segments and of the current one, less those that uncommitted data will take.
    pub(crate) fn free_blocks(&self) -> u64 {
        let account = self.0.lock();
        account.device.free.saturating_sub(account.dirty.unplaced() + account.frozen.unplaced())
    }
}

fn memory(page: u64, pages: u64, inodes: u64) -> u64 {
    pages * (page + PAGE_OVERHEAD) + inodes * CHANGED_INODE
}

/// Blocks of all segments.
pub(crate) fn total(geometry: &Geometry) -> u64 {
    blocks(geometry).saturating_sub(geometry.first_data_block.0)
}

#[cfg(test)]
mod tests;

//! The DAT: from a virtual block number to a block address and the checkpoints in which the block
//! lives (docs/format.md §8).
//!
//! There is one DAT for past and present: every tree, however old, translates through the newest.

use std::sync::Arc;

use nilfs_ondisk::bmap::Root;
use nilfs_ondisk::dat::DatEntry;
use nilfs_ondisk::palloc::{BlockRole, Palloc, test_bit};
use nilfs_ondisk::{BlockNr, Cno, FileBlock, Geometry, VBlockNr};

use crate::block::{Block, bytes_mut, zeroed};
use crate::bmap::edit::is_possible;
use crate::bmap::{Pointers, Source};
use crate::error::{Error, Result};
use crate::memo::Memo;
use crate::metafile::FileEdit;
use crate::palloc;
use crate::store::Store;

/// A complete version of the DAT.
#[derive(Debug, Clone)]
pub(crate) struct Dat {
    root: Root,
    layout: Palloc,
    /// Addresses that were asked for lately.
    known: Arc<Memo>,
}

impl Dat {
    pub(crate) fn new(root: Root, geometry: &Geometry) -> Self {
        let layout = Palloc::new(geometry.block_size, geometry.dat_entry_size);
        Self { root, layout, known: Arc::new(Memo::new()) }
    }

    fn source(store: &Store) -> Source<'_> {
        Source { store, pointers: Pointers::Physical }
    }

    /// The map of the DAT itself.
    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    /// The life of a block, if its number is in use.
    pub(crate) fn life(&self, store: &Store, vblocknr: VBlockNr) -> Result<Option<DatEntry>> {
        if vblocknr.0 == 0 {
            return Ok(None);
        }
        let bit = self.layout.bit(vblocknr.0);
        let bitmap = Self::source(store).block(&self.root, bit.block)?;
        if !bitmap.is_some_and(|bitmap| test_bit(&bitmap, bit.bit)) {
            return Ok(None);
        }
        self.translator(store).entry(vblocknr).map(Some)
    }

    /// Calls `visit` with the life of every block, and with the address of every block of the DAT
    /// itself as if it had lived for ever. Entries that are damaged count as they are: one of them must not
    /// keep the cleaner from all others, and it asks for [lives](Dat::life) before it moves or frees.
    pub(crate) fn census(&self, store: &Store, visit: &mut dyn FnMut(&DatEntry)) -> Result<()> {
        let source = Self::source(store);
        let mut bitmap: Option<(u64, Block)> = None;
        source.scan_all(&self.root, &mut |block, level, key| {
            visit(&DatEntry { block, start: Cno(0), end: Cno::MAX });
            if level > 0 {
                return Ok(());
            }
            match self.layout.role_of(key) {
                BlockRole::Descriptor { .. } => {}
                BlockRole::Bitmap { group } => bitmap = Some((group, unchecked(store, block)?)),
                BlockRole::Entries { first_entry } => {
                    let group = self.layout.group_of(first_entry);
                    let Some((_, bitmap)) = bitmap.as_ref().filter(|(of, _)| *of == group) else {
                        return Ok(());
                    };
                    let bytes = unchecked(store, block)?;
                    let last = first_entry.saturating_add(self.layout.entries_per_block - 1);
                    for entry in first_entry..=last {
                        let (slot, bit) = (self.layout.entry(entry), self.layout.bit(entry).bit);
                        if slot.block == key && test_bit(bitmap, bit) {
                            visit(&parse(VBlockNr(entry), &bytes[slot.offset..])?);
                        }
                    }
                }
            }
            Ok(())
        })
    }

    /// Whether the node of the DAT's map with this first key and level is the one in `block`.
    pub(crate) fn has_node(
        &self,
        store: &Store,
        key: u64,
        level: u8,
        block: BlockNr,
    ) -> Result<bool> {
        Self::source(store).has_node(&self.root, key, level, block.0)
    }

    /// Where a virtual block is.
    pub(crate) fn translate(&self, store: &Store, vblocknr: VBlockNr) -> Result<BlockNr> {
        if let Some(address) = self.known.get(vblocknr.0) {
            return Ok(BlockNr(address));
        }
        let address = self.translator(store).translate(vblocknr)?;
        self.known.note(vblocknr.0, address.0);
        Ok(address)
    }

    /// For translating many numbers that lie close together.
    pub(crate) fn translator<'a>(&'a self, store: &'a Store) -> Translator<'a> {
        Translator { store, dat: self, last: None }
    }
}

/// Translates, remembering the block of the last entry.
pub(crate) struct Translator<'a> {
    store: &'a Store,
    dat: &'a Dat,
    last: Option<(FileBlock, Block)>,
}

impl Translator<'_> {
    /// What the DAT says about a number; whatever that is, if the number is free.
    pub(crate) fn entry(&mut self, vblocknr: VBlockNr) -> Result<DatEntry> {
        let missing = || Error::missing(format_args!("DAT entry {vblocknr}"));
        if vblocknr.0 == 0 {
            return Err(missing());
        }
        let slot = self.dat.layout.entry(vblocknr.0);
        let block = match &self.last {
            Some((key, block)) if *key == slot.block => block,
            _ => {
                let found = Dat::source(self.store).block(&self.dat.root, slot.block)?;
                &self.last.insert((slot.block, found.ok_or_else(missing)?)).1
            }
        };
        parse(vblocknr, &block[slot.offset..])
    }

    /// Where a virtual block is.
    pub(crate) fn translate(&mut self, vblocknr: VBlockNr) -> Result<BlockNr> {
        let entry = self.entry(vblocknr)?;
        if entry.block.0 == 0 {
            return Err(Error::missing(format_args!("the address of virtual block {vblocknr}")));
        }
        Ok(entry.block)
    }
}

/// A step in the life of a block, for those who count the live blocks of segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LifeEvent {
    /// A block with this life lies at its address.
    Add(DatEntry),
    /// It does no longer, or has another life now.
    Remove(DatEntry),
}

/// The DAT while a commit changes it.
#[derive(Clone)]
pub(crate) struct DatEdit {
    pub(crate) file: FileEdit,
    layout: Palloc,
    events: Vec<LifeEvent>,
    numbers: Numbers,
}

/// Where the search for free numbers goes on. Blocks that are written together should be described
/// by the same few DAT blocks; and what is overwritten or moved at random changes a good part of
/// the DAT in each commit, so this should hardly be larger than what it describes. So numbers are
/// handed out in a row from blocks of entries that have an eighth free, one block after the other,
/// within a first part of the DAT that holds a quarter more numbers than are in use.
#[derive(Debug, Clone, Copy, Default)]
struct Numbers {
    next: u64,
    /// Numbers in use; `None` until somebody has counted.
    used: Option<u64>,
}

impl DatEdit {
    /// Starts changing `dat`, searching for free numbers from the first on.
    pub(crate) fn new(dat: &Dat) -> Self {
        let file = FileEdit::new(dat.root.clone());
        Self { file, layout: dat.layout, events: Vec::new(), numbers: Numbers::default() }
    }

    /// Starts anew on `dat`, which these changes have become. Reads nothing: the blocks of the
    /// new version may not be on the device yet.
    pub(crate) fn restart(&self, dat: &Dat) -> Self {
        let file = FileEdit::new(dat.root.clone());
        Self { file, layout: self.layout, events: Vec::new(), numbers: self.numbers }
    }

    /// What has become of blocks so far.
    pub(crate) fn take_events(&mut self) -> Vec<LifeEvent> {
        std::mem::take(&mut self.events)
    }

    /// Takes a free number. Its entry stays to be filled in by [`DatEdit::assign`].
    pub(crate) fn allocate(&mut self, store: &Store) -> Result<VBlockNr> {
        let used = self.used(store)?;
        let vblocknr = self.find_free(store, used)?;
        let source = Dat::source(store);
        palloc::mark(&mut self.file, source, &self.layout, vblocknr, true, "virtual block")?;
        palloc::entry_mut(&mut self.file, source, &self.layout, vblocknr)?;
        self.numbers = Numbers { next: vblocknr + 1, used: Some(used + 1) };
        Ok(VBlockNr(vblocknr))
    }

    /// Takes the number that a sync log has given to a block, for [`DatEdit::assign`]. Returns false if
    /// it is not free, or no number that a block can have.
    pub(crate) fn claim(&mut self, store: &Store, vblocknr: VBlockNr) -> Result<bool> {
        let source = Dat::source(store);
        let in_range = self.layout.group_of(vblocknr.0) < self.layout.max_groups();
        if vblocknr.0 == 0 || !in_range || !is_possible(vblocknr.0) {
            return Ok(false);
        }
        if let Some(bitmap) = self.bitmap_of(store, vblocknr)?
            && test_bit(&bitmap, self.layout.bit(vblocknr.0).bit)
        {
            return Ok(false);
        }
        let used = self.used(store)?;
        palloc::mark(&mut self.file, source, &self.layout, vblocknr.0, true, "virtual block")?;
        palloc::entry_mut(&mut self.file, source, &self.layout, vblocknr.0)?;
        self.numbers.used = Some(used + 1);
        Ok(true)
    }

    /// Numbers in use, in the groups that follow each other from the first on. Linux has been seen
    /// to take numbers from the end of all, too.
    fn used(&mut self, store: &Store) -> Result<u64> {
        if let Some(used) = self.numbers.used {
            return Ok(used);
        }
        let source = Dat::source(store);
        let mut used = 0;
        for group in 0..self.layout.max_groups() {
            let free = palloc::free_entries(&self.file, source, &self.layout, group)?;
            let Some(free) = free else { break };
            used += self.layout.entries_per_group.saturating_sub(free);
        }
        self.numbers.used = Some(used);
        Ok(used)
    }

    fn find_free(&self, store: &Store, used: u64) -> Result<u64> {
        let source = Dat::source(store);
        let next = self.numbers.next;
        let current = self.layout.nth_entry_block(next.saturating_sub(1));
        let entries = self.layout.entries_of_block(current);
        let found = palloc::first_free(&self.file, source, &self.layout, entries)?;
        if let Some(found) = found.filter(|found| *found >= next) {
            return Ok(found);
        }
        let all = self.layout.nth_entry_block(u64::MAX);
        let limit = (self.layout.nth_entry_block(used.saturating_add(used / 4)) + 1).min(all);
        let after = current + 1..limit.max(current + 1);
        let around = after.chain(0..limit.min(current + 1));
        // On the average a fifth is free there, so not all blocks can have less than an eighth, and
        // a way around takes many numbers.
        let enough = self.layout.entries_per_block.div_ceil(8);
        for nth in around.chain(limit..all) {
            let found = palloc::free_in_block(&self.file, source, &self.layout, nth, enough)?;
            if let Some(found) = found {
                return Ok(found);
            }
        }
        Err(Error::NoSpace)
    }

    /// Says where a block lies and since which checkpoint.
    pub(crate) fn assign(
        &mut self,
        store: &Store,
        vblocknr: VBlockNr,
        block: BlockNr,
        start: Cno,
    ) -> Result<()> {
        let entry = DatEntry { block, start, end: Cno::MAX };
        self.events.push(LifeEvent::Add(entry));
        self.set(store, vblocknr, entry)
    }

    /// Ends the life of a block that was in no checkpoint before it began.
    pub(crate) fn set_unborn(
        &mut self,
        store: &Store,
        vblocknr: VBlockNr,
        block: BlockNr,
        cno: Cno,
    ) -> Result<()> {
        self.set(store, vblocknr, DatEntry { block, start: cno, end: cno })
    }

    fn set(&mut self, store: &Store, vblocknr: VBlockNr, entry: DatEntry) -> Result<()> {
        entry.encode(self.entry_mut(store, vblocknr)?);
        Ok(())
    }

    /// The bytes of an entry that exists, to the end of its block.
    fn entry_mut(&mut self, store: &Store, vblocknr: VBlockNr) -> Result<&mut [u8]> {
        let missing = || Error::missing(format_args!("DAT entry {vblocknr}"));
        if vblocknr.0 == 0 {
            return Err(missing());
        }
        let slot = self.layout.entry(vblocknr.0);
        let block = self.file.block_mut(Dat::source(store), slot.block)?;
        Ok(&mut block.ok_or_else(missing)?[slot.offset..])
    }

    /// Ends the life of a block: checkpoint `end` is the first that does not contain it. `None`:
    /// no checkpoint ever contained it, because its file keeps no history.
    ///
    /// The inner error says that the block had no life that could end, and stays as it is: a caller that
    /// gives a block up need not stop for that.
    pub(crate) fn end(
        &mut self,
        store: &Store,
        vblocknr: VBlockNr,
        end: Option<Cno>,
    ) -> Result<Result<()>> {
        let slot = match self.entry_mut(store, vblocknr) {
            Err(damage @ Error::Inconsistent(_)) => return Ok(Err(damage)),
            slot => slot?,
        };
        let old = match parse(vblocknr, slot) {
            Err(damage) => return Ok(Err(damage)),
            Ok(old) => old,
        };
        let mut entry = old;
        if entry.block.0 == 0 || entry.end != Cno::MAX {
            return Ok(Err(Error::Inconsistent(format!(
                "virtual block {vblocknr} is in use, but its DAT entry says that it is not"
            ))));
        }
        entry.end = end.unwrap_or(entry.start);
        if entry.start > entry.end {
            return Ok(Err(Error::Inconsistent(format!(
                "virtual block {vblocknr} was born in checkpoint {}, after its end {}",
                entry.start, entry.end
            ))));
        }
        entry.encode(slot);
        self.events.extend([LifeEvent::Remove(old), LifeEvent::Add(entry)]);
        Ok(Ok(()))
    }

    /// Takes back the end of a block's life: the next checkpoint contains it again, as it was. Between its
    /// old end and now there are checkpoints that do not contain it, which its entry does not tell.
    pub(crate) fn revive(&mut self, store: &Store, vblocknr: VBlockNr) -> Result<()> {
        let slot = self.entry_mut(store, vblocknr)?;
        let old = parse(vblocknr, slot)?;
        let has_ended = old.block.0 != 0 && old.start < old.end && old.end != Cno::MAX;
        assert!(has_ended, "virtual block {vblocknr} is brought back, but has not ended");
        let entry = DatEntry { end: Cno::MAX, ..old };
        entry.encode(slot);
        self.events.extend([LifeEvent::Remove(old), LifeEvent::Add(entry)]);
        Ok(())
    }

    /// Notes that blocks lie elsewhere now; those that are not where they were thought to be are
    /// left alone. Neighbouring numbers should follow each other.
    pub(crate) fn relocate(&mut self, store: &Store, moved: &[Moved]) -> Result<()> {
        let (source, layout) = (Dat::source(store), self.layout);
        for run in moved.chunk_by(|a, b| in_one_block(&layout, a.vblocknr, b.vblocknr)) {
            let Some(bitmap) = self.bitmap_of(store, run[0].vblocknr)? else { continue };
            let mut events = Vec::with_capacity(2 * run.len());
            let key = layout.entry(run[0].vblocknr.0).block;
            let Some(block) = self.file.block_mut(source, key)? else { continue };
            for &Moved { vblocknr, from, to } in run {
                let slot = &mut block[layout.entry(vblocknr.0).offset..];
                let old = parse(vblocknr, slot)?;
                if old.block == from && test_bit(&bitmap, layout.bit(vblocknr.0).bit) {
                    let new = DatEntry { block: to, ..old };
                    new.encode(slot);
                    events.extend([LifeEvent::Remove(old), LifeEvent::Add(new)]);
                }
            }
            self.events.append(&mut events);
        }
        Ok(())
    }

    /// Gives the numbers of dead blocks back, as far as they are still those of the blocks at these
    /// addresses. The entries keep their content, as in Linux. Neighbouring numbers should follow
    /// each other.
    pub(crate) fn release(&mut self, store: &Store, dead: &[(VBlockNr, BlockNr)]) -> Result<()> {
        let source = Dat::source(store);
        let layout = self.layout;
        for run in dead.chunk_by(|a, b| in_one_block(&layout, a.0, b.0)) {
            let first = run[0].0;
            let Some(bitmap) = self.bitmap_of(store, first)? else { continue };
            let Some(block) = self.file.get(source, layout.entry(first.0).block)? else { continue };
            let mut freed = 0;
            for &(vblocknr, address) in run {
                let entry = parse(vblocknr, &block[layout.entry(vblocknr.0).offset..])?;
                let taken = test_bit(&bitmap, layout.bit(vblocknr.0).bit);
                if entry.block == address && taken {
                    palloc::mark(
                        &mut self.file,
                        source,
                        &layout,
                        vblocknr.0,
                        false,
                        "virtual block",
                    )?;
                    self.events.push(LifeEvent::Remove(entry));
                    freed += 1;
                }
            }
            palloc::remove_if_free(&mut self.file, source, &layout, first.0)?;
            self.numbers.used = self.numbers.used.map(|used| used.saturating_sub(freed));
        }
        Ok(())
    }

    /// Makes a block of the DAT itself part of the next checkpoint's log.
    pub(crate) fn touch(&mut self, store: &Store, key: FileBlock) -> Result<()> {
        self.file.block_mut(Dat::source(store), key).map(drop)
    }

    /// The bitmap that says whether a number is in use.
    fn bitmap_of(&self, store: &Store, vblocknr: VBlockNr) -> Result<Option<Block>> {
        if vblocknr.0 == 0 {
            return Ok(None);
        }
        self.file.get(Dat::source(store), self.layout.bit(vblocknr.0).block)
    }
}

/// Whether the entries of two numbers lie in the same block.
fn in_one_block(layout: &Palloc, one: VBlockNr, other: VBlockNr) -> bool {
    layout.entry(one.0).block == layout.entry(other.0).block
}

/// A block that lies elsewhere now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) vblocknr: VBlockNr,
    pub(crate) from: BlockNr,
    pub(crate) to: BlockNr,
}

fn unchecked(store: &Store, block: BlockNr) -> Result<Block> {
    let mut content = zeroed(store.block_size());
    store.read_run(block, bytes_mut(&mut content))?;
    Ok(content)
}

fn parse(vblocknr: VBlockNr, slot: &[u8]) -> Result<DatEntry> {
    DatEntry::parse(slot).map_err(|source| Error::Corrupt {
        what: format!("DAT entry {vblocknr}"),
        block: None,
        source,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nilfs_device::MemoryDevice;

    use super::*;
    use crate::mkfs::{Parameters, format};
    use crate::volume::Volume;

    /// The DAT of a volume that is overwritten for long may not become larger and larger, with
    /// fewer and fewer numbers in use in each block.
    #[test]
    fn numbers_are_used_again_where_many_are_free() {
        let device = MemoryDevice::new(32 << 20);
        format(&device, &Parameters { blocks_per_segment: 64, ..Parameters::new([1; 16], 1, 1) })
            .unwrap();
        let volume = Volume::open(Arc::new(device)).unwrap();
        let (store, mut edit) = (&volume.store, DatEdit::new(&volume.dat));
        let layout = edit.layout;
        let per_block = layout.entries_per_block;
        while edit.numbers.next < 4 * per_block {
            edit.allocate(store).unwrap();
        }
        let half = per_block / 2;
        for free in [2 * per_block + 7].into_iter().chain(half..per_block) {
            let source = Dat::source(store);
            palloc::mark(&mut edit.file, source, &layout, free, false, "number").unwrap();
        }
        let mut after = |next, used| {
            edit.numbers = Numbers { next, used: Some(used) };
            edit.allocate(store).unwrap()
        };
        let passed_over = after(2 * per_block, 4 * per_block);
        assert_eq!(passed_over, VBlockNr(4 * per_block), "a block with a single free one");
        let behind_all = after(5 * per_block, 3 * per_block);
        assert_eq!(behind_all, VBlockNr(half), "no new block while old ones have many");
    }
}

//! The DAT: from a virtual block number to a block address and the checkpoints in which the block
//! lives (format spec §8).
//!
//! There is one DAT for past and present: every tree, however old, translates through the newest.

use nilfs_ondisk::bmap::Root;
use nilfs_ondisk::dat::DatEntry;
use nilfs_ondisk::palloc::Palloc;
use nilfs_ondisk::{BlockNr, Cno, FileBlock, Geometry, VBlockNr};

use crate::block::Block;
use crate::bmap::{Pointers, Source};
use crate::error::{Error, Result};
use crate::metafile::FileEdit;
use crate::palloc;
use crate::store::Store;

/// A complete version of the DAT.
#[derive(Debug, Clone)]
pub(crate) struct Dat {
    root: Root,
    layout: Palloc,
}

impl Dat {
    pub(crate) fn new(root: Root, geometry: &Geometry) -> Self {
        Self { root, layout: Palloc::new(geometry.block_size, geometry.dat_entry_size) }
    }

    fn source(store: &Store) -> Source<'_> {
        Source { store, pointers: Pointers::Physical }
    }

    /// Where a virtual block is.
    pub(crate) fn translate(&self, store: &Store, vblocknr: VBlockNr) -> Result<BlockNr> {
        Translator { store, dat: self, last: None }.translate(vblocknr)
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
    fn entry(&mut self, vblocknr: VBlockNr) -> Result<DatEntry> {
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
        DatEntry::parse(&block[slot.offset..]).map_err(|source| Error::Corrupt {
            what: format!("DAT entry {vblocknr}"),
            block: None,
            source,
        })
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

/// The DAT while a commit changes it.
#[derive(Clone)]
pub(crate) struct DatEdit {
    pub(crate) file: FileEdit,
    layout: Palloc,
    /// Where the search for a free number goes on. Numbers are handed out in a row, so that blocks
    /// written together are described by the same few DAT blocks.
    next: u64,
}

impl DatEdit {
    /// Starts changing `dat`, searching for free numbers from the first on.
    pub(crate) fn new(dat: &Dat) -> Self {
        Self { file: FileEdit::new(dat.root.clone()), layout: dat.layout, next: 0 }
    }

    /// Starts anew on `dat`, which these changes have become. Reads nothing: the blocks of the
    /// new version may not be on the device yet.
    pub(crate) fn restart(&self, dat: &Dat) -> Self {
        Self { file: FileEdit::new(dat.root.clone()), ..self.clone() }
    }

    /// Takes a free number. Its entry stays to be filled in by [`DatEdit::assign`].
    pub(crate) fn allocate(&mut self, store: &Store) -> Result<VBlockNr> {
        let vblocknr = self.find_free(store)?;
        let source = Dat::source(store);
        palloc::mark(&mut self.file, source, &self.layout, vblocknr, true, "virtual block")?;
        palloc::entry_mut(&mut self.file, source, &self.layout, vblocknr)?;
        self.next = vblocknr + 1;
        Ok(VBlockNr(vblocknr))
    }

    fn find_free(&self, store: &Store) -> Result<u64> {
        let source = Dat::source(store);
        let look = |from| palloc::next_free(&self.file, source, &self.layout, from);
        if let Some(found) = look(self.next)? {
            return Ok(found);
        }
        // Groups that exist behind, then those before, then a new one. Groups need not exist in a
        // row: Linux has been seen to take numbers from the end of all.
        let start = self.layout.group_of(self.next);
        let mut behind = start + 1;
        while self.file.get(source, self.layout.bitmap(behind))?.is_some() {
            if let Some(found) = look(self.layout.first_of_group(behind))? {
                return Ok(found);
            }
            behind += 1;
        }
        for group in (0..start).chain([behind]) {
            if let Some(found) = look(self.layout.first_of_group(group))? {
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
        self.set(store, vblocknr, DatEntry { block, start, end: Cno::MAX })
    }

    /// Overwrites an entry.
    pub(crate) fn set(&mut self, store: &Store, vblocknr: VBlockNr, entry: DatEntry) -> Result<()> {
        entry.encode(self.entry_mut(store, vblocknr)?);
        Ok(())
    }

    /// The bytes of an entry that exists.
    fn entry_mut(&mut self, store: &Store, vblocknr: VBlockNr) -> Result<&mut [u8]> {
        let source = Dat::source(store);
        let block = self.layout.entry(vblocknr.0).block;
        if vblocknr.0 == 0 || self.file.get(source, block)?.is_none() {
            return Err(Error::missing(format_args!("DAT entry {vblocknr}")));
        }
        palloc::entry_mut(&mut self.file, source, &self.layout, vblocknr.0)
    }

    /// Ends the life of a block: checkpoint `end` is the first that does not contain it. `None`:
    /// no checkpoint ever contained it, because its file keeps no history.
    pub(crate) fn end(
        &mut self,
        store: &Store,
        vblocknr: VBlockNr,
        end: Option<Cno>,
    ) -> Result<()> {
        let slot = self.entry_mut(store, vblocknr)?;
        let mut entry = DatEntry::parse(slot).map_err(|source| Error::Corrupt {
            what: format!("DAT entry {vblocknr}"),
            block: None,
            source,
        })?;
        if entry.block.0 == 0 || entry.end != Cno::MAX {
            return Err(Error::Inconsistent(format!(
                "virtual block {vblocknr} is in use, but its DAT entry says that it is not"
            )));
        }
        entry.end = end.unwrap_or(entry.start);
        if entry.start > entry.end {
            return Err(Error::Inconsistent(format!(
                "virtual block {vblocknr} was born in checkpoint {}, after its end {}",
                entry.start, entry.end
            )));
        }
        entry.encode(slot);
        Ok(())
    }
}

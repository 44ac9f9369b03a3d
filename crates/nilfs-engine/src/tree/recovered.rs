//! What data-sync logs have made durable after the newest checkpoint (docs/format.md §16), on top of
//! the files that it has. Nothing is written for that, and most blocks are read only when somebody
//! wants them.
//!
//! # Where the blocks are
//!
//! A writer in another process can come later and complete the recovery. Nothing tells it that the
//! logs that it has recovered are still being read here. It frees no segment while somebody reads, so
//! what lies in the segment of the newest checkpoint stays, and is read from there. But segments after
//! that one were clean in the checkpoint: the writer may take them, so their blocks are read at once
//! and kept in memory.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use nilfs_ondisk::{BlockNr, FileBlock, Ino};
use zerocopy::little_endian::U64;

use super::content::Place;
use super::{File, View};
use crate::block::{Block, bytes_mut, zeroed};
use crate::error::{Error, Result};
use crate::recovery::Salvaged;
use crate::store::Store;

/// The files of which data-sync logs have something newer than the checkpoint, as they are with it.
#[derive(Debug, Default)]
pub(crate) struct Recovered(BTreeMap<Ino, File>);

/// Blocks of a file that are newer than its checkpoint.
#[derive(Debug)]
pub(crate) struct SyncedBlocks(BTreeMap<FileBlock, SyncedBlock>);

#[derive(Debug)]
enum SyncedBlock {
    InLog(BlockNr),
    InMemory(Block),
}

/// A file while its logs are gone through.
struct Gathered {
    file: File,
    blocks: BTreeMap<FileBlock, BlockNr>,
    /// Those of them that are holes in the checkpoint.
    grown: u64,
}

impl SyncedBlocks {
    pub(super) fn place(&self, key: FileBlock) -> Option<Place<'_>> {
        self.0.get(&key).map(|block| match block {
            SyncedBlock::InLog(address) => Place::Device(*address),
            SyncedBlock::InMemory(block) => Place::Memory(block),
        })
    }

    pub(super) fn keys(&self, from: FileBlock) -> impl Iterator<Item = FileBlock> {
        self.0.range(from..).map(|(key, _)| *key)
    }
}

impl Recovered {
    /// The files of the newest checkpoint, which `view` shows, with what was salvaged. A block stays
    /// where it is if nobody will write there.
    pub(crate) fn new(
        view: &View,
        salvaged: &Salvaged,
        stays: impl Fn(BlockNr) -> bool,
    ) -> Result<Self> {
        let mut files = BTreeMap::new();
        for found in &salvaged.blocks {
            let Some(gathered) = file_of(&mut files, view, found.ino)? else { continue };
            let was_there = gathered.blocks.insert(found.key, found.block).is_some();
            if !was_there && view.source().lookup(&gathered.file.map, found.key)?.is_none() {
                gathered.grown += 1;
            }
        }
        for times in &salvaged.times {
            if let Some(gathered) = file_of(&mut files, view, times.ino)? {
                gathered.file.set_times(times);
            }
        }
        let files = files.into_iter().filter_map(|(ino, gathered)| Some((ino, gathered?)));
        let complete =
            files.map(|(ino, gathered)| Ok((ino, gathered.complete(&view.store, &stays)?)));
        complete.collect::<Result<_>>().map(Self)
    }

    /// A file that is not as the checkpoint has it.
    pub(crate) fn file(&self, ino: Ino) -> Option<&File> {
        self.0.get(&ino)
    }
}

impl Gathered {
    fn complete(mut self, store: &Store, stays: &impl Fn(BlockNr) -> bool) -> Result<File> {
        let sectors = self.grown.saturating_mul(store.block_size().sectors());
        let raw = &mut self.file.raw;
        raw.i_blocks = U64::new(raw.i_blocks.get().saturating_add(sectors));
        let place = |(key, address)| {
            if stays(address) {
                return Ok((key, SyncedBlock::InLog(address)));
            }
            let mut block = zeroed(store.block_size());
            store.read_run(address, bytes_mut(&mut block))?;
            Ok((key, SyncedBlock::InMemory(block)))
        };
        let blocks = self.blocks.into_iter().map(place).collect::<Result<_>>()?;
        self.file.synced = Some(Arc::new(SyncedBlocks(blocks)));
        Ok(self.file)
    }
}

/// The file of a data-sync log; `None` if it is gone.
fn file_of<'a>(
    files: &'a mut BTreeMap<Ino, Option<Gathered>>,
    view: &View,
    ino: Ino,
) -> Result<Option<&'a mut Gathered>> {
    let file = match files.entry(ino) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(unknown) => unknown.insert(match view.inode(ino) {
            Err(Error::Stale) => {
                // Linux syncs the data of a file that has lost its last name.
                tracing::warn!("dropped synced data of the deleted file {ino}");
                None
            }
            inode => {
                let file = File::new(ino, inode?)?;
                Some(Gathered { file, blocks: BTreeMap::new(), grown: 0 })
            }
        }),
    };
    Ok(file.as_mut())
}

//! What sync logs have made durable after the newest checkpoint (docs/format.md §16), on top of the
//! files that it has. Nothing is written for that, and most blocks are read only when somebody wants
//! them.
//!
//! # Where the blocks are
//!
//! A writer in another process can come later and complete the recovery. Nothing tells it that the
//! logs that it has recovered are still being read here. It frees no segment while somebody reads, so
//! what lies in the segment of the newest checkpoint stays, and is read from there. But segments after
//! that one were clean in the checkpoint: the writer may take them, so their blocks are read at once
//! and kept in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use nilfs_ondisk::{BlockNr, Ino};

use super::File;
use crate::block::{bytes_mut, zeroed};
use crate::error::Result;
use crate::overlay::Overlay;
use crate::store::Store;

/// The files that are not as the checkpoint has them. Those that are gone have no links.
#[derive(Debug, Default)]
pub(crate) struct Recovered(BTreeMap<Ino, File>);

impl Recovered {
    /// The files with what is above the checkpoint. A block stays where it is if nobody will write
    /// there.
    pub(crate) fn new(
        store: &Store,
        files: BTreeMap<Ino, (File, Overlay)>,
        stays: impl Fn(BlockNr) -> bool,
    ) -> Result<Self> {
        let complete = files.into_iter().map(|(ino, (mut file, mut overlay))| {
            for page in overlay.pages.values_mut() {
                let placed =
                    page.placed.filter(|placed| page.data.is_none() && !stays(placed.block));
                if let Some(placed) = placed {
                    let mut block = zeroed(store.block_size());
                    let read = store.read_run(placed.block, bytes_mut(&mut block));
                    match read
                        .and_then(|()| store.check_content(placed.block, bytes_mut(&mut block)))
                    {
                        Ok(()) => page.data = Some(block),
                        // The block stays there: a reader who asks for it is told of the damage.
                        Err(error) if error.is_of_block() => {}
                        Err(error) => return Err(error),
                    }
                }
            }
            file.synced = Some(Arc::new(overlay));
            Ok((ino, file))
        });
        complete.collect::<Result<_>>().map(Self)
    }

    /// A file that is not as the checkpoint has it.
    pub(crate) fn file(&self, ino: Ino) -> Option<&File> {
        self.0.get(&ino)
    }
}

//! Data-sync logs: the new content of existing blocks, without a checkpoint (docs/format.md §19).

use std::sync::Arc;

use nilfs_ondisk::summary::{BlockInfo, FileInfo, FileTimes, LOGBGN, LOGEND, SYNDT};
use nilfs_ondisk::{BlockNr, FileBlock, Ino, VBlockNr};

use super::Base;
use crate::block::Block;
use crate::bmap::{Pointers, Source};
use crate::error::Result;
use crate::log::layout::plan;
use crate::log::sealed::{Extras, Payload, SealedLog, seal};
use crate::overlay::Placed;
use crate::store::Store;

/// What a data-sync log takes of one file.
pub(crate) struct SyncedFile {
    pub(crate) ino: Ino,
    /// Its times, if they have changed and are to be kept.
    pub(crate) times: Option<FileTimes>,
    pub(crate) pages: Vec<(FileBlock, Block)>,
}

/// Builds a data-sync log of files' blocks and tells where each of them went, or `None` if it does
/// not fit into the segment or there are no blocks (docs/format.md §19). Takes numbers for the blocks
/// in `base.dat_edit`.
pub(crate) fn build_data_sync(
    store: &Store,
    base: &mut Base,
    files: &[&SyncedFile],
    now: u64,
) -> Result<Option<(SealedLog, Vec<Vec<Placed>>)>> {
    let geometry = store.geometry();
    let cno = base.tree.cno.plus(1);
    let mut dat = base.dat_edit.clone();
    let mut payload = Vec::with_capacity(files.len());
    let mut numbers = Vec::with_capacity(files.len());
    for SyncedFile { ino, pages, .. } in files {
        let own = pages.iter().map(|_| dat.allocate(store)).collect::<Result<Vec<VBlockNr>>>()?;
        let data = |((offset, _), vblocknr): (&(FileBlock, Block), &VBlockNr)| BlockInfo::Data {
            vblocknr: *vblocknr,
            offset: *offset,
        };
        let blocks = pages.iter().zip(&own).map(data).collect();
        payload.push(Payload {
            info: FileInfo { ino: *ino, cno, blocks },
            blocks: pages.iter().map(|(_, block)| Block::clone(block)).collect(),
        });
        numbers.push(own);
    }
    let times: Vec<FileTimes> = files.iter().filter_map(|file| file.times).collect();
    let infos: Vec<&FileInfo> = payload.iter().map(|file| &file.info).collect();
    if times.len() > FileTimes::most(geometry.block_size) {
        return Ok(None);
    }
    let Ok(plan) = plan(&geometry, base.position, &[], &infos, times.len(), false) else {
        return Ok(None);
    };
    let flags = |_| LOGBGN | LOGEND | SYNDT;
    let extras = Extras { cno, now, times: &times, super_root: None };
    let logs = seal(store, &plan, &payload, &extras, flags);
    let place = |(own, at): (Vec<VBlockNr>, &Vec<BlockNr>)| {
        own.into_iter().zip(at).map(|(vblocknr, &block)| Placed { vblocknr, block }).collect()
    };
    let placed = numbers.into_iter().zip(&plan.addresses).map(place).collect();
    let Some(log) = logs.into_iter().next() else {
        return Ok(None);
    };
    // The next checkpoint may have no log in this segment.
    let old_dat = Arc::clone(&base.dat);
    let source = Source { store, pointers: Pointers::Virtual(&old_dat) };
    let filled = plan.position.block.0 - geometry.segment_start(log.segment).0;
    base.sufile_edit.touch(source, log.segment)?;
    base.sufile_edit.fill(source, log.segment, filled, now)?;
    base.dat_edit = dat;
    base.position = plan.position;
    Ok(Some((log, placed)))
}

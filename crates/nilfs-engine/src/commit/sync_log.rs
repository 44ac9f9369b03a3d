//! Sync logs: what an fsync makes durable, without a checkpoint (docs/format.md §17, §19). The blocks of
//! files that nobody has written yet, and records of everything else.

use std::sync::Arc;

use nilfs_ondisk::roll_forward::{Record, Records};
use nilfs_ondisk::summary::{BlockInfo, FileInfo, LOGBGN, LOGEND, SYNDT};
use nilfs_ondisk::{BlockNr, FileBlock, Ino, VBlockNr};

use super::Base;
use crate::block::Block;
use crate::bmap::{Pointers, Source};
use crate::error::Result;
use crate::log::layout::plan;
use crate::log::sealed::{Extras, Payload, SealedLog, seal};
use crate::overlay::Placed;
use crate::store::Store;

/// What is to be synced.
#[derive(Debug, Default)]
pub(crate) struct SyncContent {
    /// Files with blocks that have changed.
    pub(crate) files: Vec<SyncedFile>,
    /// What has changed besides: for each of these files its size and times at least.
    pub(crate) records: Vec<Record>,
    /// Records say more than times of writing: a reader that knows none would lose something.
    pub(crate) needs_records: bool,
}

/// Blocks of one file.
#[derive(Debug)]
pub(crate) struct SyncedFile {
    pub(crate) ino: Ino,
    pub(crate) pages: Vec<(FileBlock, Block)>,
}

impl SyncContent {
    /// Whether there is nothing to write.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.records.is_empty()
    }
}

/// Builds a sync log and tells where each block went, or `None` if it does not fit into the segment.
/// Takes numbers for the blocks in `base.dat_edit`. It is the `number`th one since the checkpoint.
pub(crate) fn build_sync_log(
    store: &Store,
    base: &mut Base,
    content: &SyncContent,
    number: u64,
    now: u64,
) -> Result<Option<(SealedLog, Vec<Vec<Placed>>)>> {
    let geometry = store.geometry();
    let cno = base.tree.cno.plus(1);
    let mut dat = base.dat_edit.clone();
    let mut payload = Vec::with_capacity(content.files.len());
    let mut numbers = Vec::with_capacity(content.files.len());
    for SyncedFile { ino, pages } in &content.files {
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
    let records = Records { base: base.tree.cno, number, records: content.records.clone() };
    let records = records.encode();
    let infos: Vec<&FileInfo> = payload.iter().map(|file| &file.info).collect();
    let page = store.flash_page();
    let plan = plan(&geometry, page, base.position, &[], &infos, records.len(), false);
    let Ok(plan) = plan else { return Ok(None) };
    // Linux rolls the new content of existing blocks forward, too, and must not try the rest.
    let kind = if content.needs_records { 0 } else { SYNDT };
    let flags = |_| LOGBGN | LOGEND | kind;
    let extras = Extras { cno, now, records: &records, super_root: None };
    let logs = seal(store, &plan, &payload, &extras, flags);
    let place = |(own, at): (Vec<VBlockNr>, &Vec<BlockNr>)| {
        own.into_iter().zip(at).map(|(vblocknr, &block)| Placed { vblocknr, block }).collect()
    };
    let placed = numbers.into_iter().zip(&plan.addresses).map(place).collect();
    let log = logs.into_iter().next().expect("records make a log even without blocks");
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

//! Sync logs: what an fsync makes durable, without a checkpoint (docs/format.md §19). The blocks of
//! files that nobody has written yet, and records of everything else. And logs of blocks that are
//! written before anybody waits for them.

use std::sync::Arc;

use nilfs_ondisk::roll_forward::{Record, Records};
use nilfs_ondisk::summary::{BlockInfo, FileInfo, LOGBGN, LOGEND, SYNDT};
use nilfs_ondisk::{BlockNr, FileBlock, Geometry, Ino, SegNum, VBlockNr};

use super::Base;
use crate::block::Block;
use crate::bmap::{Pointers, Source};
use crate::error::Result;
use crate::log::layout::{LogPosition, plan};
use crate::log::sealed::{Extras, Payload, SealedLog, seal};
use crate::log::withheld::Withheld;
use crate::overlay::Placed;
use crate::store::Store;

/// Bytes of copies of summaries that are kept at most: a sync log has rarely room for more.
const COPIES: usize = 8 << 10;

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

/// New logs, and where the blocks of each file went.
pub(crate) type Logs = (Vec<SealedLog>, Vec<Vec<Placed>>);

/// Builds a sync log and tells where each block went, or `None` if it does not fit into the segment.
/// Takes numbers for the blocks in `base.dat_edit`. It is the `number`th one since the checkpoint;
/// `unflushed` logs right before it may not be durable, if that is known.
pub(crate) fn build_sync_log(
    store: &Store,
    base: &mut Base,
    content: &SyncContent,
    number: u64,
    unflushed: Option<u16>,
    now: u64,
) -> Result<Option<(SealedLog, Vec<Vec<Placed>>)>> {
    let (base_cno, records) = (base.tree.cno, content.records.clone());
    let records = Records { base: base_cno, number, unflushed, records };
    // Linux rolls the new content of existing blocks forward, too, and must not try the rest.
    let kind = if content.needs_records { 0 } else { SYNDT };
    let what = What { files: &content.files, records: &records.encode(), now };
    let built = build(store, base, &what, &[], LOGBGN | LOGEND | kind)?;
    Ok(built.ok().map(|(logs, placed)| {
        let log = logs.into_iter().next().expect("records make a log even without blocks");
        (log, placed)
    }))
}

/// Builds logs of blocks that no recovery looks at unless a sync log refers to them, in another segment
/// than those `withheld` if there is no room in this one; `None` if there is none.
pub(crate) fn build_ahead(
    store: &Store,
    base: &mut Base,
    withheld: &Withheld,
    files: &[SyncedFile],
    now: u64,
) -> Result<Option<Logs>> {
    let what = What { files, records: &[], now };
    if let Ok(built) = build(store, base, &what, &[], LOGBGN | LOGEND)? {
        return Ok(Some(built));
    }
    let mut across = base.clone();
    let next = set_aside(store, &mut across, withheld)?;
    let built = build(store, &mut across, &what, &[next], LOGBGN | LOGEND)?;
    Ok(built.ok().inspect(|_| *base = across))
}

/// Lets the log go on in the next segment, and builds logs, as [`build_ahead`] does, of as many
/// blocks as fit into the rest of this one. Returns `None` if there is no other segment, or if this one is
/// as empty as that and has no block to be filled with.
pub(crate) fn build_rest_of_segment(
    store: &Store,
    base: &mut Base,
    withheld: &Withheld,
    files: &[SyncedFile],
    now: u64,
) -> Result<Option<Logs>> {
    let mut across = base.clone();
    let all = What { files, records: &[], now };
    let mut built = build(store, &mut across, &all, &[], LOGBGN | LOGEND)?;
    if let Err(missing) = built {
        let head = What { files: &without_last(files, missing), records: &[], now };
        built = build(store, &mut across, &head, &[], LOGBGN | LOGEND)?;
    }
    let Ok(built) = built else { return Ok(None) };
    let begins_segment =
        base.position.block == store.geometry().segment_start(base.position.segment);
    if begins_segment && built.0.is_empty() {
        return Ok(None);
    }
    let next = set_aside(store, &mut across, withheld)?;
    let LogPosition { next: segment, seq, .. } = across.position;
    let block = store.geometry().segment_start(segment);
    across.position = LogPosition { segment, block, next, seq: seq.plus(1) };
    *base = across;
    Ok(Some(built))
}

/// All blocks of files but the last.
fn without_last(files: &[SyncedFile], count: u64) -> Vec<SyncedFile> {
    let all: usize = files.iter().map(|file| file.pages.len()).sum();
    let mut left = all.saturating_sub(usize::try_from(count).unwrap_or(usize::MAX));
    let head = |file: &SyncedFile| {
        let pages: Vec<_> = file.pages.iter().take(left).cloned().collect();
        left -= pages.len();
        SyncedFile { ino: file.ino, pages }
    };
    files.iter().map(head).collect()
}

/// Takes a segment for the time after the next one, because the log is about to leave the one in which
/// it is.
fn set_aside(store: &Store, base: &mut Base, withheld: &Withheld) -> Result<SegNum> {
    let dat = Arc::clone(&base.dat);
    let source = Source { store, pointers: Pointers::Virtual(&dat) };
    let next = base.sufile_edit.allocate(source, &|it| withheld.allows(store, &dat, it))?;
    base.clean_segments -= 1;
    base.left.push(base.position.segment);
    Ok(next)
}

impl Base {
    /// Keeps copies of the summaries of logs, for those that come after them.
    pub(super) fn keep_copies(&mut self, logs: &[SealedLog], geometry: &Geometry) {
        let copies = logs.iter().filter_map(|log| log.summary_copy(geometry));
        let copies = copies.map(|copy| Arc::from(copy.encode()));
        self.copies.extend(copies.filter(|copy: &Arc<[u8]>| copy.len() <= COPIES));
        let mut kept = 0;
        let fits = |copy: &&Arc<[u8]>| {
            kept += copy.len();
            kept <= COPIES
        };
        let count = self.copies.iter().rev().take_while(fits).count();
        self.copies.drain(..self.copies.len() - count);
    }
}

struct What<'a> {
    files: &'a [SyncedFile],
    records: &'a [u8],
    now: u64,
}

/// Builds logs, or returns the number of blocks for which there is no room.
fn build(
    store: &Store,
    base: &mut Base,
    what: &What<'_>,
    extra: &[SegNum],
    flags: u16,
) -> Result<std::result::Result<Logs, u64>> {
    let geometry = store.geometry();
    let cno = base.tree.cno.plus(1);
    let mut dat = base.dat_edit.clone();
    let mut payload = Vec::with_capacity(what.files.len());
    let mut numbers = Vec::with_capacity(what.files.len());
    for SyncedFile { ino, pages } in what.files {
        let own = pages.iter().map(|_| dat.allocate(store)).collect::<Result<Vec<VBlockNr>>>()?;
        let data = |((offset, _), vblocknr): (&(FileBlock, Block), &VBlockNr)| BlockInfo::Data {
            vblocknr: *vblocknr,
            offset: *offset,
        };
        let blocks = pages.iter().zip(&own).map(data).collect();
        payload.push(Payload {
            info: FileInfo { ino: *ino, cno, blocks },
            blocks: pages.iter().map(|(_, block)| Block::clone(block)).collect(),
            moved_sums: None,
        });
        numbers.push(own);
    }
    let infos: Vec<&FileInfo> = payload.iter().map(|file| &file.info).collect();
    let (page, records) = (store.flash_page(), what.records.len());
    let plan = plan(&geometry, page, base.position, extra, &infos, records, false);
    let plan = match plan {
        Ok(plan) => plan,
        Err(missing) => return Ok(Err(missing)),
    };
    // A reader finds copies by the end of the records.
    let copies = if records > 0 { &base.copies[..] } else { &[] };
    let extras = Extras { cno, now: what.now, records: what.records, copies, super_root: None };
    let logs = seal(store, &plan, &payload, &extras, |_| flags);
    let place = |(own, at): (Vec<VBlockNr>, &Vec<BlockNr>)| {
        own.into_iter().zip(at).map(|(vblocknr, &block)| Placed { vblocknr, block }).collect()
    };
    let placed = numbers.into_iter().zip(&plan.addresses).map(place).collect();
    // The next checkpoint may have no log in these segments.
    let old_dat = Arc::clone(&base.dat);
    let source = Source { store, pointers: Pointers::Virtual(&old_dat) };
    for log in &plan.logs {
        let filled = log.end().0 - geometry.segment_start(log.segment).0;
        base.sufile_edit.touch(source, log.segment)?;
        base.sufile_edit.fill(source, log.segment, filled, what.now)?;
    }
    base.dat_edit = dat;
    base.position = plan.position;
    base.keep_copies(&logs, &geometry);
    Ok(Ok((logs, placed)))
}

//! Finding the newest checkpoint of a volume, and what fdatasync made durable after it
//! (docs/format.md §16). Nothing is written here.

use std::sync::Arc;

use nilfs_device::Device;
use nilfs_ondisk::summary::{BlockInfo, FileTimes, LOGBGN, LOGEND, LogHeader, SR, SYNDT};
use nilfs_ondisk::superblock::{LogCursor, Superblock};
use nilfs_ondisk::{BlockNr, Cno, FileBlock, Ino, SegNum, Seq};

use crate::error::{Error, Result};
use crate::log::reader;
use crate::store::Store;
use crate::superblocks::Superblocks;

/// A valid log in the chain of logs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChainedLog {
    pub(crate) start: BlockNr,
    pub(crate) header: LogHeader,
    pub(crate) segment: SegNum,
    /// The segment set aside for when this one is full; none if the log names a bad one.
    pub(crate) next: Option<SegNum>,
}

impl ChainedLog {
    /// The block after the log.
    pub(crate) fn end(&self) -> BlockNr {
        self.start.plus(self.header.nblocks.into())
    }
}

/// What the scan of the log chain found.
#[derive(Debug)]
pub(crate) struct Found {
    /// The newest log with a super root.
    pub(crate) newest: ChainedLog,
    /// Its checkpoint.
    pub(crate) cno: Cno,
    /// The newest valid log of all; after `newest` if the volume was not closed cleanly.
    pub(crate) last_valid: ChainedLog,
    /// Whether the volume was closed cleanly and its newest log is whole.
    pub(crate) clean: bool,
    /// First and last log of what may have to be rolled forward.
    replay: Option<(BlockNr, ChainedLog)>,
    /// Segments that the scan went through after `newest`, `newest`'s own included.
    passed: Vec<SegNum>,
}

impl Found {
    /// The last log that a recovery needs: the newest checkpoint, or the data-sync log after it that
    /// is `salvaged` last.
    pub(crate) fn last_needed(&self, salvaged: bool) -> ChainedLog {
        match self.replay {
            Some((_, last)) if salvaged => last,
            _ => self.newest,
        }
    }

    /// The segments whose logs a recovery needs, if it has `salvaged` something, until a superblock
    /// names a newer checkpoint. The scan has to come through them again after another crash.
    pub(crate) fn needed(&self, salvaged: bool) -> impl Iterator<Item = SegNum> {
        let last = self.last_needed(salvaged).segment;
        let end = self.passed.iter().position(|segment| *segment == last);
        let count = end.filter(|_| salvaged).map_or(0, |end| end + 1);
        self.passed[..count].iter().copied()
    }
}

/// Opens the store of the volume and finds its newest checkpoint, from one superblock or, if that
/// leads nowhere, from the other.
pub(crate) fn find(
    device: &Arc<dyn Device>,
    superblocks: &Superblocks,
) -> Result<(Superblock, Store, Found)> {
    let first = scan_from(device, &superblocks.best, superblocks.best.is_clean());
    match (first, &superblocks.other) {
        (Ok((store, found)), _) => Ok((superblocks.best, store, found)),
        (Err(error @ Error::Device { .. }), _) | (Err(error), None) => Err(error),
        (Err(_), Some(other)) => {
            tracing::warn!("the newest log is damaged; trying from an earlier position");
            let (store, found) = scan_from(device, other, false)?;
            Ok((*other, store, found))
        }
    }
}

fn scan_from(
    device: &Arc<dyn Device>,
    superblock: &Superblock,
    clean: bool,
) -> Result<(Store, Found)> {
    let store = Store::new(Arc::clone(device), superblock.geometry(), superblock.crc_seed());
    let found = scan(&store, superblock.last_log(), clean)?;
    // A super root is loaded with its own checksum; a log without a good one is no checkpoint.
    crate::volume::super_root(&store, &found.newest)?;
    Ok((store, found))
}

/// Follows the chain of logs from `start`, which must have a super root. In a volume that was
/// closed cleanly that is the newest log.
fn scan(store: &Store, start: LogCursor, clean: bool) -> Result<Found> {
    let geometry = store.geometry();
    let (mut at, mut seq, mut cno) = (start.block, start.seq, start.cno);
    let mut found: Option<Found> = None;
    let (mut first, mut last) = (None, None);
    let mut missed = false;
    let mut segment = geometry.segment_of(at);
    let mut next = None;
    loop {
        if let Some(header) = reader::verified(store, at, seq)? {
            missed = false;
            next =
                Some(geometry.segment_of(header.next)).filter(|next| geometry.has_segment(*next));
            let log = ChainedLog { start: at, header, segment, next };
            match &mut found {
                _ if header.has(SR) => {
                    found = Some(Found {
                        newest: log,
                        cno,
                        last_valid: log,
                        clean,
                        replay: None,
                        passed: Vec::new(),
                    });
                    if clean {
                        break;
                    }
                    cno = cno.plus(1);
                    (first, last) = (None, None);
                }
                None => break,
                Some(found) => {
                    found.last_valid = log;
                    if header.has(LOGBGN) {
                        first = first.or(Some(at));
                    }
                    if header.has(LOGEND) {
                        last = Some(log);
                    }
                }
            }
            at = log.end();
            if at.plus(1) < geometry.segment_end(segment) {
                continue;
            }
        }
        // The segment ends here, or the writer left it after an error.
        let Some(found) = found.as_mut().filter(|_| !missed) else {
            break;
        };
        missed = true;
        found.passed.push(segment);
        let Some(following) = next else { break };
        segment = following;
        seq = seq.plus(1);
        at = geometry.segment_start(segment);
    }
    let mut found = found.ok_or_else(|| {
        Error::Inconsistent(format!(
            "the superblock names block {} as the newest checkpoint, but no whole log with a \
             super root is there",
            start.block
        ))
    })?;
    found.replay = first.zip(last);
    Ok(found)
}

/// A block that a data-sync log made durable after the newest checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SalvagedBlock {
    pub(crate) ino: Ino,
    pub(crate) key: FileBlock,
    pub(crate) block: BlockNr,
}

/// What data-sync logs made durable after the newest checkpoint, in the order in which they were
/// written.
#[derive(Debug, Default)]
pub(crate) struct Salvaged {
    pub(crate) blocks: Vec<SalvagedBlock>,
    pub(crate) times: Vec<FileTimes>,
}

impl Salvaged {
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    fn append(&mut self, mut other: Self) {
        self.blocks.append(&mut other.blocks);
        self.times.append(&mut other.times);
    }
}

/// What is in the complete data-sync logs behind the newest checkpoint, in the order in which
/// they were written (docs/format.md §16).
pub(crate) fn salvage(store: &Store, found: &Found) -> Result<Salvaged> {
    let Some((first, last)) = found.replay else {
        return Ok(Salvaged::default());
    };
    let geometry = store.geometry();
    let mut salvaged = Salvaged::default();
    let mut pending: Option<Salvaged> = None;
    let mut segment = geometry.segment_of(first);
    let mut at = first;
    let Some(header) = reader::header(store, first)? else {
        return Ok(salvaged);
    };
    let mut seq: Seq = header.seq;
    let mut next = None;
    loop {
        if let Some(header) = reader::verified(store, at, seq)? {
            if header.has(SYNDT) && !header.has(SR) {
                if header.has(LOGBGN) {
                    pending = Some(Salvaged::default());
                }
                if let Some(logical) = &mut pending {
                    collect(store, at, header, logical)?;
                }
                if header.has(LOGEND) {
                    salvaged.append(pending.take().unwrap_or_default());
                }
            } else if pending.is_some() || header.has(SR) {
                return Err(Error::Inconsistent(format!(
                    "the log in block {at} interrupts a data-sync log"
                )));
            }
            if at == last.start {
                return Ok(salvaged);
            }
            next =
                Some(geometry.segment_of(header.next)).filter(|next| geometry.has_segment(*next));
            at = at.plus(header.nblocks.into());
            if at.plus(1) < geometry.segment_end(segment) {
                continue;
            }
        }
        if segment == found.last_valid.segment {
            return Ok(salvaged);
        }
        let Some(following) = next.take() else {
            return Ok(salvaged);
        };
        segment = following;
        seq = seq.plus(1);
        at = geometry.segment_start(segment);
    }
}

fn collect(
    store: &Store,
    start: BlockNr,
    header: LogHeader,
    salvaged: &mut Salvaged,
) -> Result<()> {
    let log = reader::read(store, start, header)?;
    salvaged.times.extend(log.times);
    let mut at = start.plus(header.summary_blocks(store.block_size()));
    for file in &log.files {
        for info in &file.blocks {
            if let BlockInfo::Data { offset, .. } = info {
                salvaged.blocks.push(SalvagedBlock { ino: file.ino, key: *offset, block: at });
            }
            at = at.plus(1);
        }
    }
    Ok(())
}

//! Finding the newest checkpoint of a volume, and what fdatasync made durable after it
//! (docs/format.md §16). Nothing is written here.

use std::sync::Arc;

use nilfs_device::Device;
use nilfs_ondisk::summary::{BlockInfo, FileTimes, LOGBGN, LOGEND, LogHeader, SR, SYNDT};
use nilfs_ondisk::superblock::{LogCursor, Superblock};
use nilfs_ondisk::{BlockNr, Cno, FileBlock, Ino, SegNum};

use crate::error::{Error, Result};
use crate::log::chain::{Chain, ChainedLog};
use crate::log::reader;
use crate::store::Store;
use crate::superblocks::Superblocks;

/// What the scan of the log chain found.
#[derive(Debug)]
pub(crate) struct LogScan {
    /// The newest log with a super root.
    pub(crate) newest: ChainedLog,
    /// Its checkpoint.
    pub(crate) cno: Cno,
    /// The newest valid log of all; after `newest` if the volume was not closed cleanly.
    pub(crate) last_valid: ChainedLog,
    /// Whether the volume was closed cleanly and its newest log is whole.
    pub(crate) clean: bool,
    /// First and last log of what may have to be rolled forward.
    replay: Option<(ChainedLog, ChainedLog)>,
    /// Segments that the scan went through after `newest`, `newest`'s own included.
    passed: Vec<SegNum>,
}

impl LogScan {
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
) -> Result<(Superblock, Store, LogScan)> {
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
) -> Result<(Store, LogScan)> {
    let store = Store::new(Arc::clone(device), superblock.geometry(), superblock.crc_seed());
    let found = scan(&store, superblock.last_log(), clean)?;
    // A super root is loaded with its own checksum; a log without a good one is no checkpoint.
    crate::volume::super_root(&store, &found.newest)?;
    Ok((store, found))
}

/// Follows the chain of logs from `start`, which must have a super root. In a volume that was
/// closed cleanly that is the newest log.
fn scan(store: &Store, start: LogCursor, clean: bool) -> Result<LogScan> {
    let mut chain = Chain::from(store, start.block, start.seq);
    let newest = match chain.next()? {
        Some(log) if log.header.has(SR) => log,
        _ => {
            return Err(Error::Inconsistent(format!(
                "the superblock names block {} as the newest checkpoint, but no whole log with a \
                 super root is there",
                start.block
            )));
        }
    };
    let (replay, passed) = (None, Vec::new());
    let mut found = LogScan { newest, cno: start.cno, last_valid: newest, clean, replay, passed };
    if clean {
        return Ok(found);
    }
    let (mut first, mut last) = (None, None);
    while let Some(log) = chain.next()? {
        found.last_valid = log;
        if log.header.has(SR) {
            (found.newest, found.cno) = (log, found.cno.plus(1));
            (first, last) = (None, None);
            chain.forget_left();
            continue;
        }
        if log.header.has(LOGBGN) {
            first = first.or(Some(log));
        }
        if log.header.has(LOGEND) {
            last = Some(log);
        }
    }
    found.replay = first.zip(last);
    found.passed = chain.left().to_vec();
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

/// What is in the complete data-sync logs after the newest checkpoint, in the order in which
/// they were written (docs/format.md §16).
pub(crate) fn salvage(store: &Store, found: &LogScan) -> Result<Salvaged> {
    let mut salvaged = Salvaged::default();
    let Some((first, last)) = found.replay else {
        return Ok(salvaged);
    };
    let mut pending: Option<Salvaged> = None;
    let mut chain = Chain::from(store, first.start, first.header.seq);
    while let Some(ChainedLog { start, header, .. }) = chain.next()? {
        if header.has(SYNDT) && !header.has(SR) {
            if header.has(LOGBGN) {
                pending = Some(Salvaged::default());
            }
            if let Some(logical) = &mut pending {
                collect(store, start, header, logical)?;
            }
            if header.has(LOGEND) {
                salvaged.append(pending.take().unwrap_or_default());
            }
        } else if pending.is_some() || header.has(SR) {
            return Err(Error::Inconsistent(format!(
                "the log in block {start} interrupts a data-sync log"
            )));
        }
        if start == last.start {
            break;
        }
    }
    Ok(salvaged)
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

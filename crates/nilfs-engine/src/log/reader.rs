//! Reading logs from the device.

use nilfs_ondisk::crc::Crc;
use nilfs_ondisk::roll_forward::Records;
use nilfs_ondisk::summary::{FileInfo, Items, LogHeader, SR, SYNDT, parse_items};
use nilfs_ondisk::{BlockNr, SegNum, Seq};

use crate::error::{Error, Locate, Result};
use crate::store::Store;

/// Bytes read at a time while a log is checked.
const READ_BYTES: usize = 1 << 20;

/// A log with what its summary says.
#[derive(Debug, Clone)]
pub struct Log {
    /// Its first block.
    pub start: BlockNr,
    /// Its header.
    pub header: LogHeader,
    /// Its blocks by file, in the order in which they lie after the summary.
    pub files: Vec<FileInfo>,
    /// What comes after the items of the summary.
    rest: Vec<u8>,
}

impl Log {
    /// The roll-forward records of the log, if it has any (docs/format.md §19).
    ///
    /// # Errors
    /// Records that this program does not know, or that are damaged.
    pub fn records(&self) -> Result<Option<Records>> {
        Records::parse(&self.rest).at(|| "roll-forward records".into(), self.start)
    }
}

/// The header of the log at `start`, or `None` if there is no log that fits into the segment.
pub(crate) fn header(store: &Store, start: BlockNr) -> Result<Option<LogHeader>> {
    let geometry = store.geometry();
    if !geometry.has_block(start) {
        return Ok(None);
    }
    let mut block = vec![0; store.block_size().bytes()];
    store.read_run(start, &mut block)?;
    let parsed = LogHeader::parse(&block, geometry.block_size, geometry.blocks_per_segment);
    let end = geometry.segment_end(geometry.segment_of(start));
    Ok(parsed.ok().filter(|header| start.0 + u64::from(header.nblocks) <= end.0))
}

/// The header of the log at `start` if it belongs to the given use of the segment and every byte
/// of the log is as it was written. The store holds a short one with a super root.
pub(crate) fn verified(store: &Store, start: BlockNr, seq: Seq) -> Result<Option<LogHeader>> {
    let Some(header) = header(store, start)?.filter(|header| header.seq == seq) else {
        return Ok(None);
    };
    let block_size = store.block_size();
    let mut crc = Crc::new(store.seed());
    let mut left = header.nblocks as usize * block_size.bytes();
    let mut at = start;
    let mut skip = 4;
    let mut buffer = vec![0; READ_BYTES.min(left)];
    while left > 0 {
        let piece = &mut buffer[..READ_BYTES.min(left)];
        store.read_run(at, piece)?;
        crc.update(&piece[skip..]);
        skip = 0;
        left -= piece.len();
        at = at.plus((piece.len() / block_size.bytes()) as u64);
    }
    if crc.value() != header.datasum {
        return Ok(None);
    }
    if header.has(SR) && header.nblocks as usize * block_size.bytes() == buffer.len() {
        store.hold(start, buffer);
    }
    Ok(Some(header))
}

/// The header of the log at `start` if it belongs to the given use of the segment, and whether every
/// byte of the log has been checked. Of one that neither completes a checkpoint nor is a sync log, it
/// is only the summary: what it means depends on logs after it.
pub(crate) fn skimmed(
    store: &Store,
    start: BlockNr,
    seq: Seq,
) -> Result<Option<(LogHeader, bool)>> {
    let Some(header) = header(store, start)?.filter(|header| header.seq == seq) else {
        return Ok(None);
    };
    if !header.has(SR) && !header.has(SYNDT) {
        match read(store, start, header) {
            Ok(log) if matches!(log.records(), Ok(None)) => return Ok(Some((header, false))),
            Ok(_) => {}
            Err(Error::Corrupt { .. }) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(verified(store, start, seq)?.map(|header| (header, true)))
}

/// What the blocks of a log are. Checks the summary on the way.
pub(crate) fn read(store: &Store, start: BlockNr, header: LogHeader) -> Result<Log> {
    let block_size = store.block_size();
    let blocks = header.summary_blocks(block_size) as usize;
    let mut summary = vec![0; blocks * block_size.bytes()];
    store.read_run(start, &mut summary)?;
    let what = || "segment summary".to_owned();
    header.verify_summary(&summary, store.seed()).at(what, start)?;
    let Items { files, end } = parse_items(&header, &summary, block_size).at(what, start)?;
    let rest = summary.get(end..header.sumbytes as usize).unwrap_or_default().to_vec();
    Ok(Log { start, header, files, rest })
}

/// All logs of a segment as far as their summaries are valid, stale ones included.
pub(crate) fn logs_of(store: &Store, segment: SegNum) -> Result<Vec<Log>> {
    let geometry = store.geometry();
    if !geometry.has_segment(segment) {
        return Err(Error::Invalid("there is no such segment"));
    }
    let mut logs = Vec::new();
    let mut at = geometry.segment_start(segment);
    let end = geometry.segment_end(segment);
    while at < end
        && let Some(header) = header(store, at)?
    {
        match read(store, at, header) {
            Ok(log) => logs.push(log),
            Err(Error::Corrupt { .. }) => break,
            Err(error) => return Err(error),
        }
        at = at.plus(header.nblocks.into());
    }
    Ok(logs)
}

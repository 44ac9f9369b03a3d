//! Reading logs from the device.

use nilfs_ondisk::crc::{BlockSum, Crc};
use nilfs_ondisk::roll_forward::Records;
use nilfs_ondisk::summary::{BlockInfo, FileInfo, Items, LogHeader, SR, SYNDT, parse_items};
use nilfs_ondisk::super_root::SuperRoot;
use nilfs_ondisk::{BlockNr, BlockSize, Cno, Geometry, Ino, SegNum, Seq, SummaryCopy};

use crate::error::{Error, Locate, Result};
use crate::store::Store;

/// Bytes read at a time while a log is checked.
const READ_BYTES: usize = 1 << 20;

/// Blocks read at once of the end of a log: in a small checkpoint, the super root, three of the DAT, the
/// sufile's, the cpfile's and that with the inodes, which are what a mount asks for. A card takes twice
/// as long for them as for one.
const END_BLOCKS: usize = 7;

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
    /// The checksums of its blocks, in their order, if it was written with them.
    pub sums: Option<Vec<BlockSum>>,
    /// Whether its own checksum follows from these.
    sums_agree: bool,
}

/// Evidence of whether each block of a log is what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Its own checksum.
    OfBlocks,
    /// The checksum of the log, which is right: all are.
    OfLog,
    /// Nothing: one of them is not, and it is not known which.
    Missing,
}

/// A block of a file in a log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DescribedBlock {
    pub(crate) ino: Ino,
    pub(crate) fi_cno: Cno,
    pub(crate) info: BlockInfo,
    pub(crate) block: BlockNr,
    /// The checksum of what was written there, if the log has those of its blocks.
    pub(crate) sum: Option<BlockSum>,
}

impl Log {
    /// The roll-forward records of the log, if it has any (docs/format.md §19).
    ///
    /// # Errors
    /// Records that this program does not know, or that are damaged.
    pub fn records(&self) -> Result<Option<Records>> {
        Records::parse(&self.rest).at(|| "roll-forward records".into(), self.start)
    }

    /// Returns the copies that the log has of the summaries of earlier ones.
    #[must_use]
    pub fn summary_copies(&self) -> Vec<SummaryCopy> {
        let blocks = self.files.iter().map(|file| file.blocks.len() as u64).sum();
        SummaryCopy::parse_all(&self.rest, blocks)
    }

    /// Returns what says of the blocks, before they move, whether they are what was written. Reads the log
    /// if its own checksum is needed for that: it has none of its blocks, or they contradict each other. An
    /// older version of fsck corrects blocks and the checksum of the log, and does not know of the others.
    ///
    /// # Errors
    /// Damage of the geometry. What cannot be read is no error: the rest is moved, as far as it can be read.
    pub(crate) fn proof(&self, store: &Store) -> Result<Proof> {
        if self.sums.is_some() && self.sums_agree {
            return Ok(Proof::OfBlocks);
        }
        match read_whole(store, self.start, &self.header) {
            Ok(Some(_)) | Err(Error::Device { .. }) => Ok(Proof::OfLog),
            Ok(None) if self.sums.is_some() => Ok(Proof::OfBlocks),
            Ok(None) => Ok(Proof::Missing),
            Err(error) => Err(error),
        }
    }

    /// Returns the blocks of files, in their order.
    pub(crate) fn blocks(&self, size: BlockSize) -> impl Iterator<Item = DescribedBlock> {
        let first = self.start.plus(self.header.summary_blocks(size));
        let infos = self
            .files
            .iter()
            .flat_map(|file| file.blocks.iter().map(move |info| (file.ino, file.cno, *info)));
        infos.enumerate().map(move |(nth, (ino, fi_cno, info))| DescribedBlock {
            ino,
            fi_cno,
            info,
            block: first.plus(nth as u64),
            sum: self.sums.as_ref().and_then(|sums| sums.get(nth).copied()),
        })
    }
}

/// What a log is to a recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogKind {
    /// It completes a checkpoint.
    Checkpoint {
        /// Whether all logs before it were durable when it was written, as far as it says that.
        durable_before: bool,
    },
    /// A sync log.
    Sync {
        /// How many logs right before it may not have been durable when it was written, if that is
        /// known.
        unflushed: Option<u16>,
    },
    /// What it means depends on logs after it.
    Part,
}

/// The header of the log at `start`, or `None` if there is no log that fits into the segment.
pub(crate) fn header(store: &Store, start: BlockNr) -> Result<Option<LogHeader>> {
    if !store.geometry().has_block(start) {
        return Ok(None);
    }
    Ok(parse_header(store, start, &read_block(store, start)?))
}

/// The header of the log at `start`, given its first block, or `None` if there is no log that fits into the
/// segment.
pub(crate) fn parse_header(store: &Store, start: BlockNr, block: &[u8]) -> Option<LogHeader> {
    let geometry = store.geometry();
    let parsed = LogHeader::parse(block, geometry.block_size, geometry.blocks_per_segment);
    let end = geometry.segment_end(geometry.segment_of(start));
    parsed.ok().filter(|header| start.0 + u64::from(header.nblocks) <= end.0)
}

/// The header of the log at `start` if it belongs to the given use of the segment and every byte
/// of the log is as it was written.
pub(crate) fn verified(store: &Store, start: BlockNr, seq: Seq) -> Result<Option<LogHeader>> {
    let header = header(store, start)?.filter(|header| header.seq == seq);
    Ok(match header {
        Some(header) if is_whole(store, start, &header)? => Some(header),
        _ => None,
    })
}

/// Whether every byte of a log is as it was written, as far as it means something. The store holds a
/// short one with a super root, for a mount that will read it: nothing must be written meanwhile.
pub(crate) fn is_whole(store: &Store, start: BlockNr, header: &LogHeader) -> Result<bool> {
    let Some(end) = read_whole(store, start, header)? else { return Ok(false) };
    let block_size = store.block_size();
    if header.has(SR)
        && end.len() as u64 == header.described_blocks(block_size) * block_size.bytes64()
    {
        store.hold(start, end);
    }
    Ok(true)
}

/// Reads every byte of a log that means something. Returns the last of them, or all of a short log, if they
/// are as they were written.
fn read_whole(store: &Store, start: BlockNr, header: &LogHeader) -> Result<Option<Vec<u8>>> {
    let block_size = store.block_size();
    let mut crc = Crc::new(store.seed());
    let mut left = header.described_blocks(block_size) as usize * block_size.bytes();
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
    Ok(header.verify_log(crc, block_size).is_ok().then_some(buffer))
}

/// Has the store hold the end of a log with a super root: that, and the metadata before it.
pub(crate) fn hold_end(store: &Store, start: BlockNr, header: &LogHeader) -> Result<()> {
    let block_size = store.block_size();
    let count = END_BLOCKS.min(header.nblocks as usize);
    let first = BlockNr(start.0 + u64::from(header.nblocks) - count as u64);
    let mut buffer = vec![0; count * block_size.bytes()];
    // Where one block cannot be read, each is read when it is needed.
    if or_unreadable(store.read_run(first, &mut buffer))? {
        store.hold(first, buffer);
    }
    Ok(())
}

/// Whether blocks could be read.
fn or_unreadable(read: Result<()>) -> Result<bool> {
    match read {
        Ok(()) => Ok(true),
        Err(error) if error.is_of_block() => Ok(false),
        Err(error) => Err(error),
    }
}

/// A log as far as it has been looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Skimmed {
    pub(crate) header: LogHeader,
    pub(crate) kind: LogKind,
    /// Whether every byte of it is as it was written. If not, that may not have been asked.
    pub(crate) is_whole: bool,
}

/// The log at `start` if it belongs to the given use of the segment, and its summary is whole, and its super
/// root if it has one, unless that is torn. Of a short one with a super root all is read, and held by the
/// store as after [`is_whole`].
pub(crate) fn skimmed(store: &Store, start: BlockNr, seq: Seq) -> Result<Option<Skimmed>> {
    if !store.geometry().has_block(start) {
        return Ok(None);
    }
    let block_size = store.block_size();
    let mut content = vec![0; block_size.bytes()];
    // Where logs are short, the next ones are read with it.
    store.read_content(start, &mut content)?;
    let header = parse_header(store, start, &content).filter(|header| header.seq == seq);
    let Some(header) = header else { return Ok(None) };
    let summary_bytes = header.summary_blocks(block_size) as usize * block_size.bytes();
    let all = header.described_blocks(block_size) as usize * block_size.bytes();
    let is_short = header.has(SR) && all <= READ_BYTES;
    let read_rest = |content: &mut [u8]| match &mut content[block_size.bytes()..] {
        [] => Ok(()),
        rest => store.read_run(start.plus(1), rest),
    };
    let mut is_read = false;
    if is_short {
        content.resize(all, 0);
        // One block that cannot be read is no reason not to read the summary.
        is_read = or_unreadable(read_rest(&mut content))?;
    }
    if !is_read {
        content.resize(summary_bytes, 0);
        read_rest(&mut content)?;
    }
    let kind = match parse(store, start, header, &content[..summary_bytes]) {
        Ok(_) if header.has(SR) => {
            match checkpoint(store, start, &header, &content[summary_bytes..])? {
                Some(kind) => kind,
                None => return Ok(None),
            }
        }
        Ok(log) => match log.records() {
            Ok(None) if !header.has(SYNDT) => LogKind::Part,
            Ok(records) => LogKind::Sync { unflushed: records.and_then(|it| it.unflushed) },
            // Unless it is torn, it cannot be rolled forward, and must not be passed over.
            Err(_) => LogKind::Sync { unflushed: None },
        },
        Err(_) if header.has(SYNDT) => LogKind::Sync { unflushed: None },
        Err(_) => return Ok(None),
    };
    let mut crc = Crc::new(store.seed());
    crc.update(&content[4..]);
    let is_whole = is_read && header.verify_log(crc, block_size).is_ok();
    if is_whole {
        store.hold(start, content);
    }
    Ok(Some(Skimmed { header, kind, is_whole }))
}

/// Returns the kind of a log with a super root. Without a good one, it completes nothing, because a power cut
/// has torn it; none has if the super root is good but for a bit, and then there is no such log.
fn checkpoint(
    store: &Store,
    start: BlockNr,
    header: &LogHeader,
    after_summary: &[u8],
) -> Result<Option<LogKind>> {
    let geometry = store.geometry();
    let block = super_root_block(start, header);
    let read;
    let bytes = match after_summary.rchunks_exact(geometry.block_size.bytes()).next() {
        Some(bytes) => bytes,
        None => {
            read = read_block(store, block)?;
            &read
        }
    };
    Ok(match parse_super_root(store, block, bytes) {
        Ok(SuperRoot { durable_before, .. }) => Some(LogKind::Checkpoint { durable_before }),
        Err(_) if SuperRoot::wrong_bit(bytes, &geometry, store.seed()).is_some() => None,
        Err(_) => Some(LogKind::Part),
    })
}

/// The super root at the end of a log.
pub(crate) fn super_root(store: &Store, start: BlockNr, header: &LogHeader) -> Result<SuperRoot> {
    let block = super_root_block(start, header);
    parse_super_root(store, block, &read_block(store, block)?)
}

fn read_block(store: &Store, block: BlockNr) -> Result<Vec<u8>> {
    let mut bytes = vec![0; store.block_size().bytes()];
    store.read_run(block, &mut bytes)?;
    Ok(bytes)
}

fn super_root_block(start: BlockNr, header: &LogHeader) -> BlockNr {
    BlockNr(start.0 + u64::from(header.nblocks) - 1)
}

fn parse_super_root(store: &Store, block: BlockNr, bytes: &[u8]) -> Result<SuperRoot> {
    SuperRoot::parse(bytes, &store.geometry(), store.seed()).at(|| "super root".into(), block)
}

/// Returns the header of the log that begins in a block, in any use of the segment, if its summary is whole
/// and it does not lie in the hole of another log.
pub(crate) fn log_at(store: &Store, start: BlockNr) -> Option<LogHeader> {
    let header = header(store, start).ok().flatten()?;
    (read(store, start, header).is_ok() && !is_in_hole(store, start, &header)).then_some(header)
}

/// Whether a log lies in the hole of one that was written later: that has left the first block as it
/// was, and the next log, of the same later use of the segment, begins in the second.
pub(crate) fn is_in_hole(store: &Store, start: BlockNr, found: &LogHeader) -> bool {
    let next = start.plus(1);
    let header = header(store, next).ok().flatten().filter(|header| header.seq > found.seq);
    header.is_some_and(|header| read(store, next, header).is_ok())
}

/// What the blocks of a log are. Checks the summary on the way.
pub(crate) fn read(store: &Store, start: BlockNr, header: LogHeader) -> Result<Log> {
    let block_size = store.block_size();
    let blocks = header.summary_blocks(block_size) as usize;
    let mut summary = vec![0; blocks * block_size.bytes()];
    store.read_run(start, &mut summary)?;
    parse(store, start, header, &summary)
}

/// As [`read`], of the blocks of a summary that were read already.
pub(crate) fn parse(
    store: &Store,
    start: BlockNr,
    header: LogHeader,
    summary: &[u8],
) -> Result<Log> {
    let what = || "segment summary".to_owned();
    header.verify_summary(summary, store.seed()).at(what, start)?;
    let Items { files, end, sums } =
        parse_items(&header, summary, store.block_size()).at(what, start)?;
    let rest = summary.get(end..header.sumbytes as usize).unwrap_or_default().to_vec();
    let sums_agree = sums.as_deref().is_some_and(|sums| {
        header.sum_from(summary, sums, store.block_size(), store.seed()) == header.datasum
    });
    Ok(Log { start, header, files, rest, sums, sums_agree })
}

/// Returns the log of which a later one has a copy of the summary.
pub(crate) fn copied(store: &Store, copy: &SummaryCopy) -> Option<Log> {
    let Geometry { block_size, blocks_per_segment, .. } = store.geometry();
    let (header, summary) = copy.restore(block_size, blocks_per_segment, store.seed())?;
    parse(store, copy.start, header, &summary).ok()
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

/// All logs of one use of a segment that can be read, also those after one that cannot. Where there is none,
/// each block is looked at.
pub(crate) fn logs_beyond_damage(store: &Store, segment: SegNum) -> Vec<Log> {
    let geometry = store.geometry();
    let (mut at, end) = (geometry.segment_start(segment), geometry.segment_end(segment));
    let mut logs = Vec::<Log>::new();
    while at < end {
        let seq = logs.first().map(|log| log.header.seq);
        let header = log_at(store, at).filter(|found| seq.is_none_or(|seq| seq == found.seq));
        let log = header.and_then(|header| read(store, at, header).ok());
        at = at.plus(log.as_ref().map_or(1, |log| log.header.nblocks.into()));
        logs.extend(log);
    }
    logs
}

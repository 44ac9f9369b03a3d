//! What lies beyond a gap: a place where the chain of logs has no whole one (docs/format.md §16). A power
//! cut takes what was not durable. But if a later log says that everything before it was durable, the
//! missing one was damaged, and a mount refuses the volume. It must not know what records change.

use std::collections::HashSet;
use std::ops::Range;

use nilfs_ondisk::summary::{self, LogHeader, SR};
use nilfs_ondisk::{BlockNr, Cno, SegNum, Seq};

use crate::log::{LogFault, LogReader};
use crate::recovery::{Gap, Link, header_of, super_root_of};
use crate::volume::Volume;

/// Bytes after a gap that a mount reads to see whether anything was written there.
const NEAR: u64 = 80 << 10;

/// Bytes from one block to the next that it looks at after those.
const APART: u64 = 96 << 10;

/// Bytes that a device loses together at most, as far as later logs are looked for.
const LONGEST_LOST: u64 = 512 << 10;

/// Bytes of a log at the end of the chain that a mount reads to see whether it was torn.
const LONGEST_TORN: u64 = 1 << 20;

/// The end of a segment, to which nothing was written. A mount takes what a device has lost for one piece, so it
/// looks at less of the next segment.
#[derive(Default)]
pub(crate) struct Blank {
    seq: Seq,
    bytes: u64,
}

/// The logs beyond a gap, as far as they are known to be whole, if one of them says that a log in the gap was
/// durable. `newest` is the newest checkpoint: what is older than that does not know of the gap. `blank` goes from
/// gap to gap, in the order of the chain.
pub(crate) fn witnesses<'v, 'd>(
    volume: &'v Volume<'d>,
    reader: &mut LogReader<'v, 'd>,
    gap: &Gap,
    newest: Cno,
    blank: &mut Blank,
) -> Option<Vec<Link>> {
    let mut logs = logs_beyond(volume, reader, gap, blank);
    let mut numbered = logs.iter().enumerate();
    if !numbered.any(|(nth, log)| vouches_for_all_before(volume, reader, log, nth, newest)) {
        return None;
    }
    let durable = durable_ones(volume, reader, &logs);
    let mut is_torn = |log: &Link| {
        !durable.contains(&log.block) && reader.verify(log.block, &log.header).is_err()
    };
    let torn = logs.iter().position(&mut is_torn);
    logs.truncate(torn.unwrap_or(logs.len()));
    Some(logs)
}

/// All logs that can be found beyond a gap, from segment to segment.
fn logs_beyond<'v, 'd>(
    volume: &'v Volume<'d>,
    reader: &mut LogReader<'v, 'd>,
    gap: &Gap,
    blank: &mut Blank,
) -> Vec<Link> {
    let geometry = &volume.geometry;
    let segment = geometry.segment_of(gap.block);
    let is_at_start = geometry.segment_start(segment) == gap.block;
    if !is_at_start || gap.seq != blank.seq.plus(1) {
        *blank = Blank::default();
    }
    let mut found = logs_of_segment(volume, reader, gap.block, gap.seq, blank);
    if found.is_empty() && is_at_start {
        found = logs_after_lost(volume, reader, segment, gap.seq, blank);
    }
    if found.is_empty()
        && let Ok(header) = summarized(reader, gap.block, gap.seq)
    {
        found.push(Link { block: gap.block, header });
    }
    let mut logs = Vec::new();
    while let Some(last) = found.last().copied() {
        logs.append(&mut found);
        let (next, seq) = (geometry.segment_of(last.header.next), last.header.seq.plus(1));
        if geometry.has_segment(next) {
            found = logs_of_segment(volume, reader, geometry.segment_start(next), seq, blank);
        }
        if found.is_empty() {
            found = logs_after_lost(volume, reader, next, seq, blank);
        }
    }
    logs.retain(|log| log.block != gap.block);
    logs
}

/// The logs of the first segment that has any after some that a device loses together, each as a whole, of which
/// `lost` is the first: they are shorter than what that may be.
fn logs_after_lost<'v, 'd>(
    volume: &'v Volume<'d>,
    reader: &mut LogReader<'v, 'd>,
    lost: SegNum,
    seq: Seq,
    blank: &mut Blank,
) -> Vec<Link> {
    let geometry = &volume.geometry;
    let bytes = u64::from(geometry.blocks_per_segment) * geometry.block_size.bytes64();
    if !geometry.has_segment(lost) || bytes > LONGEST_LOST {
        return Vec::new();
    }
    let later = (1..=LONGEST_LOST / bytes).map(|nth| (SegNum(lost.0 + nth), seq.plus(nth)));
    let later = later.filter(|(segment, _)| geometry.has_segment(*segment));
    let mut logs = later.map(|(segment, seq)| {
        let start = geometry.segment_start(segment);
        logs_of_segment(volume, reader, start, seq, blank)
    });
    logs.find(|logs| !logs.is_empty()).unwrap_or_default()
}

/// The logs of one use of a segment, from a block on. `blank` is the end of the segment before, and then of this one.
fn logs_of_segment<'v, 'd>(
    volume: &'v Volume<'d>,
    reader: &mut LogReader<'v, 'd>,
    from: BlockNr,
    seq: Seq,
    blank: &mut Blank,
) -> Vec<Link> {
    let end = volume.geometry.segment_end(volume.geometry.segment_of(from));
    let mut logs = Vec::new();
    let mut at = from;
    let before = std::mem::replace(blank, Blank { seq, bytes: 0 }).bytes;
    while at < end {
        if let Ok(header) = summarized(reader, at, seq)
            && !(at == from && is_strange(volume, reader, at, &header))
        {
            let log = in_its_place(volume, reader, Link { block: at, header });
            at = log.end();
            logs.push(log);
            continue;
        }
        let near = near_after(reader, logs.last());
        let before = if at == from { before } else { 0 };
        if is_unwritten(volume, reader, at, near, before) {
            blank.bytes = before + (end.0 - at.0) * volume.block_size().bytes64();
            break;
        }
        let Some(next) = next_log(reader, at.plus(1)..end, seq) else { break };
        at = next;
    }
    logs
}

/// Whether the first block that a log describes is not what was written: its summary may be that of another log,
/// and tells nothing of how far this one reaches.
fn is_strange<'v, 'd>(
    volume: &'v Volume<'d>,
    reader: &mut LogReader<'v, 'd>,
    at: BlockNr,
    header: &LogHeader,
) -> bool {
    let changed = reader.changed(at, header).ok().flatten().unwrap_or_default();
    let first = header.summary_blocks(volume.block_size());
    changed.wrong.first().is_some_and(|range| range.contains(&at.plus(first)))
}

/// Returns a log, or the first one that begins inside it if its summary was written for another place.
fn in_its_place<'v, 'd>(
    volume: &'v Volume<'d>,
    reader: &mut LogReader<'v, 'd>,
    mut log: Link,
) -> Link {
    let end = volume.geometry.segment_end(volume.geometry.segment_of(log.block));
    while is_strange(volume, reader, log.block, &log.header)
        && let Some(block) = next_log(reader, log.block.plus(1)..log.end().min(end), log.header.seq)
        && let Ok(header) = summarized(reader, block, log.header.seq)
    {
        log = Link { block, header };
    }
    log
}

/// The logs that later ones, of those that follow each other, call durable: no power cut has torn them.
pub(crate) fn durable_ones<'v, 'd>(
    volume: &'v Volume<'d>,
    reader: &mut LogReader<'v, 'd>,
    links: &[Link],
) -> HashSet<BlockNr> {
    let before = |(nth, link): (usize, &Link)| match link.header.has(SR) {
        true => super_root_of(volume, reader, link.block, &link.header)
            .ok()
            .filter(|it| it.durable_before)
            .map(|_| nth),
        false => {
            let (_, records) = reader.content(link.block, &link.header).ok()?;
            records?.unflushed.map(|unflushed| nth.saturating_sub(unflushed.into()))
        }
    };
    let count = links.iter().enumerate().filter_map(before).max().unwrap_or(0);
    links[..count].iter().map(|link| link.block).collect()
}

/// The header of a log whose summary is right.
pub(crate) fn summarized(
    reader: &mut LogReader<'_, '_>,
    at: BlockNr,
    seq: Seq,
) -> Result<LogHeader, LogFault> {
    let header = header_of(reader, at, seq)?;
    reader.items(at, &header)?;
    Ok(header)
}

/// Whether a log, the `nth` of a run, says that everything before the run was durable when it was written.
fn vouches_for_all_before<'v, 'd>(
    volume: &'v Volume<'d>,
    reader: &mut LogReader<'v, 'd>,
    log: &Link,
    nth: usize,
    newest: Cno,
) -> bool {
    if log.header.has(SR) {
        let super_root = super_root_of(volume, reader, log.block, &log.header);
        return log.header.cno > newest && super_root.is_ok_and(|it| it.durable_before);
    }
    let Ok((_, Some(records))) = reader.content(log.block, &log.header) else { return false };
    records.base >= newest && records.unflushed.is_some_and(|logs| usize::from(logs) <= nth)
}

/// Whether the log in a gap is as it was written but for one bit, so that no power cut has torn it.
pub(crate) fn lacks_a_bit<'v, 'd>(
    volume: &'v Volume<'d>,
    reader: &mut LogReader<'v, 'd>,
    gap: &Gap,
) -> bool {
    if !reader.block(gap.block).is_ok_and(|first| summary::resembles(first, gap.seq)) {
        return false;
    }
    let geometry = &volume.geometry;
    let left = geometry.segment_end(geometry.segment_of(gap.block)).0 - gap.block.0;
    let mut log = vec![0; (left * geometry.block_size.bytes64()).min(LONGEST_TORN) as usize];
    volume.read(gap.block, &mut log).is_ok()
        && summary::lacks_a_bit(&log, geometry.block_size, geometry.blocks_per_segment, volume.seed)
}

/// Bytes after a log that a mount reads to see whether anything was written there. Where that ends in damage, this may
/// go on.
fn near_after(reader: &mut LogReader<'_, '_>, log: Option<&Link>) -> u64 {
    match log.is_some_and(|log| reader.verify(log.block, &log.header).is_err()) {
        true => NEAR + LONGEST_LOST,
        false => NEAR,
    }
}

/// Whether nothing lies in a block, nor anywhere after that in its segment where a mount looks. So many bytes before
/// it are blank.
fn is_unwritten<'v, 'd>(
    volume: &'v Volume<'d>,
    reader: &mut LogReader<'v, 'd>,
    from: BlockNr,
    near: u64,
    blank: u64,
) -> bool {
    let (geometry, size) = (&volume.geometry, volume.geometry.block_size.bytes64());
    let end = geometry.segment_end(geometry.segment_of(from));
    let near = (0..near).step_by(size as usize);
    let distant = (NEAR..NEAR + LONGEST_LOST).step_by(APART as usize);
    let later = near.chain(distant).filter(|bytes| *bytes > blank).map(|bytes| bytes - blank);
    let blocks = std::iter::once(0).chain(later).map(|bytes| from.plus(bytes / size));
    let mut blocks = blocks.take_while(|at| *at < end);
    blocks.all(|at| reader.block(at).is_ok_and(|block| block.iter().all(|byte| *byte == 0)))
}

/// The first log of a use of a segment among blocks.
fn next_log(reader: &mut LogReader<'_, '_>, blocks: Range<BlockNr>, seq: Seq) -> Option<BlockNr> {
    let mut blocks = (blocks.start.0..blocks.end.0).map(BlockNr);
    blocks.find(|&at| summarized(reader, at, seq).is_ok())
}

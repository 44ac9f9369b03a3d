//! What lies beyond a gap: a place where the chain of logs has no whole one (docs/format.md §16). A power
//! cut takes what was not durable. But if a later log says that everything before it was durable, the
//! missing one was damaged, and a mount refuses the volume. It must not know what records change.

use std::ops::Range;

use nilfs_ondisk::summary::{self, LogHeader, SR};
use nilfs_ondisk::{BlockNr, Cno, SegNum, Seq};

use crate::log::{LogFault, LogReader};
use crate::recovery::{Chain, Gap, Link, header_of, super_root_of};
use crate::volume::Volume;

/// Bytes after a gap that a mount reads to see whether anything was written there.
const NEAR: u64 = 80 << 10;

/// Bytes of a log at the end of the chain that a mount reads to see whether it was torn.
const LONGEST_TORN: u64 = 1 << 20;

/// The logs beyond a gap, from the first that is found on, if one of them says that a log in the gap was
/// durable. `newest` is the newest checkpoint: what is older than that does not know of the gap.
pub(crate) fn witnesses<'v, 'd>(
    volume: &'v Volume<'d>,
    reader: &mut LogReader<'v, 'd>,
    gap: &Gap,
    newest: Cno,
) -> Option<Vec<Link>> {
    let segment = volume.geometry.segment_of(gap.block);
    let end = volume.geometry.segment_end(segment);
    let mut at = if is_unwritten(volume, reader, gap) { end } else { gap.block.plus(1) };
    while let Some(first) = next_log(reader, at..end, gap.seq) {
        let run = run_from(volume, reader, first, gap.seq);
        if vouch(volume, reader, &run, newest) {
            return Some(run);
        }
        let in_segment = |link: &&Link| volume.geometry.segment_of(link.block) == segment;
        at = run.iter().rfind(in_segment).map_or(first.plus(1), Link::end);
    }
    // A log that fills its segment has all later ones in the next.
    let header = summarized(reader, gap.block, gap.seq).ok()?;
    let next = Some(header.next).filter(|next| volume.geometry.has_block(*next))?;
    let run = run_from(volume, reader, next, gap.seq.plus(1));
    vouch(volume, reader, &run, newest).then_some(run)
}

/// Logs from one on, as far as they follow one another.
fn run_from<'v, 'd>(
    volume: &'v Volume<'d>,
    reader: &mut LogReader<'v, 'd>,
    first: BlockNr,
    seq: Seq,
) -> Vec<Link> {
    let mut chain = Chain::new(volume, reader, first, seq, SegNum(0));
    std::iter::from_fn(|| chain.next()).collect()
}

/// Whether one of the logs of a run says that everything before the run was durable.
fn vouch<'v, 'd>(
    volume: &'v Volume<'d>,
    reader: &mut LogReader<'v, 'd>,
    run: &[Link],
    newest: Cno,
) -> bool {
    let mut numbered = run.iter().enumerate();
    numbered.any(|(nth, log)| vouches_for_all_before(volume, reader, log, nth, newest))
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

/// Whether nothing lies in a gap, nor anywhere after that where a mount looks.
fn is_unwritten<'v, 'd>(volume: &'v Volume<'d>, reader: &mut LogReader<'v, 'd>, gap: &Gap) -> bool {
    let (geometry, size) = (&volume.geometry, volume.geometry.block_size.bytes64());
    let end = geometry.segment_end(geometry.segment_of(gap.block));
    let near = (gap.block.0..gap.block.plus(NEAR / size).0).map(BlockNr);
    let further = (0..u64::BITS).map_while(|nth| (NEAR / size).checked_shl(nth));
    let further = further.map(|distance| BlockNr(gap.block.0.saturating_add(distance)));
    let mut blocks = near.chain(further).take_while(|at| *at < end);
    blocks.all(|at| reader.block(at).is_ok_and(|block| block.iter().all(|byte| *byte == 0)))
}

/// The first log of a use of a segment among blocks.
fn next_log(reader: &mut LogReader<'_, '_>, blocks: Range<BlockNr>, seq: Seq) -> Option<BlockNr> {
    let mut blocks = (blocks.start.0..blocks.end.0).map(BlockNr);
    blocks.find(|&at| summarized(reader, at, seq).is_ok())
}

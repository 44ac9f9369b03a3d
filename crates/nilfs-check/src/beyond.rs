//! What lies beyond a gap: a place where the chain of logs has no whole one (docs/format.md §16). A power
//! cut takes what was not durable. But if a later log says that everything before it was durable, the
//! missing one was damaged, and a mount refuses the volume. It must not know what records change.

use nilfs_ondisk::summary::{self, LogHeader, SR};
use nilfs_ondisk::{BlockNr, Cno, SegNum, Seq};

use crate::log::{LogFault, LogReader};
use crate::recovery::{Chain, Gap, Link, header_of, super_root_of};
use crate::volume::Volume;

/// Bytes without a log after which a mount looks no further in a segment, if nothing is strange.
const SEARCHED: u64 = 80 << 10;

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
    let is_strange = is_strange(volume, reader, gap);
    let mut at = gap.block;
    while let Some(first) = next_log(volume, reader, at, gap.seq, is_strange) {
        let run = run_from(volume, reader, first, gap.seq);
        if vouch(volume, reader, &run, newest) {
            return Some(run);
        }
        let in_segment = |link: &&Link| volume.geometry.segment_of(link.block) == segment;
        at = run.iter().rfind(in_segment).map_or(first, Link::end);
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

/// Blocks after a gap that are searched in any case.
fn searched(volume: &Volume<'_>, at: BlockNr) -> BlockNr {
    let geometry = &volume.geometry;
    let end = geometry.segment_end(geometry.segment_of(at));
    at.plus(SEARCHED / geometry.block_size.bytes64()).min(end)
}

/// Whether a log of this use of the segment was begun in a gap: the device cannot read it, or it lacks no
/// more than a bit, or is missing where what follows it is there.
fn is_strange<'v, 'd>(volume: &'v Volume<'d>, reader: &mut LogReader<'v, 'd>, gap: &Gap) -> bool {
    let Ok(first) = reader.block(gap.block) else { return true };
    if first.iter().any(|byte| *byte != 0) {
        return summary::resembles(first, gap.seq);
    }
    let mut rest = (gap.block.0 + 1..searched(volume, gap.block).0).map(BlockNr);
    rest.any(|at| reader.block(at).is_ok_and(|block| block.iter().any(|byte| *byte != 0)))
}

/// The next log of a use of a segment after a block that none begins with, if it is not far or all of the
/// segment is searched.
fn next_log<'v, 'd>(
    volume: &'v Volume<'d>,
    reader: &mut LogReader<'v, 'd>,
    gap: BlockNr,
    seq: Seq,
    all: bool,
) -> Option<BlockNr> {
    let geometry = &volume.geometry;
    let end = match all {
        true => geometry.segment_end(geometry.segment_of(gap)),
        false => searched(volume, gap),
    };
    let mut blocks = (gap.0 + 1..end.0).map(BlockNr);
    blocks.find(|&at| summarized(reader, at, seq).is_ok())
}

//! What lies beyond a gap: a place where the chain of logs has no whole one (docs/format.md §16). A power
//! cut takes what was not durable. But if a later log says that everything before it was durable, the
//! missing one was damaged, and a mount refuses the volume. It must not know what records change.

use nilfs_ondisk::summary::{LogHeader, SR};
use nilfs_ondisk::{BlockNr, Cno, SegNum, Seq};

use crate::log::{LogFault, LogReader};
use crate::recovery::{Chain, Gap, Link, header_of, super_root_of};
use crate::volume::Volume;

/// Bytes without a log after which a mount looks no further in a segment.
const SEARCHED: u64 = 64 << 10;

/// The logs beyond a gap, from the first that is found on, if one of them says that a log in the gap was
/// durable. `newest` is the newest checkpoint: what is older than that does not know of the gap.
pub(crate) fn witnesses<'v, 'd>(
    volume: &'v Volume<'d>,
    reader: &mut LogReader<'v, 'd>,
    gap: &Gap,
    newest: Cno,
) -> Option<Vec<Link>> {
    let segment = volume.geometry.segment_of(gap.block);
    let mut at = gap.block;
    while let Some(first) = next_log(volume, reader, at, gap.seq) {
        let mut chain = Chain::new(volume, reader, first, gap.seq, SegNum(0)).taking(summarized);
        let run: Vec<Link> = std::iter::from_fn(|| chain.next()).collect();
        let mut numbered = run.iter().enumerate();
        if numbered.any(|(nth, log)| vouches_for_all_before(volume, reader, log, nth, newest)) {
            return Some(run);
        }
        let in_segment = |link: &&Link| volume.geometry.segment_of(link.block) == segment;
        at = run.iter().rfind(in_segment).map_or(first, Link::end);
    }
    None
}

/// The header of a log whose summary is right. Of one with a super root, which completes a checkpoint,
/// all has to be.
pub(crate) fn summarized(
    reader: &mut LogReader<'_, '_>,
    at: BlockNr,
    seq: Seq,
) -> Result<LogHeader, LogFault> {
    let header = header_of(reader, at, seq)?;
    match header.has(SR) {
        true => reader.verify(at, &header)?,
        false => drop(reader.items(at, &header)?),
    }
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

/// The next log of a use of a segment after a block that none begins with, if it is not far.
fn next_log<'v, 'd>(
    volume: &'v Volume<'d>,
    reader: &mut LogReader<'v, 'd>,
    gap: BlockNr,
    seq: Seq,
) -> Option<BlockNr> {
    let geometry = &volume.geometry;
    let end = geometry.segment_end(geometry.segment_of(gap));
    let far = gap.plus(SEARCHED / geometry.block_size.bytes64()).min(end);
    let mut blocks = (gap.0 + 1..far.0).map(BlockNr);
    blocks.find(|&at| summarized(reader, at, seq).is_ok())
}

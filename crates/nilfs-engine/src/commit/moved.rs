//! Logs of blocks that the cleaner moves. The checkpoint that names their new places is a commit like any
//! other.

use nilfs_ondisk::summary::{BlockInfo, FileInfo, GC, LOGBGN, LOGEND};
use nilfs_ondisk::{BlockNr, Cno, SegNum, Seq};

use crate::block::Block;
use crate::cleaner::victim::LiveBlock;
use crate::dat::Moved;
use crate::log::layout::{LogPosition, plan};
use crate::log::sealed::{Extras, Payload, SealedLog, seal};
use crate::store::Store;

/// A block that the cleaner moves, with its content.
pub(crate) struct MovedBlock {
    pub(crate) found: LiveBlock,
    pub(crate) content: Block,
}

/// Where and under which names logs beside the chain are written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OffChain {
    /// First free block of the first segment.
    pub(crate) start: BlockNr,
    /// The number, and the next segment, of the logs that the first segment has already.
    pub(crate) first: Option<(Seq, SegNum)>,
    /// Where the chain is now: its sequence number, its next segment, the checkpoint to come.
    pub(crate) seq: Seq,
    pub(crate) next: SegNum,
    pub(crate) cno: Cno,
    /// The time (s).
    pub(crate) now: u64,
}

/// Logs beside the chain.
pub(crate) struct MovedLogs {
    pub(crate) logs: Vec<SealedLog>,
    pub(crate) moved: Vec<Moved>,
    /// The last segment that was used, and its first free block.
    pub(crate) end: (SegNum, BlockNr),
}

/// Builds logs of blocks that keep their numbers and the checkpoint of their birth. The logs stand
/// beside the chain of logs, in `segments`, of which the first is free from `beside.start` on: no recovery
/// looks at them, and the checkpoint that names their blocks follows when they are durable.
///
/// `None` if the segments do not suffice.
pub(crate) fn build_moved(
    store: &Store,
    beside: &OffChain,
    segments: &[SegNum],
    blocks: &[MovedBlock],
) -> Option<MovedLogs> {
    let mut payload: Vec<Payload> = Vec::new();
    for MovedBlock { found, content } in blocks {
        let (ino, cno) = (found.ino, found.fi_cno);
        if payload.last().is_none_or(|file| file.info.ino != ino || file.info.cno != cno) {
            let info = FileInfo { ino, cno, blocks: Vec::new() };
            payload.push(Payload { info, blocks: Vec::new() });
        }
        let Some(file) = payload.last_mut() else { continue };
        file.info.blocks.push(match found.offset {
            Some(offset) => BlockInfo::Data { vblocknr: found.vblocknr, offset },
            None => BlockInfo::Node { vblocknr: found.vblocknr },
        });
        file.blocks.push(Block::clone(content));
    }
    let mut following = segments.iter().copied().skip(1).chain([beside.next]);
    let position = LogPosition {
        segment: *segments.first()?,
        block: beside.start,
        next: following.next()?,
        seq: beside.seq,
    };
    let extra: Vec<SegNum> = following.collect();
    let infos: Vec<&FileInfo> = payload.iter().map(|file| &file.info).collect();
    let mut plan = plan(&store.geometry(), position, &extra, &infos, 0, false).ok()?;
    for log in &mut plan.logs {
        // They are as old as the chain is now, wherever they lie.
        let first = beside.first.filter(|_| log.segment == segments[0]);
        (log.seq, log.next) = first.unwrap_or((beside.seq, log.next));
    }
    let addresses = plan.addresses.iter().flatten();
    let moved = blocks.iter().zip(addresses).map(|(block, &to)| {
        let LiveBlock { vblocknr, block: from, .. } = block.found;
        Moved { vblocknr, from, to }
    });
    let moved = moved.collect();
    let flags = |_| LOGBGN | LOGEND | GC;
    let extras = Extras { cno: beside.cno, now: beside.now, times: &[], super_root: None };
    let logs = seal(store, &plan, &payload, &extras, flags);
    Some(MovedLogs { logs, moved, end: (plan.position.segment, plan.position.block) })
}

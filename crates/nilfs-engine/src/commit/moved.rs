//! Logs of blocks that the cleaner moves. The checkpoint that names their new places is a commit
//! like any other.

use nilfs_ondisk::summary::{BlockInfo, FileInfo, GC, LOGBGN, LOGEND};
use nilfs_ondisk::{BlockNr, BlockSize, Cno, SegNum, Seq};

use crate::block::Block;
use crate::dat::Moved;
use crate::log::layout::{Filling, LogPosition, plan};
use crate::log::sealed::{Extras, Payload, SealedLog, seal};
use crate::log::segment_reader::LiveBlock;
use crate::store::Store;

/// A block that the cleaner moves, with its content.
pub(crate) struct MovedBlock {
    pub(crate) found: LiveBlock,
    pub(crate) content: Block,
}

/// What all logs of one segment have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHead {
    pub(crate) seq: Seq,
    /// The segment that they name as the next.
    pub(crate) next: SegNum,
}

/// Where, and under which numbers, logs next to the chain are written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OffChain {
    /// First free block of the first segment.
    pub(crate) start: BlockNr,
    /// Of the logs that the first segment has already.
    pub(crate) first: Option<SegmentHead>,
    /// Where the chain is now: its sequence number, its next segment, the checkpoint to come.
    pub(crate) seq: Seq,
    pub(crate) next: SegNum,
    pub(crate) cno: Cno,
    /// The time (s).
    pub(crate) now: u64,
}

/// Logs next to the chain.
pub(crate) struct MovedLogs {
    pub(crate) logs: Vec<SealedLog>,
    pub(crate) moved: Vec<Moved>,
    /// Where the last segment that was used goes on.
    pub(crate) end: LogPosition,
}

/// How many of these blocks, from the first on, a log has that takes `room` blocks at most.
pub(crate) fn most_in_log(block_size: BlockSize, blocks: &[LiveBlock], room: u64) -> usize {
    let mut log = Filling::new(block_size, 0);
    let begins_file = |nth: usize| nth == 0 || !are_together(&blocks[nth - 1], &blocks[nth]);
    let mut added = 0;
    while added < blocks.len()
        && log.add(begins_file(added), block_info(&blocks[added]).size(), room)
    {
        added += 1;
    }
    added
}

/// Whether a summary describes two blocks, one after the other, as blocks of one file.
fn are_together(one: &LiveBlock, other: &LiveBlock) -> bool {
    (one.ino, one.fi_cno) == (other.ino, other.fi_cno)
}

fn block_info(found: &LiveBlock) -> BlockInfo {
    match found.offset {
        Some(offset) => BlockInfo::Data { vblocknr: found.vblocknr, offset },
        None => BlockInfo::Node { vblocknr: found.vblocknr },
    }
}

/// Builds logs of blocks that keep their numbers and the checkpoint of their birth. The logs lie
/// next to the chain, in `segments`, of which the first is free from `off_chain.start` on: no
/// recovery looks at them, and the checkpoint that names their blocks follows when they are
/// durable.
///
/// `None` if the segments do not suffice.
pub(crate) fn build_moved(
    store: &Store,
    off_chain: &OffChain,
    segments: &[SegNum],
    blocks: &[MovedBlock],
) -> Option<MovedLogs> {
    let together = |a: &MovedBlock, b: &MovedBlock| are_together(&a.found, &b.found);
    let payload: Vec<Payload> = blocks.chunk_by(together).map(of_file).collect();
    let mut following = segments.iter().copied().skip(1).chain([off_chain.next]);
    let position = LogPosition {
        segment: *segments.first()?,
        block: off_chain.start,
        next: following.next()?,
        seq: off_chain.seq,
    };
    let extra: Vec<SegNum> = following.collect();
    let infos: Vec<&FileInfo> = payload.iter().map(|file| &file.info).collect();
    let mut plan =
        plan(&store.geometry(), store.flash_page(), position, &extra, &infos, 0, false).ok()?;
    for log in &mut plan.logs {
        // They are as old as the chain is now, wherever they lie.
        let own = SegmentHead { seq: off_chain.seq, next: log.next };
        let first = off_chain.first.filter(|_| log.segment == segments[0]);
        SegmentHead { seq: log.seq, next: log.next } = first.unwrap_or(own);
    }
    let addresses = plan.addresses.iter().flatten();
    let moved = blocks.iter().zip(addresses).map(|(block, &to)| {
        let LiveBlock { vblocknr, block: from, .. } = block.found;
        Moved { vblocknr, from, to }
    });
    let moved: Vec<Moved> = moved.collect();
    assert_eq!(moved.len(), blocks.len(), "every block has a new place");
    let flags = |_| LOGBGN | LOGEND | GC;
    let (cno, now) = (off_chain.cno, off_chain.now);
    let extras = Extras { cno, now, records: &[], copies: &[], super_root: None };
    let logs = seal(store, &plan, &payload, &extras, flags);
    Some(MovedLogs { logs, moved, end: plan.position })
}

/// Blocks of one file, as a log has them.
fn of_file(blocks: &[MovedBlock]) -> Payload {
    let info = |block: &MovedBlock| block_info(&block.found);
    let LiveBlock { ino, fi_cno: cno, .. } = blocks[0].found;
    let sum = |block: &MovedBlock| block.found.sum.of(&block.content);
    Payload {
        info: FileInfo { ino, cno, blocks: blocks.iter().map(info).collect() },
        blocks: blocks.iter().map(|block| Block::clone(&block.content)).collect(),
        moved_sums: Some(blocks.iter().map(sum).collect()),
    }
}

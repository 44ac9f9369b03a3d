//! Every block gets one place, in logs that lie as the format wants them.

use std::collections::BTreeSet;

use nilfs_ondisk::summary::BlockInfo;
use nilfs_ondisk::{BlockSize, Cno, FileBlock, Ino, VBlockNr, block_sums};
use proptest::prelude::*;

use super::*;
use crate::store::FLASH_PAGE;

const SEGMENT_BLOCKS: u32 = 32;
const SEGMENTS: u64 = 64;

fn geometry(block_size: u64) -> Geometry {
    Geometry {
        block_size: BlockSize::from_bytes(block_size).unwrap(),
        blocks_per_segment: SEGMENT_BLOCKS,
        nsegments: SEGMENTS,
        first_data_block: BlockNr(4),
        reserved_percent: 5,
        inode_size: 128,
        dat_entry_size: 32,
        checkpoint_size: 192,
        segment_usage_size: 16,
    }
}

fn files(sizes: &[(u64, u64)]) -> Vec<FileInfo> {
    let file = |(nth, &(data, nodes)): (usize, &(u64, u64))| {
        let data = (0..data)
            .map(|key| BlockInfo::Data { vblocknr: VBlockNr(key), offset: FileBlock(key) });
        let nodes = (0..nodes).map(|key| BlockInfo::Node { vblocknr: VBlockNr(key) });
        FileInfo { ino: Ino(12 + nth as u64), cno: Cno(9), blocks: data.chain(nodes).collect() }
    };
    sizes.iter().enumerate().map(file).collect()
}

fn position(segment: u64, used: u64) -> LogPosition {
    let start = geometry(1024).segment_start(SegNum(segment));
    LogPosition {
        segment: SegNum(segment),
        block: start.plus(used),
        next: SegNum(segment + 1),
        seq: Seq(100),
    }
}

/// Blocks of the summary that a log needs, by the rule of the format.
fn summary_blocks(
    geometry: &Geometry,
    log: &PlannedLog,
    files: &[FileInfo],
    records: usize,
) -> u64 {
    let mut summary = Placement::new(geometry.block_size);
    for (file, range) in &log.parts {
        summary.place(FINFO_SIZE);
        files[*file].blocks[range.clone()].iter().for_each(|info| _ = summary.place(info.size()));
    }
    let blocks = log.payload() + u64::from(log.super_root);
    summary.blocks_with(records + block_sums::size(blocks))
}

fn judge(files: &[FileInfo], plan: &Plan, from: LogPosition, records: usize, super_root: bool) {
    let geometry = geometry(1024);
    let (mut at, mut seq, mut segment, mut next) = (from.block, from.seq, from.segment, from.next);
    let mut taken = BTreeSet::new();
    for (nth, log) in plan.logs.iter().enumerate() {
        if log.segment != segment {
            assert_eq!(log.segment, next, "a log goes on where the one before said");
            (segment, seq) = (log.segment, seq.plus(1));
            at = geometry.segment_start(segment);
        }
        next = log.next;
        assert_eq!((log.start, log.seq), (at, seq), "no gap, and one number for a segment");
        assert!(log.end() <= geometry.segment_end(segment));
        assert!(log.summary_blocks >= summary_blocks(&geometry, log, files, records));
        assert!(!log.super_root || nth + 1 == plan.logs.len());
        let mut block = log.start.plus(log.summary_blocks);
        for (file, range) in &log.parts {
            for index in range.clone() {
                assert_eq!(plan.addresses[*file][index], block);
                assert!(taken.insert(block));
                block = block.plus(1);
            }
        }
        at = log.end();
    }
    let blocks: usize = files.iter().map(|file| file.blocks.len()).sum();
    assert_eq!(taken.len(), blocks);
    assert_eq!(plan.logs.last().is_some_and(|log| log.super_root), super_root);
    let end = LogPosition { segment, block: at, next, seq };
    assert_eq!(plan.position, end, "the next commit goes on there");
}

proptest! {
    #[test]
    fn every_block_has_one_place(
        sizes in prop::collection::vec((0u64..120, 0u64..12), 0..6),
        used in 0u64..=u64::from(SEGMENT_BLOCKS),
        super_root in any::<bool>(),
    ) {
        let (geometry, from) = (geometry(1024), position(3, used));
        let files = files(&sizes);
        let infos: Vec<&FileInfo> = files.iter().collect();
        let all: Vec<SegNum> = (5..SEGMENTS).map(SegNum).collect();
        // As a commit does it: as many segments as are found to be missing.
        let mut count = 0;
        let plan = loop {
            match plan(&geometry, FLASH_PAGE, from, &all[..count], &infos, 0, super_root) {
                Ok(plan) => break plan,
                Err(left) => {
                    prop_assert!(left > 0);
                    count += 1 + left as usize / SEGMENT_BLOCKS as usize;
                    prop_assert!(count < all.len(), "no number of segments suffices");
                }
            }
        };
        judge(&files, &plan, from, 0, super_root);
    }
}

/// Flash that programs sixteen KiB at once would program the last page twice.
#[test]
fn a_log_ends_with_a_page_of_flash_where_that_costs_little() {
    let geometry = geometry(4096);
    let end = |blocks| {
        let files = files(&[(blocks, 0)]);
        let infos: Vec<&FileInfo> = files.iter().collect();
        let start = position(3, 0);
        assert_eq!(start.block.0 % 4, 0);
        let plan = plan(&geometry, FLASH_PAGE, start, &[], &infos, 0, false).unwrap();
        plan.position.block.0 - start.block.0
    };
    assert_eq!(end(10), 12, "a summary, ten blocks, and one so that the page is full");
    assert_eq!(end(11), 12);
    assert_eq!(end(1), 2, "two more would double it");
}

/// A log of records alone, or with blocks: all in one segment, or not at all.
#[test]
fn records_take_room_in_the_summary() {
    let geometry = geometry(1024);
    let files = files(&[(3, 0)]);
    let all: Vec<&FileInfo> = files.iter().collect();
    for (files, records, blocks) in [(&all[..0], 900, 1), (&all[..0], 961, 2), (&all, 900, 5)] {
        let start = position(3, 0);
        let plan = plan(&geometry, FLASH_PAGE, start, &[], files, records, false).unwrap();
        let written = plan.position.block.0 - start.block.0;
        assert_eq!(written, 16, "to the end of a page of flash, for {blocks}");
        let left = |left| position(3, u64::from(SEGMENT_BLOCKS) - left);
        let fits = |at| super::plan(&geometry, FLASH_PAGE, at, &[], files, records, false).is_ok();
        let least = blocks + u64::from(files.is_empty());
        assert!(fits(left(least)));
        assert!(!fits(left(least - 1)), "a log has a block after its summary");
    }
}

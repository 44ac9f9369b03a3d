//! Where a log goes on after a crash: nothing that recovery needs is written over, and no log that
//! was lost can join the chain again.

use std::sync::Arc;

use nilfs_device::MemoryDevice;
use nilfs_ondisk::summary::LogHeader;
use nilfs_ondisk::{BlockNr, SegNum, Seq};

use super::*;
use crate::commit::{Frozen, MetadataChanges};
use crate::fixtures::{
    BLOCK, NOW, SEGMENT_BLOCKS, block_size, copy_of, empty_volume, make_file, mount, open, write,
};
use crate::log::chain::Chain;
use crate::log::segment_writer::SegmentWriter;
use crate::recovery;
use crate::{Filesystem, InodeRef};

/// Data-sync logs after the newest checkpoint.
const SYNCS: usize = 5;

/// A volume that was not unmounted, with data-sync logs after its newest checkpoint.
fn crashed(segments: u64, filled: bool) -> Arc<MemoryDevice> {
    let device = empty_volume(segments);
    let fs = mount(&device);
    let file = make_file(&fs);
    if filled {
        fill(&fs, &file);
    }
    fs.sync().unwrap();
    for nth in 0..SYNCS {
        fs.write(&file, 0, &[b'0' + nth as u8; BLOCK]).unwrap();
        fs.sync_file(&file).unwrap();
    }
    copy_of(&device)
}

fn fill(fs: &Filesystem, file: &InodeRef) {
    let piece = vec![b'f'; SEGMENT_BLOCKS as usize / 4 * BLOCK];
    while fs.stat_fs().unwrap().available > u64::from(SEGMENT_BLOCKS) {
        fs.write(file, fs.attr(file).unwrap().size, &piece).unwrap();
        fs.commit().unwrap();
    }
}

struct Resumed {
    position: LogPosition,
    needed: Vec<SegNum>,
    /// The last log that recovery needs.
    last: ChainedLog,
}

fn resume_on(device: &Arc<MemoryDevice>) -> Resumed {
    let volume = open(device);
    let found = recovery::roll_forward(&volume.store, &volume.found).unwrap();
    let salvaged = !found.logs.is_empty();
    let needed: Vec<SegNum> = found.filled.keys().copied().collect();
    let mut sufile = SufileEdit::new(volume.source(), volume.sufile().unwrap());
    let position = position(&volume, &mut sufile, &Withheld::default(), salvaged).unwrap();
    Resumed { position, needed, last: volume.found.last_needed(salvaged) }
}

/// The sequence numbers of all blocks on a device that look like the start of a log.
fn headers(device: &MemoryDevice) -> Vec<(BlockNr, Seq)> {
    let bytes = device.snapshot();
    let blocks = bytes.chunks_exact(BLOCK).enumerate();
    let header = |(nth, block)| {
        let header = LogHeader::parse(block, block_size(), SEGMENT_BLOCKS).ok()?;
        Some((BlockNr(nth as u64), header.seq))
    };
    blocks.filter_map(header).collect()
}

/// Loses the first log after the newest checkpoint, so that those after it are not needed.
fn lose_first_log(device: &Arc<MemoryDevice>) {
    let newest = open(device).found.newest;
    write(device, newest.end(), &[0; BLOCK]);
}

#[test]
fn where_segments_are_many_it_goes_on_in_a_fresh_one_under_a_new_number() {
    for lost in [false, true] {
        let device = crashed(60, false);
        if lost {
            lose_first_log(&device);
        }
        let before = device.snapshot();
        let Resumed { position, needed, last } = resume_on(&device);
        let geometry = open(&device).geometry();
        assert_ne!(position.segment, last.segment);
        assert_eq!(position.block, geometry.segment_start(position.segment));
        assert!(!needed.contains(&position.segment) && !needed.contains(&position.next));
        assert!(headers(&device).iter().all(|(_, seq)| *seq < position.seq));
        assert!(device.snapshot() == before, "nothing is written for that");
    }
}

#[test]
fn where_segments_are_few_it_goes_on_after_the_last_log_and_lost_ones_are_destroyed() {
    for lost in [false, true] {
        let device = crashed(20, true);
        assert!(open(&device).clean_segments().unwrap() <= MOST_SEARCHED);
        if lost {
            lose_first_log(&device);
        }
        let whole = recovered_logs(&device);
        let Resumed { position, last, .. } = resume_on(&device);
        assert_eq!((position.segment, position.block), (last.segment, last.end()));
        assert_eq!(position.seq, last.header.seq);
        let could_join = |(at, seq): &(BlockNr, Seq)| *seq >= position.seq && *at >= position.block;
        assert!(!headers(&device).iter().any(could_join), "lost: {lost}");
        assert_eq!(recovered_logs(&device), whole, "another crash finds the same");
        assert_eq!(whole, if lost { 0 } else { SYNCS });
    }
}

/// How many logs a recovery finds after the newest checkpoint.
fn recovered_logs(device: &Arc<MemoryDevice>) -> usize {
    let volume = open(device);
    let newest = volume.found.newest;
    let mut chain = Chain::from(&volume.store, newest.start, newest.header.seq);
    let mut count = 0;
    while chain.next().unwrap().is_some() {
        count += 1;
    }
    count - 1
}

/// A recovery that was cut off has written there.
#[test]
fn a_recovery_that_is_repeated_takes_no_number_twice() {
    let device = crashed(60, false);
    let first = resume_on(&device).position;
    // The first log of the recovery is written, but no superblock names it.
    let volume = open(&device);
    let view = volume.view(volume.found.cno).unwrap();
    let found = recovery::roll_forward(&volume.store, &volume.found).unwrap();
    let mut writer = SegmentWriter::open(&volume, &view, &found, true, false).unwrap();
    assert_eq!(writer.base().position, first);
    let changes = MetadataChanges::default();
    writer.write_checkpoint(&Frozen::default(), &changes, &NOW).unwrap();
    let second = resume_on(&device).position;
    assert!(second.seq > first.seq, "{second:?} after {first:?}");
    assert!(headers(&device).iter().all(|(_, seq)| *seq < second.seq));
}

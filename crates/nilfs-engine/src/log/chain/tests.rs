//! Where the chain of logs goes, and where it ends.

use std::sync::Arc;

use nilfs_device::MemoryDevice;

use super::*;
use crate::fixtures::{BLOCK, copy_of, empty_volume, make_file, mount, open, write};
use crate::volume::Volume;

/// A volume whose chain goes through three segments, and all logs from the first that a superblock
/// names.
fn written() -> (Arc<MemoryDevice>, Vec<ChainedLog>) {
    let device = empty_volume(40);
    let first = open(&device).last_log();
    let fs = mount(&device);
    let file = make_file(&fs);
    let segments = |logs: &[ChainedLog]| {
        let mut segments: Vec<_> = logs.iter().map(|log| log.segment).collect();
        segments.dedup();
        segments.len()
    };
    let mut byte = 0;
    loop {
        byte += 1;
        fs.write(&file, 0, &[byte; BLOCK]).unwrap();
        fs.commit().unwrap();
        let logs = follow(&open(&device), first.block, first.seq);
        if segments(&logs) == 3 && logs[logs.len() - 1].segment != logs[logs.len() - 3].segment {
            continue;
        }
        if segments(&logs) == 3 {
            return (copy_of(&device), logs);
        }
    }
}

fn follow(volume: &Volume, start: BlockNr, seq: Seq) -> Vec<ChainedLog> {
    let mut chain = Chain::from(&volume.store, start, seq);
    std::iter::from_fn(|| chain.next().unwrap()).collect()
}

/// The starts of the logs that are found when the `nth` is torn.
fn without(device: &MemoryDevice, logs: &[ChainedLog], nth: usize) -> Vec<BlockNr> {
    let torn = copy_of(device);
    write(&torn, BlockNr(logs[nth].end().0 - 1), &[0; BLOCK]);
    let found = follow(&open(&torn), logs[0].start, logs[0].header.seq);
    found.iter().map(|log| log.start).collect()
}

fn starts(logs: &[ChainedLog]) -> Vec<BlockNr> {
    logs.iter().map(|log| log.start).collect()
}

#[test]
fn each_log_follows_the_one_before_in_its_segment_or_begins_the_next() {
    let (device, logs) = written();
    let geometry = open(&device).geometry();
    for pair in logs.windows(2) {
        let (one, next) = (pair[0], pair[1]);
        if one.segment == next.segment {
            assert_eq!(one.end(), next.start);
        } else {
            assert_eq!(Some(next.segment), one.next);
            assert_eq!(next.start, geometry.segment_start(next.segment));
            assert_eq!(next.header.seq, one.header.seq.plus(1));
        }
    }
}

/// The writer may have left the segment after an error.
#[test]
fn after_a_torn_log_the_chain_goes_on_in_the_next_segment() {
    let (device, logs) = written();
    let second = logs.iter().position(|log| log.segment != logs[0].segment).unwrap();
    let torn = second / 2;
    let expected = [&starts(&logs)[..torn], &starts(&logs)[second..]].concat();
    assert_eq!(without(&device, &logs, torn), expected);
}

#[test]
fn where_the_next_segment_begins_with_a_torn_log_the_chain_ends() {
    let (device, logs) = written();
    let second = logs.iter().position(|log| log.segment != logs[0].segment).unwrap();
    assert_eq!(without(&device, &logs, second), starts(&logs)[..second]);
}

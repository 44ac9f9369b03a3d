//! A commit as a function: what goes in decides every byte that comes out, and these bytes are the
//! next checkpoint.

use std::collections::BTreeSet;

use nilfs_ondisk::{Cno, SegNum};

use super::{Commit, CommitInput, Frozen, MetadataChanges, build};
use crate::error::Error;
use crate::fixtures::{
    BLOCK, NOW, SEGMENT_BLOCKS, blocks_of, check, content, copy_of, mark_in_use, open, overwritten,
    volume, write, writer,
};
use crate::log::resume;
use crate::log::withheld::Withheld;
use crate::volume::Volume;

const SEGMENTS: u64 = 40;

fn commit(
    volume: &Volume,
    frozen: &Frozen,
    changes: &MetadataChanges,
    withheld: &Withheld,
) -> Result<Commit, Error> {
    let request =
        CommitInput { frozen, changes, withheld, unflushed: None, now: NOW.seconds as u64 };
    build(&volume.store, writer(volume).base(), &request)
}

fn commit_of(volume: &Volume, frozen: &Frozen, changes: &MetadataChanges) -> Commit {
    commit(volume, frozen, changes, &Withheld::default()).unwrap()
}

#[test]
fn the_same_changes_make_the_same_bytes_and_nothing_is_written() {
    let (device, ino) = volume(SEGMENTS);
    let before = device.snapshot();
    let once = || {
        let volume = open(&device);
        let frozen = overwritten(&volume, ino, [(0, b'n'), (2, b'n')]);
        blocks_of(&commit_of(&volume, &frozen, &MetadataChanges::default()).logs)
    };
    let first = once();
    assert!(first.len() > 2, "the blocks, and what leads to them");
    assert!(first == once());
    assert!(device.snapshot() == before);
}

#[test]
fn the_bytes_are_the_next_checkpoint_and_the_base_is_what_a_mount_finds() {
    let (device, ino) = volume(SEGMENTS);
    let old = open(&device);
    let frozen = overwritten(&old, ino, [(0, b'n'), (2, b'n')]);
    let snapshots = vec![(old.found.cno, true)];
    let changes = MetadataChanges { snapshots, ..MetadataChanges::default() };
    let Commit { logs, base, .. } = commit_of(&old, &frozen, &changes);
    let after = copy_of(&device);
    mark_in_use(&after);
    for (address, bytes) in blocks_of(&logs) {
        write(&after, address, &bytes);
    }
    check(&after);
    let new = open(&after);
    assert_eq!(content(&new, ino), b"nono");
    assert_eq!(new.found.cno, old.found.cno.plus(1));
    assert_eq!(new.last_log(), base.last_log);
    assert_eq!(resume::after(&new.found.newest).unwrap(), base.position);
    assert_eq!(new.clean_segments().unwrap(), base.clean_segments);
    let checkpoints = new.checkpoints(old.found.cno, 2).unwrap();
    let is_snapshot: Vec<bool> = checkpoints.iter().map(|checkpoint| checkpoint.snapshot).collect();
    assert_eq!(is_snapshot, [true, false]);
}

/// A power cut leaves any part of what was written.
#[test]
fn without_any_one_of_its_blocks_it_is_no_checkpoint() {
    let (device, ino) = volume(SEGMENTS);
    let old = open(&device);
    let frozen = overwritten(&old, ino, [(1, b'n')]);
    let blocks = blocks_of(&commit_of(&old, &frozen, &MetadataChanges::default()).logs);
    mark_in_use(&device);
    for lost in 0..blocks.len() {
        let torn = copy_of(&device);
        for (nth, (address, bytes)) in blocks.iter().enumerate() {
            let half = if nth == lost { BLOCK / 2 } else { BLOCK };
            write(&torn, *address, &bytes[..half]);
        }
        if torn.snapshot() == whole(&device, &blocks) {
            // The rest of the block is what was there before.
            continue;
        }
        let found = open(&torn);
        assert_eq!(found.found.cno, old.found.cno, "block {lost} is torn");
        assert_eq!(content(&found, ino), b"oooo");
    }
}

fn whole(
    device: &nilfs_device::MemoryDevice,
    blocks: &[(nilfs_ondisk::BlockNr, Vec<u8>)],
) -> Vec<u8> {
    let whole = copy_of(device);
    blocks.iter().for_each(|(address, bytes)| write(&whole, *address, bytes));
    whole.snapshot()
}

/// What was cleaned or claimed may still be read, or is being written.
#[test]
fn no_segment_is_taken_that_is_withheld() {
    let (device, ino) = volume(SEGMENTS);
    let old = open(&device);
    let position = writer(&old).base().position;
    let free = [SegNum(12), SegNum(30)];
    let withheld_but = |free: &[SegNum]| {
        let mut withheld = Withheld::default();
        (0..SEGMENTS).map(SegNum).filter(|it| !free.contains(it)).for_each(|it| withheld.claim(it));
        withheld
    };
    let blocks = 2 * u64::from(SEGMENT_BLOCKS);
    let frozen = overwritten(&old, ino, (0..blocks).map(|key| (key, b'n')));
    let nothing = MetadataChanges::default();
    let done = commit(&old, &frozen, &nothing, &withheld_but(&free)).unwrap();
    let used: BTreeSet<SegNum> = done.effects.written.iter().map(|(segment, _)| *segment).collect();
    let allowed = BTreeSet::from([position.segment, position.next, free[0], free[1]]);
    assert!(used.is_subset(&allowed), "{used:?}");
    assert!(used.len() > 2, "it needed more than what was set aside");
    let refused = commit(&old, &frozen, &nothing, &withheld_but(&[]));
    assert!(matches!(refused, Err(Error::NoSpace)));
}

#[test]
fn deleted_checkpoints_are_gone_and_counted_but_snapshots_and_the_newest_stay() {
    let (device, ino) = volume(SEGMENTS);
    let newest = open(&device).found.cno;
    let changes = MetadataChanges {
        snapshots: vec![(Cno(1), true)],
        delete: vec![Cno(1)..newest],
        ..MetadataChanges::default()
    };
    let old = open(&device);
    let count = old.checkpoint_totals().unwrap().checkpoints;
    let frozen = overwritten(&old, ino, [(0, b'n')]);
    let done = commit_of(&old, &frozen, &changes);
    mark_in_use(&device);
    blocks_of(&done.logs).iter().for_each(|(address, bytes)| write(&device, *address, bytes));
    check(&device);
    let new = open(&device);
    let left = new.checkpoints(Cno(1), usize::MAX).unwrap();
    let left: Vec<Cno> = left.iter().map(|checkpoint| checkpoint.cno).collect();
    assert_eq!(left, [Cno(1), newest, newest.plus(1)]);
    assert_eq!(done.effects.deleted_checkpoints, count - 2);
}

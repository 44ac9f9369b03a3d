//! The life of a log: what its owner writes when, and what it never does.

use std::sync::Arc;

use nilfs_device::{Event, MemoryDevice, RecordingDevice};
use nilfs_ondisk::FileBlock;
use nilfs_ondisk::geometry::PRIMARY_SUPERBLOCK;

use super::*;
use crate::block::Block;
use crate::fixtures::{NOW, block, content, mark_in_use, open, overwritten, volume, writer};

const SEGMENTS: u64 = 40;

fn recorded() -> (Arc<RecordingDevice<MemoryDevice>>, nilfs_ondisk::Ino) {
    let (device, ino) = volume(SEGMENTS);
    (Arc::new(RecordingDevice::new(MemoryDevice::from(device.snapshot()))), ino)
}

/// Where superblocks, logs and flushes were written, in order.
fn written(device: &RecordingDevice<MemoryDevice>) -> Vec<&'static str> {
    let second =
        nilfs_ondisk::geometry::secondary_superblock(device.below().snapshot().len() as u64);
    let name = |event: &Event| match event {
        Event::Flush => "flush",
        Event::Write { offset, .. } if *offset == PRIMARY_SUPERBLOCK => "superblock",
        Event::Write { offset, .. } if Some(*offset) == second => "superblock",
        Event::Write { .. } => "log",
        Event::Discard { .. } | Event::Resize { .. } => "something else",
    };
    device.take_events().iter().map(name).collect()
}

fn checkpoint(log: &mut SegmentWriter, frozen: &Frozen) -> Written {
    log.write_checkpoint(frozen, &MetadataChanges::default(), &NOW).unwrap()
}

fn content_of(ino: nilfs_ondisk::Ino, pages: Vec<(FileBlock, Block)>) -> SyncContent {
    SyncContent { files: vec![SyncedFile { ino, pages }], ..SyncContent::default() }
}

#[test]
fn a_log_that_writes_nothing_leaves_the_device_alone() {
    let (device, _) = recorded();
    let mut log = writer(&open(&device));
    log.flush().unwrap();
    log.close(true, &NOW).unwrap();
    assert_eq!(written(&device), [""; 0]);
}

/// A recovery looks for logs on a volume only if a superblock calls it in use, and believes the
/// superblock that calls it clean.
#[test]
fn superblocks_are_written_before_the_first_log_and_after_the_last() {
    let (device, ino) = recorded();
    let volume = open(&device);
    let mut log = writer(&volume);
    checkpoint(&mut log, &overwritten(&volume, ino, [(0, b'n')]));
    assert_eq!(written(&device), ["superblock", "flush", "superblock", "flush", "log"]);
    assert!(!open(&device).is_clean());
    log.flush().unwrap();
    log.close(true, &NOW).unwrap();
    assert_eq!(written(&device), ["flush", "superblock", "flush", "superblock", "flush"]);
    let closed = open(&device);
    assert!(closed.is_clean() && log.is_closed());
    assert_eq!(content(&closed, ino), b"nooo");
    assert_eq!(closed.last_log().cno, log.cno());
}

/// So it is if the log has left a segment before, in which there was no room for anything.
#[test]
fn superblocks_are_written_before_the_first_log_in_another_segment() {
    let (device, ino) = recorded();
    let mut log = writer(&open(&device));
    let segment = log.base().position.segment;
    assert!(log.leave_segment(&[], &NOW).unwrap().is_some());
    assert_ne!(log.base().position.segment, segment);
    assert_eq!(written(&device), [""; 0]);
    let content = content_of(ino, vec![(FileBlock(0), block(b'n'))]);
    assert!(log.write_sync(&content, &NOW).unwrap().is_some());
    assert_eq!(written(&device), ["superblock", "flush", "superblock", "flush", "log"]);
    assert!(!open(&device).is_clean());
}

/// A program that keeps a file without a name open may be killed.
#[test]
fn a_log_can_be_closed_and_opened_again_without_calling_the_volume_clean() {
    let (device, ino) = recorded();
    let volume = open(&device);
    let mut log = writer(&volume);
    checkpoint(&mut log, &overwritten(&volume, ino, [(0, b'n')]));
    log.flush().unwrap();
    log.close(false, &NOW).unwrap();
    assert!(!open(&device).is_clean());
    log.reopen();
    drop(written(&device));
    checkpoint(&mut log, &overwritten(&open(&device), ino, [(1, b'n')]));
    assert_eq!(written(&device), ["log"], "the superblocks say already that it is in use");
}

/// The logs of the last mount were cut off. Until there is a new checkpoint the superblocks must name
/// the old one.
#[test]
fn a_recovery_is_completed_by_a_checkpoint_although_nothing_has_changed() {
    let (device, ino) = volume(SEGMENTS);
    mark_in_use(&device);
    let device = Arc::new(RecordingDevice::new(MemoryDevice::from(device.snapshot())));
    let volume = open(&device);
    let mut log = writer(&volume);
    assert!(log.is_recovering());
    let done = checkpoint(&mut log, &Frozen::default());
    assert!(done.effects.is_some() && log.is_recovering());
    log.flush().unwrap();
    log.finish_recovery(&NOW).unwrap();
    let superblocks = ["superblock", "flush", "superblock", "flush"];
    assert_eq!(written(&device), [&["log", "flush"][..], &superblocks[..]].concat());
    assert_eq!(open(&device).found.cno, volume.found.cno.plus(1));
    assert_eq!(content(&open(&device), ino), b"oooo");
}

/// Recovery stops at a torn log, but looks into the next segment: a super root there must not be
/// found if something in the segments before was lost.
#[test]
fn a_super_root_in_another_segment_waits_for_the_logs_before() {
    let (device, ino) = recorded();
    let volume = open(&device);
    let mut log = writer(&volume);
    let segment = log.base().position.segment;
    let mut byte = 0;
    loop {
        let before = log.base().position.segment;
        drop(written(&device));
        byte += 1;
        checkpoint(&mut log, &overwritten(&open(&device), ino, [(0, byte)]));
        let events = written(&device);
        let newest = log.base().last_log.block;
        if volume.geometry().segment_of(newest) != segment {
            assert_eq!(before, segment);
            let last_log = events.iter().rposition(|event| *event == "log").unwrap();
            assert_eq!(events[last_log - 1], "flush", "{events:?}");
            return;
        }
        assert!(!events[..].contains(&"flush") || byte == 1, "{events:?}");
    }
}

/// It refers to blocks in the segments before, and those who wait for it were promised all of them.
#[test]
fn a_sync_log_in_another_segment_waits_for_the_logs_before() {
    let (device, ino) = recorded();
    let volume = open(&device);
    let mut log = writer(&volume);
    checkpoint(&mut log, &overwritten(&volume, ino, [(0, b'n')]));
    log.flush().unwrap();
    drop(written(&device));
    let pages = |byte| vec![(FileBlock(1), block(byte))];
    let rest = [SyncedFile { ino, pages: pages(b'a') }];
    assert!(log.leave_segment(&rest, &NOW).unwrap().is_some());
    assert!(log.write_sync(&content_of(ino, pages(b'b')), &NOW).unwrap().is_some());
    assert_eq!(written(&device), ["log", "flush", "log"]);
    assert!(log.write_sync(&content_of(ino, pages(b'c')), &NOW).unwrap().is_some());
    assert_eq!(written(&device), ["log"], "in the same segment");
}

#[test]
fn a_checkpoint_takes_over_what_a_sync_log_has_written() {
    let (device, ino) = recorded();
    let volume = open(&device);
    let mut log = writer(&volume);
    checkpoint(&mut log, &overwritten(&volume, ino, [(0, b'n')]));
    let pages = vec![(FileBlock(1), block(b's'))];
    let synced = log.write_sync(&content_of(ino, pages), &NOW).unwrap().unwrap();
    assert!(log.needs_everything());
    let mut frozen = overwritten(&open(&device), ino, [(1, b's')]);
    let inode = Arc::get_mut(&mut frozen.inodes[0]).unwrap();
    inode.overlay.pages.get_mut(&FileBlock(1)).unwrap().placed = Some(synced.placed[0][0]);
    let done = checkpoint(&mut log, &frozen).effects.unwrap();
    assert_eq!(done.user_blocks, 0, "the block is there already");
    assert!(!log.needs_everything());
    assert_eq!(content(&open(&device), ino), b"nsoo");
    crate::fixtures::check(device.below());
}

/// What is written ahead takes the log into other segments, under other sequence numbers than the
/// checkpoint that a superblock names.
#[test]
fn a_superblock_names_the_checkpoint_where_it_is_and_not_where_the_log_has_gone_on() {
    let (device, ino) = recorded();
    let volume = open(&device);
    let mut log = writer(&volume);
    checkpoint(&mut log, &overwritten(&volume, ino, [(0, b'n')]));
    let segment = log.base().position.segment;
    while log.base().position.segment == segment {
        let pages = vec![(FileBlock(1), block(b's'))];
        log.write_ahead(&[SyncedFile { ino, pages }], &NOW).unwrap().unwrap();
    }
    log.flush().unwrap();
    log.write_superblocks(&NOW).unwrap();
    assert_eq!(open(&device).last_log(), log.base().last_log);
}

#[test]
fn a_segment_is_claimed_once_and_can_be_given_back() {
    let (device, _) = recorded();
    let mut log = writer(&open(&device));
    let before = log.writable_segments();
    let one = log.claim_segment().unwrap();
    let other = log.claim_segment().unwrap();
    assert_ne!(one, other);
    assert!(log.is_withheld(one) && log.is_withheld(other));
    assert_eq!(log.writable_segments(), before - 2);
    log.unclaim(&[one, other]);
    assert_eq!(log.writable_segments(), before);
    let all: Vec<SegNum> = (0..before).map(|_| log.claim_segment().unwrap()).collect();
    assert!(matches!(log.claim_segment(), Err(Error::NoSpace)), "{all:?}");
}

#[test]
#[should_panic(expected = "a superblock names only what is durable")]
fn a_superblock_cannot_name_what_may_be_lost() {
    let (device, ino) = recorded();
    let volume = open(&device);
    let mut log = writer(&volume);
    checkpoint(&mut log, &overwritten(&volume, ino, [(0, b'n')]));
    drop(log.write_superblock(&NOW));
}

#[test]
#[should_panic(expected = "this checkpoint would hide sync logs")]
fn the_cleaner_cannot_hide_what_was_synced() {
    let (device, ino) = recorded();
    let volume = open(&device);
    let mut log = writer(&volume);
    let pages = vec![(FileBlock(1), block(b's'))];
    log.write_sync(&content_of(ino, pages), &NOW).unwrap().unwrap();
    let changes = MetadataChanges { checkpoint: true, ..MetadataChanges::default() };
    drop(log.write_metadata_checkpoint(&changes, &NOW));
}

#[test]
#[should_panic(expected = "nothing may be written to this log any more: Closed")]
fn nothing_is_written_after_the_end() {
    let (device, ino) = recorded();
    let volume = open(&device);
    let mut log = writer(&volume);
    log.close(true, &NOW).unwrap();
    checkpoint(&mut log, &overwritten(&volume, ino, [(0, b'n')]));
}

#[test]
#[should_panic(expected = "nothing may be written to this log any more: Failed")]
fn nothing_is_written_after_a_failure() {
    let (device, ino) = recorded();
    let volume = open(&device);
    let mut log = writer(&volume);
    log.fail();
    checkpoint(&mut log, &overwritten(&volume, ino, [(0, b'n')]));
}

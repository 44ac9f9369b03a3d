//! What is written to a view is read from it, and does not reach the device below.

use std::sync::Arc;

use nilfs_device::{
    Action, CopyOnWriteDevice, Device, Event, FaultyDevice, IoSlice, MemoryDevice, RecordingDevice,
    Writes,
};

/// Not a multiple of the pages in which a view keeps what is written.
const SIZE: usize = 3 * 4096 + 1000;

fn pattern() -> Vec<u8> {
    (0..SIZE).map(|at| (at % 251) as u8).collect()
}

#[test]
fn a_view_has_what_was_written_and_the_device_has_not() {
    let below = Arc::new(MemoryDevice::from(pattern()));
    let view = CopyOnWriteDevice::new(Arc::clone(&below) as Arc<dyn Device>, Arc::default());
    let mut expected = pattern();
    for (offset, pieces) in [
        (0, vec![vec![1; 3]]),
        (4090, vec![vec![2; 4], vec![3; 9]]),
        (4096, vec![vec![4; 4096]]),
        (SIZE - 5, vec![vec![5; 5]]),
    ] {
        let slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        view.write_at(offset as u64, &slices).unwrap();
        let bytes = pieces.concat();
        expected[offset..offset + bytes.len()].copy_from_slice(&bytes);
    }
    let mut read = vec![0; SIZE];
    view.read_at(0, &mut read).unwrap();
    assert!(read == expected);
    for (offset, length) in [(4089, 20), (1, 0), (8000, 300), (SIZE - 6, 6)] {
        let mut part = vec![0; length];
        view.read_at(offset as u64, &mut part).unwrap();
        assert_eq!(part, expected[offset..offset + length]);
    }
    assert!(below.snapshot() == pattern());
}

/// A view of another device shows the same, and so does a device to which the same is written.
#[test]
fn what_was_written_can_be_seen_and_written_elsewhere() {
    let writes = Arc::<Writes>::default();
    let view = CopyOnWriteDevice::new(Arc::new(MemoryDevice::from(pattern())), Arc::clone(&writes));
    let other = MemoryDevice::from(pattern());
    let recording = RecordingDevice::new(MemoryDevice::from(pattern()));
    for nth in 0..400 {
        let offset = nth * 7919 % SIZE;
        let bytes = vec![nth as u8; (nth * 131 % 1500).min(SIZE - offset)];
        for device in [&view as &dyn Device, &recording] {
            device.write_at(offset as u64, &[IoSlice::new(&bytes)]).unwrap();
            if nth % 7 == 0 {
                device.flush().unwrap();
            }
        }
    }
    let expected = recording.below().snapshot();
    let below = Arc::new(MemoryDevice::new(SIZE as u64));
    for view in [view, CopyOnWriteDevice::new(below, Arc::clone(&writes))] {
        let mut read = vec![0; SIZE];
        view.read_at(0, &mut read).unwrap();
        assert!(read == expected);
    }
    let replayed = RecordingDevice::new(other);
    let mut bytes = 0;
    writes.replay(&replayed, &mut |more| bytes += more).unwrap();
    let is_empty = |event: &Event| matches!(event, Event::Write { bytes, .. } if bytes.is_empty());
    let mut events = recording.take_events();
    events.retain(|event| !is_empty(event));
    assert!(replayed.take_events() == events);
    assert_eq!(bytes, writes.bytes());
}

#[test]
fn beyond_the_end_there_is_nothing() {
    let view = CopyOnWriteDevice::new(Arc::new(MemoryDevice::from(pattern())), Arc::default());
    let end = SIZE as u64;
    assert!(view.write_at(end - 1, &[IoSlice::new(&[0; 2])]).is_err());
    assert!(view.read_at(end - 1, &mut [0; 2]).is_err());
    assert!(view.read_at(u64::MAX, &mut [0; 2]).is_err());
}

/// So that what replaces a bad sector can be read.
#[test]
fn a_page_that_was_written_is_not_read_from_the_device() {
    let (below, faults) = FaultyDevice::new(MemoryDevice::from(pattern()));
    let view = CopyOnWriteDevice::new(Arc::new(below), Arc::default());
    view.write_at(4096, &[IoSlice::new(&[7; 4096])]).unwrap();
    faults.fail(Action::Read);
    let mut page = [0; 4096];
    view.read_at(4096, &mut page).unwrap();
    assert_eq!(page, [7; 4096]);
    assert!(view.read_at(0, &mut page).is_err());
}

/// Blocks are smaller than the pages that a view keeps: a bad one was taken for one that could be read,
/// or kept the one next to it from being replaced.
#[test]
fn a_sector_next_to_a_bad_one_can_be_replaced() {
    let (below, faults) = FaultyDevice::new(MemoryDevice::from(pattern()));
    let view = CopyOnWriteDevice::new(Arc::new(below), Arc::default());
    faults.fail(Action::Read);
    view.write_at(1024, &[IoSlice::new(&[7; 1024])]).unwrap();
    assert!(view.write_at(3000, &[IoSlice::new(&[7; 10])]).is_err(), "its sector is not known");
    let mut block = [0; 1024];
    view.read_at(1024, &mut block).unwrap();
    assert_eq!(block, [7; 1024]);
    assert!(view.read_at(0, &mut block).is_err());
    assert!(view.read_at(2048, &mut block).is_err());
    faults.clear();
    view.read_at(2048, &mut block).unwrap();
    assert_eq!(block, pattern()[2048..3072]);
}

//! A repair that is cut off leaves something from which the next one goes on, whatever write was the
//! last and however much of it arrived; and an undo file takes back whatever part of it was made.

mod support;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use nilfs_check::Options;
use nilfs_device::{Action, Device, Event, FaultyDevice, MemoryDevice, RecordingDevice};
use nilfs_ondisk::geometry::PRIMARY_SUPERBLOCK;
use nilfs_repair::{Risk, UndoDevice, UndoError, apply_undo};
use nilfs_sim::power::{Disk, Survivors};
use nilfs_sim::seeds::for_each_seed;
use rand::SeedableRng;
use rand::rngs::StdRng;
use support::{Content, Image, Patient, UUID, content, damaged};

/// What a repair writes, in order.
fn writes(image: &Image) -> Vec<Event> {
    let patient = Patient::new(image.clone());
    let recording = RecordingDevice::new(MemoryDevice::from(image.bytes.clone()));
    patient.plan().apply(&recording, &mut |_| {}).unwrap();
    recording.take_events()
}

/// A damaged volume, and what a repair that is not cut off makes of it.
struct Uncut {
    image: Image,
    risk: Risk,
    content: Content,
}

impl Uncut {
    fn of(image: Image) -> Self {
        let patient = Patient::new(image.clone());
        let plan = patient.plan();
        plan.apply(&*patient.device, &mut |_| {}).unwrap();
        Self { image, risk: plan.risk(), content: content(&patient.bytes()) }
    }

    /// Demands that the next repair of a device that was left so comes to the same.
    fn is_reached_from(&self, left: Vec<u8>, what: &str) {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::from(left));
        let plan = nilfs_repair::plan(&device, &nilfs_check::Options::default(), UUID).unwrap();
        assert!(plan.risk() <= self.risk, "{what}: {:?}", plan.repairs);
        plan.apply(&*device, &mut |_| {}).unwrap();
        let mut after = vec![0; device.size() as usize];
        device.read_at(0, &mut after).unwrap();
        let report = nilfs_check::check(&*device, &Default::default()).unwrap();
        assert!(report.is_consistent(), "{what}: {report}");
        assert!(content(&after) == self.content, "{what}: every file is there");
    }
}

#[test]
fn the_next_repair_goes_on_from_any_write() {
    for (damage, image) in damaged() {
        let uncut = Uncut::of(image);
        let mut bytes = uncut.image.bytes.clone();
        for (nth, event) in writes(&uncut.image).iter().enumerate() {
            let Event::Write { offset, bytes: written } = event else { continue };
            let start = *offset as usize;
            for arrived in [written.len() / 2 / 512 * 512, written.len()] {
                bytes[start..start + arrived].copy_from_slice(&written[..arrived]);
                uncut.is_reached_from(bytes.clone(), &format!("{damage}, write {nth}"));
            }
        }
    }
}

/// A device keeps what it likes of the writes since the last flush, in any order.
#[test]
fn the_next_repair_goes_on_from_whatever_is_left_of_what_was_not_flushed() {
    for_each_seed("repairs that are cut off", 1, |seed| {
        let mut random = StdRng::seed_from_u64(seed);
        for (damage, image) in damaged() {
            let uncut = Uncut::of(image);
            let mut disk = Disk::new(uncut.image.bytes.clone());
            let mut seen = HashSet::new();
            for (nth, event) in writes(&uncut.image).iter().enumerate() {
                disk.play(event);
                let chance = Survivors::by_chance(&mut random);
                for survivors in Survivors::CORNERS.into_iter().chain([chance]) {
                    let left = disk.after_cut(survivors);
                    let mut hasher = DefaultHasher::new();
                    left.hash(&mut hasher);
                    if seen.insert(hasher.finish()) {
                        uncut.is_reached_from(left, &format!("{damage}, {nth}, {survivors:?}"));
                    }
                }
            }
        }
    });
}

#[test]
fn undoing_restores_every_byte_after_any_part_of_a_repair() {
    for (damage, image) in damaged() {
        let plan = Patient::new(image.clone()).plan();
        let count = writes(&image).iter().filter(|it| matches!(it, Event::Write { .. })).count();
        for left in 0..=count {
            let (device, faults) = FaultyDevice::new(MemoryDevice::from(image.bytes.clone()));
            faults.fail_after(left as u64, |request| request.action == Action::Write);
            let file = tempfile::tempfile().unwrap();
            let undoing = UndoDevice::new(device, file.try_clone().unwrap(), plan.uuid).unwrap();
            let done = plan.apply(&undoing, &mut |_| {});
            assert_eq!(done.is_ok(), left == count);
            let device = MemoryDevice::from(undoing.into_below().below().snapshot());
            apply_undo(file, &device).unwrap();
            assert!(device.snapshot() == image.bytes, "{damage}, after {left} of {count} writes");
        }
    }
}

/// A repair could not write where a block could not be read: what was there could not be saved.
#[test]
fn what_cannot_be_read_is_written_all_the_same() {
    let image = Image::by_linux(1024);
    let (device, faults) = FaultyDevice::new(MemoryDevice::from(image.bytes.clone()));
    let bad = PRIMARY_SUPERBLOCK..PRIMARY_SUPERBLOCK + 1024;
    faults.scratch([bad.clone()]);
    let device = Arc::new(device);
    let shared = Arc::clone(&device) as Arc<dyn Device>;
    let plan = nilfs_repair::plan(&shared, &Options::default(), UUID).unwrap();
    let file = tempfile::tempfile().unwrap();
    let undoing = UndoDevice::new(shared, file.try_clone().unwrap(), plan.uuid).unwrap();
    plan.apply(&undoing, &mut |_| {}).unwrap();
    assert!(nilfs_check::check(&*device, &Options::default()).unwrap().is_consistent());
    apply_undo(file, &*device).unwrap();
    let mut expected = image.bytes;
    expected[bad.start as usize..bad.end as usize].fill(0);
    assert!(device.below().snapshot() == expected, "nothing is known of the bad block");
}

#[test]
fn an_undo_file_is_for_one_volume_and_checked_before_anything_is_written() {
    let image = damaged().into_iter().find(|(damage, _)| *damage == "cursor").unwrap().1;
    let plan = Patient::new(image.clone()).plan();
    let file = tempfile::tempfile().unwrap();
    let device = MemoryDevice::from(image.bytes.clone());
    let undoing = UndoDevice::new(device, file.try_clone().unwrap(), plan.uuid).unwrap();
    plan.apply(&undoing, &mut |_| {}).unwrap();
    let repaired = undoing.into_below().snapshot();
    let undo = |file: &std::fs::File, bytes: &[u8]| {
        let device = MemoryDevice::from(bytes.to_vec());
        let undone = apply_undo(file.try_clone().unwrap(), &device);
        (undone, device.snapshot() == bytes)
    };

    let mut other = Image::from(repaired.clone());
    other.edit_superblocks(|raw| raw.s_uuid[0] ^= 1);
    let (undone, untouched) = undo(&file, &other.bytes);
    assert!(matches!(undone, Err(UndoError::OtherVolume)) && untouched, "{undone:?}");

    let (undone, untouched) = undo(&file, &repaired[..repaired.len() - 4096]);
    assert!(matches!(undone, Err(UndoError::OtherSize { .. })) && untouched, "{undone:?}");

    use std::os::unix::fs::FileExt;
    let mut byte = [0];
    file.read_exact_at(&mut byte, 5000).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 5000).unwrap();
    let (undone, untouched) = undo(&file, &repaired);
    assert!(matches!(undone, Err(UndoError::Damaged(_))) && untouched, "{undone:?}");

    let (undone, untouched) = undo(&tempfile::tempfile().unwrap(), &repaired);
    assert!(matches!(undone, Err(UndoError::NotAnUndoFile)) && untouched, "{undone:?}");
}

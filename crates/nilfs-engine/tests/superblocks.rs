//! Superblocks are changed so that the power may fail at any moment.

mod common;

use std::sync::Arc;

use common::{make, volume};
use nilfs_check::Options;
use nilfs_device::{Action, Device, Event, FaultyDevice, IoSlice, MemoryDevice, RecordingDevice};
use nilfs_engine::mkfs::{Parameters, format};
use nilfs_engine::{Error, Filesystem, MountOptions, Volume};

const SIZE: u64 = 256 << 20;

fn label(device: &dyn Device) -> Vec<u8> {
    let best = Volume::superblocks(device).unwrap().best;
    best.raw().s_volume_name[..3].to_vec()
}

#[test]
fn a_power_cut_leaves_the_old_settings_or_the_new_ones() {
    let device = MemoryDevice::new(SIZE);
    let parameters = Parameters { label: b"old".to_vec(), ..Parameters::new([7; 16], 8, 9) };
    format(&device, &parameters).unwrap();
    let recording = RecordingDevice::new(device);
    Volume::change_superblocks(&recording, |raw| raw.s_volume_name[..3].copy_from_slice(b"new"))
        .unwrap();
    let events = recording.take_events();
    let writes: Vec<_> =
        events.iter().filter(|event| matches!(event, Event::Write { .. })).collect();
    assert_eq!((writes.len(), events.len()), (2, 4), "a flush after each copy: {events:?}");

    let after_cut = MemoryDevice::new(SIZE);
    format(&after_cut, &parameters).unwrap();
    assert_eq!(label(&after_cut), b"old");
    let mut seen = Vec::new();
    for event in writes {
        let Event::Write { offset, bytes } = event else { continue };
        // Torn, in units of a sector, and then whole.
        for end in (512..=bytes.len()).step_by(512) {
            after_cut.write_at(*offset, &[IoSlice::new(&bytes[..end])]).unwrap();
            seen.push(label(&after_cut));
        }
    }
    assert!(seen.iter().all(|label| label == b"old" || label == b"new"), "{seen:?}");
    assert_eq!(seen.last().unwrap(), b"new");
    let copies = Volume::superblocks(&after_cut).unwrap();
    assert_eq!(copies.best.raw().s_volume_name, copies.other.unwrap().raw().s_volume_name);
}

/// A device that could not read a superblock was said to be no NILFS2 volume, so a failing disk looked
/// like one that had been overwritten.
#[test]
fn a_device_that_cannot_be_read_is_not_called_no_volume() {
    let (device, faults) = FaultyDevice::new(MemoryDevice::new(SIZE));
    format(&device, &Parameters::new([7; 16], 8, 9)).unwrap();
    faults.fail(Action::Read);
    assert!(matches!(Volume::superblocks(&device), Err(Error::Device { .. })));
}

/// A device that had lost one of the two writes by which a mount begins showed an older checkpoint after a crash.
#[test]
fn a_volume_is_in_use_if_either_copy_says_so() {
    let device = volume(1024, 32);
    let clean = [1024, device.size() - 4096].map(|at| (at, sector(&*device, at)));
    let fs = Filesystem::mount(Arc::clone(&device) as _, MountOptions::default()).unwrap();
    let file = make(&fs, &fs.root().unwrap().inode, "file");
    fs.sync_file(&file).unwrap();
    for (at, before) in clean {
        let crashed = Arc::new(MemoryDevice::from(device.snapshot()));
        assert_ne!(sector(&*crashed, at), before);
        crashed.write_at(at, &[IoSlice::new(&before)]).unwrap();
        let report = nilfs_check::check(&*crashed, &Options::default()).unwrap();
        assert!(report.findings.iter().any(|it| it.message.contains("sync logs")), "{report}");
        let fs = Filesystem::mount(crashed, MountOptions::default()).unwrap();
        assert!(fs.lookup(&fs.root().unwrap().inode, b"file").is_ok());
    }
}

fn sector(device: &dyn Device, at: u64) -> Vec<u8> {
    let mut bytes = vec![0; 1024];
    device.read_at(at, &mut bytes).unwrap();
    bytes
}

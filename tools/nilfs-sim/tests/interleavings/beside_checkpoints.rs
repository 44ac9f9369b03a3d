//! A super root hides the sync logs before it: no recovery looks for them. So what is changed after a
//! freeze may not be synced before the super root of that freeze is written.

use std::sync::{Arc, Mutex};

use nilfs_device::{Event, IoSlice, MemoryDevice, RecordingDevice};
use nilfs_engine::{Filesystem, MountOptions, NewInode};
use nilfs_ondisk::inode::{DeviceCode, FileType};
use nilfs_sim::volume::{Shape, check};
use shuttle::thread;

/// What was changed and synced, and how many events the device had seen when that returned.
type Synced = Vec<(usize, u8)>;

const CHECKPOINTS: u8 = 3;
const FSYNCS: u8 = 4;

fn mount(device: Arc<dyn nilfs_device::Device>) -> Result<Arc<Filesystem>, String> {
    Filesystem::mount(device, MountOptions::default()).map_err(|error| error.to_string())
}

fn name(nth: u8) -> Vec<u8> {
    format!("name {nth}").into_bytes()
}

/// One thread makes checkpoints, another changes a file and names and syncs them. The power fails after
/// each event, with all before it on the device.
pub fn fsyncs_beside_checkpoints() -> Result<(), String> {
    let device = Arc::new(RecordingDevice::new(MemoryDevice::from(Shape::SMALL.format())));
    let fs = mount(Arc::clone(&device) as _)?;
    let root = fs.root().unwrap().inode;
    let make = |name: &[u8]| {
        let mode = FileType::Regular.mode_bits() | 0o644;
        let new = NewInode { mode, uid: 0, gid: 0, rdev: DeviceCode::default() };
        fs.create(&root, name, &new).unwrap().inode
    };
    let (file, other) = (make(b"file"), make(b"other"));
    fs.write(&file, 0, &[0]).unwrap();
    fs.sync().unwrap();
    let start = device.below().snapshot();
    drop(device.take_events());
    let synced: Mutex<Synced> = Mutex::default();
    thread::scope(|scope| {
        scope.spawn(|| {
            for nth in 1..=CHECKPOINTS {
                fs.write(&other, 0, &[nth; 100]).unwrap();
                fs.commit().unwrap();
            }
        });
        for nth in 1..=FSYNCS {
            make(&name(nth));
            fs.write(&file, 0, &[nth]).unwrap();
            fs.sync_file(&file).unwrap();
            synced.lock().unwrap().push((device.events().len(), nth));
        }
    });
    let events = device.take_events();
    drop((file, other, root));
    fs.unmount().unwrap();
    let synced = synced.into_inner().unwrap();
    let device = MemoryDevice::from(start);
    for (at, event) in events.iter().enumerate() {
        if let Event::Write { offset, bytes } = event {
            nilfs_device::Device::write_at(&device, *offset, &[IoSlice::new(bytes)]).unwrap();
            let last = synced.iter().rfind(|(events, _)| *events <= at + 1);
            let last = last.map_or(0, |(_, nth)| *nth);
            survived(device.snapshot(), last)
                .map_err(|what| format!("power cut at event {at} of {}: {what}", events.len()))?;
        }
    }
    Ok(())
}

/// Whether a power cut has left what was synced last, or what came after it.
fn survived(image: Vec<u8>, last: u8) -> Result<(), String> {
    let device = Arc::new(MemoryDevice::from(image));
    check(&*device)?;
    let fs = mount(Arc::clone(&device) as _)?;
    let root = fs.root().unwrap().inode;
    let file = fs.lookup(&root, b"file").unwrap().inode;
    let mut found = [0];
    fs.read(&file, 0, &mut found).unwrap();
    if found[0] < last {
        return Err(format!("version {last} was synced, and version {} is there", found[0]));
    }
    for nth in 1..=last {
        fs.lookup(&root, &name(nth)).map_err(|error| format!("name {nth}: {error}"))?;
    }
    Ok(())
}

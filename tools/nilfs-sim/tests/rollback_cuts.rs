//! A rollback of a directory that the power cuts off is there or is not: nothing in between. (Those of whole
//! volumes are among the operations of every world.)

use std::sync::Arc;

use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::{Cno, Filesystem, InodeRef, MountOptions, NewInode, RenameMode};
use nilfs_ondisk::inode::{DeviceCode, S_IFDIR, S_IFREG};
use nilfs_sim::medium::{content, medium};
use nilfs_sim::power::{Disk, Sector, Survivors};
use nilfs_sim::subject::ReadOnlySubject;
use nilfs_sim::tree::Tree;
use nilfs_sim::volume::Shape;

fn make(fs: &Filesystem, dir: &InodeRef, name: &[u8], mode: u16) -> InodeRef {
    let new = NewInode { mode, uid: 0, gid: 0, rdev: DeviceCode::default() };
    fs.create(dir, name, &new).unwrap().inode
}

/// What a mount shows that writes nothing, and how many snapshots there are.
fn shown(content: Vec<u8>) -> (Tree, usize) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::from(content));
    let volume = nilfs_engine::Volume::open(Arc::clone(&device)).unwrap();
    let listed = volume.checkpoints(Cno::MIN, 1000).unwrap();
    let snapshots = listed.iter().filter(|it| it.snapshot).count();
    (ReadOnlySubject::mount(device, None).unwrap().tree().unwrap(), snapshots)
}

#[test]
fn a_directory_is_as_before_or_as_then() {
    let device = Arc::new(medium(Shape::SMALL.format()));
    let fs = Filesystem::mount(device.clone(), MountOptions::default()).unwrap();
    let root = fs.root().unwrap().inode;
    let (dir, other) =
        (make(&fs, &root, b"dir", S_IFDIR | 0o755), make(&fs, &root, b"other", S_IFDIR | 0o755));
    for name in [b"kept", b"gone", b"away"] {
        fs.write(&make(&fs, &dir, name, S_IFREG | 0o644), 0, &[name[0]; 50_000]).unwrap();
    }
    let then = fs.checkpoint_now().unwrap();
    fs.unlink(&dir, b"gone").unwrap();
    // This one lives on elsewhere, so it has to be copied.
    fs.rename(&dir, b"away", &other, b"away", RenameMode::Replace).unwrap();
    let kept = fs.lookup(&dir, b"kept").unwrap().inode;
    fs.write(&kept, 1000, &[9; 20_000]).unwrap();
    fs.write(&make(&fs, &dir, b"new", S_IFREG | 0o644), 0, &[1; 30_000]).unwrap();
    fs.sync().unwrap();
    let mut disk = Disk::new(content(&device));
    let before = shown(content(&device));
    let _ = device.below().take_events();
    let done = fs.roll_back(then, b"dir", &mut |_| {}).unwrap();
    assert!(done.revived_blocks > 50 && done.copied_blocks > 40, "{done:?}");
    let after = shown(content(&device));
    assert!(before.0.difference(&after.0).is_some() && (before.1, after.1) == (0, 1));
    let (events, mut seen) = (device.below().take_events(), [0, 0]);
    for (nth, event) in events.iter().enumerate() {
        disk.play(event);
        let by_chance = (0..4).map(|seed| Survivors::Random(Sector::ALL[seed % 2], seed as u64));
        for survivors in Survivors::CORNERS.into_iter().chain(by_chance) {
            let what = format!("a cut at event {nth} of {}, {survivors:?}", events.len());
            let left = disk.after_cut(survivors);
            let report =
                nilfs_check::check(&MemoryDevice::from(left.clone()), &Default::default()).unwrap();
            assert!(report.is_consistent(), "{what}: {report}");
            let (tree, snapshots) = shown(left);
            let found = [&before, &after].into_iter().position(|(expected, count)| {
                expected.difference(&tree).is_none() && *count == snapshots
            });
            seen[found.unwrap_or_else(|| panic!("{what}: it is neither"))] += 1;
        }
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
}

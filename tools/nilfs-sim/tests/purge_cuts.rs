//! A purge that the power cuts off loses nothing but what is purged, and another one completes it.

use std::sync::Arc;

use nilfs_device::{Device, Event, MemoryDevice};
use nilfs_engine::{Filesystem, InodeRef, MountOptions, NewInode, PurgeOptions, Wiping};
use nilfs_ondisk::inode::{DeviceCode, S_IFDIR, S_IFREG};
use nilfs_sim::medium::{content, medium};
use nilfs_sim::power::{Disk, Survivors};
use nilfs_sim::volume::Shape;

const SECRET: &[u8] = b"the secret that nobody may ever find again";
const ALL: PurgeOptions = PurgeOptions { keep_snapshots: false, wiping: Wiping::Discard };
const OTHER_BYTES: usize = 150_000;

fn traces(content: &[u8]) -> usize {
    content.windows(SECRET.len()).filter(|window| *window == SECRET).count()
}

fn make(fs: &Filesystem, parent: &InodeRef, name: &[u8], mode: u16) -> InodeRef {
    let new = NewInode { mode, uid: 0, gid: 0, rdev: DeviceCode::default() };
    fs.create(parent, name, &new).unwrap().inode
}

fn mount(device: Arc<dyn Device>) -> Arc<Filesystem> {
    Filesystem::mount(device, MountOptions::default()).unwrap()
}

/// The content of the other file, round by round, so that every moment of it can be told.
fn other(round: u8) -> Vec<u8> {
    (0..OTHER_BYTES).map(|at| (at / 100) as u8 ^ round).collect()
}

/// A volume on which a directory with a secret was deleted, and what a purge of `path` does to the
/// device.
fn purge(path: &[u8]) -> (Disk, Vec<Event>) {
    let device = Arc::new(medium(Shape::SMALL.format()));
    let fs = mount(device.clone());
    let root = fs.root().unwrap().inode;
    let place = make(&fs, &root, b"place", S_IFDIR | 0o755);
    let secret = make(&fs, &place, b"secret", S_IFREG | 0o644);
    let file = make(&fs, &root, b"other", S_IFREG | 0o644);
    for round in 0..4 {
        fs.write(&file, 0, &other(round)).unwrap();
        fs.write(&secret, u64::from(round) * 999, &SECRET.repeat(50)).unwrap();
        fs.sync_file(&secret).unwrap();
        fs.checkpoint_now().unwrap();
    }
    drop((secret, file));
    fs.unlink(&place, b"secret").unwrap();
    drop(place);
    fs.rmdir(&root, b"place").unwrap();
    fs.sync().unwrap();
    let before = Disk::new(content(&device));
    let _ = device.below().take_events();
    fs.purge(Some(path), ALL, &mut |_| {}).unwrap();
    assert_eq!(traces(&content(&device)), 0);
    (before, device.below().take_events())
}

#[test]
fn of_a_file_nothing_else_is_lost_and_another_one_completes_it() {
    cut_everywhere(b"place/secret");
}

#[test]
fn of_a_directory_nothing_else_is_lost_and_another_one_completes_it() {
    cut_everywhere(b"place");
}

fn cut_everywhere(path: &[u8]) {
    let (mut disk, events) = purge(path);
    let (mut unfinished, mut judged) = (0, 0);
    for (nth, event) in events.iter().enumerate() {
        disk.play(event);
        // Most of it is wiping, one segment after the other.
        let survivors = Survivors::CORNERS[nth % Survivors::CORNERS.len()];
        if nth > 60 && nth % 7 > 0 {
            continue;
        }
        let what = format!("a cut at event {nth} of {}, {survivors:?}", events.len());
        let left = Arc::new(MemoryDevice::from(disk.after_cut(survivors)));
        let report = nilfs_check::check(&*left, &nilfs_check::Options::default()).unwrap();
        assert!(report.is_consistent(), "{what}: {report}");
        unfinished += usize::from(traces(&left.snapshot()) > 0);
        judged += 1;
        let fs = mount(left.clone());
        let file = fs.lookup(&fs.root().unwrap().inode, b"other").unwrap().inode;
        let mut content = vec![0; OTHER_BYTES];
        assert_eq!(fs.read(&file, 0, &mut content).unwrap(), OTHER_BYTES, "{what}");
        assert!(content == other(3), "{what}: another file has changed");
        let is_held = fs.holders(path).unwrap().versions > 0;
        let again = fs.purge(is_held.then_some(path), ALL, &mut |_| {});
        assert_eq!(again.unwrap().left, 0, "{what}");
        fs.unmount().unwrap();
        assert_eq!(traces(&left.snapshot()), 0, "{what}");
        let report = nilfs_check::check(&*left, &nilfs_check::Options::default()).unwrap();
        assert!(report.is_consistent(), "{what}: {report}");
    }
    assert!(unfinished > 10 && judged > unfinished, "{unfinished} of {judged} were not complete");
}

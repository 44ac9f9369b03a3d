//! What a door costs.

use nilfs_device::{MemoryDevice, RecordingDevice};
use nilfs_engine::mkfs::{Parameters, format};
use nilfs_engine::{Filesystem, InodeRef, MountOptions, NewInode, Verify};
use nilfs_ondisk::inode::{S_IFDIR, S_IFREG};

use super::*;

const BLOCK: u64 = 4096;

fn new(mode: u16) -> NewInode {
    NewInode { mode, uid: 0, gid: 0, rdev: DeviceCode::default() }
}

/// Mounts without checking blocks, for which those before them are read, too.
fn mount(device: &Arc<RecordingDevice<MemoryDevice>>) -> Arc<Filesystem> {
    let options = MountOptions { verify: Verify::None, ..MountOptions::default() };
    Filesystem::mount(Arc::clone(device) as _, options).unwrap()
}

fn write(fs: &Filesystem, file: &InodeRef, nth: u64) -> Cno {
    fs.write(file, nth, b"content").unwrap();
    fs.checkpoint_now().unwrap()
}

/// The checkpoints that a door of a mount lists, and the blocks that are read for that.
fn list(device: &Arc<RecordingDevice<MemoryDevice>>, dir: &[u8]) -> (Vec<Cno>, u64) {
    let fs = mount(device);
    let root = fs.root().unwrap().inode;
    let dir = match dir {
        b"" => Ino::ROOT,
        name => fs.lookup(&root, name).unwrap().attr.ino,
    };
    drop(root);
    let (past, _keeper) =
        Past::new(Arc::clone(&fs) as _, Arc::clone(&fs) as _, PastSettings::default(), 0);
    let _ = device.take_bytes_read();
    let listed = past.list_door(dir, 0, usize::MAX).unwrap();
    let blocks = device.take_bytes_read() / BLOCK;
    drop(past);
    fs.unmount().unwrap();
    let shown = listed.iter().filter(|it| !it.is_dots());
    (shown.map(|it| Cno(it.next)).collect(), blocks)
}

/// Each of them would be a tree to look into, with blocks of its own.
#[test]
fn a_door_is_listed_without_looking_into_each_checkpoint() {
    const CHECKPOINTS: u64 = 2000;
    let device = Arc::new(RecordingDevice::new(MemoryDevice::new(256 << 20)));
    format(&*device, &Parameters::new([7; 16], 1, 1_700_000_000)).unwrap();
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    // Its inode lies in one block with those of the directories, and changes each time.
    let file = fs.create(&root, b"file", &new(S_IFREG | 0o644)).unwrap().inode;
    let mut there = vec![write(&fs, &file, 0)];
    fs.create(&root, b"dir", &new(S_IFDIR | 0o755)).unwrap();
    there.extend((1..CHECKPOINTS).map(|nth| write(&fs, &file, nth)));
    // Another directory gets its number.
    let before = fs.lookup(&root, b"dir").unwrap().attr.ino;
    fs.rmdir(&root, b"dir").unwrap();
    fs.sync().unwrap();
    fs.create(&root, b"other", &new(S_IFDIR | 0o755)).unwrap();
    let after = fs.lookup(&root, b"other").unwrap().attr.ino;
    assert_eq!(before, after);
    there.extend((0..100).map(|nth| write(&fs, &file, nth)));
    drop((root, file));
    fs.unmount().unwrap();
    let (of_root, root_blocks) = list(&device, b"");
    let (of_other, other_blocks) = list(&device, b"other");
    assert!(there.iter().all(|cno| of_root.contains(cno)));
    assert_eq!(of_other, there[there.len() - 100..]);
    // Twenty checkpoints lie in a block, which is found through one of the DAT.
    assert!(root_blocks < CHECKPOINTS / 8, "{root_blocks} blocks were read");
    assert!(other_blocks < root_blocks + 32, "{other_blocks} blocks were read");
}

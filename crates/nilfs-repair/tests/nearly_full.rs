//! A repair of a volume that its users have filled can be made, and finished after any interruption.
//!
//! A name in lost+found was charged like the write of a user, for whom a full volume has no room, though a
//! third of its segments was clean. So the repair could not be made, nor finished.
//! And a repair that let checkpoints be seen again which damage had hidden counted their errors as its own,
//! so others were made that correct less, and a name in a damaged directory could not be given.

mod support;

use std::sync::Arc;

use nilfs_device::{Action, FaultyDevice, MemoryDevice};
use nilfs_engine::{Error, NewInode};
use nilfs_ondisk::Ino;
use nilfs_ondisk::inode::{S_IFDIR, S_IFREG};
use support::{Content, Image, Patient, UUID, content, formatted, mount};

/// Files in a directory of which the names get lost.
const NAMED: usize = 12;

/// A file that all checkpoints have.
const EARLY: &str = "early";

const BLOCKS_PER_SEGMENT: u32 = 16;

const SEGMENTS: u64 = 80;

/// A volume with no room for users.
fn filled(block_size: u64) -> Image {
    let bytes = SEGMENTS * u64::from(BLOCKS_PER_SEGMENT) * block_size;
    let device = formatted(bytes, block_size, BLOCKS_PER_SEGMENT);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let file = NewInode { mode: S_IFREG | 0o644, uid: 0, gid: 0, rdev: Default::default() };
    let new = NewInode { mode: S_IFDIR | 0o755, ..file };
    let early = fs.create(&root, EARLY.as_bytes(), &file).unwrap().inode;
    fs.write(&early, 0, &vec![1; 2 * block_size as usize]).unwrap();
    fs.checkpoint_now().unwrap();
    let directory = fs.create(&root, b"directory", &new).unwrap().inode;
    for nth in 0..NAMED {
        let named = fs.create(&directory, format!("file {nth}").as_bytes(), &file).unwrap().inode;
        fs.write(&named, 0, &[nth as u8; 100]).unwrap();
        fs.checkpoint_now().unwrap();
    }
    for nth in 0.. {
        let written = fs
            .create(&root, nth.to_string().as_bytes(), &file)
            .and_then(|it| fs.write(&it.inode, 0, &vec![nth as u8; 4 * block_size as usize]));
        match written {
            Ok(_) => {}
            Err(Error::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    drop((root, early, directory));
    fs.unmount().unwrap();
    drop(fs);
    Image::from(Arc::into_inner(device).unwrap().snapshot())
}

/// Damaged copies: the names of a directory are lost; and so is, in two of them, the way to all checkpoints or
/// to all blocks. That hides the former, and that content of a file is other, or lost in every checkpoint.
fn damaged(block_size: u64) -> [(&'static str, Image); 3] {
    let mut names = filled(block_size);
    let block = names.data(names.named("directory"), 0);
    names.edit(block, |block| block.fill(0x5a));
    let mut hidden = names.clone();
    let content = hidden.data(hidden.named("0"), 1).block.0 as usize * block_size as usize;
    hidden.bytes[content] ^= 0xff;
    for metadata in [Ino::CPFILE, Ino::SUFILE] {
        let block = hidden.data(metadata, 0);
        hidden.edit(block, |block| block.fill(0x5a));
    }
    let mut nowhere = names.clone();
    // Nothing tells any more where this file is: each of its inodes counts blocks that it has not.
    let head = nowhere.data(nowhere.named(EARLY), 0).log.0 as usize * block_size as usize;
    nowhere.bytes[head..head + block_size as usize].fill(0);
    // The first block of the DAT with entries comes after a descriptor and a bitmap.
    for block in [nowhere.data(Ino::DAT, 2), nowhere.node(Ino::DAT)] {
        nowhere.edit(block, |block| block.fill(0x51));
    }
    [("names", names), ("names and checkpoints", hidden), ("names and the DAT", nowhere)]
}

/// Repairs a volume to the end. Returns what is on it then.
fn finish(left: Vec<u8>, what: &str) -> Content {
    let patient = Patient::new(Image::from(left));
    let plan = nilfs_repair::plan(&patient.device, &Default::default(), UUID);
    let plan = plan.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(plan.obstacle.is_none(), "{what}: {:?}", plan.obstacle);
    plan.apply(&*patient.device, &mut |_| {}).unwrap();
    let report = nilfs_check::check(&*patient.device, &Default::default()).unwrap();
    let told: Vec<_> = plan.kept.iter().map(|kept| kept.fault.clone()).collect();
    assert!(report.errors().all(|it| told.contains(&it.fault())), "{what}: {report}");
    content(&patient.bytes())
}

#[test]
fn a_repair_of_a_full_volume_is_finished_whichever_of_its_writes_and_flushes_fail() {
    for block_size in [1024, 4096] {
        for (damage, image) in damaged(block_size) {
            let whole = finish(image.bytes.clone(), damage);
            let adopted = whole.keys().filter(|path| path.starts_with("/lost+found/#")).count();
            assert_eq!(adopted, NAMED, "{damage}: {:?}", whole.keys());
            let plan = Patient::new(image.clone()).plan();
            for action in [Action::Write, Action::Flush] {
                for nth in 0.. {
                    let what = format!("{block_size}, {damage}, {action:?} {nth}");
                    let memory = MemoryDevice::from(image.bytes.clone());
                    let (device, faults) = FaultyDevice::new(memory);
                    faults.fail_after(nth, move |request| request.action == action);
                    if plan.apply(&device, &mut |_| {}).is_ok() {
                        assert!(nth > 3, "{what}: a repair writes and flushes more than once");
                        break;
                    }
                    let left = device.below().snapshot();
                    assert!(finish(left, &what) == whole, "{what}: a file has changed");
                }
            }
        }
    }
}

//! What threads do in two directories does not make them wait for each other.

#![allow(clippy::disallowed_methods, reason = "the engine's threads are for the engine")]

mod common;

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use common::{check, make, mount, new, volume};
use nilfs_device::{Action, FaultyDevice};
use nilfs_engine::{Filesystem, InodeRef};
use nilfs_ondisk::inode::S_IFDIR;

/// What has not come about after so long never will.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs `slow`, which reads the device, and meanwhile `quick`, which does not. Returns whether
/// `quick` ended before the device had answered.
fn overtakes(slow: fn(&Filesystem), quick: fn(&Filesystem)) -> bool {
    let memory = volume(1024, 16);
    {
        let fs = mount(&memory);
        for name in ["one", "other"] {
            let root = fs.root().unwrap().inode;
            let dir = fs.create(&root, name.as_bytes(), &new(S_IFDIR | 0o755)).unwrap().inode;
            make(&fs, &dir, "file");
        }
        fs.unmount().unwrap();
    }
    let (device, faults) = FaultyDevice::new(Arc::clone(&memory));
    let fs = mount(&Arc::new(device));
    // What it takes to work in the other directory is in memory from now on.
    make(&fs, &directory(&fs, "other"), "second");
    directory(&fs, "one");
    let (ended, has_ended) = mpsc::channel();
    let mut overtaking = Some((Arc::clone(&fs), ended));
    let (told, is_told) = mpsc::channel();
    faults.set(move |request| {
        if request.action == Action::Read
            && let Some((fs, ended)) = overtaking.take()
        {
            thread::spawn(move || {
                quick(&fs);
                _ = ended.send(());
            });
            told.send(has_ended.recv_timeout(PATIENCE).is_ok()).unwrap();
        }
        None
    });
    slow(&fs);
    let overtaken = is_told.try_recv().expect("the device was read");
    fs.unmount().unwrap();
    check(&*memory);
    overtaken
}

fn directory(fs: &Filesystem, name: &str) -> InodeRef {
    fs.lookup(&fs.root().unwrap().inode, name.as_bytes()).unwrap().inode
}

fn create_in(fs: &Filesystem, dir: &str) {
    make(fs, &directory(fs, dir), "new");
}

fn unlink_in(fs: &Filesystem, dir: &str, name: &str) {
    fs.unlink(&directory(fs, dir), name.as_bytes()).unwrap();
}

#[test]
fn creates_in_two_directories_do_not_wait_for_each_other() {
    assert!(overtakes(|fs| create_in(fs, "one"), |fs| create_in(fs, "other")));
}

#[test]
fn creates_and_unlinks_in_two_directories_do_not_wait_for_each_other() {
    assert!(overtakes(|fs| unlink_in(fs, "one", "file"), |fs| create_in(fs, "other")));
    assert!(overtakes(|fs| create_in(fs, "one"), |fs| unlink_in(fs, "other", "second")));
}

//! Whoever looks back keeps no writer from the room that there is.

#![allow(clippy::disallowed_methods, reason = "the engine's threads are for the engine")]

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use common::{check, make, mount, pattern, volume};
use nilfs_engine::{Cno, Error, Filesystem, InodeRef};

const WRITERS: usize = 4;
const LOOKERS: usize = 6;

/// A tenth of the volume, when all writers have a file of this many bytes.
const BYTES: usize = 640 << 10;
const MEGABYTES: u64 = 24;

/// How often each file is written anew: so that the volume is written fifteen times.
const ROUNDS: usize = 150;

/// Opens checkpoints all over the past.
fn look_back(fs: &Filesystem, end: &AtomicBool, looks: &AtomicUsize) {
    let mut nth = 0;
    while !end.load(Ordering::Relaxed) {
        let all = fs.checkpoints(Cno(0), usize::MAX).unwrap();
        nth = (nth + 7) % all.len();
        match fs.tree(Some(all[nth].cno)) {
            Ok(tree) => {
                tree.root().unwrap();
                looks.fetch_add(1, Ordering::Relaxed);
                thread::yield_now();
            }
            // It has been given up meanwhile.
            Err(Error::NoCheckpoint(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Has the content written again and again.
fn write(fs: &Filesystem, file: &InodeRef) {
    for round in 0..ROUNDS {
        fs.write(file, 0, &pattern(round, BYTES)).unwrap();
        fs.commit().unwrap();
    }
}

#[test]
fn a_volume_of_which_a_tenth_is_in_use_is_not_full_because_many_look_back() {
    let device = volume(1024, MEGABYTES);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let files: Vec<_> = (0..WRITERS).map(|nth| make(&fs, &root, &format!("file{nth}"))).collect();
    let (end, looks) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let writers: Vec<_> = files.iter().map(|file| scope.spawn(|| write(&fs, file))).collect();
        for _ in 0..LOOKERS {
            scope.spawn(|| look_back(&fs, &end, &looks));
        }
        let written: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        end.store(true, Ordering::Relaxed);
        assert!(written.iter().all(Result::is_ok), "somebody found no room");
    });
    assert!(looks.into_inner() > 0, "somebody has looked back");
    drop((files, root));
    fs.unmount().unwrap();
    check(&*device);
}

//! Whoever looks back keeps no writer from the room that there is.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the engine's threads and locks are for the engine"
)]

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use common::{check, make, mount, pattern, volume};
use nilfs_device::MemoryDevice;
use nilfs_engine::{Cno, Error, Filesystem, InodeRef, Tree};

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

/// Appends a number of bytes to an empty file; returns how many there was room for.
fn append(fs: &Filesystem, file: &InodeRef, bytes: usize) -> usize {
    const PIECE: usize = 4096;
    let mut written = 0;
    while written < bytes {
        match fs.write(file, written as u64, &pattern(written, PIECE)) {
            Ok(()) => written += PIECE,
            Err(Error::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    written
}

/// A full volume, half of which is only kept because somebody looks back.
struct Watched {
    device: Arc<MemoryDevice>,
    fs: Arc<Filesystem>,
    look: Arc<Mutex<Option<Tree>>>,
}

impl Watched {
    /// The look ends as soon as somebody finds no room.
    fn new() -> Self {
        let device = volume(1024, MEGABYTES);
        let fs = mount(&device);
        let root = fs.root().unwrap().inode;
        assert_eq!(append(&fs, &make(&fs, &root, "seen"), 12 << 20), 12 << 20);
        let look = Arc::new(Mutex::new(Some(fs.tree(Some(fs.commit().unwrap())).unwrap())));
        fs.unlink(&root, b"seen").unwrap();
        append(&fs, &make(&fs, &root, "filling"), usize::MAX);
        let ends = Arc::clone(&look);
        fs.tell_of_shortage(move |_| ends.lock().unwrap().take().is_some());
        Self { device, fs, look }
    }

    fn assert_look_has_ended(self) {
        assert!(self.look.lock().unwrap().is_none(), "there was room before");
        self.fs.unmount().unwrap();
        check(&*self.device);
    }
}

#[test]
fn a_look_ends_for_those_who_find_no_room() {
    let world = Watched::new();
    let root = world.fs.root().unwrap().inode;
    thread::scope(|scope| {
        for nth in 0..8 {
            let (fs, root) = (&world.fs, &root);
            scope.spawn(move || {
                let file = make(fs, root, &format!("file{nth}"));
                assert_eq!(append(fs, &file, 512 << 10), 512 << 10);
            });
        }
    });
    drop(root);
    world.assert_look_has_ended();
}

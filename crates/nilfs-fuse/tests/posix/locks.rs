//! Locks, which the kernel keeps.

use std::fs::File;
use std::process::Command;

use rustix::fs::{FlockOperation, OFlags, fcntl_lock, flock};
use rustix::io::Errno;

use crate::support::{World, open};

#[test]
fn flock_excludes_other_open_files() {
    let world = World::new();
    let path = world.file("file", "");
    let (one, other) = (File::open(&path).unwrap(), File::open(&path).unwrap());
    flock(&one, FlockOperation::LockExclusive).unwrap();
    assert_eq!(flock(&other, FlockOperation::NonBlockingLockShared), Err(Errno::WOULDBLOCK));
    flock(&one, FlockOperation::Unlock).unwrap();
    flock(&other, FlockOperation::NonBlockingLockShared).unwrap();
}

#[test]
fn posix_locks_exclude_other_processes() {
    let world = World::new();
    let path = world.file("file", "");
    let file = open(&path, OFlags::empty()).unwrap();
    let try_lock = || {
        // fcntl(F_SETLK) with a struct flock that says F_WRLCK, for the whole file.
        let script = "open my $f, '+<', $ARGV[0] or die; \
            my $lock = pack('s s x4 q q l x4', 1, 0, 0, 0, 0); exit(fcntl($f, 6, $lock) ? 0 : 1)";
        Command::new("perl").args(["-e", script]).arg(&path).status().unwrap().success()
    };
    fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert!(!try_lock(), "another process got the lock");
    fcntl_lock(&file, FlockOperation::NonBlockingUnlock).unwrap();
    assert!(try_lock(), "another process did not get the free lock");
}

//! Mounting and unmounting again and again in one process, which must not have more of anything
//! afterwards.

use std::fs::{self, File};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use nilfs_device::MemoryDevice;
use nilfs_engine::mkfs::format;

use crate::support::{Bare, PATIENCE, SIZE, parameters};

/// Set for a process that runs nothing but a test that looks at the process.
const ALONE: &str = "NILFS_TEST_ALONE";

/// What a process has.
#[derive(Debug, PartialEq, Eq)]
struct Possessions {
    open_files: usize,
    threads: usize,
}

impl Possessions {
    fn now() -> Self {
        let count = |path| fs::read_dir(path).unwrap().count();
        Self { open_files: count("/proc/self/fd"), threads: count("/proc/self/task") }
    }
}

/// KiB of memory that the process occupies.
fn memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Mounts a volume, uses it in several threads, and unmounts it.
fn use_once(device: &Arc<MemoryDevice>) {
    let world = Bare::new(Arc::<MemoryDevice>::clone(device));
    thread::scope(|scope| {
        for nth in 0..4 {
            let path = world.path(&nth.to_string());
            scope.spawn(move || {
                fs::write(&path, vec![nth; 100_000]).unwrap();
                File::open(&path).unwrap().sync_all().unwrap();
                assert_eq!(fs::read(&path).unwrap(), vec![nth; 100_000]);
            });
        }
    });
}

#[test]
fn a_hundred_mounts_leave_nothing_open_running_or_in_memory() {
    if std::env::var_os(ALONE).is_none() {
        let mut alone = Command::new(std::env::current_exe().unwrap());
        alone.args([
            "--exact",
            "mounting::a_hundred_mounts_leave_nothing_open_running_or_in_memory",
        ]);
        let output = alone.env(ALONE, "1").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let before = Possessions::now();
    let device = Arc::new(MemoryDevice::new(SIZE));
    format(&*device, &parameters()).unwrap();
    // A copy of all bytes, so that no more memory is taken when they are written.
    let device = Arc::new(MemoryDevice::from(device.snapshot()));
    // The last threads are still ending when a mount is over.
    let has_ended = || {
        let end = Instant::now();
        while Possessions::now() != before {
            assert!(end.elapsed() < PATIENCE, "{before:?} became {:?}", Possessions::now());
            thread::yield_now();
        }
    };
    (0..50).for_each(|_| use_once(&device));
    has_ended();
    let memory_before = memory();
    (0..100).for_each(|_| use_once(&device));
    has_ended();
    let more = memory().saturating_sub(memory_before);
    // The allocator keeps a few MiB for each thread that there might be.
    assert!(more < 64 << 10, "{more} KiB more after 100 mounts");
}

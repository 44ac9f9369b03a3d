//! What programs see while the device misbehaves.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use nilfs_device::{Action, Device, FaultyDevice, IoSlice, MemoryDevice};
use nilfs_engine::mkfs::format;
use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;
use rustix::thread::CpuSet;

use crate::support::{Bare, SIZE, errno, parameters};

fn formatted() -> MemoryDevice {
    let device = MemoryDevice::new(SIZE);
    format(&device, &parameters()).unwrap();
    device
}

#[test]
fn after_a_failed_write_of_the_device_nothing_changes_and_reading_goes_on() {
    let (device, faults) = FaultyDevice::new(formatted());
    let world = Bare::new(Arc::new(device));
    let path = world.path("file");
    fs::write(&path, "content").unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    faults.fail(Action::Write);
    fs::write(world.path("other"), "x").unwrap();
    assert_eq!(errno(File::open(world.path("other")).unwrap().sync_all()), Errno::IO);
    faults.clear();
    assert_eq!(errno(fs::write(&path, "changed")), Errno::ROFS);
    assert_eq!(errno(fs::create_dir(world.path("dir"))), Errno::ROFS);
    assert_eq!(fs::read(&path).unwrap(), b"content");
}

#[test]
fn a_failed_read_of_the_device_is_an_error_for_the_reader_alone() {
    let (device, faults) = FaultyDevice::new(formatted());
    let device: Arc<dyn Device> = Arc::new(device);
    let path = {
        let world = Bare::new(Arc::clone(&device));
        fs::write(world.path("file"), vec![1; 100_000]).unwrap();
        "file"
    };
    let world = Bare::new(device);
    assert_eq!(fs::metadata(world.path(path)).unwrap().len(), 100_000);
    faults.fail(Action::Read);
    assert_eq!(errno(fs::read(world.path(path))), Errno::IO);
    faults.clear();
    assert_eq!(fs::read(world.path(path)).unwrap(), vec![1; 100_000]);
    fs::write(world.path("other"), "still writable").unwrap();
}

/// A device of which some requests wait until they are let go.
struct Gate {
    below: MemoryDevice,
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    closed: Option<Action>,
    waiting: usize,
}

impl Gate {
    fn new() -> Arc<Self> {
        Arc::new(Self { below: formatted(), state: Mutex::default(), changed: Condvar::new() })
    }

    /// Lets requests of a kind wait from now on, or none.
    fn close(&self, closed: Option<Action>) {
        self.state.lock().unwrap().closed = closed;
        self.changed.notify_all();
    }

    /// Returns when this number of requests wait.
    fn wait_for(&self, count: usize) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| state.waiting < count).unwrap());
    }

    fn pass(&self, action: Action) {
        let mut state = self.state.lock().unwrap();
        if state.closed == Some(action) {
            state.waiting += 1;
            self.changed.notify_all();
            let state = self.changed.wait_while(state, |state| state.closed == Some(action));
            state.unwrap().waiting -= 1;
        }
    }
}

impl Device for Gate {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.pass(Action::Read);
        self.below.read_at(offset, buffer)
    }

    fn read_without_waiting(&self, offset: u64, buffer: &mut [u8]) -> io::Result<bool> {
        let closed = self.state.lock().unwrap().closed == Some(Action::Read);
        if closed { Ok(false) } else { self.below.read_without_waiting(offset, buffer) }
    }

    fn write_at(&self, offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        self.below.write_at(offset, pieces)
    }

    fn flush(&self) -> io::Result<()> {
        self.pass(Action::Flush);
        Ok(())
    }

    fn discard(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.below.discard(offset, bytes)
    }
}

/// More fsyncs than there are threads that read requests, and than there are for what takes long.
#[test]
fn while_many_wait_for_the_device_everybody_else_goes_on() {
    let gate = Gate::new();
    let world = Bare::new(Arc::<Gate>::clone(&gate));
    let content = vec![3; 200_000];
    fs::write(world.path("read"), &content).unwrap();
    let files: Vec<_> = (0..40)
        .map(|nth| {
            let path = world.path(&nth.to_string());
            fs::write(&path, "x").unwrap();
            File::open(path).unwrap()
        })
        .collect();
    gate.close(Some(Action::Flush));
    thread::scope(|scope| {
        for file in &files {
            scope.spawn(|| file.sync_all().unwrap());
        }
        gate.wait_for(1);
        world.wait_for_requests(files.len());
        // A name that the kernel has not seen yet needs an answer from us.
        assert_eq!(errno(fs::metadata(world.path("nobody"))), Errno::NOENT);
        assert_eq!(fs::read_dir(world.path("")).unwrap().count(), files.len() + 1);
        fs::write(world.path("new"), "x").unwrap();
        gate.close(None);
    });
}

/// Keeps this thread on the first core that it may use.
fn stay_on_one_core() {
    let all = rustix::thread::sched_getaffinity(None).unwrap();
    let mut one = CpuSet::new();
    one.set((0..CpuSet::MAX_CPU).find(|core| all.is_set(*core)).unwrap());
    rustix::thread::sched_setaffinity(None, &one).unwrap();
}

/// Asks for the attributes of a file, whatever the kernel knows of it.
fn stat_anew(path: &Path) {
    let flags = AtFlags::STATX_FORCE_SYNC;
    rustix::fs::statx(rustix::fs::CWD, path, flags, StatxFlags::BASIC_STATS).unwrap();
}

#[test]
fn while_some_wait_for_what_is_read_from_the_device_others_have_what_is_in_memory() {
    const COLD: usize = 8;
    let gate = Gate::new();
    let device: Arc<dyn Device> = Arc::<Gate>::clone(&gate);
    {
        let world = Bare::new(Arc::clone(&device));
        for nth in 0..COLD {
            fs::create_dir(world.path(&format!("cold{nth}"))).unwrap();
            fs::write(world.path(&format!("cold{nth}/file")), "x").unwrap();
        }
        fs::write(world.path("warm"), "x").unwrap();
    }
    let world = Bare::new(device);
    let warm = world.path("warm");
    stat_anew(&warm);
    for nth in 0..COLD {
        fs::metadata(world.path(&format!("cold{nth}"))).unwrap();
    }
    gate.close(Some(Action::Read));
    thread::scope(|scope| {
        let cold: Vec<_> = (0..COLD)
            .map(|nth| {
                let path = world.path(&format!("cold{nth}/file"));
                scope.spawn(move || {
                    stay_on_one_core();
                    fs::metadata(path).unwrap().len()
                })
            })
            .collect();
        gate.wait_for(COLD);
        let warm = scope.spawn(|| {
            stay_on_one_core();
            stat_anew(&warm);
        });
        warm.join().unwrap();
        gate.close(None);
        for file in cold {
            assert_eq!(file.join().unwrap(), 1);
        }
    });
}

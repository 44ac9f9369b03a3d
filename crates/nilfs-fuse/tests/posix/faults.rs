//! What programs see while the device misbehaves.

use std::fs::{self, File};
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use nilfs_device::{Action, Device, FaultyDevice, IoSlice, MemoryDevice};
use nilfs_engine::mkfs::format;
use rustix::io::Errno;

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

/// A device whose flushes wait until they are let go.
struct Gate {
    below: MemoryDevice,
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    closed: bool,
    waiting: bool,
}

impl Gate {
    fn close(&self, closed: bool) {
        self.state.lock().unwrap().closed = closed;
        self.changed.notify_all();
    }

    /// Returns when a flush waits.
    fn wait_for_flush(&self) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| !state.waiting).unwrap());
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
        self.below.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        self.below.write_at(offset, pieces)
    }

    fn flush(&self) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        state.waiting = state.closed;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| state.closed).unwrap());
        Ok(())
    }

    fn discard(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.below.discard(offset, bytes)
    }
}

/// More fsyncs than there are threads that read requests.
#[test]
fn while_many_wait_for_the_device_everybody_else_goes_on() {
    let gate =
        Arc::new(Gate { below: formatted(), state: Mutex::default(), changed: Condvar::new() });
    let world = Bare::new(Arc::<Gate>::clone(&gate));
    let content = vec![3; 200_000];
    fs::write(world.path("read"), &content).unwrap();
    let files: Vec<_> = (0..8)
        .map(|nth| {
            let path = world.path(&nth.to_string());
            fs::write(&path, "x").unwrap();
            File::open(path).unwrap()
        })
        .collect();
    gate.close(true);
    thread::scope(|scope| {
        for file in &files {
            scope.spawn(|| file.sync_all().unwrap());
        }
        gate.wait_for_flush();
        world.wait_for_requests(files.len());
        // A name that the kernel has not seen yet needs an answer from us.
        assert_eq!(errno(fs::metadata(world.path("nobody"))), Errno::NOENT);
        assert_eq!(fs::read_dir(world.path("")).unwrap().count(), 9);
        fs::write(world.path("new"), "x").unwrap();
        gate.close(false);
    });
}

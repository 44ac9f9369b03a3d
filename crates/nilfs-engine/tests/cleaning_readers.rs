//! A slow reader sees what it asked for, whatever is cleaned and written meanwhile.

mod common;

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use common::{check, make, parameters, pattern};
use nilfs_device::{Claim, Device, IoSlice, MemoryDevice};
use nilfs_engine::mkfs::format;
use nilfs_engine::{Amount, CleanerOptions, Filesystem, ManualRun, MountOptions, Volume};
use nilfs_ondisk::SegNum;

const BLOCK: usize = 1024;
const PER_SEGMENT: usize = 64;
const SEGMENTS: usize = 40;

/// What a reader sends when it has come to the gate, and what it waits for there.
type Gate = (Sender<()>, Receiver<()>);

/// A device with readers that others do not expect.
struct Visited {
    below: MemoryDevice,
    /// Where the next reader has to wait.
    gate: Mutex<Option<(Range<u64>, Gate)>>,
    /// Whether another process reads.
    visitor: AtomicBool,
}

impl Visited {
    /// Stops the next reader of these bytes. The first end tells when it is there, and to the second
    /// it is told to go on.
    fn close(&self, bytes: Range<u64>) -> (Receiver<()>, Sender<()>) {
        let ((here, arrived), (go, wait)) = (channel(), channel());
        *self.gate.lock().unwrap_or_else(PoisonError::into_inner) = Some((bytes, (here, wait)));
        (arrived, go)
    }

    fn pass(&self, bytes: &Range<u64>) -> Option<Gate> {
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let meets =
            |gate: &mut (Range<u64>, Gate)| gate.0.start < bytes.end && bytes.start < gate.0.end;
        gate.take_if(meets).map(|(_, gate)| gate)
    }
}

impl Device for Visited {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if let Some((here, wait)) = self.pass(&(offset..offset + buffer.len() as u64)) {
            here.send(()).map_err(io::Error::other)?;
            wait.recv().map_err(io::Error::other)?;
        }
        self.below.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        self.below.write_at(offset, pieces)
    }

    fn flush(&self) -> io::Result<()> {
        self.below.flush()
    }

    fn discard(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.below.discard(offset, bytes)
    }

    fn keep_readers_out(&self) -> Option<Claim> {
        (!self.visitor.load(Ordering::SeqCst)).then(|| Box::new(()) as Claim)
    }
}

/// An empty volume.
fn volume() -> Arc<Visited> {
    let below = MemoryDevice::new(((SEGMENTS * PER_SEGMENT + 8) * BLOCK) as u64);
    let mut parameters = parameters(BLOCK as u64);
    parameters.blocks_per_segment = PER_SEGMENT as u32;
    format(&below, &parameters).unwrap();
    Arc::new(Visited { below, gate: Mutex::default(), visitor: AtomicBool::new(false) })
}

fn mount(device: &Arc<Visited>) -> Arc<Filesystem> {
    let shared: Arc<dyn Device> = Arc::clone(device) as _;
    let cleaner = CleanerOptions { protection: Duration::ZERO, ..CleanerOptions::default() };
    Filesystem::mount(shared, MountOptions { cleaner, ..MountOptions::default() }).unwrap()
}

/// A segment that is clean on the device may be written by the next mount, which does not know since
/// when somebody reads.
#[test]
fn no_segment_becomes_clean_on_the_device_while_another_process_reads() {
    let device = volume();
    device.visitor.store(true, Ordering::SeqCst);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let warm = make(&fs, &root, "warm");
    for round in 0..4 {
        fs.write(&warm, 0, &pattern(round, 200 * BLOCK)).unwrap();
        fs.sync().unwrap();
    }
    let clean = || Volume::open(Arc::clone(&device) as _).unwrap().clean_segments().unwrap();
    let run = ManualRun { min_reclaimable: Some(Amount::Count(1)), ..ManualRun::default() };
    fs.sync().unwrap();
    let before = clean();
    assert_eq!(fs.clean(&run).unwrap(), 0);
    fs.sync().unwrap();
    assert!(clean() <= before, "{} clean segments, {before} before", clean());
    device.visitor.store(false, Ordering::SeqCst);
    assert!(fs.clean(&run).unwrap() > 0);
    fs.sync().unwrap();
    assert!(clean() > before);
    drop((warm, root));
    fs.unmount().unwrap();
    check(&*device);
}

#[test]
fn a_slow_reader_sees_no_foreign_bytes() {
    let device = volume();
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let (cold, warm) = (make(&fs, &root, "cold"), make(&fs, &root, "warm"));
    let content = pattern(5, 10 * BLOCK);
    fs.write(&cold, 0, &content).unwrap();
    fs.write(&warm, 0, &pattern(0, 200 * BLOCK)).unwrap();
    fs.sync().unwrap();
    fs.write(&warm, 0, &pattern(1, 200 * BLOCK)).unwrap();
    fs.unmount().unwrap();
    drop((cold, warm, root));

    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let lookup = |name: &[u8]| fs.lookup(&root, name).unwrap().inode;
    let (cold, warm) = (lookup(b"cold"), lookup(b"warm"));
    // The segment of the cold blocks holds nothing else that is needed.
    let geometry = Volume::open(Arc::clone(&device) as _).unwrap().geometry();
    let address = |block: nilfs_ondisk::BlockNr| block.0 * BLOCK as u64;
    let logs = Volume::open(Arc::clone(&device) as _).unwrap().logs(SegNum(0)).unwrap();
    let log = logs.iter().find(|log| log.files.iter().any(|file| file.ino == cold.ino())).unwrap();
    let first = address(log.start.plus(log.header.summary_blocks(geometry.block_size)));
    let end = address(geometry.segment_end(SegNum(0)));
    let (arrived, go) = device.close(first..end);

    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut bytes = vec![0; content.len()];
            fs.read(&cold, 0, &mut bytes).map(|_| bytes)
        });
        arrived.recv().unwrap();
        let run = ManualRun { min_reclaimable: Some(Amount::Count(1)), ..ManualRun::default() };
        assert!(fs.clean(&run).unwrap() > 0);
        // All clean segments are written, again and again, as far as that is allowed.
        for round in 2..20 {
            if fs.write(&warm, 0, &pattern(round, 200 * BLOCK)).is_err() {
                break;
            }
            fs.sync().unwrap();
        }
        go.send(()).unwrap();
        assert!(reader.join().unwrap().unwrap() == content, "the reader sees its file");
    });
    drop((cold, warm, root));
    fs.unmount().unwrap();
    check(&*device);
}

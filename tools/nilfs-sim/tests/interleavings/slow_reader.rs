//! A slow reader sees what it asked for, whatever is cleaned and written meanwhile.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nilfs_device::{Device, IoSlice, MemoryDevice};
use nilfs_engine::{
    Amount, BlockNr, CleanerOptions, Filesystem, ManualRun, MountOptions, NewInode, SegNum, Volume,
};
use nilfs_ondisk::inode::{DeviceCode, FileType};
use nilfs_sim::interleaving::{Choice, interleaved};
use nilfs_sim::op::pattern;
use nilfs_sim::volume::{Shape, check};
use shuttle::sync::mpsc::{Receiver, Sender, channel};
use shuttle::thread;

const SHAPE: Shape = Shape { block_size: 1024, blocks_per_segment: 64, segments: 40 };

/// What a reader sends when it has come to the gate, and what it waits for there.
type Gate = (Sender<()>, Receiver<()>);

/// A device on which the next reader of a place has to wait.
struct Gated {
    below: MemoryDevice,
    gate: Mutex<Option<(Range<u64>, Gate)>>,
}

impl Gated {
    /// Stops the next reader of these bytes. The first end tells when it is there, and to the second
    /// it is told to go on.
    fn close(&self, bytes: Range<u64>) -> (Receiver<()>, Sender<()>) {
        let ((here, arrived), (go, wait)) = (channel(), channel());
        *self.gate.lock().unwrap() = Some((bytes, (here, wait)));
        (arrived, go)
    }

    fn pass(&self, bytes: &Range<u64>) -> Option<Gate> {
        let meets =
            |gate: &mut (Range<u64>, Gate)| gate.0.start < bytes.end && bytes.start < gate.0.end;
        self.gate.lock().unwrap().take_if(meets).map(|(_, gate)| gate)
    }
}

impl Device for Gated {
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
}

fn mount(device: &Arc<Gated>) -> Arc<Filesystem> {
    let shared: Arc<dyn Device> = Arc::clone(device) as _;
    let cleaner = CleanerOptions { protection: Duration::ZERO, ..CleanerOptions::default() };
    Filesystem::mount(shared, MountOptions { cleaner, ..MountOptions::default() }).unwrap()
}

/// While one file is read, its segment is cleaned, and another file is written again and again.
fn read_slowly() {
    let device = Arc::new(Gated { below: SHAPE.format().into(), gate: Mutex::default() });
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let make = |name: &[u8]| {
        let mode = FileType::Regular.mode_bits() | 0o644;
        let new = NewInode { mode, uid: 0, gid: 0, rdev: DeviceCode::default() };
        fs.create(&root, name, &new).unwrap().inode
    };
    let (cold, warm) = (make(b"cold"), make(b"warm"));
    let content = pattern(5, 0, 10 * SHAPE.block_size);
    let other = |round| pattern(round, 0, 200 * SHAPE.block_size);
    fs.write(&cold, 0, &content).unwrap();
    fs.write(&warm, 0, &other(10)).unwrap();
    fs.sync().unwrap();
    fs.write(&warm, 0, &other(11)).unwrap();
    fs.unmount().unwrap();
    drop((cold, warm, root));

    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let lookup = |name: &[u8]| fs.lookup(&root, name).unwrap().inode;
    let (cold, warm) = (lookup(b"cold"), lookup(b"warm"));
    // The segment of the cold blocks holds nothing else that is needed.
    let volume = Volume::open(Arc::clone(&device) as _).unwrap();
    let geometry = volume.geometry();
    let address = |block: BlockNr| block.0 * SHAPE.block_size;
    let logs = volume.logs(SegNum(0)).unwrap();
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
        for round in 12..30 {
            if fs.write(&warm, 0, &other(round)).is_err() {
                break;
            }
            fs.sync().unwrap();
        }
        go.send(()).unwrap();
        assert!(reader.join().unwrap().unwrap() == content, "the reader sees its file");
    });
    drop((cold, warm, root));
    fs.unmount().unwrap();
    check(&*device).unwrap();
}

#[test]
fn a_slow_reader_sees_no_foreign_bytes() {
    interleaved(0, Choice::InTurn, read_slowly);
}

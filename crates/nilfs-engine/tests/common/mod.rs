//! What the tests of the engine share: fresh volumes in memory, and the checker's word on them.

#![allow(dead_code, reason = "each test file uses its part")]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use nilfs_check::Options;
use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::mkfs::{Parameters, format};
use nilfs_engine::{Cno, Filesystem, Ino, InodeRef, Log, MountOptions, NewInode, Verify, Volume};
use nilfs_ondisk::inode::S_IFREG;
use nilfs_ondisk::summary::BlockInfo;
use nilfs_ondisk::{BlockNr, BlockSize};

pub fn parameters(block_size: u64) -> Parameters {
    let mut parameters = Parameters::new([7; 16], 0x1234_5678, 1_700_000_000);
    parameters.block_size = BlockSize::from_bytes(block_size).unwrap();
    parameters.blocks_per_segment = 256;
    parameters
}

pub fn volume(block_size: u64, megabytes: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(megabytes << 20));
    format(&*device, &parameters(block_size)).unwrap();
    device
}

/// A volume of 1 KiB blocks with this many segments of 64 blocks.
pub fn short_segments(segments: u64) -> Arc<MemoryDevice> {
    const BLOCK: u64 = 1024;
    const PER_SEGMENT: u32 = 64;
    let device = Arc::new(MemoryDevice::new((segments * u64::from(PER_SEGMENT) + 8) * BLOCK));
    let parameters = Parameters { blocks_per_segment: PER_SEGMENT, ..parameters(BLOCK) };
    format(&*device, &parameters).unwrap();
    device
}

pub fn mount<D: Device + 'static>(device: &Arc<D>) -> Arc<Filesystem> {
    let device: Arc<dyn Device> = Arc::clone(device) as _;
    Filesystem::mount(device, MountOptions::default()).unwrap()
}

/// Volumes that a real Linux has made.
pub const LINUX_IMAGES: [&str; 4] = ["linux-1024", "linux-2048", "linux-4096", "last-group-1024"];

/// One of them. They, and the scripts that made them, are the checker's (`nilfs-check/tests/images`).
pub fn linux_image(name: &str) -> Arc<MemoryDevice> {
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nilfs-check/tests/images");
    let path = images.join(format!("{name}.img.gz"));
    let output = Command::new("gzip").arg("-dc").arg(&path).output().unwrap();
    assert!(output.status.success(), "gzip cannot read {}", path.display());
    Arc::new(MemoryDevice::from(output.stdout))
}

pub fn check(device: &dyn Device) {
    let report = nilfs_check::check(device, &Options::default()).unwrap();
    let errors: Vec<String> = report.errors().map(ToString::to_string).collect();
    assert!(errors.is_empty(), "{errors:#?}");
}

pub fn new(mode: u16) -> NewInode {
    NewInode { mode, uid: 1000, gid: 100, rdev: Default::default() }
}

pub fn make(fs: &Filesystem, dir: &InodeRef, name: &str) -> InodeRef {
    fs.create(dir, name.as_bytes(), &new(S_IFREG | 0o644)).unwrap().inode
}

pub fn content(fs: &Filesystem, inode: &InodeRef) -> Vec<u8> {
    let mut bytes = vec![0; fs.attr(inode).unwrap().size as usize];
    assert_eq!(fs.read(inode, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// What a file in the root directory has in a past checkpoint.
pub fn in_the_past<D: Device + 'static>(device: &Arc<D>, cno: Cno, name: &str) -> Vec<u8> {
    let tree = Volume::open(Arc::clone(device) as _).unwrap().tree(Some(cno)).unwrap();
    let file = tree.lookup(&tree.root().unwrap(), name.as_bytes()).unwrap();
    let mut bytes = vec![0; file.size() as usize];
    assert_eq!(tree.read(&file, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

fn open(device: &Arc<MemoryDevice>) -> Volume {
    Volume::open_with(Arc::clone(device) as _, Verify::None).unwrap()
}

/// All logs, in the order in which they were written.
pub fn logs(device: &Arc<MemoryDevice>) -> Vec<Log> {
    let volume = open(device);
    let segments = volume.segments(Default::default()).unwrap();
    let logs = segments.iter().flat_map(|it| volume.logs(it.segment).unwrap());
    let mut logs: Vec<_> = logs.collect();
    logs.sort_by_key(|log| (log.header.seq, log.start));
    logs
}

/// Blocks of files in all logs: the file, what it is, and where it lies.
pub fn blocks(device: &Arc<MemoryDevice>) -> Vec<(Ino, BlockInfo, BlockNr)> {
    let size = open(device).geometry().block_size;
    let of_log = |log: Log| {
        let first = log.start.plus(log.header.summary_blocks(size));
        let infos: Vec<_> =
            log.files.iter().flat_map(|it| it.blocks.iter().map(|info| (it.ino, *info))).collect();
        infos
            .into_iter()
            .enumerate()
            .map(move |(nth, (ino, info))| (ino, info, first.plus(nth as u64)))
    };
    logs(device).into_iter().flat_map(of_log).collect()
}

/// Where the nth block of the content of a file was written last.
pub fn place(device: &Arc<MemoryDevice>, ino: Ino, nth: u64) -> BlockNr {
    let is_it = |(of, info, _): &&(Ino, BlockInfo, BlockNr)| {
        let offset = match info {
            BlockInfo::Data { offset, .. } | BlockInfo::DatData { offset } => offset.0,
            BlockInfo::Node { .. } | BlockInfo::DatNode { .. } => return false,
        };
        *of == ino && offset == nth
    };
    blocks(device).iter().rfind(is_it).expect("the file has that block").2
}

pub fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + seed * 7 + at / 251) as u8).collect()
}

//! Small volumes in memory, for tests inside the engine.

use std::sync::Arc;

use nilfs_device::{Device, IoSlice, MemoryDevice};
use nilfs_ondisk::inode::S_IFREG;
use nilfs_ondisk::superblock::STATE_VALID;
use nilfs_ondisk::{BlockNr, BlockSize, FileBlock, Ino};
use zerocopy::little_endian::U16;

use crate::block::{Block, bytes_mut, zeroed};
use crate::commit::Frozen;
use crate::log::sealed::SealedLog;
use crate::log::segment_writer::{SegmentWriter, Stamp};
use crate::mkfs::{Parameters, format};
use crate::overlay::{FrozenInode, Overlay, Page};
use crate::recovery::RollForward;
use crate::{Filesystem, InodeRef, MountOptions, NewInode, Volume};

pub(crate) const BLOCK: usize = 1024;
pub(crate) const SEGMENT_BLOCKS: u32 = 256;
/// Blocks of the file on each volume.
pub(crate) const FILE_BLOCKS: u64 = 4;

/// A moment after the volumes were made.
pub(crate) const NOW: Stamp = Stamp {
    seconds: 1_800_000_000,
    lifetime: nilfs_ondisk::lifetime::Lifetime {
        user_bytes: 0,
        written_bytes: 0,
        segments_freed: 0,
    },
};

pub(crate) fn block_size() -> BlockSize {
    BlockSize::from_bytes(BLOCK as u64).unwrap()
}

/// An empty volume with this many segments.
pub(crate) fn empty_volume(segments: u64) -> Arc<MemoryDevice> {
    let blocks = segments * u64::from(SEGMENT_BLOCKS) + 8;
    let device = Arc::new(MemoryDevice::new(blocks * BLOCK as u64));
    let parameters = Parameters {
        block_size: block_size(),
        blocks_per_segment: SEGMENT_BLOCKS,
        discard: false,
        ..Parameters::new([7; 16], 0x1234_5678, 1_700_000_000)
    };
    format(&*device, &parameters).unwrap();
    device
}

/// A volume that was closed cleanly, with a file of this many blocks.
pub(crate) fn volume(segments: u64) -> (Arc<MemoryDevice>, Ino) {
    let device = empty_volume(segments);
    let fs = mount(&device);
    let file = make_file(&fs);
    fs.unmount().unwrap();
    (device, file.ino())
}

pub(crate) fn mount<D: Device + 'static>(device: &Arc<D>) -> Arc<Filesystem> {
    Filesystem::mount(Arc::clone(device) as _, MountOptions::default()).unwrap()
}

/// Makes the file.
pub(crate) fn make_file(fs: &Filesystem) -> InodeRef {
    let new = NewInode { mode: S_IFREG | 0o644, uid: 0, gid: 0, rdev: Default::default() };
    let root = fs.root().unwrap().inode;
    let file = fs.create(&root, b"file", &new).unwrap().inode;
    fs.write(&file, 0, &[b'o'; FILE_BLOCKS as usize * BLOCK]).unwrap();
    file
}

pub(crate) fn copy_of(device: &MemoryDevice) -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::from(device.snapshot()))
}

pub(crate) fn open<D: Device + 'static>(device: &Arc<D>) -> Volume {
    Volume::open(Arc::clone(device) as _).unwrap()
}

/// The owner of the log of a volume without data-sync logs.
pub(crate) fn writer(volume: &Volume) -> SegmentWriter {
    SegmentWriter::open(
        volume,
        &volume.view(volume.found.cno).unwrap(),
        &RollForward::default(),
        true,
        false,
    )
    .unwrap()
}

/// A block full of one byte.
pub(crate) fn block(byte: u8) -> Block {
    let mut block = zeroed(block_size());
    bytes_mut(&mut block).fill(byte);
    block
}

/// A file of a volume with these blocks overwritten, as a freeze takes it.
pub(crate) fn overwritten(
    volume: &Volume,
    ino: Ino,
    blocks: impl IntoIterator<Item = (u64, u8)>,
) -> Frozen {
    let mut overlay = Overlay::default();
    for (key, byte) in blocks {
        overlay.insert(FileBlock(key), Page { data: Some(block(byte)), placed: None }, false);
    }
    let inode = volume.view(volume.found.cno).unwrap().inode(ino).unwrap();
    let frozen = FrozenInode { ino, inode, overlay, deleted: false, rolled_back: None };
    Frozen { inodes: vec![Arc::new(frozen)], ..Frozen::default() }
}

/// The blocks of logs with their addresses.
pub(crate) fn blocks_of(logs: &[SealedLog]) -> Vec<(BlockNr, Vec<u8>)> {
    let one = |log: &SealedLog| {
        let bytes: Vec<u8> = log.content().iter().flat_map(|piece| piece.to_vec()).collect();
        let blocks: Vec<Vec<u8>> = bytes.chunks(BLOCK).map(<[u8]>::to_vec).collect();
        assert_eq!(blocks.len() as u64, log.len());
        log.addresses().zip(blocks).collect::<Vec<_>>()
    };
    logs.iter().flat_map(one).collect()
}

pub(crate) fn write(device: &MemoryDevice, block: BlockNr, bytes: &[u8]) {
    device.write_at(block.0 * BLOCK as u64, &[IoSlice::new(bytes)]).unwrap();
}

/// Lets the superblocks call the volume in use, so that recovery looks for newer logs.
pub(crate) fn mark_in_use(device: &MemoryDevice) {
    Volume::change_superblocks(device, |raw| {
        raw.s_state = U16::new(raw.s_state.get() & !STATE_VALID);
    })
    .unwrap();
}

/// What the file on a volume begins each of its blocks with.
pub(crate) fn content(volume: &Volume, ino: Ino) -> Vec<u8> {
    let tree = volume.tree(None).unwrap();
    let file = tree.file(ino).unwrap();
    let mut bytes = vec![0; FILE_BLOCKS as usize * BLOCK];
    assert_eq!(tree.read(&file, 0, &mut bytes).unwrap(), bytes.len());
    bytes.chunks(BLOCK).map(|block| block[0]).collect()
}

pub(crate) fn check(device: &MemoryDevice) {
    let report = nilfs_check::check(device, &nilfs_check::Options::default()).unwrap();
    let errors: Vec<String> = report.errors().map(ToString::to_string).collect();
    assert!(errors.is_empty(), "{errors:#?}");
}

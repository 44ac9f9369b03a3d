//! What the fuzz targets share: a small volume to be damaged, and checksums that fit the damage.
//!
//! Random bytes would never get past the checksums of a volume. So the image target edits a sound
//! volume and seals it again, as somebody who forges an image would do.

use std::sync::Arc;

use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::mkfs::{Parameters, format};
use nilfs_engine::{Clock, Filesystem, MountOptions, NewInode, RenameMode, SetAttr, Timestamp};
use nilfs_ondisk::crc::{Crc, crc32_le};
use nilfs_ondisk::geometry::{PRIMARY_SUPERBLOCK, secondary_superblock};
use nilfs_ondisk::inode::{DeviceCode, S_IFCHR, S_IFDIR, S_IFREG};
use nilfs_ondisk::summary::{LogHeader, SR};
use nilfs_ondisk::superblock::{RawSuperblock, SUPERBLOCK_SIZE, Superblock};
use nilfs_ondisk::{BlockSize, ByteCount, Geometry, SegNum};
use zerocopy::FromBytes;

/// Bytes in a block of the volumes here.
const BLOCK_SIZE: u64 = 1024;
/// Blocks in a segment.
const BLOCKS_PER_SEGMENT: u32 = 32;
/// Bytes of a volume.
const DEVICE_SIZE: u64 = 48 * BLOCK_SIZE * BLOCKS_PER_SEGMENT as u64 + 4096;
/// The seed of its checksums.
const CRC_SEED: u32 = 7;

/// The layout of the volumes here.
pub fn geometry() -> Geometry {
    nilfs_engine::mkfs::plan(DEVICE_SIZE, &parameters())
        .expect("the parameters are possible")
        .geometry()
}

fn parameters() -> Parameters {
    Parameters {
        block_size: BlockSize::from_bytes(BLOCK_SIZE).expect("1024 is a block size"),
        blocks_per_segment: BLOCKS_PER_SEGMENT,
        ..Parameters::new([1; 16], CRC_SEED, 1_700_000_000)
    }
}

/// A clock that stands still, so that volumes are the same each time.
struct Still;

impl Clock for Still {
    fn now(&self) -> Timestamp {
        Timestamp { seconds: 1_700_000_000, nanoseconds: 5 }
    }
}

/// The mount options for the volumes here.
pub fn options() -> MountOptions {
    MountOptions {
        clock: Arc::new(Still),
        dirty_limit: 1 << 20,
        flash_page: ByteCount(BLOCK_SIZE),
        ..MountOptions::default()
    }
}

/// A volume with every kind of thing in it: files with and without a B-tree, holes, a directory of
/// several blocks, links, a device node, several checkpoints. If it is not `clean`, the power went
/// after fsyncs with and without roll-forward records.
pub fn volume(clean: bool) -> Vec<u8> {
    let device = Arc::new(MemoryDevice::new(DEVICE_SIZE));
    format(&*device, &parameters()).expect("mkfs");
    let fs = Filesystem::mount(Arc::clone(&device) as Arc<dyn Device>, options());
    let fs = fs.expect("mount");
    fill(&fs).expect("a volume takes some files");
    if clean {
        fs.unmount().expect("unmount");
    }
    device.snapshot()
}

fn fill(fs: &Filesystem) -> nilfs_engine::Result<()> {
    let root = fs.root()?.inode;
    let new = |mode| NewInode { mode, uid: 0, gid: 0, rdev: DeviceCode { major: 1, minor: 3 } };
    let file = |dir, name: &str| fs.create(dir, name.as_bytes(), &new(S_IFREG | 0o644));
    let small = file(&root, "small")?.inode;
    fs.write(&small, 0, b"hello")?;
    let large = file(&root, "large")?.inode;
    fs.write(&large, 0, &[b'l'; 80 << 10])?;
    let sparse = file(&root, "sparse")?.inode;
    for nth in 0..12 {
        fs.write(&sparse, nth << 27, b"island")?;
    }
    fs.commit()?;
    let directory = fs.create(&root, b"directory", &new(S_IFDIR | 0o755))?.inode;
    for nth in 0..40 {
        file(&directory, &format!("a name that is not short at all {nth}"))?;
    }
    fs.symlink(&root, b"link", b"directory/elsewhere", 0, 0)?;
    fs.link(&small, &directory, b"hard")?;
    fs.create(&root, b"device", &new(S_IFCHR | 0o600))?;
    fs.sync()?;
    fs.write(&large, 3000, &[b'L'; 5000])?;
    fs.sync_file(&large)?;
    fs.write(&small, 5, b" world")?;
    fs.sync_file(&small)?;
    let other = file(&directory, "new")?.inode;
    fs.write(&other, 0, &[b'n'; 3000])?;
    fs.rename(&directory, b"new", &root, b"sparse", RenameMode::Replace)?;
    fs.create(&directory, b"sub", &new(S_IFDIR | 0o700))?;
    fs.unlink(&root, b"device")?;
    let size = SetAttr { size: Some(40_000), ..SetAttr::default() };
    fs.set_attr(&large, &size)?;
    fs.sync_file(&large)
}

/// Gives superblocks, super roots, summaries and logs the checksums of what is in them now, as far
/// as they can still be recognised.
pub fn seal(image: &mut [u8]) {
    let geometry = geometry();
    let size = image.len() as u64;
    for at in [Some(PRIMARY_SUPERBLOCK), secondary_superblock(size)].into_iter().flatten() {
        let copy = &mut image[at as usize..][..SUPERBLOCK_SIZE];
        if let Ok((raw, _)) = RawSuperblock::read_from_prefix(copy)
            && let Ok(superblock) = Superblock::from_raw(raw, size)
        {
            copy.copy_from_slice(&superblock.encode());
        }
    }
    let block_size = geometry.block_size.bytes();
    for segment in (0..geometry.nsegments).map(SegNum) {
        let mut at = geometry.segment_start(segment).0 as usize * block_size;
        let end = geometry.segment_end(segment).0 as usize * block_size;
        while let Some(length) = seal_log(&mut image[at..end], &geometry) {
            at += length;
        }
    }
}

/// Seals the log at the start of the bytes and gives its length, or `None` if there is none.
fn seal_log(bytes: &mut [u8], geometry: &Geometry) -> Option<usize> {
    let block_size = geometry.block_size;
    let header = LogHeader::parse(bytes, block_size, geometry.blocks_per_segment).ok()?;
    let length = header.nblocks as usize * block_size.bytes();
    let log = bytes.get_mut(..length)?;
    if header.has(SR) {
        let root = &mut log[length - block_size.bytes()..];
        let covered = usize::from(u16::from_le_bytes([root[4], root[5]]));
        if (4..=root.len()).contains(&covered) {
            let sum = crc32_le(CRC_SEED, &root[4..covered]);
            root[..4].copy_from_slice(&sum.to_le_bytes());
        }
    }
    let sum = crc32_le(CRC_SEED, log.get(8..header.sumbytes as usize)?);
    log[4..8].copy_from_slice(&sum.to_le_bytes());
    let mut crc = Crc::new(CRC_SEED);
    crc.update(&log[4..]);
    let sum = crc.value();
    log[..4].copy_from_slice(&sum.to_le_bytes());
    Some(length)
}

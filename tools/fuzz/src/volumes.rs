//! Sound volumes, small ones with every kind of thing in them.

use std::sync::Arc;

use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::mkfs::{Parameters, format, plan};
use nilfs_engine::{
    Clock, Filesystem, MadeBy, MountOptions, NewInode, RenameMode, SetAttr, SnapshotChange,
    Timestamp,
};
use nilfs_ondisk::inode::{DeviceCode, S_IFCHR, S_IFDIR, S_IFREG};
use nilfs_ondisk::{BlockSize, ByteCount, Cno, Geometry, SegNum};

/// Segments in a volume.
const SEGMENTS: u64 = 48;
/// The seed of its checksums.
pub const CRC_SEED: u32 = 7;

/// Which volume.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// Bytes in a block.
    pub block_size: u64,
    /// It was closed. Otherwise, the power went after fsyncs with and without roll-forward records.
    pub clean: bool,
    /// It has snapshots, one of them with a name, and the cleaner has moved blocks.
    pub snapshots: bool,
}

impl Kind {
    /// How many kinds there are.
    pub const COUNT: usize = 12;

    /// One of the kinds; the first two have blocks of 1 KiB and no snapshots.
    pub fn nth(nth: usize) -> Self {
        Self { block_size: 1024 << (nth / 4 % 3), clean: nth % 2 == 1, snapshots: nth / 2 % 2 == 1 }
    }

    /// Its layout.
    pub fn geometry(self) -> Geometry {
        plan(self.size(), &self.parameters()).expect("the parameters are possible").geometry()
    }

    /// As few as a segment can have, but 32 KiB.
    fn blocks_per_segment(self) -> u32 {
        16.max((32 << 10) / self.block_size as u32)
    }

    /// Bytes of a volume, with the secondary superblock.
    fn size(self) -> u64 {
        SEGMENTS * self.block_size * u64::from(self.blocks_per_segment()) + 4096
    }

    fn parameters(self) -> Parameters {
        Parameters {
            block_size: BlockSize::from_bytes(self.block_size).expect("it is a block size"),
            blocks_per_segment: self.blocks_per_segment(),
            ..Parameters::new([1; 16], CRC_SEED, 1_700_000_000)
        }
    }

    /// A volume of the kind, with every kind of thing in it: files with and without a B-tree, holes, a
    /// directory of several blocks, links, a device node, several checkpoints.
    pub fn volume(self) -> Vec<u8> {
        let device = Arc::new(MemoryDevice::new(self.size()));
        format(&*device, &self.parameters()).expect("mkfs");
        let fs = Filesystem::mount(Arc::clone(&device) as Arc<dyn Device>, options());
        let fs = fs.expect("mount");
        fill(&fs, self.snapshots).expect("a volume takes some files");
        if self.clean {
            fs.unmount().expect("unmount");
        }
        device.snapshot()
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
        flash_page: ByteCount(1024),
        ..MountOptions::default()
    }
}

fn fill(fs: &Filesystem, snapshots: bool) -> nilfs_engine::Result<()> {
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
    if snapshots {
        keep(fs)?;
    }
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

/// Makes snapshots of two checkpoints, of which one has a name, and moves what lies in the first
/// segments: a scrub repairs what was moved from where it was.
fn keep(fs: &Filesystem) -> nilfs_engine::Result<()> {
    let newest = fs.newest_log().cno;
    let name = "before".parse().ok();
    let named = SnapshotChange::Keep { cno: newest, made_by: MadeBy::User, name, text: None };
    fs.change_snapshots(&[SnapshotChange::plain(Cno(2), true), named])?;
    fs.evacuate([SegNum(1), SegNum(2)].into(), &mut |_| {}).map(drop)
}

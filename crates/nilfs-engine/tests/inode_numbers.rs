//! Blocks of the ifile that cannot be read: they cost what they had, and nothing else stops. Removing a file
//! whose bit in the bitmap, or count of free numbers, could not be changed let a checkpoint fail, and from then
//! on nothing was written.

mod common;

use std::sync::Arc;

use common::{content, make, new, pattern, place, short_segments};
use nilfs_device::{Device, Faults, FaultyDevice, IoSlice, MemoryDevice};
use nilfs_engine::{Error, Filesystem, InodeRef, MountOptions, RenameMode};
use nilfs_ondisk::inode::S_IFDIR;
use nilfs_ondisk::{BlockNr, Ino};

const BLOCK: u64 = 1024;
/// Blocks of the ifile.
const DESCRIPTORS: u64 = 0;
const BITMAP: u64 = 1;

/// A volume with the files "0" to "49", a directory, and a file of 100 blocks.
fn volume() -> Arc<MemoryDevice> {
    let device = short_segments(60);
    let fs = mount(&device, &[]);
    let root = fs.root().unwrap().inode;
    (0..50).for_each(|nth| drop(make(&fs, &root, &nth.to_string())));
    fs.create(&root, b"dir", &new(S_IFDIR | 0o755)).unwrap();
    let large = make(&fs, &root, "large");
    fs.write(&large, 0, &pattern(1, 100 * BLOCK as usize)).unwrap();
    drop((root, large));
    fs.unmount().unwrap();
    device
}

/// Mounts a volume of which some blocks cannot be read.
fn mount(device: &Arc<MemoryDevice>, unreadable: &[BlockNr]) -> Arc<Filesystem> {
    let (device, faults) = FaultyDevice::new(Arc::clone(device));
    faults.scratch(unreadable.iter().map(|block| block.0 * BLOCK..(block.0 + 1) * BLOCK));
    Filesystem::mount(Arc::new(device), MountOptions::default()).unwrap()
}

/// How a block is lost.
#[derive(Debug, Clone, Copy)]
enum Harm {
    /// It is not what was written.
    Bit,
    Unreadable,
}

/// Loses a block of the ifile. Returns those that cannot be read.
fn lose(device: &Arc<MemoryDevice>, nth: u64, harm: Harm) -> Vec<BlockNr> {
    let at = place(device, Ino::IFILE, nth);
    if matches!(harm, Harm::Unreadable) {
        return vec![at];
    }
    let mut bytes = [0; BLOCK as usize];
    device.read_at(at.0 * BLOCK, &mut bytes).unwrap();
    bytes[BLOCK as usize - 1] ^= 1;
    device.write_at(at.0 * BLOCK, &[IoSlice::new(&bytes)]).unwrap();
    Vec::new()
}

fn find(fs: &Filesystem, name: &[u8]) -> Result<InodeRef, Error> {
    fs.lookup(&fs.root().unwrap().inode, name).map(|found| found.inode)
}

#[test]
fn files_are_removed_and_made_without_the_bitmap_and_its_counts() {
    let harms = [Harm::Bit, Harm::Unreadable];
    for (nth, harm) in [DESCRIPTORS, BITMAP].into_iter().flat_map(|nth| harms.map(|it| (nth, it))) {
        let device = volume();
        let unreadable = lose(&device, nth, harm);
        let fs = mount(&device, &unreadable);
        let root = fs.root().unwrap().inode;
        let open = find(&fs, b"large").unwrap();
        fs.unlink(&root, b"0").unwrap();
        fs.unlink(&root, b"large").unwrap();
        fs.commit().unwrap();
        fs.rmdir(&root, b"dir").unwrap();
        fs.rename(&root, b"1", &root, b"2", RenameMode::Replace).unwrap();
        let new = make(&fs, &root, "new");
        fs.write(&new, 0, b"new").unwrap();
        fs.sync_file(&new).unwrap();
        let crashed = Arc::new(MemoryDevice::from(device.snapshot()));
        assert_eq!(content(&fs, &open), pattern(1, 100 * BLOCK as usize));
        let before = fs.stat_fs().unwrap().free;
        drop(open);
        fs.commit().unwrap();
        drop((root, new));
        fs.unmount().unwrap();
        for device in [&crashed, &device] {
            let fs = mount(device, &unreadable);
            for gone in [&b"0"[..], b"dir", b"1", b"large"] {
                assert!(matches!(find(&fs, gone), Err(Error::NotFound)));
            }
            assert!(find(&fs, b"2").is_ok());
            assert_eq!(content(&fs, &find(&fs, b"new").unwrap()), b"new");
            make(&fs, &fs.root().unwrap().inode, "newer");
            fs.commit().unwrap();
            fs.release_orphans().unwrap();
            fs.commit().unwrap();
            fs.unmount().unwrap();
        }
        let free = mount(&device, &[]).stat_fs().unwrap().free;
        assert!(free > before + 80, "{nth}, {harm:?}: the blocks of \"large\" are free");
    }
}

/// The block of the ifile that has an inode.
fn block_of(ino: Ino) -> u64 {
    2 + ino.0 / (BLOCK / 128)
}

/// A volume that is mounted with the smallest cache.
struct Uncached {
    device: Arc<MemoryDevice>,
    faults: Arc<Faults>,
    fs: Arc<Filesystem>,
    others: Vec<Ino>,
}

impl Uncached {
    fn new() -> Self {
        let device = volume();
        let (faulty, faults) = FaultyDevice::new(Arc::clone(&device));
        let options = MountOptions { cache_limit: 0, ..MountOptions::default() };
        let fs = Filesystem::mount(Arc::new(faulty), options).unwrap();
        let root = fs.root().unwrap().inode;
        let make = |nth| make(&fs, &root, &format!("other {nth}")).ino();
        let others = (0..4000).map(make).collect();
        fs.commit().unwrap();
        Self { device, faults, fs, others }
    }

    /// Loses the block of the ifile that has an inode, when it is not cached.
    fn lose(&self, ino: Ino) {
        let read = |ino: &Ino| drop(self.fs.by_number(*ino).unwrap());
        self.others.iter().chain(&self.others).for_each(read);
        let at = place(&self.device, Ino::IFILE, block_of(ino)).0 * BLOCK;
        self.faults.scratch(std::iter::once(at..at + BLOCK));
    }
}

/// The name was gone, and nothing else could be written, if the block was lost after the file had been read.
#[test]
fn a_file_is_removed_as_a_whole_or_not_at_all_where_its_inode_is_lost() {
    let uncached = Uncached::new();
    let fs = &uncached.fs;
    let root = fs.root().unwrap().inode;
    let large = find(fs, b"large").unwrap();
    uncached.lose(large.ino());
    let other = find(fs, b"0").unwrap();
    assert_ne!(block_of(other.ino()), block_of(large.ino()));
    for _ in 0..2 {
        assert!(fs.unlink(&root, b"large").is_err_and(|error| error.is_fault()));
        let over = fs.rename(&root, b"0", &root, b"large", RenameMode::Replace);
        assert!(over.is_err_and(|error| error.is_fault()));
        assert_eq!(find(fs, b"large").unwrap().ino(), large.ino());
        assert_eq!(find(fs, b"0").unwrap().ino(), other.ino());
        fs.write(&other, 0, b"written").unwrap();
        fs.sync().unwrap();
    }
    assert!(!fs.is_read_only());
}

/// Likewise where it lost its name before the block was lost, and was open.
#[test]
fn a_file_without_a_name_whose_inode_is_lost_stops_nothing() {
    let uncached = Uncached::new();
    let fs = &uncached.fs;
    let root = fs.root().unwrap().inode;
    let large = find(fs, b"large").unwrap();
    fs.unlink(&root, b"large").unwrap();
    fs.commit().unwrap();
    uncached.lose(large.ino());
    drop(large);
    for nth in 0..20 {
        let new = make(fs, &root, &format!("new {nth}"));
        fs.write(&new, 0, b"new").unwrap();
        fs.sync().unwrap();
    }
    assert!(!fs.is_read_only());
    drop(root);
    fs.unmount().unwrap();
}

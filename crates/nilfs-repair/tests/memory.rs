//! What a repair writes may be more than the machine has memory, so it is kept in a file.
//!
//! What broke: each byte that a repair would move was in memory up to four times. A volume of 64 GiB
//! with one damaged node in each of 500 segments took more than 10 GB.

mod support;

use std::sync::Arc;

use nilfs_check::Options;
use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::mkfs::{Parameters, format};
use nilfs_engine::{Filesystem, MountOptions, NewInode};
use nilfs_ondisk::BlockSize;
use nilfs_ondisk::inode::S_IFREG;
use peak_alloc::PeakAlloc;
use support::{Image, UUID, checked};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

const FILES: usize = 48;

/// Of each file, and so of what is moved where it is damaged.
const BYTES: usize = 2 << 20;

/// A volume of files that have a segment each.
fn volume() -> Image {
    let device = Arc::new(MemoryDevice::new((3 * FILES * BYTES) as u64));
    let parameters = Parameters {
        block_size: BlockSize::from_bytes(4096).unwrap(),
        blocks_per_segment: (BYTES / 4096) as u32,
        ..Parameters::new([7; 16], 0x1234_5678, 1_700_000_000)
    };
    format(&*device, &parameters).unwrap();
    let fs = Filesystem::mount(Arc::clone(&device) as _, MountOptions::default()).unwrap();
    let root = fs.root().unwrap().inode;
    let new = NewInode { mode: S_IFREG | 0o644, uid: 0, gid: 0, rdev: Default::default() };
    for nth in 0..FILES {
        let file = fs.create(&root, nth.to_string().as_bytes(), &new).unwrap().inode;
        fs.write(&file, 0, &vec![nth as u8; BYTES]).unwrap();
        fs.sync().unwrap();
    }
    drop(root);
    fs.unmount().unwrap();
    drop(fs);
    Image::from(Arc::into_inner(device).unwrap().snapshot())
}

/// Damages the maps of this many files, and repairs the volume. Returns how many bytes the repair
/// writes, and how many bytes of memory it takes at most.
fn repair(mut image: Image, files: usize) -> (u64, usize) {
    for ino in image.names_in_root().into_iter().take(files) {
        let node = image.node(ino);
        image.edit(node, |block| block.fill(0x5a));
    }
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::from(image.bytes));
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let plan = nilfs_repair::plan(&device, &Options::default(), UUID).unwrap();
    assert!(plan.can_be_applied(), "{:?}", plan.obstacle);
    plan.apply(&*device, &mut |_| {}).unwrap();
    let peak = MEMORY.peak_usage() - before;
    let mut repaired = vec![0; device.size() as usize];
    device.read_at(0, &mut repaired).unwrap();
    assert!(checked(&repaired).unwrap().is_consistent());
    (plan.bytes(), peak)
}

#[test]
fn a_repair_that_moves_much_takes_no_more_memory_than_one_that_moves_little() {
    let image = volume();
    // Until then the engine moves more at a time, and what it keeps for that grows.
    let (little, least) = repair(image.clone(), FILES / 4);
    let (much, most) = repair(image, FILES);
    let moved = much - little;
    assert!(moved > (FILES * BYTES / 2) as u64, "{much} and {little} bytes");
    let more = most.saturating_sub(least) as u64;
    assert!(more < moved / 8, "{more} more bytes of memory for {moved} more that are moved");
}

//! A single bit that is wrong, anywhere in the logs, costs nothing. It used to cost the newest checkpoint, if
//! it was in the log of that, or what had been synced last; often without a word.

mod support;

use std::sync::Arc;

use nilfs_check::Options;
use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::mkfs::{Parameters, format};
use nilfs_engine::{Files, Filesystem, MountOptions, NewInode};
use nilfs_ondisk::inode::{S_IFDIR, S_IFREG};
use nilfs_ondisk::{BlockNr, BlockSize, Ino};
use nilfs_repair::Risk;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use support::{Content, Image, UUID, number, present};

fn mount(device: Arc<MemoryDevice>) -> Result<Arc<Filesystem>, nilfs_engine::Error> {
    Filesystem::mount(device as Arc<dyn Device>, MountOptions::default())
}

fn new(mode: u16) -> NewInode {
    NewInode { mode, uid: 0, gid: 0, rdev: Default::default() }
}

/// How work on a volume ended, after the last fsync.
#[derive(Debug, Clone, Copy)]
enum End {
    PowerCut,
    /// A checkpoint, and then a power cut.
    Checkpoint,
    Unmounted,
}

/// A new volume of this many MiB.
fn made(block_size: u64, megabytes: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(megabytes << 20));
    let mut parameters = Parameters::new(UUID, 0x1234_5678, 1_700_000_000);
    parameters.block_size = BlockSize::from_bytes(block_size).unwrap();
    parameters.blocks_per_segment = 32;
    format(&*device, &parameters).unwrap();
    device
}

/// A volume with checkpoints, and sync logs after these; and what it shows.
fn volume(block_size: u64, end: End) -> (Image, Content) {
    let device = made(block_size, 4);
    let fs = mount(Arc::clone(&device)).unwrap();
    let root = fs.root().unwrap().inode;
    for nth in 0..4u8 {
        let name = format!("directory {nth}");
        let dir = fs.create(&root, name.as_bytes(), &new(S_IFDIR | 0o755)).unwrap().inode;
        let file = fs.create(&dir, b"file", &new(S_IFREG | 0o644)).unwrap().inode;
        fs.write(&file, 0, &vec![nth; 9000 * usize::from(nth + 1)]).unwrap();
        fs.sync().unwrap();
    }
    for nth in 0..3u8 {
        let name = format!("synced {nth}");
        let file = fs.create(&root, name.as_bytes(), &new(S_IFREG | 0o644)).unwrap().inode;
        fs.write(&file, 0, &[b'0' + nth; 5000]).unwrap();
        fs.sync_file(&file).unwrap();
    }
    let content = present(&*fs);
    drop(root);
    match end {
        End::PowerCut => {}
        End::Checkpoint => fs.sync().unwrap(),
        End::Unmounted => fs.unmount().unwrap(),
    }
    (Image::from(device.snapshot()), content)
}

/// Repairs a volume of which this bit is wrong, and demands that all is there; and before that, that a mount
/// shows nothing older without a word, and that what a mount cannot list is a finding of a check that reads no
/// content: a bit in a name was an error to the one, and nothing to the other. Returns whether the check has
/// found anything.
fn bears(image: &Image, content: &Content, (block, bit): (BlockNr, usize)) -> bool {
    let at = block.0 as usize * image.block_size() + bit / 8;
    let what = format!("block {block}, byte {}, bit {}", bit / 8, bit % 8);
    let mut damaged = image.bytes.clone();
    damaged[at] ^= 1 << (bit % 8);
    let device = Arc::new(MemoryDevice::from(damaged));
    let copy = Arc::new(MemoryDevice::from(device.snapshot()));
    if let Ok(fs) = mount(copy) {
        let (mut names, mut directories) = (0, Vec::new());
        let files = &*fs as &dyn Files;
        let shown = files.read_dir(Ino::ROOT, 0, &mut |entry| {
            names += 1;
            directories.extend(entry.name.starts_with(b"directory").then_some(entry.ino));
            true
        });
        assert!(shown.is_err() || names == 4 + 3 + 2, "{what}: a mount shows {names} names");
        let mut below = directories.into_iter().map(|it| files.read_dir(it, 0, &mut |_| true));
        if shown.is_err() || below.any(|listed| listed.is_err()) {
            let quick = Options { read_content: false, ..Options::default() };
            let report = nilfs_check::check(&*device, &quick);
            let is_told = !report.is_ok_and(|report| report.is_consistent());
            assert!(is_told, "{what}: a mount cannot list all, and a check finds nothing");
        }
    }
    let shared = Arc::clone(&device) as Arc<dyn Device>;
    let options = Options { read_content: true, ..Options::default() };
    let plan = nilfs_repair::plan(&shared, &options, UUID).unwrap();
    let found = !plan.repairs.is_empty();
    assert!(plan.obstacle.is_none(), "{what}: {:?}", plan.obstacle);
    assert!(!found || plan.risk() == Risk::Safe, "{what}: {:?}", plan.repairs);
    plan.apply(&*device, &mut |_| {}).unwrap();
    let report = nilfs_check::check(&*device, &options).unwrap();
    assert!(report.is_consistent(), "{what}: {report}after {:?}", plan.repairs);
    let fs = mount(device).unwrap();
    assert!(present(&*fs) == *content, "{what}: something is lost; {:?}", plan.repairs);
    found
}

#[test]
fn one_bit_that_is_wrong_costs_nothing() {
    let seed = number("NILFS_SEED", 7);
    println!("NILFS_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for block_size in [1024, 4096] {
        for end in [End::PowerCut, End::Checkpoint, End::Unmounted] {
            let (image, content) = volume(block_size, end);
            let mut found = 0;
            // The first log is that of mkfs, which has no checksums of its blocks.
            let logs = image.logs().split_off(1);
            for log in &logs {
                for nth in 0..u64::from(log.header.nblocks) {
                    let bit = random.random_range(0..8 * block_size as usize);
                    let block = log.block.plus(nth);
                    found += usize::from(bears(&image, &content, (block, bit)));
                }
                for _ in 0..16 {
                    let of_header = random.random_range(0..8 * 64);
                    bears(&image, &content, (log.block, of_header));
                }
            }
            assert!(found > logs.len(), "{found} of these bits are missed by somebody");
        }
    }
}

/// Which segments are in use stands in the sufile, so a wrong bit in the sufile kept fsck from the logs in which
/// it could have seen that, unless they came last: it made up what had been there.
#[test]
fn a_bit_of_the_sufile_is_set_right_wherever_the_block_lies() {
    let device = made(1024, 8);
    let fs = mount(Arc::clone(&device)).unwrap();
    let root = fs.root().unwrap().inode;
    // So many segments that the first block of the sufile is not written again.
    for nth in 0..4u8 {
        let name = format!("file {nth}");
        let file = fs.create(&root, name.as_bytes(), &new(S_IFREG | 0o644)).unwrap().inode;
        fs.write(&file, 0, &vec![nth; 900 << 10]).unwrap();
        fs.sync().unwrap();
    }
    drop(root);
    fs.unmount().unwrap();
    let mut image = Image::from(device.snapshot());
    let first = image.data(Ino::SUFILE, 0).block;
    assert!(first < image.newest_log().block, "it is not among the logs that a mount looks at");
    image.bytes[first.0 as usize * 1024 + 40] ^= 8;
    let device = Arc::new(MemoryDevice::from(image.bytes));
    let plan = nilfs_repair::plan(&(Arc::clone(&device) as _), &Options::default(), UUID).unwrap();
    let [repair] = &plan.repairs[..] else { panic!("{:?}", plan.repairs) };
    assert_eq!(repair.action, "set bit 3 of byte 40 right, which the checksum tells");
}

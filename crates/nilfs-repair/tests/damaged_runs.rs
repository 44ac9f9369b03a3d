//! Runs of damaged blocks anywhere in what a crashed volume has in use: after a repair, it mounts, and no file
//! has other content than before without being named.

mod support;

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use nilfs_check::Options;
use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::scrub::Selection;
use nilfs_engine::scrub_device;
use nilfs_engine::{FileType, Files, Filesystem, Ino, InodeRef, MountOptions, NewInode, Verify};
use nilfs_ondisk::BlockNr;
use nilfs_ondisk::inode::{S_IFDIR, S_IFREG};
use nilfs_ondisk::summary::SR;
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use support::{
    Content, File, Image, UUID, bad_sectors, formatted, mount, number, present, read_file,
};

/// Lengths of damage, in blocks.
const LENGTHS: [usize; 3] = [1, 5, 16];

/// Lengths of damage to many logs in a row, in blocks.
const LONG: [usize; 2] = [24, 100];

fn make(fs: &Filesystem, directory: &InodeRef, name: &str, mode: u16) -> InodeRef {
    let new = NewInode { mode, uid: 0, gid: 0, rdev: Default::default() };
    fs.create(directory, name.as_bytes(), &new).unwrap().inode
}

/// A crashed volume with three checkpoints and fsyncs after them, and what it shows.
fn crashed(block_size: u64) -> (Image, Content) {
    crashed_after(block_size, 15)
}

/// As [`crashed`], with so many fsyncs.
fn crashed_after(block_size: u64, fsyncs: usize) -> (Image, Content) {
    let device = formatted(12 << 20, block_size, (256 << 10) / block_size as u32);
    let fs = mount(&device);
    let mut random = StdRng::seed_from_u64(1);
    let mut fill = |file: &InodeRef, length: usize| {
        let mut content = vec![0; length];
        random.fill_bytes(&mut content);
        fs.write(file, 0, &content).unwrap();
    };
    let root = fs.root().unwrap().inode;
    let directory = make(&fs, &root, "directory", S_IFDIR | 0o755);
    for nth in 1..30 {
        fill(&make(&fs, &directory, &format!("first-{nth:02}"), S_IFREG | 0o644), nth * 300);
    }
    fs.symlink(&directory, b"link", b"where it leads", 0, 0).unwrap();
    fs.sync().unwrap();
    for nth in 1..8 {
        fill(&make(&fs, &root, &format!("second-{nth:02}"), S_IFREG | 0o644), 3000);
    }
    fs.sync().unwrap();
    for nth in 1..=fsyncs {
        let file = make(&fs, &directory, &format!("synced-{nth:02}"), S_IFREG | 0o644);
        fill(&file, nth * 400 + 500);
        fs.sync_file(&file).unwrap();
    }
    let shown = present(&*fs);
    (Image::from(device.snapshot()), shown)
}

/// Reads all files below a directory that can be read.
fn read_below(files: &dyn Files, directory: Ino, path: &str, found: &mut Content) {
    let mut entries = Vec::new();
    // The others are there.
    let _ = files.read_dir(directory, 0, &mut |entry| {
        entries.push((String::from_utf8_lossy(entry.name).into_owned(), entry.ino));
        true
    });
    for (name, ino) in entries.into_iter().filter(|(name, _)| !matches!(&name[..], "." | "..")) {
        let path = format!("{path}/{name}");
        let Ok(file) = read_file(files, ino) else { continue };
        if file.0 == FileType::Directory {
            read_below(files, ino, &path, found);
        }
        found.insert(path, file);
    }
}

/// Repairs a volume. Returns what is wrong then: that nothing was repaired, that it does not mount, or files of
/// other content than before of which neither the repair nor a scrub tells.
fn wrong_after_repair(device: &Arc<dyn Device>, before: &Content) -> Vec<String> {
    let options = Options { read_content: false, ..Options::default() };
    let plan = match nilfs_repair::plan(device, &options, UUID) {
        Ok(plan) => plan,
        Err(error) => return vec![format!("no plan: {error}")],
    };
    if let Some(obstacle) = plan.obstacle {
        return vec![format!("not repaired: {obstacle}")];
    }
    if plan.can_be_applied() {
        plan.apply(&**device, &mut |_| {}).unwrap();
    }
    let fs = match Filesystem::mount(Arc::clone(device), MountOptions::default()) {
        Ok(fs) => fs,
        Err(error) => return vec![format!("no mount: {error}")],
    };
    let mut after = Content::new();
    read_below(&*fs, Ino::ROOT, "", &mut after);
    fs.unmount().unwrap();
    let mut told = format!("{:?}{:?}{:?}", plan.repairs, plan.kept, plan.doubtful);
    let found = scrub_device(device, &Selection::default(), &mut |_| ControlFlow::Continue(()));
    for need in found.iter().flat_map(|it| &it.damage).flat_map(|it| &it.needs) {
        let path = need.path.as_deref().map(String::from_utf8_lossy);
        told.push_str(&path.unwrap_or_default());
    }
    let is_other = |(path, (file_type, _, _, content)): &(&String, &File)| {
        let file = before.get(*path).filter(|before| before.0 == *file_type);
        file.is_some_and(|before| before.3 != *content)
    };
    let other = after.iter().filter(is_other).map(|(path, _)| path.clone());
    other.filter(|path| !path.rsplit('/').next().is_some_and(|name| told.contains(name))).collect()
}

/// Files lost their names that an older version of their inodes has, because the newest of these was lost
/// together with the bitmap that says which are in use.
#[test]
fn inodes_that_are_lost_with_their_bitmap_come_from_an_older_version() {
    let (image, before) = crashed(4096);
    let logs = image.logs();
    let newest = logs.iter().rfind(|log| log.header.has(SR)).unwrap();
    let mut at = newest.block.plus(newest.header.summary_blocks(image.geometry().block_size));
    let mut bytes = image.bytes.clone();
    for file in &newest.files {
        let end = at.plus(file.blocks.len() as u64);
        if file.ino == Ino::IFILE {
            bytes[at.0 as usize * 4096..end.0 as usize * 4096].fill(0);
        }
        at = end;
    }
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::from(bytes));
    assert_eq!(wrong_after_repair(&device, &before), [""; 0]);
    let fs = Filesystem::mount(device, MountOptions::default()).unwrap();
    let mut after = Content::new();
    read_below(&*fs, Ino::ROOT, "", &mut after);
    let lost: Vec<_> = before.keys().filter(|path| !after.contains_key(*path)).collect();
    assert!(lost.iter().all(|path| !path.contains("first")), "{lost:?}");
}

#[test]
fn a_volume_mounts_after_a_repair_and_what_is_wrong_is_named() {
    let seed = number("NILFS_TEST_SEED", 1);
    for block_size in [1024, 4096] {
        let (image, before) = crashed(block_size);
        let size = image.block_size();
        let end = end_of_logs(&image);
        let mut wrong = Vec::new();
        let places = (1..end).step_by((4096 / size).min(3));
        for (first, length) in places.flat_map(|first| LENGTHS.map(|length| (first, length))) {
            let mut random = StdRng::seed_from_u64(seed << 20 | (first * 32 + length) as u64);
            let mut bytes = image.bytes.clone();
            let damaged = &mut bytes[first * size..(first + length) * size];
            match random.random_range(0..4) {
                0 => damaged.fill(0),
                _ => random.fill_bytes(damaged),
            }
            let device: Arc<dyn Device> = Arc::new(MemoryDevice::from(bytes));
            let found = wrong_after_repair(&device, &before).into_iter();
            wrong.extend(found.map(|it| format!("{length} blocks from block {first} on: {it}")));
        }
        assert!(wrong.is_empty(), "blocks of {size}, seed {seed}:\n{}", wrong.join("\n"));
    }
}

/// Returns the last block that the logs of a volume have, or one not far behind it.
fn end_of_logs(image: &Image) -> usize {
    image.logs().last().expect("there are logs").block.0 as usize + 4
}

/// Damages long runs of blocks, and demands that the volume can be repaired.
#[track_caller]
fn repairs_long_runs(
    block_size: u64,
    lengths: &[usize],
    damaged: impl Fn(&Image, Range<usize>) -> Arc<dyn Device>,
) {
    let (image, before) = crashed(block_size);
    let end = end_of_logs(&image);
    let mut wrong = Vec::new();
    // Without the first checkpoint, some would have none.
    let runs = (12..end).step_by(13).flat_map(|first| lengths.iter().map(move |it| (first, *it)));
    for (first, length) in runs {
        let device = damaged(&image, first..first + length);
        let found = wrong_after_repair(&device, &before).into_iter();
        wrong.extend(found.map(|it| format!("{length} blocks from block {first} on: {it}")));
    }
    assert!(wrong.is_empty(), "blocks of {block_size}:\n{}", wrong.join("\n"));
}

#[test]
fn long_runs_of_zeros_keep_nothing_else_from_being_repaired() {
    for block_size in [1024, 4096] {
        repairs_long_runs(block_size, &LONG, |image, run| {
            let (mut bytes, size) = (image.bytes.clone(), image.block_size());
            bytes[run.start * size..run.end * size].fill(0);
            Arc::new(MemoryDevice::from(bytes))
        });
    }
}

#[test]
fn long_runs_that_cannot_be_read_keep_nothing_else_from_being_repaired() {
    for block_size in [1024, 4096] {
        repairs_long_runs(block_size, &LONG, |image, run| {
            let blocks: Vec<BlockNr> = run.map(|block| BlockNr(block as u64)).collect();
            Arc::new(bad_sectors(image.clone(), &blocks))
        });
    }
}

/// Where the summary of a log could be read in part only and the chain went on in the next segment, nothing was
/// said about that log, and so the later ones could not be put right either.
#[test]
fn summaries_that_can_be_read_in_part_come_from_their_copies() {
    let mut tried = 0;
    for block_size in [1024, 4096] {
        let (image, before) = crashed_after(block_size, 20);
        let logs = image.logs();
        let newest = logs.iter().rposition(|log| log.header.has(SR)).unwrap();
        let synced = &logs[newest + 1..logs.len() - 1];
        for log in synced {
            let blocks = log.header.summary_blocks(image.geometry().block_size);
            if blocks < 2 {
                continue;
            }
            let last = log.block.plus(blocks - 1);
            let device: Arc<dyn Device> = Arc::new(bad_sectors(image.clone(), &[last]));
            assert_eq!(wrong_after_repair(&device, &before), [""; 0], "log at {}", log.block);
            let fs = Filesystem::mount(device, MountOptions::default()).unwrap();
            assert!(present(&*fs) == before, "log at {}", log.block);
            tried += 1;
        }
    }
    assert!(tried > 10, "{tried}");
}

/// Where the checksums of blocks were lost together with the blocks, zeros in their place counted as content of
/// which nothing is known.
#[test]
fn zeros_in_place_of_what_is_lost_are_known_to_be_wrong() {
    for block_size in [1024, 4096] {
        let (image, before) = crashed(block_size);
        let log = &image.logs()[1];
        let lost = log.block.0..log.block.0 + u64::from(log.header.nblocks) / 2;
        let lost: Vec<BlockNr> = lost.map(BlockNr).collect();
        let device: Arc<dyn Device> = Arc::new(bad_sectors(image.clone(), &lost));
        assert_eq!(wrong_after_repair(&device, &before), [""; 0]);
        let verify = Verify::All;
        let options = MountOptions { verify, ..MountOptions::default() };
        let fs = Filesystem::mount(device, options).unwrap();
        let mut after = Content::new();
        read_below(&*fs, Ino::ROOT, "", &mut after);
        let is_other = |(path, file): &(&String, &File)| before[*path].3 != file.3;
        let other: Vec<_> = after.iter().filter(is_other).map(|(path, _)| path).collect();
        assert!(other.is_empty(), "blocks of {block_size}: {other:?}");
    }
}

//! What an old super root shows is what was there: blocks that have been written over since are not
//! taken for what they were.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::{make, parameters, pattern};
use nilfs_device::{Device, IoSlice, MemoryDevice};
use nilfs_engine::mkfs::format;
use nilfs_engine::rescue::Rescue;
use nilfs_engine::scan::Scan;
use nilfs_engine::{
    CleanerOptions, Cno, Error, Filesystem, MountOptions, ReadOnlyOptions, ReadOnlyVolume, Tree,
    Volume,
};
use nilfs_ondisk::geometry::{PRIMARY_SUPERBLOCK, secondary_superblock};

const BLOCK: u64 = 1024;
/// Enough for every segment to be used several times.
const VERSIONS: usize = 120;
const FILE_BLOCKS: usize = 60;
/// So few that no node leads to them, in which damage would be noticed.
const FEW_BLOCKS: usize = 5;

/// A version of the file that is written rarely has a number after all of those of the other.
fn version(nth: usize) -> Vec<u8> {
    let blocks = if nth < VERSIONS { FILE_BLOCKS } else { FEW_BLOCKS };
    pattern(nth, blocks * BLOCK as usize)
}

/// So rarely is the other file written: its blocks lie in older segments than the super roots that
/// lead to them, and are written over before these.
const RARELY: usize = 10;

/// A small volume on which two files have been overwritten many times and cleaned up after, one of them
/// rarely, with the version that each checkpoint has.
fn volume() -> (Arc<MemoryDevice>, BTreeMap<Cno, usize>) {
    let mut parameters = parameters(BLOCK);
    parameters.blocks_per_segment = 64;
    let device = Arc::new(MemoryDevice::new((40 * 64 + 8) * BLOCK));
    format(&*device, &parameters).unwrap();
    let cleaner = CleanerOptions { protection: Duration::ZERO, ..CleanerOptions::default() };
    let options = MountOptions { cleaner, ..MountOptions::default() };
    let fs = Filesystem::mount(Arc::clone(&device) as _, options).unwrap();
    let file = make(&fs, &fs.root().unwrap().inode, "file");
    let other = make(&fs, &fs.root().unwrap().inode, "rarely");
    let mut versions = BTreeMap::new();
    for nth in 0..VERSIONS {
        fs.write(&file, 0, &version(nth)).unwrap();
        if nth.is_multiple_of(RARELY) {
            fs.write(&other, 0, &version(VERSIONS + nth)).unwrap();
        }
        versions.insert(fs.commit().unwrap(), nth);
    }
    drop((file, other));
    fs.unmount().unwrap();
    (device, versions)
}

fn overwrite(device: &MemoryDevice, place: u64) {
    device.write_at(place, &[IoSlice::new(&[0x5a; BLOCK as usize])]).unwrap();
}

fn content(tree: &Tree, name: &str) -> Result<Vec<u8>, Error> {
    let file = tree.lookup(&tree.root()?, name.as_bytes())?;
    // An inode that was written over has any size.
    assert!(file.size() <= FILE_BLOCKS as u64 * BLOCK, "{name} has {} bytes", file.size());
    let mut bytes = vec![0; file.size() as usize];
    tree.read(&file, 0, &mut bytes)?;
    Ok(bytes)
}

#[test]
fn blocks_that_were_written_over_are_not_taken_for_what_they_were() {
    let (device, versions) = volume();
    let all = Scan::run(&*device, &|_| {}).unwrap().super_roots;
    for place in [PRIMARY_SUPERBLOCK, secondary_superblock(device.size()).unwrap()] {
        overwrite(&device, place);
    }
    for (destroyed, log) in all.iter().enumerate() {
        let mut rescue = Rescue::open(Arc::clone(&device) as _, Box::new(|_| {})).unwrap();
        assert!(rescue.by_scan().is_some());
        let mut looked_at = 0;
        while let Some(found) = rescue.tree(looked_at) {
            let cno = found.tree.cno();
            // One that was made to gain room has what the one before has, or the one after.
            let before = versions.range(..=cno).next_back().map_or(0, |(_, nth)| *nth);
            let after = versions.range(cno..).next().map_or(VERSIONS - 1, |(_, nth)| *nth);
            let rarely = |made| VERSIONS + made / RARELY * RARELY;
            let files = [("file", [before, after]), ("rarely", [before, after].map(rarely))];
            for (name, expected) in files {
                match content(&found.tree, name) {
                    Ok(bytes) => {
                        assert!(expected.iter().any(|it| bytes == version(*it)), "{name} at {cno}");
                    }
                    Err(error) => assert!(destroyed + looked_at > 0, "{name} at {cno}: {error}"),
                }
            }
            looked_at += 1;
        }
        assert!(looked_at > 0);
        // The newest super root goes, so the next one is the newest that is left.
        let end = log.cursor.block.plus(u64::from(log.header.nblocks) - 1);
        overwrite(&device, end.0 * BLOCK);
        if Rescue::open(Arc::clone(&device) as _, Box::new(|_| {})).is_err() {
            break;
        }
    }
}

/// Where what was fsynced after a checkpoint could not be rolled forward, the checkpoint was shown without a
/// word.
#[test]
fn a_rescue_says_that_what_was_fsynced_is_not_there() {
    let device = common::volume(BLOCK, 16);
    let fs = common::mount(&device);
    let file = make(&fs, &fs.root().unwrap().inode, "file");
    fs.commit().unwrap();
    let mut logs = Vec::new();
    for nth in 0..2 {
        fs.write(&file, 0, &version(nth)).unwrap();
        fs.sync_file(&file).unwrap();
        let device = Arc::new(MemoryDevice::from(device.snapshot()));
        let plan = Volume::open(device).unwrap().recovery_plan().unwrap();
        logs.extend(plan.applied.last().map(|log| log.start.0));
    }
    let device = Arc::new(MemoryDevice::from(device.snapshot()));
    let unrecovered = || {
        let mut rescue = Rescue::open(Arc::clone(&device) as _, Box::new(|_| {})).unwrap();
        let newest = rescue.tree(0).unwrap();
        let options = ReadOnlyOptions { rescue: true, ..ReadOnlyOptions::default() };
        let mounted = ReadOnlyVolume::mount(Arc::clone(&device) as _, options).unwrap();
        assert_eq!(rescue.unrecovered(&newest).is_some(), mounted.unrecovered().is_some());
        mounted.unrecovered().map(str::to_owned)
    };
    assert_eq!(unrecovered(), None);
    overwrite(&device, logs[0] * BLOCK);
    let why = unrecovered().expect("a log is missing");
    assert!(why.contains(&format!("block {}", logs[0])), "{why}");
}

//! Roll-forward records as hostile data, and devices that fail while they are applied: a mount refuses
//! or recovers, the same each time, and the checker has said before what is wrong.

mod common;

use std::ops::Range;
use std::sync::Arc;

use common::{make, mount, new, pattern, volume};
use nilfs_check::Rule;
use nilfs_device::{Action, FaultyDevice, MemoryDevice};
use nilfs_engine::{
    BlockNr, Error, Files, Filesystem, Ino, MountOptions, ReadOnlyOptions, ReadOnlyVolume,
    RenameMode, SegNum, SetAttr, Volume,
};
use nilfs_ondisk::crc::Crc;
use nilfs_ondisk::inode::{FileType, S_IFBLK, S_IFDIR};
use nilfs_ondisk::roll_forward::{ExtentRecord, Record, Records};
use nilfs_ondisk::summary::BlockInfo;
use nilfs_ondisk::{ByteCount, FileBlock, VBlockNr};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

const BLOCK: usize = 1024;
/// The seed of the checksums of the volumes of these tests.
const CRC_SEED: u32 = 0x1234_5678;

/// A volume that lost its power after some fsyncs, which have left records of nearly every kind.
fn unrecovered() -> Vec<u8> {
    let device = volume(BLOCK as u64, 5);
    let flash_page = ByteCount(BLOCK as u64);
    let options = MountOptions { flash_page, ..MountOptions::default() };
    let fs = Filesystem::mount(Arc::clone(&device) as _, options).unwrap();
    let root = fs.root().unwrap().inode;
    let dir = fs.create(&root, b"dir", &new(S_IFDIR | 0o755)).unwrap().inode;
    let [small, large, other] = ["small", "large", "other"].map(|name| make(&fs, &dir, name));
    fs.write(&small, 0, &pattern(1, 100)).unwrap();
    fs.write(&large, 0, &pattern(2, 20 * BLOCK)).unwrap();
    fs.sync().unwrap();
    fs.write(&small, 100, b"appended").unwrap();
    fs.sync_file(&small).unwrap();
    fs.write(&large, 10 * BLOCK as u64, &pattern(3, 15 * BLOCK)).unwrap();
    fs.sync_file(&large).unwrap();
    let sub = fs.create(&dir, b"sub", &new(S_IFDIR | 0o755)).unwrap().inode;
    fs.create(&sub, b"disk", &new(S_IFBLK | 0o600)).unwrap();
    fs.symlink(&sub, b"link", b"somewhere", 0, 0).unwrap();
    fs.link(&other, &sub, b"second name").unwrap();
    fs.unlink(&dir, b"small").unwrap();
    fs.sync_file(&sub).unwrap();
    let size = SetAttr { size: Some(5 * BLOCK as u64 + 7), ..SetAttr::default() };
    fs.set_attr(&large, &size).unwrap();
    let replacing = make(&fs, &sub, "new");
    fs.write(&replacing, 0, &pattern(4, 3 * BLOCK)).unwrap();
    fs.rename(&sub, b"new", &dir, b"other", RenameMode::Replace).unwrap();
    fs.sync_file(&large).unwrap();
    device.snapshot()
}

/// Where a log with records is, and its records from their head on, in bytes.
struct Target {
    log: Range<usize>,
    summary: usize,
    records: Range<usize>,
}

fn targets(image: &[u8]) -> Vec<Target> {
    let volume = Volume::open(Arc::new(MemoryDevice::from(image.to_vec()))).unwrap();
    let logs = (0..volume.geometry().nsegments).flat_map(|it| volume.logs(SegNum(it)).unwrap());
    let with_records = logs.filter(|log| log.records().unwrap().is_some());
    let target = |log: nilfs_engine::Log| {
        let start = log.start.0 as usize * BLOCK;
        let summary = log.header.sumbytes as usize;
        let bytes = &image[start..start + summary];
        let head = bytes.windows(4).position(|bytes| bytes == b"NfRf").unwrap();
        Target {
            log: start..start + log.header.nblocks as usize * BLOCK,
            summary,
            records: start + head..start + summary,
        }
    };
    with_records.map(target).collect()
}

/// Gives the log the checksums of what is in it now.
fn seal(image: &mut [u8], target: &Target) {
    let log = &mut image[target.log.clone()];
    for (field, covered) in [(4, 8..target.summary), (0, 4..log.len())] {
        let mut crc = Crc::new(CRC_SEED);
        crc.update(&log[covered]);
        log[field..field + 4].copy_from_slice(&crc.value().to_le_bytes());
    }
}

/// A value that is likely to hurt.
fn value(random: &mut StdRng) -> u64 {
    match random.random_range(0..6) {
        0 => 0,
        1 => u64::MAX,
        2 => random.random_range(0..40),
        3 => random.random_range(0..4096),
        4 => 1 << random.random_range(0..64),
        _ => random.random(),
    }
}

/// Changes fields of records.
fn damage(bytes: &mut [u8], random: &mut StdRng) {
    let used = u32::from_le_bytes(bytes[8..12].try_into().unwrap()) as usize;
    for _ in 0..random.random_range(1..4) {
        let width = [1, 2, 4, 8][random.random_range(0..4)];
        let at = random.random_range(0..used.min(bytes.len()) / width) * width;
        bytes[at..at + width].copy_from_slice(&value(random).to_le_bytes()[..width]);
    }
}

/// Leaves records out, has them twice or in another order, or adds blocks of another file.
fn rearrange(bytes: &mut [u8], random: &mut StdRng) {
    let room = bytes.len();
    let mut records = Records::parse(bytes).unwrap().unwrap();
    let list = &mut records.records;
    let (one, other) = (random.random_range(0..list.len()), random.random_range(0..list.len()));
    match random.random_range(0..4) {
        0 => drop(list.remove(one)),
        1 => list.push(list[one].clone()),
        2 => list.swap(one, other),
        _ => list.push(Record::Extent(ExtentRecord {
            ino: *[list[one].ino(), Ino(12), Ino(value(random))].choose(random).unwrap(),
            offset: FileBlock(value(random)),
            vblocknr: VBlockNr(value(random)),
            block: BlockNr(value(random)),
            count: random.random_range(1..20),
        })),
    }
    if records.size() <= room {
        bytes.fill(0);
        bytes[..records.size()].copy_from_slice(&records.encode());
    }
}

/// All names, with what can be seen of the files.
fn look(files: &dyn Files) -> Vec<String> {
    let mut seen = Vec::new();
    let mut open = vec![(Ino::ROOT, String::new())];
    let mut visited = std::collections::BTreeSet::new();
    while let Some((dir, path)) = open.pop() {
        let mut names = Vec::new();
        let mut list = |entry: nilfs_engine::DirEntry<'_>| {
            names.push((String::from_utf8_lossy(entry.name).into_owned(), entry.ino));
            true
        };
        // A name may lead to what is none, and a directory to itself.
        if !visited.insert(dir) || files.read_dir(dir, 0, &mut list).is_err() {
            continue;
        }
        for (name, ino) in names.into_iter().filter(|(name, _)| name != "." && name != "..") {
            let Ok(mut attr) = files.hold(ino) else { continue };
            attr.blocks = 0;
            let mut content = vec![0; 64 << 10];
            let read = match attr.file_type {
                FileType::Regular => files.read(ino, 0, &mut content).ok(),
                FileType::Directory => {
                    attr.size = 0;
                    open.push((ino, format!("{path}/{name}")));
                    None
                }
                _ => None,
            };
            content.truncate(read.unwrap_or(0));
            let mut crc = Crc::new(0);
            crc.update(&content);
            seen.push(format!("{path}/{name}: {attr:?} {}", crc.value()));
        }
    }
    seen.sort();
    seen
}

/// The message of the first error of the checker, if there is one; whether it is about records. What is
/// in a symbolic link is content, of which records do not say whether it is right.
fn judged(image: &[u8]) -> (Option<String>, bool) {
    let device = MemoryDevice::from(image.to_vec());
    let report = nilfs_check::check(&device, &Default::default()).unwrap();
    let about_records = report.errors().any(|error| error.rule == Rule::RollForward);
    let first = report.errors().find(|error| error.rule != Rule::Symlink);
    (first.map(ToString::to_string), about_records)
}

fn recovered(image: &[u8], options: MountOptions) -> Result<(Vec<String>, Vec<u8>), Error> {
    let device = Arc::new(MemoryDevice::from(image.to_vec()));
    let fs = Filesystem::mount(Arc::clone(&device) as _, options)?;
    let seen = look(&*fs);
    fs.unmount()?;
    Ok((seen, device.snapshot()))
}

/// Damaged volumes for each kind of damage; raise it with NILFS_RECORD_ROUNDS to search for longer.
fn rounds() -> u64 {
    std::env::var("NILFS_RECORD_ROUNDS").map_or(400, |it| it.parse().expect("a number"))
}

#[test]
fn forged_records_are_refused_or_recovered_and_never_worse() {
    let original = unrecovered();
    assert_eq!(judged(&original), (None, false));
    let targets = targets(&original);
    assert!(targets.len() >= 3, "{} logs with records", targets.len());
    let first: u64 = match std::env::var("NILFS_RECORD_SEED") {
        Ok(seed) => seed.parse().expect("a seed is a number"),
        Err(_) => rand::random(),
    };
    let (mut refused, mut applied) = (0, 0);
    for seed in (0..rounds()).map(|round| first.wrapping_add(round)) {
        let what = format!("NILFS_RECORD_SEED={seed}");
        let random = &mut StdRng::seed_from_u64(seed);
        let mut image = original.clone();
        let target = targets.choose(random).unwrap();
        let forge = if random.random() { damage } else { rearrange };
        forge(&mut image[target.records.clone()], random);
        seal(&mut image, target);
        let (error, about_records) = judged(&image);
        let device = Arc::new(MemoryDevice::from(image.clone()));
        let read_only = ReadOnlyVolume::mount(device, ReadOnlyOptions::default());
        match (recovered(&image, MountOptions::default()), read_only) {
            (Ok((seen, after)), Ok(read_only)) => {
                applied += 1;
                assert_eq!(look(read_only.shown()), seen, "{what}: to one that reads");
                if error.is_none() {
                    assert_eq!(
                        judged(&after),
                        (None, false),
                        "{what}: the checker had no objection"
                    );
                }
            }
            (Err(Error::RollForward(why)), Err(Error::RollForward(_))) => {
                refused += 1;
                assert!(about_records, "{what}: refused without a word of the checker: {why}");
                let force = MountOptions { give_up_unrecoverable: true, ..Default::default() };
                let (_, after) = recovered(&image, force).expect(&what);
                judged(&after);
            }
            (writing, reading) => {
                panic!("{what}: {:?}, {:?}", writing.map(drop), reading.map(drop))
            }
        }
    }
    assert!(refused > 0 && applied > 0, "{refused} refused, {applied} applied");
}

#[test]
fn a_device_that_fails_in_the_middle_of_a_recovery_loses_nothing() {
    let image = unrecovered();
    let (expected, _) = recovered(&image, MountOptions::default()).unwrap();
    for requests in 0.. {
        let device = Arc::new(MemoryDevice::from(image.clone()));
        let (failing, faults) = FaultyDevice::new(Arc::clone(&device));
        faults.fail_after(requests, |it| matches!(it.action, Action::Write | Action::Flush));
        let result = Filesystem::mount(Arc::new(failing), MountOptions::default());
        let is_complete = match &result {
            Ok(_) => true,
            Err(error) => {
                assert!(matches!(error, Error::Device { .. }), "after {requests}: {error}");
                false
            }
        };
        drop(result);
        let again = mount(&device);
        assert_eq!(look(&*again), expected, "after {requests} requests");
        again.unmount().unwrap();
        common::check(&*device);
        if is_complete {
            assert!(requests > 3, "a recovery writes");
            break;
        }
    }
}

/// The number of the first block of a file in a log with records.
fn first_number(image: &[u8], target: &Target) -> Option<VBlockNr> {
    let volume = Volume::open(Arc::new(MemoryDevice::from(image.to_vec()))).unwrap();
    let at = BlockNr((target.log.start / BLOCK) as u64);
    let logs = volume.logs(volume.geometry().segment_of(at)).ok()?;
    let log = logs.into_iter().find(|log| log.start == at)?;
    log.files.iter().flat_map(|file| &file.blocks).find_map(|block| match block {
        BlockInfo::Data { vblocknr, .. } => Some(*vblocknr),
        _ => None,
    })
}

/// Maps keep the highest bits of a number for themselves while they are rewritten: a log that had them in
/// the number of a block led to a panic.
#[test]
fn a_block_with_a_number_that_none_can_have_gets_another() {
    let original = unrecovered();
    let (expected, _) = recovered(&original, MountOptions::default()).unwrap();
    let mut forged = 0;
    for target in targets(&original) {
        let Some(number) = first_number(&original, &target) else { continue };
        for wrong in [1 << 62, 1 << 63, u64::MAX].map(VBlockNr) {
            let forge = |at: usize| {
                let mut image = original.clone();
                image[at..at + 8].copy_from_slice(&wrong.0.to_le_bytes());
                seal(&mut image, &target);
                image
            };
            let is_number = |at: &usize| original[*at..at + 8] == number.0.to_le_bytes();
            let places = (target.log.start..target.records.start - 8).filter(is_number);
            let mut images = places.map(forge);
            let image = images.find(|image| first_number(image, &target) == Some(wrong)).unwrap();
            let (seen, after) = recovered(&image, MountOptions::default()).unwrap();
            assert_eq!(seen, expected, "{wrong}");
            assert_eq!(judged(&after), (None, false), "{wrong}");
            forged += 1;
        }
    }
    assert!(forged > 0);
}

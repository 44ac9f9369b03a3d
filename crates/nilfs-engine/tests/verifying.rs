//! Blocks are checked against their checksums when they are read (mount option `verify`): what is not what
//! was written is an error, and never a wrong answer; what is, and what cannot be known, is none.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::{
    LINUX_IMAGES, blocks, check, linux_image, logs, make, new, parameters, pattern, place,
    short_segments,
};
use nilfs_device::{Device, FaultyDevice, IoSlice, MemoryDevice};
use nilfs_engine::scrub::Selection;
use nilfs_engine::scrub_device;
use nilfs_engine::{
    Amount, Checkpoints, CleanerOptions, Error, FileType, Files, Filesystem, Ino, Log, ManualRun,
    MountOptions, ReadOnlyOptions, ReadOnlyVolume, RenameMode, Result, SegNum, SetAttr, Verify,
    Volume,
};
use nilfs_ondisk::crc::{BlockSum, crc32_le};
use nilfs_ondisk::inode::{S_IFDIR, S_IFREG};
use nilfs_ondisk::palloc::Palloc;
use nilfs_ondisk::summary::{BlockInfo, seal_again};
use nilfs_ondisk::{BlockNr, BlockSize, FileBlock, block_sums, dirent};

const BLOCK: u64 = 1024;
const PER_SEGMENT: u64 = 64;
const SEGMENTS: u64 = 60;

fn mount(device: &Arc<MemoryDevice>, verify: Verify) -> Arc<Filesystem> {
    let cleaner = CleanerOptions { protection: Duration::ZERO, ..CleanerOptions::default() };
    let options = MountOptions { cleaner, verify, ..MountOptions::default() };
    Filesystem::mount(Arc::clone(device) as _, options).unwrap()
}

fn look(device: &Arc<MemoryDevice>, verify: Verify) -> Result<ReadOnlyVolume> {
    let options = ReadOnlyOptions { verify, ..ReadOnlyOptions::default() };
    ReadOnlyVolume::mount(Arc::clone(device) as _, options)
}

/// A volume with something of every kind in its newest checkpoint: files with direct maps and with B-trees,
/// a directory of many blocks, a symbolic link.
fn various() -> Arc<MemoryDevice> {
    let device = short_segments(SEGMENTS);
    let fs = mount(&device, Verify::All);
    let root = fs.root().unwrap().inode;
    let small = make(&fs, &root, "small");
    fs.write(&small, 0, &pattern(1, 3 * BLOCK as usize + 100)).unwrap();
    let large = make(&fs, &root, "large");
    fs.write(&large, 0, &pattern(2, 200 * BLOCK as usize)).unwrap();
    let dir = fs.create(&root, b"dir", &new(S_IFDIR | 0o755)).unwrap().inode;
    for nth in 0..150 {
        make(&fs, &dir, &format!("a file with a long name, number {nth}"));
    }
    fs.symlink(&root, b"link", b"small", 0, 0).unwrap();
    fs.unmount().unwrap();
    device
}

/// What programs see of a volume: the content of each file by its path.
type Seen = BTreeMap<Vec<u8>, Vec<u8>>;

fn see(files: &dyn Files, dir: Ino, path: &[u8], seen: &mut Seen) -> Result<()> {
    let mut names = Vec::new();
    files.read_dir(dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    })?;
    for name in names.into_iter().filter(|name| !matches!(&name[..], b"." | b"..")) {
        let attr = files.lookup(dir, &name)?;
        let path = [path, b"/", &name].concat();
        let content = match attr.file_type {
            FileType::Directory => {
                see(files, attr.ino, &path, seen)?;
                Vec::new()
            }
            FileType::Symlink => files.read_link(attr.ino)?,
            FileType::Regular => {
                let mut bytes = vec![0; attr.size.min(1 << 20) as usize];
                files.read(attr.ino, 0, &mut bytes)?;
                bytes
            }
            _ => Vec::new(),
        };
        seen.insert(path, content);
    }
    Ok(())
}

fn see_all(device: &Arc<MemoryDevice>, verify: Verify) -> Result<Seen> {
    let volume = look(device, verify)?;
    volume.checkpoints(Default::default(), usize::MAX)?;
    let mut seen = Seen::new();
    see(&volume, Ino::ROOT, b"", &mut seen)?;
    Ok(seen)
}

fn log_of(device: &Arc<MemoryDevice>, block: BlockNr) -> Log {
    let has =
        |log: &Log| (log.start.0..log.start.0 + u64::from(log.header.nblocks)).contains(&block.0);
    logs(device).into_iter().find(has).expect("it is in a log")
}

fn flip(device: &MemoryDevice, block: BlockNr, offset: u64) {
    let mut byte = [0];
    device.read_at(block.0 * BLOCK + offset, &mut byte).unwrap();
    device.write_at(block.0 * BLOCK + offset, &[IoSlice::new(&[byte[0] ^ 1])]).unwrap();
}

fn copy(device: &MemoryDevice) -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::from(device.snapshot()))
}

/// Fails unless an error is that a block is damaged. Returns what the error says.
#[track_caller]
fn is_damaged<T: std::fmt::Debug>(result: Result<T>, at: BlockNr) -> String {
    match result {
        Err(error @ Error::Damaged { block, .. }) if block == at => error.to_string(),
        other => panic!("block {at}: {other:?}"),
    }
}

fn is_metadata(file_blocks: &BTreeSet<Ino>, ino: Ino, info: &BlockInfo) -> bool {
    !(file_blocks.contains(&ino) && matches!(info, BlockInfo::Data { .. }))
}

fn kind(ino: Ino, info: &BlockInfo) -> (Ino, bool) {
    let is_node = matches!(info, BlockInfo::Node { .. } | BlockInfo::DatNode { .. });
    (ino.min(Ino::FIRST_USER), is_node)
}

/// One bit of metadata had changed, and names were gone or a file was another one, without a word.
#[test]
fn metadata_that_has_changed_is_an_error_and_no_wrong_answer() {
    let device = various();
    let truth = see_all(&device, Verify::Metadata).unwrap();
    let shown = look(&device, Verify::None).unwrap();
    let content = ["small", "large"]
        .map(|name| Files::lookup(&shown, Ino::ROOT, name.as_bytes()).unwrap().ino);
    let (mut found, mut wrong) = (BTreeSet::new(), 0);
    for (nth, (ino, info, block)) in blocks(&device).into_iter().enumerate() {
        if !is_metadata(&content.into(), ino, &info) {
            continue;
        }
        let damaged = copy(&device);
        flip(&damaged, block, (nth as u64 * 37) % BLOCK);
        match see_all(&damaged, Verify::Metadata) {
            Ok(seen) => assert_eq!(seen, truth, "block {block}, {info:?} of inode {ino}"),
            Err(Error::Damaged { block: named, .. }) => {
                assert_eq!(named, block);
                found.insert(kind(ino, &info));
            }
            Err(error) => panic!("block {block}, {info:?} of inode {ino}: {error}"),
        }
        wrong += u64::from(!see_all(&damaged, Verify::None).is_ok_and(|seen| seen == truth));
    }
    let inner = [Ino::DAT, Ino::CPFILE, Ino::SUFILE, Ino::IFILE];
    let expected = inner.map(|ino| (ino, false)).into_iter().chain([
        (Ino::DAT, true),
        (Ino::IFILE, true),
        (Ino::ROOT, false),
        (Ino::FIRST_USER, false),
        (Ino::FIRST_USER, true),
    ]);
    assert_eq!(found, expected.collect(), "kinds of blocks");
    assert!(wrong > 0, "without checks something is wrong");
}

#[test]
fn content_that_has_changed_costs_that_range_if_all_is_verified() {
    let device = various();
    let file =
        Files::lookup(&look(&device, Verify::All).unwrap(), Ino::ROOT, b"large").unwrap().ino;
    let at = place(&device, file, 70);
    flip(&device, at, 5);
    let truth = pattern(2, 200 * BLOCK as usize);
    let read = |verify, offset: u64, length: u64| {
        let mut bytes = vec![0; length as usize];
        let count = Files::read(&look(&device, verify)?, file, offset, &mut bytes)?;
        assert_eq!(count, bytes.len());
        Ok(bytes == truth[offset as usize..(offset + length) as usize])
    };
    let (start, end) = (70 * BLOCK, 71 * BLOCK);
    for (from, length) in [(0, 200 * BLOCK), (start, BLOCK), (start + 7, 9), (start - 3, 4)] {
        let message = is_damaged(read(Verify::All, from, length), at);
        let part = format!("bytes {start} to {} of inode {file}", end - 1);
        assert!(message.contains(&part), "{message}");
        for lenient in [Verify::None, Verify::Metadata] {
            assert!(read(lenient, from, length).is_ok(), "as it is");
        }
    }
    for (from, length) in [(0, start), (start - 9, 9), (end, 9), (end, 200 * BLOCK - end)] {
        assert!(read(Verify::All, from, length).unwrap(), "{length} bytes from {from}");
    }
    let mut others = Seen::new();
    let look = look(&device, Verify::All).unwrap();
    let dir = Files::lookup(&look, Ino::ROOT, b"dir").unwrap().ino;
    see(&look, dir, b"", &mut others).unwrap();
    assert_eq!(others.len(), 150);
}

/// A block of which a part was overwritten got a checksum that made its damage right.
#[test]
fn a_part_of_a_damaged_block_cannot_be_overwritten_and_the_whole_can() {
    for verify in [Verify::Metadata, Verify::All] {
        let device = various();
        let fs = mount(&device, verify);
        let file = fs.lookup(&fs.root().unwrap().inode, b"large").unwrap().inode;
        let at = place(&device, file.ino(), 3);
        flip(&device, at, 0);
        is_damaged(fs.write(&file, 3 * BLOCK + 9, b"a part"), at);
        let shorter = SetAttr { size: Some(3 * BLOCK + 9), ..SetAttr::default() };
        is_damaged(fs.set_attr(&file, &shorter), at);
        fs.write(&file, 4 * BLOCK + 9, b"a part of another").unwrap();
        fs.commit().unwrap();
        fs.write(&file, 3 * BLOCK, &[7; BLOCK as usize]).unwrap();
        fs.commit().unwrap();
        fs.unmount().unwrap();
        let mut bytes = [0; BLOCK as usize];
        Files::read(&look(&device, Verify::All).unwrap(), file.ino(), 3 * BLOCK, &mut bytes)
            .unwrap();
        assert_eq!(bytes, [7; BLOCK as usize]);
    }
}

/// A mount was refused, because an fsync had written a few bytes into a block, or cut it off within, that was
/// damaged.
#[test]
fn what_was_synced_of_a_part_of_a_damaged_block_is_lost_with_it_and_nothing_else() {
    let shorter = SetAttr { size: Some(199 * BLOCK + 9), ..SetAttr::default() };
    for is_cut in [false, true] {
        let device = various();
        let fs = mount(&device, Verify::Metadata);
        let root = fs.root().unwrap().inode;
        let [large, small] =
            ["large", "small"].map(|it| fs.lookup(&root, it.as_bytes()).unwrap().inode);
        match is_cut {
            true => _ = fs.set_attr(&large, &shorter).unwrap(),
            false => fs.write(&large, 199 * BLOCK + 5, b"part").unwrap(),
        }
        fs.sync_file(&large).unwrap();
        fs.write(&small, 5, b"synced").unwrap();
        fs.sync_file(&small).unwrap();
        let crashed = copy(&device);
        let at = place(&crashed, large.ino(), 199);
        flip(&crashed, at, 0);
        let fs = mount(&crashed, Verify::Metadata);
        let mut bytes = [0; 6];
        Files::read(&*fs, small.ino(), 5, &mut bytes).unwrap();
        assert_eq!(&bytes, b"synced");
        assert_eq!(
            Files::attr(&*fs, large.ino()).unwrap().size,
            if is_cut { 199 * BLOCK + 9 } else { 200 * BLOCK }
        );
        fs.unmount().unwrap();
        let all = look(&crashed, Verify::All).unwrap();
        let mut bytes = vec![0; 199 * BLOCK as usize];
        Files::read(&all, large.ino(), 0, &mut bytes).unwrap();
        is_damaged(Files::read(&all, large.ino(), 199 * BLOCK, &mut [0; 9]), at);
    }
}

/// A commit that changed one inode made a new checksum for all others in the block.
#[test]
fn damaged_metadata_gets_no_checksum_that_is_right() {
    let device = various();
    let fs = mount(&device, Verify::Metadata);
    let root = fs.root().unwrap().inode;
    let dir = fs.lookup(&root, b"dir").unwrap().inode;
    let last = fs.lookup(&dir, b"a file with a long name, number 149").unwrap().inode.ino();
    fs.unmount().unwrap();
    // The block of the ifile with the last inodes, and a part of it that means nothing.
    let is_of_ifile = |(ino, info, _): &(Ino, BlockInfo, BlockNr)| {
        *ino == Ino::IFILE && matches!(info, BlockInfo::Data { .. })
    };
    let at = blocks(&device).into_iter().rfind(is_of_ifile).unwrap().2;
    flip(&device, at, BLOCK - 1);
    let fs = mount(&device, Verify::Metadata);
    let dir = fs.lookup(&fs.root().unwrap().inode, b"dir").unwrap().inode;
    is_damaged(fs.lookup(&dir, b"a file with a long name, number 149"), at);
    assert!(fs.lookup(&dir, b"a file with a long name, number 0").is_ok());
    for nth in 0..20 {
        // Some of these take numbers in that block.
        let made = fs.create(&dir, format!("new {nth}").as_bytes(), &new(0o100_644));
        if made.is_err() {
            break;
        }
    }
    drop(fs.commit());
    drop(fs.unmount());
    let found = scrub_device(&(Arc::clone(&device) as _), &Selection::default(), &mut |_| {
        ControlFlow::Continue(())
    });
    let places: Vec<_> = found.unwrap().damage.into_iter().map(|it| it.blocks).collect();
    assert_eq!(
        places,
        [at..at.plus(1)],
        "inode {last} is still in a block that is known as damaged"
    );
}

/// Names of a directory, and the error with which listing it ends. A few are asked for at a time, as a kernel
/// does.
fn list(files: &dyn Files, dir: Ino) -> (BTreeSet<Vec<u8>>, Option<Error>) {
    let (mut names, mut cookie) = (BTreeSet::new(), 0);
    loop {
        let (mut count, from) = (0, cookie);
        let listed = files.read_dir(dir, from, &mut |entry| {
            assert!(names.insert(entry.name.to_vec()), "listed twice");
            cookie = entry.next;
            count += 1;
            count < 10
        });
        if cookie == from {
            return (names, listed.err());
        }
    }
}

/// A volume with 150 names in "dir", one block of which is damaged: the directory, the block, and the names
/// that are in it.
fn with_damaged_directory() -> (Arc<MemoryDevice>, Ino, BlockNr, BTreeSet<Vec<u8>>) {
    let device = various();
    let sound = look(&device, Verify::Metadata).unwrap();
    let dir = Files::lookup(&sound, Ino::ROOT, b"dir").unwrap().ino;
    let at = place(&device, dir, 3);
    let mut block = vec![0; BLOCK as usize];
    device.read_at(at.0 * BLOCK, &mut block).unwrap();
    let lost = dirent::records(&block).map(|record| record.unwrap().name.to_vec());
    let lost: BTreeSet<_> = lost.filter(|name| !name.is_empty()).collect();
    assert!(lost.len() > 10);
    flip(&device, at, BLOCK - 1);
    (device, dir, at, lost)
}

/// One bad block of a directory hid all names of it from a mount that writes, and from all others if the
/// directory had more than four.
#[test]
fn a_damaged_block_of_a_directory_costs_the_names_in_it() {
    let (device, dir, at, lost) = with_damaged_directory();
    let all: BTreeSet<_> = list(&look(&device, Verify::None).unwrap(), dir).0;
    // With an index of names, and without room for one.
    for cache_limit in [64 << 20, 0] {
        let options = MountOptions { cache_limit, ..MountOptions::default() };
        let fs = Filesystem::mount(copy(&device) as _, options).unwrap();
        let read_only = ReadOnlyOptions { cache_limit, ..ReadOnlyOptions::default() };
        let read_only = ReadOnlyVolume::mount(Arc::clone(&device) as _, read_only).unwrap();
        let past = Checkpoints::tree(&*fs, None).unwrap();
        for (view, files) in [("fs", &*fs as &dyn Files), ("ro", &read_only), ("past", &past)] {
            for round in 0..2 {
                let (names, error) = list(files, dir);
                let expected: BTreeSet<_> = all.difference(&lost).cloned().collect();
                assert!(names == expected, "{view}, round {round}: {} names", names.len());
                let message = is_damaged(error.map_or(Ok(()), Err), at);
                let part = format!("bytes {} to {} of inode {dir}", 3 * BLOCK, 4 * BLOCK - 1);
                assert!(message.contains(&part), "{view}: {message}");
                for name in &all {
                    let found = files.lookup(dir, name);
                    match lost.contains(name) {
                        true => _ = is_damaged(found, at),
                        false => assert!(found.is_ok(), "{view}: {found:?}"),
                    }
                }
                // It may be there.
                is_damaged(files.lookup(dir, b"another"), at);
            }
        }
    }
}

/// A name that may be in the damaged block would be there twice.
#[test]
fn names_are_taken_out_of_a_damaged_directory_and_none_is_put_into_it() {
    let (device, dir, at, lost) = with_damaged_directory();
    for cache_limit in [64 << 20, 0] {
        let device = copy(&device);
        let options = MountOptions { cache_limit, ..MountOptions::default() };
        let fs = Filesystem::mount(Arc::clone(&device) as _, options).unwrap();
        let (root, dir) = (fs.root().unwrap().inode, fs.by_number(dir).unwrap());
        let small = fs.lookup(&root, b"small").unwrap().inode;
        let name = |nth| format!("a file with a long name, number {nth}").into_bytes();
        assert!([0, 1, 149].iter().all(|nth| !lost.contains(&name(*nth))));
        let lost = lost.first().unwrap();
        let replace = RenameMode::Replace;
        for name in [&b"another"[..], lost] {
            is_damaged(fs.create(&dir, name, &new(S_IFREG | 0o644)), at);
            is_damaged(fs.link(&small, &dir, name), at);
            is_damaged(fs.rename(&root, b"small", &dir, name, replace), at);
            is_damaged(fs.unlink(&dir, name), at);
        }
        fs.unlink(&dir, &name(0)).unwrap();
        fs.rename(&dir, &name(1), &root, b"moved", replace).unwrap();
        fs.rename(&root, b"small", &dir, &name(149), replace).unwrap();
        fs.commit().unwrap();
        assert!(matches!(fs.rmdir(&root, b"dir"), Err(Error::NotEmpty)));
        let listed = list(&*fs, dir.ino()).0;
        let dots = |name: &&Vec<u8>| !matches!(&name[..], b"." | b"..");
        listed.iter().filter(dots).for_each(|name| fs.unlink(&dir, name).unwrap());
        is_damaged(fs.rmdir(&root, b"dir"), at);
        let other = fs.create(&root, b"other", &new(S_IFDIR | 0o755)).unwrap().inode;
        is_damaged(fs.rename(&root, b"other", &root, b"dir", replace), at);
        is_damaged(fs.create(&dir, b"another", &new(S_IFREG | 0o644)), at);
        drop((small, other));
        fs.unmount().unwrap();
        let (names, error) = list(&look(&device, Verify::Metadata).unwrap(), dir.ino());
        assert_eq!(names.len(), 2);
        is_damaged(error.map_or(Ok(()), Err), at);
    }
}

/// It was in both directories then, because the entry for its parent is changed last.
#[test]
fn a_directory_whose_first_block_is_damaged_stays_with_its_parent() {
    let device = various();
    let sound = look(&device, Verify::Metadata).unwrap();
    let at = place(&device, Files::lookup(&sound, Ino::ROOT, b"dir").unwrap().ino, 0);
    flip(&device, at, BLOCK - 1);
    let fs = mount(&device, Verify::Metadata);
    let root = fs.root().unwrap().inode;
    let other = fs.create(&root, b"other", &new(S_IFDIR | 0o755)).unwrap().inode;
    let inner = fs.create(&other, b"inner", &new(S_IFDIR | 0o755)).unwrap().inode;
    is_damaged(fs.rename(&root, b"dir", &other, b"dir", RenameMode::Replace), at);
    is_damaged(fs.rename(&root, b"dir", &other, b"inner", RenameMode::Exchange), at);
    fs.rename(&root, b"dir", &root, b"renamed", RenameMode::Replace).unwrap();
    let inner = inner.ino();
    let found = |dir, name: &[u8]| fs.lookup(dir, name).map(|found| found.inode.ino());
    assert!(matches!(found(&other, b"dir"), Err(Error::NotFound)));
    assert_eq!(found(&other, b"inner").unwrap(), inner);
    assert!(found(&root, b"renamed").is_ok());
}

/// A mount was refused, because an fsync had written names of a directory of which a block was damaged.
#[test]
fn what_was_synced_of_a_damaged_directory_is_there_but_for_names_that_may_be_in_the_block() {
    let device = various();
    let fs = mount(&device, Verify::Metadata);
    let root = fs.root().unwrap().inode;
    let dir = fs.lookup(&root, b"dir").unwrap().inode;
    let name = |nth| format!("a file with a long name, number {nth}").into_bytes();
    let all = list(&*fs, dir.ino()).0;
    let other = fs.create(&root, b"other", &new(S_IFDIR | 0o755)).unwrap().inode;
    fs.commit().unwrap();
    let in_block = |nth| {
        let mut block = vec![0; BLOCK as usize];
        device.read_at(place(&device, dir.ino(), nth).0 * BLOCK, &mut block).unwrap();
        let names = dirent::records(&block).map(|record| record.unwrap().name.to_vec());
        names.filter(|name| !matches!(&name[..], b"" | b"." | b"..")).collect::<Vec<_>>()
    };
    let [first, third] = [0, 3].map(in_block);
    let made = [b"made 0", b"made 3"];
    for (names, made) in [&first, &third].into_iter().zip(made) {
        fs.unlink(&dir, &names[0]).unwrap();
        fs.rename(&root, b"small", &dir, &names[1], RenameMode::Replace).unwrap();
        fs.rename(&dir, &names[1], &root, b"small", RenameMode::Replace).unwrap();
        fs.rename(&dir, &names[2], &other, &names[2], RenameMode::Replace).unwrap();
        let made = fs.create(&dir, made, &new(S_IFREG | 0o644)).unwrap().inode;
        fs.write(&made, 0, b"content").unwrap();
    }
    fs.rename(&root, b"small", &dir, &third[3], RenameMode::Replace).unwrap();
    fs.rename(&root, b"dir", &other, b"dir", RenameMode::Replace).unwrap();
    fs.unlink(&dir, &name(149)).unwrap();
    fs.set_attr(&dir, &SetAttr { mode: Some(0o700), ..SetAttr::default() }).unwrap();
    for name in made {
        fs.sync_file(&fs.lookup(&dir, name).unwrap().inode).unwrap();
    }
    let dir = dir.ino();
    let removed = [&first[..3], &third[..3], &[name(149)]].concat();
    for (nth, cache_limit) in [(0, 64 << 20), (0, 0), (3, 64 << 20), (3, 0)] {
        let device = copy(&device);
        let at = place(&device, dir, nth);
        let lost: BTreeSet<_> = if nth == 0 { &first } else { &third }.iter().cloned().collect();
        flip(&device, at, BLOCK - 1);
        let options = ReadOnlyOptions { cache_limit, ..ReadOnlyOptions::default() };
        let read_only = ReadOnlyVolume::mount(copy(&device) as _, options).unwrap();
        let options = MountOptions { cache_limit, ..MountOptions::default() };
        let fs = Filesystem::mount(Arc::clone(&device) as _, options).unwrap();
        for files in [&read_only as &dyn Files, &*fs] {
            let (names, error) = list(files, dir);
            is_damaged(error.map_or(Ok(()), Err), at);
            let mut expected: BTreeSet<_> = all.difference(&lost).cloned().collect();
            removed.iter().for_each(|name| _ = expected.remove(name));
            expected.extend(made.map(|name| name.to_vec()));
            // It leads to another file now, so it was written again.
            expected.insert(third[3].clone());
            if nth == 0 {
                [&b"."[..], b".."].iter().for_each(|name| _ = expected.remove(*name));
            }
            assert_eq!(names, expected, "block {nth}");
            for name in made {
                let found = files.lookup(dir, name).unwrap();
                let mut bytes = [0; 7];
                files.read(found.ino, 0, &mut bytes).unwrap();
                assert_eq!(&bytes, b"content");
            }
            let other = files.lookup(Ino::ROOT, b"other").unwrap().ino;
            assert_eq!(files.lookup(other, b"dir").unwrap().ino, dir);
            assert!(files.lookup(other, &third[2]).is_ok());
            assert!(matches!(files.lookup(Ino::ROOT, b"dir"), Err(Error::NotFound)));
        }
        assert!(!fs.is_read_only());
        make(&fs, &fs.root().unwrap().inode, "later");
        fs.unmount().unwrap();
    }
}

/// Volumes that have lost power, each with a damaged block of the DAT. An old log is in every clean segment that
/// has written blocks with numbers in there.
fn crashed_with_damaged_dat() -> Vec<(Arc<MemoryDevice>, BlockNr)> {
    let device = various();
    let fs = mount(&device, Verify::All);
    let root = fs.root().unwrap().inode;
    // Some of these blocks have no number of what is there now.
    let gone = make(&fs, &root, "gone");
    fs.write(&gone, 0, &pattern(3, 200 * BLOCK as usize)).unwrap();
    fs.commit().unwrap();
    fs.unlink(&root, b"gone").unwrap();
    drop(gone);
    fs.commit().unwrap();
    let file = fs.lookup(&root, b"small").unwrap().inode;
    fs.write(&file, 0, b"the last").unwrap();
    fs.sync_file(&file).unwrap();
    let device = copy(&device);
    let size = BlockSize::from_bytes(BLOCK).unwrap();
    let volume = Volume::open(Arc::clone(&device) as _).unwrap();
    let segments = volume.segments(SegNum(0)).unwrap();
    let clean = segments.iter().filter(|it| !it.dirty && !it.active);
    let clean: Vec<_> = clean.map(|it| volume.geometry().segment_start(it.segment)).collect();
    let layout = Palloc::new(size, volume.geometry().dat_entry_size);
    let dat: BTreeMap<FileBlock, BlockNr> = blocks(&device)
        .into_iter()
        .filter_map(|(_, info, at)| match info {
            BlockInfo::DatData { offset } => Some((offset, at)),
            _ => None,
        })
        .collect();
    let mut damaged = BTreeMap::new();
    for log in logs(&device) {
        for info in log.files.iter().flat_map(|it| &it.blocks) {
            let Some(number) = info.vblock() else { continue };
            let Some(&at) = dat.get(&layout.entry(number.0).block) else { continue };
            damaged.entry(at).or_insert_with(|| {
                let device = copy(&device);
                flip(&device, at, BLOCK - 1);
                let summary = (log.header.summary_blocks(size) * BLOCK) as usize;
                let old = bytes_of(&device, &log);
                for start in &clean {
                    device.write_at(start.0 * BLOCK, &[IoSlice::new(&old[..summary])]).unwrap();
                }
                device
            });
        }
    }
    damaged.into_iter().map(|(at, device)| (device, at)).collect()
}

/// Where it could not be told whether a segment is free, a mount after a crash had "no room to recover", and
/// no error told of the damage.
#[test]
fn where_damage_leaves_no_place_for_a_recovery_all_is_shown_and_nothing_is_written() {
    let mut shown = 0;
    for (device, at) in crashed_with_damaged_dat() {
        let before = device.snapshot();
        let only_read = see_all(&device, Verify::Metadata);
        let fs = match Filesystem::mount(Arc::clone(&device) as _, MountOptions::default()) {
            Ok(fs) => fs,
            // That block is needed to find any file.
            Err(error) => {
                assert!(!matches!(error, Error::NoRoomToRecover) && only_read.is_err(), "{error}");
                continue;
            }
        };
        let mut seen = Seen::new();
        let is_all = see(&*fs, Ino::ROOT, b"", &mut seen).is_ok();
        assert!(only_read.map_or(!is_all, |only_read| seen == only_read));
        assert!(!is_all || seen[&b"/small"[..]].starts_with(b"the last"));
        let refused = fs.create(&fs.root().unwrap().inode, b"new", &new(S_IFREG | 0o644));
        let refused = refused.unwrap_err().to_string();
        let names = |what: &str| assert!(refused.contains(what), "{refused}");
        [&format!("block {at}, "), "of the DAT", "nilfs fsck"].into_iter().for_each(names);
        assert_eq!(fs.unrecovered().map(|damage| refused.ends_with(&damage)), Some(true));
        shown += u32::from(is_all && refused.contains("no segment can be written"));
        fs.unmount().unwrap();
        assert!(device.snapshot() == before);
    }
    assert!(shown > 0);
}

/// The device's error ended a mount that could have shown everything: only the next checkpoint needs the block. Where
/// fsyncs cannot be rolled forward without it, a mount fails: it showed the checkpoint without them instead.
#[test]
fn where_the_next_checkpoint_needs_what_cannot_be_read_all_is_shown() {
    let device = various();
    let fs = mount(&device, Verify::All);
    let file = fs.lookup(&fs.root().unwrap().inode, b"small").unwrap().inode;
    fs.write(&file, 0, b"the last").unwrap();
    fs.sync_file(&file).unwrap();
    let crashed = copy(&device);
    let (mut shown, mut refused) = (0, 0);
    for (_, _, at) in blocks(&crashed) {
        let (device, faults) = FaultyDevice::new(copy(&crashed));
        faults.scratch(std::iter::once(at.0 * BLOCK..(at.0 + 1) * BLOCK));
        let device: Arc<dyn Device> = Arc::new(device);
        let look = ReadOnlyVolume::mount(Arc::clone(&device), ReadOnlyOptions::default());
        let Ok(look) = look else {
            assert!(Filesystem::mount(device, MountOptions::default()).is_err(), "block {at}");
            refused += 1;
            continue;
        };
        let mut only_read = Seen::new();
        if see(&look, Ino::ROOT, b"", &mut only_read).is_err() {
            continue;
        }
        let fs = Filesystem::mount(device, MountOptions::default()).unwrap();
        let mut seen = Seen::new();
        see(&*fs, Ino::ROOT, b"", &mut seen).unwrap();
        assert!(seen == only_read, "block {at}");
        shown += u32::from(fs.unrecovered().is_some_and(|why| why.contains("failed to read")));
    }
    assert!(shown > 0 && refused > 0);
}

#[test]
fn damage_is_met_by_readers_wherever_its_block_is_moved() {
    let device = various();
    let fs = mount(&device, Verify::All);
    let file = fs.lookup(&fs.root().unwrap().inode, b"large").unwrap().inode;
    flip(&device, place(&device, file.ino(), 9), 0);
    let mut places = BTreeSet::new();
    for _ in 0..3 {
        let at = place(&device, file.ino(), 9);
        places.insert(at);
        let mut byte = [0];
        is_damaged(fs.read(&file, 9 * BLOCK, &mut byte), at);
        assert_eq!(fs.read(&file, 10 * BLOCK, &mut byte).unwrap(), 1);
        let segment = SegNum(at.0 / PER_SEGMENT);
        assert!(fs.evacuate([segment].into(), &mut |_| {}).unwrap().is_empty());
    }
    assert_eq!(places.len(), 3, "it was moved");
    fs.unmount().unwrap();
    let at = place(&device, file.ino(), 9);
    let mut byte = [0];
    is_damaged(
        Files::read(&look(&device, Verify::All).unwrap(), file.ino(), 9 * BLOCK, &mut byte),
        at,
    );
}

#[test]
fn volumes_of_linux_are_read_without_an_error() {
    for name in LINUX_IMAGES {
        let device = linux_image(name);
        assert_eq!(
            see_all(&device, Verify::All).unwrap(),
            see_all(&device, Verify::None).unwrap(),
            "{name}"
        );
    }
}

/// Of a log in which one block of a file has changed: what else must say that it is not damage.
fn is_no_error(what: &str, change: impl Fn(&MemoryDevice, &Log)) {
    let device = various();
    let fs = mount(&device, Verify::All);
    let root = fs.root().unwrap().inode;
    let file = fs.lookup(&root, b"large").unwrap().inode.ino();
    // A mount knows where the newest log is, and finds others.
    make(&fs, &root, "later");
    drop(root);
    fs.unmount().unwrap();
    let at = place(&device, file, 30);
    let log = log_of(&device, at);
    flip(&device, at, 5);
    change(&device, &log);
    assert_eq!(see_all(&device, Verify::All).unwrap().len(), 155, "{what}");
}

fn bytes_of(device: &MemoryDevice, log: &Log) -> Vec<u8> {
    let size = BlockSize::from_bytes(BLOCK).unwrap();
    let mut bytes = vec![0; (log.header.described_blocks(size) * BLOCK) as usize];
    device.read_at(log.start.0 * BLOCK, &mut bytes).unwrap();
    bytes
}

#[test]
fn what_cannot_be_known_is_no_error() {
    let size = BlockSize::from_bytes(BLOCK).unwrap();
    is_no_error("an older fsck has corrected it, and the checksum of the log", |device, log| {
        let sum = crc32_le(parameters(BLOCK).crc_seed, &bytes_of(device, log)[4..]);
        device.write_at(log.start.0 * BLOCK, &[IoSlice::new(&sum.to_le_bytes())]).unwrap();
    });
    is_no_error("the log has no checksums of blocks", |device, log| {
        let mut bytes = bytes_of(device, log);
        let summary = (log.header.summary_blocks(size) * BLOCK) as usize;
        let (summary, payload) = bytes.split_at_mut(summary);
        let sums: Vec<BlockSum> = payload.chunks(BLOCK as usize).map(BlockSum::of).collect();
        let table = log.header.sumbytes as usize - block_sums::size(sums.len() as u64);
        summary[table..].fill(0);
        seal_again(summary, &log.header, &sums, size, parameters(BLOCK).crc_seed);
        device.write_at(log.start.0 * BLOCK, &[IoSlice::new(summary)]).unwrap();
    });
    is_no_error("the checksums are damaged themselves", |device, log| {
        let end = u64::from(log.header.sumbytes) - 1;
        flip(device, log.start.plus(end / BLOCK), end % BLOCK);
    });
    is_no_error("no way leads to the log", |device, log| {
        let volume = Volume::open_with(copy(device) as _, Verify::None).unwrap();
        let geometry = volume.geometry();
        let first = geometry.segment_start(geometry.segment_of(log.start));
        // A part of the magic number.
        flip(device, first, 8);
    });
}

/// Segments are used again and again, by the log and by the cleaner, while others read, the past as well.
#[test]
fn readers_meet_no_damage_where_none_is_however_often_segments_are_used() {
    for seed in 0..4 {
        let device = short_segments(SEGMENTS);
        // Hardly anything is cached.
        let cleaner = CleanerOptions { protection: Duration::ZERO, ..CleanerOptions::default() };
        let cache_limit = if seed % 2 == 0 { 0 } else { 1 << 20 };
        let options =
            MountOptions { cleaner, verify: Verify::All, cache_limit, ..MountOptions::default() };
        let fs = Filesystem::mount(Arc::clone(&device) as _, options).unwrap();
        let root = fs.root().unwrap().inode;
        let files: Vec<_> = (0..6).map(|nth| make(&fs, &root, &format!("{nth}"))).collect();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let (fs, files, done) = (&fs, &files, &done);
            for reader in 0..2 {
                scope.spawn(move || {
                    let mut bytes = vec![0; 40 * BLOCK as usize];
                    while !done.load(Ordering::Acquire) {
                        for file in files {
                            let offset = if reader == 0 { 0 } else { 77 };
                            fs.read(file, offset, &mut bytes).unwrap();
                        }
                        let past = Checkpoints::tree(&**fs, None).unwrap();
                        see(&past, Ino::ROOT, b"", &mut Seen::new()).unwrap();
                    }
                });
            }
            let mut random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed + 1);
            let run = ManualRun { min_reclaimable: Some(Amount::Count(1)), ..ManualRun::default() };
            let rounds = 300;
            for round in 0..rounds {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round);
                let file = &files[(random >> 33) as usize % files.len()];
                let offset = (random >> 40) % 30 * BLOCK / (1 + random % 2);
                fs.write(file, offset, &pattern(round as usize, 3000)).unwrap();
                match random >> 20 & 3 {
                    0 => fs.sync_file(file).unwrap(),
                    1 => _ = fs.commit().unwrap(),
                    2 => _ = fs.clean(&run).unwrap(),
                    _ => {}
                }
            }
            done.store(true, Ordering::Release);
        });
        let used = fs.status().blocks_written;
        assert!(used > 2 * SEGMENTS * PER_SEGMENT, "every segment was used again: {used}");
        fs.unmount().unwrap();
        see_all(&device, Verify::All).unwrap();
        check(&*device);
    }
}

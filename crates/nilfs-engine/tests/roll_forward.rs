//! What an fsync makes durable without a checkpoint, and what a crash leaves of it
//! (docs/crash-safety.md).

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use common::{check, content, make, mount, new, pattern, volume};
use nilfs_check::Options;
use nilfs_device::{Device, IoSlice, MemoryDevice};
use nilfs_engine::{
    Attr, Error, Files, Filesystem, FsyncBy, Ino, InodeRef, Log, MountOptions, ReadOnlyOptions,
    ReadOnlyVolume, RenameMode, SetAttr, SetTime, Superblocks, Timestamp,
};
use nilfs_ondisk::inode::{S_IFCHR, S_IFDIR};
use nilfs_ondisk::summary::SR;

const BLOCK: usize = 1024;

/// A file as a program sees it.
#[derive(Debug, PartialEq)]
struct Seen {
    attr: Attr,
    content: Vec<u8>,
}

/// All files by path. What a directory takes on the device is nobody's business.
fn tree(files: &dyn Files) -> BTreeMap<String, Seen> {
    let mut found = BTreeMap::new();
    let mut open = vec![(String::new(), Ino::ROOT)];
    while let Some((path, dir)) = open.pop() {
        let mut names = Vec::new();
        let list = |entry: nilfs_engine::DirEntry<'_>| {
            names.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.ino));
            true
        };
        files.read_dir(dir, 0, &mut { list }).unwrap();
        for (name, ino) in names {
            if name == "." {
                continue;
            }
            let path = format!("{path}/{name}");
            let mut attr = files.hold(ino).unwrap();
            // How many nodes a map has is known when it is written.
            attr.blocks = 0;
            let mut content = Vec::new();
            match attr.file_type {
                nilfs_engine::FileType::Directory => {
                    attr.size = 0;
                    if name != ".." {
                        open.push((path.clone(), ino));
                    }
                }
                nilfs_engine::FileType::Symlink => content = files.read_link(ino).unwrap(),
                nilfs_engine::FileType::Regular => {
                    content = vec![0; attr.size as usize];
                    assert_eq!(files.read(ino, 0, &mut content).unwrap(), content.len());
                }
                _ => {}
            }
            found.insert(path, Seen { attr, content });
        }
    }
    found
}

/// Fails with what differs, but not with kilobytes of content.
fn same(found: &BTreeMap<String, Seen>, expected: &BTreeMap<String, Seen>, what: &str) {
    let paths: BTreeSet<&String> = found.keys().chain(expected.keys()).collect();
    for path in paths {
        let attr = |tree: &BTreeMap<String, Seen>| tree.get(path).map(|seen| seen.attr);
        assert_eq!(attr(found), attr(expected), "{what}: {path}");
        let differs = |(one, other): (&u8, &u8)| one != other;
        let at = found[path].content.iter().zip(&expected[path].content).position(differs);
        assert_eq!(at, None, "{what}: where the content of {path} differs");
    }
}

fn copy_of(device: &MemoryDevice) -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::from(device.snapshot()))
}

/// What a power cut leaves: the same for a mount that writes, once and again, and for one that reads.
fn after_a_cut(device: &MemoryDevice) -> BTreeMap<String, Seen> {
    check(device);
    let cut = copy_of(device);
    let read_only =
        ReadOnlyVolume::mount(Arc::clone(&cut) as _, ReadOnlyOptions::default()).unwrap();
    let seen = tree(read_only.shown());
    drop(read_only);
    let recovered = mount(&cut);
    same(&tree(&*recovered), &seen, "a mount that writes, and one that reads");
    check(&*cut);
    recovered.unmount().unwrap();
    drop(recovered);
    check(&*cut);
    let again = mount(&cut);
    same(&tree(&*again), &seen, "the recovery is a checkpoint");
    seen
}

fn lookup(fs: &Filesystem, path: &str) -> InodeRef {
    path.split('/')
        .filter(|name| !name.is_empty())
        .fold(fs.root().unwrap().inode, |dir, name| fs.lookup(&dir, name.as_bytes()).unwrap().inode)
}

/// A volume with a little of everything, in a checkpoint.
fn furnished() -> (Arc<MemoryDevice>, Arc<Filesystem>) {
    let device = volume(BLOCK as u64, 16);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let dir = fs.create(&root, b"dir", &new(S_IFDIR | 0o755)).unwrap().inode;
    for (name, size) in [("empty", 0), ("small", 100), ("large", 20 * BLOCK + 300)] {
        let file = make(&fs, &dir, name);
        fs.write(&file, 0, &pattern(size, size)).unwrap();
    }
    fs.symlink(&root, b"link", b"dir/small", 1, 2).unwrap();
    fs.sync().unwrap();
    (device, fs)
}

type Change = fn(&Filesystem);

/// One change each of every kind, and the file that is then fsynced.
const CHANGES: &[(&str, Change)] = &[
    ("dir/small", |fs| {
        fs.write(&lookup(fs, "dir/small"), 100, b"appended").unwrap();
    }),
    ("dir/large", |fs| {
        fs.write(&lookup(fs, "dir/large"), 1000, &pattern(6, 3000)).unwrap();
    }),
    ("dir/large", |fs| {
        let large = lookup(fs, "dir/large");
        fs.write(&large, 20 * BLOCK as u64, &pattern(1, 5 * BLOCK)).unwrap();
        fs.write(&large, 3, b"a few bytes").unwrap();
    }),
    ("dir/large", |fs| {
        let size = SetAttr { size: Some(2 * BLOCK as u64 + 7), ..SetAttr::default() };
        fs.set_attr(&lookup(fs, "dir/large"), &size).unwrap();
        let size = SetAttr { size: Some(9 * BLOCK as u64), ..SetAttr::default() };
        fs.set_attr(&lookup(fs, "dir/large"), &size).unwrap();
    }),
    ("dir/new", |fs| {
        let file = make(fs, &lookup(fs, "dir"), "new");
        fs.write(&file, 0, &pattern(2, 3 * BLOCK + 1)).unwrap();
    }),
    ("dir", |fs| {
        let sub = fs.create(&lookup(fs, "dir"), b"sub", &new(S_IFDIR | 0o2750)).unwrap().inode;
        make(fs, &sub, "in it");
        fs.symlink(&sub, b"symbolic", &[b'x'; 400], 7, 8).unwrap();
        let rdev = nilfs_engine::DeviceCode { major: 8, minor: 300 };
        let node = nilfs_engine::NewInode { mode: S_IFCHR | 0o600, uid: 3, gid: 4, rdev };
        fs.create(&sub, b"node", &node).unwrap();
    }),
    ("dir", |fs| {
        fs.unlink(&lookup(fs, "dir"), b"large").unwrap();
        fs.unlink(&lookup(fs, ""), b"link").unwrap();
    }),
    ("dir", |fs| {
        fs.link(&lookup(fs, "dir/small"), &lookup(fs, ""), b"second name").unwrap();
    }),
    ("dir/small", |fs| {
        let (root, dir) = (lookup(fs, ""), lookup(fs, "dir"));
        let other = fs.create(&root, b"other", &new(S_IFDIR | 0o700)).unwrap().inode;
        fs.create(&other, b"moves", &new(S_IFDIR | 0o700)).unwrap();
        fs.rename(&other, b"moves", &dir, b"moved", RenameMode::NoReplace).unwrap();
        fs.rename(&root, b"link", &dir, b"large", RenameMode::Exchange).unwrap();
    }),
    ("dir/small", |fs| {
        let chosen = Timestamp { seconds: 1_234_567_890, nanoseconds: 12 };
        let changes = SetAttr {
            mode: Some(0o4711),
            uid: Some(17),
            mtime: Some(SetTime::At(chosen)),
            ..SetAttr::default()
        };
        fs.set_attr(&lookup(fs, "dir/large"), &changes).unwrap();
        fs.set_flags(&lookup(fs, "dir/empty"), 0x10).unwrap();
    }),
    ("dir/small", |fs| {
        let dir = lookup(fs, "dir");
        let file = make(fs, &dir, "small.new");
        fs.write(&file, 0, &pattern(3, 2 * BLOCK)).unwrap();
        fs.rename(&dir, b"small.new", &dir, b"small", RenameMode::Replace).unwrap();
    }),
];

/// One after the other, each fsynced, so that later logs build on earlier ones; and each alone.
#[test]
fn whatever_was_changed_and_fsynced_is_there_after_a_crash() {
    let (device, all) = furnished();
    let before = Volume::newest(&device);
    for (nth, (path, change)) in CHANGES.iter().enumerate() {
        let (alone_on, alone) = furnished();
        for (device, fs) in [(&device, &all), (&alone_on, &alone)] {
            if nth == 8 && Arc::ptr_eq(fs, &all) {
                // Its file is gone by then.
                make(fs, &lookup(fs, "dir"), "large");
                fs.symlink(&lookup(fs, ""), b"link", b"again", 1, 2).unwrap();
            }
            change(fs);
            fs.sync_file(&lookup(fs, path)).unwrap();
            same(&after_a_cut(device), &tree(&**fs), &format!("change {nth}"));
        }
    }
    assert_eq!(Volume::newest(&device), before, "no checkpoint was made for that");
    all.unmount().unwrap();
    check(&*device);
}

struct Volume;

impl Volume {
    fn newest(device: &Arc<MemoryDevice>) -> nilfs_engine::Cno {
        nilfs_engine::Volume::open(Arc::clone(device) as _).unwrap().last_log().cno
    }
}

/// A sync log has the content of its own files only: others are as they were when they were last
/// synced, but names and attributes are all as they were at the moment of the fsync.
#[test]
fn an_fsync_takes_all_names_along_and_no_content_of_others() {
    let (device, fs) = furnished();
    let (root, dir) = (lookup(&fs, ""), lookup(&fs, "dir"));
    let large = lookup(&fs, "dir/large");
    let old = content(&fs, &large);
    fs.write(&large, 0, &pattern(9, 30 * BLOCK)).unwrap();
    let mode = SetAttr { mode: Some(0o640), ..SetAttr::default() };
    fs.set_attr(&large, &mode).unwrap();
    let fresh = make(&fs, &root, "fresh");
    fs.write(&fresh, 0, &pattern(4, BLOCK)).unwrap();
    fs.rename(&root, b"fresh", &dir, b"renamed", RenameMode::NoReplace).unwrap();
    fs.sync_file(&lookup(&fs, "dir/small")).unwrap();
    let seen = after_a_cut(&device);
    let found = &seen["/dir/large"];
    assert_eq!((&found.content, found.attr.mode), (&old, 0o640));
    assert_eq!(seen["/dir/renamed"].content, b"");
    assert!(!seen.contains_key("/fresh"));
}

/// The idiom of programs that never call fsync: the old content or the new, never half a file.
#[test]
fn a_file_that_replaced_another_is_there_with_what_it_had() {
    for mode in [RenameMode::Replace, RenameMode::Exchange] {
        let (device, fs) = furnished();
        let dir = lookup(&fs, "dir");
        let new_content = pattern(5, 7 * BLOCK + 5);
        let file = make(&fs, &dir, "large.new");
        fs.write(&file, 0, &new_content).unwrap();
        fs.rename(&dir, b"large.new", &dir, b"large", mode).unwrap();
        fs.sync_file(&lookup(&fs, "dir/small")).unwrap();
        assert!(after_a_cut(&device)["/dir/large"].content == new_content, "{mode:?}");
    }
}

#[test]
fn a_file_that_was_made_and_removed_between_two_syncs_leaves_nothing() {
    let (device, fs) = furnished();
    let (root, small) = (lookup(&fs, ""), lookup(&fs, "dir/small"));
    for nth in 0..3 {
        let temporary = make(&fs, &root, "temporary");
        fs.write(&temporary, 0, &pattern(nth, 3 * BLOCK)).unwrap();
        if nth == 1 {
            fs.sync_file(&temporary).unwrap();
        }
        fs.unlink(&root, b"temporary").unwrap();
        fs.sync_file(&temporary).unwrap();
        drop(temporary);
        fs.write(&small, 0, &[nth as u8; 50]).unwrap();
        fs.sync_file(&small).unwrap();
        same(&after_a_cut(&device), &tree(&*fs), &format!("round {nth}"));
    }
    fs.unmount().unwrap();
    check(&*device);
}

/// Linux knows no records, so it must not touch a volume that has some, and may touch any other.
#[test]
fn the_superblocks_say_as_long_as_there_may_be_records() {
    let needs_us = |device: &Arc<MemoryDevice>| {
        let volume = nilfs_engine::Volume::open(Arc::clone(device) as _).unwrap();
        let Superblocks { best, other, .. } = nilfs_engine::Volume::superblocks(&**device).unwrap();
        drop(volume);
        let has = |superblock: &nilfs_ondisk::superblock::Superblock| {
            superblock.raw().s_feature_compat_ro.get()
                & nilfs_ondisk::superblock::FEATURE_ROLL_FORWARD
                != 0
        };
        let all = [Some(best), other].map(|superblock| has(&superblock.unwrap()));
        assert_eq!(all[0], all[1], "both copies");
        all[0]
    };
    let (device, fs) = furnished();
    let small = lookup(&fs, "dir/small");
    fs.write(&small, 0, b"overwritten").unwrap();
    fs.sync_file(&small).unwrap();
    assert!(!needs_us(&device), "Linux recovers what was overwritten, too");
    fs.write(&small, 100, b"appended").unwrap();
    fs.sync_file(&small).unwrap();
    assert!(needs_us(&device));
    let cut = copy_of(&device);
    let recovered = mount(&cut);
    assert!(!needs_us(&cut), "recovered");
    drop(recovered);
    fs.unmount().unwrap();
    assert!(!needs_us(&device), "unmounted");

    let options = MountOptions { fsync: FsyncBy::Checkpoint, ..MountOptions::default() };
    let fs = Filesystem::mount(Arc::clone(&device) as _, options).unwrap();
    for (path, change) in CHANGES {
        if *path == "dir" {
            change(&fs);
            fs.sync_file(&lookup(&fs, path)).unwrap();
            assert!(!needs_us(&device));
            same(&after_a_cut(&device), &tree(&*fs), path);
        }
    }
}

/// With an open file that has no name the volume is not left clean, but needs us no more.
#[test]
fn a_volume_that_is_unmounted_with_open_files_has_no_records() {
    let (device, fs) = furnished();
    let dir = lookup(&fs, "dir");
    let large = lookup(&fs, "dir/large");
    fs.unlink(&dir, b"large").unwrap();
    fs.sync_file(&dir).unwrap();
    fs.unmount().unwrap();
    drop(large);
    let best = nilfs_engine::Volume::superblocks(&*device).unwrap().best;
    assert_eq!(best.raw().s_feature_compat_ro.get() >> 62, 0);
    assert!(!best.is_clean());
    check(&*device);
}

/// What is whole, but does not follow what came before, was not lost in a crash.
#[test]
fn records_with_a_gap_are_refused() {
    let (device, fs) = furnished();
    let small = lookup(&fs, "dir/small");
    let mut states = Vec::new();
    for nth in 0..3 {
        fs.write(&small, 100 + nth, b"x").unwrap();
        fs.sync_file(&small).unwrap();
        states.push(device.snapshot());
    }
    let changed = |one: &[u8], other: &[u8]| -> Vec<usize> {
        let blocks = 4 * BLOCK..one.len();
        blocks.step_by(BLOCK).filter(|&at| one[at..at + BLOCK] != other[at..at + BLOCK]).collect()
    };
    let second = changed(&states[0], &states[1]);
    let third = changed(&states[1], &states[2]);
    assert_eq!((second.len(), third.len()), (1, 1), "one block each");
    // The third in the place of the second.
    let mut image = states.swap_remove(1);
    let third = states[1][third[0]..third[0] + BLOCK].to_vec();
    image[second[0]..second[0] + BLOCK].copy_from_slice(&third);
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::from(image));
    let error = Filesystem::mount(Arc::clone(&device), MountOptions::default()).unwrap_err();
    assert!(matches!(error, Error::RollForward(_)), "{error}");
    assert!(error.to_string().contains("number 2"), "{error}");
    let options = ReadOnlyOptions { recovery: false, ..ReadOnlyOptions::default() };
    ReadOnlyVolume::mount(device, options).unwrap();
}

/// The record of a directory needs its "..", which may be unreadable. What an fsync has to make durable
/// besides must not be forgotten for that, neither by this one nor by the next.
#[test]
fn a_directory_that_cannot_be_read_does_not_keep_others_from_being_synced() {
    let (device, fs) = furnished();
    // A mount verifies the newest log as a whole.
    fs.write(&lookup(&fs, "dir/large"), 0, b"a later checkpoint").unwrap();
    fs.unmount().unwrap();
    drop(fs);
    let mut image = device.snapshot();
    let has = |block: &[u8], name: &[u8]| block.windows(name.len()).any(|part| part == name);
    for block in image.chunks_exact_mut(BLOCK) {
        if has(block, b"empty") && has(block, b"small") {
            block.fill(0);
        }
    }
    let device = Arc::new(MemoryDevice::from(image));
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let mode = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    fs.set_attr(&lookup(&fs, "dir"), &mode).unwrap();
    let file = make(&fs, &root, "new");
    fs.write(&file, 0, b"content").unwrap();
    fs.sync_file(&file).unwrap();
    let after_cut = mount(&copy_of(&device));
    assert_eq!(content(&after_cut, &lookup(&after_cut, "new")), b"content");
    let dir = lookup(&after_cut, "dir");
    assert_eq!(after_cut.attr(&dir).unwrap().mode, 0o700);
}

/// The recovery counted a segment as filled up to a log that it could not read, though a later fsync had named
/// blocks of files beyond it: for the checkpoint that it made of them, they lay where nothing was. `fsck -y`
/// believed that, and made holes of them.
#[test]
fn blocks_beyond_a_damaged_log_lie_where_the_sufile_says_that_something_is() {
    const BLOCKS: usize = 900;
    let device = volume(BLOCK as u64, 16);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    fs.sync().unwrap();
    let file = make(&fs, &root, "file");
    fs.write(&file, 0, &pattern(1, BLOCKS * BLOCK)).unwrap();
    fs.sync_file(&file).unwrap();
    let crashed = copy_of(&device);
    let logs = common::logs(&device);
    let last = logs.last().unwrap().header.seq;
    let geometry = nilfs_engine::Volume::open(Arc::clone(&crashed) as _).unwrap().geometry();
    // Where no log is before it in the segment, the chain ends; where one is after it, it has to be repaired.
    let is_ahead = |log: &&Log| {
        let segment = geometry.segment_of(log.start);
        let begins = geometry.segment_start(segment) == log.start;
        let ends = geometry.segment_end(segment) == log.start.plus(log.header.nblocks.into());
        let has_no_records = matches!(log.records(), Ok(None)) && !log.header.has(SR);
        has_no_records && log.header.seq < last && ends && !begins
    };
    let ahead: Vec<_> = logs.iter().filter(is_ahead).map(|log| log.start).collect();
    assert!(ahead.len() > 2, "{} logs were written ahead", ahead.len());
    for log in ahead {
        let damaged = copy_of(&crashed);
        damaged.write_at(log.0 * BLOCK as u64, &[IoSlice::new(&pattern(2, BLOCK))]).unwrap();
        let fs = mount(&damaged);
        let found = fs.lookup(&fs.root().unwrap().inode, b"file").unwrap().inode;
        assert!(content(&fs, &found) == pattern(1, BLOCKS * BLOCK), "log {log}");
        fs.unmount().unwrap();
        let report = nilfs_check::check(&*damaged, &Options::default()).unwrap();
        let errors: Vec<_> = report.errors().collect();
        assert!(errors.iter().all(|it| it.place.log == Some(log)), "log {log}: {errors:#?}");
    }
}

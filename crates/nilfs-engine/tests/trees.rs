//! A checkpoint that somebody holds is there to be read for as long as that lasts, whatever a
//! writer and a cleaner that go on; and what two of them do not have in common is found without
//! reading the rest.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use common::{check, make, mount, new, pattern, volume};
use nilfs_device::{MemoryDevice, RecordingDevice};
use nilfs_engine::tree::Extent;
use nilfs_engine::{
    Amount, CleanerOptions, Error, FileType, Filesystem, Ino, ManualRun, MountOptions, Seek,
    SetAttr, Tree, Volume,
};
use nilfs_ondisk::inode::S_IFDIR;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const BLOCK: usize = 1024;

/// Mounts a volume on which nothing of the past is protected.
fn without_protection(device: Arc<MemoryDevice>) -> Arc<Filesystem> {
    let cleaner = CleanerOptions { protection: Duration::ZERO, ..CleanerOptions::default() };
    Filesystem::mount(device, MountOptions { cleaner, ..MountOptions::default() }).unwrap()
}

fn everything() -> ManualRun {
    ManualRun { min_reclaimable: Some(Amount::Count(1)), ..ManualRun::default() }
}

/// Every regular file of the root directory with its content.
fn files_of(tree: &Tree) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let root = tree.root().unwrap();
    let mut names = Vec::new();
    tree.read_dir(&root, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    })
    .unwrap();
    let mut files = BTreeMap::new();
    for name in names {
        let file = tree.lookup(&root, &name).unwrap();
        if file.file_type() == FileType::Regular {
            let mut content = vec![0; file.size() as usize];
            assert_eq!(tree.read(&file, 0, &mut content).unwrap(), content.len());
            files.insert(name, content);
        }
    }
    files
}

#[test]
fn what_a_tree_shows_stays_while_everything_is_written_anew_and_cleaned() {
    let device = volume(BLOCK as u64, 24);
    let fs = without_protection(Arc::clone(&device));
    let root = fs.root().unwrap().inode;
    let mut rng = StdRng::seed_from_u64(7);
    let mut now = BTreeMap::new();
    let mut held = Vec::new();
    for round in 0..40 {
        for _ in 0..6 {
            let name = format!("file {}", rng.random_range(0..12)).into_bytes();
            let content = pattern(rng.random_range(0..1000), rng.random_range(1..40 * BLOCK));
            if now.remove(&name).is_some() {
                fs.unlink(&root, &name).unwrap();
            }
            let file = make(&fs, &root, std::str::from_utf8(&name).unwrap());
            fs.write(&file, 0, &content).unwrap();
            now.insert(name, content);
        }
        let cno = fs.checkpoint_now().unwrap();
        if round % 8 == 0 {
            held.push((fs.tree(Some(cno)).unwrap(), now.clone()));
        }
    }
    let oldest = held[0].0.cno();
    let freed = fs.clean(&everything()).unwrap();
    assert!(freed > 0, "the cleaner works on while trees are open");
    for (tree, expected) in &held {
        assert_eq!(&files_of(tree), expected, "checkpoint {}", tree.cno());
    }
    drop(held);
    fs.clean(&everything()).unwrap();
    assert!(
        matches!(fs.tree(Some(oldest)), Err(Error::NoCheckpoint(_))),
        "a checkpoint that nobody holds any more is cleaned away"
    );
    assert_eq!(files_of(&fs.tree(None).unwrap()), now);
    fs.unmount().unwrap();
    check(&*device);
}

/// It could not: a mount of a checkpoint that was deleted showed only the files that somebody had seen
/// before, because what it asks about others opens the tree anew.
#[test]
fn a_tree_that_is_held_can_be_opened_again_after_its_checkpoint_was_deleted() {
    let device = volume(BLOCK as u64, 24);
    let fs = without_protection(Arc::clone(&device));
    let root = fs.root().unwrap().inode;
    let content = pattern(1, 30 * BLOCK);
    fs.write(&make(&fs, &root, "file"), 0, &content).unwrap();
    let cno = fs.checkpoint_now().unwrap();
    let held = fs.tree(Some(cno)).unwrap();
    fs.unlink(&root, b"file").unwrap();
    fs.checkpoint_now().unwrap();
    fs.delete_checkpoints(cno..=cno).unwrap();
    fs.clean(&everything()).unwrap();
    assert!(matches!(fs.tree(Some(cno)), Err(Error::NoCheckpoint(_))));
    let again = fs.tree_of_past(cno).unwrap();
    assert_eq!(files_of(&again), BTreeMap::from([(b"file".to_vec(), content)]));
    drop((held, again));
    assert!(matches!(fs.tree_of_past(cno), Err(Error::NoCheckpoint(_))));
    fs.unmount().unwrap();
    check(&*device);
}

#[test]
fn a_full_volume_is_cleaned_for_its_writer_while_a_past_checkpoint_is_read() {
    let device = volume(BLOCK as u64, 16);
    let fs = without_protection(Arc::clone(&device));
    let root = fs.root().unwrap().inode;
    let kept = pattern(1, 200 * BLOCK);
    fs.write(&make(&fs, &root, "kept"), 0, &kept).unwrap();
    let tree = fs.tree(Some(fs.checkpoint_now().unwrap())).unwrap();
    let old = tree.lookup(&tree.root().unwrap(), b"kept").unwrap();
    fs.write(&fs.lookup(&root, b"kept").unwrap().inode, 0, &pattern(2, 200 * BLOCK)).unwrap();
    let file = make(&fs, &root, "written again and again");
    // Twelve times the volume.
    for round in 0..384 {
        fs.write(&file, 0, &pattern(round, 512 * BLOCK)).unwrap();
        fs.commit().unwrap();
        let mut content = vec![0; kept.len()];
        tree.read(&old, 0, &mut content).unwrap();
        assert!(content == kept, "in round {round}");
    }
    drop(tree);
    fs.unmount().unwrap();
    check(&*device);
}

#[test]
fn a_volume_that_is_not_mounted_shows_each_of_its_checkpoints() {
    let device = volume(BLOCK as u64, 16);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let file = make(&fs, &root, "file");
    let mut numbers = Vec::new();
    for round in 1..=3 {
        fs.write(&file, 0, &pattern(round, round * BLOCK)).unwrap();
        numbers.push(fs.checkpoint_now().unwrap());
    }
    fs.unmount().unwrap();
    let volume = Volume::open(device).unwrap();
    for (round, cno) in (1..).zip(numbers) {
        let tree = volume.tree(Some(cno)).unwrap();
        assert_eq!(tree.cno(), cno);
        assert_eq!(files_of(&tree)[&b"file"[..]], pattern(round, round * BLOCK));
    }
    let none = nilfs_engine::Cno(1000);
    assert!(matches!(volume.tree(Some(none)), Err(Error::NoCheckpoint(cno)) if cno == none));
}

#[test]
fn holes_extents_links_and_large_directories_are_the_same_in_a_tree() {
    let device = volume(BLOCK as u64, 16);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let sparse = make(&fs, &root, "sparse");
    let block = BLOCK as u64;
    for at in [3, 4, 100] {
        fs.write(&sparse, at * block, &pattern(at as usize, BLOCK)).unwrap();
    }
    fs.set_attr(&sparse, &SetAttr { size: Some(200 * block + 5), ..SetAttr::default() }).unwrap();
    fs.symlink(&root, b"link", b"a target", 0, 0).unwrap();
    let many = fs.create(&root, b"many", &new(S_IFDIR | 0o755)).unwrap().inode;
    let names: BTreeSet<String> = (0..500).map(|nth| format!("a name, number {nth}")).collect();
    names.iter().for_each(|name| _ = make(&fs, &many, name));
    fs.commit().unwrap();
    let tree = fs.tree(None).unwrap();
    let top = tree.root().unwrap();
    let sparse = tree.lookup(&top, b"sparse").unwrap();
    let extent = |from: u64, end: u64| Extent { offset: from, length: end - from };
    let expected = [extent(3 * block, 5 * block), extent(100 * block, 101 * block)];
    assert_eq!(tree.extents(&sparse, 0, 10).unwrap(), expected);
    assert_eq!(
        tree.extents(&sparse, 4 * block + 1, 1).unwrap(),
        [extent(4 * block + 1, 5 * block)]
    );
    assert_eq!(tree.seek(&sparse, 0, Seek::Data).unwrap(), 3 * block);
    assert_eq!(tree.seek(&sparse, 3 * block, Seek::Hole).unwrap(), 5 * block);
    assert_eq!(tree.read_link(&tree.lookup(&top, b"link").unwrap()).unwrap(), b"a target");
    let many = tree.lookup(&top, b"many").unwrap();
    let mut listed = BTreeSet::new();
    let mut cookie = 0;
    loop {
        let mut count = 0;
        tree.read_dir(&many, cookie, &mut |entry| {
            listed.insert(String::from_utf8(entry.name.to_vec()).unwrap());
            cookie = entry.next;
            count += 1;
            count < 7
        })
        .unwrap();
        if count == 0 {
            break;
        }
    }
    assert!(listed.remove(".") && listed.remove(".."));
    assert_eq!(listed, names);
    for name in &names {
        assert_eq!(tree.lookup(&many, name.as_bytes()).unwrap().file_type(), FileType::Regular);
    }
    assert!(matches!(tree.lookup(&many, b"no such name"), Err(Error::NotFound)));
    assert_eq!(tree.lookup(&many, b"..").unwrap().ino(), Ino::ROOT);
}

/// The numbers of the files that differ, from one tree to another.
fn changed(before: &Tree, after: &Tree) -> Vec<(Ino, bool, bool)> {
    let mut found = Vec::new();
    before
        .changed_files(after, &mut |file| {
            found.push((file.ino, file.before.is_some(), file.after.is_some()));
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    found
}

#[test]
fn two_trees_differ_in_what_was_made_changed_and_deleted_between_them() {
    let device = volume(BLOCK as u64, 64);
    let fs = without_protection(device);
    let root = fs.root().unwrap().inode;
    let files: Vec<_> = (0..3000).map(|nth| make(&fs, &root, &format!("file {nth}"))).collect();
    fs.write(&files[17], 0, &pattern(1, 300 * BLOCK)).unwrap();
    let before = fs.tree(Some(fs.checkpoint_now().unwrap())).unwrap();
    fs.write(&files[17], 40 * BLOCK as u64 + 1, &pattern(2, 2 * BLOCK)).unwrap();
    fs.write(&files[2500], 0, b"content").unwrap();
    let (changed_content, grown, deleted) = (files[17].ino(), files[2500].ino(), files[9].ino());
    drop(files);
    fs.unlink(&root, b"file 9").unwrap();
    fs.commit().unwrap();
    let made = make(&fs, &root, "file of its own");
    let made_ino = made.ino();
    let after = fs.tree(Some(fs.checkpoint_now().unwrap())).unwrap();
    let mut expected = vec![
        (Ino::ROOT, true, true),
        (changed_content, true, true),
        (grown, true, true),
        (deleted, true, made_ino == deleted),
    ];
    if made_ino != deleted {
        expected.push((made_ino, false, true));
    }
    expected.sort();
    // What the cleaner moves does not become another thing by that.
    for cleaned in [false, true] {
        if cleaned {
            assert!(fs.clean(&everything()).unwrap() > 0);
        }
        assert_eq!(changed(&before, &after), expected, "cleaned: {cleaned}");
        let mirrored = expected.iter().map(|&(ino, one, other)| (ino, other, one));
        assert_eq!(changed(&after, &before), mirrored.collect::<Vec<_>>());
        assert_eq!(changed(&before, &before.clone()), []);
    }
    let [old, new] = [&before, &after].map(|tree| tree.file(changed_content).unwrap());
    let mut extents = Vec::new();
    before
        .changed_extents(&old, &after, &new, &mut |extent| {
            extents.push(extent);
            ControlFlow::Continue(())
        })
        .unwrap();
    let (offset, length) = (40 * BLOCK as u64, 3 * BLOCK as u64);
    assert_eq!(extents, [Extent { offset, length }]);
}

#[test]
fn a_difference_costs_what_differs() {
    const FILES: u64 = 20_000;
    let memory = MemoryDevice::new(128 << 20);
    nilfs_engine::mkfs::format(&memory, &common::parameters(BLOCK as u64)).unwrap();
    let device = Arc::new(RecordingDevice::new(memory));
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let mut dir = Arc::clone(&root);
    for nth in 0..FILES {
        if nth % 1000 == 0 {
            let name = format!("directory {nth}").into_bytes();
            dir = fs.create(&root, &name, &new(S_IFDIR | 0o755)).unwrap().inode;
        }
        make(&fs, &dir, &format!("file {nth}"));
    }
    let first = fs.checkpoint_now().unwrap();
    make(&fs, &dir, "one more");
    let second = fs.checkpoint_now().unwrap();
    fs.unmount().unwrap();
    let volume = Volume::open(Arc::clone(&device) as _).unwrap();
    let [before, after] = [first, second].map(|cno| volume.tree(Some(cno)).unwrap());
    let _ = device.take_bytes_read();
    assert_eq!(changed(&before, &after).len(), 2, "the file and its directory");
    let read = device.take_bytes_read();
    let ifile = FILES * 128;
    assert!(read < ifile / 20, "{read} bytes were read, and the ifile has {ifile}");
}

/// A forged link was read as if it were whole, and a program that made such a link again was
/// told of a NUL byte by the system: no path has one.
#[test]
fn a_link_with_a_zero_byte_in_its_target_is_damaged() {
    let fs = mount(&volume(BLOCK as u64, 24));
    let root = fs.root().unwrap().inode;
    let link = fs.symlink(&root, b"link", b"to\0rn", 0, 0).unwrap().inode;
    fs.commit().unwrap();
    let tree = fs.tree(None).unwrap();
    let of_tree = tree.read_link(&tree.lookup(&tree.root().unwrap(), b"link").unwrap());
    for read in [of_tree, fs.read_link(&link)] {
        let error = read.unwrap_err();
        assert!(error.is_fault() && error.to_string().contains("has zero bytes in it"), "{error}");
    }
}

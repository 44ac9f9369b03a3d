//! Making the present what it was: judged by a copy of all files at each checkpoint, by the checker, and
//! by the checkpoints before, of which nothing may change.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::{check, content, make, mount, new, parameters, pattern, volume};
use nilfs_device::MemoryDevice;
use nilfs_engine::mkfs::format;
use nilfs_engine::{
    Amount, CleanerOptions, Cno, Error, FileType, Filesystem, InodeRef, ManualRun, MountOptions,
    RenameMode, RolledBack, SetAttr, Tree, Volume,
};
use nilfs_ondisk::inode::{S_IFDIR, S_IFREG};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const BLOCK: usize = 4096;

/// What is at a path: the first path of the same file, mode, owner, and content.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    first: String,
    mode: u16,
    uid: u32,
    links: u32,
    mtime: (i64, u32),
    content: Vec<u8>,
}

type Picture = BTreeMap<String, Seen>;

/// All files of a tree by path.
fn picture(tree: &Tree) -> Picture {
    let mut seen = Picture::new();
    let mut firsts = BTreeMap::new();
    let mut left = vec![(String::new(), tree.root().unwrap())];
    while let Some((path, file)) = left.pop() {
        let mut bytes = Vec::new();
        match file.file_type() {
            FileType::Directory => tree
                .read_dir(&file, 0, &mut |entry| {
                    let name = String::from_utf8(entry.name.to_vec()).unwrap();
                    if name != "." && name != ".." {
                        left.push((format!("{path}/{name}"), tree.file(entry.ino).unwrap()));
                    }
                    true
                })
                .unwrap(),
            FileType::Regular => {
                bytes.resize(file.size() as usize, 0);
                assert_eq!(tree.read(&file, 0, &mut bytes).unwrap(), bytes.len());
            }
            FileType::Symlink => bytes = tree.read_link(&file).unwrap(),
            _ => {}
        }
        let attr = file.attr();
        let first: &mut String = firsts.entry(file.ino()).or_insert_with(|| path.clone());
        let seen_here = Seen {
            first: first.clone(),
            mode: attr.mode,
            uid: attr.uid,
            links: attr.nlink,
            mtime: (attr.mtime.seconds, attr.mtime.nanoseconds),
            content: bytes,
        };
        if path < *first {
            first.clone_from(&path);
        }
        seen.insert(path, seen_here);
    }
    // The first path of a file may have been found after others.
    let firsts: BTreeMap<String, String> =
        seen.iter().map(|(path, it)| (path.clone(), it.first.clone())).collect();
    let mut groups: BTreeMap<String, String> = BTreeMap::new();
    for (path, first) in &firsts {
        groups.entry(first.clone()).or_insert_with(|| path.clone());
    }
    for it in seen.values_mut() {
        it.first = groups[&it.first].clone();
    }
    seen
}

fn of(fs: &Filesystem, cno: Cno) -> Picture {
    picture(&fs.tree(Some(cno)).unwrap())
}

fn now(fs: &Filesystem) -> Picture {
    let cno = fs.commit().unwrap();
    of(fs, cno)
}

fn roll_back(fs: &Filesystem, to: Cno, path: &str) -> RolledBack {
    fs.roll_back(to, path.as_bytes(), &mut |_| {}).unwrap()
}

fn root(fs: &Filesystem) -> InodeRef {
    fs.root().unwrap().inode
}

fn dir(fs: &Filesystem, above: &InodeRef, name: &str) -> InodeRef {
    fs.create(above, name.as_bytes(), &new(S_IFDIR | 0o755)).unwrap().inode
}

fn write(fs: &Filesystem, above: &InodeRef, name: &str, seed: usize, length: usize) -> InodeRef {
    let file = make(fs, above, name);
    fs.write(&file, 0, &pattern(seed, length)).unwrap();
    file
}

#[test]
fn everything_is_as_it_was_in_one_checkpoint_and_the_state_before_is_a_snapshot() {
    let device = volume(BLOCK as u64, 64);
    let fs = mount(&device);
    let top = root(&fs);
    let kept = write(&fs, &top, "kept", 1, 100 * BLOCK);
    write(&fs, &top, "deleted", 2, 50 * BLOCK + 17);
    let sub = dir(&fs, &top, "sub");
    write(&fs, &sub, "renamed", 3, 10);
    fs.symlink(&sub, b"link", b"../kept", 0, 0).unwrap();
    let then = fs.checkpoint_now().unwrap();
    let expected = of(&fs, then);

    fs.write(&kept, 7 * BLOCK as u64, &pattern(9, 3 * BLOCK)).unwrap();
    fs.unlink(&top, b"deleted").unwrap();
    fs.rename(&sub, b"renamed", &top, b"other", RenameMode::Replace).unwrap();
    write(&fs, &top, "new", 4, 20 * BLOCK);
    drop(kept);
    let before = now(&fs);
    let newest = fs.status().cno;

    let done = roll_back(&fs, then, "");
    assert_eq!(done.before, newest);
    assert_eq!(done.checkpoint, Some(newest.plus(1)), "one checkpoint");
    assert_eq!(done.revived_blocks, 3 + 51, "what was overwritten, and what was deleted");
    assert_eq!(done.copied_blocks, 2, "the blocks of two directories");
    assert_eq!(of(&fs, newest.plus(1)), expected);
    assert_eq!(of(&fs, done.before), before);
    let snapshots = fs.checkpoints(Cno::MIN, 100).unwrap();
    let snapshots: Vec<Cno> = snapshots.iter().filter(|it| it.snapshot).map(|it| it.cno).collect();
    assert_eq!(snapshots, [newest]);
    check(&*device);

    // Nobody who looks through the live file system sees anything else.
    let found = fs.lookup(&top, b"deleted").unwrap().inode;
    assert_eq!(content(&fs, &found), pattern(2, 50 * BLOCK + 17));
    assert!(matches!(fs.lookup(&top, b"new"), Err(Error::NotFound)));
    assert_eq!(roll_back(&fs, then, "").checkpoint, None, "it is as it was");
    fs.write(&found, 0, b"written again").unwrap();
    fs.unmount().unwrap();
    check(&*device);
}

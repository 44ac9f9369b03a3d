//! Taking away what the past has of a file: judged by every byte of the device.

mod common;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use common::{check, content, make, pattern, short_segments, volume};
use nilfs_device::MemoryDevice;
use nilfs_engine::{
    Amount, CleanerOptions, Cno, Error, Filesystem, InodeRef, ManualRun, MountOptions, Moved,
    PurgeOptions, Purged, RenameMode, Wiping,
};
use nilfs_ondisk::ByteCount;

const SECRET: &[u8] = b"the secret that nobody may ever find again";
const ALL: PurgeOptions = PurgeOptions { keep_snapshots: false, wiping: Wiping::Discard };

fn mounted(device: &Arc<MemoryDevice>) -> Arc<Filesystem> {
    let cleaner =
        CleanerOptions { protection: Duration::from_secs(3600), ..CleanerOptions::default() };
    // Where a log may have a hole.
    let flash_page = ByteCount(1024);
    let options = MountOptions { cleaner, flash_page, ..MountOptions::default() };
    Filesystem::mount(Arc::clone(device) as _, options).unwrap()
}

/// In how many places the secret lies on a device.
fn traces(device: &MemoryDevice) -> usize {
    let bytes = device.snapshot();
    bytes.windows(SECRET.len()).filter(|window| *window == SECRET).count()
}

fn purge(fs: &Filesystem, path: &str, options: PurgeOptions) -> Purged {
    fs.purge(Some(path.as_bytes()), options, &mut |_| {}).unwrap()
}

/// A volume with a secret in every corner: in checkpoints, a snapshot, sync logs, between checkpoints,
/// moved, and in what has been clean since. And with other files.
fn volume_with_secrets() -> (Arc<MemoryDevice>, Arc<Filesystem>) {
    let device = volume(1024, 32);
    let fs = mounted(&device);
    let root = fs.root().unwrap().inode;
    let other = make(&fs, &root, "other");
    fs.write(&other, 0, &pattern(1, 500_000)).unwrap();
    let secret = make(&fs, &root, "secret");
    for round in 0..6_u64 {
        let text = SECRET.repeat(40 + round as usize);
        fs.write(&secret, round * 700, &text).unwrap();
        fs.write(&other, round * 3000, &pattern(round as usize, 20_000)).unwrap();
        match round % 3 {
            0 => fs.sync_file(&secret).unwrap(),
            1 => _ = fs.checkpoint_now().unwrap(),
            _ => {
                // A few bytes go into the summary of a log.
                fs.sync_file(&secret).unwrap();
                fs.write(&secret, 5, SECRET).unwrap();
                fs.sync_file(&secret).unwrap();
            }
        }
        if round == 3 {
            let cno = fs.checkpoint_now().unwrap();
            fs.set_snapshot(cno, true).unwrap();
            let run = ManualRun {
                protection: Some(Duration::ZERO),
                min_reclaimable: Some(Amount::Count(1)),
                ..ManualRun::default()
            };
            fs.clean(&run).unwrap();
        }
    }
    fs.checkpoint_now().unwrap();
    drop(secret);
    fs.unlink(&root, b"secret").unwrap();
    (device, fs)
}

#[test]
fn no_byte_of_it_is_left_and_all_else_is() {
    for wiping in [Wiping::Discard, Wiping::Overwrite] {
        let (device, fs) = volume_with_secrets();
        let root = fs.root().unwrap().inode;
        let other = fs.lookup(&root, b"other").unwrap().inode;
        let before = content(&fs, &other);
        fs.commit().unwrap();
        assert!(traces(&device) > 300, "it is everywhere");
        let held = fs.holders(b"secret").unwrap();
        assert!(held.checkpoints.iter().any(|it| it.snapshot), "{held:?}");
        let purged = purge(&fs, "secret", PurgeOptions { wiping, ..ALL });
        assert_eq!((purged.left, purged.present_bytes), (0, 0), "{purged:?}");
        assert_eq!(purged.deleted, held.checkpoints.len() as u64);
        assert_eq!(traces(&device), 0, "{purged:?}");
        assert_eq!(content(&fs, &other), before);
        check(&*device);
        assert_eq!(fs.holders(b"secret").unwrap().versions, 0);
        drop((root, other));
        fs.unmount().unwrap();
        check(&*device);
        assert_eq!(traces(&device), 0);
    }
}

#[test]
fn what_is_not_reached_is_told() {
    let (device, fs) = volume_with_secrets();
    let root = fs.root().unwrap().inode;
    let snapshots = |fs: &Filesystem| -> Vec<Cno> {
        let all = fs.checkpoints(Cno::MIN, 1000).unwrap();
        all.iter().filter(|it| it.snapshot).map(|it| it.cno).collect()
    };
    let kept = snapshots(&fs);
    let purged = purge(&fs, "secret", PurgeOptions { keep_snapshots: true, ..ALL });
    assert_eq!(purged.snapshots, kept);
    assert_eq!(snapshots(&fs), kept);
    let tree = fs.tree(Some(kept[0])).unwrap();
    let file = tree.lookup(&tree.root().unwrap(), b"secret").unwrap();
    let mut bytes = vec![0; file.size() as usize];
    tree.read(&file, 0, &mut bytes).unwrap();
    assert!(bytes.windows(SECRET.len()).any(|window| window == SECRET), "the snapshot has it");
    // While somebody looks at it, it cannot be taken away.
    let purged = purge(&fs, "secret", ALL);
    assert!(purged.read == kept && traces(&device) > 0, "{purged:?}");
    drop((file, tree));
    let purged = fs.purge(None, ALL, &mut |_| {}).unwrap();
    assert_eq!((purged.left, traces(&device)), (0, 0), "{purged:?}");

    // What the present has stays.
    let secret = make(&fs, &root, "present");
    fs.write(&secret, 0, &SECRET.repeat(100)).unwrap();
    fs.checkpoint_now().unwrap();
    fs.write(&secret, 0, b"the").unwrap();
    let purged = purge(&fs, "present", ALL);
    assert!(purged.present_bytes >= 4000, "{purged:?}");
    assert_eq!(content(&fs, &secret), SECRET.repeat(100));
    drop(secret);
    fs.unlink(&root, b"present").unwrap();
    assert_eq!(purge(&fs, "present", ALL).left, 0);
    assert_eq!(traces(&device), 0);
    drop(root);
    fs.unmount().unwrap();
    check(&*device);
}

#[test]
fn the_whole_volume_is_refused_and_so_is_what_never_was() {
    let device = volume(1024, 32);
    let fs = mounted(&device);
    fs.checkpoint_now().unwrap();
    for root in ["", "/"] {
        assert!(matches!(fs.holders(root.as_bytes()), Err(Error::Invalid(_))));
    }
    assert!(matches!(fs.purge(Some(b"never"), ALL, &mut |_| {}), Err(Error::NotFound)));
}

/// A directory in which secrets came and went in every way, and of which the present has nothing.
fn volume_with_a_tree_of_secrets() -> (Arc<MemoryDevice>, Arc<Filesystem>) {
    let device = volume(1024, 64);
    let fs = mounted(&device);
    let root = fs.root().unwrap().inode;
    let other = make(&fs, &root, "other");
    fs.write(&other, 0, &pattern(1, 300_000)).unwrap();
    // Each is larger than a segment, so that one has nothing else in it.
    let write = |dir: &InodeRef, name: &str| {
        let file = make(&fs, dir, name);
        fs.write(&file, 0, &SECRET.repeat(600_000 / SECRET.len())).unwrap();
        file
    };
    let rename = |from: &InodeRef, old: &str, to: &InodeRef, new: &str| {
        fs.rename(from, old.as_bytes(), to, new.as_bytes(), RenameMode::Replace).unwrap();
    };
    // The numbers of files that are gone are taken, so that none of the files below has that of another.
    let taken = Cell::new(0);
    let take_numbers = || {
        for _ in 0..4 {
            make(&fs, &root, &format!("taken-{}", taken.replace(taken.get() + 1)));
        }
    };
    let save = || {
        take_numbers();
        fs.checkpoint_now().unwrap();
    };
    let make_dir = |dir: &InodeRef, name: &str| {
        fs.create(dir, name.as_bytes(), &common::new(0o040_755)).unwrap().inode
    };
    let dir = make_dir(&root, "first-name");
    let sub = make_dir(&dir, "sub");
    drop((write(&dir, "a"), write(&sub, "b")));
    save();
    // One that another file replaces, one that goes, one that comes.
    drop(write(&sub, "new"));
    rename(&sub, "new", &sub, "b");
    fs.unlink(&dir, b"a").unwrap();
    drop(write(&dir, "c"));
    save();
    fs.set_snapshot(fs.checkpoints(Cno::MIN, 100).unwrap().last().unwrap().cno, true).unwrap();
    // The directory gets another name, and with that two files change places.
    rename(&root, "first-name", &root, "dir");
    drop((write(&dir, "x"), write(&dir, "y")));
    save();
    rename(&dir, "x", &dir, "z");
    rename(&dir, "y", &dir, "x");
    rename(&dir, "z", &dir, "y");
    save();
    // One from elsewhere, which goes elsewhere again before it is deleted.
    drop(write(&root, "guest"));
    save();
    rename(&root, "guest", &sub, "guest");
    save();
    rename(&sub, "guest", &root, "guest");
    save();
    fs.unlink(&root, b"guest").unwrap();
    drop(write(&sub, "last"));
    save();
    for name in [&b"b"[..], b"last"] {
        fs.unlink(&sub, name).unwrap();
    }
    drop(sub);
    fs.rmdir(&dir, b"sub").unwrap();
    for name in [b"c", b"x", b"y"] {
        fs.unlink(&dir, name).unwrap();
    }
    drop(dir);
    fs.rmdir(&root, b"dir").unwrap();
    drop((root, other));
    (device, fs)
}

/// A user who wants a directory to be forgotten does not know all that was ever in it.
#[test]
fn of_a_directory_everything_goes_that_was_ever_in_it() {
    let (device, fs) = volume_with_a_tree_of_secrets();
    let other = fs.lookup(&fs.root().unwrap().inode, b"other").unwrap().inode;
    let before = content(&fs, &other);
    fs.commit().unwrap();
    assert!(traces(&device) > 500, "it is everywhere");
    let held = fs.holders(b"dir").unwrap();
    assert!(held.checkpoints.iter().any(|it| it.snapshot), "{held:?}");
    let purged = purge(&fs, "dir", ALL);
    assert_eq!((purged.left, purged.present_bytes), (0, 0), "{purged:?}");
    assert_eq!(traces(&device), 0, "{purged:?}");
    assert_eq!(content(&fs, &other), before);
    assert_eq!(fs.holders(b"dir").unwrap().versions, 0);
    drop(other);
    fs.unmount().unwrap();
    check(&*device);
}

/// A user who wants a file to be forgotten need not remember where it was moved.
#[test]
fn a_file_is_followed_to_where_it_was_moved() {
    let device = volume(1024, 64);
    let fs = mounted(&device);
    let root = fs.root().unwrap().inode;
    let make_dir =
        |name: &str| fs.create(&root, name.as_bytes(), &common::new(0o040_755)).unwrap().inode;
    let (dir, elsewhere) = (make_dir("dir"), make_dir("elsewhere"));
    let secret = make(&fs, &dir, "secret");
    let write = |file: &InodeRef, round: u64| {
        fs.write(file, round * 100_000, &SECRET.repeat(100_000 / SECRET.len())).unwrap();
        fs.checkpoint_now().unwrap();
    };
    let rename = |from: &InodeRef, old: &str, to: &InodeRef, new: &str| {
        fs.rename(from, old.as_bytes(), to, new.as_bytes(), RenameMode::Replace).unwrap();
        fs.checkpoint_now().unwrap();
    };
    write(&secret, 0);
    rename(&dir, "secret", &elsewhere, "second");
    write(&secret, 1);
    rename(&elsewhere, "second", &root, "third");
    // Nothing of what it was before is left in it.
    fs.write(&secret, 0, &vec![0; 200_000]).unwrap();
    write(&secret, 2);
    fs.write(&secret, 200_000, &vec![0; 100_000]).unwrap();
    fs.checkpoint_now().unwrap();
    let place = |path: &[u8], is_present| Moved { path: path.to_vec(), is_present };
    assert_eq!(fs.holders(b"dir/secret").unwrap().moved, [place(b"third", true)]);
    let purged = purge(&fs, "dir/secret", ALL);
    assert!(purged.present_bytes >= 300_000, "{purged:?}");
    assert_eq!((purged.left, traces(&device)), (0, 0), "{purged:?}");

    // With a directory, its files are followed, and it is, with what came into it later.
    let other = make(&fs, &dir, "other");
    write(&other, 3);
    rename(&dir, "other", &elsewhere, "other");
    write(&other, 4);
    rename(&root, "dir", &elsewhere, "moved");
    let late = make(&fs, &dir, "late");
    write(&late, 5);
    drop((late, other));
    fs.unlink(&dir, b"late").unwrap();
    fs.unlink(&elsewhere, b"other").unwrap();
    fs.checkpoint_now().unwrap();
    let moved = fs.holders(b"dir").unwrap().moved;
    assert!(moved.contains(&place(b"elsewhere/moved", true)), "{moved:?}");
    assert!(moved.contains(&place(b"elsewhere/other", false)), "{moved:?}");
    assert!(traces(&device) > 1000);
    let purged = purge(&fs, "dir", ALL);
    assert_eq!((purged.left, traces(&device)), (0, 0), "{purged:?}");
    drop((dir, elsewhere, secret, root));
    fs.unmount().unwrap();
    check(&*device);
}

/// Editors write a new file first and then give it the name. What is in it meanwhile is the secret, too.
/// But the file that had the other name before is none.
#[test]
fn a_file_is_followed_to_where_it_came_from_and_no_other_is() {
    let device = volume(1024, 64);
    let fs = mounted(&device);
    let root = fs.root().unwrap().inode;
    let rename = |old: &str, new: &str| {
        fs.rename(&root, old.as_bytes(), &root, new.as_bytes(), RenameMode::Replace).unwrap();
        fs.checkpoint_now().unwrap();
    };
    let fill = |file: &InodeRef, what: &[u8]| {
        fs.write(file, 0, &what.repeat(100_000 / what.len())).unwrap();
        fs.checkpoint_now().unwrap();
    };
    let other = make(&fs, &root, "draft");
    fill(&other, b"what nobody wants to lose");
    let kept = fs.checkpoints(Cno::MIN, 1000).unwrap().pop().unwrap().cno;
    drop(other);
    let secret = make(&fs, &root, "temporary");
    fill(&secret, SECRET);
    // Nothing of that is left in it when it gets the name.
    fill(&secret, &[0]);
    rename("temporary", "draft");
    rename("draft", "secret");
    drop(secret);
    fs.unlink(&root, b"secret").unwrap();
    fs.checkpoint_now().unwrap();
    let held = fs.holders(b"secret").unwrap();
    assert_eq!(held.moved, []);
    let purged = purge(&fs, "secret", ALL);
    assert_eq!((purged.left, traces(&device)), (0, 0), "{purged:?}");
    let tree = fs.tree(Some(kept)).unwrap();
    assert!(tree.lookup(&tree.root().unwrap(), b"draft").is_ok());
    drop((root, tree));
    fs.unmount().unwrap();
    check(&*device);
}

/// Programs save that way, and twice within a second if their user does. The file between is known from
/// the logs of fsyncs alone.
#[test]
fn what_was_replaced_before_there_was_a_checkpoint_goes_too() {
    let device = volume(1024, 32);
    let fs = mounted(&device);
    let root = fs.root().unwrap().inode;
    let other = make(&fs, &root, "other");
    let mut end = 0;
    let mut append = |length| {
        fs.write(&other, end, &pattern(7, length)).unwrap();
        fs.sync_file(&other).unwrap();
        end += length as u64;
    };
    append(1000);
    fs.checkpoint_now().unwrap();
    let save = || {
        let saved = make(&fs, &root, "new");
        fs.write(&saved, 0, &SECRET.repeat(40)).unwrap();
        fs.sync_file(&saved).unwrap();
        drop(saved);
        fs.rename(&root, b"new", &root, b"secret", RenameMode::Replace).unwrap();
    };
    save();
    save();
    // What is next to it is needed; and after that comes another segment.
    append(5000);
    fs.unlink(&root, b"secret").unwrap();
    append(280_000);
    // The next file gets another number.
    (0..3).for_each(|nth| _ = make(&fs, &root, &format!("number-{nth}")));
    save();
    fs.checkpoint_now().unwrap();
    fs.unlink(&root, b"secret").unwrap();
    fs.commit().unwrap();
    assert!(traces(&device) >= 120);
    let purged = purge(&fs, "secret", ALL);
    assert_eq!((purged.left, traces(&device)), (0, 0), "{purged:?}");
    drop((root, other));
    fs.unmount().unwrap();
    check(&*device);
}

/// A log repeats the summaries of those before it, also of those in the segment before.
#[test]
fn what_a_log_repeats_of_one_in_another_segment_goes_too() {
    for before in 0..32 {
        let device = short_segments(40);
        let fs = mounted(&device);
        let root = fs.root().unwrap().inode;
        let (secret, other) = (make(&fs, &root, "secret"), make(&fs, &root, "other"));
        fs.write(&secret, 0, &[b'.'; 500]).unwrap();
        let mut end = 0;
        let mut append = |count: u64| {
            for _ in 0..count {
                fs.write(&other, end, &pattern(7, 1024)).unwrap();
                fs.sync_file(&other).unwrap();
                end += 1024;
            }
        };
        append(1);
        fs.checkpoint_now().unwrap();
        append(before);
        fs.write(&secret, 5, SECRET).unwrap();
        fs.sync_file(&secret).unwrap();
        // The checkpoint, which has the block, comes in yet another segment.
        append(60);
        fs.checkpoint_now().unwrap();
        assert!(traces(&device) > 1, "{before} logs before: no copy");
        drop(secret);
        fs.unlink(&root, b"secret").unwrap();
        let purged = purge(&fs, "secret", ALL);
        assert_eq!((purged.left, traces(&device)), (0, 0), "{before} logs before: {purged:?}");
        drop((root, other));
        fs.unmount().unwrap();
        check(&*device);
    }
}

/// The log goes on in segments that were clean, but not wiped. It leaves some before their end, and a
/// block of each log that an fsync of very little has written.
#[test]
fn what_was_cleaned_long_ago_is_wiped_also_where_the_log_goes_on() {
    let device = volume(1024, 32);
    let fs = mounted(&device);
    let root = fs.root().unwrap().inode;
    let other = make(&fs, &root, "other");
    fs.write(&other, 0, &pattern(1, 100_000)).unwrap();
    let secret = make(&fs, &root, "secret");
    let text = SECRET.repeat(20_000_000 / SECRET.len());
    text.chunks(1 << 20).zip(0..).for_each(|(part, nth)| {
        fs.write(&secret, nth << 20, part).unwrap();
    });
    let last = fs.checkpoint_now().unwrap();
    drop(secret);
    fs.unlink(&root, b"secret").unwrap();
    fs.checkpoint_now().unwrap();
    fs.delete_checkpoints(Cno::MIN..=last).unwrap();
    let run = ManualRun {
        protection: Some(Duration::ZERO),
        min_reclaimable: Some(Amount::Count(1)),
        ..ManualRun::default()
    };
    fs.clean(&run).unwrap();
    for nth in 0..200 {
        fs.write(&other, 0, &[nth]).unwrap();
        fs.sync_file(&other).unwrap();
    }
    fs.write(&other, 0, &pattern(1, 1)).unwrap();
    fs.checkpoint_now().unwrap();
    let left = traces(&device);
    assert!(left > 10_000, "{left}: what is clean still has it");
    let purged = fs.purge(None, ALL, &mut |_| {}).unwrap();
    assert_eq!((purged.left, traces(&device)), (0, 0), "{purged:?}");
    assert_eq!(content(&fs, &other), pattern(1, 100_000));
    drop((root, other));
    fs.unmount().unwrap();
    check(&*device);
}

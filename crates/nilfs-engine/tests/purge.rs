//! Taking away what the past has of a file: judged by every byte of the device.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{check, content, make, pattern, volume};
use nilfs_device::MemoryDevice;
use nilfs_engine::{
    Amount, CleanerOptions, Cno, Error, Filesystem, ManualRun, MountOptions, PurgeOptions, Purged,
    Wiping,
};

const SECRET: &[u8] = b"the secret that nobody may ever find again";
const ALL: PurgeOptions = PurgeOptions { keep_snapshots: false, wiping: Wiping::Discard };

fn mounted(device: &Arc<MemoryDevice>) -> Arc<Filesystem> {
    let cleaner =
        CleanerOptions { protection: Duration::from_secs(3600), ..CleanerOptions::default() };
    let options = MountOptions { cleaner, ..MountOptions::default() };
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
        assert!(matches!(fs.holders(b"secret"), Err(Error::NotFound)));
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
fn a_directory_is_refused_and_so_is_what_never_was() {
    let device = volume(1024, 32);
    let fs = mounted(&device);
    fs.create(&fs.root().unwrap().inode, b"dir", &common::new(0o040_755)).unwrap();
    fs.checkpoint_now().unwrap();
    assert!(matches!(fs.holders(b"dir"), Err(Error::IsDirectory)));
    assert!(matches!(fs.purge(Some(b"never"), ALL, &mut |_| {}), Err(Error::NotFound)));
}

/// The log goes on in segments that were clean, but not wiped, and leaves some before their end.
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
    let left = traces(&device);
    assert!(left > 10_000, "{left}: what is clean still has it");
    let purged = fs.purge(None, ALL, &mut |_| {}).unwrap();
    assert_eq!((purged.left, traces(&device)), (0, 0), "{purged:?}");
    assert_eq!(content(&fs, &other), pattern(1, 100_000));
    drop((root, other));
    fs.unmount().unwrap();
    check(&*device);
}

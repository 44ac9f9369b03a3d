//! Promise of a sync on a damaged volume: if the sync succeeds, the next mount shows what was synced, also
//! where no checkpoint can be made of that. Such a mount writes nothing.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::{
    Error, FileType, Filesystem, InodeRef, MountOptions, NewInode, OnError, SetAttr, Volume,
};
use nilfs_ondisk::inode::{INODE_SIZE, S_IFREG};
use nilfs_ondisk::palloc::Palloc;
use nilfs_ondisk::{BlockSize, Ino};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use support::{BLOCK_SIZES, Image, checked, damage_what_is_in_use, number, read, vblock, write};

/// Damaged copies of each volume.
const ROUNDS: u64 = 12;

/// Changes of each of them.
const STEPS: usize = 16;

/// Levels of directories that are removed: a damaged one may be in itself.
const MOST_LEVELS: u32 = 4;

/// Files that are made on a damaged volume: more than a block of inodes has room for.
const NEW_FILES: u8 = 40;

/// Where the pointers of an inode's direct map begin.
const POINTERS: usize = 64;

/// Where an inode counts its blocks, and where the header of a sufile counts segments in use.
const BLOCKS: usize = 0;
const DIRTY_SEGMENTS: usize = 8;

fn mount(device: &Arc<MemoryDevice>, on_error: OnError) -> Result<Arc<Filesystem>, Error> {
    let options = MountOptions { on_error, ..MountOptions::default() };
    Filesystem::mount(Arc::clone(device) as Arc<dyn Device>, options)
}

fn root(fs: &Filesystem) -> InodeRef {
    fs.root().unwrap().inode
}

fn create(fs: &Filesystem, root: &InodeRef, name: &str, content: &[u8]) -> Result<InodeRef, Error> {
    let new = NewInode { mode: S_IFREG | 0o644, uid: 0, gid: 0, rdev: Default::default() };
    let file = fs.create(root, name.as_bytes(), &new)?.inode;
    fs.write(&file, 0, content)?;
    Ok(file)
}

fn content_of(fs: &Filesystem, root: &InodeRef, name: &str) -> Result<Vec<u8>, Error> {
    let found = fs.lookup(root, name.as_bytes())?;
    if found.attr.nlink == 0 {
        // A damaged name had the file in common with this one, and was removed.
        return Err(Error::NotFound);
    }
    let mut content = vec![0; found.attr.size as usize];
    fs.read(&found.inode, 0, &mut content)?;
    Ok(content)
}

/// Removes a file or a whole directory, as far as that is possible.
fn remove(fs: &Filesystem, dir: &InodeRef, name: &[u8]) -> Result<(), Error> {
    remove_within(fs, dir, name, MOST_LEVELS)
}

fn remove_within(fs: &Filesystem, dir: &InodeRef, name: &[u8], levels: u32) -> Result<(), Error> {
    let found = fs.lookup(dir, name)?;
    if found.attr.file_type != FileType::Directory {
        return fs.unlink(dir, name);
    }
    if levels == 0 {
        return Err(Error::NotEmpty);
    }
    let mut names = Vec::new();
    fs.read_dir(&found.inode, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    })?;
    for name in names.iter().filter(|name| !matches!(&name[..], b"." | b"..")) {
        // A name that a damaged directory has twice is gone the second time.
        let _ = remove_within(fs, &found.inode, name, levels - 1);
    }
    fs.rmdir(dir, name)
}

fn names_in(fs: &Filesystem, dir: &InodeRef) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let _ = fs.read_dir(dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    });
    names.retain(|name| !matches!(&name[..], b"." | b".."));
    names
}

/// Content to which names in the root directory lead, and names that are gone.
#[derive(Clone, Default)]
struct Promise {
    there: BTreeMap<String, Vec<u8>>,
    gone: BTreeSet<Vec<u8>>,
}

impl Promise {
    /// Changes something, and takes note of what can be relied upon.
    fn step(&mut self, fs: &Filesystem, root: &InodeRef, nth: usize, random: &mut StdRng) {
        let names = names_in(fs, root);
        let name = names.choose(random);
        match random.random_range(0..4) {
            0 | 1 => {
                let content = vec![nth as u8; random.random_range(0..20_000)];
                let name = format!("new {nth}");
                if create(fs, root, &name, &content).is_ok() {
                    self.there.insert(name, content);
                }
            }
            2 => {
                let Some(name) = name else { return };
                let _ = remove(fs, root, name);
                self.there.remove(&String::from_utf8_lossy(name)[..]);
                if matches!(fs.lookup(root, name), Err(Error::NotFound)) {
                    self.gone.insert(name.clone());
                }
            }
            _ => {
                let Some(found) = name.and_then(|name| fs.lookup(root, name).ok()) else {
                    return;
                };
                self.there.remove(&String::from_utf8_lossy(name.unwrap())[..]);
                let at = random.random_range(0..found.attr.size.max(1));
                let _ = match random.random() {
                    true => fs.write(&found.inode, at, &[7; 5000]).map(drop),
                    false => {
                        let size = SetAttr { size: Some(at), ..SetAttr::default() };
                        fs.set_attr(&found.inode, &size).map(drop)
                    }
                };
            }
        }
    }

    /// Forgets content that the mount itself does not show any more: on a damaged volume, a change of one
    /// name may change files with others, too.
    fn keep_what_is_shown(&mut self, fs: &Filesystem, root: &InodeRef) {
        self.there.retain(|name, content| {
            content_of(fs, root, name).is_ok_and(|shown| shown == *content)
        });
    }

    /// Forgets what was changed later: a checkpoint may have made that durable, too.
    fn without_changes_until(mut self, now: &Self) -> Self {
        self.there.retain(|name, content| now.there.get(name) == Some(content));
        self
    }

    #[track_caller]
    fn is_kept_by(&self, fs: &Filesystem, what: &str) {
        let root = root(fs);
        for (name, content) in &self.there {
            let now = content_of(fs, &root, name);
            let now = now.unwrap_or_else(|error| panic!("{what}: {name}: {error}"));
            assert!(now == *content, "{what}: {name}");
        }
        for name in &self.gone {
            let found = fs.lookup(&root, name).map(drop);
            let name = String::from_utf8_lossy(name);
            assert!(matches!(found, Err(Error::NotFound)), "{what}: {name}: {found:?}");
        }
    }
}

/// Changes a damaged volume, and mounts it as it is when the power fails at the end. Returns whether
/// anything was promised.
fn lives_on(image: &Image, on_error: OnError, random: &mut StdRng, what: &str) -> bool {
    let device = Arc::new(MemoryDevice::from(image.bytes.clone()));
    let Ok(fs) = mount(&device, on_error) else { return false };
    let Ok(root) = fs.root().map(|root| root.inode) else { return false };
    let (mut now, mut promised) = (Promise::default(), None::<Promise>);
    for nth in 0..STEPS {
        now.step(&fs, &root, nth, random);
        now.keep_what_is_shown(&fs, &root);
        let synced = match random.random_range(0..6) {
            0 => fs.sync(),
            1 | 2 => fs.sync_file(&root),
            _ => continue,
        };
        match synced {
            Ok(()) => promised = Some(now.clone()),
            // From now on, nothing is promised.
            Err(error) => {
                let again = [fs.sync(), fs.sync_file(&root)];
                assert!(again.iter().all(Result::is_err), "{what}: after {error}: {again:?}");
            }
        }
    }
    let after = Arc::new(MemoryDevice::from(device.snapshot()));
    let Some(promised) = promised else { return false };
    let promised = promised.without_changes_until(&now);
    for on_error in [OnError::RemountReadOnly, OnError::Continue] {
        let again = mount(&after, on_error);
        let again = again.unwrap_or_else(|error| panic!("{what}: mounted again: {error}"));
        promised.is_kept_by(&again, what);
        let _ = again.unmount();
    }
    true
}

/// Changes in a log of an fsync could not always be made a checkpoint, and then the volume could be
/// mounted no more: not even what was older could be had.
#[test]
fn what_a_sync_has_promised_is_there_after_the_next_mount() {
    let first = number("NILFS_REPAIR_SEED", rand::random::<u32>().into());
    println!("NILFS_REPAIR_SEED={first}");
    let mut promised = 0;
    for block_size in BLOCK_SIZES {
        let sound = Image::by_linux(block_size);
        for seed in first..first + number("NILFS_REPAIR_ROUNDS", ROUNDS) {
            let mut image = sound.clone();
            let random = &mut StdRng::seed_from_u64(seed);
            while checked(&image.bytes).is_ok_and(|report| report.is_consistent()) {
                damage_what_is_in_use(&mut image, random);
            }
            for on_error in [OnError::RemountReadOnly, OnError::Continue] {
                let what =
                    format!("block size {block_size}, {on_error:?}, NILFS_REPAIR_SEED={seed}");
                promised += u32::from(lives_on(&image, on_error, random, &what));
            }
        }
    }
    assert!(promised > 0, "no sync has succeeded");
}

/// The second time that a number was given up, the checkpoint could not be made, nor could one after any
/// mount.
#[test]
fn a_directory_that_has_a_block_twice_can_be_deleted() {
    let mut image = Image::by_linux(1024);
    let many = image.named("many");
    image.edit_inode(many, |inode| write(inode, POINTERS + 8, read(inode, POINTERS)));
    let device = Arc::new(MemoryDevice::from(image.bytes));
    let fs = mount(&device, OnError::RemountReadOnly).unwrap();
    remove(&fs, &root(&fs), b"many").unwrap();
    fs.sync_file(&root(&fs)).unwrap();
    let crashed = Arc::new(MemoryDevice::from(device.snapshot()));
    fs.sync().unwrap();
    assert!(fs.is_read_only(), "the damage was noted");
    assert!(create(&fs, &root(&fs), "more", b"").is_err());
    for device in [device, crashed] {
        let device = Arc::new(MemoryDevice::from(device.snapshot()));
        let fs = mount(&device, OnError::Continue).unwrap();
        assert!(matches!(fs.lookup(&root(&fs), b"many"), Err(Error::NotFound)));
        fs.unmount().unwrap();
        let fs = mount(&device, OnError::RemountReadOnly).unwrap();
        create(&fs, &root(&fs), "more", b"content").unwrap();
        fs.unmount().unwrap();
    }
}

/// The names of a volume are enough for a mount to find and to change a file; a recovery also asked the
/// bitmap, and refused the mount.
#[test]
fn a_file_that_is_missing_in_the_bitmap_can_be_changed() {
    let mut image = Image::by_linux(1024);
    let [many, tree] = ["many", "tree"].map(|name| image.named(name));
    let bitmap = image.data(Ino::IFILE, 1);
    image.edit(bitmap, |block| {
        for ino in [many, tree] {
            block[ino.0 as usize / 8] &= !(1 << (ino.0 % 8));
        }
    });
    let device = Arc::new(MemoryDevice::from(image.bytes));
    let fs = mount(&device, OnError::RemountReadOnly).unwrap();
    let file = fs.lookup(&root(&fs), b"tree").unwrap().inode;
    fs.write(&file, 0, b"changed").unwrap();
    let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    fs.set_attr(&file, &mode).unwrap();
    // A new file would be given the number that seems to be free.
    let many = fs.lookup(&root(&fs), b"many").unwrap().inode;
    fs.link(&file, &many, b"new").unwrap();
    fs.sync_file(&file).unwrap();
    let device = Arc::new(MemoryDevice::from(device.snapshot()));
    let fs = mount(&device, OnError::RemountReadOnly).unwrap();
    let file = fs.lookup(&root(&fs), b"tree").unwrap();
    let mut content = vec![0; 7];
    fs.read(&file.inode, 0, &mut content).unwrap();
    assert_eq!((&content[..], file.attr.mode & 0o777), (&b"changed"[..], 0o600));
    let many = fs.lookup(&root(&fs), b"many").unwrap().inode;
    fs.lookup(&many, b"new").unwrap();
    fs.unmount().unwrap();
}

/// Content of the regular files in the root directory.
fn regular_files(fs: &Filesystem) -> BTreeMap<String, Vec<u8>> {
    let root = root(fs);
    let names = names_in(fs, &root).into_iter().map(|name| String::from_utf8(name).unwrap());
    let regular = names.filter(|name| {
        let found = fs.lookup(&root, name.as_bytes());
        found.is_ok_and(|found| found.attr.file_type == FileType::Regular)
    });
    regular.map(|name| (name.clone(), content_of(fs, &root, &name).unwrap())).collect()
}

/// Makes files, and returns what the next mount shows after a crash and after a clean end.
fn with_new_files(image: Image) -> [BTreeMap<String, Vec<u8>>; 2] {
    let device = Arc::new(MemoryDevice::from(image.bytes));
    let fs = mount(&device, OnError::RemountReadOnly).unwrap();
    for nth in 0..NEW_FILES {
        create(&fs, &root(&fs), &format!("new {nth}"), &[nth; 3000]).unwrap();
    }
    fs.sync_file(&root(&fs)).unwrap();
    let crashed = Arc::new(MemoryDevice::from(device.snapshot()));
    fs.unmount().unwrap();
    [crashed, device].map(|device| {
        let fs = mount(&device, OnError::Continue).unwrap();
        let files = regular_files(&fs);
        fs.unmount().unwrap();
        files
    })
}

/// A mount refused to write, or panicked, where damage had made a number so large that it cannot be added to.
#[test]
fn numbers_at_the_end_of_their_range_stop_nothing() {
    let mut image = Image::by_linux(1024);
    let sufile = image.data(Ino::SUFILE, 0);
    image.edit(sufile, |header| write(header, DIRTY_SEGMENTS, u64::MAX));
    let removed = ["tree", "shrunk"];
    for name in removed {
        let ino = image.named(name);
        image.edit_inode(ino, |inode| write(inode, BLOCKS, u64::MAX));
    }
    let device = Arc::new(MemoryDevice::from(image.bytes));
    let fs = mount(&device, OnError::RemountReadOnly).unwrap();
    removed.iter().for_each(|name| remove(&fs, &root(&fs), name.as_bytes()).unwrap());
    // More than the rest of the segment has room for.
    create(&fs, &root(&fs), "new", &[1; 300_000]).unwrap();
    fs.unmount().unwrap();
    let fs = mount(&device, OnError::RemountReadOnly).unwrap();
    assert!(content_of(&fs, &root(&fs), "new").unwrap() == [1; 300_000]);
}

/// A new file was given the number of a file in use, and took its place, where the bitmap had lost a bit.
#[test]
fn no_new_file_takes_the_place_of_one_that_is_missing_in_the_bitmap() {
    let mut image = Image::by_linux(1024);
    let sound = mount(&Arc::new(MemoryDevice::from(image.bytes.clone())), OnError::Continue);
    let mut expected = regular_files(&sound.unwrap());
    let bitmap = image.data(Ino::IFILE, 1);
    image.edit(bitmap, |block| block[1..].fill(0));
    let new = |nth| (format!("new {nth}"), vec![nth; 3000]);
    expected.extend((0..NEW_FILES).map(new));
    for files in with_new_files(image) {
        assert!(files == expected, "{:?}", files.keys());
    }
}

/// A new file was given a number in a block of the ifile that could not be read: no checkpoint could be made
/// from then on, and no mount rolled the log of an fsync forward.
#[test]
fn a_new_file_has_its_inode_in_a_block_that_can_be_read() {
    let mut image = Image::by_linux(1024);
    let last = image.named("tree");
    let block = Palloc::new(BlockSize::from_bytes(1024).unwrap(), INODE_SIZE).entry(last.0).block;
    let block = vblock(image.data(Ino::IFILE, block.0));
    image.edit_dat(block, |entry| write(entry, 0, u64::MAX / 2));
    for files in with_new_files(image) {
        let new = (0..NEW_FILES).filter(|nth| files[&format!("new {nth}")] == [*nth; 3000]);
        assert_eq!(new.count(), usize::from(NEW_FILES));
    }
}

/// An ifile says that no inode is free where one is: a file that takes it can be in no checkpoint.
fn without_free_inodes() -> Arc<MemoryDevice> {
    let mut image = Image::by_linux(1024);
    let descriptor = image.data(Ino::IFILE, 0);
    image.edit(descriptor, |block| block[..4].fill(0));
    Arc::new(MemoryDevice::from(image.bytes))
}

#[test]
fn what_no_checkpoint_can_have_is_shown_until_it_is_given_up() {
    let device = without_free_inodes();
    let fs = mount(&device, OnError::RemountReadOnly).unwrap();
    let old =
        names_in(&fs, &root(&fs)).into_iter().map(|name| fs.lookup(&root(&fs), &name).unwrap());
    let old = old.into_iter().find(|it| it.attr.file_type == FileType::Regular).unwrap().inode;
    fs.write(&old, 0, b"possible").unwrap();
    fs.sync_file(&root(&fs)).unwrap();
    create(&fs, &root(&fs), "new", b"impossible").unwrap();
    fs.sync_file(&root(&fs)).unwrap();
    let crashed = device.snapshot();
    assert!(fs.sync().is_err() && fs.sync_file(&root(&fs)).is_err() && fs.is_read_only());
    drop(fs);

    let device = Arc::new(MemoryDevice::from(crashed.clone()));
    for on_error in [OnError::RemountReadOnly, OnError::Continue] {
        let fs = mount(&device, on_error).unwrap();
        let new = fs.lookup(&root(&fs), b"new").unwrap();
        let mut content = vec![0; 10];
        assert_eq!(fs.read(&new.inode, 0, &mut content).unwrap(), 10);
        assert_eq!(content, b"impossible");
        let refused = fs.write(&new.inode, 0, b"more");
        assert!(matches!(refused, Err(Error::ReadOnly { .. })), "{refused:?}");
        assert!(fs.set_read_only(false).is_err() && fs.sync().is_err());
        fs.unmount().unwrap();
        assert!(device.snapshot() == crashed, "such a mount has written something");
    }

    let plan =
        Volume::open(Arc::clone(&device) as Arc<dyn Device>).unwrap().recovery_plan().unwrap();
    assert_eq!((plan.applied.len(), plan.lost.len()), (1, 1), "{:?}", plan.why);
    assert!(device.snapshot() == crashed, "a plan writes nothing");
    let force = MountOptions { give_up_unrecoverable: true, ..MountOptions::default() };
    let fs = Filesystem::mount(Arc::clone(&device) as Arc<dyn Device>, force).unwrap();
    assert!(!fs.is_read_only());
    assert!(matches!(fs.lookup(&root(&fs), b"new"), Err(Error::NotFound)));
    let mut content = vec![0; 8];
    fs.read(&fs.by_number(old.ino()).unwrap(), 0, &mut content).unwrap();
    assert_eq!(content, b"possible");
    fs.unmount().unwrap();
}

//! An operation that fails halfway keeps nothing of what it did: each read that an operation makes fails in
//! turn, and then the volume is as before, in memory and on the device, and the operation can be done again.

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{check, make, new, parameters, pattern, place};
use nilfs_device::{Action, Device, Fault, FaultyDevice, IoSlice, MemoryDevice};
use nilfs_engine::mkfs::format;
use nilfs_engine::{
    Attr, CleanerOptions, Clock, Error, FileType, Filesystem, Ino, InodeRef, MountOptions, OnError,
    RenameMode, Result, SetAttr, Timestamp, Verify,
};
use nilfs_ondisk::inode::{S_IFDIR, S_IFREG};

const BLOCK: usize = 1024;
/// Blocks of the file "big", which has a hole after a half of them.
const BIG: usize = 200;
/// Names in the directory "many".
const MANY: usize = 120;

/// A clock that stands still, so that two runs of an operation differ in nothing.
struct Still(i64);

impl Clock for Still {
    fn now(&self) -> Timestamp {
        Timestamp { seconds: self.0, nanoseconds: 7 }
    }
}

fn mount(device: Arc<dyn Device>, seconds: i64, verify: Verify) -> Arc<Filesystem> {
    let options = MountOptions {
        cache_limit: 0,
        verify,
        on_error: OnError::Continue,
        cleaner: CleanerOptions { enabled: false, ..CleanerOptions::default() },
        clock: Arc::new(Still(seconds)),
        ..MountOptions::default()
    };
    Filesystem::mount(device, options).unwrap()
}

fn directory(fs: &Filesystem, dir: &InodeRef, name: &str) -> InodeRef {
    fs.create(dir, name.as_bytes(), &new(S_IFDIR | 0o755)).unwrap().inode
}

fn file(fs: &Filesystem, dir: &InodeRef, name: &str, len: usize) -> InodeRef {
    let file = make(fs, dir, name);
    fs.write(&file, 0, &pattern(name.len(), len)).unwrap();
    file
}

/// The nth name of "many", which has some in each of its blocks.
fn nth(nth: usize) -> String {
    format!("a name that is long enough for many blocks, number {nth}")
}

fn make_volume(fill: impl FnOnce(&Filesystem)) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(8 << 20));
    format(&*device, &parameters(BLOCK as u64)).unwrap();
    let fs = mount(Arc::clone(&device) as _, 1_700_000_100, Verify::All);
    fill(&fs);
    fs.unmount().unwrap();
    device
}

/// A directory with more blocks than the cache, which can have 128 at least.
fn huge_directory(fs: &Filesystem) {
    let root = fs.root().unwrap().inode;
    let [one, two] = ["one", "two"].map(|name| directory(fs, &root, name));
    let [moved, _] = ["moved", "empty"].map(|name| directory(fs, &one, name));
    let linked = file(fs, &moved, "file", 10);
    for nth in 0..420 {
        fs.link(&linked, &two, format!("{nth:0255}").as_bytes()).unwrap();
    }
    let last = ["moved", "empty"].map(|name| format!("{name:255}"));
    last.iter().for_each(|name| _ = directory(fs, &two, name));
}

/// Files and directories to change.
fn various(fs: &Filesystem) {
    let root = fs.root().unwrap().inode;
    let [one, two] = ["one", "two"].map(|name| directory(fs, &root, name));
    for dir in [&one, &two] {
        file(fs, dir, "file", 3 * BLOCK + 100);
        file(fs, dir, "other", 10);
        directory(fs, dir, "empty");
        let full = directory(fs, dir, "full");
        (0..MANY).for_each(|at| _ = make(fs, &full, &nth(at)));
    }
    let many = directory(fs, &one, "many");
    (0..MANY).for_each(|at| _ = make(fs, &many, &nth(at)));
    let big = file(fs, &root, "big", BIG * BLOCK / 2);
    let rest = pattern(5, BIG * BLOCK / 4 + 300);
    fs.write(&big, (BIG * BLOCK * 3 / 4) as u64, &rest).unwrap();
}

/// A mounted volume and how its files are found: by numbers, so that no directory has been read.
struct World {
    fs: Arc<Filesystem>,
    inos: Arc<BTreeMap<String, Ino>>,
    /// Files that are open, so that what is in memory of them stays.
    open: RefCell<Vec<InodeRef>>,
}

impl World {
    fn new(fs: Arc<Filesystem>, inos: &Arc<BTreeMap<String, Ino>>) -> Self {
        Self { fs, inos: Arc::clone(inos), open: RefCell::default() }
    }

    fn get(&self, path: &str) -> Result<InodeRef> {
        let inode = self.fs.by_number(self.inos[path])?;
        self.open.borrow_mut().push(Arc::clone(&inode));
        Ok(inode)
    }

    fn write(&self, path: &str, offset: usize, len: usize) -> Result<()> {
        self.fs.write(&self.get(path)?, offset as u64, &pattern(77, len))
    }

    fn resize(&self, path: &str, size: usize) -> Result<()> {
        let changes = SetAttr { size: Some(size as u64), ..SetAttr::default() };
        self.fs.set_attr(&self.get(path)?, &changes).map(drop)
    }

    fn rename(&self, from: (&str, &str), to: (&str, &str), mode: RenameMode) -> Result<()> {
        let [dir, to_dir] = [self.get(from.0)?, self.get(to.0)?];
        self.fs.rename(&dir, from.1.as_bytes(), &to_dir, to.1.as_bytes(), mode)
    }

    fn make(&self, dir: &str, name: &str, mode: u16) -> Result<()> {
        self.fs.create(&self.get(dir)?, name.as_bytes(), &new(mode)).map(drop)
    }
}

/// What programs see of a file: what it is, and its content, target, or names with their numbers.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    attr: Attr,
    content: Vec<u8>,
    names: Vec<(Vec<u8>, Ino)>,
}

type Picture = BTreeMap<String, Seen>;

fn see(fs: &Filesystem, path: &str, inode: &InodeRef, picture: &mut Picture) {
    let attr = Attr { generation: 0, ..fs.attr(inode).unwrap() };
    let (mut content, mut names) = (Vec::new(), Vec::new());
    match attr.file_type {
        FileType::Directory => fs
            .read_dir(inode, 0, &mut |entry| {
                names.push((entry.name.to_vec(), entry.ino));
                true
            })
            .unwrap(),
        FileType::Regular => content = common::content(fs, inode),
        FileType::Symlink => content = fs.read_link(inode).unwrap(),
        _ => {}
    }
    for (name, ino) in names.iter().filter(|(name, _)| !matches!(&name[..], b"." | b"..")) {
        // By its number: without an index, each name would be searched for in all blocks.
        let child = fs.inode(*ino).unwrap().inode;
        let path = format!("{path}/{}", String::from_utf8_lossy(name));
        see(fs, &path, &child, picture);
    }
    names.sort();
    picture.insert(path.to_owned(), Seen { attr, content, names });
}

fn picture(fs: &Filesystem) -> Picture {
    let mut picture = Picture::new();
    see(fs, "", &fs.root().unwrap().inode, &mut picture);
    picture
}

/// A picture without what depends on which free numbers could be read, and which room in directories.
fn without_places(mut picture: Picture) -> Picture {
    for seen in picture.values_mut() {
        seen.attr.ino = Ino::ROOT;
        seen.names.iter_mut().for_each(|(_, ino)| *ino = Ino::ROOT);
        if seen.attr.file_type == FileType::Directory {
            (seen.attr.size, seen.attr.blocks) = (0, 0);
        }
    }
    picture
}

#[track_caller]
fn same(found: &Picture, expected: &Picture, when: &str) {
    for (path, seen) in expected {
        assert_eq!(found.get(path), Some(seen), "{when}: {path:?}");
    }
    let more: Vec<_> = found.keys().filter(|path| !expected.contains_key(*path)).collect();
    assert!(more.is_empty(), "{when}: {more:?} should not be there");
}

/// The picture of a volume on a device, which has no inconsistencies.
fn on_device(device: &MemoryDevice) -> Picture {
    check(device);
    let copy = Arc::new(MemoryDevice::from(device.snapshot()));
    picture(&mount(copy, 1_700_000_300, Verify::All))
}

/// An operation, and what comes before it on the same mount.
struct Case {
    name: &'static str,
    before: Option<fn(&World)>,
    operation: fn(&World) -> Result<()>,
}

fn case(name: &'static str, operation: fn(&World) -> Result<()>) -> Case {
    Case { name, before: None, operation }
}

impl Case {
    fn after(self, before: fn(&World)) -> Self {
        Self { before: Some(before), ..self }
    }
}

type Faulty = Arc<FaultyDevice<MemoryDevice>>;

/// A mount of a copy of a volume, on which nothing but the operation is missing.
fn world(image: &[u8], inos: &Arc<BTreeMap<String, Ino>>, case: &Case) -> (Faulty, World) {
    let device = Arc::new(FaultyDevice::new(MemoryDevice::from(image.to_vec())).0);
    let fs = mount(Arc::clone(&device) as _, 1_700_000_200, Verify::default());
    let world = World::new(fs, inos);
    if let Some(before) = case.before {
        before(&world);
    }
    (device, world)
}

/// Lets each read of an operation fail in turn. Returns how many there were.
fn walk(image: &[u8], inos: &Arc<BTreeMap<String, Ino>>, case: &Case) -> u64 {
    let before = picture(&world(image, inos, case).1.fs);
    let (device, sound) = world(image, inos, case);
    (case.operation)(&sound).unwrap();
    let after = without_places(picture(&sound.fs));
    sound.fs.unmount().unwrap();
    // Blocks of maps count only when there are any.
    let committed = without_places(on_device(device.below()));
    for nth in 0.. {
        let when = format!("{}: read {nth} fails", case.name);
        let (device, world) = world(image, inos, case);
        let reads = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&reads);
        device.faults().set(move |request| {
            let is_it =
                request.action == Action::Read && count.fetch_add(1, Ordering::Relaxed) == nth;
            is_it.then_some(Fault::Error)
        });
        let done = (case.operation)(&world);
        device.faults().clear();
        if reads.load(Ordering::Relaxed) <= nth {
            done.unwrap();
            return nth;
        }
        if let Err(error) = done {
            assert!(matches!(error, Error::Device { .. }), "{when}: {error}");
            same(&picture(&world.fs), &before, &when);
            world.fs.commit().unwrap();
            let is_untouched = case.before.is_some() || device.below().snapshot() == image;
            assert!(is_untouched, "{when}: and yet there was something to write");
            same(&on_device(device.below()), &before, &format!("{when}, on the device"));
            (case.operation)(&world).unwrap_or_else(|error| panic!("{when}, again: {error}"));
        }
        same(&without_places(picture(&world.fs)), &after, &format!("{when}, done"));
        world.fs.unmount().unwrap();
        let found = without_places(on_device(device.below()));
        same(&found, &committed, &format!("{when}, done and on the device"));
    }
    unreachable!("no operation reads for ever")
}

fn numbers(picture: &Picture) -> Arc<BTreeMap<String, Ino>> {
    Arc::new(picture.iter().map(|(path, seen)| (path.clone(), seen.attr.ino)).collect())
}

/// Lets each read of each operation fail, and says of all operations in which that is not borne.
fn walk_all(device: &MemoryDevice, cases: &[Case]) {
    let image = device.snapshot();
    let inos = numbers(&on_device(device));
    let mut failed = Vec::new();
    for case in cases {
        let walked =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| walk(&image, &inos, case)));
        match walked {
            Ok(reads) => {
                println!("{}: {reads} reads", case.name);
                assert!(reads > 0, "{} reads nothing that could fail", case.name);
            }
            Err(_) => failed.push(case.name),
        }
    }
    assert!(
        failed.is_empty(),
        "these keep something of what they did, or cannot be repeated: {failed:#?}"
    );
}

#[test]
fn names_are_made_and_removed_as_a_whole_or_not_at_all() {
    walk_all(
        &make_volume(various),
        &[
            case("create", |world| world.make("/one", "new", S_IFREG | 0o644)),
            case("create in a large directory", |world| world.make("/one/many", "new", S_IFREG)),
            case("create in a new block of a directory", |world| {
                world.make("/one/many", &"n".repeat(255), S_IFREG | 0o644)
            }),
            case("mkdir", |world| world.make("/one", "new", S_IFDIR | 0o755)),
            case("symlink", |world| {
                world.fs.symlink(&world.get("/one")?, b"new", b"target", 0, 0).map(drop)
            }),
            case("link", |world| {
                let [inode, dir] = [world.get("/one/file")?, world.get("/two")?];
                world.fs.link(&inode, &dir, b"new").map(drop)
            }),
            case("make a file without a name", |world| {
                world.fs.create_nameless(&world.get("/one")?, &new(S_IFREG | 0o644)).map(drop)
            }),
            case("make a file without a name and give it one", |world| {
                let dir = world.get("/one")?;
                let made = world.fs.create_nameless(&dir, &new(S_IFREG | 0o644))?.inode;
                world.fs.write(&made, 0, &pattern(3, 2 * BLOCK + 1))?;
                world.fs.link(&made, &world.get("/two/full")?, b"new").map(drop)
            }),
            case("unlink", |world| world.fs.unlink(&world.get("/one")?, b"file")),
            case("unlink in a large directory", |world| {
                world.fs.unlink(&world.get("/one/many")?, nth(MANY / 2).as_bytes())
            }),
            case("unlink one of two names", |world| world.fs.unlink(&world.get("/one")?, b"file"))
                .after(|world| {
                    let [inode, dir] = ["/one/file", "/two"].map(|path| world.get(path).unwrap());
                    world.fs.link(&inode, &dir, b"new").unwrap();
                    world.fs.sync().unwrap();
                }),
            case("rmdir", |world| world.fs.rmdir(&world.get("/one")?, b"empty")),
        ],
    );
}

#[test]
fn files_are_renamed_as_a_whole_or_not_at_all() {
    const REPLACE: RenameMode = RenameMode::Replace;
    const EXCHANGE: RenameMode = RenameMode::Exchange;
    walk_all(
        &make_volume(various),
        &[
            case("rename in a directory", |world| {
                world.rename(("/one", "file"), ("/one", "new"), RenameMode::NoReplace)
            }),
            case("rename in a large directory", |world| {
                world.rename(("/one/many", &nth(3)), ("/one/many", "new"), REPLACE)
            }),
            case("rename to a new block of the directory", |world| {
                world.rename(("/one/many", &nth(3)), ("/one/many", &"n".repeat(255)), REPLACE)
            }),
            case("rename to another directory", |world| {
                world.rename(("/one", "file"), ("/two/full", "new"), REPLACE)
            }),
            case("rename over a file", |world| {
                world.rename(("/one", "file"), ("/one", "other"), REPLACE)
            }),
            case("rename over a file of another directory", |world| {
                world.rename(("/one", "file"), ("/two", "file"), REPLACE)
            }),
            case("rename a directory in its directory", |world| {
                world.rename(("/one", "full"), ("/one", "new"), REPLACE)
            }),
            case("rename a directory to another", |world| {
                world.rename(("/one", "full"), ("/two", "new"), REPLACE)
            }),
            case("rename a directory over an empty one", |world| {
                world.rename(("/one", "full"), ("/two", "empty"), REPLACE)
            }),
            case("exchange files", |world| {
                world.rename(("/one", "file"), ("/one", "other"), EXCHANGE)
            }),
            case("exchange files of two directories", |world| {
                world.rename(("/one", "file"), ("/two", "other"), EXCHANGE)
            }),
            case("exchange directories", |world| {
                world.rename(("/one", "full"), ("/two", "full"), EXCHANGE)
            }),
            case("exchange a directory and a file", |world| {
                world.rename(("/one", "full"), ("/two", "file"), EXCHANGE)
            }),
        ],
    );
}

/// The block with ".." of a directory that moves is out of the cache when it is to be changed.
#[test]
fn a_directory_moves_to_a_huge_one_as_a_whole_or_not_at_all() {
    const EXCHANGE: RenameMode = RenameMode::Exchange;
    walk_all(
        &make_volume(huge_directory),
        &[
            case("rename a directory to a huge one", |world| {
                world.rename(("/one", "moved"), ("/two", "new"), RenameMode::Replace)
            }),
            case("rename a directory over an empty one of a huge one", |world| {
                world.rename(("/one", "moved"), ("/two", "empty"), RenameMode::Replace)
            }),
            case("exchange a directory and one of a huge one", |world| {
                world.rename(("/one", "moved"), ("/two", &format!("{:255}", "moved")), EXCHANGE)
            }),
        ],
    );
}

#[test]
fn attributes_are_set_as_a_whole_or_not_at_all() {
    walk_all(
        &make_volume(various),
        &[
            case("set mode and owner", |world| {
                let changes = SetAttr { mode: Some(0o600), uid: Some(7), ..SetAttr::default() };
                world.fs.set_attr(&world.get("/one/file")?, &changes).map(drop)
            }),
            case("set flags", |world| world.fs.set_flags(&world.get("/one/file")?, 0x40).map(drop)),
            case("truncate inside a block", |world| world.resize("/big", 40 * BLOCK + 300)),
            case("truncate with the mode", |world| {
                let (mode, size) = (Some(0o600), Some(300));
                let changes = SetAttr { mode, size, ..SetAttr::default() };
                world.fs.set_attr(&world.get("/one/file")?, &changes).map(drop)
            }),
            case("truncate where a block ends", |world| world.resize("/big", 40 * BLOCK)),
            case("truncate inside a hole", |world| world.resize("/big", BIG * BLOCK * 5 / 8 + 1)),
            case("truncate to nothing", |world| world.resize("/big", 0)),
            case("truncate to more", |world| world.resize("/big", 2 * BIG * BLOCK + 1)),
        ],
    );
}

#[test]
fn content_is_written_as_a_whole_or_not_at_all() {
    walk_all(
        &make_volume(various),
        &[
            case("overwrite a part of a block", |world| world.write("/big", 20 * BLOCK + 100, 50)),
            case("overwrite parts of blocks", |world| {
                world.write("/big", 20 * BLOCK + 100, 3 * BLOCK)
            }),
            case("overwrite blocks", |world| world.write("/big", 20 * BLOCK, 3 * BLOCK)),
            case("overwrite parts of what was synced", |world| {
                world.write("/big", 20 * BLOCK + 100, 5 * BLOCK)
            })
            .after(|world| {
                let big = world.get("/big").unwrap();
                world.fs.write(&big, 21 * BLOCK as u64 + 500, &pattern(9, 2 * BLOCK)).unwrap();
                world.fs.sync_file(&big).unwrap();
                world.fs.write(&big, 22 * BLOCK as u64 + 1, &pattern(8, 10)).unwrap();
            }),
            case("write from a block into a hole", |world| {
                world.write("/big", (BIG / 2 - 1) * BLOCK + 10, 5 * BLOCK)
            }),
            case("write from a hole into a block", |world| {
                world.write("/big", (BIG * 3 / 4 - 3) * BLOCK + 10, 4 * BLOCK)
            }),
            case("append inside a block", |world| world.write("/one/file", 3 * BLOCK + 100, 50)),
            case("append blocks", |world| world.write("/one/file", 3 * BLOCK + 100, 4 * BLOCK)),
            case("write beyond the end", |world| world.write("/one/file", 9 * BLOCK + 10, 100)),
            case("write some", |world| {
                let data = pattern(4, 3 * BLOCK);
                world.fs.write_some(&world.get("/big")?, 20 * BLOCK as u64 + 7, &data).map(drop)
            }),
        ],
    );
}

/// The block with ".." is damaged where the device says nothing of it.
#[test]
fn a_directory_whose_first_block_is_damaged_stays_where_it_is() {
    let device = make_volume(various);
    let inos = numbers(&on_device(&device));
    let [full, root] = ["/one/full", ""].map(|path| inos[path]);
    let record_length = place(&device, full, 0).0 * BLOCK as u64 + 8;
    device.write_at(record_length, &[IoSlice::new(&[13])]).unwrap();
    let fs = mount(Arc::clone(&device) as _, 1_700_000_200, Verify::None);
    let attrs = || inos.values().map(|ino| fs.inode(*ino).unwrap().attr).collect::<Vec<_>>();
    let names = |path: &str| {
        let mut names = BTreeMap::new();
        fs.read_dir(&fs.by_number(inos[path]).unwrap(), 0, &mut |entry| {
            names.insert(entry.name.to_vec(), entry.ino);
            true
        })
        .unwrap();
        names
    };
    let world = World::new(Arc::clone(&fs), &inos);
    let before = (attrs(), names("/one"), names("/two"));
    for (to, mode) in [
        ("new", RenameMode::Replace),
        ("empty", RenameMode::Replace),
        ("full", RenameMode::Exchange),
        ("file", RenameMode::Exchange),
    ] {
        let refused = world.rename(("/one", "full"), ("/two", to), mode).unwrap_err();
        assert!(refused.is_damage(), "{refused}");
        assert!((attrs(), names("/one"), names("/two")) == before, "{to:?}, {mode:?}");
    }
    fs.rename(
        &world.get("/one").unwrap(),
        b"full",
        &world.get("/one").unwrap(),
        b"new",
        RenameMode::Replace,
    )
    .unwrap();
    assert_eq!(names("/one")[&b"new"[..]], full);
    assert_eq!(fs.root().unwrap().inode.ino(), root);
}

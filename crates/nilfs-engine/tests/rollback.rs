//! Making the present what it was: judged by a copy of all files at each checkpoint, by the checker, and
//! by the checkpoints before, of which nothing may change.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{check, content, make, mount, new, parameters, pattern, volume};
use nilfs_device::{Action, Fault, FaultyDevice, MemoryDevice};
use nilfs_engine::mkfs::format;
use nilfs_engine::{
    CleanerOptions, Cno, Error, FileType, Filesystem, InodeRef, MadeBy, ManualRun, MountOptions,
    RenameMode, RolledBack, SetAttr, SnapshotChange, Tree,
};
use nilfs_ondisk::inode::{S_IFDIR, S_IFREG};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const BLOCK: usize = 4096;

/// What is at a path, with the first of all paths that lead to the same file.
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
        let first: &String = firsts.entry(file.ino()).or_insert_with(|| path.clone());
        let seen_here = Seen {
            first: first.clone(),
            mode: attr.mode,
            uid: attr.uid,
            links: attr.nlink,
            mtime: (attr.mtime.seconds, attr.mtime.nanoseconds),
            content: bytes,
        };
        seen.insert(path, seen_here);
    }
    // A file may have been found under another path first.
    let mut least: BTreeMap<String, String> = BTreeMap::new();
    for (path, it) in &seen {
        least.entry(it.first.clone()).or_insert_with(|| path.clone());
    }
    seen.values_mut().for_each(|it| it.first.clone_from(&least[&it.first]));
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

/// Everything at a path and below it, as if nothing else were there.
fn below(all: &Picture, top: &str) -> Picture {
    let is_below = |path: &str| path == top || path.starts_with(&format!("{top}/"));
    let mut part: Picture = all
        .iter()
        .filter(|(path, _)| is_below(path))
        .map(|(path, it)| (path.clone(), it.clone()))
        .collect();
    let mut least: BTreeMap<String, String> = BTreeMap::new();
    for (path, it) in &part {
        least.entry(it.first.clone()).or_insert_with(|| path.clone());
    }
    for it in part.values_mut() {
        it.first.clone_from(&least[&it.first]);
        // Other names may be elsewhere.
        it.links = 0;
    }
    part
}

/// Everything else, but for what the directory of the path says of itself.
fn outside(all: &Picture, top: &str) -> Picture {
    let above = top.rsplit_once('/').map_or("", |(above, _)| above);
    let is_below = |path: &str| path == top || path.starts_with(&format!("{top}/"));
    let mut part: Picture = all
        .iter()
        .filter(|(path, _)| !is_below(path))
        .map(|(path, it)| (path.clone(), it.clone()))
        .collect();
    let mut least: BTreeMap<String, String> = BTreeMap::new();
    for (path, it) in &part {
        least.entry(it.first.clone()).or_insert_with(|| path.clone());
    }
    for (path, it) in &mut part {
        it.first.clone_from(&least[&it.first]);
        it.links = 0;
        if path == above {
            it.mtime = (0, 0);
        }
    }
    part
}

/// Files that are written, renamed, linked and deleted at random, some of them open, while checkpoints are
/// made, cleaned away, and gone back to.
struct World {
    device: Arc<MemoryDevice>,
    fs: Arc<Filesystem>,
    random: StdRng,
    then: BTreeMap<Cno, Picture>,
    /// Files that somebody has open.
    open: Vec<InodeRef>,
    rollbacks: u32,
    revived: u64,
    renumbered: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let device = Arc::new(MemoryDevice::new(24 << 20));
        format(&*device, &parameters(1024)).unwrap();
        let fs = mounted(&device);
        let random = StdRng::seed_from_u64(seed);
        let (then, open) = (BTreeMap::new(), Vec::new());
        Self { device, fs, random, then, open, rollbacks: 0, revived: 0, renumbered: 0 }
    }

    fn paths(&self) -> Vec<(String, bool)> {
        let tree = self.fs.tree(None).unwrap();
        let all = picture(&tree);
        all.iter().map(|(path, it)| (path.clone(), it.mode & 0o111 != 0)).collect()
    }

    fn find(&self, path: &str) -> InodeRef {
        path.split('/')
            .filter(|name| !name.is_empty())
            .fold(root(&self.fs), |dir, name| self.fs.lookup(&dir, name.as_bytes()).unwrap().inode)
    }

    fn pick(&mut self, directory: bool) -> Option<String> {
        self.fs.commit().unwrap();
        let paths = self.paths();
        let fitting: Vec<&String> =
            paths.iter().filter(|(_, is_dir)| *is_dir == directory).map(|(path, _)| path).collect();
        (!fitting.is_empty()).then(|| fitting[self.random.random_range(0..fitting.len())].clone())
    }

    fn name(&mut self) -> String {
        format!("n{}", self.random.random_range(0..12))
    }

    fn change(&mut self) {
        let dir = self.pick(true).unwrap();
        let (dir, name) = (self.find(&dir), self.name());
        let seed = self.random.random_range(0..1000);
        let file = self.pick(false);
        // What cannot be done is not done.
        match self.random.random_range(0..10) {
            0..3 => {
                if let Ok(made) = self.fs.create(&dir, name.as_bytes(), &new(S_IFREG | 0o644)) {
                    let length = self.random.random_range(0..60_000);
                    self.fs.write(&made.inode, 0, &pattern(seed, length)).unwrap();
                    if self.random.random_bool(0.2) {
                        self.open.push(made.inode);
                    }
                }
            }
            3 => _ = self.fs.create(&dir, name.as_bytes(), &new(S_IFDIR | 0o755)),
            4 => {
                let Some(file) = file else { return };
                let at = self.random.random_range(0..40_000);
                let length = self.random.random_range(1..5000);
                self.fs.write(&self.find(&file), at, &pattern(seed, length)).unwrap();
            }
            5 => {
                let Some(file) = file else { return };
                let size = Some(self.random.random_range(0..30_000));
                let changes = SetAttr { size, ..SetAttr::default() };
                self.fs.set_attr(&self.find(&file), &changes).unwrap();
            }
            6 => {
                let Some(file) = file else { return };
                _ = self.fs.link(&self.find(&file), &dir, name.as_bytes());
            }
            7 => {
                let is_dir = self.random.random_bool(0.5);
                let Some(from) = self.pick(is_dir).filter(|from| !from.is_empty()) else { return };
                let (above, old) = from.rsplit_once('/').unwrap();
                let above = self.find(above);
                let mode = RenameMode::Replace;
                _ = self.fs.rename(&above, old.as_bytes(), &dir, name.as_bytes(), mode);
            }
            8 => {
                let Some(file) = file else { return };
                let (above, name) = file.rsplit_once('/').unwrap();
                self.fs.unlink(&self.find(above), name.as_bytes()).unwrap();
            }
            _ => _ = self.fs.rmdir(&dir, name.as_bytes()),
        }
    }

    fn checkpoint(&mut self) {
        let cno = self.fs.checkpoint_now().unwrap();
        self.then.insert(cno, of(&self.fs, cno));
    }

    /// Every checkpoint that is still there shows what it showed.
    fn look_back(&mut self) {
        let listed = self.fs.checkpoints(Cno::MIN, 10_000).unwrap();
        self.then.retain(|cno, _| listed.iter().any(|it| it.cno == *cno));
        for (cno, then) in &self.then {
            assert!(of(&self.fs, *cno) == *then, "checkpoint {cno} shows something else");
        }
    }

    fn roll_back(&mut self) {
        self.look_back();
        let known: Vec<Cno> = self.then.keys().copied().collect();
        let Some(nth) = self.random.random_range(0..8_usize).checked_rem(known.len()) else {
            return;
        };
        let to = known[nth];
        let then = self.then[&to].clone();
        let paths: Vec<&String> = then.keys().collect();
        let path = match self.random.random_bool(0.5) {
            true => String::new(),
            false => paths[self.random.random_range(0..paths.len())].clone(),
        };
        let before = now(&self.fs);
        let open: Vec<_> = self.open.iter().map(|file| content_of(&self.fs, file)).collect();
        let done = match self.fs.roll_back(to, path.as_bytes(), &mut |_| {}) {
            Err(Error::NoDirectoryNow) => return,
            done => done.unwrap(),
        };
        self.rollbacks += 1;
        self.revived += done.revived_blocks;
        let after = of(&self.fs, done.checkpoint.unwrap_or(done.before));
        let what = format!("rollback {} to {to} of {path:?}: {done:?}", self.rollbacks);
        assert_eq!(of(&self.fs, done.before), before, "{what}");
        match path.as_str() {
            "" => {
                let inodes = |all: &Picture| all.len();
                assert_eq!(inodes(&after), inodes(&then));
                assert_eq!(after, then, "{what}");
            }
            path => {
                assert_eq!(below(&after, path), below(&then, path), "{what}");
                assert_eq!(outside(&after, path), outside(&before, path), "{what}");
            }
        }
        self.then.insert(done.before, before.clone());
        check(&*self.device);
        // Whatever is open has the content of then, or what it had; and can be written.
        for (file, before) in self.open.iter().zip(open) {
            let links = self.fs.attr(file).unwrap().nlink;
            let after = content_of(&self.fs, file);
            let known = then.values().any(|it| it.content == after);
            assert!(
                after == before || links > 0 && known,
                "{what}: an open file has other content"
            );
            self.fs.write(file, 0, b"written while it is open").unwrap();
            self.renumbered += u64::from(links == 0);
        }
    }

    fn live(&mut self, steps: usize) {
        for _ in 0..steps {
            match self.random.random_range(0..100) {
                0..8 => self.checkpoint(),
                8..14 => self.roll_back(),
                14..16 => {
                    let nth = self.random.random_range(0..10_usize).checked_rem(self.open.len());
                    nth.map(|nth| self.open.swap_remove(nth));
                }
                16 => {
                    let run =
                        ManualRun { protection: Some(Duration::ZERO), ..ManualRun::default() };
                    self.fs.clean(&run).unwrap();
                    self.look_back();
                    check(&*self.device);
                }
                17 => {
                    let snapshots = self.fs.checkpoints(Cno::MIN, 10_000).unwrap();
                    let snapshots: Vec<Cno> =
                        snapshots.iter().filter(|it| it.snapshot).map(|it| it.cno).collect();
                    if snapshots.len() > 3 {
                        self.fs.set_snapshot(snapshots[0], false).unwrap();
                    }
                }
                18 => {
                    self.open.clear();
                    self.fs.unmount().unwrap();
                    check(&*self.device);
                    self.fs = mounted(&self.device);
                }
                _ => self.change(),
            }
        }
    }
}

fn mounted(device: &Arc<MemoryDevice>) -> Arc<Filesystem> {
    let cleaner =
        CleanerOptions { protection: Duration::from_secs(3600), ..CleanerOptions::default() };
    let options = MountOptions { cleaner, ..MountOptions::default() };
    Filesystem::mount(Arc::clone(device) as _, options).unwrap()
}

fn content_of(fs: &Filesystem, file: &InodeRef) -> Vec<u8> {
    match file.file_type() {
        FileType::Regular => content(fs, file),
        _ => Vec::new(),
    }
}

#[test]
fn whatever_has_happened_it_can_be_gone_back_to() {
    let (mut rollbacks, mut revived, mut renumbered) = (0, 0, 0);
    for seed in 0..12 {
        let mut world = World::new(seed);
        world.live(400);
        world.look_back();
        world.open.clear();
        world.fs.unmount().unwrap();
        check(&*world.device);
        rollbacks += world.rollbacks;
        revived += world.revived;
        renumbered += world.renumbered;
    }
    assert!(
        rollbacks > 100 && revived > 1000 && renumbered > 10,
        "{rollbacks} {revived} {renumbered}"
    );
}

/// Writes a file until there is no room for more.
fn fill(fs: &Filesystem, name: &str) -> InodeRef {
    let file = make(fs, &root(fs), name);
    let piece = pattern(5, 64 * BLOCK);
    let mut at = 0;
    loop {
        match fs.write_some(&file, at, &piece) {
            Ok(written) => at += written as u64,
            Err(Error::NoSpace) => return file,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_full_volume_can_be_rolled_back_because_nothing_is_copied() {
    let device = volume(BLOCK as u64, 64);
    let fs = mount(&device);
    let file = write(&fs, &root(&fs), "large", 1, 5000 * BLOCK);
    let then = fs.checkpoint_now().unwrap();
    fs.set_snapshot(then, true).unwrap();
    fs.write(&file, 0, &pattern(2, 100 * BLOCK)).unwrap();
    drop(file);
    fs.unlink(&root(&fs), b"large").unwrap();
    drop(fill(&fs, "filling"));
    let before = now(&fs);
    let done = roll_back(&fs, then, "");
    assert_eq!(done.revived_blocks, 5000);
    assert_eq!(now(&fs), of(&fs, then));
    assert_eq!(of(&fs, done.before), before);
    fs.unmount().unwrap();
    check(&*device);
}

#[test]
fn without_room_for_a_copy_nothing_is_done() {
    let device = volume(BLOCK as u64, 64);
    let fs = mount(&device);
    let (from, to) = (dir(&fs, &root(&fs), "from"), dir(&fs, &root(&fs), "to"));
    drop(write(&fs, &from, "large", 1, 3000 * BLOCK));
    let then = fs.checkpoint_now().unwrap();
    // A volume that is filled may give up what is no snapshot.
    fs.set_snapshot(then, true).unwrap();
    // The file lives on elsewhere, so it can only be copied.
    fs.rename(&from, b"large", &to, b"large", RenameMode::Replace).unwrap();
    drop(fill(&fs, "filling"));
    let before = now(&fs);
    match fs.roll_back(then, b"from", &mut |_| {}) {
        Err(Error::NoRoomToRollBack { needed, free }) => {
            assert!(needed > 3000 * BLOCK as u64 && free < needed, "{needed} and {free}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(now(&fs), before);
    fs.unlink(&root(&fs), b"filling").unwrap();
    let done = roll_back(&fs, then, "from");
    assert_eq!(done.copied_blocks, 3000 + 1);
    assert_eq!(below(&now(&fs), "/from"), below(&of(&fs, then), "/from"));
    assert_eq!(below(&now(&fs), "/to"), below(&before, "/to"));
    fs.unmount().unwrap();
    check(&*device);
}

#[test]
fn one_rollback_at_a_time() {
    let device = volume(BLOCK as u64, 64);
    let fs = mount(&device);
    drop(write(&fs, &root(&fs), "file", 1, 10));
    let then = fs.checkpoint_now().unwrap();
    fs.unlink(&root(&fs), b"file").unwrap();
    let mut asked = 0;
    fs.roll_back(then, b"", &mut |_| {
        let second = std::thread::scope(|scope| {
            scope.spawn(|| fs.roll_back(then, b"", &mut |_| {})).join().unwrap()
        });
        assert!(matches!(second, Err(Error::Busy)), "{second:?}");
        assert!(fs.set_read_only(true).is_err());
        asked += 1;
    })
    .unwrap();
    assert!(asked > 0);
    fs.unmount().unwrap();
    check(&*device);
}

#[test]
fn what_cannot_be_rolled_back_is_refused_and_nothing_happens() {
    let device = volume(BLOCK as u64, 64);
    let fs = mount(&device);
    let top = dir(&fs, &root(&fs), "dir");
    drop(write(&fs, &top, "file", 1, 10));
    drop(top);
    let then = fs.checkpoint_now().unwrap();
    let top = root(&fs);
    let dir = fs.lookup(&top, b"dir").unwrap().inode;
    fs.unlink(&dir, b"file").unwrap();
    fs.rmdir(&top, b"dir").unwrap();
    drop((top, dir));
    let newest = fs.checkpoint_now().unwrap();
    let refused = |to, path: &str| fs.roll_back(to, path.as_bytes(), &mut |_| {}).unwrap_err();
    assert!(matches!(refused(Cno(99), ""), Error::NoCheckpoint(Cno(99))));
    assert!(matches!(refused(then, "dir/nothing"), Error::NotInCheckpoint(cno) if cno == then));
    assert!(matches!(refused(then, "dir/file/below"), Error::NotInCheckpoint(_)));
    assert!(matches!(refused(then, "dir/../dir"), Error::NotInCheckpoint(_)));
    assert!(matches!(refused(then, "dir/file"), Error::NoDirectoryNow));
    assert_eq!(fs.status().cno, newest, "no checkpoint was made");
    fs.set_read_only(true).unwrap();
    assert!(matches!(refused(then, ""), Error::ReadOnly { .. }));
}

/// The snapshot of the state before has no note where a later version has written the notes. A failed
/// read was taken for that, and nobody was told.
#[test]
fn a_rollback_that_cannot_read_something_fails_or_notes_what_it_has_kept() {
    let mut failed = 0;
    for unreadable in 0.. {
        let (device, faults) = FaultyDevice::new(volume(1024, 16));
        let device = Arc::new(device);
        let options = || MountOptions { cache_limit: 0, ..MountOptions::default() };
        let fs = Filesystem::mount(device.clone(), options()).unwrap();
        write(&fs, &root(&fs), "file", 1, 30_000);
        let then = fs.checkpoint_now().unwrap();
        // There is a note already, so the notes have to be read.
        let (name, text) = ("name".parse().ok(), None);
        let keep = SnapshotChange::Keep { cno: then, made_by: MadeBy::User, name, text };
        fs.change_snapshots(&[keep]).unwrap();
        write(&fs, &root(&fs), "other", 2, 30_000);
        fs.unmount().unwrap();
        let fs = Filesystem::mount(device.clone(), options()).unwrap();
        let mut reads = 0;
        let has_failed = Arc::new(AtomicBool::new(false));
        let hit = Arc::clone(&has_failed);
        faults.set(move |request| {
            reads += u64::from(request.action == Action::Read);
            let fails = request.action == Action::Read && reads == unreadable + 1;
            hit.fetch_or(fails, Ordering::Relaxed);
            fails.then_some(Fault::Error)
        });
        let done = fs.roll_back(then, b"", &mut |_| {});
        faults.clear();
        let noted: Vec<Cno> = fs.notes().unwrap().iter().map(|note| note.cno).collect();
        match done {
            Ok(done) => assert_eq!(noted, [then, done.before], "read {unreadable}"),
            Err(error) => {
                assert!(matches!(error, Error::Device { .. }), "read {unreadable}: {error}");
                failed += 1;
            }
        }
        drop(fs);
        check(&*device);
        if !has_failed.load(Ordering::Relaxed) {
            break;
        }
    }
    assert!(failed > 0, "a rollback reads something");
}

//! What has changed between two checkpoints, and the versions of a file, as users are told: judged by a
//! model that keeps a copy of all files at each checkpoint, while files are written, renamed, linked and
//! deleted at random, checkpoints vanish, and the present becomes again what it was.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use common::{make, mount, new, parameters, pattern, volume};
use nilfs_device::{MemoryDevice, RecordingDevice};
use nilfs_engine::mkfs::format;
use nilfs_engine::tree::{Cause, Parents, Version, changes_of_directories, versions};
use nilfs_engine::{
    Amount, CleanerOptions, Cno, Error, FileType, Filesystem, Ino, InodeRef, ManualRun,
    MountOptions, RenameMode, SetAttr, Tree, Verify, Volume,
};
use nilfs_ondisk::inode::{S_IFDIR, S_IFREG};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const BLOCK: usize = 1024;
const ROOT: Id = 0;

/// A file in the model, whatever it is called.
type Id = usize;

/// A directory and a name in it.
type Link = (Id, String);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Node {
    is_dir: bool,
    content: Vec<u8>,
    mode: u16,
    /// Which of all writes was the last of its content.
    writes: u64,
}

/// All files at a moment.
#[derive(Debug, Clone)]
struct Model {
    nodes: BTreeMap<Id, Node>,
    links: BTreeMap<Link, Id>,
}

impl Model {
    fn new() -> Self {
        let root = Node { is_dir: true, content: Vec::new(), mode: 0o755, writes: 0 };
        Self { nodes: BTreeMap::from([(ROOT, root)]), links: BTreeMap::new() }
    }

    fn links_of(&self, id: Id) -> BTreeSet<Link> {
        let links = self.links.iter().filter(|(_, child)| **child == id);
        links.map(|(link, _)| link.clone()).collect()
    }

    fn path_of(&self, id: Id) -> String {
        let link = self.links.iter().find(|(_, child)| **child == id);
        link.map_or_else(String::new, |(link, _)| self.path(link))
    }

    fn path(&self, (dir, name): &Link) -> String {
        match self.path_of(*dir) {
            above if above.is_empty() => name.clone(),
            above => format!("{above}/{name}"),
        }
    }

    fn resolve(&self, path: &str) -> Option<Id> {
        path.split('/').try_fold(ROOT, |dir, name| self.links.get(&(dir, name.to_owned())).copied())
    }

    fn paths(&self) -> impl Iterator<Item = String> {
        self.links.keys().map(|link| self.path(link))
    }

    fn is_below(&self, id: Id, top: Id) -> bool {
        let mut here = id;
        loop {
            if here == top {
                return true;
            }
            let Some(((dir, _), _)) = self.links.iter().find(|(_, child)| **child == here) else {
                return false;
            };
            here = *dir;
        }
    }

    /// Takes a name away, and what only that led to.
    fn remove(&mut self, link: &Link) {
        let Some(id) = self.links.remove(link) else { return };
        if self.links_of(id).is_empty() {
            self.nodes.remove(&id);
            let below: Vec<Link> =
                self.links.keys().filter(|(dir, _)| *dir == id).cloned().collect();
            below.iter().for_each(|link| self.remove(link));
        }
    }
}

/// A volume on which something happens, and what it should be like.
struct World {
    fs: Arc<Filesystem>,
    rng: StdRng,
    now: Model,
    next: Id,
    writes: u64,
    /// The files at each checkpoint.
    then: BTreeMap<Cno, Model>,
}

impl World {
    fn new(seed: u64) -> Self {
        let cleaner = CleanerOptions { protection: Duration::ZERO, ..CleanerOptions::default() };
        let options = MountOptions { cleaner, ..MountOptions::default() };
        let fs = Filesystem::mount(volume(BLOCK as u64, 32), options).unwrap();
        let rng = StdRng::seed_from_u64(seed);
        let then = BTreeMap::from([(Cno(1), Model::new())]);
        Self { fs, rng, now: Model::new(), next: 1, writes: 0, then }
    }

    fn inode(&self, id: Id) -> InodeRef {
        let mut here = self.fs.root().unwrap().inode;
        for name in self.now.path_of(id).split('/').filter(|name| !name.is_empty()) {
            here = self.fs.lookup(&here, name.as_bytes()).unwrap().inode;
        }
        here
    }

    fn any(&mut self, is_dir: bool) -> Option<Id> {
        let fitting = self.now.nodes.iter().filter(|(_, node)| node.is_dir == is_dir);
        let fitting: Vec<Id> = fitting.map(|(id, _)| *id).collect();
        (!fitting.is_empty()).then(|| fitting[self.rng.random_range(0..fitting.len())])
    }

    fn any_link(&mut self) -> Option<Link> {
        let links: Vec<Link> = self.now.links.keys().cloned().collect();
        (!links.is_empty()).then(|| links[self.rng.random_range(0..links.len())].clone())
    }

    /// A place for a name, in use or not.
    fn place(&mut self) -> Link {
        let dir = self.any(true).unwrap();
        (dir, format!("name {}", self.rng.random_range(0..8)))
    }

    fn create(&mut self, is_dir: bool) {
        let link = self.place();
        if self.now.links.contains_key(&link) {
            return;
        }
        let (kind, mode) = if is_dir { (S_IFDIR, 0o755) } else { (S_IFREG, 0o644) };
        self.fs.create(&self.inode(link.0), link.1.as_bytes(), &new(kind | mode)).unwrap();
        self.now.nodes.insert(self.next, Node { is_dir, content: Vec::new(), mode, writes: 0 });
        self.now.links.insert(link, self.next);
        self.next += 1;
    }

    fn write(&mut self) {
        let Some(id) = self.any(false) else { return };
        let at = self.rng.random_range(0..4 * BLOCK);
        let bytes = pattern(self.rng.random_range(0..100), self.rng.random_range(1..2 * BLOCK));
        self.fs.write(&self.inode(id), at as u64, &bytes).unwrap();
        let node = self.now.nodes.get_mut(&id).unwrap();
        if node.content.len() < at + bytes.len() {
            node.content.resize(at + bytes.len(), 0);
        }
        node.content[at..at + bytes.len()].copy_from_slice(&bytes);
        self.writes += 1;
        node.writes = self.writes;
    }

    fn chmod(&mut self) {
        let is_dir = self.rng.random_bool(0.3);
        let Some(id) = self.any(is_dir).filter(|id| *id != ROOT) else { return };
        let mode = [0o600, 0o640, 0o755][self.rng.random_range(0..3)];
        let changes = SetAttr { mode: Some(mode), ..SetAttr::default() };
        self.fs.set_attr(&self.inode(id), &changes).unwrap();
        self.now.nodes.get_mut(&id).unwrap().mode = mode;
    }

    fn rename(&mut self) {
        let Some(from) = self.any_link() else { return };
        let to = self.place();
        let (id, target) = (self.now.links[&from], self.now.links.get(&to).copied());
        let is_dir = self.now.nodes[&id].is_dir;
        let is_taken =
            target.is_some_and(|target| target == id || is_dir || self.now.nodes[&target].is_dir);
        if is_taken || self.now.is_below(to.0, id) {
            return;
        }
        let (dir, to_dir) = (self.inode(from.0), self.inode(to.0));
        let (name, to_name) = (from.1.as_bytes(), to.1.as_bytes());
        self.fs.rename(&dir, name, &to_dir, to_name, RenameMode::Replace).unwrap();
        self.now.links.remove(&from);
        if target.is_some() {
            self.now.links.insert(from.clone(), id);
            self.now.remove(&to);
            self.now.links.remove(&from);
        }
        self.now.links.insert(to, id);
    }

    fn link(&mut self) {
        let (Some(id), to) = (self.any(false), self.place()) else { return };
        if self.now.links.contains_key(&to) {
            return;
        }
        self.fs.link(&self.inode(id), &self.inode(to.0), to.1.as_bytes()).unwrap();
        self.now.links.insert(to, id);
    }

    fn remove(&mut self) {
        let Some(link) = self.any_link() else { return };
        self.remove_on_volume(&link);
        self.now.remove(&link);
    }

    fn remove_on_volume(&self, link: &Link) {
        let id = self.now.links[link];
        let (dir, name) = (self.inode(link.0), link.1.as_bytes());
        if !self.now.nodes[&id].is_dir {
            return self.fs.unlink(&dir, name).unwrap();
        }
        let below = self.now.links.keys().filter(|(dir, _)| *dir == id);
        below.for_each(|link| self.remove_on_volume(link));
        self.fs.rmdir(&dir, name).unwrap();
    }

    /// Makes everything what it was in one of the checkpoints that are left.
    fn roll_back(&mut self) {
        let nth = self.rng.random_range(0..self.left().len().min(20));
        let (to, then) = self.left()[nth];
        let then = then.clone();
        let done = self.fs.roll_back(to, b"", &mut |_| {}).unwrap();
        self.then.insert(done.before, std::mem::replace(&mut self.now, then));
        self.then.extend(done.checkpoint.map(|cno| (cno, self.now.clone())));
    }

    fn step(&mut self) {
        if self.rng.random_range(0..10) == 0 && self.then.len() > 5 {
            self.roll_back();
        }
        for _ in 0..self.rng.random_range(0..5) {
            match self.rng.random_range(0..14) {
                0..4 => self.write(),
                4..7 => self.create(false),
                7..9 => self.create(true),
                9 => self.chmod(),
                10..12 => self.rename(),
                12 => self.link(),
                _ => self.remove(),
            }
        }
        self.then.insert(self.fs.checkpoint_now().unwrap(), self.now.clone());
    }

    /// Deletes some checkpoints, as the cleaner does.
    fn forget(&mut self) {
        let first = self.rng.random_range(2..=self.then.len() as u64);
        let _ = self.fs.delete_checkpoints(Cno(first)..=Cno(first + 3));
    }

    /// Lets the cleaner move what is needed and take all else, so that numbers of blocks are used again.
    fn clean(&mut self) {
        let all = ManualRun { min_reclaimable: Some(Amount::Count(1)), ..ManualRun::default() };
        assert!(self.fs.clean(&all).unwrap() > 0, "there is nothing to be cleaned");
    }

    /// The checkpoints that are left, with what they should be like, the newest first. One that only
    /// notes that others were deleted is like the one before.
    fn left(&self) -> Vec<(Cno, &Model)> {
        let all = self.fs.checkpoints(Cno::MIN, usize::MAX).unwrap();
        let model = |cno| self.then.range(..=cno).next_back().unwrap().1;
        let mut left: Vec<_> = all.iter().map(|it| (it.cno, model(it.cno))).collect();
        left.reverse();
        left
    }
}

/// A path before and a path after.
type Told = (Option<String>, Option<String>);

/// What should be told of two moments.
fn expected(before: &Model, after: &Model) -> BTreeSet<Told> {
    let mut told = BTreeSet::new();
    let ids: BTreeSet<Id> = before.nodes.keys().chain(after.nodes.keys()).copied().collect();
    for id in ids {
        let (old, new) = (before.links_of(id), after.links_of(id));
        let mut gone: Vec<_> = old.difference(&new).map(|link| before.path(link)).collect();
        let mut come: Vec<_> = new.difference(&old).map(|link| after.path(link)).collect();
        gone.sort();
        come.sort();
        for nth in 0..gone.len().max(come.len()) {
            told.insert((gone.get(nth).cloned(), come.get(nth).cloned()));
        }
        let (Some(a), Some(b)) = (before.nodes.get(&id), after.nodes.get(&id)) else { continue };
        if (a.writes, a.mode) != (b.writes, b.mode) {
            for link in old.intersection(&new) {
                told.insert((Some(before.path(link)), Some(after.path(link))));
            }
        }
    }
    let kind = |model: &Model, path: &str| model.nodes[&model.resolve(path).unwrap()].is_dir;
    let gone: Vec<String> =
        told.iter().filter(|it| it.1.is_none()).filter_map(|it| it.0.clone()).collect();
    for path in gone {
        let new = (None, Some(path.clone()));
        if told.contains(&new) && kind(before, &path) == kind(after, &path) {
            told.remove(&new);
            told.remove(&(Some(path.clone()), None));
            told.insert((Some(path.clone()), Some(path)));
        }
    }
    told
}

#[test]
fn two_moments_differ_by_what_the_model_says() {
    for seed in 0..12 {
        let mut world = World::new(seed);
        for round in 0..60 {
            world.step();
            if round == 25 && seed % 2 == 0 {
                world.clean();
            }
        }
        let left = world.left();
        let mut rng = StdRng::seed_from_u64(seed);
        let mut known: Option<Parents> = None;
        for _ in 0..60 {
            let mut any = || left[rng.random_range(0..left.len())];
            let ((from, before), (to, after)) = (any(), any());
            let [old, new] = [from, to].map(|cno| world.fs.tree(Some(cno)).unwrap());
            // As if nothing were known, and with what is known of another checkpoint.
            let changes = old.changes(&new, || Parents::of(&new).map(Arc::new)).unwrap();
            let carried = old.changes(&new, || {
                let parents = match known.take() {
                    Some(mut parents) => {
                        let (cno, _) = parents.checkpoint();
                        parents.carry(&world.fs.tree(Some(cno)).unwrap(), &new)?;
                        parents
                    }
                    None => Parents::of(&new)?,
                };
                Ok(Arc::new(known.insert(parents).clone()))
            });
            let what = format!("seed {seed}, from {from} to {to}");
            assert_eq!(changes, carried.unwrap(), "{what}");
            let text = |path: &[u8]| String::from_utf8(path.to_vec()).unwrap();
            let told: Vec<Told> = changes
                .iter()
                .map(|it| {
                    let path = |version: &Option<_>| {
                        version
                            .as_ref()
                            .map(|version: &nilfs_engine::tree::FileAt| text(&version.path))
                    };
                    (path(&it.before), path(&it.after))
                })
                .collect();
            let set: BTreeSet<Told> = told.iter().cloned().collect();
            assert_eq!(set.len(), told.len(), "{what}: nothing is told twice");
            assert_eq!(set, expected(before, after), "{what}");
            for change in &changes {
                let content = |model: &Model, version: &Option<nilfs_engine::tree::FileAt>| {
                    let version = version.as_ref()?;
                    let node = &model.nodes[&model.resolve(&text(&version.path)).unwrap()];
                    assert_eq!(
                        version.attr.file_type == FileType::Directory,
                        node.is_dir,
                        "{what}"
                    );
                    assert_eq!(version.attr.mode, node.mode, "{what}");
                    assert!(
                        node.is_dir || version.attr.size == node.content.len() as u64,
                        "{what}"
                    );
                    Some(node.content.clone())
                };
                let old = content(before, &change.before);
                let new = content(after, &change.after);
                let (a, b) = (old.clone().unwrap_or_default(), new.clone().unwrap_or_default());
                let longest = a.len().max(b.len());
                let differing = (0..longest)
                    .filter(|at| a.get(*at).unwrap_or(&0) != b.get(*at).unwrap_or(&0))
                    .count() as u64;
                let told = change.changed_bytes;
                assert!(differing <= told && told <= longest as u64, "{what}: {change:?}");
            }
        }
        drop(left);
        world.fs.unmount().unwrap();
    }
}

fn history(past: &Filesystem, path: &str) -> nilfs_engine::Result<Vec<Version>> {
    let mut found = Vec::new();
    versions(past, path.as_bytes(), None, &mut |version| {
        found.push(version);
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// Fails unless the versions are those that the model had.
fn judge(what: &str, left: &[(Cno, &Model)], found: &[Version]) {
    let text = |version: &Version| String::from_utf8(version.path.clone()).unwrap();
    let states = |version: &Version| -> Vec<_> {
        let range = version.first.cno..=version.last;
        let within = left.iter().filter(|(cno, _)| range.contains(cno));
        within.map(|(cno, model)| (*cno, *model)).collect()
    };
    let node_at = |model: &Model, version: &Version| {
        let id = model.resolve(&text(version))?;
        Some((id, model.nodes[&id].clone()))
    };
    // Every checkpoint is in one version, from the newest on, until there was nothing.
    let mut covered = Vec::new();
    for version in found {
        let within = states(version);
        assert!(!within.is_empty(), "{what}: {version:?} is in no checkpoint");
        covered.extend(within.iter().map(|(cno, _)| *cno));
        let mut nodes = within.iter().map(|(_, model)| node_at(model, version));
        let first = nodes.next().unwrap();
        assert_eq!(first.is_none(), version.cause == Cause::Deleted, "{what}: {version:?}");
        assert!(nodes.all(|other| other == first), "{what}: {version:?} was not one");
        if let Some((_, node)) = first {
            assert_eq!(node.mode, version.attr.mode, "{what}: {version:?}");
            let size = node.content.len() as u64;
            assert!(node.is_dir || size == version.attr.size, "{what}: {version:?}");
        }
    }
    let expected: Vec<Cno> = left.iter().map(|(cno, _)| *cno).take(covered.len()).collect();
    assert_eq!(covered, expected, "{what}: no checkpoint is left out");
    let before = &left[covered.len()..];
    for (nth, newer) in found.iter().enumerate() {
        let at = |version: &Version| states(version).pop().unwrap().1;
        let state = node_at(at(newer), newer);
        let older = found[nth + 1..].iter().find(|older| older.cause != Cause::Deleted);
        let was = older.and_then(|older| node_at(states(older)[0].1, older));
        match newer.cause {
            Cause::Created | Cause::Unknown => {
                assert_eq!(nth + 1, found.len(), "{what}");
                assert_eq!(newer.cause == Cause::Unknown, before.is_empty(), "{what}");
                let there = before.iter().any(|(_, model)| node_at(model, newer).is_some());
                assert!(!there, "{what}: {newer:?} was there before");
            }
            Cause::Deleted => assert!(older.is_some(), "{what}"),
            cause => {
                let ((id, node), (old_id, old)) = (state.unwrap(), was.unwrap());
                let is_renamed = text(newer) != text(older.unwrap());
                assert_eq!(is_renamed, cause == Cause::Renamed, "{what}: {newer:?}");
                let was_gone = found[nth + 1].cause == Cause::Deleted;
                assert_eq!(was_gone, cause == Cause::Recreated, "{what}: {newer:?}");
                let is_another = id != old_id && !was_gone;
                assert_eq!(is_another, cause == Cause::Replaced, "{what}: {newer:?}");
                if cause == Cause::Content && !node.is_dir {
                    assert_ne!(node.writes, old.writes, "{what}: {newer:?}");
                }
                if cause == Cause::Metadata {
                    assert_eq!(node.content, old.content, "{what}: {newer:?}");
                }
            }
        }
    }
}

/// A world in which checkpoints have vanished, and segments been cleaned if the seed is even; and every
/// path that anything has ever had there.
fn lived(seed: u64) -> (World, BTreeSet<String>) {
    let mut world = World::new(seed);
    let mut paths = BTreeSet::new();
    for round in 0..80 {
        world.step();
        paths.extend(world.now.paths());
        if round % 16 == 15 {
            world.forget();
        }
        if round == 40 && seed.is_multiple_of(2) {
            world.clean();
        }
    }
    (world, paths)
}

#[test]
fn the_versions_of_a_file_are_those_that_the_model_had() {
    for seed in 100..112 {
        let (world, paths) = lived(seed);
        let left = world.left();
        for path in &paths {
            let what = format!("seed {seed}, {path}");
            let was_there = left.iter().any(|(_, model)| model.resolve(path).is_some());
            match history(&world.fs, path) {
                Err(Error::NotFound) => assert!(!was_there, "{what} is in a checkpoint"),
                found => judge(&what, &left, &found.unwrap()),
            }
        }
        assert!(matches!(history(&world.fs, "no such name"), Err(Error::NotFound)));
        drop(left);
        world.fs.unmount().unwrap();
    }
}

/// Where no directory has changed, nothing can have been deleted, and nobody looks.
#[test]
fn names_are_gone_only_where_a_directory_has_changed() {
    let mut lost = 0;
    for seed in 300..312 {
        let (world, mut paths) = lived(seed);
        paths.insert(String::new());
        let left = world.left();
        for top in &paths {
            let path = top.as_bytes();
            let changed = changes_of_directories(&*world.fs, path, Cno::MIN, usize::MAX);
            let changed = match changed {
                Err(Error::NotFound) => continue,
                changed => changed.unwrap().unwrap(),
            };
            for pair in left.windows(2) {
                let ((to, after), (from, before)) = (pair[0], pair[1]);
                let below = |path: &String| top.is_empty() || path.starts_with(&format!("{top}/"));
                let gone = expected(before, after)
                    .into_iter()
                    .filter(|(old, new)| new.is_none() && old.as_ref().is_some_and(below));
                let gone: Vec<_> = gone.collect();
                let is_told = changed.range(from.plus(1)..=to).next().is_some();
                assert!(gone.is_empty() || is_told, "seed {seed}, {top}, {from} to {to}: {gone:?}");
                lost += gone.len();
            }
        }
        drop(left);
        world.fs.unmount().unwrap();
    }
    assert!(lost > 100, "{lost} names were lost");
}

/// What a door shows of an old directory is found without looking into every checkpoint.
#[test]
fn a_number_leads_to_one_file_for_as_long_as_blocks_say_so() {
    for seed in 200..212 {
        let mut world = World::new(seed);
        for round in 0..150 {
            world.step();
            if round % 16 == 15 {
                world.forget();
            }
        }
        let trees = world.left().into_iter().map(|(cno, _)| world.fs.tree(Some(cno)).unwrap());
        let trees: Vec<Tree> = trees.collect();
        let file = |tree: &Tree, ino| match tree.file(ino) {
            Ok(file) => Some((file.attr().generation, file.attr().file_type)),
            Err(Error::Stale) => None,
            Err(error) => panic!("seed {seed}, inode {ino}: {error}"),
        };
        let mut agreed = 0;
        for (ino, tree) in (2..100).flat_map(|ino| trees.iter().map(move |tree| (Ino(ino), tree))) {
            let during = tree.same_file_during(ino).unwrap();
            assert!(during.contains(&tree.cno()), "seed {seed}");
            for other in trees.iter().filter(|other| during.contains(&other.cno())) {
                let (one, other_cno) = (tree.cno(), other.cno());
                let what = format!("seed {seed}, inode {ino} in {one} and {other_cno}");
                assert_eq!(file(tree, ino), file(other, ino), "{what}");
                agreed += usize::from(one != other_cno);
            }
        }
        assert!(agreed > 0, "seed {seed}");
        drop(trees);
        world.fs.unmount().unwrap();
    }
}

/// A volume whose reads are counted.
fn counting() -> (Arc<RecordingDevice<MemoryDevice>>, Arc<Filesystem>) {
    let memory = MemoryDevice::new(64 << 20);
    format(&memory, &parameters(BLOCK as u64)).unwrap();
    let device = Arc::new(RecordingDevice::new(memory));
    let fs = mount(&device);
    (device, fs)
}

/// Only directories know where a file is that was written in its place. They are looked through once.
#[test]
fn the_next_difference_costs_what_differs() {
    let (device, fs) = counting();
    let root = fs.root().unwrap().inode;
    let mut files = Vec::new();
    for nth in 0..10_000 {
        let dir = format!("directory {}", nth / 500);
        let dir = match fs.lookup(&root, dir.as_bytes()) {
            Ok(found) => found.inode,
            Err(_) => fs.create(&root, dir.as_bytes(), &new(S_IFDIR | 0o755)).unwrap().inode,
        };
        files.push(make(&fs, &dir, &format!("file {nth}")));
    }
    let mut numbers = vec![fs.checkpoint_now().unwrap()];
    for nth in [1234, 5678] {
        fs.write(&files[nth], 0, b"content").unwrap();
        numbers.push(fs.checkpoint_now().unwrap());
    }
    drop((files, root));
    fs.unmount().unwrap();
    let volume = Volume::open(Arc::clone(&device) as _).unwrap();
    let trees: Vec<Tree> = numbers.iter().map(|cno| volume.tree(Some(*cno)).unwrap()).collect();
    let _ = device.take_bytes_read();
    let mut known = None;
    let mut read = Vec::new();
    for (nth, before, after) in [(1234, 0, 1), (5678, 1, 2)] {
        let (before, after) = (&trees[before], &trees[after]);
        let parents = || {
            let mut parents = known.take().map_or_else(|| Parents::of(after), Ok)?;
            if parents.checkpoint().0 != after.cno() {
                parents.carry(before, after)?;
            }
            Ok(Arc::new(known.insert(parents).clone()))
        };
        let changes = before.changes(after, parents).unwrap();
        let path = format!("directory {}/file {nth}", nth / 500);
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0].path(), path.as_bytes());
        read.push(device.take_bytes_read());
    }
    assert!(read[1] * 10 < read[0], "{read:?} bytes were read");
}

#[test]
fn checkpoints_in_which_a_file_rests_cost_its_history_next_to_nothing() {
    const CHECKPOINTS: u64 = 2000;
    let (device, fs) = counting();
    let root = fs.root().unwrap().inode;
    let quiet = fs.create(&root, b"quiet", &new(S_IFDIR | 0o755)).unwrap().inode;
    let file = make(&fs, &quiet, "file");
    // Its inode lies beside that of the file, and changes each time.
    let busy = fs.create(&root, b"busy", &new(S_IFDIR | 0o755)).unwrap().inode;
    for nth in 0..CHECKPOINTS {
        make(&fs, &busy, &format!("file {nth}"));
        if nth % 500 == 250 {
            fs.write(&file, nth, b"content").unwrap();
        }
        fs.checkpoint_now().unwrap();
    }
    drop((root, quiet, busy, file));
    fs.unmount().unwrap();
    // Whether a block is what was written is told by the summary of its log, which lies in the 64 KiB before
    // it, and is read with it.
    let ways = [(Verify::None, CHECKPOINTS / 3), (Verify::Metadata, 20 * CHECKPOINTS / 3)];
    for (verify, most) in ways {
        let volume = Volume::open_with(Arc::clone(&device) as _, verify).unwrap();
        let _ = device.take_bytes_read();
        let mut found = 0;
        versions(&volume, b"quiet/file", None, &mut |_| {
            found += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(found, 5, "made, and written four times");
        let blocks = device.take_bytes_read() / BLOCK as u64;
        assert!(blocks < most, "{blocks} blocks were read with {verify:?}");
    }
    let volume = Volume::open(Arc::clone(&device) as _).unwrap();
    // Nor that of the names in a directory.
    let directories = |path, most| changes_of_directories(&volume, path, Cno::MIN, most).unwrap();
    let changes = directories(b"quiet", 10).unwrap();
    assert!(changes.len() <= 2, "{changes:?}");
    assert_eq!(directories(b"busy", 1000), None, "it changes too often");
    assert!(directories(b"", usize::MAX).unwrap().len() >= CHECKPOINTS as usize);
}

/// Whatever is on the device, there is an answer or an error.
#[test]
fn damage_is_an_error_and_not_the_end() {
    let device = volume(BLOCK as u64, 8);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let dir = fs.create(&root, b"directory", &new(S_IFDIR | 0o755)).unwrap().inode;
    let file = make(&fs, &dir, "file");
    for round in 0..8 {
        fs.write(&file, 0, &pattern(round, 3 * BLOCK)).unwrap();
        make(&fs, &dir, &format!("file {round}"));
        let (old, new) = (format!("name {round}"), format!("name {}", round + 1));
        if round == 0 {
            make(&fs, &root, &old);
        }
        fs.rename(&root, old.as_bytes(), &root, new.as_bytes(), RenameMode::Replace).unwrap();
        fs.checkpoint_now().unwrap();
    }
    drop((root, dir, file));
    fs.unmount().unwrap();
    let image = device.snapshot();
    // Not the second superblock, at the end.
    let written = image[..image.len() / 2].iter().rposition(|byte| *byte != 0).unwrap();
    let mut answers = 0;
    for seed in 0..600 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut image = image.clone();
        for _ in 0..rng.random_range(1..30) {
            image[rng.random_range(4096..written)] = rng.random();
        }
        let Ok(volume) = Volume::open(Arc::new(MemoryDevice::from(image))) else { continue };
        if let (Ok(before), Ok(after)) = (volume.tree(Some(Cno(2))), volume.tree(None)) {
            let changes = before.changes(&after, || Parents::of(&after).map(Arc::new));
            answers += u32::from(changes.is_ok());
        }
        for path in ["directory/file", "directory", "name 8", "name 3", "no such name"] {
            let _ = versions(&volume, path.as_bytes(), None, &mut |_| ControlFlow::Continue(()));
        }
    }
    assert!(answers > 0, "not all of them are damaged beyond recognition");
}

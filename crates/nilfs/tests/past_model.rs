//! All that a mount tells of its past, judged by a model that keeps a copy of the whole tree at each
//! checkpoint: doors, `diff`, `log`, `restore`, `undelete` and `rollback` agree with it while files change
//! at random, the cleaner works and checkpoints vanish. The superuser and `/dev/fuse` are needed.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::{CommandOutput, Volume, nilfs};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use serde_json::Value;

/// All files by path; `None` is a directory.
type Model = BTreeMap<String, Option<Vec<u8>>>;

/// In a file: as much as makes the cleaner work.
const MOST_BYTES: usize = 20 << 10;

/// A mounted volume, and what it should be like.
struct World {
    rng: StdRng,
    now: Model,
    /// The files at each checkpoint.
    then: BTreeMap<u64, Model>,
    /// All paths that there have been, also between two of these checkpoints: the cleaner makes some, too.
    ever: BTreeSet<String>,
    /// Names that a file has lost to another name: it was not deleted.
    moved: BTreeSet<String>,
    /// No two writes are of the same bytes.
    writes: u64,
    dir: PathBuf,
    volume: Volume,
}

impl World {
    fn new(seed: u64) -> Self {
        let volume = common::volume();
        let dir = volume.beside("mnt");
        fs::create_dir(&dir).unwrap();
        // Nothing is protected, and nothing kept for longer than anybody looks.
        let options = ["mount", "-o", "pp=0,past-hold=0"].map(AsRef::as_ref);
        nilfs(options.into_iter().chain([volume.image.as_os_str(), dir.as_os_str()])).output();
        fs::create_dir(dir.join("tree")).unwrap();
        let rng = StdRng::seed_from_u64(seed);
        let (now, then, ever, moved) = Default::default();
        Self { rng, now, then, ever, moved, writes: 0, dir, volume }
    }

    fn nilfs(&self, line: &str) -> CommandOutput {
        let dir = self.dir.to_str().unwrap();
        nilfs(line.split(' ').map(|word| word.replace("MNT", dir)))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join("tree").join(name)
    }

    /// A name in a directory that is there.
    fn place(&mut self) -> String {
        let dirs = self.now.iter().filter(|(_, content)| content.is_none());
        let dirs: Vec<String> = dirs.map(|(path, _)| format!("{path}/")).collect();
        let nth = self.rng.random_range(0..=dirs.len());
        let dir = dirs.get(nth).map_or("", String::as_str);
        format!("{dir}name{}", self.rng.random_range(0..6))
    }

    fn step(&mut self) {
        let place = self.place();
        let path = self.path(&place);
        match (self.now.get(&place).cloned(), self.rng.random_range(0..10)) {
            (None, 0..3) if place.matches('/').count() < 3 => {
                fs::create_dir(path).unwrap();
                self.now.insert(place, None);
            }
            (None | Some(Some(_)), 3..8) => {
                self.writes += 1;
                let length = self.rng.random_range(0..MOST_BYTES);
                let mut content = self.writes.to_string().into_bytes();
                content.resize(content.len() + length, self.writes as u8);
                fs::write(path, &content).unwrap();
                self.now.insert(place, Some(content));
            }
            (Some(Some(content)), _) => {
                let to = self.place();
                if matches!(self.now.get(&to), Some(None)) || to == place {
                    fs::remove_file(path).unwrap();
                } else {
                    fs::rename(path, self.path(&to)).unwrap();
                    self.now.insert(to, Some(content));
                    self.moved.insert(place.clone());
                }
                self.now.remove(&place);
            }
            (Some(None), 8..) => {
                fs::remove_dir_all(path).unwrap();
                let below = format!("{place}/");
                self.now.retain(|path, _| *path != place && !path.starts_with(&below));
            }
            _ => {}
        }
        self.ever.extend(self.now.keys().cloned());
    }

    /// Makes a checkpoint and notes what it has.
    fn checkpoint(&mut self) {
        self.nilfs("sync MNT").output();
        let newest = *self.listed().last().unwrap();
        self.then.insert(newest, self.now.clone());
    }

    /// The checkpoints in the door.
    fn listed(&self) -> Vec<u64> {
        let entries = fs::read_dir(self.dir.join("tree/.checkpoints")).unwrap();
        let cno = |name: String| name.rsplit_once("+cp").unwrap().1.parse().unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.map(cno).collect()
    }

    /// The checkpoints of the model that are there.
    fn left(&self) -> Vec<u64> {
        self.listed().into_iter().filter(|cno| self.then.contains_key(cno)).collect()
    }

    /// Waits until the checkpoints that the cleaner is deleting are gone: nobody can look into them any
    /// more, but until that is committed they are listed.
    fn let_them_go(&self) {
        self.nilfs("sync MNT").output();
    }

    /// Whether a checkpoint vanishes. The serving process is asked: the kernel may remember for a moment
    /// what a door had. The cleaner may be in the middle of the step that deletes it, which a sync does
    /// not wait for.
    fn is_gone(&self, cno: u64) -> bool {
        (0..50).any(|_| {
            self.let_them_go();
            let output = self.nilfs("checkpoints --json MNT");
            let told: Vec<Value> = serde_json::from_str(&output.stdout).unwrap();
            !told.iter().any(|checkpoint| checkpoint["checkpoint"] == cno)
        })
    }

    /// Every door entry has what the model had.
    fn judge_doors(&self) -> usize {
        let mut seen = 0;
        for cno in self.left() {
            let mut found = Model::new();
            let top = self.dir.join(format!("tree/.checkpoints/cp{cno}"));
            match read_tree(&top, "", &mut found) {
                Ok(()) => {
                    assert!(found == self.then[&cno], "checkpoint {cno} has another tree");
                    seen += 1;
                }
                Err(error) => {
                    let errno = Errno::from_io_error(&error);
                    let is_loss = matches!(errno, Some(Errno::NOENT | Errno::STALE));
                    assert!(is_loss && self.is_gone(cno), "checkpoint {cno}: {error}");
                }
            }
        }
        seen
    }

    /// Any of the checkpoints of the model that are left; none, if there are only the cleaner's own.
    fn any_left(&mut self) -> Option<u64> {
        self.left().choose(&mut self.rng).copied()
    }

    /// Two checkpoints differ in what the model says.
    fn judge_difference(&mut self) {
        let (Some(from), Some(to)) = (self.any_left(), self.any_left()) else { return };
        let output = nilfs(
            ["diff", "--json", &from.to_string(), &to.to_string()]
                .map(str::to_owned)
                .into_iter()
                .chain([self.dir.join("tree").to_str().unwrap().to_owned()]),
        );
        if output.code != Some(0) {
            assert!(self.is_gone(from) || self.is_gone(to), "{}", output.stderr);
            return;
        }
        let told: Value = serde_json::from_str(&output.stdout).unwrap();
        let mut paths = BTreeSet::new();
        for change in told["changes"].as_array().unwrap() {
            for path in [&change["path"], &change["old_path"]] {
                let path = path.as_str().and_then(|path| path.strip_prefix("tree/"));
                paths.extend(path.map(str::to_owned));
            }
        }
        let (before, after) = (&self.then[&from], &self.then[&to]);
        let all = before.keys().chain(after.keys());
        let differing = all.filter(|path| before.get(*path) != after.get(*path));
        // A directory that took the place of another is modified, but looks the same.
        let is_same_directory =
            |path: &String| matches!((before.get(path), after.get(path)), (Some(None), Some(None)));
        paths.retain(|path| !is_same_directory(path));
        // So is a file that a rollback had to copy, and a name in such a directory; and where a checkpoint has
        // vanished, that cannot be told.
        let files = |cno: u64, path: &String| -> Option<Vec<_>> {
            let seen = self.dir.join(format!("tree/.checkpoints/cp{cno}"));
            let above =
                Path::new(path).ancestors().map(|above| fs::symlink_metadata(seen.join(above)));
            above.map(|file| Some(nilfs_fuse::ino_of_past(file.ok()?.ino()))).collect()
        };
        let is_same_file =
            |path: &String| files(from, path).is_some_and(|now| Some(now) == files(to, path));
        paths.retain(|path| before.get(path) != after.get(path) || is_same_file(path));
        assert_eq!(paths, differing.cloned().collect(), "from {from} to {to}");
    }

    /// The versions of a file are those of the model.
    fn judge_versions(&mut self) {
        let place = self.place();
        let output = self.nilfs(&format!("log --json MNT/tree/{place}"));
        if output.code != Some(0) {
            let was_there = |cno: &u64| self.then[cno].contains_key(&place);
            let mut had_it = self.left().into_iter().filter(was_there);
            assert!(had_it.all(|cno| self.is_gone(cno)), "{place}: {}", output.stderr);
            return;
        }
        let versions: Vec<Value> = serde_json::from_str(&output.stdout).unwrap();
        // Of those that have vanished nothing can be told.
        let left = self.left();
        for version in versions {
            let number = |field: &str| version[field].as_u64().unwrap();
            let path = version["path"].as_str().unwrap();
            let path = path.strip_prefix("tree/").unwrap_or_else(|| panic!("{version}"));
            let range = number("checkpoint")..=number("last_checkpoint");
            for (cno, model) in self.then.range(range).filter(|(cno, _)| left.contains(cno)) {
                match (model.get(path), version["cause"].as_str()) {
                    (None, Some("deleted")) => {}
                    (Some(Some(content)), _) => {
                        let size = content.len() as u64;
                        assert_eq!(size, number("size_bytes"), "{place} in {cno}: {version}");
                    }
                    (Some(None), Some(_)) => {}
                    (found, _) => panic!("{place} is {found:?} in {cno}, but {version}"),
                }
            }
        }
    }

    /// A file comes back as the model had it.
    fn judge_restoring(&mut self) {
        let Some(cno) = self.any_left() else { return };
        let files: Vec<(String, Vec<u8>)> = self.then[&cno]
            .iter()
            .filter_map(|(path, content)| Some((path.clone(), content.clone()?)))
            .collect();
        if files.is_empty() {
            return;
        }
        let (path, content) = &files[self.rng.random_range(0..files.len())];
        let restored = self.volume.beside("restored");
        let to = restored.to_str().unwrap();
        let output = self.nilfs(&format!("restore -f --to {to} MNT/tree/{path}@{cno}"));
        match output.code {
            Some(0) => assert!(fs::read(&restored).unwrap() == *content, "{path}@{cno}"),
            _ => assert!(self.is_gone(cno), "{path}@{cno}: {}", output.stderr),
        }
    }

    /// What was deleted is listed, each by itself or with the directory that it was in.
    fn judge_what_was_deleted(&self) {
        let output = self.nilfs("undelete --json MNT/tree");
        assert_eq!(output.code, Some(0), "{}", output.stderr);
        let told: Vec<Value> = serde_json::from_str(&output.stdout).unwrap();
        let paths = told.iter().map(|it| it["path"].as_str().unwrap());
        let told: BTreeSet<&str> = paths.map(|it| it.strip_prefix("tree/").unwrap()).collect();
        for path in &told {
            let was_there = self.ever.contains(*path);
            assert!(was_there && !self.now.contains_key(*path), "{path} was not deleted");
        }
        self.let_them_go();
        for cno in self.left() {
            let is_deleted =
                |path: &&String| !self.now.contains_key(*path) && !self.moved.contains(*path);
            for path in self.then[&cno].keys().filter(is_deleted) {
                let above = Path::new(path).ancestors().filter_map(Path::to_str);
                let is_told = above.into_iter().any(|above| told.contains(above));
                assert!(is_told, "{path} of checkpoint {cno} is not in {told:?}");
            }
        }
    }

    /// The directory becomes what the model had, in the present and in the checkpoint that is made.
    fn judge_rolling_back(&mut self) {
        let Some(cno) = self.any_left() else { return };
        let output = self.nilfs(&format!("rollback --json {cno} MNT/tree"));
        if output.code != Some(0) {
            assert!(self.is_gone(cno), "rollback to {cno}: {}", output.stderr);
            return;
        }
        let done: Value = serde_json::from_str(&output.stdout).unwrap();
        let mut found = Model::new();
        read_tree(&self.dir.join("tree"), "", &mut found).unwrap();
        assert!(found == self.then[&cno], "the present is not as in checkpoint {cno}: {done}");
        if let Some(made) = done["checkpoint"].as_u64() {
            self.then.insert(made, found.clone());
        }
        // Some of the names that are gone now were those of files that have others again.
        let gone = self.now.keys().filter(|path| !found.contains_key(*path));
        self.moved.extend(gone.cloned());
        self.now = found;
        // It would be kept for ever, and this is about checkpoints that vanish.
        if let Some(before) = done["snapshot"].as_u64() {
            self.nilfs(&format!("snapshot delete MNT {before}")).output();
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.dir, UnmountFlags::DETACH);
    }
}

fn read_tree(dir: &Path, above: &str, found: &mut Model) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let path = format!("{above}{}", entry.file_name().to_str().unwrap());
        if entry.file_type()?.is_dir() {
            read_tree(&entry.path(), &format!("{path}/"), found)?;
            found.insert(path, None);
        } else {
            let content = fs::read(entry.path())?;
            found.insert(path, Some(content));
        }
    }
    Ok(())
}

#[test]
fn the_past_is_what_the_model_says_while_the_cleaner_works_and_checkpoints_vanish() {
    for seed in 0..3 {
        let mut world = World::new(seed);
        let ended = AtomicBool::new(false);
        let dir = world.dir.clone();
        let (mut looked, mut vanished) = (0, false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    let clean = ["clean".as_ref(), "-p".as_ref(), "0".as_ref(), dir.as_os_str()];
                    nilfs(clean).output();
                }
            });
            let _end = EndOfCleaning(&ended);
            for _ in 0..12 {
                for _ in 0..4 {
                    for _ in 0..6 {
                        world.step();
                    }
                    world.checkpoint();
                }
                looked += world.judge_doors();
                world.judge_difference();
                world.judge_versions();
                world.judge_restoring();
                world.judge_what_was_deleted();
                world.judge_rolling_back();
                vanished |= world.left().len() < world.then.len();
            }
        });
        assert!(looked > 12 && vanished, "seed {seed}: {looked} looks, vanished: {vanished}");
    }
}

/// Lets the thread that cleans come to its end, also when the test fails.
struct EndOfCleaning<'a>(&'a AtomicBool);

impl Drop for EndOfCleaning<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

//! What one thread does: a random mix of operations in a directory of its own, of which it knows what
//! must come back.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Files of a thread, at most.
const MOST_FILES: usize = 100;

/// Directories of a thread.
const DIRECTORIES: u32 = 5;

/// Bytes that are written at a time, at most.
const MOST_BYTES: usize = 128 << 10;

/// A file does not become longer, in bytes.
const LONGEST: usize = 512 << 10;

/// A thread that works.
pub struct Worker {
    home: PathBuf,
    random: StdRng,
    /// What each file must hold.
    files: BTreeMap<PathBuf, Vec<u8>>,
    names: u64,
    times: Arc<Mutex<Vec<Duration>>>,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
}

impl Worker {
    /// One that works in `home` until somebody says `stop`, and counts what it has `done`.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn new(
        home: &Path,
        seed: u64,
        stop: &Arc<AtomicBool>,
        done: &Arc<AtomicU64>,
    ) -> Result<Self> {
        for nth in 0..DIRECTORIES {
            fs::create_dir_all(home.join(nth.to_string()))?;
        }
        Ok(Self {
            home: home.to_owned(),
            random: StdRng::seed_from_u64(seed),
            files: BTreeMap::new(),
            names: 0,
            times: Arc::default(),
            stop: Arc::clone(stop),
            done: Arc::clone(done),
        })
    }

    /// How long its operations took, since somebody took them out.
    pub fn times(&self) -> Arc<Mutex<Vec<Duration>>> {
        Arc::clone(&self.times)
    }

    /// Works. Whatever goes wrong stops all.
    ///
    /// # Errors
    /// An operation failed, or something else came back than was written.
    pub fn work(mut self) -> Result<()> {
        let worked = self.work_on();
        self.stop.store(true, Ordering::Relaxed);
        worked
    }

    fn work_on(&mut self) -> Result<()> {
        while !self.stop.load(Ordering::Relaxed) {
            let began = Instant::now();
            self.step().with_context(|| format!("in {}", self.home.display()))?;
            self.times.lock().push(began.elapsed());
            self.done.fetch_add(1, Ordering::Relaxed);
        }
        let paths: Vec<PathBuf> = self.files.keys().cloned().collect();
        paths.iter().try_for_each(|path| self.compare(path))
    }

    fn step(&mut self) -> Result<()> {
        let Some(path) = self.any().filter(|_| self.files.len() >= 3) else {
            return self.create();
        };
        let (what, done) = match self.random.random_range(0..100) {
            0..12 if self.files.len() < MOST_FILES => ("create", self.create()),
            0..20 => ("remove", self.remove(&path)),
            20..40 => ("write", self.write(&path)),
            40..65 => ("compare", self.compare(&path)),
            65..73 => ("rename", self.rename(path)),
            73..79 => ("shorten", self.shorten(&path)),
            79..87 => ("sync", self.sync(&path)),
            87..93 => ("list", self.list()),
            93..96 => ("look back", self.look_back()),
            _ => ("look at", self.look_at(&path)),
        };
        done.with_context(|| format!("cannot {what}"))
    }

    fn sync(&self, path: &Path) -> Result<()> {
        Ok(File::open(path)?.sync_all()?)
    }

    fn any(&mut self) -> Option<PathBuf> {
        let nth = self.random.random_range(0..self.files.len().max(1));
        self.files.keys().nth(nth).cloned()
    }

    fn new_path(&mut self) -> PathBuf {
        self.names += 1;
        let directory = self.random.random_range(0..DIRECTORIES).to_string();
        self.home.join(directory).join(format!("file {}", self.names))
    }

    fn create(&mut self) -> Result<()> {
        let path = self.new_path();
        File::create_new(&path)?;
        self.files.insert(path.clone(), Vec::new());
        self.write(&path)
    }

    fn remove(&mut self, path: &Path) -> Result<()> {
        self.files.remove(path);
        Ok(fs::remove_file(path)?)
    }

    fn write(&mut self, path: &Path) -> Result<()> {
        let content = self.files.get_mut(path).context("a file that is known")?;
        let at = self.random.random_range(0..=content.len().min(LONGEST - MOST_BYTES));
        let length = self.random.random_range(1..=MOST_BYTES);
        let bytes = vec![self.random.random::<u8>(); length];
        OpenOptions::new().write(true).open(path)?.write_all_at(&bytes, at as u64)?;
        content.resize(content.len().max(at + length), 0);
        content[at..at + length].copy_from_slice(&bytes);
        Ok(())
    }

    fn look_at(&self, path: &Path) -> Result<()> {
        let (found, expected) = (fs::metadata(path)?.len(), self.files.get(path).map(Vec::len));
        ensure!(Some(found as usize) == expected, "{} has {found} bytes", path.display());
        Ok(())
    }

    fn compare(&self, path: &Path) -> Result<()> {
        let found = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let same = self.files.get(path) == Some(&found);
        ensure!(same, "{} does not hold what was written to it", path.display());
        Ok(())
    }

    fn rename(&mut self, path: PathBuf) -> Result<()> {
        let new = self.new_path();
        fs::rename(&path, &new)?;
        if let Some(content) = self.files.remove(&path) {
            self.files.insert(new, content);
        }
        Ok(())
    }

    fn shorten(&mut self, path: &Path) -> Result<()> {
        let content = self.files.get_mut(path).context("a file that is known")?;
        content.truncate(self.random.random_range(0..=content.len()));
        let file = OpenOptions::new().write(true).open(path)?;
        Ok(file.set_len(content.len() as u64)?)
    }

    fn list(&mut self) -> Result<()> {
        let directory = self.home.join(self.random.random_range(0..DIRECTORIES).to_string());
        let found = fs::read_dir(&directory)?.collect::<io::Result<Vec<_>>>()?.len();
        let expected = self.files.keys().filter(|path| path.starts_with(&directory)).count();
        ensure!(found == expected, "{found} files in {}, not {expected}", directory.display());
        Ok(())
    }

    /// Looks at a directory as it was at some checkpoint, which the cleaner may take away meanwhile.
    fn look_back(&mut self) -> Result<()> {
        let past = self.home.join(".checkpoints");
        let moments: Vec<_> = fs::read_dir(&past)?.filter_map(io::Result::ok).collect();
        if !moments.is_empty() {
            let nth = self.random.random_range(0..moments.len());
            let _ = fs::read_dir(moments[nth].path().join("0")).map(Iterator::count);
        }
        Ok(())
    }
}

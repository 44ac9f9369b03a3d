//! Work until the power fails: endless random operations, some of them made durable and then
//! logged.
//!
//! What is logged as durable is not changed before the log says that it is about to be. Between
//! them go operations that nobody syncs, in the same directories.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

use crate::manifest::{at, content};
use crate::synced::{Expected, SyncedLog};

/// Most synced files that are kept for further changes.
const MOST_FILES: usize = 100;

const MOST_DIRECTORIES: usize = 30;

const MOST_BYTES: usize = 128 << 10;

/// The work, decided by a seed.
#[derive(Debug, Clone, Copy)]
pub struct CrashWorkload {
    /// Decides all operations.
    pub seed: u64,
    /// Whether to rely on everything that POSIX and other file systems of Linux promise: also fsync
    /// of what was only created, renamed, linked, truncated or chmodded, and of directories.
    /// Linux's own nilfs2 loses these.
    pub strict: bool,
}

impl CrashWorkload {
    /// Works in `directory`, and logs in the file `log`, which must be out of the failure's reach.
    /// Returns only on an error.
    pub fn run(&self, directory: &Path, log: &Path) -> io::Result<Infallible> {
        let mut work = Work {
            root: directory.to_owned(),
            log: SyncedLog::open(log)?,
            random: StdRng::seed_from_u64(self.seed),
            directories: vec![PathBuf::new()],
            files: BTreeMap::new(),
            unsynced: Vec::new(),
            names: 0,
        };
        loop {
            work.step(self.strict)?;
        }
    }
}

struct Work {
    root: PathBuf,
    log: SyncedLog,
    random: StdRng,
    directories: Vec<PathBuf>,
    /// Files that are durable, with their content, which further steps may change.
    files: BTreeMap<PathBuf, Vec<u8>>,
    /// Files that nobody synced.
    unsynced: Vec<PathBuf>,
    /// How many names were given so far.
    names: u64,
}

impl Work {
    fn step(&mut self, strict: bool) -> io::Result<()> {
        if self.files.is_empty() {
            return self.create();
        }
        match self.random.random_range(0..if strict { 30 } else { 20 }) {
            0..4 if self.files.len() < MOST_FILES => self.create(),
            0..8 => self.overwrite(),
            8..10 => self.append(),
            10 => self.shorten_and_append(),
            11..13 => self.rename_and_append(),
            13 => self.remove(),
            14 => self.make_directory(),
            15..20 => self.do_unsynced(),
            20 | 21 => self.create_empty(),
            22 => self.rename_only(),
            23 => self.link_only(),
            24 => self.chmod_only(),
            25 => self.shorten_only(),
            26 => self.rename_and_sync_directory(),
            27 => self.remove_and_sync_directory(),
            28 => self.make_and_sync_directory(),
            _ => self.rename_directory_and_sync_file(),
        }
    }

    /// Writes a new file and makes it durable.
    fn create(&mut self) -> io::Result<()> {
        let path = self.new_path();
        let file = self.open(&path, OpenOptions::new().create_new(true))?;
        let mut content = Vec::new();
        for _ in 0..self.random.random_range(1..4) {
            let offset = self.random.random_range(0..MOST_BYTES / 2);
            self.write(&file, &mut content, offset)?;
        }
        self.sync(&file, &path, content)
    }

    /// Overwrites a part of a file, and makes it durable with fdatasync as often as with fsync.
    fn overwrite(&mut self) -> io::Result<()> {
        let (path, mut content) = self.release_any()?;
        let file = self.open(&path, &mut OpenOptions::new())?;
        let start = self.random.random_range(0..=content.len());
        let end = self.random.random_range(start..=content.len());
        if start == end {
            self.write(&file, &mut content, start)?;
            return self.sync(&file, &path, content);
        }
        self.random.fill_bytes(&mut content[start..end]);
        file.write_all_at(&content[start..end], start as u64)?;
        if self.random.random() {
            file.sync_data()?;
            self.log_file(&file, &path, content)
        } else {
            self.sync(&file, &path, content)
        }
    }

    fn append(&mut self) -> io::Result<()> {
        let (path, content) = self.release_any()?;
        self.append_and_sync(&path, content)
    }

    fn shorten_and_append(&mut self) -> io::Result<()> {
        let (path, mut content) = self.release_any()?;
        self.shorten(&path, &mut content)?;
        self.append_and_sync(&path, content)
    }

    fn rename_and_append(&mut self) -> io::Result<()> {
        let (path, content) = self.release_any()?;
        let new_path = self.rename(&path)?;
        self.append_and_sync(&new_path, content)
    }

    fn remove(&mut self) -> io::Result<()> {
        let (path, _) = self.release_any()?;
        fs::remove_file(self.root.join(path))
    }

    fn make_directory(&mut self) -> io::Result<()> {
        if self.directories.len() < MOST_DIRECTORIES {
            let path = self.new_path();
            fs::create_dir(self.root.join(&path))?;
            self.directories.push(path);
        }
        Ok(())
    }

    /// Does something that may be lost.
    fn do_unsynced(&mut self) -> io::Result<()> {
        let any = self.random.random_range(0..=self.unsynced.len());
        match (self.random.random_range(0..4), self.unsynced.get(any).cloned()) {
            (0, Some(path)) => {
                fs::remove_file(self.root.join(path))?;
                self.unsynced.swap_remove(any);
            }
            (1, Some(path)) => {
                self.unsynced[any] = self.rename(&path)?;
            }
            (2, Some(path)) => {
                let size = self.random.random_range(0..MOST_BYTES as u64);
                self.open(&path, &mut OpenOptions::new())?.set_len(size)?;
            }
            (_, path) => {
                let path = path.unwrap_or_else(|| self.new_path());
                let file = self.open(&path, OpenOptions::new().create(true).truncate(false))?;
                let offset = self.random.random_range(0..MOST_BYTES);
                self.write(&file, &mut Vec::new(), offset)?;
                if any == self.unsynced.len() {
                    self.unsynced.push(path);
                }
            }
        }
        Ok(())
    }

    fn create_empty(&mut self) -> io::Result<()> {
        let path = self.new_path();
        let file = self.open(&path, OpenOptions::new().create_new(true))?;
        self.sync(&file, &path, Vec::new())
    }

    fn rename_only(&mut self) -> io::Result<()> {
        let (path, content) = self.release_any()?;
        let new_path = self.rename(&path)?;
        let file = self.open(&new_path, &mut OpenOptions::new())?;
        self.sync(&file, &new_path, content)
    }

    /// Gives a file a second name. Both stay as they are from then on.
    fn link_only(&mut self) -> io::Result<()> {
        let (path, content) = self.release_any()?;
        let new_path = self.new_path();
        fs::hard_link(self.root.join(&path), self.root.join(&new_path))?;
        let file = self.open(&new_path, &mut OpenOptions::new())?;
        file.sync_all()?;
        let expected = present(&file, &content)?;
        self.log.expect(&path, expected)?;
        self.log.expect(&new_path, expected)
    }

    fn chmod_only(&mut self) -> io::Result<()> {
        let (path, content) = self.release_any()?;
        let file = self.open(&path, &mut OpenOptions::new())?;
        let mode = self.random.random_range(0..0o10_000);
        file.set_permissions(Permissions::from_mode(mode))?;
        self.sync(&file, &path, content)
    }

    fn shorten_only(&mut self) -> io::Result<()> {
        let (path, mut content) = self.release_any()?;
        self.shorten(&path, &mut content)?;
        let file = self.open(&path, &mut OpenOptions::new())?;
        self.sync(&file, &path, content)
    }

    fn rename_and_sync_directory(&mut self) -> io::Result<()> {
        let (path, content) = self.release_any()?;
        let new_path = path.with_file_name(self.new_name());
        fs::rename(self.root.join(&path), self.root.join(&new_path))?;
        self.sync_directory(path.parent())?;
        self.log.expect(&path, Expected::Absent)?;
        let file = self.open(&new_path, &mut OpenOptions::new())?;
        self.log_file(&file, &new_path, content)
    }

    fn remove_and_sync_directory(&mut self) -> io::Result<()> {
        let (path, _) = self.release_any()?;
        fs::remove_file(self.root.join(&path))?;
        self.sync_directory(path.parent())?;
        self.log.expect(&path, Expected::Absent)
    }

    fn make_and_sync_directory(&mut self) -> io::Result<()> {
        let path = self.new_path();
        fs::create_dir(self.root.join(&path))?;
        self.sync_directory(Some(&path))?;
        let mode = fs::symlink_metadata(self.root.join(&path))?.mode();
        self.log.expect(&path, Expected::Present { mode, size: 0, content: 0 })
    }

    /// Renames a directory, and relies on the fsync of a file below it to make the new path
    /// durable.
    fn rename_directory_and_sync_file(&mut self) -> io::Result<()> {
        let path = self.new_path();
        let inside = path.join("inside");
        fs::create_dir(self.root.join(&path))?;
        let mut content = Vec::new();
        let file = self.open(&inside, OpenOptions::new().create_new(true))?;
        self.write(&file, &mut content, 0)?;
        self.sync(&file, &inside, content)?;
        let content = self.release(&inside)?;
        let new_path = self.rename(&path)?;
        self.sync(&file, &new_path.join("inside"), content)
    }

    /// Takes a random file's promise back, so that it can be changed.
    fn release_any(&mut self) -> io::Result<(PathBuf, Vec<u8>)> {
        let index = self.random.random_range(0..self.files.len());
        let path = self.files.keys().nth(index).cloned().unwrap_or_default();
        let content = self.release(&path)?;
        Ok((path, content))
    }

    fn release(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        self.log.expect(path, Expected::Unknown)?;
        Ok(self.files.remove(path).unwrap_or_default())
    }

    fn append_and_sync(&mut self, path: &Path, mut content: Vec<u8>) -> io::Result<()> {
        let file = self.open(path, &mut OpenOptions::new())?;
        let end = content.len();
        self.write(&file, &mut content, end)?;
        self.sync(&file, path, content)
    }

    /// Makes a file durable and says so in the log.
    fn sync(&mut self, file: &File, path: &Path, content: Vec<u8>) -> io::Result<()> {
        file.sync_all().map_err(|error| at(&self.root.join(path), &error))?;
        self.log_file(file, path, content)
    }

    fn log_file(&mut self, file: &File, path: &Path, content: Vec<u8>) -> io::Result<()> {
        self.log.expect(path, present(file, &content)?)?;
        self.files.insert(path.to_owned(), content);
        Ok(())
    }

    fn sync_directory(&self, path: Option<&Path>) -> io::Result<()> {
        File::open(self.root.join(path.unwrap_or(Path::new(""))))?.sync_all()
    }

    fn open(&self, path: &Path, options: &mut OpenOptions) -> io::Result<File> {
        let full = self.root.join(path);
        options.write(true).open(&full).map_err(|error| at(&full, &error))
    }

    /// Writes random bytes into a file and into what is known of its content.
    fn write(&mut self, file: &File, content: &mut Vec<u8>, offset: usize) -> io::Result<()> {
        let mut bytes = vec![0; self.random.random_range(1..=MOST_BYTES / 4)];
        self.random.fill_bytes(&mut bytes);
        file.write_all_at(&bytes, offset as u64)?;
        let end = offset + bytes.len();
        content.resize(content.len().max(end), 0);
        content[offset..end].copy_from_slice(&bytes);
        Ok(())
    }

    fn shorten(&mut self, path: &Path, content: &mut Vec<u8>) -> io::Result<()> {
        content.truncate(self.random.random_range(0..=content.len()));
        self.open(path, &mut OpenOptions::new())?.set_len(content.len() as u64)
    }

    fn rename(&mut self, path: &Path) -> io::Result<PathBuf> {
        let new_path = self.new_path();
        fs::rename(self.root.join(path), self.root.join(&new_path))?;
        Ok(new_path)
    }

    /// A path that never was, in a random directory.
    fn new_path(&mut self) -> PathBuf {
        let name = self.new_name();
        self.directories[self.random.random_range(0..self.directories.len())].join(name)
    }

    fn new_name(&mut self) -> String {
        self.names += 1;
        format!("{}{}", self.names, "-".repeat(self.random.random_range(0..30)))
    }
}

fn present(file: &File, content: &[u8]) -> io::Result<Expected> {
    let mode = file.metadata()?.mode();
    let (size, content) = (content.len() as u64, content::hash_of_bytes(content));
    Ok(Expected::Present { mode, size, content })
}

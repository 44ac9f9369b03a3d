//! Going through the files of a broken volume: which of them is taken from which checkpoint.
//!
//! The newest usable checkpoint comes first. What it cannot show is looked for in the older ones, by
//! the number of the file; a name that can be read in an older version of a damaged directory
//! counts unless its file has been deleted since. Where names are lost, files that no name leads to
//! are found by their numbers.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nilfs_engine::rescue::{Rescue, RescuedTree};
use nilfs_engine::tree::File;
use nilfs_engine::{Error, FileType, Ino};

use super::report::{Fate, Report};
use crate::commands::cp::{Copier, is_damage};
use crate::exit::sentence;
use crate::image::Entry;

/// The directory of files without names.
const LOST_AND_FOUND: &str = "lost+found";

/// Copies what can be read.
pub struct Salvager {
    rescue: Rescue,
    copier: Copier,
    to: PathBuf,
    report: Report,
    /// What became of files with several names, and from which checkpoint they were copied.
    linked: HashMap<(usize, Ino), (Fate, usize)>,
    /// Directories entered so far: none can have two names, unless the volume is damaged.
    entered: HashSet<Ino>,
    /// Files to which a name has led.
    named: HashSet<Ino>,
    /// Names are lost.
    lost_names: bool,
}

/// A file of one of the checkpoints.
struct Found {
    /// Which of them.
    nth: usize,
    source: RescuedTree,
    file: File,
}

/// Where a name was read, and the number that it leads to.
#[derive(Clone, Copy)]
struct Origin {
    nth: usize,
    ino: Ino,
}

impl Salvager {
    /// Copies to a directory, which need not be there yet.
    pub fn new(rescue: Rescue, copier: Copier, to: PathBuf) -> Self {
        let (linked, entered, named) = Default::default();
        let report = Report::default();
        Self { rescue, copier, to, report, linked, entered, named, lost_names: false }
    }

    /// Copies everything. Fails if something could not be written; what could not be read is in the
    /// report.
    pub fn run(mut self) -> anyhow::Result<(Report, anyhow::Result<()>)> {
        let root = self.found(0, Ino::ROOT)?;
        self.tree(Vec::new(), root);
        if self.lost_names {
            self.without_names()?;
        }
        self.report.sort();
        Ok((self.report, self.copier.finish()))
    }

    /// Copies a directory with everything below it.
    fn tree(&mut self, path: Vec<u8>, top: Found) {
        let mut left = vec![(path, top)];
        while let Some((path, directory)) = left.pop() {
            if self.copier.is_interrupted() {
                break;
            }
            left.extend(self.directory(&path, &directory));
        }
    }

    /// Copies the files of the newest checkpoint to which no name has led.
    fn without_names(&mut self) -> anyhow::Result<()> {
        let Some(source) = self.rescue.tree(0) else { return Ok(()) };
        let mut found = Vec::new();
        source.tree.files_by_number(&mut |ino| found.push(ino))?;
        found.retain(|ino| !self.named.contains(ino));
        // What has a name in one of these directories comes with it.
        let mut inner = HashSet::new();
        for ino in &found {
            if let Ok(directory) = self.found(0, *ino) {
                let mut names = BTreeMap::new();
                list(&directory, &mut names);
                inner.extend(names.values().map(|origin| origin.ino).filter(|child| child != ino));
            }
        }
        let (inner, tops): (Vec<Ino>, Vec<Ino>) = found.iter().partition(|ino| inner.contains(ino));
        let mut is_made = false;
        for ino in tops.into_iter().chain(inner) {
            if self.copier.is_interrupted() || self.named.contains(&ino) {
                continue;
            }
            let Ok(found) = self.found(0, ino) else { continue };
            if !is_made {
                fs::create_dir_all(self.to.join(LOST_AND_FOUND))?;
                is_made = true;
            }
            self.named.insert(ino);
            let path = format!("{LOST_AND_FOUND}/#{ino}").into_bytes();
            match found.file.file_type() {
                FileType::Directory => self.tree(path, found),
                _ => self.file(&path, &found),
            }
        }
        Ok(())
    }

    fn found(&mut self, nth: usize, ino: Ino) -> Result<Found, Error> {
        let source = self.rescue.tree(nth).ok_or(Error::Stale)?;
        let file = source.tree.file(ino)?;
        Ok(Found { nth, source, file })
    }

    /// Makes a directory and copies the files in it. Returns the directories in it.
    fn directory(&mut self, path: &[u8], directory: &Found) -> Vec<(Vec<u8>, Found)> {
        let to = self.to.join(OsStr::from_bytes(path));
        if !self.entered.insert(directory.file.ino()) {
            let why = format!("directory {} has two names", directory.file.ino());
            self.report.add(path, Fate::Lost { why });
            return Vec::new();
        }
        if let Err(error) = self.copy_from(directory, &to) {
            self.copier.fail(&to, &error);
            return Vec::new();
        }
        let (names, fate) = self.names(directory);
        self.lost_names |= matches!(fate, Fate::Partial { .. });
        if !path.is_empty() || fate != Fate::Whole {
            self.report.add(path, fate);
        }
        let mut directories = Vec::new();
        for (name, origin) in names {
            if self.copier.is_interrupted() {
                break;
            }
            let mut path = path.to_vec();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend(&name);
            match self.find(origin, directory.file.ino(), &name) {
                Ok(None) => continue,
                Ok(Some(found)) if found.file.file_type() == FileType::Directory => {
                    directories.push((path, found));
                }
                Ok(Some(found)) => self.file(&path, &found),
                Err(error) => {
                    self.lost_names = true;
                    self.report.add(&path, Fate::Lost { why: error.to_string() });
                }
            }
            self.named.insert(origin.ino);
        }
        directories
    }

    /// The names in a directory; if it is damaged, also those of its newest version that is not.
    fn names(&mut self, directory: &Found) -> (BTreeMap<Vec<u8>, Origin>, Fate) {
        let mut names = BTreeMap::new();
        list(directory, &mut names);
        let fate = match directory.nth {
            0 => Fate::Whole,
            _ => Fate::older(&directory.source.tree),
        };
        let Err(error) = directory.source.tree.check_directory(&directory.file) else {
            return (names, fate);
        };
        let mut nth = directory.nth + 1;
        while let Some(source) = self.rescue.tree(nth) {
            let older = source.tree.file(directory.file.ino());
            if let Ok(file) = older
                && file.is_same_file(&directory.file)
                && source.tree.check_directory(&file).is_ok()
            {
                let fate = Fate::older(&source.tree);
                list(&Found { nth, source, file }, &mut names);
                return (names, fate);
            }
            nth += 1;
        }
        (names, Fate::Partial { missing: Vec::new(), why: error.to_string() })
    }

    /// The file that a name leads to; `None` if it has been deleted after the name was read.
    fn find(&mut self, origin: Origin, parent: Ino, name: &[u8]) -> Result<Option<Found>, Error> {
        let own = self.found(origin.nth, origin.ino);
        if origin.nth > 0 {
            match (self.found(0, origin.ino), &own) {
                (Err(Error::Stale), _) => return Ok(None),
                (Ok(now), Ok(then)) if now.file.is_same_file(&then.file) => return Ok(Some(now)),
                _ => {}
            }
        }
        let why = match own {
            Ok(found) => return Ok(Some(found)),
            Err(Error::Stale) => Error::Inconsistent(format!("inode {} is missing", origin.ino)),
            Err(error) => error,
        };
        let mut nth = origin.nth + 1;
        while let Some(source) = self.rescue.tree(nth) {
            let tree = &source.tree;
            let older = tree.file(parent).and_then(|directory| tree.lookup(&directory, name));
            if let Ok(file) = older
                && file.ino() == origin.ino
            {
                return Ok(Some(Found { nth, source, file }));
            }
            nth += 1;
        }
        Err(why)
    }

    /// Copies a file that is no directory.
    fn file(&mut self, path: &[u8], found: &Found) {
        let to = self.to.join(OsStr::from_bytes(path));
        let link = (found.nth, found.file.ino());
        let copied = match self.linked.get(&link).cloned() {
            Some((Fate::Lost { why }, nth)) => Ok((Fate::Lost { why }, nth)),
            Some((fate, nth)) => self
                .found(nth, found.file.ino())
                .map_err(anyhow::Error::from)
                .and_then(|first| self.copy_from(&first, &to))
                .map(|()| (fate, nth)),
            None => self.newest_whole(found, &to),
        };
        match copied {
            Ok((fate, nth)) => {
                if found.file.attr().nlink > 1 {
                    self.linked.insert(link, (fate.clone(), nth));
                }
                self.report.add(path, fate);
            }
            Err(_) if self.copier.is_interrupted() => {}
            Err(error) => self.copier.fail(&to, &error),
        }
    }

    /// Copies the newest version that can be read as a whole or, if there is none, what can be read
    /// of the newest version. Returns from which checkpoint it is.
    fn newest_whole(&mut self, found: &Found, to: &Path) -> anyhow::Result<(Fate, usize)> {
        let fate = match found.nth {
            0 => Fate::Whole,
            _ => Fate::older(&found.source.tree),
        };
        let why = match self.copy_from(found, to) {
            Ok(()) => return Ok((fate, found.nth)),
            Err(error) if is_damage(&error) => error,
            Err(error) => return Err(error),
        };
        let mut tried = (found.source.volume, found.file.clone());
        let mut nth = found.nth + 1;
        while let Some(source) = self.rescue.tree(nth) {
            let volume = source.volume;
            if let Ok(file) = source.tree.file(found.file.ino())
                && file.is_same_file(&found.file)
                && !(tried.0 == volume && tried.1.has_same_inode(&file))
            {
                tried = (volume, file.clone());
                let fate = match file.has_same_version(&found.file) {
                    true => fate.clone(),
                    false => Fate::older(&source.tree),
                };
                match self.copy_from(&Found { nth, source, file }, to) {
                    Ok(()) => return Ok((fate, nth)),
                    Err(error) if is_damage(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            nth += 1;
        }
        let why = sentence(&why);
        if found.file.file_type() != FileType::Regular {
            return Ok((Fate::Lost { why }, found.nth));
        }
        Ok((self.copy_partly(found, to, why)?, found.nth))
    }

    fn copy_partly(&mut self, found: &Found, to: &Path, why: String) -> anyhow::Result<Fate> {
        let tree = &found.source.tree;
        let survey = tree.survey(&found.file)?;
        let entry = Entry::hold(&found.source.files, found.file.ino())?;
        self.copier.begin(&found.source.files);
        let block_bytes = tree.block_size().bytes64();
        let mut missing = self.copier.copy_readable(&entry, to, &survey.data, block_bytes)?;
        missing.extend(survey.unknown);
        missing.sort_unstable_by_key(|extent| extent.offset);
        Ok(Fate::Partial { missing, why })
    }

    fn copy_from(&mut self, found: &Found, to: &Path) -> anyhow::Result<()> {
        self.copier.begin(&found.source.files);
        self.copier.copy(&Entry::hold(&found.source.files, found.file.ino())?, to)
    }
}

/// Adds the names that can be read in a directory, unless they are known.
fn list(directory: &Found, names: &mut BTreeMap<Vec<u8>, Origin>) {
    // Where it cannot be listed at all, it has no names.
    let _ = directory.source.tree.read_dir(&directory.file, 0, &mut |entry| {
        if !matches!(entry.name, b"." | b"..") {
            let origin = Origin { nth: directory.nth, ino: entry.ino };
            names.entry(entry.name.to_vec()).or_insert(origin);
        }
        true
    });
}

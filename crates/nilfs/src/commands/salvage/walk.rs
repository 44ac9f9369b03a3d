//! Going through the files of a broken volume: which of them is taken from which checkpoint.
//!
//! A checkpoint is salvaged, the newest usable one unless another is asked for. What it cannot show is
//! looked for in the older ones, by
//! the number of the file; a name that can be read in an older version of a damaged directory
//! counts unless its file has been deleted since. Where names are lost, files that no name leads to
//! are found by their numbers. Other checkpoints go into directories of their own in the same way.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use nilfs_device::Device;
use nilfs_engine::rescue::{Doubts, Evidence, Rescue, RescuedTree};
use nilfs_engine::tree::{ChangedFile, File};
use nilfs_engine::{Cno, Error, FileType, Ino};
use nilfs_repair::Loss;

use super::losses::Losses;
use super::remains::{Remains, Version, is_readable};
use super::report::{Fate, Report};
use crate::beneath::Destination;
use crate::commands::cp::{Copier, is_damage};
use crate::exit::sentence;
use crate::image;
use crate::output::printable;

/// The directory of files without names.
const LOST_AND_FOUND: &str = "lost+found";

/// Copies what can be read.
pub struct Salvager {
    rescue: Rescue,
    losses: Losses,
    /// The device as it is.
    device: Arc<dyn Device>,
    /// Evidence for the content of files, by the volume that shows them.
    evidence: HashMap<usize, Evidence>,
    copier: Copier,
    to: Destination,
    report: Report,
    /// Which of the usable checkpoints is being salvaged.
    base: usize,
    /// Checkpoints that are newer than this show nothing of it.
    limit: Cno,
    /// The directory for it below the destination, with a slash.
    below: Vec<u8>,
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

impl Found {
    fn version(&self) -> Version<'_> {
        Version { tree: &self.source.tree, file: &self.file }
    }
}

/// Where a name was read, and the number that it leads to.
#[derive(Clone, Copy)]
struct Origin {
    nth: usize,
    ino: Ino,
}

impl Salvager {
    /// Copies to a directory, which need not be there yet.
    pub fn new(
        (device, rescue): (Arc<dyn Device>, Rescue),
        losses: Losses,
        copier: Copier,
        to: Destination,
    ) -> Self {
        let (linked, entered, named) = Default::default();
        Self {
            rescue,
            losses,
            device,
            evidence: HashMap::new(),
            copier,
            to,
            report: Report::default(),
            base: 0,
            limit: Cno::MAX,
            below: Vec::new(),
            linked,
            entered,
            named,
            lost_names: false,
        }
    }

    /// Copies everything in a checkpoint, given by its place among the usable ones.
    pub fn checkpoint(&mut self, nth: usize) -> anyhow::Result<()> {
        // The newest one comes first, whatever their numbers.
        let limit = match nth {
            0 => Cno::MAX,
            _ => self.rescue.tree(nth).map_or(Cno::MAX, |source| source.tree.cno()),
        };
        self.begin(nth, limit, Vec::new());
        self.everything()
    }

    /// Copies everything in snapshots to directories of their own, but for the checkpoint that is
    /// salvaged anyway.
    pub fn snapshots(&mut self, salvaged: Cno) -> anyhow::Result<()> {
        let all = self.rescue.checkpoints();
        for cno in all.iter().rev().filter(|it| it.snapshot).map(|it| it.cno) {
            if self.copier.is_interrupted() {
                break;
            }
            if cno == salvaged {
                continue;
            }
            let below = self.directory_for("snapshot", cno);
            match self.rescue.place_of(cno) {
                Some(nth) => {
                    self.begin(nth, cno, below);
                    self.everything()?;
                }
                None => {
                    let why = format!("snapshot {cno} cannot be used");
                    self.report.add(&below[..below.len() - 1], Fate::Lost { why });
                }
            }
        }
        Ok(())
    }

    /// Copies the files that only checkpoints have which are older than the one at a place among the
    /// usable ones, each as the newest of them has it.
    pub fn deleted(&mut self, base: usize) -> anyhow::Result<()> {
        let limit = self.rescue.tree(base).map_or(Cno::MAX, |source| source.tree.cno());
        let mut known: HashMap<Ino, Vec<File>> = HashMap::new();
        let mut newer = self.rescue.tree(base);
        let mut next = base + 1;
        while let Some((nth, source)) = self.older(next, limit) {
            if self.copier.is_interrupted() {
                break;
            }
            next = nth + 1;
            let mut gone = Vec::new();
            for file in not_in(&source, newer.as_ref()) {
                let now = self.rescue.tree(base).and_then(|now| now.tree.file(file.ino()).ok());
                let others = known.entry(file.ino()).or_default();
                let is_known = others.iter().chain(&now).any(|other| other.is_same_file(&file));
                if !is_known {
                    others.push(file.clone());
                    gone.push(file.ino());
                }
            }
            if !gone.is_empty() {
                let cno = source.tree.cno();
                let below = self.directory_for("deleted", cno);
                self.begin(nth, cno, below);
                self.some(&gone.into_iter().collect())?;
            }
            newer = Some(source);
        }
        Ok(())
    }

    /// What has become of everything. Fails if something could not be written; what could not be read
    /// is in the report.
    pub fn finish(mut self) -> (Report, anyhow::Result<()>) {
        self.report.conclude(self.losses.others());
        (self.report, self.copier.finish().map(drop))
    }

    /// Turns to another checkpoint.
    fn begin(&mut self, base: usize, limit: Cno, below: Vec<u8>) {
        (self.base, self.limit, self.below) = (base, limit, below);
        self.losses.salvage(self.rescue.tree(base).map_or(limit, |source| source.tree.cno()));
        (self.linked, self.entered, self.named) = Default::default();
        self.lost_names = false;
    }

    /// A name for the directory of a checkpoint that nothing in the root directory has.
    fn directory_for(&self, what: &str, cno: Cno) -> Vec<u8> {
        let mut name = format!("{what}-{cno}");
        while matches!(self.to.join(&name).look(), Ok(Some(_))) {
            name.push('~');
        }
        name.push('/');
        name.into_bytes()
    }

    /// The next of the usable checkpoints, from one on, that is not newer than the limit.
    fn older(&mut self, mut nth: usize, limit: Cno) -> Option<(usize, RescuedTree)> {
        loop {
            let source = self.rescue.tree(nth)?;
            if source.tree.cno() <= limit {
                return Some((nth, source));
            }
            nth += 1;
        }
    }

    /// Copies everything in the checkpoint.
    fn everything(&mut self) -> anyhow::Result<()> {
        let top = self.below.strip_suffix(b"/").unwrap_or_default().to_vec();
        match self.root() {
            Some(root) => self.tree(top, root),
            None => {
                self.lost_names = true;
                self.report.add(&top, Fate::Lost { why: "there is no root directory".to_owned() });
            }
        }
        if self.lost_names {
            self.without_names()?;
        }
        Ok(())
    }

    /// The root directory as the checkpoint has it, or the newest before it that has one.
    fn root(&mut self) -> Option<Found> {
        let mut nth = self.base;
        while let Some((here, _)) = self.older(nth, self.limit) {
            if let Ok(root) = self.found(here, Ino::ROOT) {
                self.lost_names |= here != self.base;
                return Some(root);
            }
            nth = here + 1;
        }
        None
    }

    /// Copies these files of the checkpoint, with the directories above them.
    fn some(&mut self, wanted: &HashSet<Ino>) -> anyhow::Result<()> {
        let root = self.found(self.base, Ino::ROOT)?;
        let top = self.below.strip_suffix(b"/").unwrap_or_default().to_vec();
        let mut left = vec![(vec![(top, Rc::new(root))])];
        while let Some(way) = left.pop() {
            let Some((path, directory)) = way.last().filter(|_| !self.copier.is_interrupted())
            else {
                continue;
            };
            if !self.entered.insert(directory.file.ino()) {
                continue;
            }
            let mut names = BTreeMap::new();
            list(directory, &mut names);
            for (name, origin) in names {
                let Ok(found) = self.found(origin.nth, origin.ino) else { continue };
                let path = [&path[..], b"/", &name].concat();
                let is_directory = found.file.file_type() == FileType::Directory;
                let is_wanted = wanted.contains(&origin.ino);
                if is_wanted {
                    self.named.insert(origin.ino);
                    self.make_way(&way);
                }
                if is_directory {
                    let mut way = way.clone();
                    way.push((path, Rc::new(found)));
                    if is_wanted {
                        self.make_way(&way);
                    }
                    left.push(way);
                } else if is_wanted {
                    self.file(&path, &found);
                }
            }
        }
        let without: Vec<Ino> = wanted.difference(&self.named).copied().collect();
        self.adopt(without)
    }

    /// Makes directories as they were.
    fn make_way(&mut self, way: &[(Vec<u8>, Rc<Found>)]) {
        for (path, directory) in way {
            let to = self.to.join(OsStr::from_bytes(path));
            if !matches!(to.look(), Ok(Some(_)))
                && let Err(error) = self.copy_from(directory, &to)
            {
                self.copier.fail(&to.shown(), &error);
            }
        }
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

    /// Copies the files of the checkpoint to which no name has led.
    fn without_names(&mut self) -> anyhow::Result<()> {
        let Some(source) = self.rescue.tree(self.base) else { return Ok(()) };
        let mut found = Vec::new();
        source.tree.files_by_number(&mut |ino| found.push(ino))?;
        found.retain(|ino| !self.named.contains(ino));
        self.adopt(found)
    }

    /// Copies files without names.
    fn adopt(&mut self, found: Vec<Ino>) -> anyhow::Result<()> {
        // What has a name in one of these directories comes with it.
        let mut inner = HashSet::new();
        for ino in &found {
            if let Ok(directory) = self.found(self.base, *ino) {
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
            let Ok(found) = self.found(self.base, ino) else { continue };
            let directory = [&self.below[..], LOST_AND_FOUND.as_bytes()].concat();
            if !is_made {
                // The directories in which they were may have kept others out.
                let to = self.to.join(OsStr::from_bytes(&directory));
                to.make_directory(0o700, true)
                    .with_context(|| printable(to.shown().as_os_str().as_bytes()))?;
                is_made = true;
            }
            self.named.insert(ino);
            let path = [&directory[..], format!("/#{ino}").as_bytes()].concat();
            match found.file.file_type() {
                FileType::Directory => self.tree(path, found),
                _ => self.file(&path, &found),
            }
        }
        Ok(())
    }

    /// What becomes of a file that is as a checkpoint has it.
    fn fate_in(&self, found: &Found) -> Fate {
        match found.nth == self.base {
            true => Fate::Whole,
            false => Fate::older(&found.source.tree),
        }
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
            self.copier.fail(&to.shown(), &error);
            return Vec::new();
        }
        let (names, fate) = self.names(directory);
        self.lost_names |= matches!(fate, Fate::Partial { .. } | Fate::Damaged { .. });
        let is_top = directory.file.ino() == Ino::ROOT;
        if !is_top || fate != Fate::Whole {
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
        let loss = self.loss(directory);
        let fate = loss.as_ref().map(|loss| fate_by(loss, directory));
        let why = match (directory.source.tree.check_directory(&directory.file), loss) {
            (Err(error), _) => error.to_string(),
            (Ok(()), Some((Loss::Content, why))) => why,
            (Ok(()), _) => return (names, fate.unwrap_or_else(|| self.fate_in(directory))),
        };
        let mut nth = directory.nth + 1;
        while let Some((here, source)) = self.older(nth, self.limit) {
            nth = here;
            let older = source.tree.file(directory.file.ino());
            if let Ok(file) = older
                && file.is_same_file(&directory.file)
                && source.tree.check_directory(&file).is_ok()
            {
                let fate = fate.unwrap_or_else(|| Fate::older(&source.tree));
                list(&Found { nth, source, file }, &mut names);
                return (names, fate);
            }
            nth += 1;
        }
        (names, fate.unwrap_or_else(|| Fate::names_missing(why)))
    }

    /// The file that a name leads to; `None` if it has been deleted after the name was read.
    fn find(&mut self, origin: Origin, parent: Ino, name: &[u8]) -> Result<Option<Found>, Error> {
        let own = self.found(origin.nth, origin.ino);
        if origin.nth > self.base {
            match (self.found(self.base, origin.ino), &own) {
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
        while let Some((here, source)) = self.older(nth, self.limit) {
            nth = here;
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
            Err(error) => self.copier.fail(&to.shown(), &error),
        }
    }

    /// Copies the newest version that can be read as a whole, unless what can be read of a newer one is missing
    /// in it: then that is copied. Returns from which checkpoint it is.
    fn newest_whole(&mut self, found: &Found, to: &Destination) -> anyhow::Result<(Fate, usize)> {
        let loss = self.loss(found);
        let fate = match &loss {
            None => self.fate_in(found),
            Some(loss) => fate_by(loss, found),
        };
        let why = match &loss {
            Some((Loss::Content, why)) => anyhow!("{why}"),
            _ => match self.copy_from(found, to) {
                Ok(()) => return Ok((self.proved(found, fate), found.nth)),
                Err(error) if is_damage(&error) => error,
                Err(error) => return Err(error),
            },
        };
        let mut tried = (found.source.volume, found.file.clone());
        let mut remains = None;
        let mut whole_in = None;
        let mut nth = found.nth + 1;
        while let Some((here, source)) = self.older(nth, self.limit) {
            nth = here;
            let volume = source.volume;
            if let Ok(file) = source.tree.file(found.file.ino())
                && file.is_same_file(&found.file)
                && !(tried.0 == volume && tried.1.has_same_inode(&file))
            {
                tried = (volume, file.clone());
                // Of a file of which something is lost, the times may be those of another version.
                let fate = match loss.is_none() && file.has_same_version(&found.file) {
                    true => fate.clone(),
                    false => Fate::older(&source.tree),
                };
                let older = Found { nth, source, file };
                // What has the same inode has lost the same.
                let is_same = loss.is_some() && older.file.has_same_inode(&found.file);
                let lacks_content =
                    is_same || self.loss(&older).is_some_and(|(loss, _)| loss == Loss::Content);
                if loss.is_none() && !self.has_remains(&older, found, &mut remains)? {
                    if is_readable(older.version()) {
                        whole_in = Some(older.source.tree.cno());
                        break;
                    }
                } else if !lacks_content {
                    match self.copy_from(&older, to) {
                        Ok(()) => return Ok((self.proved(&older, fate), nth)),
                        Err(error) if is_damage(&error) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
            nth += 1;
        }
        if loss.is_some() && self.copy_from(found, to).is_ok() {
            return Ok((fate, found.nth));
        }
        let why = sentence(&why);
        if found.file.file_type() != FileType::Regular {
            return Ok((Fate::Lost { why }, found.nth));
        }
        let remains = match remains {
            Some(remains) => remains,
            None => self.remains(found)?,
        };
        Ok((self.copy_partly((found, remains), to, (why, whole_in))?, found.nth))
    }

    /// Whether an older version of a file has all that can be read of a newer one.
    fn has_remains(
        &mut self,
        older: &Found,
        newer: &Found,
        remains: &mut Option<Remains>,
    ) -> anyhow::Result<bool> {
        if newer.file.file_type() != FileType::Regular {
            return Ok(true);
        }
        let remains = match remains {
            Some(remains) => remains,
            None => remains.insert(self.remains(newer)?),
        };
        Ok(remains.are_in(newer.version(), older.version()))
    }

    fn remains(&mut self, found: &Found) -> Result<Remains, Error> {
        Remains::of(found.version(), self.evidence(&found.source))
    }

    /// Losses of a file that can be read, and why.
    fn loss(&mut self, found: &Found) -> Option<(Loss, String)> {
        self.losses.of_file(found.file.ino(), found.source.tree.cno())
    }

    /// The fate of a file that can be read, by what its checksums say.
    fn proved(&mut self, found: &Found, fate: Fate) -> Fate {
        if !matches!(found.file.file_type(), FileType::Regular | FileType::Symlink) {
            return fate;
        }
        let Some(evidence) = self.evidence(&found.source) else { return fate };
        match evidence.judge(&found.source.tree, &found.file) {
            Ok(Doubts { wrong, .. }) if !wrong.is_empty() => {
                Fate::Damaged { parts: wrong, why: "its checksum is wrong".to_owned() }
            }
            Ok(Doubts { unverified, .. })
                if !unverified.is_empty() && !matches!(fate, Fate::Damaged { .. }) =>
            {
                Fate::Unverified { parts: unverified }
            }
            _ => fate,
        }
    }

    /// Evidence for the content of files in a tree, if there is any.
    fn evidence(&mut self, source: &RescuedTree) -> Option<&mut Evidence> {
        match self.evidence.entry(source.volume) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(new) => {
                let evidence = self.rescue.evidence(Arc::clone(&self.device), source)?;
                Some(new.insert(evidence))
            }
        }
    }

    fn copy_partly(
        &mut self,
        (found, remains): (&Found, Remains),
        to: &Destination,
        (why, whole_in): (String, Option<Cno>),
    ) -> anyhow::Result<Fate> {
        let Remains { survey, wrong } = remains;
        let entry = image::Entry::hold(&found.source.files, found.file.ino())?;
        self.copier.begin(&found.source.files);
        let block_bytes = found.source.tree.block_size().bytes64();
        let mut missing = self.copier.copy_readable(&entry, to, &survey.data, block_bytes)?;
        missing.extend(survey.unknown);
        missing.sort_unstable_by_key(|extent| extent.offset);
        Ok(Fate::Partial { missing, wrong, why, whole_in })
    }

    fn copy_from(&mut self, found: &Found, to: &Destination) -> anyhow::Result<()> {
        self.copier.begin(&found.source.files);
        self.copier.copy(&image::Entry::hold(&found.source.files, found.file.ino())?, to)
    }
}

/// The fate of a file that can be read, but has lost something.
fn fate_by((loss, why): &(Loss, String), found: &Found) -> Fate {
    match loss {
        Loss::Version => Fate::older(&found.source.tree),
        Loss::Names | Loss::Attributes | Loss::Content => {
            Fate::Damaged { parts: Vec::new(), why: why.clone() }
        }
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

/// The files of a checkpoint that a newer one does not have. More than that if the two cannot be
/// compared.
fn not_in(source: &RescuedTree, newer: Option<&RescuedTree>) -> Vec<File> {
    let mut found = Vec::new();
    let compared = newer.filter(|newer| newer.volume == source.volume).is_some_and(|newer| {
        let mut add = |changed: ChangedFile| {
            let is_left = |before: &File| {
                changed.after.as_ref().is_some_and(|after| after.is_same_file(before))
            };
            found.extend(changed.before.filter(|before| !is_left(before)));
            Ok(ControlFlow::Continue(()))
        };
        source.tree.changed_files(&newer.tree, &mut add).is_ok()
    });
    if !compared {
        found.clear();
        // It fails for no damage.
        let _ = source.tree.files_by_number(&mut |ino| found.extend(source.tree.file(ino).ok()));
    }
    found.retain(|file| file.ino() >= Ino::FIRST_USER);
    found
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use nilfs_device::MemoryDevice;
    use nilfs_engine::mkfs::{Parameters, format};
    use nilfs_engine::{DeviceCode, Filesystem, MountOptions, NewInode};
    use nilfs_ondisk::inode::{S_IFDIR, S_IFREG};

    use super::*;
    use crate::commands::cp::{Existing, Wording};

    /// A directory that is empty when a salvage begins need not stay so.
    #[test]
    fn links_that_appear_at_the_destination_are_not_followed() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(32 << 20));
        let mut parameters = Parameters::new([7; 16], 1, 1_700_000_000);
        parameters.blocks_per_segment = 256;
        format(&*device, &parameters).unwrap();
        let fs = Filesystem::mount(Arc::clone(&device), MountOptions::default()).unwrap();
        let new = |mode| NewInode { mode, uid: 0, gid: 0, rdev: DeviceCode::default() };
        let root = fs.root().unwrap().inode;
        for name in [&b"one"[..], b"two"] {
            let directory = fs.create(&root, name, &new(S_IFDIR | 0o755)).unwrap().inode;
            fs.create(&directory, b"file", &new(S_IFREG | 0o644)).unwrap();
        }
        fs.create(&root, b"file", &new(S_IFREG | 0o644)).unwrap();
        drop(root);
        fs.unmount().unwrap();

        for trap in ["one", "one/file", "file", ""] {
            let scene = tempfile::tempdir().unwrap();
            let (to, outside) = (scene.path().join("to"), scene.path().join("outside"));
            fs::create_dir_all(&to).unwrap();
            fs::create_dir_all(outside.join("one")).unwrap();
            fs::write(outside.join("file"), "secret").unwrap();
            let rescue = Rescue::open(Arc::clone(&device), Box::new(|_| {})).unwrap();
            let copier = Copier::new(Wording::SALVAGE, true, Existing::ReplaceFiles);
            let mut salvager = Salvager::new(
                (Arc::clone(&device), rescue),
                Losses::default(),
                copier,
                Destination::typed(&to).unwrap(),
            );
            let (link, target) = match trap {
                "" => (to.clone(), outside.clone()),
                trap => (to.join(trap), outside.join(trap)),
            };
            match trap {
                "" => fs::rename(&to, scene.path().join("moved")).unwrap(),
                _ => fs::create_dir_all(link.parent().unwrap()).unwrap(),
            }
            symlink(target, link).unwrap();
            salvager.checkpoint(0).unwrap();
            let (_, finished) = salvager.finish();
            assert_eq!(finished.is_ok(), trap.is_empty(), "{trap}");
            assert_eq!(fs::read(outside.join("file")).unwrap(), b"secret", "{trap}");
            assert_eq!(fs::read_dir(&outside).unwrap().count(), 2, "{trap}");
            assert_eq!(fs::read_dir(outside.join("one")).unwrap().count(), 0, "{trap}");
            let to = scene.path().join(if trap.is_empty() { "moved" } else { "to" });
            assert!(to.join("two/file").exists(), "the rest goes on");
        }
    }
}

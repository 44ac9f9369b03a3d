//! What has no name, and the names of what is repaired. The engine does it, on the corrected volume.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;

use nilfs_check::{Correction, Report, Rule};
use nilfs_engine::{Error, FileType, Filesystem, InodeRef, NewInode};
use nilfs_ondisk::Ino;

use crate::{Concerned, Loss, Repair, RepairError, Risk};

/// Where files are put that have no name, in the root directory.
const LOST_AND_FOUND: &str = "lost+found";

/// Holes of a directory that are filled. With more of them, its size is nonsense.
const MOST_HOLES: u64 = 4096;

/// What of the present has no name, or no place for one.
#[derive(Debug, Default)]
pub(crate) struct Nameless {
    /// Files that have links, and no name that can be reached.
    unreachable: BTreeSet<Ino>,
    /// Files without links.
    deleted: BTreeSet<Ino>,
    /// Files whose count of links is wrong in the present alone, with the right one.
    links: BTreeMap<Ino, u16>,
    /// Directories of which something is wrong that is not corrected. They may have holes.
    directories: BTreeSet<Ino>,
}

impl Nameless {
    pub(crate) fn of(report: &Report) -> Self {
        let about = |rule: Rule| {
            let present = report
                .findings
                .iter()
                .filter(move |it| it.rule == rule && it.place.checkpoint == Some(report.newest));
            present.filter_map(|it| it.place.ino).filter(|ino| *ino >= Ino::FIRST_USER)
        };
        let links = report
            .errors()
            .filter(|it| it.rule == Rule::LinkCount && it.place.checkpoint == Some(report.newest));
        let links = links.filter_map(|it| match &it.corrections[..] {
            [Correction::Count { bytes, .. }] => {
                Some((it.place.ino?, u16::from_le_bytes(bytes[..].try_into().ok()?)))
            }
            _ => None,
        });
        let directories = report.errors().filter(|it| it.rule == Rule::Directory);
        Self {
            unreachable: about(Rule::Unreachable).collect(),
            deleted: about(Rule::Orphan).collect(),
            links: links.collect(),
            directories: directories.filter_map(|it| it.place.ino).collect(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.unreachable.is_empty()
            && self.deleted.is_empty()
            && self.links.is_empty()
            && self.directories.is_empty()
    }

    /// Puts all that right on a mounted volume.
    pub(crate) fn settle(&self, fs: &Filesystem) -> Result<Vec<Repair>, RepairError> {
        let mut repairs = Vec::new();
        for directory in &self.directories {
            match unless_it_is_of_the_file(fs.fill_directory(*directory, MOST_HOLES))? {
                None | Some(0) => {}
                Some(holes) => repairs.push(repair(
                    *directory,
                    format!("{holes} of its blocks are missing"),
                    "put blocks without names there".to_owned(),
                    Some(Loss::Content),
                )),
            }
        }
        for (ino, links) in &self.links {
            if unless_it_is_of_the_file(fs.set_links(*ino, *links))?.is_none() {
                continue;
            }
            let fault = "its count of links is wrong".to_owned();
            repairs.push(repair(*ino, fault, format!("set it to {links}"), None));
        }
        let below = self.names_below(fs)?;
        for ino in topmost(&below) {
            let directory = lost_and_found(fs)?;
            fs.adopt(ino, &directory.0, format!("#{ino}").as_bytes())?;
            let action = format!("put it into {}, as #{ino}", directory.1);
            let fault = "no name leads to it".to_owned();
            repairs.push(repair(ino, fault, action, Some(Loss::Names)));
        }
        for ino in &self.deleted {
            if unless_it_is_of_the_file(fs.delete_nameless(*ino))? == Some(true) {
                let fault = "it was deleted while a program had it open".to_owned();
                repairs.push(repair(*ino, fault, "free it".to_owned(), None));
            }
        }
        Ok(repairs)
    }

    /// The unreachable files, with what the names in them lead to. A directory of which not even the name of
    /// the one above can be read gets no name: that could not be set.
    fn names_below(&self, fs: &Filesystem) -> Result<BTreeMap<Ino, Vec<Ino>>, RepairError> {
        let mut below = BTreeMap::new();
        for ino in &self.unreachable {
            let Ok(inode) = fs.by_number(*ino) else { continue };
            let (mut names, mut can_move) = (Vec::new(), true);
            if inode.file_type() == FileType::Directory {
                can_move = false;
                unless_it_is_of_the_file(fs.read_dir(&inode, 0, &mut |entry| {
                    can_move |= entry.name == b"..";
                    names.extend((!is_dot(entry.name)).then_some(entry.ino));
                    true
                }))?;
            }
            if can_move {
                below.insert(*ino, names);
            }
        }
        Ok(below)
    }
}

/// The unreachable files to which no other unreachable file leads; of directories that lead to each
/// other, one.
fn topmost(below: &BTreeMap<Ino, Vec<Ino>>) -> Vec<Ino> {
    let named: BTreeSet<_> = below.values().flatten().copied().collect();
    let (tops, rings): (Vec<_>, Vec<_>) =
        below.keys().copied().partition(|ino| !named.contains(ino));
    let mut reached = BTreeSet::new();
    let mut topmost = Vec::new();
    for top in tops.into_iter().chain(rings) {
        if reached.contains(&top) {
            continue;
        }
        topmost.push(top);
        let mut waiting = vec![top];
        while let Some(ino) = waiting.pop() {
            if reached.insert(ino) {
                waiting.extend(below.get(&ino).into_iter().flatten());
            }
        }
    }
    topmost
}

/// Passes a result on; `None` if a file could not be put right because it is damaged, or is not there. The
/// others can be all the same.
fn unless_it_is_of_the_file<T>(result: nilfs_engine::Result<T>) -> nilfs_engine::Result<Option<T>> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(Error::Stale | Error::NotDirectory | Error::Device { .. }) => Ok(None),
        Err(error) if error.is_damage() => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_dot(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

fn repair(ino: Ino, fault: String, action: String, loss: Option<Loss>) -> Repair {
    let risk = loss.map_or(Risk::Safe, |_| Risk::Loses);
    let concerned = Concerned::new([ino], loss.unwrap_or(Loss::Attributes));
    Repair { fault: format!("inode {ino}: {fault}"), action, risk, concerned }
}

/// The directory for files without a name, which is made if it is missing, and its name.
fn lost_and_found(fs: &Filesystem) -> Result<(InodeRef, String), RepairError> {
    let root = fs.root()?.inode;
    let others = (1..u32::MAX).map(|nth| format!("{LOST_AND_FOUND}.{nth}"));
    for name in iter::once(LOST_AND_FOUND.to_owned()).chain(others) {
        match fs.lookup(&root, name.as_bytes()) {
            Ok(found) if found.inode.file_type() != FileType::Directory => {}
            Ok(found) => return Ok((found.inode, name)),
            Err(Error::NotFound) => {
                let mode = FileType::Directory.mode_bits() | 0o700;
                let new = NewInode { mode, uid: 0, gid: 0, rdev: Default::default() };
                return Ok((fs.create(&root, name.as_bytes(), &new)?.inode, name));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(Error::Exists.into())
}

/// The paths of files, as far as they have any that can be found.
pub(crate) fn paths(fs: &Filesystem, wanted: &BTreeSet<Ino>) -> BTreeMap<Ino, String> {
    let mut found = BTreeMap::new();
    let mut visited = BTreeSet::new();
    let mut waiting = vec![(Ino::ROOT, String::new())];
    while let Some((ino, path)) = waiting.pop() {
        if found.len() == wanted.len() {
            break;
        }
        let Ok(directory) = fs.by_number(ino) else { continue };
        let mut visit = |name: &[u8], child: Ino, is_directory: bool| {
            let path = match &path[..] {
                "" => String::from_utf8_lossy(name).into_owned(),
                path => format!("{path}/{}", String::from_utf8_lossy(name)),
            };
            if wanted.contains(&child) {
                found.entry(child).or_insert_with(|| path.clone());
            }
            if is_directory && visited.insert(child) {
                waiting.push((child, path));
            }
        };
        // What cannot be read has no names to tell.
        let _ = fs.read_dir(&directory, 0, &mut |entry| {
            if !is_dot(entry.name) {
                let is_directory = entry.file_type == Some(FileType::Directory);
                visit(entry.name, entry.ino, is_directory);
            }
            true
        });
    }
    found
}

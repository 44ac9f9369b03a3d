//! The names of a checkpoint: where each leads, and whether every inode has as many as it says. What
//! names there are is counted for each inode while the checker goes from one checkpoint to the next,
//! so only those inodes are looked at again that have changed or gained or lost a name.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::mem::offset_of;

use nilfs_ondisk::inode::{FileType, RawInode};
use nilfs_ondisk::{Cno, Ino};

use crate::checker::{Checker, FileAt};
use crate::correction::{Correction, Position, TypeClaim};
use crate::directory::Name;
use crate::files::{Files, Inode};
use crate::report::{Location, Rule, Severity};

/// Where in a directory's record the type of the file is.
const TYPE_IN_RECORD: usize = 11;

/// A directory that has a name, and where the name is, if a block has it.
type HeldBy = (Ino, Option<Position>);

/// What the names say about an inode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tally {
    /// Names that lead to it, without "." and "..".
    pub(crate) names: u32,
    /// Directories in it.
    pub(crate) subdirectories: u32,
    /// The directory with the name that was found last; 0 without names, and where that name has gone
    /// and others are left.
    pub(crate) named_in: Ino,
    claim: Claim,
}

/// The type that names claim an inode to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claim {
    Nothing,
    Type(FileType),
    Different,
}

impl Default for Tally {
    fn default() -> Self {
        Self::NONE
    }
}

impl Tally {
    /// Of what nobody names.
    pub(crate) const NONE: Tally =
        Tally { names: 0, subdirectories: 0, named_in: Ino(0), claim: Claim::Nothing };
}

impl Claim {
    fn contradicts(self, file_type: Option<FileType>) -> bool {
        match self {
            Self::Nothing => false,
            Self::Type(claimed) => file_type.is_some_and(|found| found != claimed),
            Self::Different => true,
        }
    }
}

impl Inode {
    /// Whether a name claims another type than the inode has.
    fn is_contradicted(&self) -> bool {
        self.facts.as_ref().is_some_and(|facts| self.tally.claim.contradicts(facts.file_type))
    }
}

impl Files {
    /// Counts a name. The inode is known as it is in this checkpoint.
    pub(crate) fn add_name(&mut self, directory: Ino, ino: Ino, file_type: Option<FileType>) {
        let inode = self.inode_mut(ino);
        let tally = &mut inode.tally;
        tally.names = tally.names.saturating_add(1);
        tally.named_in = directory;
        tally.claim = match (tally.claim, file_type) {
            (claim, None) => claim,
            (Claim::Nothing, Some(claimed)) => Claim::Type(claimed),
            (claim, Some(claimed)) if claim == Claim::Type(claimed) => claim,
            _ => Claim::Different,
        };
        if inode.is_directory() {
            let above = &mut self.inode_mut(directory).tally;
            above.subdirectories = above.subdirectories.saturating_add(1);
        }
    }

    /// Counts a name no more. The inode is still known as it was when the name was there.
    pub(crate) fn remove_name(&mut self, directory: Ino, ino: Ino) {
        let inode = self.inode_mut(ino);
        inode.tally.names = inode.tally.names.saturating_sub(1);
        if inode.tally.names == 0 {
            let subdirectories = inode.tally.subdirectories;
            inode.tally = Tally { subdirectories, ..Tally::NONE };
        } else if inode.tally.named_in == directory {
            inode.tally.named_in = Ino(0);
        }
        if inode.is_directory() {
            let above = &mut self.inode_mut(directory).tally;
            above.subdirectories = above.subdirectories.saturating_sub(1);
        }
    }

    /// Whether every name of the checkpoint is known.
    pub(crate) fn all_names_are_known(&self) -> bool {
        !self.is_incomplete() && self.torn.is_empty() && self.inode(Ino::ROOT).is_directory()
    }
}

impl Checker<'_, '_> {
    /// Checks the names of these inodes, each of which has changed or gained or lost a name.
    pub(crate) fn check_names(&mut self, files: &mut Files, mut touched: Vec<Ino>) {
        if !files.inode(Ino::ROOT).is_directory() && touched.contains(&Ino::ROOT) {
            let is_there = files.inode(Ino::ROOT).facts.is_some();
            let claim = (FileType::Directory, TypeClaim::Root);
            let root = self.contradicted(files, Ino::ROOT, claim).filter(|_| is_there);
            self.error(Rule::Directory, Location::checkpoint(files.cno).ino(Ino::ROOT), || {
                "the root directory is missing or no directory".into()
            })
            .corrected_by(root);
        }
        touched.append(&mut files.waiting);
        touched.sort_unstable();
        touched.dedup();
        self.find_holders(files, &touched);
        let known = files.all_names_are_known();
        let mut suspects = BTreeSet::new();
        let mut crowded = BTreeSet::new();
        let mut rooted = HashSet::from([Ino::ROOT]);
        for ino in &touched {
            let inode = files.inode(*ino);
            let is_wrong = match &inode.facts {
                Some(facts) => facts.links == 0 || inode.is_contradicted(),
                None => !files.is_incomplete(),
            };
            if inode.tally.names > 0 && (is_wrong || !ino.is_of_user()) {
                suspects.insert(*ino);
            }
            // If it is none, it may have several names.
            let is_certain = !inode.is_contradicted();
            if inode.is_directory() && is_certain {
                match (*ino, inode.tally.names) {
                    (Ino::ROOT, 0) => self.check_parent(files, *ino, Ino::ROOT),
                    (Ino::ROOT, _) | (_, 2..) => drop(crowded.insert(*ino)),
                    (_, 1) => self.check_parent(files, *ino, inode.tally.named_in),
                    (_, 0) => {}
                }
                self.check_path(files, *ino, &mut rooted);
            }
            if known {
                self.check_links(files, *ino);
            }
        }
        if !known {
            // Once all names of a checkpoint are known, these can be judged.
            files.waiting = touched;
        }
        self.names_of(files, &suspects, &mut |checker, directory, name| {
            checker.check_name(files, directory, name);
        });
        let mut names: BTreeMap<Ino, Vec<HeldBy>> = BTreeMap::new();
        self.names_of(files, &crowded, &mut |_, directory, name| {
            names.entry(name.ino).or_default().push((directory, name.at));
        });
        for (ino, names) in names {
            self.check_second_names(files, ino, &names);
        }
    }

    /// Finds out where directories are that have had several names, of which one has gone.
    fn find_holders(&mut self, files: &mut Files, touched: &[Ino]) {
        let is_astray = |ino: &Ino| {
            let inode = files.inode(*ino);
            inode.is_directory() && inode.tally.names > 0 && inode.tally.named_in == Ino(0)
        };
        let astray: BTreeSet<Ino> = touched.iter().copied().filter(is_astray).collect();
        let mut found = Vec::new();
        self.names_of(files, &astray, &mut |_, directory, name| found.push((name.ino, directory)));
        for (ino, directory) in found {
            files.inode_mut(ino).tally.named_in = directory;
        }
    }

    /// A directory has one name, the root directory none. It keeps the one for which its ".." speaks,
    /// or else the first.
    fn check_second_names(&mut self, files: &Files, ino: Ino, names: &[HeldBy]) {
        let facts = files.inode(ino).facts.as_ref();
        let parent = facts.and_then(|facts| facts.directory.as_ref()?.parent);
        let kept = match ino {
            Ino::ROOT => None,
            _ => names.iter().position(|(holder, _)| Some(*holder) == parent).or(Some(0)),
        };
        let holder = kept.map_or(Ino::ROOT, |kept| names[kept].0);
        self.check_parent(files, ino, holder);
        for (_, (directory, at)) in (0..).zip(names).filter(|(nth, _)| Some(*nth) != kept) {
            self.error(
                Rule::DirectoryEntry,
                Location::checkpoint(files.cno).ino(*directory),
                || format!("it has a second name of the directory with inode {ino}"),
            )
            .corrected_by(at.map(|at| Correction::u64(at, 0)));
        }
    }

    /// Compares ".." with the directory that has the name.
    fn check_parent(&mut self, files: &Files, ino: Ino, parent: Ino) {
        let facts = files.inode(ino).facts.as_ref();
        let Some(directory) = facts.and_then(|facts| facts.directory.as_ref()) else {
            return;
        };
        if let Some(found) = directory.parent.filter(|found| *found != parent) {
            let right = directory.parent_at.map(|at| Correction::u64(at, parent.0));
            self.error(Rule::Directory, Location::checkpoint(files.cno).ino(ino), || {
                format!("\"..\" names inode {found}, but the directory is in inode {parent}")
            })
            .corrected_by(right);
        }
    }

    /// Checks that a directory with a name is not below itself. `rooted` are directories of which
    /// it is known.
    fn check_path(&mut self, files: &Files, ino: Ino, rooted: &mut HashSet<Ino>) {
        let mut path = Vec::new();
        let mut on_path = HashSet::new();
        let mut at = ino;
        while !rooted.contains(&at) {
            if !on_path.insert(at) {
                let place = Location::checkpoint(files.cno).ino(ino);
                self.findings.add(self.lost_in(files.cno), Rule::Unreachable, place, || {
                    format!("no path leads to the directory: inode {at} is below itself")
                });
                return;
            }
            path.push(at);
            let tally = files.inode(at).tally;
            // Of a directory without a name, the links tell.
            if tally.names == 0 {
                break;
            }
            at = tally.named_in;
        }
        rooted.extend(path);
    }

    /// How bad it is that names of a file are missing: what a checkpoint of the past has lost is not missing in the
    /// present.
    fn lost_in(&self, cno: Cno) -> Severity {
        if cno == self.newest.cno { Severity::Error } else { Severity::Warning }
    }

    /// Compares the links of an inode with the names that were found.
    fn check_links(&mut self, files: &Files, ino: Ino) {
        let inode = files.inode(ino);
        let (Some(facts), tally) = (&inode.facts, inode.tally) else {
            return;
        };
        let place = Location::checkpoint(files.cno).ino(ino);
        let is_root = ino == Ino::ROOT;
        if inode.is_directory() && tally.names > u32::from(!is_root) {
            self.error(Rule::LinkCount, place, || {
                format!("{} names lead to the directory", tally.names)
            });
        }
        let is_orphan = facts.links == 0 && tally.names == 0;
        if !is_root && (ino < Ino::FIRST_USER || is_orphan) {
            return;
        }
        if !is_root && tally.names == 0 {
            self.findings.add(self.lost_in(files.cno), Rule::Unreachable, place, || {
                format!("no name leads to the inode, which has {} links", facts.links)
            });
            return;
        }
        let is_directory = inode.is_directory();
        let expected = if is_directory { 2 + tally.subdirectories } else { tally.names };
        if u32::from(facts.links) != expected {
            let links_at = self.inode_at(files, ino);
            let right = links_at.zip(u16::try_from(expected).ok()).map(|(at, expected)| {
                Correction::count_u16(at.plus(offset_of!(RawInode, i_links_count)), expected)
            });
            let lacks_names = u32::from(facts.links) > expected;
            let severity = if lacks_names { self.lost_in(files.cno) } else { Severity::Error };
            self.findings
                .add(severity, Rule::LinkCount, place, || {
                    format!("i_links_count is {}, but there are {expected} links", facts.links)
                })
                .corrected_by(right);
        }
    }

    /// Finds the names that lead to these inodes.
    fn names_of(
        &mut self,
        files: &Files,
        wanted: &BTreeSet<Ino>,
        with: &mut dyn FnMut(&mut Self, Ino, &Name<'_>),
    ) {
        if wanted.is_empty() {
            return;
        }
        let tally = |ino: &Ino| files.inode(*ino).tally;
        let near: BTreeSet<Ino> = wanted.iter().map(|ino| tally(ino).named_in).collect();
        let mut left: BTreeMap<Ino, u32> =
            wanted.iter().map(|ino| (*ino, tally(ino).names)).collect();
        let mut search = |checker: &mut Self, directory, left: &mut BTreeMap<Ino, u32>| {
            checker.each_name(files, directory, &mut |checker, name| {
                if let Some(names) = left.get_mut(&name.ino) {
                    *names = names.saturating_sub(1);
                    with(checker, directory, name);
                }
            });
        };
        near.iter().for_each(|directory| search(self, *directory, &mut left));
        if left.values().any(|names| *names > 0) {
            for directory in files.directories().filter(|ino| !near.contains(ino)) {
                search(self, directory, &mut left);
            }
        }
    }

    /// Checks where a name leads.
    fn check_name(&mut self, files: &Files, directory: Ino, entry: &Name<'_>) {
        let place = Location::checkpoint(files.cno).ino(directory);
        let name = || String::from_utf8_lossy(entry.name).into_owned();
        if !entry.ino.is_of_user() {
            // mkfs has made some of these look like files, with a link.
            self.error(Rule::DirectoryEntry, place, || {
                format!("{:?} names inode {}, which is reserved", name(), entry.ino)
            })
            .corrected_by(entry.at.map(|at| Correction::u64(at, 0)));
            return;
        }
        let Some(facts) = &files.inode(entry.ino).facts else {
            let corrections = self.found_or_forgotten(entry, files);
            self.error(Rule::DirectoryEntry, place, || {
                format!("{:?} names inode {}, which is not in use", name(), entry.ino)
            })
            .corrected_by(corrections);
            return;
        };
        if facts.links == 0 {
            self.error(Rule::DirectoryEntry, place, || {
                format!("{:?} names inode {}, which is deleted (0 links)", name(), entry.ino)
            });
        }
        if let (Some(claimed), Some(found)) = (entry.file_type, facts.file_type)
            && claimed != found
        {
            let tally = files.inode(entry.ino).tally;
            let right = entry.at.and_then(|at| {
                let (at, agreed) = (at.plus(TYPE_IN_RECORD), tally.claim == Claim::Type(claimed));
                let claim = TypeClaim::Name { at, names: tally.names, agreed };
                self.contradicted(files, entry.ino, (claimed, claim))
            });
            self.error(Rule::DirectoryEntry, place, || {
                format!(
                    "{:?} claims type {claimed:?}, but inode {} is of type {found:?}",
                    name(),
                    entry.ino
                )
            })
            .corrected_by(right);
        }
    }

    /// Returns the correction that settles the type of an inode of which a claim says otherwise.
    fn contradicted(
        &self,
        files: &Files,
        ino: Ino,
        (claimed, claim): (FileType, TypeClaim),
    ) -> Option<Correction> {
        let (cno, present) = (files.cno, files.cno == self.newest.cno);
        let part = FileAt { ino, cno, present, inode_at: None }.whole();
        let inode = self.inode_at(files, ino)?;
        Some(Correction::FileType { inode, part, claimed, claim })
    }

    /// What makes a name right that leads to a number that is not in use: the number is in use, if
    /// an inode is still there, with links; else the name goes.
    fn found_or_forgotten(&mut self, entry: &Name<'_>, files: &Files) -> Option<Correction> {
        let ino = entry.ino;
        if ino >= Ino::FIRST_USER
            && let Some(inode) = self.raw_inode(files, ino)
            && inode.i_links_count.get() > 0
            && inode.file_type().is_ok_and(|it| entry.file_type.is_none_or(|type_| type_ == it))
        {
            return files.groups.set_allocated(ino.0, true);
        }
        entry.at.map(|at| Correction::u64(at, 0))
    }
}

/// Where names lead that are not, or not only, as the blocks of directories have them.
pub(crate) type ChangedNames = BTreeMap<Ino, BTreeMap<Vec<u8>, Option<(Ino, FileType)>>>;

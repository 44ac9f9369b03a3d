//! Losses that damage may bring, and those that it has brought.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use nilfs_engine::{FileType, Ino};

use super::picture::{Picture, Seen};
use crate::tree::shown;

/// Content that only some blocks have.
#[derive(Debug, Clone, Default)]
pub struct Cost {
    /// Bytes of files.
    pub ranges: BTreeMap<Ino, Vec<Range<u64>>>,
    /// Names of directories.
    pub names: BTreeSet<(Ino, Vec<u8>)>,
    /// Directories of which blocks are among them: older names may come back there.
    pub directories: BTreeSet<Ino>,
    /// Files of which there is nothing without their inodes.
    pub inodes: BTreeSet<Ino>,
    /// Files among them of which nothing proves that they were durable: a power cut could have left the
    /// same.
    pub unproven: BTreeSet<Ino>,
    /// Names among them of which nothing proves that they were durable, or gone.
    pub unproven_names: BTreeSet<(Ino, Vec<u8>)>,
}

/// Something that a picture does not have as it was.
#[derive(Debug, Clone)]
pub struct Loss {
    /// Where.
    pub path: Vec<u8>,
    /// Kind of the loss.
    pub kind: LossKind,
    /// Whether the damage may cost that.
    pub allowed: bool,
    /// Whether looking at it fails, so that a user knows.
    pub fails: bool,
    /// Whether nothing proves that it was durable, so that nothing need be said.
    pub unproven: bool,
}

/// Kind of a loss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LossKind {
    /// The name; the file is there under another one.
    Name,
    /// The file.
    File,
    /// These bytes.
    Range(Range<u64>),
    /// Its type, permissions or times.
    Attributes,
    /// There is a name that was not there.
    Extra,
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path = shown(&self.path);
        match &self.kind {
            LossKind::Name => write!(f, "{path}: the name"),
            LossKind::File => write!(f, "{path}: the file"),
            LossKind::Range(range) => write!(f, "{path}: bytes {range:?}"),
            LossKind::Attributes => write!(f, "{path}: attributes"),
            LossKind::Extra => write!(f, "{path}: was not there"),
        }?;
        let fails = if self.fails { " (an error)" } else { "" };
        f.write_str(fails)
    }
}

impl Cost {
    /// Adds what others have.
    pub fn add(&mut self, other: &Self) {
        for (ino, ranges) in &other.ranges {
            self.ranges.entry(*ino).or_default().extend(ranges.iter().cloned());
        }
        self.names.extend(other.names.iter().cloned());
        self.directories.extend(&other.directories);
        self.inodes.extend(&other.inodes);
        self.unproven.extend(&other.unproven);
        self.unproven_names.extend(other.unproven_names.iter().cloned());
    }

    /// Returns the changes of files between two moments, all of which may be lost with what says so.
    #[must_use]
    pub fn between(before: &Picture, after: &Picture) -> Self {
        let mut cost = Self::default();
        let all: BTreeSet<&Vec<u8>> = before.files.keys().chain(after.files.keys()).collect();
        for path in all {
            let (old, new) = (before.files.get(path), after.files.get(path));
            if old == new {
                continue;
            }
            let (old_ino, new_ino) = (old.map(|it| it.ino), new.map(|it| it.ino));
            if old_ino != new_ino {
                let (parent, name) = split(path);
                for picture in [before, after] {
                    if let Some(parent) = picture.files.get(parent) {
                        cost.names.insert((parent.ino, name.to_vec()));
                        cost.directories.insert(parent.ino);
                    }
                }
            }
            // With the times and the size of a file, all that tells of its content is lost.
            cost.inodes.extend(new_ino);
        }
        cost
    }

    /// Whether these bytes of a file are among it.
    #[must_use]
    pub fn has_range(&self, ino: Ino, lost: &Range<u64>) -> bool {
        let mut left = lost.clone();
        let mut ranges = self.ranges.get(&ino).cloned().unwrap_or_default();
        ranges.sort_unstable_by_key(|range| range.start);
        for range in ranges {
            if range.start <= left.start && left.start < range.end {
                left.start = range.end.min(left.end);
            }
        }
        left.is_empty()
    }

    /// Whether nothing may be lost.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.ranges.is_empty() && self.names.is_empty() && self.inodes.is_empty()
    }

    /// Returns what `found` does not have of what was there. A volume that was repaired, or salvaged, must have
    /// files that have lost their names; one that is only looked at need not show them.
    #[must_use]
    pub fn losses(&self, was: &Picture, found: &Picture, is_repaired: bool) -> Vec<Loss> {
        let by_number = found.by_number();
        let mut losses = Vec::new();
        let mut told = BTreeSet::new();
        // Directories that may be out of reach.
        let mut hidden = BTreeSet::new();
        for (path, file) in &was.files {
            let (parent, name) = split(path);
            let parent_ino = was.files.get(parent).map(|it| it.ino);
            let below_hidden = hidden.contains(parent);
            let may_lose_inode = self.inodes.contains(&file.ino);
            let may_lose_name = may_lose_inode
                || below_hidden
                || parent_ino.is_some_and(|ino| self.names.contains(&(ino, name.to_vec())));
            if may_lose_name && file.kind == FileType::Directory {
                hidden.insert(path.clone());
            }
            let fails = found.broken.contains_key(path) || is_unlisted(found, path);
            let unproven = self.unproven.contains(&file.ino);
            let mut add = |kind, allowed, fails| {
                losses.push(Loss { path: path.clone(), kind, allowed, fails, unproven });
            };
            let here = found.files.get(path).filter(|it| it.ino == file.ino);
            let seen = match (here, by_number.get(&file.ino)) {
                (Some(seen), _) => seen,
                (None, Some(other)) => {
                    add(LossKind::Name, may_lose_name, fails);
                    &found.files[*other]
                }
                (None, None) => {
                    let allowed = may_lose_inode || may_lose_name && !is_repaired;
                    add(LossKind::File, allowed, fails);
                    continue;
                }
            };
            if !told.insert(file.ino) {
                continue;
            }
            for (range, fails) in differing(file, seen) {
                let allowed = may_lose_inode || self.has_range(file.ino, &range);
                add(LossKind::Range(range), allowed, fails);
            }
            let differs = (file.kind, file.mode) != (seen.kind, seen.mode)
                || file.mtime != seen.mtime
                    && !may_lose_inode
                    && !self.ranges.contains_key(&file.ino);
            if differs {
                add(LossKind::Attributes, may_lose_inode, false);
            }
        }
        for (path, seen) in &found.files {
            let is_known = was.files.get(path).is_some_and(|it| it.ino == seen.ino);
            if is_known || path.starts_with(LOST_AND_FOUND) {
                continue;
            }
            let (parent, name) = split(path);
            let parent = found.files.get(parent).map(|it| it.ino);
            let is_among = |inodes: &BTreeSet<Ino>| parent.is_some_and(|it| inodes.contains(&it));
            let allowed = is_among(&self.directories) || is_among(&self.inodes);
            // The name that a file had before, or that is gone.
            let unproven =
                parent.is_some_and(|it| self.unproven_names.contains(&(it, name.to_vec())));
            let kind = LossKind::Extra;
            losses.push(Loss { path: path.clone(), kind, allowed, fails: false, unproven });
        }
        losses
    }
}

/// Where a repair and a salvage put files without names.
const LOST_AND_FOUND: &[u8] = b"lost+found";

/// Whether a path leads through a directory that cannot be listed, or a name that leads to nothing.
fn is_unlisted(found: &Picture, path: &[u8]) -> bool {
    let mut above = path;
    while !above.is_empty() {
        above = split(above).0;
        if found.unlisted.contains(above) || found.broken.contains_key(above) {
            return true;
        }
    }
    false
}

/// The directory of a path, and the name there.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&[], path),
    }
}

/// The bytes of a file that are not as they were, in pieces of the smallest block, and whether reading them fails.
fn differing(was: &Seen, found: &Seen) -> Vec<(Range<u64>, bool)> {
    const PIECE: usize = 1024;
    let mut ranges: Vec<(Range<u64>, bool)> = Vec::new();
    let end = was.bytes.len().max(found.bytes.len());
    for at in (0..end).step_by(PIECE) {
        let piece = |bytes: &'_ [u8]| -> Option<Vec<u8>> {
            let end = (at + PIECE).min(bytes.len());
            bytes.get(at..end).map(<[u8]>::to_vec)
        };
        let range = at as u64..(at + PIECE).min(end) as u64;
        let fails = found.unreadable.iter().any(|it| it.start < range.end && range.start < it.end);
        if !fails && piece(&was.bytes) == piece(&found.bytes) {
            continue;
        }
        match ranges.last_mut().filter(|(last, failed)| last.end == range.start && *failed == fails)
        {
            Some((last, _)) => last.end = range.end,
            None => ranges.push((range, fails)),
        }
    }
    ranges
}

/// Bytes of files that are lost.
#[must_use]
pub fn bytes_of(losses: &[Loss], was: &Picture) -> u64 {
    // A file with two names is lost once.
    let mut told = BTreeSet::new();
    let mut of = |loss: &Loss| match (&loss.kind, was.files.get(&loss.path)) {
        (LossKind::Range(range), Some(file)) => {
            let end = range.end.min(file.bytes.len() as u64);
            end.saturating_sub(range.start)
        }
        (LossKind::File, Some(file)) if told.insert(file.ino) => file.bytes.len() as u64,
        _ => 0,
    };
    losses.iter().map(&mut of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino(12);

    fn picture(files: &[(&str, Ino, FileType, &[u8])]) -> Picture {
        let seen = |ino: &Ino, kind: &FileType, bytes: &[u8]| Seen {
            ino: *ino,
            kind: *kind,
            mode: 0o644,
            mtime: None,
            bytes: bytes.to_vec(),
            unreadable: Vec::new(),
        };
        let files = files.iter();
        let files = files
            .map(|(path, ino, kind, bytes)| (path.as_bytes().to_vec(), seen(ino, kind, bytes)));
        Picture { files: files.collect(), ..Picture::default() }
    }

    fn with(content: &[u8]) -> Picture {
        let root = ("", Ino::ROOT, FileType::Directory, &[][..]);
        picture(&[root, ("file", FILE, FileType::Regular, content)])
    }

    fn without(name: &str) -> Picture {
        let root = ("", Ino::ROOT, FileType::Directory, &[][..]);
        match name {
            "" => picture(&[root]),
            name => picture(&[root, (name, FILE, FileType::Regular, &[1; 4096])]),
        }
    }

    #[test]
    fn bytes_may_be_lost_where_they_were_damaged_and_nowhere_else() {
        let was = with(&[1; 4096]);
        let mut found = [1; 4096];
        (found[1500], found[3500]) = (0, 0);
        let mut cost = Cost::default();
        cost.ranges.entry(FILE).or_default().push(1024..2048);
        let losses = cost.losses(&was, &with(&found), true);
        let told: Vec<_> = losses.iter().map(|it| (it.kind.clone(), it.allowed)).collect();
        assert_eq!(
            told,
            [(LossKind::Range(1024..2048), true), (LossKind::Range(3072..4096), false)]
        );
        assert_eq!(bytes_of(&losses, &was), 2048);
        assert!(cost.losses(&was, &was, true).is_empty());
        // What a file has become longer by was never there.
        assert_eq!(bytes_of(&cost.losses(&was, &with(&[1; 8192]), true), &was), 0);
    }

    #[test]
    fn a_name_that_was_damaged_may_be_lost_and_its_file_only_where_nothing_was_repaired() {
        let was = with(&[1; 4096]);
        let mut cost = Cost::default();
        cost.names.insert((Ino::ROOT, b"file".to_vec()));
        let allowed = |cost: &Cost, found: &Picture, is_repaired| {
            let losses = cost.losses(&was, found, is_repaired);
            let told: Vec<_> = losses.iter().map(|it| (it.kind.clone(), it.allowed)).collect();
            told
        };
        let found = without("lost+found/#12");
        assert_eq!(allowed(&cost, &found, true), [(LossKind::Name, true)]);
        assert_eq!(allowed(&Cost::default(), &found, true), [(LossKind::Name, false)]);
        assert_eq!(allowed(&cost, &without(""), true), [(LossKind::File, false)]);
        assert_eq!(allowed(&cost, &without(""), false), [(LossKind::File, true)]);
        let extra = without("old name");
        assert!(allowed(&cost, &extra, true).contains(&(LossKind::Extra, false)));
    }

    #[test]
    fn a_name_that_the_last_sync_took_away_may_come_back_without_a_word() {
        let (was, found) = (without("new name"), without("old name"));
        let mut cost = Cost::between(&without("old name"), &was);
        let extra = |cost: &Cost| {
            let losses = cost.losses(&was, &found, false);
            let extra = losses.iter().find(|it| it.kind == LossKind::Extra).unwrap();
            (extra.allowed, extra.unproven)
        };
        assert_eq!(extra(&cost), (true, false));
        cost.unproven_names = cost.names.clone();
        assert_eq!(extra(&cost), (true, true));
        cost.unproven_names = BTreeSet::from([(Ino::ROOT, b"another".to_vec())]);
        assert_eq!(extra(&cost), (true, false));
    }
}

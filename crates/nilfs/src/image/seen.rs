//! The past as a user may see it to whom the process that serves a mount tells nothing: found by going
//! through the door, so the kernel checks each step with the permissions of then and now.
//!
//! It costs a look at every file, because only the process knows what two checkpoints have in common.
//! And it knows less: not how much of a file was written again, and neither that a file which has
//! another name and another content is the one that it was.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use nilfs_engine::tree::Cause;
use nilfs_engine::{Attr, CheckpointInfo, Cno, Error, FileType, Files};

use super::Door;
use super::walk::Entry;
use crate::past::{Change, FileAt, Version};

/// What two checkpoints differ in.
pub struct SeenChanges {
    /// As [`crate::past::changes`] returns it.
    pub changes: Vec<Change>,
    /// Directories that the user may not look into, which are left out.
    pub hidden: Vec<Vec<u8>>,
}

/// A directory that at least one of two checkpoints has.
struct Pair {
    path: Vec<u8>,
    before: Option<Entry>,
    after: Option<Entry>,
}

/// A file under a name.
type At = (Vec<u8>, Attr);

/// Compares two checkpoints.
///
/// # Errors
/// Something cannot be read that may be.
pub fn changes(before: Door, after: Door) -> anyhow::Result<SeenChanges> {
    let (before, after): (Arc<dyn Files>, Arc<dyn Files>) = (Arc::new(before), Arc::new(after));
    let (before, after) = (Entry::root(&before)?, Entry::root(&after)?);
    let mut found = Differences::default();
    found.compare(Vec::new(), Some(&before.attr), Some(&after.attr));
    let mut left = vec![Pair { path: Vec::new(), before: Some(before), after: Some(after) }];
    while let Some(pair) = left.pop() {
        found.enter(&pair, &mut left)?;
    }
    let Differences { mut changes, gone, new, hidden } = found;
    changes.extend(moved(gone, new));
    changes.sort_by(|a, b| newest_path(a).cmp(newest_path(b)));
    Ok(SeenChanges { changes, hidden })
}

/// What was found so far.
#[derive(Default)]
struct Differences {
    /// Files that have changed in their place.
    changes: Vec<Change>,
    gone: Vec<At>,
    new: Vec<At>,
    hidden: Vec<Vec<u8>>,
}

impl Differences {
    /// Compares what is in a directory, and leaves the directories in it to be compared.
    fn enter(&mut self, pair: &Pair, left: &mut Vec<Pair>) -> anyhow::Result<()> {
        let mut names: BTreeMap<Vec<u8>, (bool, bool)> = BTreeMap::new();
        for (is_after, entry) in [(false, &pair.before), (true, &pair.after)] {
            let Some(entry) = entry else { continue };
            let found = match entry.names() {
                Err(error) if is_forbidden(&error) => {
                    self.hidden.push(pair.path.clone());
                    return Ok(());
                }
                found => found?,
            };
            for name in found {
                let there = names.entry(name).or_default();
                if is_after { there.1 = true } else { there.0 = true }
            }
        }
        for (name, (in_before, in_after)) in names {
            let look = |entry: &Option<Entry>, is_there: bool| {
                let entry = entry.as_ref().filter(|_| is_there);
                entry.map(|entry| entry.lookup(&name)).transpose()
            };
            let found = look(&pair.before, in_before)
                .and_then(|before| Ok((before, look(&pair.after, in_after)?)));
            let (before, after) = match found {
                // A directory can be listed, but not entered.
                Err(error) if is_forbidden(&error) => {
                    self.hidden.push(pair.path.clone());
                    return Ok(());
                }
                found => found?,
            };
            let path = match pair.path.is_empty() {
                true => name,
                false => [&pair.path[..], &name].join(&b'/'),
            };
            let attr = |entry: &Option<Entry>| entry.as_ref().map(|entry| entry.attr);
            self.compare(path.clone(), attr(&before).as_ref(), attr(&after).as_ref());
            let directory = |entry: Option<Entry>| {
                entry.filter(|entry| entry.attr.file_type == FileType::Directory)
            };
            let (before, after) = (directory(before), directory(after));
            if before.is_some() || after.is_some() {
                left.push(Pair { path, before, after });
            }
        }
        Ok(())
    }

    /// Notes how a name has changed.
    fn compare(&mut self, path: Vec<u8>, before: Option<&Attr>, after: Option<&Attr>) {
        match (before, after) {
            (Some(before), Some(after)) if before.file_type == after.file_type => {
                if is_modified(before, after) {
                    let content_is_known = is_same_content(before, after);
                    self.changes.push(Change {
                        before: Some(FileAt::new(path.clone(), before)),
                        after: Some(FileAt::new(path, after)),
                        changed_bytes: content_is_known.then_some(0),
                    });
                }
            }
            (before, after) => {
                self.gone.extend(before.map(|attr| (path.clone(), *attr)));
                self.new.extend(after.map(|attr| (path.clone(), *attr)));
            }
        }
    }
}

/// What has another name in the second checkpoint, or is in one of the two alone. A file has another
/// name if its content has not changed, because only then it is sure that it is the same one. What is
/// in a directory that has another name is not told.
fn moved(gone: Vec<At>, new: Vec<At>) -> Vec<Change> {
    let mut by_file: HashMap<_, Vec<At>> = HashMap::new();
    // The first name is the last of these.
    for at in gone.into_iter().rev() {
        by_file.entry(identity(&at.1)).or_default().push(at);
    }
    let (mut renamed, mut changes) = (Vec::new(), Vec::new());
    for (path, attr) in new {
        match by_file.get_mut(&identity(&attr)).and_then(Vec::pop) {
            Some(old) => renamed.push((old, (path, attr))),
            None => changes.push(Change {
                before: None,
                changed_bytes: Some(whole(&attr)),
                after: Some(FileAt::new(path, &attr)),
            }),
        }
    }
    changes.extend(by_file.into_values().flatten().map(|(path, attr)| Change {
        changed_bytes: Some(whole(&attr)),
        before: Some(FileAt::new(path, &attr)),
        after: None,
    }));
    let directories: HashMap<Vec<u8>, Vec<u8>> =
        renamed.iter().map(|((old, _), (new, _))| (old.clone(), new.clone())).collect();
    let goes_along = |old: &[u8], new: &[u8]| {
        let (old_dir, old_name) = split(old);
        let (new_dir, new_name) = split(new);
        old_name == new_name && directories.get(old_dir).is_some_and(|dir| dir == new_dir)
    };
    for ((old, before), (new, after)) in renamed {
        if !goes_along(&old, &new) || is_modified(&before, &after) {
            changes.push(Change {
                before: Some(FileAt::new(old, &before)),
                after: Some(FileAt::new(new, &after)),
                changed_bytes: Some(0),
            });
        }
    }
    changes
}

/// What is the same in two checkpoints if a file is.
fn identity(attr: &Attr) -> impl Eq + std::hash::Hash + use<> {
    let mtime = (attr.mtime.seconds, attr.mtime.nanoseconds);
    (attr.ino, attr.file_type.mode_bits(), attr.size, mtime)
}

/// Whether a user would call the file itself changed, and not only its names.
fn is_modified(before: &Attr, after: &Attr) -> bool {
    let attributes = |attr: &Attr| (attr.mode, attr.uid, attr.gid);
    let is_directory = after.file_type == FileType::Directory;
    attributes(before) != attributes(after) || !is_directory && !is_same_content(before, after)
}

fn is_same_content(before: &Attr, after: &Attr) -> bool {
    let content = |attr: &Attr| (attr.ino, attr.size, attr.mtime);
    content(before) == content(after)
}

/// The bytes of a file that is not compared with another one.
fn whole(attr: &Attr) -> u64 {
    if attr.file_type == FileType::Regular { attr.size } else { 0 }
}

/// The directory of a path, and the name in it.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[], path),
    }
}

fn newest_path(change: &Change) -> &[u8] {
    let newest = change.after.as_ref().or(change.before.as_ref());
    newest.map_or(&[], |file| file.path.as_bytes())
}

fn is_forbidden(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::Device { source, .. })
        if source.kind() == ErrorKind::PermissionDenied)
}

/// Checkpoints that follow each other, in which a path leads to the same.
struct Run {
    file: Option<Attr>,
    first: CheckpointInfo,
    last: Cno,
}

/// The versions of what a path leads to, the newest first, at most `limit`; `checkpoints` are those
/// that are looked at, the newest first, and `look` says what the path leads to. Other names of a file
/// are not looked for.
///
/// # Errors
/// Those of `look`.
pub fn versions(
    path: &OsStr,
    checkpoints: impl Iterator<Item = CheckpointInfo>,
    limit: usize,
    look: impl Fn(Cno, &Path) -> anyhow::Result<Option<Attr>>,
) -> anyhow::Result<Vec<Version>> {
    let mut runs: Vec<Run> = Vec::new();
    for checkpoint in checkpoints {
        let file = match look(checkpoint.cno, Path::new(path)) {
            // The cleaner has just given it up.
            Err(error) if matches!(error.downcast_ref(), Some(Error::NoCheckpoint(_))) => continue,
            file => file?,
        };
        // Why a version came about is known from the two before.
        let is_enough = runs.len() > limit.saturating_add(1);
        match runs.last_mut().filter(|run| is_same(run.file.as_ref(), file.as_ref())) {
            Some(run) => run.first = checkpoint,
            None if is_enough => break,
            None => runs.push(Run { file, first: checkpoint, last: checkpoint.cno }),
        }
    }
    let shown_path = path.as_bytes().strip_prefix(b"/").unwrap_or(path.as_bytes());
    let mut versions = Vec::new();
    for (nth, run) in runs.iter().enumerate().take_while(|(nth, _)| *nth < limit) {
        let before = runs.get(nth + 1);
        let shown = run.file.or(before.and_then(|run| run.file));
        let Some(shown) = shown else { continue };
        let cause = match (&run.file, before.map(|run| &run.file)) {
            (None, _) => Cause::Deleted,
            (Some(_), None) => Cause::Unknown,
            (Some(_), Some(None)) if nth + 2 < runs.len() => Cause::Recreated,
            (Some(_), Some(None)) => Cause::Created,
            (Some(new), Some(Some(old))) => cause_after(new, old),
        };
        versions.push(Version {
            cause,
            first: run.first,
            last: run.last,
            file: FileAt::new(shown_path.to_vec(), &shown),
            changed_bytes: (cause == Cause::Metadata).then_some(0),
        });
    }
    Ok(versions)
}

fn is_same(one: Option<&Attr>, other: Option<&Attr>) -> bool {
    // The generation is not known.
    let of = |attr: &Attr| Attr { blocks: 0, ..*attr };
    one.map(of) == other.map(of)
}

fn cause_after(new: &Attr, old: &Attr) -> Cause {
    let identity = |attr: &Attr| (attr.ino, attr.file_type);
    match (identity(new) == identity(old), is_same_content(old, new)) {
        (false, _) => Cause::Replaced,
        (true, false) => Cause::Content,
        (true, true) => Cause::Metadata,
    }
}

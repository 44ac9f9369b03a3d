//! When names changed in a directory, or anywhere below it: only there can something have been deleted.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use nilfs_ondisk::Cno;
use nilfs_ondisk::inode::FileType;

use super::history::{Cause, Version, tree_of, versions_of_all_at, versions_of_file};
use super::parents::changed_names;
use super::{File, Tree};
use crate::error::Result;
use crate::tree::Checkpoints;

/// The checkpoints in which a directory, or one that was ever below it, is not what it was in the
/// checkpoint before: those beyond `from`, and some others. `None` if it takes more than `most` versions
/// of directories to find that out.
///
/// # Errors
/// As [`versions`](super::versions).
pub fn changes_of_directories(
    past: &dyn Checkpoints,
    path: &[u8],
    from: Cno,
    most: usize,
) -> Result<Option<BTreeSet<Cno>>> {
    let mut search = Search {
        past,
        from,
        changes: BTreeSet::new(),
        seen: BTreeSet::new(),
        most,
        left: Vec::new(),
    };
    search.follow(&mut |visit| versions_of_all_at(past, path, visit))?;
    while let Some((path, at)) = search.left.pop() {
        search.follow(&mut |visit| versions_of_file(past, &path, at, visit))?;
    }
    Ok((search.seen.len() <= most).then_some(search.changes))
}

struct Search<'a> {
    past: &'a dyn Checkpoints,
    from: Cno,
    changes: BTreeSet<Cno>,
    /// Versions that were looked at, by path and first checkpoint.
    seen: BTreeSet<(Vec<u8>, Cno)>,
    most: usize,
    /// Directories that are to be followed into the past, by their paths in a checkpoint.
    left: Vec<(Vec<u8>, Cno)>,
}

/// Calls what it is given with versions, the newest first.
type Versions<'a> = &'a mut dyn FnMut(&mut dyn FnMut(Version) -> ControlFlow<()>) -> Result<()>;

impl Search<'_> {
    fn follow(&mut self, versions: Versions<'_>) -> Result<()> {
        let (mut newer, mut result) = (None, Ok(()));
        versions(&mut |version| {
            self.changes.insert(version.first.cno);
            if version.cause == Cause::Deleted {
                newer = None;
                return ControlFlow::Continue(());
            }
            let is_new = self.seen.insert((version.path.clone(), version.first.cno));
            if !is_new || self.seen.len() > self.most {
                return ControlFlow::Break(());
            }
            result = self.look_below(&version, &mut newer);
            let goes_on = result.is_ok() && version.first.cno > self.from;
            if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        result
    }

    /// Notes the directories in one version of a directory that are not in the `newer` one, which was
    /// looked at before.
    fn look_below(&mut self, version: &Version, newer: &mut Option<(Tree, File)>) -> Result<()> {
        if version.attr.file_type != FileType::Directory {
            *newer = None;
            return Ok(());
        }
        let Some(tree) = tree_of(self.past, version)? else { return Ok(()) };
        let dir = tree.file(version.attr.ino)?;
        let after = newer.take().filter(|(_, newer)| newer.is_same_file(&dir));
        let after = after.as_ref().map_or((&tree, None), |(tree, newer)| (tree, Some(newer)));
        for (name, ino) in changed_names((&tree, Some(&dir)), after)?.before {
            if tree.file(ino)?.file_type() == FileType::Directory {
                let path = [&version.path[..], &name[..]].join(&b'/');
                self.left.push((path, tree.cno()));
            }
        }
        *newer = Some((tree, dir));
        Ok(())
    }
}

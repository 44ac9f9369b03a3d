//! What is told of a volume's past: what two checkpoints differ in, and the versions of a file. In a
//! form that can be sent by the process that serves a mount, and printed by the one that has asked.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use nilfs_engine::tree::{self, Cause, Parents};
use nilfs_engine::{Attr, CheckpointInfo, Checkpoints, Cno, Error, FileType, Result, Tree};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// The number of files of which it is remembered which directories they are in, at 20 to 40 bytes each.
const REMEMBERED_FILES: usize = 1 << 20;

/// A name that is not in both of two checkpoints, or whose file has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// In the older checkpoint.
    pub before: Option<FileAt>,
    /// In the newer one.
    pub after: Option<FileAt>,
    /// Bytes that the two do not share; `None` if only the process that serves the mount knows, and
    /// does not tell.
    pub changed_bytes: Option<u64>,
}

/// A file as a checkpoint has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileAt {
    /// Its path from the root of the volume.
    pub path: Name,
    /// Its type and permissions, as in `st_mode`.
    pub mode: u16,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// When the content was changed, in seconds since 1970.
    pub modified: i64,
}

/// A version of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// What made it another one than the one before.
    pub cause: Cause,
    /// The oldest checkpoint that has it.
    pub first: CheckpointInfo,
    /// The newest checkpoint that has it.
    pub last: Cno,
    /// The file; if it is gone, as it was before.
    pub file: FileAt,
    /// Bytes that it does not share with the version before; `None` as in [`Change`].
    pub changed_bytes: Option<u64>,
}

/// A path or name, which need not be text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Name {
    /// It is.
    Text(String),
    /// It is not.
    Bytes(Vec<u8>),
}

impl From<Vec<u8>> for Name {
    fn from(bytes: Vec<u8>) -> Self {
        String::from_utf8(bytes).map_or_else(|error| Self::Bytes(error.into_bytes()), Self::Text)
    }
}

impl Name {
    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }

    /// As text for JSON.
    pub fn to_text(&self) -> String {
        String::from_utf8_lossy(self.as_bytes()).into_owned()
    }
}

impl FileAt {
    /// A file under a path from the root of the volume.
    pub fn new(path: Vec<u8>, attr: &Attr) -> Self {
        Self {
            path: path.into(),
            mode: attr.file_type.mode_bits() | attr.mode,
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            modified: attr.mtime.seconds,
        }
    }

    /// Its type.
    pub fn file_type(&self) -> Option<FileType> {
        FileType::from_mode(self.mode)
    }
}

impl From<tree::Change> for Change {
    fn from(change: tree::Change) -> Self {
        let file = |file: tree::FileAt| FileAt::new(file.path, &file.attr);
        Self {
            before: change.before.map(file),
            after: change.after.map(file),
            changed_bytes: Some(change.changed_bytes),
        }
    }
}

/// Which directories the files of a volume are in, as far as somebody has had to find out.
#[derive(Default)]
pub struct KnownParents(Mutex<Option<Arc<Parents>>>);

impl KnownParents {
    /// Those of a tree: from the ones that are known, if their checkpoint is still there.
    fn of(&self, past: &dyn Checkpoints, tree: &Tree) -> Result<Arc<Parents>> {
        let mut known = self.0.lock();
        let old = known.take();
        let base = old.as_ref().and_then(|old| {
            let (cno, created) = old.checkpoint();
            past.tree(Some(cno)).ok().filter(|tree| tree.created() == created)
        });
        let parents = match (old, base) {
            (Some(mut old), Some(base)) => {
                if base.cno() != tree.cno() {
                    Arc::make_mut(&mut old).carry(&base, tree)?;
                }
                old
            }
            _ => Arc::new(Parents::of(tree)?),
        };
        if parents.files() <= REMEMBERED_FILES {
            *known = Some(Arc::clone(&parents));
        }
        Ok(parents)
    }
}

/// Compares two checkpoints of a volume.
pub fn changes(
    past: &dyn Checkpoints,
    known: &KnownParents,
    before: Cno,
    after: Cno,
) -> Result<Vec<Change>> {
    let (before, after) = (past.tree(Some(before))?, past.tree(Some(after))?);
    let changes = before.changes(&after, || known.of(past, &after))?;
    Ok(changes.into_iter().map(Change::from).collect())
}

/// Versions of directories that are looked at for one answer, at most.
const MOST_VERSIONS: usize = 8192;

/// The checkpoints beyond `from` in which a directory, or one that was ever below it, is not what it was
/// in the one before, and some others. `None` if it takes more than `most` versions of directories to
/// find that out; no checkpoint if none has the path.
pub fn changes_of_directories(
    past: &dyn Checkpoints,
    path: &Name,
    from: Cno,
    most: usize,
) -> Result<Option<BTreeSet<Cno>>> {
    let most = most.min(MOST_VERSIONS);
    match tree::changes_of_directories(past, path.as_bytes(), from, most) {
        Err(Error::NotFound) => Ok(Some(BTreeSet::new())),
        found => found,
    }
}

/// The versions of a file, the newest first, from a checkpoint on; at most `limit`. None, if no
/// checkpoint has the path.
pub fn versions(
    past: &dyn Checkpoints,
    path: &Name,
    at: Option<Cno>,
    limit: usize,
) -> Result<Vec<Version>> {
    let mut found = Vec::new();
    if limit == 0 {
        return Ok(found);
    }
    let result = tree::versions(past, path.as_bytes(), at, &mut |version| {
        found.push(Version {
            cause: version.cause,
            first: version.first,
            last: version.last,
            file: FileAt::new(version.path, &version.attr),
            changed_bytes: Some(version.changed_bytes),
        });
        if found.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    match result {
        Err(Error::NotFound) => Ok(Vec::new()),
        result => result.map(|()| found),
    }
}

/// The same, put together of pages of at most `page` versions, which is more than 1. `ask` returns what
/// [`versions`] returns.
pub fn in_pages<E>(
    page: usize,
    path: &Name,
    at: Option<Cno>,
    limit: usize,
    mut ask: impl FnMut(&Name, Option<Cno>, usize) -> std::result::Result<Vec<Version>, E>,
) -> std::result::Result<Vec<Version>, E> {
    let (mut path, mut at, mut all) = (path.clone(), at, Vec::new());
    loop {
        let asked = page.min(limit - all.len());
        let mut some = ask(&path, at, asked)?;
        let is_all = some.len() < asked || all.len() + some.len() >= limit;
        // What comes before the last one is known only where that is looked for again: it may have had
        // another name.
        let last = if is_all { None } else { some.pop() };
        all.append(&mut some);
        let Some(last) = last else { return Ok(all) };
        (path, at) = (last.file.path, Some(last.last));
    }
}

#[cfg(test)]
mod tests {
    use nilfs_device::{Device, MemoryDevice};
    use nilfs_engine::mkfs::{Parameters, format};
    use nilfs_engine::{DeviceCode, Filesystem, MountOptions, NewInode, RenameMode};
    use nilfs_ondisk::inode::S_IFREG;

    use super::*;

    /// A volume with a file that has been everything: written, renamed, replaced, deleted, made anew.
    fn volume_with_versions() -> Arc<Filesystem> {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(32 << 20));
        let mut parameters = Parameters::new([7; 16], 1, 1_700_000_000);
        parameters.blocks_per_segment = 256;
        format(&*device, &parameters).unwrap();
        let fs = Filesystem::mount(device, MountOptions::default()).unwrap();
        let root = fs.root().unwrap().inode;
        let new = NewInode { mode: S_IFREG | 0o644, uid: 0, gid: 0, rdev: DeviceCode::default() };
        let rename = |from: &[u8], to: &[u8]| {
            fs.rename(&root, from, &root, to, RenameMode::Replace).unwrap();
        };
        for round in 0..4 {
            let file = fs.create(&root, b"file", &new).unwrap().inode;
            for size in 1..=round + 2 {
                fs.write(&file, 0, &[size; 9][..usize::from(size)]).unwrap();
                fs.checkpoint_now().unwrap();
            }
            rename(b"file", b"other");
            fs.checkpoint_now().unwrap();
            if round % 2 == 0 {
                fs.create(&root, b"new", &new).unwrap();
                fs.checkpoint_now().unwrap();
                rename(b"new", b"other");
            } else {
                fs.unlink(&root, b"other").unwrap();
            }
            fs.checkpoint_now().unwrap();
        }
        drop(root);
        fs
    }

    #[test]
    fn pages_of_versions_make_up_the_whole() {
        let fs = volume_with_versions();
        for name in ["file", "other", "new"] {
            let path = Name::from(name.as_bytes().to_vec());
            let whole = versions(&*fs, &path, None, usize::MAX).unwrap();
            for (page, limit) in (2..6).flat_map(|page| [2, 3, 5, usize::MAX].map(|it| (page, it)))
            {
                let put_together = in_pages(page, &path, None, limit, |path, at, limit| {
                    assert!(limit <= page);
                    versions(&*fs, path, at, limit)
                });
                let expected = &whole[..whole.len().min(limit)];
                assert_eq!(put_together.unwrap(), expected, "{name} by {page}, at most {limit}");
            }
            if name != "new" {
                assert!(whole.len() > 5, "{name}: {whole:?}");
            }
        }
    }
}

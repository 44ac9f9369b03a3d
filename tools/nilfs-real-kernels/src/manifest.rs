//! A manifest: what a directory tree looks like, one line per entry, so that "the same tree in
//! Linux's nilfs2 and in ours" is a comparison of two texts.
//!
//! Left out is what two right file systems may do differently: sizes of directories, allocated
//! blocks and the layout of holes, inode numbers (hard links are named by their first path
//! instead), access and change times.

pub(crate) mod content;
mod escape;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

pub(crate) use self::escape::{escape, unescape};

/// A tree's entries by escaped path; the tree's root is `.`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest {
    entries: BTreeMap<String, Fields>,
}

/// What is known of an entry: names and values, in a fixed order.
type Fields = Vec<(String, String)>;

/// Inode numbers are unique within a device.
type InodeKey = (u64, u64);

impl Manifest {
    /// Walks the tree at `root`, which nobody may change meanwhile.
    pub fn of(root: &Path) -> io::Result<Self> {
        let mut inodes: HashMap<InodeKey, (String, Fields)> = HashMap::new();
        let mut entries = BTreeMap::new();
        for (path, metadata) in walk(root)? {
            let name = escape(path.as_os_str().as_bytes());
            let full = root.join(&path);
            let key = (metadata.dev(), metadata.ino());
            let fields = match inodes.get(&key) {
                Some((first, fields)) => linked_to(first, fields),
                None => describe(&full, &metadata).map_err(|error| at(&full, &error))?,
            };
            if metadata.nlink() > 1 && !metadata.is_dir() {
                inodes.entry(key).or_insert_with(|| (name.clone(), fields.clone()));
            }
            entries.insert(name, fields);
        }
        Ok(Self { entries })
    }

    /// How `b` differs from `a`, one line per difference; empty if they are equal.
    pub fn diff(a: &Self, b: &Self) -> Vec<String> {
        let mut differences = Vec::new();
        for (path, fields) in &a.entries {
            match b.entries.get(path) {
                Some(others) => differences.extend(diff_entry(path, fields, others)),
                None => differences.push(format!("{path}: only in the first")),
            }
        }
        let added = b.entries.keys().filter(|path| !a.entries.contains_key(*path));
        differences.extend(added.map(|path| format!("{path}: only in the second")));
        differences
    }

    /// The number of entries, the root included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is not even a root.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl fmt::Display for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (path, fields) in &self.entries {
            write!(f, "{path}")?;
            for (name, value) in fields {
                write!(f, " {name}={value}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// A line of a manifest's text that cannot be understood.
#[derive(Debug, thiserror::Error)]
#[error("not a line of a manifest: {0:?}")]
pub struct ParseManifestError(String);

impl FromStr for Manifest {
    type Err = ParseManifestError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut entries = BTreeMap::new();
        for line in text.lines() {
            let mut words = line.split(' ');
            let path = words.next().filter(|path| !path.is_empty());
            let fields: Option<Fields> = words
                .map(|word| word.split_once('=').map(|(n, v)| (n.to_owned(), v.to_owned())))
                .collect();
            let (Some(path), Some(fields)) = (path, fields) else {
                return Err(ParseManifestError(line.to_owned()));
            };
            entries.insert(path.to_owned(), fields);
        }
        Ok(Self { entries })
    }
}

/// All paths below `root`, relative to it and sorted, with what lstat says.
pub(crate) fn walk(root: &Path) -> io::Result<BTreeMap<PathBuf, Metadata>> {
    let metadata = fs::symlink_metadata(root).map_err(|error| at(root, &error))?;
    let mut found = BTreeMap::from([(PathBuf::from("."), metadata)]);
    let mut directories = vec![PathBuf::new()];
    while let Some(directory) = directories.pop() {
        let full = root.join(&directory);
        for entry in fs::read_dir(&full).map_err(|error| at(&full, &error))? {
            let entry = entry.map_err(|error| at(&full, &error))?;
            let path = directory.join(entry.file_name());
            let metadata = entry.metadata().map_err(|error| at(&entry.path(), &error))?;
            if metadata.is_dir() {
                directories.push(path.clone());
            }
            if found.insert(path, metadata).is_some() {
                let twice = io::Error::other("the directory lists this name twice");
                return Err(at(&entry.path(), &twice));
            }
        }
    }
    Ok(found)
}

fn describe(path: &Path, metadata: &Metadata) -> io::Result<Fields> {
    let file_type = metadata.file_type();
    let kind = match file_type {
        t if t.is_dir() => "directory",
        t if t.is_file() => "file",
        t if t.is_symlink() => "symlink",
        t if t.is_fifo() => "fifo",
        t if t.is_socket() => "socket",
        t if t.is_char_device() => "char-device",
        t if t.is_block_device() => "block-device",
        _ => "unknown",
    };
    let mut fields = vec![
        ("type", kind.to_owned()),
        ("mode", format!("{:04o}", metadata.mode() & 0o7777)),
        ("uid", metadata.uid().to_string()),
        ("gid", metadata.gid().to_string()),
        ("nlink", metadata.nlink().to_string()),
        ("mtime", format!("{}.{:09}", metadata.mtime(), metadata.mtime_nsec())),
    ];
    if !file_type.is_dir() {
        fields.push(("size", metadata.size().to_string()));
    }
    if file_type.is_char_device() || file_type.is_block_device() {
        let device = metadata.rdev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        fields.push(("device", format!("{major}:{minor}")));
    }
    if file_type.is_symlink() {
        fields.push(("target", escape(fs::read_link(path)?.as_os_str().as_bytes())));
    }
    if file_type.is_file() {
        fields.push(("content", format!("{:016x}", content::hash_of(&File::open(path)?)?)));
    }
    Ok(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// The fields of a further name of the inode that `first` names.
fn linked_to(first: &str, fields: &Fields) -> Fields {
    let mut fields = fields.clone();
    fields.push(("same-as".to_owned(), first.to_owned()));
    fields
}

fn diff_entry(path: &str, a: &Fields, b: &Fields) -> Vec<String> {
    let (a_values, b_values): (BTreeMap<_, _>, BTreeMap<_, _>) =
        (a.iter().cloned().collect(), b.iter().cloned().collect());
    let names: std::collections::BTreeSet<_> = a_values.keys().chain(b_values.keys()).collect();
    names
        .into_iter()
        .filter(|name| a_values.get(*name) != b_values.get(*name))
        .map(|name| {
            let shown = |values: &BTreeMap<String, String>| {
                values.get(name).cloned().unwrap_or_else(|| "nothing".to_owned())
            };
            format!("{path}: {name} is {} and {}", shown(&a_values), shown(&b_values))
        })
        .collect()
}

/// The error with the path that it concerns.
pub(crate) fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

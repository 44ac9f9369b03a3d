//! Files of a volume as they can be seen, however broken it is.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use nilfs_engine::{Attr, Error, FileType, Files, Ino, Result, Timestamp};

use crate::tree::shown;

/// Bytes that are read at a time where a file cannot be read at once: those of the smallest block.
const PIECE: usize = 1024;

/// Content of a file beyond which it is not read.
const LONGEST: u64 = 8 << 20;

/// Names of a directory after which a listing is taken for an endless one.
const MOST_NAMES: usize = 10_000;

/// Files by path, with what is wrong with them. The root directory has the empty path.
#[derive(Debug, Clone, Default)]
pub struct Picture {
    /// Files by name.
    pub files: BTreeMap<Vec<u8>, Seen>,
    /// Names that lead to nothing, and what was said.
    pub broken: BTreeMap<Vec<u8>, String>,
    /// Directories whose names cannot all be listed.
    pub unlisted: BTreeSet<Vec<u8>>,
}

/// A file that a name leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its number.
    pub ino: Ino,
    /// Its type.
    pub kind: FileType,
    /// Its permissions.
    pub mode: u16,
    /// When it was changed last, unless it is a directory, which a repair may change.
    pub mtime: Option<Timestamp>,
    /// Content of a file, or the target of a link. What cannot be read is zeros.
    pub bytes: Vec<u8>,
    /// Bytes that cannot be read.
    pub unreadable: Vec<Range<u64>>,
}

impl Picture {
    /// Looks at all files.
    #[must_use]
    pub fn take(files: &dyn Files) -> Self {
        let mut picture = Self::default();
        match guarded(|| files.attr(Ino::ROOT)) {
            Ok(root) => picture.add(files, Vec::new(), &root),
            Err(why) => drop(picture.broken.insert(Vec::new(), why)),
        }
        let mut entered = BTreeSet::from([Ino::ROOT]);
        let mut ahead = vec![(Vec::new(), Ino::ROOT)];
        while let Some((path, directory)) = ahead.pop() {
            let (names, whole) = names(files, directory);
            if !whole {
                picture.unlisted.insert(path.clone());
            }
            for name in names {
                let path =
                    if path.is_empty() { name.clone() } else { [&path[..], b"/", &name].concat() };
                match guarded(|| lookup(files, directory, &name)) {
                    Ok(attr) => {
                        picture.add(files, path.clone(), &attr);
                        if attr.file_type == FileType::Directory && entered.insert(attr.ino) {
                            ahead.push((path, attr.ino));
                        }
                    }
                    Err(why) => drop(picture.broken.insert(path, why)),
                }
            }
        }
        picture
    }

    fn add(&mut self, files: &dyn Files, path: Vec<u8>, attr: &Attr) {
        let (bytes, unreadable) = match attr.file_type {
            FileType::Regular => content(files, attr),
            FileType::Symlink => match guarded(|| files.read_link(attr.ino)) {
                Ok(target) => (target, Vec::new()),
                Err(_) => (Vec::new(), std::iter::once(0..attr.size).collect()),
            },
            _ => (Vec::new(), Vec::new()),
        };
        let is_directory = attr.file_type == FileType::Directory;
        let seen = Seen {
            ino: attr.ino,
            kind: attr.file_type,
            mode: attr.mode,
            mtime: (!is_directory).then_some(attr.mtime),
            bytes,
            unreadable,
        };
        self.files.insert(path, seen);
    }

    /// A path of each file.
    #[must_use]
    pub fn by_number(&self) -> BTreeMap<Ino, &[u8]> {
        self.files.iter().rev().map(|(path, seen)| (seen.ino, &path[..])).collect()
    }

    /// Says where another picture differs first.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<String> {
        let differs = |path: &&Vec<u8>| self.files.get(*path) != other.files.get(*path);
        let path = self.files.keys().chain(other.files.keys()).find(differs)?;
        Some(shown(path))
    }
}

/// Returns the result of `call`, in words if it fails; a panic is a failure.
pub fn guarded<T>(call: impl FnOnce() -> Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err(PANIC.into()),
    }
}

/// Words for a panic.
pub const PANIC: &str = "a panic";

fn lookup(files: &dyn Files, directory: Ino, name: &[u8]) -> Result<Attr> {
    let attr = files.lookup(directory, name)?;
    files.let_go(attr.ino, 1);
    Ok(attr)
}

/// The names in a directory, and whether these are all.
fn names(files: &dyn Files, directory: Ino) -> (Vec<Vec<u8>>, bool) {
    let mut names = Vec::new();
    let listed = guarded(|| {
        files.read_dir(directory, 0, &mut |entry| {
            if !matches!(entry.name, b"." | b"..") {
                names.push(entry.name.to_vec());
            }
            names.len() < MOST_NAMES
        })
    });
    (names, listed.is_ok())
}

fn content(files: &dyn Files, attr: &Attr) -> (Vec<u8>, Vec<Range<u64>>) {
    let mut bytes = vec![0; attr.size.min(LONGEST) as usize];
    let read = |at: usize, buffer: &mut [u8]| {
        guarded(|| match files.read(attr.ino, at as u64, buffer)? == buffer.len() {
            true => Ok(()),
            false => Err(Error::Invalid("a short read")),
        })
    };
    if read(0, &mut bytes).is_ok() {
        return (bytes, Vec::new());
    }
    let mut unreadable: Vec<Range<u64>> = Vec::new();
    for (nth, piece) in bytes.chunks_mut(PIECE).enumerate() {
        let at = nth * PIECE;
        if read(at, piece).is_err() {
            piece.fill(0);
            let (start, end) = (at as u64, (at + piece.len()) as u64);
            match unreadable.last_mut().filter(|last| last.end == start) {
                Some(last) => last.end = end,
                None => unreadable.push(start..end),
            }
        }
    }
    (bytes, unreadable)
}

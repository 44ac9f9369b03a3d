//! Changes to the files of a volume, by paths.

use nilfs_engine::{Error, InodeRef, RenameMode, SetAttr};

use super::writer::{Writer, new_directory, new_file};

/// A change to the files of a volume.
#[derive(Debug, Clone)]
pub(super) enum Change {
    /// A file comes to be, with so many bytes.
    Make { path: String, bytes: u64 },
    /// A directory comes to be.
    MakeDirectory { path: String },
    /// Bytes of a file are written.
    Write { path: String, at: Place, bytes: u64 },
    /// A file gets another size.
    Truncate { path: String, size: u64 },
    /// A file gets another content, as editors write it: a new file takes its name.
    Replace { path: String, bytes: u64 },
    /// A file gets one more name.
    Link { path: String, name: String },
    /// A symbolic link comes to be.
    Symlink { path: String, target: String },
    /// A file or directory gets another name, and takes it from a file that has it.
    Rename { from: String, to: String },
    /// A file goes.
    Remove { path: String },
}

/// Offset of a write.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    /// That of a byte.
    Byte(u64),
    /// Behind the last byte.
    End,
}

impl Change {
    pub(super) fn make(path: impl Into<String>, bytes: u64) -> Self {
        Self::Make { path: path.into(), bytes }
    }

    pub(super) fn make_directory(path: impl Into<String>) -> Self {
        Self::MakeDirectory { path: path.into() }
    }

    pub(super) fn write(path: impl Into<String>, at: u64, bytes: u64) -> Self {
        Self::Write { path: path.into(), at: Place::Byte(at), bytes }
    }

    pub(super) fn append(path: impl Into<String>, bytes: u64) -> Self {
        Self::Write { path: path.into(), at: Place::End, bytes }
    }

    pub(super) fn truncate(path: impl Into<String>, size: u64) -> Self {
        Self::Truncate { path: path.into(), size }
    }

    pub(super) fn replace(path: impl Into<String>, bytes: u64) -> Self {
        Self::Replace { path: path.into(), bytes }
    }

    pub(super) fn link(path: impl Into<String>, name: impl Into<String>) -> Self {
        Self::Link { path: path.into(), name: name.into() }
    }

    pub(super) fn symlink(path: impl Into<String>, target: impl Into<String>) -> Self {
        Self::Symlink { path: path.into(), target: target.into() }
    }

    pub(super) fn rename(from: impl Into<String>, to: impl Into<String>) -> Self {
        Self::Rename { from: from.into(), to: to.into() }
    }

    pub(super) fn remove(path: impl Into<String>) -> Self {
        Self::Remove { path: path.into() }
    }
}

impl Writer {
    /// Makes changes one after the other.
    pub(super) fn apply_all(&mut self, changes: &[Change]) -> Result<(), Error> {
        changes.iter().try_for_each(|change| self.apply(change).map(drop))
    }

    /// Makes a change. Returns the file or directory whose fsync makes it durable.
    pub(super) fn apply(&mut self, change: &Change) -> Result<InodeRef, Error> {
        match change {
            Change::Make { path, bytes } => {
                let (parent, name) = self.place_of(path)?;
                let file = self.fs.create(&parent, name, &new_file())?.inode;
                self.write(file, 0, *bytes)
            }
            Change::MakeDirectory { path } => {
                let (parent, name) = self.place_of(path)?;
                Ok(self.fs.create(&parent, name, &new_directory())?.inode)
            }
            Change::Write { path, at, bytes } => {
                let file = self.find(path)?;
                let at = match at {
                    Place::Byte(at) => *at,
                    Place::End => self.fs.attr(&file)?.size,
                };
                self.write(file, at, *bytes)
            }
            Change::Truncate { path, size } => {
                let file = self.find(path)?;
                self.fs.set_attr(&file, &SetAttr { size: Some(*size), ..SetAttr::default() })?;
                Ok(file)
            }
            Change::Replace { path, bytes } => {
                let beside = format!("{path}~");
                self.apply(&Change::make(&*beside, *bytes))?;
                self.apply(&Change::rename(beside, path))
            }
            Change::Link { path, name } => {
                let file = self.find(path)?;
                let (parent, name) = self.place_of(name)?;
                self.fs.link(&file, &parent, name)?;
                Ok(file)
            }
            Change::Symlink { path, target } => {
                let (parent, name) = self.place_of(path)?;
                Ok(self.fs.symlink(&parent, name, target.as_bytes(), 0, 0)?.inode)
            }
            Change::Rename { from, to } => {
                let file = self.find(from)?;
                let ((old, name), (new, to)) = (self.place_of(from)?, self.place_of(to)?);
                self.fs.rename(&old, name, &new, to, RenameMode::Replace)?;
                Ok(file)
            }
            Change::Remove { path } => {
                let (parent, name) = self.place_of(path)?;
                self.fs.unlink(&parent, name)?;
                Ok(parent)
            }
        }
    }

    fn write(&mut self, file: InodeRef, at: u64, length: u64) -> Result<InodeRef, Error> {
        if length > 0 {
            let bytes = self.bytes(length);
            self.fs.write(&file, at, &bytes)?;
        }
        Ok(file)
    }

    /// The file with a path.
    fn find(&self, path: &str) -> Result<InodeRef, Error> {
        let names = path.split('/').filter(|name| !name.is_empty());
        let root = self.fs.root()?.inode;
        names.into_iter().try_fold(root, |directory, name| {
            Ok(self.fs.lookup(&directory, name.as_bytes())?.inode)
        })
    }

    /// The directory of a path, and the name there.
    fn place_of<'a>(&self, path: &'a str) -> Result<(InodeRef, &'a [u8]), Error> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.find(parent)?, name.as_bytes()))
    }
}

//! A tree under construction: operations by path, which remember what they touched so that all
//! times can be set at the end.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dev, FileType, Mode, Timespec, Timestamps, makedev, mknodat, utimensat,
};

use crate::manifest::at;

/// A directory to work in. All paths are relative to it.
pub(super) struct Tree {
    root: PathBuf,
    touched: BTreeSet<PathBuf>,
}

impl Tree {
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), touched: BTreeSet::from([PathBuf::new()]) }
    }

    pub(super) fn mkdir(&mut self, path: impl AsRef<Path>) -> io::Result<()> {
        self.change(path.as_ref(), |full| DirBuilder::new().create(full))
    }

    /// Makes a file with this content.
    pub(super) fn create(&mut self, path: impl AsRef<Path>, content: &[u8]) -> io::Result<()> {
        self.change(path.as_ref(), |full| File::create_new(full)?.write_all_at(content, 0))
    }

    /// Writes pieces into a file, which is made if there is none, in the order given.
    pub(super) fn write<'a>(
        &mut self,
        path: impl AsRef<Path>,
        pieces: impl IntoIterator<Item = (u64, &'a [u8])>,
    ) -> io::Result<()> {
        self.change(path.as_ref(), |full| {
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(full)?;
            pieces.into_iter().try_for_each(|(offset, bytes)| file.write_all_at(bytes, offset))
        })
    }

    pub(super) fn append(&mut self, path: impl AsRef<Path>, content: &[u8]) -> io::Result<()> {
        self.change(path.as_ref(), |full| {
            io::Write::write_all(&mut OpenOptions::new().append(true).open(full)?, content)
        })
    }

    pub(super) fn set_len(&mut self, path: impl AsRef<Path>, size: u64) -> io::Result<()> {
        self.change(path.as_ref(), |full| {
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(full)?;
            file.set_len(size)
        })
    }

    pub(super) fn symlink(
        &mut self,
        target: impl AsRef<OsStr>,
        path: impl AsRef<Path>,
    ) -> io::Result<()> {
        self.change(path.as_ref(), |full| symlink(target.as_ref(), full))
    }

    /// Makes a FIFO, a socket, or a device with a number.
    pub(super) fn mknod(
        &mut self,
        path: impl AsRef<Path>,
        file_type: FileType,
        (major, minor): (u32, u32),
    ) -> io::Result<()> {
        let device: Dev = makedev(major, minor);
        self.change(path.as_ref(), |full| {
            Ok(mknodat(CWD, full, file_type, Mode::from_raw_mode(0o644), device)?)
        })
    }

    pub(super) fn link(
        &mut self,
        existing: impl AsRef<Path>,
        path: impl AsRef<Path>,
    ) -> io::Result<()> {
        let existing = self.root.join(existing);
        self.change(path.as_ref(), |full| fs::hard_link(existing, full))
    }

    pub(super) fn rename(
        &mut self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
    ) -> io::Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let target = self.root.join(to);
        self.change(from, |full| fs::rename(full, target))?;
        let below: Vec<PathBuf> = self
            .touched
            .iter()
            .filter(|path| path.as_path() != from)
            .filter_map(|path| Some(to.join(path.strip_prefix(from).ok()?)))
            .collect();
        self.touched.extend(below);
        self.touch(to);
        Ok(())
    }

    pub(super) fn remove_file(&mut self, path: impl AsRef<Path>) -> io::Result<()> {
        self.change(path.as_ref(), |full| fs::remove_file(full))
    }

    pub(super) fn remove_dir_all(&mut self, path: impl AsRef<Path>) -> io::Result<()> {
        self.change(path.as_ref(), |full| fs::remove_dir_all(full))
    }

    pub(super) fn chmod(&mut self, path: impl AsRef<Path>, mode: u32) -> io::Result<()> {
        self.change(path.as_ref(), |full| fs::set_permissions(full, Permissions::from_mode(mode)))
    }

    pub(super) fn chown(&mut self, path: impl AsRef<Path>, uid: u32, gid: u32) -> io::Result<()> {
        self.change(path.as_ref(), |full| lchown(full, Some(uid), Some(gid)))
    }

    /// The paths of a directory's entries, sorted.
    pub(super) fn list(&self, directory: impl AsRef<Path>) -> io::Result<Vec<PathBuf>> {
        let directory = directory.as_ref();
        let full = self.root.join(directory);
        let mut paths: Vec<PathBuf> = fs::read_dir(&full)
            .and_then(|entries| {
                entries.map(|entry| Ok(directory.join(entry?.file_name()))).collect()
            })
            .map_err(|error| at(&full, &error))?;
        paths.sort();
        Ok(paths)
    }

    /// What lstat says about a path.
    pub(super) fn metadata(&self, path: impl AsRef<Path>) -> io::Result<fs::Metadata> {
        let full = self.root.join(path);
        fs::symlink_metadata(&full).map_err(|error| at(&full, &error))
    }

    /// Gives everything that was touched, and still is there, a time that depends on nothing but
    /// its path and the salt.
    pub(super) fn settle(self, salt: u64) -> io::Result<()> {
        for path in self.touched.iter().rev() {
            let full = self.root.join(path);
            let time = odd_time(salt, path);
            let times = Timestamps { last_access: time, last_modification: time };
            match utimensat(CWD, &full, &times, AtFlags::SYMLINK_NOFOLLOW) {
                // It was removed, or has another name now, which was touched as well.
                Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => {}
                result => result.map_err(|error| at(&full, &error.into()))?,
            }
        }
        Ok(())
    }

    fn change(
        &mut self,
        path: &Path,
        operation: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let full = self.root.join(path);
        operation(&full).map_err(|error| at(&full, &error))?;
        self.touch(path);
        Ok(())
    }

    fn touch(&mut self, path: &Path) {
        self.touched.insert(path.to_owned());
        self.touched.extend(path.parent().map(Path::to_owned));
    }
}

/// A time with nanoseconds: mostly of our days, sometimes before 1970, sometimes after 2106.
fn odd_time(salt: u64, path: &Path) -> Timespec {
    let mut hasher = DefaultHasher::new();
    (salt, path).hash(&mut hasher);
    let hash = hasher.finish();
    let seconds = i64::from((hash >> 32) as u32 >> 1);
    let tv_sec = match hash % 16 {
        0 => -seconds,
        1 => seconds + (1 << 32),
        _ => seconds,
    };
    Timespec { tv_sec, tv_nsec: i64::from(hash as u32 % 1_000_000_000) }
}

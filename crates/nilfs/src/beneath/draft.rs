//! Files that have no name yet, and descriptors through which files get their attributes.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::bail;
use rustix::fs::{
    AtFlags, CWD, Dev, FileType, Gid, IFlags, Mode, OFlags, RenameFlags, Stat, Timespec,
    Timestamps, Uid,
};
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

use super::{Destination, Mounts, Obstacle};

/// The beginning of the names of files that are not complete.
const PREFIX: &str = ".nilfs-cp-";

/// Whether a name is that of a copy which was never completed.
pub fn is_of_draft(name: &OsStr) -> bool {
    name.as_bytes().starts_with(PREFIX.as_bytes())
}

/// A file, regardless of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    ino: u64,
}

impl Identity {
    /// The identity of a file that was looked at.
    pub fn of(stat: &Stat) -> Self {
        Self { device: stat.st_dev, ino: stat.st_ino }
    }
}

/// A file that is held open, so that no other one can take its place.
#[derive(Debug)]
pub struct Handle(File);

impl Handle {
    /// Opens what a name in a directory leads to; nothing but directories is opened to be read.
    pub(super) fn open(
        directory: &OwnedFd,
        name: &OsStr,
        mounts: Mounts,
    ) -> Result<Self, Obstacle> {
        // The empty path is the directory itself.
        let path = if name == "." { Path::new("") } else { Path::new(name) };
        let open = |flags| super::open(directory, path, flags, mounts);
        let file = open(OFlags::RDONLY | OFlags::DIRECTORY).or_else(|_| open(OFlags::PATH))?;
        Ok(Self(file.into()))
    }

    /// The file, to be written.
    pub fn file(&self) -> &File {
        &self.0
    }

    /// Its attributes.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn stat(&self) -> rustix::io::Result<Stat> {
        rustix::fs::fstat(&self.0)
    }

    /// Sets owner and group. Numbers that no user has leave them as they are.
    ///
    /// # Errors
    /// Errors of chown(2).
    pub fn set_owner(&self, uid: u32, gid: u32) -> rustix::io::Result<()> {
        let uid = (uid != u32::MAX).then(|| Uid::from_raw(uid));
        let gid = (gid != u32::MAX).then(|| Gid::from_raw(gid));
        rustix::fs::chownat(&self.0, c"", uid, gid, AtFlags::EMPTY_PATH)
    }

    /// Sets the permissions.
    ///
    /// # Errors
    /// Errors of chmod(2).
    pub fn set_mode(&self, mode: u32) -> rustix::io::Result<()> {
        let mode = Mode::from_raw_mode(mode);
        match rustix::fs::fchmod(&self.0, mode) {
            // It was opened as a place only.
            Err(Errno::BADF) => rustix::fs::chmodat(CWD, self.by_number(), mode, AtFlags::empty()),
            set => set,
        }
    }

    /// Sets the times of the last access and the last change.
    ///
    /// # Errors
    /// Errors of utimensat(2).
    pub fn set_time(&self, time: Timespec) -> rustix::io::Result<()> {
        let times = Timestamps { last_access: time, last_modification: time };
        match rustix::fs::futimens(&self.0, &times) {
            Err(Errno::BADF) => {
                rustix::fs::utimensat(CWD, self.by_number(), &times, AtFlags::empty())
            }
            set => set,
        }
    }

    /// Sets the flags of chattr(1).
    ///
    /// # Errors
    /// The file system has no such flags, or does not allow it.
    pub fn set_flags(&self, flags: u32) -> rustix::io::Result<()> {
        let read = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(CWD, self.by_number(), read, Mode::empty())?;
        rustix::fs::ioctl_setflags(file, IFlags::from_bits_retain(flags))
    }

    /// The name by which the kernel opens the very file that is held.
    fn by_number(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }
}

/// A file that is made under a name of its own, next to the one that it gets when it is complete. If it
/// does not get that, it goes away.
#[derive(Debug)]
pub struct Draft {
    parent: Rc<OwnedFd>,
    /// The name until then; empty after it.
    own: OsString,
    name: OsString,
    handle: Handle,
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.own.is_empty() {
            let _ = rustix::fs::unlinkat(&*self.parent, &self.own, AtFlags::empty());
        }
    }
}

impl Destination {
    /// An empty file that can be written.
    ///
    /// # Errors
    /// Something is in the way, or the file cannot be made.
    pub fn file(&self, mode: u32) -> anyhow::Result<Draft> {
        let create = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
        let flags = create | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.draft(|parent, own| {
            let file = rustix::fs::openat(parent, own, flags, Mode::from_raw_mode(mode))?;
            Ok(Handle(file.into()))
        })
    }

    /// A symbolic link.
    ///
    /// # Errors
    /// Something is in the way, or there can be no such link.
    pub fn symlink(&self, target: &[u8]) -> anyhow::Result<Draft> {
        if target.is_empty() || target.contains(&0) {
            bail!("its target is empty or has a zero byte in it, so there can be no such link");
        }
        self.draft(|parent, own| {
            rustix::fs::symlinkat(target, parent, own)?;
            self.made(parent, own, |handle, _| {
                let found = rustix::fs::readlinkat(handle.file(), c"", Vec::new());
                found.is_ok_and(|found| found.as_bytes() == target)
            })
        })
    }

    /// A device node, a FIFO or a socket.
    ///
    /// # Errors
    /// Something is in the way, or the file cannot be made.
    pub fn node(&self, file_type: FileType, mode: u32, device: Dev) -> anyhow::Result<Draft> {
        self.draft(|parent, own| {
            let mode = Mode::from_raw_mode(mode);
            rustix::fs::mknodat(parent, own, file_type, mode, device)?;
            let is_device = matches!(file_type, FileType::CharacterDevice | FileType::BlockDevice);
            self.made(parent, own, |_, found| {
                super::file_type(found) == file_type
                    && found.st_nlink <= 1
                    && (!is_device || found.st_rdev == device)
            })
        })
    }

    /// Another name of a file that is at another place.
    ///
    /// # Errors
    /// Something is in the way, something else is at the other place, or the name cannot be made.
    pub fn link(&self, first: &Self, identity: Identity) -> anyhow::Result<Draft> {
        let (directory, name) = first.parent()?;
        self.draft(|parent, own| {
            rustix::fs::linkat(&*directory, name, parent, own, AtFlags::empty())?;
            self.made(parent, own, |_, found| Identity::of(found) == identity)
        })
    }

    fn draft(
        &self,
        make: impl FnOnce(&OwnedFd, &OsStr) -> anyhow::Result<Handle>,
    ) -> anyhow::Result<Draft> {
        let (parent, name) = self.parent()?;
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, GetRandomFlags::empty())?;
        let own = OsString::from(format!("{PREFIX}{:016x}", u64::from_ne_bytes(random)));
        let handle = make(&parent, &own).inspect_err(|_| {
            let _ = rustix::fs::unlinkat(&*parent, &own, AtFlags::empty());
        })?;
        Ok(Draft { parent, own, name: name.to_owned(), handle })
    }

    /// Holds what was just made without a descriptor, if it `is_ours`. Another user may have put a
    /// different file in its place, to become the owner of that file.
    fn made(
        &self,
        parent: &OwnedFd,
        own: &OsStr,
        is_ours: impl FnOnce(&Handle, &Stat) -> bool,
    ) -> anyhow::Result<Handle> {
        let handle = Handle::open(parent, own, self.top.mounts).map_err(|it| self.name(it))?;
        match is_ours(&handle, &handle.stat()?) {
            true => Ok(handle),
            false => bail!("something else has taken its place meanwhile"),
        }
    }
}

impl Draft {
    /// The file.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Moves the file to its name. A file or directory that has the name already stays, and there is an
    /// error, unless it is to be replaced and is no directory.
    ///
    /// # Errors
    /// The name is in use, or cannot be given.
    pub fn take_name(mut self, replace: bool) -> rustix::io::Result<()> {
        let rename = |flags| {
            rustix::fs::renameat_with(&*self.parent, &self.own, &*self.parent, &self.name, flags)
        };
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        match rename(flags) {
            // Not all file systems know this. Until just now, the name was free.
            Err(Errno::INVAL | Errno::NOSYS) if !replace => rename(RenameFlags::empty()),
            renamed => renamed,
        }?;
        self.own.clear();
        Ok(())
    }
}

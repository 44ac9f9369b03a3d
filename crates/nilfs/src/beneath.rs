//! Files below a directory that no path leads out of.
//!
//! Paths that come from the past of a volume, or from a volume that was forged, are used in directories
//! that other users can change: such a user puts a symbolic link where a directory was, now or at any
//! moment between two system calls. So a path is resolved here step by step from a directory that is
//! held open, through no symbolic link and no "..", and what it leads to is held from then on. Each name
//! is used only once, to make a file or to open it. Owner, permissions, times and flags are set through
//! the descriptor of the file, and only after a look at whether it is the file that is meant.
//!
//! The path that a user has typed is the user's own, and may lead through symbolic links: it is resolved
//! by the kernel, once, when the directory is opened.

mod draft;

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, bail};
use nilfs_fuse::Mounted;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::fs::{StatxAttributes, StatxFlags};
use rustix::io::Errno;

pub use self::draft::{Draft, Handle, Identity, is_of_draft};

use crate::output::printable;

/// How a directory is opened that a path leads through.
const STEP: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Treatment of other file systems that are mounted below a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mounts {
    /// A path may lead into them.
    Enter,
    /// A path that leads into them is refused.
    Refuse,
}

/// Why a path leads to nothing, and at which of its components that is so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// The path up to the component.
    path: PathBuf,
    /// `LOOP` at a symbolic link, `XDEV` at a file system that is mounted, `INVAL` if the path has a
    /// ".." or another name that no file can have.
    pub errno: Errno,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = printable(self.path.as_os_str().as_bytes());
        match self.errno {
            Errno::LOOP => write!(f, "{path} is a symbolic link, which is not followed here"),
            Errno::XDEV => write!(f, "another file system is mounted on {path}"),
            Errno::INVAL => write!(f, "{path} is not the path of a file in a directory"),
            errno => write!(f, "{path}: {errno}"),
        }
    }
}

impl std::error::Error for Obstacle {}

/// Opens a file by its path from a directory; an empty path means the directory itself. Symbolic links
/// are not followed, not even at the end, and no FIFO is waited for.
///
/// # Errors
/// See [`Obstacle`].
pub fn open(
    directory: impl AsFd,
    path: &Path,
    flags: OFlags,
    mounts: Mounts,
) -> Result<OwnedFd, Obstacle> {
    let directory = directory.as_fd();
    let names = names(path)?;
    // The kernel does not take both of these flags.
    let waiting = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NONBLOCK };
    let flags = flags | waiting | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let resolve = match mounts {
        Mounts::Enter => resolve,
        Mounts::Refuse => resolve | ResolveFlags::NO_XDEV,
    };
    let path = if names.is_empty() { Path::new(".") } else { path };
    match rustix::fs::openat2(directory, path, flags, Mode::empty(), resolve) {
        Ok(file) => Ok(file),
        // The kernel may not have the call, or not allow it, or not take so long a path at once. And where
        // there is an obstacle, the call does not say at which component.
        Err(_) => walk(directory, &names, flags, mounts),
    }
}

/// The names that a path consists of.
fn names(path: &Path) -> Result<Vec<&OsStr>, Obstacle> {
    let names = path.components().map(|component| match component {
        Component::Normal(name) if !name.as_bytes().contains(&0) => Ok(name),
        _ => Err(Obstacle { path: path.to_owned(), errno: Errno::INVAL }),
    });
    names.collect()
}

/// Opens a file as [`open`] does, name by name.
fn walk(
    directory: BorrowedFd<'_>,
    names: &[&OsStr],
    flags: OFlags,
    mounts: Mounts,
) -> Result<OwnedFd, Obstacle> {
    let mut path = PathBuf::new();
    let failed = |path: &Path, errno| Obstacle { path: path.to_owned(), errno };
    let device = |file: BorrowedFd<'_>| rustix::fs::fstat(file).map(|stat| stat.st_dev);
    let own = device(directory).map_err(|errno| failed(&path, errno))?;
    let flags_at = |nth: usize| if nth == names.len() { flags } else { STEP | OFlags::NOFOLLOW };
    let here = rustix::fs::openat(directory, ".", flags_at(0), Mode::empty());
    let mut here = here.map_err(|errno| failed(&path, errno))?;
    for (nth, name) in (1..).zip(names) {
        path.push(name);
        let next = rustix::fs::openat(&here, *name, flags_at(nth), Mode::empty());
        here = next.map_err(|errno| failed(&path, cause(&here, name, errno)))?;
        let found = device(here.as_fd()).map_err(|errno| failed(&path, errno))?;
        if mounts == Mounts::Refuse && found != own {
            return Err(failed(&path, Errno::XDEV));
        }
    }
    Ok(here)
}

/// The error of a component, where the kernel calls a symbolic link something that is no directory.
fn cause(directory: &OwnedFd, name: &OsStr, errno: Errno) -> Errno {
    let found = || rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    match errno {
        Errno::NOTDIR if found().is_ok_and(|it| file_type(&it) == FileType::Symlink) => Errno::LOOP,
        errno => errno,
    }
}

/// The type of a file.
pub fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// A type of files, with its article.
fn kind(stat: &Stat) -> &'static str {
    match file_type(stat) {
        FileType::RegularFile => "a regular file",
        FileType::Directory => "a directory",
        FileType::Symlink => "a symbolic link",
        _ => "a special file",
    }
}

/// Says that a name is in use, and by what.
pub fn in_the_way(stat: &Stat) -> anyhow::Error {
    anyhow::anyhow!("exists already and is {}; move it away first", kind(stat))
}

/// A directory that nothing is written outside of.
struct Top {
    directory: Rc<OwnedFd>,
    /// How the directory is called in messages.
    shown: PathBuf,
    mounts: Mounts,
    /// A path below the directory, and how the user has called it.
    typed: (PathBuf, PathBuf),
    /// The directory in which the latest path ended.
    parent: RefCell<Option<(PathBuf, Rc<OwnedFd>)>>,
}

impl Top {
    /// How a path is called in messages.
    fn shown(&self, path: &Path) -> PathBuf {
        let (typed, shown) = &self.typed;
        match path.strip_prefix(typed) {
            Ok(below) => join(shown, below),
            Err(_) => join(&self.shown, path),
        }
    }
}

/// Joins two paths, without a slash after the first one if the second is empty.
fn join(path: &Path, below: &Path) -> PathBuf {
    if below == Path::new("") { path.to_owned() } else { path.join(below) }
}

/// A place for a file: a path below a directory that is held open.
#[derive(Clone)]
pub struct Destination {
    top: Rc<Top>,
    path: PathBuf,
}

impl Destination {
    /// The place that a user has typed: a directory that is there, or a name in one, which need not be
    /// in use. Other file systems that are mounted there belong to it.
    ///
    /// # Errors
    /// The directory, or the one that the name is in, cannot be opened.
    pub fn typed(typed: &Path) -> anyhow::Result<Self> {
        let open = |path: &Path| rustix::fs::openat(CWD, path, STEP, Mode::empty());
        let (directory, shown, name) = match (open(typed), typed.file_name()) {
            (Err(Errno::NOENT | Errno::NOTDIR), Some(name)) => {
                let parent = typed.parent().filter(|parent| *parent != Path::new(""));
                let opened = open(parent.unwrap_or(Path::new(".")));
                (opened, typed.parent().unwrap_or(Path::new("")), Path::new(name))
            }
            (opened, _) => (opened, typed, Path::new("")),
        };
        let directory = directory.with_context(|| typed.display().to_string())?;
        let top = Top {
            directory: Rc::new(directory),
            shown: shown.to_owned(),
            mounts: Mounts::Enter,
            typed: (name.to_owned(), typed.to_owned()),
            parent: RefCell::default(),
        };
        Ok(Self { top: Rc::new(top), path: name.to_owned() })
    }

    /// The place that a path of a volume has on a mount of it, and how the user has `typed` it. Other file
    /// systems that are mounted there do not belong to it.
    ///
    /// # Errors
    /// The volume is no longer mounted there, or the directory cannot be opened.
    pub fn on_mount(mounted: &Mounted, path: &Path, typed: &Path) -> anyhow::Result<Self> {
        let dir = mounted.dir.display();
        let directory = rustix::fs::openat(CWD, &mounted.dir, STEP, Mode::empty());
        let directory = directory.with_context(|| dir.to_string())?;
        let (flags, wanted) = (AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS);
        let found = rustix::fs::statx(&directory, c"", flags, wanted);
        let found = found.with_context(|| dir.to_string())?;
        let is_top = !found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT)
            || found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        let device = format!("{}:{}", found.stx_dev_major, found.stx_dev_minor);
        if !is_top || device != mounted.device {
            bail!("{dir} is not the directory of the mount any more");
        }
        let path = path.strip_prefix(&mounted.root).with_context(|| typed.display().to_string())?;
        let top = Top {
            directory: Rc::new(directory),
            shown: mounted.dir.clone(),
            mounts: Mounts::Refuse,
            // Without a slash at its end.
            typed: (path.to_owned(), typed.components().collect()),
            parent: RefCell::default(),
        };
        Ok(Self { top: Rc::new(top), path: path.to_owned() })
    }

    /// A place below this one.
    #[must_use]
    pub fn join(&self, below: impl AsRef<Path>) -> Self {
        Self { top: Rc::clone(&self.top), path: join(&self.path, below.as_ref()) }
    }

    /// Whether it is the directory itself that is held open.
    pub fn is_top(&self) -> bool {
        self.path == Path::new("")
    }

    /// How it is called in messages.
    pub fn shown(&self) -> PathBuf {
        self.top.shown(&self.path)
    }

    /// The number of the device on which the directory is that is held open.
    ///
    /// # Errors
    /// It cannot be asked for.
    pub fn device(&self) -> anyhow::Result<u64> {
        Ok(rustix::fs::fstat(&*self.top.directory)?.st_dev)
    }

    /// Whether the directory that is held open has nothing in it.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn has_empty_top(&self) -> anyhow::Result<bool> {
        Ok(is_empty(&*self.top.directory)?)
    }

    /// The file that is there, if there is one.
    ///
    /// # Errors
    /// Something is in the way, or the file cannot be looked at.
    pub fn look(&self) -> anyhow::Result<Option<Stat>> {
        let (parent, name) = match self.parent() {
            Err(Obstacle { errno: Errno::NOENT, .. }) => return Ok(None),
            parent => parent?,
        };
        match rustix::fs::statat(&*parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(None),
            found => Ok(Some(found?)),
        }
    }

    /// Makes a directory, unless it may be `shared` and one is there. Returns which one it is.
    ///
    /// # Errors
    /// Something is in the way, or the directory cannot be made.
    pub fn make_directory(&self, mode: u32, shared: bool) -> anyhow::Result<Identity> {
        let (parent, name) = self.parent()?;
        let made = rustix::fs::mkdirat(&*parent, name, Mode::from_raw_mode(mode));
        match made {
            Err(Errno::EXIST) => {}
            made => made?,
        }
        let handle = Handle::open(&parent, name, self.top.mounts).map_err(|it| self.name(it))?;
        let found = handle.stat()?;
        // A directory that another user has put there meanwhile may have files in it that are not to be
        // given away.
        let is_ours = match made {
            Ok(()) => file_type(&found) == FileType::Directory && is_empty(handle.file())?,
            Err(_) => shared && file_type(&found) == FileType::Directory,
        };
        if !is_ours {
            return Err(in_the_way(&found));
        }
        Ok(Identity::of(&found))
    }

    /// Holds the file that is there.
    ///
    /// # Errors
    /// It is not the one that it was.
    pub fn hold(&self, identity: Identity) -> anyhow::Result<Handle> {
        let (parent, name) = self.parent()?;
        let handle = Handle::open(&parent, name, self.top.mounts).map_err(|it| self.name(it))?;
        if Identity::of(&handle.stat()?) != identity {
            bail!("something else has taken its place meanwhile");
        }
        Ok(handle)
    }

    /// The directory in which the path ends, and the name in it.
    fn parent(&self) -> Result<(Rc<OwnedFd>, &OsStr), Obstacle> {
        let Some(name) = names(&self.path).map_err(|it| self.name(it))?.pop() else {
            return Ok((Rc::clone(&self.top.directory), OsStr::new(".")));
        };
        let parent = self.path.parent().unwrap_or(Path::new(""));
        let mut latest = self.top.parent.borrow_mut();
        let directory = match &*latest {
            Some((path, directory)) if path == parent => Rc::clone(directory),
            _ => {
                let directory = open(&*self.top.directory, parent, STEP, self.top.mounts)
                    .map_err(|it| Obstacle { path: self.top.shown(&it.path), ..it })?;
                Rc::clone(&latest.insert((parent.to_owned(), Rc::new(directory))).1)
            }
        };
        Ok((directory, name))
    }

    /// An obstacle at the name itself.
    fn name(&self, obstacle: Obstacle) -> Obstacle {
        Obstacle { path: self.shown(), ..obstacle }
    }
}

/// Whether a directory has nothing in it.
fn is_empty(directory: impl AsFd) -> rustix::io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    for entry in Dir::new(rustix::fs::openat(directory, ".", flags, Mode::empty())?)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests;

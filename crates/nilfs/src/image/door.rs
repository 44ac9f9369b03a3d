//! The files of a checkpoint of a volume that is mounted, as its mount shows them in
//! `.checkpoints`.
//!
//! The process that serves the mount keeps the checkpoint for a while after each request. Files are
//! reopened by their paths, which do not change in the past. The process strips files
//! of the past of what would give them power (set-id bits, device numbers); those who may administer
//! the mount are told by a request, and others see files as the mount shows them.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use nilfs_engine::{
    Attr, Cno, DeviceCode, DirEntry, Error, FileType, Files, Ino, Result, Seek, StatFs, Timestamp,
};
use nilfs_fuse::{ino_of_past, is_of_past};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;

use crate::administration::{Administration, Reason, Refusal, is_believable, mount_of};
use crate::beneath::{self, Mounts};
use crate::control::{Client, KeptPast, Powers};
use crate::output::printable;

/// The files of a checkpoint, through the door.
pub struct Door {
    client: Client,
    cno: Cno,
    top: OwnedFd,
    /// The process does not tell this user what the mount does not show.
    is_told_nothing: AtomicBool,
    held: Mutex<HashMap<Ino, Held>>,
}

/// A file that is held.
struct Held {
    /// From the root of the volume; empty for that itself.
    path: PathBuf,
    attr: Attr,
    times: u64,
}

impl Door {
    /// Opens a checkpoint of the volume on a device; `None` for the newest, in which is everything
    /// that was written through its mount until now. `Ok(None)`: it is not mounted, or its mount
    /// has no door for this user.
    ///
    /// # Errors
    /// There is no such checkpoint.
    pub fn of(device: &Path, at: Option<Cno>) -> anyhow::Result<Option<Self>> {
        let mounted = mount_of(device)?;
        let mounted = mounted.filter(|it| it.is_nilfs() && it.root == Path::new("/"));
        mounted.filter(is_believable).map_or(Ok(None), |it| Self::open(&it.dir, at))
    }

    /// Keeps what is looked at of the past of the volume on a device, for a command that copies out of it;
    /// `None` as in [`Door::of`].
    pub fn kept_past(device: &Path) -> Option<KeptPast> {
        let mounted = mount_of(device).ok()?.filter(|it| it.is_nilfs() && is_believable(it))?;
        KeptPast::begin(Client::new(&mounted.dir))
    }

    /// The door of the root directory of the volume on a device, if there is one.
    ///
    /// # Errors
    /// As [`Door::of`].
    pub fn path_on(device: &Path) -> anyhow::Result<Option<PathBuf>> {
        let mounted = mount_of(device)?;
        let mounted = mounted.filter(|it| it.is_nilfs() && it.root == Path::new("/"));
        let mounted = mounted.filter(is_believable);
        Ok(mounted.and_then(|it| Self::path_in(&it.dir, &Client::new(&it.dir))))
    }

    fn path_in(dir: &Path, client: &Client) -> Option<PathBuf> {
        let door = dir.join(client.process().ok()?.door?);
        // A file of the user's comes before the door.
        fs::symlink_metadata(&door).is_ok_and(|found| is_of_past(found.ino())).then_some(door)
    }

    fn open(dir: &Path, at: Option<Cno>) -> anyhow::Result<Option<Self>> {
        let client = Client::new(dir);
        let Some(door) = Self::path_in(dir, &client) else { return Ok(None) };
        let cno = match at {
            Some(cno) => cno,
            None => {
                // If this fails, the volume is as it was a moment ago.
                let _ = client.checkpoint(false);
                client.status()?.cno
            }
        };
        let Some(top) = open_checkpoint(&door, cno)? else { return Ok(None) };
        let is_told_nothing = AtomicBool::new(false);
        let files = Self { client, cno, top, is_told_nothing, held: Mutex::default() };
        files.add(PathBuf::new())?;
        Ok(Some(files))
    }

    /// The checkpoint.
    pub fn cno(&self) -> Cno {
        self.cno
    }

    /// Makes a request, because the process that serves the mount keeps the checkpoint only for a while
    /// after the last one.
    pub fn stay(&self) {
        // If this fails, the checkpoint is gone, and whoever reads it hears that.
        let _ = rustix::fs::fstatvfs(&self.top);
    }

    /// The process that serves the mount.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Holds a file once more.
    fn add(&self, path: PathBuf) -> Result<Attr> {
        let attr = self.attr_of(&self.open_at(&path, OFlags::PATH)?)?;
        let mut held = self.held.lock();
        held.entry(attr.ino).or_insert_with(|| Held { path, attr, times: 0 }).times += 1;
        Ok(attr)
    }

    fn attr_of(&self, file: &OwnedFd) -> Result<Attr> {
        let attr = shown_attr(file)?;
        if self.is_told_nothing.load(Ordering::Relaxed) {
            return Ok(attr);
        }
        let powers = match self.client.powers(self.cno, attr.ino) {
            Err(Refusal { reason: Reason::NotPermitted, .. }) => {
                self.is_told_nothing.store(true, Ordering::Relaxed);
                return Ok(attr);
            }
            powers => powers.map_err(refused)?,
        };
        let Powers { mode, flags, generation, .. } = powers;
        Ok(Attr { mode, flags, generation, rdev: powers.device(), ..attr })
    }

    fn path_of(&self, ino: Ino) -> Result<PathBuf> {
        self.held.lock().get(&ino).map(|held| held.path.clone()).ok_or(Error::Stale)
    }

    /// A file that is held, opened so that it can be read.
    fn readable(&self, ino: Ino) -> Result<File> {
        Ok(self.open_at(&self.path_of(ino)?, OFlags::RDONLY)?.into())
    }

    /// Opens a file by its path from the root of the volume.
    fn open_at(&self, path: &Path, flags: OFlags) -> Result<OwnedFd> {
        // A server that is not to be trusted may show a directory now, and a symbolic link in a moment.
        let file = beneath::open(&self.top, path, flags, Mounts::Refuse);
        file.map_err(|obstacle| failed(obstacle.errno))
    }
}

impl Files for Door {
    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        let mut path = self.path_of(dir)?;
        match name {
            b"." => {}
            // There is nothing above the root.
            b".." => _ = path.pop(),
            name => path.push(OsStr::from_bytes(name)),
        }
        self.add(path)
    }

    fn hold(&self, ino: Ino) -> Result<Attr> {
        let mut held = self.held.lock();
        let held = held.get_mut(&ino).ok_or(Error::Stale)?;
        held.times += 1;
        Ok(held.attr)
    }

    fn let_go(&self, ino: Ino, times: u64) {
        let mut held = self.held.lock();
        if let Some(file) = held.get_mut(&ino) {
            file.times = file.times.saturating_sub(times);
            if file.times == 0 {
                held.remove(&ino);
            }
        }
    }

    fn let_go_of_all(&self) {
        self.held.lock().retain(|ino, _| *ino == Ino::ROOT);
    }

    fn attr(&self, ino: Ino) -> Result<Attr> {
        self.held.lock().get(&ino).map(|held| held.attr).ok_or(Error::Stale)
    }

    fn read_dir(
        &self,
        dir: Ino,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let file = self.readable(dir)?;
        let mut entries = rustix::fs::Dir::read_from(&file).map_err(failed)?;
        if cookie != 0 {
            entries.seek(cookie as i64).map_err(failed)?;
        }
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let more = emit(DirEntry {
                ino: ino_of_past(entry.ino()),
                name: entry.file_name().to_bytes(),
                file_type: None,
                next: entry.offset() as u64,
            });
            if !more {
                break;
            }
        }
        Ok(())
    }

    fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let file = self.readable(ino)?;
        let mut count = 0;
        while count < buffer.len() {
            match file.read_at(&mut buffer[count..], offset + count as u64) {
                Ok(0) => break,
                Ok(more) => count += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(device("read a file of the past", error)),
            }
        }
        Ok(count)
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        let link = self.open_at(&self.path_of(ino)?, OFlags::PATH)?;
        let target = rustix::fs::readlinkat(link, c"", Vec::new()).map_err(failed)?;
        Ok(target.into_bytes())
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        let whence = match what {
            Seek::Data => SeekFrom::Data(offset),
            Seek::Hole => SeekFrom::Hole(offset),
        };
        rustix::fs::seek(self.readable(ino)?, whence).map_err(failed)
    }

    fn stat_fs(&self) -> Result<StatFs> {
        let stat = rustix::fs::fstatvfs(&self.top).map_err(failed)?;
        Ok(StatFs {
            block_size: stat.f_frsize as u32,
            blocks: stat.f_blocks,
            free: stat.f_bfree,
            available: stat.f_bavail,
            files: stat.f_files,
            files_free: stat.f_ffree,
            name_max: stat.f_namemax as u32,
        })
    }
}

/// The root directory of a checkpoint in a door; `None` if this user may not look there.
fn open_checkpoint(door: &Path, cno: Cno) -> anyhow::Result<Option<OwnedFd>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = || {
        let door = rustix::fs::openat(CWD, door, flags | OFlags::NOFOLLOW, Mode::empty())?;
        let top = rustix::fs::openat(&door, format!("cp{cno}"), flags, Mode::empty())?;
        // The number is a symbolic link to an entry of the door, unless the server is not to be trusted.
        let device = |file: &OwnedFd| rustix::fs::fstat(file).map(|stat| stat.st_dev);
        if device(&top)? == device(&door)? { Ok(top) } else { Err(Errno::XDEV) }
    };
    match open() {
        Err(Errno::NOENT) => Err(Error::NoCheckpoint(cno).into()),
        Err(Errno::ACCESS) => Ok(None),
        top => Ok(Some(top.with_context(|| format!("cannot open {cno} in {}", door.display()))?)),
    }
}

/// What a path leads to in a checkpoint, as the door of the root directory shows it. Symbolic links
/// are not followed.
///
/// # Errors
/// [`Error::NoCheckpoint`]; the user may not look there.
pub fn look(door: &Path, cno: Cno, path: &Path) -> anyhow::Result<Option<Attr>> {
    let forbidden = || {
        let path = printable(path.as_os_str().as_bytes());
        format!("cannot look for {path} in checkpoint {cno}")
    };
    let top = open_checkpoint(door, cno)?.ok_or(Errno::ACCESS).with_context(forbidden)?;
    let path = path.strip_prefix("/").unwrap_or(path);
    match beneath::open(&top, path, OFlags::PATH, Mounts::Refuse) {
        Err(it) if matches!(it.errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        file => Ok(Some(shown_attr(&file.with_context(forbidden)?)?)),
    }
}

/// What a mount shows of a file of the past.
fn shown_attr(file: &OwnedFd) -> Result<Attr> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
    let stat = rustix::fs::statx(file, c"", flags, StatxFlags::BASIC_STATS).map_err(failed)?;
    let file_type =
        FileType::from_mode(stat.stx_mode).ok_or(Error::Invalid("no such file type"))?;
    let time = |time: rustix::fs::StatxTimestamp| Timestamp {
        seconds: time.tv_sec,
        nanoseconds: time.tv_nsec,
    };
    Ok(Attr {
        ino: ino_of_past(stat.stx_ino),
        file_type,
        mode: stat.stx_mode & 0o7777,
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        rdev: DeviceCode::default(),
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        mtime: time(stat.stx_mtime),
        ctime: time(stat.stx_ctime),
        flags: 0,
        generation: 0,
    })
}

/// What the kernel says, in the words of the engine.
fn failed(errno: Errno) -> Error {
    match errno {
        Errno::NOENT => Error::NotFound,
        Errno::NOTDIR => Error::NotDirectory,
        Errno::NAMETOOLONG => Error::NameTooLong,
        Errno::NXIO => Error::NoData,
        Errno::STALE => Error::Stale,
        errno => device("read the past", errno.into()),
    }
}

fn refused(refusal: Refusal) -> Error {
    device("ask for the attributes of a file", io::Error::other(refusal.message))
}

fn device(what: &str, source: io::Error) -> Error {
    Error::Device { what: what.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A user who serves a mount decides what its door has in it.
    #[test]
    fn a_door_does_not_lead_to_another_file_system() {
        let door = tempfile::tempdir().unwrap();
        fs::create_dir(door.path().join("entry")).unwrap();
        symlink("entry", door.path().join("cp1")).unwrap();
        symlink("/proc/self", door.path().join("cp2")).unwrap();
        assert!(open_checkpoint(door.path(), Cno(1)).unwrap().is_some());
        assert!(open_checkpoint(door.path(), Cno(2)).is_err());
        symlink(door.path(), door.path().join("door")).unwrap();
        assert!(open_checkpoint(&door.path().join("door"), Cno(1)).is_err());
    }
}

//! The writer of a device and its readers, told to other processes of this host by locks.
//!
//! * A writer locks the bytes of the device, exclusively.
//! * A reader holds a shared lock on one byte far beyond the device's end, where nothing is ever
//!   stored. A writer locks that byte while nobody may look at the device.
//! * A process that is about to let go of the device, and only writes what is left, locks the byte
//!   after that one. Others can wait for it.
//!
//! The system lets anybody who may read a file place shared locks on it, but exclusive ones only
//! those who may write. So one exclusive lock says that there is a writer, and no shared lock ever
//! keeps a writer out: a writer needs only one byte that no reader has locked. The system gives
//! locks back when a process dies.
//!
//! Locks belong to an open file description, so that two of one process do not know of each other.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{self, c_int, c_short, off_t};

/// The byte that readers lock: no device is so large.
const READERS: u64 = 1 << 62;
/// The bytes that a writer locks.
const CONTENT: Range<u64> = 0..READERS;
/// The byte that a process locks at its end.
const ENDING: Range<u64> = READERS + 1..READERS + 2;
/// How many locks of readers a writer passes by on the way to a byte that is free.
const MOST_PASSED: u32 = 64;

/// Something that is locked. Dropping it gives it back.
pub type Claim = Box<dyn Send + Sync>;

/// An open file description of its own that has locked the byte of the readers.
struct Locked(File);

impl Drop for Locked {
    fn drop(&mut self) {
        release(&self.0, &readers());
    }
}

/// What came of the attempt to tell others that there is a writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Marked {
    /// Everybody can see it.
    Yes,
    /// Readers have locked every byte.
    No,
}

/// Locks what can be locked of the content, for as long as `device` is open.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if there is another writer, or any system error.
pub(crate) fn write(device: &File) -> io::Result<Marked> {
    let marked = lock_any(device)?;
    // Two writers that come at the same time may have locked different bytes: both give way.
    if is_written(device)? {
        stop_writing(device);
        return Err(io::ErrorKind::WouldBlock.into());
    }
    Ok(marked)
}

/// Locks all bytes of the content, or a run of them that is free.
fn lock_any(device: &File) -> io::Result<Marked> {
    let mut rest = CONTENT;
    for _ in 0..MOST_PASSED {
        if try_lock(device, libc::F_WRLCK, &rest)? {
            return Ok(Marked::Yes);
        }
        let Some(found) = lock_in_the_way(device, libc::F_WRLCK, &rest)? else { continue };
        if rest.start < found.start && try_lock(device, libc::F_WRLCK, &(rest.start..found.start))?
        {
            return Ok(Marked::Yes);
        }
        rest.start = found.end.max(rest.start);
        // A lock of no bytes would reach to the end of the file.
        if rest.is_empty() {
            break;
        }
    }
    Ok(Marked::No)
}

/// Releases the locks of a writer. Closing `device` is not enough: a child process that is just
/// being started may have the description open for a moment longer.
pub(crate) fn stop_writing(device: &File) {
    release(device, &CONTENT);
}

/// Whether somebody else writes to what `device` is open on.
///
/// # Errors
/// Any system error.
pub fn is_written(device: &File) -> io::Result<bool> {
    // Only an exclusive lock is in the way of a shared one.
    Ok(lock_in_the_way(device, libc::F_RDLCK, &CONTENT)?.is_some())
}

/// Whether somebody writes to the file with these numbers, according to the system's table of
/// locks. The table knows the numbers of the file system itself, which some, such as btrfs, do not
/// tell.
pub(crate) fn is_written_by_table(dev: u64, ino: u64) -> bool {
    let table = fs::read_to_string("/proc/locks").unwrap_or_default();
    let file = table_key(dev, ino);
    table.lines().any(|line| {
        let mut words = line.split_whitespace().skip_while(|word| *word != "OFDLCK");
        let exclusive = words.nth(2) == Some("WRITE");
        let same = words.nth(1) == Some(&file);
        let start = words.next().and_then(|start| start.parse().ok());
        exclusive && same && start.is_some_and(|start: u64| CONTENT.contains(&start))
    })
}

/// How the system's table of locks calls a file.
pub(crate) fn table_key(dev: u64, ino: u64) -> String {
    format!("{:02x}:{:02x}:{ino}", rustix::fs::major(dev), rustix::fs::minor(dev))
}

/// Tells writers that the device is being read. Waits while a writer does not want to be looked at.
///
/// # Errors
/// Any system error.
pub(crate) fn read(device: &File) -> io::Result<Claim> {
    let file = File::open(path_of(device))?;
    wait_for_shared_lock(&file, &readers())?;
    Ok(Box::new(Locked(file)))
}

/// Whether somebody reads what `device` is open on.
///
/// # Errors
/// Any system error.
pub fn is_read(device: &File) -> io::Result<bool> {
    Ok(lock_in_the_way(device, libc::F_WRLCK, &readers())?.is_some())
}

/// Lets nobody begin to read. `None` if somebody is reading.
///
/// # Errors
/// Any system error.
pub(crate) fn keep_readers_out(device: &File) -> io::Result<Option<Claim>> {
    let file = File::options().write(true).open(path_of(device))?;
    let locked = try_lock(&file, libc::F_WRLCK, &readers())?;
    Ok(locked.then(|| Box::new(Locked(file)) as Claim))
}

/// Says that this process is about to let go of `device`, until the file is closed.
///
/// # Errors
/// Any system error.
pub(crate) fn announce_end(device: &File) -> io::Result<File> {
    let file = File::options().write(true).open(path_of(device))?;
    match try_lock(&file, libc::F_WRLCK, &ENDING)? {
        true => Ok(file),
        false => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// Whether a process is about to let go of a device or image.
///
/// # Errors
/// It cannot be opened for reading.
pub fn is_ending(path: &Path) -> io::Result<bool> {
    Ok(lock_in_the_way(&File::open(path)?, libc::F_RDLCK, &ENDING)?.is_some())
}

/// Waits until no process is about to let go of a device or image, however long that takes.
///
/// # Errors
/// It cannot be opened for reading.
pub fn wait_for_end(path: &Path) -> io::Result<()> {
    wait_for_shared_lock(&File::open(path)?, &ENDING)
}

fn readers() -> Range<u64> {
    READERS..READERS + 1
}

/// Waits until nobody has an exclusive lock on any of the bytes, and locks them with others.
fn wait_for_shared_lock(file: &File, bytes: &Range<u64>) -> io::Result<()> {
    let shared = lock(libc::F_RDLCK, bytes);
    while let Err(error) = fcntl(file, FcntlArg::F_OFD_SETLKW(&shared)) {
        if error != Errno::EINTR {
            return Err(error.into());
        }
    }
    Ok(())
}

/// Locks bytes, unless somebody has locked one of them.
fn try_lock(file: &File, kind: c_int, bytes: &Range<u64>) -> io::Result<bool> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&lock(kind, bytes))) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A lock of somebody else that is in the way of this one.
fn lock_in_the_way(file: &File, kind: c_int, bytes: &Range<u64>) -> io::Result<Option<Range<u64>>> {
    let mut found = lock(kind, bytes);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut found))?;
    if c_int::from(found.l_type) == libc::F_UNLCK {
        return Ok(None);
    }
    let start = u64::try_from(found.l_start).unwrap_or(0);
    // No length means that it reaches to the end of all files.
    let length = u64::try_from(found.l_len).ok().filter(|length| *length > 0);
    Ok(Some(start..length.map_or(u64::MAX, |length| start.saturating_add(length))))
}

fn release(file: &File, bytes: &Range<u64>) {
    // If this fails, closing is all there is.
    let _ = fcntl(file, FcntlArg::F_OFD_SETLK(&lock(libc::F_UNLCK, bytes)));
}

fn lock(kind: c_int, bytes: &Range<u64>) -> libc::flock {
    libc::flock {
        l_type: kind as c_short,
        l_whence: libc::SEEK_SET as c_short,
        l_start: bytes.start as off_t,
        l_len: (bytes.end - bytes.start) as off_t,
        l_pid: 0,
    }
}

/// A path that opens the same file once more, whatever has become of its name.
pub(crate) fn path_of(device: &File) -> String {
    format!("/proc/self/fd/{}", device.as_raw_fd())
}

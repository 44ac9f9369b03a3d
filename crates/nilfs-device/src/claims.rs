//! What is being read of a device, told to other processes of this host: claims.
//!
//! A claim is a lock on one byte far beyond the end of the device, where nothing is ever stored;
//! the byte's address is the key. Readers hold shared locks, a writer reserves what nobody has
//! claimed with exclusive ones. The system gives locks back when a process dies.
//!
//! Each claim opens the device once more: such locks belong to an open file description, so two
//! claims of a key do not know of each other, and a writer sees those of its own process too.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{self, c_int, c_short, off_t};

/// The byte of key 0: no device is so large.
const FIRST_BYTE: off_t = 1 << 62;
/// There are as many keys as bytes that can be locked behind.
const KEYS: u64 = 1 << 62;

/// Keys that are claimed or reserved. Dropping it gives them back.
pub type Claim = Box<dyn Send + Sync>;

/// An open file description of its own, and the keys that it has locked.
struct Locked {
    file: File,
    keys: Range<u64>,
}

impl Drop for Locked {
    fn drop(&mut self) {
        // Closing is not enough: a child process that is just being started may have the
        // description open for a moment longer. If unlocking fails, closing is all there is.
        let _ = fcntl(&self.file, FcntlArg::F_OFD_SETLK(&lock(libc::F_UNLCK, &self.keys)));
    }
}

/// Claims a key on behalf of those who read `device`.
pub(crate) fn claim(device: &File, key: u64) -> io::Result<Claim> {
    let keys = key..key.saturating_add(1);
    check(&keys)?;
    let file = File::open(path_of(device))?;
    let shared = lock(libc::F_RDLCK, &keys);
    while let Err(error) = fcntl(&file, FcntlArg::F_OFD_SETLKW(&shared)) {
        if error != Errno::EINTR {
            return Err(error.into());
        }
    }
    Ok(Box::new(Locked { file, keys }))
}

/// Gives the claimed keys of a range, and reserves the others.
pub(crate) fn reserve(device: &File, keys: Range<u64>) -> io::Result<(Vec<u64>, Claim)> {
    check(&keys)?;
    let file = File::options().write(true).open(path_of(device))?;
    let locked = Locked { file, keys: keys.clone() };
    let mut claimed = Vec::new();
    let mut left = vec![keys];
    while let Some(keys) = left.pop() {
        // A lock of no bytes would reach to the end of the file.
        if keys.is_empty() || try_exclusive(&locked.file, &keys)? {
            continue;
        }
        match claimed_of(&locked.file, &keys)? {
            Some(key) => {
                claimed.push(key);
                left.extend([keys.start..key, key + 1..keys.end]);
            }
            // It was given back in between.
            None => left.push(keys),
        }
    }
    claimed.sort_unstable();
    Ok((claimed, Box::new(locked)))
}

/// Locks keys exclusively, unless somebody has one of them.
fn try_exclusive(file: &File, keys: &Range<u64>) -> io::Result<bool> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&lock(libc::F_WRLCK, keys))) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A key of the range that somebody has claimed.
fn claimed_of(file: &File, keys: &Range<u64>) -> io::Result<Option<u64>> {
    let mut found = lock(libc::F_WRLCK, keys);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut found))?;
    let is = |kind: c_int| c_int::from(found.l_type) == kind;
    if is(libc::F_UNLCK) {
        return Ok(None);
    }
    let key = u64::try_from(found.l_start - FIRST_BYTE).ok().filter(|key| keys.contains(key));
    match key {
        Some(key) if is(libc::F_RDLCK) && found.l_len == 1 => Ok(Some(key)),
        _ => Err(io::Error::new(
            io::ErrorKind::WouldBlock,
            format!("bytes from {} on are locked, but not by readers of the volume", found.l_start),
        )),
    }
}

fn lock(kind: c_int, keys: &Range<u64>) -> libc::flock {
    libc::flock {
        l_type: kind as c_short,
        l_whence: libc::SEEK_SET as c_short,
        l_start: FIRST_BYTE + keys.start as off_t,
        l_len: (keys.end - keys.start) as off_t,
        l_pid: 0,
    }
}

fn check(keys: &Range<u64>) -> io::Result<()> {
    if keys.start <= keys.end && keys.end <= KEYS {
        return Ok(());
    }
    let message = format!("keys {} to {} cannot be claimed", keys.start, keys.end);
    Err(io::Error::new(io::ErrorKind::InvalidInput, message))
}

/// A path that opens the same file once more, whatever has become of its name.
fn path_of(device: &File) -> String {
    format!("/proc/self/fd/{}", device.as_raw_fd())
}

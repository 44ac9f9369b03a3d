//! Questions to the kernel for which no library has a safe function. All `unsafe` of this crate is
//! here.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use nix::libc;
use rustix::ioctl::{Getter, Opcode, ioctl};

const LOOP_GET_STATUS64: Opcode = 0x4c05;
/// Chooses the signal of a lease.
const F_SETSIG: libc::c_int = 10;

/// What the kernel tells of a loop device (`struct loop_info64`).
#[repr(C)]
pub(crate) struct LoopStatus {
    /// The numbers of the file that it shows, as the kernel packs them.
    device: u64,
    /// The number of that file's inode.
    pub(crate) inode: u64,
    /// If that file is a device itself: which.
    special: u64,
    /// Offset, limit, flags, names and keys, which /sys tells as well.
    _rest: [u64; 26],
}

const _: () = assert!(size_of::<LoopStatus>() == 232);

/// The number of cachestat(2), the same on all architectures that Rust's standard library knows.
const SYS_CACHESTAT: libc::c_long = 451;

/// What the system has in memory of a range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cached {
    pub(crate) bytes: u64,
    /// Some of it has not been written to the device yet.
    pub(crate) unwritten: bool,
}

/// What cachestat(2) counts, in pages (`struct cachestat`).
#[repr(C)]
#[derive(Default)]
struct CacheStat {
    cache: u64,
    dirty: u64,
    writeback: u64,
    _evicted: u64,
    _recently_evicted: u64,
}

/// Asks what the system has in memory of a range of a file. `None` if it does not tell: it is older than
/// Linux 6.5, or the file is somebody else's.
pub(crate) fn cached(file: &File, offset: u64, bytes: u64) -> Option<Cached> {
    let (range, mut found) = ([offset, bytes], CacheStat::default());
    // SAFETY: the system reads the two numbers of a `struct cachestat_range` and writes a `struct
    // cachestat`, whose fields `CacheStat` has.
    let failed = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range.as_ptr(), &raw mut found, 0)
    };
    let page = rustix::param::page_size() as u64;
    (failed == 0).then(|| Cached {
        bytes: found.cache.saturating_mul(page),
        unwritten: found.dirty + found.writeback > 0,
    })
}

impl LoopStatus {
    /// The device of the file system on which the file lies.
    pub(crate) fn device(&self) -> u64 {
        unpacked(self.device)
    }

    /// The device that the file is; 0 if it is an ordinary file.
    pub(crate) fn special(&self) -> u64 {
        unpacked(self.special)
    }
}

/// A device number: the kernel keeps 12 bits of major and 20 bits of minor number in 32.
fn unpacked(packed: u64) -> u64 {
    let major = (packed >> 8) & 0xfff;
    let minor = (packed & 0xff) | ((packed >> 12) & 0xf_ff00);
    rustix::fs::makedev(major as u32, minor as u32)
}

/// Asks which file a loop device shows.
///
/// # Errors
/// It is no loop device, it shows nothing, or any system error.
pub(crate) fn loop_status(device: &File) -> io::Result<LoopStatus> {
    // SAFETY: the kernel fills in a `struct loop_info64`, whose size `LoopStatus` has and of which
    // every content is valid.
    Ok(unsafe { ioctl(device, Getter::<LOOP_GET_STATUS64, LoopStatus>::new())? })
}

/// Whether any process has the file open for writing. Only its owner and the superuser can ask, and
/// `file` must be open for reading only.
///
/// The kernel answers by granting a lease or not. It is given back at once: a process that opens
/// the file for writing in between waits for that.
///
/// # Errors
/// Somebody else asks, or the file system knows no leases.
pub(crate) fn is_open_for_writing(file: &File) -> io::Result<bool> {
    let file = file.as_raw_fd();
    // SAFETY: these commands take and return plain integers.
    let granted = unsafe {
        // The process that is waited for is told so by a signal; this one is ignored unless it is
        // asked for.
        libc::fcntl(file, F_SETSIG, libc::SIGURG);
        libc::fcntl(file, libc::F_SETLEASE, libc::F_RDLCK)
    };
    if granted == -1 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::WouldBlock { Ok(true) } else { Err(error) };
    }
    // SAFETY: as above. Closing the file would give the lease back as well.
    unsafe { libc::fcntl(file, libc::F_SETLEASE, libc::F_UNLCK) };
    Ok(false)
}

/// Begins to write what only memory has of a range of a file, and with `wait`, waits until it is written.
/// The range is not empty. What of it is beyond the end of the file is left out.
///
/// # Errors
/// Something could not be written. The system tells this once.
pub(crate) fn write_out(file: &File, offset: u64, bytes: u64, wait: bool) -> io::Result<()> {
    let how = match wait {
        true => {
            libc::SYNC_FILE_RANGE_WAIT_BEFORE
                | libc::SYNC_FILE_RANGE_WRITE
                | libc::SYNC_FILE_RANGE_WAIT_AFTER
        }
        false => libc::SYNC_FILE_RANGE_WRITE,
    };
    let (offset, bytes) = (offset as libc::off64_t, bytes as libc::off64_t);
    // SAFETY: this call takes and returns plain integers.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), offset, bytes, how) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_unpacked() {
        let unpacked = |packed| {
            let device = unpacked(packed);
            (rustix::fs::major(device), rustix::fs::minor(device))
        };
        assert_eq!(unpacked(0x0701), (7, 1));
        assert_eq!(unpacked(0x0010_0701), (7, 0x101));
    }
}

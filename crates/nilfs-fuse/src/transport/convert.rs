//! Between the words of the FUSE library and ours.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, INodeNo, Request};
use nilfs_engine::{Attr, DeviceCode, FileType, Timestamp};

use crate::nodes::NodeId;
use crate::operations::{Caller, Listed};

pub(super) fn node(ino: INodeNo) -> NodeId {
    NodeId(ino.0)
}

pub(super) fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid() }
}

pub(super) fn code(errno: rustix::io::Errno) -> Errno {
    Errno::from_i32(errno.raw_os_error())
}

pub(super) fn name_of(listed: &Listed) -> &OsStr {
    OsStr::from_bytes(&listed.name)
}

/// Which number of the root an answer must have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbering {
    /// The answer gives the kernel a node.
    Node,
    /// The answer is about a node that the kernel has, or one that it does not take.
    Volume,
}

pub(super) fn file_attr(attr: &Attr, numbering: Numbering) -> FileAttr {
    let mtime = system_time(attr.mtime);
    FileAttr {
        ino: INodeNo(match numbering {
            Numbering::Node => NodeId::from(attr.ino).0,
            Numbering::Volume => attr.ino.0,
        }),
        size: attr.size,
        blocks: attr.blocks,
        // The format has no atime.
        atime: mtime,
        mtime,
        ctime: system_time(attr.ctime),
        crtime: UNIX_EPOCH,
        kind: kind_of(attr.file_type),
        perm: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev.encode() as u32,
        blksize: 0,
        flags: 0,
    }
}

/// Attributes where an answer needs some although there is no inode: node 0 says so.
pub(super) const NOTHING: Attr = Attr {
    ino: nilfs_ondisk::Ino(0),
    file_type: FileType::Regular,
    mode: 0,
    nlink: 0,
    uid: 0,
    gid: 0,
    rdev: DeviceCode { major: 0, minor: 0 },
    size: 0,
    blocks: 0,
    mtime: Timestamp { seconds: 0, nanoseconds: 0 },
    ctime: Timestamp { seconds: 0, nanoseconds: 0 },
    flags: 0,
    generation: 0,
};

pub(super) fn kind_of(file_type: FileType) -> fuser::FileType {
    match file_type {
        FileType::Regular => fuser::FileType::RegularFile,
        FileType::Directory => fuser::FileType::Directory,
        FileType::CharDevice => fuser::FileType::CharDevice,
        FileType::BlockDevice => fuser::FileType::BlockDevice,
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::Socket => fuser::FileType::Socket,
        FileType::Symlink => fuser::FileType::Symlink,
    }
}

/// For the library, which gets this direction right for times before 1970 too.
pub(super) fn system_time(time: Timestamp) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = if time.seconds < 0 {
        UNIX_EPOCH.checked_sub(seconds)
    } else {
        UNIX_EPOCH.checked_add(seconds)
    };
    let nanoseconds = Duration::from_nanos(u64::from(time.nanoseconds));
    whole.and_then(|whole| whole.checked_add(nanoseconds)).unwrap_or(UNIX_EPOCH)
}

/// The time that the kernel sent, from what the library made of it: for `s` seconds and `n`
/// nanoseconds with `s < 0` that is `s` seconds *minus* `n` nanoseconds.
pub(super) fn timestamp(time: SystemTime) -> Timestamp {
    let (seconds, since) = match time.duration_since(UNIX_EPOCH) {
        Ok(since) => (since.as_secs() as i64, since),
        Err(before) => {
            let before = before.duration();
            (0_i64.wrapping_sub_unsigned(before.as_secs()), before)
        }
    };
    Timestamp { seconds, nanoseconds: since.subsec_nanos() }
}

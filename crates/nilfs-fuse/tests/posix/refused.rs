//! Files that the kernel is given and does not accept: it forgets each of them at once, and waits for that.
//! Through io_uring it waited for ever, past all signals, because the entry was not handed back.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;

use nilfs_engine::{Attr, DeviceCode, DirEntry, Ino, SetAttr, StatFs, Timestamp};
use nilfs_fuse::{
    AddEntry, Answer, Caller, Connection, Found, Given, KernelOptions, Mountpoint, NodeId, Serve,
    Session, Validity,
};
use nilfs_ondisk::inode::FileType;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::support::{PATIENCE, names, transport};

const ROOT: u64 = 1;
const OUTER: u64 = 2;
const INNER: u64 = 3;
const HUGE: u64 = 4;

/// A file system in which an inner directory has names that no directory can have.
struct Impossible;

/// Entries of a directory.
fn entries(dir: NodeId) -> &'static [(&'static str, u64)] {
    match dir.0 {
        ROOT => &[("outer", OUTER)],
        OUTER => &[("inner", INNER)],
        INNER => &[("above", OUTER), ("itself", INNER), ("top", ROOT), ("huge", HUGE)],
        _ => &[],
    }
}

fn given(node: u64) -> Given {
    let (file_type, size) = match node {
        HUGE => (FileType::Regular, u64::MAX),
        _ => (FileType::Directory, 0),
    };
    let now = Timestamp { seconds: 1_700_000_000, nanoseconds: 0 };
    let attr = Attr {
        ino: Ino(node),
        file_type,
        mode: 0o755,
        nlink: 2,
        uid: 0,
        gid: 0,
        rdev: DeviceCode::default(),
        size,
        blocks: 0,
        mtime: now,
        ctime: now,
        flags: 0,
        generation: 0,
    };
    Given { node: NodeId(node), attr, validity: Validity::Present }
}

impl Serve for Impossible {
    fn lookup(&self, dir: NodeId, name: &[u8]) -> Answer<Found> {
        let found = entries(dir).iter().find(|(listed, _)| listed.as_bytes() == name);
        Ok(found.map(|(_, node)| given(*node)))
    }

    fn attr(&self, node: NodeId) -> Answer<Given> {
        Ok(given(node.0))
    }

    fn list(&self, dir: NodeId, cookie: u64, files: bool, add: &mut AddEntry<'_>) -> Answer<()> {
        let rest = entries(dir).iter().zip(1..).skip(cookie as usize);
        for (&(name, node), next) in rest {
            let (ino, name, file_type) = (Ino(node), name.as_bytes(), None);
            let file = files.then(|| given(node));
            if !add(&DirEntry { ino, next, name, file_type }, file.as_ref()) {
                break;
            }
        }
        Ok(())
    }

    fn set_attr(&self, _: NodeId, _: &SetAttr) -> Answer<Given> {
        Err(Errno::ROFS)
    }

    fn read_link(&self, _: NodeId) -> Answer<Vec<u8>> {
        Err(Errno::INVAL)
    }

    fn create(&self, _: Caller, _: NodeId, _: &[u8], _: u16, _: DeviceCode) -> Answer<Given> {
        Err(Errno::ROFS)
    }

    fn symlink(&self, _: Caller, _: NodeId, _: &[u8], _: &[u8]) -> Answer<Given> {
        Err(Errno::ROFS)
    }

    fn unlink(&self, _: NodeId, _: &[u8]) -> Answer<()> {
        Err(Errno::ROFS)
    }

    fn rmdir(&self, _: NodeId, _: &[u8]) -> Answer<()> {
        Err(Errno::ROFS)
    }

    fn read(&self, _: NodeId, _: u64, _: &mut [u8]) -> Answer<usize> {
        Ok(0)
    }

    fn write(&self, _: NodeId, _: u64, _: &[u8], _: Option<OFlags>, _: bool) -> Answer<usize> {
        Err(Errno::ROFS)
    }

    fn sync(&self, _: NodeId) -> Answer<()> {
        Ok(())
    }

    fn stat_fs(&self, _: NodeId) -> Answer<StatFs> {
        Err(Errno::NOSYS)
    }
}

/// Lists the inner directory, and looks at what is in it.
fn look_around(root: &Path) -> Vec<String> {
    let inner = root.join("outer/inner");
    let listed = names(&inner);
    for name in &listed {
        assert!(std::fs::metadata(inner.join(name)).is_err(), "{name} cannot be");
    }
    listed
}

#[test]
fn a_directory_with_impossible_files_can_be_listed() {
    let dir = tempfile::tempdir().unwrap();
    let mountpoint = Mountpoint::prepare(dir.path()).unwrap();
    let (mount, channel) =
        mountpoint.mount(Path::new("impossible"), &KernelOptions::default()).unwrap();
    let settings = nilfs_fuse::Settings { transport: transport(), ..Default::default() };
    let session =
        Session::start(Connection::new(channel), Arc::new(Impossible), &settings).unwrap();
    let (looked, seen) = mpsc::channel();
    let root = dir.path().to_owned();
    let look = thread::spawn(move || looked.send(look_around(&root)));
    let seen = seen.recv_timeout(PATIENCE);
    if seen.is_err() {
        // The process could not even end while one of its threads waits.
        rustix::mount::unmount(dir.path(), UnmountFlags::FORCE | UnmountFlags::DETACH).unwrap();
    }
    assert_eq!(seen.unwrap(), ["above", "huge", "itself", "top"]);
    look.join().unwrap().unwrap();
    mount.unmount().unwrap();
    drop(session.join().unwrap());
}

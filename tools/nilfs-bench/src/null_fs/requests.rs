//! Requests, answered from the nodes in memory.

use nilfs_engine::{
    Attr, Clock, DeviceCode, DirEntry, FileType, SetAttr, SetTime, StatFs, SystemClock,
};
use nilfs_fuse::{AddEntry, Answer, Caller, Found, Given, NodeId, Serve};
use parking_lot::Mutex;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::data::Data;
use super::nodes::{NewNode, Nodes};

/// The file system.
pub struct NullFs {
    nodes: Mutex<Nodes>,
    /// Where data are kept, if they are.
    data: Option<Data>,
}

impl NullFs {
    /// An empty one.
    pub fn new(data: Option<Data>) -> Self {
        Self { nodes: Mutex::new(Nodes::new()), data }
    }

    fn make(&self, parent: NodeId, name: &[u8], new: &NewNode<'_>) -> Answer<Given> {
        let attr = self.nodes.lock().create(parent.ino(), name, new)?.attr;
        Ok(Given::present(attr))
    }

    fn remove(&self, parent: NodeId, name: &[u8]) -> Answer<()> {
        self.nodes.lock().remove(parent.ino(), name)
    }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

fn change(attr: &mut Attr, changes: &SetAttr) {
    let now = SystemClock.now();
    attr.mode = changes.mode.unwrap_or(attr.mode);
    attr.uid = changes.uid.unwrap_or(attr.uid);
    attr.gid = changes.gid.unwrap_or(attr.gid);
    attr.mtime = match changes.mtime {
        Some(SetTime::At(time)) => time,
        Some(SetTime::Now) => now,
        None => attr.mtime,
    };
    attr.ctime = now;
}

impl Serve for NullFs {
    fn lookup(&self, dir: NodeId, name: &[u8]) -> Answer<Found> {
        Ok(self.nodes.lock().lookup(dir.ino(), name).ok().map(|node| Given::present(node.attr)))
    }

    fn attr(&self, node: NodeId) -> Answer<Given> {
        Ok(Given::present(self.nodes.lock().node(node.ino())?.attr))
    }

    fn set_attr(&self, node: NodeId, changes: &SetAttr) -> Answer<Given> {
        let mut nodes = self.nodes.lock();
        let node = nodes.node_mut(node.ino())?;
        if let Some(size) = changes.size {
            node.resize(size);
        }
        change(&mut node.attr, changes);
        Ok(Given::present(node.attr))
    }

    fn read_link(&self, node: NodeId) -> Answer<Vec<u8>> {
        Ok(self.nodes.lock().node(node.ino())?.target.clone())
    }

    fn create(
        &self,
        caller: Caller,
        dir: NodeId,
        name: &[u8],
        mode: u16,
        _rdev: DeviceCode,
    ) -> Answer<Given> {
        let file_type = FileType::from_mode(mode).ok_or(Errno::INVAL)?;
        let Caller { uid, gid } = caller;
        self.make(dir, name, &NewNode { file_type, mode, uid, gid, target: b"" })
    }

    fn symlink(&self, caller: Caller, dir: NodeId, name: &[u8], target: &[u8]) -> Answer<Given> {
        let Caller { uid, gid } = caller;
        let file_type = FileType::Symlink;
        self.make(dir, name, &NewNode { file_type, mode: 0o777, uid, gid, target })
    }

    fn unlink(&self, dir: NodeId, name: &[u8]) -> Answer<()> {
        self.remove(dir, name)
    }

    fn rmdir(&self, dir: NodeId, name: &[u8]) -> Answer<()> {
        self.remove(dir, name)
    }

    fn read(&self, node: NodeId, offset: u64, buffer: &mut [u8]) -> Answer<usize> {
        let size = self.nodes.lock().node(node.ino())?.attr.size;
        let left = size.saturating_sub(offset).min(buffer.len() as u64) as usize;
        match &self.data {
            Some(data) => data.read(node.ino(), offset, &mut buffer[..left]).map_err(errno)?,
            None => buffer[..left].fill(0),
        }
        Ok(left)
    }

    fn write(
        &self,
        node: NodeId,
        offset: u64,
        data: &[u8],
        _flags: Option<OFlags>,
        _clear_set_id: bool,
    ) -> Answer<usize> {
        if let Some(kept) = &self.data {
            kept.write(node.ino(), offset, data).map_err(errno)?;
        }
        let mut nodes = self.nodes.lock();
        let node = nodes.node_mut(node.ino())?;
        let end = offset.saturating_add(data.len() as u64);
        if end > node.attr.size {
            node.resize(end);
        }
        Ok(data.len())
    }

    fn sync(&self, _node: NodeId) -> Answer<()> {
        self.sync_fs()
    }

    fn sync_fs(&self) -> Answer<()> {
        self.data.as_ref().map_or(Ok(()), |data| data.sync().map_err(errno))
    }

    /// Room without end.
    fn stat_fs(&self, _node: NodeId) -> Answer<StatFs> {
        const BLOCKS: u64 = 1 << 32;
        Ok(StatFs {
            block_size: 4096,
            blocks: BLOCKS,
            free: BLOCKS,
            available: BLOCKS,
            files: BLOCKS,
            files_free: BLOCKS,
            name_max: 255,
        })
    }

    fn list(&self, dir: NodeId, cookie: u64, files: bool, add: &mut AddEntry<'_>) -> Answer<()> {
        let nodes = self.nodes.lock();
        for (next, name, node) in nodes.list(dir.ino(), cookie)? {
            let Attr { ino, file_type, .. } = node.attr;
            let entry = DirEntry { ino, name, next, file_type: Some(file_type) };
            if !add(&entry, files.then(|| Given::present(node.attr)).as_ref()) {
                break;
            }
        }
        Ok(())
    }
}

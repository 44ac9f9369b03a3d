//! Names and attributes in memory. Knows nothing of FUSE requests.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::ops::Bound;
use std::time::SystemTime;

use fuser::{Errno, FileAttr, FileType, INodeNo};

const BLOCK_BYTES: u32 = 4096;

/// One file, directory or symbolic link.
pub struct Node {
    /// Its attributes.
    pub attr: FileAttr,
    /// Target of a symbolic link, empty for others.
    pub target: OsString,
    entries: Entries,
}

/// The names in a directory. Each has a cookie, which is larger than those of all older names, so
/// that a listing can go on after changes.
#[derive(Default)]
struct Entries {
    by_name: HashMap<OsString, u64>,
    by_cookie: BTreeMap<u64, (OsString, INodeNo)>,
    last_cookie: u64,
}

/// What a new node is to be.
pub struct NewNode {
    /// Type of the node.
    pub kind: FileType,
    /// Permission bits.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Target of a symbolic link, empty for others.
    pub target: OsString,
}

impl NewNode {
    /// A directory of root's.
    fn dir() -> Self {
        let target = OsString::new();
        Self { kind: FileType::Directory, perm: 0o755, uid: 0, gid: 0, target }
    }
}

/// All nodes.
pub struct Nodes {
    nodes: HashMap<INodeNo, Node>,
    last_ino: u64,
}

impl Nodes {
    /// Only the root directory.
    pub fn new() -> Self {
        let mut nodes = Self { nodes: HashMap::new(), last_ino: INodeNo::ROOT.0 };
        let root = Node::new(INodeNo::ROOT, NewNode::dir());
        nodes.nodes.insert(INodeNo::ROOT, root);
        nodes
    }

    /// Attributes that stand for "there is no such node".
    pub fn absent() -> FileAttr {
        Node::new(INodeNo(0), NewNode::dir()).attr
    }

    /// A node by its number.
    pub fn node(&self, ino: INodeNo) -> Result<&Node, Errno> {
        self.nodes.get(&ino).ok_or(Errno::ENOENT)
    }

    /// A node by its number, to be changed.
    pub fn node_mut(&mut self, ino: INodeNo) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&ino).ok_or(Errno::ENOENT)
    }

    /// A node by its name.
    pub fn lookup(&self, parent: INodeNo, name: &OsStr) -> Result<&Node, Errno> {
        let entries = &self.node(parent)?.entries;
        let cookie = entries.by_name.get(name).ok_or(Errno::ENOENT)?;
        let (_, ino) = entries.by_cookie.get(cookie).ok_or(Errno::ENOENT)?;
        self.node(*ino)
    }

    /// Adds a node under a name that does not exist yet.
    pub fn create(&mut self, parent: INodeNo, name: &OsStr, new: NewNode) -> Result<&Node, Errno> {
        let ino = INodeNo(self.last_ino + 1);
        let entries = &mut self.node_mut(parent)?.entries;
        if entries.by_name.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        entries.last_cookie += 1;
        entries.by_name.insert(name.to_owned(), entries.last_cookie);
        entries.by_cookie.insert(entries.last_cookie, (name.to_owned(), ino));
        self.last_ino = ino.0;
        Ok(self.nodes.entry(ino).or_insert_with(|| Node::new(ino, new)))
    }

    /// Removes a name and its node. A file that is still open loses its attributes early, which
    /// no workload notices.
    pub fn remove(&mut self, parent: INodeNo, name: &OsStr) -> Result<(), Errno> {
        let node = self.lookup(parent, name)?;
        if !node.entries.by_name.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        let ino = node.attr.ino;
        let entries = &mut self.node_mut(parent)?.entries;
        if let Some(cookie) = entries.by_name.remove(name) {
            entries.by_cookie.remove(&cookie);
        }
        self.nodes.remove(&ino);
        Ok(())
    }

    /// The names of a directory whose cookies are larger than `after`: cookie, name, node.
    pub fn list(
        &self,
        dir: INodeNo,
        after: u64,
    ) -> Result<impl Iterator<Item = (u64, &OsStr, &Node)>, Errno> {
        let range = (Bound::Excluded(after), Bound::Unbounded);
        let entries = self.node(dir)?.entries.by_cookie.range(range);
        Ok(entries.filter_map(|(cookie, (name, ino))| {
            self.nodes.get(ino).map(|node| (*cookie, name.as_os_str(), node))
        }))
    }
}

impl Node {
    fn new(ino: INodeNo, new: NewNode) -> Self {
        let now = SystemTime::now();
        let attr = FileAttr {
            ino,
            size: new.target.len() as u64,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            kind: new.kind,
            perm: new.perm,
            nlink: 1,
            uid: new.uid,
            gid: new.gid,
            rdev: 0,
            blksize: BLOCK_BYTES,
            flags: 0,
        };
        Self { attr, target: new.target, entries: Entries::default() }
    }

    /// Sets the size of a file.
    pub fn resize(&mut self, size: u64) {
        self.attr.size = size;
        self.attr.blocks = size.div_ceil(u64::from(BLOCK_BYTES)) * u64::from(BLOCK_BYTES / 512);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> NewNode {
        let target = OsString::new();
        NewNode { kind: FileType::RegularFile, perm: 0o644, uid: 0, gid: 0, target }
    }

    #[test]
    fn a_name_exists_from_create_to_remove() {
        let mut nodes = Nodes::new();
        let name = OsStr::new("name");
        assert!(nodes.lookup(INodeNo::ROOT, name).is_err());
        let ino = nodes.create(INodeNo::ROOT, name, file()).unwrap().attr.ino;
        assert_eq!(nodes.lookup(INodeNo::ROOT, name).unwrap().attr.ino, ino);
        assert!(nodes.create(INodeNo::ROOT, name, file()).is_err());
        nodes.remove(INodeNo::ROOT, name).unwrap();
        assert!(nodes.lookup(INodeNo::ROOT, name).is_err());
        assert!(nodes.node(ino).is_err());
    }

    #[test]
    fn a_listing_neither_skips_nor_repeats_while_names_come_and_go() {
        let mut nodes = Nodes::new();
        for name in ["a", "b", "c", "d"] {
            nodes.create(INodeNo::ROOT, OsStr::new(name), file()).unwrap();
        }
        let (cookie, _, _) = nodes.list(INodeNo::ROOT, 0).unwrap().nth(1).unwrap();
        nodes.remove(INodeNo::ROOT, OsStr::new("a")).unwrap();
        nodes.remove(INodeNo::ROOT, OsStr::new("b")).unwrap();
        let rest: Vec<_> =
            nodes.list(INodeNo::ROOT, cookie).unwrap().map(|(_, name, _)| name).collect();
        assert_eq!(rest, ["c", "d"]);
    }
}

//! Names and attributes in memory. Knows nothing of requests.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use nilfs_engine::{Attr, Clock, DeviceCode, FileType, Ino, SystemClock};
use nilfs_fuse::Answer;
use rustix::io::Errno;

const BLOCK_BYTES: u64 = 4096;

/// One file, directory or symbolic link.
pub struct Node {
    /// Its attributes.
    pub attr: Attr,
    /// Target of a symbolic link, empty for others.
    pub target: Vec<u8>,
    entries: Entries,
}

/// The names in a directory. Each has a cookie, which is larger than those of all older names, so
/// that a listing can go on after changes.
#[derive(Default)]
struct Entries {
    by_name: HashMap<Vec<u8>, u64>,
    by_cookie: BTreeMap<u64, (Vec<u8>, Ino)>,
    last_cookie: u64,
}

/// What a new node is to be.
pub struct NewNode<'a> {
    /// Type of the node.
    pub file_type: FileType,
    /// Permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Target of a symbolic link, empty for others.
    pub target: &'a [u8],
}

/// All nodes.
pub struct Nodes {
    nodes: HashMap<Ino, Node>,
    last_ino: Ino,
}

impl Nodes {
    /// Only the root directory, which is root's.
    pub fn new() -> Self {
        let file_type = FileType::Directory;
        let root = NewNode { file_type, mode: 0o755, uid: 0, gid: 0, target: b"" };
        let nodes = HashMap::from([(Ino::ROOT, Node::new(Ino::ROOT, &root))]);
        Self { nodes, last_ino: Ino::ROOT }
    }

    /// A node by its number.
    pub fn node(&self, ino: Ino) -> Answer<&Node> {
        self.nodes.get(&ino).ok_or(Errno::NOENT)
    }

    /// A node by its number, to be changed.
    pub fn node_mut(&mut self, ino: Ino) -> Answer<&mut Node> {
        self.nodes.get_mut(&ino).ok_or(Errno::NOENT)
    }

    /// A node by its name.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Answer<&Node> {
        let entries = &self.node(parent)?.entries;
        let cookie = entries.by_name.get(name).ok_or(Errno::NOENT)?;
        let (_, ino) = entries.by_cookie.get(cookie).ok_or(Errno::NOENT)?;
        self.node(*ino)
    }

    /// Adds a node under a name that does not exist yet.
    pub fn create(&mut self, parent: Ino, name: &[u8], new: &NewNode<'_>) -> Answer<&Node> {
        let ino = Ino(self.last_ino.0 + 1);
        let entries = &mut self.node_mut(parent)?.entries;
        if entries.by_name.contains_key(name) {
            return Err(Errno::EXIST);
        }
        entries.last_cookie += 1;
        entries.by_name.insert(name.to_owned(), entries.last_cookie);
        entries.by_cookie.insert(entries.last_cookie, (name.to_owned(), ino));
        self.last_ino = ino;
        Ok(self.nodes.entry(ino).or_insert_with(|| Node::new(ino, new)))
    }

    /// Removes a name and its node. A file that is still open loses its attributes early, which
    /// no workload notices.
    pub fn remove(&mut self, parent: Ino, name: &[u8]) -> Answer<()> {
        let node = self.lookup(parent, name)?;
        if !node.entries.by_name.is_empty() {
            return Err(Errno::NOTEMPTY);
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
    pub fn list(&self, dir: Ino, after: u64) -> Answer<impl Iterator<Item = (u64, &[u8], &Node)>> {
        let range = (Bound::Excluded(after), Bound::Unbounded);
        let entries = self.node(dir)?.entries.by_cookie.range(range);
        Ok(entries.filter_map(|(cookie, (name, ino))| {
            self.nodes.get(ino).map(|node| (*cookie, name.as_slice(), node))
        }))
    }
}

impl Node {
    fn new(ino: Ino, new: &NewNode<'_>) -> Self {
        let now = SystemClock.now();
        let attr = Attr {
            ino,
            file_type: new.file_type,
            mode: new.mode & 0o7777,
            nlink: 1,
            uid: new.uid,
            gid: new.gid,
            rdev: DeviceCode::default(),
            size: new.target.len() as u64,
            blocks: 0,
            mtime: now,
            ctime: now,
            flags: 0,
            generation: 0,
        };
        Self { attr, target: new.target.to_owned(), entries: Entries::default() }
    }

    /// Sets the size of a file.
    pub fn resize(&mut self, size: u64) {
        self.attr.size = size;
        self.attr.blocks = size.div_ceil(BLOCK_BYTES) * (BLOCK_BYTES / 512);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: NewNode<'_> =
        NewNode { file_type: FileType::Regular, mode: 0o644, uid: 0, gid: 0, target: b"" };

    #[test]
    fn a_name_exists_from_create_to_remove() {
        let mut nodes = Nodes::new();
        let name = b"name";
        assert!(nodes.lookup(Ino::ROOT, name).is_err());
        let ino = nodes.create(Ino::ROOT, name, &FILE).unwrap().attr.ino;
        assert_eq!(nodes.lookup(Ino::ROOT, name).unwrap().attr.ino, ino);
        assert!(nodes.create(Ino::ROOT, name, &FILE).is_err());
        nodes.remove(Ino::ROOT, name).unwrap();
        assert!(nodes.lookup(Ino::ROOT, name).is_err());
        assert!(nodes.node(ino).is_err());
    }

    #[test]
    fn a_listing_neither_skips_nor_repeats_while_names_come_and_go() {
        let mut nodes = Nodes::new();
        for name in [b"a", b"b", b"c", b"d"] {
            nodes.create(Ino::ROOT, name, &FILE).unwrap();
        }
        let (cookie, _, _) = nodes.list(Ino::ROOT, 0).unwrap().nth(1).unwrap();
        nodes.remove(Ino::ROOT, b"a").unwrap();
        nodes.remove(Ino::ROOT, b"b").unwrap();
        let rest: Vec<_> =
            nodes.list(Ino::ROOT, cookie).unwrap().map(|(_, name, _)| name).collect();
        assert_eq!(rest, [b"c", b"d"]);
    }
}

//! The file system as a POSIX programmer imagines it: a few maps in memory.
//!
//! This is the judge, so it is plain rather than fast, and knows nothing of logs, checkpoints or
//! blocks on a device. The one thing it knows of the volume is the block size, because holes come
//! in blocks. A model is cheap to copy: inodes and blocks are shared until they change.

mod file;
mod names;
mod node;

use std::collections::BTreeMap;
use std::sync::Arc;

use nilfs_engine::{SetAttr, SetTime, Timestamp};
use nilfs_ondisk::inode::FileType;

use self::node::{APPEND, FLAGS_DONE, IMMUTABLE};
use crate::name::{Name, Path};
use crate::op::{Handle, Op, Target};
use crate::outcome::{Facts, Outcome, Refusal};
use crate::tree::{Content, Tree};

pub use file::FileBody;
pub use node::{Body, Node};

/// The number of an inode of the model; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

type Answer<T = Outcome> = Result<T, Refusal>;

/// A file system in memory.
#[derive(Debug, Clone)]
pub struct Model {
    block_size: u64,
    nodes: BTreeMap<NodeId, Arc<Node>>,
    handles: BTreeMap<Handle, NodeId>,
    next: NodeId,
}

impl Model {
    /// The root's number.
    pub const ROOT: NodeId = NodeId(0);

    /// A file system that has nothing but its root, with the attributes given.
    #[must_use]
    pub fn new(block_size: u64, root: &Facts) -> Self {
        let body = Body::Directory { entries: BTreeMap::new(), parent: Self::ROOT };
        let root = Node {
            uid: root.uid,
            gid: root.gid,
            flags: root.flags,
            ctime: root.ctime,
            ..Node::new(FileType::Directory, root.mode, body, root.mtime)
        };
        Self {
            block_size,
            nodes: BTreeMap::from([(Self::ROOT, Arc::new(root))]),
            handles: BTreeMap::new(),
            next: NodeId(1),
        }
    }

    /// Does `op` at the time `now` and returns its answer.
    pub fn apply(&mut self, op: &Op, now: Timestamp) -> Outcome {
        self.try_apply(op, now).unwrap_or_else(Outcome::Refused)
    }

    fn try_apply(&mut self, op: &Op, now: Timestamp) -> Answer {
        match op {
            Op::Create { path, kind, mode, rdev } => self.create(path, *kind, *mode, *rdev, now),
            Op::CreateNameless { directory, mode, handle } => {
                self.create_nameless(directory, *mode, *handle, now)
            }
            Op::Symlink { path, length } => self.symlink(path, *length, now),
            Op::Link { target, to } => self.link(target, to, now),
            Op::Unlink(path) => self.unlink(path, now),
            Op::RemoveDirectory(path) => self.remove_directory(path, now),
            Op::Rename { from, to, mode } => self.rename(from, to, *mode, now),
            Op::Write { target, offset, length, fill } => {
                self.write(target, *offset, *length, *fill, now)
            }
            Op::SetAttr { target, changes } => self.set_attr(target, changes, now),
            Op::SetFlags { target, flags } => {
                let id = self.find(target)?;
                if flags & !self.nodes[&id].flags & !FLAGS_DONE != 0 {
                    return Err(Refusal::Unsupported);
                }
                let node = self.change(id);
                node.flags = *flags;
                node.ctime = now;
                Ok(self.facts(id))
            }
            Op::Read { target, offset, length } => {
                let id = self.find(target)?;
                let bytes = self.nodes[&id].file()?.read(self.block_size, *offset, *length);
                Ok(Outcome::Bytes(bytes))
            }
            Op::Seek { target, offset, what } => {
                let id = self.find(target)?;
                // Only regular files have holes; elsewhere the answer means nothing.
                Ok(self.nodes[&id].file().map_or(Outcome::Done, |file| {
                    Outcome::Position(file.seek(self.block_size, *offset, *what))
                }))
            }
            Op::Stat(target) => self.find(target).map(|id| self.facts(id)),
            Op::ReadLink(path) => match &self.nodes[&self.resolve(&path.0)?].body {
                Body::Symlink(text) => Ok(Outcome::Bytes(text.clone())),
                _ => Err(Refusal::Invalid),
            },
            Op::List(path) => self.list(path),
            Op::Open { path, handle } => {
                let id = self.resolve(&path.0)?;
                self.close(*handle);
                self.handles.insert(*handle, id);
                Ok(Outcome::Done)
            }
            Op::Close(handle) => {
                self.close(*handle);
                Ok(Outcome::Done)
            }
            Op::Fsync(target) | Op::Fdatasync(target) => self.find(target).map(|_| Outcome::Done),
            Op::Sync
            | Op::Commit
            | Op::Checkpoint
            | Op::SetSnapshot { .. }
            | Op::FollowRule
            | Op::DeleteCheckpoints { .. }
            // It takes to know what the checkpoint shows.
            | Op::RollBack { .. }
            | Op::Clean { .. }
            | Op::Resize { .. }
            | Op::Trim => Ok(Outcome::Done),
            Op::Remount => {
                self.close_all();
                Ok(Outcome::Done)
            }
        }
    }

    /// Makes everything what it was `then`. What has changed since has `now` for the time of its last
    /// change; files that are open stay, even without a name.
    pub fn roll_back(&mut self, then: &Self, now: Timestamp) {
        for (id, node) in &then.nodes {
            let known = self.nodes.get(id);
            let is_as_it_was = known
                .is_some_and(|known| Node { ctime: node.ctime, ..Node::clone(known) } == **node);
            if node.nlink > 0 && !is_as_it_was {
                self.nodes.insert(*id, Arc::new(Node { ctime: now, ..Node::clone(node) }));
            }
        }
        let has_name = |id: &NodeId| then.nodes.get(id).is_some_and(|node| node.nlink > 0);
        let gone: Vec<NodeId> = self.nodes.keys().filter(|id| !has_name(id)).copied().collect();
        for id in gone {
            let node = self.change(id);
            if node.nlink > 0 {
                (node.nlink, node.ctime) = (0, now);
                if let Body::Directory { entries, .. } = &mut node.body {
                    entries.clear();
                }
            }
            self.forget_if_unused(id);
        }
        self.next = self.next.max(then.next);
    }

    /// Takes over which files have changed `now` according to `found`, after a rollback: a file that has
    /// come back under another number is another one for the volume, even if all else is the same.
    pub fn take_changed(&mut self, found: &Tree, now: Timestamp) {
        let mut changed = Vec::new();
        self.visit(Self::ROOT, &Path::root(), &mut |path, id, _| {
            let file = found.files.get(&path.bytes());
            changed.extend(file.filter(|file| file.facts.ctime == now).map(|_| id));
        });
        changed.into_iter().for_each(|id| self.change(id).ctime = now);
    }

    /// Lets all open files go, as a crash or an unmount does.
    pub fn close_all(&mut self) {
        let handles: Vec<Handle> = self.handles.keys().copied().collect();
        handles.into_iter().for_each(|handle| self.close(handle));
    }

    /// The inode that an operation would act on.
    ///
    /// # Errors
    /// The path does not lead anywhere, or the handle is not open.
    pub fn find(&self, target: &Target) -> Result<NodeId, Refusal> {
        match target {
            Target::Path(path) => self.resolve(&path.0),
            Target::Handle(handle) => self.handles.get(handle).copied().ok_or(Refusal::NotOpen),
        }
    }

    /// An inode, if it exists.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id).map(Arc::as_ref)
    }

    /// How many inodes there are, open files without a name included.
    #[must_use]
    pub fn inodes(&self) -> u64 {
        self.nodes.len() as u64
    }

    /// The handles that are open.
    #[must_use]
    pub fn handles(&self) -> Vec<Handle> {
        self.handles.keys().copied().collect()
    }

    /// All paths with the kind of file they lead to, the root's first.
    #[must_use]
    pub fn paths(&self) -> Vec<(Path, FileType)> {
        let mut paths = vec![(Path::root(), FileType::Directory)];
        self.visit(Self::ROOT, &Path::root(), &mut |path, _, node| {
            paths.push((path.clone(), node.kind));
        });
        paths
    }

    /// The whole tree.
    #[must_use]
    pub fn tree(&self) -> Tree {
        let root = &self.nodes[&Self::ROOT];
        let mut names = vec![(Vec::new(), Self::ROOT.0, root.facts(), Content::None)];
        self.visit(Self::ROOT, &Path::root(), &mut |path, id, node| {
            names.push((path.bytes(), id.0, node.facts(), node.content()));
        });
        Tree::new(names)
    }

    /// All regular files that have a name, each with the first path, in order, that leads to it.
    #[must_use]
    pub fn regular_files(&self) -> BTreeMap<NodeId, Vec<u8>> {
        let mut files: BTreeMap<NodeId, Vec<u8>> = BTreeMap::new();
        self.visit(Self::ROOT, &Path::root(), &mut |path, id, node| {
            if node.kind == FileType::Regular {
                let (path, first) = (path.bytes(), files.entry(id));
                first.and_modify(|first| *first = path.clone().min(first.clone())).or_insert(path);
            }
        });
        files
    }

    /// Gives a regular file the size and the blocks of `other`, and the times of `facts`.
    pub fn set_content(&mut self, id: NodeId, other: &Node, facts: &Facts) {
        let node = self.change(id);
        node.body.clone_from(&other.body);
        (node.mtime, node.ctime) = (facts.mtime, facts.ctime);
    }

    fn visit(&self, directory: NodeId, path: &Path, each: &mut dyn FnMut(&Path, NodeId, &Node)) {
        let Body::Directory { entries, .. } = &self.nodes[&directory].body else {
            return;
        };
        for (name, id) in entries {
            let path = path.join(*name);
            each(&path, *id, &self.nodes[id]);
            self.visit(*id, &path, each);
        }
    }

    fn resolve(&self, names: &[Name]) -> Answer<NodeId> {
        names.iter().try_fold(Self::ROOT, |at, name| {
            name.check_length()?;
            let entries = self.nodes[&at].entries()?;
            entries.get(name).copied().ok_or(Refusal::NotFound)
        })
    }

    fn change(&mut self, id: NodeId) -> &mut Node {
        let node = self.nodes.get_mut(&id).expect("the caller has found the inode");
        Arc::make_mut(node)
    }

    fn facts(&self, id: NodeId) -> Outcome {
        Outcome::Facts(self.nodes[&id].facts())
    }

    fn close(&mut self, handle: Handle) {
        if let Some(id) = self.handles.remove(&handle) {
            self.forget_if_unused(id);
        }
    }

    /// Removes an inode that has neither a name nor a handle.
    fn forget_if_unused(&mut self, id: NodeId) {
        let open = self.handles.values().any(|held| *held == id);
        if self.nodes[&id].nlink == 0 && !open {
            self.nodes.remove(&id);
        }
    }

    fn list(&self, path: &Path) -> Answer {
        let entries = self.nodes[&self.resolve(&path.0)?].entries()?;
        let mut names: Vec<_> =
            entries.iter().map(|(name, id)| (name.bytes(), self.nodes[id].kind)).collect();
        names.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(Outcome::Names(names))
    }

    fn write(
        &mut self,
        target: &Target,
        offset: u64,
        length: u64,
        fill: u32,
        now: Timestamp,
    ) -> Answer {
        let id = self.find(target)?;
        let block_size = self.block_size;
        let file = self.nodes[&id].file().map_err(|_| Refusal::Invalid)?;
        file.check_size(offset.saturating_add(length))?;
        // Regardless of the flags: a cache may have accepted the data before the flags were set.
        if length > 0 {
            let node = self.change(id);
            node.file_mut()?.write(block_size, offset, length, fill);
            (node.mtime, node.ctime) = (now, now);
        }
        Ok(Outcome::Done)
    }

    fn set_attr(&mut self, target: &Target, changes: &SetAttr, now: Timestamp) -> Answer {
        let id = self.find(target)?;
        let block_size = self.block_size;
        if changes.size.is_some() {
            self.nodes[&id].file()?;
        }
        // The mtime alone is somebody's choice, with a ctime it comes from the kernel's cache.
        let from_cache = changes.mtime.filter(|_| changes.ctime.is_some());
        let harmless = SetAttr { mtime: from_cache, ctime: changes.ctime, ..SetAttr::default() };
        let flags = self.nodes[&id].flags;
        if flags & IMMUTABLE != 0 || flags & APPEND != 0 && *changes != harmless {
            return Err(Refusal::NotPermitted);
        }
        if let Some(size) = changes.size {
            self.nodes[&id].file()?.check_size(size)?;
        }
        let node = self.change(id);
        if let Some(size) = changes.size {
            node.file_mut()?.truncate(block_size, size);
            node.mtime = now;
        }
        node.mode = changes.mode.unwrap_or(node.mode);
        node.uid = changes.uid.unwrap_or(node.uid);
        node.gid = changes.gid.unwrap_or(node.gid);
        node.mtime = match changes.mtime {
            Some(SetTime::At(time)) => time,
            Some(SetTime::Now) => now,
            None => node.mtime,
        };
        node.ctime = changes.ctime.unwrap_or(now);
        Ok(self.facts(id))
    }
}

//! Operations of the model on names.

use std::collections::BTreeMap;
use std::sync::Arc;

use nilfs_engine::{RenameMode, Timestamp};
use nilfs_ondisk::inode::{DeviceCode, FileType, LINK_MAX};

use super::node::{IMMUTABLE, flags_inherited};
use super::{Answer, Body, FileBody, Model, Node, NodeId};
use crate::name::{Name, Path};
use crate::op::{Handle, Target, link_text};
use crate::outcome::{Outcome, Refusal};

/// The bit of a directory's mode that hands its group down.
const SET_GID: u16 = 0o2000;

impl Model {
    pub(super) fn create(
        &mut self,
        path: &Path,
        kind: FileType,
        mode: u16,
        rdev: DeviceCode,
        now: Timestamp,
    ) -> Answer {
        let (parent, name) = self.free_name(path)?;
        let body = match kind {
            FileType::Regular => Body::File(FileBody::default()),
            FileType::Directory => Body::Directory { entries: BTreeMap::new(), parent },
            _ => Body::Special(rdev),
        };
        self.add(parent, name, Node::new(kind, mode, body, now), now)
    }

    pub(super) fn create_nameless(
        &mut self,
        directory: &Path,
        mode: u16,
        handle: Handle,
        now: Timestamp,
    ) -> Answer {
        let parent = self.resolve(&directory.0)?;
        self.nodes[&parent].entries()?;
        self.check_growing(parent)?;
        let body = Body::File(FileBody::default());
        let id = self.insert(parent, Node::new(FileType::Regular, mode, body, now));
        self.change(id).nlink = 0;
        let facts = self.facts(id);
        self.close(handle);
        self.handles.insert(handle, id);
        Ok(facts)
    }

    pub(super) fn symlink(&mut self, path: &Path, length: usize, now: Timestamp) -> Answer {
        self.place(path)?;
        if length as u64 >= self.block_size {
            return Err(Refusal::NameTooLong);
        }
        let (parent, name) = self.free_name(path)?;
        let body = Body::Symlink(link_text(length));
        self.add(parent, name, Node::new(FileType::Symlink, 0o777, body, now), now)
    }

    pub(super) fn link(&mut self, target: &Target, to: &Path, now: Timestamp) -> Answer {
        let id = self.find(target)?;
        let (parent, name) = self.place(to)?;
        name.check_length()?;
        match &self.nodes[&id] {
            node if node.kind == FileType::Directory => return Err(Refusal::NotPermitted),
            _ if !self.is_directory(parent) => return Err(Refusal::NotDirectory),
            node if node.is_protected() => return Err(Refusal::NotPermitted),
            node if node.nlink >= u32::from(LINK_MAX) => return Err(Refusal::TooManyLinks),
            _ => {}
        }
        let (parent, name) = self.free_name(to)?;
        let node = self.change(id);
        node.nlink += 1;
        node.ctime = now;
        self.set_entry(parent, name, Some(id), now);
        Ok(self.facts(id))
    }

    pub(super) fn unlink(&mut self, path: &Path, now: Timestamp) -> Answer {
        let (parent, name) = self.parent(path)?;
        let id = self.entry(parent, name)?.ok_or(Refusal::NotFound)?;
        self.check_unprotected(&[parent, id])?;
        if self.nodes[&id].kind == FileType::Directory {
            return Err(Refusal::IsDirectory);
        }
        self.set_entry(parent, name, None, now);
        self.drop_link(id, now);
        Ok(Outcome::Done)
    }

    pub(super) fn remove_directory(&mut self, path: &Path, now: Timestamp) -> Answer {
        let (parent, name) = self.parent(path)?;
        let id = self.entry(parent, name)?.ok_or(Refusal::NotFound)?;
        self.check_unprotected(&[parent, id])?;
        if !self.nodes[&id].entries()?.is_empty() {
            return Err(Refusal::NotEmpty);
        }
        self.set_entry(parent, name, None, now);
        self.drop_link(id, now);
        self.change(parent).nlink -= 1;
        Ok(Outcome::Done)
    }

    pub(super) fn rename(
        &mut self,
        from: &Path,
        to: &Path,
        mode: RenameMode,
        now: Timestamp,
    ) -> Answer {
        let ((old_parent, old_name), (new_parent, new_name)) = (self.place(from)?, self.place(to)?);
        old_name.check_length()?;
        new_name.check_length()?;
        self.nodes[&new_parent].entries()?;
        let moved = self.entry(old_parent, old_name)?.ok_or(Refusal::NotFound)?;
        let there = self.entry(new_parent, new_name)?;
        self.check_unprotected(&[old_parent, moved])?;
        match there {
            Some(there) => self.check_unprotected(&[new_parent, there])?,
            None => self.check_growing(new_parent)?,
        }
        if there.is_some() && mode == RenameMode::NoReplace {
            return Err(Refusal::Exists);
        }
        if mode == RenameMode::Exchange {
            let other = there.ok_or(Refusal::NotFound)?;
            if self.is_within(new_parent, moved) || self.is_within(old_parent, other) {
                return Err(Refusal::Invalid);
            }
            if moved != other {
                self.put(new_parent, new_name, moved, now);
                self.put(old_parent, old_name, other, now);
                self.recount(&[(moved, old_parent, new_parent), (other, new_parent, old_parent)]);
            }
            return Ok(Outcome::Done);
        }
        if there == Some(moved) {
            return Ok(Outcome::Done);
        }
        if let Some(replaced) = there {
            self.check_replacement(moved, replaced)?;
        }
        if self.is_within(new_parent, moved) {
            return Err(Refusal::Invalid);
        }
        if let Some(replaced) = there {
            self.drop_link(replaced, now);
            if self.is_directory(moved) {
                self.change(new_parent).nlink -= 1;
            }
        }
        self.set_entry(old_parent, old_name, None, now);
        self.put(new_parent, new_name, moved, now);
        self.recount(&[(moved, old_parent, new_parent)]);
        Ok(Outcome::Done)
    }

    fn check_unprotected(&self, files: &[NodeId]) -> Answer<()> {
        match files.iter().any(|id| self.nodes[id].is_protected()) {
            true => Err(Refusal::NotPermitted),
            false => Ok(()),
        }
    }

    /// Names can be added to a directory from which none can be taken.
    fn check_growing(&self, directory: NodeId) -> Answer<()> {
        match self.nodes[&directory].flags & IMMUTABLE {
            0 => Ok(()),
            _ => Err(Refusal::NotPermitted),
        }
    }

    fn is_directory(&self, id: NodeId) -> bool {
        self.nodes[&id].kind == FileType::Directory
    }

    fn check_replacement(&self, moved: NodeId, replaced: NodeId) -> Answer<()> {
        let replaced = &self.nodes[&replaced];
        match (&self.nodes[&moved].body, &replaced.body) {
            (Body::Directory { .. }, Body::Directory { entries, .. }) => {
                if entries.is_empty() {
                    Ok(())
                } else {
                    Err(Refusal::NotEmpty)
                }
            }
            (Body::Directory { .. }, _) => Err(Refusal::NotDirectory),
            (_, Body::Directory { .. }) => Err(Refusal::IsDirectory),
            _ => Ok(()),
        }
    }

    /// Whether `id` is `directory` or lies below it.
    fn is_within(&self, id: NodeId, directory: NodeId) -> bool {
        let mut at = id;
        loop {
            if at == directory {
                return true;
            }
            match &self.nodes[&at].body {
                Body::Directory { parent, .. } if at != Self::ROOT => at = *parent,
                _ => return false,
            }
        }
    }

    /// What should be a directory, and the name of a path's last part.
    fn place(&self, path: &Path) -> Answer<(NodeId, Name)> {
        let (parents, name) = path.split().ok_or(Refusal::Invalid)?;
        Ok((self.resolve(parents)?, name))
    }

    /// The directory and the name of a path's last part.
    fn parent(&self, path: &Path) -> Answer<(NodeId, Name)> {
        let (parent, name) = self.place(path)?;
        name.check_length()?;
        self.nodes[&parent].entries()?;
        Ok((parent, name))
    }

    fn free_name(&self, path: &Path) -> Answer<(NodeId, Name)> {
        let (parent, name) = self.parent(path)?;
        self.check_growing(parent)?;
        match self.entry(parent, name)? {
            Some(_) => Err(Refusal::Exists),
            None => Ok((parent, name)),
        }
    }

    fn entry(&self, directory: NodeId, name: Name) -> Answer<Option<NodeId>> {
        Ok(self.nodes[&directory].entries()?.get(&name).copied())
    }

    fn add(&mut self, parent: NodeId, name: Name, node: Node, now: Timestamp) -> Answer {
        if node.kind == FileType::Directory {
            self.change(parent).nlink += 1;
        }
        let id = self.insert(parent, node);
        self.set_entry(parent, name, Some(id), now);
        Ok(self.facts(id))
    }

    /// Adds an inode, with what its directory hands down.
    fn insert(&mut self, parent: NodeId, mut node: Node) -> NodeId {
        let id = self.next;
        self.next = NodeId(id.0 + 1);
        let directory = &self.nodes[&parent];
        node.flags = flags_inherited(directory.flags, node.kind);
        if directory.mode & SET_GID != 0 {
            node.gid = directory.gid;
            node.mode |= if node.kind == FileType::Directory { SET_GID } else { 0 };
        }
        self.nodes.insert(id, Arc::new(node));
        id
    }

    /// Makes `name` lead to `id`, or to nothing.
    fn set_entry(&mut self, directory: NodeId, name: Name, id: Option<NodeId>, now: Timestamp) {
        let node = self.change(directory);
        (node.mtime, node.ctime) = (now, now);
        if let Body::Directory { entries, .. } = &mut node.body {
            match id {
                Some(id) => entries.insert(name, id),
                None => entries.remove(&name),
            };
        }
    }

    /// Makes `name` lead to `id`, which comes from elsewhere.
    fn put(&mut self, directory: NodeId, name: Name, id: NodeId, now: Timestamp) {
        self.set_entry(directory, name, Some(id), now);
        let node = self.change(id);
        node.ctime = now;
        if let Body::Directory { parent, .. } = &mut node.body {
            *parent = directory;
        }
    }

    /// Corrects the link counts of the parents of what was moved: (what, from where, to where).
    fn recount(&mut self, moves: &[(NodeId, NodeId, NodeId)]) {
        for (id, from, to) in moves {
            if self.nodes[id].kind == FileType::Directory {
                self.change(*from).nlink -= 1;
                self.change(*to).nlink += 1;
            }
        }
    }

    /// Takes a name away from an inode; a directory has then none at all.
    fn drop_link(&mut self, id: NodeId, now: Timestamp) {
        let node = self.change(id);
        node.nlink = match node.kind {
            FileType::Directory => 0,
            _ => node.nlink - 1,
        };
        node.ctime = now;
        self.forget_if_unused(id);
    }
}

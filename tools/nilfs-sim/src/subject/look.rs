//! Takes a picture of the engine's whole tree, and holds it against itself on the way: what a
//! directory lists against what lookup finds, holes against what is read, and the counts of
//! blocks against the data that are there.

use std::collections::BTreeMap;
use std::sync::Arc;

use nilfs_engine::{Attr, Error, InodeRef, Result, Seek};
use nilfs_ondisk::Ino;
use nilfs_ondisk::inode::FileType;

use super::{Subject, guarded};
use crate::name::{NAME_MAX, Path};
use crate::outcome::Facts;
use crate::tree::{Blocks, Content, Tree, shown};

/// How many entries one call of `read_dir` is allowed to give: few, so that listings resume.
const ENTRIES_PER_CALL: usize = 7;
/// A listing longer than this is taken for an endless one.
const ENTRIES_MAX: usize = 100_000;
/// Files up to this size are read whole, holes included.
const READ_WHOLE: u64 = 64 * 1024;
/// The fewest children of a B-tree node that is neither root nor alone (blocks of 1 KiB).
const FEWEST_CHILDREN: u64 = 32;

/// An entry of a directory as it is listed.
#[derive(Debug, Clone)]
pub(super) struct Listed {
    pub(super) name: Vec<u8>,
    pub(super) ino: Ino,
    pub(super) kind: Option<FileType>,
}

type Names = Vec<(Vec<u8>, u64, Facts, Content)>;

impl Subject {
    /// The whole tree.
    ///
    /// # Errors
    /// What the engine said, or where it contradicts itself, in words.
    pub fn tree(&self) -> Result<Tree, String> {
        let root = guarded(|| self.fs.attr(&self.root)).map_err(|error| format!("/: {error}"))?;
        let mut names: Names = vec![(Vec::new(), root.ino.0, Facts::from(&root), Content::None)];
        let mut ahead = vec![(Vec::new(), Arc::clone(&self.root), root)];
        while let Some((path, directory, attr)) = ahead.pop() {
            self.look_into(&path, &directory, &attr, &mut names, &mut ahead)
                .map_err(|what| format!("{}: {what}", shown(&path)))?;
        }
        Ok(Tree::new(names))
    }

    fn look_into(
        &self,
        path: &[u8],
        directory: &InodeRef,
        attr: &Attr,
        names: &mut Names,
        ahead: &mut Vec<(Vec<u8>, InodeRef, Attr)>,
    ) -> Result<(), String> {
        self.check_size(attr)?;
        for listed in guarded(|| self.entries(directory))? {
            let path = match path {
                [] => listed.name.clone(),
                _ => [path, b"/", &listed.name].concat(),
            };
            let in_words = |what: String| format!("{}: {what}", shown(&path));
            let entry = guarded(|| self.fs.lookup(directory, &listed.name)).map_err(in_words)?;
            let attr = entry.attr;
            if (listed.ino, listed.kind) != (attr.ino, Some(attr.file_type)) {
                return Err(in_words(format!("listed as {listed:?}, found as {attr:?}")));
            }
            let by_number = guarded(|| self.fs.inode(attr.ino)).map_err(in_words)?;
            if by_number.attr != attr {
                return Err(in_words(format!("by its number it is {:?}", by_number.attr)));
            }
            let content = self.content(&entry.inode, &attr).map_err(in_words)?;
            names.push((path.clone(), attr.ino.0, Facts::from(&attr), content));
            if attr.file_type == FileType::Directory {
                self.check_parent(&entry.inode, directory).map_err(in_words)?;
                ahead.push((path, entry.inode, attr));
            }
        }
        Ok(())
    }

    /// The names that a listing of a directory has, `between` being called again and again
    /// while it is under way.
    ///
    /// # Errors
    /// The engine's, in words.
    pub fn list_slowly(
        &mut self,
        path: &Path,
        mut between: impl FnMut(&mut Self),
    ) -> Result<Vec<Vec<u8>>, String> {
        let in_words = |error| format!("list {path}: {error:?}");
        let directory = self.resolve(&path.0).map_err(in_words)?;
        let mut listed = Vec::new();
        let mut cookie = 0;
        while let Some(next) = guarded(|| self.list_some(&directory, cookie, &mut listed))? {
            cookie = next;
            between(self);
        }
        Ok(listed.into_iter().map(|entry| entry.name).collect())
    }

    /// The entries of a directory without `.` and `..`.
    pub(super) fn entries(&self, directory: &InodeRef) -> Result<Vec<Listed>> {
        let mut listed = Vec::new();
        let mut cookie = 0;
        while let Some(next) = self.list_some(directory, cookie, &mut listed)? {
            cookie = next;
            if listed.len() > ENTRIES_MAX {
                break;
            }
        }
        listed.retain(|entry| entry.name != b"." && entry.name != b"..");
        Ok(listed)
    }

    /// Adds some entries of a directory; returns where the listing goes on, if it does.
    fn list_some(
        &self,
        directory: &InodeRef,
        cookie: u64,
        listed: &mut Vec<Listed>,
    ) -> Result<Option<u64>> {
        let before = listed.len();
        let mut next = None;
        self.fs.read_dir(directory, cookie, &mut |entry| {
            if listed.len() - before == ENTRIES_PER_CALL {
                return false;
            }
            next = Some(entry.next);
            listed.push(Listed {
                name: entry.name.to_vec(),
                ino: entry.ino,
                kind: entry.file_type,
            });
            true
        })?;
        Ok(next)
    }

    fn check_parent(&self, directory: &InodeRef, parent: &InodeRef) -> Result<(), String> {
        for (name, expected) in [(&b"."[..], directory), (b"..", parent)] {
            let found = guarded(|| self.fs.lookup(directory, name))?.attr.ino;
            if found != expected.ino() {
                let name = String::from_utf8_lossy(name);
                return Err(format!("{name} is inode {found}, expected {}", expected.ino()));
            }
        }
        Ok(())
    }

    fn check_size(&self, directory: &Attr) -> Result<(), String> {
        let block_size = self.block_size()?;
        let blocks = directory.size / block_size;
        if !directory.size.is_multiple_of(block_size) || blocks == 0 {
            return Err(format!("the size of a directory is {}", directory.size));
        }
        self.check_blocks(directory, blocks)
    }

    /// Whether `st_blocks` can be right for a file with this many data blocks. While changes wait
    /// for a checkpoint, nobody knows how many nodes the B-tree will have.
    fn check_blocks(&self, attr: &Attr, data: u64) -> Result<(), String> {
        if !self.settled {
            return Ok(());
        }
        let sectors = self.block_size()? / 512;
        let nodes = if data == 0 { 0 } else { 14 + 2 * data.div_ceil(FEWEST_CHILDREN) };
        // The root that mkfs makes counts its one block as one sector.
        let least = if attr.ino == Ino::ROOT { 1 } else { data * sectors };
        if !(least..=(data + nodes) * sectors).contains(&attr.blocks) {
            return Err(format!("{} sectors for {data} blocks of data", attr.blocks));
        }
        Ok(())
    }

    fn block_size(&self) -> Result<u64, String> {
        Ok(u64::from(guarded(|| self.fs.stat_fs())?.block_size))
    }

    fn content(&self, inode: &InodeRef, attr: &Attr) -> Result<Content, String> {
        match attr.file_type {
            FileType::Symlink => {
                let text = guarded(|| self.fs.read_link(inode))?;
                self.check_blocks(attr, 1)?;
                Ok(Content::Text(text))
            }
            FileType::Regular => {
                let blocks = self.blocks(inode, attr.size)?;
                self.check_blocks(attr, blocks.len() as u64)?;
                Ok(Content::Blocks(blocks))
            }
            _ => Ok(Content::None),
        }
    }

    fn blocks(&self, inode: &InodeRef, size: u64) -> Result<Blocks, String> {
        let block_size = self.block_size()?;
        let mut blocks = BTreeMap::new();
        let mut at = 0;
        while let Some(start) = self.position(inode, at, Seek::Data)? {
            let end = self.position(inode, start, Seek::Hole)?.unwrap_or(size);
            let aligned = start % block_size == 0 && (end % block_size == 0 || end == size);
            if start < at || end <= start || end > size || !aligned {
                return Err(format!("data from {start} to {end} in a file of {size} bytes"));
            }
            for index in start / block_size..end.div_ceil(block_size) {
                blocks.insert(index, self.block(inode, index, block_size, size)?.into());
            }
            at = end;
        }
        if size <= READ_WHOLE {
            self.check_whole(inode, size, block_size, &blocks)?;
        }
        Ok(blocks)
    }

    fn position(&self, inode: &InodeRef, at: u64, what: Seek) -> Result<Option<u64>, String> {
        guarded(|| match self.fs.seek(inode, at, what) {
            Ok(position) => Ok(Some(position)),
            Err(Error::NoData) => Ok(None),
            Err(error) => Err(error),
        })
    }

    /// One block of a file, filled with zeros beyond its end.
    fn block(
        &self,
        inode: &InodeRef,
        index: u64,
        block_size: u64,
        size: u64,
    ) -> Result<Vec<u8>, String> {
        let start = index * block_size;
        let expected = (size - start).min(block_size) as usize;
        let mut bytes = vec![0; block_size as usize];
        let got = guarded(|| self.fs.read(inode, start, &mut bytes))?;
        if got != expected {
            return Err(format!("read {got} bytes at {start}, expected {expected}"));
        }
        if let Some(at) = bytes[got..].iter().position(|byte| *byte != 0) {
            return Err(format!("byte {at} behind what was read at {start} is not zero"));
        }
        Ok(bytes)
    }

    fn check_whole(
        &self,
        inode: &InodeRef,
        size: u64,
        block_size: u64,
        blocks: &Blocks,
    ) -> Result<(), String> {
        let mut expected = vec![0; size as usize];
        for (index, block) in blocks {
            let start = (index * block_size) as usize;
            let take = block.len().min(expected.len() - start);
            expected[start..start + take].copy_from_slice(&block[..take]);
        }
        let mut whole = vec![0xee; size as usize + NAME_MAX];
        let got = guarded(|| self.fs.read(inode, 0, &mut whole))?;
        whole.truncate(got);
        if whole != expected {
            return Err("what is read at once differs from what is read by blocks".into());
        }
        Ok(())
    }
}

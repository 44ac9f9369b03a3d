//! Reads the engine's whole tree, and compares it with itself on the way: what a
//! directory lists against what lookup finds, holes against what is read, and the counts of
//! blocks against the data that are there.

use std::collections::BTreeMap;

use nilfs_engine::{Attr, Error, Files, Result, Seek};
use nilfs_ondisk::Ino;
use nilfs_ondisk::inode::FileType;

use super::guarded;
use crate::name::NAME_MAX;
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

/// The tree below a directory.
pub(super) struct TreeReader<'a> {
    pub(super) files: &'a dyn Files,
    pub(super) root: Ino,
    /// Nothing has been changed since the mount.
    pub(super) settled: bool,
}

impl TreeReader<'_> {
    /// The whole tree.
    pub(super) fn tree(&self) -> Result<Tree, String> {
        let root = guarded(|| self.files.attr(self.root)).map_err(|error| format!("/: {error}"))?;
        let mut names: Names = vec![(Vec::new(), root.ino.0, Facts::from(&root), Content::None)];
        let mut ahead = vec![(Vec::new(), root)];
        while let Some((path, attr)) = ahead.pop() {
            self.read_directory(&path, &attr, &mut names, &mut ahead)
                .map_err(|what| format!("{}: {what}", shown(&path)))?;
        }
        Ok(Tree::new(names))
    }

    fn read_directory(
        &self,
        path: &[u8],
        directory: &Attr,
        names: &mut Names,
        ahead: &mut Vec<(Vec<u8>, Attr)>,
    ) -> Result<(), String> {
        self.check_size(directory)?;
        for listed in guarded(|| entries(self.files, directory.ino))? {
            let path = match path {
                [] => listed.name.clone(),
                _ => [path, b"/", &listed.name].concat(),
            };
            let in_words = |what: String| format!("{}: {what}", shown(&path));
            let attr = guarded(|| self.lookup(directory.ino, &listed.name)).map_err(in_words)?;
            if (listed.ino, listed.kind) != (attr.ino, Some(attr.file_type)) {
                return Err(in_words(format!("listed as {listed:?}, found as {attr:?}")));
            }
            let by_number = guarded(|| self.files.attr(attr.ino)).map_err(in_words)?;
            if by_number != attr {
                return Err(in_words(format!("by its number it is {by_number:?}")));
            }
            let content = self.content(&attr).map_err(in_words)?;
            names.push((path.clone(), attr.ino.0, Facts::from(&attr), content));
            if attr.file_type == FileType::Directory {
                self.check_parent(attr.ino, directory.ino).map_err(in_words)?;
                ahead.push((path, attr));
            }
        }
        Ok(())
    }

    /// The attributes of the file that a name leads to.
    fn lookup(&self, directory: Ino, name: &[u8]) -> Result<Attr> {
        let attr = self.files.lookup(directory, name)?;
        self.files.let_go(attr.ino, 1);
        Ok(attr)
    }

    fn check_parent(&self, directory: Ino, parent: Ino) -> Result<(), String> {
        for (name, expected) in [(&b"."[..], directory), (b"..", parent)] {
            let found = guarded(|| self.lookup(directory, name))?.ino;
            if found != expected {
                let name = String::from_utf8_lossy(name);
                return Err(format!("{name} is inode {found}, expected {expected}"));
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
        Ok(u64::from(guarded(|| self.files.stat_fs())?.block_size))
    }

    fn content(&self, attr: &Attr) -> Result<Content, String> {
        match attr.file_type {
            FileType::Symlink => {
                let text = guarded(|| self.files.read_link(attr.ino))?;
                self.check_blocks(attr, 1)?;
                Ok(Content::Text(text))
            }
            FileType::Regular => {
                let blocks = self.blocks(attr.ino, attr.size)?;
                self.check_blocks(attr, blocks.len() as u64)?;
                Ok(Content::Blocks(blocks))
            }
            _ => Ok(Content::None),
        }
    }

    fn blocks(&self, ino: Ino, size: u64) -> Result<Blocks, String> {
        let block_size = self.block_size()?;
        let mut blocks = BTreeMap::new();
        let mut at = 0;
        while let Some(start) = self.position(ino, at, Seek::Data)? {
            let end = self.position(ino, start, Seek::Hole)?.unwrap_or(size);
            let aligned = start % block_size == 0 && (end % block_size == 0 || end == size);
            if start < at || end <= start || end > size || !aligned {
                return Err(format!("data from {start} to {end} in a file of {size} bytes"));
            }
            for index in start / block_size..end.div_ceil(block_size) {
                blocks.insert(index, self.block(ino, index, block_size, size)?.into());
            }
            at = end;
        }
        if size <= READ_WHOLE {
            self.check_whole(ino, size, block_size, &blocks)?;
        }
        Ok(blocks)
    }

    fn position(&self, ino: Ino, at: u64, what: Seek) -> Result<Option<u64>, String> {
        guarded(|| match self.files.seek(ino, at, what) {
            Ok(position) => Ok(Some(position)),
            Err(Error::NoData) => Ok(None),
            Err(error) => Err(error),
        })
    }

    /// One block of a file, filled with zeros beyond its end.
    fn block(&self, ino: Ino, index: u64, block_size: u64, size: u64) -> Result<Vec<u8>, String> {
        let start = index * block_size;
        let expected = (size - start).min(block_size) as usize;
        let mut bytes = vec![0; block_size as usize];
        let got = guarded(|| self.files.read(ino, start, &mut bytes))?;
        if got != expected {
            return Err(format!("read {got} bytes at {start}, expected {expected}"));
        }
        if let Some(at) = bytes[got..].iter().position(|byte| *byte != 0) {
            return Err(format!("byte {at} after what was read at {start} is not zero"));
        }
        Ok(bytes)
    }

    fn check_whole(
        &self,
        ino: Ino,
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
        let got = guarded(|| self.files.read(ino, 0, &mut whole))?;
        whole.truncate(got);
        if whole != expected {
            return Err("what is read at once differs from what is read by blocks".into());
        }
        Ok(())
    }
}

/// The entries of a directory without `.` and `..`.
pub(super) fn entries(files: &dyn Files, directory: Ino) -> Result<Vec<Listed>> {
    let mut listed = Vec::new();
    let mut cookie = 0;
    while let Some(next) = list_some(files, directory, cookie, &mut listed)? {
        cookie = next;
        if listed.len() > ENTRIES_MAX {
            break;
        }
    }
    listed.retain(|entry| entry.name != b"." && entry.name != b"..");
    Ok(listed)
}

/// Adds some entries of a directory. Returns where the listing goes on, if it does.
pub(super) fn list_some(
    files: &dyn Files,
    directory: Ino,
    cookie: u64,
    listed: &mut Vec<Listed>,
) -> Result<Option<u64>> {
    let before = listed.len();
    let mut next = None;
    files.read_dir(directory, cookie, &mut |entry| {
        if listed.len() - before == ENTRIES_PER_CALL {
            return false;
        }
        next = Some(entry.next);
        listed.push(Listed { name: entry.name.to_vec(), ino: entry.ino, kind: entry.file_type });
        true
    })?;
    Ok(next)
}

//! One directory: that its blocks are all there and well formed (docs/format.md §13). Where its
//! names lead is checked with all other names of the checkpoint.

use std::collections::{BTreeMap, HashSet};
use std::mem::offset_of;
use std::rc::Rc;

use nilfs_ondisk::dirent::records;
use nilfs_ondisk::inode::{FileType, RawInode};
use nilfs_ondisk::{BlockNr, Ino};

use crate::block_map::Leaf;
use crate::checker::{Checker, FileAt};
use crate::correction::{Correction, Position};
use crate::report::Rule;

/// A name in a directory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Name<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) ino: Ino,
    pub(crate) file_type: Option<FileType>,
    /// Where its record is, if a block has it.
    pub(crate) at: Option<Position>,
}

/// The content of a directory.
#[derive(Debug, Default, Clone)]
pub(crate) struct Directory {
    /// Its blocks, each well formed.
    blocks: Vec<(BlockNr, Rc<[u8]>)>,
    /// Names that are not, or not only, as the blocks have them: where they lead, if anywhere.
    pub(crate) changed: BTreeMap<Vec<u8>, Option<(Ino, FileType)>>,
    /// What ".." names.
    pub(crate) parent: Option<Ino>,
    /// Where ".." is.
    pub(crate) parent_at: Option<Position>,
    /// Whether no block is missing or malformed.
    pub(crate) whole: bool,
}

impl Directory {
    /// A directory that was just made.
    pub(crate) fn empty() -> Self {
        Self { whole: true, ..Self::default() }
    }

    /// The names in the directory but "." and "..".
    pub(crate) fn names(&self) -> impl Iterator<Item = Name<'_>> {
        let in_blocks = self
            .blocks
            .iter()
            .flat_map(|(nr, block)| records(block).filter_map(Result::ok).map(|it| (*nr, it)))
            .filter(|(_, record)| record.is_used() && !matches!(record.name, b"." | b".."))
            .filter(|(_, record)| !self.changed.contains_key(record.name))
            .map(|(nr, record)| Name {
                at: Some(Position::new(nr, record.offset)),
                name: record.name,
                ino: record.ino,
                file_type: record.file_type(),
            });
        let changed = self.changed.iter().filter_map(|(name, target)| {
            let (ino, file_type) = (*target)?;
            Some(Name { name, ino, file_type: Some(file_type), at: None })
        });
        in_blocks.chain(changed)
    }
}

impl Checker<'_, '_> {
    /// Checks the blocks of a directory, given in order.
    pub(crate) fn check_directory(
        &mut self,
        (file, at): (FileAt, Position),
        inode: &RawInode,
        leaves: &[Leaf],
        whole: bool,
    ) -> Directory {
        let place = file.place();
        let size = inode.i_size.get();
        let block_size = self.volume.block_size().bytes64();
        if !size.is_multiple_of(block_size) || size == 0 {
            self.error(Rule::Directory, place, || {
                format!("i_size is {size}, expected a multiple of {block_size}")
            });
        }
        let mut directory = Directory { whole, ..Directory::default() };
        let gap = (0..).zip(leaves).find(|(nth, leaf)| *nth != leaf.key).map(|(nth, _)| nth);
        let expected = size / block_size;
        let dense = gap.unwrap_or(leaves.len() as u64);
        if whole && (gap.is_some() || dense != expected) {
            directory.whole = false;
            let size_at = at.plus(offset_of!(RawInode, i_size));
            let fits = gap.is_none().then(|| Correction::u64(size_at, dense * block_size));
            self.error(Rule::Directory, place, || {
                format!("i_size promises {expected} blocks, but only the first {dense} are there")
            })
            .corrected_by(fits);
        }
        for leaf in leaves {
            match self.directory_block(file, leaf) {
                Some(block) => directory.blocks.push((leaf.block, block)),
                None => directory.whole = false,
            }
        }
        if leaves.first().is_some_and(|leaf| leaf.key == 0) {
            let first = directory.blocks.first().cloned();
            (directory.parent, directory.parent_at) = self.parent_of(file, first).unzip();
        }
        if file.present {
            self.find_duplicates(file, &directory);
        }
        directory
    }

    /// A block of a directory if it is well formed; checked once.
    fn directory_block(&mut self, file: FileAt, leaf: &Leaf) -> Option<Rc<[u8]>> {
        if let Some(known) = self.directory_blocks.get(&leaf.vblock) {
            return known.clone();
        }
        let place = file.place().file_block(leaf.key);
        let bytes: Option<Rc<[u8]>> = self.read(leaf.block, place).map(Into::into);
        let mut sound = None;
        if let Some(bytes) = bytes {
            let fault = records(&bytes).zip(0..).find_map(|(record, nth)| match record {
                Err(error) => Some(error.to_string()),
                Ok(record) => {
                    let dots = matches!(record.name, b"." | b"..");
                    let at_start = leaf.key == 0 && nth < 2;
                    (record.is_used() && dots && !at_start).then(|| {
                        let name = String::from_utf8_lossy(record.name);
                        format!("\"{name}\" stands at byte {} of the block", record.offset)
                    })
                }
            });
            match fault {
                None => sound = Some(bytes),
                Some(fault) => {
                    self.error(Rule::Directory, place.block(leaf.block), || fault);
                }
            }
        }
        self.directory_blocks.insert(leaf.vblock, sound.clone());
        sound
    }

    /// Checks "." and ".."; returns what ".." names.
    fn parent_of(
        &mut self,
        file: FileAt,
        first: Option<(BlockNr, Rc<[u8]>)>,
    ) -> Option<(Ino, Position)> {
        let (block, first) = first?;
        let mut start = records(&first).filter_map(Result::ok);
        let own = start.next().filter(|record| record.is_used() && record.name == b".");
        let parent = start.next().filter(|record| record.is_used() && record.name == b"..");
        if own.map(|record| record.ino) != Some(file.ino) {
            let right =
                own.map(|own| Correction::u64(Position::new(block, own.offset), file.ino.0));
            self.error(Rule::Directory, file.place(), || match own {
                Some(record) => {
                    format!("\".\" names inode {}, expected {}", record.ino, file.ino)
                }
                None => "the first record is not \".\"".into(),
            })
            .corrected_by(right);
        }
        if parent.is_none() {
            self.error(Rule::Directory, file.place(), || "the second record is not \"..\"".into());
        }
        parent.map(|record| (record.ino, Position::new(block, record.offset)))
    }

    fn find_duplicates(&mut self, file: FileAt, directory: &Directory) {
        let mut names = HashSet::new();
        for record in directory.names() {
            if !names.insert(record.name) {
                self.error(Rule::Directory, file.place(), || {
                    format!("the name {:?} stands twice", String::from_utf8_lossy(record.name))
                });
            }
        }
    }
}

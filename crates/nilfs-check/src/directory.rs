//! One directory: that its blocks are all there and well formed (docs/format.md §13), and which names
//! are in them. Where these lead is checked with all other names of the checkpoint.

use std::mem::offset_of;

use hashbrown::HashSet;
use nilfs_ondisk::dirent::records;
use nilfs_ondisk::inode::{FileType, RawInode};
use nilfs_ondisk::{BlockNr, Ino};

use crate::block_map::{Leaf, Subtree};
use crate::checker::{Checker, FileAt};
use crate::correction::{Correction, Position};
use crate::files::{ChangedInode, Files, Slot};
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

/// What is known of a directory besides its names.
#[derive(Debug, Default, Clone)]
pub(crate) struct Directory {
    /// What ".." names.
    pub(crate) parent: Option<Ino>,
    /// Where ".." is.
    pub(crate) parent_at: Option<Position>,
    /// Blocks that are there, but cannot be used.
    pub(crate) unsound_blocks: u32,
    /// Whether no block is missing.
    is_complete: bool,
}

/// How the blocks of a directory differ from those of the version that was looked at before.
#[derive(Debug, Default, Clone)]
pub(crate) struct DirectoryChange {
    /// The directory as it was, if it was there.
    before: Option<Directory>,
    /// The blocks with new names.
    added: Vec<Leaf>,
    /// How many of all blocks but these cannot be used.
    unsound_blocks: u32,
}

impl DirectoryChange {
    /// Where the blocks with new names are.
    pub(crate) fn added_blocks(&self) -> impl Iterator<Item = BlockNr> {
        self.added.iter().map(|leaf| leaf.block)
    }
}

/// What a directory has gained.
#[derive(Debug, Default)]
pub(crate) struct NewNames {
    /// Where the names lead, and which types they claim.
    targets: Vec<(Ino, Option<FileType>)>,
    /// What ".." names, and where that is, if the first block is among the new ones.
    parent: Option<Option<(Ino, Position)>>,
    /// How many of all blocks cannot be used.
    unsound_blocks: u32,
}

impl Files {
    /// Adds the names that a directory has gained. Every inode that gains a name is noted in `touched`,
    /// where all that are in use are if this is the present.
    pub(crate) fn learn_names(
        &mut self,
        (ino, present): (Ino, bool),
        names: NewNames,
        touched: &mut Vec<Ino>,
    ) {
        if let Some(parent) = names.parent {
            self.set_parent(ino, parent);
        }
        for (target, file_type) in names.targets {
            self.add_name(ino, target, file_type);
            if !present || self.inode(target).facts.is_none() {
                touched.push(target);
            }
        }
        self.set_unsound_blocks(ino, names.unsound_blocks);
    }
}

impl Directory {
    /// Whether all of its names are known.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_complete && self.unsound_blocks == 0
    }

    /// A directory that was just made.
    pub(crate) fn empty(parent: Ino) -> Self {
        Self { is_complete: true, parent: Some(parent), ..Self::default() }
    }
}

/// The names in a block but "." and "..".
fn names_in(nr: BlockNr, block: &[u8]) -> impl Iterator<Item = Name<'_>> {
    records(block)
        .filter_map(Result::ok)
        .filter(|record| record.is_used() && !matches!(record.name, b"." | b".."))
        .map(move |record| Name {
            at: Some(Position::new(nr, record.offset)),
            name: record.name,
            ino: record.ino,
            file_type: record.file_type(),
        })
}

impl Checker<'_, '_> {
    /// Walks a directory; of one that was not there before, all blocks are new.
    pub(crate) fn walk_directory(
        &mut self,
        file: FileAt,
        inode: &RawInode,
        change: DirectoryChange,
    ) -> (Subtree, DirectoryChange) {
        if change.before.is_some() {
            return (self.walk_shared(file, inode), change);
        }
        let (tree, added) = self.walk_all(file, inode);
        (tree, DirectoryChange { added, ..change })
    }

    /// Checks the form of a directory.
    pub(crate) fn check_directory(
        &mut self,
        (file, at): (FileAt, Position),
        inode: &RawInode,
        tree: &Subtree,
        change: &DirectoryChange,
    ) -> Directory {
        let place = file.place();
        let size = inode.i_size.get();
        let block_size = self.volume.block_size().bytes64();
        let before = change.before.as_ref();
        let mut directory = Directory { is_complete: tree.whole, ..Directory::default() };
        let end = tree.last.map_or(0, |last| last.key.saturating_add(1));
        let expected = size / block_size;
        let is_dense = end == tree.data_blocks;
        if !size.is_multiple_of(block_size) || size == 0 {
            let size_at = at.plus(offset_of!(RawInode, i_size));
            // A directory has one block at least.
            let fits = (tree.whole && is_dense)
                .then(|| Correction::count_u64(size_at, end.max(1) * block_size));
            self.error(Rule::Directory, place, || {
                format!("i_size is {size}, expected a multiple of {block_size}")
            })
            .corrected_by(fits.into_iter().chain([file.unmapped(at)]));
        }
        if tree.whole && (!is_dense || end != expected) {
            directory.is_complete = false;
            let size_at = at.plus(offset_of!(RawInode, i_size));
            let fits =
                (is_dense && end > 0).then(|| Correction::count_u64(size_at, end * block_size));
            let leaves = self.leaves(file.ino, inode);
            let dense = (0..).zip(&leaves).take_while(|(nth, leaf)| *nth == leaf.key).count();
            self.error(Rule::Directory, place, || {
                format!("i_size promises {expected} blocks, but only the first {dense} are there")
            })
            .corrected_by(fits.into_iter().chain([file.unmapped(at)]));
        }
        // If the first block has changed, it says so when it is read.
        if change.added.first().is_none_or(|first| first.key > 0) {
            directory.parent = before.and_then(|before| before.parent);
            directory.parent_at = before.and_then(|before| before.parent_at);
        }
        directory
    }

    /// A block of a directory if it is well formed.
    fn directory_block(&mut self, file: FileAt, leaf: &Leaf) -> Option<Vec<u8>> {
        if self.unsound_directory_blocks.contains(&leaf.vblock) {
            return None;
        }
        let place = file.place().file_block(leaf.key);
        let Some(bytes) = self.read_leaf(file, leaf) else {
            self.unsound_directory_blocks.insert(leaf.vblock);
            return None;
        };
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
        let Some(fault) = fault else { return Some(bytes) };
        self.unsound_directory_blocks.insert(leaf.vblock);
        let anew = self.anew(file, leaf);
        self.error(Rule::Directory, place.block(leaf.block), || fault).corrected_by([anew]);
        None
    }

    /// Checks "." and ".."; returns what ".." names.
    fn parent_of(&mut self, file: FileAt, leaf: &Leaf, bytes: &[u8]) -> Option<(Ino, Position)> {
        let (block, anew) = (leaf.block, self.anew(file, leaf));
        let mut start = records(bytes).filter_map(Result::ok);
        let own = start.next().filter(|record| record.is_used() && record.name == b".");
        let parent = start.next().filter(|record| record.is_used() && record.name == b"..");
        if own.map(|record| record.ino) != Some(file.ino) {
            let right = match own {
                Some(own) => Correction::u64(Position::new(block, own.offset), file.ino.0),
                None => anew.clone(),
            };
            self.error(Rule::Directory, file.place(), || match own {
                Some(record) => {
                    format!("\".\" names inode {}, expected {}", record.ino, file.ino)
                }
                None => "the first record is not \".\"".into(),
            })
            .corrected_by([right]);
        }
        if parent.is_none() {
            self.error(Rule::Directory, file.place(), || "the second record is not \"..\"".into())
                .corrected_by([anew]);
        }
        parent.map(|record| (record.ino, Position::new(block, record.offset)))
    }

    /// Takes out the names that a directory has no more. `None` if there was none. Every inode that
    /// loses a name is noted in `touched`.
    pub(crate) fn forget_names(
        &mut self,
        files: &mut Files,
        ifile: FileAt,
        changed: &ChangedInode,
        touched: &mut Vec<Ino>,
    ) -> Option<DirectoryChange> {
        let Slot::Inode(old, _) = &changed.old else { return None };
        let facts = files.inode(changed.ino).facts.as_ref();
        let before = Directory::clone(facts?.directory.as_ref()?);
        let file = FileAt { ino: changed.ino, inode_at: changed.new.position(), ..ifile };
        let (removed, added) = match &changed.new {
            Slot::Inode(new, _) if has_names(new) => {
                self.walk_shared(file, new);
                self.difference(file.ino, Some(old), Some(new))
            }
            _ => (self.leaves(file.ino, old), Vec::new()),
        };
        let mut unsound_blocks = before.unsound_blocks;
        for leaf in &removed {
            let Some(block) = self.directory_block(file, leaf) else {
                unsound_blocks = unsound_blocks.saturating_sub(1);
                continue;
            };
            for name in names_in(leaf.block, &block) {
                files.remove_name(file.ino, name.ino);
                touched.push(name.ino);
            }
        }
        Some(DirectoryChange { before: Some(before), added, unsound_blocks })
    }

    /// Reads the names that a directory has gained, and what ".." is now.
    pub(crate) fn read_names(&mut self, file: FileAt, change: &DirectoryChange) -> NewNames {
        let mut new = NewNames { unsound_blocks: change.unsound_blocks, ..NewNames::default() };
        let mut blocks = Vec::new();
        for leaf in &change.added {
            let Some(block) = self.directory_block(file, leaf) else {
                new.unsound_blocks = new.unsound_blocks.saturating_add(1);
                continue;
            };
            if leaf.key == 0 {
                new.parent = Some(self.parent_of(file, leaf, &block));
            }
            blocks.push((leaf.block, block));
        }
        let mut names = HashSet::new();
        for name in blocks.iter().flat_map(|(nr, block)| names_in(*nr, block)) {
            new.targets.push((name.ino, name.file_type));
            // Elsewhere, not all names of the directory are among these.
            if file.present && !names.insert(name.name) {
                self.error(Rule::Directory, file.place(), || {
                    format!("the name {:?} stands twice", String::from_utf8_lossy(name.name))
                })
                .corrected_by(name.at.map(|at| Correction::u64(at, 0)));
            }
        }
        new
    }

    /// Calls back with each name in a directory.
    pub(crate) fn each_name(
        &mut self,
        files: &Files,
        directory: Ino,
        with: &mut dyn FnMut(&mut Self, &Name<'_>),
    ) {
        let changed = files.changed_names.get(&directory);
        let is_changed = |name: &[u8]| changed.is_some_and(|names| names.contains_key(name));
        let file = FileAt { ino: directory, cno: files.cno, present: false, inode_at: None };
        if let Some(inode) = self.raw_inode(files, directory).filter(has_names) {
            for leaf in self.leaves(directory, &inode) {
                let Some(block) = self.directory_block(file, &leaf) else { continue };
                for name in names_in(leaf.block, &block).filter(|name| !is_changed(name.name)) {
                    with(self, &name);
                }
            }
        }
        for (name, target) in changed.into_iter().flatten() {
            if let Some((ino, file_type)) = *target {
                with(self, &Name { name, ino, file_type: Some(file_type), at: None });
            }
        }
    }
}

/// Whether an inode is a directory that was not removed. A removed one keeps its blocks, but not
/// its size, until it is released.
pub(crate) fn has_names(inode: &RawInode) -> bool {
    inode.file_type().is_ok_and(|it| it == FileType::Directory) && inode.i_links_count.get() > 0
}

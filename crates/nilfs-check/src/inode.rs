//! One inode: its own fields and the blocks of its file (docs/format.md §6, §13).

use std::mem::offset_of;

use nilfs_ondisk::bmap::Root;
use nilfs_ondisk::inode::{FileType, LINK_MAX, RawInode};
use nilfs_ondisk::{BlockNr, Cno, Ino, VBlockNr};

use crate::block_map::{Leaf, Life, Subtree};
use crate::checker::{Checker, FileAt};
use crate::correction::{Correction, Position};
use crate::directory::{Directory, DirectoryChange, has_names};
use crate::report::{Location, Rule};

/// Where an inode has the size of its file.
const SIZE_AT: usize = offset_of!(RawInode, i_size);

/// Nanoseconds of a second.
const SECOND: u32 = 1_000_000_000;

/// The greatest size of a file.
const SIZE_MAX: u64 = i64::MAX as u64;
/// More blocks than mkfs puts into any file it makes.
const MKFS_BLOCKS_MAX: u64 = 8;

/// What is known of an inode.
#[derive(Debug, Clone)]
pub(crate) struct InodeFacts {
    pub(crate) file_type: Option<FileType>,
    pub(crate) links: u16,
    /// Whether all blocks could be reached.
    pub(crate) whole: bool,
    /// Blocks of the file, with B-tree nodes.
    pub(crate) blocks: u64,
    /// The youngest of these blocks, and with which checkpoint it starts.
    pub(crate) start: (Cno, VBlockNr),
    /// Of a directory that was not removed.
    pub(crate) directory: Option<Box<Directory>>,
}

/// What a file has in its blocks. It is looked at when all inodes of the checkpoint are known, because
/// these blocks can be read in a better order then.
#[derive(Debug)]
pub(crate) enum Content {
    /// The blocks with names that are not known yet.
    Names(DirectoryChange),
    /// The target of a symbolic link, the size that its inode gives (bytes), and where that is.
    Target { leaf: Leaf, size: u64, at: Position },
}

impl Content {
    /// The blocks that are to be read.
    pub(crate) fn blocks(&self) -> Vec<BlockNr> {
        match self {
            Self::Names(change) => change.added_blocks().collect(),
            Self::Target { leaf, .. } => vec![leaf.block],
        }
    }
}

impl Checker<'_, '_> {
    /// Checks an inode of a checkpoint and all blocks of its file. Of a directory, `change` says how
    /// it differs from the version that is known, if one is.
    pub(crate) fn check_inode(
        &mut self,
        file: FileAt,
        inode: &RawInode,
        at: Position,
        change: DirectoryChange,
    ) -> (InodeFacts, Option<Content>) {
        let mut facts = InodeFacts {
            file_type: None,
            links: inode.i_links_count.get(),
            whole: true,
            blocks: 0,
            start: Life::ALWAYS.start,
            directory: None,
        };
        let file_type = match inode.file_type().map_err(|error| error.to_string()) {
            Ok(file_type) if !is_noise(inode) => file_type,
            found => {
                let part = file.whole();
                let nonsense = || "several of its fields have values that no inode has".into();
                self.error(Rule::Inode, file.place(), || found.err().unwrap_or_else(nonsense))
                    .corrected_by([Correction::Inode { at, part }]);
                facts.whole = false;
                return (facts, None);
            }
        };
        facts.file_type = Some(file_type);
        if file.ino == Ino::XATTR && file_type != FileType::Regular {
            self.error(Rule::XattrFile, file.place(), || {
                format!("it is of type {file_type:?}, expected a regular file")
            });
        }
        self.check_fields(file, inode, at);
        if !file_type.has_blocks() {
            let (size, blocks) = (inode.i_size.get(), inode.i_blocks.get());
            if size != 0 && blocks != 0 {
                let part = file.whole();
                self.error(Rule::Inode, file.place(), || {
                    format!(
                        "it is of type {file_type:?}, but has {size} bytes and {blocks} sectors"
                    )
                })
                .corrected_by([Correction::Inode { at, part }]);
            } else if size > SIZE_MAX {
                let none = Correction::u64(at.plus(SIZE_AT), 0);
                self.error(Rule::Inode, file.place(), || too_large(size)).corrected_by([none]);
            }
            return (facts, None);
        }
        let mut content = None;
        let tree = if has_names(inode) {
            let (tree, change) = self.walk_directory(file, inode, change);
            let directory = self.check_directory((file, at), inode, &tree, &change);
            facts.directory = Some(Box::new(directory));
            content = Some(Content::Names(change));
            tree
        } else if file.ino == Ino::XATTR {
            let (tree, leaves) = self.walk_all(file, inode);
            self.check_xattr_file(file, &leaves);
            tree
        } else {
            self.walk_shared(file, inode)
        };
        self.check_size(file, inode, &tree, at);
        (facts.blocks, facts.start, facts.whole) = (tree.blocks, tree.life.start, tree.whole);
        if tree.whole {
            self.check_blocks_count(file, inode, &tree, Some(at));
            if file_type == FileType::Symlink {
                content = self.check_symlink((file, at), inode, &tree);
                facts.whole = content.is_some();
            }
            if file_type != FileType::Directory {
                self.check_end(file, inode, &tree, at);
            }
        }
        (facts, content)
    }

    fn check_fields(&mut self, file: FileAt, inode: &RawInode, at: Position) {
        let place = file.place();
        let links = inode.i_links_count.get();
        // Where somebody writes meanwhile, somebody may have it open.
        if links == 0 && file.present && self.options.newest.is_none() {
            self.note(Rule::Orphan, place, || {
                "the inode has no name (i_links_count 0): it was deleted while open and not released".into()
            });
        }
        if links > LINK_MAX {
            self.warning(Rule::Inode, place, || {
                format!("i_links_count is {links}, more than {LINK_MAX}")
            });
        }
        for (field, offset, nsec) in [
            ("i_ctime_nsec", offset_of!(RawInode, i_ctime_nsec), inode.i_ctime_nsec),
            ("i_mtime_nsec", offset_of!(RawInode, i_mtime_nsec), inode.i_mtime_nsec),
        ] {
            if nsec.get() >= SECOND {
                self.warning(Rule::Inode, place, || {
                    format!("{field} is {nsec}, expected less than a second")
                })
                .corrected_by([Correction::u32(at.plus(offset), 0)]);
            }
        }
    }

    /// Checks the inode of the DAT, cpfile, sufile or an ifile.
    pub(crate) fn check_metadata_inode(&mut self, file: FileAt, inode: &RawInode, tree: &Subtree) {
        if let Err(error) = inode.validate_metadata_file("inode") {
            let regular = FileType::Regular.mode_bits().to_le_bytes().to_vec();
            let at = |offset| file.inode_at.map(|at| at.plus(offset));
            let mode = at(offset_of!(RawInode, i_mode));
            let mode = mode.map(|at| Correction::Bytes { at, bytes: regular });
            let links = at(offset_of!(RawInode, i_links_count));
            let links = links.map(|at| Correction::Bytes { at, bytes: vec![1, 0] });
            self.error(Rule::Inode, file.place(), || error.to_string())
                .corrected_by(mode.into_iter().chain(links));
        }
        if inode.i_size.get() != 0 {
            self.warning(Rule::InodeSize, file.place(), || {
                format!("i_size is {}, expected 0", inode.i_size)
            });
        }
        if tree.whole {
            self.check_blocks_count(file, inode, tree, file.inode_at);
        }
    }

    fn check_blocks_count(
        &mut self,
        file: FileAt,
        inode: &RawInode,
        tree: &Subtree,
        at: Option<Position>,
    ) {
        let found = inode.i_blocks.get();
        let sectors = self.volume.block_size().sectors();
        let expected = tree.blocks.saturating_mul(sectors);
        if found == expected {
            return;
        }
        let by_mkfs = file.ino == Ino::ROOT || is_metadata(file.ino);
        let off = |made: u64| expected.wrapping_sub(made * (sectors - 1));
        if by_mkfs && (1..=MKFS_BLOCKS_MAX).any(|made| found == off(made)) {
            return;
        }
        // The map may have lost some.
        let unmapped = at.filter(|_| found > expected).map(|at| file.unmapped(at));
        let count =
            at.map(|at| Correction::count_u64(at.plus(offset_of!(RawInode, i_blocks)), expected));
        self.error(Rule::InodeBlocks, file.place(), || {
            format!("i_blocks is {found}, but {} blocks give {expected}", tree.blocks)
        })
        .corrected_by(unmapped.into_iter().chain(count));
    }

    /// The size is one that a file can have.
    fn check_size(&mut self, file: FileAt, inode: &RawInode, tree: &Subtree, at: Position) {
        if inode.i_size.get() <= SIZE_MAX {
            return;
        }
        let block_bytes = self.volume.block_size().bytes64();
        let end = |last: Leaf| last.key.saturating_add(1).saturating_mul(block_bytes);
        let end = tree.last.map_or(0, end).min(SIZE_MAX);
        // That of a link follows from its target.
        let is_link = inode.file_type().is_ok_and(|it| it == FileType::Symlink);
        let up_to_end = (!is_link && tree.whole).then(|| Correction::u64(at.plus(SIZE_AT), end));
        self.error(Rule::Inode, file.place(), || too_large(inode.i_size.get()))
            .corrected_by(up_to_end);
    }

    /// Nothing lies beyond the end of the file.
    fn check_end(&mut self, file: FileAt, inode: &RawInode, tree: &Subtree, at: Position) {
        let size = inode.i_size.get();
        let block_size = self.volume.block_size();
        let Some(last) = tree.last else {
            return;
        };
        let place = file.place().file_block(last.key);
        if last.key >= block_size.blocks_for(size) {
            // The blocks are there; whether they were meant to be cut off nobody knows.
            let end = last.key.saturating_add(1).saturating_mul(block_size.bytes64());
            let regular = inode.file_type().is_ok_and(|it| it == FileType::Regular);
            let longer =
                (regular && end <= SIZE_MAX).then(|| Correction::u64(at.plus(SIZE_AT), end));
            self.error(Rule::InodeSize, place, || {
                format!("the block lies beyond the end of the file, i_size is {size}")
            })
            .corrected_by(longer);
            return;
        }
        let used = (size % block_size.bytes64()) as usize;
        // The block of a link is read with the others.
        let is_link = inode.file_type().is_ok_and(|it| it == FileType::Symlink);
        let ends_within = last.key == size / block_size.bytes64() && used > 0;
        if self.options.read_content
            && ends_within
            && !is_link
            && let Some(bytes) = self.read(last.block, place)
        {
            self.check_tail(place.block(last.block), &bytes, used);
        }
    }

    /// Checks what comes in the last block after the bytes of the file.
    fn check_tail(&mut self, place: Location, block: &[u8], used: usize) {
        if let Some(at) = block.iter().skip(used).position(|byte| *byte != 0) {
            self.warning(Rule::Tail, place, || {
                format!("byte {} of the block, beyond the end of the file, is not 0", used + at)
            });
        }
    }

    /// Checks that a symbolic link has a target; returns where that is.
    fn check_symlink(
        &mut self,
        (file, at): (FileAt, Position),
        inode: &RawInode,
        tree: &Subtree,
    ) -> Option<Content> {
        let Some(leaf) = tree.last.filter(|leaf| leaf.key == 0) else {
            let at = at.plus(offset_of!(RawInode, i_bmap));
            self.error(Rule::Symlink, file.place(), || "the link has no target block".into())
                .corrected_by([Correction::Root { at, part: file.whole() }]);
            return None;
        };
        Some(Content::Target { leaf, size: inode.i_size.get(), at })
    }

    /// Checks what a symbolic link leads to.
    pub(crate) fn check_target(
        &mut self,
        file: FileAt,
        target: &Leaf,
        (size, at): (u64, Position),
    ) {
        let block = self.read_leaf(file, target);
        let place = file.place().file_block(target.key).block(target.block);
        self.volume.is_target(target.block, place);
        let end_in = |block: &[u8]| block.iter().position(|byte| *byte == 0);
        let end = block.as_deref().and_then(end_in);
        let most = self.volume.block_size().bytes() - 1;
        if !(1..=most as u64).contains(&size) {
            let told = end.filter(|end| *end > 0);
            let length = told.unwrap_or(if block.is_some() { most } else { 1 });
            let length = Correction::count_u64(at.plus(SIZE_AT), length as u64);
            // Another version of the inode may tell what its block does not. Else the length is a guess.
            let (rule, anew) = match told {
                Some(_) => (Rule::Symlink, None),
                None => (Rule::InodeSize, Some(Correction::Inode { at, part: file.whole() })),
            };
            self.error(rule, file.place(), || format!("i_size is {size}, expected 1 to {most}"))
                .corrected_by(anew.into_iter().chain([length]));
            return;
        }
        let Some(block) = block else { return };
        if let Some(end) = end.filter(|end| (*end as u64) < size) {
            let anew = self.anew(file, target);
            self.error(Rule::Symlink, file.place().block(target.block), || {
                format!("the target has {end} bytes, but i_size is {size}")
            })
            .corrected_by([anew]);
        } else if self.options.read_content {
            self.check_tail(place, &block, size as usize);
        }
    }
}

/// Whether two fields of an inode, or more, have values that none ever has: then the rest of it is no better, however
/// plausible it is. One of them alone is corrected by itself.
fn is_noise(inode: &RawInode) -> bool {
    let impossible = [
        Root::parse(&inode.i_bmap).is_err(),
        inode.i_ctime_nsec.get() >= SECOND,
        inode.i_mtime_nsec.get() >= SECOND,
        inode.i_size.get() > SIZE_MAX,
        inode.i_xattr.get() != 0,
        inode.i_pad.get() != 0,
    ];
    impossible.into_iter().filter(|it| *it).count() > 1
}

fn too_large(size: u64) -> String {
    format!("i_size is {size}, more than {SIZE_MAX}")
}

fn is_metadata(ino: Ino) -> bool {
    matches!(ino, Ino::DAT | Ino::CPFILE | Ino::SUFILE | Ino::IFILE)
}

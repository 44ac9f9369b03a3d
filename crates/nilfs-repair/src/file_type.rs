//! Of which type a file is, where its inode and what leads to it disagree: each witness that admits only
//! one of the two types speaks for that, and the type for which fewer speak is set right.

use std::mem::offset_of;

use nilfs_check::{Part, Position, TypeClaim};
use nilfs_ondisk::inode::{FileType, RawInode};
use nilfs_ondisk::palloc::Palloc;
use nilfs_ondisk::{Ino, dirent};

use crate::Risk;
use crate::anew::{Anew, Replacement};
use crate::inodes::may_be_made_from_blocks;

/// The bits of a mode that are not its type.
const PERMISSIONS: u16 = 0o7777;

/// The permissions of every symbolic link.
const OF_LINKS: u16 = 0o777;

impl Anew<'_> {
    /// The type of an inode as it is claimed, or the claim as it is in the inode.
    pub(crate) fn file_type(
        &mut self,
        at: Position,
        part: &Part,
        (claimed, claim): (FileType, TypeClaim),
    ) -> Option<Replacement> {
        let inode = RawInode::parse(self.read(at.block)?.get(at.offset..)?).ok()?;
        let found = inode.file_type().ok().filter(|found| *found != claimed)?;
        let (name, names, agreed) = match claim {
            TypeClaim::Root => (None, 0, true),
            TypeClaim::Name { at, names, agreed } => (Some(at), names, agreed),
        };
        let evidence = self.evidence_of_type(at, part, (&inode, names));
        let (for_claim, for_found) = (evidence.speaks_for(claimed), evidence.speaks_for(found));
        // Besides, the name speaks against the inode, and other names may speak for it.
        let is_guess = may_be_made_from_blocks(&inode, self.geometry.block_size.bytes64());
        let balance = match is_guess && agreed && claimed != FileType::Directory {
            true => 1,
            false => for_claim - for_found - i32::from(!agreed),
        };
        let risk = if balance == 0 { Risk::Loses } else { Risk::Safe };
        let named = |file_type| format!("{file_type:?}").to_lowercase();
        match name {
            Some(name) if balance <= 0 => {
                let code = vec![found.dirent_code()];
                let doubt = match balance {
                    0 => "; as much speaks for the other type",
                    _ => "",
                };
                let action = format!("set the type in the name to {}{doubt}", named(found));
                Some(Replacement::new(name, code, risk, action))
            }
            None if balance < 0 => None,
            _ => {
                let mode = claimed.mode_bits() | inode.i_mode.get() & PERMISSIONS;
                let at = Position { offset: at.offset + offset_of!(RawInode, i_mode), ..at };
                let action = format!("set the type in i_mode to {}", named(claimed));
                Some(Replacement::new(at, mode.to_le_bytes().to_vec(), risk, action))
            }
        }
    }

    /// Evidence of the type of a file, besides its mode and its names.
    fn evidence_of_type(
        &mut self,
        at: Position,
        part: &Part,
        (inode, names): (&RawInode, u32),
    ) -> Evidence {
        let layout = Palloc::new(self.geometry.block_size, self.geometry.inode_size);
        let slot = layout.entry(part.ino.0);
        let versions = self.versions(at.block, (Ino::IFILE, slot.block.0), &part.life);
        let before = versions
            .filter_map(|(_, bytes)| RawInode::parse(bytes.get(slot.offset..)?).ok())
            // Another file may have had the number.
            .find(|it| it.i_generation == inode.i_generation && it.i_links_count.get() > 0)
            .and_then(|it| it.file_type().ok());
        let begins_like_directory = match self.first_block(part) {
            Some(block) => Some(is_first_of_directory(&block, part.ino)),
            None if inode.i_blocks.get() == 0 => Some(false),
            None => None,
        };
        Evidence {
            begins_like_directory,
            before,
            links: inode.i_links_count.get(),
            names,
            size: inode.i_size.get(),
            block_size: self.geometry.block_size.bytes64(),
            has_blocks: inode.i_blocks.get() > 0,
            permissions: inode.i_mode.get() & PERMISSIONS,
        }
    }
}

/// Witnesses of the type of a file.
struct Evidence {
    /// Whether its first block has the names of a directory; `None` if that cannot be read.
    begins_like_directory: Option<bool>,
    /// The type in another version of the inode.
    before: Option<FileType>,
    links: u16,
    names: u32,
    size: u64,
    block_size: u64,
    has_blocks: bool,
    permissions: u16,
}

impl Evidence {
    /// How many of the witnesses a type does not contradict.
    fn speaks_for(&self, file_type: FileType) -> i32 {
        let is_directory = file_type == FileType::Directory;
        let is_link = file_type == FileType::Symlink;
        let witnesses = [
            self.begins_like_directory.is_none_or(|it| it == is_directory),
            self.before.is_none_or(|before| before == file_type),
            match is_directory {
                true => self.names <= 1 && self.links >= 2,
                false => u32::from(self.links) == self.names,
            },
            match file_type {
                FileType::Directory => self.size > 0 && self.size.is_multiple_of(self.block_size),
                FileType::Symlink => (1..self.block_size).contains(&self.size),
                FileType::Regular => true,
                _ => self.size == 0,
            },
            match file_type {
                FileType::Regular => true,
                _ => self.has_blocks == file_type.has_blocks(),
            },
            !is_link || self.permissions == OF_LINKS,
        ];
        witnesses.into_iter().map(i32::from).sum()
    }
}

/// Whether a block begins like the first of any directory.
pub(crate) fn begins_directory(block: &[u8]) -> bool {
    matches!(dirent::records(block).next(), Some(Ok(own)) if own.name == b"." && own.ino.0 > 0)
}

/// Whether a block of a file begins like the first of a directory.
pub(crate) fn is_first_of_directory(block: &[u8], ino: Ino) -> bool {
    matches!(dirent::records(block).next(), Some(Ok(own)) if own.name == b"." && own.ino == ino)
}

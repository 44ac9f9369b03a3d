//! Inodes made anew: an older version, if that is of the same file, or what the blocks of the file tell.

use std::ops::Range;

use nilfs_check::{Part, Position};
use nilfs_ondisk::bmap::Root;
use nilfs_ondisk::inode::{FileType, INODE_SIZE, RawInode};
use nilfs_ondisk::palloc::{Palloc, test_bit};
use nilfs_ondisk::roll_forward::InodeRecord;
use nilfs_ondisk::{Cno, Ino, VBlockNr};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use crate::Risk;
use crate::anew::{Anew, Replacement};
use crate::file_type::is_first_of_directory;

/// The permissions of a file whose own are lost.
const PRIVATE: u16 = 0o600;

impl Anew<'_> {
    /// Brings the maps of inodes up to date that are in an older version of a block, which begins with a checkpoint.
    /// Inodes of other files become zeros, and are made anew one by one.
    pub(crate) fn inodes(&mut self, bytes: &mut [u8], part: &Part, older: Option<Cno>) {
        let Some(since) = older else { return };
        let slots = bytes.chunks_exact_mut(self.geometry.inode_size);
        for (ino, slot) in self.inodes_at(part).zip(slots) {
            let part = Part { ino, key: 0, limit: None, ..part.clone() };
            let Ok(inode) = RawInode::parse(slot) else { continue };
            let is_of_another = self.is_of_another(&inode, &part)
                || self.was_free(ino, since.min(part.life.start)..since.max(part.life.start))
                || self.is_of_other_generation(&inode, &part);
            if is_of_another {
                slot[..INODE_SIZE].fill(0);
            } else if let Some(inode) = self.brought_up_to_date(inode, &part) {
                slot[..INODE_SIZE].copy_from_slice(inode.as_bytes());
            } else if inode.i_links_count.get() > 0 {
                // What its map had then may be something else now.
                let inode = RawInode { i_bmap: Root::default().encode(), ..inode };
                slot[..INODE_SIZE].copy_from_slice(inode.as_bytes());
            }
        }
    }

    /// Whether an older version of an inode is that of another file, which had the number before: it has been
    /// deleted, or begins otherwise than the blocks that are there now.
    fn is_of_another(&mut self, inode: &RawInode, part: &Part) -> bool {
        let is_deleted = inode.i_links_count.get() == 0;
        let is_directory = inode.file_type().is_ok_and(|it| it == FileType::Directory);
        let data = self.children(&Part { level: 1, ..part.clone() });
        let begins_like_directory = match data.first() {
            None => return false,
            // A block that cannot be read speaks for neither.
            Some((0, _)) => self.first_block(part).map(|it| is_first_of_directory(&it, part.ino)),
            Some(_) => Some(false),
        };
        is_deleted || begins_like_directory.is_some_and(|it| it != is_directory)
    }

    /// Whether the first block of a file is known to be what was written, and is no directory's.
    pub(crate) fn begins_otherwise(&mut self, part: &Part) -> bool {
        let data = self.children(&Part { level: 1, ..part.clone() });
        let first = data.first().filter(|(key, _)| *key == 0).map(|(_, vblock)| VBlockNr(*vblock));
        let entry = first.and_then(|vblock| self.dat.as_mut()?.entry(vblock));
        let block = entry.map(|it| it.block).filter(|block| self.is_as_written(*block));
        let bytes = block.and_then(|block| self.read(block));
        bytes.is_some_and(|bytes| !is_first_of_directory(&bytes, part.ino))
    }

    /// Whether a number was not in use in a checkpoint after the first of these, up to the last: a file that has it
    /// afterwards is another one.
    fn was_free(&self, ino: Ino, between: Range<Cno>) -> bool {
        let layout = Palloc::new(self.geometry.block_size, self.geometry.inode_size);
        let bit = layout.bit(ino.0);
        let bitmaps = self.logged.data(Ino::IFILE, bit.block.0, bit.block.0.checked_add(1)).iter();
        let bitmaps = bitmaps.filter(|it| it.since > between.start && it.since <= between.end);
        ino.is_of_user()
            && bitmaps
                .filter_map(|it| self.read_as_written(it.block))
                .any(|it| !test_bit(&it, bit.bit))
    }

    /// Whether an fsync after the newest checkpoint has a file of another generation.
    fn is_of_other_generation(&self, inode: &RawInode, part: &Part) -> bool {
        self.generation(part).is_some_and(|it| it != inode.i_generation.get())
    }

    /// The generation of a file of the present, as an fsync after the newest checkpoint tells it.
    fn generation(&self, part: &Part) -> Option<u32> {
        self.logged.generation(part.ino).filter(|_| part.life.end == Cno::MAX)
    }

    /// An older version of an inode with the blocks that its file has.
    fn brought_up_to_date(&mut self, mut inode: RawInode, part: &Part) -> Option<RawInode> {
        let file_type = inode.file_type().ok().filter(|_| inode.i_links_count.get() > 0)?;
        let root = self.root(part)?.encode();
        if file_type.has_blocks() && root != inode.i_bmap {
            inode.i_bmap = root;
            // It was written since, and no more is known of its end.
            let data = self.children(&Part { level: 1, ..part.clone() });
            let blocks = data.last().map_or(0, |(key, _)| key.saturating_add(1));
            let size = self.geometry.block_size.bytes64();
            if inode.i_size.get().div_ceil(size) != blocks {
                inode.i_size = U64::new(blocks.saturating_mul(size));
            } else if let Some(least) = self.least_size(part) {
                inode.i_size = U64::new(inode.i_size.get().max(least));
            }
        }
        Some(inode)
    }

    /// The bytes of a file up to the last one that is not zero: what comes after its end is.
    fn least_size(&mut self, part: &Part) -> Option<u64> {
        let data = self.children(&Part { level: 1, ..part.clone() });
        let (key, vblock) = data.last()?;
        let last = self.dat.as_mut()?.entry(VBlockNr(*vblock))?;
        let used = self.read(last.block)?.iter().rposition(|byte| *byte != 0)?;
        key.checked_mul(self.geometry.block_size.bytes64())?.checked_add(used as u64 + 1)
    }

    pub(crate) fn inode(&mut self, at: Position, part: &Part) -> Option<Replacement> {
        let layout = Palloc::new(self.geometry.block_size, self.geometry.inode_size);
        let slot = layout.entry(part.ino.0);
        let first = self.first_block(part);
        let is_directory = first.map(|block| is_first_of_directory(&block, part.ino));
        let versions = self.versions(at.block, (Ino::IFILE, slot.block.0), &part.life);
        let mut versions = versions.filter_map(|(since, bytes)| {
            let inode = RawInode::parse(bytes.get(slot.offset..)?).ok()?;
            let file_type = inode.file_type().ok().filter(|_| inode.i_links_count.get() > 0)?;
            // Another file may have had the number.
            let is_it = is_directory.is_none_or(|it| it == (file_type == FileType::Directory));
            let between = since.min(part.life.start)..since.max(part.life.start);
            let is_other =
                self.was_free(part.ino, between) || self.is_of_other_generation(&inode, part);
            (is_it && !is_other).then_some(inode)
        });
        let older = versions.next();
        drop(versions);
        let (inode, action) = match older.and_then(|it| self.brought_up_to_date(it, part)) {
            Some(inode) => (
                inode,
                "take owner, permissions and times from an older version, and its blocks from \
                 what the logs say",
            ),
            None => (
                self.made_from_blocks(part)?,
                match self.synced(part) {
                    Some(_) => {
                        "make an inode for the blocks that the logs say it has, with owner and \
                         permissions as an fsync has written them later"
                    }
                    None => {
                        "make an inode for the blocks that the logs say it has; its owner and \
                         permissions are lost, only root can read it"
                    }
                },
            ),
        };
        Some(Replacement::new(at, inode.as_bytes().to_vec(), Risk::Loses, action))
    }

    /// The record that an fsync after the newest checkpoint has of a file or directory of the present.
    fn synced(&self, part: &Part) -> Option<&InodeRecord> {
        let synced = self.logged.synced_inode(part.ino).filter(|_| part.life.end == Cno::MAX);
        let file_type = |it: &InodeRecord| FileType::from_mode(it.mode);
        synced.filter(|it| matches!(file_type(it), Some(FileType::Regular | FileType::Directory)))
    }

    /// An inode for what is left of a file: what an fsync says, else a directory if it begins like one.
    fn made_from_blocks(&mut self, part: &Part) -> Option<RawInode> {
        let is_directory = match self.synced(part) {
            Some(synced) => FileType::from_mode(synced.mode) == Some(FileType::Directory),
            None => self.has_names(part),
        };
        // The blocks may be those of a file that had the number before.
        let is_of_another = is_directory && self.begins_otherwise(part);
        let root = if is_of_another { Root::default() } else { self.root(part)? };
        let data = self.children(&Part { level: 1, ..part.clone() });
        let last = data.last().filter(|_| !is_of_another);
        let blocks = last.map_or(0, |(key, _)| key.saturating_add(1));
        let written = self.logged.last_written(part.ino);
        let (file_type, permissions, links) = match is_directory || part.ino == Ino::ROOT {
            true => (FileType::Directory, 0o700, 2),
            false => (FileType::Regular, PRIVATE, 1),
        };
        let (mode, uid, gid) = match self.synced(part) {
            Some(synced) => (synced.mode, synced.uid, synced.gid),
            None => (file_type.mode_bits() | permissions, 0, 0),
        };
        Some(RawInode {
            i_size: U64::new(blocks.checked_mul(self.geometry.block_size.bytes64())?),
            i_ctime: U64::new(written),
            i_mtime: U64::new(written),
            i_mode: U16::new(mode),
            i_uid: U32::new(uid),
            i_gid: U32::new(gid),
            i_links_count: U16::new(links),
            // Else what was fsynced would be that of another file.
            i_generation: U32::new(self.generation(part).unwrap_or(0)),
            i_bmap: root.encode(),
            ..RawInode::zeroed()
        })
    }
}

/// Whether an inode may have been made from the blocks of its file alone: then it is no witness of the type.
pub(crate) fn may_be_made_from_blocks(inode: &RawInode, block_bytes: u64) -> bool {
    inode.i_mode.get() == FileType::Regular.mode_bits() | PRIVATE
        && inode.i_generation.get() == 0
        && inode.i_uid.get() == 0
        && inode.i_gid.get() == 0
        && inode.i_ctime == inode.i_mtime
        && inode.i_size.get().is_multiple_of(block_bytes)
}

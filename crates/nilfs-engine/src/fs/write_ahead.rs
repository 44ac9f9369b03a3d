//! Writing file data before a commit freezes it, in pieces between which an fsync can go. A commit
//! then has little more to write than metadata, and an fsync of a small file waits for one piece at
//! most, not for what a large writer has changed.
//!
//! What is written this way is not durable for anybody yet: a recovery looks at it only if a sync log
//! or the checkpoint refers to it.

use std::sync::Arc;

use nilfs_ondisk::FileBlock;
use nilfs_ondisk::inode::FileType;

use super::Filesystem;
use super::inode::InodeRef;
use crate::block::Block;
use crate::commit::SyncedFile;
use crate::error::Result;
use crate::host::MutexGuard;
use crate::host::atomic::Ordering;

/// Bytes of a piece, with its summary, and the part of a segment that it is at most.
const PIECE: u64 = 256 << 10;
const PIECES_IN_SEGMENT: u64 = 8;

/// Clean segments that are left to commits and to the cleaner.
const LEFT_ALONE: u64 = 16;

/// Blocks that are written together.
#[derive(Default)]
struct Piece {
    files: Vec<SyncedFile>,
    inodes: Vec<InodeRef>,
    blocks: u64,
}

impl Filesystem {
    /// Writes the data of files as a commit would have to, where somebody syncs files meanwhile. What
    /// is less than a piece is left to the commit.
    pub(super) fn write_ahead(&self) -> Result<()> {
        let syncs = self.syncs.load(Ordering::Relaxed);
        let somebody_syncs = self.syncs_before.swap(syncs, Ordering::Relaxed) != syncs;
        if !self.writes_records() || !somebody_syncs {
            return Ok(());
        }
        let mut rest: Vec<InodeRef> = self.table.lock().dirty.values().cloned().collect();
        let geometry = self.store.geometry();
        let in_segment = u64::from(geometry.blocks_per_segment) / PIECES_IN_SEGMENT;
        let most = (PIECE / geometry.block_size.bytes64()).min(in_segment).saturating_sub(1).max(1);
        let mut from = FileBlock(0);
        loop {
            let mut log = self.writable_log()?;
            let mut piece = Piece::default();
            while piece.blocks < most
                && let Some(inode) = rest.last()
            {
                match piece.take(inode, from, most) {
                    Some(next) => from = next,
                    None => (_, from) = (rest.pop(), FileBlock(0)),
                }
            }
            if piece.blocks < most || log.writable_segments() < LEFT_ALONE {
                return Ok(());
            }
            let written = log.write_ahead(&piece.files, &self.stamp());
            let Some(written) = self.or_stop(&mut log, written)? else { return Ok(()) };
            let files = piece.inodes.iter().zip(&piece.files);
            self.note_placed(files, written);
            self.refresh_space(&log);
            MutexGuard::unlock_fair(log);
        }
    }
}

impl Piece {
    /// Takes blocks of a file that are in no log, from one on. Returns where to go on if the piece is
    /// full before the file ends.
    fn take(&mut self, inode: &InodeRef, from: FileBlock, most: u64) -> Option<FileBlock> {
        if inode.file_type() != FileType::Regular {
            return None;
        }
        let state = inode.state.read();
        if state.links() == 0 {
            return None;
        }
        let unwritten = state.overlay.pages.range(from..).filter_map(|(key, page)| {
            let data = page.data.as_ref().filter(|_| page.placed.is_none())?;
            Some((*key, Block::clone(data)))
        });
        let room = (most - self.blocks) as usize;
        let pages: Vec<_> = unwritten.take(room).collect();
        let next = pages.last().map(|(key, _)| FileBlock(key.0 + 1));
        if pages.is_empty() {
            return None;
        }
        let is_full = pages.len() == room;
        self.blocks += pages.len() as u64;
        self.files.push(SyncedFile { ino: inode.ino(), pages });
        self.inodes.push(Arc::clone(inode));
        next.filter(|_| is_full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{BLOCK, check, copy_of, empty_volume, make_file, mount};

    fn content(fs: &Filesystem) -> Vec<u8> {
        let file = fs.lookup(&fs.root().unwrap().inode, b"file").unwrap();
        let mut bytes = vec![0; file.attr.size as usize];
        assert_eq!(fs.read(&file.inode, 0, &mut bytes).unwrap(), bytes.len());
        bytes
    }

    /// A file grows, and part of it is overwritten again after it was written ahead. An fsync then
    /// writes what is not there yet; the rest is found where it is.
    #[test]
    fn what_was_written_ahead_is_part_of_the_next_fsync_and_not_written_again() {
        let device = empty_volume(60);
        let fs = mount(&device);
        let file = make_file(&fs);
        let before = content(&fs);
        fs.sync_file(&file).unwrap();
        let large: Vec<u8> = (0..100 * BLOCK).map(|at| (at / 7) as u8).collect();
        fs.write(&file, 0, &large).unwrap();
        fs.write_ahead().unwrap();
        let after_cut = mount(&copy_of(&device));
        assert!(content(&after_cut) == before, "nobody has asked for it");
        fs.write(&file, 10, b"changed again").unwrap();
        let written = fs.status().data_sync_blocks;
        fs.sync_file(&file).unwrap();
        assert!(fs.status().data_sync_blocks - written < 50, "most of it is there");
        let expected = content(&fs);
        assert!(expected[10..].starts_with(b"changed again"));
        for round in 0..2 {
            let copy = copy_of(&device);
            check(&copy);
            let after_cut = mount(&copy);
            assert!(content(&after_cut) == expected, "round {round}");
            after_cut.unmount().unwrap();
            check(&copy);
            fs.commit().unwrap();
        }
        fs.unmount().unwrap();
        check(&device);
    }
}

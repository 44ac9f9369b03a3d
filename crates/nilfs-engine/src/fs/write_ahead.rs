//! Writing file data before a commit freezes it, in pieces between which an fsync can go. A commit
//! then has little more to write than metadata, and an fsync of a small file waits for one piece at
//! most, not for what a large writer has changed. Where nobody syncs, pieces are larger, because many
//! small ones keep the device less busy; the first fsync after that may have two of these to wait for.
//!
//! A file that takes the place of another is written as soon as it does: a program that replaces files
//! in this way means them to be durable, and often does not ask for it.
//!
//! What is written this way is not durable for anybody yet: a recovery looks at it only if a sync log
//! or the checkpoint refers to it.

use std::ops::Range;
use std::sync::Arc;

use nilfs_ondisk::inode::FileType;
use nilfs_ondisk::summary::{BlockInfo, FINFO_SIZE, Placement};
use nilfs_ondisk::{BlockNr, FileBlock, Geometry, Ino, VBlockNr, block_sums};

use super::Filesystem;
use super::inode::{InodeRef, State};
use crate::block::Block;
use crate::commit::SyncedFile;
use crate::error::Result;
use crate::host::MutexGuard;
use crate::store::FLASH_PAGE;

/// Bytes of a piece, with its summary, and the part of a segment that it is at most.
const PIECE: u64 = 256 << 10;
const PIECES_IN_SEGMENT: u64 = 8;

/// The same where nobody syncs. An fsync may have two of these to wait for. It is a page of flash short of
/// 2 MiB, so that two summary blocks of 4 KiB are enough: a sequential read takes these along rather than
/// make two of itself.
const LARGE_PIECE: u64 = (2 << 20) - FLASH_PAGE.0;
const LARGE_PIECES_IN_SEGMENT: u64 = 2;

/// Blocks that are written together.
#[derive(Default)]
struct Piece {
    files: Vec<SyncedFile>,
    inodes: Vec<InodeRef>,
    blocks: u64,
}

impl Filesystem {
    /// Whether files have as many blocks that no log has.
    pub(super) fn has_unwritten_blocks(&self, blocks: u64) -> bool {
        let mut found = 0;
        self.dirty_inodes().iter().any(|inode| {
            let state = inode.state.read();
            found += unwritten(&state, FileBlock(0)).take(blocks as usize).count() as u64;
            found >= blocks
        })
    }

    pub(super) fn dirty_inodes(&self) -> Vec<InodeRef> {
        self.table.lock().dirty.values().cloned().collect()
    }

    /// Writes the data of what an fsync has to make durable, if it is so much that others should not have
    /// to wait for it.
    pub(super) fn write_much(&self, inode: &InodeRef) -> Result<()> {
        if !self.writes_records() {
            return Ok(());
        }
        let inodes = match inode.ino() {
            Ino::ROOT => self.dirty_inodes(),
            _ => {
                let mut inodes = self.replacements();
                inodes.retain(|other| !Arc::ptr_eq(other, inode));
                inodes.push(Arc::clone(inode));
                inodes
            }
        };
        let blocks =
            inodes.iter().map(|inode| inode.state.read().overlay.unlogged.len()).sum::<usize>();
        if blocks <= self.store.geometry().blocks_per_segment as usize / 2 {
            return Ok(());
        }
        // But this one.
        let others = self.writer.syncs_before() + 1;
        self.write_pieces(inodes, self.small_piece(), others)?;
        // Else the sync log would say that all of it may not be durable, and a mount after a crash read it.
        self.writing().session()?.flush()
    }

    /// A file has taken the place of another: what is in no log of it begins to be written.
    pub(super) fn has_replaced(&self, inode: &InodeRef) {
        if self.writes_records() && unwritten(&inode.state.read(), FileBlock(0)).next().is_some() {
            self.wakeup.write_replacements();
        }
    }

    /// Writes the data of files that have taken the place of others since the last log.
    pub(super) fn write_replacements(&self) -> Result<()> {
        let before = self.writer.syncs_before();
        self.write_pieces(self.replacements(), 1, before)
    }

    /// Files that have taken the place of others since the last log.
    fn replacements(&self) -> Vec<InodeRef> {
        let replacements: Vec<Ino> = self.journal.lock().contents().collect();
        if replacements.is_empty() {
            return Vec::new();
        }
        let table = self.table.lock();
        replacements.into_iter().filter_map(|ino| table.get(ino)).collect()
    }

    pub(super) fn small_piece(&self) -> u64 {
        data_of_a_log(&self.store.geometry(), PIECE, PIECES_IN_SEGMENT)
    }

    fn large_piece(&self) -> u64 {
        let large = data_of_a_log(&self.store.geometry(), LARGE_PIECE, LARGE_PIECES_IN_SEGMENT);
        large.max(self.small_piece())
    }

    /// Writes the data of files in pieces, none of which has less blocks than `least`. Nobody waits as
    /// long as somebody has synced no more than `syncs` times.
    pub(super) fn write_pieces(
        &self,
        mut rest: Vec<InodeRef>,
        least: u64,
        syncs: u64,
    ) -> Result<()> {
        let (small, large) = (self.small_piece(), self.large_piece());
        // The last is taken first: they are written in the order in which a commit would.
        rest.reverse();
        let mut from = FileBlock(0);
        loop {
            // An fsync waits for one piece, however many threads write ahead.
            let mut on_its_way = self.writing_ahead.lock();
            let mut session = self.writing().session()?;
            let nobody_waits = self.writer.syncs() == syncs;
            let most = if nobody_waits { large } else { small };
            let mut piece = Piece::default();
            while piece.blocks < most
                && let Some(inode) = rest.last()
            {
                match piece.take(inode, from, most) {
                    Some(next) => from = next,
                    None => (_, from) = (rest.pop(), FileBlock(0)),
                }
            }
            // Twice its blocks: it has a summary, too, and may leave the end of a segment unused.
            if piece.blocks < least || !self.writer.space.has_room_ahead(2 * piece.blocks) {
                return Ok(());
            }
            let Some(written) = session.write_files_ahead(&piece.files)? else { return Ok(()) };
            let files = piece.inodes.iter().zip(&piece.files);
            let logs = written.logs.clone();
            self.note_placed(files, written);
            session.end_fairly();
            // Otherwise the next fsync would have to wait for all of them.
            if let Err(error) = self.write_out(logs, nobody_waits, &mut on_its_way) {
                return self.writing().lock().noting(Err(error));
            }
            MutexGuard::unlock_fair(on_its_way);
        }
    }

    /// Waits until logs have reached the device, and the one that is on its way. Where nobody waits, the
    /// last of them goes on its way then, so that the device has something to do while the next piece is
    /// made. It is alone: the system may write what lies in the next segment before the rest of this one.
    fn write_out(
        &self,
        mut logs: Vec<Range<BlockNr>>,
        nobody_waits: bool,
        on_its_way: &mut Option<Range<BlockNr>>,
    ) -> Result<()> {
        let last = if nobody_waits { logs.pop() } else { None };
        logs.iter().try_for_each(|log| self.store.write_out(log))?;
        if let Some(last) = &last {
            self.store.begin_to_write_out(last)?;
        }
        let before = std::mem::replace(on_its_way, last);
        before.map_or(Ok(()), |log| self.store.write_out(&log))
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
        let room = (most - self.blocks) as usize;
        let pages: Vec<_> = unwritten(&state, from).take(room).collect();
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

/// The blocks of a file that are in no log, from one on.
fn unwritten(state: &State, from: FileBlock) -> impl Iterator<Item = (FileBlock, Block)> {
    state.overlay.pages.range(from..).filter_map(|(key, page)| {
        let data = page.data.as_ref().filter(|_| page.placed.is_none())?;
        Some((*key, Block::clone(data)))
    })
}

/// The data blocks of one file that fill a log, next to its summary. The log has at most `bytes` bytes, and
/// a segment has room for at least `in_segment` of such logs.
fn data_of_a_log(geometry: &Geometry, bytes: u64, in_segment: u64) -> u64 {
    let Geometry { block_size, blocks_per_segment, .. } = *geometry;
    let room = (bytes / block_size.bytes64()).min(u64::from(blocks_per_segment) / in_segment);
    let mut summary = Placement::new(block_size);
    summary.place(FINFO_SIZE);
    let info = BlockInfo::Data { vblocknr: VBlockNr(0), offset: FileBlock(0) };
    let fits = |blocks: &u64| {
        summary.place(info.size());
        summary.blocks_with(block_sums::size(*blocks)) + blocks <= room
    };
    (1..room).take_while(fits).last().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use nilfs_ondisk::BlockSize;

    use super::*;
    use crate::fixtures::{BLOCK, check, copy_of, empty_volume, make_file, mount, write};
    use crate::{NewInode, RenameMode};

    fn new_file() -> NewInode {
        NewInode { mode: 0o100_644, uid: 0, gid: 0, rdev: Default::default() }
    }

    /// What takes more than one piece to write.
    fn large() -> Vec<u8> {
        (0..100 * BLOCK).map(|at| (at / 7) as u8).collect()
    }

    /// Lets a new file with this content take the place of one that is durable.
    fn replace_file(fs: &Filesystem, content: &[u8]) -> InodeRef {
        fs.sync_file(&make_file(fs)).unwrap();
        let root = fs.root().unwrap().inode;
        let new = fs.create(&root, b"new", &new_file()).unwrap().inode;
        fs.write(&new, 0, content).unwrap();
        fs.rename(&root, b"new", &root, b"file", RenameMode::Replace).unwrap();
        new
    }

    fn content(fs: &Filesystem) -> Vec<u8> {
        let file = fs.lookup(&fs.root().unwrap().inode, b"file").unwrap();
        let mut bytes = vec![0; file.attr.size as usize];
        assert_eq!(fs.read(&file.inode, 0, &mut bytes).unwrap(), bytes.len());
        bytes
    }

    /// What is written ahead has no more of a summary than it needs: a file that is read in order is
    /// read across it.
    #[test]
    fn a_piece_and_its_summary_fill_pages_of_flash() {
        let geometry = mount(&empty_volume(60)).store.geometry();
        for (bytes, block_size) in [
            (PIECE, 1),
            (PIECE, 2),
            (PIECE, 4),
            (LARGE_PIECE, 1),
            (LARGE_PIECE, 2),
            (LARGE_PIECE, 4),
        ] {
            let block_size = BlockSize::from_bytes(block_size << 10).unwrap();
            let geometry = Geometry { block_size, blocks_per_segment: 1 << 20, ..geometry };
            let data = data_of_a_log(&geometry, bytes, 1);
            let summary = bytes / block_size.bytes64() - data;
            assert_eq!(
                summary,
                block_size.blocks_for(64 + 24 + 8 + 16 * data + 4 + 4 * data),
                "{bytes}, {block_size}"
            );
        }
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
        let large = large();
        fs.write(&file, 0, &large).unwrap();
        drop(fs.writing().write_ahead().unwrap());
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

    /// Where sync logs wait for a checkpoint, changes of metadata become one of everything: the cleaner's,
    /// in the middle of which an fsync may come. Otherwise they leave alone what programs have changed.
    #[test]
    fn data_are_written_before_changes_of_metadata_if_these_would_take_them_along() {
        let device = empty_volume(60);
        let fs = mount(&device);
        let file = make_file(&fs);
        fs.sync().unwrap();
        let piece = fs.small_piece();
        fs.write(&file, 0, &large()).unwrap();
        drop(fs.writing().write_ahead_of_metadata().unwrap());
        assert!(fs.has_unwritten_blocks(2 * piece), "no sync log waits");
        let other = fs.create(&fs.root().unwrap().inode, b"other", &new_file()).unwrap().inode;
        fs.sync_file(&other).unwrap();
        drop(fs.writing().write_ahead_of_metadata().unwrap());
        assert!(!fs.has_unwritten_blocks(piece), "a sync log waits");
        fs.unmount().unwrap();
        check(&device);
    }

    /// A power cut may leave the sync log on the device, and not all of what was written ahead of it. Then
    /// the sync log counts for nothing, although it is whole.
    #[test]
    fn a_sync_log_does_not_vouch_for_what_was_written_since_the_last_flush() {
        let device = empty_volume(60);
        let fs = mount(&device);
        let file = make_file(&fs);
        fs.sync_file(&file).unwrap();
        let before = content(&fs);
        let large = large();
        fs.write(&file, 0, &large).unwrap();
        let [without, with] = [false, true].map(|ahead| {
            if ahead {
                drop(fs.writing().write_ahead().unwrap());
            }
            device.snapshot()
        });
        fs.sync_file(&file).unwrap();
        assert!(content(&mount(&copy_of(&device))) == large);
        let pairs = without.chunks(BLOCK).zip(with.chunks(BLOCK));
        let changed: Vec<usize> =
            pairs.enumerate().filter(|(_, (old, new))| old != new).map(|(nth, _)| nth).collect();
        for lost in [changed[0], changed[1], changed[changed.len() - 1]] {
            let torn = copy_of(&device);
            write(&torn, BlockNr(lost as u64), &without[lost * BLOCK..][..BLOCK]);
            assert!(content(&mount(&torn)) == before, "block {lost} was lost");
        }
        fs.unmount().unwrap();
    }

    /// Files are replaced in the way of editors that do not fsync. Their content is written at once,
    /// so the sync of another file has records to write, and no blocks of theirs.
    #[test]
    fn what_takes_the_place_of_another_file_is_written_at_once() {
        let device = empty_volume(60);
        let fs = mount(&device);
        let large = large();
        drop(replace_file(&fs, &large));
        fs.write_replacements().unwrap();
        let written = fs.status().data_sync_blocks;
        let other = fs.create(&fs.root().unwrap().inode, b"other", &new_file()).unwrap().inode;
        fs.sync_file(&other).unwrap();
        assert!(fs.status().data_sync_blocks - written < 10, "the content is there");
        let after_cut = mount(&copy_of(&device));
        assert!(content(&after_cut) == large);
        fs.unmount().unwrap();
        check(&device);
    }

    /// Its blocks got two numbers each, of which one meant nothing after the next checkpoint.
    #[test]
    fn a_file_that_has_replaced_another_and_is_synced_is_written_once() {
        let device = empty_volume(60);
        let fs = mount(&device);
        let new = replace_file(&fs, &[b'n'; 140 * BLOCK]);
        let written = fs.status().data_sync_blocks;
        fs.sync_file(&new).unwrap();
        assert!(fs.status().data_sync_blocks - written < 140 + 40, "its blocks and summaries");
        fs.commit().unwrap();
        drop(new);
        fs.unmount().unwrap();
        check(&device);
    }
}

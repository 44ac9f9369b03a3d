//! Entries of checkpoints made anew: which of them are snapshots is told by their names and notes, and by the list
//! of snapshots, as far as that is in other blocks.

use std::collections::{BTreeMap, BTreeSet};

use nilfs_check::Part;
use nilfs_ondisk::checkpoint::{CpfileLayout, INVALID, RawCheckpoint, RawCpfileHeader, SNAPSHOT};
use nilfs_ondisk::{Cno, FileBlock, Ino, notes};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use crate::anew::{Anew, new_metadata_inode};
use crate::superblocks;

impl Anew<'_> {
    /// The newest checkpoint has the ifile as the logs have it. Those between it and an older version of the block
    /// are lost, and returned.
    pub(crate) fn checkpoints(&mut self, bytes: &mut [u8], part: &Part, older: bool) -> Vec<Cno> {
        let layout = CpfileLayout::new(&self.geometry);
        if !older {
            for (_, offset) in layout.slots_of(FileBlock(part.key)) {
                bytes[offset..offset + 4].copy_from_slice(&INVALID.to_le_bytes());
            }
        }
        self.newest_checkpoint(bytes, part);
        self.mark_snapshots(bytes, part);
        let newest = self.newest.cno;
        let slots: Vec<_> = layout.slots_of(FileBlock(part.key)).collect();
        let is_there = |offset: usize| {
            RawCheckpoint::parse(&bytes[offset..]).is_ok_and(|entry| entry.is_valid())
        };
        let known = slots.iter().filter(|(cno, offset)| *cno < newest && is_there(*offset));
        let last = known.map(|(cno, _)| *cno).max();
        let later = slots.iter().map(|(cno, _)| *cno).filter(|cno| Some(*cno) > last);
        later.filter(|cno| *cno < newest && *cno > Cno(0)).collect()
    }

    fn newest_checkpoint(&mut self, bytes: &mut [u8], part: &Part) {
        let layout = CpfileLayout::new(&self.geometry);
        let newest = self.newest.cno;
        let slot = layout.slot(newest);
        if slot.block.0 != part.key {
            return;
        }
        let ifile = Part { ino: Ino::IFILE, level: 0, key: 0, limit: None, life: newest..Cno::MAX };
        let before = layout.slots_of(FileBlock(part.key)).map(|(_, offset)| offset);
        let before: Vec<_> = before.take_while(|offset| *offset < slot.offset).collect();
        let last = before.iter().rev().find_map(|offset| {
            RawCheckpoint::parse(&bytes[*offset..]).ok().filter(RawCheckpoint::is_valid)
        });
        let time = self.logged.last_written(Ino::IFILE);
        let Ok(mut entry) = RawCheckpoint::parse(&bytes[slot.offset..]) else { return };
        let Some(root) = self.root(&ifile) else { return };
        entry.cp_ifile_inode = last.map_or_else(new_metadata_inode, |last| last.cp_ifile_inode);
        entry.cp_ifile_inode.i_bmap = root.encode();
        entry.cp_flags = U32::new(entry.cp_flags.get() & !(INVALID | SNAPSHOT));
        entry.cp_cno = U64::new(newest.0);
        entry.cp_create = U64::new(time);
        bytes[slot.offset..slot.offset + entry.as_bytes().len()].copy_from_slice(entry.as_bytes());
    }

    /// Makes those checkpoints snapshots of which other blocks say that.
    fn mark_snapshots(&self, bytes: &mut [u8], part: &Part) {
        let layout = CpfileLayout::new(&self.geometry);
        let told: BTreeSet<Cno> = self.noted().into_iter().chain(self.listed(part)).collect();
        for (cno, offset) in layout.slots_of(FileBlock(part.key)).filter(|it| told.contains(&it.0))
        {
            let Ok(entry) = RawCheckpoint::parse(&bytes[offset..]) else { continue };
            if entry.is_valid() && entry.cp_cno.get() == cno.0 {
                let flags = entry.cp_flags.get() | SNAPSHOT;
                bytes[offset..offset + 4].copy_from_slice(&flags.to_le_bytes());
            }
        }
    }

    /// The checkpoints that have a name or a note, as only snapshots do.
    fn noted(&self) -> Vec<Cno> {
        let Ok(superblock) = superblocks::best(self.device) else { return Vec::new() };
        let blocks = self.newest_blocks(Ino::XATTR);
        let whole = blocks.iter().zip(0..).take_while(|((key, _), nth)| **key == *nth);
        let bytes: Vec<u8> = whole.flat_map(|((_, bytes), _)| bytes.iter().copied()).collect();
        let notes = notes::parse(&bytes, superblock.crc_seed()).unwrap_or_default();
        notes.into_iter().map(|note| note.cno).collect()
    }

    /// The checkpoints to which the list of snapshots leads from other blocks.
    fn listed(&self, part: &Part) -> Vec<Cno> {
        let layout = CpfileLayout::new(&self.geometry);
        let mut listed = Vec::new();
        for (key, bytes) in self.newest_blocks(Ino::CPFILE) {
            if key == part.key {
                continue;
            }
            if key == 0
                && let Ok(header) = RawCpfileHeader::parse(&bytes)
            {
                listed.extend(
                    [header.ch_snapshot_next, header.ch_snapshot_prev].map(|it| Cno(it.get())),
                );
            }
            for (_, offset) in layout.slots_of(FileBlock(key)) {
                let entry = bytes.get(offset..).and_then(|slot| RawCheckpoint::parse(slot).ok());
                let snapshot = entry.filter(|entry| entry.is_valid() && entry.is_snapshot());
                listed.extend(snapshot.into_iter().flat_map(|it| {
                    [Cno(it.cp_snapshot_next.get()), Cno(it.cp_snapshot_prev.get())]
                }));
            }
        }
        listed
    }

    /// The newest version of each block of a file that can be read, by its place.
    fn newest_blocks(&self, ino: Ino) -> BTreeMap<u64, Vec<u8>> {
        let mut newest = BTreeMap::new();
        for logged in self.logged.data(ino, 0, None) {
            if let Some(key) = logged.offset()
                && !newest.contains_key(&key)
            {
                newest.insert(key, self.read_as_written(logged.block));
            }
        }
        newest.into_iter().filter_map(|(key, bytes)| Some((key, bytes?))).collect()
    }
}

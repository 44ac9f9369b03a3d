//! The cpfile: the checkpoints of the volume (docs/format.md §11, docs/format.md §18 and §7).

use std::ops::{ControlFlow, Range};

use nilfs_ondisk::bmap::Root;
use nilfs_ondisk::checkpoint::{
    CHECKPOINT_SIZE, CpfileLayout, INVALID, MINOR, RawCheckpoint, RawCpfileHeader, SNAPSHOT,
};
use nilfs_ondisk::{Cno, FileBlock, Slot};
use serde::{Deserialize, Serialize};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use crate::bmap::Source;
use crate::error::{Error, Result};
use crate::metafile::FileEdit;

const HEADER_BLOCK: FileBlock = FileBlock(0);

/// Numbers of checkpoints that are looked at first, from the newest down; then twice as many, and so on.
const FIRST_LOOK: u64 = 16;

/// Checkpoints that are listed at a time.
const LISTED_AT_ONCE: u64 = 1024;

/// A checkpoint, as a list of checkpoints shows it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CheckpointInfo {
    /// Its number.
    pub cno: Cno,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// Whether it is kept as a snapshot.
    pub snapshot: bool,
    /// Whether nothing that a user sees has changed in it.
    pub minor: bool,
    /// Blocks of its files.
    pub blocks: u64,
    /// Number of its inodes.
    pub inodes: u64,
    /// Blocks that its log wrote; informational.
    pub increment: u64,
}

/// How many checkpoints a volume has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CheckpointTotals {
    /// The newest one.
    pub newest: Cno,
    /// All of them, snapshots included.
    pub checkpoints: u64,
    /// Number of snapshots among them.
    pub snapshots: u64,
}

/// The newest checkpoint below `end` that fits, where `list` returns checkpoints as
/// [`Checkpoints::checkpoints`](crate::Checkpoints::checkpoints) does. `end` should not be far above the newest one.
/// About as many are listed as there are between `end` and the one that is found.
///
/// # Errors
/// Errors of `list`.
pub fn newest_below<E>(
    end: Cno,
    list: &dyn Fn(Cno, usize) -> Result<Vec<CheckpointInfo>, E>,
    fits: &dyn Fn(&CheckpointInfo) -> bool,
) -> Result<Option<CheckpointInfo>, E> {
    let (mut end, mut width) = (end.0, FIRST_LOOK);
    while end > Cno::MIN.0 {
        let start = end.saturating_sub(width).max(Cno::MIN.0);
        let (mut from, mut best) = (start, None);
        while from < end {
            let limit = (end - from).min(LISTED_AT_ONCE) as usize;
            let found = list(Cno(from), limit)?;
            let Some(last) = found.last() else { break };
            from = last.cno.0.saturating_add(1);
            best = found.into_iter().rfind(|it| it.cno.0 < end && fits(it)).or(best);
        }
        if best.is_some() {
            return Ok(best);
        }
        (end, width) = (start, width.saturating_mul(2));
    }
    Ok(None)
}

/// The counters of the cpfile.
pub(crate) fn header(source: Source<'_>, root: &Root) -> Result<RawCpfileHeader> {
    header_of(&FileEdit::new(root.clone()), source)
}

/// How many checkpoints there are, of which `newest` is the newest.
pub(crate) fn totals(source: Source<'_>, root: &Root, newest: Cno) -> Result<CheckpointTotals> {
    let header = header(source, root)?;
    Ok(CheckpointTotals {
        newest,
        checkpoints: header.ch_ncheckpoints.get(),
        snapshots: header.ch_nsnapshots.get(),
    })
}

fn header_of(file: &FileEdit, source: Source<'_>) -> Result<RawCpfileHeader> {
    let block = file
        .get(source, HEADER_BLOCK)?
        .ok_or_else(|| Error::missing("the header of the cpfile"))?;
    RawCpfileHeader::parse(&block).map_err(damaged)
}

/// A checkpoint's entry.
pub(crate) fn checkpoint(source: Source<'_>, root: &Root, cno: Cno) -> Result<RawCheckpoint> {
    if cno < Cno::MIN {
        return Err(Error::NoCheckpoint(cno));
    }
    let Slot { block: key, offset } = CpfileLayout::new(&source.store.geometry()).slot(cno);
    let block = source.block(root, key)?.ok_or(Error::NoCheckpoint(cno))?;
    let entry = RawCheckpoint::parse(&block[offset..]).map_err(damaged)?;
    if !entry.is_valid() || entry.cp_cno.get() != cno.0 {
        return Err(Error::NoCheckpoint(cno));
    }
    Ok(entry)
}

/// Calls `visit` with every checkpoint from `from` on, ascending, until it breaks.
pub(crate) fn scan(
    source: Source<'_>,
    root: &Root,
    from: Cno,
    visit: &mut dyn FnMut(Cno, &RawCheckpoint) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let layout = CpfileLayout::new(&source.store.geometry());
    let from = from.max(Cno::MIN);
    source.scan(root, layout.slot(from).block, &mut |key, pointer| {
        let block = source.store.read(source.locate(pointer)?)?;
        for (cno, offset) in layout.slots_of(key) {
            let entry = RawCheckpoint::parse(&block[offset..]).map_err(damaged)?;
            if cno >= from && entry.is_valid() && visit(cno, &entry)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    })
}

/// The checkpoints from `from` on, ascending, at most `limit`.
pub(crate) fn list(
    source: Source<'_>,
    root: &Root,
    from: Cno,
    limit: usize,
) -> Result<Vec<CheckpointInfo>> {
    let mut list = Vec::new();
    scan(source, root, from, &mut |cno, entry| {
        if list.len() >= limit {
            return Ok(ControlFlow::Break(()));
        }
        list.push(CheckpointInfo {
            cno,
            created: entry.cp_create.get(),
            snapshot: entry.is_snapshot(),
            minor: entry.cp_flags.get() & MINOR != 0,
            blocks: entry.cp_blocks_count.get(),
            inodes: entry.cp_inodes_count.get(),
            increment: entry.cp_nblk_inc.get(),
        });
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(list)
}

/// The cpfile while a commit changes it.
#[derive(Clone)]
pub(crate) struct CpfileEdit {
    pub(crate) file: FileEdit,
    layout: CpfileLayout,
}

impl CpfileEdit {
    pub(crate) fn new(source: Source<'_>, root: Root) -> Self {
        Self { file: FileEdit::new(root), layout: CpfileLayout::new(&source.store.geometry()) }
    }

    /// Adds a checkpoint. `entry` says everything but the count that shares a slot with it.
    pub(crate) fn add(
        &mut self,
        source: Source<'_>,
        cno: Cno,
        mut entry: RawCheckpoint,
    ) -> Result<()> {
        let Slot { block: key, offset } = self.layout.slot(cno);
        let slots: Vec<_> = self.layout.slots_of(key).collect();
        let block = self.file.get_mut(source, key, |block| {
            for (_, offset) in &slots {
                block[*offset..*offset + 4].copy_from_slice(&INVALID.to_le_bytes());
            }
        })?;
        let old = RawCheckpoint::parse(&block[offset..]).map_err(damaged)?;
        entry.cp_checkpoints_count = old.cp_checkpoints_count;
        block[offset..offset + CHECKPOINT_SIZE].copy_from_slice(entry.as_bytes());
        if old.is_valid() {
            return Ok(());
        }
        self.count_in_block(source, key, 1)?;
        let mut header = header_of(&self.file, source)?;
        header.ch_ncheckpoints = U64::new(header.ch_ncheckpoints.get().saturating_add(1));
        self.set_header(source, &header)
    }

    /// Deletes the checkpoints of a range except snapshots. Returns their number.
    pub(crate) fn delete(&mut self, source: Source<'_>, range: &Range<Cno>) -> Result<u64> {
        let mut found = Vec::new();
        scan(source, self.file.root(), range.start, &mut |cno, _| {
            if cno >= range.end {
                return Ok(ControlFlow::Break(()));
            }
            found.push(cno);
            Ok(ControlFlow::Continue(()))
        })?;
        let mut doomed = Vec::new();
        for cno in found {
            // The same commit may have deleted it, or made a snapshot of it, already.
            match self.entry(source, cno) {
                Ok(entry) if !entry.is_snapshot() => doomed.push(cno),
                Ok(_) | Err(Error::NoCheckpoint(_)) => {}
                Err(error) => return Err(error),
            }
        }
        for &cno in &doomed {
            let mut entry = self.entry(source, cno)?;
            entry.cp_flags = U32::new(entry.cp_flags.get() | INVALID);
            self.set_entry(source, cno, &entry)?;
            let key = self.layout.slot(cno).block;
            if self.count_in_block(source, key, -1)? == Some(0) {
                self.file.remove(source, key)?;
            }
        }
        let deleted = doomed.len() as u64;
        let mut header = header_of(&self.file, source)?;
        header.ch_ncheckpoints = U64::new(header.ch_ncheckpoints.get().saturating_sub(deleted));
        self.set_header(source, &header)?;
        Ok(deleted)
    }

    /// Makes a snapshot of a checkpoint, or the other way round; nothing, if it is that already.
    /// Snapshots are linked in a list by ascending number, with the header at both ends.
    pub(crate) fn set_snapshot(
        &mut self,
        source: Source<'_>,
        cno: Cno,
        snapshot: bool,
    ) -> Result<()> {
        let mut entry = self.entry(source, cno)?;
        if entry.is_snapshot() == snapshot {
            return Ok(());
        }
        let (previous, next) = match snapshot {
            true => self.neighbours(source, cno)?,
            false => (Cno(entry.cp_snapshot_prev.get()), Cno(entry.cp_snapshot_next.get())),
        };
        let (behind_previous, before_next) = if snapshot { (cno, cno) } else { (next, previous) };
        self.link(source, previous, |_, next| *next = U64::new(behind_previous.0))?;
        self.link(source, next, |previous, _| *previous = U64::new(before_next.0))?;
        // The entry may have been a neighbour of itself only through a damaged list.
        entry.cp_flags = U32::new(entry.cp_flags.get() ^ SNAPSHOT);
        let links = if snapshot { (previous, next) } else { (Cno(0), Cno(0)) };
        entry.cp_snapshot_prev = U64::new(links.0.0);
        entry.cp_snapshot_next = U64::new(links.1.0);
        self.set_entry(source, cno, &entry)?;
        let mut header = header_of(&self.file, source)?;
        let by = if snapshot { 1 } else { -1 };
        header.ch_nsnapshots = U64::new(header.ch_nsnapshots.get().saturating_add_signed(by));
        self.set_header(source, &header)
    }

    /// The snapshots before and after a checkpoint; 0 where there is none.
    fn neighbours(&self, source: Source<'_>, cno: Cno) -> Result<(Cno, Cno)> {
        let mut next = Cno(0);
        let mut previous = Cno(header_of(&self.file, source)?.ch_snapshot_prev.get());
        while previous > cno {
            let following = Cno(self.entry(source, previous)?.cp_snapshot_prev.get());
            if following >= previous {
                return Err(Error::Inconsistent("the list of snapshots does not descend".into()));
            }
            (next, previous) = (previous, following);
        }
        Ok((previous, next))
    }

    /// Changes the links (to the previous, to the next) of a snapshot; of the header, if 0.
    fn link(
        &mut self,
        source: Source<'_>,
        cno: Cno,
        change: impl FnOnce(&mut U64, &mut U64),
    ) -> Result<()> {
        if cno.0 == 0 {
            let mut header = header_of(&self.file, source)?;
            // Seen from the ends of the list, the header is what comes next to both.
            change(&mut header.ch_snapshot_prev, &mut header.ch_snapshot_next);
            return self.set_header(source, &header);
        }
        let mut entry = self.entry(source, cno)?;
        change(&mut entry.cp_snapshot_prev, &mut entry.cp_snapshot_next);
        self.set_entry(source, cno, &entry)
    }

    /// A checkpoint's entry as it is now.
    fn entry(&self, source: Source<'_>, cno: Cno) -> Result<RawCheckpoint> {
        let Slot { block: key, offset } = self.layout.slot(cno);
        let block = self.file.get(source, key)?.ok_or(Error::NoCheckpoint(cno))?;
        let entry = RawCheckpoint::parse(&block[offset..]).map_err(damaged)?;
        if !entry.is_valid() || entry.cp_cno.get() != cno.0 {
            return Err(Error::NoCheckpoint(cno));
        }
        Ok(entry)
    }

    fn set_entry(&mut self, source: Source<'_>, cno: Cno, entry: &RawCheckpoint) -> Result<()> {
        let Slot { block: key, offset } = self.layout.slot(cno);
        let block = self.file.get_mut(source, key, |_| {})?;
        block[offset..offset + CHECKPOINT_SIZE].copy_from_slice(entry.as_bytes());
        Ok(())
    }

    /// The first slot of every block but the first counts the checkpoints of the block. Returns
    /// the new count.
    fn count_in_block(
        &mut self,
        source: Source<'_>,
        key: FileBlock,
        by: i32,
    ) -> Result<Option<u32>> {
        if key == HEADER_BLOCK {
            return Ok(None);
        }
        let block = self.file.get_mut(source, key, |_| {})?;
        let mut first = RawCheckpoint::parse(block).map_err(damaged)?;
        let count = first.cp_checkpoints_count.get().saturating_add_signed(by);
        first.cp_checkpoints_count = U32::new(count);
        block[..CHECKPOINT_SIZE].copy_from_slice(first.as_bytes());
        Ok(Some(count))
    }

    fn set_header(&mut self, source: Source<'_>, header: &RawCpfileHeader) -> Result<()> {
        let block = self.file.get_mut(source, HEADER_BLOCK, |_| {})?;
        block[..size_of::<RawCpfileHeader>()].copy_from_slice(header.as_bytes());
        Ok(())
    }
}

fn damaged(source: nilfs_ondisk::FormatError) -> Error {
    Error::Corrupt { what: "cpfile".into(), block: None, source }
}

//! The cpfile: the checkpoints of the volume (format spec §11, behaviour spec §3.4 and §7).

use std::ops::ControlFlow;

use nilfs_ondisk::bmap::Root;
use nilfs_ondisk::checkpoint::{
    CHECKPOINT_SIZE, CpfileLayout, INVALID, RawCheckpoint, RawCpfileHeader,
};
use nilfs_ondisk::{Cno, FileBlock};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use crate::bmap::Source;
use crate::error::{Error, Result};
use crate::metafile::FileEdit;

const HEADER_BLOCK: FileBlock = FileBlock(0);

/// The counters of the cpfile.
pub(crate) fn header(source: Source<'_>, root: &Root) -> Result<RawCpfileHeader> {
    header_of(&FileEdit::new(root.clone()), source)
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
    let (key, offset) = CpfileLayout::new(source.store.geometry()).slot(cno);
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
    let layout = CpfileLayout::new(source.store.geometry());
    let from = from.max(Cno::MIN);
    source.scan(root, layout.slot(from).0, &mut |key, pointer| {
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

/// The cpfile while a commit changes it.
#[derive(Clone)]
pub(crate) struct CpfileEdit {
    pub(crate) file: FileEdit,
    layout: CpfileLayout,
}

impl CpfileEdit {
    pub(crate) fn new(source: Source<'_>, root: Root) -> Self {
        Self { file: FileEdit::new(root), layout: CpfileLayout::new(source.store.geometry()) }
    }

    /// Adds a checkpoint. `entry` says everything but the count that shares a slot with it.
    pub(crate) fn add(
        &mut self,
        source: Source<'_>,
        cno: Cno,
        mut entry: RawCheckpoint,
    ) -> Result<()> {
        let (key, offset) = self.layout.slot(cno);
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
        // The first slot of every block but the first counts the checkpoints of the block.
        if key != HEADER_BLOCK {
            let mut first = RawCheckpoint::parse(block).map_err(damaged)?;
            first.cp_checkpoints_count =
                U32::new(first.cp_checkpoints_count.get().saturating_add(1));
            block[..CHECKPOINT_SIZE].copy_from_slice(first.as_bytes());
        }
        let mut header = header_of(&self.file, source)?;
        header.ch_ncheckpoints = U64::new(header.ch_ncheckpoints.get().saturating_add(1));
        let block = self.file.get_mut(source, HEADER_BLOCK, |_| {})?;
        block[..size_of::<RawCpfileHeader>()].copy_from_slice(header.as_bytes());
        Ok(())
    }
}

fn damaged(source: nilfs_ondisk::FormatError) -> Error {
    Error::Corrupt { what: "cpfile".into(), block: None, source }
}

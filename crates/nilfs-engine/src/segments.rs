//! The sufile: which segments are free (docs/format.md §12, docs/format.md §18).

use nilfs_ondisk::bmap::Root;
use nilfs_ondisk::segment_usage::{
    DIRTY, ERROR, RawSegmentUsage, RawSufileHeader, SEGMENT_USAGE_SIZE, SufileLayout,
};
use nilfs_ondisk::{FileBlock, SegNum, Slot};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use crate::bmap::Source;
use crate::error::{Error, Result};
use crate::metafile::FileEdit;

const HEADER_BLOCK: FileBlock = FileBlock(0);

/// The counters of the sufile.
pub(crate) fn header(source: Source<'_>, root: &Root) -> Result<RawSufileHeader> {
    header_of(&FileEdit::new(root.clone()), source)
}

/// The usage of every segment from `first` on, in order.
pub(crate) fn usages(
    source: Source<'_>,
    root: &Root,
    first: SegNum,
) -> impl Iterator<Item = Result<(SegNum, RawSegmentUsage)>> {
    SufileEdit::new(source, root.clone()).into_usages(source, first)
}

fn header_of(file: &FileEdit, source: Source<'_>) -> Result<RawSufileHeader> {
    let block = file
        .get(source, HEADER_BLOCK)?
        .ok_or_else(|| Error::missing("the header of the sufile"))?;
    RawSufileHeader::parse(&block).map_err(|source| Error::Corrupt {
        what: "sufile".into(),
        block: None,
        source,
    })
}

/// The sufile while a commit changes it.
#[derive(Clone)]
pub(crate) struct SufileEdit {
    pub(crate) file: FileEdit,
    layout: SufileLayout,
    nsegments: u64,
}

impl SufileEdit {
    pub(crate) fn new(source: Source<'_>, root: Root) -> Self {
        let geometry = source.store.geometry();
        Self {
            file: FileEdit::new(root),
            layout: SufileLayout::new(&geometry),
            nsegments: geometry.nsegments,
        }
    }

    /// The usage of every segment from `first` on, in order.
    pub(crate) fn into_usages(
        self,
        source: Source<'_>,
        first: SegNum,
    ) -> impl Iterator<Item = Result<(SegNum, RawSegmentUsage)>> {
        let end = source.store.geometry().nsegments;
        (first.0..end).map(SegNum).map(move |it| Ok((it, self.usage(source, it)?)))
    }

    /// The usage of one segment.
    pub(crate) fn usage(&self, source: Source<'_>, segment: SegNum) -> Result<RawSegmentUsage> {
        let Slot { block: key, offset } = self.layout.slot(segment);
        // A missing block says that all its segments are clean.
        let Some(block) = self.file.get(source, key)? else {
            return Ok(RawSegmentUsage::CLEAN);
        };
        RawSegmentUsage::parse(&block[offset..])
            .map_err(|source| Error::bad_segment(segment, source))
    }

    /// Number of clean segments.
    pub(crate) fn clean_segments(&self, source: Source<'_>) -> Result<u64> {
        Ok(header_of(&self.file, source)?.sh_ncleansegs.get().min(self.nsegments))
    }

    /// Takes a clean segment into use: the next one after the last that was taken, around the end
    /// of the volume, that `allows` lets it have.
    pub(crate) fn allocate(
        &mut self,
        source: Source<'_>,
        allows: &dyn Fn(SegNum) -> bool,
    ) -> Result<SegNum> {
        let header = header_of(&self.file, source)?;
        if header.sh_ncleansegs.get() == 0 {
            return Err(Error::NoSpace);
        }
        let last = SegNum(header.sh_last_alloc.get().min(self.nsegments - 1));
        let segment = self.find_clean(source, last.plus(1), allows)?.ok_or(Error::NoSpace)?;
        self.touch(source, segment)?;
        self.edit_header(source, |header| {
            header.sh_last_alloc = U64::new(segment.0);
            count(&mut header.sh_ncleansegs, -1);
            count(&mut header.sh_ndirtysegs, 1);
        })?;
        Ok(segment)
    }

    /// Whether a segment was taken for the log to go on in, and holds nothing yet.
    pub(crate) fn is_set_aside(&self, source: Source<'_>, segment: SegNum) -> Result<bool> {
        let usage = self.usage(source, segment)?;
        Ok(usage.is_dirty() && !usage.is_bad() && usage.su_nblocks.get() == 0)
    }

    /// Frees a segment in which nothing is needed.
    pub(crate) fn free(&mut self, source: Source<'_>, segment: SegNum) -> Result<()> {
        let usage = self.usage(source, segment)?;
        debug_assert!(!usage.is_clean(), "segment {segment} is freed, but it is clean");
        self.set(source, segment, RawSegmentUsage::CLEAN)?;
        self.edit_header(source, |header| {
            count(&mut header.sh_ncleansegs, 1);
            count(&mut header.sh_ndirtysegs, -1);
        })
    }

    /// Takes a segment into use that was written next to the chain of logs, or says how far it is
    /// filled now (blocks from its start). `time` (s) is when its content was last modified.
    pub(crate) fn adopt(
        &mut self,
        source: Source<'_>,
        segment: SegNum,
        blocks: u64,
        time: u64,
    ) -> Result<()> {
        if self.usage(source, segment)?.is_clean() {
            self.touch(source, segment)?;
            self.edit_header(source, |header| {
                count(&mut header.sh_ncleansegs, -1);
                count(&mut header.sh_ndirtysegs, 1);
            })?;
        }
        self.fill(source, segment, blocks, time)
    }

    /// Marks a segment that the device cannot read or write: it stays in use for ever.
    pub(crate) fn mark_bad(&mut self, source: Source<'_>, segment: SegNum) -> Result<()> {
        let mut usage = self.usage(source, segment)?;
        let clean = usage.is_clean();
        usage.su_flags = U32::new(usage.su_flags.get() | ERROR);
        self.set(source, segment, usage)?;
        if clean {
            self.edit_header(source, |header| count(&mut header.sh_ncleansegs, -1))?;
        }
        Ok(())
    }

    /// Changes the number of segments. Those that go must be clean; those that come are.
    pub(crate) fn resize(&mut self, source: Source<'_>, count: u64) -> Result<()> {
        let old = std::mem::replace(&mut self.nsegments, count);
        let by = count as i64 - old as i64;
        for segment in (count..old).map(SegNum) {
            self.drop_entry(source, segment, count)?;
        }
        self.edit_header(source, |header| {
            if header.sh_last_alloc.get() >= count {
                header.sh_last_alloc = U64::new(count - 1);
            }
            self::count(&mut header.sh_ncleansegs, by);
        })
    }

    /// Forgets a segment beyond the new end; its whole block, if no other segment is in it.
    fn drop_entry(&mut self, source: Source<'_>, segment: SegNum, end: u64) -> Result<()> {
        let key = self.layout.slot(segment).block;
        let alone = self.layout.slots_of(key).all(|(other, _)| other.0 >= end);
        if alone && key != HEADER_BLOCK {
            return self.file.remove(source, key);
        }
        if !self.usage(source, segment)?.is_clean() {
            self.set(source, segment, RawSegmentUsage::CLEAN)?;
        }
        Ok(())
    }

    /// The clean segments, whatever the header says.
    pub(crate) fn clean(&self, source: Source<'_>) -> Result<Vec<SegNum>> {
        let mut clean = Vec::new();
        for segment in (0..self.nsegments).map(SegNum) {
            if self.usage(source, segment)?.is_clean() {
                clean.push(segment);
            }
        }
        Ok(clean)
    }

    /// Corrects the number of clean segments, which an interrupted resize leaves wrong.
    pub(crate) fn set_clean(&mut self, source: Source<'_>, clean: u64) -> Result<()> {
        self.edit_header(source, |header| header.sh_ncleansegs = U64::new(clean))
    }

    /// The first clean segment from `from` on, around the end of the volume, that `allows` lets
    /// it have.
    pub(crate) fn find_clean(
        &self,
        source: Source<'_>,
        from: SegNum,
        allows: &dyn Fn(SegNum) -> bool,
    ) -> Result<Option<SegNum>> {
        for step in 0..self.nsegments {
            let segment = SegNum((from.0 + step) % self.nsegments);
            let usage = self.usage(source, segment)?;
            if usage.is_clean() && allows(segment) {
                return Ok(Some(segment));
            }
        }
        Ok(None)
    }

    /// Makes sure that the segment's entry is in a changed block and says that it is in use.
    pub(crate) fn touch(&mut self, source: Source<'_>, segment: SegNum) -> Result<()> {
        let mut usage = self.usage(source, segment)?;
        usage.su_flags = U32::new(usage.su_flags.get() | DIRTY);
        self.set(source, segment, usage)
    }

    /// Says how far a segment is filled (blocks from its start) and when it was written (s).
    pub(crate) fn fill(
        &mut self,
        source: Source<'_>,
        segment: SegNum,
        blocks: u64,
        time: u64,
    ) -> Result<()> {
        let mut usage = self.usage(source, segment)?;
        usage.su_nblocks = U32::new(blocks as u32);
        usage.su_lastmod = U64::new(time);
        self.set(source, segment, usage)
    }

    fn set(&mut self, source: Source<'_>, segment: SegNum, usage: RawSegmentUsage) -> Result<()> {
        let Slot { block: key, offset } = self.layout.slot(segment);
        let block = self.file.get_mut(source, key, |_| {})?;
        block[offset..offset + SEGMENT_USAGE_SIZE].copy_from_slice(usage.as_bytes());
        Ok(())
    }

    fn edit_header(
        &mut self,
        source: Source<'_>,
        change: impl FnOnce(&mut RawSufileHeader),
    ) -> Result<()> {
        let mut header = header_of(&self.file, source)?;
        change(&mut header);
        let block = self.file.get_mut(source, HEADER_BLOCK, |_| {})?;
        block[..size_of::<RawSufileHeader>()].copy_from_slice(header.as_bytes());
        Ok(())
    }
}

/// Counts segments. A counter that damage has brought to either end of its range stays there: no
/// decision rests on it that would be worth a refusal to write, and fsck counts anew.
fn count(counter: &mut U64, by: i64) {
    *counter = U64::new(counter.get().saturating_add_signed(by));
}

#[cfg(test)]
mod tests;

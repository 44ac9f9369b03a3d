//! The sufile (docs/format.md §12): counters, flags, and the pair of active segments.

use std::collections::BTreeMap;
use std::mem::offset_of;

use nilfs_ondisk::segment_usage::{
    ACTIVE, DIRTY, ERROR, RawSegmentUsage, RawSufileHeader, SufileLayout,
};
use nilfs_ondisk::superblock::STATE_RESIZE;
use nilfs_ondisk::{BlockNr, FileBlock, Ino, SegNum};

use crate::checker::{Checker, FileAt};
use crate::correction::{Correction, Position};
use crate::report::{Location, Rule, Severity};

/// The entries of all segments that are not clean, and the header.
#[derive(Default)]
pub(crate) struct UsageTable {
    header: Option<RawSufileHeader>,
    used: BTreeMap<SegNum, RawSegmentUsage>,
    /// Where the blocks of the file are.
    blocks: BTreeMap<FileBlock, BlockNr>,
    layout: Option<SufileLayout>,
    /// Whether every entry could be read.
    whole: bool,
}

impl UsageTable {
    /// The segments with data in them, ascending.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = (SegNum, RawSegmentUsage)> {
        self.used.iter().filter(|(_, entry)| entry.is_dirty()).map(|(segment, e)| (*segment, *e))
    }

    /// Whether a segment is in use, and nothing is in it yet.
    pub(crate) fn is_waiting(&self, segment: SegNum) -> bool {
        let entry = self.used.get(&segment);
        entry.is_some_and(|entry| entry.is_dirty() && entry.su_nblocks.get() == 0)
    }

    /// Counts as many blocks of a segment in use as that.
    pub(crate) fn extend(&mut self, segment: SegNum, blocks: u32) {
        if let Some(entry) = self.used.get_mut(&segment) {
            entry.su_nblocks = blocks.into();
        }
    }

    /// Where the entry of a segment is, if its block is there.
    pub(crate) fn position(&self, segment: SegNum) -> Option<Position> {
        let slot = self.layout.as_ref()?.slot(segment);
        Some(Position::new(*self.blocks.get(&slot.block)?, slot.offset))
    }

    /// Where the header is.
    fn header_position(&self) -> Option<Position> {
        Some(Position::new(*self.blocks.get(&FileBlock(0))?, 0))
    }

    /// What makes a segment one that is in use, with that many blocks.
    pub(crate) fn in_use_with(
        &self,
        segment: SegNum,
        blocks: u32,
    ) -> impl Iterator<Item = Correction> + use<> {
        let at = self.position(segment);
        at.into_iter().flat_map(move |at| {
            [
                Correction::u32(at.plus(offset_of!(RawSegmentUsage, su_nblocks)), blocks),
                Correction::u32(at.plus(offset_of!(RawSegmentUsage, su_flags)), DIRTY),
            ]
        })
    }

    /// Segments of the volume without any flag.
    fn clean(&self, nsegments: u64) -> u64 {
        nsegments - self.used.len() as u64
    }
}

impl Checker<'_, '_> {
    /// Loads the sufile.
    pub(crate) fn load_segment_usage(&mut self) -> UsageTable {
        let inode = self.newest.super_root.sufile;
        let inode_at = Some(self.in_super_root(2));
        let file = FileAt { ino: Ino::SUFILE, cno: self.newest.cno, present: true, inode_at };
        let (tree, leaves) = self.walk_all(file, &inode);
        self.present_is_whole &= tree.whole;
        self.check_metadata_inode(file, &inode, &tree);
        let layout = SufileLayout::new(&self.volume.geometry);
        let mut table =
            UsageTable { whole: tree.whole, layout: Some(layout), ..UsageTable::default() };
        let nsegments = self.volume.geometry.nsegments;
        let last = layout.slot(SegNum(nsegments - 1)).block;
        for leaf in leaves {
            let place = file.place().file_block(leaf.key);
            if leaf.key > last.0 {
                self.warning(Rule::SegmentUsage, place, || {
                    "the block lies after the entry of the last segment".into()
                });
                continue;
            }
            let Some(bytes) = self.read_leaf(file, &leaf) else {
                table.whole = false;
                continue;
            };
            let slots = layout.slots_of(FileBlock(leaf.key)).filter(|(it, _)| it.0 < nsegments);
            let entries: Vec<(SegNum, u32)> = slots
                .filter_map(|(segment, at)| {
                    let entry = RawSegmentUsage::parse(bytes.get(at..)?).ok()?;
                    Some((segment, entry.su_flags.get()))
                })
                .collect();
            let all = |is_it: fn(u32) -> bool| entries.iter().all(|(_, flags)| is_it(*flags));
            let unknown = all(|flags| flags & !(ACTIVE | DIRTY | ERROR) != 0);
            // A segment that is taken out of use with data in it stays marked as in use.
            let erroneous = all(|flags| flags & (ERROR | DIRTY) == ERROR)
                && entries.iter().any(|(segment, _)| self.used_up_to(*segment) > 0);
            if unknown || erroneous {
                let anew = self.anew(file, &leaf);
                self.error(Rule::SegmentUsage, place.block(leaf.block), || {
                    "no entry of the block can be one".into()
                })
                .corrected_by([anew]);
                table.whole = false;
                continue;
            }
            table.blocks.insert(FileBlock(leaf.key), leaf.block);
            if leaf.key == 0 {
                table.header = RawSufileHeader::parse(&bytes).ok();
            }
            for (segment, offset) in layout.slots_of(FileBlock(leaf.key)) {
                if segment.0 < nsegments
                    && let Ok(entry) = RawSegmentUsage::parse(&bytes[offset..])
                {
                    self.check_usage_entry(segment, &entry, Position::new(leaf.block, offset));
                    if !entry.is_clean() {
                        table.used.insert(segment, entry);
                    }
                }
            }
        }
        table
    }

    fn check_usage_entry(&mut self, segment: SegNum, entry: &RawSegmentUsage, at: Position) {
        let most = self.volume.geometry.segment_blocks(segment);
        let nblocks = entry.su_nblocks.get();
        let place = Location::segment(segment).ino(Ino::SUFILE);
        if u64::from(nblocks) > most {
            let blocks = if entry.is_dirty() { self.used_up_to(segment) } else { 0 };
            self.error(Rule::SegmentUsage, place, || {
                format!("su_nblocks is {nblocks}, but the segment has {most} blocks")
            })
            .corrected_by([Correction::u32(
                at.plus(offset_of!(RawSegmentUsage, su_nblocks)),
                blocks as u32,
            )]);
        }
        if entry.is_clean() && (nblocks != 0 || entry.su_lastmod.get() != 0) {
            self.warning(Rule::SegmentUsage, place, || {
                format!(
                    "the segment is clean, but su_nblocks is {nblocks} and su_lastmod {}",
                    entry.su_lastmod
                )
            })
            .corrected_by([
                Correction::u64(at.plus(offset_of!(RawSegmentUsage, su_lastmod)), 0),
                Correction::u32(at.plus(offset_of!(RawSegmentUsage, su_nblocks)), 0),
            ]);
        }
    }

    /// Checks the counters and the active segments.
    pub(crate) fn check_segment_usage(&mut self, table: &UsageTable) {
        let place = Location::file(Ino::SUFILE);
        if !table.whole {
            self.note(Rule::NotChecked, place, || {
                "the counters were not compared, because part of the file cannot be read".into()
            });
            return;
        }
        let nsegments = self.volume.geometry.nsegments;
        // Between the sufile and the superblocks, a resize counts segments that the superblocks do
        // not have yet, or still have.
        let resizing = self.superblock.raw().s_state.get() & STATE_RESIZE != 0;
        match &table.header {
            None => {
                self.error(Rule::SegmentUsage, place, || "no header".into());
            }
            Some(header) => {
                let dirty = table.in_use().count() as u64;
                let clean = table.clean(nsegments);
                let at = table.header_position();
                for (field, offset, found, expected) in [
                    (
                        "sh_ncleansegs",
                        offset_of!(RawSufileHeader, sh_ncleansegs),
                        header.sh_ncleansegs.get(),
                        clean,
                    ),
                    (
                        "sh_ndirtysegs",
                        offset_of!(RawSufileHeader, sh_ndirtysegs),
                        header.sh_ndirtysegs.get(),
                        dirty,
                    ),
                ] {
                    if found == expected {
                        continue;
                    }
                    let severity = if resizing { Severity::Note } else { Severity::Error };
                    self.findings
                        .add(severity, Rule::SegmentUsage, place, || {
                            let interrupted = match resizing {
                                true => {
                                    "; a resize was interrupted, and the next mount counts anew"
                                }
                                false => "",
                            };
                            format!(
                                "{field} is {found}, but the entries give {expected}{interrupted}"
                            )
                        })
                        .corrected_by(
                            // The next mount has more to do after a resize than that.
                            at.filter(|_| !resizing)
                                .map(|at| Correction::count_u64(at.plus(offset), expected)),
                        );
                }
                let last = header.sh_last_alloc.get();
                if last >= nsegments && !resizing {
                    self.warning(Rule::SegmentUsage, place, || {
                        format!("sh_last_alloc is {last}, but there are {nsegments} segments")
                    })
                    .corrected_by(at.map(|at| {
                        Correction::u64(at.plus(offset_of!(RawSufileHeader, sh_last_alloc)), 0)
                    }));
                }
            }
        }
        self.check_active_segments(table);
    }

    /// The newest log's segment and the one it names as the next.
    fn check_active_segments(&mut self, table: &UsageTable) {
        let geometry = &self.volume.geometry;
        let newest = self.newest;
        let current = geometry.segment_of(newest.log);
        let used =
            newest.log.0 + u64::from(newest.header.nblocks) - geometry.segment_start(current).0;
        let next = geometry.segment_of(self.next.unwrap_or(newest.header.next));
        let expected = [(current, used, "holds the newest log"), (next, 0, "is the next to write")];
        for (segment, nblocks, why) in expected {
            let place = Location::segment(segment).ino(Ino::SUFILE);
            let Some(entry) = table.used.get(&segment).filter(|entry| entry.is_dirty()) else {
                self.error(Rule::SegmentUsage, place, || {
                    format!("the segment {why}, but is not marked as in use (DIRTY)")
                })
                .corrected_by(table.in_use_with(segment, nblocks as u32));
                continue;
            };
            let found = u64::from(entry.su_nblocks.get());
            if found != nblocks && current != next {
                self.error(Rule::SegmentUsage, place, || {
                    format!("the segment {why}: su_nblocks is {found}, expected {nblocks}")
                })
                .corrected_by(table.in_use_with(segment, nblocks as u32));
            }
        }
        for (segment, _) in table
            .in_use()
            .filter(|(segment, entry)| entry.su_nblocks.get() == 0 && *segment != next)
        {
            self.note(Rule::SegmentUsage, Location::segment(segment), || {
                "the segment is in use without data (left by a recovery)".into()
            });
        }
    }
}

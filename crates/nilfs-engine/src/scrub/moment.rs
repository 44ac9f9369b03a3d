//! What a scrub looks at: a volume as one of its newest checkpoints has it, whether it was found on
//! the device or is that of a mounted volume, which knows better than the device where its log is.

use std::ops::Range;
use std::sync::Arc;

use nilfs_ondisk::bmap::Root;
use nilfs_ondisk::super_root::SuperRoot;
use nilfs_ondisk::superblock::LogCursor;
use nilfs_ondisk::{BlockNr, Cno, SegNum, Seq};

use crate::bmap::{Pointers, Source};
use crate::commit::{Base, root_of};
use crate::dat::Dat;
use crate::error::Result;
use crate::log::reader;
use crate::store::Store;
use crate::tree::{Era, Shared, Tree, TreeRoot, View};
use crate::volume::Volume;
use crate::{checkpoints, segments};

/// Memory for blocks of metadata, and for the names of directories, in bytes: next to a mounted volume,
/// which has its own.
const CACHE_BYTES: usize = 8 << 20;

/// A volume at a checkpoint.
pub(crate) struct Moment {
    pub(super) store: Arc<Store>,
    pub(super) dat: Arc<Dat>,
    super_root: SuperRoot,
    /// The newest log with a super root.
    pub(super) newest: LogCursor,
    /// The sequence number of the newest log on the device. Later logs have a higher one if they are in a
    /// segment that was free.
    pub(crate) seq: Seq,
    /// Keeps the cleaner from writing over what the checkpoint has.
    held: Option<View>,
}

/// A segment in use.
#[derive(Debug, Clone, Copy)]
pub(super) struct UsedSegment {
    pub(super) segment: SegNum,
    /// Blocks of its logs.
    pub(super) blocks: u64,
}

impl Moment {
    /// A volume that was opened for looking.
    pub(crate) fn of_volume(volume: &Volume) -> Self {
        Self {
            store: Arc::clone(&volume.store),
            dat: Arc::clone(&volume.dat),
            super_root: volume.super_root,
            newest: volume.last_log(),
            seq: volume.last_log().seq,
            held: None,
        }
    }

    /// The newest checkpoint of a mounted volume, held by a view of it. What its caches have says nothing
    /// about the device, so it is read afresh.
    pub(crate) fn of_base(base: &Base, held: View) -> Result<Self> {
        let store = held.store.afresh();
        store.set_cache_limit(CACHE_BYTES as u64);
        let dat = Arc::new(Dat::new(root_of(&base.super_root.dat)?, &store.geometry()));
        let (super_root, newest) = (base.super_root, base.last_log);
        Ok(Self {
            store: Arc::new(store),
            dat,
            super_root,
            newest,
            seq: newest.seq,
            held: Some(held),
        })
    }

    /// Does not keep the cleaner from anything any more. Only the device can be read then, and not what
    /// the checkpoint has.
    pub(super) fn let_go(&mut self) {
        self.held = None;
    }

    /// Whether the segment of these blocks has been freed since the newest log had this sequence number, and logs
    /// have been written there again.
    pub(super) fn has_written_anew(&self, blocks: &Range<BlockNr>, since: Seq) -> bool {
        let geometry = self.store.geometry();
        let start = geometry.segment_start(geometry.segment_of(blocks.start));
        let mut logs = (start.0..blocks.end.0).map(BlockNr);
        logs.find_map(|at| reader::log_at(&self.store, at)).is_some_and(|first| first.seq > since)
    }

    /// Where the blocks of files come from.
    pub(super) fn source(&self) -> Source<'_> {
        Source { store: &self.store, pointers: Pointers::Virtual(&self.dat) }
    }

    fn cpfile(&self) -> Result<Root> {
        root_of(&self.super_root.cpfile)
    }

    /// Returns the segments in use, in order. The newest log counts as in use even if the segment usages say
    /// otherwise: a damaged super root may lead to old usages.
    pub(super) fn used_segments(&self) -> Result<Vec<UsedSegment>> {
        let mut used = self.segments_in_use()?;
        let geometry = self.store.geometry();
        let segment = geometry.segment_of(self.newest.block);
        if let Some(header) = reader::log_at(&self.store, self.newest.block) {
            let end = self.newest.block.plus(header.nblocks.into());
            let end = end.min(geometry.segment_end(segment));
            let blocks = end.0 - geometry.segment_start(segment).0;
            match used.binary_search_by_key(&segment, |it| it.segment) {
                Ok(nth) => used[nth].blocks = used[nth].blocks.max(blocks),
                Err(nth) => used.insert(nth, UsedSegment { segment, blocks }),
            }
        }
        Ok(used)
    }

    fn segments_in_use(&self) -> Result<Vec<UsedSegment>> {
        let sufile = root_of(&self.super_root.sufile)?;
        let all = segments::usages(self.source(), &sufile, SegNum(0));
        let used = all.filter(|usage| usage.as_ref().map_or(true, |(_, usage)| usage.is_dirty()));
        used.map(|usage| {
            let (segment, usage) = usage?;
            Ok(UsedSegment { segment, blocks: usage.su_nblocks.get().into() })
        })
        .collect()
    }

    /// All checkpoints, ascending, as far as they can be read.
    pub(super) fn checkpoints(&self) -> Vec<Cno> {
        let newest = self.newest.cno;
        let all = self
            .cpfile()
            .and_then(|cpfile| checkpoints::list(self.source(), &cpfile, Cno::MIN, usize::MAX));
        let older = all.unwrap_or_default().into_iter().map(|it| it.cno).filter(|it| *it < newest);
        older.chain([newest]).collect()
    }

    /// The files of a checkpoint, as far as they can be read.
    pub(super) fn tree(&self, cno: Cno) -> Result<Tree> {
        let cpfile = self.cpfile()?;
        let entry = checkpoints::checkpoint(self.source(), &cpfile, cno)?;
        let view = View {
            store: Arc::clone(&self.store),
            dat: Arc::clone(&self.dat),
            tree: Arc::new(TreeRoot::new(&entry)?),
            era: Arc::new(Era(0)),
            sequences: Arc::default(),
            around_damage: true,
        };
        let shared = Shared::new(view, CACHE_BYTES);
        Ok(shared.open(self.source(), &cpfile, cno)?.around_damage())
    }
}

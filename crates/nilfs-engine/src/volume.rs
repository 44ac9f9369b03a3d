//! A volume that is opened for looking: superblock chosen, newest checkpoint found, nothing
//! written. Mounting starts here too.

use std::sync::{Arc, OnceLock};

use nilfs_device::Device;
use nilfs_ondisk::lifetime::Lifetime;
use nilfs_ondisk::notes::Note;
use nilfs_ondisk::super_root::SuperRoot;
use nilfs_ondisk::superblock::{LogCursor, RawSuperblock, STATE_RESIZE, Superblock};
use nilfs_ondisk::{Cno, FormatError, Geometry, SegNum, Seq};

use crate::bmap::{Pointers, Source};
use crate::checkpoints::{CheckpointInfo, CheckpointTotals};
use crate::dat::Dat;
use crate::error::{Error, Result};
use crate::log::reader::{self, Log};
use crate::log::segment_reader::SegmentReader;
use crate::protection::Protection;
use crate::recovery::{self, LogScan};
use crate::scan::{Scan, SuperRootLog};
use crate::store::{Store, Verify};
use crate::superblocks::{self, Superblocks};
use crate::times::Times;
use crate::tree::{Era, Shared, Tree, TreeRoot, View};
use crate::{checkpoints, segments, xattr_file};

/// A volume, opened for looking.
pub struct Volume {
    pub(crate) superblock: Superblock,
    pub(crate) lifetime: Lifetime,
    /// A copy of the superblock is damaged or missing, or a resize was interrupted between the two.
    pub(crate) superblocks_lag: bool,
    pub(crate) store: Arc<Store>,
    pub(crate) found: LogScan,
    pub(crate) super_root: SuperRoot,
    pub(crate) dat: Arc<Dat>,
    /// What its trees share, once one is open.
    shared: OnceLock<Arc<Shared>>,
    /// Memory for the names of their large directories, in bytes.
    pub(crate) names_limit: usize,
    pub(crate) times: Times,
}

/// Memory for the names of large directories in the trees of a volume, in bytes, unless somebody
/// says otherwise.
const NAMES_LIMIT: usize = 32 << 20;

/// A segment, as a list of segments shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentInfo {
    /// Its number.
    pub segment: SegNum,
    /// When it was last written, in seconds since 1970; 0 = never.
    pub last_modified: u64,
    /// Blocks of its valid logs.
    pub blocks: u64,
    /// Whether logs go on in it, or will go on in it next.
    pub active: bool,
    /// Whether it is in use.
    pub dirty: bool,
    /// Whether it must not be used because of an I/O error.
    pub bad: bool,
}

/// What of a segment is still needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentLife {
    /// It holds nothing, or must not be used.
    Unused,
    /// All of it: logs go on there, recovery may need it, or what is in it cannot be told.
    Needed,
    /// It can be cleaned.
    Reclaimable {
        /// Blocks that must be moved before.
        live: u64,
    },
}

impl Volume {
    /// Opens the volume on a device.
    ///
    /// # Errors
    /// [`Error::NotAVolume`], [`Error::NoSuperblock`], [`Error::Feature`], or damage that leaves no way to
    /// a checkpoint.
    pub fn open(device: Arc<dyn Device>) -> Result<Self> {
        Self::open_with(device, Verify::default())
    }

    /// As [`Volume::open`], with these blocks checked when they are read.
    ///
    /// # Errors
    /// As [`Volume::open`].
    pub fn open_with(device: Arc<dyn Device>, verify: Verify) -> Result<Self> {
        let superblocks = superblocks::load(&*device)?;
        superblocks.best.refuse_unknown_features(false).map_err(Error::Feature)?;
        let (superblock, store, found) = recovery::find(&device, &superblocks, verify)?;
        let super_root = reader::super_root(&store, found.newest.start, &found.newest.header)?;
        Self::new(&superblocks, superblock, store, found, super_root)
    }

    /// Opens the volume on a device by one of the super roots that a scan has found, with what was
    /// synced after it if no other follows. Nothing is refused when it is only read: as much as possible is to be
    /// had of a broken volume.
    ///
    /// # Errors
    /// The layout or the DAT is damaged.
    pub(crate) fn at(device: Arc<dyn Device>, scan: &Scan, log: &SuperRootLog) -> Result<Self> {
        let superblock = scan.superblock_for(log)?;
        let store = Store::new(device, scan.geometry, scan.crc_seed, Verify::Rescue);
        let found = recovery::at(&store, log);
        let superblocks = Superblocks { best: superblock, other: None };
        Self::new(&superblocks, superblock, store, found, log.super_root)
    }

    fn new(
        superblocks: &Superblocks,
        superblock: Superblock,
        store: Store,
        found: LogScan,
        super_root: SuperRoot,
    ) -> Result<Self> {
        let bad = |source: FormatError| Error::Corrupt {
            what: "super root".into(),
            block: Some(found.newest.start),
            source,
        };
        let root = nilfs_ondisk::bmap::Root::parse(&super_root.dat.i_bmap).map_err(bad)?;
        let dat = Arc::new(Dat::new(root, &store.geometry()));
        store.note_log(found.newest.start, found.newest.header);
        let resized = superblock.raw().s_state.get() & STATE_RESIZE != 0;
        Ok(Self {
            superblock,
            lifetime: superblocks.lifetime(),
            superblocks_lag: superblocks.other.is_none() || resized,
            store: Arc::new(store),
            found,
            super_root,
            dat,
            shared: OnceLock::new(),
            names_limit: NAMES_LIMIT,
            times: Times::default(),
        })
    }

    /// Keeps what can be read again in that many bytes of memory, half of them for blocks of
    /// metadata and half for the names of directories. Trees that are open already are not
    /// affected.
    pub(crate) fn set_cache_limit(&mut self, bytes: u64) {
        self.store.set_cache_limit(bytes / 2);
        self.names_limit = usize::try_from(bytes / 2).unwrap_or(usize::MAX);
    }

    /// The superblock that led to the newest checkpoint.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The layout of the volume.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.store.geometry()
    }

    /// The newest log with a super root.
    #[must_use]
    pub fn last_log(&self) -> LogCursor {
        let newest = &self.found.newest;
        LogCursor { block: newest.start, seq: newest.header.seq, cno: self.found.cno }
    }

    /// Whether the volume was closed cleanly.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.found.clean
    }

    /// How many checkpoints there are, as the cpfile counts them.
    ///
    /// # Errors
    /// The cpfile cannot be read.
    pub fn checkpoint_totals(&self) -> Result<CheckpointTotals> {
        checkpoints::totals(self.source(), &self.cpfile()?, self.found.cno)
    }

    /// The checkpoints from `from` on, ascending, at most `limit`.
    ///
    /// # Errors
    /// The cpfile cannot be read.
    pub fn checkpoints(&self, from: Cno, limit: usize) -> Result<Vec<CheckpointInfo>> {
        checkpoints::list(self.source(), &self.cpfile()?, from, limit)
    }

    /// What is noted about snapshots, by ascending number. Snapshots without a note are not there.
    ///
    /// # Errors
    /// The notes are damaged or of a later version; a device error.
    pub fn notes(&self) -> Result<Vec<Note>> {
        xattr_file::readable_notes(&self.view(self.found.cno)?, &self.cpfile()?)
    }

    /// Number of clean segments.
    ///
    /// # Errors
    /// The sufile cannot be read.
    pub fn clean_segments(&self) -> Result<u64> {
        Ok(segments::header(self.source(), &self.sufile()?)?.sh_ncleansegs.get())
    }

    /// All segments from `first` on, in order.
    ///
    /// # Errors
    /// The sufile cannot be read.
    pub fn segments(&self, first: SegNum) -> Result<Vec<SegmentInfo>> {
        let newest = &self.found.newest;
        segments::usages(self.source(), &self.sufile()?, first)
            .map(|usage| {
                let (segment, usage) = usage?;
                Ok(SegmentInfo {
                    segment,
                    last_modified: usage.su_lastmod.get(),
                    blocks: usage.su_nblocks.get().into(),
                    active: segment == newest.segment || Some(segment) == newest.next,
                    dirty: usage.is_dirty(),
                    bad: usage.is_bad(),
                })
            })
            .collect()
    }

    /// What of each of these segments is still needed by the newest checkpoint, by snapshots, and
    /// by the checkpoints from `protected` on, as the cleaner of Linux counts. Reads their
    /// summaries.
    ///
    /// # Errors
    /// The cpfile or the DAT cannot be read.
    pub fn segment_lives(
        &self,
        segments: &[SegmentInfo],
        protected: Cno,
    ) -> Result<Vec<SegmentLife>> {
        let snapshots = self.checkpoints(Cno::MIN, usize::MAX)?;
        let snapshots = snapshots.iter().filter(|checkpoint| checkpoint.snapshot);
        let kept = snapshots.map(|checkpoint| checkpoint.cno).collect();
        let protection = Protection { from: protected, kept };
        let Superblocks { best, other } = superblocks::load(self.store.device())?;
        let named = std::iter::once(best).chain(other).map(|copy| copy.last_log().seq).min();
        let segment_reader = SegmentReader {
            store: &self.store,
            dat: &self.dat,
            protection: &protection,
            needed_from: named.unwrap_or(Seq(0)),
            with_unproved: false,
        };
        segments.iter().map(|segment| life(&segment_reader, segment)).collect()
    }

    /// The logs of a segment as far as their summaries are valid, stale ones included.
    ///
    /// # Errors
    /// No such segment, or the device cannot be read.
    pub fn logs(&self, segment: SegNum) -> Result<Vec<Log>> {
        reader::logs_of(&self.store, segment)
    }

    /// All logs of a segment in its present use that can be read, also those after one that cannot.
    #[must_use]
    pub fn logs_beyond_damage(&self, segment: SegNum) -> Vec<Log> {
        reader::logs_beyond_damage(&self.store, segment)
    }

    /// The files of a checkpoint; of the newest one if `cno` is `None`. What sync logs have made
    /// durable since, on a volume that was not closed cleanly, is not there; see
    /// [`Volume::recovered_tree`].
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`], damage, a device error.
    pub fn tree(&self, cno: Option<Cno>) -> Result<Tree> {
        let shared = match self.shared.get() {
            Some(shared) => Arc::clone(shared),
            None => {
                // Every tree brings its own root. So an old one can be looked at although the
                // newest is damaged.
                let shown = cno.unwrap_or(self.found.cno);
                let shared = Shared::new(self.view(shown)?, self.names_limit);
                Arc::clone(self.shared.get_or_init(|| shared))
            }
        };
        shared.open(self.source(), &self.cpfile()?, cno.unwrap_or(self.found.cno))
    }

    pub(crate) fn source(&self) -> Source<'_> {
        Source { store: &self.store, pointers: Pointers::Virtual(&self.dat) }
    }

    /// A look at a checkpoint.
    pub(crate) fn view(&self, cno: Cno) -> Result<View> {
        let entry = checkpoints::checkpoint(self.source(), &self.cpfile()?, cno)?;
        let view = View {
            store: Arc::clone(&self.store),
            dat: Arc::clone(&self.dat),
            tree: Arc::new(TreeRoot::new(&entry)?.remembering()),
            era: Arc::new(Era(0)),
            sequences: Arc::default(),
            around_damage: false,
        };
        view.check_root()?;
        Ok(view)
    }

    pub(crate) fn cpfile(&self) -> Result<nilfs_ondisk::bmap::Root> {
        metadata_root("cpfile", &self.super_root.cpfile.i_bmap)
    }

    pub(crate) fn sufile(&self) -> Result<nilfs_ondisk::bmap::Root> {
        metadata_root("sufile", &self.super_root.sufile.i_bmap)
    }
}

fn life(segment_reader: &SegmentReader<'_>, segment: &SegmentInfo) -> Result<SegmentLife> {
    if segment.active {
        return Ok(SegmentLife::Needed);
    }
    if !segment.dirty || segment.bad {
        return Ok(SegmentLife::Unused);
    }
    // Linux goes by the number alone, and does not clean logs off the chain either.
    let start = segment_reader.store.geometry().segment_start(segment.segment);
    let first = reader::header(segment_reader.store, start)?;
    if first.is_some_and(|header| header.seq >= segment_reader.needed_from) {
        return Ok(SegmentLife::Needed);
    }
    Ok(match segment_reader.read(segment.segment, segment.blocks)? {
        Ok(content) => SegmentLife::Reclaimable { live: content.count_live() },
        Err(_) => SegmentLife::Needed,
    })
}

fn metadata_root(
    what: &str,
    bytes: &[u8; nilfs_ondisk::bmap::ROOT_SIZE],
) -> Result<nilfs_ondisk::bmap::Root> {
    nilfs_ondisk::bmap::Root::parse(bytes).map_err(|source| Error::Corrupt {
        what: what.into(),
        block: None,
        source,
    })
}

/// Superblocks of a device, for tools that change them while nothing is mounted.
impl Volume {
    /// The valid copies, without looking any further.
    ///
    /// # Errors
    /// [`Error::NotAVolume`], [`Error::NoSuperblock`].
    pub fn superblocks(device: &dyn Device) -> Result<Superblocks> {
        superblocks::load(device)
    }

    /// Changes fields of both copies, one after the other, so that the power may fail at any time.
    /// What is durable already stays where it is: only labels and hints may be changed.
    ///
    /// # Errors
    /// [`Error::NotAVolume`], [`Error::NoSuperblock`], a device error.
    pub fn change_superblocks(
        device: &dyn Device,
        mut change: impl FnMut(&mut RawSuperblock),
    ) -> Result<()> {
        superblocks::change(device, &mut |copy| change(copy.raw_mut()))
    }
}

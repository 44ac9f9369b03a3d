//! A volume that is mounted without the right to write: a tree, and what an administrator asks of it.

use std::sync::Arc;

use nilfs_device::Device;
use nilfs_ondisk::notes::Note;
use nilfs_ondisk::{Cno, Ino};

use crate::checkpoints::{CheckpointInfo, CheckpointTotals};
use crate::cleaner::live_blocks::LiveBlocks;
use crate::cleaner::options::{CleanerOptions, CleanerState, CleanerTotals, RunProgress};
use crate::cleaner::options::{Status, Usage};
use crate::cleaner::space_usage::{FreeSpace, SpaceUsage};
use crate::error::Result;
use crate::files::Files;
use crate::fs::MountOptions;
use crate::host::atomic::{AtomicU64, Ordering};
use crate::host::{Clock, Instant};
use crate::rescue::Rescue;
use crate::store::Verify;
use crate::times::Times;
use crate::tree::Checkpoints;
use crate::tree::Tree;
use crate::types::{Attr, DirEntry, Seek, StatFs};
use crate::volume::Volume;
use crate::writer::space;

/// How a volume is mounted to be read. There will be more fields: take those that you do not name from
/// `ReadOnlyOptions::default()`.
#[derive(Clone)]
pub struct ReadOnlyOptions {
    /// Show this checkpoint; `None`: the newest one.
    pub checkpoint: Option<Cno>,
    /// With the newest checkpoint, show also what was synced after it, if the volume was not closed
    /// cleanly.
    pub recovery: bool,
    /// Open the volume however broken it is, and show what can be read of it.
    pub rescue: bool,
    /// Memory for what can be read again, in bytes: blocks of metadata, and where the names of
    /// directories are.
    pub cache_limit: u64,
    /// Which blocks are checked when they are read; none with [`Self::rescue`].
    pub verify: Verify,
    /// What the cleaner would keep, for [`ReadOnlyVolume::usage`].
    pub cleaner: CleanerOptions,
    /// The time by which it would be protected.
    pub clock: Arc<dyn Clock>,
}

impl Default for ReadOnlyOptions {
    fn default() -> Self {
        let MountOptions { cache_limit, verify, cleaner, clock, .. } = MountOptions::default();
        let (checkpoint, recovery, rescue) = (None, true, false);
        Self { checkpoint, recovery, rescue, cache_limit, verify, cleaner, clock }
    }
}

/// A volume that is mounted without the right to write. Nothing is written, not even to recover it.
pub struct ReadOnlyVolume {
    volume: Volume,
    shown: Tree,
    /// A newer checkpoint that is known, and cannot be used.
    newer: Option<Cno>,
    /// Why what was fsynced last is not shown, if it is not.
    unrecovered: Option<String>,
    options: ReadOnlyOptions,
    clean_segments: u64,
    /// Clean segments in which something is needed, if that was counted.
    refused_segments: AtomicU64,
    mounted: Instant,
}

impl std::fmt::Debug for ReadOnlyVolume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadOnlyVolume").field("shown", &self.shown).finish_non_exhaustive()
    }
}

impl ReadOnlyVolume {
    /// Mounts the volume on a device.
    ///
    /// # Errors
    /// Not a volume, unknown features, [`Error::NoCheckpoint`](crate::Error::NoCheckpoint), damage, a device error.
    pub fn mount(device: Arc<dyn Device>, options: ReadOnlyOptions) -> Result<Self> {
        let (mut volume, shown, newer, unrecovered) = match options.rescue {
            true => {
                let progress = |bytes| tracing::trace!("scanned {bytes} bytes");
                let mut rescue = Rescue::open(device, Box::new(progress))?;
                let is_newest = options.checkpoint.is_none();
                let found = rescue.find(options.checkpoint)?;
                let unrecovered = rescue.unrecovered(&found).filter(|_| is_newest);
                let unrecovered = unrecovered.map(ToString::to_string);
                let known = rescue.newest_known();
                let (volume, shown) = rescue.into_volume(options.checkpoint)?;
                let is_newer = is_newest && known > shown.cno();
                (volume, shown, is_newer.then_some(known), unrecovered)
            }
            false => {
                let (volume, shown) = Self::open(device, &options)?;
                (volume, shown, None, None)
            }
        };
        volume.set_cache_limit(options.cache_limit);
        let clean_segments = match volume.clean_segments() {
            Err(_) if options.rescue => 0,
            count => count?,
        };
        volume.store.let_go();
        let (refused_segments, mounted) = (AtomicU64::new(0), Instant::now());
        Ok(Self {
            volume,
            shown,
            newer,
            unrecovered,
            options,
            clean_segments,
            refused_segments,
            mounted,
        })
    }

    fn open(device: Arc<dyn Device>, options: &ReadOnlyOptions) -> Result<(Volume, Tree)> {
        let mut volume = Volume::open_with(device, options.verify)?;
        volume.set_cache_limit(options.cache_limit);
        let shown = match options.checkpoint {
            None if options.recovery => volume.recovered_tree()?,
            checkpoint => volume.tree(checkpoint)?,
        };
        Ok((volume, shown))
    }

    /// The files that the mount shows.
    #[must_use]
    pub fn shown(&self) -> &Tree {
        &self.shown
    }

    /// Returns the newest checkpoint that is known, if it cannot be used and an older one is shown instead.
    #[must_use]
    pub fn newer(&self) -> Option<Cno> {
        self.newer
    }

    /// Returns why what was fsynced after the newest checkpoint is not shown, if it should be.
    #[must_use]
    pub fn unrecovered(&self) -> Option<&str> {
        self.unrecovered.as_deref()
    }

    /// How things are.
    #[must_use]
    pub fn status(&self) -> Status {
        let lifetime = self.volume.lifetime;
        let (cache_hits, cache_misses) = self.volume.store.cache_counts();
        Status {
            state: CleanerState::Off,
            options: self.options.cleaner,
            geometry: self.volume.geometry(),
            cno: self.shown.cno(),
            clean_segments: self.clean_segments,
            kept_segments: 0,
            refused_segments: self.refused_segments.load(Ordering::Relaxed),
            cleaner: CleanerTotals::default(),
            run: RunProgress::default(),
            last_step: None,
            blocks_written: 0,
            user_blocks_written: 0,
            data_blocks: 0,
            metadata_blocks: 0,
            data_sync_blocks: 0,
            cache_hits,
            cache_misses,
            lifetime_user_bytes: lifetime.user_bytes,
            lifetime_written_bytes: lifetime.written_bytes,
            lifetime_segments_freed: lifetime.segments_freed,
            uptime: self.mounted.elapsed().as_secs(),
            dirty_bytes: 0,
            stopped: None,
            of_the_past: self.options.checkpoint.is_some(),
        }
    }

    /// How many checkpoints the volume has, as the cpfile counts them.
    ///
    /// # Errors
    /// The cpfile cannot be read.
    pub fn checkpoint_totals(&self) -> Result<CheckpointTotals> {
        self.volume.checkpoint_totals()
    }

    /// Where the space is. Reads the DAT.
    ///
    /// # Errors
    /// Damage, a device error.
    pub fn usage(&self) -> Result<Usage> {
        let Volume { store, dat, super_root, .. } = &self.volume;
        let (known, clean) = LiveBlocks::gather(store, dat, super_root)?;
        let (refused, free): (Vec<_>, Vec<_>) = clean.into_iter().partition(|(_, live)| *live > 0);
        let refused: Vec<_> = refused.into_iter().map(|(segment, _)| segment).collect();
        self.refused_segments.store(refused.len() as u64, Ordering::Relaxed);
        let free = self.clean_segments.min(free.len() as u64);
        let room = FreeSpace { refused, ..self.free_space(free) };
        let now = self.options.clock.now().seconds as u64;
        let geometry = self.volume.geometry();
        Ok(SpaceUsage::new(geometry, &known, &self.options.cleaner, room, now).count())
    }

    /// Returns the space of clean segments.
    fn free_space(&self, clean: u64) -> FreeSpace {
        let geometry = self.volume.geometry();
        let blocks =
            |segments: u64| segments.saturating_mul(u64::from(geometry.blocks_per_segment));
        FreeSpace {
            free: blocks(clean),
            reserved: blocks(geometry.reserved_segments()),
            unused: None,
            refused: Vec::new(),
        }
    }
}

impl Checkpoints for ReadOnlyVolume {
    fn times(&self) -> &Times {
        &self.volume.times
    }

    fn newest(&self) -> Cno {
        self.volume.last_log().cno
    }

    fn checkpoints(&self, from: Cno, limit: usize) -> Result<Vec<CheckpointInfo>> {
        self.volume.checkpoints(from, limit)
    }

    fn tree(&self, cno: Option<Cno>) -> Result<Tree> {
        let tree = self.volume.tree(cno)?;
        Ok(if self.options.rescue { tree.around_damage() } else { tree })
    }

    fn notes(&self) -> Result<Vec<Note>> {
        self.volume.notes()
    }
}

/// The files that the mount shows.
impl Files for ReadOnlyVolume {
    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        Files::lookup(&self.shown, dir, name)
    }

    fn hold(&self, ino: Ino) -> Result<Attr> {
        Files::hold(&self.shown, ino)
    }

    fn let_go(&self, ino: Ino, times: u64) {
        self.shown.let_go(ino, times);
    }

    fn let_go_of_all(&self) {
        self.shown.let_go_of_all();
    }

    fn attr(&self, ino: Ino) -> Result<Attr> {
        Files::attr(&self.shown, ino)
    }

    fn read_dir(
        &self,
        dir: Ino,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        Files::read_dir(&self.shown, dir, cookie, emit)
    }

    fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        Files::read(&self.shown, ino, offset, buffer)
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        Files::read_link(&self.shown, ino)
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        Files::seek(&self.shown, ino, offset, what)
    }

    /// What is not in a clean segment counts as in use, whether or not anything needs it.
    fn stat_fs(&self) -> Result<StatFs> {
        let FreeSpace { free, reserved, .. } = self.free_space(self.clean_segments);
        let stat = self.shown.stat_fs()?;
        let available = space::available(free, reserved, stat.block_size.into());
        Ok(StatFs { free, available, ..stat })
    }
}

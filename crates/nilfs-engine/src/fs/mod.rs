//! The live file system: the newest checkpoint with the changes since on top, and the operations
//! that a front end offers. It knows nothing of any front end. In which order its
//! locks are taken is in `host/rank.rs`.

pub(crate) mod admin;
mod attributes;
mod background;
mod blocks;
mod cleaner;
mod data;
pub(crate) mod defragment;
mod directory;
mod evacuate;
mod file_sync;
mod free_space;
mod inode;
mod inode_allocation;
mod inode_table;
mod journal;
mod lookup;
mod nameless;
mod names;
mod options;
pub(crate) mod purge;
mod recovered;
mod rename;
pub(crate) mod replay;
pub(crate) mod resize;
pub(crate) mod rollback;
mod scrub;
mod shortage;
pub(crate) mod snapshots;
mod sync;
mod write_ahead;

use std::ops::{ControlFlow, Range};
use std::sync::{Arc, OnceLock};

use nilfs_device::{CopyOnWriteDevice, Device};
use nilfs_ondisk::palloc::{BlockRole, Palloc, test_bit};
use nilfs_ondisk::{BlockNr, FileBlock, Ino};

pub use background::Background;
pub use inode::{Inode, InodeRef};
pub use options::{FsyncBy, MountOptions, OnError, Order};

use self::background::Wakeup;
use self::file_sync::SyncRequest;
use self::inode::{Context, State};
use self::inode_allocation::InodeNumbers;
use self::inode_table::Table;
use self::journal::Journal;
use self::replay::replay;
use self::rollback::Witness;
use self::shortage::Shortage;
use crate::block::BlockPool;
use crate::cleaner::Cleaner;
use crate::cleaner::options::CleanerOptions;
use crate::error::{Error, Result};
use crate::host::atomic::{AtomicBool, AtomicU32};
use crate::host::{Instant, Mutex, Rank, RwLock, Timestamp};
use crate::log::group_commit::GroupCommit;
use crate::log::segment_writer::SegmentWriter;
use crate::recovery::{self, RollForward, SyncLog};
use crate::store::{Store, Verify};
use crate::superblocks;
use crate::times::Times;
use crate::tree::{Shared, View};
use crate::types::Attr;
use crate::volume::Volume;
use crate::writer::space::{Claim, Cost, Effect};
use crate::writer::{Session, Writer, WriterOptions, Writing};

/// A file with its attributes at the moment of the answer.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The file.
    pub inode: InodeRef,
    /// Its attributes.
    pub attr: Attr,
}

/// Rounds that gain nothing, after which a writer gives up.
const FUTILE_ROUNDS: u32 = 1;
/// The same, where others have got the room that was gained, or have let go of something.
const OTHERS_ROUNDS: u32 = 64;

/// A volume that is mounted to be written. One that is only read needs less: see
/// [`ReadOnlyVolume`](crate::ReadOnlyVolume).
pub struct Filesystem {
    store: Arc<Store>,
    options: MountOptions,
    /// Where changes go.
    pub(crate) writer: Writer,
    /// Shared by operations on one directory and one file in it; exclusive for those on more.
    names: RwLock<()>,
    table: Mutex<Table>,
    numbers: Mutex<InodeNumbers>,
    journal: Mutex<Journal>,
    pool: BlockPool,
    generation: AtomicU32,
    wakeup: Wakeup,
    cleaner: Cleaner,
    /// Locked while a piece of data is written ahead. Where the log lies that the device may still be
    /// busy with.
    writing_ahead: Mutex<Option<Range<BlockNr>>>,
    /// Locked while the volume becomes larger, smaller, or what it was.
    remaking: Mutex<()>,
    pub(crate) times: Times,
    /// Whether the next change may have to wait for room or for memory, as far as the last one knew.
    delays: AtomicBool,
    /// Files that wait for it.
    file_syncs: GroupCommit<SyncRequest>,
    mounted: Instant,
    /// The volume was not closed cleanly, so there may be files without a name.
    may_have_orphans: bool,
    /// Who is told what a rollback has changed.
    witness: OnceLock<Witness>,
    shortage: Shortage,
}

impl Filesystem {
    /// Mounts the volume on a device. If it was not closed cleanly, it is recovered. If damage keeps that
    /// from being completed, all that was durable can be read, and nothing is written.
    ///
    /// No thread is started; see [`Filesystem::start_background`].
    ///
    /// # Errors
    /// Not a volume, damage, unknown features, a device that cannot be written or fails, no room for
    /// the recovery, [`Error::RollForward`].
    pub fn mount(device: Arc<dyn Device>, options: MountOptions) -> Result<Arc<Self>> {
        if device.is_read_only() {
            return Err(Error::ReadOnly { reason: "the device cannot be written".into() });
        }
        let volume = Volume::open_with(device, options.verify)?;
        volume.superblock().refuse_unknown_features(true).map_err(Error::Feature)?;
        let found = match options.give_up_unrecoverable {
            true => volume.recoverable()?,
            false => recovery::roll_forward(&volume.store, &volume.found)?.whole()?,
        };
        let fs = Self::assemble(&volume, &found, options)?;
        let begun = fs.begin(&found.logs).map_err(no_room_to_recover)?;
        match begun {
            Err(error @ Error::Device { .. }) if !is_unreadable(&volume, &found) => {
                return Err(error);
            }
            Err(damage) => fs.show_unrecovered(&damage),
            Ok(()) => {
                let mut session = fs.writing().lock();
                if volume.superblocks_lag || session.has_announced_records() {
                    session.mark_in_use()?;
                }
            }
        }
        fs.store.let_go();
        Ok(fs)
    }

    /// Damage because of which no checkpoint can be made of the first `logs` of what is to be rolled
    /// forward, if there is any. It is tried on a copy of what would be written.
    ///
    /// # Errors
    /// As [`Filesystem::mount`].
    pub(crate) fn trial(
        device: Arc<dyn Device>,
        verify: Verify,
        logs: usize,
    ) -> Result<Option<Error>> {
        let copy = CopyOnWriteDevice::new(device, Arc::default());
        let volume = Volume::open_with(Arc::new(copy), verify)?;
        let found = recovery::roll_forward(&volume.store, &volume.found)?.first(logs);
        let cleaner = CleanerOptions { enabled: false, ..CleanerOptions::default() };
        let options = MountOptions { barrier: false, cleaner, ..MountOptions::default() };
        let fs = Self::assemble(&volume, &found, options)?;
        match fs.begin(&found.logs) {
            // That is no damage, and the mount says it.
            Err(Error::NoSpace) => Ok(None),
            Ok(Err(error @ Error::Device { .. })) => Err(error),
            begun => begun.map(Result::err),
        }
    }

    /// Gets everything ready on which a mount begins.
    fn assemble(volume: &Volume, found: &RollForward, options: MountOptions) -> Result<Arc<Self>> {
        volume.store.set_cache_limit(options.block_cache());
        volume.store.set_flash_page(options.flash_page);
        let view = volume.view(volume.found.cno)?;
        let (barrier, discard) = (options.barrier, options.discard);
        let log = SegmentWriter::open(volume, &view, found, barrier, discard)
            .map_err(no_room_to_recover)?;
        let now = options.clock.now();
        let first_ino = Ino(volume.superblock().raw().s_first_ino.get().into());
        let trees = Shared::new(view, options.inode_cache());
        let writing = WriterOptions {
            on_error: options.on_error,
            clock: Arc::clone(&options.clock),
            barrier,
            dirty_limit: options.dirty_limit,
        };
        Ok(Arc::new(Self {
            store: Arc::clone(&volume.store),
            writer: Writer::new(&volume.store, (log, trees), volume.lifetime, writing),
            names: RwLock::new(Rank::Names, ()),
            table: Mutex::new(Rank::Table, Table::new(options.inode_cache())),
            numbers: Mutex::new(Rank::Numbers, InodeNumbers::new(first_ino)),
            journal: Mutex::new(Rank::Journal, Journal::default()),
            pool: BlockPool::new(volume.store.block_size(), options.dirty_limit),
            generation: AtomicU32::new(now.nanoseconds ^ now.seconds as u32),
            wakeup: Wakeup::default(),
            cleaner: Cleaner::new(options.cleaner),
            writing_ahead: Mutex::new(Rank::WritingAhead, None),
            remaking: Mutex::new(Rank::Remaking, ()),
            times: Times::default(),
            delays: AtomicBool::new(false),
            file_syncs: GroupCommit::default(),
            mounted: Instant::now(),
            may_have_orphans: !volume.is_clean(),
            witness: OnceLock::new(),
            shortage: Shortage::default(),
            options,
        }))
    }

    /// Takes over what sync logs have made durable after the newest checkpoint. The inner error says that
    /// a number of theirs cannot be had; all of it can be read then, but not be made a checkpoint.
    fn roll_forward(&self, session: &mut Session<'_>, sync_logs: &[SyncLog]) -> Result<Result<()>> {
        let context = self.context();
        let mut claimed = Ok(());
        for inode in replay(&context, sync_logs)?.inodes.into_values() {
            let mut state = inode.state.write();
            let is_gone = state.links() == 0;
            if is_gone && state.fresh {
                continue;
            }
            claimed = claimed.and_then(|()| {
                inode.claim_placed(&mut state, &context, |placed| session.claim(placed))?;
                match state.fresh {
                    true => self.numbers.lock().take_exactly(&context.view, inode.ino()),
                    false => Ok(()),
                }
            });
            self.mark_dirty(&inode, &mut state);
            let mut table = self.table.lock();
            if is_gone {
                let blocks = state.file.raw.i_blocks.get() / self.store.block_size().sectors();
                table.orphans.insert(inode.ino(), blocks);
            }
            table.insert(Arc::clone(&inode));
        }
        Ok(claimed)
    }

    /// Whether nothing can be changed for now, or any more because of an error.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.writer.is_stopped()
    }

    /// The root directory.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn root(&self) -> Result<Entry> {
        self.inode(Ino::ROOT)
    }

    /// A file by its number.
    ///
    /// # Errors
    /// [`Error::Stale`] if there is none.
    pub fn inode(&self, ino: Ino) -> Result<Entry> {
        let inode = self.by_number(ino)?;
        self.entry(inode)
    }

    /// A file by its number, without its attributes.
    ///
    /// # Errors
    /// [`Error::Stale`] if there is none.
    pub fn by_number(&self, ino: Ino) -> Result<InodeRef> {
        if let Some(inode) = self.table.lock().get(ino) {
            return Ok(inode);
        }
        if !ino.is_of_user() {
            return Err(Error::Stale);
        }
        // No freeze may come between finding the number in use and finding its inode.
        let _transaction = self.writer.transaction();
        let view = self.view();
        if !self.numbers.lock().is_taken(&view, ino)? {
            return Err(Error::Stale);
        }
        self.noting(self.get(ino))
    }

    /// Keeps a file, even without a name, for somebody who knows nothing but its number, until
    /// [`Filesystem::let_go`] is called as often. Takes some forty bytes of memory, where an
    /// [`InodeRef`] would keep all that is known of the file.
    pub fn hold(&self, inode: &InodeRef) {
        self.table.lock().hold(inode.ino());
    }

    /// Ends what `times` calls of [`Filesystem::hold`] began.
    pub fn let_go(&self, ino: Ino, times: u64) {
        let may_have_ended = self.table.lock().let_go(ino, times);
        if may_have_ended {
            self.drop_content(ino);
        }
    }

    /// Files without a name that are kept for nobody but those who [hold](Filesystem::hold) them.
    #[must_use]
    pub fn held_without_name(&self) -> Vec<Ino> {
        self.table.lock().held_orphans()
    }

    /// Takes note that nobody holds a file without a name any more, though the calls of
    /// [`Filesystem::let_go`] that say so are still to come. So its room can be had at once.
    pub fn expect_let_go(&self, ino: Ino) {
        self.table.lock().expect_let_go(ino);
    }

    /// How many files are being held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.table.lock().held()
    }

    /// Frees what is only kept for the next moment, because there has been none for a while.
    pub fn free_spare_memory(&self) {
        self.pool.clear();
        self.table.lock().evict_idle();
    }

    /// Ends what all calls of [`Filesystem::hold`] began.
    pub fn let_go_of_all(&self) {
        self.table.lock().let_go_of_all();
    }

    /// The attributes of a file.
    ///
    /// # Errors
    /// None today; the signature leaves room for attributes that must be read.
    pub fn attr(&self, inode: &InodeRef) -> Result<Attr> {
        Ok(inode.state.read().attr(self.store.block_size()))
    }

    /// Deletes files that have no name but were still open when the volume was last closed
    /// without being unmounted. Returns their number.
    ///
    /// # Errors
    /// The ifile cannot be read.
    pub fn release_orphans(&self) -> Result<u64> {
        if self.is_read_only() || !self.may_have_orphans {
            return Ok(0);
        }
        let view = self.view();
        let layout = view.ifile_layout();
        let mut released = 0;
        view.source().scan(&view.tree.ifile, FileBlock(0), &mut |key, pointer| {
            if let BlockRole::Bitmap { group } = layout.role_of(key) {
                let bitmap = view.source().locate(pointer).and_then(|at| view.store.read(at));
                let bitmap = match bitmap {
                    // What is in use there cannot be told; fsck frees it.
                    Err(error) if error.is_of_block() => return Ok(ControlFlow::Continue(())),
                    bitmap => bitmap?,
                };
                let bits = 0..layout.entries_per_group;
                for bit in bits.filter(|&bit| test_bit(&bitmap, bit as usize)) {
                    let ino = Ino(layout.first_of_group(group).saturating_add(bit));
                    let user = ino >= Ino::FIRST_USER;
                    released += u64::from(user && self.release_orphan(&view, ino)?);
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(released)
    }

    fn release_orphan(&self, view: &View, ino: Ino) -> Result<bool> {
        let raw = match view.raw_inode(ino) {
            Err(error) if error.is_of_block() => return Ok(false),
            raw => raw?,
        };
        if raw.i_links_count.get() != 0 {
            return Ok(false);
        }
        let _transaction = self.writer.transaction();
        if self.table.lock().get(ino).is_some() || !self.numbers.lock().is_taken(view, ino)? {
            return Ok(false);
        }
        let inode = Arc::new(Inode::new(ino, raw, false)?);
        let mut state = inode.state.write();
        self.mark_dirty(&inode, &mut state);
        let mut table = self.table.lock();
        table.insert(Arc::clone(&inode));
        let blocks = raw.i_blocks.get() / self.store.block_size().sectors();
        table.orphans.insert(ino, blocks);
        Ok(true)
    }

    pub(crate) fn view(&self) -> Arc<View> {
        self.writer.view()
    }

    fn context(&self) -> Context<'_> {
        Context {
            view: self.view(),
            space: &self.writer.space,
            pool: &self.pool,
            index_limit: self.options.inode_cache(),
        }
    }

    fn now(&self) -> Timestamp {
        self.writer.now()
    }

    /// The writer, and everything that has changed in memory.
    fn writing(&self) -> Writing<'_> {
        self.writer.with(self)
    }

    fn entry(&self, inode: InodeRef) -> Result<Entry> {
        let attr = self.attr(&inode)?;
        Ok(Entry { inode, attr })
    }

    /// A file from memory or from the newest checkpoint.
    fn get(&self, ino: Ino) -> Result<InodeRef> {
        loop {
            if let Some(inode) = self.table.lock().get(ino) {
                return Ok(inode);
            }
            let view = self.view();
            let inode = Arc::new(Inode::new(ino, view.inode(ino)?, false)?);
            let mut table = self.table.lock();
            if let Some(other) = table.get(ino) {
                return Ok(other);
            }
            if table.is_leaving(ino) {
                return Err(Error::Stale);
            }
            // A commit in between may have changed the inode: what was read would be stale.
            if Arc::ptr_eq(&view.tree, &self.view().tree) {
                table.insert(Arc::clone(&inode));
                return Ok(inode);
            }
        }
    }

    /// Puts an inode on the list of what the next commit takes.
    fn mark_dirty(&self, inode: &InodeRef, state: &mut State) {
        if !state.dirty {
            state.dirty = true;
            self.table.lock().dirty.insert(inode.ino(), Arc::clone(inode));
            if self.writer.space.add_inode(inode.ino(), &self.ifile_layout()) {
                self.wakeup.changed();
            }
        }
    }

    /// Runs an operation that changes something, when there is room for what it may cost.
    fn change<T>(&self, cost: Cost, operation: impl FnOnce() -> Result<T>) -> Result<T> {
        self.wait_for_memory()?;
        let result = self.admitted(cost, operation);
        self.throttle(cost.pages);
        self.noting(result)
    }

    /// What does not fit is tried again as long as the cleaner gains something: its checkpoint
    /// takes everything that has changed along, so that a commit before it would write the same
    /// blocks of the DAT once more. If there is nothing to gain, a commit turns the estimates of
    /// what changes cost into facts, and only then the past is given up, and at last what somebody
    /// outside of the engine keeps.
    fn admitted<T>(&self, cost: Cost, operation: impl FnOnce() -> Result<T>) -> Result<T> {
        let effect = if self.options.use_reserve { Effect::Frees } else { cost.effect };
        let cost = Cost { effect, ..cost };
        let (mut futile, mut others) = (0, 0);
        let mut releases = self.shortage.releases();
        let mut committed = false;
        loop {
            let admitted = self.writer.changes();
            {
                let _transaction = self.writer.transaction();
                // Within the transaction: unmounting ends all of them, and commits what they have
                // changed.
                self.check_writable()?;
                if let Some(_claim) = self.claim(cost) {
                    self.writer.note_change();
                    return operation();
                }
            }
            // What was deleted is dead when a checkpoint knows of it, and what many deletions cost
            // is much less than what they could: both may be enough already, and give the cleaner
            // better victims if not.
            if (cost.effect == Effect::Frees || !self.writer.space.may_fit(cost))
                && self.has_changes()
            {
                self.commit()?;
                committed = true;
                if self.writer.space.fits(cost) {
                    continue;
                }
            }
            if self.make_room(cost, committed)? {
                continue;
            }
            // Somebody else may have taken what a step has gained, or given something back.
            let taken = self.writer.space.may_fit(cost) && self.writer.changes() != admitted;
            if !std::mem::replace(&mut committed, true) {
                self.commit()?;
            } else if others < OTHERS_ROUNDS && self.others_let_go(&mut releases) {
                others += 1;
                committed = false;
            } else if taken && others < OTHERS_ROUNDS {
                others += 1;
            } else if futile < FUTILE_ROUNDS {
                futile += 1;
            } else {
                return Err(Error::NoSpace);
            }
        }
    }

    /// Whether a commit would have something to do.
    fn has_changes(&self) -> bool {
        self.writer.space.is_dirty() || self.table.lock().has_abandoned()
    }

    /// How the ifile is laid out.
    fn ifile_layout(&self) -> Palloc {
        let geometry = self.store.geometry();
        Palloc::new(geometry.block_size, geometry.inode_size)
    }

    fn claim(&self, cost: Cost) -> Option<Claim<'_>> {
        self.writer.space.claim(cost)
    }

    fn check_writable(&self) -> Result<()> {
        self.writer.check_writable()
    }

    /// Passes a result on; damage of the volume stops writing (mount option `errors`).
    fn noting<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error @ (Error::Corrupt { .. } | Error::Inconsistent(_))) = &result {
            self.writer.stop(error);
        }
        result
    }
}

/// Whether no checkpoint can be made of what is to be recovered because blocks cannot be read, however often that is
/// tried, and not because the device fails to write, or is gone.
fn is_unreadable(volume: &Volume, found: &RollForward) -> bool {
    let (device, verify) = (volume.store.shared_device(), volume.store.verify());
    let is_there = superblocks::load(&*device).is_ok();
    is_there
        && matches!(Filesystem::trial(device, verify, found.logs.len()), Err(Error::Device { .. }))
}

/// A mount takes room on the device for nothing but a recovery.
fn no_room_to_recover(error: Error) -> Error {
    match error {
        Error::NoSpace => Error::NoRoomToRecover,
        error => error,
    }
}

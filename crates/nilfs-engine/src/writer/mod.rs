//! Writing: everything that makes changes durable, in the only order in which that may be done (docs/format.md §18).
//!
//! A [`Writer`] owns the log, the trees that readers see, the account of space, what a failing device would take along,
//! and whether and why writing has stopped. A thread that writes has a [`Session`] of it: the log, until the session
//! ends. What has to follow a write — publishing the checkpoint, taking over the space that is left, stopping after an
//! error — is done inside, so that no caller can forget it.
//!
//! Changes in memory, above the newest checkpoint, belong to the mounted volume, of which a writer knows no more than
//! [`Memory`] says.

mod session;
pub(crate) mod space;
mod stopped;
mod totals;

use std::ops::Deref;
use std::sync::Arc;

use nilfs_ondisk::Cno;
use nilfs_ondisk::lifetime::Lifetime;

pub(crate) use self::session::Session;
use self::space::{Needed, Space};
pub use self::stopped::OnError;
pub(crate) use self::stopped::Stopped;
pub(crate) use self::totals::Cleaned;
use self::totals::{Exposed, Written};
use crate::commit::{Effects, Frozen, MetadataChanges};
use crate::error::Result;
use crate::host::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::host::{
    Clock, Mutex, MutexGuard, Rank, RwLock, RwLockReadGuard, RwLockWriteGuard, Timestamp,
};
use crate::log::segment_writer::{SegmentWriter, Stamp};
use crate::store::Store;
use crate::tree::{Shared, View};

/// How often a commit writes ahead what programs have written while it did so before.
const MOST_ROUNDS: usize = 4;

/// The right to freeze: no transaction is open, and none can be.
pub(crate) type Alone<'a> = RwLockWriteGuard<'a, ()>;

/// Changes that lie in memory above the newest checkpoint.
pub(crate) trait Memory {
    /// Moves everything that has changed aside; programs go on with what comes next.
    fn freeze(&self, alone: &Alone<'_>) -> Frozen;

    /// Takes over a checkpoint that has been written of what was frozen, and published. It has changed metadata in
    /// this way, and had these effects, at this time (s since 1970).
    fn published(&self, frozen: Frozen, changes: &MetadataChanges, effects: Effects, time: u64);

    /// Writes data of files as a commit would have to, so that others can sync theirs between two pieces. Nobody
    /// waits as long as durability was asked for no more than `syncs` times.
    fn write_ahead(&self, syncs: u64) -> Result<()>;

    /// Whether there is much to write ahead.
    fn has_unwritten(&self) -> bool;

    /// Whether a file without a name is open.
    fn has_orphans(&self) -> bool;

    /// Returns the blocks that must be kept when there is no room; `None` if they are not known.
    fn needed(&self, log: &SegmentWriter) -> Option<Needed>;

    /// Returns the work of the cleaner since the mount.
    fn cleaned(&self) -> Cleaned;
}

/// How a writer behaves.
pub(crate) struct WriterOptions {
    /// Effect of an error on later writing.
    pub(crate) on_error: OnError,
    /// The source of all timestamps.
    pub(crate) clock: Arc<dyn Clock>,
    /// Whether the device is told to make durable what was written.
    pub(crate) barrier: bool,
    /// Bytes of changes that programs may have in memory.
    pub(crate) dirty_limit: u64,
}

/// The owner of everything that is written; see the head of the module.
pub(crate) struct Writer {
    store: Arc<Store>,
    options: WriterOptions,
    log: Mutex<SegmentWriter>,
    /// Shared by every operation that changes something; exclusive while a commit freezes.
    transactions: RwLock<()>,
    /// The newest checkpoint, and what it shares with the trees that are looked at.
    pub(crate) trees: Arc<Shared>,
    pub(crate) space: Space,
    /// Freezes so far.
    freezes: AtomicU64,
    /// The last freeze whose changes are in a checkpoint; changed by the thread that has the log.
    committed_freeze: AtomicU64,
    /// The last freeze has left a part of what is to be deleted to the next.
    deleting: AtomicBool,
    /// Why nothing is written for now, or any more.
    stopped: RwLock<Option<Stopped>>,
    pub(crate) exposed: Exposed,
    pub(crate) written: Written,
    /// Changes so far: tells whether the volume is idle.
    changes: AtomicU64,
    /// How often durability was asked for.
    syncs: AtomicU64,
    /// How often that was when data were last written ahead.
    syncs_before: AtomicU64,
}

/// The log, to be looked at.
pub(crate) struct Look<'a>(MutexGuard<'a, SegmentWriter>);

impl Deref for Look<'_> {
    type Target = SegmentWriter;

    fn deref(&self) -> &SegmentWriter {
        &self.0
    }
}

impl Writer {
    /// The writer of a log, whose volume has been written to that much before.
    pub(crate) fn new(
        store: &Arc<Store>,
        (log, trees): (SegmentWriter, Arc<Shared>),
        before: Lifetime,
        options: WriterOptions,
    ) -> Self {
        let since = options.clock.now().seconds as u64;
        Self {
            store: Arc::clone(store),
            options,
            log: Mutex::new(Rank::Log, log),
            transactions: RwLock::new(Rank::Transactions, ()),
            trees,
            space: Space::default(),
            freezes: AtomicU64::new(0),
            committed_freeze: AtomicU64::new(0),
            deleting: AtomicBool::new(false),
            stopped: RwLock::new(Rank::Stopped, None),
            exposed: Exposed::new(since),
            written: Written::after(before),
            changes: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            syncs_before: AtomicU64::new(0),
        }
    }

    /// The writer together with what lies in memory above its log.
    pub(crate) fn with<'a>(&'a self, memory: &'a dyn Memory) -> Writing<'a> {
        Writing { writer: self, memory }
    }

    /// The log, whether it can be written or not.
    pub(crate) fn look(&self) -> Look<'_> {
        Look(self.log.lock())
    }

    /// The newest checkpoint.
    pub(crate) fn view(&self) -> Arc<View> {
        self.trees.newest()
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.options.clock.now()
    }

    /// The time (s since 1970).
    pub(crate) fn seconds(&self) -> u64 {
        self.now().seconds as u64
    }

    pub(crate) fn barrier(&self) -> bool {
        self.options.barrier
    }

    pub(crate) fn dirty_limit(&self) -> u64 {
        self.options.dirty_limit
    }

    /// Changes so far: tells whether the volume is idle.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    pub(crate) fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// How often durability was asked for.
    pub(crate) fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    pub(crate) fn note_sync(&self) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
    }

    /// How often durability had been asked for when data were last written ahead.
    pub(crate) fn syncs_before(&self) -> u64 {
        self.syncs_before.load(Ordering::Relaxed)
    }

    /// Lets an operation change something: no freeze comes between its changes.
    pub(crate) fn transaction(&self) -> RwLockReadGuard<'_, ()> {
        self.transactions.read()
    }

    /// As [`Writer::transaction`], unless a freeze is under way or waited for.
    pub(crate) fn try_transaction(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.transactions.try_read()
    }

    /// Waits for the end of all transactions, and keeps others from beginning.
    pub(crate) fn exclude_transactions(&self) -> Alone<'_> {
        self.transactions.write()
    }

    /// The freeze that will take what is changed now.
    pub(crate) fn next_freeze(&self) -> u64 {
        self.freezes.load(Ordering::Acquire) + 1
    }

    /// The last freeze whose changes are in a checkpoint, as of now for a thread that has the log.
    pub(crate) fn committed_freeze(&self) -> u64 {
        self.committed_freeze.load(Ordering::Acquire)
    }

    fn set_committed(&self, freeze: u64, at: u64) {
        self.committed_freeze.store(freeze, Ordering::Release);
        self.exposed.committed(at);
    }
}

/// A writer together with what lies in memory above its log.
#[derive(Clone, Copy)]
pub(crate) struct Writing<'a> {
    writer: &'a Writer,
    memory: &'a dyn Memory,
}

impl Deref for Writing<'_> {
    type Target = Writer;

    fn deref(&self) -> &Writer {
        self.writer
    }
}

impl<'a> Writing<'a> {
    pub(crate) fn store(self) -> &'a Store {
        &self.writer.store
    }

    /// The log, whether it can be written or not.
    pub(crate) fn lock(self) -> Session<'a> {
        Session::new(self, self.writer.log.lock())
    }

    /// The log, when all before have left it, if it can still be written. They may have failed, and then nothing
    /// may be taken for durable.
    pub(crate) fn session(self) -> Result<Session<'a>> {
        let session = self.lock();
        self.writer.check_writable()?;
        Ok(session)
    }

    /// Writes the data of files as a commit would have to, and returns the log for that commit. What is
    /// less than a piece is left to it; and more, if programs go on writing faster than that can be
    /// written ahead.
    pub(crate) fn write_ahead(self) -> Result<Session<'a>> {
        let syncs = self.writer.syncs();
        let before = self.writer.syncs_before.swap(syncs, Ordering::Relaxed);
        for _ in 0..MOST_ROUNDS {
            self.memory.write_ahead(before)?;
            let session = self.session()?;
            if !self.memory.has_unwritten() {
                return Ok(session);
            }
        }
        self.session()
    }

    /// The log for changes of metadata, which become a commit of everything where sync logs wait for
    /// one: then data are written ahead.
    pub(crate) fn write_ahead_of_metadata(self) -> Result<Session<'a>> {
        let session = self.session()?;
        if !session.needs_everything() {
            return Ok(session);
        }
        drop(session);
        self.write_ahead()
    }

    /// Makes a checkpoint of everything that has changed; the last one, if nothing has. It is
    /// whole after a power cut, but not necessarily there: see [`Writing::sync`].
    pub(crate) fn commit(self) -> Result<Cno> {
        let ticket = self.writer.next_freeze();
        let mut session = self.write_ahead()?;
        session.commit_since(ticket)?;
        session.finish_deleting()?;
        Ok(session.cno())
    }

    /// Makes everything durable.
    pub(crate) fn sync(self) -> Result<()> {
        let ticket = self.writer.next_freeze();
        let mut session = self.write_ahead()?;
        session.commit_since(ticket)?;
        session.flush()?;
        if session.superblocks_lag() {
            session.write_superblock()?;
        }
        Ok(())
    }

    /// Commits, closes the log, and marks the volume as clean, unless a file without a name is still open:
    /// a program that has it may be killed, and the next mount looks for such files. Nothing can be changed
    /// afterwards.
    pub(crate) fn close(self) -> Result<()> {
        let written_ahead = self.write_ahead().map(drop);
        let mut session = self.lock();
        if session.is_closed() || self.writer.unrecovered().is_some() {
            return Ok(());
        }
        written_ahead?;
        self.writer.check_writable()?;
        {
            // A transaction that has begun is part of the last commit; those that begin later find
            // the volume unmounted.
            let _alone = self.writer.exclude_transactions();
            self.writer.set_stopped(Some(Stopped::Unmounted));
        }
        session.commit(&MetadataChanges::default())?;
        session.finish_deleting()?;
        session.flush()?;
        session.close()
    }

    fn stamp(self) -> Stamp {
        let lifetime = self.writer.lifetime(self.memory.cleaned());
        Stamp { seconds: self.writer.now().seconds, lifetime }
    }
}

//! The owner of the log. It knows where the log goes on and from which checkpoint, what of it is
//! durable, what the superblocks say, and which segments may be written; nobody else changes any of
//! these.
//!
//! It knows nothing of inodes in memory, of what programs may still write, or of what the cleaner
//! wants. One thread at a time has it; the time comes in with each call ([`Stamp`]).
//!
//! # What may be written before what
//!
//! The logs of one segment need no order: recovery stops at the first that is not whole. But it
//! then looks once into the next segment. So a super root goes into a segment only when every log
//! in the segments before is durable. And a superblock names only what is durable.

mod segments;

use std::ops::Range;
use std::sync::Arc;

use nilfs_ondisk::lifetime::Lifetime;
use nilfs_ondisk::superblock::{
    FEATURE_ROLL_FORWARD, STATE_ERROR, STATE_RESIZE, STATE_VALID, Superblock,
};
use nilfs_ondisk::{BlockNr, Cno, SegNum, Seq};
use zerocopy::little_endian::{U16, U64};

use super::resume;
use super::sealed::SealedLog;
use super::withheld::Withheld;
use crate::bmap::{Pointers, Source};
use crate::checkpoints;
use crate::commit::{
    self, Base, CommitInput, Effects, Frozen, MetadataChanges, SyncContent, SyncedFile,
};
use crate::dat::DatEdit;
use crate::error::{Error, Result};
use crate::overlay::Placed;
use crate::recovery::RollForward;
use crate::segments::SufileEdit;
use crate::store::Store;
use crate::superblocks::SuperblockWriter;
use crate::tree::{Era, Sequences, View};
use crate::volume::Volume;

/// Seconds after which a superblock follows the log into another segment, so that a recovery has
/// little to scan.
const SUPERBLOCK_INTERVAL: i64 = 10;

/// Bytes that a mount after a crash reads of sync logs, after which a checkpoint is due before more of
/// them go into another segment.
const MUCH_TO_READ: u64 = 4 << 20;

/// The same, after which none of them goes into another segment before that checkpoint: whoever should
/// have made it does not get to it.
const MOST_READ: u64 = 4 * MUCH_TO_READ;

/// Bytes that it reads of one of them at most: short ones are read together.
const READ_OF_ONE: u64 = 64 << 10;

/// How often a volume is mounted before Linux' tools recommend a check, if nobody has said.
const MOUNTS_BEFORE_CHECK: u16 = 50;

/// What a call brings along of the world.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stamp {
    /// The time (s since 1970).
    pub(crate) seconds: i64,
    /// Totals over the life of the volume, for the superblocks.
    pub(crate) lifetime: Lifetime,
}

impl Stamp {
    fn unsigned_seconds(&self) -> u64 {
        self.seconds as u64
    }
}

/// Where in its life a log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A recovery has cut the chain of logs: the next checkpoint is written even if nothing has
    /// changed, and the superblocks name nothing before all is recovered and durable.
    Recovering {
        /// When the last log that was rolled forward was written (s): the checkpoint shows the volume
        /// as it was then.
        as_of: Option<u64>,
    },
    /// The superblocks call the volume clean, and nothing was written since.
    Clean,
    /// The superblocks call the volume in use.
    InUse {
        /// How many sync logs were written since the last checkpoint, and how many bytes a mount after a
        /// crash reads of them.
        sync_logs: u64,
        read_after_crash: u64,
        /// Blocks of files were written since then that only sync logs refer to, or nothing yet.
        written_ahead: bool,
    },
    /// The last checkpoint was written, and the superblocks call the volume clean or they do not.
    Closed { clean: bool },
    /// Something that had to be written was not: nothing is written any more.
    Failed,
}

/// After a checkpoint.
const IN_USE: State = State::InUse { sync_logs: 0, read_after_crash: 0, written_ahead: false };

/// What became of a checkpoint that was to be written.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// What it has done; `None` if there was none to write.
    pub(crate) effects: Option<Effects>,
    /// Why the changes of metadata are not in it: there was no room for them, or something that they
    /// change cannot be read.
    pub(crate) refused: Option<Error>,
}

/// What became of blocks of files that are written without a checkpoint.
#[derive(Debug)]
pub(crate) struct Synced {
    /// Where the blocks of each file lie.
    pub(crate) placed: Vec<Vec<Placed>>,
    /// Where each log lies, its summary included.
    pub(crate) logs: Vec<Range<BlockNr>>,
}

impl Synced {
    /// Blocks of the logs, their summaries included.
    pub(crate) fn blocks(&self) -> u64 {
        self.logs.iter().map(|log| log.end.0 - log.start.0).sum()
    }
}

/// The owner of the log; see the head of the module.
pub(crate) struct SegmentWriter {
    store: Arc<Store>,
    /// Whether the device is told to make durable what was written.
    barrier: bool,
    /// Whether the device is told of segments that are free again.
    discard: bool,
    state: State,
    /// Damage because of which there is no place for the checkpoint of a recovery.
    obstacle: Option<Error>,
    base: Base,
    era: Arc<Era>,
    /// For readers, from one view to the next.
    sequences: Arc<Sequences>,
    superblocks: SuperblockWriter,
    withheld: Withheld,
    /// The segment of the oldest log that may not be durable.
    unflushed: Option<SegNum>,
    /// The last log, if it may be that the system has not begun to send it to the device.
    not_begun: Option<Range<BlockNr>>,
    /// Logs that may not be durable, and their blocks.
    unflushed_logs: u64,
    unflushed_blocks: u64,
    /// How often everything that was written has become durable.
    flushes: u64,
    /// Segment and time (s) of the last superblock.
    superblock_seq: Seq,
    superblock_time: i64,
    /// Whether a log with a hole was written since. Linux, which only looks at a volume with such logs,
    /// sees no checkpoint after one.
    has_hole: bool,
}

impl SegmentWriter {
    /// Gets ready to write after the newest checkpoint, which `view` shows. The blocks of what has
    /// to be rolled forward stay where they are.
    pub(crate) fn open(
        volume: &Volume,
        view: &View,
        roll_forward: &RollForward,
        barrier: bool,
        discard: bool,
    ) -> Result<Self> {
        let (store, found) = (&volume.store, &volume.found);
        let newest = &found.newest;
        assert_eq!(view.tree.cno, found.cno, "a log goes on after the newest checkpoint only");
        let source = volume.source();
        let entry = checkpoints::checkpoint(source, &volume.cpfile()?, found.cno)?;
        let mut sufile_edit = SufileEdit::new(source, volume.sufile()?);
        for (&segment, &(end, written)) in &roll_forward.filled {
            let blocks = end.0 - store.geometry().segment_start(segment).0;
            sufile_edit.adopt(source, segment, blocks, written)?;
        }
        let withheld = Withheld::default();
        for &segment in &found.chain {
            if sufile_edit.usage(source, segment)?.is_clean() {
                withheld.refuse(segment, "a log is there that leads to the newest checkpoint");
            }
        }
        let next = match found.clean {
            true => Some(resume::after(newest)?),
            false => None,
        };
        let position = match next {
            Some(next) if resume::names_a_free_segment(volume, &sufile_edit, &next)? => Some(next),
            Some(next) => {
                tracing::error!(
                    "the newest log names segment {} as the next, which was not set aside for it and \
                     may be in use; the log goes on in another",
                    next.next
                );
                None
            }
            None => None,
        };
        let goes_on = position.is_some();
        let salvaged = !roll_forward.logs.is_empty();
        let position = match position {
            Some(position) => Ok(position),
            None => resume::position(volume, &mut sufile_edit, &withheld, salvaged),
        };
        let (position, obstacle) = match position {
            Err(damage) if damage.is_damage() => (resume::nowhere(volume), Some(damage)),
            position => (position?, None),
        };
        let base = Base {
            tree: Arc::clone(&view.tree),
            dat: Arc::clone(&volume.dat),
            super_root: volume.super_root,
            ifile_inode: entry.cp_ifile_inode,
            position,
            last_log: volume.last_log(),
            clean_segments: sufile_edit.clean_segments(source)?,
            left: Vec::new(),
            copies: Vec::new(),
            dat_edit: DatEdit::new(&volume.dat),
            sufile_edit,
        };
        let mut superblocks = SuperblockWriter::new(*volume.superblock(), store.device());
        if !goes_on {
            // A superblock that was gone back to may still call the volume clean.
            superblocks.set_state(STATE_VALID, false);
        }
        let mut log = Self {
            store: Arc::clone(store),
            barrier,
            discard,
            state: match goes_on {
                true => State::Clean,
                false => State::Recovering { as_of: roll_forward.as_of() },
            },
            obstacle,
            base,
            era: Arc::clone(&view.era),
            sequences: Arc::clone(&view.sequences),
            superblocks,
            withheld,
            unflushed: None,
            not_begun: None,
            unflushed_logs: 0,
            unflushed_blocks: 0,
            flushes: 0,
            superblock_seq: newest.header.seq,
            superblock_time: 0,
            has_hole: false,
        };
        log.recount()?;
        Ok(log)
    }

    /// Corrects what an interrupted resize has left.
    fn recount(&mut self) -> Result<()> {
        if self.superblock().raw().s_state.get() & STATE_RESIZE == 0 {
            return Ok(());
        }
        let dat = Arc::clone(&self.base.dat);
        let source = Source { store: &self.store, pointers: Pointers::Virtual(&dat) };
        let clean = self.base.sufile_edit.clean(source)?.len() as u64;
        tracing::warn!("a resize was interrupted; {clean} segments are clean");
        self.base.sufile_edit.set_clean(source, clean)?;
        self.base.clean_segments = clean;
        self.superblocks.set_state(STATE_RESIZE, false);
        Ok(())
    }

    /// The newest checkpoint, and where and how the log goes on after it.
    pub(crate) fn base(&self) -> &Base {
        &self.base
    }

    /// Where the blocks of metadata files come from.
    pub(crate) fn source(&self) -> Source<'_> {
        self.base.source(&self.store)
    }

    /// The newest checkpoint, for readers.
    pub(crate) fn view(&self) -> View {
        View {
            store: Arc::clone(&self.store),
            dat: Arc::clone(&self.base.dat),
            tree: Arc::clone(&self.base.tree),
            era: Arc::clone(&self.era),
            sequences: Arc::clone(&self.sequences),
            around_damage: false,
        }
    }

    /// The number of the newest checkpoint.
    pub(crate) fn cno(&self) -> Cno {
        self.base.tree.cno
    }

    /// The superblock as it is to be written next.
    pub(crate) fn superblock(&self) -> &Superblock {
        self.superblocks.current()
    }

    /// The sequence number of the oldest segment that a superblock on the device names.
    pub(crate) fn oldest_named(&self) -> Seq {
        self.superblocks.oldest_named()
    }

    /// Whether a recovery is under way: the next checkpoint is written in any case.
    pub(crate) fn is_recovering(&self) -> bool {
        matches!(self.state, State::Recovering { .. })
    }

    /// Fails if there is no place for the checkpoint of a recovery.
    pub(crate) fn check_place(&mut self) -> Result<()> {
        self.obstacle.take().map_or(Ok(()), Err)
    }

    /// Returns what an error comes from: where there is no room because of damage, that.
    pub(crate) fn cause(&self, error: Error) -> Error {
        self.withheld.cause(error)
    }

    /// Whether the next checkpoint must have everything that has changed. A recovery does not look for
    /// what comes before a checkpoint, sync logs for example; and what was written ahead has numbers
    /// that the checkpoint must give a meaning.
    pub(crate) fn needs_everything(&self) -> bool {
        self.sync_logs().0 > 0 || self.has_written_ahead()
    }

    fn has_written_ahead(&self) -> bool {
        matches!(self.state, State::InUse { written_ahead: true, .. })
    }

    /// Whether the superblocks say that there may be logs with records.
    pub(crate) fn has_announced_records(&self) -> bool {
        self.superblocks.has_feature(FEATURE_ROLL_FORWARD)
    }

    /// Takes the numbers that sync logs have given to blocks of which a recovery lets files consist.
    /// Returns false if one is taken already.
    ///
    /// # Errors
    /// The DAT cannot be read.
    pub(crate) fn claim(&mut self, placed: Placed) -> Result<bool> {
        assert!(self.is_recovering(), "numbers of logs are claimed by a recovery");
        self.base.dat_edit.claim(&self.store, placed.vblocknr)
    }

    /// Whether the log was closed, and nothing has gone wrong with that.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed { .. })
    }

    /// Whether something was written since the last flush.
    pub(crate) fn has_unflushed(&self) -> bool {
        self.unflushed.is_some()
    }

    /// How often everything that was written has become durable.
    pub(crate) fn flushes(&self) -> u64 {
        self.flushes
    }

    /// Writes a checkpoint of what was frozen and of changes of metadata. What stands in the way of
    /// these alone leaves them undone.
    ///
    /// # Errors
    /// What could not be read or written; the log must not be used any more then, see
    /// [`SegmentWriter::fail`].
    pub(crate) fn write_checkpoint(
        &mut self,
        frozen: &Frozen,
        changes: &MetadataChanges,
        stamp: &Stamp,
    ) -> Result<Written> {
        let nothing = MetadataChanges::default();
        let (commit, changes, refused) = match self.build(frozen, changes, stamp) {
            Err(error @ (Error::NoSpace | Error::Device { .. } | Error::Damaged { .. }))
                if !changes.is_empty() =>
            {
                // A checkpoint of nothing would only take room.
                if frozen.is_empty() && !self.is_recovering() {
                    return Ok(Written { effects: None, refused: Some(error) });
                }
                (self.build(frozen, &nothing, stamp)?, &nothing, Some(error))
            }
            built => (built?, changes, None),
        };
        let effects = Some(self.write_commit(commit, changes, stamp)?);
        Ok(Written { effects, refused })
    }

    /// Writes a checkpoint of what was frozen and of changes of metadata, both or nothing.
    ///
    /// # Errors
    /// As [`SegmentWriter::write_checkpoint`].
    pub(crate) fn write_together(
        &mut self,
        frozen: &Frozen,
        changes: &MetadataChanges,
        stamp: &Stamp,
    ) -> Result<Written> {
        match self.build(frozen, changes, stamp) {
            Err(error @ (Error::NoSpace | Error::Device { .. } | Error::Damaged { .. })) => {
                Ok(Written { effects: None, refused: Some(error) })
            }
            built => {
                let effects = Some(self.write_commit(built?, changes, stamp)?);
                Ok(Written { effects, refused: None })
            }
        }
    }

    fn write_commit(
        &mut self,
        commit: commit::Commit,
        changes: &MetadataChanges,
        stamp: &Stamp,
    ) -> Result<Effects> {
        let last = commit.logs.last().map(|log| log.segment);
        let set_aside = [self.base.position.segment, self.base.position.next];
        for segment in &changes.cleaned {
            assert!(!set_aside.contains(segment), "the log is in segment {segment}, not free");
        }
        for (nth, log) in commit.logs.iter().enumerate() {
            let may_be_taken = set_aside.contains(&log.segment) || !self.is_withheld(log.segment);
            assert!(may_be_taken, "segment {} was taken while it waited", log.segment);
            let crosses = self.unflushed.is_some_and(|segment| segment != log.segment);
            let completes = nth + 1 == commit.logs.len();
            let waits = match commit.base.super_root.durable_before {
                // What it promises says more than that it may be found.
                true => completes,
                false => crosses && Some(log.segment) == last,
            };
            if waits {
                self.flush()?;
            }
            self.write_log(log, stamp)?;
        }
        for (address, block) in commit.metadata {
            self.store.remember(address, block);
        }
        self.take_over(commit.base, changes);
        Ok(commit.effects)
    }

    /// Writes a checkpoint of changes of metadata alone: what programs have changed is left to the
    /// next. Nothing must [need](Self::needs_everything) to be in it.
    ///
    /// # Errors
    /// As [`SegmentWriter::write_checkpoint`].
    pub(crate) fn write_metadata_checkpoint(
        &mut self,
        changes: &MetadataChanges,
        stamp: &Stamp,
    ) -> Result<Written> {
        assert!(!self.needs_everything(), "this checkpoint would hide sync logs");
        self.write_checkpoint(&Frozen::default(), changes, stamp)
    }

    fn build(
        &self,
        frozen: &Frozen,
        changes: &MetadataChanges,
        stamp: &Stamp,
    ) -> Result<commit::Commit> {
        let now = match self.state {
            State::Recovering { as_of: Some(as_of) } => as_of,
            _ => stamp.unsigned_seconds(),
        };
        let unflushed = self.barrier.then_some(self.unflushed_blocks);
        let request = CommitInput { frozen, changes, withheld: &self.withheld, unflushed, now };
        commit::build(&self.store, &self.base, &request)
    }

    /// Goes on from a checkpoint that was written.
    fn take_over(&mut self, base: Base, changes: &MetadataChanges) {
        assert_eq!(base.tree.cno, self.cno().plus(1), "checkpoints are numbered without a gap");
        for filled in &changes.filled {
            self.withheld.unclaim(filled.segment);
        }
        if !changes.moved.is_empty() || !changes.cleaned.is_empty() {
            let new = Arc::new(Era(self.era.0 + 1));
            let ended = std::mem::replace(&mut self.era, new);
            self.withheld.free(&ended, &changes.cleaned);
        }
        self.base = base;
        if !self.is_recovering() {
            self.state = IN_USE;
        }
    }

    /// Writes blocks of files that the next checkpoint has to write anyway, in the next segment if there
    /// is no room for them in this one; `None` if there is no segment. A sync log can refer to them
    /// there; until then a recovery does not look at them.
    ///
    /// # Errors
    /// The log cannot be written; see [`SegmentWriter::fail`].
    pub(crate) fn write_ahead(
        &mut self,
        files: &[SyncedFile],
        stamp: &Stamp,
    ) -> Result<Option<Synced>> {
        assert!(!self.is_recovering(), "a recovery is one checkpoint");
        let (store, withheld) = (&self.store, &self.withheld);
        let now = stamp.unsigned_seconds();
        let built = commit::build_ahead(store, &mut self.base, withheld, files, now);
        let Ok(Some((logs, placed))) = built else { return Ok(None) };
        self.write_logs_ahead(&logs, stamp)?;
        Ok(Some(Synced { placed, logs: logs.iter().map(SealedLog::extent).collect() }))
    }

    /// Lets the log go on in the next segment, where there is room for a sync log that has none in this
    /// one, or may have in one after that, and writes as many of the blocks of its files as fit into the
    /// rest of this one: of each file those from the first on that the result says. `None`, and nothing
    /// is written, if there is no other segment, if it would not help, or if there is too much to read of
    /// sync logs already.
    ///
    /// # Errors
    /// A log cannot be written; see [`SegmentWriter::fail`].
    pub(crate) fn leave_segment(
        &mut self,
        files: &[SyncedFile],
        stamp: &Stamp,
    ) -> Result<Option<Synced>> {
        assert!(!self.is_recovering(), "a recovery is one checkpoint");
        if self.sync_logs().1 >= MOST_READ {
            return Ok(None);
        }
        let (store, withheld) = (&self.store, &self.withheld);
        let now = stamp.unsigned_seconds();
        let built = commit::build_rest_of_segment(store, &mut self.base, withheld, files, now);
        let Ok(Some((logs, placed))) = built else { return Ok(None) };
        self.write_logs_ahead(&logs, stamp)?;
        Ok(Some(Synced { placed, logs: logs.iter().map(SealedLog::extent).collect() }))
    }

    /// Whether a mount after a crash has so much to read of sync logs that a checkpoint is due.
    pub(crate) fn has_much_to_read(&self) -> bool {
        self.sync_logs().1 >= MUCH_TO_READ
    }

    fn write_logs_ahead(&mut self, logs: &[SealedLog], stamp: &Stamp) -> Result<()> {
        for log in logs {
            self.write_log(log, stamp)?;
            let (sync_logs, read_after_crash) = self.sync_logs();
            self.state = State::InUse { sync_logs, read_after_crash, written_ahead: true };
        }
        Ok(())
    }

    /// How many sync logs were written since the last checkpoint, and how many bytes a mount after a crash
    /// reads of them.
    fn sync_logs(&self) -> (u64, u64) {
        match self.state {
            State::InUse { sync_logs, read_after_crash, .. } => (sync_logs, read_after_crash),
            _ => (0, 0),
        }
    }

    /// Writes a sync log; `None` if it does not fit into the segment, or must read what cannot be
    /// read. A checkpoint meets the same error, and then knows what to do.
    ///
    /// # Errors
    /// The log cannot be written; see [`SegmentWriter::fail`].
    pub(crate) fn write_sync(
        &mut self,
        content: &SyncContent,
        stamp: &Stamp,
    ) -> Result<Option<Synced>> {
        assert!(!self.is_recovering(), "a sync log needs a checkpoint before it");
        let (before, read_before) = self.sync_logs();
        let now = stamp.unsigned_seconds();
        let unflushed = u16::try_from(self.unflushed_logs).ok().filter(|_| self.barrier);
        let (base, number) = (&mut self.base, before + 1);
        let built = commit::build_sync_log(&self.store, base, content, number, unflushed, now);
        let Ok(Some((log, placed))) = built else { return Ok(None) };
        if content.needs_records {
            self.announce_records(stamp)?;
        }
        if self.unflushed.is_some_and(|segment| segment != log.segment) {
            // A recovery looks past a torn log into the next segment: it must not find this one there.
            self.flush()?;
        }
        self.write_log(&log, stamp)?;
        self.has_hole |= log.written() < log.len();
        let bytes = log.written() * self.store.block_size().bytes64();
        self.state = State::InUse {
            sync_logs: before + 1,
            read_after_crash: read_before + bytes.min(READ_OF_ONE),
            written_ahead: self.has_written_ahead(),
        };
        Ok(Some(Synced { placed, logs: vec![log.extent()] }))
    }

    /// Says in the superblocks, before the first of them is written, that there may be logs of which a
    /// program that knows no records would lose something: it must not write, nor recover. For Linux the
    /// chain ends before such a log if it has a hole with something in it, because `ss_datasum` is wrong
    /// there: so no copy without this bit may name a log before one. Only [`SegmentWriter::close`] and
    /// [`SegmentWriter::finish_recovery`] take the bit away, and let both copies name the newest
    /// checkpoint by the same write.
    fn announce_records(&mut self, stamp: &Stamp) -> Result<()> {
        if self.has_announced_records() {
            return Ok(());
        }
        self.superblocks.set_feature(FEATURE_ROLL_FORWARD, true);
        match self.state {
            State::Clean => self.mark_in_use(stamp),
            _ => self.superblocks.write_all(self.store.device()),
        }
    }

    fn write_log(&mut self, log: &SealedLog, stamp: &Stamp) -> Result<()> {
        let enters = log.start == self.store.geometry().segment_start(log.segment);
        // The segment that an earlier mount has set aside was not looked at yet.
        if enters && let Some(refusal) = self.refusal(log.segment) {
            return Err(Error::Inconsistent(format!(
                "the log does not go on in segment {}, which was set aside for it: {refusal}; the next \
                 mount goes on in another",
                log.segment
            )));
        }
        self.mark_in_use(stamp)?;
        self.store.make_way_for(log);
        // A large write reaches the device at once, a small one when the system comes to it. A card with one
        // open unit opens and closes two of them where the small one comes after the large one.
        if let Some(before) = self.not_begun.replace(log.extent()) {
            self.store.begin_to_write_out(&before)?;
        }
        let content = log.content();
        match log.is_of_large_files() {
            true => self.store.begin_to_write(log.start, content)?,
            false => self.store.write_blocks(log.start, &content)?,
        }
        self.unflushed.get_or_insert(log.segment);
        self.unflushed_logs += 1;
        self.unflushed_blocks += log.written();
        Ok(())
    }

    /// Makes everything durable that was written, as far as the mount wants that.
    ///
    /// # Errors
    /// The device failed; see [`SegmentWriter::fail`].
    pub(crate) fn flush(&mut self) -> Result<()> {
        if self.unflushed.is_some() && self.barrier {
            self.store.flush()?;
        }
        self.unflushed = None;
        self.not_begun = None;
        self.unflushed_logs = 0;
        self.unflushed_blocks = 0;
        self.flushes += 1;
        self.withheld.durable(self.withheld.frees());
        Ok(())
    }

    /// Completes a recovery whose checkpoint, the last if there are several, is durable.
    ///
    /// # Errors
    /// The superblocks cannot be written.
    pub(crate) fn finish_recovery(&mut self, stamp: &Stamp) -> Result<()> {
        assert!(self.is_recovering(), "only a recovery can be completed");
        self.state = IN_USE;
        self.superblocks.set_feature(FEATURE_ROLL_FORWARD, false);
        self.write_in_use(stamp)
    }

    /// Says in the superblocks that the volume is in use, before the first log of a mount: recovery
    /// looks for logs without a checkpoint only on a volume that was not left clean. A mount that
    /// only looks at a volume does not pay for that, and leaves it as it was.
    ///
    /// # Errors
    /// The superblocks cannot be written.
    pub(crate) fn mark_in_use(&mut self, stamp: &Stamp) -> Result<()> {
        match self.state {
            State::Clean => {
                self.state = IN_USE;
                self.write_in_use(stamp)
            }
            // The superblocks have never called the volume clean.
            State::Recovering { .. } | State::InUse { .. } => Ok(()),
            State::Closed { .. } | State::Failed => {
                panic!("nothing may be written to this log any more: {:?}", self.state)
            }
        }
    }

    fn write_in_use(&mut self, stamp: &Stamp) -> Result<()> {
        self.superblocks.set_state(STATE_VALID, false);
        let raw = self.superblocks.current_mut().raw_mut();
        raw.s_mnt_count = U16::new(raw.s_mnt_count.get().saturating_add(1));
        raw.s_mtime = U64::new(stamp.unsigned_seconds());
        if raw.s_max_mnt_count.get() == 0 {
            raw.s_max_mnt_count = U16::new(MOUNTS_BEFORE_CHECK);
        }
        self.aim_superblocks(stamp);
        self.superblocks.write_all(self.store.device())
    }

    /// Whether the log has left the segment that the superblocks name, or Linux does not see what comes
    /// after the log that they name.
    pub(crate) fn superblocks_lag(&self) -> bool {
        self.has_hole || self.base.last_log.seq != self.superblock_seq
    }

    /// Whether a superblock should follow the log now. After a log with a hole it is at once, because
    /// Linux would show an older checkpoint, of which the cleaner frees blocks.
    pub(crate) fn superblock_is_due(&self, seconds: i64) -> bool {
        let is_late = seconds - self.superblock_time >= SUPERBLOCK_INTERVAL;
        !self.is_recovering() && self.superblocks_lag() && (is_late || self.has_hole)
    }

    /// Lets the older superblock name the newest checkpoint, which must be durable.
    ///
    /// # Errors
    /// The device failed; see [`SegmentWriter::fail`].
    pub(crate) fn write_superblock(&mut self, stamp: &Stamp) -> Result<()> {
        self.mark_in_use(stamp)?;
        self.aim_superblocks(stamp);
        self.superblocks.write_one(self.store.device())
    }

    /// Lets both superblocks name the newest checkpoint, which must be durable.
    ///
    /// # Errors
    /// As [`SegmentWriter::write_superblock`].
    pub(crate) fn write_superblocks(&mut self, stamp: &Stamp) -> Result<()> {
        self.write_superblock(stamp)?;
        self.write_superblock(stamp)
    }

    /// Lets the superblock in memory name the newest checkpoint.
    fn aim_superblocks(&mut self, stamp: &Stamp) {
        assert!(self.unflushed.is_none(), "a superblock names only what is durable");
        let per_segment = u64::from(self.store.geometry().blocks_per_segment);
        let free = self.base.clean_segments.saturating_mul(per_segment);
        let last_log = self.base.last_log;
        let superblock = self.superblocks.current_mut();
        stamp.lifetime.encode(superblock.raw_mut());
        superblock.set_last_log(last_log);
        superblock.raw_mut().s_free_blocks_count = U64::new(free);
        superblock.raw_mut().s_wtime = U64::new(stamp.unsigned_seconds());
        self.superblock_seq = last_log.seq;
        self.superblock_time = stamp.seconds;
        self.has_hole = false;
    }

    /// Closes the log after its last checkpoint, which must be durable. `clean`: the next mount has
    /// nothing to look for.
    ///
    /// # Errors
    /// The superblocks cannot be written.
    pub(crate) fn close(&mut self, clean: bool, stamp: &Stamp) -> Result<()> {
        let in_use = match self.state {
            State::Clean => false,
            State::InUse { .. } => {
                assert!(!self.needs_everything(), "the last log of a volume is a checkpoint");
                true
            }
            State::Recovering { .. } | State::Closed { .. } | State::Failed => {
                panic!("this log cannot be closed: {:?}", self.state)
            }
        };
        self.state = State::Closed { clean: clean || !in_use };
        if !in_use || !(clean || self.has_announced_records()) {
            return Ok(());
        }
        self.aim_superblocks(stamp);
        self.superblocks.set_state(STATE_VALID, clean);
        self.superblocks.set_feature(FEATURE_ROLL_FORWARD, false);
        self.superblocks.write_all(self.store.device())
    }

    /// Lets a closed log go on.
    pub(crate) fn reopen(&mut self) {
        self.state = match self.state {
            State::Closed { clean: true } => State::Clean,
            State::Closed { clean: false } => IN_USE,
            state => panic!("only a closed log can be opened again: {state:?}"),
        };
    }

    /// Stops writing because of an error, and leaves a note of it in the superblocks if they can be
    /// written. A recovery that fails leaves none: the next attempt begins where it did.
    pub(crate) fn fail(&mut self) {
        let was_recovering = self.is_recovering();
        self.state = State::Failed;
        if was_recovering {
            return;
        }
        self.superblocks.set_state(STATE_ERROR, true);
        if let Err(error) = self.superblocks.write_all(self.store.device()) {
            tracing::error!("cannot note the error in the superblocks: {error}");
        }
    }
}

#[cfg(test)]
mod tests;

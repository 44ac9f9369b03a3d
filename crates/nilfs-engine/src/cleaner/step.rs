//! A step of the cleaner: choosing victims, reading what is in them, having it moved, and freeing
//! them by a checkpoint.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use nilfs_ondisk::{Cno, SegNum, Seq};

use super::Cleaning;
use super::live_blocks::{LiveBlocks, Tracking};
use super::moving::{Moves, OpenSegment};
use super::options::{Amount, Policy};
use super::past::Past;
use super::policy::{self, Candidate};
use crate::commit::MetadataChanges;
use crate::dat::Dat;
use crate::error::{Error, Result};
use crate::host::{Instant, sleep};
use crate::log::segment_reader::{Content, LiveBlock, Refusal, SegmentReader, merged};
use crate::protection::Protection;
use crate::tree::Shared;
use crate::writer::Session;

/// Numbers of moved and dead blocks that one commit takes up while programs wait for theirs.
const PART_BLOCKS: usize = 1024;

/// Content that a step holds in memory at most, in bytes. Less if programs may have less; but a
/// segment must fit.
const STEP_BYTES: u64 = 64 << 20;

/// A past that reaches back no longer than this is short: in a shortage, little is paid for it.
const SHORT_PAST: Duration = Duration::from_secs(300);

/// Segments that a step empties when they have to go.
const EVACUATED_AT_ONCE: usize = 8;

/// How often a step chooses anew when somebody has begun to look at what it was about to give up.
const CHOICES: u32 = 8;

/// What one step leaves to the next.
#[derive(Debug, Default)]
pub(super) struct StepState {
    /// Where moved blocks go.
    pub(super) open: Option<OpenSegment>,
    /// Segments that are damaged and not looked at again, and what is damaged.
    skipped: BTreeMap<SegNum, String>,
    /// How often programs had asked for durability when it ended.
    syncs: u64,
    /// The attempt to make room by steps that took more than they gave back.
    in_vain: Option<Attempt>,
}

/// State that an attempt to make room for a writer depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attempt {
    /// The newest checkpoint, those by which the attempt itself took room included.
    pub(super) newest: Cno,
    /// Blocks that need not be kept, when it began.
    pub(super) unused: u64,
    /// Whether the writer makes the volume fuller: then less is tried.
    pub(super) grows: bool,
}

/// What a step of the cleaner is to do.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReclaimParams<'a> {
    /// Victims at most, and which of them first.
    pub(super) victims: usize,
    pub(super) policy: Policy,
    /// Reclaimable blocks that a victim must have.
    pub(super) min_reclaimable: Amount,
    pub(super) keep: Keep,
    /// Only these segments, whatever there is to be gained: they have to go.
    pub(super) evacuate: Option<Evacuated<'a>>,
    /// What a writer lacks.
    pub(super) shortage: Option<Shortage>,
}

/// Which checkpoints a step keeps, besides snapshots and what somebody reads.
#[derive(Debug, Clone, Copy)]
pub(super) enum Keep {
    /// Those that are not older.
    Younger(Duration),
    /// All that there have been: nothing is given up.
    Everything,
    /// All that there are.
    Existing,
}

/// Segments that have to be emptied.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Evacuated<'a> {
    /// All from here on.
    From(SegNum),
    /// These, of whose blocks only what a checkpoint has is kept.
    These(&'a BTreeSet<SegNum>),
    /// As [`Evacuated::These`], of a volume of which all metadata have been checked: content moves as
    /// unverified where a log does not prove it.
    Checked(&'a BTreeSet<SegNum>),
}

impl Evacuated<'_> {
    fn has(&self, segment: SegNum) -> bool {
        match self {
            Self::From(first) => segment >= *first,
            Self::These(segments) | Self::Checked(segments) => segments.contains(&segment),
        }
    }
}

/// What a writer lacks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shortage {
    /// Blocks.
    pub(super) missing: u64,
    /// Whether protected checkpoints are given up for that, the oldest first. If not, and that is
    /// what it would take, nothing is done; but a short past always goes.
    pub(super) give_up: bool,
}

/// What a step has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Step {
    /// Segments that are clean now.
    pub(super) freed: u64,
    /// Blocks that can be written now and could not before.
    pub(super) gained: u64,
    /// Blocks that were moved for that.
    pub(super) moved: u64,
    /// Candidates that were there.
    pub(super) candidates: u64,
}

/// What there is to choose from, while the log is locked.
struct Survey<'a> {
    session: Session<'a>,
    protection: Protection,
    candidates: Vec<Candidate>,
}

/// What a step works on, chosen while the log was locked.
pub(super) struct Selection {
    victims: Vec<Candidate>,
    candidates: u64,
    protection: Protection,
    dat: Arc<Dat>,
    needed_from: Seq,
    /// Whether blocks move of which it is not known whether they are damaged.
    with_unproved: bool,
}

/// When content was last modified.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Age {
    /// The time (s).
    pub(super) modified: u64,
    /// Blocks written since.
    pub(super) blocks: u64,
}

/// How old the content of segments is.
#[derive(Debug, Default)]
pub(super) struct Ages {
    pub(super) of_victims: HashMap<SegNum, Age>,
    pub(super) of_others: Age,
}

impl Ages {
    pub(super) fn of(&self, segment: SegNum) -> Age {
        self.of_victims.get(&segment).copied().unwrap_or(self.of_others)
    }
}

/// What was found in the victims.
#[derive(Default)]
pub(super) struct VictimBlocks {
    pub(super) changes: MetadataChanges,
    pub(super) live: Vec<LiveBlock>,
    pub(super) ages: Ages,
    /// A superblock stands in the way.
    pub(super) needed: bool,
}

/// Checkpoints at which nobody can look.
struct GivenUp<'a>(&'a Shared);

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        self.0.give_up(&[]);
    }
}

impl StepState {
    /// Segments that are damaged and left alone, and what is damaged.
    pub(super) fn skipped(&self) -> &BTreeMap<SegNum, String> {
        &self.skipped
    }

    /// Notes that an attempt only took room.
    pub(super) fn note_in_vain(&mut self, attempt: Attempt) {
        self.in_vain = Some(attempt);
    }

    /// Whether an attempt was in vain, and nothing has changed since. Where the past must not be given up, it
    /// would be in vain again, and take the room that deleting needs.
    pub(super) fn was_in_vain(&self, attempt: &Attempt) -> bool {
        self.in_vain.is_some_and(|before| {
            before.newest == attempt.newest
                && before.unused >= attempt.unused
                && (attempt.grows || !before.grows)
        })
    }

    /// Has moved blocks go to a new segment, if their own, or the one that its logs name as the
    /// next, is `end` or comes after.
    pub(super) fn leave_segments_from(&mut self, end: SegNum) {
        self.open = self.open.filter(|open| open.segment < end && open.names() < end);
    }
}

impl Cleaning<'_> {
    /// Empties a few of the segments that have to go, whatever there is to be gained. Returns how
    /// many are clean now.
    ///
    /// # Errors
    /// Damage of the volume, a device error; [`Error::NoSpace`] if there is no room for what must
    /// be moved.
    pub(crate) fn evacuate(&self, segments: Evacuated<'_>) -> Result<u64> {
        let params = ReclaimParams {
            victims: EVACUATED_AT_ONCE,
            policy: Policy::Greedy,
            min_reclaimable: Amount::Count(0),
            keep: match segments {
                Evacuated::From(_) => Keep::Everything,
                Evacuated::These(_) | Evacuated::Checked(_) => Keep::Existing,
            },
            evacuate: Some(segments),
            shortage: None,
        };
        Ok(self.clean_step(&mut self.cleaner.work.lock(), &params)?.freed)
    }

    /// Cleans a few segments, if it is worth it.
    ///
    /// # Errors
    /// Damage of the volume, a device error.
    pub(super) fn clean_step(
        &self,
        work: &mut StepState,
        params: &ReclaimParams<'_>,
    ) -> Result<Step> {
        // Nothing can be freed while they read: moving would only take room.
        if !self.other_readers_leave() {
            return Ok(Step::default());
        }
        for _ in 0..CHOICES {
            self.gather_live_blocks()?;
            let Some(mut selection) = self.choose(work, params)? else { break };
            let mut found = self.read_victims(work, &selection)?;
            if found.needed {
                selection.needed_from = self.free_superblocks()?;
                found = self.read_victims(work, &selection)?;
            }
            if let Some(_given_up) = self.give_up_past(&found.changes.delete)? {
                return self.reclaim(work, &selection, found);
            }
        }
        Ok(Step::default())
    }

    /// Moves what is alive in the victims, and takes them out of use.
    fn reclaim(
        &self,
        work: &mut StepState,
        selection: &Selection,
        mut found: VictimBlocks,
    ) -> Result<Step> {
        let before = self.writable_blocks(work);
        let blocks = self.read_live(&mut found)?;
        let moves = self.move_blocks(work, &mut found, &blocks)?;
        if found.changes.is_empty() {
            return Ok(Step { candidates: selection.candidates, ..Step::default() });
        }
        let moved = blocks.len() as u64;
        let freed = self.finish_step(work, found.changes, moves)?.unwrap_or(0);
        self.wait_for_readers();
        let gained = self.writable_blocks(work).saturating_sub(before);
        Ok(Step { freed, gained, moved, candidates: selection.candidates })
    }

    /// Keeps everybody from looking at checkpoints, until the value is dropped: by then, they are
    /// deleted, or the step has failed. `None` if somebody looks at one of them, or it has become a
    /// snapshot, since they were chosen.
    fn give_up_past(&self, checkpoints: &[Range<Cno>]) -> Result<Option<GivenUp<'_>>> {
        // Whoever has the log may be making a snapshot.
        let _session = self.writing.session()?;
        let is_going = |cno: &Cno| checkpoints.iter().any(|range| range.contains(cno));
        let mut state = self.cleaner.live_blocks();
        let Some(known) = state.ready() else { return Ok(None) };
        let goes = !known.snapshots.iter().any(is_going) && self.writing.trees.give_up(checkpoints);
        Ok(goes.then_some(GivenUp(&self.writing.trees)))
    }

    /// Gathers what the cleaner must know, if that has not been done.
    pub(crate) fn gather_live_blocks(&self) -> Result<()> {
        let _alone = self.cleaner.gathering.lock();
        let (base, _view) = {
            let log = self.writing.look();
            let mut known = self.cleaner.live_blocks();
            if known.ready().is_some() {
                return Ok(());
            }
            *known = Tracking::Gathering(Vec::new());
            // What is being read must not be written again meanwhile.
            (log.base().clone(), log.view())
        };
        let gathered = LiveBlocks::gather(self.store, &base.dat, &base.super_root);
        let log = self.writing.lock();
        let Tracking::Gathering(waiting) = mem::take(&mut *self.cleaner.live_blocks()) else {
            return Ok(());
        };
        let (mut known, clean) = gathered?;
        log.judge_clean(&clean)?;
        waiting.iter().for_each(|effects| known.follow(effects));
        *self.cleaner.live_blocks() = Tracking::Ready(Box::new(known));
        self.count_needed();
        log.refresh();
        Ok(())
    }

    /// Counts what must be kept when there is no room.
    pub(crate) fn count_needed(&self) {
        let mut state = self.cleaner.live_blocks();
        let Some(known) = state.ready() else { return };
        let protection = self.protection_without_room(known);
        known.table.count(protection);
    }

    /// Whether less must be kept than was counted: time has passed, or readers have gone.
    pub(crate) fn needs_less(&self) -> bool {
        let mut state = self.cleaner.live_blocks();
        let Some(known) = state.ready() else { return false };
        let (counted, now) = (known.table.counted(), self.protection_without_room(known));
        counted.from < now.from || !counted.kept.is_subset(&now.kept)
    }

    /// Protection of what must be kept when there is no room.
    fn protection_without_room(&self, known: &LiveBlocks) -> Protection {
        let options = self.cleaner.options();
        let period = if options.keeps_hard() { options.protection } else { Duration::ZERO };
        let mut protection = known.protection(period, self.writing.seconds());
        protection.kept.extend(self.writing.trees.kept());
        protection
    }

    /// Looks at all segments that could be cleaned.
    fn survey(&self, work: &StepState, keep: Keep) -> Result<Option<Survey<'_>>> {
        let session = self.writing.session()?;
        let now = self.writing.seconds();
        let usages = session.segment_usages()?;
        let mut state = self.cleaner.live_blocks();
        let Some(known) = state.ready() else { return Ok(None) };
        let mut protection = match keep {
            Keep::Younger(period) => known.protection(period, now),
            Keep::Everything => Protection::of_everything(),
            Keep::Existing => known.protection_of_existing(),
        };
        protection.kept.extend(self.writing.trees.kept());
        if !known.covers(&protection) {
            state.forget_all();
            drop(state);
            drop(session);
            self.gather_live_blocks()?;
            return self.survey(work, keep);
        }
        if let Keep::Younger(_) = keep {
            known.forget(&protection);
        }
        let candidates: Vec<Candidate> = usages
            .into_iter()
            .filter(|(segment, usage)| {
                let open = work.open.map(|open| open.segment);
                let busy = session.is_busy(*segment) || open == Some(*segment);
                usage.is_dirty() && !usage.is_bad() && !busy && !work.skipped.contains_key(segment)
            })
            .map(|(segment, usage)| Candidate {
                segment,
                filled: usage.su_nblocks.get().into(),
                live: known.table.live(segment, &protection),
                modified: usage.su_lastmod.get(),
                age: known.table.age(segment),
            })
            .collect();
        drop(state);
        Ok(Some(Survey { session, protection, candidates }))
    }

    /// Counts what could be reclaimed.
    pub(super) fn count_reclaimable(&self) -> Result<()> {
        self.gather_live_blocks()?;
        let session = self.writing.session()?;
        // Time passes, too.
        self.count_needed();
        session.refresh();
        Ok(())
    }

    fn choose(&self, work: &StepState, params: &ReclaimParams<'_>) -> Result<Option<Selection>> {
        let Some(survey) = self.survey(work, params.keep)? else { return Ok(None) };
        let Survey { session, mut protection, mut candidates } = survey;
        if let Some(shortage) = params.shortage
            && !self.cleaner.options().hard_protection
            && let Some(known) = self.cleaner.live_blocks().ready()
        {
            let now = self.writing.seconds();
            let recent = known.protection(SHORT_PAST, now).from;
            let past = Past::new(&known.table, &protection, &candidates);
            let from = past.kept_from(shortage.missing, recent);
            // Losing a short past is better than a checkpoint that might show that less has to go.
            let is_short = protection.from >= recent;
            if from > protection.from && !shortage.give_up && !is_short {
                return Ok(None);
            }
            if from > protection.from {
                let oldest = known.times.of(from, now).map(|time| now.saturating_sub(time));
                self.cleaner.warn_of_short_history(oldest, now);
            }
            protection.from = from;
            for candidate in &mut candidates {
                candidate.live = known.table.live(candidate.segment, &protection);
            }
        }
        let block = self.store.block_size().bytes64();
        let per_segment = u64::from(self.store.geometry().blocks_per_segment);
        let in_memory = STEP_BYTES.min(self.writing.dirty_limit()) / block;
        let room = self.room_for_moving(work).min(in_memory.max(per_segment));
        let least = params.min_reclaimable.of(per_segment, block).max(1);
        candidates.retain(|candidate| match params.evacuate {
            Some(segments) => segments.has(candidate.segment),
            None => candidate.gain(per_segment) >= least,
        });
        if candidates.is_empty() {
            return Ok(None);
        }
        policy::rank(params.policy, &mut candidates, per_segment);
        let count = candidates.len() as u64;
        let mut victims = within_room(candidates, params.victims, room);
        if params.evacuate.is_none() {
            let dat =
                session.base().super_root.dat.i_blocks.get() / self.store.block_size().sectors();
            victims.truncate(policy::cheapest(&victims, per_segment, dat));
        }
        Ok(Some(Selection {
            candidates: count,
            victims,
            protection,
            dat: Arc::clone(&session.base().dat),
            needed_from: session.oldest_named(),
            with_unproved: matches!(params.evacuate, Some(Evacuated::Checked(_))),
        }))
    }

    /// Reads the summaries of the victims.
    fn read_victims(&self, work: &mut StepState, selection: &Selection) -> Result<VictimBlocks> {
        let segment_reader = SegmentReader {
            store: self.store,
            dat: &selection.dat,
            protection: &selection.protection,
            needed_from: selection.needed_from,
            with_unproved: selection.with_unproved,
        };
        let mut found = VictimBlocks::default();
        let mut lost = Vec::new();
        for victim in &selection.victims {
            let content = segment_reader.read_to_move(victim.segment, victim.filled)?;
            let content = content.and_then(|content| complete(content, victim));
            match content {
                Ok(content) => {
                    let age = Age { modified: victim.modified, blocks: victim.age };
                    found.ages.of_victims.insert(victim.segment, age);
                    found.live.extend(content.live);
                    found.changes.released.extend(content.dead);
                    found.changes.dat_keys.extend(content.dat_keys);
                    found.changes.cleaned.push(victim.segment);
                    lost.extend(content.lost);
                }
                Err(Refusal::Needed) => found.needed = true,
                Err(Refusal::Unreadable(error)) => {
                    tracing::error!("segment {} is given up: {error}", victim.segment);
                    work.skipped.insert(victim.segment, error.to_string());
                    found.changes.bad.push(victim.segment);
                }
                Err(Refusal::Damaged(what)) => {
                    // A victim may be read twice.
                    let known = work.skipped.insert(victim.segment, what.clone());
                    if known.is_none() {
                        tracing::error!(
                            "segment {} is not cleaned, because its logs are damaged: {what}",
                            victim.segment
                        );
                        self.cleaner.count(|totals| totals.segments_skipped += 1);
                    }
                }
            }
        }
        found.changes.delete = merged(lost);
        found.changes.released.sort_unstable();
        found.changes.released.dedup();
        found.live.sort_unstable_by_key(LiveBlock::order);
        Ok(found)
    }

    /// Lets both superblocks name the newest checkpoint, so that recovery needs no older segment.
    /// Returns the number of the oldest that it needs.
    fn free_superblocks(&self) -> Result<Seq> {
        let mut session = self.writing.session()?;
        session.flush()?;
        session.write_superblocks()?;
        Ok(session.oldest_named())
    }

    /// Blocks that can be moved: into the open segment and into clean ones.
    fn room_for_moving(&self, work: &StepState) -> u64 {
        let geometry = self.store.geometry();
        let per_segment = u64::from(geometry.blocks_per_segment);
        let open = work.open.map_or(0, |open| open.room(&geometry));
        let clean = self.writing.space.room_for_moving() / per_segment * per_segment;
        // Summaries take their part: one block of 1 KiB for 23 files, one at least.
        let all = open + clean;
        all.saturating_sub(all.div_ceil(23) + 1)
    }

    /// Blocks of clean segments, of the current one, and of the cleaner's own.
    fn writable_blocks(&self, work: &StepState) -> u64 {
        let open = work.open.map_or(0, |open| open.room(&self.store.geometry()));
        self.writing.space.free_blocks() + open
    }

    /// Commits what was prepared, and takes the victims out of use. Returns the number of these; `None`
    /// if nothing was done, or not all, because there was no room, or another process is reading.
    ///
    /// While programs wait for their fsyncs, this is done in parts, so that none of them keeps the
    /// log for long.
    pub(super) fn finish_step(
        &self,
        work: &mut StepState,
        mut changes: MetadataChanges,
        moves: Moves,
    ) -> Result<Option<u64>> {
        let freed = changes.cleaned.len() as u64;
        let moved = changes.moved.len() as u64;
        let mut deleted = 0;
        let syncs = self.writing.syncs();
        let in_parts = mem::replace(&mut work.syncs, syncs) != syncs;
        loop {
            let part = if in_parts { changes.split_part(PART_BLOCKS) } else { None };
            let started = Instant::now();
            let mut session = match in_parts {
                true => self.writing.write_ahead_of_metadata()?,
                false => self.writing.write_ahead()?,
            };
            let now = part.as_ref().unwrap_or(&changes);
            // No segment becomes clean while another process reads: it may need what is there, and
            // the next writer would not know. A reader that comes after this commit sees the new
            // places.
            let _readers_wait = match now.cleaned.is_empty() {
                true => None,
                false => match self.store.keep_readers_out() {
                    None => {
                        session.unclaim(&moves.claimed);
                        return Ok(None);
                    }
                    guard => guard,
                },
            };
            let outcome = match in_parts {
                true => session.commit_metadata(now)?,
                // Nobody waits. Whatever programs have changed ends the life of blocks all over the
                // DAT, as moving them does: one checkpoint writes these blocks of the DAT once.
                false => session.commit(now)?,
            };
            if let Some(error) = outcome.refused {
                session.unclaim(&moves.claimed);
                return if matches!(error, Error::NoSpace) { Ok(None) } else { Err(error) };
            }
            deleted += outcome.deleted_checkpoints;
            work.open = moves.open;
            if part.is_some() {
                session.end_fairly();
                sleep(started.elapsed());
                continue;
            }
            if let Some(known) = self.cleaner.live_blocks().ready() {
                let clock = known.table.clock();
                for &(segment, age) in &moves.ages {
                    known.table.set_modified(segment, clock.saturating_sub(age));
                }
            }
            break;
        }
        self.make_cleaned_durable()?;
        self.cleaner.count(|totals| {
            totals.steps += 1;
            totals.segments_freed += freed;
            totals.blocks_moved += moved;
            totals.blocks_written += moves.written;
            totals.checkpoints_deleted += deleted;
        });
        Ok(Some(freed))
    }

    /// Flushes, so that what was cleaned can be written again, without keeping the log from others.
    fn make_cleaned_durable(&self) -> Result<()> {
        let frees = self.writing.look().frees();
        let flushed = self.flush_moved();
        let mut session = self.writing.session()?;
        session.noting(flushed)?;
        session.frees_are_durable(frees);
        Ok(())
    }
}

/// As many of the best victims as there is room for their live blocks.
fn within_room(candidates: Vec<Candidate>, victims: usize, mut room: u64) -> Vec<Candidate> {
    let fits = |candidate: &Candidate| match room.checked_sub(candidate.live) {
        Some(left) => {
            room = left;
            true
        }
        None => false,
    };
    candidates.into_iter().filter(fits).take(victims).collect()
}

/// Fails unless every block that the table counts was found.
fn complete(content: Content, victim: &Candidate) -> Result<Content, Refusal> {
    let found = content.count_live();
    match found == victim.live {
        true => Ok(content),
        false => Err(Refusal::Damaged(format!(
            "{} live blocks lie in it, but its summaries name {found}",
            victim.live
        ))),
    }
}

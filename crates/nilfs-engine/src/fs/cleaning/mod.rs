//! Cleaning segments: live blocks are moved out of victims, then a commit names their new places
//! and gives the victims back.
//!
//! Moved blocks do not go into the chain of logs. They fill segments of their own beside it, which
//! no recovery looks at: so what is cold stays apart from what is fresh, the log is locked only
//! for the small commit at the end, and whatever is interrupted leaves clean segments behind.
//!
//! # What may be written before what
//!
//! 1. The moved blocks, then a flush: no checkpoint may name blocks that are not durable.
//! 2. The commit that names them, then a flush: until then a recovery would look for them in the
//!    victims.
//! 3. The victims can be written again when nobody holds a view from before the commit.

pub(crate) mod defrag;
mod knowledge;
mod moving;
mod pace;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use nilfs_ondisk::segment_usage::RawSegmentUsage;
use nilfs_ondisk::{SegNum, Seq};

pub(super) use self::knowledge::{Knowledge, Known};
use self::moving::OpenSegment;
pub(super) use self::pace::Cleaner;
use super::Filesystem;
use crate::cleaner::liveness::Protection;
use crate::cleaner::options::{Amount, Policy};
use crate::cleaner::policy::{self, Candidate};
use crate::cleaner::relocate::{Content, Judge, LiveBlock, Refusal, merged};
use crate::commit::{MetadataChanges, root_of};
use crate::dat::Dat;
use crate::error::{Error, Result};
use crate::host::atomic::Ordering;
use crate::host::{Instant, MutexGuard, sleep};
use crate::log::segment_writer::SegmentWriter;
use crate::segments;

/// Numbers of moved and dead blocks that one commit takes up while programs wait for theirs.
const PART_BLOCKS: usize = 1024;

/// Content that a step holds in memory at most, in bytes. Less if programs may have less; but a
/// segment must fit.
const STEP_BYTES: u64 = 64 << 20;

/// What one step leaves to the next.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// Where moved blocks go.
    open: Option<OpenSegment>,
    /// Segments that are damaged and not looked at again.
    skipped: BTreeSet<SegNum>,
    /// How often programs had asked for durability when it ended.
    syncs: u64,
}

/// What a step of the cleaner is to do.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    /// Victims at most, and which of them first.
    pub(super) victims: usize,
    pub(super) policy: Policy,
    /// A victim must have so many reclaimable blocks.
    pub(super) min_reclaimable: Amount,
    /// Checkpoints that are younger are kept; `None`: all checkpoints.
    pub(super) protection: Option<Duration>,
    /// Only segments from here on, whatever there is to be gained: they have to go.
    pub(super) evacuate: Option<SegNum>,
    /// What a writer lacks.
    pub(super) shortage: Option<Shortage>,
}

/// What a writer lacks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shortage {
    /// Blocks.
    pub(super) missing: u64,
    /// Whether protected checkpoints are given up for that, the oldest first. If not, and that is what
    /// it would take, nothing is done.
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
    log: MutexGuard<'a, SegmentWriter>,
    protection: Protection,
    candidates: Vec<Candidate>,
}

/// What a step works on, chosen while the log was locked.
struct Choice {
    victims: Vec<Candidate>,
    candidates: u64,
    protection: Protection,
    dat: Arc<Dat>,
    needed_from: Seq,
    snapshot_changes: u64,
}

/// When content was last modified.
#[derive(Debug, Clone, Copy, Default)]
struct Age {
    /// The time (s).
    modified: u64,
    /// Blocks written since.
    blocks: u64,
}

/// How old the content of segments is.
#[derive(Debug, Default)]
struct Ages {
    of_victims: HashMap<SegNum, Age>,
    of_others: Age,
}

impl Ages {
    fn of(&self, segment: SegNum) -> Age {
        self.of_victims.get(&segment).copied().unwrap_or(self.of_others)
    }
}

/// What was found in the victims.
#[derive(Default)]
struct Harvest {
    changes: MetadataChanges,
    live: Vec<LiveBlock>,
    ages: Ages,
    /// A superblock stands in the way.
    needed: bool,
}

impl Filesystem {
    /// Cleans a few segments, if it is worth it.
    ///
    /// # Errors
    /// Damage of the volume, a device error.
    pub(super) fn clean_step(&self, wish: &Wish) -> Result<Step> {
        let mut work = self.cleaner.work();
        // Nothing can be given back while they read: moving would only take room.
        if !self.other_readers_leave() {
            return Ok(Step::default());
        }
        self.gather_knowledge()?;
        let Some(mut choice) = self.choose(&work, wish)? else { return Ok(Step::default()) };
        let mut harvest = self.harvest(&mut work, &choice)?;
        if harvest.needed {
            choice.needed_from = self.free_superblocks()?;
            harvest = self.harvest(&mut work, &choice)?;
        }
        let before = self.writable_blocks(&work);
        let blocks = self.read_live(&mut harvest)?;
        let moves = self.move_blocks(&mut work, &mut harvest, &blocks)?;
        if harvest.changes.is_empty() {
            return Ok(Step { candidates: choice.candidates, ..Step::default() });
        }
        let moved = blocks.len() as u64;
        let valid = Some(choice.snapshot_changes);
        let freed = self.finish_step(&mut work, valid, harvest.changes, moves)?;
        self.wait_for_readers();
        let gained = self.writable_blocks(&work).saturating_sub(before);
        Ok(Step { freed, gained, moved, candidates: choice.candidates })
    }

    /// Gathers what the cleaner must know, if that has not been done.
    pub(super) fn gather_knowledge(&self) -> Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        let _alone = self.cleaner.gathering();
        let (base, _view) = {
            let log = log.lock();
            let mut known = self.cleaner.known();
            if known.ready().is_some() {
                return Ok(());
            }
            *known = Knowledge::Gathering(Vec::new());
            // What is being read must not be written again meanwhile.
            (log.base().clone(), log.view())
        };
        let gathered = Known::gather(&self.store, &base.dat, &base.super_root);
        let log = log.lock();
        let Knowledge::Gathering(waiting) = std::mem::take(&mut *self.cleaner.known()) else {
            return Ok(());
        };
        let mut known = gathered?;
        waiting.iter().for_each(|news| known.follow(news));
        *self.cleaner.known() = Knowledge::Ready(Box::new(known));
        self.count_needed();
        self.refresh_space(&log);
        Ok(())
    }

    /// Counts what must be kept when there is no room.
    pub(super) fn count_needed(&self) {
        let mut state = self.cleaner.known();
        let Some(known) = state.ready() else { return };
        let options = self.cleaner.options();
        let period = if options.keeps_hard() { options.protection } else { Duration::ZERO };
        let mut protection = known.protection(period, self.now().seconds as u64);
        protection.kept.extend(self.trees.kept());
        known.table.count(protection);
    }

    /// Lets the cleaner find out what could be reclaimed, unless that is known or being found out.
    pub(super) fn look_for_reclaimable(&self) {
        if self.log.is_some() && !self.space.knows_unused() && self.cleaner.options().enabled {
            self.cleaner.look();
        }
    }

    /// Looks at all segments that could be cleaned if checkpoints younger than `period` are kept;
    /// `None`: all checkpoints.
    fn survey(&self, work: &Work, period: Option<Duration>) -> Result<Option<Survey<'_>>> {
        let Some(log) = &self.log else { return Ok(None) };
        let log = self.lock_writable(log)?;
        let now = self.now().seconds as u64;
        let usages = self.usages(&log)?;
        let active = [log.base().position.segment, log.base().position.next];
        let mut state = self.cleaner.known();
        let Some(known) = state.ready() else { return Ok(None) };
        let mut protection = match period {
            Some(period) => known.protection(period, now),
            None => Protection::of_everything(),
        };
        protection.kept.extend(self.trees.kept());
        if !known.covers(&protection) {
            state.forget_all();
            drop(state);
            drop(log);
            self.gather_knowledge()?;
            return self.survey(work, period);
        }
        if period.is_some() {
            known.forget(&protection);
        }
        let candidates: Vec<Candidate> = usages
            .into_iter()
            .filter(|(segment, usage)| {
                let open = work.open.map(|open| open.segment);
                let busy = active.contains(segment) || open == Some(*segment);
                usage.is_dirty() && !usage.is_bad() && !busy && !work.skipped.contains(segment)
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
        Ok(Some(Survey { log, protection, candidates }))
    }

    /// Counts what could be reclaimed.
    pub(super) fn count_reclaimable(&self) -> Result<()> {
        self.gather_knowledge()?;
        let log = self.administer()?;
        // Time passes, too.
        self.count_needed();
        self.refresh_space(&log);
        Ok(())
    }

    fn choose(&self, work: &Work, wish: &Wish) -> Result<Option<Choice>> {
        let Some(survey) = self.survey(work, wish.protection)? else { return Ok(None) };
        let Survey { log, mut protection, mut candidates } = survey;
        if let Some(shortage) = wish.shortage
            && !self.cleaner.options().hard_protection
            && let Some(known) = self.cleaner.known().ready()
        {
            let from = known.table.give_up(&protection, &candidates, shortage.missing);
            if from > protection.from && !shortage.give_up {
                return Ok(None);
            }
            protection.from = from;
            for candidate in &mut candidates {
                candidate.live = known.table.live(candidate.segment, &protection);
            }
        }
        let block = self.store.block_size().bytes64();
        let per_segment = u64::from(self.store.geometry().blocks_per_segment);
        let in_memory = STEP_BYTES.min(self.options.dirty_limit) / block;
        let room = self.room_for_moving(work).min(in_memory.max(per_segment));
        let least = wish.min_reclaimable.of(per_segment, block).max(1);
        candidates.retain(|candidate| match wish.evacuate {
            Some(first) => candidate.segment >= first,
            None => candidate.gain(per_segment) >= least,
        });
        if candidates.is_empty() {
            return Ok(None);
        }
        policy::rank(wish.policy, &mut candidates, per_segment);
        let count = candidates.len() as u64;
        let mut victims = within_room(candidates, wish.victims, room);
        if wish.evacuate.is_none() {
            let dat = log.base().super_root.dat.i_blocks.get() / self.store.block_size().sectors();
            victims.truncate(policy::cheapest(&victims, per_segment, dat));
        }
        Ok(Some(Choice {
            candidates: count,
            victims,
            protection,
            dat: Arc::clone(&log.base().dat),
            needed_from: log.oldest_named(),
            snapshot_changes: self.cleaner.snapshot_changes(),
        }))
    }

    /// The usages of all segments, as the newest checkpoint has them.
    pub(super) fn usages(&self, log: &SegmentWriter) -> Result<Vec<(SegNum, RawSegmentUsage)>> {
        let sufile = root_of(&log.base().super_root.sufile)?;
        segments::usages(log.source(), &sufile, SegNum(0)).collect()
    }

    /// Reads the summaries of the victims.
    fn harvest(&self, work: &mut Work, choice: &Choice) -> Result<Harvest> {
        let judge = Judge {
            store: &self.store,
            dat: &choice.dat,
            protection: &choice.protection,
            needed_from: choice.needed_from,
        };
        let mut harvest = Harvest::default();
        let mut lost = Vec::new();
        for victim in &choice.victims {
            let content = judge.read(victim.segment, victim.filled)?;
            let content = content.and_then(|content| complete(content, victim));
            match content {
                Ok(content) => {
                    let age = Age { modified: victim.modified, blocks: victim.age };
                    harvest.ages.of_victims.insert(victim.segment, age);
                    harvest.live.extend(content.live);
                    harvest.changes.released.extend(content.dead);
                    harvest.changes.dat_keys.extend(content.dat_keys);
                    harvest.changes.cleaned.push(victim.segment);
                    lost.extend(content.lost);
                }
                Err(Refusal::Needed) => harvest.needed = true,
                Err(Refusal::Unreadable(error)) => {
                    tracing::error!("segment {} is given up: {error}", victim.segment);
                    harvest.changes.bad.push(victim.segment);
                }
                // A victim may be read twice.
                Err(Refusal::Damaged(what)) if work.skipped.insert(victim.segment) => {
                    tracing::error!(
                        "segment {} is not cleaned, because its logs are damaged: {what}",
                        victim.segment
                    );
                    self.cleaner.count(|totals| totals.segments_skipped += 1);
                }
                Err(Refusal::Damaged(_)) => {}
            }
        }
        harvest.changes.delete = merged(lost);
        harvest.changes.released.sort_unstable();
        harvest.changes.released.dedup();
        harvest.live.sort_unstable_by_key(LiveBlock::order);
        Ok(harvest)
    }

    /// Lets both superblocks name the newest checkpoint, so that recovery needs no older segment.
    /// Gives the number of the oldest that it needs.
    fn free_superblocks(&self) -> Result<Seq> {
        let Some(log) = &self.log else { return Ok(Seq(0)) };
        let mut log = self.lock_writable(log)?;
        self.flush_locked(&mut log)?;
        self.write_superblocks(&mut log)?;
        Ok(log.oldest_named())
    }

    /// Lets the cleaner take a new segment, if its own, or the one that its logs name as the next, is
    /// `end` or behind.
    pub(super) fn close_open_segment(&self, end: SegNum) {
        let mut work = self.cleaner.work();
        work.open = work.open.filter(|open| open.segment < end && open.names() < end);
    }

    /// Blocks that can be moved: into the open segment and into clean ones.
    fn room_for_moving(&self, work: &Work) -> u64 {
        let geometry = self.store.geometry();
        let per_segment = u64::from(geometry.blocks_per_segment);
        let open = work.open.map_or(0, |open| open.room(&geometry));
        let clean = self.space.room_for_moving() / per_segment * per_segment;
        // Summaries take their part: one block of 1 KiB for 25 files, one at least.
        let all = open + clean;
        all.saturating_sub(all.div_ceil(25) + 1)
    }

    /// Blocks of clean segments, of the current one, and of the cleaner's own.
    fn writable_blocks(&self, work: &Work) -> u64 {
        let open = work.open.map_or(0, |open| open.room(&self.store.geometry()));
        self.space.free_blocks() + open
    }

    /// Commits what was prepared, and takes the victims out of use. Gives the number of these; none
    /// if there was no room, or the snapshots have changed since they were counted: one may have
    /// been made of a checkpoint that was about to be given up.
    ///
    /// While programs wait for their fsyncs, this is done in parts, so that none of them keeps the
    /// log for long.
    fn finish_step(
        &self,
        work: &mut Work,
        snapshot_changes: Option<u64>,
        mut changes: MetadataChanges,
        moves: moving::Moves,
    ) -> Result<u64> {
        let Some(log) = &self.log else { return Ok(0) };
        let freed = changes.cleaned.len() as u64;
        let moved = changes.moved.len() as u64;
        let mut deleted = 0;
        let syncs = self.syncs.load(Ordering::Relaxed);
        let in_parts = std::mem::replace(&mut work.syncs, syncs) != syncs;
        loop {
            let part = if in_parts { changes.split_part(PART_BLOCKS) } else { None };
            let started = Instant::now();
            let mut log = self.lock_writable(log)?;
            if snapshot_changes.is_some_and(|count| self.cleaner.snapshot_changes() != count) {
                self.unclaim(&mut log, &moves);
                return Ok(0);
            }
            let now = part.as_ref().unwrap_or(&changes);
            // No segment becomes clean while another process reads: it may need what is there, and
            // the next writer would not know. Who comes after this commit sees the new places.
            let _readers_wait = match now.cleaned.is_empty() {
                true => None,
                false => match self.store.keep_readers_out() {
                    None => {
                        self.unclaim(&mut log, &moves);
                        return Ok(0);
                    }
                    guard => guard,
                },
            };
            let outcome = match in_parts {
                true => self.commit_metadata(&mut log, now)?,
                // Nobody waits. Whatever programs have changed ends the life of blocks all over the
                // DAT, as moving them does: one checkpoint writes these blocks of the DAT once.
                false => self.commit_locked(&mut log, now)?,
            };
            if let Some(error) = outcome.refused {
                self.unclaim(&mut log, &moves);
                return if matches!(error, Error::NoSpace) { Ok(0) } else { Err(error) };
            }
            deleted += outcome.deleted_checkpoints;
            work.open = moves.open;
            if part.is_some() {
                MutexGuard::unlock_fair(log);
                sleep(started.elapsed());
                continue;
            }
            if let Some(known) = self.cleaner.known().ready() {
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
        Ok(freed)
    }

    /// Flushes, so that what was cleaned can be written again, without keeping the log from others.
    fn make_cleaned_durable(&self) -> Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        let frees = log.lock().frees();
        let flushed = self.flush_moved();
        let mut log = self.lock_writable(log)?;
        self.or_stop(&mut log, flushed)?;
        log.frees_are_durable(frees);
        self.release_freed(&mut log);
        Ok(())
    }

    /// Gives back segments that were taken and are not in use yet.
    fn unclaim(&self, log: &mut SegmentWriter, moves: &moving::Moves) {
        log.unclaim(&moves.claimed);
        self.refresh_space(log);
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
    let found = content.live.len() as u64 + content.dat_live;
    match found == victim.live {
        true => Ok(content),
        false => Err(Refusal::Damaged(format!(
            "{} live blocks lie in it, but its summaries name {found}",
            victim.live
        ))),
    }
}

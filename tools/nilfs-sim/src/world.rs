//! A world: one life of a file system, lived by the model and the engine alike and compared at
//! every step, with a record of everything that reached the device.

use std::fmt;
use std::sync::Arc;

use nilfs_device::{Action, Device, Fault, MemoryDevice, Request};
use nilfs_engine::{Cno, SetAttr, Timestamp, Usage};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::clock::{EPOCH, ThreadClock};
use crate::generate::{Generator, LARGEST, Profile};
use crate::history::{History, Promise, Root, Step};
use crate::medium::{Medium, content, medium};
use crate::model::Model;
use crate::op::Op;
use crate::outcome::{Outcome, Refusal, difference};
use crate::past::{Past, Thoroughness};
use crate::subject::{Mounting, ReadOnlySubject, Subject, list};
use crate::volume::{Shape, check, judge};

/// After this many operations the whole trees are compared.
const LOOK_EVERY: usize = 50;

/// What errors of a device say that fails as it was told.
const INJECTED: &str = "(injected)";

/// Of this many reads one fails while reads fail.
const FAILING: u32 = 60;

/// Memory that a commit takes for a block that it frees.
const BYTES_OF_A_FREED_BLOCK: u64 = 512;

/// What a volume may keep back even from operations that free space: whole segments…
const LAST_SEGMENTS: u64 = 3;
/// …and blocks.
const LAST_BLOCKS: u64 = 300;

/// The share of the segments that writers are given when there is no room, and the least number.
const CLEAN_AHEAD_SHARE: u64 = 24;
const LEAST_CLEAN_AHEAD: u64 = 2;

/// What a device makes of the requests of a file system that is exposed to it.
pub type Exposure = Box<dyn FnMut(&Request) -> Option<Fault> + Send>;

/// The laws of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// The volume.
    pub shape: Shape,
    /// How it is mounted.
    pub mounting: Mounting,
    /// Whether the volume may be full. If not, "no space" is a fault.
    pub may_fill: bool,
}

/// A volume with its model.
pub struct World {
    settings: Settings,
    device: Arc<Medium>,
    subject: Option<Subject>,
    model: Model,
    past: Past,
    /// The number of the first step, by which it gets its time.
    first: u64,
    history: History,
    ops: Vec<Op>,
    refused_for_space: usize,
    given_up: usize,
    ordeal: Option<Ordeal>,
    /// Something could not be read since the mount, so a segment may be refused.
    has_failed: bool,
}

/// A device that fails the file system, but not the one who looks at it.
struct Ordeal {
    rule: Arc<Mutex<Exposure>>,
    /// The same life without faults.
    healthy: Arc<History>,
    /// What failed first.
    failed: Option<String>,
}

/// What went wrong, and what led to it.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The operations, the last of them the one that failed if `what` says no other.
    pub ops: Vec<Op>,
    /// What was wrong.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} operations:", self.ops.len())?;
        for (nth, op) in self.ops.iter().enumerate() {
            writeln!(f, "{:5} {op}", nth + 1)?;
        }
        write!(f, "{}", self.what)
    }
}

impl World {
    /// A new volume, mounted.
    ///
    /// # Errors
    /// It cannot be mounted, or is not empty.
    pub fn new(settings: Settings) -> Result<Self, String> {
        let content = settings.shape.format();
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::from(content.clone()));
        let root = ReadOnlySubject::mount(device, None)?.root()?;
        let model = Model::new(settings.shape.block_size, &root);
        let past = Past::of(content.clone(), &model, EPOCH.seconds as u64)?;
        Self::on(settings, content, (model, past))
    }

    /// A volume with content and a past, mounted; it must show the state.
    ///
    /// # Errors
    /// It cannot be mounted, or shows something else.
    pub fn on(settings: Settings, content: Vec<u8>, state: (Model, Past)) -> Result<Self, String> {
        let mut world = Self::unmounted(settings, content, state);
        world.begin()?;
        Ok(world)
    }

    /// As [`World::on`], with a device that fails. If it fails the mount, the world is not mounted.
    ///
    /// # Errors
    /// It shows something else, or what failed is not what the device has failed.
    pub fn exposed(
        settings: Settings,
        content: Vec<u8>,
        state: (Model, Past),
        rule: Exposure,
        healthy: Arc<History>,
    ) -> Result<Self, String> {
        let mut world = Self::unmounted(settings, content, state);
        world.record(0, Promise::Everything, None);
        let rule = Arc::new(Mutex::new(rule));
        world.ordeal = Some(Ordeal { rule, healthy, failed: None });
        if let Err(what) = world.begin() {
            if world.subject.is_some() || !what.contains(INJECTED) {
                return Err(what);
            }
            world.unfinished(0, what)?;
        }
        Ok(world)
    }

    fn unmounted(settings: Settings, content: Vec<u8>, (model, past): (Model, Past)) -> Self {
        Self {
            settings,
            device: Arc::new(medium(content.clone())),
            subject: None,
            model,
            // Time goes on.
            first: past.next_step(),
            past,
            history: History { start: content, ..History::default() },
            ops: Vec::new(),
            refused_for_space: 0,
            given_up: 0,
            ordeal: None,
            has_failed: false,
        }
    }

    fn begin(&mut self) -> Result<(), String> {
        let now = ThreadClock::at_step(self.first);
        ThreadClock::set(now);
        let subject = self.suffer(|world| mount(&world.device, world.settings))?;
        self.past.recovered(&subject.checkpoints()?, &self.model, now.seconds as u64)?;
        self.subject = Some(subject);
        self.record(0, Promise::Everything, None);
        self.look()
    }

    /// Lives through `ops`.
    ///
    /// # Errors
    /// What differed first.
    pub fn replay(settings: Settings, ops: &[Op]) -> Result<Self, String> {
        let mut world = Self::new(settings)?;
        for op in ops {
            world.step(op)?;
        }
        Ok(world)
    }

    /// Lives through `count` random operations.
    ///
    /// # Errors
    /// What differed first, with all operations so far.
    pub fn live(&mut self, seed: u64, profile: Profile, count: usize) -> Result<(), Failure> {
        let mut generator = Generator::new(seed, profile);
        for _ in 0..count {
            let op = self.in_one_commit(generator.next_op(&self.model));
            self.step(&op).map_err(|what| Failure { ops: self.ops.clone(), what })?;
        }
        Ok(())
    }

    /// A truncation that takes more from a file than one commit may free, with little memory, leaves
    /// checkpoints with lengths in between, of which the model knows nothing: it takes less instead.
    fn in_one_commit(&self, mut op: Op) -> Op {
        if let Op::SetAttr { target, changes: SetAttr { size: Some(size), .. } } = &mut op {
            let node = self.model.find(target).ok().and_then(|id| self.model.node(id));
            let blocks = self.settings.mounting.dirty_limit / BYTES_OF_A_FREED_BLOCK;
            let most = blocks * self.settings.shape.block_size;
            *size = (*size).max(node.map_or(0, |node| node.facts().size).saturating_sub(most));
        }
        op
    }

    /// Does one operation on both sides and compares.
    ///
    /// # Errors
    /// What differed.
    pub fn step(&mut self, op: &Op) -> Result<(), String> {
        if self.is_stopped()? {
            return self.knock(op);
        }
        self.ops.push(op.clone());
        let nth = self.history.steps.len();
        let now = ThreadClock::at_step(self.first + nth as u64);
        ThreadClock::set(now);
        self.past.live(now.seconds as u64);
        let began = self.history.events.len();
        let before = self.model.clone();
        let had_room = self.subject()?.has_ample_room();
        let segments = self.subject()?.segments();
        let crowded = !had_room && !self.settings.mounting.hard_protection;
        let crowded = crowded.then(|| content(&self.device));
        let about = match op {
            Op::SetSnapshot { .. } | Op::FollowRule | Op::DeleteCheckpoints { .. } => {
                op.checkpoints(&self.subject()?.checkpoints()?)
            }
            _ => None,
        };
        let then = match op {
            Op::RollBack { nth } => self.known_checkpoint(*nth)?,
            _ => None,
        };
        let mut kept = None;
        let found = match op {
            Op::RollBack { .. } => match &then {
                Some((cno, _)) => {
                    let (found, before) =
                        self.suffer(|world| Ok(world.subject()?.roll_back(*cno)))?;
                    kept = before;
                    found
                }
                None => Outcome::Done,
            },
            Op::Remount => self.remount()?,
            Op::Resize { percent } => {
                let bytes = self.settings.shape.device_size() / 100 * u64::from(*percent);
                self.suffer(|world| Ok(world.subject()?.resize(bytes)))?
            }
            Op::Clean { faults: Some(seed), .. } => self.clean_a_failing_device(op, *seed)?,
            _ => self.suffer(|world| Ok(world.subject()?.apply(op)))?,
        };
        let failed = matches!(found, Outcome::Refused(Refusal::Device(_) | Refusal::ReadOnly));
        if failed && self.ordeal.is_some() {
            self.follow_checkpoints(op, &before, had_room, now.seconds as u64)?;
            let failed = self.failed(op, &found, began, now);
            return failed
                .map_err(|what| format!("step {nth}, {op}: answered {found}, but {what}"));
        }
        if self.is_refusal_of_full_volume(op, &found)? {
            self.refused_for_space += 1;
        } else {
            let expected = self.model.apply(op, now);
            if let Some((_, then)) = &then {
                self.model.roll_back(then, now);
                let found = self.subject()?.tree()?;
                self.model.take_changed(&found, now);
            }
            if let Some(what) = difference(&expected, &found) {
                return Err(format!("step {nth}, {op}: {what}"));
            }
        }
        if let Some(about) = about {
            self.past.apply(op, about, &found);
        }
        self.follow_checkpoints(op, &before, had_room, now.seconds as u64)?;
        if let Some(cno) = kept {
            self.past.kept(cno, &before);
        }
        if let Some(content) = crowded {
            let judged = self.judge_given_up(op, content, segments, now.seconds as u64);
            judged.map_err(|what| format!("step {nth}, {op}: {what}"))?;
        }
        self.refuses_no_segment(false).map_err(|what| format!("after step {nth}, {op}: {what}"))?;
        let order = self.settings.mounting.order;
        let did_nothing = matches!(op, Op::RollBack { .. }) && then.is_none();
        let promise = match did_nothing {
            true => Promise::Nothing,
            false => Promise::of(op, &found, &self.model, order, Root::Volume),
        };
        self.record(began, promise, Some(op.clone()));
        let look = match op {
            Op::Remount => self.look().and_then(|()| self.count_inodes()),
            Op::Commit | Op::Sync => check(&*self.device),
            Op::RollBack { .. } => self.look().and_then(|()| check(&*self.device)),
            Op::Clean { .. } | Op::Checkpoint | Op::Resize { .. } | Op::Trim => self
                .look_back(Thoroughness::Some { from: nth, step: 5 })
                .and_then(|()| self.compare_usage(now.seconds as u64)),
            _ if nth.is_multiple_of(LOOK_EVERY) => self.look(),
            _ => Ok(()),
        };
        look.map_err(|what| format!("after step {nth}, {op}: {what}"))
    }

    /// Whether the file system writes nothing more, because the device has failed it.
    fn is_stopped(&mut self) -> Result<bool, String> {
        let has_failed = self.ordeal.as_ref().is_some_and(|ordeal| ordeal.failed.is_some());
        Ok(has_failed && self.subject()?.is_read_only())
    }

    /// Tries an operation where nothing can be changed any more.
    fn knock(&mut self, op: &Op) -> Result<(), String> {
        let found = match op {
            Op::RollBack { .. } | Op::Remount | Op::Resize { .. } => return Ok(()),
            _ => self.suffer(|world| Ok(world.subject()?.apply(op)))?,
        };
        // There may be no checkpoint of the kind that the operation is about.
        let may_change_nothing = op.only_looks()
            || matches!(op, Op::Open { .. } | Op::Close(_) | Op::SetSnapshot { .. })
            || matches!(op, Op::FollowRule | Op::DeleteCheckpoints { .. })
            || matches!(op, Op::Write { length: 0, .. });
        match found {
            Outcome::Refused(Refusal::Broken(what)) => Err(format!("{op}: {what}")),
            Outcome::Refused(_) => Ok(()),
            _ if may_change_nothing => Ok(()),
            done => Err(format!("{op}: {done}, on a volume that has become read-only")),
        }
    }

    /// The device has failed an operation: it has not ended. If the volume is read-only then, because
    /// something was not written, it shows all of the operation or nothing; otherwise nothing. Only a
    /// write or a change of size may have been done in part, and doing it again makes it whole.
    fn failed(
        &mut self,
        op: &Op,
        found: &Outcome,
        began: usize,
        now: Timestamp,
    ) -> Result<(), String> {
        self.unfinished(began, format!("{op}: {found}"))?;
        let may_be_done_in_part = matches!(op, Op::Write { .. } | Op::SetAttr { .. });
        if self.subject()?.is_read_only() {
            let mut wanted = self.model.clone();
            wanted.apply(op, now);
            let without_faults = self.history.steps.last().map(|step| step.state.tree());
            let found = self.subject()?.tree()?;
            let is_done = [Some(wanted.tree()), without_faults]
                .into_iter()
                .flatten()
                .any(|tree| tree.difference(&found).is_none());
            return if is_done || may_be_done_in_part { Ok(()) } else { self.look() };
        }
        if may_be_done_in_part {
            let (began, before) = (self.history.events.len(), self.model.clone());
            let found = self.subject()?.apply(op);
            let expected = self.model.apply(op, now);
            if let Some(what) = difference(&expected, &found) {
                return Err(format!("done again: {what}"));
            }
            self.follow_checkpoints(op, &before, false, now.seconds as u64)?;
            self.record(began, Promise::Nothing, Some(op.clone()));
        }
        self.look()
    }

    /// Takes note of a step that has not ended, because the device has failed it. Of the first one,
    /// all that it would have led to may be found. Of those that fail later nothing may: they are
    /// refused, or do not get to writing.
    fn unfinished(&mut self, began: usize, what: String) -> Result<(), String> {
        let nth = self.history.steps.len();
        self.record(began, Promise::Nothing, None);
        let (Some(ordeal), Some(step)) = (&mut self.ordeal, self.history.steps.last_mut()) else {
            return Err(what);
        };
        step.began = usize::MAX;
        if let (None, Some(healthy)) = (&ordeal.failed, ordeal.healthy.steps.get(nth)) {
            *step = Step { began, ..healthy.clone() };
        }
        step.ended = usize::MAX;
        ordeal.failed.get_or_insert(what);
        Ok(())
    }

    /// Lets the device fail meanwhile, if it is one that does.
    fn suffer<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, String>,
    ) -> Result<T, String> {
        let Some(ordeal) = &self.ordeal else { return work(self) };
        let rule = Arc::clone(&ordeal.rule);
        self.device.faults().set(move |request| (rule.lock())(request));
        let done = work(self);
        self.device.faults().clear();
        done
    }

    /// Whether it is mounted: a device that fails may have prevented it.
    #[must_use]
    pub fn is_mounted(&self) -> bool {
        self.subject.is_some()
    }

    /// Unmounts, whatever the device does meanwhile. Returns what the device has failed first, and the
    /// whole history.
    ///
    /// # Errors
    /// Something failed that the device has not failed.
    pub fn leave(mut self) -> Result<(Option<String>, History), String> {
        if let Some(subject) = self.subject.take() {
            let began = self.history.events.len();
            let was_read_only = subject.is_read_only();
            let left = self.suffer(|_| subject.unmount());
            let device: Arc<dyn Device> = Arc::<Medium>::clone(&self.device);
            let newest = list(&device)?.last().map_or(Cno(0), |it| it.cno);
            self.past.add(newest, &[&self.model], self.past.last_time(), false);
            match left {
                Ok(()) if was_read_only => self.unfinished(began, "it was read-only".into())?,
                Ok(()) => self.record(began, Promise::Everything, None),
                Err(what) if was_read_only || what.contains(INJECTED) => {
                    self.unfinished(began, what)?;
                }
                Err(what) => return Err(what),
            }
        }
        Ok((self.ordeal.and_then(|ordeal| ordeal.failed), self.history))
    }

    /// Takes note of new checkpoints, and of those that the cleaner may have given up: protected ones
    /// only where there was no ample room before the operation, or is none after it.
    fn follow_checkpoints(
        &mut self,
        op: &Op,
        before: &Model,
        had_room: bool,
        now: u64,
    ) -> Result<(), String> {
        let newest = self.subject()?.newest();
        let has_room = had_room && self.subject()?.has_ample_room();
        let mounting = self.settings.mounting;
        let protection = if has_room || mounting.hard_protection { mounting.protection } else { 0 };
        let Self { past, model, .. } = self;
        let exact = matches!(
            op,
            Op::Commit | Op::Sync | Op::Checkpoint | Op::Remount | Op::RollBack { .. }
        );
        past.add(newest, &[before, model], now, exact);
        match op {
            Op::Clean { protection, .. } => past.cleaned(now, *protection),
            // A writer that finds no room cleans by itself.
            _ if !op.only_looks() => past.cleaned(now, protection),
            _ => {}
        }
        Ok(())
    }

    /// Whether the cleaner has given up no more of the protected past than it may (docs/cleaning.md):
    /// nothing with which, `before` the operation, a third of the volume of `segments` segments was
    /// unused besides what is kept back and what writers are given at a time.
    fn judge_given_up(
        &mut self,
        op: &Op,
        before: Vec<u8>,
        segments: u64,
        now: u64,
    ) -> Result<(), String> {
        let listed = self.subject()?.checkpoints()?;
        let protection = self.settings.mounting.protection;
        let given_up = self.past.take_given_up(&listed, now, protection);
        let Some(cno) = given_up.filter(|_| !matches!(op, Op::Clean { .. })) else { return Ok(()) };
        self.given_up += 1;
        let kept = judge(&MemoryDevice::from(before), cno)?;
        let Shape { blocks_per_segment, block_size, .. } = self.settings.shape;
        let segments = segments.min(self.subject()?.segments());
        let per_segment = u64::from(blocks_per_segment);
        let blocks = segments * per_segment;
        let unused = blocks - kept.live_blocks - kept.protected_blocks - kept.snapshot_blocks;
        let clean_ahead = (segments / CLEAN_AHEAD_SHARE).max(LEAST_CLEAN_AHEAD) * per_segment;
        let length = if let Op::Write { length, .. } = op { *length } else { 0 };
        let written = LAST_BLOCKS + 2 * length / block_size;
        let busy = LAST_SEGMENTS * per_segment;
        let reserved = self.subject()?.usage()?.0.reserved;
        let most = reserved + clean_ahead + written + busy + blocks / 3;
        match unused < most {
            true => Ok(()),
            false => Err(format!(
                "checkpoint {cno} was given up, although with it {unused} of {blocks} blocks were \
                 unused; {most} would have been enough"
            )),
        }
    }

    fn look_back(&mut self, thoroughness: Thoroughness) -> Result<(), String> {
        let device: Arc<dyn Device> = Arc::<Medium>::clone(&self.device);
        self.past.look(&device, thoroughness)
    }

    /// Whether the engine counts the blocks of the volume as the checker does.
    fn compare_usage(&mut self, now: u64) -> Result<(), String> {
        let period = self.settings.mounting.protection;
        let (first, last) = self.past.protected_from(now, period);
        let (usage, skipped) = self.subject()?.usage()?;
        let most = judge(&*self.device, first)?;
        let least = judge(&*self.device, last)?;
        if skipped > 0 {
            return Err(format!("{skipped} segments are taken for damaged"));
        }
        if usage.live != most.live_blocks
            || !(least.protected_blocks..=most.protected_blocks).contains(&usage.protected)
            || !(most.snapshot_blocks..=least.snapshot_blocks).contains(&usage.snapshots)
        {
            return Err(format!("usage: {usage:?}, expected between {least:?} and {most:?}"));
        }
        Ok(())
    }

    /// Whether the volume counts as many inodes as there are; it does so when nothing is dirty.
    fn count_inodes(&mut self) -> Result<(), String> {
        let expected = self.model.inodes();
        let used = self.subject()?.inodes()?;
        if used != expected {
            return Err(format!("{used} inodes are in use, expected {expected}"));
        }
        Ok(())
    }

    /// One of the checkpoints that are there and of which it is known what they show.
    fn known_checkpoint(&mut self, nth: u16) -> Result<Option<(Cno, Model)>, String> {
        let listed = self.subject()?.checkpoints()?;
        let is_listed = |cno: &Cno| listed.binary_search_by_key(cno, |it| it.cno).is_ok();
        let known: Vec<_> = self.past.known().filter(|(cno, _)| is_listed(cno)).collect();
        let chosen = usize::from(nth).checked_rem(known.len());
        let chosen = chosen.and_then(|nth| known.get(known.len() - 1 - nth));
        Ok(chosen.map(|(cno, state)| (*cno, Model::clone(state))))
    }

    /// Whether `found` is an honest "no space". What frees space must work for as long as there is
    /// more left than what the last commits need.
    fn is_refusal_of_full_volume(&mut self, op: &Op, found: &Outcome) -> Result<bool, String> {
        match found {
            // The cleaner may have to make room at the cost of the very checkpoint.
            Outcome::Refused(Refusal::NoCheckpoint) => return Ok(self.settings.may_fill),
            Outcome::Refused(Refusal::NoRoom) => return Ok(self.settings.may_fill),
            _ => {}
        }
        if *found != Outcome::Refused(Refusal::NoSpace) || !self.settings.may_fill {
            return Ok(false);
        }
        let per_segment = u64::from(self.settings.shape.blocks_per_segment);
        // A commit may have to write the whole DAT, with its 32 bytes for each block.
        let segments = self.settings.shape.segments * u64::from(LARGEST) / 100;
        let dat = 32 * segments * per_segment / self.settings.shape.block_size;
        let last_blocks = LAST_SEGMENTS * per_segment + dat + LAST_BLOCKS;
        let free = self.subject()?.free_blocks()?;
        if op.frees_space(&self.model) && free > last_blocks {
            return Err(format!("{op}: no space, with {free} blocks left"));
        }
        Ok(op.needs_space())
    }

    /// Lets the cleaner work by itself for a while, see [`Subject::rest`], and compares. Returns the
    /// number of segments that it has freed.
    ///
    /// # Errors
    /// What differed.
    #[cfg(feature = "shuttle")]
    pub fn rest(&mut self) -> Result<u64, String> {
        let now = self.past.last_time();
        let began = self.history.events.len();
        let freed = self.subject()?.rest();
        let newest = self.subject()?.newest();
        self.past.add(newest, &[&self.model], now, false);
        self.past.cleaned(now + 1, self.settings.mounting.protection);
        self.record(began, Promise::Nothing, None);
        self.look()?;
        self.look_back(Thoroughness::All)?;
        self.compare_usage(now)?;
        Ok(freed)
    }

    /// Compares the whole trees.
    ///
    /// # Errors
    /// What differed first.
    pub fn look(&mut self) -> Result<(), String> {
        let expected = self.model.tree();
        match expected.difference(&self.subject()?.tree()?) {
            Some(what) => Err(what),
            None => Ok(()),
        }
    }

    /// Unmounts, has the volume checked, mounts it read-only, compares a last time, also with the
    /// past, and returns the whole history.
    ///
    /// # Errors
    /// What was wrong.
    pub fn end(mut self) -> Result<History, String> {
        self.step(&Op::Remount)?;
        self.refuses_no_segment(true)?;
        self.unmount()?;
        let device = Arc::new(MemoryDevice::from(content(&self.device)));
        let below: Arc<dyn Device> = Arc::<MemoryDevice>::clone(&device);
        let shown = ReadOnlySubject::mount(below, None)?.tree()?;
        if let Some(what) = self.model.tree().difference(&shown) {
            return Err(format!("mounted read-only: {what}"));
        }
        let content = content(&self.device);
        if device.snapshot() != content {
            return Err("a read-only mount has written".into());
        }
        let device: Arc<dyn Device> = device;
        self.past.look(&device, Thoroughness::All)?;
        Ok(self.history)
    }

    /// What has happened so far.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// What the model holds now.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The operations so far.
    #[must_use]
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Its laws.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// Where the space is.
    ///
    /// # Errors
    /// The engine's, in words.
    pub fn usage(&mut self) -> Result<Usage, String> {
        Ok(self.subject()?.usage()?.0)
    }

    /// How many snapshots there are.
    #[must_use]
    pub fn snapshots(&self) -> usize {
        self.past.snapshots()
    }

    /// How many operations were refused because the volume was full.
    #[must_use]
    pub fn refused_for_space(&self) -> usize {
        self.refused_for_space
    }

    /// How often an operation has cost checkpoints that were protected.
    #[must_use]
    pub fn given_up(&self) -> usize {
        self.given_up
    }

    fn subject(&mut self) -> Result<&mut Subject, String> {
        self.subject.as_mut().ok_or_else(|| "the volume is not mounted".into())
    }

    /// A segment that is refused on a volume without damage is a false alarm.
    fn refuses_no_segment(&mut self, thorough: bool) -> Result<(), String> {
        if self.ordeal.is_some() || self.has_failed {
            return Ok(());
        }
        self.subject()?.refuses_no_segment(thorough)
    }

    fn remount(&mut self) -> Result<Outcome, String> {
        self.unmount()?;
        self.has_failed = false;
        self.subject = Some(mount(&self.device, self.settings)?);
        Ok(Outcome::Done)
    }

    fn unmount(&mut self) -> Result<(), String> {
        if let Some(subject) = self.subject.take() {
            subject.unmount()?;
        }
        check(&*self.device).map_err(|what| format!("after unmounting: {what}"))
    }

    /// Cleans while reads fail now and then. The engine may stop writing then, but nothing that was
    /// synced may be lost, however much is cleaned later.
    fn clean_a_failing_device(&mut self, op: &Op, seed: u64) -> Result<Outcome, String> {
        let synced = self.subject()?.apply(&Op::Sync);
        if synced != Outcome::Done {
            return Ok(synced);
        }
        self.has_failed = true;
        let mut chance = StdRng::seed_from_u64(seed);
        self.device.faults().set(move |request| {
            let fails = request.action == Action::Read && chance.random_range(0..FAILING) == 0;
            fails.then_some(Fault::Error)
        });
        let found = self.subject()?.apply(op);
        self.device.faults().clear();
        if self.subject()?.is_read_only() {
            // It cannot succeed, but must end.
            let _ = self.subject.take().map(Subject::unmount);
            self.subject = Some(mount(&self.device, self.settings)?);
            self.model.close_all();
            self.look()?;
        }
        match found {
            Outcome::Refused(Refusal::Device(_)) => Ok(Outcome::Done),
            other => Ok(other),
        }
    }

    fn record(&mut self, began: usize, promise: Promise, op: Option<Op>) {
        self.history.events.extend(self.device.below().take_events());
        self.history.steps.push(Step {
            began,
            ended: self.history.events.len(),
            promise,
            state: self.model.clone(),
            past: self.past.clone(),
            op,
        });
    }
}

fn mount(device: &Arc<Medium>, settings: Settings) -> Result<Subject, String> {
    let device: Arc<dyn Device> = Arc::<Medium>::clone(device);
    Subject::mount(device, settings.mounting)
}

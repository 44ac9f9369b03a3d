//! When the cleaner works: ahead of need while nobody writes, next to the writers when clean
//! segments become few, for a writer that finds no room, and when somebody asks for it.

use std::time::Duration;

use super::options::{
    Amount, CleanerOptions, CleanerOrder, CleanerState, ManualRun, Policy, RunProgress,
};
use super::step::{Attempt, Keep, ReclaimParams, Shortage, Step, StepState};
use super::{Cleaner, Cleaning};
use crate::error::{Error, Result};
use crate::host::atomic::Ordering;
use crate::host::{Instant, sleep};
use crate::writer::space::{Cost, Effect};

/// Without changes for so long, a volume is idle.
const IDLE: Duration = Duration::from_secs(1);
/// What a victim must give back so that it is cleaned for a writer that finds no room, if any has
/// that much.
const LITTLE_GAIN: Amount = Amount::Percent(2);
/// Blocks that are moved at most for each one that a growing file gets; if it takes more, the
/// volume is full.
const MOST_MOVED: u64 = 16;
/// How often it is checked, a millisecond apart, whether the readers have gone.
const MOST_READER_CHECKS: u32 = 1000;
/// How long a cleaner with nothing to wait for sleeps.
const LONG: Duration = Duration::from_secs(3600);

/// What the cleaner is to do and is doing.
#[derive(Debug, Default)]
pub(super) struct Control {
    options: CleanerOptions,
    suspended: bool,
    /// What somebody has asked for.
    manual: Option<ManualRun>,
    progress: RunProgress,
    /// The run that was asked for has not begun.
    begins: bool,
    working: bool,
    /// When the last step ended (s since 1970).
    last_step: Option<u64>,
    /// Somebody wants something.
    called: bool,
    /// Somebody wants to know what could be reclaimed.
    count_reclaimable: bool,
    stop: bool,
}

/// What the cleaner is doing and has done.
pub(crate) struct Activity {
    pub(crate) state: CleanerState,
    /// The run that somebody has asked for.
    pub(crate) run: RunProgress,
    /// When the last step ended (s since 1970).
    pub(crate) last_step: Option<u64>,
}

/// What the thread is to do next.
enum Task {
    Wait(Duration),
    CountReclaimable,
    Step { params: ReclaimParams<'static>, pause: Pause, manual: bool },
    Stop,
}

/// How long the cleaner sleeps after a step.
#[derive(Clone, Copy)]
struct Pause {
    least: Duration,
    /// As a part of the time that the step took.
    share: f64,
}

impl ReclaimParams<'static> {
    fn of(run: &ManualRun, options: &CleanerOptions) -> Self {
        let victims = run.speed.map_or(options.segments_per_step, |speed| speed.segments);
        Self {
            victims: victims as usize,
            // A run that was asked for is to give room now, however long that lasts.
            policy: Policy::Greedy,
            min_reclaimable: run.min_reclaimable.unwrap_or(options.min_reclaimable),
            keep: Keep::Younger(run.protection.unwrap_or(options.protection)),
            evacuate: None,
            shortage: None,
        }
    }
}

impl Control {
    pub(super) fn new(options: CleanerOptions) -> Self {
        Self { options, ..Self::default() }
    }
}

impl Cleaner {
    pub(crate) fn options(&self) -> CleanerOptions {
        self.control.lock().options
    }

    /// What it is doing and has done.
    pub(crate) fn activity(&self) -> Activity {
        let control = self.control.lock();
        let state = match &*control {
            Control { working: true, .. } | Control { manual: Some(_), .. } => {
                CleanerState::Running
            }
            Control { suspended: true, .. } => CleanerState::Suspended,
            Control { options: CleanerOptions { enabled: false, .. }, .. } => CleanerState::Off,
            _ if self.held_up.load(Ordering::Relaxed) => CleanerState::HeldUp,
            _ => CleanerState::Idle,
        };
        Activity { state, run: control.progress, last_step: control.last_step }
    }

    /// Whether a step is under way.
    pub(crate) fn is_working(&self) -> bool {
        self.control.lock().working
    }

    /// Takes an order.
    pub(crate) fn obey(&self, order: CleanerOrder) {
        let mut control = self.control.lock();
        match order {
            CleanerOrder::Run(run) => {
                control.manual = Some(run);
                control.begins = true;
                control.progress = RunProgress { running: true, ..RunProgress::default() };
            }
            CleanerOrder::Stop => {
                control.manual = None;
                control.progress.running = false;
            }
            CleanerOrder::Suspend => control.suspended = true,
            CleanerOrder::Resume => control.suspended = false,
            CleanerOrder::Configure(options) => control.options = options,
        }
        control.called = true;
        self.condition.notify_all();
    }

    /// Has it check again whether there is something to do.
    pub(crate) fn wake(&self) {
        self.control.lock().called = true;
        self.condition.notify_all();
    }

    /// Has it find out what could be reclaimed.
    pub(crate) fn ask_reclaimable(&self) {
        let mut control = self.control.lock();
        control.count_reclaimable = true;
        control.called = true;
        self.condition.notify_all();
    }

    pub(crate) fn stop(&self) {
        self.control.lock().stop = true;
        self.condition.notify_all();
    }

    /// Sleeps until something is asked of the cleaner, at most for `time`.
    fn wait(&self, time: Duration) {
        let mut control = self.control.lock();
        if !control.stop && !control.called {
            self.condition.wait_for(&mut control, time);
        }
        control.called = false;
    }
}

impl Cleaning<'_> {
    /// The life of the cleaner's thread.
    pub(crate) fn run(&self) {
        let mut activity = (self.writing.changes(), Instant::now());
        loop {
            let changes = self.writing.changes();
            if changes != activity.0 {
                activity = (changes, Instant::now());
            }
            let idle = activity.1.elapsed() >= IDLE;
            match self.next_task(idle) {
                Task::Stop => return,
                Task::Wait(time) => self.cleaner.wait(time),
                Task::CountReclaimable => {
                    if let Err(error) = self.count_reclaimable() {
                        tracing::error!("cannot find out what could be reclaimed: {error}");
                    }
                }
                Task::Step { params, pause, manual } => {
                    if manual {
                        self.begin_run();
                    }
                    let started = Instant::now();
                    let step = self.noted_step(&mut self.cleaner.work.lock(), &params);
                    if manual {
                        self.note_progress(step.as_ref().copied().unwrap_or_default());
                    }
                    let worked = matches!(step, Ok(Step { freed: 1.., .. }));
                    self.cleaner.wait(match worked || manual {
                        true => pause.least.max(started.elapsed().mul_f64(pause.share)),
                        // There was nothing to do, or it cannot be done.
                        false => self.cleaner.options().check_interval,
                    });
                }
            }
        }
    }

    fn next_task(&self, idle: bool) -> Task {
        let mut control = self.cleaner.control.lock();
        let options = control.options;
        let geometry = self.store.geometry();
        let per_segment = u64::from(geometry.blocks_per_segment);
        let clean = self.writing.space.free_blocks() / per_segment;
        if control.stop || self.writing.is_stopped() {
            return if control.stop { Task::Stop } else { Task::Wait(LONG) };
        }
        if std::mem::take(&mut control.count_reclaimable) {
            return Task::CountReclaimable;
        }
        if let Some(run) = control.manual {
            let pause = run.speed.map_or(Duration::ZERO, |speed| speed.pause);
            let pause = Pause { least: pause, share: 0.0 };
            return Task::Step { params: ReclaimParams::of(&run, &options), pause, manual: true };
        }
        if control.suspended || !options.enabled {
            return Task::Wait(LONG);
        }
        let spare = clean.saturating_sub(self.writing.space.kept_blocks().div_ceil(per_segment));
        let segments = |amount: Amount| amount.of(geometry.nsegments, geometry.segment_bytes());
        let enough = segments(options.max_clean);
        let unused =
            self.writing.space.unused_blocks().saturating_sub(self.writing.space.kept_blocks())
                / per_segment;
        let least = segments(options.min_clean).min(unused.div_ceil(4));
        // With no least number, there is never enough.
        if spare >= enough && segments(options.min_clean) > 0 {
            return Task::Wait(options.check_interval);
        }
        let urgent = spare < least;
        if !urgent && !idle {
            return Task::Wait(IDLE);
        }
        let (victims, min_reclaimable, pause) = match urgent {
            true => (
                options.urgent_segments_per_step,
                options.urgent_min_reclaimable,
                // The fewer segments there are, the less time the writers have for themselves.
                Pause {
                    least: options.urgent_step_interval,
                    share: 2.0 * spare as f64 / least as f64,
                },
            ),
            false => (
                options.segments_per_step,
                options.min_reclaimable,
                Pause { least: options.step_interval, share: 0.0 },
            ),
        };
        let params = ReclaimParams {
            victims: victims as usize,
            policy: options.policy,
            min_reclaimable,
            keep: Keep::Younger(options.protection),
            evacuate: None,
            // It is better to give the past up now than to let a writer wait for that.
            shortage: self
                .writing
                .space
                .is_short()
                .then(|| Shortage { missing: self.writing.space.missing(None), give_up: true }),
        };
        Task::Step { params, pause, manual: false }
    }

    /// What was deleted a moment ago can be reclaimed only when a checkpoint knows of it.
    fn begin_run(&self) {
        let begins = std::mem::take(&mut self.cleaner.control.lock().begins);
        if begins && let Err(error) = self.writing.commit() {
            tracing::error!("cannot make a checkpoint before cleaning: {error}");
        }
    }

    /// A step, with everything that people want to know about it.
    fn noted_step(&self, work: &mut StepState, params: &ReclaimParams<'_>) -> Result<Step> {
        self.cleaner.control.lock().working = true;
        let step = self.clean_step(work, params);
        let mut control = self.cleaner.control.lock();
        control.working = false;
        if matches!(step, Ok(Step { freed: 1.., .. })) {
            control.last_step = Some(self.writing.seconds());
        }
        match &step {
            Ok(_) | Err(Error::NoSpace | Error::ReadOnly { .. }) => {}
            Err(error) => tracing::error!("cannot clean: {error}"),
        }
        step
    }

    fn note_progress(&self, step: Step) {
        let geometry = self.store.geometry();
        let clean = self.writing.space.free_blocks() / u64::from(geometry.blocks_per_segment);
        let enough =
            |until: Amount| clean >= until.of(geometry.nsegments, geometry.segment_bytes());
        let mut control = self.cleaner.control.lock();
        control.progress.candidates =
            control.progress.candidates.max(control.progress.cleaned + step.candidates);
        control.progress.cleaned += step.freed;
        let until = control.manual.and_then(|run| run.until);
        if step.gained == 0 || until.is_some_and(enough) {
            control.manual = None;
            control.progress.running = false;
        }
    }

    /// Cleans until nothing more can be reclaimed. Returns the number of segments that became
    /// clean.
    ///
    /// # Errors
    /// The volume cannot be written, damage, a device error.
    pub(crate) fn clean(&self, run: &ManualRun) -> Result<u64> {
        self.writing.commit()?;
        let params = ReclaimParams::of(run, &self.cleaner.options());
        let mut freed = 0;
        loop {
            let step = match self.noted_step(&mut self.cleaner.work.lock(), &params) {
                Err(Error::NoSpace) => Step::default(),
                step => step?,
            };
            freed += step.freed;
            // What only changes its place is not worth going on for.
            if step.gained == 0 {
                return Ok(freed);
            }
        }
    }

    /// Makes room for somebody who found none for `cost`, and some more, so that the next one does
    /// not come at once. False if there is nothing to be gained. `thorough`: everything is tried,
    /// also what costs a lot, and giving up checkpoints that are protected.
    pub(crate) fn make_room(&self, cost: Cost, thorough: bool) -> Result<bool> {
        let options = self.cleaner.options();
        if !options.enabled {
            return Ok(false);
        }
        // Enough may be clean, if it is only not known how much of the reserve is dead blocks.
        if !self.writing.space.may_fit(cost) {
            self.count_reclaimable()?;
            return Ok(self.writing.space.may_fit(cost));
        }
        let grows = cost.effect == Effect::Grows;
        let soft = !options.hard_protection && !options.protection.is_zero();
        let (mut gained, mut extra) = (false, 0);
        let begun = self.attempt(grows);
        loop {
            let mut work = self.cleaner.work.lock();
            if !gained
                && options.hard_protection
                && work.was_in_vain(&self.attempt(grows))
                && !self.needs_less()
            {
                return Ok(false);
            }
            // A step for somebody else, which this one has waited for, may have made enough room.
            let enough = match gained {
                true => self.writing.space.waited_for(cost) == 0,
                false => self.writing.space.fits(cost),
            };
            if enough {
                return Ok(true);
            }
            // Of the past, more goes at a time than is waited for: where little of it goes, little is
            // dead in each segment.
            let missing = self.writing.space.missing(Some(cost));
            let lasting = ReclaimParams {
                victims: options.urgent_segments_per_step as usize,
                policy: options.policy,
                min_reclaimable: options.min_reclaimable,
                keep: Keep::Younger(options.protection),
                evacuate: None,
                shortage: Some(Shortage { missing: missing + extra, give_up: thorough }),
            };
            // On a volume that is nearly full no segment gives back much, so little will do; and
            // anything will for an operation that does not fill it further.
            let little =
                ReclaimParams { policy: Policy::Greedy, min_reclaimable: LITTLE_GAIN, ..lasting };
            let anything = ReclaimParams { min_reclaimable: Amount::Count(1), ..little };
            let last = [Some(little), (!grows).then_some(anything)];
            let mut step = self.noted_step(&mut work, &lasting);
            for params in last.into_iter().flatten().filter(|_| thorough && !gained) {
                if matches!(step, Ok(Step { gained: 0, .. }) | Err(Error::NoSpace)) {
                    step = self.noted_step(&mut work, &params);
                }
            }
            match step {
                Ok(step)
                    if step.gained > 0 && !(grows && step.moved > MOST_MOVED * step.gained) =>
                {
                    gained = true;
                }
                // What the commit of a step takes is known afterwards. If it was all that the step
                // gave back, more of the past has to go.
                Ok(_) | Err(Error::NoSpace)
                    if thorough && soft && extra < self.writing.space.unused_blocks() =>
                {
                    extra = (4 * extra).max(missing);
                }
                Ok(_) | Err(Error::NoSpace) => {
                    let newest = self.attempt(grows).newest;
                    if thorough && !gained && newest != begun.newest {
                        work.note_in_vain(Attempt { newest, ..begun });
                    }
                    return Ok(gained);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns everything that an attempt to make room for a writer depends on.
    fn attempt(&self, grows: bool) -> Attempt {
        let newest = self.writing.look().cno();
        Attempt { newest, unused: self.writing.space.unused_blocks(), grows }
    }

    /// Whether no other process reads the volume, after as long as a look may reasonably take.
    pub(crate) fn other_readers_leave(&self) -> bool {
        let mut looks = 0;
        // A reader that has stayed for a whole look does not leave in the next moment.
        let most =
            if self.cleaner.held_up.load(Ordering::Relaxed) { 1 } else { MOST_READER_CHECKS };
        while self.store.is_read_elsewhere() {
            looks += 1;
            if looks == most {
                if !self.cleaner.held_up.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        "the cleaner waits, because another process is reading the volume"
                    );
                }
                return false;
            }
            sleep(Duration::from_millis(1));
        }
        self.cleaner.held_up.store(false, Ordering::Relaxed);
        true
    }

    /// Waits until what was cleaned can be written, as long as a reader may reasonably take.
    pub(crate) fn wait_for_readers(&self) {
        for _ in 0..MOST_READER_CHECKS {
            {
                let mut session = self.writing.lock();
                session.release_freed();
                if !session.has_freed_segments() {
                    return;
                }
            }
            sleep(Duration::from_millis(1));
        }
    }
}

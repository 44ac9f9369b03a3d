//! The scrubs of a mount: one at a time, in a thread of their own, when somebody asks for one or when
//! one is due.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use nilfs_engine::scrub::Progress;
use nilfs_engine::{Error, Filesystem};
use nilfs_ondisk::ByteCount;
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use super::{Plan, Record, StateFile, record};
use crate::administration::{Reason, Refusal};
use crate::threads;

/// How often a mount looks at the clock, which may be put forward or back.
const LOOK: Duration = Duration::from_secs(600);

/// When a mount scrubs without being asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Schedule {
    /// This long after the last scrub; `None`: never.
    pub every: Option<Duration>,
    /// Bytes in a second, at most; `None`: as [`Schedule::RATE`] says.
    pub rate: Option<u64>,
}

impl Schedule {
    /// Bytes in a second that leave a device to those who use it.
    pub const RATE: u64 = 20 << 20;

    fn plan(&self) -> Plan {
        Plan { rate: Some(self.rate.unwrap_or(Self::RATE)), anew: false, repair: false }
    }

    /// Whether a scrub should begin, or go on, `now` (s). If the clock says that the last one was in the
    /// future, nobody knows when it was.
    fn is_due(&self, last: Option<&Record>, now: u64) -> bool {
        let Some(every) = self.every else { return false };
        let rests = |it: &Record| {
            let age = now.checked_sub(it.ended);
            !it.report.interrupted && age.is_some_and(|age| age < every.as_secs())
        };
        !last.is_some_and(rests)
    }
}

/// How the scrubs of a volume are going.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scrubbing {
    /// How far the present one is, if there is one: bytes gone through, of all.
    pub progress: Option<(u64, u64)>,
    /// The last one.
    pub last: Option<Record>,
    /// Why the last one could not be made.
    pub failure: Option<String>,
}

impl Scrubbing {
    /// What there is to be said of the present, in lines.
    pub fn lines(&self) -> Vec<String> {
        match (self.progress, &self.failure, &self.last) {
            (Some((done, all)), ..) => {
                let percent = done.saturating_mul(100).checked_div(all).unwrap_or_default();
                vec![format!("running: {} of {}, {percent} %", ByteCount(done), ByteCount(all))]
            }
            (None, Some(failure), _) => vec![format!("the volume cannot be scrubbed: {failure}")],
            (None, None, None) => vec!["no scrub is known of".to_owned()],
            (None, None, Some(_)) => Vec::new(),
        }
    }
}

#[derive(Default)]
struct Inner {
    now: Scrubbing,
    wanted: Option<Plan>,
    /// The present one is to end.
    stop: bool,
    /// All of it is to end.
    end: bool,
    /// Nothing is begun by schedule, because somebody has stopped a scrub.
    rests: bool,
}

#[derive(Default)]
struct Shared {
    inner: Mutex<Inner>,
    changed: Condvar,
}

/// What scrubs a mounted volume.
pub struct Scrubber {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Scrubber {
    /// Starts the thread, which waits until there is something to do.
    ///
    /// # Errors
    /// There is no thread left.
    pub fn start(
        fs: Arc<Filesystem>,
        state: StateFile,
        schedule: Schedule,
    ) -> anyhow::Result<Self> {
        let shared = Arc::<Shared>::default();
        shared.inner.lock().now.last = state.load();
        let of_thread = Arc::clone(&shared);
        let thread = threads::start("scrub", move || of_thread.work(&fs, &state, schedule))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Begins a scrub, or goes on with one that was interrupted. It is not waited for.
    ///
    /// # Errors
    /// One is under way.
    pub fn begin(&self, plan: Plan) -> Result<(), Refusal> {
        let mut inner = self.shared.inner.lock();
        if inner.wanted.is_some() || inner.now.progress.is_some() {
            let message =
                "a scrub of the volume is under way; `nilfs scrub --status` says how far it is";
            return Err(Refusal::new(Reason::Failed, message));
        }
        (inner.wanted, inner.stop, inner.rests) = (Some(plan), false, false);
        inner.now.progress = Some((0, 0));
        inner.now.failure = None;
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Interrupts the present scrub, if there is one. Until somebody begins another, or mounts the volume
    /// again, none goes on by itself.
    pub fn interrupt(&self) {
        let mut inner = self.shared.inner.lock();
        (inner.stop, inner.rests) = (true, true);
        self.shared.changed.notify_all();
        while inner.now.progress.is_some() && !inner.end {
            self.shared.changed.wait(&mut inner);
        }
    }

    /// How the scrubs are going.
    pub fn state(&self) -> Scrubbing {
        self.shared.inner.lock().now.clone()
    }

    /// Interrupts what is under way, and begins nothing any more. Returns when that is so.
    pub fn end(&self) {
        self.shared.inner.lock().end = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            // A panic has ended the process.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self, fs: &Filesystem, state: &StateFile, schedule: Schedule) {
        while let Some(plan) = self.next(schedule) {
            let scrubbed = super::run(
                |selection, observe| super::scrub_mounted(fs, plan, selection, observe),
                state,
                plan,
                &|wait| self.is_to_end(wait),
                &|now| self.note(now),
            );
            self.completed(scrubbed);
        }
    }

    /// Waits until a scrub is wanted or due. `None`: the end.
    fn next(&self, schedule: Schedule) -> Option<Plan> {
        let mut inner = self.inner.lock();
        loop {
            if inner.end {
                return None;
            }
            if let Some(plan) = inner.wanted.take() {
                return Some(plan);
            }
            let is_due = schedule.is_due(inner.now.last.as_ref(), record::now());
            // One that fails is tried again when the volume is mounted the next time.
            if is_due && !inner.rests && inner.now.failure.is_none() {
                (inner.stop, inner.now.progress) = (false, Some((0, 0)));
                return Some(schedule.plan());
            }
            match schedule.every {
                Some(_) => _ = self.changed.wait_for(&mut inner, LOOK),
                None => self.changed.wait(&mut inner),
            }
        }
    }

    /// Waits for that long, or until the scrub is to end; says whether it is.
    fn is_to_end(&self, wait: Duration) -> bool {
        let mut inner = self.inner.lock();
        let is_to_go_on = |inner: &mut Inner| !inner.stop && !inner.end;
        if !wait.is_zero() {
            self.changed.wait_while_for(&mut inner, is_to_go_on, wait);
        }
        !is_to_go_on(&mut inner)
    }

    fn note(&self, now: Progress) {
        self.inner.lock().now.progress = Some((now.done, now.all));
    }

    fn completed(&self, scrubbed: Result<Record, Error>) {
        let mut inner = self.inner.lock();
        inner.now.progress = None;
        match scrubbed {
            Ok(record) => {
                let found = record.report.summary();
                match record.report.is_sound() {
                    true if record.report.interrupted => {
                        tracing::info!("scrub interrupted: {found}")
                    }
                    true => tracing::info!("scrub completed: {found}"),
                    false => tracing::error!("scrub: {found}; see nilfs scrub --status"),
                }
                inner.now.last = Some(record);
            }
            Err(error) => {
                tracing::error!("the volume cannot be scrubbed: {error}");
                inner.now.failure = Some(error.to_string());
            }
        }
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrub_is_due_a_period_after_the_last_one_and_goes_on_at_once() {
        let weekly = Schedule { every: Some(Duration::from_secs(7)), rate: None };
        let mut last = Record::new();
        (last.began, last.ended) = (10, 20);
        assert!(weekly.is_due(None, 20));
        assert!(!weekly.is_due(Some(&last), 26) && weekly.is_due(Some(&last), 27));
        assert!(weekly.is_due(Some(&last), 19), "the clock was put back");
        assert!(!Schedule::default().is_due(Some(&last), 100));
        last.report.interrupted = true;
        assert!(weekly.is_due(Some(&last), 21));
    }
}

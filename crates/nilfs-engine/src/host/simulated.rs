//! A machine that `shuttle` simulates: its scheduler decides at every lock, atomic variable and
//! wait which thread goes on, and so a seed, or a schedule that it has printed, replays a life of
//! the engine with all its threads.
//!
//! Time is virtual. A thread of its own moves it on to the next moment that another thread waits
//! for, when the scheduler chooses it: sooner or later, and always when nothing else can go on.

use std::cell::RefCell;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::io;
use std::mem;
use std::ops::Add;
use std::time::Duration;

pub(crate) use shuttle::sync::atomic;
pub(crate) use shuttle::thread::JoinHandle;
use shuttle::thread::{self, Thread};
pub(super) use shuttle::thread_local;
pub(super) use shuttle_parking_lot::{
    Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

/// What the wall clock shows when a world begins.
const BEGINNING: Duration = Duration::from_secs(1_800_000_000);

/// Hashes everything in the same way in each world.
pub(crate) type RandomState = BuildHasherDefault<DefaultHasher>;
pub(crate) type NumberState = RandomState;

/// The time of a world.
#[derive(Default)]
struct Time {
    /// Since the world began.
    now: Duration,
    /// Threads that want to be woken.
    alarms: Vec<(Duration, Thread)>,
    /// The thread that moves time on.
    keeper: Option<Thread>,
    over: bool,
}

std::thread_local! {
    /// All threads of a world are one to the operating system, and change places nowhere in here.
    static TIME: RefCell<Time> = RefCell::default();
}

/// Lets `work` live in a new world, whose time begins. To be called by what `shuttle` runs.
pub fn world<T>(work: impl FnOnce() -> T) -> T {
    TIME.take();
    let keeper = thread::spawn(keep_time);
    TIME.with_borrow_mut(|time| time.keeper = Some(keeper.thread().clone()));
    let result = work();
    TIME.with_borrow_mut(|time| time.over = true);
    keeper.thread().unpark();
    keeper.join().expect("the thread that moves time on does not panic");
    result
}

fn keep_time() {
    loop {
        let (over, waited_for) = TIME.with_borrow(|time| (time.over, !time.alarms.is_empty()));
        if over {
            return;
        }
        if !waited_for {
            thread::park();
            continue;
        }
        thread::yield_now();
        let due = TIME.with_borrow_mut(|time| {
            let Some(&next) = time.alarms.iter().map(|(moment, _)| moment).min() else {
                return Vec::new();
            };
            time.now = time.now.max(next);
            let now = time.now;
            time.alarms.extract_if(.., |(moment, _)| *moment <= now).collect()
        });
        due.iter().for_each(|(_, thread)| thread.unpark());
    }
}

/// Has the calling thread woken at a moment, if it waits until then.
fn set_alarm(moment: Duration) {
    let keeper = TIME.with_borrow_mut(|time| {
        time.alarms.push((moment, thread::current()));
        time.keeper.clone()
    });
    keeper.expect("the engine lives in a world").unpark();
}

fn clear_alarm() {
    let me = thread::current().id();
    TIME.with_borrow_mut(|time| time.alarms.retain(|(_, thread)| thread.id() != me));
}

/// A moment of virtual time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instant(Duration);

impl Instant {
    pub(crate) fn now() -> Self {
        Self(TIME.with_borrow(|time| time.now))
    }

    pub(crate) fn elapsed(&self) -> Duration {
        Self::now().saturating_duration_since(*self)
    }

    pub(crate) fn saturating_duration_since(&self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0 + time)
    }
}

/// Lets the thread wait until time has moved on.
pub fn sleep(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        set_alarm(end.0);
        thread::park();
        clear_alarm();
    }
}

/// Starts a thread.
///
/// # Errors
/// None here.
pub(crate) fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(work)
}

/// Time since 1970 by a clock that shows virtual time.
pub(super) fn since_1970() -> Duration {
    BEGINNING + Instant::now().0
}

/// As `parking_lot`'s.
#[derive(Debug, Default)]
pub(super) struct Condvar {
    waiting: std::sync::Mutex<Vec<Thread>>,
}

impl Condvar {
    pub(super) fn notify_all(&self) {
        let woken = mem::take(&mut *self.waiting());
        woken.iter().for_each(Thread::unpark);
    }

    pub(super) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        self.waiting().push(thread::current());
        MutexGuard::unlocked(guard, thread::park);
        let me = thread::current().id();
        self.waiting().retain(|thread| thread.id() != me);
    }

    pub(super) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) {
        set_alarm((Instant::now() + time).0);
        self.wait(guard);
        clear_alarm();
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, Vec<Thread>> {
        self.waiting.lock().expect("nothing panics with the list")
    }
}

//! Group commit: whatever many threads want to have durable at the same time takes one log and one
//! flush. It knows nothing of what they want.
//!
//! One of them leads: it waits for the log, serves everybody who has come by then, and tells them. After
//! that, one of those who have come meanwhile leads. So a thread that was served waits for nobody, and can
//! ask for the next thing while the next log is being written.
//!
//! A thread that syncs again and again comes back soon after it was served. If the next leader did not
//! wait for that, such threads would part into two groups that take turns, and each log would serve only
//! half of them. So it waits: for as long as a log takes that has hardly anything in it, since that is what
//! one log fewer saves.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::error::Result;
use crate::host::{Condvar, Instant, Mutex, Rank};

/// How long those who may come back are waited for at most: a log that took longer had more to do than
/// to make a few files durable.
const MOST_PATIENCE: Duration = Duration::from_millis(10);

/// The threads that want something now.
pub(crate) struct GroupCommit<T> {
    group: Mutex<Group<T>>,
    /// For the leader: as many have come as are expected.
    complete: Condvar,
}

struct Group<T> {
    /// Those whom no leader has taken.
    waiting: VecDeque<Arc<Member<T>>>,
    is_led: bool,
    expected: Option<Expected>,
    /// How long the quickest log of late took.
    quickest: Duration,
}

/// Those who may want the next log.
struct Expected {
    /// How many the last log served, and how many waited by then for the next.
    count: usize,
    /// When they are not waited for any more.
    until: Instant,
}

struct Member<T> {
    request: T,
    /// What this thread has waited for; decided under the lock of the group.
    fate: OnceLock<Fate>,
    decided: Condvar,
}

#[derive(Clone, Copy)]
enum Fate {
    Leads,
    Served,
    /// The leader has taken the request, and has failed.
    Failed,
}

/// The thread that leads, until it is dropped.
struct Leader<'a, T> {
    commits: &'a GroupCommit<T>,
    /// Others whom it serves.
    taken: VecDeque<Arc<Member<T>>>,
}

impl<T> Default for GroupCommit<T> {
    fn default() -> Self {
        let group = Group {
            waiting: VecDeque::new(),
            is_led: false,
            expected: None,
            quickest: MOST_PATIENCE,
        };
        Self { group: Mutex::new(Rank::SyncRequests, group), complete: Condvar::default() }
    }
}

impl<T> GroupCommit<T> {
    /// Returns when `request` has been served. The thread that leads gets the log by `lock`, and has
    /// `serve` make durable what all want that wait for it; `serve` returns whether it had to write.
    ///
    /// # Errors
    /// Those of `lock` and `serve`. When `serve` has failed, `lock` must fail from then on: what that
    /// thread had taken is not served.
    pub(crate) fn join<L>(
        &self,
        request: T,
        lock: impl FnOnce() -> Result<L>,
        serve: impl FnOnce(&mut L, &[&T]) -> Result<bool>,
    ) -> Result<()> {
        let mine = Arc::new(Member { request, fate: OnceLock::new(), decided: Condvar::default() });
        match self.fate_of(&mine) {
            Fate::Leads => {}
            Fate::Served => return Ok(()),
            Fate::Failed => {
                lock()?;
                panic!(
                    "a thread that took this request has failed, but the log can still be locked"
                )
            }
        }
        // The log is let go of first.
        let mut leader = Leader { commits: self, taken: VecDeque::new() };
        self.await_expected();
        let mut log = lock()?;
        let began = Instant::now();
        leader.taken = mem::take(&mut self.group.lock().waiting);
        let others = leader.taken.iter().map(|member| &member.request);
        let requests: Vec<&T> = std::iter::once(&mine.request).chain(others).collect();
        if serve(&mut log, &requests)? {
            self.note_log(requests.len(), began.elapsed());
        }
        leader.tell(Fate::Served);
        Ok(())
    }

    /// Waits until it is decided what becomes of a thread.
    fn fate_of(&self, mine: &Arc<Member<T>>) -> Fate {
        let mut group = self.group.lock();
        if !mem::replace(&mut group.is_led, true) {
            return Fate::Leads;
        }
        group.waiting.push_back(Arc::clone(mine));
        if group.is_complete() {
            self.complete.notify_all();
        }
        loop {
            if let Some(fate) = mine.fate.get() {
                return *fate;
            }
            mine.decided.wait(&mut group);
        }
    }

    /// Notes how many threads a log has served and how long it took: they may want the next one, too.
    fn note_log(&self, served: usize, took: Duration) {
        let mut group = self.group.lock();
        // It goes up slowly again, since a device can become slower.
        group.quickest = took.min(group.quickest + group.quickest / 64).min(MOST_PATIENCE);
        let count = served + group.waiting.len();
        let until = Instant::now() + group.quickest;
        group.expected = Some(Expected { count, until });
    }

    /// Waits, as the leader, for those who may come back.
    fn await_expected(&self) {
        let mut group = self.group.lock();
        while let Some(expected) = &group.expected {
            let left = expected.until.saturating_duration_since(Instant::now());
            if group.is_complete() || left.is_zero() {
                return;
            }
            self.complete.wait_for(&mut group, left);
        }
    }
}

impl<T> Group<T> {
    /// Whether as many have come as are expected, with the leader.
    fn is_complete(&self) -> bool {
        self.expected.as_ref().is_none_or(|it| 1 + self.waiting.len() >= it.count)
    }
}

impl<T> Leader<'_, T> {
    /// Tells all whom it serves what has become of them.
    fn tell(&mut self, fate: Fate) {
        let _group = self.commits.group.lock();
        self.taken.drain(..).for_each(|member| member.decide(fate));
    }
}

impl<T> Drop for Leader<'_, T> {
    fn drop(&mut self) {
        self.tell(Fate::Failed);
        let mut group = self.commits.group.lock();
        match group.waiting.pop_front() {
            Some(next) => next.decide(Fate::Leads),
            None => group.is_led = false,
        }
    }
}

impl<T> Member<T> {
    fn decide(&self, fate: Fate) {
        if self.fate.set(fate).is_err() {
            unreachable!("whoever waits is taken or made the leader once");
        }
        self.decided.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::error::Error;
    use crate::host::MutexGuard;

    impl<T> GroupCommit<T> {
        /// Waits until this many threads wait for a leader.
        fn until_waiting(&self, count: usize) {
            while self.group.lock().waiting.len() < count {
                thread::yield_now();
            }
        }
    }

    #[test]
    fn those_whom_the_last_log_served_are_waited_for() {
        const SERVED: usize = 3;
        let commits = GroupCommit::<()>::default();
        commits.note_log(SERVED, MOST_PATIENCE);
        // None is late however slow the machine is.
        let later = Instant::now() + Duration::from_secs(3600);
        commits.group.lock().expected.as_mut().unwrap().until = later;
        let log = Mutex::new(Rank::Log, Vec::new());
        thread::scope(|scope| {
            for _ in 0..SERVED {
                let (commits, log) = (&commits, &log);
                let serve = |log: &mut MutexGuard<'_, Vec<usize>>, all: &[&()]| {
                    log.push(all.len());
                    Ok(true)
                };
                scope.spawn(move || commits.join((), || Ok(log.lock()), serve).unwrap());
            }
        });
        assert_eq!(*log.lock(), [SERVED]);
    }

    #[test]
    fn those_who_do_not_come_back_hold_nobody_up() {
        let commits = GroupCommit::<()>::default();
        commits.note_log(2, Duration::from_millis(1));
        commits.join((), || Ok(()), |(): &mut (), _| Ok(true)).unwrap();
    }

    /// The log is held until all wait, so the one that leads has to serve them all.
    #[test]
    fn all_that_wait_are_served_at_once() {
        const WAITING: usize = 5;
        let commits = GroupCommit::<usize>::default();
        let log = Mutex::new(Rank::Log, Vec::new());
        let held = log.lock();
        thread::scope(|scope| {
            for nth in 0..WAITING {
                let (commits, log) = (&commits, &log);
                scope.spawn(move || {
                    let serve = |log: &mut MutexGuard<'_, Vec<Vec<usize>>>, all: &[&usize]| {
                        log.push(all.iter().map(|request| **request).collect());
                        Ok(true)
                    };
                    commits.join(nth, || Ok(log.lock()), serve).unwrap();
                });
            }
            commits.until_waiting(WAITING - 1);
            drop(held);
        });
        let mut served = log.lock().clone();
        assert_eq!(served.len(), 1, "one log for all: {served:?}");
        served[0].sort_unstable();
        assert_eq!(served[0], [0, 1, 2, 3, 4]);
    }

    /// Otherwise the threads of one log and those of the next get in each other's way, and with many of
    /// them, each log serves only a few.
    #[test]
    fn a_thread_that_was_served_does_not_wait_for_the_next_log() {
        const SERVED: usize = 3;
        let commits = GroupCommit::<usize>::default();
        // How many requests each log has served.
        let log = Mutex::new(Rank::Log, Vec::new());
        let (open, gate) = mpsc::channel::<()>();
        let held = log.lock();
        thread::scope(|scope| {
            let join = |serve: Box<dyn FnOnce() + Send>| {
                let (commits, log) = (&commits, &log);
                scope.spawn(move || {
                    let serve = |log: &mut MutexGuard<'_, Vec<usize>>, all: &[&usize]| {
                        log.push(all.len());
                        serve();
                        Ok(true)
                    };
                    commits.join(0, || Ok(log.lock()), serve).unwrap();
                })
            };
            let waits = &commits;
            let (serving, is_serving) = mpsc::channel::<()>();
            let until_one_more_waits = move || {
                serving.send(()).unwrap();
                waits.until_waiting(1);
            };
            let mut first = vec![join(Box::new(until_one_more_waits))];
            while !commits.group.lock().is_led {
                thread::yield_now();
            }
            first.extend((1..SERVED).map(|_| join(Box::new(|| {}))));
            commits.until_waiting(SERVED - 1);
            drop(held);
            is_serving.recv().unwrap();
            let late = join(Box::new(move || gate.recv().unwrap()));
            first.into_iter().for_each(|served| served.join().unwrap());
            assert!(!late.is_finished());
            open.send(()).unwrap();
        });
        assert_eq!(*log.lock(), [SERVED, 1]);
    }

    #[test]
    fn a_request_that_cannot_be_served_is_not_left_to_others() {
        let commits = GroupCommit::<u32>::default();
        let refused = || Err(Error::NoSpace);
        assert!(commits.join(1, refused, |_: &mut (), _| Ok(true)).is_err());
        let serve = |(): &mut (), all: &[&u32]| {
            assert_eq!(all, [&2]);
            Ok(true)
        };
        commits.join(2, || Ok(()), serve).unwrap();
    }

    #[test]
    fn all_whom_a_failed_leader_has_taken_learn_why() {
        let commits = GroupCommit::<usize>::default();
        let log = Mutex::new(Rank::Log, false);
        let held = log.lock();
        thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|nth| {
                    let (commits, log) = (&commits, &log);
                    scope.spawn(move || {
                        let lock = || {
                            let log = log.lock();
                            if *log { Err(Error::NoSpace) } else { Ok(log) }
                        };
                        let serve = |log: &mut MutexGuard<'_, bool>, _: &[&usize]| {
                            **log = true;
                            Err(Error::NoSpace)
                        };
                        commits.join(nth, lock, serve)
                    })
                })
                .collect();
            commits.until_waiting(3);
            drop(held);
            for thread in threads {
                assert!(matches!(thread.join().unwrap(), Err(Error::NoSpace)));
            }
        });
    }
}

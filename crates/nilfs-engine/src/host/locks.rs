//! Locks that know their rank.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use super::machine;
use super::rank::{Held, Rank, Ranked};

/// What only one thread at a time gets at.
pub(crate) struct Mutex<T> {
    ranked: Ranked,
    lock: machine::Mutex<T>,
}

/// What is in a [`Mutex`], while it is locked.
pub(crate) struct MutexGuard<'a, T>(Guard<machine::MutexGuard<'a, T>>);

/// What any number of threads look at, or one changes.
pub(crate) struct RwLock<T> {
    ranked: Ranked,
    lock: machine::RwLock<T>,
}

/// Threads wait here for another to change what is in a [`Mutex`]. They may also wake without that.
#[derive(Debug, Default)]
pub(crate) struct Condvar(machine::Condvar);

/// A lock that is held, with the note of that.
pub(crate) struct Guard<G> {
    // Released before the note goes.
    guard: G,
    held: Held,
}

/// The value in an [`RwLock`], while threads may look at it.
pub(crate) type RwLockReadGuard<'a, T> = Guard<machine::RwLockReadGuard<'a, T>>;
/// What is in an [`RwLock`], while one thread may change it.
pub(crate) type RwLockWriteGuard<'a, T> = Guard<machine::RwLockWriteGuard<'a, T>>;

impl<T> Mutex<T> {
    pub(crate) fn new(rank: Rank, value: T) -> Self {
        Self { ranked: Ranked::new(rank), lock: machine::Mutex::new(value) }
    }

    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.ranked.before_waiting();
        let guard = self.lock.lock();
        MutexGuard(Guard { guard, held: self.ranked.locked() })
    }

    /// Locks it unless that takes waiting.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let guard = self.lock.try_lock()?;
        Some(MutexGuard(Guard { guard, held: self.ranked.locked() }))
    }
}

impl<T> MutexGuard<'_, T> {
    /// Releases the lock, to the thread that has waited longest if there is one.
    pub(crate) fn unlock_fair(guard: Self) {
        let Guard { guard, held } = guard.0;
        machine::MutexGuard::unlock_fair(guard);
        drop(held);
    }
}

impl<T> RwLock<T> {
    pub(crate) fn new(rank: Rank, value: T) -> Self {
        Self { ranked: Ranked::new(rank), lock: machine::RwLock::new(value) }
    }

    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn read(&self) -> Guard<machine::RwLockReadGuard<'_, T>> {
        self.ranked.before_waiting();
        let guard = self.lock.read();
        Guard { guard, held: self.ranked.locked() }
    }

    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.ranked.before_waiting();
        let guard = self.lock.write();
        Guard { guard, held: self.ranked.locked() }
    }

    /// Locks it for changing unless that takes waiting.
    pub(crate) fn try_write(&self) -> Option<Guard<machine::RwLockWriteGuard<'_, T>>> {
        let guard = self.lock.try_write()?;
        Some(Guard { guard, held: self.ranked.locked() })
    }

    /// Locks it for looking unless that takes waiting.
    pub(crate) fn try_read(&self) -> Option<Guard<machine::RwLockReadGuard<'_, T>>> {
        let guard = self.lock.try_read()?;
        Some(Guard { guard, held: self.ranked.locked() })
    }
}

impl Condvar {
    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }

    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        guard.0.held.before_sleeping();
        self.0.wait(&mut guard.0.guard);
    }

    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) {
        guard.0.held.before_sleeping();
        self.0.wait_for(&mut guard.0.guard, time);
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.guard
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0.guard
    }
}

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.fmt(f)
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    /// Two threads that took these in different orders could wait for each other for ever; one that
    /// does is stopped even when it is alone.
    #[test]
    #[should_panic(expected = "Log is locked while Names is held")]
    fn locks_are_taken_in_the_order_of_their_ranks() {
        let (log, names) = (Mutex::new(Rank::Log, ()), Mutex::new(Rank::Names, ()));
        let first = log.lock();
        let second = names.lock();
        drop((first, second));
        let _second = names.lock();
        let _first = log.lock();
    }

    #[test]
    #[should_panic(expected = "Inode is locked while Inode is held")]
    fn two_locks_of_one_rank_are_not_held() {
        let (one, other) = (RwLock::new(Rank::Inode, ()), RwLock::new(Rank::Inode, ()));
        let _one = one.read();
        let _other = other.read();
    }

    /// The log would be held as long as the thread sleeps.
    #[test]
    #[should_panic(expected = "sleeps while it holds other locks")]
    fn no_thread_sleeps_with_another_lock() {
        let (log, control) = (Mutex::new(Rank::Log, ()), Mutex::new(Rank::CleanerControl, ()));
        let _log = log.lock();
        Condvar::default().wait_for(&mut control.lock(), Duration::ZERO);
    }

    #[test]
    fn locks_can_be_released_in_any_order_and_tried_in_any() {
        let (log, names) = (Mutex::new(Rank::Log, ()), Mutex::new(Rank::Names, ()));
        let (first, second) = (log.lock(), names.lock());
        drop(first);
        assert!(log.try_lock().is_some());
        drop(second);
        drop(log.lock());
    }
}

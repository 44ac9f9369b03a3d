//! Group commit: whatever many threads want to have durable at the same time takes one log and one
//! flush. It knows nothing of what they want.

use std::mem;
use std::sync::Arc;

use crate::error::Result;
use crate::host::atomic::{AtomicBool, Ordering};
use crate::host::{Mutex, Rank};

/// Requests that no thread has taken yet.
pub(crate) struct GroupCommit<T>(Mutex<Vec<Arc<Waiting<T>>>>);

struct Waiting<T> {
    request: T,
    done: AtomicBool,
}

impl<T> Default for GroupCommit<T> {
    fn default() -> Self {
        Self(Mutex::new(Rank::SyncRequests, Vec::new()))
    }
}

impl<T> GroupCommit<T> {
    /// Returns when `request` has been served. The thread that gets the log by `lock` first has
    /// `serve` make durable what all want that wait for it; the others find it done.
    ///
    /// # Errors
    /// Those of `lock` and `serve`. When `serve` has failed, `lock` must fail from then on: what that
    /// thread had taken is not served.
    pub(crate) fn join<L>(
        &self,
        request: T,
        lock: impl FnOnce() -> Result<L>,
        serve: impl FnOnce(&mut L, &[&T]) -> Result<()>,
    ) -> Result<()> {
        let mine = Arc::new(Waiting { request, done: AtomicBool::new(false) });
        self.0.lock().push(Arc::clone(&mine));
        let mut log = lock().inspect_err(|_| {
            self.0.lock().retain(|waiting| !Arc::ptr_eq(waiting, &mine));
        })?;
        if mine.done.load(Ordering::Acquire) {
            return Ok(());
        }
        let taken = mem::take(&mut *self.0.lock());
        assert!(
            taken.iter().any(|waiting| Arc::ptr_eq(waiting, &mine)),
            "a thread that took this request has failed, but the log can still be locked"
        );
        let requests: Vec<&T> = taken.iter().map(|waiting| &waiting.request).collect();
        serve(&mut log, &requests)?;
        taken.iter().for_each(|waiting| waiting.done.store(true, Ordering::Release));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::error::Error;
    use crate::host::MutexGuard;

    /// The first thread holds the log until the others wait, so the second has to serve them all.
    #[test]
    fn all_that_wait_are_served_at_once() {
        const WAITING: usize = 5;
        let commits = GroupCommit::<usize>::default();
        let log = Mutex::new(Rank::Log, Vec::new());
        let serve = |log: &mut MutexGuard<'_, Vec<Vec<usize>>>, all: &[&usize]| {
            log.push(all.iter().map(|request| **request).collect());
            Ok(())
        };
        let held = log.lock();
        let (about_to_wait, waits) = mpsc::channel();
        thread::scope(|scope| {
            for nth in 0..WAITING {
                let (commits, log, about_to_wait) = (&commits, &log, about_to_wait.clone());
                scope.spawn(move || {
                    let lock = || {
                        about_to_wait.send(()).unwrap();
                        Ok(log.lock())
                    };
                    commits.join(nth, lock, serve).unwrap();
                });
            }
            waits.iter().take(WAITING).for_each(drop);
            drop(held);
        });
        let mut served = log.lock().clone();
        assert_eq!(served.len(), 1, "one log for all: {served:?}");
        served[0].sort_unstable();
        assert_eq!(served[0], [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_request_that_cannot_be_served_is_not_left_to_others() {
        let commits = GroupCommit::<u32>::default();
        let refused = || Err(Error::NoSpace);
        assert!(commits.join(1, refused, |_: &mut (), _| Ok(())).is_err());
        let serve = |(): &mut (), all: &[&u32]| {
            assert_eq!(all, [&2]);
            Ok(())
        };
        commits.join(2, || Ok(()), serve).unwrap();
    }
}

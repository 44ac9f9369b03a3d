//! Threads that do what may take long, so that those which receive requests can go on.
//!
//! One is started when none is idle, and ends when there has been nothing to do for a while, or when
//! nobody is left who could give it something.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// How long a thread waits for something to do.
const PATIENCE: Duration = Duration::from_secs(10);

/// Something to do.
pub(super) type Work = Box<dyn FnOnce() + Send>;

/// A number of threads, as many as are needed up to a limit.
#[derive(Debug)]
pub(super) struct Workers {
    limit: usize,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wanted: Condvar,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    work: VecDeque<Work>,
    threads: usize,
    /// Threads that wait for something to do.
    waiting: usize,
    /// Nothing will be added.
    closed: bool,
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.wanted.notify_all();
    }
}

impl Workers {
    pub fn new(limit: usize) -> Self {
        Self { limit, shared: Arc::default() }
    }

    /// Has something done by another thread, as soon as there is one, or does it here if there is none
    /// at all.
    pub fn run(&self, work: Work) {
        let Err(work) = self.start(work) else { return };
        let mut state = self.shared.state.lock();
        if state.threads > 0 {
            // All of them are busy; whoever is done first takes it.
            state.work.push_back(work);
            self.shared.wanted.notify_one();
            return;
        }
        drop(state);
        work();
    }

    /// Has something done by another thread at once.
    ///
    /// # Errors
    /// The work, if there is no thread to be had that does nothing else.
    pub fn start(&self, work: Work) -> Result<(), Work> {
        let mut state = self.shared.state.lock();
        if state.waiting > state.work.len() {
            state.work.push_back(work);
            self.shared.wanted.notify_one();
            return Ok(());
        }
        if state.threads >= self.limit {
            return Err(work);
        }
        let shared = Arc::clone(&self.shared);
        let serve = move || shared.serve();
        if thread::Builder::new().name("fuse-worker".to_owned()).spawn(serve).is_err() {
            return Err(work);
        }
        state.threads += 1;
        state.work.push_back(work);
        Ok(())
    }
}

impl Shared {
    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(work) = state.work.pop_front() {
                drop(state);
                work();
                state = self.state.lock();
                continue;
            }
            let mut ended = state.closed;
            if !ended {
                state.waiting += 1;
                ended = self.wanted.wait_for(&mut state, PATIENCE).timed_out();
                state.waiting -= 1;
            }
            if ended && state.work.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn work_waits_for_a_thread_that_is_busy_and_not_for_who_has_brought_it() {
        let workers = Workers::new(1);
        let (open, gate) = mpsc::channel::<()>();
        let (done, by) = mpsc::channel();
        workers.run(Box::new(move || _ = gate.recv()));
        workers.run(Box::new(move || done.send(thread::current().id()).unwrap()));
        open.send(()).unwrap();
        assert_ne!(by.recv().unwrap(), thread::current().id());
    }

    #[test]
    fn without_any_thread_work_is_done_at_once() {
        let (done, by) = mpsc::channel();
        Workers::new(0).run(Box::new(move || done.send(thread::current().id()).unwrap()));
        assert_eq!(by.try_recv().unwrap(), thread::current().id());
    }
}

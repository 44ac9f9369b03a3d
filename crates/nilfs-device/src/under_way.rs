//! A long write that is under way while whoever asked for it makes the next one ready. Whoever reads what
//! is being written waits for it. Whether it has failed is told once, to whoever waits for all of it.
//!
//! It knows nothing of devices, and has one write at a time, so that nobody has to wait for many.

use std::io;
use std::mem;
use std::ops::Range;
use std::sync::mpsc::{self, SendError, Sender};
use std::sync::{Arc, OnceLock};
use std::thread;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// What writes, with all that it needs for that.
type Work = Box<dyn FnOnce() -> io::Result<()> + Send>;

/// The write that is under way, if there is one.
#[derive(Default)]
pub(crate) struct UnderWay {
    shared: Arc<Shared>,
    /// Takes work to the thread that does it, from the first write on; `None` if there can be no thread.
    thread: OnceLock<Option<Sender<Work>>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
enum State {
    #[default]
    Idle,
    /// A range of bytes is being written.
    Writing(Range<u64>),
    /// The last write has failed, and nobody knows yet.
    Failed(io::Error),
}

impl UnderWay {
    /// Begins to write a range of bytes, after the write before.
    ///
    /// # Errors
    /// That of the write before.
    pub(crate) fn begin(&self, range: Range<u64>, work: Work) -> io::Result<()> {
        *self.ended()? = State::Writing(range);
        let not_sent = match self.thread.get_or_init(|| start(&self.shared)) {
            Some(thread) => thread.send(work).err().map(|SendError(work)| work),
            None => Some(work),
        };
        if let Some(work) = not_sent {
            self.shared.run(work);
        }
        Ok(())
    }

    /// Returns when nothing is under way.
    ///
    /// # Errors
    /// That of the last write.
    pub(crate) fn finish(&self) -> io::Result<()> {
        self.ended().map(drop)
    }

    /// Whether a part of a range is being written.
    pub(crate) fn has(&self, range: &Range<u64>) -> bool {
        self.shared.state.lock().has(range)
    }

    /// Returns when no part of a range is being written.
    pub(crate) fn wait_for(&self, range: &Range<u64>) {
        let mut state = self.shared.state.lock();
        while state.has(range) {
            self.shared.ended.wait(&mut state);
        }
    }

    fn ended(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.shared.state.lock();
        while matches!(*state, State::Writing(_)) {
            self.shared.ended.wait(&mut state);
        }
        match mem::take(&mut *state) {
            State::Failed(error) => Err(error),
            State::Idle | State::Writing(_) => Ok(state),
        }
    }
}

impl State {
    fn has(&self, range: &Range<u64>) -> bool {
        matches!(self, Self::Writing(own) if own.start < range.end && range.start < own.end)
    }
}

impl Shared {
    fn run(&self, work: Work) {
        let done = work();
        *self.state.lock() = done.map_or_else(State::Failed, |()| State::Idle);
        self.ended.notify_all();
    }
}

/// Starts a thread that ends when nobody can send it anything any more.
fn start(shared: &Arc<Shared>) -> Option<Sender<Work>> {
    let shared = Arc::clone(shared);
    let (sender, works) = mpsc::channel();
    let serve = move || works.into_iter().for_each(|work| shared.run(work));
    thread::Builder::new().name("device-write".to_owned()).spawn(serve).ok().map(|_| sender)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A write that ends with a result when it is told to.
    fn gated(under_way: &UnderWay, range: Range<u64>, result: io::Result<()>) -> Sender<()> {
        let (open, gate) = mpsc::channel();
        let work = move || {
            gate.recv().unwrap();
            result
        };
        under_way.begin(range, Box::new(work)).unwrap();
        open
    }

    #[test]
    fn whoever_reads_what_is_being_written_waits_and_nobody_else() {
        let under_way = UnderWay::default();
        let open = gated(&under_way, 10..20, Ok(()));
        under_way.wait_for(&(0..10));
        under_way.wait_for(&(20..30));
        assert!(under_way.has(&(19..20)) && under_way.has(&(0..100)) && !under_way.has(&(20..21)));
        thread::scope(|scope| {
            let reader = scope.spawn(|| under_way.wait_for(&(0..11)));
            assert!(!reader.is_finished());
            open.send(()).unwrap();
        });
        assert!(!under_way.has(&(10..20)));
    }

    #[test]
    fn an_error_is_told_once_to_whoever_waits_for_all() {
        let under_way = UnderWay::default();
        let open = gated(&under_way, 0..1, Err(io::ErrorKind::StorageFull.into()));
        open.send(()).unwrap();
        under_way.wait_for(&(0..1));
        assert_eq!(under_way.finish().unwrap_err().kind(), io::ErrorKind::StorageFull);
        under_way.finish().unwrap();

        let open = gated(&under_way, 0..1, Err(io::ErrorKind::StorageFull.into()));
        open.send(()).unwrap();
        let next = under_way.begin(1..2, Box::new(|| panic!("written after an error")));
        assert_eq!(next.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}

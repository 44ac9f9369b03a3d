//! A long write that is under way while whoever asked for it makes the next one ready. Whoever reads what
//! is being written waits for it.
//!
//! Once a write has failed, nothing is written any more, and what it should have written cannot be read:
//! the caller has been told that all is well and may have nothing of it in memory any more.
//!
//! It knows nothing of devices, and has one write at a time, so that nobody has to wait for many.

use std::io;
use std::ops::Range;
use std::sync::mpsc::{self, SendError, Sender};
use std::sync::{Arc, OnceLock};
use std::thread;

use parking_lot::{Condvar, Mutex};

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
struct State {
    /// The bytes that were written last, or are being written.
    range: Range<u64>,
    progress: Progress,
}

#[derive(Default)]
enum Progress {
    #[default]
    Done,
    Writing,
    Failed(io::Error),
}

impl UnderWay {
    /// Begins to write a range of bytes, after the write before.
    ///
    /// # Errors
    /// A write before has failed.
    pub(crate) fn begin(&self, range: Range<u64>, work: Work) -> io::Result<()> {
        {
            let mut state = self.shared.state.lock();
            while state.is_writing() {
                self.shared.ended.wait(&mut state);
            }
            state.check()?;
            *state = State { range, progress: Progress::Writing };
        }
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
    /// A write has failed.
    pub(crate) fn finish(&self) -> io::Result<()> {
        self.wait_for(&(0..u64::MAX))
    }

    /// Returns when no part of a range is being written.
    ///
    /// # Errors
    /// A part of it could not be written.
    pub(crate) fn wait_for(&self, range: &Range<u64>) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        while state.is_writing() && state.overlaps(range) {
            self.shared.ended.wait(&mut state);
        }
        if state.overlaps(range) { state.check() } else { Ok(()) }
    }

    /// Whether [`UnderWay::wait_for`] has something to say of a range.
    pub(crate) fn has(&self, range: &Range<u64>) -> bool {
        let state = self.shared.state.lock();
        !matches!(state.progress, Progress::Done) && state.overlaps(range)
    }
}

impl State {
    fn is_writing(&self) -> bool {
        matches!(self.progress, Progress::Writing)
    }

    fn overlaps(&self, range: &Range<u64>) -> bool {
        self.range.start < range.end && range.start < self.range.end
    }

    fn check(&self) -> io::Result<()> {
        match &self.progress {
            Progress::Failed(error) => Err(match error.raw_os_error() {
                Some(code) => io::Error::from_raw_os_error(code),
                None => error.kind().into(),
            }),
            Progress::Done | Progress::Writing => Ok(()),
        }
    }
}

impl Shared {
    fn run(&self, work: Work) {
        let progress = work().map_or_else(Progress::Failed, |()| Progress::Done);
        self.state.lock().progress = progress;
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
        under_way.wait_for(&(0..10)).unwrap();
        under_way.wait_for(&(20..30)).unwrap();
        assert!(under_way.has(&(19..20)) && under_way.has(&(0..100)) && !under_way.has(&(20..21)));
        thread::scope(|scope| {
            let reader = scope.spawn(|| under_way.wait_for(&(0..11)));
            assert!(!reader.is_finished());
            open.send(()).unwrap();
            reader.join().unwrap().unwrap();
        });
        assert!(!under_way.has(&(10..20)));
    }

    /// Somebody who does not know what it means may hear of it first.
    #[test]
    fn an_error_is_told_to_everybody_it_concerns_as_often_as_they_ask() {
        let under_way = UnderWay::default();
        let open = gated(&under_way, 10..20, Err(io::ErrorKind::StorageFull.into()));
        open.send(()).unwrap();
        for _ in 0..2 {
            assert_eq!(under_way.finish().unwrap_err().kind(), io::ErrorKind::StorageFull);
            let error = under_way.wait_for(&(19..30)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
            under_way.wait_for(&(20..30)).unwrap();
            assert!(under_way.has(&(0..11)) && !under_way.has(&(20..30)));
            let next = under_way.begin(30..40, Box::new(|| panic!("written after an error")));
            assert_eq!(next.unwrap_err().kind(), io::ErrorKind::StorageFull);
        }
    }
}

//! End of a command that is asked to end: by Ctrl-C, the signal TERM, or HUP, when its terminal is closed.
//!
//! Such a signal ends the process at once, wherever it is, with a line that says what has become of the
//! work, what goes on without this process, and how to take it up again. Work that knows a better place to
//! stop listens ([`Interrupt`]): the first signal only tells it, and the second ends it at once.

use std::fs;
use std::io::{self, IsTerminal};
use std::panic::resume_unwind;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use parking_lot::Mutex;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::output::say;

/// Returns what is said when a signal ends the process.
type Words = Box<dyn Fn() -> String + Send>;

/// How a signal ends the process.
struct Ending {
    /// Text that stands before the words.
    complaint: &'static str,
    /// The exit code.
    code: u8,
    /// Words about what has become of the work.
    words: Words,
}

static ENDING: Mutex<Option<Ending>> = Mutex::new(None);

/// Whether a signal came, and whether work looks at this.
static CAME: AtomicBool = AtomicBool::new(false);
static IS_LISTENED_TO: AtomicBool = AtomicBool::new(false);

/// Bytes of the stack of the thread that works: as many as the first thread of a process has.
const STACK_BYTES: usize = 8 << 20;

/// Does `work`, while the signals end the process with this exit code and a line that begins with
/// `complaint`. Until [`explain`] says more, nothing has been changed. Signals that are ignored, as for a
/// command in the background of a script, stay so.
///
/// The work has a thread of its own. The kernel gives signals to the first thread, and where that waits for
/// an answer of another process, it hears of none.
pub fn interruptible(
    complaint: &'static str,
    code: u8,
    work: impl FnOnce() -> ExitCode + Send,
) -> ExitCode {
    let ignored = ignored_signals();
    let heard = [SIGINT, SIGTERM, SIGHUP];
    let heard = heard.into_iter().filter(|signal| (ignored >> (signal - 1)) & 1 == 0);
    let words: Words = Box::new(|| "interrupted; nothing was changed".to_owned());
    *ENDING.lock() = Some(Ending { complaint, code, words });
    let work = Mutex::new(Some(work));
    let begin = || work.lock().take().map_or(ExitCode::FAILURE, |work| work());
    thread::scope(|scope| {
        let (ready, is_ready) = mpsc::channel::<Handle>();
        let working = move || {
            let listener = is_ready.recv();
            // Also after a panic.
            let _end = listener.map(EndOfWork);
            begin()
        };
        let worker = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, working);
        let Ok(worker) = worker else {
            // Without a thread for it, the signals end the process without a word.
            return begin();
        };
        if let Ok(mut signals) = Signals::new(heard) {
            let _ = ready.send(signals.handle());
            for _ in signals.forever() {
                if CAME.swap(true, Ordering::Relaxed) || !IS_LISTENED_TO.load(Ordering::Relaxed) {
                    end();
                }
            }
        }
        drop(ready);
        worker.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Ends the listening for signals when the work is over.
struct EndOfWork(Handle);

impl Drop for EndOfWork {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The signals that this process was started to ignore, as bits.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Says what has become of the work if a signal ends the process from now on. `words` may also clear away
/// what must not be left behind.
pub fn explain(words: impl Fn() -> String + Send + 'static) {
    if let Some(ending) = &mut *ENDING.lock() {
        ending.words = Box::new(words);
    }
}

fn end() -> ! {
    let ending = ENDING.lock();
    let Some(Ending { complaint, code, words }) = &*ending else { std::process::exit(1) };
    // The cursor may stand in the line of a progress bar.
    let line = if io::stderr().is_terminal() { "\r\x1b[K" } else { "" };
    say!("{line}{complaint}{}", words());
    std::process::exit((*code).into());
}

/// Listener that knows whether this process was asked to end.
pub struct Interrupt(());

impl Interrupt {
    /// Begins to listen: from now on the first signal does not end the process, so the listener must look.
    pub fn listen() -> Self {
        IS_LISTENED_TO.store(true, Ordering::Relaxed);
        Self(())
    }

    /// Whether it is time to end.
    pub fn came(&self) -> bool {
        CAME.load(Ordering::Relaxed)
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        IS_LISTENED_TO.store(false, Ordering::Relaxed);
    }
}

//! A sign of life on the terminal while something takes longer than a moment.

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::say;

/// What is done before this time needs no sign of life.
const PATIENCE: Duration = Duration::from_secs(1);

/// Moves while something of unknown length goes on, if stderr is a terminal.
pub fn spinner(what: &'static str) -> Spinner {
    let bar = ProgressBar::new_spinner().with_message(what);
    let (end, ended) = mpsc::channel();
    let moving = bar.clone();
    let turn = move || {
        while ended.recv_timeout(PATIENCE / 10) == Err(RecvTimeoutError::Timeout) {
            moving.tick();
        }
    };
    if !bar.is_hidden() {
        // Where no thread is to be had it stands still.
        let _ = thread::Builder::new().spawn(turn);
    }
    Spinner { bar, _end: end }
}

/// Disappears when it is dropped.
pub struct Spinner {
    bar: ProgressBar,
    _end: Sender<()>,
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Shows how much of a device of this size has been gone through, while it is. `what` is being done.
pub fn scan_progress(what: &'static str, size: u64) -> Box<dyn Fn(u64)> {
    let shown = RefCell::new(None);
    Box::new(move |done| {
        let mut shown = shown.borrow_mut();
        if done >= size {
            *shown = None;
            return;
        }
        let bar = shown.get_or_insert_with(|| Progress::count(what, "MiB"));
        bar.set(done >> 20, size >> 20);
    })
}

/// Counts what has been copied. Silent for the first second, and if stderr is no terminal.
pub struct Progress {
    bar: ProgressBar,
    started: Instant,
}

impl Progress {
    /// Starts counting bytes. `what` is being done to them.
    pub fn bytes(what: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        let style = ProgressStyle::with_template("{spinner} {msg} {bytes} ({bytes_per_sec})");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.set_message(what);
        Self { bar, started: Instant::now() }
    }

    /// Starts counting things of which it becomes known how many there are, and from that how long they
    /// take. `what` is being done to them.
    pub fn count(what: &'static str, things: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        let template = "{spinner} {msg} {wide_bar} {pos} of {len} {prefix}, {eta} left";
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(what);
        bar.set_prefix(things);
        Self { bar, started: Instant::now() }
    }

    /// Starts counting things of which it is not known how many there are. `what` is being done to them.
    pub fn tally(what: &'static str, things: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        let style = ProgressStyle::with_template("{spinner} {msg} {pos} {prefix}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.set_message(what);
        bar.set_prefix(things);
        Self { bar, started: Instant::now() }
    }

    /// Starts something that will take a while longer. `what` is being done.
    pub fn with_end(what: impl Into<Cow<'static, str>>) -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        let style =
            ProgressStyle::with_template("{spinner} {msg} {wide_bar} {percent}%, {eta} left");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(what);
        Self { bar, started: Instant::now() }
    }

    /// How many of how many are done.
    pub fn set(&self, done: u64, all: u64) {
        self.bar.set_length(all.max(done));
        self.bar.set_position(done);
        self.appear();
    }

    /// Counts more bytes or things as done.
    pub fn add(&self, more: u64) {
        self.bar.inc(more);
        self.appear();
    }

    fn appear(&self) {
        if self.bar.is_hidden() && self.started.elapsed() > PATIENCE {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    /// Prints a line on stderr without tearing the bar apart.
    pub fn warn(&self, line: &str) {
        self.bar.suspend(|| say!("{line}"));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

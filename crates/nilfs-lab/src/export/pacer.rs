//! Answers that wait until the device is done.
//!
//! A thread of its own sleeps until shortly before the moment and watches the clock for the rest:
//! answers never leave early, and on an idle machine they leave within some microseconds of their
//! time. What comes on top of the model's time, the way through FUSE and its threads (tens of
//! microseconds for a small request), is the machine's; a device that is kept busy by several
//! requests at once hides it, because the model's clock counts from their arrival.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// What a sleeping thread may wake up late by: it is spent watching the clock.
const WATCHED: Duration = Duration::from_micros(80);
/// How long a sleep may last before somebody who is in a hurry is listened to.
const LONGEST_SLEEP: Duration = Duration::from_millis(50);

/// An answer that is ready to be sent.
type Answer = Box<dyn FnOnce() + Send>;

/// The thread that keeps answers back. Dropping this sends all that are left at once.
pub(super) struct Pacer {
    queue: Sender<(Instant, Answer)>,
    hurry: Arc<AtomicBool>,
}

impl Pacer {
    pub(super) fn start() -> Result<Self> {
        let (queue, answers) = channel();
        let hurry = Arc::new(AtomicBool::new(false));
        let pace = {
            let hurry = Arc::clone(&hurry);
            move || send_in_time(&answers, &hurry)
        };
        Builder::new().name("pacer".into()).spawn(pace).context("cannot start a thread")?;
        Ok(Self { queue, hurry })
    }

    /// Sends an answer at its time. Times never go back.
    pub(super) fn send_at(&self, due: Instant, answer: Answer) {
        // The thread ends only when this end of the queue is gone.
        let _ = self.queue.send((due, answer));
    }
}

impl Drop for Pacer {
    fn drop(&mut self) {
        self.hurry.store(true, Ordering::Relaxed);
    }
}

fn send_in_time(answers: &Receiver<(Instant, Answer)>, hurry: &AtomicBool) {
    // By default, the kernel may let a thread sleep 50 µs longer than it wants, to save power.
    // Without this it does.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    for (due, answer) in answers {
        wait_until(due, hurry);
        answer();
    }
}

fn wait_until(due: Instant, hurry: &AtomicBool) {
    while !hurry.load(Ordering::Relaxed) {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        match left.checked_sub(WATCHED) {
            Some(time) => sleep(time.min(LONGEST_SLEEP)),
            None => std::hint::spin_loop(),
        }
    }
}

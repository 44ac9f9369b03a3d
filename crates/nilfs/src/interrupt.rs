//! Ending in good order when somebody asks a command to end, by Ctrl-C or the signal TERM.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::output::say;

/// From now on, these signals end the process at once, with this exit code, wherever it is. What is
/// said before that is up to `message`.
pub fn end_at_once(code: u8, message: impl Fn() -> String + Send + 'static) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot listen for signals")?;
    let wait = move || {
        if signals.forever().next().is_some() {
            // The cursor stands in the line of the progress bar.
            say!("\r\x1b[K{}", message());
            std::process::exit(code.into());
        }
    };
    thread::Builder::new().spawn(wait).context("cannot start a thread")?;
    Ok(())
}

/// Knows whether somebody has asked this process to end. From [`Interrupt::listen`] on, these
/// signals do not end the process any more: the listener must look.
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Begins to listen.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn listen() -> anyhow::Result<Self> {
        let came = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&came))
                .context("cannot listen for signals")?;
        }
        Ok(Self(came))
    }

    /// Whether it is time to end.
    pub fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

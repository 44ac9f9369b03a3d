//! Ending in good order when somebody asks a command to end, by Ctrl-C or the signal TERM.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};

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

//! Programs that hear Ctrl-C and the end of their terminal, wherever the tests run.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT};

/// Lets programs that this process starts hear both signals, as from a terminal. A script that runs tests in
/// the background, or nohup(1), has them ignore those, which programs inherit; they do not inherit that a
/// process listens.
pub fn hear() {
    let at_once = Arc::new(AtomicBool::new(true));
    for signal in [SIGINT, SIGHUP] {
        let at_once = Arc::clone(&at_once);
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, at_once).unwrap();
    }
}

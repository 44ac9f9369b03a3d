//! Programs that hear Ctrl-C, wherever the tests run.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Lets programs that this process starts hear Ctrl-C, as from a terminal. A script that runs tests in the
/// background has them ignore it, which programs inherit; what a process listens to, they do not.
pub fn hear() {
    let at_once = Arc::new(AtomicBool::new(true));
    signal_hook::flag::register_conditional_shutdown(signal_hook::consts::SIGINT, 130, at_once)
        .unwrap();
}

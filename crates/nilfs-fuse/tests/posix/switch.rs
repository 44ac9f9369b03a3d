//! The kernel's switch for requests through io_uring, on for as long as a test needs it.

use std::fs;
use std::io::{self, Write};

/// Where it is.
pub const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// The switch is on. It becomes again what it was when this is dropped.
pub struct Switch {
    before: String,
}

impl Switch {
    /// Turns it on. Where that is impossible, says why, past what captures the output of tests.
    pub fn on() -> Option<Self> {
        let on = || {
            let before = fs::read_to_string(SWITCH)?;
            fs::write(SWITCH, "Y")?;
            io::Result::Ok(Self { before })
        };
        let switched = on();
        if let Err(error) = &switched {
            _ = writeln!(io::stderr(), "nothing is tested through io_uring: {SWITCH}: {error}");
        }
        switched.ok()
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        _ = fs::write(SWITCH, self.before.trim());
    }
}

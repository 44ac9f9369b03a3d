//! The past, as long as a command copies out of it.

use std::process;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::client::Client;
use crate::threads;

/// Seconds for which the past is asked for at a time. A command that is killed holds it up no longer.
const SECONDS: u32 = 10;

/// How often it is asked for.
const RENEWAL: Duration = Duration::from_secs(2);

/// What a mount keeps of its past because somebody looks at it, until this is dropped, even if what the
/// command writes finds no room.
pub struct KeptPast {
    /// Closed when the command has ended.
    end: Option<Sender<()>>,
    renewing: Option<JoinHandle<()>>,
}

impl KeptPast {
    /// Has it kept by the process that serves a mount. `None` if that cannot do it: the process is an older
    /// one, or there is no thread to be had. Then it is kept as long as there is room.
    pub fn begin(client: Client) -> Option<Self> {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let command = u64::from(process::id()) << 32 | u64::from(started.subsec_nanos());
        client.keep_past(command, SECONDS).ok()?;
        let (end, ended) = mpsc::channel();
        let renew = move || {
            while ended.recv_timeout(RENEWAL) == Err(RecvTimeoutError::Timeout) {
                // If it fails, the mount is gone, and with it what is read.
                let _ = client.keep_past(command, SECONDS);
            }
            let _ = client.keep_past(command, 0);
        };
        let renewing = threads::start("kept-past", renew).ok()?;
        Some(Self { end: Some(end), renewing: Some(renewing) })
    }
}

impl Drop for KeptPast {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(renewing) = self.renewing.take() {
            let _ = renewing.join();
        }
    }
}

//! The past, as long as a command copies out of it.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::rand::GetRandomFlags;

use super::client::Client;
use crate::threads;

/// Seconds for which the past is asked for at a time, and so for which it stays for a command that is killed.
const SECONDS: u32 = 10;

/// Time between two requests for it.
const RENEWAL: Duration = Duration::from_secs(2);

/// Past that a mount keeps while programs look at it, even if the writes of this command find no room, until
/// this is dropped.
pub struct KeptPast {
    /// Closed at the end of the command.
    end: Option<Sender<()>>,
    renewing: Option<JoinHandle<()>>,
}

impl KeptPast {
    /// Asks the process that serves a mount to keep it. `None` if that cannot be had: the process is an older
    /// one, or there is no thread left. Then the past is kept as long as there is room.
    pub fn begin(client: Client) -> Option<Self> {
        let mut copy = [0; 8];
        rustix::rand::getrandom(&mut copy, GetRandomFlags::empty()).ok()?;
        let copy = u64::from_ne_bytes(copy);
        client.keep_past(copy, SECONDS).ok()?;
        let (end, ended) = mpsc::channel();
        let renew = move || {
            while ended.recv_timeout(RENEWAL) == Err(RecvTimeoutError::Timeout) {
                // If it fails, the mount is gone, and with it what is read.
                let _ = client.keep_past(copy, SECONDS);
            }
            let _ = client.keep_past(copy, 0);
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

//! What every mount does while the kernel's requests are answered: it obeys signals, gives memory
//! back when it is idle, and waits for its end. What is mounted is no matter here.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::Context;
use nilfs_fuse::{Farewell, Mount, MountError, OperationCounts};
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;

use crate::{exit, memory, threads};

/// How often a mount looks whether it is idle.
const IDLE: Duration = Duration::from_secs(2);

/// How often a mount says that what it shows is in use.
const IN_USE: Duration = Duration::from_secs(20);

/// What a mount waits for.
pub enum Event {
    /// The kernel has no more requests, and may wait for us to say farewell.
    Unmounted(io::Result<Farewell>),
    /// Somebody wanted the process to end, and the volume is not mounted any more.
    TakenAway,
    /// Somebody has changed the cleaner's settings.
    Reload,
}

/// What SIGHUP means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hangup {
    /// The terminal is gone, and with it the user who wanted the mount.
    Ends,
    /// What it means to a daemon: the cleaner's settings are to be read again.
    Reloads,
}

/// A moment in the life of a mount: requests answered, files that the kernel knows, blocks written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Activity {
    requests: u64,
    held: usize,
    written: u64,
}

impl Activity {
    pub fn new(requests: &[OperationCounts], held: usize, written: u64) -> Self {
        let requests = requests.iter().map(|operation| operation.count).sum();
        Self { requests, held, written }
    }
}

/// What a mount does while it waits for its end.
pub trait Attended {
    /// Tells apart moments between which something has happened.
    fn activity(&self) -> Activity;

    /// Gives memory back, because nothing has happened for a while.
    fn rest(&self);

    /// Reads the cleaner's settings again.
    fn reload(&self);

    /// Lets others know that what it shows is in use.
    fn stay(&self) {}
}

/// Waits for the end, and attends to the mount until then. The kernel may wait for what this
/// returns to be dropped.
pub fn wait(
    events: &mpsc::Receiver<Event>,
    mount: &Mount,
    attended: &dyn Attended,
) -> anyhow::Result<Option<Farewell>> {
    let (mut last, mut rested) = (None, None);
    let mut said = Instant::now();
    loop {
        match events.recv_timeout(IDLE) {
            Err(RecvTimeoutError::Timeout) => {
                if said.elapsed() >= IN_USE {
                    said = Instant::now();
                    attended.stay();
                }
                let now = Some(attended.activity());
                if now == last && now != rested {
                    rested = now;
                    attended.rest();
                    memory::give_back();
                }
                last = now;
            }
            Ok(Event::Unmounted(result)) => {
                return result
                    .map(Some)
                    .context("lost the connection to the kernel")
                    .inspect_err(|_| take_away(mount));
            }
            Ok(Event::Reload) => attended.reload(),
            Ok(Event::TakenAway) | Err(RecvTimeoutError::Disconnected) => return Ok(None),
        }
    }
}

/// Says why requests do not come through io_uring, if they would have. The first line of a mount is that
/// it is mounted, so this comes after that.
pub fn log_transport(why_not_uring: Option<String>) {
    if let Some(why) = why_not_uring {
        tracing::info!("requests come through /dev/fuse and not through io_uring: {why}");
    }
}

/// Says how the mount of `source` has ended.
pub fn log_end(source: &Path, error: Option<&anyhow::Error>, hangup: Hangup) {
    match error {
        None => tracing::info!("{} is unmounted", source.display()),
        // In the background nobody reads what the command prints at its end.
        Some(error) if hangup == Hangup::Reloads => tracing::error!("{}", exit::sentence(error)),
        Some(_) => {}
    }
}

/// Unmounts. What is in use by a process becomes unreachable for it. This may wait for the answer
/// to the kernel's last request, and so must not run in the thread that lets it be given.
pub fn take_away(mount: &Mount) {
    let result = match mount.unmount() {
        Err(MountError::Busy { .. }) => {
            tracing::warn!("{} is unmounted although it is in use", mount.dir().display());
            mount.detach()
        }
        result => result,
    };
    if let Err(error) = result {
        tracing::error!("{error}");
    }
}

/// Obeys signals, or passes them on. Before the volume can be used there is nothing to be
/// committed, and no need to wait for the recovery of a large one.
pub fn listen(
    mut signals: Signals,
    hangup: Hangup,
    events: mpsc::Sender<Event>,
    mount: Arc<Mount>,
    usable: Arc<AtomicBool>,
) -> anyhow::Result<()> {
    let pass_on = move || {
        for signal in signals.forever() {
            let reloads = signal == SIGHUP && hangup == Hangup::Reloads;
            if !usable.load(Ordering::Relaxed) && !reloads {
                take_away(&mount);
                std::process::exit(1);
            }
            let event = match reloads {
                true => Event::Reload,
                false => {
                    take_away(&mount);
                    Event::TakenAway
                }
            };
            if events.send(event).is_err() {
                return;
            }
        }
    };
    threads::start("signals", pass_on).map(drop)
}

//! What must be undone if the program ends early: mounts, daemons, directories.
//!
//! An undo step is data, so that the same step runs from a destructor (an error, a panic) or from
//! the signal thread (Ctrl-C), whichever comes first, and never twice. Signals belong to the
//! process, hence the one static.

use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process_group, test_kill_process_group, waitid,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag::register_conditional_shutdown;
use signal_hook::iterator::Signals;

use crate::export::Power;

/// One step that returns the machine to how it was.
pub enum Undo {
    /// Take a mount away, busy or not; nothing that it holds is of value any more.
    Unmount(PathBuf),
    /// Take the power from an exported device, so that nobody waits for what it would still do.
    CutPower(Power),
    /// Detach a loop device, at the latest when its last user closes it.
    Detach(PathBuf),
    /// End a daemon that we started.
    Kill(Arc<Mutex<Child>>),
    /// End all processes of a group that we started.
    KillGroup(Pid),
    /// Remove a directory with all it holds.
    Remove(PathBuf),
}

static STACK: Mutex<Vec<(u64, Undo)>> = Mutex::new(Vec::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// A registered step. Dropping it performs the step.
#[must_use = "the step is performed as soon as this is dropped"]
pub struct Pending(u64);

/// Registers a step. Steps still registered when a signal arrives run newest first.
pub fn register(step: Undo) -> Pending {
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    STACK.lock().push((id, step));
    Pending(id)
}

/// Sets something up and registers the step that undoes it. A signal has no effect before both are
/// done, so that nothing is left for which there is no step yet. `what` must not register anything
/// by itself.
///
/// # Errors
/// Those of `what`; then there is nothing to be undone.
pub fn set_up<T>(what: impl FnOnce() -> Result<(T, Undo)>) -> Result<(T, Pending)> {
    let mut stack = STACK.lock();
    let (made, step) = what()?;
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    stack.push((id, step));
    Ok((made, Pending(id)))
}

/// A fresh directory, which is removed with all it holds.
///
/// # Errors
/// It cannot be made.
pub fn directory(prefix: &str, parent: &Path) -> Result<(PathBuf, Pending)> {
    set_up(|| {
        let made = tempfile::Builder::new().prefix(prefix).tempdir_in(parent);
        let about = || format!("cannot make a directory in {}", parent.display());
        let path = made.with_context(about)?.keep();
        Ok((path.clone(), Undo::Remove(path)))
    })
}

impl Pending {
    /// Forgets the step, because its work has been done in the ordinary way.
    pub fn cancel(self) {
        STACK.lock().retain(|(id, _)| *id != self.0);
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let mut stack = STACK.lock();
        if let Some(at) = stack.iter().position(|(id, _)| *id == self.0) {
            let (_, step) = stack.remove(at);
            perform(step);
        }
    }
}

/// Failures are passed over: a step often finds its work done already, and the steps after it
/// matter just as much.
fn perform(step: Undo) {
    match step {
        Undo::Unmount(dir) => tear_away(&dir),
        Undo::CutPower(power) => power.cut(),
        Undo::Detach(device) => run_quietly(Command::new("losetup").arg("-d").arg(device)),
        Undo::Kill(child) => {
            let mut child = child.lock();
            let _ = child.kill();
            let _ = child.wait();
        }
        Undo::KillGroup(group) => end_group(group),
        Undo::Remove(dir) => {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

/// Kills a group and waits until nobody of it is left: a process that is only about to end still
/// holds a mount, and with it a loop device.
fn end_group(group: Pid) {
    const LIMIT: Duration = Duration::from_secs(2);
    const POLL_INTERVAL: Duration = Duration::from_millis(5);
    let _ = kill_process_group(group, Signal::KILL);
    let start = Instant::now();
    while test_kill_process_group(group).is_ok() && start.elapsed() < LIMIT {
        // Its leader is our child, and of the group until somebody has asked how it ended.
        let _ = waitid(WaitId::Pid(group), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        sleep(POLL_INTERVAL);
    }
}

fn tear_away(dir: &Path) {
    if rustix::process::geteuid().is_root() {
        // FORCE breaks the connection to a FUSE daemon that no longer answers.
        let _ = unmount(dir, UnmountFlags::FORCE | UnmountFlags::DETACH);
    } else {
        run_quietly(Command::new("fusermount3").args(["-u", "-z", "-q", "--"]).arg(dir));
    }
}

fn run_quietly(command: &mut Command) {
    let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

/// From now on SIGINT, SIGTERM and SIGHUP perform all registered steps, then say farewell, and end
/// the program with the customary status, 128 + signal. A second signal skips the farewell.
pub fn on_signals(farewell: impl FnOnce() + Send + 'static) -> Result<()> {
    const SIGNALS: [c_int; 3] = [SIGINT, SIGTERM, SIGHUP];
    let mut signals = Signals::new(SIGNALS).context("cannot watch signals")?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            // The lock is kept until the end, so that the main thread cannot set up anything new.
            let mut stack = STACK.lock();
            while let Some((_, step)) = stack.pop() {
                perform(step);
            }
            let status = 128 + signal;
            for another in SIGNALS {
                let at_once = Arc::new(AtomicBool::new(true));
                // Without it, the second signal has no effect, and the farewell is not long.
                let _ = register_conditional_shutdown(another, status, at_once);
            }
            farewell();
            std::process::exit(status);
        }
    });
    Ok(())
}

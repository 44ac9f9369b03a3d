//! The threads of the process that serves a mount: how they start, and what a panic ends.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::thread::{self, Builder, JoinHandle};

use anyhow::Context;
use parking_lot::Mutex;

use crate::output::say;

/// Starts a thread.
///
/// # Errors
/// The system has none left for this process or its user.
pub fn start<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> anyhow::Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).spawn(work).context(NO_THREAD)
}

/// Fails if `count` more threads cannot be started, before anything depends on them.
pub fn make_sure_of(count: usize) -> anyhow::Result<()> {
    let gate = Mutex::new(());
    thread::scope(|scope| {
        let closed = gate.lock();
        let wait = || drop(gate.lock());
        let start = |_| Builder::new().spawn_scoped(scope, wait).map(drop);
        let started = (0..count).try_for_each(start);
        drop(closed);
        started.context(NO_THREAD)
    })
}

/// What is wrong if one cannot be started.
pub const NO_THREAD: &str =
    "cannot start a thread; ulimit -u or the cgroup's pids.max allows no more";

thread_local! {
    /// Whether this thread is doing what is no part of the file system.
    static ASIDE: Cell<bool> = const { Cell::new(false) };
}

/// From now on a panic ends the process, but for what [`aside`] does. It leaves a request without
/// an answer and perhaps a promise half kept, while an end without a commit is safe: the volume is
/// then as it was at its last durable moment.
pub fn abort_on_panic() {
    std::panic::set_hook(Box::new(|panic: &PanicHookInfo<'_>| {
        if ASIDE.get() {
            return tracing::error!("nilfs has a bug outside the file system: {panic}");
        }
        tracing::error!("nilfs has a bug and must stop: {panic}");
        say!("nilfs has a bug and must stop: {panic}");
        std::process::abort();
    }));
}

/// Does what is no part of the file system and at most looks at it: a panic ends this work alone.
pub fn aside<T>(work: impl FnOnce() -> T) -> Result<T, Box<dyn Any + Send>> {
    let before = ASIDE.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    ASIDE.set(before);
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_aside_ends_only_what_was_done_there() {
        abort_on_panic();
        let done = [aside(|| panic!("a test of panics")), aside(|| ())].map(|done| done.is_ok());
        drop(std::panic::take_hook());
        assert_eq!(done, [false, true]);
    }
}

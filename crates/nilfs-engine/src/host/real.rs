//! The machine as it is: threads and time of the operating system, locks of `parking_lot`.

pub(crate) use std::hash::RandomState;
use std::io;
pub(crate) use std::sync::atomic;
pub(crate) use std::thread::JoinHandle;
use std::time::Duration;
pub(crate) use std::time::Instant;
use std::time::{SystemTime, UNIX_EPOCH};

pub(super) use parking_lot::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
pub(crate) use quick_cache::DefaultHashBuilder as NumberState;
pub(super) use std::thread_local;

/// Starts a thread.
///
/// # Errors
/// The system has no thread left for this process or its user.
pub(crate) fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work)
}

/// Lets the thread wait.
pub(crate) fn sleep(time: Duration) {
    std::thread::sleep(time);
}

/// Time since 1970 by the system's clock.
pub(super) fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

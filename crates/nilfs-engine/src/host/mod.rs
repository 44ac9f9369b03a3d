//! What the engine needs of the machine it runs on, besides a device: locks, atomic variables,
//! threads, sleeping, time, and what hashes begin with.
//!
//! No other module of the engine names a library for any of them. So all locks are ranked, and
//! with the feature `shuttle` all of it is simulated: then a test decides which thread goes on and
//! how time passes, and a seed replays it.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this is where they come from, see clippy.toml"
)]

mod clock;
mod locks;
mod rank;
#[cfg(not(feature = "shuttle"))]
mod real;
#[cfg(feature = "shuttle")]
mod simulated;
mod waiting;

#[cfg(not(feature = "shuttle"))]
use self::real as machine;
#[cfg(feature = "shuttle")]
use self::simulated as machine;

pub use self::clock::{Clock, SystemClock, Timestamp};
pub(crate) use self::locks::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
pub(crate) use self::machine::{Instant, JoinHandle, atomic, spawn};
// Names are chosen by users, who could choose them to collide; numbers are not.
pub(crate) use self::machine::{NumberState, RandomState};
pub(crate) use self::rank::Rank;
#[cfg(not(feature = "shuttle"))]
pub(crate) use self::real::sleep;
#[cfg(feature = "shuttle")]
pub use self::simulated::{sleep, world};
pub(crate) use self::waiting::may_wait;
pub use self::waiting::without_waiting;

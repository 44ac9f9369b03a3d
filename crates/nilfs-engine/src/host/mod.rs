//! What the engine needs of the machine it runs on, besides a device: locks.
//!
//! No other module of the engine names a library for them, so that all of them are ranked, and so
//! that a model of concurrency can take their place.

mod locks;
mod rank;

pub(crate) use self::locks::{Condvar, Mutex, MutexGuard, RwLock};
pub(crate) use self::rank::Rank;

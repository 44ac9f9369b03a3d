//! Caches that several threads use, in memory that has a limit.

use std::hash::Hash;

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};

use crate::host::NumberState;

/// Parts of a cache with a lock each. As many on every machine: which blocks have to be read
/// again depends on it.
pub(crate) const SHARDS: usize = 16;

/// Room of a cache.
pub(crate) struct Room {
    /// Values that are expected at a time.
    pub(crate) values: usize,
    /// Weight of all values together, at most.
    pub(crate) weight: u64,
    /// The part for values that were used more than once, if it is not the usual one.
    pub(crate) hot: Option<f64>,
}

/// Returns an empty cache of numbered values.
pub(crate) fn cache<K, V, W>(room: &Room, weighter: W) -> Cache<K, V, W, NumberState>
where
    K: Eq + Hash + Clone,
    V: Clone,
    W: Weighter<K, V> + Clone,
{
    let mut options = OptionsBuilder::new();
    options.estimated_items_capacity(room.values).weight_capacity(room.weight).shards(SHARDS);
    if let Some(hot) = room.hot {
        options.hot_allocation(hot);
    }
    // The builder fails only where one of the two capacities is missing, and both are set above.
    let options = options.build().expect("both capacities are set");
    Cache::with_options(options, weighter, NumberState::default(), DefaultLifecycle::default())
}

//! Which worlds a test visits: some fixed seeds by default, one seed on request, or new seeds for
//! as long as one likes.
//!
//! `NILFS_SEED=n` replays seed `n`; `NILFS_SIM_MINUTES=m` goes on with fresh seeds for `m` minutes.

use std::time::{Duration, Instant};

/// Calls `world` with one seed after the other and prints each before it is used.
pub fn for_each_seed(test: &str, default_count: u64, world: impl Fn(u64)) {
    if let Some(seed) = number("NILFS_SEED") {
        println!("{test}: seed {seed}");
        return world(seed);
    }
    let fixed = 1..=default_count;
    let soak = number("NILFS_SIM_MINUTES").map(|minutes| Duration::from_secs(60 * minutes));
    let started = Instant::now();
    let fresh = std::iter::from_fn(|| {
        (soak? > started.elapsed()).then(|| rand::random_range(1_000..u64::MAX))
    });
    for seed in fixed.chain(fresh) {
        println!("{test}: seed {seed} (replay with NILFS_SEED={seed})");
        world(seed);
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable} is {text:?}, expected a number")))
}

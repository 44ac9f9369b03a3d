//! Which worlds a test visits: some fixed seeds by default, one seed on request, or new seeds for
//! as long as one likes.
//!
//! `NILFS_SEED=n` replays seed `n`; `NILFS_SIM_MINUTES=m` goes on with fresh seeds for `m` minutes.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Calls `world` with every seed, on all cores, and prints each before it is used. After one that fails,
/// no other is begun.
pub fn for_each_seed(test: &str, default_count: u64, world: impl Fn(u64) + Sync) {
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
    let seeds = Mutex::new(fixed.chain(fresh));
    let failed = AtomicBool::new(false);
    let next = || {
        let mut seeds = seeds.lock().expect("taking the next seed does not panic");
        seeds.next().filter(|_| !failed.load(Ordering::Relaxed))
    };
    let visit_worlds = || {
        while let Some(seed) = next() {
            println!("{test}: seed {seed} (replay with NILFS_SEED={seed})");
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| world(seed))) {
                failed.store(true, Ordering::Relaxed);
                resume_unwind(panic);
            }
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(visit_worlds)).collect();
        for thread in threads {
            thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        }
    });
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable} is {text:?}, expected a number")))
}

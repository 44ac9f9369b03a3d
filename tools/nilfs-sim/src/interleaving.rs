//! The order in which threads go on, and how time passes meanwhile, decided by a seed.
//!
//! `shuttle` runs one thread at a time and decides which one goes on: at every lock and atomic
//! variable of the engine, and whenever the device is asked for something.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use nilfs_device::{Claim, Device, IoSlice};
use nilfs_engine::world;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner, thread};

/// Bytes of a thread's stack: a program in debug mode needs more than `shuttle` thinks.
const STACK_SIZE: usize = 1 << 20;

/// Steps of all threads together, beyond which they are taken to run in circles.
const MOST_STEPS: usize = 20_000_000;

/// How it is decided which thread goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Any of them, at each step.
    Random,
    /// The one that ranks highest, until it has to wait; the ranks are random, and the highest goes
    /// down this often at a random step (probabilistic concurrency testing).
    Preemptions(usize),
    /// Each until it has to wait. Time stands still meanwhile.
    InTurn,
}

/// Runs `work`, and the threads that it starts, in the order that `seed` stands for.
///
/// # Panics
/// If `work` does, if all threads wait for each other, or if they run in circles.
pub fn interleaved(seed: u64, choice: Choice, work: impl Fn() + Send + Sync + 'static) {
    match choice {
        Choice::Random => run(RandomScheduler::new_from_seed(seed, 1), work),
        // The first of two runs only counts the steps over which the preemptions are spread.
        Choice::Preemptions(count) => run(PctScheduler::new_from_seed(seed, count + 1, 2), work),
        Choice::InTurn => run(PctScheduler::new_from_seed(seed, 1, 1), work),
    }
}

fn run(scheduler: impl Scheduler + 'static, work: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = STACK_SIZE;
    config.max_steps = MaxSteps::FailAfter(MOST_STEPS);
    config.silence_warnings = true;
    // The seed is shorter than the schedule.
    config.failure_persistence = FailurePersistence::None;
    Runner::new(scheduler, config).run(move || world(&work));
}

/// Returns a device that takes its time: other threads may go on before it begins, and before its answer is
/// received.
#[must_use]
pub fn taking_time(device: Arc<dyn Device>) -> Arc<dyn Device> {
    Arc::new(Slow(device))
}

struct Slow(Arc<dyn Device>);

impl Slow {
    fn taking_time<T>(&self, request: impl FnOnce(&dyn Device) -> T) -> T {
        thread::sleep(Duration::ZERO);
        let answer = request(&*self.0);
        thread::sleep(Duration::ZERO);
        answer
    }
}

impl Device for Slow {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn is_read_only(&self) -> bool {
        self.0.is_read_only()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.taking_time(|device| device.read_at(offset, buffer))
    }

    fn write_at(&self, offset: u64, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        self.taking_time(|device| device.write_at(offset, pieces))
    }

    fn flush(&self) -> io::Result<()> {
        self.taking_time(|device| device.flush())
    }

    fn discard(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.taking_time(|device| device.discard(offset, bytes))
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        self.taking_time(|device| device.resize(bytes))
    }

    fn is_read(&self) -> bool {
        self.taking_time(|device| device.is_read())
    }

    fn keep_readers_out(&self) -> Option<Claim> {
        self.taking_time(|device| device.keep_readers_out())
    }
}

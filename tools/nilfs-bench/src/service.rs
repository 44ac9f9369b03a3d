//! What the process that serves a file system in user space has done meanwhile.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::file_systems::FileSystem;

/// Work of the process that serves a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Service {
    /// Requests of the kernel, where the file system counts them.
    pub requests: Option<u64>,
    /// Processor time.
    pub processor: Duration,
    /// How often one of its threads had to be woken.
    pub wakeups: u64,
}

impl Service {
    /// What process `pid` has done so far for what `system` has mounted on `dir`.
    pub fn so_far(system: &dyn FileSystem, dir: &Path, pid: u32) -> Result<Self> {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let requests = system.requests(dir)?;
        let look = || {
            let stat = fs::read_to_string(process.join("stat"))?;
            let mut wakeups = 0;
            for thread in fs::read_dir(process.join("task"))? {
                wakeups += voluntary_switches(&fs::read_to_string(thread?.path().join("status"))?);
            }
            std::io::Result::Ok(Self { requests, processor: processor_time(&stat), wakeups })
        };
        look().with_context(|| format!("cannot see what process {pid} has done"))
    }

    /// What was done since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let requests = self.requests.zip(earlier.requests);
        Self {
            requests: requests.map(|(now, then)| now.saturating_sub(then)),
            processor: self.processor.saturating_sub(earlier.processor),
            wakeups: self.wakeups.saturating_sub(earlier.wakeups),
        }
    }
}

/// User and system time in `/proc/PID/stat`, of all threads that there were.
fn processor_time(stat: &str) -> Duration {
    // The name of the program comes before them, and may contain anything.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks: u64 = fields.split_whitespace().skip(11).take(2).flat_map(str::parse::<u64>).sum();
    Duration::from_secs(ticks) / rustix::param::clock_ticks_per_second() as u32
}

/// How often a thread has gone to sleep of its own accord, from its `status`.
fn voluntary_switches(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_after_a_name_with_anything_in_it() {
        let stat = "7 (a) 1 2) S 1 7 7 0 -1 4194304 1 2 3 4 150 50 9 9 20 0 1";
        let ticks = rustix::param::clock_ticks_per_second() as u32;
        assert_eq!(processor_time(stat), Duration::from_secs(200) / ticks);
    }

    #[test]
    fn a_thread_that_sleeps_has_switched() {
        std::thread::sleep(Duration::from_millis(1));
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        assert!(voluntary_switches(&status) > 0);
        assert_eq!(voluntary_switches("Name:\tx\n"), 0);
    }
}

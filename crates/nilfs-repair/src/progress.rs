//! Telling how far the making of a plan has come, and what is checked and read for it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nilfs_check::{CheckError, Options, Report, Step};
use nilfs_device::Device;
use nilfs_engine::scan::Scan;

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// A volume is checked.
    Check {
        /// How many checks there were before: the first is of the volume as it is, the others are of what
        /// it would become.
        round: u32,
        /// The step of the check, and so what is counted.
        step: Step,
    },
    /// The whole device is looked through for logs; counted in bytes.
    Scan,
    /// What was corrected is moved to where there is room; counted in segments.
    Move,
}

/// Is called with a task, and with how much of how much of it is done.
#[derive(Clone)]
pub struct Observer {
    observe: Arc<dyn Fn(Task, u64, u64) + Send + Sync>,
    checks: Arc<AtomicU32>,
}

impl Observer {
    /// Calls this, now and then.
    pub fn new(observe: impl Fn(Task, u64, u64) + Send + Sync + 'static) -> Self {
        Self { observe: Arc::new(observe), checks: Arc::default() }
    }

    pub(crate) fn observe(&self, task: Task, done: u64, all: u64) {
        (self.observe)(task, done, all);
    }

    /// Checks a volume, and tells how far that is.
    pub(crate) fn check(
        &self,
        device: &dyn Device,
        options: &Options,
    ) -> Result<Report, CheckError> {
        let round = self.checks.fetch_add(1, Ordering::Relaxed);
        let observe = Arc::clone(&self.observe);
        let observer = nilfs_check::Observer::new(move |step, done, all| {
            observe(Task::Check { round, step }, done, all);
        });
        nilfs_check::check(device, &Options { observer, ..options.clone() })
    }

    /// Looks through a device for logs, and tells how far that is.
    pub(crate) fn scan(&self, device: &dyn Device) -> nilfs_engine::Result<Scan> {
        Scan::run(device, &|done| self.observe(Task::Scan, done, device.size()))
    }
}

impl Default for Observer {
    /// Looks away.
    fn default() -> Self {
        Self::new(|_, _, _| {})
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

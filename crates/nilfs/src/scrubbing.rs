//! Scrubbing: going through a volume at a measured pace, going on where that was ended, and knowing
//! afterwards what was found. The engine reads and judges; a command or the process that serves a mount
//! goes through this.
//!
//! | module | what it knows |
//! |---|---|
//! | `report` | what was found, in words and as a record |
//! | `record` | a scrub as it is remembered, in a file beside the system's other state |
//! | `scrubber` | scrubs in the background of a mount, and when they are due |
//!
//! What is remembered does not lie on the volume: a scrub is to write nothing there, and is possible
//! where nothing can be written.

mod record;
mod report;
mod scrubber;

use std::cell::Cell;
use std::time::{Duration, Instant};

use nilfs_engine::scrub::{Observe, Progress, Scrubbed, Selection};
use nilfs_engine::{Error, Filesystem, SegNum};
use serde::{Deserialize, Serialize};

pub use record::{Record, StateFile};
pub use report::Report;
pub use scrubber::{Schedule, Scrubber, Scrubbing};

/// How often it is noted where a scrub is, in case that its process is killed.
const NOTED: Duration = Duration::from_secs(30);

/// How a volume is to be scrubbed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Bytes in a second, at most.
    pub rate: Option<u64>,
    /// From the beginning, even if an earlier scrub was interrupted.
    pub anew: bool,
    /// What is damaged is repaired where another copy of it is on the device.
    #[serde(default)]
    pub repair: bool,
}

/// Scrubs a volume that this process has mounted, and repairs it if that is planned.
///
/// # Errors
/// Those of [`Filesystem::scrub`] and [`Filesystem::repair`].
pub fn scrub_mounted(
    fs: &Filesystem,
    plan: Plan,
    selection: &Selection,
    observe: Observe<'_>,
) -> Result<Scrubbed, Error> {
    let mut found = fs.scrub(selection, observe)?;
    if plan.repair {
        fs.repair(&mut found)?;
    }
    Ok(found)
}

/// Scrubs a volume by means of `scrub`, or goes on with that, and remembers it in `state`. `end` waits
/// for as long as it is told, or until the scrub is to end, and says whether it is. `progress` is told
/// how far the scrub is.
///
/// # Errors
/// Those of `scrub`.
pub fn run<E>(
    scrub: impl FnOnce(&Selection, Observe<'_>) -> Result<Scrubbed, E>,
    state: &StateFile,
    plan: Plan,
    end: &dyn Fn(Duration) -> bool,
    progress: &dyn Fn(Progress),
) -> Result<Record, E> {
    let earlier = state.load().filter(|it| it.report.interrupted && !plan.anew);
    let earlier = earlier.unwrap_or_else(Record::new);
    let selection = earlier.selection();
    let started = Instant::now();
    let noted = Cell::new(started);
    let observe = &mut |now: Progress| {
        progress(now);
        let due = plan.rate.map(|rate| Duration::from_secs_f64(now.read as f64 / rate as f64));
        if end(due.unwrap_or_default().saturating_sub(started.elapsed())) {
            return std::ops::ControlFlow::Break(());
        }
        if noted.get().elapsed() >= NOTED {
            noted.set(Instant::now());
            state.save(&earlier.so_far(now));
        }
        std::ops::ControlFlow::Continue(())
    };
    let record = earlier.with(&scrub(&selection, observe)?);
    state.save(&record);
    Ok(record)
}

impl Record {
    fn selection(&self) -> Selection {
        let also = self.report.damage.iter().map(|damage| SegNum(damage.segment)).collect();
        Selection { from: SegNum(self.resume_at.unwrap_or_default()), also }
    }

    /// As it is to be remembered if the process ends now.
    fn so_far(&self, now: Progress) -> Self {
        let mut record = self.clone();
        record.ended = record::now();
        record.resume_at = self.resume_at.max(Some(now.from.0));
        record.report.interrupted = true;
        record.report.read_bytes += now.read;
        record.report.sound_logs += now.sound_logs;
        record
    }

    /// With what the rest has shown. What was damaged before has been read again.
    fn with(&self, found: &Scrubbed) -> Self {
        let mut report = Report::from(found);
        if self.resume_at.is_some() {
            report.checkpoint = self.report.checkpoint;
        }
        report.read_bytes += self.report.read_bytes;
        report.sound_logs += self.report.sound_logs;
        if let Some(at) = found.interrupted {
            let is_unread = |segment: u64| segment >= at.0;
            let unread = self.report.damage.iter().filter(|it| is_unread(it.segment));
            let known: Vec<u64> = report.damage.iter().map(|damage| damage.segment).collect();
            report.damage.extend(unread.filter(|it| !known.contains(&it.segment)).cloned());
        }
        let resume_at = found.interrupted.map(|at| at.0.max(self.resume_at.unwrap_or_default()));
        Self { began: self.began, ended: record::now(), resume_at, report }
    }
}

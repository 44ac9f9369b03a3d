//! What is done to a file system: the workloads of the published comparisons, and some more.
//!
//! A workload is a list of steps; a step that is measured has a name and a unit. Real programs do
//! the work, started by scripts. A script finds these variables: `DIR`, where the file system is
//! mounted; `SCRATCH`, memory with the sources that the workload asked for; `SYNC`, the command
//! that makes all below the directory that follows it durable.
//!
//! Sizes are those of the original comparison times the scale. Where the time of a program is
//! dominated by its own start, the time it took by its own report counts.

use crate::file_systems::Program;
use crate::model::Limits;
use crate::names::wrong;
use crate::results::Unit;

mod dd;
mod fio;
mod fsync_beside_writer;
mod life;
mod mail_spool;
mod mount_time;
mod packages;
mod postmark;
mod small_fsyncs;
pub mod sources;
mod sqlite;
mod steady_overwrite;
mod trees;

pub use fio::Report as FioReport;
pub use sources::Source;

/// What a workload is run with.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// The part of the original sizes.
    pub scale: f64,
    /// The part that was asked for, which can be less: for what is the same however often it is
    /// done.
    pub asked: f64,
    /// Size of the device.
    pub device_bytes: u64,
}

/// In which modes a workload is measured with a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Modes {
    /// As it is mounted by default.
    One,
    /// With each way to keep access times.
    AccessTimes,
    /// Ours also as it should be mounted, where pages of flash are not as large as it takes them for.
    FlashPages,
}

/// Something people do with a file system.
#[derive(Debug)]
pub struct Workload {
    /// Its name.
    pub name: &'static str,
    /// For people.
    pub title: &'static str,
    /// Which comparison or use it reproduces.
    pub stands_for: &'static str,
    /// Programs that must be there.
    pub needs: &'static [Program],
    /// What has to lie in the scratch directory.
    pub sources: &'static [Source],
    /// Whether file systems that keep their past may do so; the others must not, because the
    /// device is filled more than once.
    pub history: bool,
    /// In which modes a file system is measured that was named without options.
    pub modes: Modes,
    /// Bytes on the device at the same time, at most, at a scale.
    pub bytes_needed: fn(f64) -> u64,
    /// The steps, in order.
    pub steps: fn(&Setting) -> Vec<Step>,
}

/// One thing after the other.
#[derive(Debug, Clone)]
pub struct Step {
    /// What is done.
    pub action: Action,
    /// Words about the action for people, with the amounts of the setting: "16 × 1 MiB, each durable".
    pub about: String,
    /// What is found by it; nothing for a preparation.
    pub measures: Vec<Measure>,
    /// What the device has to do for it, where its measures do not say that: only to tell how long
    /// it will take.
    pub cost: Best,
    /// Seconds that a processor works for it, such as a compiler's: to tell that, too.
    pub work: f64,
    /// Seconds that a processor works for calls of the file system, which take longer where a process
    /// serves it.
    pub calling: f64,
}

/// What a step does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Makes a new file system.
    Format,
    /// Mounts it.
    Mount,
    /// Unmounts it.
    Unmount,
    /// Forgets what the kernel has cached of files.
    DropCaches,
    /// Takes the unmounted device away and attaches it again: a reboot.
    Reattach,
    /// The same with a mounted one: what was not written is lost.
    CutPower,
    /// Runs a script.
    Script(String),
}

/// Something to find out by a step.
#[derive(Debug, Clone)]
pub struct Measure {
    /// The name of the row.
    pub name: String,
    /// Description of what the step does, with the amounts of the setting.
    pub about: String,
    /// The unit of its figure.
    pub unit: Unit,
    /// Where the figure comes from.
    pub what: What,
    /// What the device at its best would need for it.
    pub best: Best,
}

/// Where a figure comes from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum What {
    /// The time it took. Rates are the amount divided by it: bytes or operations.
    Time {
        /// How much was done.
        amount: f64,
        /// What tells how long it took.
        by: Timer,
        /// Whether most of the time passes in memory, so that the device's own time says nothing.
        memory: bool,
    },
    /// How long syncs take, by fio's report, in milliseconds.
    SyncLatency(Latency),
    /// What was written to the device.
    Written,
}

/// Which of many latencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Latency {
    /// What half of them are below.
    Median,
    /// What 99 of 100 are below.
    Percentile99,
    /// The longest.
    Most,
}

/// What tells how long something took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timer {
    /// The clock, from the start of the script to its end.
    Clock,
    /// fio, which does not count its own start.
    Fio,
}

/// What a device must do at least.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Best {
    /// Nobody knows.
    Unknown,
    /// Write this many bytes one after the other.
    Write(f64),
    /// Read this many bytes one after the other.
    Read(f64),
    /// Read so often 4 KiB.
    SmallReads(f64),
    /// Write this many bytes as often as that, and flush each time.
    Synced {
        /// How often.
        times: f64,
        /// How much each time.
        bytes: f64,
    },
}

impl Best {
    /// Seconds at best.
    #[must_use]
    pub fn seconds(self, limits: &Limits) -> Option<f64> {
        let seconds = match self {
            Self::Unknown => return None,
            Self::Write(bytes) => bytes / limits.sequential_write,
            Self::Read(bytes) => bytes / limits.sequential_read,
            Self::SmallReads(times) => times * limits.small_read,
            Self::Synced { times, bytes } => {
                times * ((bytes / limits.sequential_write).max(limits.small_write) + limits.flush)
            }
        };
        (seconds.is_finite() && seconds > 0.0).then_some(seconds)
    }
}

impl Measure {
    /// The figure for a time.
    #[must_use]
    pub fn figure(&self, seconds: f64) -> f64 {
        let amount = match self.what {
            What::Time { amount, .. } => amount,
            What::SyncLatency(_) | What::Written => 1.0,
        };
        match self.unit {
            Unit::MegabytesPerSecond => amount / 1e6 / seconds,
            Unit::PerSecond => amount / seconds,
            Unit::Seconds | Unit::Megabytes => seconds,
            Unit::Milliseconds => seconds * 1e3,
        }
    }

    /// The figure of the device at its best.
    #[must_use]
    pub fn limit(&self, limits: &Limits) -> Option<f64> {
        match (self.what, self.best) {
            (What::Written, Best::Write(bytes)) => Some(bytes / 1e6),
            (What::Time { .. }, best) => best.seconds(limits).map(|seconds| self.figure(seconds)),
            _ => None,
        }
    }

    /// Whether the figure means something when the device does not take its time.
    #[must_use]
    pub fn without_pace(&self) -> bool {
        match self.what {
            What::Time { memory, .. } => !memory,
            What::Written => true,
            What::SyncLatency(_) => false,
        }
    }
}

impl Step {
    fn of(action: Action) -> Self {
        let (about, measures) = (String::new(), Vec::new());
        Self { action, about, measures, cost: Best::Unknown, work: 0.0, calling: 0.0 }
    }

    fn script(script: impl Into<String>) -> Self {
        Self::of(Action::Script(script.into()))
    }

    /// A script that is measured, and what it does.
    fn task(about: impl Into<String>, script: impl Into<String>) -> Self {
        Self { about: about.into(), ..Self::script(script) }
    }

    fn measured(mut self, name: &str, unit: Unit, what: What, best: Best) -> Self {
        let (name, about) = (name.to_owned(), self.about.clone());
        self.measures.push(Measure { name, about, unit, what, best });
        self
    }

    /// What the device has to do for what is not measured, or not in these terms.
    fn costs(mut self, cost: Best) -> Self {
        self.cost = cost;
        self
    }

    /// Seconds that a processor of this machine works for it.
    fn works(mut self, seconds: f64) -> Self {
        self.work = seconds;
        self
    }

    /// So often a program calls the file system, and waits for it.
    fn calls(mut self, calls: u64) -> Self {
        const CALL: f64 = 1e-4;
        self.calling = calls as f64 * CALL;
        self
    }

    /// What the device has to do for it, as far as that is known.
    #[must_use]
    pub fn best(&self) -> Best {
        let measured = self.measures.iter().map(|measure| measure.best);
        [self.cost]
            .into_iter()
            .chain(measured)
            .find(|best| *best != Best::Unknown)
            .unwrap_or(self.cost)
    }

    /// Seconds of the whole script.
    fn seconds(self, name: &str, best: Best) -> Self {
        let what = What::Time { amount: 1.0, by: Timer::Clock, memory: false };
        self.measured(name, Unit::Seconds, what, best)
    }

    /// Megabytes per second of a number of bytes.
    fn rate(self, name: &str, bytes: u64, by: Timer, best: Best) -> Self {
        let what = What::Time { amount: bytes as f64, by, memory: false };
        self.measured(name, Unit::MegabytesPerSecond, what, best)
    }

    /// Operations per second.
    fn per_second(self, name: &str, operations: u64, by: Timer, best: Best) -> Self {
        let what = What::Time { amount: operations as f64, by, memory: false };
        self.measured(name, Unit::PerSecond, what, best)
    }

    fn written(self, name: &str, best: Best) -> Self {
        self.measured(name, Unit::Megabytes, What::Written, best)
    }
}

fn format() -> Step {
    Step::of(Action::Format)
}

fn mount() -> Step {
    Step::of(Action::Mount)
}

/// A mount that is measured, in milliseconds, and what comes before it.
fn timed_mount(name: &str, about: impl Into<String>) -> Step {
    let what = What::Time { amount: 1.0, by: Timer::Clock, memory: false };
    let step = Step { about: about.into(), ..mount() };
    step.measured(name, Unit::Milliseconds, what, Best::Unknown)
}

fn unmount() -> Step {
    Step::of(Action::Unmount)
}

/// What comes after starts with nothing in memory.
fn remount() -> [Step; 3] {
    [unmount(), Step::of(Action::DropCaches), mount()]
}

/// Calls that a new small file takes: it is looked up, made, opened, written, closed, looked at.
const CALLS_OF_A_FILE: u64 = 6;

/// The number of pieces at a scale, but no fewer than `least`.
fn pieces(original: u64, scale: f64, least: u64) -> u64 {
    ((original as f64 * scale).round() as u64).max(least)
}

const ALL: &[&Workload] = &[
    &dd::BIG_FILE,
    &trees::GENTOO_TREE,
    &dd::DD,
    &dd::DD_SYNC,
    &fio::IOZONE,
    &mount_time::MOUNT_TIME,
    &life::LIFE,
    &postmark::POSTMARK,
    &trees::KERNEL_TREE,
    &sqlite::SQLITE,
    &small_fsyncs::SMALL_FSYNCS,
    &mail_spool::MAIL_SPOOL,
    &packages::PACKAGES,
    &fsync_beside_writer::FSYNC_BESIDE_WRITER,
    &steady_overwrite::STEADY_OVERWRITE,
];

/// All of them, in the order of a report.
#[must_use]
pub fn all() -> &'static [&'static Workload] {
    ALL
}

/// The workload of a name.
///
/// # Errors
/// There is none of that name.
pub fn find(name: &str) -> anyhow::Result<&'static Workload> {
    ALL.iter().copied().find(|workload| workload.name == name).ok_or_else(|| {
        let names: Vec<&str> = ALL.iter().map(|workload| workload.name).collect();
        wrong("workload", name, &names)
    })
}

/// Text as a number, such as a size, with an optional part: "1/8" or "0.125".
///
/// # Errors
/// It is neither, or not above 0 and at most 1.
pub fn scale_of(text: &str) -> anyhow::Result<f64> {
    let number = |text: &str| text.trim().parse::<f64>().ok();
    let scale = match text.split_once('/') {
        Some((part, whole)) => number(part).zip(number(whole)).map(|(part, whole)| part / whole),
        None => number(text),
    };
    scale.filter(|scale| *scale > 0.0 && *scale <= 1.0).ok_or_else(|| {
        anyhow::anyhow!("\"{text}\" is not a scale: 1, or a part of it such as 1/8 or 0.125")
    })
}

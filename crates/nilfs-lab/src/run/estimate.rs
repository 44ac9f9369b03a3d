//! How long a run will still take.
//!
//! Before anything is measured, a workload is expected to take what its steps cost the device at
//! best, times what file systems usually make of that, what a processor has to do for it, and what
//! the place needs for each start and each step. What was measured then corrects the expectation of
//! what is left: the more two jobs have in common, the more the one says about the other, and the
//! longer it was expected to take. So a short job, most of which is its start, does not tell how
//! long those will take that keep the device busy.

use std::collections::btree_map::{BTreeMap, Entry};
use std::time::Duration;

use anyhow::Result;

use super::plan::Plan;
use super::store::Store;
use crate::model::Limits;
use crate::place::Surroundings;
use crate::results::Clock;
use crate::workloads::{Action, Best, Step};

/// The kind of the file systems that a process serves.
const SERVED: &str = "fuse";

/// How long all jobs of a plan take.
pub(super) struct Estimate {
    jobs: Vec<Job>,
    /// How often each is repeated.
    runs: f64,
}

/// A workload on a file system on a device.
struct Job {
    /// The names of these three.
    names: [String; 3],
    /// Seconds that a run of it is expected to take, before anything is measured.
    expected: f64,
    /// Seconds that it took.
    took: Option<f64>,
    is_done: bool,
}

impl Estimate {
    /// What is expected of a plan, and known from an earlier run.
    ///
    /// # Errors
    /// There is no model of a device.
    pub fn of(plan: &Plan, surroundings: &Surroundings, store: &Store) -> Result<Self> {
        let pace = Pace::of(surroundings, plan.clock);
        let mut limits: BTreeMap<&str, Limits> = BTreeMap::new();
        let mut jobs = Vec::new();
        for (table, file_system) in plan.jobs() {
            let device = table.device.name.as_str();
            let limits = match limits.entry(device) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(table.device.limits()?),
            };
            jobs.push(Job {
                names: [device, table.workload.name, &file_system.name].map(str::to_owned),
                expected: pace.seconds(
                    &(table.workload.steps)(&table.setting(plan.scale)),
                    limits,
                    file_system.kind == SERVED,
                ),
                took: store.seconds(table, file_system),
                is_done: store.has(plan, table, file_system),
            });
        }
        Ok(Self { jobs, runs: f64::from(plan.runs) })
    }

    /// A job has ended; if it came to its end, a run of it took this many seconds.
    pub fn done(&mut self, at: usize, took: Option<f64>) {
        if let Some(job) = self.jobs.get_mut(at) {
            (job.took, job.is_done) = (took, true);
        }
    }

    /// How long all jobs that are not done will take.
    pub fn left(&self) -> Duration {
        let left = self.jobs.iter().filter(|job| !job.is_done);
        let run = left.map(|job| job.expected * self.correction(job)).sum::<f64>();
        Duration::from_secs_f64(run * self.runs)
    }

    /// By how much the expectation of a job is wrong, going by those that were measured: the mean
    /// of their errors (as logarithms), weighted by what they have in common with it, and by how long
    /// they were expected to take.
    fn correction(&self, job: &Job) -> f64 {
        /// The expectations themselves weigh as much as so many usual jobs that have nothing in
        /// common with this one.
        const TRUST: f64 = 8.0;
        /// How much more a job weighs for each of device, workload and file system in common.
        const COMMON: f64 = 4.0;
        let usual = self.jobs.iter().map(|job| job.expected).sum::<f64>() / self.jobs.len() as f64;
        let (mut weights, mut errors) = (TRUST * usual, 0.0);
        for other in &self.jobs {
            let Some(took) = other.took else { continue };
            let common = other.names.iter().zip(&job.names).filter(|(a, b)| a == b).count();
            let weight = COMMON.powi(common as i32) * other.expected;
            weights += weight;
            errors += weight * (took / other.expected).ln();
        }
        (errors / weights).exp()
    }
}

/// What takes time besides what a device does at best.
struct Pace {
    /// Seconds until a device is attached and its sources are copied: a boot, in a virtual machine.
    attach: f64,
    /// Seconds of a step in which neither the device nor a compiler has anything to do.
    step: f64,
    /// How many times as long as one of this machine a processor works.
    processor: f64,
    /// How many times as long it works for a call of a file system that a process serves.
    served: f64,
    /// How much of its time the device really takes.
    device: f64,
}

impl Pace {
    fn of(surroundings: &Surroundings, clock: Option<Clock>) -> Self {
        let device = if clock == Some(Clock::Device) { 0.3 } else { 1.0 };
        match surroundings.place.as_str() {
            "vm" => Self { attach: 20.0, step: 2.0, processor: 10.0, served: 5.0, device },
            _ => Self { attach: 1.0, step: 0.1, processor: 1.0, served: 1.0, device },
        }
    }

    /// Seconds that the steps of a workload take, on a file system in the kernel or one that a process
    /// serves.
    fn seconds(&self, steps: &[Step], limits: &Limits, served: bool) -> f64 {
        self.attach + steps.iter().map(|step| self.step_seconds(step, limits, served)).sum::<f64>()
    }

    fn step_seconds(&self, step: &Step, limits: &Limits, served: bool) -> f64 {
        if matches!(step.action, Action::Reattach | Action::CutPower) {
            return self.attach;
        }
        let device = usual_seconds(step.best(), limits);
        let calling = step.calling * if served { self.served } else { 1.0 };
        self.step + (step.work + calling) * self.processor + device * self.device
    }
}

/// What file systems usually make of the best that a device can do: what is written or read at
/// random is not one after the other, and each sync brings metadata along.
fn usual_seconds(best: Best, limits: &Limits) -> f64 {
    /// Small writes and flushes of one sync.
    const METADATA: f64 = 8.0;
    let least = best.seconds(limits).unwrap_or(0.0);
    match best {
        Best::Unknown => 0.0,
        Best::Write(_) | Best::Read(_) => least * 1.5,
        Best::SmallReads(_) => least * 2.0,
        Best::Synced { times, .. } => {
            let metadata = Best::Synced { times: times * METADATA, bytes: 4096.0 };
            least + metadata.seconds(limits).unwrap_or(0.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::file_systems;
    use crate::model::preset;
    use crate::run::Table;
    use crate::workloads;

    /// The factor that an estimate may be off by, at any time.
    const FACTOR: f64 = 3.0;

    /// Record of what a run took: where, how, and for each job a line with device, workload, file system
    /// and seconds, in order. The runs were recorded on two cores that others used as well, the last run
    /// with a load of 20.
    struct Recorded {
        name: &'static str,
        place: &'static str,
        clock: Clock,
        scale: f64,
        jobs: Vec<([String; 3], f64)>,
    }

    fn recorded() -> [Recorded; 3] {
        let of = |name, place, clock, scale, text: &str| {
            let job = |line: &str| {
                let words: Vec<&str> = line.split('\t').collect();
                let [device, workload, file_system, seconds] = words[..] else { panic!("{line}") };
                let names = [device, workload, file_system].map(str::to_owned);
                (names, seconds.parse().unwrap())
            };
            Recorded { name, place, clock, scale, jobs: text.lines().map(job).collect() }
        };
        let (host, vm) = (include_str!("estimate/host.tsv"), include_str!("estimate/vm.tsv"));
        let busy = include_str!("estimate/device.tsv");
        [
            of("a host", "host", Clock::Paced, 1.0 / 64.0, host),
            of("a virtual machine", "vm", Clock::Busy, 1.0 / 64.0, vm),
            of("a busy host", "host", Clock::Device, 1.0 / 256.0, busy),
        ]
    }

    /// What would have been expected of these jobs.
    fn estimate(recorded: &Recorded) -> Estimate {
        let place = recorded.place.to_owned();
        let pace =
            Pace::of(&Surroundings { place, ..Surroundings::default() }, Some(recorded.clock));
        let jobs = recorded.jobs.iter().map(|(names, _)| {
            let [device, workload, file_system] = names;
            let file_system = file_systems::find(file_system, Path::new("nilfs")).unwrap();
            let table = Table {
                workload: workloads::find(workload).unwrap(),
                device: preset::find(device).unwrap(),
                file_systems: Vec::new(),
                least_scale: 0.0,
            };
            let limits = table.device.limits().unwrap();
            let steps = (table.workload.steps)(&table.setting(recorded.scale));
            let expected = pace.seconds(&steps, &limits, file_system.kind == SERVED);
            Job { names: names.clone(), expected, took: None, is_done: false }
        });
        Estimate { jobs: jobs.collect(), runs: 1.0 }
    }

    /// The estimate before each job, and what it really still took.
    fn told(recorded: &Recorded, slower: f64) -> Vec<(f64, f64)> {
        let mut estimate = estimate(recorded);
        let mut left: f64 = recorded.jobs.iter().map(|(_, seconds)| seconds * slower).sum();
        let mut told = Vec::new();
        for (at, (_, seconds)) in recorded.jobs.iter().enumerate() {
            told.push((estimate.left().as_secs_f64(), left));
            estimate.done(at, Some(seconds * slower));
            left -= seconds * slower;
        }
        told
    }

    /// The estimate before each job in terms of what it really still took, as long as much is left.
    fn errors(recorded: &Recorded, slower: f64) -> Vec<f64> {
        let told = told(recorded, slower);
        let much = told[0].1 / 10.0;
        told.iter().filter(|(_, left)| *left > much).map(|(told, left)| told / left).collect()
    }

    #[test]
    fn an_estimate_is_not_off_by_a_factor_of_three_at_any_time() {
        for recorded in &recorded() {
            let errors = errors(recorded, 1.0);
            assert!(errors.len() > recorded.jobs.len() / 2);
            for (at, error) in errors.iter().enumerate() {
                assert!((1.0 / FACTOR..FACTOR).contains(error), "{} {at}: {error}", recorded.name);
            }
        }
    }

    /// A run of a quarter of an hour in which the time left grew from 19 to 92 minutes: a job of
    /// seconds that took minutes counted as much as one of minutes, for all that were to come.
    #[test]
    fn the_time_left_does_not_outgrow_what_was_told_at_the_start() {
        for recorded in &recorded() {
            let told = told(recorded, 1.0);
            for (at, (left, _)) in told.iter().enumerate() {
                assert!(
                    *left < told[0].0 * FACTOR,
                    "{} {at}: {left} of {:?}",
                    recorded.name,
                    told[0]
                );
            }
        }
        for recorded in recorded() {
            let mut estimate = estimate(&recorded);
            let start = estimate.left().as_secs_f64();
            let by_length = |a: &usize, b: &usize| {
                estimate.jobs[*a].expected.total_cmp(&estimate.jobs[*b].expected)
            };
            let shortest = (0..estimate.jobs.len()).min_by(by_length).unwrap();
            estimate.done(shortest, Some(start / 4.0));
            let left = estimate.left().as_secs_f64();
            assert!(left < start * FACTOR, "{}: {left} of {start}", recorded.name);
        }
    }

    /// A machine that is five times as slow is found out by what was measured.
    #[test]
    fn an_estimate_learns_from_what_was_measured() {
        for recorded in &recorded() {
            let errors = errors(recorded, 5.0);
            let (first, later) = (errors[0], &errors[errors.len() / 3..]);
            assert!(first < FACTOR / 5.0, "{first}");
            for error in later {
                assert!((1.0 / FACTOR..FACTOR).contains(error), "{}: {errors:?}", recorded.name);
            }
        }
    }

    #[test]
    fn what_failed_says_nothing_of_the_rest_and_only_the_end_is_nothing() {
        let recorded = &recorded()[0];
        let mut estimate = estimate(recorded);
        let last = recorded.jobs.len() - 1;
        let expected = estimate.jobs[last].expected;
        for at in 0..last {
            estimate.done(at, None);
        }
        assert!((estimate.left().as_secs_f64() - expected).abs() < 1e-6);
        estimate.done(last, Some(1.0));
        assert_eq!(estimate.left(), Duration::ZERO);
    }
}

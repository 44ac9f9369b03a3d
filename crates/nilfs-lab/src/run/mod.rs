//! Doing it all, in order: for each device and workload, each file system on a fresh device.
//!
//! What has been found is saved after each file system, so that an interrupted run goes on where
//! it was. A step that fails takes the rest of its workload with it, and says why instead of a
//! figure.

mod attempt;
mod checks;
mod estimate;
mod plan;
mod store;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cleanup::{Undo, register};
use crate::file_systems::FileSystem;
use crate::place::{self, Place, Surroundings};
use crate::results::{Cell, CellResult, Clock, Drawn, Measured, Results};
use crate::workloads::{Measure, Setting};

use attempt::{Attempt, Sample};
use estimate::Estimate;
use store::Store;

pub use plan::{Choice, Plan, SUITES, Suite, Table, Where};

/// What happens meanwhile.
#[derive(Debug)]
pub enum Event<'a> {
    /// Everything is ready.
    Begins(Beginning<'a>),
    /// A workload begins.
    Job {
        /// Its table.
        table: &'a Table,
        /// On what.
        file_system: &'a FileSystem,
        /// Which repetition, from 1.
        run: u32,
    },
    /// A workload has ended on a file system.
    Done {
        /// Its figures.
        cells: &'a [Cell],
        /// How long all that is still to be done will take.
        left: Duration,
    },
}

/// What is going to be done, and where.
#[derive(Debug)]
pub struct Beginning<'a> {
    /// Where file systems run.
    pub surroundings: &'a Surroundings,
    /// Why there.
    pub why: &'a str,
    /// File systems of the plan that cannot be mounted there, with the reason.
    pub left_out: Vec<(&'a str, String)>,
    /// Workloads times file systems times devices.
    pub jobs: usize,
    /// Of these, from an earlier run.
    pub done: usize,
    /// Figures that all of them give.
    pub figures: usize,
    /// How long all that is still to be done will take.
    pub left: Duration,
}

/// Does what is planned and not yet done.
///
/// # Errors
/// Nothing can be measured at all, or what is already there does not belong to this plan. A file
/// system that fails is no error; its cells say so.
pub fn run(plan: &Plan, tell: &mut dyn FnMut(Event)) -> Result<Results> {
    checks::before(plan)?;
    let work = plan.directory.join("work");
    std::fs::create_dir_all(&work).with_context(|| {
        let out = plan.directory.display();
        format!("cannot write to {out}; name a directory of yours with --out")
    })?;
    let _lock = store::lock(&plan.directory)?;
    let _work = register(Undo::Remove(work.clone()));
    let (place, why) = choose_place(plan, &work)?;
    let surroundings = place.surroundings();
    // The processor of a virtual machine may be emulated, and its time means little then.
    let usual = if surroundings.place == "vm" { Clock::Busy } else { Clock::Paced };
    let plan = &Plan { clock: plan.clock.or(Some(usual)), ..plan.clone() };
    let mut store = Store::open(plan, surroundings)?;
    let mut estimate = Estimate::of(plan, surroundings, &store)?;
    let left_out = checks::left_out(&*place, plan);
    let jobs: Vec<(&Table, &FileSystem)> = plan.jobs().collect();
    tell(Event::Begins(Beginning {
        surroundings,
        why: &why,
        left_out,
        jobs: jobs.len(),
        done: jobs.iter().filter(|(table, fs)| store.has(plan, table, fs)).count(),
        figures: jobs.iter().map(|(table, _)| plan.figures(table)).sum(),
        left: estimate.left(),
    }));
    for (at, (table, file_system)) in jobs.into_iter().enumerate() {
        if store.has(plan, table, file_system) {
            continue;
        }
        let (cells, drawn) = measure(plan, &*place, &work, &mut store, (table, file_system), tell)?;
        estimate.done(at, drawn.as_ref().map(|drawn| drawn.seconds));
        tell(Event::Done { cells: &cells, left: estimate.left() });
        store.add(cells, drawn)?;
    }
    Ok(store.results())
}

/// Where to run, and why there.
fn choose_place(plan: &Plan, work: &Path) -> Result<(Box<dyn Place>, String)> {
    let host = || place::host(work).map(|place| Box::new(place) as Box<dyn Place>);
    let vm = || place::vm(work).map(|place| Box::new(place) as Box<dyn Place>);
    match plan.place {
        Where::Host => {
            let host = host().context("cannot run on this machine")?;
            return Ok((host, "as --where host asks".to_owned()));
        }
        Where::Vm => {
            let vm = vm().context("cannot run in a virtual machine")?;
            return Ok((vm, "as --where vm asks".to_owned()));
        }
        Where::Auto => {}
    }
    let host = host();
    let against = match &host {
        Ok(host) => checks::left_out(&**host, plan).into_iter().next().map(|(_, reason)| reason),
        Err(error) => Some(format!("{error:#}")),
    };
    let Some(against) = against else {
        return Ok((host?, "it can mount every file system that is asked for".to_owned()));
    };
    match (vm(), host) {
        (Ok(vm), _) => Ok((vm, against)),
        (Err(there), Ok(host)) => {
            Ok((host, format!("{against}, but there can be no virtual machine: {there:#}")))
        }
        (Err(there), Err(_)) => {
            bail!("nowhere to run. On this machine: {against}. In a virtual machine: {there:#}")
        }
    }
}

/// One workload on one file system on one device, as often as planned; and the picture of the
/// last time, if that came to its end.
fn measure(
    plan: &Plan,
    place: &dyn Place,
    work: &Path,
    store: &mut Store,
    (table, file_system): (&Table, &FileSystem),
    tell: &mut dyn FnMut(Event),
) -> Result<(Vec<Cell>, Option<Drawn>)> {
    let setting = table.setting(plan.scale);
    let mut runs: Vec<Vec<Sample>> = Vec::new();
    let mut failure = place.can_mount(file_system.kind).err();
    let mut end = None;
    for run in 1..=plan.runs {
        if failure.is_some() {
            break;
        }
        tell(Event::Job { table, file_system, run });
        let start = Instant::now();
        let mut attempt = Attempt { plan, place, work, table, file_system, setting, run };
        let found = attempt.run()?;
        store.note(table, found.limits, found.versions);
        failure = found.failure;
        end = found.picture.map(|picture| (picture, start.elapsed().as_secs_f64()));
        runs.push(found.samples);
    }
    let measures = plan.measures(table, &setting);
    let cells = measures.iter().enumerate().map(|(at, measure)| {
        let samples: Vec<&Sample> = runs.iter().filter_map(|samples| samples.get(at)).collect();
        cell(table, file_system, measure, outcome(&samples, runs.len(), failure.as_deref()))
    });
    let drawn = end.map(|(picture, seconds)| Drawn {
        device: table.device.name.clone(),
        workload: table.workload.name.to_owned(),
        file_system: file_system.name.clone(),
        seconds,
        picture,
    });
    Ok((cells.collect(), drawn))
}

fn cell(table: &Table, fs: &FileSystem, measure: &Measure, outcome: CellResult) -> Cell {
    Cell {
        device: table.device.name.clone(),
        workload: table.workload.name.to_owned(),
        step: measure.name.clone(),
        about: measure.about.clone(),
        file_system: fs.name.clone(),
        unit: measure.unit,
        outcome,
    }
}

/// A step was measured if all runs got there.
fn outcome(samples: &[&Sample], runs: usize, failure: Option<&str>) -> CellResult {
    if samples.is_empty() || samples.len() < runs {
        return CellResult::Failed(failure.unwrap_or("not measured").to_owned());
    }
    let mut sorted = samples.to_vec();
    sorted.sort_by(|a, b| a.figure.total_cmp(&b.figure));
    let middle = sorted[sorted.len() / 2];
    let median = match sorted.len() % 2 {
        0 => f64::midpoint(sorted[sorted.len() / 2 - 1].figure, middle.figure),
        _ => middle.figure,
    };
    CellResult::Measured(Measured {
        runs: samples.iter().map(|sample| sample.figure).collect(),
        median,
        magic: middle.magic,
        wall_seconds: middle.wall_seconds,
        device_seconds: middle.device_seconds,
        traffic: middle.traffic,
        wear: middle.wear,
        limit: middle.limit,
        trace: middle.trace.clone(),
    })
}

impl Table {
    /// The part of the original sizes that it is done with where this part was asked for.
    #[must_use]
    pub fn scale(&self, asked: f64) -> f64 {
        asked.max(self.least_scale)
    }

    /// What its workload is run with: a device as large as the scale says, but large enough for
    /// the workload, and for file systems that are not made for small ones.
    #[must_use]
    pub fn setting(&self, scale: f64) -> Setting {
        const LEAST: u64 = 512 << 20;
        const GRANULE: u64 = 16 << 20;
        let (asked, scale) = (scale, self.scale(scale));
        let scaled = (self.device.capacity as f64 * scale) as u64;
        let needed = (self.workload.bytes_needed)(scale) * 2;
        let bytes = scaled.max(needed).max(LEAST).next_multiple_of(GRANULE);
        Setting { scale, asked, device_bytes: bytes }
    }
}

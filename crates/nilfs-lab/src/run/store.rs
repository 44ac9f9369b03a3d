//! Results on disk, saved whenever there is something new.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::FlockOperation;

use super::plan::{Plan, Table};
use crate::failure::{Failure, Status};
use crate::file_systems::FileSystem;
use crate::model::Limits;
use crate::place::Surroundings;
use crate::report::format_numbers::scale;
use crate::results::{Cell, CellResult, Clock, Drawn, FILE_NAME, Results};

/// What has been found so far.
pub(super) struct Store {
    path: PathBuf,
    results: Results,
}

/// Keeps others from using the directory while this lives.
pub(super) fn lock(directory: &Path) -> Result<File> {
    let about = || format!("cannot open {}", directory.display());
    let file = File::open(directory).with_context(about)?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        let why =
            format!("another run uses {}; wait for it, or take another --out", directory.display());
        Failure::new(Status::Busy, why)
    })?;
    Ok(file)
}

impl Store {
    /// Takes over what an earlier run has found, if it was of the same kind. What failed then is
    /// tried again: somebody may have installed what was missing.
    pub(super) fn open(plan: &Plan, surroundings: &Surroundings) -> Result<Self> {
        let path = plan.directory.join(FILE_NAME);
        let mut results = match Results::load(&plan.directory)? {
            Some(before) => {
                check(plan, surroundings, &before)
                    .with_context(|| format!("{} is of another run", path.display()))?;
                before
            }
            None => Results {
                scale: plan.scale,
                clock: plan.clock.unwrap_or_default(),
                ..Results::default()
            },
        };
        results.suite.clone_from(&plan.suite);
        results.surroundings = surroundings.clone();
        results.cells.retain(|cell| matches!(cell.outcome, CellResult::Measured(_)));
        let mut store = Self { path, results };
        let missing = plan.jobs().filter(|(table, fs)| !store.has(plan, table, fs));
        store.results.missing = missing.map(|(table, _)| plan.figures(table)).sum();
        store.save()?;
        Ok(store)
    }

    /// Whether all figures of a workload on a file system are there, each from as many runs.
    pub(super) fn has(&self, plan: &Plan, table: &Table, file_system: &FileSystem) -> bool {
        let measures = plan.measures(table, &table.setting(plan.scale));
        measures.iter().all(|measure| {
            self.cells_of(table, file_system).any(|cell| match &cell.outcome {
                CellResult::Measured(found) => {
                    cell.step == measure.name && found.runs.len() >= plan.runs as usize
                }
                CellResult::Failed(_) => false,
            })
        })
    }

    fn cells_of(&self, table: &Table, file_system: &FileSystem) -> impl Iterator<Item = &Cell> {
        let job = (&*table.device.name, table.workload.name, &*file_system.name);
        self.results.cells.iter().filter(move |cell| of(cell) == job)
    }

    /// Remembers what a device can do, how much was done, and who took part.
    pub(super) fn note(
        &mut self,
        table: &Table,
        limits: Limits,
        versions: BTreeMap<String, String>,
    ) {
        self.results.devices.insert(table.device.name.clone(), limits);
        let scale = table.scale(self.results.scale);
        self.results.scales.insert(table.workload.name.to_owned(), scale);
        self.results.versions.extend(versions);
    }

    /// Adds the figures of a workload on a file system, in place of any from before, and saves.
    pub(super) fn add(&mut self, cells: Vec<Cell>, drawn: Option<Drawn>) -> Result<()> {
        if let Some(first) = cells.first() {
            self.results.cells.retain(|cell| of(cell) != of(first));
            let job = |drawn: &Drawn| {
                of(first) == (&*drawn.device, &*drawn.workload, &*drawn.file_system)
            };
            self.results.pictures.retain(|drawn| !job(drawn));
        }
        self.results.missing = self.results.missing.saturating_sub(cells.len());
        self.results.cells.extend(cells);
        self.results.pictures.extend(drawn);
        self.save()
    }

    /// A reader sees the file of before or the whole of the new one.
    fn save(&self) -> Result<()> {
        let about = || format!("cannot write {}", self.path.display());
        let text = serde_json::to_string_pretty(&self.results).with_context(about)?;
        let partial = self.path.with_extension("json.partial");
        fs::write(&partial, text).with_context(about)?;
        fs::rename(&partial, &self.path).with_context(about)
    }

    /// How long a workload took on a file system, if it came to its end.
    pub(super) fn seconds(&self, table: &Table, file_system: &FileSystem) -> Option<f64> {
        let job = (&*table.device.name, table.workload.name, &*file_system.name);
        let is_it = |drawn: &&Drawn| job == (&*drawn.device, &*drawn.workload, &*drawn.file_system);
        self.results.pictures.iter().find(is_it).map(|drawn| drawn.seconds)
    }

    pub(super) fn results(self) -> Results {
        self.results
    }
}

fn of(cell: &Cell) -> (&str, &str, &str) {
    (&cell.device, &cell.workload, &cell.file_system)
}

fn check(plan: &Plan, surroundings: &Surroundings, before: &Results) -> Result<()> {
    let was = |what: &str, before: &str, now: &str| {
        format!("its {what} is {before}, now it is {now}; take another --out, or the same {what}")
    };
    ensure!(
        (before.scale - plan.scale).abs() < 1e-9,
        was("scale", &scale(before.scale), &scale(plan.scale))
    );
    let word = |clock: Clock| format!("{clock:?}").to_lowercase();
    let clock = plan.clock.unwrap_or_default();
    ensure!(before.clock == clock, was("clock", &word(before.clock), &word(clock)));
    let (there, here) = (&before.surroundings, surroundings);
    if there.place != here.place {
        bail!(was("place", &there.place, &here.place));
    }
    if there.kernel != here.kernel {
        bail!(was("kernel", &there.kernel, &here.kernel));
    }
    Ok(())
}

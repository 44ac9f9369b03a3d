//! The order in which things run: each workload on all file systems in turns (A B C A B C …), so
//! that a machine that gets slower while we measure is unkind to all alike.

use std::path::Path;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};

use crate::file_systems::FileSystem;
use crate::fixtures::Fixtures;
use crate::sizes::Sizes;
use crate::stage::{Sample, Stage};
use crate::workloads::{Skip, Workload};

/// What is to be done.
pub struct Plan<'a> {
    /// The rows.
    pub workloads: Vec<&'a Workload>,
    /// The columns.
    pub systems: Vec<&'a dyn FileSystem>,
    /// How often each is measured.
    pub runs: u32,
    /// The amounts of work.
    pub sizes: &'a Sizes,
    /// The archive of the kernel's source, if the user named one.
    pub kernel_source: Option<&'a Path>,
}

/// What became of one workload on one file system.
pub enum Measurement {
    /// One sample per run.
    Measured(Vec<Sample>),
    /// The workload says nothing about this file system.
    NotApplicable,
    /// It cannot run here, and why.
    Skipped(String),
    /// The file system failed, and how.
    Failed(String),
}

/// A row of results: one outcome per file system, in the plan's order.
pub struct Row<'a> {
    /// What was measured.
    pub workload: &'a Workload,
    /// The outcomes.
    pub outcomes: Vec<Measurement>,
}

/// Does all of it, in `dir`.
pub fn execute<'a>(plan: &Plan<'a>, dir: &Path) -> Result<Vec<Row<'a>>> {
    let fixtures = Fixtures::new(dir.join("fixtures"))?;
    let bar = progress_bar(plan)?;
    let rows = plan
        .workloads
        .iter()
        .map(|workload| Row { workload, outcomes: run_row(plan, workload, dir, &fixtures, &bar) })
        .collect();
    bar.finish_and_clear();
    Ok(rows)
}

fn progress_bar(plan: &Plan<'_>) -> Result<ProgressBar> {
    let steps = plan.workloads.len() * plan.systems.len() * plan.runs as usize;
    let style = ProgressStyle::with_template("{elapsed} [{bar:30}] {pos}/{len} {msg}")
        .context("the template of the progress bar")?;
    let bar = ProgressBar::new(steps as u64).with_style(style);
    bar.enable_steady_tick(std::time::Duration::from_secs(1));
    Ok(bar)
}

fn run_row(
    plan: &Plan<'_>,
    workload: &Workload,
    dir: &Path,
    fixtures: &Fixtures,
    bar: &ProgressBar,
) -> Vec<Measurement> {
    let applies = |system: &&dyn FileSystem| workload.only.is_none_or(|only| only == system.name());
    let mut outcomes: Vec<Measurement> = plan
        .systems
        .iter()
        .map(|system| match applies(system) {
            true => Measurement::Measured(Vec::new()),
            false => Measurement::NotApplicable,
        })
        .collect();
    for run in 1..=plan.runs {
        for (system, outcome) in plan.systems.iter().zip(&mut outcomes) {
            bar.set_message(format!("{} on {}, run {run}", workload.name, system.name()));
            // What has failed once would only fail again.
            if let Measurement::Measured(samples) = outcome {
                match run_once(plan, workload, *system, dir, fixtures) {
                    Ok(sample) => samples.push(sample),
                    Err(error) => *outcome = outcome_of(&error),
                }
            }
            bar.inc(1);
        }
    }
    outcomes
}

fn run_once(
    plan: &Plan<'_>,
    workload: &Workload,
    system: &dyn FileSystem,
    dir: &Path,
    fixtures: &Fixtures,
) -> Result<Sample> {
    let mut stage = Stage::new(dir, system, plan.sizes, fixtures, plan.kernel_source)?;
    let sample = (workload.run)(&mut stage)?;
    stage.finish()?;
    Ok(sample)
}

fn outcome_of(error: &anyhow::Error) -> Measurement {
    match error.downcast_ref::<Skip>() {
        Some(Skip(reason)) => Measurement::Skipped(reason.clone()),
        None => Measurement::Failed(format!("{error:#}")),
    }
}

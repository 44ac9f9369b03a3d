//! Reasons not to begin.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::plan::{Plan, Table};
use crate::failure::{Failure, Status};
use crate::file_systems::OURS;
use crate::place::Place;
use crate::report::format_numbers::scale;
use crate::workloads::Source;

/// Memory for programs, besides what sources take.
const MEMORY_RESERVE: u64 = 256 << 20;

/// Fails if the run could not come to its end.
pub(super) fn before(plan: &Plan) -> Result<()> {
    let out = nearest_existing(&plan.directory);
    if !out.is_dir() {
        let why = format!("{} is a file; name a directory with --out", out.display());
        return Err(Failure::new(Status::Usage, why).into());
    }
    ensure!(
        !plan.jobs().any(|(_, fs)| fs.base_name() == OURS) || plan.nilfs.is_file(),
        "our program is not at {}: build it with `cargo build --release -p nilfs`, or say where it \
         is with --nilfs",
        plan.nilfs.display()
    );
    disk(plan)?;
    memory(plan)
}

/// A log-structured file system writes to all of its device, so the image may become that large.
fn disk(plan: &Plan) -> Result<()> {
    let largest = |table: &Table| table.setting(plan.scale).device_bytes;
    let image = plan.tables.iter().map(largest).max().unwrap_or(0);
    let sources: u64 = sources(plan).iter().map(|(source, scale)| source.bytes(*scale) * 2).sum();
    let needed = image + sources;
    let existing = nearest_existing(&plan.directory);
    let room = rustix::fs::statvfs(existing)
        .with_context(|| format!("cannot look at {}", existing.display()))?;
    let free = room.f_bavail * room.f_frsize;
    ensure!(
        free >= needed,
        "{} has {} MB free, but scale {} may need {} MB: choose another --out or a smaller --scale",
        existing.display(),
        free / 1_000_000,
        scale(plan.scale),
        needed / 1_000_000
    );
    Ok(())
}

fn nearest_existing(path: &Path) -> &Path {
    let here = path.ancestors().find(|ancestor| ancestor.exists());
    here.unwrap_or(Path::new("."))
}

/// Sources are copied to memory.
fn memory(plan: &Plan) -> Result<()> {
    let largest =
        sources(plan).iter().map(|(source, scale)| source.bytes(*scale)).max().unwrap_or(0);
    let needed = largest * 2 + MEMORY_RESERVE;
    let Some(free) = memory_available() else { return Ok(()) };
    ensure!(
        free >= needed,
        "{} MB of memory are free, but scale {} needs {} MB: choose a smaller --scale",
        free / 1_000_000,
        scale(plan.scale),
        needed / 1_000_000
    );
    Ok(())
}

fn memory_available() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// What is prepared, each with its scale.
fn sources(plan: &Plan) -> Vec<(Source, f64)> {
    let mut sources = Vec::new();
    for table in &plan.tables {
        for source in table.workload.sources {
            let needed = (*source, table.scale(plan.scale));
            if !sources.contains(&needed) {
                sources.push(needed);
            }
        }
    }
    sources
}

/// File systems of the plan that cannot be mounted there, each with the reason.
pub(super) fn left_out<'a>(place: &dyn Place, plan: &'a Plan) -> Vec<(&'a str, String)> {
    let mut left_out: Vec<(&str, String)> = Vec::new();
    for (_, file_system) in plan.jobs() {
        let name = file_system.name.as_str();
        if !left_out.iter().any(|(known, _)| *known == name)
            && let Err(reason) = place.can_mount(file_system.kind)
        {
            left_out.push((name, reason));
        }
    }
    left_out
}

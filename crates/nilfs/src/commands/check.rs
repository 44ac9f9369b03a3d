//! `nilfs check`: whether a volume keeps the rules of the format.

use std::io::Write;
use std::path::PathBuf;

use nilfs_check::{CheckError, Checkpoints, Finding, Options, Report};
use nilfs_device::Access;
use serde::Serialize;

use crate::device;
use crate::exit::{Failure, Status};
use crate::image::device_of;
use crate::output::{self, counted, printable};

/// Check that a volume keeps the rules of the format
///
/// The volume must not be mounted for writing. Nothing is written and nothing is repaired: this is
/// a preview. Without --all, the files of up to a thousand checkpoints are checked: of the newest,
/// of all snapshots, and of others evenly spread. The exit code is 3 if an error was found.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nilfs check disk.img
  nilfs check --all /dev/sdb1
  nilfs check --json disk.img | jq '.findings[] | select(.severity == \"error\")'")]
pub struct Args {
    /// Go through the files of every checkpoint, not of up to a thousand
    #[arg(short, long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The device or image, or any file or directory of a mounted volume
    #[arg(value_name = "DEVICE|DIR")]
    device: PathBuf,
}

#[derive(Serialize)]
struct Record {
    consistent: bool,
    newest_checkpoint: u64,
    checkpoints: u64,
    checkpoints_walked: u64,
    snapshots: u64,
    inodes: u64,
    live_blocks: u64,
    logs: u64,
    segments: u64,
    findings: Vec<FindingRecord>,
    omitted: Vec<OmittedRecord>,
}

#[derive(Serialize)]
struct FindingRecord {
    severity: String,
    rule: String,
    place: String,
    message: String,
}

/// Findings that are counted and not shown.
#[derive(Serialize)]
struct OmittedRecord {
    rule: String,
    findings: u64,
}

/// Prints what is wrong, and what there is.
pub fn run(args: Args) -> anyhow::Result<()> {
    let path = device_of(&args.device)?;
    let device = device::open(&path, Access::ReadOnly)?;
    let mut options = Options::default();
    if args.all {
        options.checkpoints = Checkpoints::All;
    }
    let path = path.display();
    let report = nilfs_check::check(&device, &options).map_err(|error| match error {
        CheckError::Device(error) => anyhow::Error::new(error).context(path.to_string()),
        other => Failure::new(Status::NotAVolume, format!("{path}: {other}")).into(),
    })?;
    let printed = match args.json {
        true => output::json(&record(&report)),
        false => print(&report),
    };
    // An error on the volume is worse than a report that did not arrive.
    match report.errors().count() as u64 {
        0 => printed,
        count => {
            let message = format!("{path}: {}", counted(count, "error"));
            Err(Failure::new(Status::NotAVolume, message).into())
        }
    }
}

fn record(report: &Report) -> Record {
    let counts = &report.counts;
    let finding = |finding: &Finding| FindingRecord {
        severity: finding.severity.to_string(),
        rule: finding.rule.to_string(),
        place: finding.place.to_string(),
        message: finding.message.clone(),
    };
    let omitted = report.omitted.iter();
    Record {
        consistent: report.is_consistent(),
        newest_checkpoint: report.newest.0,
        checkpoints: counts.checkpoints,
        checkpoints_walked: counts.checkpoints_walked,
        snapshots: counts.snapshots,
        inodes: counts.inodes,
        live_blocks: counts.live_blocks,
        logs: counts.logs,
        segments: counts.segments,
        findings: report.findings.iter().map(finding).collect(),
        omitted: omitted
            .map(|(rule, count)| OmittedRecord { rule: rule.to_string(), findings: *count })
            .collect(),
    }
}

fn print(report: &Report) -> anyhow::Result<()> {
    let mut out = output::out();
    for line in report.to_string().lines() {
        writeln!(out, "{}", printable(line.as_bytes()))?;
    }
    Ok(())
}

//! `nilfs check`: whether a volume keeps the rules of the format.

use std::io::{self, Write};
use std::path::PathBuf;

use nilfs_check::{CheckError, Checkpoints, Options, Report};
use nilfs_device::Access;

use crate::device;
use crate::exit::{Failure, Status};
use crate::output::{self, printable};

/// Check that a volume keeps the rules of the format (preview; it repairs nothing)
///
/// The volume must not be mounted for writing. Nothing is written. Exit code 3 if anything is wrong.
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub struct Args {
    /// Go through the files of every checkpoint, not of up to a thousand
    #[arg(short, long)]
    all: bool,
    /// The device or image
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
}

/// Prints what is wrong, and what there is.
pub fn run(args: Args) -> anyhow::Result<()> {
    let device = device::open(&args.device, Access::ReadOnly)?;
    let mut options = Options::default();
    if args.all {
        options.checkpoints = Checkpoints::All;
    }
    let path = args.device.display();
    let report = nilfs_check::check(&device, &options).map_err(|error| match error {
        CheckError::Device(error) => anyhow::Error::new(error).context(path.to_string()),
        other => Failure::new(Status::NotAVolume, format!("{path}: {other}")).into(),
    })?;
    let printed = print(&report);
    if report.is_consistent() {
        return Ok(printed?);
    }
    // Worse than a report that did not arrive.
    let message = format!("{path}: {} errors", report.errors().count());
    Err(Failure::new(Status::NotAVolume, message).into())
}

fn print(report: &Report) -> io::Result<()> {
    let mut out = output::out();
    report.to_string().lines().try_for_each(|line| writeln!(out, "{}", printable(line.as_bytes())))
}

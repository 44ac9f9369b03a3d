//! The command line.

mod announcement;
mod background;
mod exit;
mod list;
mod progress;
mod tools;

use std::io::{ErrorKind, Write as _, stderr, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use nilfs_lab::cleanup::on_signals;
use nilfs_lab::failure::{Failure, Status};
use nilfs_lab::report;
use nilfs_lab::results::{CellResult, Clock, Results};
use nilfs_lab::run::{self, Choice, Plan, Suite, Where};
use nilfs_lab::workloads;

use background::Known;
use progress::Progress;

const EXAMPLES: &str = "\
Examples:
  nilfs-lab list
  nilfs-lab run --suite quick
  nilfs-lab run --workload iozone --device microsd-2012 --fs ext4,f2fs,nilfs --scale 1/16
  nilfs-lab run --suite published --where vm --out results/published
  nilfs-lab compare results/before results/after
  nilfs-lab draw results/published/traces/usb-2010-big-file-nilfs-1.trace --out picture.svg

Exit codes:
  0    done, everything was measured
  1    failed; of run also: some figures are missing, and the report says why
  2    the command line is wrong
  4    a device, an image, a trace or results are missing or cannot be opened
  5    a device, an image or the directory of --out is in use
  130  interrupted (128 + signal); the same run command goes on where it was";

/// Measures file systems side by side on modelled flash devices, with the workloads of published
/// comparisons.
#[derive(Debug, Parser)]
#[command(name = "nilfs-lab", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(RunArgs),
    List(list::ListArgs),
    Compare(CompareArgs),
    Probe(tools::ProbeArgs),
    Replay(tools::ReplayArgs),
    Draw(tools::DrawArgs),
    Export(tools::ExportArgs),
}

/// Measure, and write report.html, report.md and results.json
///
/// An interrupted run goes on where it was when it is started again with the same --out. What
/// failed is tried again then.
#[derive(Debug, Args)]
struct RunArgs {
    /// What to measure: published, quick or full; `nilfs-lab list` explains.
    #[arg(long, value_name = "NAME", default_value = "quick")]
    suite: String,
    /// File systems, with options after colons, such as ext4:noatime,f2fs:discard,nilfs.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    fs: Vec<String>,
    /// Devices: names of presets, or paths of your own.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    device: Vec<String>,
    /// Workloads.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    workload: Vec<String>,
    /// The part of the original sizes, such as 1/8 [default: the suite's].
    #[arg(long, value_parser = workloads::scale_of)]
    scale: Option<f64>,
    /// How often to repeat each workload; the median counts.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=99))]
    runs: u32,
    /// Where file systems run: on this machine (needs root and their place in its kernel), in a
    /// virtual one (needs QEMU), or whichever does.
    #[arg(long = "where", value_enum, default_value_t = Location::Auto)]
    location: Location,
    /// What counts: the clock on the wall while the device takes its time (paced), how long the
    /// device is busy of that (busy), or how long its model is busy while nobody waits (device)
    /// [default: paced; in a virtual machine busy].
    #[arg(long, value_enum)]
    clock: Option<ClockName>,
    /// Where results go, and whatever is needed meanwhile.
    #[arg(long, value_name = "DIR", default_value = "lab-results")]
    out: PathBuf,
    /// Keep what reached each device, for replay and draw.
    #[arg(long)]
    keep_traces: bool,
    /// Our program [default: nilfs, next to this program].
    #[arg(long, value_name = "PATH")]
    nilfs: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Location {
    Auto,
    Host,
    Vm,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ClockName {
    Paced,
    Busy,
    Device,
}

/// Say how two sets of results differ
#[derive(Debug, Args)]
struct CompareArgs {
    /// The --out of a run, or its results.json.
    before: PathBuf,
    /// The same of another.
    after: PathBuf,
}

/// Does what the command line says.
pub fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => cli.command.run().unwrap_or_else(|error| exit::report(&error)),
        Err(error) => exit::report_usage(&error, &subcommand()),
    }
}

/// The program and the subcommand that were typed, for a message.
fn subcommand() -> String {
    let definition = Cli::command();
    let typed = std::env::args().nth(1).unwrap_or_default();
    match definition.find_subcommand(&typed) {
        Some(found) => format!("{} {}", definition.get_name(), found.get_name()),
        None => definition.get_name().to_owned(),
    }
}

impl Command {
    fn run(self) -> Result<ExitCode> {
        match self {
            Self::Run(args) => run(args),
            Self::List(args) => list::list(&args),
            Self::Compare(args) => {
                show(&report::compare(&load(&args.before)?, &load(&args.after)?))?;
                Ok(ExitCode::SUCCESS)
            }
            Self::Probe(args) => tools::probe(&args),
            Self::Replay(args) => tools::replay(&args),
            Self::Draw(args) => tools::draw(&args),
            Self::Export(args) => tools::export(&args),
        }
    }
}

fn run(args: RunArgs) -> Result<ExitCode> {
    let plan = plan(args)?;
    let mut progress = Progress::new();
    let at_signal = (plan.clone(), progress.clone());
    on_signals(move || interrupted(&at_signal.0, &at_signal.1))?;
    let results = run::run(&plan, &mut |event| progress.tell(&plan, &event));
    let results = match results {
        Ok(results) => results,
        Err(error) => {
            if progress.has_begun() {
                interrupted(&plan, &progress);
            }
            return Err(error);
        }
    };
    progress.end();
    report(&plan, &results)?;
    let all = results.cells.iter().all(|cell| matches!(cell.outcome, CellResult::Measured(_)));
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes the report, prints it, and says where it is.
fn report(plan: &Plan, results: &Results) -> Result<()> {
    let background = Known::new(plan);
    report::write(results, &background, &plan.directory)?;
    show(&report::terminal(results, &background))?;
    let directory = plan.directory.display();
    show(&format!("\n{directory}/report.html, {directory}/report.md, {directory}/results.json\n"))
}

/// Reports what there is when a run comes to an early end.
fn interrupted(plan: &Plan, progress: &Progress) {
    progress.end();
    let reported = Results::load(&plan.directory).and_then(|found| match found {
        Some(results) if !results.cells.is_empty() => report(plan, &results),
        _ => {
            say("Nothing has been measured.");
            Ok(())
        }
    });
    if let Err(error) = reported {
        say(&format!("nilfs-lab: interrupted, and there is no report: {}", exit::sentence(&error)));
    }
}

fn plan(args: RunArgs) -> Result<Plan> {
    let suite = Suite::find(&args.suite)?;
    let nilfs = args.nilfs.map_or_else(beside_us, Ok)?;
    let nilfs = std::path::absolute(&nilfs).context("the current directory is gone")?;
    let choice = Choice { workloads: args.workload, devices: args.device, file_systems: args.fs };
    let scale = args.scale.map_or_else(|| workloads::scale_of(suite.scale), Ok)?;
    Ok(Plan {
        suite: choice.suite(suite),
        tables: choice.tables(suite, &nilfs)?,
        scale,
        runs: args.runs,
        place: match args.location {
            Location::Auto => Where::Auto,
            Location::Host => Where::Host,
            Location::Vm => Where::Vm,
        },
        clock: args.clock.map(|clock| match clock {
            ClockName::Paced => Clock::Paced,
            ClockName::Busy => Clock::Busy,
            ClockName::Device => Clock::Device,
        }),
        directory: std::path::absolute(&args.out).context("the current directory is gone")?,
        nilfs,
        keep_traces: args.keep_traces,
    })
}

fn beside_us() -> Result<PathBuf> {
    let us = std::env::current_exe().context("cannot find out where this program is")?;
    Ok(us.with_file_name("nilfs"))
}

/// Prints. Somebody who stops reading has read enough.
///
/// # Errors
/// Standard output cannot take it, because a disk is full for instance.
fn show(text: &str) -> Result<()> {
    let mut out = stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// Says a line on standard error, if anybody listens.
pub fn say(line: &str) {
    let _ = writeln!(stderr(), "{line}");
}

fn load(path: &Path) -> Result<Results> {
    if !path.is_dir() {
        return Results::read(path);
    }
    Results::load(path)?.ok_or_else(|| {
        let path = path.display();
        let why =
            format!("{path} has no results.json; name the --out of a run, or its results.json");
        Failure::new(Status::CannotOpen, why).into()
    })
}

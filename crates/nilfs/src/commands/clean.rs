//! `nilfs clean`: lets the cleaner work now, or makes it pause.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use nilfs_engine::{Amount, CleanerOrder, CleanerState, ManualRun, RunProgress, Speed};
use serde::Serialize;

use crate::administration::{Administration, Purpose, Target, on};
use crate::config;
use crate::exit::{Failure, Status};
use crate::interrupt::Interrupt;
use crate::output::{self, counted};
use crate::progress::Progress;

/// How often a run is asked how far it is.
const GLANCE: Duration = Duration::from_millis(100);

/// Give space back now, or let the cleaner of a mounted volume pause
///
/// A mounted volume is cleaned without this command, when space is needed; the command is for users
/// who do not want to wait. A volume that is not mounted is cleaned by the command itself.
/// Interrupted, it stops, and what was cleaned stays so.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nilfs clean /mnt                 take back what can be taken back, and wait for it
  nilfs clean --until 20% /mnt     … until a fifth of the segments is clean
  nilfs clean -p 0 disk.img        … with all checkpoints that are not snapshots
  nilfs clean -S 2/0.5 /mnt        … at most 2 segments each half second
  nilfs clean --suspend /mnt       let the cleaner pause; --resume lets it go on

An AMOUNT is a number, a share such as 20%, or a size such as 4G. A PERIOD is in seconds, or has
units, such as 1h30m.")]
pub struct Args {
    /// Clean now (default)
    #[arg(long, conflicts_with = "action")]
    now: bool,
    #[command(flatten)]
    action: Action,
    /// End when this many segments are clean
    #[arg(long, value_name = "AMOUNT", value_parser = config::amount, conflicts_with = "action")]
    until: Option<Amount>,
    /// Keep only checkpoints that are younger, instead of the settings' protection period
    #[arg(short = 'p', long, value_name = "PERIOD", value_parser = config::interval,
        conflicts_with = "action")]
    protection_period: Option<Duration>,
    /// Leave segments alone if less can be reclaimed from them: blocks, or a share of the segment
    #[arg(short = 'm', long, value_name = "AMOUNT", value_parser = config::amount,
        conflicts_with = "action")]
    min_reclaimable: Option<Amount>,
    /// Clean at most COUNT segments, then pause for SECONDS (default: 1)
    #[arg(short = 'S', long, value_name = "COUNT[/SECONDS]", value_parser = speed,
        conflicts_with = "action")]
    speed: Option<Speed>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Any file or directory of the mount, or the device or image
    #[arg(value_name = "DIR|DEVICE")]
    path: PathBuf,
}

#[derive(Debug, clap::Args)]
#[group(id = "action", multiple = false)]
struct Action {
    /// Pause until told to resume
    #[arg(long)]
    suspend: bool,
    /// Go on after a pause
    #[arg(long)]
    resume: bool,
    /// End a run that was asked for
    #[arg(long)]
    stop: bool,
}

#[derive(Serialize)]
struct Record {
    segments_cleaned: u64,
    candidates: u64,
    interrupted: bool,
}

/// Does it. A run is over when this returns.
pub fn run(args: Args) -> anyhow::Result<()> {
    let order = match &args.action {
        Action { suspend: true, .. } => CleanerOrder::Suspend,
        Action { resume: true, .. } => CleanerOrder::Resume,
        Action { stop: true, .. } => CleanerOrder::Stop,
        _ => return clean(&args),
    };
    let client = Target::find(&args.path)?.client()?;
    client.order_cleaner(order).with_context(|| args.path.display().to_string())
}

fn clean(args: &Args) -> anyhow::Result<()> {
    let run = ManualRun {
        until: args.until,
        protection: args.protection_period,
        min_reclaimable: args.min_reclaimable,
        speed: args.speed,
    };
    let record = clean_now(&args.path, run)?;
    if args.json {
        output::json(&record)?;
    } else {
        let mut out = output::out();
        match record.segments_cleaned {
            0 if record.interrupted => writeln!(out, "nothing cleaned"),
            0 => writeln!(out, "nothing to clean"),
            count => writeln!(out, "{} cleaned", counted(count, "segment")),
        }?;
    }
    if !record.interrupted {
        return Ok(());
    }
    let path = args.path.display();
    let message = format!("{path}: interrupted; nilfs clean goes on from there");
    Err(Failure::new(Status::Interrupted, message).into())
}

fn clean_now(path: &Path, run: ManualRun) -> anyhow::Result<Record> {
    let interrupt = Interrupt::listen();
    on(path, Purpose::Change, |volume| {
        volume.order_cleaner(CleanerOrder::Run(run))?;
        let run = follow(volume, run.until, &interrupt)?;
        if run.cleaned == 0 && volume.status()?.state == CleanerState::HeldUp {
            bail!(
                "nothing can be cleaned while another process reads the volume, such as a mount of \
                 the past"
            );
        }
        Ok(Record {
            segments_cleaned: run.cleaned,
            candidates: run.candidates,
            interrupted: interrupt.came(),
        })
    })
}

/// Shows how far the run has come until it is over, and ends it when interrupted. `until`: how many segments
/// are to be clean.
fn follow(
    volume: &dyn Administration,
    until: Option<Amount>,
    interrupt: &Interrupt,
) -> anyhow::Result<RunProgress> {
    let progress = Progress::count("cleaning", "segments");
    loop {
        let status = volume.status()?;
        let run = status.run;
        if !run.running {
            // Of the candidates, those are left from which nothing would be gained.
            progress.set(run.cleaned, run.cleaned);
            return Ok(run);
        }
        let wanted = until.map_or(u64::MAX, |until| {
            let geometry = &status.geometry;
            let wanted = until.of(geometry.nsegments, geometry.segment_bytes());
            run.cleaned.saturating_add(wanted.saturating_sub(status.clean_segments))
        });
        progress.set(run.cleaned, run.candidates.min(wanted));
        if interrupt.came() {
            volume.order_cleaner(CleanerOrder::Stop)?;
        }
        thread::sleep(GLANCE);
    }
}

/// Segments, and the pause after them.
fn speed(text: &str) -> Result<Speed, String> {
    let (count, pause) = text.split_once('/').unwrap_or((text, "1"));
    match count.parse() {
        Ok(segments @ 1..) => Ok(Speed { segments, pause: config::interval(pause)? }),
        _ => Err("expected a number of segments, and perhaps /SECONDS".to_owned()),
    }
}

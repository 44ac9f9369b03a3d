//! `nilfs scrub`: whether a volume still is what was written, and what suffers if not. A volume that
//! is mounted is scrubbed by the process that serves it, any other one by this process.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use nilfs_device::{Access, Device, FileDevice};
use nilfs_engine::{CleanerOptions, Filesystem, MountOptions, Verify, scrub};
use serde::Serialize;

use super::tune::open_to_change;
use crate::administration::{Reason, Target};
use crate::control::Client;
use crate::exit::{Failure, Status};
use crate::image::device_of;
use crate::interrupt::Interrupt;
use crate::output::{self, exact_time, local_time};
use crate::progress::Progress;
use crate::scrubbing::{self, Plan, Record, Report, Scrubbing, StateFile, scrub_mounted};
use crate::signature::OnVolume;
use crate::size;

/// How long a pause may keep the command from noticing that it is to end.
const PAUSE: Duration = Duration::from_millis(100);

/// Read a whole volume, and see whether it still is what was written
///
/// Reads all logs that are in use, and compares them with their checksums, which cover the content of
/// files, too. What cannot be read or is not what was written is shown with the files that need it, and
/// with the checkpoints: since which one, or from which to which. Where the checksum of a log is wrong,
/// it is not known which of its blocks is damaged, so all files are named that have some in it.
///
/// The volume may be mounted and in use. Nothing is written to it without --repair. That looks for other
/// copies of what is damaged: where the cleaner has left them, and in other versions of a file. One is
/// taken if the checksum of the damaged log is right with it. A scrub that was interrupted goes on
/// where it was. The exit code is 3 if something that is needed is damaged.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nilfs scrub /dev/sdb1
  nilfs scrub --rate 20M /mnt              a mounted volume, slowly
  nilfs scrub --background --rate 20M /mnt
  nilfs scrub --repair /mnt
  nilfs scrub --status /mnt                how far that is, and what the last one has found
  nilfs scrub --json disk.img | jq '.damage[].needs[].path'
To scrub a volume every week, mount it with -o scrub=weekly.")]
pub struct Args {
    /// Read at most this much in a second, such as 20M
    #[arg(long, value_name = "BYTES", value_parser = rate)]
    rate: Option<u64>,
    /// Repair what is damaged, where another copy of it is on the device
    #[arg(long)]
    repair: bool,
    /// Begin anew, and forget a scrub that was interrupted
    #[arg(long)]
    anew: bool,
    /// Leave the work to the process that serves the mount, and do not wait for it
    #[arg(long)]
    background: bool,
    /// Only say how far the present scrub is, and what the last one has found
    #[arg(long, conflicts_with_all = ["background", "stop", "rate", "anew", "repair"])]
    status: bool,
    /// Interrupt the scrub of a mount
    #[arg(long, conflicts_with_all = ["background", "rate", "anew", "repair", "json"])]
    stop: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The device or image, or any file or directory of a mounted volume
    #[arg(value_name = "DEVICE|DIR")]
    device: PathBuf,
}

fn rate(text: &str) -> Result<u64, String> {
    match size::parse(text)? {
        0 => Err("nothing can be read at that rate".to_owned()),
        rate => Ok(rate),
    }
}

/// Reads everything, and prints what is damaged; or does what else was asked for.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let path = device_of(&args.device)?;
    let plan = Plan { rate: args.rate, anew: args.anew, repair: args.repair };
    let target = Target::find(&args.device)?;
    if args.status {
        return status(&path, &target, args.json);
    }
    if args.stop || args.background {
        let client = target.client()?;
        let done = if args.stop { client.stop_scrub() } else { client.start_scrub(plan) };
        return done.with_context(|| args.device.display().to_string());
    }
    let interrupt = Interrupt::listen();
    let record = match by_mount(&target, plan, &interrupt)? {
        Some(record) => record,
        None => by_this_process(&path, plan, &interrupt)?,
    };
    let judgement = judge(&path, &record.report);
    let printed = match args.json {
        true => print_json(Scrubbing { last: Some(record), ..Scrubbing::default() }),
        false => print(&record.report),
    };
    // What is damaged is worse than a report that did not arrive.
    judgement.map_err(anyhow::Error::from).and(printed)
}

/// Lets the process scrub that serves the mount, and waits for it. `None` if there is none that does
/// this.
fn by_mount(target: &Target, plan: Plan, interrupt: &Interrupt) -> anyhow::Result<Option<Record>> {
    let Target::Mounted { node, source } = target else { return Ok(None) };
    let (client, context) = (Client::new(node), || source.display().to_string());
    match client.start_scrub(plan) {
        Err(refusal) if matches!(refusal.reason, Reason::ReadOnly | Reason::Unsupported) => {
            return Ok(None);
        }
        begun => begun.with_context(context)?,
    }
    let progress = Progress::count("scrubbing", "MiB");
    loop {
        let Scrubbing { progress: now, last, failure } =
            client.scrubbing().with_context(context)?;
        match (now, last, failure) {
            (Some((done, all)), ..) => progress.set(done >> 20, all >> 20),
            (None, _, Some(failure)) => {
                return Err(Failure::new(Status::Failed, failure)).with_context(context);
            }
            (None, last, None) => return Ok(last),
        }
        match interrupt.came() {
            true => client.stop_scrub().with_context(context)?,
            false => thread::sleep(PAUSE),
        }
    }
}

fn by_this_process(path: &Path, plan: Plan, interrupt: &Interrupt) -> anyhow::Result<Record> {
    let device: Arc<dyn Device> = match plan.repair {
        true => Arc::new(open_to_change(path, false)?),
        false => Arc::new(FileDevice::open(path, Access::Inspect)?),
    };
    let progress = Progress::count("scrubbing", "MiB");
    let end = |wait: Duration| {
        let until = Instant::now() + wait;
        while let left = until.saturating_duration_since(Instant::now())
            && !left.is_zero()
            && !interrupt.came()
        {
            thread::sleep(left.min(PAUSE));
        }
        interrupt.came()
    };
    let note = |now: scrub::Progress| progress.set(now.done >> 20, now.all >> 20);
    let scrub = |selection: &_, observe: scrub::Observe<'_>| {
        if !plan.repair {
            return nilfs_engine::scrub_device(&device, selection, observe);
        }
        let cleaner = CleanerOptions { enabled: false, ..CleanerOptions::default() };
        // What it is to repair must not keep it from being mounted.
        let options = MountOptions { cleaner, verify: Verify::Rescue, ..MountOptions::default() };
        let fs = Filesystem::mount(Arc::clone(&device), options)?;
        let found = scrub_mounted(&fs, plan, selection, observe);
        let closed = fs.unmount();
        found.and_then(|found| closed.map(|()| found))
    };
    let scrubbed = scrubbing::run(scrub, &StateFile::of(&*device), plan, &end, &note);
    scrubbed.on_volume(path)
}

fn print(report: &Report) -> anyhow::Result<()> {
    Ok(report.print(&mut output::out())?)
}

/// The end of the command, as the report has it.
fn judge(path: &Path, report: &Report) -> Result<(), Failure> {
    let shown = path.display();
    if let (0, Some(unreached)) = (report.left(), report.unreached) {
        let found = report.checkpoint;
        let message = match unreached.checkpoint {
            Some(newest) => format!(
                "{shown}: a log of the last checkpoints is damaged: the device leads only to checkpoint \
                 {found}, not to {newest}, and nothing after it was read"
            ),
            None => format!(
                "{shown}: a log of an fsync after checkpoint {found} is damaged, so the volume cannot be \
                 mounted; nilfs fsck says what is lost with it"
            ),
        };
        return Err(Failure::new(Status::NotAVolume, message));
    }
    if !report.is_sound() {
        return Err(Failure::new(Status::NotAVolume, format!("{shown}: {}", report.found())));
    }
    if report.interrupted {
        let message =
            format!("{shown}: interrupted before everything was read; the next scrub goes on");
        return Err(Failure::new(Status::Interrupted, message));
    }
    Ok(())
}

/// What programs are told: how the present scrub is going, and what the last one has found.
#[derive(Serialize)]
struct Printed {
    running: bool,
    done_bytes: Option<u64>,
    all_bytes: Option<u64>,
    failure: Option<String>,
    began: Option<String>,
    ended: Option<String>,
    #[serde(flatten)]
    report: Report,
}

fn print_json(scrubbing: Scrubbing) -> anyhow::Result<()> {
    let Scrubbing { progress, last, failure } = scrubbing;
    let (done_bytes, all_bytes) = progress.unzip();
    let time = |seconds: u64| exact_time(seconds as i64, 0);
    output::json(&Printed {
        running: progress.is_some(),
        done_bytes,
        all_bytes,
        failure,
        began: last.as_ref().map(|it| time(it.began)),
        ended: last.as_ref().map(|it| time(it.ended)),
        report: last.map(|it| it.report).unwrap_or_default(),
    })
}

/// Prints how the scrubs of a volume are going; of one that is not mounted, what is remembered.
fn status(path: &Path, target: &Target, json: bool) -> anyhow::Result<()> {
    let of_mount = match target {
        Target::Mounted { node, .. } => match Client::new(node).scrubbing() {
            Err(refusal) if refusal.reason == Reason::ReadOnly => None,
            scrubbing => Some(scrubbing.with_context(|| path.display().to_string())?),
        },
        Target::Unmounted(_) => None,
    };
    let scrubbing = match of_mount {
        Some(scrubbing) => scrubbing,
        None => {
            let device = FileDevice::open(path, Access::Inspect)?;
            Scrubbing { last: StateFile::of(&device).load(), ..Scrubbing::default() }
        }
    };
    if json {
        return print_json(scrubbing);
    }
    let mut out = output::out();
    for line in scrubbing.lines() {
        writeln!(out, "{line}")?;
    }
    if let Some(Record { began, ended, report, .. }) = &scrubbing.last {
        let (began, ended) = (local_time(*began as i64), local_time(*ended as i64));
        let end = if report.interrupted { "interrupted" } else { "completed" };
        writeln!(out, "the last scrub began {began} and was {end} {ended}:")?;
        report.print(&mut out)?;
    }
    Ok(())
}

//! `nilfs status`: how a mounted volume and its cleaner are doing.

mod rates;
mod watch;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use nilfs_engine::{CleanerOptions, CleanerState, Loss, Policy, Status};
use nilfs_ondisk::ByteCount;
use serde::Serialize;

use crate::administration::{Administration, Target};
use crate::exit::without_error_numbers;
use crate::output::{self, Rows, exact_time, local_time};
use crate::reach::{HistoryRecord, Reach};
use crate::scrubbing::{Record as Scrub, Scrubbing};

/// Show how a mounted volume and its cleaner are doing
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nilfs status /mnt            once
  nilfs status --watch /mnt    until q is pressed, with graphs
  nilfs status --json /mnt | jq .cleaner.segments_freed")]
pub struct Args {
    /// Ask again each second, and draw what happens
    #[arg(short, long, conflicts_with = "json")]
    watch: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Any file or directory of the mount, or the device; without it, the current directory
    #[arg(value_name = "DIR", default_value = ".", hide_default_value = true)]
    path: PathBuf,
}

#[derive(Serialize)]
struct Record {
    newest_checkpoint: u64,
    of_the_past: bool,
    uptime_seconds: u64,
    stopped: bool,
    loss: Option<LossRecord>,
    dirty_bytes: u64,
    block_bytes: u64,
    blocks_per_segment: u32,
    segments: u64,
    clean_segments: u64,
    kept_segments: u64,
    refused_segments: u64,
    blocks_written: u64,
    user_blocks_written: u64,
    write_amplification: Option<f64>,
    lifetime: LifetimeRecord,
    full_in_seconds: Option<u64>,
    cleaner: CleanerRecord,
    history: Option<HistoryRecord>,
    scrub: Option<ScrubRecord>,
    transport: Option<String>,
}

/// The scrubs of the volume, as far as one is known.
#[derive(Serialize)]
struct ScrubRecord {
    running: bool,
    ended: Option<String>,
    interrupted: Option<bool>,
    damaged_places: Option<u64>,
}

impl From<&Scrubbing> for ScrubRecord {
    fn from(scrubbing: &Scrubbing) -> Self {
        let last = scrubbing.last.as_ref();
        Self {
            running: scrubbing.progress.is_some(),
            ended: last.map(|it| exact_time(it.ended as i64, 0)),
            interrupted: last.map(|it| it.report.interrupted),
            damaged_places: last.map(|it| it.report.left()),
        }
    }
}

/// What is not on the device after an error, at most.
#[derive(Serialize)]
struct LossRecord {
    reason: String,
    since: String,
    files: u64,
    unwritten_bytes: u64,
}

impl LossRecord {
    fn of(loss: &Loss) -> Self {
        Self {
            reason: without_error_numbers(&loss.reason),
            since: exact_time(loss.since as i64, 0),
            files: loss.files,
            unwritten_bytes: loss.bytes,
        }
    }
}

#[derive(Serialize)]
struct LifetimeRecord {
    user_bytes: u64,
    written_bytes: u64,
    segments_freed: u64,
    write_amplification: Option<f64>,
}

#[derive(Serialize)]
struct CleanerRecord {
    state: CleanerState,
    policy: Policy,
    protection_seconds: f64,
    hard_protection: bool,
    last_step: Option<String>,
    steps: u64,
    segments_freed: u64,
    blocks_moved: u64,
    blocks_written: u64,
    checkpoints_deleted: u64,
    segments_skipped: u64,
}

/// Prints it, or draws it until somebody has seen enough.
pub fn run(args: Args) -> anyhow::Result<()> {
    let client = Target::find(&args.path)?.client()?;
    let take = || client.status().with_context(|| args.path.display().to_string());
    if args.watch {
        return watch::watch(&args.path, take);
    }
    let status = take()?;
    // A process that is older may not know the names of snapshots; how it is can be told all the same.
    let reach = Reach::of(&client).ok().flatten();
    // What it has found is for those alone who may see every file.
    let scrubbing = client.scrubbing().ok();
    let transport = client.process().ok().and_then(|process| process.transport);
    match args.json {
        true => output::json(&record(&status, reach.as_ref(), scrubbing.as_ref(), transport)),
        false => print(&status, reach.as_ref(), scrubbing.as_ref(), transport),
    }
}

fn print(
    status: &Status,
    reach: Option<&Reach>,
    scrubbing: Option<&Scrubbing>,
    transport: Option<String>,
) -> anyhow::Result<()> {
    let mut rows = Rows::properties();
    for (name, value) in lines(status) {
        rows.push([name.to_owned(), value]);
    }
    if let Some(reach) = reach {
        rows.push(["history".to_owned(), reach.to_string()]);
    }
    for (name, value) in scrubbing.map(scrub_lines).unwrap_or_default() {
        rows.push([name.to_owned(), value]);
    }
    if let Some(transport) = transport {
        rows.push(["transport".to_owned(), transport]);
    }
    rows.print()
}

/// How the scrubs are going, and what is damaged as far as they know. Nothing if there was none.
fn scrub_lines(scrubbing: &Scrubbing) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    if scrubbing.progress.is_some() || scrubbing.failure.is_some() {
        lines.extend(scrubbing.lines().into_iter().map(|line| ("scrub", line)));
    }
    if let Some(Scrub { ended, report, .. }) = &scrubbing.last {
        let end = if report.interrupted { "interrupted" } else { "completed" };
        let ended = local_time(*ended as i64);
        lines.push(("last scrub", format!("{end} {ended}: {}", report.summary())));
        for damage in &report.damage {
            lines.push(("damage", damage.place()));
            lines.extend(damage.needs.iter().map(|need| ("", damage.suffering(need))));
        }
    }
    lines
}

/// What there is to be said, as names and values.
fn lines(status: &Status) -> Vec<(&'static str, String)> {
    let block = status.geometry.block_size.bytes64();
    let moved = status.cleaner.blocks_moved;
    let mut lines = Vec::new();
    if let Some(loss) = &status.stopped {
        let reason = without_error_numbers(&loss.reason);
        lines.push(("state", format!("read-only after an error: {reason}")));
        lines.push(("not on the device", not_written(loss)));
    }
    if status.of_the_past {
        lines.push(("checkpoint shown", status.cno.to_string()));
    }
    lines.extend(cleaner(status));
    lines.extend([
        ("blocks moved", format!("{moved} ({})", bytes(moved, block))),
        ("written", bytes(status.blocks_written, block)),
        ("write amplification", amplification(rates::amplification(status))),
        ("in its life", lifetime(status)),
        (
            "clean segments",
            format!(
                "{} of {}, {} kept clean",
                status.clean_segments, status.geometry.nsegments, status.kept_segments
            ),
        ),
    ]);
    if let Some(refused) = refused_segments(status.refused_segments) {
        lines.push(("kept out of use", refused));
    }
    lines.extend([
        ("full", full(rates::until_full(None, status))),
        ("in memory", format!("{} to be written", ByteCount(status.dirty_bytes))),
    ]);
    if !status.of_the_past {
        lines.push(("newest checkpoint", status.cno.to_string()));
    }
    lines.push(("mounted for", output::duration(Duration::from_secs(status.uptime))));
    lines
}

/// Returns why segments are kept out of use, and what to do; `None` if none is.
pub fn refused_segments(count: u64) -> Option<String> {
    let which = match count {
        0 => return None,
        1 => "1 segment counts as clean, but holds what is needed, or may".to_owned(),
        count => format!("{count} segments count as clean, but hold what is needed, or may"),
    };
    Some(format!("{which}: unmount, and run nilfs fsck"))
}

fn not_written(loss: &Loss) -> String {
    let (bytes, since) = (ByteCount(loss.bytes), local_time(loss.since as i64));
    format!("{bytes} of up to {} files, changed since {since}", loss.files)
}

/// What the cleaner does, has done, and is set to.
fn cleaner(status: &Status) -> Vec<(&'static str, String)> {
    let (options, totals) = (&status.options, &status.cleaner);
    let mut lines = vec![
        ("cleaner", state(status).to_owned()),
        ("policy", policy(options.policy).to_owned()),
        ("protection period", protection(options)),
        ("last step", status.last_step.map_or("none".into(), |time| local_time(time as i64))),
        ("segments freed", totals.segments_freed.to_string()),
    ];
    for (name, count) in [
        ("checkpoints given up", totals.checkpoints_deleted),
        ("damaged segments", totals.segments_skipped),
    ] {
        if count > 0 {
            lines.push((name, count.to_string()));
        }
    }
    lines
}

fn protection(options: &CleanerOptions) -> String {
    let period = output::duration(options.protection);
    match options.hard_protection {
        _ if options.protection.is_zero() => "none".into(),
        true => format!("{period}, even if writers are refused"),
        false => format!("{period}, as long as there is room"),
    }
}

fn amplification(factor: Option<f64>) -> String {
    factor.map_or("-".into(), |factor| format!("{factor:.2}"))
}

/// What was written since the volume was made.
fn lifetime(status: &Status) -> String {
    let written = ByteCount(status.lifetime_written_bytes);
    let factor = amplification(rates::lifetime_amplification(status));
    format!("{written} written, amplification {factor}")
}

fn full(time: Option<Duration>) -> String {
    match time {
        Some(time) => format!("in {} at this rate", output::duration(time)),
        None => "not at this rate".to_owned(),
    }
}

fn bytes(blocks: u64, block: u64) -> String {
    ByteCount(blocks.saturating_mul(block)).to_string()
}

/// What the cleaner is doing, in a word.
fn state(status: &Status) -> &'static str {
    match status.state {
        CleanerState::Idle => "idle",
        CleanerState::Running => "running",
        CleanerState::Suspended => "suspended",
        CleanerState::HeldUp => "held up by another process that reads the volume",
        CleanerState::Off => "off",
    }
}

fn policy(policy: Policy) -> &'static str {
    match policy {
        Policy::Timestamp => "timestamp",
        Policy::Greedy => "greedy",
        Policy::CostBenefit => "cost-benefit",
    }
}

fn record(
    status: &Status,
    reach: Option<&Reach>,
    scrubbing: Option<&Scrubbing>,
    transport: Option<String>,
) -> Record {
    let cleaner = &status.cleaner;
    Record {
        newest_checkpoint: status.cno.0,
        of_the_past: status.of_the_past,
        uptime_seconds: status.uptime,
        stopped: status.stopped.is_some(),
        loss: status.stopped.as_ref().map(LossRecord::of),
        dirty_bytes: status.dirty_bytes,
        block_bytes: status.geometry.block_size.bytes64(),
        blocks_per_segment: status.geometry.blocks_per_segment,
        segments: status.geometry.nsegments,
        clean_segments: status.clean_segments,
        kept_segments: status.kept_segments,
        refused_segments: status.refused_segments,
        blocks_written: status.blocks_written,
        user_blocks_written: status.user_blocks_written,
        write_amplification: rates::amplification(status),
        lifetime: LifetimeRecord {
            user_bytes: status.lifetime_user_bytes,
            written_bytes: status.lifetime_written_bytes,
            segments_freed: status.lifetime_segments_freed,
            write_amplification: rates::lifetime_amplification(status),
        },
        full_in_seconds: rates::until_full(None, status).map(|time| time.as_secs()),
        cleaner: CleanerRecord {
            state: status.state,
            policy: status.options.policy,
            protection_seconds: status.options.protection.as_secs_f64(),
            hard_protection: status.options.hard_protection,
            last_step: status.last_step.map(|time| exact_time(time as i64, 0)),
            steps: cleaner.steps,
            segments_freed: cleaner.segments_freed,
            blocks_moved: cleaner.blocks_moved,
            blocks_written: cleaner.blocks_written,
            checkpoints_deleted: cleaner.checkpoints_deleted,
            segments_skipped: cleaner.segments_skipped,
        },
        history: reach.map(HistoryRecord::from),
        scrub: scrubbing.map(ScrubRecord::from),
        transport,
    }
}

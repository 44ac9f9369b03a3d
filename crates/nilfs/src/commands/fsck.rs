//! `nilfs fsck`: what is wrong with a volume, and what would put it right; and doing that.

mod groups;
mod watch;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use nilfs_check::{CheckError, Finding, Foreign, Options, Report};
use nilfs_device::{Access, Device, FileDevice};
use nilfs_engine::Error;
use nilfs_ondisk::superblock::LogCursor;
use nilfs_ondisk::{ByteCount, FormatError};
use nilfs_repair::{
    Kept, Plan, Repair, RepairError, Risk, Settings, UndoDevice, apply_undo, plan_observed,
};
use serde::Serialize;

use self::groups::{EXAMPLES, Groups, Line, Words};
pub use self::watch::watch;
use super::tune::open_unmounted;
use crate::administration::{Administration, Target, mount_of};
use crate::control::Client;
use crate::device;
use crate::exit::{self, Failure, Status};
use crate::image::device_of;
use crate::interrupt;
use crate::names;
use crate::output::{self, counted, printable, say, utter};
use crate::private;
use crate::progress::Progress;
use crate::roll_forward::SyncedLog;
use crate::signature;

/// Check a volume, and repair what is wrong with it
///
/// First everything is checked, and every finding is shown, with what would put it right. Only then,
/// and only if you say so, something is written: to places that are free, and to the superblocks. So a
/// repair may be interrupted at any time, and begun again. Without an option that says what to do, you
/// are asked on a terminal, and nothing is written elsewhere.
///
/// The volume must not be mounted, unless it is only checked: then the newest checkpoint of the mount is,
/// with all before it, whatever is written meanwhile. The exit code is 3 if errors are left.
#[derive(Debug, clap::Args)]
#[command(override_usage = "nilfs fsck [OPTIONS] <DEVICE>\n       \
    nilfs fsck --apply-undo FILE <DEVICE>")]
#[command(after_help = "\
Examples:
  nilfs fsck /dev/sdb1                     show what is wrong, and ask
  nilfs fsck -n disk.img                   only show it
  nilfs fsck -y --undo before.undo disk.img
  nilfs fsck --apply-undo before.undo disk.img
  nilfs fsck -n --json disk.img | jq '.repairs[]'")]
pub struct Args {
    #[command(flatten)]
    mode: ModeArgs,
    /// Read the content of files, too, and compare all of it with the checksums of the logs
    #[arg(long)]
    scrub: bool,
    /// Show every finding and every repair; without this option, of many of one kind only some
    #[arg(short, long, conflicts_with = "json")]
    verbose: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Take the device back if something else has been put on it, which is damaged by that
    #[arg(long, conflicts_with_all = ["check", "safe"])]
    force: bool,
    /// Take content that is damaged, or may be, for what was written: its checksums are made right. It lists
    /// each file and range, and takes -y, or a terminal to ask on
    #[arg(long, conflicts_with_all = ["check", "safe"])]
    accept: bool,
    /// Save in this new file what is overwritten
    #[arg(long, value_name = "FILE", conflicts_with = "check")]
    undo: Option<PathBuf>,
    /// Take a repair back, with the file that it has made
    #[arg(long, value_name = "FILE")]
    #[arg(conflicts_with_all = ["undo", "mode", "json", "scrub", "force", "verbose", "accept"])]
    apply_undo: Option<PathBuf>,
    /// The device or image
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
}

#[derive(Debug, clap::Args)]
#[group(id = "mode", multiple = false)]
struct ModeArgs {
    /// Only check; write nothing
    #[arg(short = 'n', long)]
    check: bool,
    /// Repair if nothing is lost by that and nothing has to be guessed; else write nothing
    #[arg(short = 'p', long)]
    safe: bool,
    /// Repair all that can be repaired, without asking
    #[arg(short, long)]
    yes: bool,
    /// Show the plan, and ask
    #[arg(short, long, conflicts_with = "json")]
    interactive: bool,
}

/// What may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    Check,
    /// What loses nothing.
    Safe,
    /// Everything.
    All,
    /// What somebody agrees to.
    Ask,
}

/// What to do to which volume.
#[derive(Debug)]
pub struct Order {
    /// What may be written.
    pub mode: Mode,
    /// Whether the content of files is read.
    pub scrub: bool,
    /// Whether every finding is shown, however many there are of a kind.
    pub verbose: bool,
    /// Whether the result is printed as JSON.
    pub json: bool,
    /// Whether what else is on the device may be damaged.
    pub force: bool,
    /// Whether content that is not known to be what was written is taken for that.
    pub accept: bool,
    /// Where to save what is overwritten.
    pub undo: Option<PathBuf>,
    /// Whom to tell how far the check is, besides the terminal.
    pub progress: Option<File>,
    /// The device or image.
    pub device: PathBuf,
}

impl Order {
    /// Whether the content of files is read.
    fn reads_content(&self) -> bool {
        self.scrub || self.accept
    }
}

/// What has become of a volume.
#[derive(Debug)]
pub enum Outcome {
    /// There are no errors, and nothing was written.
    Sound,
    /// All of it is repaired.
    Repaired,
    /// Something was repaired, and this is left.
    Partly(Failure),
    /// Nothing was repaired, and this is wrong.
    Damaged(Failure),
}

/// Does what the command line says.
pub fn run(args: Args) -> anyhow::Result<()> {
    if let Some(file) = &args.apply_undo {
        return undo(file, &args.device);
    }
    let ModeArgs { check, safe, yes, interactive } = args.mode;
    let mode = match (check, safe, yes, interactive) {
        (true, ..) => Mode::Check,
        (_, true, ..) => Mode::Safe,
        (_, _, true, _) => Mode::All,
        (_, _, _, true) => Mode::Ask,
        _ if io::stdin().is_terminal() && !args.json => Mode::Ask,
        _ => Mode::Check,
    };
    let Args { scrub, verbose, json, force, accept, undo, device, .. } = args;
    end(check_and_repair(&Order {
        mode,
        scrub,
        verbose,
        json,
        force,
        accept,
        undo,
        progress: None,
        device,
    })?)
}

/// How a subcommand ends after that.
pub fn end(outcome: Outcome) -> anyhow::Result<()> {
    match outcome {
        Outcome::Sound | Outcome::Repaired => Ok(()),
        Outcome::Partly(failure) | Outcome::Damaged(failure) => Err(failure.into()),
    }
}

/// Checks a volume, prints what is wrong, and repairs what it may.
pub fn check_and_repair(order: &Order) -> anyhow::Result<Outcome> {
    let path = match order.mode {
        Mode::Check => device_of(&order.device)?,
        // A volume that is mounted on the directory is to be unmounted first.
        _ if order.device.is_dir() => device_of(&order.device)?,
        _ => names::device(&order.device)?,
    };
    let told = path.display().to_string();
    let is_writing = Arc::new(AtomicBool::new(false));
    let writing = Arc::clone(&is_writing);
    interrupt::explain(move || match writing.load(Ordering::Relaxed) {
        false => format!("{told}: interrupted; nothing was written"),
        true => format!("{told}: interrupted in a repair; nilfs fsck goes on from there"),
    });
    if let Some(undo) = &order.undo {
        refuse_on_device(undo, &path)?;
    }
    let (device, newest) = match order.mode {
        Mode::Check => open_to_check(&path)?,
        _ => (open_to_repair(&path)?, None),
    };
    let device: Arc<dyn Device> = Arc::new(device);
    let foreign = signature::foreign(&path);
    let mut plan = {
        let uuid = *names::new_uuid()?.as_bytes();
        let options = Options {
            read_content: order.reads_content(),
            newest,
            foreign: foreign.clone(),
            ..Options::default()
        };
        let told = order.progress.as_ref().and_then(|file| file.try_clone().ok());
        let settings = Settings { uuid, accept: order.accept, in_view: false };
        plan_observed(&device, &options, settings, &watch(told, &path))
            .map_err(|error| beyond(&path, &foreign, error))?
    };
    if order.force {
        plan.take_back();
    }
    let asks = order.mode == Mode::Ask && plan.can_be_applied();
    let agreed = plan.can_be_applied()
        && match order.mode {
            Mode::Check => false,
            Mode::Safe => plan.risk() == Risk::Safe,
            Mode::All => true,
            Mode::Ask => {
                print(&plan, false, order, &path)?;
                output::flush()?;
                ask(&plan)?
            }
        };
    if agreed {
        is_writing.store(true, Ordering::Relaxed);
        apply(&plan, &device, order).with_context(|| path.display().to_string())?;
    }
    let printed = match (order.json, asks) {
        (true, _) => output::json(&record(&plan, agreed)),
        (false, true) => Ok(()),
        (false, false) => print(&plan, agreed, order, &path),
    };
    if let Some(RepairError::Scratch(error)) = plan.obstacle {
        return Err(anyhow::Error::new(error).context(path.display().to_string()));
    }
    let outcome = outcome(&plan, agreed, &path);
    if let Outcome::Repaired = outcome
        && !order.json
    {
        say!("{}: repaired", path.display());
    }
    // What is left on the volume is worse than a report that did not arrive.
    match &outcome {
        Outcome::Sound | Outcome::Repaired => printed.map(|()| outcome),
        Outcome::Partly(_) | Outcome::Damaged(_) => Ok(outcome),
    }
}

/// Opens a device that is only checked. If a mount writes to it, that is asked for its newest log: what
/// this needs stays where it is as long as the device is open for reading.
fn open_to_check(path: &Path) -> anyhow::Result<(FileDevice, Option<LogCursor>)> {
    if let Target::Mounted { node, .. } = Target::find(path)? {
        // Only what is needed after the device was opened stays.
        let device = FileDevice::open(path, Access::Inspect)?;
        if let Ok(newest) = Client::new(&node).newest_log() {
            return Ok((device, Some(newest)));
        }
    }
    Ok((device::open(path, Access::ReadOnly)?, None))
}

/// Opens a device that is to be repaired.
fn open_to_repair(path: &Path) -> anyhow::Result<FileDevice> {
    if let Some(mounted) = mount_of(path)? {
        let (path, dir) = (path.display(), mounted.dir.display());
        let check = if mounted.is_nilfs() { "; nilfs fsck -n checks it as it is" } else { "" };
        let message = format!("{path} is mounted on {dir}; unmount it to repair it{check}");
        return Err(Failure::new(Status::Busy, message).into());
    }
    device::open(path, Access::ReadWrite)
}

/// Why a volume can be neither checked nor repaired.
fn beyond(path: &Path, foreign: &[Foreign], error: RepairError) -> anyhow::Error {
    let shown = path.display();
    let holds: String = foreign.iter().map(|it| format!(", which holds {it}")).collect();
    match error {
        RepairError::Device(error) | RepairError::Scratch(error) => {
            anyhow::Error::new(error).context(shown.to_string())
        }
        RepairError::Check(CheckError::Device(error)) => {
            anyhow::Error::new(error).context(shown.to_string())
        }
        RepairError::NoLog | RepairError::Check(CheckError::DeviceTooSmall { .. }) => {
            let message = format!("{shown}: {}", signature::nothing_left(path));
            Failure::new(Status::NotAVolume, message).into()
        }
        RepairError::Check(CheckError::Format(error @ FormatError::Truncated { .. })) => {
            signature::explained(path, Error::Truncated(error).into())
        }
        RepairError::NoCheckpoint(_) => {
            Failure::new(Status::NotAVolume, format!("{shown}: {error}{holds}")).into()
        }
        other => Failure::new(Status::NotAVolume, format!("{shown}: {other}")).into(),
    }
}

fn outcome(plan: &Plan, applied: bool, path: &Path) -> Outcome {
    let path = path.display();
    let errors_of = |report: &Report| report.errors().count() as u64;
    if applied {
        let left = plan.after.as_ref().map_or(0, errors_of);
        let doubtful = plan.doubtful.len() as u64;
        let parts = [
            (left > 0).then(|| counted(left, "error")),
            (doubtful > 0).then(|| "content that is damaged, or may be".to_owned()),
            (plan.risk() == Risk::Loses).then(|| "what was given up or guessed".to_owned()),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if parts.is_empty() {
            return Outcome::Repaired;
        }
        let what = parts.join(", and ");
        let message = format!("{path}: repaired, but for {what}; see above");
        return Outcome::Partly(Failure::new(Status::NotAVolume, message));
    }
    let found = match &plan.before {
        // What is untidy, such as a superblock that is missing, keeps nobody from using the volume.
        Ok(report) => match errors_of(report) {
            0 => return Outcome::Sound,
            errors => counted(errors, "error"),
        },
        Err(error) => error.to_string(),
    };
    let hint = match (&plan.obstacle, plan.can_be_applied(), plan.risk()) {
        (Some(obstacle), ..) => format!("; {}", exit::without_error_numbers(&obstacle.to_string())),
        (None, false, _) => "; nothing of that can be repaired, see above".to_owned(),
        (None, true, Risk::Safe) => "; nilfs fsck -p repairs".to_owned(),
        (None, true, Risk::Accepted | Risk::Loses) => {
            "; nilfs fsck -y repairs, with losses".to_owned()
        }
    };
    Outcome::Damaged(Failure::new(Status::NotAVolume, format!("{path}: {found}{hint}")))
}

fn ask(plan: &Plan) -> io::Result<bool> {
    let losses = match plan.risk() {
        Risk::Safe => "nothing is lost",
        Risk::Accepted => "what is there is taken as it is",
        Risk::Loses => "something is lost, see above",
    };
    let repairs = counted(plan.count(), "repair");
    let bytes = ByteCount(plan.bytes());
    utter(format_args!("Make {repairs}? {bytes} are written, and {losses}. [y/N] "));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn apply(plan: &Plan, device: &Arc<dyn Device>, order: &Order) -> anyhow::Result<()> {
    let progress = Progress::with_end("repairing");
    let mut show = |written| progress.set(written, plan.bytes());
    match &order.undo {
        None => plan.apply(&**device, &mut show)?,
        Some(path) => {
            let shown = path.display();
            let file = private::create_new(path);
            let file = file.with_context(|| format!("cannot make {shown}"))?;
            let undoing = UndoDevice::new(Arc::clone(device), file, plan.uuid);
            let undoing = undoing.with_context(|| format!("cannot write {shown}"))?;
            // Its name, too, has to be there after a power cut.
            let named = File::open(directory_of(path)).and_then(|directory| directory.sync_all());
            named.with_context(|| format!("cannot write the directory of {shown}"))?;
            plan.apply(&undoing, &mut show)?;
        }
    }
    Ok(())
}

fn directory_of(file: &Path) -> &Path {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// An undo file on the device itself would be overwritten by the repair, or lost with it.
fn refuse_on_device(undo: &Path, device: &Path) -> anyhow::Result<()> {
    let directory = directory_of(undo);
    let shown = directory.display();
    let directory = std::fs::metadata(directory).with_context(|| format!("cannot open {shown}"))?;
    let it =
        std::fs::metadata(device).with_context(|| format!("cannot open {}", device.display()))?;
    if it.file_type().is_block_device() && it.rdev() == directory.dev() {
        let message =
            format!("{} lies on the device that is to be repaired; name another", undo.display());
        return Err(Failure::new(Status::Usage, message).into());
    }
    if undo.symlink_metadata().is_ok() {
        let message = format!("{} exists already; name a new file", undo.display());
        return Err(Failure::new(Status::Refused, message).into());
    }
    Ok(())
}

fn undo(file: &Path, path: &Path) -> anyhow::Result<()> {
    let shown = file.display();
    let saved = File::open(file).with_context(|| format!("cannot open {shown}"))?;
    let path = names::device(path)?;
    let device: FileDevice = open_unmounted(&path, false)?;
    let bytes = apply_undo(saved, &device).with_context(|| shown.to_string())?;
    writeln!(output::out(), "{}: {} put back", path.display(), ByteCount(bytes))?;
    Ok(())
}

/// Prints the plan, of which all may be `done`.
fn print(plan: &Plan, done: bool, order: &Order, path: &Path) -> anyhow::Result<()> {
    let mut out = io::BufWriter::new(output::out());
    let most = if order.verbose { usize::MAX } else { EXAMPLES };
    let repairs = by_fault(plan);
    let mut shown = HashSet::new();
    match &plan.before {
        Ok(report) => {
            let mut groups = Groups::default();
            for finding in &report.findings {
                let repair = repairs.get(&finding.fault()[..]);
                shown.extend(repair.map(|repair| &repair.fault[..]));
                groups.add(Line {
                    label: finding.severity.to_string(),
                    subject: Some(finding.rule.to_string()),
                    words: Words { kind: finding.message.clone(), text: with_path(plan, finding) },
                    repair: repair.map(|repair| action(repair)),
                });
            }
            groups.print(&mut out, most)?;
            for text in report.summary().lines() {
                writeln!(out, "{}", printable(text.as_bytes()))?;
            }
        }
        Err(error) => {
            let fault = error.to_string();
            writeln!(out, "error: {}", printable(fault.as_bytes()))?;
            for repair in plan.repairs.iter().filter(|repair| repair.fault == fault) {
                writeln!(out, "  repair: {}", printable(repair.action_by_path().as_bytes()))?;
                shown.insert(&repair.fault[..]);
            }
        }
    }
    // What comes to light only when something else has been repaired.
    let mut groups = Groups::default();
    for repair in plan.repairs.iter().filter(|repair| !shown.contains(&repair.fault[..])) {
        let kind = format!("{}: {}", repair.fault, repair.action);
        groups.add(Line::new("repair", Words { kind, text: repair.to_string() }));
    }
    groups.print(&mut out, most)?;
    for (risk, count) in &plan.omitted {
        let lost = if *risk == Risk::Loses { ", by which something is lost" } else { "" };
        writeln!(out, "repair: {count} more{lost}")?;
    }
    let fate = if done { "lost" } else { "would be lost" };
    plan.lost.iter().try_for_each(|log| SyncedLog::new(log).print(&mut out, fate))?;
    let mut groups = Groups::default();
    for kept in plan.kept.iter().chain(&plan.doubtful) {
        let text = format!("{}: {}", kept.fault, kept.why);
        // Of content, the fault is nothing but the path of a file and the place there.
        let kind = if plan.doubtful.contains(kept) { &kept.why } else { &text };
        groups.add(Line::new("not repaired", Words { kind: kind.clone(), text }));
    }
    groups.print(&mut out, most)?;
    for note in notes(plan, done, order, path) {
        writeln!(out, "note: {}", printable(note.as_bytes()))?;
    }
    Ok(out.flush()?)
}

/// Advice about other commands, where something is wrong.
fn notes(plan: &Plan, done: bool, order: &Order, path: &Path) -> Vec<String> {
    let path = path.display();
    let mut notes = Vec::new();
    // A scrub, too, takes a volume that can be checked.
    let is_damaged = match &plan.before {
        Ok(report) => !report.is_consistent(),
        Err(_) => done,
    };
    if is_damaged && !order.reads_content() {
        notes.push(format!(
            "the content of files was not read; nilfs scrub {path} tells which of it is damaged"
        ));
    }
    if plan.can_be_applied() && plan.risk() == Risk::Loses && !done {
        notes.push(format!(
            "these repairs give something up; before that, nilfs salvage {path} --to DIR copies out what can \
             be read"
        ));
    }
    notes
}

/// A repair, in words.
fn action(repair: &Repair) -> Words {
    Words { kind: repair.action.clone(), text: repair.action_by_path() }
}

/// What is done about which fault; the first of several.
fn by_fault(plan: &Plan) -> HashMap<&str, &Repair> {
    let mut repairs = HashMap::new();
    for repair in &plan.repairs {
        repairs.entry(&repair.fault[..]).or_insert(repair);
    }
    repairs
}

/// A finding, with the path of the file that it is about.
fn with_path(plan: &Plan, finding: &Finding) -> String {
    match path_of(plan, finding) {
        Some(path) => format!("{path}: {}", finding.fault()),
        None => finding.fault(),
    }
}

/// A path of the file that a finding is about.
fn path_of(plan: &Plan, finding: &Finding) -> Option<String> {
    plan.path_of(finding).map(|path| match path {
        b"" => "/".to_owned(),
        path => String::from_utf8_lossy(path).into_owned(),
    })
}

/// The result for programs.
#[derive(Serialize)]
struct Record {
    #[serde(flatten)]
    found: ReportRecord,
    /// Why it could not be checked as it is.
    fault: Option<String>,
    repairs: Vec<RepairRecord>,
    /// How many others there are.
    repairs_omitted: u64,
    /// What fsyncs have written that is given up.
    lost: Vec<SyncedLog>,
    /// What stays as it is though a repair is known.
    not_repaired: Vec<KeptRecord>,
    /// Bytes that the repairs write.
    repair_bytes: u64,
    /// Why they cannot be made.
    obstacle: Option<String>,
    repaired: bool,
    /// Errors that are left when they are made.
    errors_left: u64,
}

#[derive(Serialize, Default)]
struct ReportRecord {
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
    path: Option<String>,
    inode: Option<u64>,
    block: Option<u64>,
    segment: Option<u64>,
    checkpoint: Option<u64>,
    message: String,
    /// What would put it right.
    repair: Option<String>,
}

/// Findings that are counted and not shown.
#[derive(Serialize)]
struct OmittedRecord {
    rule: String,
    findings: u64,
}

#[derive(Serialize)]
struct RepairRecord {
    fault: String,
    action: String,
    loses: bool,
}

#[derive(Serialize)]
struct KeptRecord {
    fault: String,
    reason: String,
}

fn record(plan: &Plan, repaired: bool) -> Record {
    let kept = |kept: &Kept| KeptRecord { fault: kept.fault.clone(), reason: kept.why.clone() };
    let repair = |repair: &Repair| RepairRecord {
        fault: repair.fault.clone(),
        action: repair.action_by_path(),
        loses: repair.risk != Risk::Safe,
    };
    let left = plan.after.as_ref().or(plan.before.as_ref().ok());
    Record {
        found: plan.before.as_ref().map(|it| report_record(plan, it)).unwrap_or_default(),
        fault: plan.before.as_ref().err().map(ToString::to_string),
        repairs: plan.repairs.iter().map(repair).collect(),
        repairs_omitted: plan.omitted.values().sum(),
        lost: plan.lost.iter().map(SyncedLog::new).collect(),
        not_repaired: plan.kept.iter().chain(&plan.doubtful).map(kept).collect(),
        repair_bytes: plan.bytes(),
        obstacle: plan.obstacle.as_ref().map(ToString::to_string),
        repaired,
        errors_left: left.map_or(0, |report| report.errors().count() as u64),
    }
}

fn report_record(plan: &Plan, report: &Report) -> ReportRecord {
    let counts = &report.counts;
    let repairs = by_fault(plan);
    let finding = |finding: &Finding| FindingRecord {
        severity: finding.severity.to_string(),
        rule: finding.rule.to_string(),
        place: finding.place.to_string(),
        path: path_of(plan, finding),
        inode: finding.place.ino.map(|it| it.0),
        block: finding.place.block.or(finding.place.log).map(|it| it.0),
        segment: finding.place.segment.map(|it| it.0),
        checkpoint: finding.place.checkpoint.map(|it| it.0),
        message: finding.message.clone(),
        repair: repairs.get(&finding.fault()[..]).map(|repair| repair.action_by_path()),
    };
    let omitted = report.omitted.iter();
    ReportRecord {
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

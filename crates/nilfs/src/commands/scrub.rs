//! `nilfs scrub`: whether a volume still is what was written, and what suffers if not.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use nilfs_device::{Access, Device, FileDevice};
use nilfs_engine::Ino;
use nilfs_engine::scrub::{self, Damage, Fault, Need, Scrubbed};
use nilfs_engine::tree::Extent;
use nilfs_ondisk::{ByteCount, Cno};
use serde::Serialize;

use crate::administration::{Administration, is_believable, mount_of};
use crate::control::Client;
use crate::exit::{Failure, Status};
use crate::image::device_of;
use crate::interrupt::Interrupt;
use crate::output::{self, counted, printable};
use crate::progress::Progress;
use crate::size;

/// Parts of a file that a line names; of more, it says how many bytes there are.
const NAMED: usize = 4;

/// How long a pause may keep the command from noticing that it is to end.
const PAUSE: Duration = Duration::from_millis(100);

/// Read a whole volume, and see whether it still is what was written
///
/// Reads all logs that are in use, and compares them with their checksums, which cover the content of
/// files, too. What cannot be read or is not what was written is shown with the files that need it, and
/// with the checkpoints: since which one, or from which to which. Where the checksum of a log is wrong,
/// it is not known which of its blocks is damaged, so all files are named that have some in it.
///
/// The volume may be mounted and in use. Nothing is written. The exit code is 3 if something that is
/// needed is damaged.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nilfs scrub /dev/sdb1
  nilfs scrub --rate 20M /mnt              a mounted volume, slowly
  nilfs scrub --json disk.img | jq '.damage[].needs[].path'")]
pub struct Args {
    /// Read at most this much in a second, such as 20M
    #[arg(long, value_name = "BYTES", value_parser = rate)]
    rate: Option<u64>,
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

/// Reads everything, and prints what is damaged.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let path = device_of(&args.device)?;
    let shown = path.display();
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&path, Access::Inspect)?);
    let known = newest_of_mount(&path)?;
    let interrupt = Interrupt::listen()?;
    let progress = Progress::count("scrubbing", "MiB");
    let started = Instant::now();
    let mut observe = |at: scrub::Progress| {
        progress.set(at.done >> 20, at.all >> 20);
        let due = args.rate.map(|rate| Duration::from_secs_f64(at.read as f64 / rate as f64));
        while let Some(left) = due.and_then(|due| due.checked_sub(started.elapsed()))
            && !left.is_zero()
            && !interrupt.came()
        {
            thread::sleep(left.min(PAUSE));
        }
        if interrupt.came() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let found = scrub::scrub(&device, &mut observe).with_context(|| shown.to_string())?;
    drop(progress);
    let printed = match args.json {
        true => output::json(&record(&found)),
        false => print(&found),
    };
    // What is damaged is worse than a report that did not arrive.
    if !found.damage.is_empty() {
        let places = counted(found.damage.len() as u64, "place");
        let message = format!("{shown}: damaged in {places}");
        return Err(Failure::new(Status::NotAVolume, message).into());
    }
    if let Some(known) = known.filter(|known| *known > found.checkpoint) {
        let message = format!(
            "{shown}: a log of the last checkpoints is damaged: the mount has checkpoint {known}, but \
             the device leads only to {}, and nothing after it was read; unmount the volume, and scrub \
             it again",
            found.checkpoint
        );
        return Err(Failure::new(Status::NotAVolume, message).into());
    }
    if found.interrupted {
        let message = format!("{shown}: interrupted before everything was read");
        return Err(Failure::new(Status::Failed, message).into());
    }
    printed
}

/// The newest checkpoint of the mount of a volume, if a process of ours serves one. What the device
/// leads to may be older: a damaged log looks like the end of all logs.
fn newest_of_mount(path: &Path) -> anyhow::Result<Option<Cno>> {
    let mounted = mount_of(path)?.filter(|mounted| mounted.is_nilfs() && is_believable(mounted));
    Ok(mounted.and_then(|mounted| Client::new(&mounted.dir).status().ok()).map(|status| status.cno))
}

fn print(found: &Scrubbed) -> anyhow::Result<()> {
    let mut out = output::out();
    for damage in &found.damage {
        writeln!(out, "{}", place(damage))?;
        let verb = if damage.fault == Fault::Checksum { "may be damaged" } else { "damaged" };
        for need in &damage.needs {
            writeln!(out, "  {verb}: {}{}; {}", who(need), parts(need), moments(need))?;
        }
    }
    let logs = counted(found.sound_logs, "log");
    let places = match found.damage.len() {
        0 => "no damage".to_owned(),
        many => format!("{} damaged", counted(many as u64, "place")),
    };
    let (cno, bytes) = (found.checkpoint, ByteCount(found.bytes));
    let end = if found.interrupted { ", interrupted" } else { "" };
    Ok(writeln!(out, "checkpoint {cno}: {bytes} read, {logs} sound, {places}{end}")?)
}

fn place(damage: &Damage) -> String {
    let Damage { fault, segment, blocks, .. } = damage;
    let count = counted(blocks.end.0 - blocks.start.0, "block");
    let at = format!("{count} from block {} on, in segment {segment}", blocks.start);
    match fault {
        Fault::Unreadable => format!("unreadable: {at}"),
        Fault::Checksum => format!("wrong checksum: a log of {at}"),
        Fault::NoSummary => format!("no log, where there should be one: {at}"),
    }
}

/// The name of a file of metadata.
fn metadata(ino: Ino) -> Option<&'static str> {
    Some(match ino {
        Ino::DAT => "DAT",
        Ino::CPFILE => "cpfile",
        Ino::SUFILE => "sufile",
        Ino::IFILE => "ifile",
        Ino::XATTR => "notes of snapshots",
        _ => return None,
    })
}

fn who(need: &Need) -> String {
    let Some(ino) = need.ino else { return "files that cannot be told".to_owned() };
    match (&need.path, metadata(ino)) {
        (Some(path), _) if path.is_empty() => "/".to_owned(),
        (Some(path), _) => printable(path),
        (None, Some(name)) => format!("the {name}"),
        (None, None) => format!("inode {ino}, which no name leads to"),
    }
}

fn parts(need: &Need) -> String {
    let bytes = need.data.iter().fold(0_u64, |sum, it| sum.saturating_add(it.length));
    let part = |it: &Extent| format!("{} at {}", counted(it.length, "byte"), it.offset);
    let mut parts: Vec<String> = match need.data.len() {
        0..=NAMED => need.data.iter().map(part).collect(),
        many => vec![format!("{} in {many} parts", ByteCount(bytes))],
    };
    match (need.other_blocks, need.ino) {
        (0, _) => {}
        (count, Some(_)) => parts.push(format!("{} of its block map", counted(count, "block"))),
        (count, None) => parts.push(counted(count, "block")),
    }
    format!(": {}", parts.join(", "))
}

fn moments(need: &Need) -> String {
    let Need { first, last, is_current, .. } = need;
    match (first == last, is_current) {
        (_, true) => format!("since checkpoint {first}"),
        (true, false) => format!("checkpoint {first}"),
        (false, false) => format!("checkpoints {first} to {last}"),
    }
}

/// The result for programs.
#[derive(Serialize)]
struct Record {
    checkpoint: u64,
    read_bytes: u64,
    sound_logs: u64,
    interrupted: bool,
    damage: Vec<DamageRecord>,
}

#[derive(Serialize)]
struct DamageRecord {
    fault: &'static str,
    segment: u64,
    block: u64,
    blocks: u64,
    needs: Vec<NeedRecord>,
}

#[derive(Serialize)]
struct NeedRecord {
    inode: Option<u64>,
    path: Option<String>,
    metadata: Option<&'static str>,
    data: Vec<ExtentRecord>,
    other_blocks: u64,
    first_checkpoint: u64,
    last_checkpoint: u64,
    current: bool,
}

#[derive(Serialize)]
struct ExtentRecord {
    offset_bytes: u64,
    length_bytes: u64,
}

fn record(found: &Scrubbed) -> Record {
    let extent = |it: &Extent| ExtentRecord { offset_bytes: it.offset, length_bytes: it.length };
    let need = |need: &Need| NeedRecord {
        inode: need.ino.map(|ino| ino.0),
        path: need.path.as_ref().map(|path| String::from_utf8_lossy(path).into_owned()),
        metadata: need.ino.and_then(metadata),
        data: need.data.iter().map(extent).collect(),
        other_blocks: need.other_blocks,
        first_checkpoint: need.first.0,
        last_checkpoint: need.last.0,
        current: need.is_current,
    };
    let damage = |damage: &Damage| DamageRecord {
        fault: match damage.fault {
            Fault::Unreadable => "unreadable",
            Fault::Checksum => "checksum",
            Fault::NoSummary => "no-summary",
        },
        segment: damage.segment.0,
        block: damage.blocks.start.0,
        blocks: damage.blocks.end.0 - damage.blocks.start.0,
        needs: damage.needs.iter().map(need).collect(),
    };
    Record {
        checkpoint: found.checkpoint.0,
        read_bytes: found.bytes,
        sound_logs: found.sound_logs,
        interrupted: found.interrupted,
        damage: found.damage.iter().map(damage).collect(),
    }
}

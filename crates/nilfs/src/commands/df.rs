//! `nilfs df`: where the space of a volume is, and what would bring it back.

use std::io::Write;
use std::path::PathBuf;

use nilfs_engine::Usage;
use nilfs_ondisk::ByteCount;
use serde::Serialize;

use super::status::refused_segments;
use crate::administration::{Purpose, on};
use crate::output::{self, Column, Rows, exact_time, local_time};
use crate::progress;
use crate::reach::{HistoryRecord, Reach};

/// Show where the space of a volume is
///
/// Deleted files stay in checkpoints: the cleaner gives their space back when the protection period
/// is over or the space is needed, and never while a snapshot has them.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nilfs df /mnt
  nilfs df --json /dev/sdb1 | jq .reclaimable_bytes")]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Any file or directory of the mount, or the device or image; without it, the current directory
    #[arg(value_name = "DIR|DEVICE", default_value = ".", hide_default_value = true)]
    path: PathBuf,
}

#[derive(Serialize)]
struct Record {
    #[serde(flatten)]
    bytes: Bytes,
    refused_segments: u64,
    protected_until: Option<String>,
    hard_protection: bool,
    snapshots: Vec<Exclusive>,
    history: Option<HistoryRecord>,
}

#[derive(Serialize)]
struct Bytes {
    #[serde(rename = "total_bytes")]
    total: u64,
    #[serde(rename = "live_bytes")]
    live: u64,
    #[serde(rename = "snapshot_bytes")]
    snapshots: u64,
    #[serde(rename = "protected_bytes")]
    protected: u64,
    #[serde(rename = "reclaimable_bytes")]
    reclaimable: u64,
    #[serde(rename = "refused_bytes")]
    refused: u64,
    #[serde(rename = "bad_bytes")]
    bad: u64,
    #[serde(rename = "free_bytes")]
    free: u64,
    #[serde(rename = "reserved_bytes")]
    reserved: u64,
    #[serde(rename = "available_bytes")]
    available: u64,
}

#[derive(Serialize)]
struct Exclusive {
    checkpoint: u64,
    exclusive_bytes: u64,
}

/// Prints it.
pub fn run(args: Args) -> anyhow::Result<()> {
    let (usage, reach) = {
        let _spinner = progress::spinner("looking for what is in use");
        on(&args.path, Purpose::Inspect, |volume| Ok((volume.usage()?, Reach::of(volume)?)))?
    };
    let record = record(&usage, reach.as_ref());
    match args.json {
        true => output::json(&record),
        false => {
            print(&usage, &record)?;
            print_reach(reach.as_ref())
        }
    }
}

/// Prints how far back the past goes, after what else there was to be said.
pub fn print_reach(reach: Option<&Reach>) -> anyhow::Result<()> {
    let Some(reach) = reach else { return Ok(()) };
    Ok(writeln!(output::out(), "\nhistory: {reach}")?)
}

fn print(usage: &Usage, record: &Record) -> anyhow::Result<()> {
    let bytes = &record.bytes;
    let mut protected = "kept by young checkpoints".to_owned();
    if let Some(time) = usage.protected_until {
        let until = local_time(time as i64);
        protected += &match usage.hard_protection {
            true => format!(" until {until}, even if writers are refused"),
            false => format!(" until {until}, or until the room is needed"),
        };
    }
    let available = bytes.available;
    let free = format!(
        "{} can be written, {} are kept back",
        ByteCount(available),
        ByteCount(bytes.reserved)
    );
    let mut rows = Rows::new(&[
        Column::Text("SPACE"),
        Column::Number("SIZE"),
        Column::Number("SHARE"),
        Column::Text(""),
    ]);
    let refused = refused_segments(usage.refused_segments);
    let refused = refused.as_deref().map(|why| ("kept out of use", bytes.refused, why));
    let bad = ("bad", bytes.bad, "in segments that are marked with an error, and not used again");
    let bad = (bytes.bad > 0).then_some(bad);
    let parts = [
        ("live", bytes.live, "the newest checkpoint"),
        ("snapshots", bytes.snapshots, "kept by snapshots"),
        ("protected", bytes.protected, protected.as_str()),
        ("reclaimable", bytes.reclaimable, "the cleaner can take it"),
        ("free", bytes.free, free.as_str()),
    ];
    let total = ("total", bytes.total, "");
    for (name, part, note) in parts.into_iter().chain(refused).chain(bad).chain([total]) {
        let share = u128::from(part) * 100 / u128::from(bytes.total.max(1));
        rows.push([name.into(), ByteCount(part).to_string(), format!("{share}%"), note.into()]);
    }
    rows.print()?;
    if record.snapshots.is_empty() {
        return Ok(());
    }
    writeln!(output::out())?;
    let mut rows = Rows::new(&[Column::Number("SNAPSHOT"), Column::Number("ALONE KEEPS")]);
    for snapshot in &record.snapshots {
        rows.push([
            snapshot.checkpoint.to_string(),
            ByteCount(snapshot.exclusive_bytes).to_string(),
        ]);
    }
    rows.print()
}

fn record(usage: &Usage, reach: Option<&Reach>) -> Record {
    let bytes = |blocks: u64| blocks.saturating_mul(usage.block_size);
    Record {
        bytes: Bytes {
            total: bytes(usage.total),
            live: bytes(usage.live),
            snapshots: bytes(usage.snapshots),
            protected: bytes(usage.protected),
            reclaimable: bytes(usage.reclaimable),
            refused: bytes(usage.refused),
            bad: bytes(usage.bad),
            free: bytes(usage.free),
            reserved: bytes(usage.reserved),
            available: bytes(usage.available),
        },
        refused_segments: usage.refused_segments,
        protected_until: usage.protected_until.map(|time| exact_time(time as i64, 0)),
        hard_protection: usage.hard_protection,
        history: reach.map(HistoryRecord::from),
        snapshots: usage
            .exclusive
            .iter()
            .map(|it| Exclusive { checkpoint: it.cno.0, exclusive_bytes: bytes(it.blocks) })
            .collect(),
    }
}

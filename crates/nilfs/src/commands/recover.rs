//! `nilfs recover`: recovers a volume that was not closed cleanly, without mounting it.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use nilfs_device::Device;
use nilfs_engine::{CleanerOptions, Filesystem, Ino, Log, MountOptions, RecoveryPlan, Volume};
use nilfs_ondisk::roll_forward::Record;
use nilfs_ondisk::summary::FileInfo;
use nilfs_ondisk::superblock::FEATURE_ROLL_FORWARD;
use serde::Serialize;

use super::tune::open_to_change;
use crate::exit::{self, Failure, Status};
use crate::output::{self, counted, exact_time, local_time};
use crate::roll_forward::Shown;

/// Recover a volume that was not unmounted, without mounting it
///
/// Does what a mount for writing would do, and leaves the volume as an unmount does: Linux can mount
/// it then. What was fsynced after the newest checkpoint is rolled forward. If a part of that cannot
/// be, because it is damaged or of a newer version, nothing is written, unless --force gives it up.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nilfs recover /dev/sdb1
  nilfs recover -v disk.img      say what was rolled forward in detail
  nilfs recover --force disk.img")]
pub struct Args {
    /// Give up what cannot be rolled forward; without this option, it is only listed
    #[arg(short, long)]
    force: bool,
    /// List everything that is rolled forward
    #[arg(short, long, conflicts_with = "json")]
    verbose: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The device or image
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
}

#[derive(Serialize)]
struct Report {
    /// The volume was not as an unmount leaves it.
    needed: bool,
    recovered: bool,
    /// Before the recovery.
    checkpoint: u64,
    rolled_forward: Vec<SyncedLog>,
    lost: Vec<SyncedLog>,
    lost_because: Option<String>,
}

/// What an fsync has written.
#[derive(Serialize)]
struct SyncedLog {
    block: u64,
    #[serde(skip)]
    seconds: u64,
    created: String,
    files: Vec<SyncedFile>,
    /// In words.
    records: Vec<String>,
    #[serde(skip)]
    sum: Sum,
    /// Why the records are missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Serialize)]
struct SyncedFile {
    inode: u64,
    blocks: u64,
}

/// Recovers it, and prints what has become of it.
pub fn run(args: Args) -> anyhow::Result<()> {
    let path = args.device.display();
    let device: Arc<dyn Device> = Arc::new(open_to_change(&args.device, false)?);
    let mut report = examine(&device).with_context(|| path.to_string())?;
    let is_refused = report.lost_because.is_some() && !args.force;
    if report.needed && !is_refused {
        recover(device, args.force).with_context(|| path.to_string())?;
        report.recovered = true;
    }
    match args.json {
        true => output::json(&report)?,
        false => report.print(&args)?,
    }
    match report.lost_because {
        Some(why) if is_refused => {
            let message =
                format!("{path}: {why}; nothing was written; --force gives up what is lost");
            Err(Failure::new(Status::NotAVolume, message).into())
        }
        _ => Ok(()),
    }
}

/// What there is to be recovered.
fn examine(device: &Arc<dyn Device>) -> anyhow::Result<Report> {
    let volume = Volume::open(Arc::clone(device))?;
    let features = volume.superblock().raw().s_feature_compat_ro.get();
    let RecoveryPlan { applied, lost, why } = volume.recovery_plan()?;
    Ok(Report {
        needed: !volume.is_clean() || features & FEATURE_ROLL_FORWARD != 0,
        recovered: false,
        checkpoint: volume.last_log().cno.0,
        rolled_forward: applied.into_iter().map(SyncedLog::new).collect(),
        lost: lost.into_iter().map(SyncedLog::new).collect(),
        lost_because: why.map(|error| exit::sentence(&error.into())),
    })
}

/// Does what a mount and an unmount do.
fn recover(device: Arc<dyn Device>, force: bool) -> anyhow::Result<()> {
    let cleaner = CleanerOptions { enabled: false, ..CleanerOptions::default() };
    let options = MountOptions { cleaner, give_up_unrecoverable: force, ..MountOptions::default() };
    let fs = Filesystem::mount(device, options)?;
    fs.release_orphans()?;
    Ok(fs.unmount()?)
}

impl SyncedLog {
    fn new(log: Log) -> Self {
        let (records, error) = match log.records() {
            Ok(records) => (records.map_or_else(Vec::new, |it| it.records), None),
            Err(error) => (Vec::new(), Some(exit::sentence(&error.into()))),
        };
        let contents = log.files.iter().map(|file| file.ino).collect();
        let mut sum = Sum { contents, ..Sum::default() };
        records.iter().for_each(|record| sum.add(record));
        let file =
            |file: &FileInfo| SyncedFile { inode: file.ino.0, blocks: file.blocks.len() as u64 };
        Self {
            block: log.start.0,
            seconds: log.header.create,
            created: exact_time(log.header.create as i64, 0),
            files: log.files.iter().map(file).collect(),
            records: records.into_iter().map(|record| Shown(record).to_string()).collect(),
            sum,
            error,
        }
    }
}

impl Report {
    fn print(&self, args: &Args) -> anyhow::Result<()> {
        let mut out = output::out();
        if args.verbose {
            self.rolled_forward.iter().try_for_each(|log| log.print(&mut out, "rolled forward"))?;
        }
        let loss = if args.force { "lost" } else { "would be lost" };
        self.lost.iter().try_for_each(|log| log.print(&mut out, loss))?;
        let (path, checkpoint) = (args.device.display(), self.checkpoint);
        if !self.needed {
            writeln!(out, "{path}: nothing to recover: the volume was closed cleanly")?;
        } else if !self.recovered {
            // The error has the last word.
        } else if self.rolled_forward.is_empty() {
            writeln!(
                out,
                "{path}: recovered: nothing rolled forward after checkpoint {checkpoint}"
            )?;
        } else {
            let logs = counted(self.rolled_forward.len() as u64, "log");
            let what = Sum::of(&self.rolled_forward);
            writeln!(
                out,
                "{path}: recovered: rolled forward {logs} after checkpoint {checkpoint}: {what}"
            )?;
        }
        Ok(())
    }
}

impl SyncedLog {
    fn print(&self, out: &mut impl Write, verb: &str) -> io::Result<()> {
        let Self { block, seconds, files, records, error, .. } = self;
        writeln!(out, "{verb}: the log of {} in block {block}", local_time(*seconds as i64))?;
        for SyncedFile { inode, blocks } in files {
            writeln!(out, "  inode {inode}: {}", counted(*blocks, "block"))?;
        }
        records.iter().try_for_each(|record| writeln!(out, "  {record}"))?;
        error.iter().try_for_each(|error| writeln!(out, "  {error}"))
    }
}

/// What logs are about.
#[derive(Default)]
struct Sum {
    names: BTreeSet<(Ino, Vec<u8>)>,
    attributes: BTreeSet<Ino>,
    contents: BTreeSet<Ino>,
}

impl Sum {
    fn of(logs: &[SyncedLog]) -> Self {
        let mut all = Self::default();
        for Self { names, attributes, contents } in logs.iter().map(|log| &log.sum) {
            all.names.extend(names.iter().cloned());
            all.attributes.extend(attributes);
            all.contents.extend(contents);
        }
        all
    }

    fn add(&mut self, record: &Record) {
        match record {
            Record::Name(it) => {
                self.names.insert((it.directory, it.name.clone()));
            }
            Record::Inode(it) => {
                self.attributes.insert(it.ino);
            }
            other => {
                self.contents.insert(other.ino());
            }
        }
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("", self.names.len(), "name"),
            ("the attributes of ", self.attributes.len(), "file"),
            ("the content of ", self.contents.len(), "file"),
        ];
        let parts = parts.iter().filter(|(_, count, _)| *count > 0);
        let parts: Vec<String> = parts
            .map(|(of, count, thing)| format!("{of}{}", counted(*count as u64, thing)))
            .collect();
        f.write_str(&parts.join(", "))
    }
}

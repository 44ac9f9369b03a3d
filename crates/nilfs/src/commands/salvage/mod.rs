//! `nilfs salvage`: files out of a volume that is broken.

mod losses;
mod map;
mod remains;
mod report;
mod walk;

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use jiff::Zoned;
use nilfs_device::{Access, Device, MaskedDevice};
use nilfs_engine::rescue::Rescue;
use nilfs_engine::{CheckpointInfo, Cno, Error};
use nilfs_fuse::When;
use nilfs_repair::AsRepaired;

use self::losses::Losses;
use self::report::Base;
use self::walk::Salvager;
use super::cp::{Copier, Existing, Wording};
use super::fsck::watch;
use crate::administration::mounts_of;
use crate::beneath::Destination;
use crate::completions;
use crate::device;
use crate::exit::{Failure, Status};
use crate::output::{self, counted};
use crate::progress::scan_progress;
use crate::signature::OnVolume;

/// Copy out what can be read of a broken volume
///
/// Works where nothing mounts: if no superblock leads to a checkpoint, the device is scanned for the
/// logs of checkpoints. Nothing is written to it. Files come from the newest checkpoint that can be
/// used. One that is damaged there comes from the newest older checkpoint that has a whole version of
/// it. If there is none, or it lacks what can be read of the newest version, that is copied, and the rest
/// is a hole. The volume is read as nilfs
/// fsck would leave it, without writing that. Owners, permissions, times, links and holes are kept. Each
/// file that is not whole is listed; the exit code is 1 then.
///
/// What older checkpoints have besides is copied if you ask for it: --cp takes another one instead of
/// the newest, --snapshots takes each snapshot, too, and --deleted the files that are there no more.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nilfs salvage disk.img --to saved
  nilfs salvage --cp 17 disk.img --to saved            the volume as it was
  nilfs salvage --snapshots --deleted disk.img --to saved
  nilfs salvage --map disk.map disk.img --to saved     after ddrescue /dev/sdb1 disk.img disk.map
  nilfs salvage --json /dev/sdb1 --to saved | jq '.files[] | select(.state == \"lost\")'

WHEN is a checkpoint number, a snapshot's name, or a date or time such as 2026-11-20,
\"yesterday 17:00\", monday or \"10 minutes ago\": the newest checkpoint that is not later.")]
pub struct Args {
    /// A new or empty directory, on another device
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// The map file of ddrescue: what it does not call finished counts as unreadable
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    /// Salvage this checkpoint instead of the newest
    #[arg(long, value_name = "WHEN", add = completions::moment())]
    cp: Option<When>,
    /// Salvage each snapshot, too, to snapshot-N in the directory; that takes room for all of them
    #[arg(long)]
    snapshots: bool,
    /// Salvage files that only older checkpoints have, too: to deleted-N in the directory, where N is the
    /// last checkpoint that has them
    #[arg(long)]
    deleted: bool,
    /// List the files that are whole, too
    #[arg(short, long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The device or image
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
}

/// Copies it out.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let path = args.device.display();
    let device = open(args)?;
    let to = Destination::typed(&args.to)?;
    check_destination(&to, &args.device)?;
    let scan = |device: &Arc<dyn Device>| {
        let scanned = scan_progress("scanning the device", device.size());
        Rescue::open(Arc::clone(device), scanned)
    };
    let repaired = AsRepaired::new(Arc::clone(&device), &watch(None, &args.device));
    let found = scan(&device);
    let known = found.as_ref().map_or(Cno::MIN, Rescue::newest_known);
    let by_scan = found.as_ref().map_or(true, |found| found.by_scan().is_some());
    let mut rescue = match &repaired.plan {
        Some(_) => scan(&repaired.device),
        None => found,
    }
    .on_volume(&args.device)?;
    let mut losses = Losses::of(repaired.plan.as_ref());
    let nth = match &args.cp {
        Some(when) => find(&mut rescue, when).with_context(|| path.to_string())?,
        None => 0,
    };
    let found = rescue.tree(nth).context("it has no checkpoint that can be used")?;
    if args.cp.is_none()
        && let Some(why) = rescue.unrecovered(&found)
    {
        losses.add(format!("what was fsynced after checkpoint {}: {why}", found.tree.cno()));
    }
    let tree = found.tree;
    let base =
        Base { tree, chosen: args.cp.is_some(), known: known.max(rescue.newest_known()), by_scan };
    let copier = Copier::new(Wording::SALVAGE, true, Existing::ReplaceFiles);
    let mut salvager = Salvager::new((device, rescue), losses, copier, to);
    salvager.checkpoint(nth)?;
    if args.deleted {
        salvager.deleted(nth)?;
    }
    if args.snapshots {
        salvager.snapshots(base.cno())?;
    }
    let (report, finished) = salvager.finish();
    let printed = match args.json {
        true => output::json(&report.record(args.all, &base)),
        false => report.print(args.all, &base),
    };
    finished?;
    match report.damaged() {
        0 if base.is_newest() && report.is_complete() => printed,
        0 if base.is_newest() => {
            let message = format!("{path}: something of the volume is lost, see above");
            Err(Failure::new(Status::Failed, message).into())
        }
        0 => {
            let message =
                format!("{path}: what was written after checkpoint {} is lost", base.cno());
            Err(Failure::new(Status::Failed, message).into())
        }
        count => {
            let verb = if count == 1 { "is" } else { "are" };
            let message = format!("{path}: {} {verb} not whole", counted(count, "file"));
            Err(Failure::new(Status::Failed, message).into())
        }
    }
}

/// Which of the usable checkpoints is meant.
fn find(rescue: &mut Rescue, when: &When) -> anyhow::Result<usize> {
    let cno = match when.number() {
        // Though the list of checkpoints may be damaged.
        Some(cno) => cno,
        None => {
            let all = rescue.checkpoints();
            let list = |from, limit| -> Result<Vec<CheckpointInfo>, Error> {
                Ok(all.iter().filter(|it| it.cno >= from).take(limit).copied().collect())
            };
            let until = |second| Ok(all.iter().rfind(|it| it.created <= second).copied());
            let newest = all.last().map_or(Cno::MIN, |it| it.cno);
            when.find(&Zoned::now, newest, &list, &until, &|| Ok(rescue.notes()))?.cno
        }
    };
    rescue.place_of(cno).with_context(|| format!("there is no checkpoint {cno} that can be used"))
}

fn open(args: &Args) -> anyhow::Result<Arc<dyn Device>> {
    let device = Arc::new(device::open(&args.device, Access::ReadOnly)?);
    let Some(path) = &args.map else { return Ok(device) };
    let name = || path.display().to_string();
    let text = fs::read_to_string(path).with_context(name)?;
    let unread = map::unread(&text).with_context(name)?;
    Ok(Arc::new(MaskedDevice::new(device, unread)))
}

/// Fails unless the directory is empty or can be made, and on another device.
fn check_destination(to: &Destination, device: &Path) -> anyhow::Result<()> {
    let refused = |why: &str| {
        let message = format!("{} {why}", to.shown().display());
        Err(anyhow::Error::from(Failure::new(Status::Refused, message)))
    };
    let named = || to.shown().display().to_string();
    if to.is_top() && !to.has_empty_top().with_context(named)? {
        return refused("is not empty; name a new directory");
    }
    if !to.is_top() && to.look().with_context(named)?.is_some() {
        return refused("is not a directory; name a new one");
    }
    match is_of(to.device().with_context(named)?, device)? {
        true => refused("lies on the volume that is to be salvaged; name another place"),
        false => Ok(()),
    }
}

/// Whether a directory lies on the volume on a device.
pub fn lies_on(dir: &Path, device: &Path) -> anyhow::Result<bool> {
    is_of(fs::metadata(dir).with_context(|| dir.display().to_string())?.dev(), device)
}

/// Whether files with this device number lie on the volume on a device.
fn is_of(place: u64, device: &Path) -> anyhow::Result<bool> {
    let source = fs::metadata(device).with_context(|| device.display().to_string())?;
    let is_source = source.file_type().is_block_device() && source.rdev() == place;
    let is_on = |dir: &Path| fs::metadata(dir).is_ok_and(|found| found.dev() == place);
    Ok(is_source || mounts_of(device)?.iter().any(|mounted| is_on(&mounted.dir)))
}

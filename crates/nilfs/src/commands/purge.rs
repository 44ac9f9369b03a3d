//! `nilfs purge`: what the past has of a file or directory goes, for good.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use nilfs_engine::{CheckpointInfo, Cno, Holders, Moved, Note, PurgeOptions, Purged, Wiping};
use nilfs_ondisk::ByteCount;
use serde::Serialize;

use super::checkpoints;
use crate::administration::{Administration, Purpose, on};
use crate::exit::{Failure, Status};
use crate::image::Located;
use crate::interrupt;
use crate::output::{self, counted, printable, utter};
use crate::past::Name;
use crate::progress::Progress;

/// Take away all that the past has of a file or directory, down to the bytes on the device
///
/// For secrets that must not be found again. The checkpoints that have any version of the file are
/// deleted, snapshots too; the segments into which it was ever written are emptied; and all unused space
/// is wiped. With a directory, all that was ever below it goes as well. A file that was moved is followed
/// to where it was later, and you are told where. The checkpoints are listed first, and asked about. What
/// the present has of the file stays: delete it first.
///
/// A purge can be cut off at any moment. If the checkpoints are gone by then, --finish does the rest.
///
/// Not reached are copies that are files of their own elsewhere, the name of the file, which is in the
/// directory above, and what the device keeps for itself: cards and disks have spare blocks that nobody
/// can address.
#[derive(Debug, clap::Args)]
#[command(override_usage = "nilfs purge [OPTIONS] <DEVICE|PATH> [PATH]")]
#[command(after_help = "\
Examples:
  rm /mnt/secret && nilfs purge /mnt/secret
  nilfs purge -n /mnt/secret               which checkpoints have it?
  rm -r /mnt/keys && nilfs purge /mnt/keys
  nilfs purge -y disk.img etc/secret       a volume that is not mounted
  nilfs purge --finish /mnt                complete a purge that was interrupted")]
pub struct Args {
    /// Only list the checkpoints that would be deleted
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Do it without asking
    #[arg(short, long)]
    yes: bool,
    /// Leave snapshots alone, with what they have of the file
    #[arg(long)]
    keep_snapshots: bool,
    /// Overwrite with zeros instead of discarding; where a discard does not work, that is done anyway
    #[arg(long)]
    overwrite: bool,
    /// Clean all that can be cleaned, and wipe all unused space, whatever it was
    #[arg(long, conflicts_with = "dry_run")]
    finish: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The file or directory, by a path on a mount, where it need not be any more; or the device or image
    #[arg(value_name = "DEVICE|PATH")]
    place: PathBuf,
    /// The file or directory, by its path on that volume
    #[arg(value_name = "PATH", conflicts_with = "finish")]
    path: Option<OsString>,
}

/// What has the file.
#[derive(Serialize)]
struct Preview {
    versions: u64,
    present_bytes: u64,
    checkpoints: Vec<Holder>,
    moved: Vec<Place>,
}

/// Where a file was later.
#[derive(Serialize)]
struct Place {
    path: String,
    present: bool,
}

#[derive(Serialize)]
struct Holder {
    checkpoint: u64,
    snapshot: bool,
}

/// Does it.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let paths: Vec<OsString> = args.path.iter().cloned().collect();
    let located = Located::find(&args.place, &paths)?;
    let options = PurgeOptions {
        keep_snapshots: args.keep_snapshots,
        wiping: if args.overwrite { Wiping::Overwrite } else { Wiping::Discard },
    };
    if args.finish {
        let done =
            on(&located.device, Purpose::Change, |volume| purge(volume, &located, None, options))?;
        return report(args, &[], &done);
    }
    let [path] = &located.paths[..] else {
        let place = args.place.display();
        let message = format!(
            "{place}: the path of a file is missing; say nilfs purge DEVICE PATH, or its path on a mount"
        );
        return Err(Failure::new(Status::Usage, message).into());
    };
    let name = Name::from(path.as_bytes().to_vec());
    let done = on(&located.device, Purpose::Change, |volume| {
        let holders = volume.holders(&name).with_context(|| printable(path.as_bytes()))?;
        if holders.versions == 0 {
            bail!(
                "no checkpoint has {}; if a purge of it was cut off, nilfs purge --finish {} does the rest",
                printable(path.as_bytes()),
                located.device.display()
            );
        }
        if args.dry_run {
            list(args, &holders, &volume.notes().unwrap_or_default())?;
            return Ok(None);
        }
        if !args.yes {
            confirm(&holders, args.keep_snapshots)?;
        }
        Ok(Some((purge(volume, &located, Some(&name), options)?, holders.moved)))
    })?;
    done.map_or(Ok(()), |(done, moved)| report(args, &moved, &done))
}

fn purge(
    volume: &dyn Administration,
    located: &Located,
    path: Option<&Name>,
    options: PurgeOptions,
) -> anyhow::Result<Purged> {
    let bar = Progress::count("purging", "segments");
    // By the time of which it is first told how far it is, the checkpoints are gone.
    let mut is_explained = false;
    let done = volume.purge(path, options, &mut |progress| {
        if !std::mem::replace(&mut is_explained, true) {
            interrupt::explain(if_interrupted(&located.device, volume.is_served()));
        }
        bar.set(progress.done, progress.of);
    });
    drop(bar);
    Ok(done?)
}

/// Message about a purge that is under way.
fn if_interrupted(device: &Path, is_served: bool) -> impl Fn() -> String + use<> {
    let device = device.display().to_string();
    move || match is_served {
        true => format!(
            "{device}: interrupted; the purge goes on in the process that serves the volume, and nilfs \
             purge --finish {device} waits for it"
        ),
        false => format!(
            "{device}: interrupted in the purge; nilfs purge --finish {device} does the rest"
        ),
    }
}

fn list(args: &Args, holders: &Holders, notes: &[Note]) -> anyhow::Result<()> {
    if args.json {
        let holder = |it: &CheckpointInfo| Holder { checkpoint: it.cno.0, snapshot: it.snapshot };
        let place = |it: &Moved| Place {
            path: Name::from(it.path.clone()).to_text(),
            present: it.is_present,
        };
        return output::json(&Preview {
            versions: holders.versions,
            present_bytes: holders.present_bytes,
            checkpoints: holders.checkpoints.iter().map(holder).collect(),
            moved: holders.moved.iter().map(place).collect(),
        });
    }
    checkpoints::print(&holders.checkpoints, notes, false)?;
    utter(format_args!("{}", followed(&holders.moved)));
    Ok(())
}

/// A line for each place to which a file was moved.
fn followed(moved: &[Moved]) -> String {
    moved
        .iter()
        .map(|it| format!("followed to {}, where it was later\n", printable(&it.path)))
        .collect()
}

/// Asks whether the checkpoints may be deleted; where nobody can be asked, they may not.
fn confirm(holders: &Holders, keep_snapshots: bool) -> anyhow::Result<()> {
    let kept = |it: &&CheckpointInfo| it.snapshot && keep_snapshots;
    let doomed: Vec<_> = holders.checkpoints.iter().filter(|it| !kept(it)).collect();
    let snapshots = doomed.iter().filter(|it| it.snapshot).count() as u64;
    let what = match snapshots {
        0 => counted(doomed.len() as u64, "checkpoint"),
        1 => format!("{}, 1 of them a snapshot,", counted(doomed.len() as u64, "checkpoint")),
        _ => format!(
            "{}, {snapshots} of them snapshots,",
            counted(doomed.len() as u64, "checkpoint")
        ),
    };
    if doomed.is_empty() {
        return Ok(());
    }
    if io::stdin().is_terminal() {
        for it in &doomed {
            let kind = if it.snapshot { " (snapshot)" } else { "" };
            let time = output::local_time(it.created as i64);
            utter(format_args!("{} of {time}{kind}\n", it.cno));
        }
        utter(format_args!("{}Delete {what} for good? [y/N] ", followed(&holders.moved)));
        let mut answer = String::new();
        io::stdin().read_line(&mut answer)?;
        if matches!(answer.trim(), "y" | "Y" | "yes") {
            return Ok(());
        }
    }
    let message =
        format!("{what} would be deleted for good; see them with -n, and use -y to do it");
    Err(Failure::new(Status::Refused, message).into())
}

fn report(args: &Args, moved: &[Moved], done: &Purged) -> anyhow::Result<()> {
    if args.json {
        return output::json(done);
    }
    let mut out = output::out();
    write!(out, "{}", followed(moved))?;
    writeln!(
        out,
        "{} deleted, {} emptied; {} discarded, {} overwritten",
        counted(done.deleted, "checkpoint"),
        counted(done.emptied, "segment"),
        ByteCount(done.discarded_bytes),
        ByteCount(done.overwritten_bytes)
    )?;
    if !done.snapshots.is_empty() {
        writeln!(out, "not reached: what is in {}", numbers("snapshot", &done.snapshots))?;
    }
    if !done.read.is_empty() {
        writeln!(
            out,
            "not reached: what was in {}, which somebody reads; when that is over, use --finish",
            numbers("checkpoint", &done.read)
        )?;
    }
    if done.present_bytes > 0 {
        let bytes = ByteCount(done.present_bytes);
        let here: Vec<_> =
            moved.iter().filter(|it| it.is_present).map(|it| printable(&it.path)).collect();
        let what_to_do = match &here[..] {
            [] => "; delete the file and try again".to_owned(),
            here => format!(", as {}; delete that, and purge it by that name", here.join(", ")),
        };
        writeln!(out, "not reached: {bytes} that the present has{what_to_do}")?;
    }
    if done.left > 0 {
        let left = counted(done.left, "segment");
        writeln!(
            out,
            "not reached: what is in {left}; use --finish later, or see nilfs status and the log"
        )?;
    }
    writeln!(out, "nobody can tell what the device itself has kept of it")?;
    Ok(())
}

fn numbers(what: &str, checkpoints: &[Cno]) -> String {
    let numbers: Vec<_> = checkpoints.iter().map(ToString::to_string).collect();
    let ending = if numbers.len() == 1 { "" } else { "s" };
    format!("{what}{ending} {}", numbers.join(", "))
}

//! `nilfs recover`: recovers a volume that was not closed cleanly, without mounting it.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use nilfs_device::Device;
use nilfs_engine::{CleanerOptions, Filesystem, MountOptions, OnError, RecoveryPlan, Volume};
use nilfs_ondisk::superblock::FEATURE_ROLL_FORWARD;
use serde::Serialize;

use super::tune::open_to_change;
use crate::exit::{self, Failure, Status};
use crate::interrupt;
use crate::output::{self, counted};
use crate::roll_forward::{Sum, SyncedLog};
use crate::signature::OnVolume;

/// Recover a volume that was not unmounted, without mounting it
///
/// Does what a mount for writing would do, and leaves the volume as an unmount does: Linux can mount
/// it then. What was fsynced after the newest checkpoint is rolled forward. If a part of that cannot
/// be, because it is damaged or of a newer version, nothing is written: nilfs fsck comes first then, which
/// may restore without loss what --force gives up.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nilfs recover /dev/sdb1
  nilfs recover -v disk.img      say what was rolled forward in detail
  nilfs fsck -p disk.img         if not all can be rolled forward
  nilfs recover --force disk.img if that has not helped")]
pub struct Args {
    /// Give up what cannot be rolled forward and nilfs fsck does not restore; without this option, it is
    /// only listed
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

/// Recovers it, and prints what has become of it.
pub fn run(args: Args) -> anyhow::Result<()> {
    let path = args.device.display();
    let device: Arc<dyn Device> = Arc::new(open_to_change(&args.device, false)?);
    let told = path.to_string();
    interrupt::explain(move || format!("{told}: interrupted; nilfs recover goes on from there"));
    let mut report = examine(&device).on_volume(&args.device)?;
    let is_refused = report.lost_because.is_some() && !args.force;
    if report.needed && !is_refused {
        recover(device, args.force).on_volume(&args.device)?;
        report.recovered = true;
    }
    match args.json {
        true => output::json(&report)?,
        false => report.print(&args)?,
    }
    match report.lost_because {
        Some(why) if is_refused => {
            let message = format!(
                "{path}: {why}; nothing was written; nilfs fsck may repair the volume without loss, \
                 and --force gives up what is listed"
            );
            Err(Failure::new(Status::NotAVolume, message).into())
        }
        _ => Ok(()),
    }
}

/// What there is to be recovered.
fn examine(device: &Arc<dyn Device>) -> anyhow::Result<Report> {
    let volume = Volume::open(Arc::clone(device))?;
    let features = volume.superblock().raw().s_feature_compat_ro.get();
    let RecoveryPlan { applied, lost, why, .. } = volume.recovery_plan()?;
    Ok(Report {
        needed: !volume.is_clean() || features & FEATURE_ROLL_FORWARD != 0,
        recovered: false,
        checkpoint: volume.last_log().cno.0,
        rolled_forward: applied.iter().map(SyncedLog::new).collect(),
        lost: lost.iter().map(SyncedLog::new).collect(),
        lost_because: why.map(|error| exit::sentence(&error.into())),
    })
}

/// Does what a mount and an unmount do.
fn recover(device: Arc<dyn Device>, force: bool) -> anyhow::Result<()> {
    let cleaner = CleanerOptions { enabled: false, ..CleanerOptions::default() };
    let options = MountOptions {
        cleaner,
        give_up_unrecoverable: force,
        // Anything that the recovery gives up may be damaged.
        on_error: OnError::Continue,
        ..MountOptions::default()
    };
    let fs = Filesystem::mount(device, options)?;
    if let Some(damage) = fs.unrecovered() {
        let message =
            format!("{damage}; nothing was written, and nilfs fsck may repair the volume");
        return Err(Failure::new(Status::NotAVolume, message).into());
    }
    fs.release_orphans()?;
    Ok(fs.unmount()?)
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

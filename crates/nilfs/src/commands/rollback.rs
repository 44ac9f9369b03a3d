//! `nilfs rollback`: the present becomes what it was.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use nilfs_engine::RolledBack;
use nilfs_fuse::When;
use serde::Serialize;

use super::diff;
use crate::administration::{Purpose, mount_of, on};
use crate::completions;
use crate::exit::{Failure, Status};
use crate::image::{LastLink, Located, find, locate_after, open_files};
use crate::interrupt;
use crate::output::{self, counted, printable};
use crate::past::Name;
use crate::progress::Progress;

/// Make a volume, or a directory or file on it, what it was at a moment
///
/// Everything is again as it was then, by one new checkpoint: what was deleted is back, what was made
/// since is gone, also while the volume is mounted. The state before becomes a snapshot, so a rollback
/// can be rolled back. Little is written, because the blocks of then live on. Files that are open stay
/// open; those that are gone now have no name any more.
///
/// Without DEVICE or PATH, this is about the current directory.
#[derive(Debug, clap::Args)]
#[command(override_usage = "nilfs rollback [OPTIONS] <WHEN> [DEVICE|PATH] [PATH]")]
#[command(after_help = "\
Examples:
  nilfs rollback -n yesterday /mnt          what would change?
  nilfs rollback yesterday /mnt             the whole volume
  nilfs rollback '10 minutes ago' /mnt/src  one directory
  nilfs rollback 17 disk.img                a volume that is not mounted
  nilfs rollback 17 disk.img photos         a directory on it

WHEN is a checkpoint number, or a date or time such as 2026-11-20, \"yesterday 17:00\", monday or
\"10 minutes ago\": the newest checkpoint that is not later.")]
pub struct Args {
    /// Only list what would change: added is what comes back, removed what goes
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The moment
    #[arg(value_name = "WHEN", add = completions::moment())]
    when: When,
    /// The device or image, the directory of a mount, or a file or directory on a mount, which need not
    /// be there any more
    #[arg(value_name = "DEVICE|PATH", default_value = ".", hide_default_value = true)]
    place: PathBuf,
    /// A path on that volume
    #[arg(value_name = "PATH")]
    path: Option<OsString>,
}

/// What was done.
#[derive(Serialize)]
struct Record {
    to_checkpoint: u64,
    checkpoint: Option<u64>,
    snapshot: Option<u64>,
    files: u64,
    removed: u64,
    revived_blocks: u64,
    copied_blocks: u64,
}

/// What would change.
#[derive(Serialize)]
struct Preview {
    from_checkpoint: u64,
    to_checkpoint: u64,
    changes: Vec<diff::Record>,
}

/// Does it.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let paths: Vec<OsString> = args.path.iter().cloned().collect();
    let located = locate_after(&[&args.when], (&args.place, &paths), "nilfs rollback")?;
    match &located.paths[..] {
        [] => on_volume(args, &located, OsStr::new("")),
        [path] => on_volume(args, &located, path),
        [..] => {
            let message = format!(
                "{} is no volume, so no path can follow; one file or directory is rolled back at a time",
                args.place.display()
            );
            Err(Failure::new(Status::Usage, message).into())
        }
    }
}

/// Rolls back what is at a path of a volume; an empty one stands for everything.
fn on_volume(args: &Args, located: &Located, path: &OsStr) -> anyhow::Result<()> {
    // What was written until now has to be in a checkpoint first.
    if located.shown()?.is_some() {
        let message = format!("{}: the mount is read-only", args.place.display());
        return Err(Failure::new(Status::Failed, message).into());
    }
    let checkpoints = located.checkpoints()?;
    let to = checkpoints.find(&args.when)?.cno;
    if args.dry_run {
        if !path.is_empty() {
            let then = open_files(&located.device, Some(to))?;
            find(&then, path.as_bytes(), LastLink::Keep)
                .with_context(|| format!("checkpoint {to}"))?;
        }
        let now = checkpoints.newest();
        let mut changes = checkpoints.changes(now, to)?;
        changes.retain(|change| diff::is_wanted(change, &[path.to_owned()]));
        if !args.json {
            return diff::print(&changes);
        }
        let changes = changes.iter().map(diff::Record::of).collect();
        return output::json(&Preview { from_checkpoint: now.0, to_checkpoint: to.0, changes });
    }
    write_back(&located.device)?;
    let name = Name::from(path.as_bytes().to_vec());
    let done = on(&located.device, Purpose::Change, |volume| {
        let (device, is_served) = (located.device.display().to_string(), volume.is_served());
        interrupt::explain(move || match is_served {
            true => format!(
                "{device}: interrupted; the process that serves the volume goes on with the rollback, \
                 and the same command again waits for it"
            ),
            false => format!(
                "{device}: interrupted; everything is as it was, or as it should be; the same command \
                 again sees to it"
            ),
        });
        let bar = Progress::count("rolling back", "files");
        let done =
            volume.roll_back(to, &name, &mut |progress| bar.set(progress.files, progress.of));
        drop(bar);
        done.with_context(|| shown(path))
    })?;
    if args.json {
        return output::json(&Record {
            to_checkpoint: to.0,
            checkpoint: done.checkpoint.map(|cno| cno.0),
            snapshot: done.checkpoint.map(|_| done.before.0),
            files: done.files,
            removed: done.removed,
            revived_blocks: done.revived_blocks,
            copied_blocks: done.copied_blocks,
        });
    }
    print(&done)
}

/// Lets the kernel write what it has kept back, so that it does not write over what is as it was.
fn write_back(device: &Path) -> anyhow::Result<()> {
    if let Some(mounted) = mount_of(device)? {
        // If this fails, so does the rollback.
        let _ = File::open(&mounted.dir).map(rustix::fs::syncfs);
    }
    Ok(())
}

/// What an error is about.
fn shown(path: &OsStr) -> String {
    match path.as_bytes() {
        b"" | b"/" => "the whole volume".to_owned(),
        path => printable(path),
    }
}

fn print(done: &RolledBack) -> anyhow::Result<()> {
    let mut out = output::out();
    let Some(checkpoint) = done.checkpoint else {
        return Ok(writeln!(out, "nothing has changed since then")?);
    };
    let changed = match (done.files, done.removed) {
        (files, 0) => format!("{} as before", counted(files, "file")),
        (0, removed) => format!("{} removed", counted(removed, "file")),
        (files, removed) => {
            format!("{} as before, {removed} removed", counted(files, "file"))
        }
    };
    writeln!(out, "{changed}, by checkpoint {checkpoint}")?;
    let before = done.before;
    Ok(writeln!(
        out,
        "the state before is snapshot {before}; nilfs rollback {before} goes back to it"
    )?)
}

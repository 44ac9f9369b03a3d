//! `nilfs snapshot`: checkpoints that are kept until somebody lets go of them.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::Subcommand;
use nilfs_engine::Cno;
use serde::Serialize;

use super::checkpoints;
use crate::administration::{Administration, Purpose, Target, on};
use crate::image::Checkpoints;
use crate::output;

/// Keep checkpoints until further notice, and let go of them
///
/// A snapshot is a checkpoint that the cleaner leaves alone. What is a snapshot here is one for
/// Linux too.
#[derive(Debug, clap::Args)]
#[command(
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "\
Examples:
  nilfs snapshot create /mnt       keep the present; prints its number
  nilfs snapshot create /mnt 17    keep checkpoint 17
  nilfs snapshot list /mnt
  nilfs snapshot delete /mnt 17    let the cleaner have it once it is old enough
  mount -t fuse.nilfs -o ro,cp=17 /dev/sdb1 /old"
)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make snapshots of checkpoints; without a number, of the present
    Create {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Any file or directory of the mount, or the device or image
        #[arg(value_name = "DIR|DEVICE")]
        path: PathBuf,
        /// The checkpoints
        #[arg(value_name = "CNO", value_parser = checkpoints::number)]
        checkpoints: Vec<Cno>,
    },
    /// Make snapshots ordinary checkpoints again
    Delete {
        /// Any file or directory of the mount, or the device or image
        #[arg(value_name = "DIR|DEVICE")]
        path: PathBuf,
        /// The snapshots
        #[arg(value_name = "CNO", value_parser = checkpoints::number, required = true)]
        snapshots: Vec<Cno>,
    },
    /// List the snapshots, oldest first
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Any file or directory of the mount, or the device or image
        #[arg(value_name = "DIR|DEVICE")]
        path: PathBuf,
    },
}

/// A snapshot that was made.
#[derive(Serialize)]
struct Record {
    checkpoint: u64,
}

/// Does it.
pub fn run(args: Args) -> anyhow::Result<()> {
    match args.action {
        Action::Create { json, path, checkpoints } => {
            let made = on(&path, Purpose::Change, |volume| create(volume, checkpoints))?;
            print(&made, json)
                .with_context(|| format!("made {}, but cannot print that", named(&made)))
        }
        Action::Delete { path, snapshots } => on(&path, Purpose::Change, |volume| {
            snapshots.iter().try_for_each(|cno| Ok(volume.set_snapshot(*cno, false)?))
        }),
        Action::List { json, path } => {
            let checkpoints = Checkpoints::of(Target::find(&path)?.device())?;
            let mut list = checkpoints.list(Cno::MIN, usize::MAX)?;
            list.retain(|checkpoint| checkpoint.snapshot);
            checkpoints::print(&list, json)
        }
    }
}

/// Makes them, and returns their numbers.
fn create(volume: &dyn Administration, mut wanted: Vec<Cno>) -> anyhow::Result<Vec<Cno>> {
    if wanted.is_empty() {
        wanted.push(volume.checkpoint(true)?);
    }
    for (nth, cno) in wanted.iter().enumerate() {
        let made = volume.set_snapshot(*cno, true);
        match &wanted[..nth] {
            [] => made?,
            before => made.with_context(|| format!("made {}, but no more", named(before)))?,
        }
    }
    Ok(wanted)
}

fn print(made: &[Cno], json: bool) -> anyhow::Result<()> {
    if json {
        let records: Vec<_> = made.iter().map(|cno| Record { checkpoint: cno.0 }).collect();
        return output::json(&records);
    }
    let mut out = output::out();
    made.iter().try_for_each(|cno| writeln!(out, "{cno}"))?;
    Ok(out.flush()?)
}

/// What to call snapshots in a message.
fn named(snapshots: &[Cno]) -> String {
    let numbers: Vec<_> = snapshots.iter().map(ToString::to_string).collect();
    let plural = if snapshots.len() == 1 { "" } else { "s" };
    format!("snapshot{plural} {}", numbers.join(", "))
}

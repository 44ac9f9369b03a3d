//! `nilfs snapshot`: checkpoints that are kept until somebody lets go of them, with names and notes.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Subcommand;
use nilfs_engine::{CheckpointInfo, Cno, MadeBy, NoteText, SnapshotChange, SnapshotName};
use nilfs_fuse::{When, new_name};
use serde::Serialize;

use super::checkpoints;
use crate::administration::{self, Administration, Purpose, Reason, Refusal, Target, on};
use crate::completions;
use crate::exit::{Failure, Status};
use crate::image::Checkpoints;
use crate::output::{self, local_time};
use crate::retention::{Plan, Retention};

/// How often the present is tried to be kept.
const MOST_TRIES: u32 = 16;

/// Keep checkpoints until further notice, name them, and let go of them
///
/// A snapshot is a checkpoint that the cleaner leaves alone. What is a snapshot here is one for
/// Linux too, which knows no names.
#[derive(Debug, clap::Args)]
#[command(
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "\
Examples:
  nilfs snapshot create /mnt                     keep the present; prints its number
  nilfs snapshot create -m before-upgrade /mnt   and give it a name
  nilfs snapshot create /mnt 17 yesterday        keep these checkpoints
  nilfs snapshot rename /mnt 17 v1.0             17 is called v1.0 from now on
  nilfs snapshot note /mnt v1.0 'as released'
  nilfs snapshot list /mnt
  nilfs snapshot keep --hourly 24 --daily 14 --weekly 8 --monthly 12 /mnt
  nilfs snapshot delete /mnt v1.0                let the cleaner have it once it is old enough
  nilfs ls --at before-upgrade /mnt
  mount -t fuse.nilfs -o ro,cp=17 /dev/sdb1 /old

A name begins with a letter; after that there can be digits, '-', '_' and '.', too. It can stand
wherever a moment is named."
)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make snapshots of checkpoints; of the present, if none is named
    Create {
        /// Call it NAME from now on
        #[arg(short = 'm', long, value_name = "NAME", value_parser = new_name)]
        name: Option<SnapshotName>,
        /// Note a line of TEXT with it
        #[arg(long, value_name = "TEXT")]
        note: Option<NoteText>,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Any file or directory of the mount, or the device or image
        #[arg(value_name = "DIR|DEVICE")]
        path: PathBuf,
        /// The checkpoints: a number, or any moment, which means the newest that is not later
        #[arg(value_name = "WHEN", add = completions::moment())]
        checkpoints: Vec<When>,
    },
    /// Make snapshots ordinary checkpoints again, without name and note
    Delete {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Any file or directory of the mount, or the device or image
        #[arg(value_name = "DIR|DEVICE")]
        path: PathBuf,
        /// The snapshots, by number or name
        #[arg(value_name = "SNAPSHOT", value_parser = one, required = true)]
        #[arg(add = completions::snapshot())]
        snapshots: Vec<When>,
    },
    /// Give a snapshot a name, or another one
    Rename {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Any file or directory of the mount, or the device or image
        #[arg(value_name = "DIR|DEVICE")]
        path: PathBuf,
        /// The snapshot, by number or name
        #[arg(value_name = "SNAPSHOT", value_parser = one, add = completions::snapshot())]
        snapshot: When,
        /// How it is called from now on
        #[arg(value_name = "NAME", value_parser = new_name)]
        name: SnapshotName,
    },
    /// Note a line of text with a snapshot, instead of what was noted before
    Note {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Any file or directory of the mount, or the device or image
        #[arg(value_name = "DIR|DEVICE")]
        path: PathBuf,
        /// The snapshot, by number or name
        #[arg(value_name = "SNAPSHOT", value_parser = one, add = completions::snapshot())]
        snapshot: When,
        /// The text; '' removes what was noted
        #[arg(value_name = "TEXT")]
        text: NoteText,
    },
    /// Keep the newest checkpoint of each of the last hours, days, weeks and months
    ///
    /// Makes snapshots of them, and lets go of those that an earlier call, or the mount option keep,
    /// has made and that are not among them any more. Other snapshots stay. Only hours, days, weeks and
    /// months count in which something was written.
    Keep {
        /// Of each of the last N hours
        #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
        hourly: u32,
        /// Of each of the last N days
        #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
        daily: u32,
        /// Of each of the last N weeks, which begin on Monday
        #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
        weekly: u32,
        /// Of each of the last N months
        #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
        monthly: u32,
        /// Only say what would be done
        #[arg(short = 'n', long)]
        dry_run: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Any file or directory of the mount, or the device or image
        #[arg(value_name = "DIR|DEVICE")]
        path: PathBuf,
    },
    /// List the snapshots, oldest first
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Any file or directory of the mount, or the device or image; without it, the current directory
        #[arg(value_name = "DIR|DEVICE", default_value = ".", hide_default_value = true)]
        path: PathBuf,
    },
}

/// A snapshot, by its number.
#[derive(Serialize)]
struct Record {
    checkpoint: u64,
}

/// Name that a snapshot has from now on, or note that goes with it.
#[derive(Serialize)]
struct Noted {
    checkpoint: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

/// Does it.
pub fn run(args: Args) -> anyhow::Result<()> {
    match args.action {
        Action::Create { name, note, json, path, checkpoints } => {
            ensure!(
                name.is_none() || checkpoints.len() <= 1,
                "a name belongs to one snapshot, not to {}",
                checkpoints.len()
            );
            let made =
                on(&path, Purpose::Change, |volume| create(volume, &checkpoints, name, note))?;
            print(&made, json)
                .with_context(|| format!("made {}, but cannot print that", named(&made)))
        }
        Action::Delete { json, path, snapshots } => {
            let released = on(&path, Purpose::Change, |volume| delete(volume, &snapshots))?;
            if json { print_json(&released) } else { Ok(()) }
        }
        Action::Rename { json, path, snapshot, name } => {
            note(&path, &snapshot, Some(name), None, json)
        }
        Action::Note { json, path, snapshot, text } => {
            note(&path, &snapshot, None, Some(text), json)
        }
        Action::Keep { hourly, daily, weekly, monthly, dry_run, json, path } => {
            let rule = Retention::new(hourly, daily, weekly, monthly);
            if rule.is_none() {
                let message = "keep what? say --hourly, --daily, --weekly or --monthly";
                return Err(Failure::new(Status::Usage, message).into());
            }
            let plan = match dry_run {
                true => on(&path, Purpose::Inspect, |volume| Ok(rule.look(volume)?))?,
                false => on(&path, Purpose::Change, |volume| Ok(rule.follow(volume)?))?,
            };
            print_plan(&plan, json)
        }
        Action::List { json, path } => {
            let checkpoints = Checkpoints::of(Target::find(&path)?.device())?;
            let mut list = checkpoints.list(Cno::MIN, usize::MAX)?;
            list.retain(|checkpoint| checkpoint.snapshot);
            checkpoints::print(&list, &checkpoints::known_notes(&checkpoints), json)
        }
    }
}

/// Checkpoints that a rule of retention keeps now, and those that it does not any more.
#[derive(Serialize)]
struct KeepRecord {
    kept: Vec<u64>,
    released: Vec<u64>,
}

fn print_plan(plan: &Plan, json: bool) -> anyhow::Result<()> {
    if json {
        let numbers = |list: &[CheckpointInfo]| list.iter().map(|it| it.cno.0).collect();
        let (kept, released) = (numbers(&plan.keep), numbers(&plan.release));
        return output::json(&KeepRecord { kept, released });
    }
    let mut out = output::out();
    for (word, list) in [("keep", &plan.keep), ("let go of", &plan.release)] {
        for checkpoint in list {
            let created = local_time(checkpoint.created as i64);
            writeln!(out, "{word} {} of {created}", checkpoint.cno)?;
        }
    }
    Ok(out.flush()?)
}

/// The number or the name of a checkpoint.
fn one(words: &str) -> Result<When, String> {
    let when = words.parse().ok().filter(When::is_exact);
    when.ok_or_else(|| "expected the number or the name of a snapshot".to_owned())
}

/// Makes them, all or none, and returns their numbers.
fn create(
    volume: &dyn Administration,
    wanted: &[When],
    name: Option<SnapshotName>,
    text: Option<NoteText>,
) -> anyhow::Result<Vec<Cno>> {
    let keep = |cno: &Cno| SnapshotChange::Keep {
        cno: *cno,
        made_by: MadeBy::User,
        name: name.clone(),
        text: text.clone(),
    };
    if wanted.is_empty() {
        return Ok(vec![create_of_present(volume, keep)?]);
    }
    let found = wanted.iter().map(|when| Ok(administration::find(volume, when)?.cno));
    let made = found.collect::<anyhow::Result<Vec<Cno>>>()?;
    volume.change_snapshots(&made.iter().map(keep).collect::<Vec<_>>())?;
    Ok(made)
}

/// Makes a snapshot of the present. Where there is hardly any room, the cleaner gives up the past, even
/// what was the present a moment ago; then it is tried with what is the present now.
fn create_of_present(
    volume: &dyn Administration,
    keep: impl Fn(&Cno) -> SnapshotChange,
) -> Result<Cno, Refusal> {
    let mut tries = 0;
    loop {
        let present = volume.checkpoint(true)?;
        tries += 1;
        match volume.change_snapshots(&[keep(&present)]) {
            Err(Refusal { reason: Reason::NoCheckpoint, .. }) if tries < MOST_TRIES => {}
            done => return done.map(|()| present),
        }
    }
}

/// Lets go of them, of all or of none, and returns their numbers.
fn delete(volume: &dyn Administration, snapshots: &[When]) -> anyhow::Result<Vec<Cno>> {
    let found = snapshots.iter().map(|when| Ok(snapshot(volume, when)?.cno));
    let released = found.collect::<anyhow::Result<Vec<Cno>>>()?;
    let changes: Vec<_> = released.iter().map(|cno| SnapshotChange::plain(*cno, false)).collect();
    volume.change_snapshots(&changes)?;
    Ok(released)
}

/// Changes the name of a snapshot, or its note.
fn note(
    path: &Path,
    when: &When,
    name: Option<SnapshotName>,
    text: Option<NoteText>,
    json: bool,
) -> anyhow::Result<()> {
    let cno = on(path, Purpose::Change, |volume| {
        let cno = snapshot(volume, when)?.cno;
        let (name, text) = (name.clone(), text.clone());
        let change = SnapshotChange::Keep { cno, made_by: MadeBy::User, name, text };
        volume.change_snapshots(&[change])?;
        Ok(cno)
    })?;
    if !json {
        return Ok(());
    }
    let (name, note) = (name.map(|it| it.to_string()), text.map(|it| it.to_string()));
    output::json(&Noted { checkpoint: cno.0, name, note })
}

/// The snapshot that is meant.
fn snapshot(volume: &dyn Administration, when: &When) -> anyhow::Result<CheckpointInfo> {
    let found = administration::find(volume, when)?;
    let cno = found.cno;
    ensure!(found.snapshot, "checkpoint {cno} is not a snapshot; see nilfs snapshot create");
    Ok(found)
}

fn print(made: &[Cno], json: bool) -> anyhow::Result<()> {
    if json {
        return print_json(made);
    }
    let mut out = output::out();
    made.iter().try_for_each(|cno| writeln!(out, "{cno}"))?;
    Ok(out.flush()?)
}

fn print_json(snapshots: &[Cno]) -> anyhow::Result<()> {
    output::json_list(snapshots.iter().map(|cno| Record { checkpoint: cno.0 }))
}

/// What to call snapshots in a message.
fn named(snapshots: &[Cno]) -> String {
    let numbers: Vec<_> = snapshots.iter().map(ToString::to_string).collect();
    let plural = if snapshots.len() == 1 { "" } else { "s" };
    format!("snapshot{plural} {}", numbers.join(", "))
}

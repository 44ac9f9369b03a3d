//! `nilfs checkpoints`: the past of a volume.

use std::io::Write;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use anyhow::anyhow;
use clap::Subcommand;
use nilfs_engine::{CheckpointInfo, MadeBy, Note};
use nilfs_ondisk::Cno;
use serde::Serialize;

use crate::administration::{Administration, Purpose, Reason, Target, on};
use crate::image::Checkpoints;
use crate::output::{self, Column, Rows, counted, exact_time, local_time, say};

/// List the checkpoints of a volume, oldest first, or delete some
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  nilfs checkpoints /mnt
  nilfs checkpoints list --from 100 --limit 20 disk.img
  nilfs checkpoints delete /mnt 7 10..20 ..3    7, 10 to 20, and all up to 3"
)]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the checkpoints, oldest first (default)
    List(ListArgs),
    /// Delete checkpoints; snapshots and the newest checkpoint stay
    Delete(DeleteArgs),
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Start with this checkpoint
    #[arg(long, value_name = "CNO", default_value_t = 1)]
    from: u64,
    /// Show at most N
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Any file or directory of the mount, or the device or image; without it, the current directory
    #[arg(value_name = "DIR|DEVICE", default_value = ".", hide_default_value = true)]
    path: PathBuf,
}

#[derive(Debug, clap::Args)]
struct DeleteArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Any file or directory of the mount, or the device or image
    #[arg(value_name = "DIR|DEVICE")]
    path: PathBuf,
    /// A number, A..B for A to B, ..B for all up to B, A.. for all from A on
    #[arg(value_name = "RANGE", value_parser = range, required = true)]
    ranges: Vec<RangeInclusive<Cno>>,
}

#[derive(Serialize)]
struct Record {
    checkpoint: u64,
    created: String,
    snapshot: bool,
    minor: bool,
    blocks: u64,
    inodes: u64,
    increment: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    made_by: Option<MadeBy>,
}

#[derive(Serialize)]
struct Deleted {
    deleted: u64,
    snapshots_kept: Vec<u64>,
}

/// Does it.
pub fn run(args: Args) -> anyhow::Result<()> {
    match args.action {
        Some(Action::Delete(args)) => delete(&args),
        Some(Action::List(args)) => list(&args),
        None => list(&args.list),
    }
}

fn list(args: &ListArgs) -> anyhow::Result<()> {
    let checkpoints = Checkpoints::of(Target::find(&args.path)?.device())?;
    let list = checkpoints.list(Cno(args.from), args.limit.unwrap_or(usize::MAX))?;
    print(&list, &known_notes(&checkpoints), args.json)
}

/// What is noted about snapshots. If it cannot be read, that is said, and the checkpoints are listed
/// all the same.
pub fn known_notes(checkpoints: &Checkpoints) -> Vec<Note> {
    checkpoints.notes().unwrap_or_else(|refusal| {
        say!("nilfs: the names of snapshots cannot be read: {refusal}");
        Vec::new()
    })
}

/// Prints them. There are columns for names and notes if there are any.
pub fn print(list: &[CheckpointInfo], notes: &[Note], json: bool) -> anyhow::Result<()> {
    let note_of =
        |cno: Cno| notes.binary_search_by_key(&cno, |note| note.cno).ok().map(|nth| &notes[nth]);
    if json {
        let record = |it| record(it, note_of(it.cno));
        return output::json_list(list.iter().map(record));
    }
    let noted = || list.iter().filter_map(|it| note_of(it.cno));
    let has_names = noted().any(|note| note.name.is_some());
    let has_texts = noted().any(|note| !note.text.is_empty());
    let mut columns = vec![
        Column::Number("CHECKPOINT"),
        Column::Text("CREATED"),
        Column::Text("KIND"),
        Column::Number("BLOCKS"),
        Column::Number("INODES"),
    ];
    columns.extend(has_names.then_some(Column::Text("NAME")));
    columns.extend(has_texts.then_some(Column::Text("NOTE")));
    let mut rows = Rows::new(&columns);
    for checkpoint in list {
        let kind = match (checkpoint.snapshot, checkpoint.minor) {
            (true, _) => "snapshot",
            (false, true) => "minor",
            (false, false) => "checkpoint",
        };
        let note = note_of(checkpoint.cno);
        let name = note.and_then(|note| note.name.as_ref()).map(ToString::to_string);
        let text = note.map(|note| note.text.to_string());
        let cells = [
            checkpoint.cno.to_string(),
            local_time(checkpoint.created as i64),
            kind.to_owned(),
            checkpoint.blocks.to_string(),
            checkpoint.inodes.to_string(),
        ];
        let name = has_names.then(|| name.unwrap_or_default());
        let text = has_texts.then(|| text.unwrap_or_default());
        rows.push(cells.into_iter().chain(name).chain(text));
    }
    rows.print()
}

fn delete(args: &DeleteArgs) -> anyhow::Result<()> {
    let mut deleted = Deleted { deleted: 0, snapshots_kept: Vec::new() };
    let result = on(&args.path, Purpose::Change, |volume| {
        args.ranges.iter().try_for_each(|range| delete_range(volume, range, &mut deleted))
    });
    let printed = match args.json {
        true => output::json(&deleted),
        false if result.is_ok() || deleted.deleted > 0 => print_deleted(&deleted),
        false => Ok(()),
    };
    result.and(printed)
}

fn print_deleted(deleted: &Deleted) -> anyhow::Result<()> {
    let mut out = output::out();
    writeln!(out, "{} deleted", counted(deleted.deleted, "checkpoint"))?;
    let kept = &deleted.snapshots_kept;
    Ok(kept.iter().try_for_each(|cno| writeln!(out, "{cno} stays, it is a snapshot"))?)
}

fn delete_range(
    volume: &dyn Administration,
    range: &RangeInclusive<Cno>,
    deleted: &mut Deleted,
) -> anyhow::Result<()> {
    let only = (range.start() == range.end()).then_some(*range.start());
    let done = match volume.delete_checkpoints(range.clone()) {
        Err(refusal) if refusal.reason == Reason::NoCheckpoint => {
            return Err(match only {
                Some(cno) if cno == volume.status()?.cno => {
                    anyhow!("checkpoint {cno} is the newest, which stays")
                }
                Some(_) => refusal.into(),
                None => anyhow!("there is nothing to delete from {}", show(range)),
            });
        }
        done => done?,
    };
    if let Some(cno) = only.filter(|cno| done.snapshots.contains(cno)) {
        anyhow::bail!("checkpoint {cno} is a snapshot; see nilfs snapshot delete");
    }
    deleted.deleted += done.deleted;
    deleted.snapshots_kept.extend(done.snapshots.iter().map(|cno| cno.0));
    Ok(())
}

/// A checkpoint number.
pub fn number(text: &str) -> Result<Cno, String> {
    match text.parse() {
        Ok(cno @ 1..) => Ok(Cno(cno)),
        _ => Err("expected a checkpoint number from 1 on".to_owned()),
    }
}

/// A range of checkpoint numbers. Both ends belong to it, and either can be left out.
fn range(text: &str) -> Result<RangeInclusive<Cno>, String> {
    let Some((first, last)) = text.split_once("..") else {
        return number(text).map(|only| only..=only);
    };
    let end = |text: &str, open| if text.is_empty() { Ok(open) } else { number(text) };
    // The largest number means "still in the present" in the format; no checkpoint has it.
    let (first, last) = (end(first, Cno::MIN)?, end(last, Cno(Cno::MAX.0 - 1))?);
    if first > last {
        return Err(format!("{first} comes after {last}"));
    }
    Ok(first..=last)
}

fn show(range: &RangeInclusive<Cno>) -> String {
    match range.end().0 == Cno::MAX.0 - 1 {
        true => format!("{} on", range.start()),
        false => format!("{} to {}", range.start(), range.end()),
    }
}

fn record(checkpoint: &CheckpointInfo, note: Option<&Note>) -> Record {
    let text = note.map(|note| note.text.to_string());
    Record {
        name: note.and_then(|note| note.name.as_ref()).map(ToString::to_string),
        note: text.filter(|text| !text.is_empty()),
        made_by: checkpoint.snapshot.then(|| note.map_or(MadeBy::User, |note| note.made_by)),
        checkpoint: checkpoint.cno.0,
        created: exact_time(checkpoint.created as i64, 0),
        snapshot: checkpoint.snapshot,
        minor: checkpoint.minor,
        blocks: checkpoint.blocks,
        inodes: checkpoint.inodes,
        increment: checkpoint.increment,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_range_belong_to_it_and_can_be_left_out() {
        let most = Cno::MAX.0 - 1;
        for (text, first, last) in
            [("7", 7, 7), ("3..5", 3, 5), ("..5", 1, 5), ("5..", 5, most), ("..", 1, most)]
        {
            assert_eq!(range(text), Ok(Cno(first)..=Cno(last)), "{text}");
        }
        for text in ["", "0", "0..3", "5..3", "a..b", "1...3", "-1", "1..2..3"] {
            assert!(range(text).is_err(), "{text}");
        }
    }
}

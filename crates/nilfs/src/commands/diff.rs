//! `nilfs diff`: what has changed between two moments.

pub mod text;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::slice;
use std::sync::Arc;

use anyhow::bail;
use nilfs_engine::{FileType, Files};
use nilfs_fuse::When;
use nilfs_ondisk::ByteCount;
use serde::Serialize;

use self::text::Side;
use crate::completions;
use crate::image::{LastLink, Located, find, has_snapshot, locate_after, open_files};
use crate::output::{self, Column, Rows, counted, printable};
use crate::past::{Change, FileAt};

/// Show what has changed between two moments, or from one to the present
///
/// Files that were added, removed, modified or renamed, with their sizes before and after. CHANGED is
/// how many bytes the two versions do not share on the volume, in whole blocks; a block that was
/// written again with what was in it counts.
///
/// Without DEVICE or PATH, what is below the current directory is compared. A path that looks like a
/// moment is written with a slash: ./monday.
#[derive(Debug, clap::Args)]
#[command(override_usage = "nilfs diff [OPTIONS] <WHEN> [WHEN] [DEVICE|PATH] [PATH]...")]
#[command(after_help = "\
Examples:
  nilfs diff yesterday                     below the current directory, until now
  nilfs diff monday tuesday /mnt/photos
  nilfs diff -p 17 18 disk.img notes       with the lines that differ
  cd /mnt && nilfs diff --name-only -z 17 | xargs -0 ls -ld

WHEN is a checkpoint number, or a date or time such as 2026-11-20, \"yesterday 17:00\", monday or
\"10 minutes ago\": the newest checkpoint that is not later.")]
pub struct Args {
    /// Print totals alone
    #[arg(long, conflicts_with_all = ["name_only", "json", "patch"])]
    stat: bool,
    /// Print paths alone: those of now, or of what was removed
    #[arg(long, conflicts_with_all = ["json", "patch"])]
    name_only: bool,
    /// End each path with a zero byte, and print it as it is
    #[arg(short = 'z', requires = "name_only")]
    zero: bool,
    /// Show the lines that differ in text files
    #[arg(short, long, conflicts_with = "json")]
    patch: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The older moment
    #[arg(value_name = "WHEN", add = completions::moment())]
    from: When,
    /// The newer moment, if it is not the present; the device or image, or a file or directory on a
    /// mount; and paths on that volume
    #[arg(value_name = "WHEN|PATH")]
    operands: Vec<OsString>,
}

/// How a name has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Added,
    Removed,
    Modified,
    Renamed,
}

impl Kind {
    fn of(change: &Change) -> Self {
        match (&change.before, &change.after) {
            (None, _) => Self::Added,
            (_, None) => Self::Removed,
            (Some(before), Some(after)) if before.path == after.path => Self::Modified,
            _ => Self::Renamed,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Removed => "removed",
            Self::Modified => "modified",
            Self::Renamed => "renamed",
        }
    }
}

/// A change, for programs.
#[derive(Serialize)]
pub struct Record {
    change: Kind,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    old_path: Option<String>,
    #[serde(rename = "type")]
    file_type: Option<&'static str>,
    size_before_bytes: Option<u64>,
    size_after_bytes: Option<u64>,
    changed_bytes: Option<u64>,
}

#[derive(Serialize)]
struct Difference {
    from_checkpoint: u64,
    to_checkpoint: u64,
    changes: Vec<Record>,
}

/// Compares them.
pub fn run(args: Args) -> anyhow::Result<()> {
    let mut operands = args.operands.iter().map(OsString::as_os_str).peekable();
    let is_last = args.operands.len() == 1;
    let to = operands.peek().and_then(|word| second_moment(word, is_last));
    if to.is_some() {
        operands.next();
    }
    let place = operands.next();
    let paths: Vec<OsString> = operands.map(OsString::from).collect();
    let top = Path::new(place.unwrap_or(OsStr::new(".")));
    let moments: Vec<&When> = std::iter::once(&args.from).chain(&to).collect();
    let located = locate_after(&moments, (top, &paths), "nilfs diff")?;
    // Changes that were made until now have to be in a checkpoint first.
    let shown = if to.is_none() { located.shown()? } else { None };
    let checkpoints = located.checkpoints()?;
    let before = checkpoints.find(&args.from)?.cno;
    let after = match &to {
        Some(when) => checkpoints.find(when)?.cno,
        None => shown.unwrap_or(checkpoints.newest()),
    };
    let mut changes = checkpoints.changes(before, after)?;
    changes.retain(|change| is_wanted(change, &located.paths));
    for path in &located.paths {
        let was_there = || {
            let has = |cno| {
                let files = open_files(&located.device, Some(cno))?;
                find(&files, path.as_bytes(), LastLink::Keep)
            };
            has(before).is_ok() || has(after).is_ok()
        };
        if !changes.iter().any(|it| is_wanted(it, slice::from_ref(path))) && !was_there() {
            let path = printable(path.as_bytes());
            bail!("neither checkpoint {before} nor checkpoint {after} has {path}");
        }
    }
    if args.json {
        let changes = changes.iter().map(Record::of).collect();
        return output::json(&Difference {
            from_checkpoint: before.0,
            to_checkpoint: after.0,
            changes,
        });
    }
    if args.stat {
        return print_totals(&changes);
    }
    if args.name_only {
        return print_names(&changes, args.zero);
    }
    if args.patch {
        let [old, new] = [before, after].map(|cno| open_files(&located.device, Some(cno)));
        return print_lines(&changes, &old?, &new?);
    }
    print(&changes)
}

/// The moment that a word names, unless it is the path of a file that could be a name as well: one that
/// is there, or, if no other operand follows, on a volume that has no such snapshot.
fn second_moment(word: &OsStr, is_last: bool) -> Option<When> {
    let when: When = word.to_str()?.parse().ok()?;
    let is_path = when.name().is_some_and(|name| {
        let is_on_volume = || {
            let located = Located::find(Path::new(word), &[]).ok();
            located.is_some_and(|it| !it.paths.is_empty() && !has_snapshot(&it.device, name))
        };
        std::fs::symlink_metadata(word).is_ok() || is_last && is_on_volume()
    });
    (!is_path).then_some(when)
}

/// Whether a change is of one of these files, or below it.
pub fn is_wanted(change: &Change, paths: &[OsString]) -> bool {
    let versions = [&change.before, &change.after];
    let is_below = |path: &OsString| {
        let top = path.as_bytes();
        let top = std::str::from_utf8(top).map_or(top, |top| top.trim_matches('/').as_bytes());
        versions.into_iter().flatten().any(|version| {
            let rest = version.path.as_bytes().strip_prefix(top);
            rest.is_some_and(|rest| top.is_empty() || rest.is_empty() || rest[0] == b'/')
        })
    };
    paths.is_empty() || paths.iter().any(is_below)
}

/// The version of the newer checkpoint, or of the older one, if it was removed.
fn newest(change: &Change) -> Option<&FileAt> {
    change.after.as_ref().or(change.before.as_ref())
}

/// A path for people, with a slash after that of a directory.
fn shown(version: &FileAt) -> String {
    let slash = if version.file_type() == Some(FileType::Directory) { "/" } else { "" };
    format!("{}{slash}", printable(version.path.as_bytes()))
}

impl Record {
    /// Describes a change.
    pub fn of(change: &Change) -> Self {
        let kind = Kind::of(change);
        let path = |version: &FileAt| version.path.to_text();
        let size = |version: &Option<FileAt>| version.as_ref().map(|version| version.size);
        let newest = newest(change);
        Self {
            change: kind,
            path: newest.map(path).unwrap_or_default(),
            old_path: change.before.as_ref().filter(|_| kind == Kind::Renamed).map(path),
            file_type: newest.and_then(FileAt::file_type).map(FileType::in_words),
            size_before_bytes: size(&change.before),
            size_after_bytes: size(&change.after),
            changed_bytes: change.changed_bytes,
        }
    }
}

/// Prints changes as a table.
pub fn print(changes: &[Change]) -> anyhow::Result<()> {
    if changes.is_empty() {
        return Ok(());
    }
    let mut rows = Rows::new(&[
        Column::Text("CHANGE"),
        Column::Number("BEFORE"),
        Column::Number("AFTER"),
        Column::Number("CHANGED"),
        Column::Text("PATH"),
    ]);
    let size = |version: &Option<FileAt>| match version {
        Some(version) if version.file_type() == Some(FileType::Directory) => "-".to_owned(),
        Some(version) => ByteCount(version.size).to_string(),
        None => "-".to_owned(),
    };
    for change in changes {
        let kind = Kind::of(change);
        let mut path = newest(change).map(shown).unwrap_or_default();
        if let Some(before) = change.before.as_ref().filter(|_| kind == Kind::Renamed) {
            path = format!("{} -> {path}", shown(before));
        }
        rows.push([
            kind.word().to_owned(),
            size(&change.before),
            size(&change.after),
            change.changed_bytes.map_or("-".to_owned(), |bytes| ByteCount(bytes).to_string()),
            path,
        ]);
    }
    rows.print()
}

/// Files are read as all others of a volume are, with the permissions of the one who asks.
fn print_lines(
    changes: &[Change],
    old: &Arc<dyn Files>,
    new: &Arc<dyn Files>,
) -> anyhow::Result<()> {
    let mut out = std::io::BufWriter::new(output::out());
    for change in changes {
        let kind = Kind::of(change);
        let path = newest(change).map(shown).unwrap_or_default();
        match change.before.as_ref().filter(|_| kind == Kind::Renamed) {
            Some(before) => writeln!(out, "renamed {} -> {path}", shown(before))?,
            None => writeln!(out, "{} {path}", kind.word())?,
        }
        let side = |files, version: &'_ Option<FileAt>| {
            version.as_ref().map(|version| Side { files, path: version.path.clone() })
        };
        text::print(&mut out, side(old, &change.before), side(new, &change.after))?;
    }
    Ok(out.flush()?)
}

fn print_totals(changes: &[Change]) -> anyhow::Result<()> {
    let mut out = output::out();
    for kind in [Kind::Added, Kind::Removed, Kind::Modified, Kind::Renamed] {
        let of_kind = changes.iter().filter(|change| Kind::of(change) == kind);
        let (count, bytes) = of_kind.fold((0, 0_u64), |(count, bytes), change| {
            (count + 1, bytes.saturating_add(change.changed_bytes.unwrap_or(0)))
        });
        if count > 0 {
            writeln!(out, "{} {}, {}", counted(count, "file"), kind.word(), ByteCount(bytes))?;
        }
    }
    Ok(())
}

fn print_names(changes: &[Change], zero: bool) -> anyhow::Result<()> {
    let mut out = std::io::BufWriter::new(output::out());
    for version in changes.iter().filter_map(newest) {
        match zero {
            true => out.write_all(&[version.path.as_bytes(), b"\0"].concat())?,
            false => writeln!(out, "{}", printable(version.path.as_bytes()))?,
        }
    }
    Ok(out.flush()?)
}

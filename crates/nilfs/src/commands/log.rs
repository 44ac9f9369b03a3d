//! `nilfs log`: the versions of a file.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::bail;
use nilfs_engine::FileType;
use nilfs_engine::tree::Cause;
use nilfs_fuse::When;
use nilfs_ondisk::ByteCount;
use serde::Serialize;

use super::checkpoints::known_notes;
use super::df::print_reach;
use super::diff::text::{self, Side};
use crate::completions;
use crate::exit::{Failure, Status};
use crate::image::{Located, open_files};
use crate::output::{self, Column, Rows, exact_time, local_time, printable};
use crate::past::Version;

/// Show the versions of a file or directory, newest first
///
/// A version begins with the first checkpoint that is there and has it. What it says of it is how it
/// came about: created; content or metadata changed; renamed; replaced by another file, as programs do
/// that write a new one; deleted; recreated after that. Of the oldest version it is unknown if there is
/// no older checkpoint.
///
/// Changes between two checkpoints are one: only what a checkpoint has can be told. CHANGED is how many
/// bytes a version does not share with the one before, in whole blocks. The file need not be there any
/// more.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "nilfs log [OPTIONS] <PATH>\n       nilfs log [OPTIONS] <DEVICE> <PATH>"
)]
#[command(after_help = "\
Examples:
  nilfs log notes.txt
  nilfs log -p -n 3 notes.txt       what the last three versions have changed
  nilfs log /mnt/gone               a file that was deleted
  nilfs log disk.img photos/1.jpg")]
pub struct Args {
    /// Begin at this moment instead of now
    #[arg(long, value_name = "WHEN", add = completions::moment())]
    at: Option<When>,
    /// Show at most N versions
    #[arg(short = 'n', long, value_name = "N")]
    limit: Option<usize>,
    /// Show the lines that have changed in text files
    #[arg(short, long, conflicts_with = "json")]
    patch: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// A file or directory on a mount; or the device or image, and then the path on it
    #[arg(value_name = "DEVICE|PATH")]
    place: PathBuf,
    /// The file or directory
    #[arg(value_name = "PATH")]
    path: Option<OsString>,
}

#[derive(Serialize)]
struct Record {
    cause: Cause,
    checkpoint: u64,
    created: String,
    last_checkpoint: u64,
    path: String,
    size_bytes: u64,
    modified: String,
    changed_bytes: Option<u64>,
}

impl From<&Version> for Record {
    fn from(version: &Version) -> Self {
        Self {
            cause: version.cause,
            checkpoint: version.first.cno.0,
            created: exact_time(version.first.created as i64, 0),
            last_checkpoint: version.last.0,
            path: version.file.path.to_text(),
            size_bytes: version.file.size,
            modified: exact_time(version.file.modified, 0),
            changed_bytes: version.changed_bytes,
        }
    }
}

/// Shows them.
pub fn run(args: Args) -> anyhow::Result<()> {
    let located = Located::find(&args.place, args.path.as_slice())?;
    let path = match &located.paths[..] {
        [path] => path,
        [] => {
            let message = "the path of a file on the volume is missing; see nilfs log --help";
            return Err(Failure::new(Status::Usage, message).into());
        }
        [_, path, ..] => {
            let message = format!("{} is one path too many", Path::new(path).display());
            return Err(Failure::new(Status::Usage, message).into());
        }
    };
    let shown = located.shown()?;
    let checkpoints = located.checkpoints()?;
    let at = match &args.at {
        Some(when) => Some(checkpoints.find(when)?.cno),
        None => shown,
    };
    // The version before the last one that is shown says what has changed in that.
    let limit = args.limit.unwrap_or(usize::MAX).saturating_add(usize::from(args.patch));
    let versions = checkpoints.versions(path, at, limit)?;
    if versions.is_empty() {
        let path = printable(path.as_bytes());
        match at {
            Some(at) => bail!("no checkpoint up to {at} has {path}"),
            None => bail!("no checkpoint that is there has {path}"),
        }
    }
    let wanted = &versions[..versions.len().min(args.limit.unwrap_or(usize::MAX))];
    if args.json {
        return output::json_list(wanted.iter().map(Record::from));
    }
    if args.patch {
        return print_lines(&located, &versions, wanted.len());
    }
    print(wanted)?;
    print_reach(checkpoints.reach(&known_notes(&checkpoints))?.as_ref())
}

fn word(cause: Cause) -> &'static str {
    match cause {
        Cause::Created => "created",
        Cause::Content => "content",
        Cause::Metadata => "metadata",
        Cause::Replaced => "replaced",
        Cause::Recreated => "recreated",
        Cause::Renamed => "renamed",
        Cause::Deleted => "deleted",
        Cause::Unknown => "-",
    }
}

fn print(versions: &[Version]) -> anyhow::Result<()> {
    let mut rows = Rows::new(&[
        Column::Number("CHECKPOINT"),
        Column::Text("SINCE"),
        Column::Text("WHAT"),
        Column::Number("SIZE"),
        Column::Number("CHANGED"),
        Column::Text("PATH"),
    ]);
    for version in versions {
        let bytes = |bytes: Option<u64>, is_told: bool| match bytes.filter(|_| is_told) {
            Some(bytes) => ByteCount(bytes).to_string(),
            None => "-".to_owned(),
        };
        let is_file = version.file.file_type() != Some(FileType::Directory);
        let is_there = version.cause != Cause::Deleted;
        let is_compared =
            matches!(version.cause, Cause::Content | Cause::Metadata | Cause::Renamed);
        rows.push([
            version.first.cno.to_string(),
            local_time(version.first.created as i64),
            word(version.cause).to_owned(),
            bytes(Some(version.file.size), is_file && is_there),
            bytes(version.changed_bytes, is_file && is_compared),
            printable(version.file.path.as_bytes()),
        ]);
    }
    rows.print()
}

/// Prints the first `count` versions, each with the lines by which it differs from the one before.
fn print_lines(located: &Located, versions: &[Version], count: usize) -> anyhow::Result<()> {
    let mut out = std::io::BufWriter::new(output::out());
    for (nth, version) in versions.iter().take(count).enumerate() {
        let since = local_time(version.first.created as i64);
        let path = printable(version.file.path.as_bytes());
        let (cno, what) = (version.first.cno, word(version.cause));
        writeln!(out, "checkpoint {cno}  {since}  {what}  {path}")?;
        let is_there = |version: &&Version| version.cause != Cause::Deleted;
        let [new, old] = [Some(version), versions.get(nth + 1)].map(|it| it.filter(is_there));
        let files = |version: Option<&Version>| {
            version.map(|it| open_files(&located.device, Some(it.last))).transpose()
        };
        let (old_files, new_files) = (files(old)?, files(new)?);
        let old = old.zip(old_files.as_ref());
        let new = new.zip(new_files.as_ref());
        let is_known = version.cause != Cause::Unknown;
        if is_known {
            let [old, new] = [old, new].map(|it| {
                it.map(|(version, files)| Side { files, path: version.file.path.clone() })
            });
            text::print(&mut out, old, new)?;
        }
        writeln!(out)?;
    }
    Ok(out.flush()?)
}

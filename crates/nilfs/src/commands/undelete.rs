//! `nilfs undelete`: what was deleted below a directory.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow};
use nilfs_engine::{CheckpointInfo, Cno, Error, FileType, Files};
use nilfs_fuse::When;
use nilfs_ondisk::ByteCount;
use serde::Serialize;

use super::cp::{Copier, Count, Existing, Wording};
use super::restore::Job;
use crate::administration::{Reason, Refusal};
use crate::beneath::{self, Destination};
use crate::completions;
use crate::exit::{Failure, Status};
use crate::image::{Checkpoints, Door, Located, open_files, refuse_other_volume};
use crate::output::{self, Column, Rows, exact_time, local_time, printable, utter};
use crate::past::FileAt;
use crate::progress;

/// List what was deleted below a directory, and bring it back
///
/// Every name is listed that a checkpoint has and that is there no more, with the last checkpoint that
/// has it. Of a directory that was deleted as a whole, its own name stands for all that was in it.
/// What was made and deleted between two checkpoints is lost.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nilfs undelete -n /mnt                    what was deleted, as far back as there are checkpoints
  nilfs undelete --since '1 hour ago' /mnt/photos
  nilfs restore /mnt/photos/1.jpg@17        one of them

WHEN is a checkpoint number, or a date or time such as 2026-11-20, \"yesterday 17:00\", monday or
\"10 minutes ago\": the newest checkpoint that is not later.")]
pub struct Args {
    /// Look at what was deleted after this moment
    #[arg(long, value_name = "WHEN", add = completions::moment())]
    since: Option<When>,
    /// Bring everything back without asking
    #[arg(short, long)]
    force: bool,
    /// Only list it
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print JSON, and bring nothing back
    #[arg(long)]
    json: bool,
    /// A directory on a mount, or a file or directory that is not there any more
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Versions of directories that are looked at in any case, to see which checkpoints have to be compared.
const FEW_VERSIONS: usize = 1024;

/// Something that was deleted.
struct Deleted {
    file: FileAt,
    /// The last checkpoint that has it.
    last: Cno,
    /// The first that does not.
    gone: CheckpointInfo,
    /// Where it was, on the mount.
    place: Destination,
}

#[derive(Serialize)]
struct Record {
    path: String,
    deleted: String,
    last_checkpoint: u64,
    size_bytes: u64,
}

/// Lists it, and brings it back.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let located = Located::find(&args.dir, &[])?;
    let no_mount = || {
        format!(
            "{} is not on a mounted volume; name a directory on one, as nilfs list shows them",
            args.dir.display()
        )
    };
    if located.paths.is_empty() {
        refuse_other_volume(&args.dir)?;
    }
    let top = located.paths.first().with_context(no_mount)?;
    let place = located.place_of(top, &args.dir)?.with_context(no_mount)?;
    // What was deleted just now has to be gone in a checkpoint, too.
    located.shown()?;
    let checkpoints = located.checkpoints()?;
    let from = match &args.since {
        Some(when) => checkpoints.find(when)?.cno,
        None => Cno::MIN,
    };
    let deleted = find(&checkpoints, from, top, &place)?;
    if args.json {
        return output::json_list(deleted.iter().map(Record::from));
    }
    if deleted.is_empty() {
        return Ok(());
    }
    print(&deleted)?;
    if args.dry_run {
        return Ok(());
    }
    // What is looked at stays while the user thinks, and while what is brought back needs room.
    let _kept_past = Door::kept_past(&located.device);
    let jobs = jobs(&located, &deleted);
    if !args.force {
        confirm(&jobs)?;
    }
    bring_back(&deleted, jobs)
}

/// Compares each checkpoint with the next one, where names changed between the two.
fn find(
    checkpoints: &Checkpoints,
    from: Cno,
    top_path: &OsStr,
    place: &Destination,
) -> anyhow::Result<Vec<Deleted>> {
    let _sign_of_life = progress::spinner("looking through the checkpoints");
    let top = Path::new(top_path).strip_prefix("/").unwrap_or(Path::new(top_path));
    let mut deleted: BTreeMap<PathBuf, Deleted> = BTreeMap::new();
    let mut all = checkpoints.list(from, usize::MAX)?;
    all.retain(|checkpoint| !checkpoint.minor);
    let most = all.len().max(FEW_VERSIONS);
    let changed = match checkpoints.changes_of_directories(top_path, from, most) {
        // The cleaner has given one of them up meanwhile: all are compared that are left.
        Err(error) if is_gone(&error) => None,
        changed => changed?,
    };
    let is_quiet = |last: Cno, gone: Cno| {
        let between = last.plus(1)..=gone;
        changed.as_ref().is_some_and(|changed| changed.range(between).next().is_none())
    };
    let is_left = |cno| -> anyhow::Result<bool> {
        Ok(checkpoints.list(cno, 1)?.first().is_some_and(|it| it.cno == cno))
    };
    let mut before: Vec<Cno> = Vec::new();
    for gone in all {
        let changes = loop {
            let Some(&last) = before.last() else { break Some((gone.cno, Vec::new())) };
            if is_quiet(last, gone.cno) {
                break Some((last, Vec::new()));
            }
            match checkpoints.changes(last, gone.cno) {
                // The cleaner has given one of the two up meanwhile: the other is compared with its neighbour.
                Err(error) if is_gone(&error) && is_left(last)? => break None,
                Err(error) if is_gone(&error) => _ = before.pop(),
                changes => break Some((last, changes?)),
            }
        };
        let Some((last, changes)) = changes else { continue };
        before.push(gone.cno);
        for change in changes.into_iter().filter(|change| change.after.is_none()) {
            let Some(file) = change.before else { continue };
            let path = PathBuf::from(OsStr::from_bytes(file.path.as_bytes()));
            let is_draft = path.file_name().is_some_and(beneath::is_of_draft);
            if let Ok(below) = path.strip_prefix(top)
                && !is_draft
            {
                let place = place.join(below);
                deleted.insert(below.to_owned(), Deleted { file, last, gone, place });
            }
        }
    }
    // A file beyond a symbolic link does not count as there: the link has taken the place of a directory.
    deleted.retain(|_, it| !matches!(it.place.look(), Ok(Some(_))));
    let with_directory: Vec<PathBuf> = deleted
        .iter()
        .filter(|(path, it)| {
            let mut above = path.ancestors().skip(1).filter_map(|above| deleted.get(above));
            above.any(|above| above.last == it.last)
        })
        .map(|(path, _)| path.clone())
        .collect();
    with_directory.iter().for_each(|path| _ = deleted.remove(path));
    Ok(deleted.into_values().collect())
}

/// Whether the cleaner has given a checkpoint up meanwhile.
fn is_gone(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Refusal>().is_some_and(|refusal| refusal.reason == Reason::NoCheckpoint)
}

impl From<&Deleted> for Record {
    fn from(deleted: &Deleted) -> Self {
        Self {
            path: deleted.file.path.to_text(),
            deleted: exact_time(deleted.gone.created as i64, 0),
            last_checkpoint: deleted.last.0,
            size_bytes: deleted.file.size,
        }
    }
}

fn print(deleted: &[Deleted]) -> anyhow::Result<()> {
    let mut rows = Rows::new(&[
        Column::Text("DELETED"),
        Column::Number("LAST IN"),
        Column::Number("SIZE"),
        Column::Text("PATH"),
    ]);
    for it in deleted {
        let is_directory = it.file.file_type() == Some(FileType::Directory);
        let path = printable(it.place.shown().as_os_str().as_bytes());
        rows.push([
            local_time(it.gone.created as i64),
            it.last.to_string(),
            if is_directory { "-".to_owned() } else { ByteCount(it.file.size).to_string() },
            if is_directory { format!("{path}/") } else { path },
        ]);
    }
    rows.print()
}

/// Asks whether all of it is to be brought back; where no user can be asked, it is not.
fn confirm(jobs: &[anyhow::Result<Job>]) -> anyhow::Result<()> {
    let refused = |message: &str| Err(Failure::new(Status::Refused, message.to_owned()).into());
    if !io::stdin().is_terminal() {
        return refused("nothing was brought back; use -f to bring back what is listed");
    }
    let mut count = Count::default();
    jobs.iter().flatten().for_each(|job| job.count(&mut count));
    utter(format_args!("Bring back {count}? [y/N] "));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => refused("nothing was brought back"),
    }
}

/// How each of them is brought back, or why it cannot be.
fn jobs(located: &Located, deleted: &[Deleted]) -> Vec<anyhow::Result<Job>> {
    let mut opened: HashMap<Cno, Arc<dyn Files>> = HashMap::new();
    let job = |it: &Deleted| {
        let files = match opened.get(&it.last) {
            Some(files) => Arc::clone(files),
            None => {
                let files = open_last(located, it.last)?;
                opened.insert(it.last, Arc::clone(&files));
                files
            }
        };
        let source = OsStr::from_bytes(it.file.path.as_bytes()).to_owned();
        Ok(Job { files, cno: it.last, source, destination: it.place.clone() })
    };
    deleted.iter().map(job).collect()
}

fn open_last(located: &Located, last: Cno) -> anyhow::Result<Arc<dyn Files>> {
    open_files(&located.device, Some(last)).map_err(|error| match error.downcast_ref() {
        Some(Error::NoCheckpoint(_)) => {
            anyhow!("checkpoint {last}, the last that has it, was given up meanwhile")
        }
        _ => error,
    })
}

fn bring_back(deleted: &[Deleted], jobs: Vec<anyhow::Result<Job>>) -> anyhow::Result<()> {
    let mut copier = Copier::new(Wording::RESTORE, true, Existing::Keep);
    for (it, job) in deleted.iter().zip(jobs) {
        if let Err(error) = job.and_then(|job| job.run(&mut copier)) {
            copier.fail(&it.place.shown(), &error);
        }
    }
    let count = copier.finish()?;
    Ok(writeln!(output::out(), "{count} restored")?)
}

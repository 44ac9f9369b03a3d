//! `nilfs restore`: files as they were, in the place of what is there now.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use nilfs_engine::{Cno, FileType, Files};
use nilfs_fuse::When;
use serde::Serialize;

use super::cp::{Copier, Count, Existing, Wording, is_as};
use crate::beneath::{self, Destination};
use crate::completions;
use crate::control::KeptPast;
use crate::exit::{Failure, Status, sentence, status_of};
use crate::image::{Door, Entry, LastLink, Located, Named, Walk, WalkEntry};
use crate::image::{find, open_files, refuse_other_volume};
use crate::output::{self, counted, printable, say, utter};

/// Bring files and directories back as they were
///
/// A file gets its content, owner, permissions, times and links of that moment. Of a directory,
/// everything comes back that was in it; what is there besides stays. A file that is as it was is left
/// alone. Files that would be overwritten are listed first, and asked about. Where a directory has become a
/// symbolic link, what was in it is not restored: nothing is written outside of the mount.
#[derive(Debug, clap::Args)]
#[command(override_usage = "nilfs restore [OPTIONS] <PATH@WHEN>...")]
#[command(after_help = "\
Examples:
  nilfs restore /mnt/list.txt@yesterday
  nilfs restore --to old.txt /mnt/list.txt@17
  nilfs restore -n --at '10 minutes ago' /mnt/photos    what would it do?

WHEN is a checkpoint number, or a date or time such as 2026-11-20, \"yesterday 17:00\", monday or
\"10 minutes ago\": the newest checkpoint that is not later.")]
pub struct Args {
    /// The moment of paths that do not name one themselves
    #[arg(long, value_name = "WHEN", add = completions::moment())]
    at: Option<When>,
    /// Put them here instead: a new name, or a directory
    #[arg(long, value_name = "DEST")]
    to: Option<PathBuf>,
    /// Overwrite without asking
    #[arg(short, long)]
    force: bool,
    /// Only say what would be done
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Files and directories on a mount; they need not be there any more
    #[arg(value_name = "PATH@WHEN", required = true)]
    paths: Vec<OsString>,
}

/// The pasts of the volumes, by their devices, until everything is brought back.
type KeptPasts = HashMap<PathBuf, Option<KeptPast>>;

/// Something that is to be brought back.
pub struct Job {
    /// The files of the checkpoint.
    pub files: Arc<dyn Files>,
    /// The checkpoint.
    pub cno: Cno,
    /// The path from the root of the volume.
    pub source: OsString,
    /// Where to put it.
    pub destination: Destination,
}

/// Brings them back.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let to = args.to.as_deref().map(Destination::typed).transpose()?;
    if to.as_ref().is_some_and(|to| args.paths.len() > 1 && !to.is_top()) {
        bail!("with several paths, --to must be a directory");
    }
    let mut kept = KeptPasts::default();
    let job = |path: &OsString| Job::new(path, args.at.as_ref(), to.as_ref(), &mut kept);
    let mut plan = Plan::default();
    let mut jobs = Vec::new();
    for (path, job) in args.paths.iter().zip(args.paths.iter().map(job)) {
        match job.and_then(|job| plan.add(&job).map(|()| job)) {
            Ok(job) => jobs.push(job),
            // What is wrong with one path is no reason to leave the others, but with the command line it is.
            Err(error) if args.paths.len() == 1 || status_of(&error) == Status::Usage => {
                return Err(error);
            }
            Err(error) => plan.missing.push((path.into(), error)),
        }
    }
    if args.dry_run {
        return if args.json { plan.print_json(false) } else { plan.print() };
    }
    if !plan.overwritten.is_empty() && !args.force {
        confirm(&plan.overwritten)?;
    }
    let mut copier = Copier::new(Wording::RESTORE, true, Existing::Replace);
    plan.missing.iter().for_each(|(path, error)| copier.fail(path, error));
    for job in &jobs {
        job.run(&mut copier)?;
    }
    copier.finish()?;
    if args.json {
        return plan.print_json(true);
    }
    let mut out = output::out();
    Ok(writeln!(out, "{} restored", counted(plan.restored(), "file"))?)
}

impl Job {
    fn new(
        operand: &OsStr,
        at: Option<&When>,
        to: Option<&Destination>,
        kept: &mut KeptPasts,
    ) -> anyhow::Result<Self> {
        let shown = || printable(operand.as_bytes());
        let Named { path, when } = Named::on_mount(operand);
        let path = Path::new(&path);
        let Some(when) = when.as_ref().or(at) else {
            let is_named = operand.as_bytes().contains(&b'@') && path.symlink_metadata().is_err();
            let unknown = if is_named { "; nothing is called what follows the @" } else { "" };
            let message =
                format!("{}: at which moment? say PATH@WHEN, or --at WHEN{unknown}", shown());
            return Err(Failure::new(Status::Usage, message).into());
        };
        let located = Located::find(path, &[])?;
        let [source] = &located.paths[..] else {
            refuse_other_volume(path)?;
            return Err(not_on_mount(path));
        };
        let keep = || Door::kept_past(&located.device);
        kept.entry(located.device.clone()).or_insert_with(keep);
        let cno = located.checkpoints()?.find(when)?.cno;
        let files = open_files(&located.device, Some(cno))?;
        let destination = match (to, path.file_name()) {
            (Some(to), Some(name)) if to.is_top() => to.join(name),
            (Some(to), _) => to.clone(),
            (None, _) => {
                located.place_of(source, path)?.with_context(|| not_on_mount(path).to_string())?
            }
        };
        Ok(Self { files, cno, source: source.clone(), destination })
    }

    /// Brings it back.
    pub fn run(&self, copier: &mut Copier) -> anyhow::Result<()> {
        copier.begin(&self.files);
        copier.copy_tree(self.find()?, &self.destination);
        Ok(())
    }

    /// Adds what there is to be brought back, as far as it can be read.
    pub fn count(&self, count: &mut Count) {
        let Ok(top) = self.find() else { return };
        count.add(top.attr.file_type);
        if top.attr.file_type == FileType::Directory {
            let entries = Walk::new(Rc::new(top), true).filter_map(|it| it.entry.ok());
            entries.for_each(|entry| count.add(entry.attr.file_type));
        }
    }

    fn find(&self) -> anyhow::Result<Entry> {
        let found = find(&self.files, self.source.as_bytes(), LastLink::Keep);
        found.with_context(|| format!("checkpoint {}", self.cno))
    }
}

/// Record of what was done, or would be, for programs.
#[derive(Serialize)]
struct Record {
    restored: bool,
    new: Vec<String>,
    overwritten: Vec<String>,
}

/// What is to be done.
#[derive(Default)]
struct Plan {
    new: Vec<PathBuf>,
    overwritten: Vec<PathBuf>,
    /// Operands of which nothing is known, and why.
    missing: Vec<(PathBuf, anyhow::Error)>,
    /// Paths that cannot be restored, and why.
    obstacles: Vec<(PathBuf, anyhow::Error)>,
}

impl Plan {
    fn add(&mut self, job: &Job) -> anyhow::Result<()> {
        let top = Rc::new(job.find()?);
        if !self.note(&top, &job.destination) || top.attr.file_type != FileType::Directory {
            return Ok(());
        }
        let mut walk = Walk::new(top, true);
        while let Some(WalkEntry { path, entry }) = walk.next() {
            let entry = entry.with_context(|| printable(&path))?;
            if !self.note(&entry, &job.destination.join(OsStr::from_bytes(&path))) {
                walk.pass_by();
            }
        }
        Ok(())
    }

    /// Notes what becomes of a file. Returns whether nothing is in the way.
    fn note(&mut self, entry: &Entry, to: &Destination) -> bool {
        let attr = entry.attr;
        let obstacle = match to.look() {
            Ok(None) => {
                self.new.push(to.shown());
                return true;
            }
            Ok(Some(now)) => {
                let is_directory = beneath::file_type(&now).is_dir();
                if is_directory == (attr.file_type == FileType::Directory) {
                    if !is_directory && !is_as(&attr, &now) {
                        self.overwritten.push(to.shown());
                    }
                    return true;
                }
                beneath::in_the_way(&now)
            }
            Err(error) => error,
        };
        self.obstacles.push((to.shown(), obstacle));
        false
    }

    fn restored(&self) -> u64 {
        (self.new.len() + self.overwritten.len()) as u64
    }

    fn print_json(&self, restored: bool) -> anyhow::Result<()> {
        let names = |paths: &[PathBuf]| {
            paths.iter().map(|path| path.to_string_lossy().into_owned()).collect()
        };
        let (new, overwritten) = (names(&self.new), names(&self.overwritten));
        output::json(&Record { restored, new, overwritten })
    }

    fn print(&self) -> anyhow::Result<()> {
        let mut out = output::out();
        for (what, paths) in [("make", &self.new), ("overwrite", &self.overwritten)] {
            for path in paths {
                writeln!(out, "{what} {}", printable(path.as_os_str().as_bytes()))?;
            }
        }
        for (path, obstacle) in self.missing.iter().chain(&self.obstacles) {
            say!("nilfs: {}: {}", printable(path.as_os_str().as_bytes()), sentence(obstacle));
        }
        match (self.missing.len() + self.obstacles.len()) as u64 {
            0 => Ok(()),
            count => {
                let message = format!("{} cannot be restored", counted(count, "file"));
                Err(Failure::new(Status::Failed, message).into())
            }
        }
    }
}

/// Says that a path does not lead to a file on a mounted volume, and through which symbolic link it leads
/// off one, if there is one.
fn not_on_mount(path: &Path) -> anyhow::Error {
    match path.ancestors().skip(1).find(|above| above.is_symlink()) {
        Some(link) => anyhow!(
            "{} leads through {}, which is a symbolic link, to a file that is not on a mounted volume",
            path.display(),
            link.display()
        ),
        None => {
            anyhow!("{} is not on a mounted volume; nilfs cp copies out of images", path.display())
        }
    }
}

/// Asks whether files may be overwritten; where nobody can be asked, they may not.
fn confirm(overwritten: &[PathBuf]) -> anyhow::Result<()> {
    let count = counted(overwritten.len() as u64, "file");
    if io::stdin().is_terminal() {
        for path in overwritten {
            utter(format_args!("{}\n", printable(path.as_os_str().as_bytes())));
        }
        utter(format_args!("Overwrite {count}? [y/N] "));
        let mut answer = String::new();
        io::stdin().read_line(&mut answer)?;
        if matches!(answer.trim(), "y" | "Y" | "yes") {
            return Ok(());
        }
    }
    let first = overwritten.first().map(|path| printable(path.as_os_str().as_bytes()));
    let first = first.unwrap_or_default();
    let message = match overwritten.len() {
        1 => format!("{first} would be overwritten; use -f to overwrite it"),
        _ => format!(
            "{count} would be overwritten, such as {first}; see them with -n, and use -f to overwrite \
             them"
        ),
    };
    Err(Failure::new(Status::Refused, message).into())
}

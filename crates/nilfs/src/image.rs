//! Opening a volume to look inside.
//!
//! Of a volume that is mounted, files are read through the process that serves it, by the door to
//! its past, so that its cleaner works on; the device is opened only where that cannot be.

mod checkpoints;
mod door;
mod seen;
mod walk;

use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use nilfs_device::{Access, FileDevice};
use nilfs_engine::{Files, SnapshotName, Volume};
use nilfs_fuse::{Mounted, When};
use nilfs_ondisk::Cno;

pub use self::checkpoints::Checkpoints;
pub use self::door::Door;
pub use self::walk::{Entry, LastLink, Walk, WalkEntry, find};

use crate::administration::{Administration, Place, Target, not_a_volume, source_of};
use crate::beneath::Destination;
use crate::completions;
use crate::control::{Client, KeptPast};
use crate::exit::{Failure, Status, status_of};
use crate::signature::{self, OnVolume};

/// Where to look and at which checkpoint; part of the arguments of several subcommands.
#[derive(Debug, clap::Args)]
pub struct ImageArgs {
    /// Look at the newest checkpoint that is not later than this: a checkpoint number, a date or time
    /// such as 2026-11-20 or "yesterday 17:00", monday, "10 minutes ago"
    #[arg(long, value_name = "WHEN", add = completions::moment())]
    at: Option<When>,
    /// The device or image, or the directory of a mount; what follows are paths on the volume. Or a
    /// file or directory on a mount, by its ordinary path, and so are those that follow. After a path,
    /// @WHEN says at which moment to look at it
    #[arg(value_name = "DEVICE|PATH")]
    place: PathBuf,
}

/// A file that was asked for: where to look for it, and its path there.
pub struct Asked {
    /// The files of a checkpoint.
    pub files: Arc<dyn Files>,
    /// The path from the root of the volume.
    pub path: OsString,
}

impl ImageArgs {
    /// Opens what a `command` was asked to look at. Nothing is written.
    ///
    /// # Errors
    /// No file is named, only the volume; it cannot be opened; there is no such moment.
    pub fn open(&self, paths: &[OsString], command: &str) -> anyhow::Result<Vec<Asked>> {
        match self.open_or_root(paths)? {
            (_, asked) if !asked.is_empty() => Ok(asked),
            _ => {
                let message = format!(
                    "the path of a file on the volume is missing; see nilfs {command} --help"
                );
                Err(Failure::new(Status::Usage, message).into())
            }
        }
    }

    /// The past of the mount that is looked at, for a command that copies out of it; `None` as in
    /// [`Door::kept_past`].
    pub fn kept_past(&self) -> Option<KeptPast> {
        let place = Named::on_mount(self.place.as_os_str());
        let located = Located::find(Path::new(&place.path), &[]).ok()?;
        Door::kept_past(&located.device)
    }

    /// As [`ImageArgs::open`], with the root directory, which is meant if no file is named.
    ///
    /// # Errors
    /// The volume cannot be opened; there is no such moment.
    pub fn open_or_root(&self, paths: &[OsString]) -> anyhow::Result<(Asked, Vec<Asked>)> {
        let place = Named::on_mount(self.place.as_os_str());
        let top = Path::new(&place.path);
        let device = Located::find(top, &[])?.device;
        let is_there = |path: &OsStr| match std::fs::symlink_metadata(path) {
            Ok(_) => true,
            Err(_) if top.is_dir() => std::fs::symlink_metadata(top.join(path)).is_ok(),
            Err(_) => {
                let now = open_files(&device, None);
                now.is_ok_and(|now| find(&now, path.as_bytes(), LastLink::Keep).is_ok())
            }
        };
        let is_name = |_: &OsStr, name: &SnapshotName| has_snapshot(&device, name);
        let named = |path: &OsString| Named::new(path, is_there, is_name);
        let paths: Vec<Named> = paths.iter().map(named).collect();
        let plain: Vec<OsString> = paths.iter().map(|path| path.path.clone()).collect();
        let located = Located::find(top, &plain)?;
        let mut moments = Moments { located: &located, opened: Vec::new() };
        let of_place = place.when.as_ref().or(self.at.as_ref());
        let root = Asked { files: moments.files(of_place)?, path: "/".into() };
        // A file on a mount is the first of the paths itself; a volume is what all of them are on.
        let own = located.paths.len() - paths.len();
        let of_others = if own == 0 { of_place } else { self.at.as_ref() };
        let whens = std::iter::repeat_n(of_place, own)
            .chain(paths.iter().map(|path| path.when.as_ref().or(of_others)));
        let asked = located
            .paths
            .iter()
            .zip(whens)
            .map(|(path, when)| Ok(Asked { files: moments.files(when)?, path: path.clone() }));
        let asked = asked.collect::<anyhow::Result<_>>()?;
        Ok((root, asked))
    }
}

/// A path as it was named, and after `@` a moment.
pub struct Named {
    /// The path alone.
    pub path: OsString,
    /// The moment, if there is one.
    pub when: Option<When>,
}

impl Named {
    /// Takes `path@when` apart, where the path is one of this machine.
    pub fn on_mount(operand: &OsStr) -> Self {
        let is_there = |path: &OsStr| std::fs::symlink_metadata(path).is_ok();
        Self::new(operand, is_there, |path, name| {
            let located = Located::find(Path::new(path), &[]);
            located.is_ok_and(|located| has_snapshot(&located.device, name))
        })
    }

    /// Takes `path@when` apart, unless there is a file of that name. Nearly everything after a `@`
    /// could be the name of a snapshot, so it is one only if `is_name` says so of the path and the
    /// name.
    fn new(
        operand: &OsStr,
        is_there: impl Fn(&OsStr) -> bool,
        is_name: impl Fn(&OsStr, &SnapshotName) -> bool,
    ) -> Self {
        let bytes = operand.as_bytes();
        let parts = bytes.iter().rposition(|byte| *byte == b'@').and_then(|at| {
            // `@1795203662` is a moment, too.
            let at = if at > 0 && bytes[at - 1] == b'@' { at - 1 } else { at };
            let when: When = std::str::from_utf8(&bytes[at + 1..]).ok()?.parse().ok()?;
            (at > 0).then_some((OsStr::from_bytes(&bytes[..at]), when))
        });
        let is_moment = |path, when: &When| when.name().is_none_or(|name| is_name(path, name));
        match parts {
            Some((path, when)) if !is_there(operand) && is_moment(path, &when) => {
                Self { path: path.to_owned(), when: Some(when) }
            }
            _ => Self { path: operand.to_owned(), when: None },
        }
    }
}

/// Finds out what is meant by the operands of a command that takes moments before the volume, and paths
/// after it. `usage` is how the command is called, but for its operands.
///
/// # Errors
/// As [`Located::find`]; a moment is the name of a file; there is no volume. A word before it that may have
/// been meant as one is named first.
pub fn locate_after(
    moments: &[&When],
    (place, paths): (&Path, &[OsString]),
    usage: &str,
) -> anyhow::Result<Located> {
    let names = || moments.iter().filter_map(|when| when.name());
    names().try_for_each(|name| refuse_file_as_moment(name, place, usage))?;
    let found = Located::find(place, paths).and_then(|located| match located.mounted {
        Some(_) => Ok(located),
        None => Target::find(place).map(|_| located),
    });
    found.map_err(|error| match names().next() {
        Some(name) if status_of(&error) == Status::CannotOpen => error.context(format!(
            "there is no file {name}, and no volume that could have such a snapshot"
        )),
        _ => error,
    })
}

/// Fails if a moment is the name of a file, and of no snapshot of the volume that `place` means: the moment
/// comes before the volume.
fn refuse_file_as_moment(name: &SnapshotName, place: &Path, usage: &str) -> anyhow::Result<()> {
    let is_snapshot =
        || Located::find(place, &[]).is_ok_and(|located| has_snapshot(&located.device, name));
    if std::fs::symlink_metadata(Path::new(&name.to_string())).is_err() || is_snapshot() {
        return Ok(());
    }
    let message = format!(
        "{name} is a file here, and no moment, which comes first; try {usage} WHEN {name}, where WHEN is \
         such as yesterday, '10 minutes ago', or the number of a checkpoint"
    );
    Err(Failure::new(Status::Usage, message).into())
}

/// Whether a snapshot of the volume on a device has this name, as far as that can be told.
pub fn has_snapshot(device: &Path, name: &SnapshotName) -> bool {
    let notes = Checkpoints::of(device).ok().and_then(|checkpoints| checkpoints.notes().ok());
    notes.is_some_and(|notes| notes.iter().any(|note| note.name.as_ref() == Some(name)))
}

/// The files of a volume at several moments.
struct Moments<'a> {
    located: &'a Located,
    opened: Vec<(Option<Cno>, Arc<dyn Files>)>,
}

impl Moments<'_> {
    /// The files at a moment; `None`: as the volume shows them now.
    fn files(&mut self, when: Option<&When>) -> anyhow::Result<Arc<dyn Files>> {
        let device = &self.located.device;
        let at = match when {
            Some(when) => Some(self.located.checkpoints()?.find(when)?.cno),
            None => self.located.shown()?,
        };
        if let Some((_, files)) = self.opened.iter().find(|(cno, _)| *cno == at) {
            return Ok(Arc::clone(files));
        }
        let files = open_files(device, at)?;
        self.opened.push((at, Arc::clone(&files)));
        Ok(files)
    }
}

/// A volume, and files on it, as they were named on a command line.
pub struct Located {
    /// The device or image.
    pub device: PathBuf,
    /// The paths within the volume.
    pub paths: Vec<OsString>,
    /// The mount, if the volume was named by a file or directory on it.
    mounted: Option<Mounted>,
}

impl Located {
    /// Finds out what is meant by a device, an image, or a place on a mount, and by the paths that were
    /// named after it.
    ///
    /// # Errors
    /// What the mount calls its source cannot be believed; a path is not on the volume.
    pub fn find(place: &Path, paths: &[OsString]) -> anyhow::Result<Self> {
        Ok(match volume_on_mount(place)? {
            None => Self { device: place.to_owned(), paths: paths.to_vec(), mounted: None },
            Some(place) => Self {
                device: source_of(&place.mounted)?.to_owned(),
                paths: on_mount(&place, paths)?,
                mounted: Some(place.mounted),
            },
        })
    }

    /// The checkpoints of the volume.
    ///
    /// # Errors
    /// As [`Checkpoints::of`].
    pub fn checkpoints(&self) -> anyhow::Result<Checkpoints> {
        match &self.mounted {
            // The mount that can be written is the one that is to be asked, and need not be found again.
            Some(mounted) if !mounted.is_read_only() => {
                Checkpoints::on(Some(mounted), &self.device)
            }
            _ => Checkpoints::of(&self.device),
        }
    }

    /// The place of a file of the volume on the mount by which the volume was named; `typed` is how the
    /// user has called it. `None` if the volume was not named by a mount.
    ///
    /// # Errors
    /// As [`Destination::on_mount`].
    pub fn place_of(&self, path: &OsStr, typed: &Path) -> anyhow::Result<Option<Destination>> {
        let on = |mounted| Destination::on_mount(mounted, Path::new(path), typed);
        self.mounted.as_ref().map(on).transpose()
    }

    /// The checkpoint that the mount shows by which the volume was named; `None` if that is the newest,
    /// which then has what was written through it until now.
    ///
    /// # Errors
    /// The process that serves the mount does not answer.
    pub fn shown(&self) -> anyhow::Result<Option<Cno>> {
        self.mounted.as_ref().map_or(Ok(None), shown_on)
    }
}

/// The files of a volume at a checkpoint; `None`: as they are now.
pub fn open_files(device: &Path, at: Option<Cno>) -> anyhow::Result<Arc<dyn Files>> {
    if let Some(door) = Door::of(device, at)? {
        return Ok(Arc::new(door));
    }
    let volume = open_volume(device)?;
    let tree = match at {
        Some(cno) => volume.tree(Some(cno)),
        None => volume.recovered_tree(),
    };
    Ok(Arc::new(tree.on_volume(device)?))
}

/// The place on one of our mounts that a path means, unless it means a device, or an image, which
/// may lie on such a mount itself.
///
/// # Errors
/// It means neither: it is a directory elsewhere, for example.
fn volume_on_mount(path: &Path) -> anyhow::Result<Option<Place>> {
    let metadata = std::fs::metadata(path);
    let Some(place) = Place::find(path)? else {
        let is_fit = |it: &Metadata| it.is_file() || it.file_type().is_block_device();
        return match metadata.as_ref().ok().filter(|it| !is_fit(it)) {
            Some(unfit) => Err(not_a_volume(path, unfit).into()),
            None => Ok(None),
        };
    };
    let kind = metadata.map(|metadata| metadata.file_type());
    let is_volume = match kind {
        Ok(kind) if kind.is_file() => open_volume(path).is_ok(),
        Ok(kind) => kind.is_block_device(),
        Err(_) => false,
    };
    Ok((!is_volume).then_some(place))
}

/// The device or image that a path means: itself, or that of the mount on which it is.
pub fn device_of(path: &Path) -> anyhow::Result<PathBuf> {
    match volume_on_mount(path)? {
        Some(place) => Ok(source_of(&place.mounted)?.to_owned()),
        None => Ok(path.to_owned()),
    }
}

/// The paths within the volume, of a place on a mount and what was named after it.
fn on_mount(place: &Place, paths: &[OsString]) -> anyhow::Result<Vec<OsString>> {
    if place.is_top() && !paths.is_empty() {
        let within = |path: &OsString| {
            let path = Path::new(path);
            place.path.join(path.strip_prefix("/").unwrap_or(path)).into()
        };
        return Ok(paths.iter().map(within).collect());
    }
    let mut within = vec![place.path.clone().into()];
    for path in paths {
        let found = Place::find(Path::new(path))?;
        let found = found.filter(|found| found.mounted.device == place.mounted.device);
        within.push(found.map(|found| found.path.into()).with_context(|| {
            let (path, dir) = (Path::new(path).display(), place.mounted.dir.display());
            format!("{path} is not on the volume that is mounted on {dir}")
        })?);
    }
    Ok(within)
}

/// The checkpoint that a mount shows; `None` if that is the newest, which then has what was written
/// through it until now.
fn shown_on(mounted: &Mounted) -> anyhow::Result<Option<Cno>> {
    if mounted.is_read_only() {
        return Ok(Some(Client::new(&mounted.dir).status()?.cno));
    }
    // If this fails, the volume is as it was a moment ago.
    let _ = Client::new(&mounted.dir).checkpoint(false);
    Ok(None)
}

/// Fails if a path that is on no mount leads to another file system, for a command that takes no images: it
/// is called what it is. Any other file that is no volume may be one that the user thought to be on a mount.
///
/// # Errors
/// That is so.
pub fn refuse_other_volume(path: &Path) -> anyhow::Result<()> {
    if signature::foreign(path).is_empty() {
        return Ok(());
    }
    match open_volume(path) {
        Err(error) if status_of(&error) == Status::NotAVolume => Err(error),
        _ => Ok(()),
    }
}

/// Opens a volume without its files. Nothing is written.
pub fn open_volume(path: &Path) -> anyhow::Result<Volume> {
    let device = FileDevice::open(path, Access::Inspect)?;
    Volume::open(Arc::new(device)).on_volume(path)
}

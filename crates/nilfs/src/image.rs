//! Opening a volume to look inside.
//!
//! Of a volume that is mounted, files are read through the process that serves it, by the door to
//! its past, so that its cleaner works on; the device is opened only where that cannot be.

mod checkpoints;
mod door;
mod walk;

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use nilfs_device::{Access, FileDevice};
use nilfs_engine::{Files, Volume};
use nilfs_fuse::{Mounted, When};
use nilfs_ondisk::Cno;

pub use self::checkpoints::Checkpoints;
pub use self::door::Door;
pub use self::walk::{Entry, LastLink, Walk, WalkEntry, find};

use crate::administration::{Administration, Place, source_of};
use crate::control::Client;
use crate::exit::{Failure, Status};

/// Where to look and at which checkpoint; part of the arguments of several subcommands.
#[derive(Debug, clap::Args)]
pub struct ImageArgs {
    /// Look at the newest checkpoint that is not later than this: a checkpoint number, a date or time
    /// such as 2026-11-20 or "yesterday 17:00", monday, "10 minutes ago"
    #[arg(long, value_name = "WHEN")]
    at: Option<When>,
    /// The device or image, or the directory of a mount; what follows are paths on the volume. Or a
    /// file or directory on a mount, by its ordinary path, and so are those that follow
    #[arg(value_name = "DEVICE|PATH")]
    place: PathBuf,
}

impl ImageArgs {
    /// Opens the files of the checkpoint, and returns the paths of those that are asked for.
    /// Nothing is written.
    pub fn open(&self, paths: &[OsString]) -> anyhow::Result<(Arc<dyn Files>, Vec<OsString>)> {
        let located = Located::find(&self.place, paths)?;
        let at = match &self.at {
            Some(when) => Some(Checkpoints::of(&located.device)?.find(when)?.cno),
            None => located.shown()?,
        };
        Ok((open_files(&located.device, at)?, located.paths))
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
    Ok(Arc::new(tree.with_context(|| device.display().to_string())?))
}

/// The place on one of our mounts that a path means, unless it means a device, or an image, which
/// may lie on such a mount itself.
fn volume_on_mount(path: &Path) -> anyhow::Result<Option<Place>> {
    let Some(place) = Place::find(path)? else { return Ok(None) };
    let kind = std::fs::metadata(path).map(|metadata| metadata.file_type());
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
    let _ = File::open(&mounted.dir).and_then(|directory| directory.sync_all());
    Ok(None)
}

/// Opens a volume without its files. Nothing is written.
pub fn open_volume(path: &Path) -> anyhow::Result<Volume> {
    let device = FileDevice::open(path, Access::Inspect)?;
    Volume::open(Arc::new(device)).with_context(|| path.display().to_string())
}

/// Fails if no file is named, only the volume.
pub fn require_paths(paths: &[OsString], command: &str) -> Result<(), Failure> {
    match paths {
        [] => {
            let message =
                format!("the path of a file on the volume is missing; see nilfs {command} --help");
            Err(Failure::new(Status::Usage, message))
        }
        _ => Ok(()),
    }
}

//! From the path that a user names to the volume that is meant.
//!
//! A directory means the mount that it lies in. A device or image means the mount that serves it,
//! or, if there is none, the volume on it. Any other file means the mount that it lies in.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use nilfs_device::OpenError;
use nilfs_fuse::{Mounted, says_nobody_serves};
use rustix::io::Errno;

use super::Administration;
use super::offline::Offline;
use crate::control::Client;
use crate::exit::{self, Failure, Status};
use crate::interrupt;

/// What is to be done with a volume that is not mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Inspect it, without a lock and without writing.
    Inspect,
    /// Change it.
    Change,
}

/// Whom a path means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A volume that a process of ours serves.
    Mounted {
        /// What the process is asked through: a file or directory on the mount.
        node: PathBuf,
        /// The device or image.
        source: PathBuf,
    },
    /// A device or image that we do not serve.
    Unmounted(PathBuf),
}

impl Target {
    /// Finds out whom `path` means.
    ///
    /// # Errors
    /// It cannot be looked at, or it is neither a device, an image, nor on one of our mounts.
    pub fn find(path: &Path) -> anyhow::Result<Self> {
        let metadata = look_at(path)?;
        let mounts = Mounted::all();
        let volume = Source::new(path, &metadata);
        let served = |mounted: &&Mounted| mounted.is_nilfs() && volume.is_of(mounted);
        if let Some(mounted) = foremost(mounts.iter().filter(served)) {
            let node = mounted.dir.clone();
            return Ok(Self::Mounted { node, source: mounted.source.clone() });
        }
        if let Some(mounted) = around(mounts, &metadata)
            && !is_volume(path, &metadata)
        {
            return Ok(Self::Mounted { node: path.to_owned(), source: mounted.source });
        }
        if metadata.is_file() || metadata.file_type().is_block_device() {
            return Ok(Self::Unmounted(path.to_owned()));
        }
        Err(not_a_volume(path, &metadata).into())
    }

    /// The device or image.
    pub fn device(&self) -> &Path {
        match self {
            Self::Mounted { source, .. } => source,
            Self::Unmounted(device) => device,
        }
    }

    /// Somebody to ask about a volume that is mounted.
    ///
    /// # Errors
    /// It is not mounted, or is no volume that could be.
    pub fn client(&self) -> anyhow::Result<Client> {
        match self {
            Self::Mounted { node, .. } => Ok(Client::new(node)),
            Self::Unmounted(device) => {
                if let Err(error) = crate::image::open_volume(device)
                    && exit::status_of(&error) == Status::NotAVolume
                {
                    return Err(error);
                }
                let device = device.display();
                let message =
                    format!("{device} is not mounted by nilfs; nilfs mount {device} DIR mounts it");
                Err(Failure::new(Status::Failed, message).into())
            }
        }
    }
}

/// Error for a path that means no volume at all.
pub fn not_a_volume(path: &Path, metadata: &Metadata) -> Failure {
    let message = if path == Path::new(".") {
        "the current directory is not on a volume mounted by nilfs; name a device, an image, or a path on \
         a mount"
            .to_owned()
    } else {
        let kind = if metadata.is_dir() { "a directory" } else { "a special file" };
        format!(
            "{} is {kind}, not a block device, an image file, or on a volume mounted by nilfs; nilfs list \
             shows what is mounted",
            path.display()
        )
    };
    Failure::new(Status::CannotOpen, message)
}

/// Lets `work` administer the volume that `path` means. A volume that is not mounted is used in
/// this process, and let go of at the end.
///
/// # Errors
/// Those of `work`; and the volume cannot be found, opened, or closed again.
pub fn on<T>(
    path: &Path,
    purpose: Purpose,
    work: impl FnOnce(&dyn Administration) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let target = Target::find(path)?;
    if purpose == Purpose::Change {
        let (path, is_mounted) = (path.to_owned(), matches!(target, Target::Mounted { .. }));
        interrupt::explain(move || if_interrupted(&path, is_mounted));
    }
    let result = match &target {
        Target::Mounted { node, .. } => work(&Client::new(node)),
        Target::Unmounted(device) => {
            let offline = Offline::open(device, purpose)?;
            let done = work(offline.volume());
            let closed = offline.close();
            done.and_then(|value| closed.map(|()| value))
        }
    };
    result.with_context(|| path.display().to_string())
}

/// Message about what has become of a change that is interrupted, unless the command can tell more.
fn if_interrupted(path: &Path, is_mounted: bool) -> String {
    let path = path.display();
    match is_mounted {
        true => format!(
            "{path}: interrupted; the process that serves the volume does what it has been asked already"
        ),
        false => format!(
            "{path}: interrupted; what was not done can be done by the same command again, and the next \
             mount recovers the volume as after a crash"
        ),
    }
}

/// Where a device or image is mounted, by any user: of several mounts, the one that can be written.
///
/// # Errors
/// It cannot be looked at.
pub fn mount_of(path: &Path) -> anyhow::Result<Option<Mounted>> {
    Ok(foremost(mounts_of(path)?.iter()).cloned())
}

/// All mounts of a device or image.
///
/// # Errors
/// It cannot be looked at.
pub fn mounts_of(path: &Path) -> anyhow::Result<Vec<Mounted>> {
    let metadata = look_at(path)?;
    let volume = Source::new(path, &metadata);
    let mounts = Mounted::all().into_iter();
    Ok(mounts.filter(|mounted| volume.is_of(mounted)).collect())
}

/// The path that leads to the volume that is meant where none is named: the one that the current
/// directory is on, or else the only one that is mounted.
///
/// # Errors
/// None is mounted, or several are.
pub fn unnamed() -> anyhow::Result<PathBuf> {
    let here = PathBuf::from(".");
    if std::fs::metadata(&here).is_ok_and(|metadata| mount_around(&metadata).is_some()) {
        return Ok(here);
    }
    let mut mounts: Vec<_> = Mounted::all().into_iter().filter(Mounted::is_nilfs).collect();
    mounts.sort_by(|one, other| one.source.cmp(&other.source));
    mounts.dedup_by(|one, other| one.source == other.source);
    match &mounts[..] {
        [] => Err(io::Error::from_raw_os_error(Errno::NOENT.raw_os_error()).into()),
        [mounted] => Ok(mounted.dir.clone()),
        _ => Err(anyhow!("{} volumes are mounted; name one of them", mounts.len())),
    }
}

/// A file or directory on one of our mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The mount.
    pub mounted: Mounted,
    /// The path within the volume; the file may be of the past and not be there any more.
    pub path: PathBuf,
}

impl Place {
    /// Where a path leads, unless that is not on one of our mounts. A symbolic link at its end is
    /// not followed, if it is on the mount itself.
    ///
    /// # Errors
    /// Nobody can find the current directory.
    pub fn find(path: &Path) -> anyhow::Result<Option<Self>> {
        let absolute = std::path::absolute(path).context("cannot find the current directory")?;
        let mounts = Mounted::all();
        for existing in absolute.ancestors() {
            let Ok(metadata) = std::fs::symlink_metadata(existing) else { continue };
            let rest = absolute.strip_prefix(existing).unwrap_or(Path::new(""));
            let kept = match (existing.parent(), existing.file_name()) {
                (Some(parent), Some(name)) => std::fs::canonicalize(parent).map(|it| it.join(name)),
                _ => std::fs::canonicalize(existing),
            };
            if let Some(place) = Self::on(&mounts, kept.ok(), &metadata, rest) {
                return Ok(Some(place));
            }
            let followed = std::fs::canonicalize(existing).ok();
            let metadata = std::fs::metadata(existing).unwrap_or(metadata);
            return Ok(Self::on(&mounts, followed, &metadata, rest));
        }
        Ok(None)
    }

    /// Whether it is the directory of the mount itself.
    pub fn is_top(&self) -> bool {
        self.path == self.mounted.root
    }

    fn on(
        mounts: &[Mounted],
        existing: Option<PathBuf>,
        metadata: &Metadata,
        rest: &Path,
    ) -> Option<Self> {
        let (existing, device) = (existing?, device_number(metadata.dev()));
        let ours = mounts.iter().filter(|it| it.device == device && it.is_nilfs());
        // The same file system may be seen at several places.
        let around = ours.filter(|it| existing.starts_with(&it.dir));
        let mounted = around.max_by_key(|it| it.dir.as_os_str().len())?;
        let within = existing.strip_prefix(&mounted.dir).ok()?;
        let mut path = mounted.root.clone();
        // Joining nothing would leave a slash at the end.
        for part in [within, rest] {
            if part != Path::new("") {
                path.push(part);
            }
        }
        Some(Self { mounted: mounted.clone(), path })
    }
}

/// Whether what a mount calls its source can be believed: it was mounted by the superuser, by the
/// user who asks, or by the owner of the source. Others might name what they like.
pub fn is_believable(mounted: &Mounted) -> bool {
    let Some(owner) = mounted.owner() else { return true };
    owner == 0
        || owner == rustix::process::geteuid().as_raw()
        || std::fs::metadata(&mounted.source).is_ok_and(|source| source.uid() == owner)
}

/// The device or image of a mount.
///
/// # Errors
/// What the mount calls its source cannot be believed.
pub fn source_of(mounted: &Mounted) -> anyhow::Result<&Path> {
    if is_believable(mounted) {
        return Ok(&mounted.source);
    }
    let message = format!(
        "{} is a mount of user {}, and may lie on anything; name the device or image",
        mounted.dir.display(),
        mounted.owner().unwrap_or_default()
    );
    Err(Failure::new(Status::Failed, message).into())
}

/// The mount that can be written, or the first: mounts of the past come after it.
fn foremost<'a>(mounts: impl Iterator<Item = &'a Mounted>) -> Option<&'a Mounted> {
    mounts.min_by_key(|mounted| mounted.is_read_only())
}

/// The mount of ours that a file or directory lies in, if there is one.
pub fn mount_around(metadata: &Metadata) -> Option<Mounted> {
    around(Mounted::all(), metadata)
}

fn around(mounts: Vec<Mounted>, metadata: &Metadata) -> Option<Mounted> {
    let device = device_number(metadata.dev());
    mounts.into_iter().find(|mounted| mounted.device == device).filter(Mounted::is_nilfs)
}

fn look_at(path: &Path) -> anyhow::Result<Metadata> {
    match std::fs::metadata(path) {
        Err(error) if says_nobody_serves(&error) => {
            let path = path.display();
            let message = format!("the process that served {path} is gone; unmount it");
            Err(Failure::new(Status::Failed, message).into())
        }
        result => Ok(result.map_err(|source| OpenError::Open { path: path.to_owned(), source })?),
    }
}

/// A device or image, which mounts may serve.
struct Source<'a> {
    metadata: &'a Metadata,
    /// Its absolute path without symbolic links.
    canonical: Option<PathBuf>,
}

impl<'a> Source<'a> {
    fn new(path: &Path, metadata: &'a Metadata) -> Self {
        Self { metadata, canonical: std::fs::canonicalize(path).ok() }
    }

    /// Whether a mount serves it.
    fn is_of(&self, mounted: &Mounted) -> bool {
        let kind = self.metadata.file_type();
        // File systems that lie on nothing have a word there, which a file may be called, too.
        let has_source = mounted.source.is_absolute();
        if !has_source || !(kind.is_file() || kind.is_block_device()) || !is_believable(mounted) {
            return false;
        }
        if [&mounted.source, &mounted.shown].map(Some).contains(&self.canonical.as_ref()) {
            return true;
        }
        let Ok(source) = std::fs::metadata(&mounted.source) else { return false };
        match kind.is_block_device() {
            true => source.file_type().is_block_device() && source.rdev() == self.metadata.rdev(),
            false => (source.dev(), source.ino()) == (self.metadata.dev(), self.metadata.ino()),
        }
    }
}

/// Whether a file is an image of a volume, which may well lie on another volume.
fn is_volume(path: &Path, metadata: &Metadata) -> bool {
    metadata.is_file() && crate::image::open_volume(path).is_ok()
}

/// A device number as the table of mounts writes it.
fn device_number(device: u64) -> String {
    format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device))
}

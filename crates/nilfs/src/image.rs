//! Opening a volume to look inside, and finding files in it by path.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use nilfs_device::{Access, FileDevice};
use nilfs_engine::{Entry, Filesystem, InodeRef, MountOptions, Volume};
use nilfs_fuse::Mounted;
use nilfs_ondisk::inode::FileType;
use nilfs_ondisk::{Cno, Ino};

use crate::administration::{Administration, Place, source_of};
use crate::control::Client;
use crate::exit::{Failure, Status};
use crate::output::printable;

/// Symbolic links that a path may lead through, as in Linux.
const MAX_SYMLINKS: usize = 40;

/// Where to look and at which checkpoint; part of the arguments of several subcommands.
#[derive(Debug, clap::Args)]
pub struct ImageArgs {
    /// Look at this checkpoint instead of the newest one
    #[arg(long, value_name = "CNO", value_parser = clap::value_parser!(u64).range(1..))]
    at: Option<u64>,
    /// The device or image, or the directory of a mount; what follows are paths on the volume. Or a
    /// file or directory on a mount, by its ordinary path, and so are those that follow
    #[arg(value_name = "DEVICE|PATH")]
    place: PathBuf,
}

impl ImageArgs {
    /// Opens the files of the checkpoint, and returns the paths of those that are asked for. Nothing
    /// is written.
    pub fn open(&self, paths: &[OsString]) -> anyhow::Result<(Arc<Filesystem>, Vec<OsString>)> {
        let (device, checkpoint, paths) = match volume_on_mount(&self.place)? {
            None => (self.place.clone(), None, paths.to_vec()),
            Some(place) => {
                let device = source_of(&place.mounted)?.to_owned();
                let checkpoint = match self.at {
                    Some(_) => None,
                    None => shown_on(&place.mounted)?,
                };
                (device, checkpoint, on_mount(&place, paths)?)
            }
        };
        let opened = FileDevice::open(&device, Access::Inspect)?;
        let options = MountOptions {
            read_only: true,
            checkpoint: self.at.map(Cno).or(checkpoint),
            ..MountOptions::default()
        };
        let files = Filesystem::mount(Arc::new(opened), options)
            .with_context(|| device.display().to_string())?;
        Ok((files, paths))
    }
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

/// What to do with a symbolic link at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastLink {
    /// Take what it names.
    Follow,
    /// Take the link itself.
    Keep,
}

/// Finds a file by its path, which starts at the root of the volume with or without a slash.
pub fn find(files: &Filesystem, path: &[u8], last: LastLink) -> anyhow::Result<Entry> {
    walk(files, path, last).with_context(|| printable(path))
}

fn walk(files: &Filesystem, path: &[u8], last: LastLink) -> anyhow::Result<Entry> {
    let root = files.root()?;
    let mut here = files.inode(root.inode.ino())?;
    // The components still to go, in reverse order.
    let mut names = components(path);
    let mut links = 0;
    while let Some(name) = names.pop() {
        let next = files.lookup(&here.inode, &name)?;
        let follow = last == LastLink::Follow || !names.is_empty();
        if next.attr.file_type != FileType::Symlink || !follow {
            here = next;
            continue;
        }
        links += 1;
        if links > MAX_SYMLINKS {
            bail!("too many symbolic links");
        }
        let target = files.read_link(&next.inode)?;
        if target.first() == Some(&b'/') {
            here = files.root()?;
        }
        names.extend(components(&target));
    }
    Ok(here)
}

fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    names.rev().map(<[u8]>::to_vec).collect()
}

/// A file below a directory, with its path from there.
pub struct Found {
    /// Names with slashes between them; empty for the directory itself.
    pub path: Vec<u8>,
    /// The file, or why it or what is in it cannot be read.
    pub entry: anyhow::Result<Entry>,
}

/// Goes through a directory, name by name in order, and through those below if asked to: each
/// directory comes before what is in it. Ends on any volume, however damaged.
pub struct Walk<'a> {
    files: &'a Filesystem,
    recursive: bool,
    /// The directory to be entered next.
    next: Option<(Vec<u8>, InodeRef)>,
    levels: Vec<Level>,
    /// Directories entered so far: none can have two names, unless the volume is damaged.
    seen: HashSet<Ino>,
}

/// A directory being gone through.
struct Level {
    path: Vec<u8>,
    directory: InodeRef,
    names: std::vec::IntoIter<Vec<u8>>,
}

impl<'a> Walk<'a> {
    /// Starts at a directory.
    pub fn new(files: &'a Filesystem, directory: InodeRef, recursive: bool) -> Self {
        Self {
            files,
            recursive,
            next: Some((Vec::new(), directory)),
            levels: Vec::new(),
            seen: HashSet::new(),
        }
    }

    /// Does not enter the directory that came last.
    pub fn pass_by(&mut self) {
        self.next = None;
    }

    fn enter(&mut self, path: Vec<u8>, directory: InodeRef) -> anyhow::Result<()> {
        if !self.seen.insert(directory.ino()) {
            bail!("directory {} has two names: the volume is damaged", directory.ino());
        }
        let names = names_in(self.files, &directory)?.into_iter();
        self.levels.push(Level { path, directory, names });
        Ok(())
    }
}

impl Iterator for Walk<'_> {
    type Item = Found;

    fn next(&mut self) -> Option<Found> {
        if let Some((path, directory)) = self.next.take()
            && let Err(error) = self.enter(path.clone(), directory)
        {
            let entry = Err(error);
            return Some(Found { path, entry });
        }
        let (level, name) = loop {
            let level = self.levels.last_mut()?;
            match level.names.next() {
                Some(name) => break (level, name),
                None => self.levels.pop(),
            };
        };
        let mut path = level.path.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend(&name);
        let entry = self.files.lookup(&level.directory, &name);
        if let Ok(entry) = &entry
            && self.recursive
            && entry.attr.file_type == FileType::Directory
        {
            self.next = Some((path.clone(), Arc::clone(&entry.inode)));
        }
        let entry = entry.map_err(anyhow::Error::from);
        Some(Found { path, entry })
    }
}

/// The names in a directory but "." and "..", sorted.
fn names_in(files: &Filesystem, directory: &InodeRef) -> anyhow::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    files.read_dir(directory, 0, &mut |entry| {
        if !matches!(entry.name, b"." | b"..") {
            names.push(entry.name.to_vec());
        }
        true
    })?;
    names.sort_unstable();
    Ok(names)
}

//! `nilfs cp`: files out of a volume, mounted or not.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use nilfs_engine::{Attr, Files, Seek};
use nilfs_ondisk::Ino;
use nilfs_ondisk::inode::FileType;
use rustix::fs::{AtFlags, CWD, Mode, Timespec, Timestamps};

use crate::exit::{Failure, Status, sentence};
use crate::image::{Asked, Entry, WalkEntry, ImageArgs, LastLink, Walk, find};
use crate::interrupt::Interrupt;
use crate::output::{counted, printable};
use crate::progress::Progress;

/// Bytes copied at a time.
const COPY_BYTES: usize = 1 << 20;

/// Copy files out of a volume
///
/// Holes stay holes. A file that cannot be copied is named, and the others are copied all the same.
/// A copy gets its name when it is complete, and replaces the file that had it before: an
/// interrupted copy leaves no part of a file.
#[derive(Debug, clap::Args)]
#[command(override_usage = "nilfs cp [OPTIONS] <DEVICE> <PATH>... <DESTINATION>\n       \
                      nilfs cp [OPTIONS] <PATH>... <DESTINATION>")]
#[command(after_help = "\
Examples:
  nilfs cp disk.img photos/1.jpg .
  nilfs cp -rp --at 17 disk.img / old    all files as they were at checkpoint 17
  nilfs cp /mnt/list.txt@yesterday .")]
pub struct Args {
    /// Copy directories with everything below them
    #[arg(short, long)]
    recursive: bool,
    /// Keep owner, permissions and times
    #[arg(short, long)]
    preserve: bool,
    #[command(flatten)]
    image: ImageArgs,
    /// The files to copy, and last the destination: a new name or a directory
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,
}

/// Copies them.
pub fn run(args: Args) -> anyhow::Result<()> {
    let Some((destination, sources)) = args.paths.split_last() else {
        unreachable!("clap wants a path");
    };
    let sources = args.image.open(sources, "cp")?;
    let destination = Path::new(destination);
    if sources.len() > 1 && !destination.is_dir() {
        bail!("{} is not a directory", destination.display());
    }
    let mut copier = Copier {
        preserve: args.preserve,
        links: HashMap::new(),
        links_of: None,
        directories: Vec::new(),
        failed: 0,
        progress: Progress::bytes("copying"),
        interrupt: Interrupt::listen()?,
        buffer: vec![0; COPY_BYTES],
    };
    for Asked { files, path: source } in &sources {
        let found = find(files, source.as_bytes(), LastLink::Keep)?;
        if found.attr.file_type == FileType::Directory && !args.recursive {
            bail!("{} is a directory; use -r to copy it", printable(source.as_bytes()));
        }
        let to = match Path::new(source).file_name() {
            Some(name) if destination.is_dir() => destination.join(name),
            _ => destination.to_owned(),
        };
        copier.begin(files);
        copier.copy_tree(found, &to);
    }
    copier.finish()
}

/// Copies files one by one and counts what did not work.
struct Copier {
    preserve: bool,
    /// Where the first name of a file with several names was copied to.
    links: HashMap<Ino, PathBuf>,
    /// The files among which these are.
    links_of: Option<Arc<dyn Files>>,
    /// Directories whose times are to be set when everything is in them.
    directories: Vec<(PathBuf, Attr)>,
    failed: u64,
    progress: Progress,
    interrupt: Interrupt,
    buffer: Vec<u8>,
}

impl Copier {
    /// Gets ready for files of a checkpoint, in which a number may be another file than in the one
    /// before.
    fn begin(&mut self, files: &Arc<dyn Files>) {
        if !self.links_of.as_ref().is_some_and(|known| Arc::ptr_eq(known, files)) {
            self.links.clear();
            self.links_of = Some(Arc::clone(files));
        }
    }

    fn copy_tree(&mut self, top: Entry, to: &Path) {
        let is_directory = top.attr.file_type == FileType::Directory;
        let top = Rc::new(top);
        if !self.try_copy(Ok(Rc::clone(&top)), to) || !is_directory {
            return;
        }
        let mut walk = Walk::new(top, true);
        while let Some(WalkEntry { path, entry }) = walk.next() {
            if !self.try_copy(entry, &to.join(OsStr::from_bytes(&path))) {
                walk.pass_by();
            }
        }
    }

    fn try_copy(&mut self, entry: anyhow::Result<Rc<Entry>>, to: &Path) -> bool {
        if self.interrupt.came() {
            return false;
        }
        let copied = entry.and_then(|entry| self.copy(&entry, to));
        let Err(error) = copied.with_context(|| printable(to.as_os_str().as_bytes())) else {
            return true;
        };
        if self.interrupt.came() {
            return false;
        }
        self.failed += 1;
        self.progress.warn(&format!("nilfs: {}", sentence(&error)));
        false
    }

    /// Copies one file, or makes one directory. No symbolic link at the destination is followed:
    /// the volume might have put it there.
    fn copy(&mut self, entry: &Entry, to: &Path) -> anyhow::Result<()> {
        let attr = entry.attr;
        if attr.file_type == FileType::Directory {
            return self.make_directory(attr, to);
        }
        if attr.nlink > 1 {
            if let Some(first) = self.links.get(&attr.ino) {
                return Ok(fs::hard_link(first, to)?);
            }
            self.links.insert(attr.ino, to.to_owned());
        }
        match attr.file_type {
            FileType::Regular => return self.copy_file(entry, to),
            FileType::Symlink => {
                let target = entry.read_link()?;
                std::os::unix::fs::symlink(OsStr::from_bytes(&target), to)?;
            }
            _ => make_node(&attr, to)?,
        }
        if self.preserve { preserve(&attr, to) } else { Ok(()) }
    }

    fn make_directory(&mut self, attr: Attr, to: &Path) -> anyhow::Result<()> {
        // We must be able to fill it, whatever its own permissions are.
        let mode = u32::from(attr.mode & 0o777) | 0o700;
        match DirBuilder::new().mode(mode).create(to) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if !fs::symlink_metadata(to)?.is_dir() {
                    bail!("exists already and is not a directory");
                }
            }
            made => made?,
        }
        self.directories.push((to.to_owned(), attr));
        Ok(())
    }

    /// Copies a regular file under a name of its own, which goes away if that fails.
    fn copy_file(&mut self, entry: &Entry, to: &Path) -> anyhow::Result<()> {
        match fs::symlink_metadata(to) {
            Ok(existing) if existing.is_file() => {}
            Ok(_) => bail!("exists already and is not a regular file"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        let directory = match to.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let mode = u32::from(entry.attr.mode & 0o777);
        let create =
            |path: &Path| File::options().write(true).create_new(true).mode(mode).open(path);
        // Unlike `tempfile_in`, this leaves the name out of errors, since it means nothing to the
        // user.
        let copy = tempfile::Builder::new().prefix(".nilfs-cp-").make_in(directory, create)?;
        self.copy_content(entry, copy.as_file())?;
        if self.preserve {
            preserve(&entry.attr, copy.path())?;
        }
        copy.persist(to).map_err(|error| error.error)?;
        Ok(())
    }

    fn copy_content(&mut self, entry: &Entry, copy: &File) -> anyhow::Result<()> {
        let mut offset = 0;
        while let Some((start, end)) = data_from(entry, offset)? {
            self.copy_range(entry, copy, start, end)?;
            offset = end;
        }
        Ok(copy.set_len(entry.attr.size)?)
    }

    fn copy_range(
        &mut self,
        entry: &Entry,
        copy: &File,
        start: u64,
        end: u64,
    ) -> anyhow::Result<()> {
        let mut offset = start;
        while offset < end {
            if self.interrupt.came() {
                bail!("interrupted");
            }
            let wanted = (end - offset).min(COPY_BYTES as u64) as usize;
            let count = entry.read(offset, &mut self.buffer[..wanted])?;
            if count == 0 {
                break;
            }
            copy.write_all_at(&self.buffer[..count], offset)?;
            offset += count as u64;
            self.progress.add(count as u64);
        }
        Ok(())
    }

    fn finish(mut self) -> anyhow::Result<()> {
        if self.preserve {
            // Innermost first: setting a directory's attributes changes nothing above it.
            for (path, attr) in std::mem::take(&mut self.directories).iter().rev() {
                if let Err(error) = preserve(attr, path) {
                    self.failed += 1;
                    let path = printable(path.as_os_str().as_bytes());
                    self.progress.warn(&format!("nilfs: {path}: {}", sentence(&error)));
                }
            }
        }
        match self.failed {
            _ if self.interrupt.came() => {
                let message = "interrupted; every file that was copied is complete";
                Err(Failure::new(Status::Failed, message).into())
            }
            0 => Ok(()),
            count => {
                let message = format!("{} could not be copied", counted(count, "file"));
                Err(Failure::new(Status::Failed, message).into())
            }
        }
    }
}

/// The next run of data at or after `offset`.
fn data_from(entry: &Entry, offset: u64) -> anyhow::Result<Option<(u64, u64)>> {
    let start = match entry.seek(offset, Seek::Data) {
        Err(nilfs_engine::Error::NoData) => return Ok(None),
        start => start?,
    };
    let end = entry.seek(start, Seek::Hole)?;
    Ok((end > start).then_some((start, end)))
}

/// Makes a device node, a FIFO or a socket.
fn make_node(attr: &Attr, to: &Path) -> anyhow::Result<()> {
    let file_type = rustix::fs::FileType::from_raw_mode(attr.file_type.mode_bits().into());
    let mode = Mode::from_raw_mode(u32::from(attr.mode & 0o777));
    let device = rustix::fs::makedev(attr.rdev.major, attr.rdev.minor);
    Ok(rustix::fs::mknodat(CWD, to, file_type, mode, device)?)
}

/// Gives a copy the owner, permissions and times of the original.
fn preserve(attr: &Attr, to: &Path) -> anyhow::Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        std::os::unix::fs::lchown(to, Some(attr.uid), Some(attr.gid))?;
    }
    if attr.file_type != FileType::Symlink {
        // Set-id bits only with the owner that they were meant for.
        let kept = if is_root { 0o7777 } else { 0o777 };
        let mode = Mode::from_raw_mode(u32::from(attr.mode & kept));
        rustix::fs::chmodat(CWD, to, mode, AtFlags::empty())?;
    }
    let nanoseconds = attr.mtime.nanoseconds.into();
    let time = Timespec { tv_sec: attr.mtime.seconds, tv_nsec: nanoseconds };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, to, &times, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|error| anyhow!("its time cannot be set: {error}"))
}

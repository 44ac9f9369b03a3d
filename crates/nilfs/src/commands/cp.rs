//! `nilfs cp`: files out of a volume, mounted or not.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use nilfs_engine::tree::Extent;
use nilfs_engine::{Attr, Files, Seek};
use nilfs_ondisk::Ino;
use nilfs_ondisk::inode::FileType;
use rustix::fs::{AtFlags, CWD, IFlags, Mode, OFlags, Timespec, Timestamps};

use crate::exit::{Failure, Status, sentence};
use crate::image::{Asked, Entry, ImageArgs, LastLink, Walk, WalkEntry, find};
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
    let mut copier = Copier::new("copying", args.preserve, Existing::InTheWay)?;
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

/// What becomes of something that has the name of a copy. A regular file is replaced by another one,
/// and directories are shared, in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// It stays, and there is no copy.
    InTheWay,
    /// It is replaced, unless it is a directory, or is already what the copy would be.
    Replace,
}

/// Copies files one by one and counts what did not work.
pub struct Copier {
    preserve: bool,
    existing: Existing,
    /// The files of checkpoints: a number may be another file in another one.
    sources: Vec<Arc<dyn Files>>,
    /// Which of them is being copied from.
    source: usize,
    /// Where the first name of a file with several names was copied to.
    links: HashMap<(usize, Ino), PathBuf>,
    /// Directories whose times are to be set when everything is in them.
    directories: Vec<(PathBuf, Attr)>,
    /// Files whose flags are to be set at the very end: they may forbid changes.
    flagged: Vec<(PathBuf, u32)>,
    failed: u64,
    progress: Progress,
    interrupt: Interrupt,
    buffer: Vec<u8>,
}

impl Copier {
    /// What is done is called `what` while it takes long. To `preserve` is to keep owner, permissions
    /// and times.
    pub fn new(what: &'static str, preserve: bool, existing: Existing) -> anyhow::Result<Self> {
        Ok(Self {
            preserve,
            existing,
            sources: Vec::new(),
            source: 0,
            links: HashMap::new(),
            directories: Vec::new(),
            flagged: Vec::new(),
            failed: 0,
            progress: Progress::bytes(what),
            interrupt: Interrupt::listen()?,
            buffer: vec![0; COPY_BYTES],
        })
    }

    /// Gets ready for files of a checkpoint.
    pub fn begin(&mut self, files: &Arc<dyn Files>) {
        let known = self.sources.iter().position(|known| Arc::ptr_eq(known, files));
        self.source = known.unwrap_or_else(|| {
            self.sources.push(Arc::clone(files));
            self.sources.len() - 1
        });
    }

    /// Whether somebody has asked to end.
    pub fn is_interrupted(&self) -> bool {
        self.interrupt.came()
    }

    /// Says that something could not be copied, and counts it.
    pub fn fail(&mut self, path: &Path, error: &anyhow::Error) {
        self.failed += 1;
        let path = printable(path.as_os_str().as_bytes());
        self.progress.warn(&format!("nilfs: {path}: {}", sentence(error)));
    }

    /// Copies a file, or a directory with everything in it.
    pub fn copy_tree(&mut self, top: Entry, to: &Path) {
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
    pub fn copy(&mut self, entry: &Entry, to: &Path) -> anyhow::Result<()> {
        let attr = entry.attr;
        if attr.file_type == FileType::Directory {
            return self.make_directory(attr, to);
        }
        if attr.nlink > 1 {
            let file = (self.source, attr.ino);
            if let Some(first) = self.links.get(&file) {
                // Renaming a name of a file to another name of it would do nothing.
                return match is_one_file(first, to) {
                    true => Ok(()),
                    false => self.place(to, |to| fs::hard_link(first, to)),
                };
            }
            self.links.insert(file, to.to_owned());
        }
        if self.existing == Existing::Replace {
            if fs::symlink_metadata(to).is_ok_and(|now| is_as(&attr, &now)) {
                return Ok(());
            }
            if attr.flags != 0 {
                self.flagged.push((to.to_owned(), attr.flags));
            }
        }
        match attr.file_type {
            FileType::Regular => {
                return self.copy_file(entry, to, |copier, copy| copier.copy_content(entry, copy));
            }
            FileType::Symlink => {
                let target = entry.read_link()?;
                let target = OsStr::from_bytes(&target);
                self.place(to, |to| std::os::unix::fs::symlink(target, to))?;
            }
            _ => self.place(to, |to| make_node(&attr, to))?,
        }
        if self.preserve { preserve(&attr, to) } else { Ok(()) }
    }

    /// Makes something under a name that may be in use.
    fn place(&self, to: &Path, make: impl Fn(&Path) -> io::Result<()>) -> anyhow::Result<()> {
        if self.existing == Existing::InTheWay {
            return Ok(make(to)?);
        }
        let made = tempfile::Builder::new().prefix(PREFIX).make_in(directory_of(to), make)?;
        made.into_temp_path().persist(to).map_err(|error| error.error)?;
        Ok(())
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

    /// Copies what can be read of a regular file, of which `data` are the parts that are no holes.
    /// Returns the parts that cannot be read; they are holes in the copy.
    pub fn copy_readable(
        &mut self,
        entry: &Entry,
        to: &Path,
        data: &[Extent],
        block_bytes: u64,
    ) -> anyhow::Result<Vec<Extent>> {
        let mut missing = Vec::new();
        self.copy_file(entry, to, |copier, copy| {
            for extent in data {
                copier.copy_readable_range(entry, copy, extent, block_bytes, &mut missing)?;
            }
            Ok(copy.set_len(entry.attr.size)?)
        })?;
        if entry.attr.nlink > 1 {
            self.links.insert((self.source, entry.attr.ino), to.to_owned());
        }
        Ok(missing)
    }

    /// Copies a regular file under a name of its own, which goes away if `content` fails.
    fn copy_file(
        &mut self,
        entry: &Entry,
        to: &Path,
        content: impl FnOnce(&mut Self, &File) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        match fs::symlink_metadata(to) {
            Ok(existing) if existing.is_file() => {}
            Ok(existing) if self.existing == Existing::Replace && !existing.is_dir() => {}
            Ok(_) => bail!("exists already and is not a regular file"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        let mode = u32::from(entry.attr.mode & 0o777);
        let create =
            |path: &Path| File::options().write(true).create_new(true).mode(mode).open(path);
        // Unlike `tempfile_in`, this leaves the name out of errors, since it means nothing to the user.
        let copy = tempfile::Builder::new().prefix(PREFIX).make_in(directory_of(to), create)?;
        content(self, copy.as_file())?;
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

    /// Copies a range as far as it can be read: all at once, or block by block.
    fn copy_readable_range(
        &mut self,
        entry: &Entry,
        copy: &File,
        range: &Extent,
        block_bytes: u64,
        missing: &mut Vec<Extent>,
    ) -> anyhow::Result<()> {
        let mut offset = range.offset;
        while offset < range.end() {
            let end = range.end().min(offset.saturating_add(COPY_BYTES as u64));
            if let Err(error) = self.copy_range(entry, copy, offset, end) {
                let length = end - offset;
                match is_damage(&error) {
                    false => return Err(error),
                    true if length > block_bytes => {
                        let mut at = offset;
                        while at < end {
                            let next = (at + block_bytes).min(end);
                            let block = Extent { offset: at, length: next - at };
                            self.copy_readable_range(entry, copy, &block, block_bytes, missing)?;
                            at = next;
                        }
                    }
                    true => match missing.last_mut() {
                        Some(last) if last.end() == offset => last.length += length,
                        _ => missing.push(Extent { offset, length }),
                    },
                }
            }
            offset = end;
        }
        Ok(())
    }

    /// Completes directories. Fails if something could not be copied, or somebody has interrupted it.
    pub fn finish(mut self) -> anyhow::Result<()> {
        if self.preserve {
            // Innermost first: setting a directory's attributes changes nothing above it.
            for (path, attr) in std::mem::take(&mut self.directories).iter().rev() {
                if let Err(error) = preserve(attr, path) {
                    self.fail(path, &error);
                }
            }
        }
        for (path, flags) in std::mem::take(&mut self.flagged) {
            if let Err(error) = set_flags(&path, flags) {
                self.failed += 1;
                let path = printable(path.as_os_str().as_bytes());
                self.progress.warn(&format!("nilfs: {path}: its flags cannot be set: {error}"));
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

/// Whether something could not be copied because the volume is damaged, or its device.
pub fn is_damage(error: &anyhow::Error) -> bool {
    let of_volume = |cause: &nilfs_engine::Error| {
        cause.is_fault() || matches!(cause, nilfs_engine::Error::Stale)
    };
    error.chain().any(|cause| cause.downcast_ref().is_some_and(of_volume))
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

/// What the names of files begin with that are not complete.
const PREFIX: &str = ".nilfs-cp-";

/// The directory in which a path ends.
fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// Whether two names lead to one file.
fn is_one_file(one: &Path, other: &Path) -> bool {
    let file = |path| fs::symlink_metadata(path).map(|found| (found.dev(), found.ino())).ok();
    file(one).is_some_and(|found| file(other) == Some(found))
}

/// Whether a file is as it was, as far as can be told without reading it.
pub fn is_as(attr: &Attr, now: &fs::Metadata) -> bool {
    let mode = u32::from(attr.file_type.mode_bits() | attr.mode);
    let time = (attr.mtime.seconds, i64::from(attr.mtime.nanoseconds));
    (mode, attr.uid, attr.gid, attr.size) == (now.mode(), now.uid(), now.gid(), now.size())
        && time == (now.mtime(), now.mtime_nsec())
}

/// Sets the flags of chattr(1).
fn set_flags(path: &Path, flags: u32) -> io::Result<()> {
    let flags = IFlags::from_bits_retain(flags);
    let file = rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    Ok(rustix::fs::ioctl_setflags(file, flags)?)
}

/// Makes a device node, a FIFO or a socket.
fn make_node(attr: &Attr, to: &Path) -> io::Result<()> {
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

//! `nilfs cp`: files out of a volume, mounted or not.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use nilfs_engine::tree::Extent;
use nilfs_engine::{Attr, Files, Seek};
use nilfs_ondisk::Ino;
use nilfs_ondisk::inode::FileType;
use rustix::fs::{Stat, Timespec};

use crate::beneath::{self, Destination, Draft, Handle, Identity};
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
    let _kept_past = args.image.kept_past();
    let sources = args.image.open(sources, "cp")?;
    let must_be_there =
        sources.len() > 1 || destination.as_bytes().ends_with(b"/") && !args.recursive;
    let destination = Destination::typed(Path::new(destination))?;
    if must_be_there && !destination.is_top() {
        bail!("{} is not a directory", destination.shown().display());
    }
    let mut copier = Copier::new(Wording::COPY, args.preserve, Existing::ReplaceFiles);
    for Asked { files, path: source } in &sources {
        let found = match find_to_copy(files, source, args.recursive) {
            Err(error) if sources.len() > 1 => {
                copier.fail(Path::new(source), &error);
                continue;
            }
            found => found?,
        };
        let to = match Path::new(source).file_name() {
            Some(name) if destination.is_top() => destination.join(name),
            _ => destination.clone(),
        };
        copier.begin(files);
        copier.copy_tree(found, &to);
    }
    copier.finish().map(drop)
}

/// Finds what is to be copied, as far as it can be.
fn find_to_copy(files: &Arc<dyn Files>, source: &OsStr, recursive: bool) -> anyhow::Result<Entry> {
    let found = find(files, source.as_bytes(), LastLink::Keep)?;
    if found.attr.file_type == FileType::Directory && !recursive {
        bail!("{} is a directory; use -r to copy it", printable(source.as_bytes()));
    }
    Ok(found)
}

/// Fate of something that has the name of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// It stays, and there is no copy.
    Keep,
    /// A regular file is replaced by another one, and directories are shared. Anything else stays, and
    /// there is no copy.
    ReplaceFiles,
    /// It is replaced, unless it is already what the copy would be. Directories are shared; one that is
    /// in the way of a file stays, and so does a file that is in the way of a directory.
    Replace,
}

/// The purpose of copies, in words.
#[derive(Debug, Clone, Copy)]
pub struct Wording {
    /// Words for what is being done to files.
    doing: &'static str,
    /// Words for what has been done to files.
    done: &'static str,
    /// How to go on after an interruption.
    again: &'static str,
}

impl Wording {
    /// Copies out of a volume.
    const COPY: Self =
        Self { doing: "copying", done: "copied", again: "the same command again copies all of it" };
    /// Brings files back.
    pub const RESTORE: Self = Self {
        doing: "restoring",
        done: "restored",
        again: "the same command again brings back the rest",
    };
    /// Copies out of a broken volume.
    pub const SALVAGE: Self = Self {
        doing: "salvaging",
        done: "salvaged",
        again: "name another directory to salvage all of it",
    };
}

/// Number of files and directories.
#[derive(Debug, Clone, Copy, Default)]
pub struct Count {
    files: u64,
    directories: u64,
}

impl Count {
    /// Counts one more.
    pub fn add(&mut self, file_type: FileType) {
        match file_type {
            FileType::Directory => self.directories += 1,
            _ => self.files += 1,
        }
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let directories = match self.directories {
            1 => "1 directory".to_owned(),
            count => format!("{count} directories"),
        };
        match (self.files, self.directories) {
            (0, 1..) => f.write_str(&directories),
            (files, 0) => f.write_str(&counted(files, "file")),
            (files, _) => write!(f, "{} and {directories}", counted(files, "file")),
        }
    }
}

/// Copies files one by one and counts what did not work.
pub struct Copier {
    wording: Wording,
    preserve: bool,
    existing: Existing,
    /// The files of checkpoints: a number may be another file in another one.
    sources: Vec<Arc<dyn Files>>,
    /// Which of them is being copied from.
    source: usize,
    /// Where the first name of a file with several names was copied to, and the copy.
    links: HashMap<(usize, Ino), (Destination, Identity)>,
    /// Directories whose attributes are to be set when everything is in them.
    directories: Vec<(Destination, Identity, Attr)>,
    /// Files whose flags are to be set at the very end: they may forbid changes.
    flagged: Vec<(Destination, Identity, u32)>,
    copied: Count,
    failed: u64,
    progress: Progress,
    interrupt: Interrupt,
    buffer: Vec<u8>,
}

impl Copier {
    /// To `preserve` is to keep owner, permissions and times.
    pub fn new(wording: Wording, preserve: bool, existing: Existing) -> Self {
        Self {
            wording,
            preserve,
            existing,
            sources: Vec::new(),
            source: 0,
            links: HashMap::new(),
            directories: Vec::new(),
            flagged: Vec::new(),
            copied: Count::default(),
            failed: 0,
            progress: Progress::bytes(wording.doing),
            interrupt: Interrupt::listen(),
            buffer: vec![0; COPY_BYTES],
        }
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
    pub fn copy_tree(&mut self, top: Entry, to: &Destination) {
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

    fn try_copy(&mut self, entry: anyhow::Result<Rc<Entry>>, to: &Destination) -> bool {
        if self.interrupt.came() {
            return false;
        }
        let copied = entry.and_then(|entry| {
            self.copy(&entry, to)?;
            self.copied.add(entry.attr.file_type);
            Ok(())
        });
        let Err(error) = copied else { return true };
        if !self.interrupt.came() {
            self.fail(&to.shown(), &error);
        }
        false
    }

    /// Copies one file, or makes one directory.
    ///
    /// # Errors
    /// It cannot be read or written, or something is in the way.
    pub fn copy(&mut self, entry: &Entry, to: &Destination) -> anyhow::Result<()> {
        let attr = entry.attr;
        if attr.file_type == FileType::Directory {
            return self.make_directory(attr, to);
        }
        let now = to.look()?;
        if let Some((first, copy)) = self.links.get(&(self.source, attr.ino)) {
            // Renaming a name of a file to another name of it would do nothing.
            if now.is_some_and(|now| Identity::of(&now) == *copy) {
                return Ok(());
            }
            let replace = self.may_replace(&attr, now.as_ref())?;
            return Ok(to.link(first, *copy)?.take_name(replace)?);
        }
        if self.existing == Existing::Replace
            && let Some(now) = now.filter(|now| is_as(&attr, now))
        {
            self.note(&attr, to, Identity::of(&now));
            return Ok(());
        }
        let replace = self.may_replace(&attr, now.as_ref())?;
        let draft = match attr.file_type {
            FileType::Regular => {
                let content = |copier: &mut Self, copy: &File| copier.copy_content(entry, copy);
                self.draft_file(entry, to, content)?
            }
            FileType::Symlink => to.symlink(&entry.read_link()?)?,
            other => {
                let device = rustix::fs::makedev(attr.rdev.major, attr.rdev.minor);
                let file_type = rustix::fs::FileType::from_raw_mode(other.mode_bits().into());
                to.node(file_type, self.mode_until_complete(&attr), device)?
            }
        };
        self.complete(&attr, to, draft, replace)
    }

    /// Whether what has the name of a copy may be replaced; not if there is nothing.
    fn may_replace(&self, attr: &Attr, now: Option<&Stat>) -> anyhow::Result<bool> {
        let Some(now) = now else { return Ok(false) };
        let now_is = beneath::file_type(now);
        let may = match self.existing {
            Existing::Keep => false,
            Existing::ReplaceFiles => now_is.is_file() && attr.file_type == FileType::Regular,
            Existing::Replace => !now_is.is_dir(),
        };
        if may { Ok(true) } else { Err(beneath::in_the_way(now)) }
    }

    /// The permissions of a copy that is not complete. No other user is to open the copy before it has
    /// its owner.
    fn mode_until_complete(&self, attr: &Attr) -> u32 {
        if self.preserve { 0o600 } else { u32::from(attr.mode & 0o777) }
    }

    /// Completes a copy with its attributes and its name.
    fn complete(
        &mut self,
        attr: &Attr,
        to: &Destination,
        draft: Draft,
        replace: bool,
    ) -> anyhow::Result<()> {
        if self.preserve {
            preserve(attr, draft.handle())?;
        }
        let copy = Identity::of(&draft.handle().stat()?);
        draft.take_name(replace)?;
        self.note(attr, to, copy);
        if self.existing == Existing::Replace && attr.flags != 0 {
            self.flagged.push((to.clone(), copy, attr.flags));
        }
        Ok(())
    }

    /// Remembers where a file is that may have other names.
    fn note(&mut self, attr: &Attr, to: &Destination, copy: Identity) {
        if attr.nlink > 1 {
            self.links.insert((self.source, attr.ino), (to.clone(), copy));
        }
    }

    fn make_directory(&mut self, attr: Attr, to: &Destination) -> anyhow::Result<()> {
        // We must be able to fill the directory, regardless of its own permissions.
        let mode = if self.preserve { 0o700 } else { u32::from(attr.mode & 0o777) | 0o700 };
        let made = to.make_directory(mode, self.existing != Existing::Keep)?;
        self.directories.push((to.clone(), made, attr));
        Ok(())
    }

    /// Copies what can be read of a regular file, of which `data` are the parts that are no holes.
    /// Returns the parts that cannot be read; they are holes in the copy.
    ///
    /// # Errors
    /// The copy cannot be written, or something is in the way.
    pub fn copy_readable(
        &mut self,
        entry: &Entry,
        to: &Destination,
        data: &[Extent],
        block_bytes: u64,
    ) -> anyhow::Result<Vec<Extent>> {
        let replace = self.may_replace(&entry.attr, to.look()?.as_ref())?;
        let mut missing = Vec::new();
        let draft = self.draft_file(entry, to, |copier, copy| {
            for extent in data {
                copier.copy_readable_range(entry, copy, extent, block_bytes, &mut missing)?;
            }
            Ok(copy.set_len(entry.attr.size)?)
        })?;
        self.complete(&entry.attr, to, draft, replace)?;
        Ok(missing)
    }

    /// Makes a regular file without its name, which goes away if `content` fails.
    fn draft_file(
        &mut self,
        entry: &Entry,
        to: &Destination,
        content: impl FnOnce(&mut Self, &File) -> anyhow::Result<()>,
    ) -> anyhow::Result<Draft> {
        let draft = to.file(self.mode_until_complete(&entry.attr))?;
        content(self, draft.handle().file())?;
        Ok(draft)
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

    /// Completes directories, and returns what was copied. Fails if something could not be copied, or
    /// the copying was interrupted.
    pub fn finish(mut self) -> anyhow::Result<Count> {
        if self.preserve {
            // Innermost first: setting a directory's attributes changes nothing above it.
            for (to, made, attr) in std::mem::take(&mut self.directories).iter().rev() {
                let held = to.hold(*made);
                if let Err(error) = held.and_then(|directory| preserve(attr, &directory)) {
                    self.fail(&to.shown(), &error);
                }
            }
        }
        for (to, copy, flags) in std::mem::take(&mut self.flagged) {
            let set = to.hold(copy).and_then(|file| Ok(file.set_flags(flags)?));
            if let Err(error) = set.context("its flags cannot be set") {
                self.fail(&to.shown(), &error);
            }
        }
        match self.failed {
            _ if self.interrupt.came() => {
                let Wording { done, again, .. } = self.wording;
                let message =
                    format!("interrupted; {} {done}, each file complete; {again}", self.copied);
                Err(Failure::new(Status::Interrupted, message).into())
            }
            0 => Ok(self.copied),
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

/// Whether a file is as it was, as far as can be told without reading it.
pub fn is_as(attr: &Attr, now: &Stat) -> bool {
    let mode = u32::from(attr.file_type.mode_bits() | attr.mode);
    let time = (attr.mtime.seconds, u64::from(attr.mtime.nanoseconds));
    (mode, attr.uid, attr.gid, attr.size)
        == (now.st_mode, now.st_uid, now.st_gid, now.st_size as u64)
        && time == (now.st_mtime, now.st_mtime_nsec)
}

/// Gives a copy the owner, permissions and times of the original.
fn preserve(attr: &Attr, copy: &Handle) -> anyhow::Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        copy.set_owner(attr.uid, attr.gid)?;
    }
    if attr.file_type != FileType::Symlink {
        // Set-id bits only with the owner that they were meant for.
        let kept = if is_root { 0o7777 } else { 0o777 };
        copy.set_mode(u32::from(attr.mode & kept))?;
    }
    let nanoseconds = attr.mtime.nanoseconds.into();
    copy.set_time(Timespec { tv_sec: attr.mtime.seconds, tv_nsec: nanoseconds })
        .map_err(|error| anyhow!("its time cannot be set: {error}"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use nilfs_device::{Device, MemoryDevice};
    use nilfs_engine::mkfs::{Parameters, format};
    use nilfs_engine::{DeviceCode, Filesystem, MountOptions, NewInode, Volume};
    use nilfs_ondisk::inode::{S_IFDIR, S_IFREG};

    use super::*;

    /// The copy of a file that only its owner could read was there for all to read until it was complete,
    /// and what was set-id already had the owner of the process.
    #[test]
    fn a_copy_belongs_to_us_alone_until_it_is_complete() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(32 << 20));
        let mut parameters = Parameters::new([7; 16], 1, 1_700_000_000);
        parameters.blocks_per_segment = 256;
        format(&*device, &parameters).unwrap();
        let fs = Filesystem::mount(Arc::clone(&device), MountOptions::default()).unwrap();
        let new = |mode| NewInode { mode, uid: 1234, gid: 1234, rdev: DeviceCode::default() };
        let root = fs.root().unwrap().inode;
        let directory = fs.create(&root, b"directory", &new(S_IFDIR | 0o2777)).unwrap().inode;
        fs.create(&directory, b"file", &new(S_IFREG | 0o6777)).unwrap();
        drop((root, directory));
        fs.unmount().unwrap();
        let files: Arc<dyn Files> = Arc::new(Volume::open(device).unwrap().tree(None).unwrap());
        let found = |path: &str| find(&files, path.as_bytes(), LastLink::Keep).unwrap();

        let scene = tempfile::tempdir().unwrap();
        let mode = |name: &str| fs::metadata(scene.path().join(name)).unwrap().mode() & 0o7777;
        let top = Destination::typed(scene.path()).unwrap();
        let mut copier = Copier::new(Wording::COPY, true, Existing::ReplaceFiles);
        copier.begin(&files);
        copier.copy(&found("directory"), &top.join("directory")).unwrap();
        assert_eq!(mode("directory"), 0o700);
        let (file, to) = (found("directory/file"), top.join("directory/file"));
        let draft = copier.draft_file(&file, &to, |_, copy| {
            let copy = copy.metadata()?;
            assert_eq!(
                (copy.mode() & 0o7777, copy.uid()),
                (0o600, rustix::process::geteuid().as_raw())
            );
            Ok(())
        });
        copier.complete(&file.attr, &to, draft.unwrap(), false).unwrap();
        copier.finish().unwrap();
        let kept = if rustix::process::geteuid().is_root() { 0o7777 } else { 0o777 };
        assert_eq!(mode("directory"), 0o2777 & kept);
        assert_eq!(mode("directory/file"), 0o6777 & kept);
    }
}

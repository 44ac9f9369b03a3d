//! The operations of a simulated world, done by a program on a mounted volume: through the kernel, as
//! far as it lets programs do them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::PathBuf;

use nilfs_engine::{RenameMode, SetAttr};
use nilfs_ondisk::inode::FileType;
use nilfs_sim::model::Model;
use nilfs_sim::name::Path;
use nilfs_sim::op::{Handle, Op, Target, link_text, pattern};
use rustix::fs::{CWD, Mode, RenameFlags, mknodat, renameat_with, syncfs};

/// Permission bits that each kind of file can be made with.
const PERMISSIONS: u16 = 0o777;

/// A program, the files that it holds open, and what it takes for the root.
pub struct Program {
    root: PathBuf,
    open: BTreeMap<Handle, File>,
}

/// What of an operation a program can do on the files of `model`, if that is something.
pub fn as_programs_do(op: Op, model: &Model) -> Option<Op> {
    let can_be_opened = |target: &Target| {
        // A device or a pipe would be somebody else's.
        let node = model.find(target).ok().and_then(|id| model.node(id));
        node.is_none_or(|node| matches!(node.kind, FileType::Regular | FileType::Directory))
    };
    let possible = match &op {
        Op::Write { target, .. }
        | Op::Fsync(target)
        | Op::Fdatasync(target)
        | Op::SetAttr { target, .. } => can_be_opened(target),
        Op::Open { path, .. } => can_be_opened(&Target::Path(path.clone())),
        // The root belongs to the mount.
        Op::Rename { from, to, .. } => [from, to].iter().all(|path| path.split().is_some()),
        // Once it has lost its names, a file gets none any more.
        Op::Link { target: Target::Path(_), .. }
        | Op::Create { .. }
        | Op::Symlink { .. }
        | Op::Unlink(_)
        | Op::RemoveDirectory(_)
        | Op::Close(_)
        | Op::Sync => true,
        _ => false,
    };
    possible.then_some(match op {
        Op::Create { path, kind, mode, rdev } => {
            Op::Create { path, kind, mode: mode & PERMISSIONS, rdev }
        }
        Op::SetAttr { target, changes } => Op::SetAttr { target, changes: one_of(changes)? },
        op => op,
    })
}

/// A program changes one thing at a time.
fn one_of(SetAttr { mode, size, .. }: SetAttr) -> Option<SetAttr> {
    let size = size.map(|size| SetAttr { size: Some(size), ..SetAttr::default() });
    size.or_else(|| Some(SetAttr { mode: Some(mode?), ..SetAttr::default() }))
}

impl Program {
    /// A program that has nothing open yet. From now on, this process makes files with all the
    /// permissions that it asks for.
    pub fn new(root: &std::path::Path) -> Self {
        rustix::process::umask(Mode::empty());
        Self { root: root.to_owned(), open: BTreeMap::new() }
    }

    /// Does what [`as_programs_do`] has returned.
    pub fn apply(&mut self, op: &Op) -> io::Result<()> {
        match op {
            Op::Create { path, kind: FileType::Regular, mode, .. } => {
                let mut options = File::options();
                let options = options.write(true).create_new(true).mode((*mode).into());
                options.open(self.path(path)).map(drop)
            }
            Op::Create { path, kind, mode, rdev } => self.make(path, *kind, *mode, rdev.encode()),
            Op::Symlink { path, length } => {
                symlink(OsStr::from_bytes(&link_text(*length)), self.path(path))
            }
            Op::Link { target: Target::Path(from), to } => {
                fs::hard_link(self.path(from), self.path(to))
            }
            Op::Unlink(path) => fs::remove_file(self.path(path)),
            Op::RemoveDirectory(path) => fs::remove_dir(self.path(path)),
            Op::Rename { from, to, mode } => {
                let flags = match mode {
                    RenameMode::Replace => RenameFlags::empty(),
                    RenameMode::NoReplace => RenameFlags::NOREPLACE,
                    RenameMode::Exchange => RenameFlags::EXCHANGE,
                };
                Ok(renameat_with(CWD, self.path(from), CWD, self.path(to), flags)?)
            }
            Op::Write { target, offset, length, fill } => {
                self.file(target, true)?.write_all_at(&pattern(*fill, *offset, *length), *offset)
            }
            Op::SetAttr { target, changes: SetAttr { size: Some(size), .. } } => {
                self.file(target, true)?.set_len(*size)
            }
            Op::SetAttr { target, changes: SetAttr { mode: Some(mode), .. } } => self
                .file(target, false)?
                .set_permissions(fs::Permissions::from_mode((*mode).into())),
            Op::Open { path, handle } => {
                let file = self.file(&Target::Path(path.clone()), true);
                let file = file.or_else(|_| self.file(&Target::Path(path.clone()), false))?;
                self.open.insert(*handle, file);
                Ok(())
            }
            Op::Close(handle) => {
                self.open.remove(handle);
                Ok(())
            }
            Op::Fsync(target) => self.file(target, false)?.sync_all(),
            Op::Fdatasync(target) => self.file(target, false)?.sync_data(),
            Op::Sync => Ok(syncfs(File::open(&self.root)?)?),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn make(&self, path: &Path, kind: FileType, mode: u16, rdev: u64) -> io::Result<()> {
        let path = self.path(path);
        let bits = Mode::from_raw_mode(mode.into());
        match kind {
            FileType::Directory => Ok(rustix::fs::mkdir(path, bits)?),
            kind => {
                let kind = rustix::fs::FileType::from_raw_mode(kind.mode_bits().into());
                Ok(mknodat(CWD, path, kind, bits, rdev)?)
            }
        }
    }

    fn path(&self, path: &Path) -> PathBuf {
        self.root.join(OsStr::from_bytes(&path.bytes()))
    }

    fn file(&self, target: &Target, to_write: bool) -> io::Result<File> {
        match target {
            Target::Path(path) => {
                File::options().read(!to_write).write(to_write).open(self.path(path))
            }
            Target::Handle(handle) => {
                self.open.get(handle).ok_or(io::ErrorKind::NotFound)?.try_clone()
            }
        }
    }
}

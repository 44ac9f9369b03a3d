//! Getting hold of the device of a volume that is to be mounted.

use std::path::Path;
use std::sync::Arc;

use nilfs_device::{Access, Device, FileDevice};
use nilfs_fuse::Mounted;

use super::options::Options;
use crate::administration::mount_of;
use crate::device;
use crate::exit::{Status, status_of};
use crate::output::say;
use crate::signature;

/// Opens the device of a volume that is to be mounted on `dir`. A checkpoint that is named can be read
/// while one of our processes writes.
pub fn open(path: &Path, dir: &Path, options: &Options) -> anyhow::Result<Arc<FileDevice>> {
    let access = if options.kernel.read_only { Access::ReadOnly } else { Access::ReadWrite };
    let advice = |mounted: &Mounted| second_directory(mounted, dir, options);
    let opened = match device::open_or_advise(path, access, advice) {
        Err(error) if options.checkpoint.is_some() && status_of(&error) == Status::Busy => {
            match mount_of(path)?.as_ref().is_some_and(is_writer) {
                true => FileDevice::open(path, Access::Inspect)?,
                false => return Err(error),
            }
        }
        opened => opened?,
    };
    // Else the system goes on from what is read now, also after it has been told not to.
    opened.without_read_ahead();
    match signature::refuse_displaced(path, &opened) {
        Err(displaced) if options.kernel.read_only => say!("nilfs: {displaced}"),
        refused => refused?,
    }
    Ok(Arc::new(opened))
}

/// Returns what to type so that a volume that is mounted can be reached by `dir` as well; `None` if
/// that would not be what was asked for, or the mount cannot be entered.
fn second_directory(mounted: &Mounted, dir: &Path, options: &Options) -> Option<String> {
    let dir = std::fs::canonicalize(dir).ok()?;
    if options.rescue || !mounted.is_nilfs() || std::fs::metadata(&mounted.dir).is_err() {
        return None;
    }
    let (first, dir) = (mounted.dir.display(), dir.display());
    Some(match (rustix::process::geteuid().is_root(), options.kernel.read_only) {
        (true, false) => format!("to have it on {dir} as well, type: mount --bind {first} {dir}"),
        (true, true) => {
            format!("to have it on {dir} as well, type: mount -o bind,ro {first} {dir}")
        }
        (false, _) => {
            format!("to find it by {dir} as well, type: rmdir {dir} && ln -s {first} {dir}")
        }
    })
}

/// Whether a mount is one of ours that writes.
fn is_writer(mounted: &Mounted) -> bool {
    mounted.is_nilfs() && !mounted.is_read_only()
}

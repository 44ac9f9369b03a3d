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

/// Opens the device. A checkpoint that is named can be read while one of our processes writes.
pub fn open(path: &Path, options: &Options) -> anyhow::Result<Arc<FileDevice>> {
    let access = if options.kernel.read_only { Access::ReadOnly } else { Access::ReadWrite };
    let opened = match device::open(path, access) {
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

/// Whether a mount is one of ours that writes.
fn is_writer(mounted: &Mounted) -> bool {
    mounted.is_nilfs() && !mounted.is_read_only()
}

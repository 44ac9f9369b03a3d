//! A volume that nobody has mounted, administered by the engine in this process.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use nilfs_device::{Access, FileDevice, Holder, OpenError};
use nilfs_engine::{Background, CleanerOptions, Filesystem, MountOptions};

use super::{Administration, Purpose, mount_of};
use crate::config;
use crate::output::say;

/// The volume, for as long as it is needed.
pub(super) struct Offline {
    fs: Arc<Filesystem>,
    background: Background,
}

impl Offline {
    /// Mounts the volume without showing it to anybody. Its cleaner does only what it is told to.
    pub fn open(device: &Path, purpose: Purpose) -> anyhow::Result<Self> {
        let loaded = config::load(None)?;
        loaded.warnings.iter().for_each(|warning| say!("nilfs: {warning}"));
        let opened = match purpose {
            Purpose::Look => FileDevice::open(device, Access::Inspect)?,
            Purpose::Change => open_for_change(device)?,
        };
        let options = MountOptions {
            read_only: purpose == Purpose::Look,
            cleaner: CleanerOptions { enabled: false, ..loaded.options() },
            ..MountOptions::default()
        };
        let fs = Filesystem::mount(Arc::new(opened), options)
            .with_context(|| device.display().to_string())?;
        let background = fs.start_background().context("cannot start the cleaner")?;
        Ok(Self { fs, background })
    }

    /// Whom to ask.
    pub fn volume(&self) -> &dyn Administration {
        &*self.fs
    }

    /// Makes everything durable and marks the volume clean.
    pub fn close(self) -> anyhow::Result<()> {
        drop(self.background);
        self.fs.unmount().context("cannot close the volume")
    }
}

/// Opens the device of a volume that is to be written, which nobody may be reading: what has been
/// cleaned may still be needed by a reader of whom a new writer does not know.
///
/// # Errors
/// See [`OpenError`].
pub fn open_for_change(device: &Path) -> Result<FileDevice, OpenError> {
    let opened = FileDevice::open(device, Access::ReadWrite)?;
    if !nilfs_engine::is_being_read(&opened) {
        return Ok(opened);
    }
    let mounted = mount_of(device).ok().flatten();
    let holder = mounted.map_or(Holder::Unknown, |it| Holder::Mount(it.dir.display().to_string()));
    Err(OpenError::Busy { path: device.to_owned(), holder })
}

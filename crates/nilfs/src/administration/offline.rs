//! A volume that nobody has mounted, administered by the engine in this process.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use nilfs_device::Access;
use nilfs_engine::{Background, CleanerOptions, Filesystem, MountOptions};

use super::{Administration, Purpose};
use crate::output::say;
use crate::{config, device};

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
        let access = match purpose {
            Purpose::Look => Access::Inspect,
            Purpose::Change => Access::ReadWrite,
        };
        let opened = device::open(device, access)?;
        let options = MountOptions {
            read_only: purpose == Purpose::Look,
            cleaner: CleanerOptions { enabled: false, ..loaded.cleaner },
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

//! A volume that nobody has mounted, administered by the engine in this process.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use nilfs_device::Access;
use nilfs_engine::{
    Background, CleanerOptions, Filesystem, MountOptions, ReadOnlyOptions, ReadOnlyVolume,
};

use super::{Administration, Purpose};
use crate::output::say;
use crate::signature::{OnVolume, refuse_displaced};
use crate::{config, device};

/// The volume, for as long as it is needed.
pub(super) enum Offline {
    /// To look at.
    ReadOnly(Box<ReadOnlyVolume>),
    /// To change.
    Writable { fs: Arc<Filesystem>, background: Background },
}

impl Offline {
    /// Mounts the volume without showing it to anybody. Its cleaner does only what it is told to.
    pub fn open(device: &Path, purpose: Purpose) -> anyhow::Result<Self> {
        let loaded = config::load(None)?;
        loaded.warnings.iter().for_each(|warning| say!("nilfs: {warning}"));
        let cleaner = CleanerOptions { enabled: false, ..loaded.cleaner };
        match purpose {
            Purpose::Inspect => {
                let opened = Arc::new(device::open(device, Access::Inspect)?);
                let options = ReadOnlyOptions { cleaner, ..ReadOnlyOptions::default() };
                let volume = ReadOnlyVolume::mount(opened, options).on_volume(device)?;
                Ok(Self::ReadOnly(Box::new(volume)))
            }
            Purpose::Change => {
                let opened = Arc::new(device::open(device, Access::ReadWrite)?);
                refuse_displaced(device, &*opened)?;
                let options = MountOptions { cleaner, ..MountOptions::default() };
                let fs = Filesystem::mount(opened, options).on_volume(device)?;
                let background = fs.start_background().context("cannot start the cleaner")?;
                Ok(Self::Writable { fs, background })
            }
        }
    }

    /// Whom to ask.
    pub fn volume(&self) -> &dyn Administration {
        match self {
            Self::ReadOnly(volume) => &**volume,
            Self::Writable { fs, .. } => &**fs,
        }
    }

    /// Makes everything durable and marks the volume clean.
    pub fn close(self) -> anyhow::Result<()> {
        match self {
            Self::ReadOnly(_) => Ok(()),
            Self::Writable { fs, background } => {
                drop(background);
                fs.unmount().context("cannot close the volume")
            }
        }
    }
}

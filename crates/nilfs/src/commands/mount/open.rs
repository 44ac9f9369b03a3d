//! Getting hold of the device of a volume that is to be mounted.

use std::fs::File;
use std::io;
use std::path::Path;
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::Context;
use nilfs_device::{Access, Claim, FileDevice, Holder, OpenError};
use nilfs_engine::MountOptions;
use nilfs_fuse::Mounted;
use rustix::fs::FlockOperation;

use crate::administration::{mount_of, open_for_change};
use crate::threads;

/// A device, for as long as the mount lasts.
pub struct Opened {
    pub device: FileDevice,
    /// For a mount of the past beside a writer.
    pub beside: Option<Beside>,
}

/// What protects a reader from those who write.
pub struct Beside {
    /// From the one who is writing now: he writes nowhere where something is to be read.
    _claim: Claim,
    /// From the next, who would not know of it: a lock that keeps him out, once it is there.
    _lock: JoinHandle<io::Result<File>>,
}

/// Opens the device. After umount(8), which does not wait, the process that served the volume may
/// still be writing: it is given some time. Who else has the device will not leave by itself.
pub fn open(device: &Path, options: &MountOptions) -> anyhow::Result<Opened> {
    const PATIENCE: Duration = Duration::from_secs(10);
    const PAUSE: Duration = Duration::from_millis(20);
    let started = Instant::now();
    loop {
        let opened = match options.read_only {
            true => FileDevice::open(device, Access::ReadOnly),
            false => open_for_change(device),
        };
        let busy = match opened {
            Ok(device) => return Ok(Opened { device, beside: None }),
            Err(error @ OpenError::Busy { .. }) => error,
            Err(error) => return Err(error.into()),
        };
        let mounted = mount_of(device)?;
        if options.checkpoint.is_some() && mounted.as_ref().is_some_and(is_writer) {
            return open_beside(device);
        }
        let OpenError::Busy { holder, .. } = &busy else { return Err(busy.into()) };
        let may_leave = matches!(holder, Holder::Process { .. } | Holder::Unknown);
        if !may_leave || mounted.is_some() || started.elapsed() >= PATIENCE {
            return Err(busy.into());
        }
        sleep(PAUSE);
    }
}

/// Whether a mount is one of ours that writes.
fn is_writer(mounted: &Mounted) -> bool {
    mounted.is_nilfs() && !mounted.is_read_only()
}

/// Opens the device of a volume that we are serving for writing.
fn open_beside(path: &Path) -> anyhow::Result<Opened> {
    let device = FileDevice::open(path, Access::Inspect)?;
    let claim = nilfs_engine::claim_for_reading(&device).with_context(|| {
        format!("cannot tell the process that writes to {} of another reader", path.display())
    })?;
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let lock = threads::start("claim", move || {
        rustix::io::retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::LockShared))?;
        Ok(file)
    })?;
    Ok(Opened { device, beside: Some(Beside { _claim: claim, _lock: lock }) })
}

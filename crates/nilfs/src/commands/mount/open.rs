//! Getting hold of the device of a volume that is to be mounted.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nilfs_device::{Access, FileDevice, Holder, OpenError};
use nilfs_engine::MountOptions;
use nilfs_fuse::Mounted;

use crate::administration::mount_of;

/// Opens the device. After umount(8), which does not wait, the process that served the volume may
/// still be writing: it is given some time. Who else has the device will not leave by itself. A
/// checkpoint that is named can be read beside one of us who writes.
pub fn open(device: &Path, options: &MountOptions) -> anyhow::Result<FileDevice> {
    const PATIENCE: Duration = Duration::from_secs(10);
    const PAUSE: Duration = Duration::from_millis(20);
    let access = if options.read_only { Access::ReadOnly } else { Access::ReadWrite };
    let started = Instant::now();
    loop {
        let busy = match FileDevice::open(device, access) {
            Ok(device) => return Ok(device),
            Err(error @ OpenError::Busy { .. }) => error,
            Err(error) => return Err(error.into()),
        };
        let mounted = mount_of(device)?;
        if options.checkpoint.is_some() && mounted.as_ref().is_some_and(is_writer) {
            return Ok(FileDevice::open(device, Access::Inspect)?);
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

//! Opening a device or image that another process may just be letting go of.
//!
//! Where umount(8) does not wait, the process that served a volume goes on for a while: it writes
//! what is left. The next program that wants the volume waits for it.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nilfs_device::{Access, FileDevice, Holder, OpenError};
use nilfs_fuse::{Mounted, says_nobody_serves};

use crate::administration::mount_of;
use crate::exit::{Failure, Status};
use crate::output::say;

/// How long to wait for a process that does not say that it is letting go of the device: one of
/// ours that has not noticed yet that its volume is unmounted, or one that looks at every new
/// device.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// Processes that let go of a device by themselves, if it is not mounted.
const PASSING: [&str; 3] = ["nilfs", "(udev-worker)", "systemd-udevd"];

/// Opens a device or image, as [`FileDevice::open`] does, once nobody is letting go of it any more.
///
/// # Errors
/// See [`OpenError`]; one that is mounted is in use, with the name of the directory.
pub fn open(path: &Path, access: Access) -> anyhow::Result<FileDevice> {
    open_or_advise(path, access, |_| None)
}

/// Opens a device or image as [`open`] does. If it is mounted, the error ends with an `advice`.
///
/// # Errors
/// As [`open`].
pub fn open_or_advise(
    path: &Path,
    access: Access,
    advice: impl Fn(&Mounted) -> Option<String>,
) -> anyhow::Result<FileDevice> {
    let mut told = false;
    let mut started = Instant::now();
    loop {
        let busy = match FileDevice::open(path, access) {
            Err(busy @ OpenError::Busy { .. }) => busy,
            result => return Ok(result?),
        };
        let OpenError::Busy { holder, below, .. } = &busy else { return Err(busy.into()) };
        if nilfs_device::is_ending(path).unwrap_or(false) {
            if !told {
                let path = path.display();
                say!("nilfs: waiting for {holder}, which is finishing with {path}");
                told = true;
            }
            nilfs_device::wait_for_end(path).ok();
            started = Instant::now();
            continue;
        }
        let mounted = mount_of(below.as_deref().unwrap_or(path)).ok().flatten();
        if let Some(mounted) = mounted {
            return Err(mounted_on(path, &mounted, &busy, advice).into());
        }
        let passes = match holder {
            Holder::Process { name, .. } => PASSING.contains(&name.as_str()),
            // Somebody looks at it still.
            Holder::Loop(device) => nilfs_fuse::lends_its_name(device),
            Holder::Unknown => true,
            Holder::Mount(_) | Holder::Above(_) => false,
        };
        if !passes || started.elapsed() >= PATIENCE {
            return Err(busy.into());
        }
        thread::sleep(PAUSE);
    }
}

/// The message about a device that is mounted; the process that served it may be gone.
fn mounted_on(
    path: &Path,
    mounted: &Mounted,
    busy: &OpenError,
    advice: impl Fn(&Mounted) -> Option<String>,
) -> Failure {
    let dir = &mounted.dir;
    let is_served = !std::fs::metadata(dir).is_err_and(|error| says_nobody_serves(&error));
    let (path, dir) = (path.display(), dir.display());
    let message = match busy {
        _ if !is_served => {
            format!("{path} is in use by the mount on {dir}, whose process is gone; unmount {dir}")
        }
        OpenError::Busy { holder: Holder::Process { .. }, .. } => {
            let advice = advice(mounted).map(|advice| format!("; {advice}")).unwrap_or_default();
            format!("{busy}; it is mounted on {dir}{advice}")
        }
        _ => busy.to_string(),
    };
    Failure::new(Status::Busy, message)
}

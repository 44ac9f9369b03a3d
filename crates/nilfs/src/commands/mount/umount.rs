//! `nilfs umount`: unmounts, and waits until everything is on the device.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use nilfs_fuse::Mounted;
use rustix::io::Errno;

use crate::exit::{Failure, Status};

/// Unmount a volume and wait until it is clean
#[derive(Debug, clap::Args)]
pub struct UmountArgs {
    /// The directory on which it is mounted
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Unmounts; when this returns, the process that served the volume has let go of it.
pub fn umount(args: UmountArgs) -> anyhow::Result<()> {
    let dir = absolute(&args.dir).with_context(|| format!("cannot find {}", args.dir.display()))?;
    let refuse = |why: String| Failure::new(Status::Failed, format!("{} {why}", dir.display()));
    let mounted = Mounted::on(&dir).ok_or_else(|| refuse("is not mounted".into()))?;
    if !mounted.is_nilfs() {
        let file_system = mounted.file_system;
        return Err(refuse(format!("is a mount of {file_system}; use umount for it")).into());
    }
    // Before unmounting: the path is known to name the right file while the volume is mounted.
    let volume = File::open(&mounted.source);
    nilfs_fuse::unmount(&dir)?;
    let volume = volume.with_context(|| {
        format!("unmounted, but cannot see when {} is clean", mounted.source.display())
    })?;
    wait_for_release(&volume, !mounted.is_read_only())
        .with_context(|| format!("unmounted, but cannot wait for {}", mounted.source.display()))
}

/// The path without symbolic links, also that of a mount whose process is gone, which cannot be
/// looked at.
fn absolute(dir: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(dir) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOTCONN) => {
            let dir = std::path::absolute(dir)?;
            match (dir.parent(), dir.file_name()) {
                (Some(parent), Some(name)) => Ok(fs::canonicalize(parent)?.join(name)),
                _ => Err(error),
            }
        }
        result => result,
    }
}

/// Waits until nobody writes to the volume, if it was `written` through this mount. One who reads
/// it, as the process of a read-only mount did, is given a moment to leave, since others may stay.
fn wait_for_release(volume: &File, written: bool) -> io::Result<()> {
    const PAUSE: Duration = Duration::from_millis(10);
    const MOST_PAUSES: u32 = 20;
    while written && nilfs_device::is_written(volume)? {
        thread::sleep(PAUSE);
    }
    for _ in 0..MOST_PAUSES {
        if !nilfs_device::is_read(volume)? {
            break;
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}

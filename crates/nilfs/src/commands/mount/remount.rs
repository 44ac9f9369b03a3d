//! `nilfs mount -o remount`: a mounted volume becomes read-only, or writable again.
//!
//! The kernel comes first on the way to read-only, so that it passes on what it has kept back and
//! refuses programs that still write; then the process that serves the volume closes it. On the way
//! back that process comes first.

use std::path::Path;

use nilfs_fuse::Mounted;

use super::options;
use crate::control::Client;
use crate::exit::{Failure, Status};

/// Changes the mount on `dir`.
pub fn remount(dir: &Path, lists: &[String]) -> anyhow::Result<()> {
    let refuse = |why: String| Failure::new(Status::Failed, format!("{} {why}", dir.display()));
    let absolute =
        std::fs::canonicalize(dir).map_err(|error| refuse(format!("cannot be found: {error}")))?;
    let mounted = Mounted::on(&absolute).ok_or_else(|| refuse("is not mounted".into()))?;
    if !mounted.is_nilfs() {
        return Err(refuse(format!("is a mount of {}", mounted.file_system)).into());
    }
    if !rustix::process::geteuid().is_root() {
        let message = "only the superuser can remount; unmount the volume and mount it again";
        return Err(Failure::new(Status::CannotMount, message).into());
    }
    let process = Client::new(&absolute);
    match options::access(lists) {
        Some(true) => {
            process.remount(options::without_access(lists))?;
            nilfs_fuse::remount(&mounted, true)?;
            process.remount(vec!["ro".into()])?;
        }
        Some(false) => {
            process.remount(lists.to_vec())?;
            if let Err(error) = nilfs_fuse::remount(&mounted, false) {
                process.remount(vec!["ro".into()])?;
                return Err(error.into());
            }
        }
        None => process.remount(lists.to_vec())?,
    }
    Ok(())
}

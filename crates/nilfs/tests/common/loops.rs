//! Loop devices, for tests of what only block devices do.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A loop device, detached at the end.
pub struct Loop(pub PathBuf);

impl Loop {
    /// Attaches one to an image. `None` if there are no loop devices here.
    pub fn attach(image: &Path) -> Option<Self> {
        let losetup = Command::new("losetup").args(["--find", "--show"]).arg(image).output();
        let losetup = losetup.ok().filter(|losetup| losetup.status.success())?;
        Some(Self(String::from_utf8(losetup.stdout).unwrap().trim().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

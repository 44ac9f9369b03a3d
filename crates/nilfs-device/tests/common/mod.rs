//! What the tests of loop devices have in common.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::TempDir;

pub const SIZE: u64 = 8 << 20;

/// A loop device, detached at the end.
pub struct Loop(pub PathBuf);

impl Loop {
    /// Lets a loop device show `file`.
    pub fn attach(options: &[&str], file: &Path) -> Self {
        let mut losetup = Command::new("losetup");
        let losetup = losetup.args(["--find", "--show"]).args(options).arg(file);
        let output = losetup.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self(String::from_utf8(output.stdout).unwrap().trim().into())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

pub struct Image {
    pub path: PathBuf,
    _directory: TempDir,
    _alone: MutexGuard<'static, ()>,
}

/// The tests run one at a time: a program that one of them is just starting would have for a moment
/// what another has open, and so would keep a device claimed that the other lets go of.
static ALONE: Mutex<()> = Mutex::new(());

/// An image, or `None` where there can be no loop device.
pub fn image() -> Option<Image> {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/loop-control").exists() {
        eprintln!("not tested: only root can set up a loop device");
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("with a space.img");
    File::create(&path).unwrap().set_len(SIZE).unwrap();
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    Some(Image { path, _directory: directory, _alone })
}

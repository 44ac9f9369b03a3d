//! The limit: [`crate::null_fs`] in a process of its own, as a FUSE daemon is; once for each way that
//! requests take.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::{FileSystem, OURS, OURS_BY_IO_URING, io_uring};
use crate::mount::Mount;

/// The FUSE file system that does nothing. It has no image.
pub struct Null {
    uring: bool,
}

impl Null {
    /// Through `/dev/fuse`.
    pub const BY_DEVICE: Self = Self { uring: false };
    /// Through io_uring.
    pub const BY_IO_URING: Self = Self { uring: true };
}

impl FileSystem for Null {
    fn name(&self) -> &'static str {
        if self.uring { "null-uring" } else { "null" }
    }

    fn what(&self) -> &'static str {
        match self.uring {
            true => "the same, with requests that come through io_uring",
            false => "a FUSE file system that does nothing, on our transport: its limit",
        }
    }

    /// Ours, on the same transport.
    fn references(&self) -> &'static [&'static str] {
        if self.uring { &[OURS_BY_IO_URING] } else { &[OURS] }
    }

    fn format(&self, _image: &Path) -> Result<()> {
        Ok(())
    }

    fn mount(&self, _image: &Path, dir: &Path) -> Result<Mount> {
        let program = std::env::current_exe().context("cannot find this program itself")?;
        let mut serve = Command::new(program);
        serve.arg("null-fs").arg(dir);
        match self.uring {
            true => io_uring::allowed(|| Mount::by_daemon(dir, serve.arg("--uring"))),
            false => Mount::by_daemon(dir, &mut serve),
        }
    }

    fn persistent(&self) -> bool {
        false
    }
}

//! The limit: [`crate::null_fs`] in a process of its own, as a FUSE daemon is; once for each way that
//! requests take.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::{FileSystem, OURS, OURS_BY_IO_URING, io_uring};
use crate::mount::Mount;

/// The FUSE file system that does nothing, or nothing but keep data.
pub struct Null {
    uring: bool,
    keeps_data: bool,
}

impl Null {
    /// Through `/dev/fuse`.
    pub const BY_DEVICE: Self = Self { uring: false, keeps_data: false };
    /// Through io_uring.
    pub const BY_IO_URING: Self = Self { uring: true, keeps_data: false };
    /// Through `/dev/fuse`, with data on the image.
    pub const WITH_DATA: Self = Self { uring: false, keeps_data: true };
    /// Through io_uring, with data on the image.
    pub const WITH_DATA_BY_IO_URING: Self = Self { uring: true, keeps_data: true };
}

impl FileSystem for Null {
    fn name(&self) -> &'static str {
        match (self.keeps_data, self.uring) {
            (false, false) => "null",
            (false, true) => "null-uring",
            (true, false) => "null-data",
            (true, true) => "null-data-uring",
        }
    }

    fn what(&self) -> &'static str {
        match (self.keeps_data, self.uring) {
            (_, true) => "the same, with requests that come through io_uring",
            (false, _) => "a FUSE file system that does nothing, on our transport: its limit",
            (true, _) => {
                "one that does nothing but keep data on the image: the limit with a device, for the \
                 rows of large files and fsyncs"
            }
        }
    }

    /// Ours, on the same transport.
    fn references(&self) -> &'static [&'static str] {
        if self.uring { &[OURS_BY_IO_URING] } else { &[OURS] }
    }

    fn format(&self, _image: &Path) -> Result<()> {
        Ok(())
    }

    fn mount(&self, image: &Path, dir: &Path) -> Result<Mount> {
        let program = std::env::current_exe().context("cannot find this program itself")?;
        let mut serve = Command::new(program);
        serve.arg("null-fs").arg(dir);
        if self.keeps_data {
            serve.arg("--image").arg(image);
        }
        match self.uring {
            true => io_uring::allowed(|| Mount::by_daemon(dir, serve.arg("--uring"))),
            false => Mount::by_daemon(dir, &mut serve),
        }
    }

    fn persistent(&self) -> bool {
        false
    }
}

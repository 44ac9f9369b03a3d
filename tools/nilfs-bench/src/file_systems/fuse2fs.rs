//! ext4 through FUSE: what a user without a kernel driver would pick.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::FileSystem;
use super::kernel::mke2fs;
use crate::command;
use crate::mount::Mount;

/// fuse2fs of e2fsprogs.
pub struct Fuse2fs;

impl FileSystem for Fuse2fs {
    fn name(&self) -> &'static str {
        "fuse2fs"
    }

    fn what(&self) -> &'static str {
        "ext4 through FUSE, by e2fsprogs' fuse2fs"
    }

    fn format(&self, image: &Path) -> Result<()> {
        command::run(mke2fs("nodiscard").arg(image))
    }

    fn mount(&self, image: &Path, dir: &Path) -> Result<Mount> {
        Mount::by_daemon(dir, Command::new("fuse2fs").arg("-f").arg(image).arg(dir))
    }
}

//! Ours, by the commands that its users type; once for each way that requests take.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{FileSystem, OURS, OURS_BY_IO_URING, io_uring};
use crate::command;
use crate::mount::Mount;

/// The `nilfs` command.
pub struct Nilfs {
    program: PathBuf,
    uring: bool,
}

impl Nilfs {
    /// Through `/dev/fuse`. `program` is the path of the command.
    pub fn by_device(program: &Path) -> Self {
        Self { program: program.to_owned(), uring: false }
    }

    /// Through io_uring.
    pub fn by_io_uring(program: &Path) -> Self {
        Self { program: program.to_owned(), uring: true }
    }

    /// The command that mounts, without its arguments' ends.
    fn mount_command(&self) -> Command {
        let mut mount = Command::new(&self.program);
        mount.args(["mount", "-o", if self.uring { "transport=uring" } else { "transport=dev" }]);
        mount
    }

    /// Mounts, where requests are to come through io_uring while that is allowed.
    fn switched(&self, mount: impl FnOnce() -> Result<Mount>) -> Result<Mount> {
        if self.uring { io_uring::allowed(mount) } else { mount() }
    }
}

impl FileSystem for Nilfs {
    fn name(&self) -> &'static str {
        if self.uring { OURS_BY_IO_URING } else { OURS }
    }

    fn what(&self) -> &'static str {
        match self.uring {
            true => "the same, with requests that come through io_uring",
            false => "NILFS2 through FUSE, by this project; requests come through /dev/fuse",
        }
    }

    /// The two ways with each other.
    fn references(&self) -> &'static [&'static str] {
        &[OURS]
    }

    fn format(&self, image: &Path) -> Result<()> {
        let mut mkfs = Command::new(&self.program);
        command::run(mkfs.args(["mkfs", "-f", "-K"]).arg(image))
    }

    fn mount(&self, image: &Path, dir: &Path) -> Result<Mount> {
        let mut unmount = Command::new(&self.program);
        unmount.arg("umount").arg(dir);
        let mut mount = self.mount_command();
        mount.arg(image).arg(dir);
        self.switched(|| Mount::by_command(dir, &mut mount, Some(unmount)))
    }

    fn mount_by_child(&self, image: &Path, dir: &Path) -> Result<Mount> {
        let mut mount = self.mount_command();
        mount.arg("--foreground").arg(image).arg(dir);
        self.switched(|| Mount::by_daemon(dir, &mut mount))
    }

    fn requests(&self, dir: &Path) -> Result<Option<u64>> {
        let output = Command::new(&self.program).args(["metrics", "--json"]).arg(dir).output();
        let output = output.context("cannot run `nilfs metrics`")?;
        let metrics: Value = serde_json::from_slice(&output.stdout)
            .context("`nilfs metrics --json` printed something else")?;
        let operations = metrics["operations"].as_array().into_iter().flatten();
        Ok(Some(operations.filter_map(|operation| operation["count"].as_u64()).sum()))
    }
}

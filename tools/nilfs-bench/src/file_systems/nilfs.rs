//! Ours, by the commands that its users type.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::{FileSystem, OURS};
use crate::command;
use crate::mount::Mount;

/// The `nilfs` command.
pub struct Nilfs {
    program: PathBuf,
}

impl Nilfs {
    /// `program` is the path of the command.
    pub fn new(program: &Path) -> Self {
        Self { program: program.to_owned() }
    }
}

impl FileSystem for Nilfs {
    fn name(&self) -> &'static str {
        OURS
    }

    fn what(&self) -> &'static str {
        "NILFS2 through FUSE, by this project"
    }

    fn format(&self, image: &Path) -> Result<()> {
        let mut mkfs = Command::new(&self.program);
        command::run(mkfs.args(["mkfs", "-f", "-K"]).arg(image))
    }

    fn mount(&self, image: &Path, dir: &Path) -> Result<Mount> {
        let mut mount = Command::new(&self.program);
        mount.arg("mount").arg(image).arg(dir);
        let mut unmount = Command::new(&self.program);
        unmount.arg("umount").arg(dir);
        Mount::by_command(dir, &mut mount, Some(unmount))
    }

    fn mount_killable(&self, image: &Path, dir: &Path) -> Result<Mount> {
        let mut mount = Command::new(&self.program);
        mount.args(["mount", "--foreground"]).arg(image).arg(dir);
        Mount::by_daemon(dir, &mut mount)
    }
}

//! File systems of the host's kernel, on a loop device.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::FileSystem;
use crate::command;
use crate::mount::Mount;

/// A file system of the kernel: its name and how to format it.
pub struct Kernel {
    name: &'static str,
    what: &'static str,
    mkfs: fn() -> Command,
}

impl Kernel {
    /// ext4, with the work that it would do in the background after the first mount done at once.
    pub const EXT4: Self = Self {
        name: "ext4",
        what: "the host kernel's ext4 on a loop device",
        mkfs: || mke2fs("nodiscard,lazy_itable_init=0,lazy_journal_init=0"),
    };
    /// btrfs as mkfs.btrfs makes it.
    pub const BTRFS: Self =
        Self { name: "btrfs", what: "the host kernel's btrfs on a loop device", mkfs: mkfs_btrfs };
}

/// Makes ext4, with extended options.
pub fn mke2fs(extended: &str) -> Command {
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-q", "-F", "-t", "ext4", "-E", extended]);
    // In an image, it would zero ranges by taking their blocks away.
    mke2fs.env("UNIX_IO_NOZEROOUT", "1");
    mke2fs
}

fn mkfs_btrfs() -> Command {
    let mut mkfs = Command::new("mkfs.btrfs");
    mkfs.args(["-q", "-f", "-K"]);
    mkfs
}

impl FileSystem for Kernel {
    fn name(&self) -> &'static str {
        self.name
    }

    fn what(&self) -> &'static str {
        self.what
    }

    fn format(&self, image: &Path) -> Result<()> {
        command::run((self.mkfs)().arg(image))
    }

    /// `-o loop` ties the life of the loop device to the mount: nothing is left to detach.
    fn mount(&self, image: &Path, dir: &Path) -> Result<Mount> {
        let mut mount = Command::new("mount");
        mount.args(["-t", self.name, "-o", "loop,nodiscard"]).arg(image).arg(dir);
        Mount::by_command(dir, &mut mount, None)
    }
}

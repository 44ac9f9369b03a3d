//! File systems of the host's kernel, on a loop device.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::{FileSystem, create_sparse};
use crate::command;
use crate::mount::Mount;

/// A file system of the kernel: its name and how to format it.
pub struct Kernel {
    name: &'static str,
    what: &'static str,
    mkfs: &'static [&'static str],
}

impl Kernel {
    /// ext4, with the work that it would do in the background after the first mount done at once.
    pub const EXT4: Self = Self {
        name: "ext4",
        what: "the host kernel's ext4 on a loop device",
        mkfs: &["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
    };
    /// btrfs as mkfs.btrfs makes it.
    pub const BTRFS: Self = Self {
        name: "btrfs",
        what: "the host kernel's btrfs on a loop device",
        mkfs: &["mkfs.btrfs", "-q", "-f"],
    };
}

impl FileSystem for Kernel {
    fn name(&self) -> &'static str {
        self.name
    }

    fn what(&self) -> &'static str {
        self.what
    }

    fn format(&self, image: &Path, size_bytes: u64) -> Result<()> {
        create_sparse(image, size_bytes)?;
        command::run(Command::new(self.mkfs[0]).args(&self.mkfs[1..]).arg(image))
    }

    /// `-o loop` ties the life of the loop device to the mount: nothing is left to detach.
    fn mount(&self, image: &Path, dir: &Path) -> Result<Mount> {
        let mut mount = Command::new("mount");
        mount.args(["-t", self.name, "-o", "loop"]).arg(image).arg(dir);
        Mount::by_command(dir, &mut mount, None)
    }
}

//! Images that nilfs-utils' mkfs.nilfs2 makes.

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::process::Command;

use crate::error::{Error, Result, host};

/// How to make an image with mkfs.nilfs2: a size, and the options that are not left to it.
#[derive(Debug, Clone)]
pub struct LinuxImage {
    size_bytes: u64,
    options: Vec<OsString>,
}

impl LinuxImage {
    /// An image of this size, with what mkfs.nilfs2 chooses by itself.
    pub fn of_size(size_bytes: u64) -> Self {
        Self { size_bytes, options: Vec::new() }
    }

    /// Sets the block size in bytes (`-b`).
    pub fn block_size(self, bytes: u32) -> Self {
        self.option("-b", bytes.to_string())
    }

    /// Sets the number of blocks in a segment (`-B`).
    pub fn blocks_per_segment(self, blocks: u32) -> Self {
        self.option("-B", blocks.to_string())
    }

    /// Sets an option of mkfs.nilfs2 that has a value.
    pub fn option(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.options.extend([name.into(), value.into()]);
        self
    }

    /// Makes the image, a sparse file in place of whatever is at `path`.
    pub fn make(&self, path: &Path) -> Result<()> {
        File::create(path)
            .and_then(|file| file.set_len(self.size_bytes))
            .map_err(host("make an image at", path))?;
        let mut command = Command::new("/usr/sbin/mkfs.nilfs2");
        command.arg("-q").args(&self.options).arg(path);
        let output = command.output().map_err(host("run", Path::new("/usr/sbin/mkfs.nilfs2")))?;
        if output.status.success() {
            return Ok(());
        }
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(Error::Program { command: format!("{command:?}"), stderr })
    }
}

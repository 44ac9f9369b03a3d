//! The limit: [`crate::null_fs`] in a process of its own, as a FUSE daemon is.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::FileSystem;
use crate::mount::Mount;

/// The FUSE file system that does nothing. It has no image.
pub struct Null;

impl FileSystem for Null {
    fn name(&self) -> &'static str {
        "null"
    }

    fn what(&self) -> &'static str {
        "a FUSE file system that does nothing: the limit of the transport"
    }

    fn format(&self, _image: &Path) -> Result<()> {
        Ok(())
    }

    fn mount(&self, _image: &Path, dir: &Path) -> Result<Mount> {
        let program = std::env::current_exe().context("cannot find this program itself")?;
        Mount::by_daemon(dir, Command::new(program).arg("null-fs").arg(dir))
    }

    fn persistent(&self) -> bool {
        false
    }
}

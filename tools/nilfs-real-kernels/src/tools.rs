//! Programs of this workspace, built for the tests of any crate.
//!
//! Cargo builds a dependency's library but not its programs, so the first test that needs them
//! builds them, in the same target directory and with the same cargo.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::error::{Error, Result, host};

/// The programs `manifest` and `fill`, as files of the host.
#[derive(Debug)]
pub struct Tools {
    directory: PathBuf,
}

impl Tools {
    /// Builds the programs, once in the life of this process.
    pub fn get() -> Result<&'static Self> {
        static TOOLS: OnceLock<std::result::Result<Tools, String>> = OnceLock::new();
        TOOLS
            .get_or_init(|| Self::build().map_err(|error| error.to_string()))
            .as_ref()
            .map_err(|error| Error::Unavailable(error.clone()))
    }

    /// The directory that holds the programs.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// A command that runs `fill` on the host.
    pub fn fill(&self) -> Command {
        Command::new(self.directory.join("fill"))
    }

    /// A command that runs `manifest` on the host.
    pub fn manifest(&self) -> Command {
        Command::new(self.directory.join("manifest"))
    }

    fn build() -> Result<Self> {
        Ok(Self { directory: programs(&["manifest", "fill"])? })
    }
}

/// Builds programs of this workspace as the test that asks for them was built. Returns their directory.
pub fn programs(names: &[&str]) -> Result<PathBuf> {
    let this = env::current_exe().map_err(host("find", Path::new("the running test")))?;
    let directory = this.ancestors().nth(2).unwrap_or(Path::new("/")).to_owned();
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(&cargo);
    command
        .args(["build", "--quiet", "--workspace"])
        .args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")])
        .args(names.iter().flat_map(|name| ["--bin", name]))
        // With a test among them, and out of all of the workspace, they need what `cargo test --workspace`
        // has built, and not the same libraries with other features.
        .args(["--test", "fill"])
        .args(directory.ends_with("release").then_some("--release"))
        .arg("--target-dir")
        .arg(directory.parent().unwrap_or(&directory));
    let output = command.output().map_err(host("run", Path::new(&cargo)))?;
    if output.status.success() {
        return Ok(directory);
    }
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(Error::Program { command: format!("{command:?}"), stderr })
}

//! This crate's own programs, built for the tests of any crate.
//!
//! Cargo builds a dependency's library but not its programs, so the first test that needs them
//! builds them, in the same target directory and with the same cargo.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

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
        let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        let mut command = Command::new(&cargo);
        command
            .args(["build", "--bins", "--message-format=json-render-diagnostics"])
            .args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]);
        let output = command.output().map_err(host("run", Path::new(&cargo)))?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() {
            return Err(Error::Program { command: format!("{command:?}"), stderr });
        }
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .find_map(executable)
            .and_then(|program| program.parent().map(Path::to_owned))
            .map(|directory| Self { directory })
            .ok_or(Error::Program { command: format!("{command:?}"), stderr })
    }
}

/// The program that a line of cargo's report says was built.
fn executable(report: &str) -> Option<PathBuf> {
    let report: Value = serde_json::from_str(report).ok()?;
    Some(PathBuf::from(report.get("executable")?.as_str()?))
}

//! Other names of the command: called as one of the tools of nilfs-utils, or as the helper of
//! mount(8), it behaves as that (docs/nilfs-utils.md). A link of that name to `nilfs` is enough.
//!
//! One file for each tool, with its options, its messages and its exit codes; how options are read
//! is in `words`, how an operand leads to a volume in `volume`. Volumes are used as the
//! subcommands use them, mounted or not.

mod chcp;
mod dumpseg;
mod fsck;
mod lscp;
mod lssu;
mod mkcp;
mod mkfs;
mod mount;
mod nilfs_clean;
mod nilfs_cleanerd;
mod nilfs_resize;
mod nilfs_tune;
mod number;
mod rmcp;
mod umount;
mod volume;
mod words;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, BufRead};
use std::path::Path;
use std::process::ExitCode;

use self::words::Words;
use crate::exit;
use crate::output::{self, say};

/// A program that this one can be.
pub struct Tool {
    /// The name by which it is called.
    name: &'static str,
    /// What it prints for `-h`.
    usage: &'static str,
    /// Its long options, each with the letter that means the same; `help` and `version` are known
    /// everywhere.
    long: &'static [(&'static str, char)],
    /// What comes before a message that says why it failed.
    complaint: &'static str,
    /// Does what the words ask for.
    run: fn(Words) -> anyhow::Result<ExitCode>,
}

/// All of them.
pub const TOOLS: [&Tool; 20] = [
    &chcp::TOOL,
    &dumpseg::TOOL,
    &fsck::FOR_NILFS2,
    &fsck::FOR_FUSE,
    &fsck::FOR_FUSEBLK,
    &lscp::TOOL,
    &lssu::TOOL,
    &mkcp::TOOL,
    &mkfs::TOOL,
    &mount::FOR_NILFS2,
    &mount::FOR_FUSE,
    &mount::FOR_FUSEBLK,
    &nilfs_clean::TOOL,
    &nilfs_cleanerd::TOOL,
    &nilfs_resize::TOOL,
    &nilfs_tune::TOOL,
    &rmcp::TOOL,
    &umount::FOR_NILFS2,
    &umount::FOR_FUSE,
    &umount::FOR_FUSEBLK,
];

/// The exit code of every tool that failed; the helpers of mount(8) have more of them.
const FAILED: u8 = 1;

impl Tool {
    /// The tool that the first word of a command line names.
    pub fn named(program: &OsStr) -> Option<&'static Self> {
        let name = Path::new(program).file_name()?;
        TOOLS.into_iter().find(|tool| name == tool.name)
    }

    /// Does what the other words ask for.
    pub fn run(&'static self, words: impl Iterator<Item = OsString>) -> ExitCode {
        let done = (self.run)(Words::new(self, words));
        let error = match done.and_then(|code| Ok((code, output::flush()?))) {
            Ok((code, ())) => return code,
            Err(error) => error,
        };
        if let Some(Ended(code)) = error.downcast_ref() {
            return ExitCode::from(*code);
        }
        if exit::is_closed_pipe(&error) {
            return ExitCode::SUCCESS;
        }
        self.complain(exit::sentence(&error));
        ExitCode::from(FAILED)
    }

    /// The name by which it is called.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What it prints for `-h`.
    pub fn usage(&self) -> &'static str {
        self.usage
    }

    /// What it prints for `-V`.
    fn version(&self) -> String {
        format!("{} (nilfs {})", self.name, env!("CARGO_PKG_VERSION"))
    }

    /// Says what is wrong.
    fn complain(&self, what: impl fmt::Display) {
        say!("{}{what}", self.complaint);
    }
}

/// Ends the tool with an exit code; all has been said.
#[derive(Debug)]
struct Ended(u8);

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ended with code {}", self.0)
    }
}

impl std::error::Error for Ended {}

/// Asks on standard error; only `y` and `Y` are a yes.
fn confirmed(question: &str) -> io::Result<bool> {
    output::utter(question);
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(answer.starts_with(['y', 'Y']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_is_known_by_its_name_wherever_it_is_installed() {
        let name = |program| Tool::named(OsStr::new(program)).map(|tool| tool.name);
        assert_eq!(name("/usr/bin/lscp"), Some("lscp"));
        assert_eq!(name("mount.nilfs2"), Some("mount.nilfs2"));
        assert_eq!(name("/usr/bin/nilfs"), None);
        assert_eq!(name(""), None);
    }
}
